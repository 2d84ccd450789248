//! The parts of names that hold options and a target, such as `grep.i.4k@*.md`.

use std::fmt;

use percent_encoding::percent_decode;

use super::name_collision::OWN_SUFFIX;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::text::budget::Budget;

/// Names without a leading dot that tools probe in every directory. Git probes `HEAD` to detect a
/// bare repository.
pub(super) const PROBED_NAMES: [&[u8]; 1] = [b"HEAD"];

pub struct ParsedName<'a> {
    /// The text before the first dot or `@`.
    pub word: &'a str,
    pub options: Vec<&'a str>,
    /// The text after `@`, decoded and never empty.
    pub target: Option<String>,
}

impl<'a> ParsedName<'a> {
    /// Splits a name into its parts. Returns `None` for a name that ends in `.own`, has nothing
    /// after its `@`, or is not UTF-8.
    pub fn parse(name: &'a Name) -> Option<ParsedName<'a>> {
        // The name of a worker's file that collides with a generated name ends in this suffix.
        let text =
            std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.ends_with(OWN_SUFFIX))?;
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
    pub fn budget(&self) -> Option<(Option<Budget>, Vec<&'a str>)> {
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
    let is_context = word
        .strip_prefix("ctx")
        .is_some_and(|lines| lines.bytes().all(|byte| byte.is_ascii_digit()));
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

/// Writes the options of a query directory that all kinds share.
pub(super) fn write_options(
    f: &mut fmt::Formatter<'_>,
    budget: Option<Budget>,
    target: Option<&str>,
) -> fmt::Result {
    if let Some(budget) = budget {
        write!(f, ".{}", budget.name())?;
    }
    match target {
        Some(target) => write!(f, "@{}", encode(target)),
        None => Ok(()),
    }
}

pub(super) fn write_query(
    f: &mut fmt::Formatter<'_>,
    text: &str,
    under: Option<&RelPath>,
) -> fmt::Result {
    write!(f, "/{}", encode(text))?;
    match under {
        Some(path) => write!(f, " in {}", path.display()),
        None => Ok(()),
    }
}

/// Encodes `%` and `/` in `text`, so that it can be part of a name.
pub fn encode(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}
