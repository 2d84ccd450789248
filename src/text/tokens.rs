//! Counts tokens with a real tokenizer, since the bytes per token of prose and of logs differ by
//! half.

/// Returns the number of o200k_base tokens in `text`; OpenAI's models since GPT-4o use this
/// vocabulary.
///
/// The vocabulary is embedded in the program. The first call unpacks it, which takes about 50 ms
/// and 55 MiB.
pub(crate) fn count(text: &str) -> usize {
    bpe_openai::o200k_base().count(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_the_vocabulary() {
        // As OpenAI's own tokenizer counts them.
        for (text, tokens) in
            [("", 0), ("hello world", 2), ("1234567", 3), ("\n\n", 1), ("漢字", 2)]
        {
            assert_eq!(count(text), tokens, "{text:?}");
        }
    }
}
