//! What is asked with `search/<words>`: the options in the folder's name, the words in the file's.

use std::fmt;

use super::super::Budget;
use super::super::query_dir::{PROBED_NAMES, ParsedName, decode_lossy, encode, has_word};
use crate::name::{Name, RelPath};

/// The name of the folder without options.
pub(in crate::render) const FOLDER: &str = "search";

/// What a folder's name says of all that is asked in it: `search`, `search.4k@*.md`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Options {
    /// How large the answer may be.
    pub budget: Option<Budget>,
    /// Which files are searched.
    pub glob: Option<String>,
}

/// Words, and how to search for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    /// How.
    pub options: Options,
    /// The words, with phrases and filters, as they are typed.
    pub words: String,
    /// Only what is at this path in a worker's folder, or below it, is searched.
    pub under: Option<RelPath>,
}

impl Options {
    /// What a folder's name says; `None` if one of its options is none of ours, or was said twice.
    pub(in crate::render) fn of(folder: &ParsedName<'_>) -> Option<Options> {
        let (budget, others) = folder.budget()?;
        others.is_empty().then(|| Options { budget, glob: folder.target.clone() })
    }

    /// What a file's name in such a folder asks for; `None` for a name without a word and for those that tools look for by
    /// themselves, which begin with a dot.
    pub fn ask(&self, name: &Name) -> Option<Query> {
        let words = decode_lossy(name);
        let is_looked_for = name.as_bytes().starts_with(b".") || PROBED_NAMES.contains(&name.as_bytes());
        let is_question = !is_looked_for && has_word(&words);
        is_question.then(|| Query { options: self.clone(), words, under: None })
    }
}

impl fmt::Display for Query {
    /// As it is asked, in one of the ways to do so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FOLDER)?;
        if let Some(budget) = self.options.budget {
            write!(f, ".{}", budget.name())?;
        }
        if let Some(glob) = &self.options.glob {
            write!(f, "@{}", encode(glob))?;
        }
        write!(f, "/{}", encode(&self.words))?;
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
            QueryDir::Search(options) => Some(options),
            _ => None,
        }
    }

    #[test]
    fn options_stand_in_the_name() {
        let all = Options { budget: Budget::parse("4k").ok(), glob: Some("*.md".into()) };
        for name in ["search.4k@*.md", "search@*.md.4k"] {
            assert_eq!(options(name), Some(all.clone()), "{name}");
        }
        for name in ["search.", "search.i", "search.4k.4k", "search@", "searches", "search.own", "search.ctx3"] {
            assert_eq!(options(name), None, "{name}");
        }
    }

    #[test]
    fn only_words_are_a_question() {
        let ask = |name: &str| Options::default().ask(&Name::new(name).unwrap()).map(|query| query.to_string());
        for name in [".git", ".ignore", "...", "%20", "-", "\u{fffd}", ".words", "HEAD"] {
            assert_eq!(ask(name), None, "{name}");
        }
        assert_eq!(ask("a%2Fb \"c d\"").as_deref(), Some("search/a%2Fb \"c d\""));
    }
}
