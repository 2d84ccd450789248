//! What is asked with `grep/<regex>`: the options in the folder's name, the regex in the file's.

use std::fmt;

use super::super::Budget;
use super::super::query_dir::{PROBED_NAMES, ParsedName, decode_lossy, encode};
use crate::name::{Name, RelPath};

/// The name of the folder without options.
pub(in crate::render) const FOLDER: &str = "grep";
/// The most lines of context.
const CONTEXT_MAX: usize = 100;

/// What a folder's name says of all that is asked in it: `grep`, `grep.i.4k.ctx3@*.md`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Options {
    /// Whether letters match in either case.
    pub ignore_case: bool,
    /// How many lines are shown before and behind each that matches.
    pub context: usize,
    /// How large the answer may be.
    pub budget: Option<Budget>,
    /// Which files are searched.
    pub glob: Option<String>,
}

/// A regex, and how to search for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    /// How.
    pub options: Options,
    /// The regex.
    pub regex: String,
    /// Only what is at this path in a worker's folder, or below it, is searched.
    pub under: Option<RelPath>,
}

impl Options {
    /// What a folder's name says; `None` if one of its options is none of ours, or was said twice.
    pub(in crate::render) fn of(folder: &ParsedName<'_>) -> Option<Options> {
        let (budget, others) = folder.budget()?;
        let mut options = Options { budget, glob: folder.target.clone(), ..Options::default() };
        others.into_iter().try_for_each(|word| options.add(word))?;
        Some(options)
    }

    /// Takes one option; `None` if it is none, or was said before.
    fn add(&mut self, word: &str) -> Option<()> {
        if word == "i" {
            return (!std::mem::replace(&mut self.ignore_case, true)).then_some(());
        }
        let lines = word.strip_prefix("ctx")?.parse().ok();
        self.context = lines.filter(|lines| (1..=CONTEXT_MAX).contains(lines) && self.context == 0)?;
        Some(())
    }

    /// What a file's name in such a folder asks for; `None` for a name that tools look for by themselves.
    pub fn ask(&self, name: &Name) -> Option<Query> {
        if is_looked_for(name.as_bytes()) {
            return None;
        }
        // What is no UTF-8 is no regex either.
        Some(Query { options: self.clone(), regex: decode_lossy(name), under: None })
    }
}

/// Whether tools look for a file of this name in any folder that they come to: version control, search tools, editors,
/// desktops. A regex that begins with a dot and a letter is written with `[.]` or `%2E`, and `HEAD` as `[H]EAD`.
fn is_looked_for(name: &[u8]) -> bool {
    PROBED_NAMES.contains(&name)
        || matches!(name, [b'.', second, ..] if second.is_ascii_alphanumeric() || b"_#~".contains(second))
}

impl fmt::Display for Query {
    /// As it is asked, in one of the ways to do so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { ignore_case, context, budget, glob } = &self.options;
        f.write_str(FOLDER)?;
        if *ignore_case {
            f.write_str(".i")?;
        }
        if *context > 0 {
            write!(f, ".ctx{context}")?;
        }
        if let Some(budget) = budget {
            write!(f, ".{}", budget.name())?;
        }
        if let Some(glob) = glob {
            write!(f, "@{}", encode(glob))?;
        }
        write!(f, "/{}", encode(&self.regex))?;
        match &self.under {
            Some(path) => write!(f, " in {}", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::query_dir::QueryDir;
    use super::*;

    fn options(name: &str) -> Option<Options> {
        match QueryDir::parse(&Name::new(name).unwrap())? {
            QueryDir::Grep(options) => Some(options),
            _ => None,
        }
    }

    #[test]
    fn options_stand_in_the_name_in_any_order() {
        let all =
            Options { ignore_case: true, context: 3, budget: Budget::parse("4k").ok(), glob: Some("**/*.md".into()) };
        for name in ["grep.i.4k.ctx3@**%2F*.md", "grep.ctx3.4k.i@**%2F*.md", "grep.i@**%2F*.md.ctx3.4k"] {
            assert_eq!(options(name).as_ref(), Some(&all), "{name}");
        }
        assert_eq!(options("grep"), Some(Options::default()));
        assert_eq!(options("grep.2000tok").unwrap().budget, Budget::parse("2000tok").ok());
        // What may be the end of a file's name is that.
        for glob in ["*.i", "*.1", "*.md", "a@b"] {
            assert_eq!(options(&format!("grep@{glob}")).unwrap().glob.as_deref(), Some(glob));
        }
    }

    #[test]
    fn what_is_no_option_is_no_name_of_ours() {
        for name in [
            "grep.",
            "grep.x",
            "grep.i.i",
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
    fn what_tools_look_for_is_no_question() {
        let ask = |name: &str| Options::default().ask(&Name::new(name).unwrap()).map(|query| query.regex);
        for name in [".git", ".gitignore", ".hg", ".svn", ".jj", ".ignore", ".rgignore", "._x", ".DS_Store", ".Trash-0"]
        {
            assert_eq!(ask(name), None, "{name}");
        }
        for (name, regex) in
            [("[.]git", "[.]git"), ("%2Egit", ".git"), (".*x", ".*x"), ("a%2Fb%", "a/b%"), ("%zz", "%zz")]
        {
            assert_eq!(ask(name).as_deref(), Some(regex), "{name}");
        }
    }

    #[test]
    fn a_query_is_told_as_it_is_asked() {
        let name = |text: &str| Name::new(text).unwrap();
        let query = options("grep@*.md.ctx2.4k").unwrap().ask(&name("a%2Fb")).unwrap();
        assert_eq!(query.to_string(), "grep.ctx2.4k@*.md/a%2Fb");
    }
}
