//! Counts tokens with a real tokenizer, since the bytes per token of prose and of logs differ by
//! half.

use std::sync::Once;
use std::thread;

/// Name of the vocabulary of OpenAI's models since GPT-4o.
const VOCABULARY: &str = "o200k_base";

/// Unpacks the vocabulary in the background, for a count that comes soon.
pub(super) fn prepare() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the thread, the first count unpacks it.
        let _ = thread::Builder::new().name("vocabulary".to_owned()).spawn(|| count(""));
    });
}

/// Returns the number of tokens of [`VOCABULARY`] in `text`.
///
/// The vocabulary is embedded in the program. The first call unpacks it, which takes about
/// 110 ms and 25 MiB.
pub(super) fn count(text: &str) -> usize {
    // Without the vocabulary, an estimate that is never too low: a token has a byte or more.
    tiktoken::get_encoding(VOCABULARY).map_or(text.len(), |vocabulary| vocabulary.count(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Split;

    #[test]
    fn tokens_are_those_of_the_vocabulary() {
        // As OpenAI's own tokenizer counts them.
        for (text, tokens) in
            [("", 0), ("hello world", 2), ("1234567", 3), ("\n\n", 1), ("漢字", 2)]
        {
            assert_eq!(count(text), tokens, "{text:?}");
        }
    }

    /// Checks that bpe-openai, another tokenizer, counts as many tokens.
    fn check(text: &str) {
        let (start, rest) = text.split_at_most(20);
        assert_eq!(count(text), bpe_openai::o200k_base().count(text), "{start:?}… {}", rest.len());
    }

    #[test]
    fn characters_of_all_scripts_are_split_as_by_another_tokenizer() {
        let chars = |step| ('\0'..=char::MAX).filter(move |c| u32::from(*c) % step == 0);
        check(&chars(16).collect::<String>());
        check(&chars(64).map(|c| format!("a{c}{c} B")).collect::<String>());
    }

    #[test]
    fn long_runs_of_anything_are_counted_as_by_another_tokenizer() {
        for part in
            ["a", "aB", "\n", " ", " \t", "\r\n ", "=-", "'s", "1234567890", "漢字", "\u{301}"]
        {
            check(&part.repeat(200_000));
        }
    }
}
