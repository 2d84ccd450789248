//! Cuts text into passages, splits it into words and stems them.
//!
//! A word is a run of letters and digits, in lower case. Scripts without spaces between words are
//! split by Unicode's rules (UAX #29). Stems come from Snowball's English stemmer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use frostem::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation;

use swarmletfs_base::split::Split;
use swarmletfs_base::unicode::visible;

/// Longest word that is indexed, in bytes. Longer runs are mostly encoded data.
const WORD_MAX: usize = 64;
/// Number of distinct words a [`Vocabulary`] holds before it should be replaced.
const VOCABULARY_MAX: usize = 200_000;

/// Stop words of queries: Lucene's English list, and the words that questions are phrased with.
const STOP_WORDS: [&str; 60] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with", "did", "do", "does", "had", "has", "have", "he",
    "her", "his", "how", "i", "its", "my", "she", "we", "were", "what", "when", "where", "which",
    "who", "whom", "whose", "why", "would", "you", "your",
];

/// Calls `take` with each word of `text` in lower case. Skips words longer than [`WORD_MAX`].
pub(super) fn words(text: &str, mut take: impl FnMut(&str)) {
    let mut lower = String::with_capacity(WORD_MAX);
    for run in text.split(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric()) {
        if run.is_ascii() {
            if !run.is_empty() && run.len() <= WORD_MAX {
                lower.clear();
                lower.push_str(run);
                lower.make_ascii_lowercase();
                take(&lower);
            }
        } else {
            // Invisible characters do not separate words: readers do not see them.
            visible(run)
                .unicode_words()
                .flat_map(|word| word.split(|c: char| !c.is_alphanumeric()))
                .for_each(|word| {
                    if !word.is_empty() && word.len() <= WORD_MAX {
                        take(&word.to_lowercase());
                    }
                });
        }
    }
}

pub struct WordStemmer(Stemmer);

impl Default for WordStemmer {
    fn default() -> WordStemmer {
        WordStemmer(Stemmer::new(Algorithm::English))
    }
}

impl WordStemmer {
    pub fn stem<'a>(&self, word: &'a str) -> Cow<'a, str> {
        // A word with a digit is a name or a number, which has no stem.
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        if has_digit { Cow::Borrowed(word) } else { self.0.stem(word) }
    }

    pub fn stem_text(&self, text: &str) -> Vec<String> {
        let mut stems = Vec::new();
        words(text, |word| stems.push(self.stem(word).into_owned()));
        stems
    }
}

/// Assigns numbers to the stems of words.
#[derive(Default)]
pub(super) struct Vocabulary {
    stemmer: WordStemmer,
    words: HashMap<Arc<str>, u32, RandomState>,
    stems: HashMap<Arc<str>, u32, RandomState>,
    terms: Vec<Arc<str>>,
}

impl Vocabulary {
    pub(super) fn is_full(&self) -> bool {
        self.words.len() >= VOCABULARY_MAX
    }

    /// Returns the number of the stem of `word`, and assigns one to a new stem.
    pub(super) fn term_id(&mut self, word: &str) -> u32 {
        if let Some(number) = self.words.get(word) {
            return *number;
        }
        let stem = self.stemmer.stem(word);
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

    pub(super) fn term(&self, number: u32) -> Option<&str> {
        self.terms.get(number as usize).map(|term| &**term)
    }
}

/// Returns true if `word`, in lower case, carries no meaning by itself.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.contains(&word)
}

/// Target length of a passage, in bytes. No passage exceeds one and a half times this length.
const PASSAGE: usize = 250;

/// Cuts `text` into passages without a gap.
///
/// Short lines are joined. Long lines are cut after a sentence, else between words, and never
/// inside a character.
pub(super) fn passages(text: &str) -> Vec<&str> {
    let mut passages = Vec::new();
    let mut rest = text;
    let mut length = 0;
    let mut close = |length: &mut usize| {
        if *length > 0 {
            let (passage, after) = rest.split_at_known(std::mem::take(length));
            passages.push(passage);
            rest = after;
        }
    };
    for mut line in text.split_inclusive('\n') {
        if length + line.len() > PASSAGE {
            close(&mut length);
        }
        while line.len() > PASSAGE + PASSAGE / 2 {
            let (head, rest) = line.split_at_known(cut(line));
            length += head.len();
            line = rest;
            close(&mut length);
        }
        length += line.len();
    }
    close(&mut length);
    passages
}

fn cut(line: &str) -> usize {
    let head = line.get(..line.floor_char_boundary(PASSAGE)).unwrap_or(line);
    let after =
        |mark: &str| head.rfind(mark).map(|at| at + mark.len()).filter(|at| *at > PASSAGE / 2);
    after(". ").or_else(|| after(" ")).unwrap_or(head.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_runs_of_letters_and_digits() {
        let collect = |text: &str| {
            let mut found = Vec::new();
            words(text, |word| found.push(word.to_owned()));
            found
        };
        assert_eq!(collect("Foo_bar.baz(E42, \"x\")"), ["foo", "bar", "baz", "e42", "x"]);
        assert_eq!(collect("caf\u{c9} na\u{ef}ve-it"), ["caf\u{e9}", "na\u{ef}ve", "it"]);
        assert_eq!(collect("\u{6771}\u{4eac}x"), ["\u{6771}", "\u{4eac}", "x"]);
        assert_eq!(collect(&format!("a {} b", "x".repeat(WORD_MAX + 1))), ["a", "b"]);
        assert_eq!(collect(""), [""; 0]);
        assert_eq!(collect("\u{301}..\u{fffd}"), [""; 0]);
    }

    #[test]
    fn words_are_stemmed_but_names_are_not() {
        let stems = WordStemmer::default();
        assert_eq!(
            stems.stem_text("Connections connected the servers i386es"),
            ["connect", "connect", "the", "server", "i386es"]
        );
    }

    #[test]
    fn stop_words_are_recognized() {
        assert!(
            is_stop_word("the")
                && is_stop_word("which")
                && !is_stop_word("timeout")
                && !is_stop_word("error")
        );
    }

    #[test]
    fn short_lines_are_joined_and_long_ones_cut() {
        let line = |length: usize| "x".repeat(length - 1) + "\n";
        let lengths = |text: &str| passages(text).into_iter().map(str::len).collect::<Vec<_>>();
        assert_eq!(lengths(&[line(100), line(100), line(100)].concat()), [200, 100]);
        assert_eq!(lengths(&line(375)), [375]);
        assert_eq!(lengths(&line(376)), [250, 126]);
        let sentences = "A sentence that is of some length, and then some. ".repeat(8);
        assert_eq!(lengths(&sentences), [250, 150]);
        assert_eq!(lengths(""), [0; 0]);
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn passages_cover_the_text(text in "(\\PC|\n| ){0,2000}") {
            let passages = passages(&text);
            prop_assert!(passages.iter().all(|passage| (1..=PASSAGE + PASSAGE / 2).contains(&passage.len())));
            prop_assert_eq!(passages.concat(), text);
        }
    }
}
