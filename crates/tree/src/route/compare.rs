//! Parses `compare/<a>..<b>`: options from the directory name, workers from the file name.
//!
//! The name of a worker may itself contain `..`, so a file name is split where that yields names of
//! existing workers.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};
use std::sync::Arc;

use percent_encoding::percent_decode;

use super::name_collision::{is_index, stored_name};
use super::parsed_name::{ParsedName, has_word, write_options};
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::error::Error;
use swarmletfs_base::name::{Name, printable};
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::one_line;

pub const DIR_NAME: &str = "compare";
const SEPARATOR: &[u8] = b"..";
const WORKERS_MAX: usize = 8;
/// Maximum number of separators for which all ways to split are tried; a name with more is split at
/// each.
const SPLITS_MAX: usize = 64;
/// Maximum length of a worker name in an error, in bytes.
const NAME_MAX: usize = 120;
const USAGE: &str = "Use two to 8 names from workers/ with .. between them: compare/A..B. In a name, write % as %25; \
                     .. can be written %2E%2E.";

/// Options of a comparison, from the name of its directory: `compare`, `compare.4k@section 3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CompareOptions {
    pub budget: Option<Budget>,
    /// Words that limit the shown differences.
    pub aspect: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CompareQuery {
    pub options: CompareOptions,
    /// Workers as in the file name.
    names: Arc<[u8]>,
}

impl CompareOptions {
    /// Parses the name of a directory. Returns `None` if an option is unknown or repeated, or if
    /// the aspect has no word.
    pub(super) fn from_dir_name(name: &ParsedName<'_>) -> Option<CompareOptions> {
        let (budget, others) = name.budget()?;
        let aspect = name.target.clone();
        let is_valid = others.is_empty() && aspect.as_deref().is_none_or(has_word);
        is_valid.then_some(CompareOptions { budget, aspect })
    }

    /// Returns the query for a file name in the directory, or `None` for a name without a word.
    /// Names that begin with a dot are not queries either, since tools probe for them.
    pub fn query(&self, name: &Name) -> Option<CompareQuery> {
        let is_query = !name.as_bytes().starts_with(b".") && has_word(&name.to_text());
        is_query.then(|| CompareQuery { options: self.clone(), names: name.as_bytes().into() })
    }
}

impl CompareQuery {
    pub fn new<'a>(
        options: CompareOptions,
        workers: impl IntoIterator<Item = &'a [u8]>,
    ) -> CompareQuery {
        let names: Vec<Vec<u8>> = workers.into_iter().map(encoded).collect();
        CompareQuery { options, names: names.join(SEPARATOR).into() }
    }

    /// Returns the size of the worker names, in bytes.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Most workers that one comparison names.
    pub const WORKERS_MAX: usize = WORKERS_MAX;

    /// Returns the workers to compare, found by name in `visible`.
    ///
    /// # Errors
    ///
    /// Returns a message for the user if a name is not a worker or is named twice, or if there are
    /// too few or too many.
    pub fn workers(&self, visible: &VisibleWorkers) -> Result<Vec<Arc<Member>>, String> {
        let find = |part: &[u8]| {
            let name = stored_name(&Name::new(decoded(part))?, is_index).ok_or(Error::NotFound)?;
            visible.find(&name)
        };
        let exists = |part: &[u8]| find(part).is_ok();
        let mut parts = split(&self.names, &exists, SplitPreference::MostFound);
        if has_duplicates(&parts) {
            let fewest = split(&self.names, &exists, SplitPreference::FewestParts);
            if !has_duplicates(&fewest) && fewest.iter().all(|part| exists(part)) {
                parts = fewest;
            }
        }
        let (mut members, mut missing) = (Vec::new(), Vec::new());
        for part in parts {
            match find(part) {
                Ok(member) => members.push(member),
                Err(error @ Error::AmbiguousId(_)) => {
                    return Err(format!("{}: {error}. {USAGE}", display_name(part)));
                }
                Err(_) => missing.push(display_name(part)),
            }
        }
        let duplicate = members.iter().enumerate().find(|(at, member)| {
            members.iter().take(*at).any(|earlier| earlier.name == member.name)
        });
        let problem = match (missing.as_slice(), members.len()) {
            ([name], _) => format!("{name} is not a worker here."),
            ([_, _, ..], _) => format!("{} are not workers here.", missing.join(", ")),
            ([], 0 | 1) => "One worker alone cannot be compared.".into(),
            ([], many) if many > WORKERS_MAX => format!("{many} workers are too many."),
            ([], _) => match duplicate {
                Some((_, member)) => {
                    format!("{} is named twice.", display_name(member.name.as_bytes()))
                }
                None => return Ok(members),
            },
        };
        Err(format!("{problem} {USAGE}"))
    }
}

