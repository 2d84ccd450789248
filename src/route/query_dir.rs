//! Directories whose files are answers to queries: `grep/<regex>`, `search/<words>`,
//! `compare/<a>..<b>`.
//!
//! The directory's name holds the options, and the name of a file in it holds the query. Options
//! follow dots and a target follows `@`, in any order: `grep.i.4k@*.md`. Each kind of query
//! interprets its own options.

use std::sync::Arc;

use percent_encoding::percent_decode;

use super::name_collision::OWN_SUFFIX;
use super::{Generated, compare, grep, search};
use crate::name::Name;
use crate::text::budget::Budget;

/// Names without a leading dot that tools probe in every directory. Git probes `HEAD` to detect a
/// bare repository.
pub(super) const PROBED_NAMES: [&[u8]; 1] = [b"HEAD"];

/// A kind of query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueryKind {
    /// `grep/<regex>`: the lines that match.
    Grep,
    /// `search/<words>`: the passages relevant to the words.
    Search,
    /// `compare/<a>..<b>`: what workers share and where they differ. At the root only.
    Compare,
}

impl QueryKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [QueryKind; 3] = [QueryKind::Grep, QueryKind::Search, QueryKind::Compare];

    /// Returns the directory's name, without options.
    pub fn name(self) -> &'static str {
        match self {
            QueryKind::Grep => grep::FOLDER,
            QueryKind::Search => search::FOLDER,
            QueryKind::Compare => compare::FOLDER,
        }
    }

    /// Returns the text of README.md in the directory, which explains the queries.
    pub(crate) fn readme(self) -> &'static str {
        match self {
            QueryKind::Grep => include_str!("grep/README.md"),
            QueryKind::Search => include_str!("search/README.md"),
            QueryKind::Compare => include_str!("compare/README.md"),
        }
    }

    /// Returns the directory without options.
    pub fn default_dir(self) -> QueryDir {
        match self {
            QueryKind::Grep => QueryDir::Grep(grep::Options::default()),
            QueryKind::Search => QueryDir::Search(search::Options::default()),
            QueryKind::Compare => QueryDir::Compare(compare::Options::default()),
        }
    }

    fn is_root_only(self) -> bool {
        self == QueryKind::Compare
    }
}

/// A directory of queries, with its options.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueryDir {
    /// Takes a regex.
    Grep(grep::Options),
    /// Takes words.
    Search(search::Options),
    /// Takes the names of the workers to compare.
    Compare(compare::Options),
}

impl QueryDir {
    /// Parses the name of a query directory outside the root. Returns `None` for any other name.
    pub fn parse(name: &Name) -> Option<QueryDir> {
        QueryDir::parse_at_root(name).filter(|dir| !dir.kind().is_root_only())
    }

    /// Parses the name of a query directory at the root. Returns `None` for any other name.
    pub fn parse_at_root(name: &Name) -> Option<QueryDir> {
        let parsed = ParsedName::parse(name)?;
        match QueryKind::ALL.into_iter().find(|kind| kind.name() == parsed.word)? {
            QueryKind::Grep => grep::Options::from_folder(&parsed).map(QueryDir::Grep),
            QueryKind::Search => search::Options::from_folder(&parsed).map(QueryDir::Search),
            QueryKind::Compare => compare::Options::parse(&parsed).map(QueryDir::Compare),
        }
    }

    /// Returns the kind of query that the directory takes.
    pub fn kind(&self) -> QueryKind {
        match self {
            QueryDir::Grep(_) => QueryKind::Grep,
            QueryDir::Search(_) => QueryKind::Search,
            QueryDir::Compare(_) => QueryKind::Compare,
        }
    }

    /// Returns the file called `name` in the directory, or `None` if `name` is no valid query.
    pub fn file(&self, name: &Name) -> Option<Generated> {
        if name.as_bytes() == b"README.md" {
            return Some(Generated::QueryReadme(self.kind()));
        }
        match self {
            QueryDir::Grep(options) => options.query(name).map(|query| Generated::Grep(Arc::new(query))),
            QueryDir::Search(options) => options.query(name).map(|query| Generated::Search(Arc::new(query))),
            QueryDir::Compare(options) => options.query(name).map(|query| Generated::Compare(Arc::new(query))),
        }
    }
}

/// The parts of a name such as `grep.i.4k@*.md`.
pub(crate) struct ParsedName<'a> {
    /// The text before the first dot or `@`.
    pub(crate) word: &'a str,
    /// The options.
    pub(crate) options: Vec<&'a str>,
    /// The text after `@`, decoded and never empty.
    pub(crate) target: Option<String>,
}

impl<'a> ParsedName<'a> {
    /// Splits a name into its parts. Returns `None` for a name that ends in `.own`, has nothing
    /// after its `@`, or is not UTF-8.
    pub(crate) fn parse(name: &'a Name) -> Option<ParsedName<'a>> {
        // A worker's own file whose name collides with ours ends in this suffix.
        let text = std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.ends_with(OWN_SUFFIX))?;
        let (words, mut target) = match text.split_once('@') {
            Some((words, target)) => (words, Some(target)),
            None => (text, None),
        };
        let mut words = words.split('.');
        let word = words.next()?;
        let mut options: Vec<&str> = words.collect();
        // After the target, only options that cannot be a file extension are accepted.
        while let Some((before, option)) =
            target.and_then(|target| target.rsplit_once('.')).filter(|(_, word)| is_option(word))
        {
            options.push(option);
            target = Some(before);
        }
        let target = match target {
            Some(target) => Some(decode(target).filter(|target| !target.is_empty())?),
            None => None,
        };
        Some(ParsedName { word, options, target })
    }

    /// Returns the option that is a size, if there is one, and all other options. Returns `None` if
    /// there are several sizes.
    pub(crate) fn budget(&self) -> Option<(Option<Budget>, Vec<&'a str>)> {
        let mut budget = None;
        let mut others = Vec::new();
        for option in &self.options {
            match Budget::parse(option) {
                Ok(_) if budget.is_some() => return None,
                Ok(size) => budget = Some(size),
                Err(_) => others.push(*option),
            }
        }
        Some((budget, others))
    }
}

/// Returns true if `word` at the end of a name is an option: lines of context or a size with a
/// unit.
fn is_option(word: &str) -> bool {
    let is_context = word.strip_prefix("ctx").is_some_and(|lines| lines.bytes().all(|byte| byte.is_ascii_digit()));
    is_context || (!word.bytes().all(|byte| byte.is_ascii_digit()) && Budget::parse(word).is_ok())
}

/// Decodes every `%XX` in `text`. Returns `None` if the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    String::from_utf8(percent_decode(text.as_bytes()).collect()).ok()
}

/// Decodes every `%XX` in `name`. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn decode_lossy(name: &Name) -> String {
    let raw: Vec<u8> = percent_decode(name.as_bytes()).collect();
    String::from_utf8_lossy(&raw).into_owned()
}

/// Returns true if `text` has a letter or digit to search for.
pub fn has_word(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// Encodes `%` and `/` in `text`, so that it can be part of a name.
pub(crate) fn encode(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}
