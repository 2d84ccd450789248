//! Splits text into the tokens of a BERT vocabulary without case: words and parts of words.
//!
//! The model's own tokenizer makes the same tokens.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;
use regex::Regex;
use unicode_normalization::UnicodeNormalization;

/// Longest word in characters. A longer one is unknown.
const WORD_MAX: usize = 100;
/// Begins the text of a token that continues a word.
const CONTINUES: &str = "##";
const UNKNOWN: &str = "[UNK]";

static PUNCTUATION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{P}$").ok());
static MARK: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Mn}$").ok());
/// Characters that are dropped.
static CONTROL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[\p{Cc}\p{Cf}\p{Co}\u{fffd}--\t\n\r]$").ok());

fn is(class: &LazyLock<Option<Regex>>, c: char) -> bool {
    class.as_ref().is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}

/// The tokens of a model, by their texts.
pub(crate) struct TokenTable {
    /// Tokens that begin a word.
    first: HashMap<&'static str, u32, RandomState>,
    /// Tokens that continue one.
    more: HashMap<&'static str, u32, RandomState>,
    unknown: u32,
    /// Length of the longest token in bytes.
    longest: usize,
}

impl TokenTable {
    /// Creates the vocabulary of tokens in the order of their numbers. Returns `None` if there is
    /// no token for unknown words.
    pub(crate) fn new(tokens: impl Iterator<Item = &'static str>) -> Option<TokenTable> {
        let (mut first, mut more) = (HashMap::default(), HashMap::default());
        let mut longest = 0;
        for (token, number) in tokens.zip(0..) {
            longest = longest.max(token.len());
            match token.strip_prefix(CONTINUES).filter(|rest| !rest.is_empty()) {
                Some(rest) => more.insert(rest, number),
                None => first.insert(token, number),
            };
        }
        let unknown = *first.get(UNKNOWN)?;
        Some(TokenTable { first, more, unknown, longest })
    }

    /// Returns the tokens of a word: the longest that it begins with, and so on. A word that has
    /// none is unknown as a whole.
    pub(crate) fn of_word(&self, word: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut rest = word;
        while !rest.is_empty() && word.chars().count() <= WORD_MAX {
            let known = if tokens.is_empty() { &self.first } else { &self.more };
            let ends = (1..=rest.len().min(self.longest)).rev();
            let found = ends
                .filter_map(|end| rest.split_at_checked(end))
                .find_map(|(token, after)| Some((*known.get(token)?, after)));
            let Some((token, after)) = found else { break };
            tokens.push(token);
            rest = after;
        }
        if rest.is_empty() { tokens } else { vec![self.unknown] }
    }
}

/// Calls `take` with each word of `text`, in lower case and without accents. A mark of punctuation
/// and a Chinese character are a word each.
pub(crate) fn words(text: &str, mut take: impl FnMut(&str)) {
    let mut word = String::new();
    let mut add = |c: char, is_alone: bool, is_space: bool| {
        if (is_alone || is_space) && !word.is_empty() {
            take(&word);
            word.clear();
        }
        if is_alone {
            take(c.encode_utf8(&mut [0; 4]));
        } else if !is_space {
            word.push(c);
        }
    };
    for c in text.chars() {
        if c.is_ascii() {
            let is_space = c.is_ascii_whitespace() && c != '\u{c}';
            if is_space || !c.is_ascii_control() {
                add(c.to_ascii_lowercase(), c.is_ascii_punctuation(), is_space);
            }
        } else if is_chinese(c) {
            // Normalization may change it.
            std::iter::once(c).nfd().for_each(|c| add(c, true, false));
        } else if !is(&CONTROL, c) {
            for c in std::iter::once(c).nfd().filter(|c| !is(&MARK, *c)) {
                for c in c.to_lowercase() {
                    let is_alone = c.is_ascii_punctuation() || is(&PUNCTUATION, c);
                    add(c, is_alone, c.is_whitespace());
                }
            }
        }
    }
    add(' ', false, true);
}

/// Returns true if the model takes a character for a word, as BERT does.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MODEL;

    fn tokens(text: &str) -> Vec<&'static str> {
        let TokenTable { first, more, .. } = &MODEL.as_ref().unwrap().tokens;
        let mut texts = HashMap::new();
        texts.extend(first.iter().chain(more).map(|(text, number)| (*number, *text)));
        let mut tokens = Vec::new();
        words(text, |word| tokens.extend(MODEL.as_ref().unwrap().tokens.of_word(word)));
        tokens.iter().map(|number| texts[number]).collect()
    }

    /// The model's own tokenizer made tokens.jsonl; see tokens.py.
    #[test]
    fn tokens_are_those_of_the_models_tokenizer() {
        let mut lines = 0;
        for line in include_str!("tokens.jsonl").lines() {
            let (text, expected): (String, Vec<String>) = serde_json::from_str(line).unwrap();
            let expected: Vec<_> = expected
                .iter()
                .map(|token| token.strip_prefix(CONTINUES).unwrap_or(token))
                .collect();
            assert_eq!(tokens(&text), expected, "{text:?}");
            lines += 1;
        }
        assert!(lines > 200);
    }
}
