//! Finds the question to a person with which a worker's last message ends.

use std::sync::LazyLock;

use regex::Regex;
use unicode_segmentation::UnicodeSegmentation;

/// Maximum length of the end of a message that is searched, in bytes.
const END_MAX: usize = 4 << 10;
/// Number of sentences at the end of a message, one of which may ask.
const SENTENCES: usize = 2;

/// Matches a sentence without a question mark that asks a person to decide.
const REQUEST: &str = r"(?xi-u)
    \b(?:please|kindly)\ (?:confirm|choose|decide|advise|approve|clarify|pick|let\ me\ know|tell\ me|provide|specify)\b
    | \blet\ me\ know\ (?:which|whether|how|what|your|when\ you(?:'re|\ are)\ ready)\b
    | \b(?:waiting|wait)\ for\ (?:your|you|the\ user(?:'s)?)\b
    | \b(?:need|needs|require|requires)\ your\ (?:approval|confirmation|decision|input|permission|go-ahead|answer)\b
    | \bawaiting\ (?:your|approval|confirmation|instructions|input)\b
    | \bbefore\ I\ (?:proceed|continue|start|go\ on),?\ (?:I\ need|please|tell|let)\b";

static REQUESTS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(REQUEST).ok());

/// Returns the last sentence of `words` that asks a person to choose or confirm, if one of the last
/// ones does. A question in a block of code or in an earlier paragraph asks nobody.
pub(super) fn closing_question(words: &str) -> Option<String> {
    let end = words.trim_end();
    let end = end.get(end.ceil_char_boundary(end.len().saturating_sub(END_MAX))..)?;
    if end.ends_with("```") {
        return None;
    }
    let paragraph = end.rsplit("\n\n").next()?;
    let lines = paragraph.lines().filter(|line| !line.trim().is_empty());
    let sentences: Vec<&str> = lines.flat_map(str::unicode_sentences).map(str::trim).collect();
    let mut last = sentences.iter().rev().take(SENTENCES);
    let found = last.find(|sentence| asks(sentence))?;
    // Marks of emphasis begin or end in other sentences.
    Some(found.trim_matches(['*', '_', ' ']).to_owned())
}

fn asks(sentence: &str) -> bool {
    let bare = sentence.trim_end_matches(['*', '_', ')', '"', '”', '`', ' ']);
    bare.ends_with(['?', '？'])
        || REQUESTS.as_ref().is_some_and(|request| request.is_match(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_at_the_end_is_found() {
        for (words, question) in [
            ("All green.\n\nReady to commit?", "Ready to commit?"),
            (
                "Done. Want me to add it, or leave them visible?",
                "Want me to add it, or leave them visible?",
            ),
            ("Two ways:\n\n1. a\n2. b\n\n**Which one do you prefer?**", "Which one do you prefer?"),
            ("Which way? Or should I combine both?", "Or should I combine both?"),
            ("I have a plan. Please confirm.", "Please confirm."),
        ] {
            assert_eq!(closing_question(words).as_deref(), Some(question), "{words}");
        }
    }

    #[test]
    fn an_answer_asks_nothing() {
        for words in [
            "",
            "Done.",
            "Why did it fail? Because the path was wrong. It is mended now. All tests pass.",
            "Ready for your next instructions.",
            "If you think it is fine, I can remove it.",
            "Is it odd?\n\nNo, it is meant.",
            "```\nreally?\n```",
        ] {
            assert_eq!(closing_question(words), None, "{words}");
        }
    }
}
