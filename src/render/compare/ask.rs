//! What is asked with `compare/<a>..<b>`: the options in the folder's name, the workers in the file's.
//!
//! A worker's name may itself hold `..`. So a name is split where that gives names of workers that are there.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use percent_encoding::percent_decode;

use super::super::Budget;
use super::super::clean::one_line;
use super::super::name_collision::{is_index, stored_name};
use super::super::query_dir::{ParsedName, encode, has_word};
use crate::name::{Name, printable};
use crate::view::{Member, VisibleWorkers};

/// The name of the folder without options.
pub(in crate::render) const FOLDER: &str = "compare";
/// What stands between two workers.
const BETWEEN: &[u8] = b"..";
/// The most workers that are compared.
const WORKERS_MAX: usize = 8;
/// A name with more places at which it could be split is split at all of them.
const PLACES_MAX: usize = 64;
/// The longest name of a worker that is not there, in bytes.
const NAME_MAX: usize = 120;
/// What is said with everything that is wrong with a question.
const HOW: &str = "Two to 8 names as in workers/ are compared, with .. between them: compare/A..B. In a name, % is \
                   written %25, and .. can be written %2E%2E.";

/// What a folder's name says of all that is asked in it: `compare`, `compare.4k@section 3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Options {
    /// How large the answer may be.
    pub budget: Option<Budget>,
    /// Words: only what bears on them is shown.
    pub aspect: Option<String>,
}

/// Workers, and how to compare them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    /// How.
    pub options: Options,
    /// The workers as they stand in a file's name.
    names: Arc<[u8]>,
}

impl Options {
    /// What a folder's name says; `None` if one of its options is none of ours, or was said twice.
    pub(in crate::render) fn of(folder: &ParsedName<'_>) -> Option<Options> {
        let (budget, others) = folder.budget()?;
        let aspect = folder.target.clone();
        let is_sound = others.is_empty() && aspect.as_deref().is_none_or(has_word);
        is_sound.then_some(Options { budget, aspect })
    }

    /// What a file's name in such a folder asks for; `None` for a name that tools look for by themselves.
    pub fn ask(&self, name: &Name) -> Option<Query> {
        let is_asked = !name.as_bytes().starts_with(b".") && has_word(&name.to_text());
        is_asked.then(|| Query { options: self.clone(), names: name.as_bytes().into() })
    }
}

impl Query {
    /// To compare workers of these names.
    pub fn of<'a>(options: Options, workers: impl IntoIterator<Item = &'a [u8]>) -> Query {
        let names: Vec<Vec<u8>> = workers.into_iter().map(encoded).collect();
        Query { options, names: names.join(BETWEEN).into() }
    }

    /// How many bytes it takes to keep.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether nobody is named.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The workers that are to be compared, or what is wrong with the question. It goes by the names in the view alone.
    pub(super) fn workers(&self, visible: &VisibleWorkers) -> Result<Vec<Arc<Member>>, String> {
        let find = |part: &[u8]| {
            let name = Name::new(decoded(part)).ok().and_then(|name| stored_name(&name, is_index))?;
            visible.get(&name)
        };
        let is_there = |part: &[u8]| find(part).is_some();
        let mut parts = split(&self.names, &is_there, Prefer::Many);
        let is_sound = |parts: &[&[u8]]| !is_twice(parts) && parts.iter().all(|part| is_there(part));
        if is_twice(&parts) {
            parts = Some(split(&self.names, &is_there, Prefer::Few)).filter(|few| is_sound(few)).unwrap_or(parts);
        }
        let found: Vec<Result<Arc<Member>, &[u8]>> = parts.iter().map(|part| find(part).ok_or(*part)).collect();
        let missing: Vec<String> =
            found.iter().filter_map(|found| found.as_ref().err()).map(|part| named(part)).collect();
        let there: Vec<Arc<Member>> = found.into_iter().filter_map(Result::ok).collect();
        let twice = there
            .iter()
            .enumerate()
            .find(|(at, member)| there.iter().take(*at).any(|earlier| earlier.name == member.name));
        let wrong = match (missing.as_slice(), there.len()) {
            ([one], _) => format!("{one} is no worker here."),
            ([_, _, ..], _) => format!("{} are no workers here.", missing.join(", ")),
            ([], 0 | 1) => "One worker alone cannot be compared.".into(),
            ([], many) if many > WORKERS_MAX => format!("These are {many} workers."),
            ([], _) => match twice {
                Some((_, member)) => format!("{} is named twice.", named(member.name.as_bytes())),
                None => return Ok(there),
            },
        };
        Err(format!("{wrong} {HOW}"))
    }
}

/// A worker's name as it was asked for, safe to print.
fn named(part: &[u8]) -> String {
    one_line(&printable(&decoded(part)), NAME_MAX)
}

fn decoded(part: &[u8]) -> Vec<u8> {
    percent_decode(part).collect()
}

/// A worker's name as a part of a file's, so that it is split nowhere and decoded as it was.
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

/// How a name is split that can be in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefer {
    /// So that most parts are there, and then so that fewest are not.
    Many,
    /// So that fewest parts are not there, and then into as few as can be.
    Few,
}

fn is_twice(parts: &[&[u8]]) -> bool {
    parts.iter().enumerate().any(|(at, part)| parts.iter().take(at).any(|earlier| earlier == part))
}

