//! Parses `grep/<regex>`: the directory's name holds the options, the file's name the regex.

use std::fmt;

use super::parsed_name::{PROBED_NAMES, ParsedName, decode_lossy, write_options, write_query};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::text::budget::Budget;

pub const DIR_NAME: &str = "grep";
const CONTEXT_MAX: usize = 100;

/// Options in a directory's name, such as `grep` or `grep.i.4k.ctx3@*.md`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GrepOptions {
    pub ignore_case: bool,
    /// True to find the lines that do not match.
    pub invert_match: bool,
    /// True to list the files with such a line in the order of the answer. No path has this option.
    pub lists_files: bool,
    /// True to list the files without such a line, too. No path has this option.
    pub lists_others: bool,
    pub context: usize,
    pub budget: Option<Budget>,
    /// Glob of the files to search.
    pub glob: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrepQuery {
    pub options: GrepOptions,
    pub regex: String,
    /// Restricts the search to this path in a worker's directory and the files below it.
    pub under: Option<RelPath>,
}

impl GrepOptions {
    /// Parses a directory's name. Returns `None` if an option is unknown or repeated.
    pub(super) fn from_dir_name(name: &ParsedName<'_>) -> Option<GrepOptions> {
        let (budget, others) = name.budget()?;
        let mut options =
            GrepOptions { budget, glob: name.target.clone(), ..GrepOptions::default() };
        others.into_iter().try_for_each(|word| options.add(word))?;
        Some(options)
    }

    fn add(&mut self, word: &str) -> Option<()> {
        let flag = match word {
            "i" => Some(&mut self.ignore_case),
            "v" => Some(&mut self.invert_match),
            _ => None,
        };
        if let Some(flag) = flag {
            return (!std::mem::replace(flag, true)).then_some(());
        }
        let lines = word.strip_prefix("ctx")?.parse().ok();
        self.context =
            lines.filter(|lines| (1..=CONTEXT_MAX).contains(lines) && self.context == 0)?;
        Some(())
    }

    /// Returns the query in a file's name, or `None` for a name that tools probe for.
    pub fn query(&self, name: &Name) -> Option<GrepQuery> {
        if is_probed(name.as_bytes()) {
            return None;
        }
        // Decoding invalid UTF-8 lossily is safe: it is not a valid regex either.
        Some(GrepQuery { options: self.clone(), regex: decode_lossy(name), under: None })
    }
}

/// Returns true if tools probe for files of this name in every directory, as version control,
/// search tools, editors and desktops do.
///
/// A regex that begins with a dot and a letter is written with `[.]` or `%2E`, and `HEAD` as
/// `[H]EAD`.
fn is_probed(name: &[u8]) -> bool {
    PROBED_NAMES.contains(&name)
        || matches!(name, [b'.', second, ..] if second.is_ascii_alphanumeric() || b"_#~".contains(second))
}

impl fmt::Display for GrepQuery {
    /// Formats the query as the path of its answer in the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GrepOptions { ignore_case, invert_match, context, budget, glob, .. } = &self.options;
        f.write_str(DIR_NAME)?;
        if *ignore_case {
            f.write_str(".i")?;
        }
        if *invert_match {
            f.write_str(".v")?;
        }
        if *context > 0 {
            write!(f, ".ctx{context}")?;
        }
        write_options(f, *budget, glob.as_deref())?;
        write_query(f, &self.regex, self.under.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::query_dir::QueryDir;

    fn options(name: &str) -> Option<GrepOptions> {
        match QueryDir::parse(&Name::new(name).unwrap())? {
            QueryDir::Grep(options) => Some(options),
            _ => None,
        }
    }

    #[test]
    fn options_are_parsed_in_any_order() {
        let all = GrepOptions {
            ignore_case: true,
            invert_match: true,
            lists_files: false,
            lists_others: false,
            context: 3,
            budget: Budget::parse("4k").ok(),
            glob: Some("**/*.md".into()),
        };
        for name in [
            "grep.i.v.4k.ctx3@**%2F*.md",
            "grep.ctx3.v.4k.i@**%2F*.md",
            "grep.v.i@**%2F*.md.ctx3.4k",
        ] {
            assert_eq!(options(name).as_ref(), Some(&all), "{name}");
        }
        assert_eq!(options("grep"), Some(GrepOptions::default()));
        assert_eq!(options("grep.2000tok").unwrap().budget, Budget::parse("2000tok").ok());
        // After `@`, a suffix that could end a file name belongs to the glob.
        for glob in ["*.i", "*.1", "*.md", "a@b"] {
            assert_eq!(options(&format!("grep@{glob}")).unwrap().glob.as_deref(), Some(glob));
        }
    }

    #[test]
    fn unknown_options_are_rejected() {
        for name in [
            "grep.",
            "grep.x",
            "grep.i.i",
            "grep.v.v",
            "grep.4k.5k",
            "grep.ctx",
            "grep.ctx0",
            "grep.ctx101",
            "grep@",
            "greps",
            "grep@*.own",
        ] {
            assert_eq!(options(name), None, "{name}");
        }
    }

    #[test]
    fn names_that_tools_probe_for_are_not_queries() {
        let regex_of = |name: &str| {
            GrepOptions::default().query(&Name::new(name).unwrap()).map(|query| query.regex)
        };
        for name in [
            ".git",
            ".gitignore",
            ".hg",
            ".svn",
            ".jj",
            ".ignore",
            ".rgignore",
            "._x",
            ".DS_Store",
            ".Trash-0",
        ] {
            assert_eq!(regex_of(name), None, "{name}");
        }
        for (name, regex) in [
            ("[.]git", "[.]git"),
            ("%2Egit", ".git"),
            (".*x", ".*x"),
            ("a%2Fb%", "a/b%"),
            ("%zz", "%zz"),
        ] {
            assert_eq!(regex_of(name).as_deref(), Some(regex), "{name}");
        }
    }

    #[test]
    fn a_query_is_displayed_as_its_path() {
        let name = |text: &str| Name::new(text).unwrap();
        let query = options("grep.v@*.md.ctx2.4k").unwrap().query(&name("a%2Fb")).unwrap();
        assert_eq!(query.to_string(), "grep.v.ctx2.4k@*.md/a%2Fb");
    }
}
