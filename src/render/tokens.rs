//! Tokens, counted by a real tokenizer: what a fixed number of bytes takes differs by half between prose and logs.

/// How many tokens of o200k_base, the vocabulary of OpenAI's models since GPT-4o, `text` takes. The vocabulary is part of
/// the program, and is unpacked when it is first asked for: about 50 ms and 55 MiB.
pub(super) fn count(text: &str) -> usize {
    bpe_openai::o200k_base().count(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_the_vocabulary() {
        // As OpenAI's own tokenizer counts them.
        for (text, tokens) in [("", 0), ("hello world", 2), ("1234567", 3), ("\n\n", 1), ("漢字", 2)] {
            assert_eq!(count(text), tokens, "{text:?}");
        }
    }
}