/// `names` split between workers in the preferred of all ways; of several the one in which the first parts are shortest. What
/// is not there is split wherever it can be.
fn split<'a>(names: &'a [u8], is_there: &dyn Fn(&[u8]) -> bool, prefer: Prefer) -> Vec<&'a [u8]> {
    let places: Vec<usize> =
        names.windows(BETWEEN.len()).enumerate().filter(|(_, two)| *two == BETWEEN).map(|(at, _)| at).collect();
    if places.len() > PLACES_MAX {
        return everywhere(names);
    }
    let ends: Vec<usize> = places.iter().copied().chain([names.len()]).collect();
    // From each place on: the best that can be made of the rest, and where its first part ends.
    let mut best: BTreeMap<usize, ((usize, usize), usize)> = BTreeMap::new();
    // How many parts are there and how many are not, as numbers of which the larger ones are preferred.
    let worth = |(there, missing): (usize, usize)| match prefer {
        Prefer::Many => (there, usize::MAX - missing),
        Prefer::Few => (usize::MAX - missing, usize::MAX - there),
    };
    for start in places.iter().rev().map(|at| at + BETWEEN.len()).chain([0]) {
        for end in ends.iter().copied().filter(|end| *end >= start) {
            let rest = match best.get(&(end + BETWEEN.len())) {
                Some((rest, _)) => *rest,
                None if end == names.len() => (0, 0),
                None => continue,
            };
            let there = usize::from(names.get(start..end).is_some_and(is_there));
            let parts = (rest.0 + there, rest.1 + 1 - there);
            if best.get(&start).is_none_or(|(held, _)| worth(parts) > worth(*held)) {
                best.insert(start, (parts, end));
            }
        }
    }
    let mut parts = Vec::new();
    let mut start = 0;
    while let Some((_, end)) = best.get(&start) {
        let part = names.get(start..*end).unwrap_or_default();
        if is_there(part) {
            parts.push(part)
        } else {
            parts.extend(everywhere(part))
        }
        start = end + BETWEEN.len();
    }
    parts
}

fn everywhere(names: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), names);
    while let Some(at) = rest.windows(BETWEEN.len()).position(|two| two == BETWEEN) {
        let (part, after) = rest.split_at(at);
        parts.push(part);
        rest = after.get(BETWEEN.len()..).unwrap_or_default();
    }
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts
}

impl fmt::Display for Query {
    /// As it is asked, in one of the ways to do so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FOLDER)?;
        if let Some(budget) = &self.options.budget {
            write!(f, ".{}", budget.name())?;
        }
        if let Some(aspect) = &self.options.aspect {
            write!(f, "@{}", encode(aspect))?;
        }
        f.write_char('/')?;
        f.write_str(&printable(&self.names))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::query_dir::QueryDir;
    use super::*;

    fn options(name: &str) -> Option<Options> {
        match QueryDir::parse_at_root(&Name::new(name).unwrap())? {
            QueryDir::Compare(options) => Some(options),
            _ => None,
        }
    }

    fn parts(names: &str, there: &[&str]) -> Vec<String> {
        let is_there = |part: &[u8]| there.contains(&std::str::from_utf8(part).unwrap());
        split(names.as_bytes(), &is_there, Prefer::Many)
            .into_iter()
            .map(|part| String::from_utf8(part.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn options_are_a_size_and_words() {
        let all = Options { budget: Budget::parse("4k").ok(), aspect: Some("section 3".into()) };
        for name in ["compare.4k@section 3", "compare@section%203.4k"] {
            assert_eq!(options(name).as_ref(), Some(&all), "{name}");
        }
        assert_eq!(options("compare"), Some(Options::default()));
        assert_eq!(options("compare.2000tok").unwrap().budget, Budget::parse("2000tok").ok());
        for name in ["compare.", "compare.i", "compare.4k.5k", "compare@", "compare@--", "compares", "compare@x.own"] {
            assert_eq!(options(name), None, "{name}");
        }
    }

    #[test]
    fn what_tools_look_for_is_no_question() {
        let is_asked = |name: &str| Options::default().ask(&Name::new(name).unwrap()).is_some();
        for name in [".git", ".ignore", "._a..b", "...", "....", "~", "-..-", ".a..b"] {
            assert!(!is_asked(name), "{name}");
        }
        for name in ["a", "a..b", "%2Ea..b", "ä..1"] {
            assert!(is_asked(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_split_where_workers_are() {
        for (names, there, wanted) in [
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
            assert_eq!(parts(names, there), wanted, "{names} of {there:?}");
        }
        let long = format!("a{}b", "..x".repeat(700));
        assert_eq!(parts(&long, &["a"]).len(), 701);
    }

    #[test]
    fn names_that_are_typed_are_the_ones_that_are_found() {
        for name in ["a", "a..b", "..", ".a.", "a%41", "a/b", "...", "%2E", "a.b"] {
            let encoded = encoded(name.as_bytes());
            assert!(!encoded.windows(2).any(|two| two == BETWEEN) && !encoded.starts_with(b"."), "{name}");
            assert_eq!(decoded(&encoded), name.as_bytes(), "{name}");
        }
        let query = Query::of(Options::default(), [&b"v..1"[..], b"v2"]);
        assert_eq!(query.to_string(), "compare/v%2E.1..v2");
    }
}
