//! Parses `search/<words>` and `semantic/<words>`: the directory's name holds the options, the
//! file's name the words.

use std::fmt;

use super::parsed_name::{
    PROBED_NAMES, ParsedName, decode_lossy, has_word, write_options, write_query,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::text::budget::Budget;

/// How passages are compared with the words of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SearchMode {
    #[default]
    Words,
    Meaning,
    /// By both together.
    Both,
}

impl SearchMode {
    pub const ALL: [SearchMode; 3] = [SearchMode::Words, SearchMode::Meaning, SearchMode::Both];

    /// Returns the mode with the name `name`.
    pub fn from_name(name: &str) -> Option<SearchMode> {
        SearchMode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// Returns the name that selects the mode.
    pub fn as_str(self) -> &'static str {
        match self {
            SearchMode::Words => "words",
            SearchMode::Meaning => "meaning",
            SearchMode::Both => "both",
        }
    }

    pub fn dir_name(self) -> &'static str {
        match self {
            SearchMode::Words | SearchMode::Both => "search",
            SearchMode::Meaning => "semantic",
        }
    }
}

/// Options in a directory's name, such as `search` or `search.4k@*.md`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SearchOptions {
    pub budget: Option<Budget>,
    pub glob: Option<String>,
    pub mode: SearchMode,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SearchQuery {
    pub options: SearchOptions,
    /// The words, with phrases and filters, as typed.
    pub words: String,
    pub under: Option<RelPath>,
}

impl SearchOptions {
    /// Parses a directory's name. Returns `None` if an option is unknown or repeated.
    pub(super) fn from_dir_name(name: &ParsedName<'_>) -> Option<SearchOptions> {
        let (budget, others) = name.budget()?;
        let is_named = |mode: &SearchMode| mode.dir_name() == name.word;
        let mode = match others.as_slice() {
            [] => [SearchMode::default(), SearchMode::Meaning].into_iter().find(is_named)?,
            [mode] => SearchMode::from_name(mode)
                .filter(|mode| is_named(mode) && *mode != SearchMode::Meaning)?,
            _ => return None,
        };
        Some(SearchOptions { budget, glob: name.target.clone(), mode })
    }

    /// Returns the query in a file's name. Returns `None` for a name without a word, and for names
    /// that tools probe for, which begin with a dot.
    pub fn query(&self, name: &Name) -> Option<SearchQuery> {
        let words = decode_lossy(name);
        let is_probed =
            name.as_bytes().starts_with(b".") || PROBED_NAMES.contains(&name.as_bytes());
        let is_query = !is_probed && has_word(&words);
        is_query.then(|| SearchQuery { options: self.clone(), words, under: None })
    }
}

impl fmt::Display for SearchQuery {
    /// Formats the query as the path of its answer in the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.options.mode;
        f.write_str(mode.dir_name())?;
        if mode != SearchMode::Meaning && mode != SearchMode::default() {
            write!(f, ".{}", mode.as_str())?;
        }
        write_options(f, self.options.budget, self.options.glob.as_deref())?;
        write_query(f, &self.words, self.under.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::query_dir::QueryDir;

    fn options(name: &str) -> Option<SearchOptions> {
        match QueryDir::parse(&Name::new(name).unwrap())? {
            QueryDir::Search(options) => Some(options),
            _ => None,
        }
    }

    #[test]
    fn options_are_parsed_in_any_order() {
        let (budget, glob) = (Budget::parse("4k").ok(), Some("*.md".into()));
        let all = SearchOptions { budget, glob, ..SearchOptions::default() };
        for name in ["search.4k@*.md", "search@*.md.4k"] {
            assert_eq!(options(name), Some(all.clone()), "{name}");
        }
        for name in [
            "search.",
            "search.i",
            "search.4k.4k",
            "search@",
            "searches",
            "search.own",
            "search.ctx3",
            "search.meaning",
            "search.words.both",
            "semantic.words",
        ] {
            assert_eq!(options(name), None, "{name}");
        }
        let mode = |name: &str| options(name).map(|options| options.mode);
        assert_eq!(mode("search.words"), Some(SearchMode::Words));
        assert_eq!(mode("search.4k.both@*.md"), Some(SearchMode::Both));
        assert_eq!(mode("semantic.4k"), Some(SearchMode::Meaning));
    }

    #[test]
    fn only_names_with_words_are_queries() {
        let path = |name: &str| {
            SearchOptions::default().query(&Name::new(name).unwrap()).map(|query| query.to_string())
        };
        for name in [".git", ".ignore", "...", "%20", "-", "\u{fffd}", ".words", "HEAD"] {
            assert_eq!(path(name), None, "{name}");
        }
        assert_eq!(path("a%2Fb \"c d\"").as_deref(), Some("search/a%2Fb \"c d\""));
        for dir in ["semantic.4k@*.md", "search.both"] {
            let query = options(dir).unwrap().query(&Name::new("a").unwrap()).unwrap();
            assert_eq!(query.to_string(), format!("{dir}/a"));
        }
    }
}
