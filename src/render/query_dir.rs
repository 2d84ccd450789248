//! Folders in which something is asked: the folder's name says how, a file's name in it says what.
//!
//! Options stand behind dots in the folder's name and what they apply to behind `@`, in any order: `grep.i.4k@*.md`. What
//! the words mean is the business of each kind.

use std::sync::Arc;

use percent_encoding::percent_decode;

use super::name_collision::OWN_SUFFIX;
use super::{Budget, Generated, compare, grep, search};
use crate::name::Name;

/// Files without a dot in front that tools look for in any folder that they come to: git, whether it is a bare repository.
pub(super) const PROBED_NAMES: [&[u8]; 1] = [b"HEAD"];

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueryKind {
    /// `grep/<regex>`: the lines that match.
    Grep,
    /// `search/<words>`: the passages that bear on the words.
    Search,
    /// `compare/<a>..<b>`: what workers share and where they differ. At the root only.
    Compare,
}

impl QueryKind {
    /// All of them.
    pub const ALL: [QueryKind; 3] = [QueryKind::Grep, QueryKind::Search, QueryKind::Compare];

    /// The folder's name, without options.
    pub fn name(self) -> &'static str {
        match self {
            QueryKind::Grep => grep::FOLDER,
            QueryKind::Search => search::FOLDER,
            QueryKind::Compare => compare::FOLDER,
        }
    }

    /// How to ask: what README.md in the folder says.
    pub(super) fn readme(self) -> &'static str {
        match self {
            QueryKind::Grep => include_str!("grep/README.md"),
            QueryKind::Search => include_str!("search/README.md"),
            QueryKind::Compare => include_str!("compare/README.md"),
        }
    }

    /// The folder without options.
    pub fn default_dir(self) -> QueryDir {
        match self {
            QueryKind::Grep => QueryDir::Grep(grep::Options::default()),
            QueryKind::Search => QueryDir::Search(search::Options::default()),
            QueryKind::Compare => QueryDir::Compare(compare::Options::default()),
        }
    }

    /// Whether it is asked at the root and nowhere else.
    fn is_root_only(self) -> bool {
        self == QueryKind::Compare
    }
}

/// A folder in which something is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueryDir {
    /// A regex.
    Grep(grep::Options),
    /// Words.
    Search(search::Options),
    /// Workers to be compared.
    Compare(compare::Options),
}

impl QueryDir {
    /// What a folder's name asks for wherever something can be asked; `None` if it is no name of ours there.
    pub fn parse(name: &Name) -> Option<QueryDir> {
        QueryDir::parse_at_root(name).filter(|ask| !ask.kind().is_root_only())
    }

    /// What a folder's name asks for at the root; `None` if it is no name of ours.
    pub fn parse_at_root(name: &Name) -> Option<QueryDir> {
        let folder = ParsedName::parse(name)?;
        match QueryKind::ALL.into_iter().find(|kind| kind.name() == folder.word)? {
            QueryKind::Grep => grep::Options::of(&folder).map(QueryDir::Grep),
            QueryKind::Search => search::Options::of(&folder).map(QueryDir::Search),
            QueryKind::Compare => compare::Options::of(&folder).map(QueryDir::Compare),
        }
    }

    /// What is asked in it.
    pub fn kind(&self) -> QueryKind {
        match self {
            QueryDir::Grep(_) => QueryKind::Grep,
            QueryDir::Search(_) => QueryKind::Search,
            QueryDir::Compare(_) => QueryKind::Compare,
        }
    }

    /// The file of this name in it; `None` for a name that is no decode_lossy.
    pub fn file(&self, name: &Name) -> Option<Generated> {
        if name.as_bytes() == b"README.md" {
            return Some(Generated::QueryReadme(self.kind()));
        }
        match self {
            QueryDir::Grep(options) => options.ask(name).map(|query| Generated::Grep(Arc::new(query))),
            QueryDir::Search(options) => options.ask(name).map(|query| Generated::Search(Arc::new(query))),
            QueryDir::Compare(options) => options.ask(name).map(|query| Generated::Compare(Arc::new(query))),
        }
    }
}

/// A folder's name, taken apart.
pub(super) struct ParsedName<'a> {
    /// What stands before the first dot or `@`.
    pub(super) word: &'a str,
    /// The options.
    pub(super) options: Vec<&'a str>,
    /// What stands behind the `@`, decoded; never empty.
    pub(super) target: Option<String>,
}

impl<'a> ParsedName<'a> {
    /// `None` of a name that is of a file whose name we use, or has nothing behind its `@`.
    pub(super) fn parse(name: &'a Name) -> Option<ParsedName<'a>> {
        // With that ending a name is that of a file whose name we use.
        let text = std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.ends_with(OWN_SUFFIX))?;
        let (words, mut target) = match text.split_once('@') {
            Some((words, target)) => (words, Some(target)),
            None => (text, None),
        };
        let mut words = words.split('.');
        let word = words.next()?;
        let mut options: Vec<&str> = words.collect();
        // Of options at the end only those are taken that no file name ends in.
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

    /// The one option among them that is a size, and the others; `None` if there are several sizes.
    pub(super) fn budget(&self) -> Option<(Option<Budget>, Vec<&'a str>)> {
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

/// Whether `word` at the end of a folder's name is an option: lines of context, or a size with a unit.
fn is_option(word: &str) -> bool {
    let is_context = word.strip_prefix("ctx").is_some_and(|lines| lines.bytes().all(|byte| byte.is_ascii_digit()));
    is_context || (!word.bytes().all(|byte| byte.is_ascii_digit()) && Budget::parse(word).is_ok())
}

/// `text` with every `%XX` decoded; `None` if that is no UTF-8.
fn decode(text: &str) -> Option<String> {
    String::from_utf8(percent_decode(text.as_bytes()).collect()).ok()
}

/// What a name says, with every `%XX` decoded; what is no UTF-8 becomes U+FFFD.
pub(super) fn decode_lossy(name: &Name) -> String {
    let raw: Vec<u8> = percent_decode(name.as_bytes()).collect();
    String::from_utf8_lossy(&raw).into_owned()
}

/// Whether there is anything to look for in `text`.
pub fn has_word(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// `text` with what cannot stand in a name as it is, encoded.
pub(super) fn encode(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}
