//! The words of a text, and their stems.
//!
//! A word is a run of letters and digits, in lower case; in scripts that put nothing between words, what Unicode takes
//! for one (UAX #29). Its stem is that of Snowball's English.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use frostem::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation;

use crate::unicode::visible;

/// Longer words are no words: encoded data, most often. In bytes.
const WORD_MAX: usize = 64;
/// So many words are remembered.
const KNOWN: usize = 200_000;

/// Words of a question that say nothing of what is looked for: those that Lucene leaves out of English, and what
/// questions are asked with.
const STOP_WORDS: [&str; 60] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
    "did", "do", "does", "had", "has", "have", "he", "her", "his", "how", "i", "its", "my", "she", "we", "were",
    "what", "when", "where", "which", "who", "whom", "whose", "why", "would", "you", "your",
];

/// Gives each word of `text` in lower case. What is longer than a word can be is left out.
pub(super) fn words(text: &str, mut take: impl FnMut(&str)) {
    let mut lower = String::with_capacity(WORD_MAX);
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        let gap = rest.iter().position(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii()).unwrap_or(rest.len());
        let run = rest.get(gap..).unwrap_or_default();
        let length = run.iter().position(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric()).unwrap_or(run.len());
        let run = text.get(at + gap..at + gap + length).unwrap_or_default();
        at += gap + length;
        if run.is_ascii() {
            if !run.is_empty() && run.len() <= WORD_MAX {
                lower.clear();
                lower.push_str(run);
                lower.make_ascii_lowercase();
                take(&lower);
            }
        } else {
            // Readers do not see the invisible characters in a word.
            visible(run).unicode_words().flat_map(|word| word.split(|c: char| !c.is_alphanumeric())).for_each(|word| {
                if !word.is_empty() && word.len() <= WORD_MAX {
                    take(&word.to_lowercase());
                }
            });
        }
    }
}

/// Finds stems.
pub struct Stems(Stemmer);

impl Default for Stems {
    fn default() -> Stems {
        Stems(Stemmer::new(Algorithm::English))
    }
}

impl Stems {
    /// The stem of a word in lower case.
    pub fn of<'a>(&self, word: &'a str) -> Cow<'a, str> {
        // What holds a digit is a name or a number.
        let is_plain = word.bytes().any(|byte| byte.is_ascii_digit());
        if is_plain { Cow::Borrowed(word) } else { self.0.stem(word) }
    }

    /// The stems of a text, in its order.
    pub fn of_text(&self, text: &str) -> Vec<String> {
        let mut stems = Vec::new();
        words(text, |word| stems.push(self.of(word).into_owned()));
        stems
    }
}

/// The words that were met, and the number of the stem of each.
#[derive(Default)]
pub(super) struct Vocabulary {
    stemmer: Stems,
    words: HashMap<Arc<str>, u32, RandomState>,
    stems: HashMap<Arc<str>, u32, RandomState>,
    /// The stems by their number.
    terms: Vec<Arc<str>>,
}

impl Vocabulary {
    /// Whether it is better to begin anew than to remember more.
    pub(super) fn is_full(&self) -> bool {
        self.words.len() >= KNOWN
    }

    /// The number of the stem of `word`.
    pub(super) fn number(&mut self, word: &str) -> u32 {
        if let Some(number) = self.words.get(word) {
            return *number;
        }
        let stem = self.stemmer.of(word);
        let next = u32::try_from(self.terms.len()).unwrap_or(u32::MAX);
        let known = self.stems.get(&*stem).copied();
        let word: Arc<str> = word.into();
        let number = known.unwrap_or_else(|| {
            let stem: Arc<str> = if *stem == *word { word.clone() } else { (*stem).into() };
            self.stems.insert(stem.clone(), next);
            self.terms.push(stem);
            next
        });
        self.words.insert(word, number);
        number
    }

    /// The stem of this number.
    pub(super) fn term(&self, number: u32) -> &str {
        self.terms.get(number as usize).map(|term| &**term).unwrap_or_default()
    }
}

/// Whether `word`, in lower case, is one that says nothing by itself.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_runs_of_letters_and_digits() {
        let of = |text: &str| {
            let mut found = Vec::new();
            words(text, |word| found.push(word.to_owned()));
            found
        };
        assert_eq!(of("Foo_bar.baz(E42, \"x\")"), ["foo", "bar", "baz", "e42", "x"]);
        assert_eq!(of("caf\u{c9} na\u{ef}ve-it"), ["caf\u{e9}", "na\u{ef}ve", "it"]);
        assert_eq!(of("\u{6771}\u{4eac}x"), ["\u{6771}", "\u{4eac}", "x"]);
        assert_eq!(of(&format!("a {} b", "x".repeat(WORD_MAX + 1))), ["a", "b"]);
        assert_eq!(of(""), [""; 0]);
        assert_eq!(of("\u{301}..\u{fffd}"), [""; 0]);
    }

    #[test]
    fn stems_are_of_words_and_not_of_names() {
        let stems = Stems::default();
        assert_eq!(
            stems.of_text("Connections connected the servers i386es"),
            ["connect", "connect", "the", "server", "i386es"]
        );
    }

    #[test]
    fn stop_words_are_known() {
        assert!(is_stop_word("the") && is_stop_word("which") && !is_stop_word("timeout") && !is_stop_word("error"));
    }
}