fn display_name(part: &[u8]) -> String {
    one_line(&printable(&decoded(part)), NAME_MAX)
}

fn decoded(part: &[u8]) -> Vec<u8> {
    percent_decode(part).collect()
}

/// Encodes a worker's name so that it contains no separator and decodes to the original.
fn encoded(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for (at, byte) in name.iter().enumerate() {
        let is_end = at == 0 || at + 1 == name.len();
        let is_doubled = name.get(at + 1) == Some(byte);
        match byte {
            b'.' if is_end || is_doubled => out.extend_from_slice(b"%2E"),
            b'%' => out.extend_from_slice(b"%25"),
            b'/' => out.extend_from_slice(b"%2F"),
            _ => out.push(*byte),
        }
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitPreference {
    /// The most existing workers, then the fewest missing ones.
    MostFound,
    /// The fewest missing workers, then the fewest parts.
    FewestParts,
}

fn has_duplicates(parts: &[&[u8]]) -> bool {
    let mut seen = HashSet::new();
    !parts.iter().all(|part| seen.insert(part))
}

/// Splits `names` into workers in the preferred way; among equal ways the first parts are shortest.
///
/// A part that is not a worker is split at every separator.
fn split<'a>(
    names: &'a [u8],
    exists: &dyn Fn(&[u8]) -> bool,
    prefer: SplitPreference,
) -> Vec<&'a [u8]> {
    let separators: Vec<usize> = names
        .windows(SEPARATOR.len())
        .enumerate()
        .filter(|(_, two)| *two == SEPARATOR)
        .map(|(at, _)| at)
        .collect();
    if separators.len() > SPLITS_MAX {
        return split_everywhere(names);
    }
    let ends: Vec<usize> = separators.iter().copied().chain([names.len()]).collect();
    // Best counts for the rest from each start, with the end of its first part.
    let mut best: BTreeMap<usize, ((usize, usize), usize)> = BTreeMap::new();
    // Maps the counts of existing and missing parts to a key; the larger key is preferred.
    let key = |(existing, missing): (usize, usize)| match prefer {
        SplitPreference::MostFound => (existing, usize::MAX - missing),
        SplitPreference::FewestParts => (usize::MAX - missing, usize::MAX - existing),
    };
    for start in separators.iter().rev().map(|at| at + SEPARATOR.len()).chain([0]) {
        for end in ends.iter().copied().filter(|end| *end >= start) {
            let rest = match best.get(&(end + SEPARATOR.len())) {
                Some((rest, _)) => *rest,
                None if end == names.len() => (0, 0),
                None => continue,
            };
            let existing = usize::from(names.get(start..end).is_some_and(exists));
            let parts = (rest.0 + existing, rest.1 + 1 - existing);
            if best.get(&start).is_none_or(|(known, _)| key(parts) > key(*known)) {
                best.insert(start, (parts, end));
            }
        }
    }
    let mut parts = Vec::new();
    let mut start = 0;
    while let Some((_, end)) = best.get(&start) {
        let Some(part) = names.get(start..*end) else { break };
        if exists(part) {
            parts.push(part)
        } else {
            parts.extend(split_everywhere(part))
        }
        start = end + SEPARATOR.len();
    }
    parts
}

fn split_everywhere(names: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for end in memchr::memmem::find_iter(names, SEPARATOR).chain([names.len()]) {
        parts.extend(names.get(start..end).filter(|part| !part.is_empty()));
        start = end + SEPARATOR.len();
    }
    parts
}

