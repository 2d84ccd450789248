//! Folders in which something is asked: the folder's name says how, a file's name in it says what.
//!
//! Options stand behind dots in the folder's name and what they apply to behind `@`, in any order: `grep.i.4k@*.md`. What
//! the words mean is the business of each kind.

use std::sync::Arc;

use percent_encoding::percent_decode;

use super::own::OWN;
use super::{Budget, Generated, compare, grep, search};
use crate::name::Name;

/// Files without a dot in front that tools look for in any folder that they come to: git, whether it is a bare repository.
pub(super) const LOOKED_FOR: [&[u8]; 1] = [b"HEAD"];

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `grep/<regex>`: the lines that match.
    Grep,
    /// `search/<words>`: the passages that bear on the words.
    Search,
    /// `compare/<a>..<b>`: what workers share and where they differ. At the root only.
    Compare,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Grep, Kind::Search, Kind::Compare];

    /// The folder's name, without options.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Grep => grep::FOLDER,
            Kind::Search => search::FOLDER,
            Kind::Compare => compare::FOLDER,
        }
    }

    /// How to ask: what README.md in the folder says.
    pub(super) fn readme(self) -> &'static str {
        match self {
            Kind::Grep => include_str!("grep/README.md"),
            Kind::Search => include_str!("search/README.md"),
            Kind::Compare => include_str!("compare/README.md"),
        }
    }

    /// The folder without options.
    pub fn plain(self) -> Ask {
        match self {
            Kind::Grep => Ask::Grep(grep::Options::default()),
            Kind::Search => Ask::Search(search::Options::default()),
            Kind::Compare => Ask::Compare(compare::Options::default()),
        }
    }

    /// Whether it is asked at the root and nowhere else.
    fn is_of_the_root_alone(self) -> bool {
        self == Kind::Compare
    }
}

/// A folder in which something is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ask {
    /// A regex.
    Grep(grep::Options),
    /// Words.
    Search(search::Options),
    /// Workers to be compared.
    Compare(compare::Options),
}

impl Ask {
    /// What a folder's name asks for wherever something can be asked; `None` if it is no name of ours there.
    pub fn named(name: &Name) -> Option<Ask> {
        Ask::at_root(name).filter(|ask| !ask.kind().is_of_the_root_alone())
    }

    /// What a folder's name asks for at the root; `None` if it is no name of ours.
    pub fn at_root(name: &Name) -> Option<Ask> {
        let folder = Folder::read(name)?;
        match Kind::ALL.into_iter().find(|kind| kind.name() == folder.word)? {
            Kind::Grep => grep::Options::of(&folder).map(Ask::Grep),
            Kind::Search => search::Options::of(&folder).map(Ask::Search),
            Kind::Compare => compare::Options::parse(&folder).map(Ask::Compare),
        }
    }

    /// What is asked in it.
    pub fn kind(&self) -> Kind {
        match self {
            Ask::Grep(_) => Kind::Grep,
            Ask::Search(_) => Kind::Search,
            Ask::Compare(_) => Kind::Compare,
        }
    }

    /// The file of this name in it; `None` for a name that is no question.
    pub fn file(&self, name: &Name) -> Option<Generated> {
        if name.as_bytes() == b"README.md" {
            return Some(Generated::HowTo(self.kind()));
        }
        match self {
            Ask::Grep(options) => options.ask(name).map(|query| Generated::Grep(Arc::new(query))),
            Ask::Search(options) => options.ask(name).map(|query| Generated::Search(Arc::new(query))),
            Ask::Compare(options) => options.query(name).map(|query| Generated::Compare(Arc::new(query))),
        }
    }
}

/// A folder's name, taken apart.
pub(super) struct Folder<'a> {
    /// What stands before the first dot or `@`.
    pub(super) word: &'a str,
    /// The options.
    pub(super) options: Vec<&'a str>,
    /// What stands behind the `@`, decoded; never empty.
    pub(super) of: Option<String>,
}

impl<'a> Folder<'a> {
    /// `None` of a name that is of a file whose name we use, or has nothing behind its `@`.
    pub(super) fn read(name: &'a Name) -> Option<Folder<'a>> {
        // With that ending a name is that of a file whose name we use.
        let text = std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.ends_with(OWN))?;
        let (words, mut of) = match text.split_once('@') {
            Some((words, of)) => (words, Some(of)),
            None => (text, None),
        };
        let mut words = words.split('.');
        let word = words.next()?;
        let mut options: Vec<&str> = words.collect();
        // Of options at the end only those are taken that no file name ends in.
        while let Some((before, option)) = of.and_then(|of| of.rsplit_once('.')).filter(|(_, word)| ends_no_name(word))
        {
            options.push(option);
            of = Some(before);
        }
        let of = match of {
            Some(of) => Some(decoded(of).filter(|of| !of.is_empty())?),
            None => None,
        };
        Some(Folder { word, options, of })
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
fn ends_no_name(word: &str) -> bool {
    let is_context = word.strip_prefix("ctx").is_some_and(|lines| lines.bytes().all(|byte| byte.is_ascii_digit()));
    is_context || (!word.bytes().all(|byte| byte.is_ascii_digit()) && Budget::parse(word).is_ok())
}

/// `text` with every `%XX` decoded; `None` if that is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    String::from_utf8(percent_decode(text.as_bytes()).collect()).ok()
}

/// What a name says, with every `%XX` decoded; what is no UTF-8 becomes U+FFFD.
pub(super) fn question(name: &Name) -> String {
    let raw: Vec<u8> = percent_decode(name.as_bytes()).collect();
    String::from_utf8_lossy(&raw).into_owned()
}

/// Whether there is anything to look for in `text`.
pub fn holds_a_word(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// `text` with what cannot stand in a name as it is, encoded.
pub(super) fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}
