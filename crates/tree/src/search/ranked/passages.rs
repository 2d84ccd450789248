//! Cuts text into passages.

use swarmletfs_base::split::Split;

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
    use proptest::prelude::*;

    use super::*;

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