impl fmt::Display for CompareQuery {
    /// Writes the path of the query in the tree, in one of its spellings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DIR_NAME)?;
        write_options(f, self.options.budget, self.options.aspect.as_deref())?;
        f.write_char('/')?;
        f.write_str(&printable(&self.names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::query_dir::QueryDir;

    fn options(name: &str) -> Option<CompareOptions> {
        match QueryDir::parse_at_root(&Name::new(name).unwrap())? {
            QueryDir::Compare(options) => Some(options),
            _ => None,
        }
    }

    fn parts(names: &str, existing: &[&str]) -> Vec<String> {
        let exists = |part: &[u8]| existing.contains(&std::str::from_utf8(part).unwrap());
        split(names.as_bytes(), &exists, SplitPreference::MostFound)
            .into_iter()
            .map(|part| String::from_utf8(part.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn options_are_a_size_and_words() {
        let all =
            CompareOptions { budget: Budget::parse("4k").ok(), aspect: Some("section 3".into()) };
        for name in ["compare.4k@section 3", "compare@section%203.4k"] {
            assert_eq!(options(name).as_ref(), Some(&all), "{name}");
        }
        assert_eq!(options("compare"), Some(CompareOptions::default()));
        assert_eq!(options("compare.2000tok").unwrap().budget, Budget::parse("2000tok").ok());
        for name in [
            "compare.",
            "compare.i",
            "compare.4k.5k",
            "compare@",
            "compare@--",
            "compares",
            "compare@x.own",
        ] {
            assert_eq!(options(name), None, "{name}");
        }
    }

    #[test]
    fn names_that_tools_probe_are_not_queries() {
        let is_query =
            |name: &str| CompareOptions::default().query(&Name::new(name).unwrap()).is_some();
        for name in [".git", ".ignore", "._a..b", "...", "....", "~", "-..-", ".a..b"] {
            assert!(!is_query(name), "{name}");
        }
        for name in ["a", "a..b", "%2Ea..b", "ä..1"] {
            assert!(is_query(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_split_at_existing_workers() {
        for (names, existing, wanted) in [
            ("a..b", &["a", "b"][..], &["a", "b"][..]),
            ("a..b..c", &["a", "b", "c", "a..b"], &["a", "b", "c"]),
            ("a..b..c", &["a..b", "c"], &["a..b", "c"]),
            ("a..b..c", &["a", "b..c"], &["a", "b..c"]),
            ("w..1..2", &["w", "w..1", "2"], &["w..1", "2"]),
            ("a...b", &["a.", "b"], &["a.", "b"]),
            ("a...b", &["a", ".b"], &["a", ".b"]),
            ("a....b", &["a", "..b"], &["a", "..b"]),
            ("a..zz..yy", &["a"], &["a", "zz", "yy"]),
            ("w..1..zz", &["w..1"], &["w..1", "zz"]),
            ("zz..yy", &[], &["zz", "yy"]),
            ("a..", &["a"], &["a"]),
            ("..a", &["a"], &["a"]),
            ("a", &["a"], &["a"]),
        ] {
            assert_eq!(parts(names, existing), wanted, "{names} of {existing:?}");
        }
        let long = format!("a{}b", "..x".repeat(700));
        assert_eq!(parts(&long, &["a"]).len(), 701);
    }

    #[test]
    fn encoded_names_are_decoded_unchanged() {
        for name in ["a", "a..b", "..", ".a.", "a%41", "a/b", "...", "%2E", "a.b"] {
            let encoded = encoded(name.as_bytes());
            assert!(
                !encoded.windows(2).any(|two| two == SEPARATOR) && !encoded.starts_with(b"."),
                "{name}"
            );
            assert_eq!(decoded(&encoded), name.as_bytes(), "{name}");
        }
        let query = CompareQuery::new(CompareOptions::default(), [&b"v..1"[..], b"v2"]);
        assert_eq!(query.to_string(), "compare/v%2E.1..v2");
    }
}
