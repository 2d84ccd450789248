//! How a text is cut into passages.

/// About how long a passage is, in bytes; no passage is longer than half as much again.
const PASSAGE: usize = 250;

/// How long each passage of `text` is, in bytes; together they are all of it. Short lines are taken together, long ones
/// are cut: behind a sentence, else between words, always between characters.
pub(super) fn passages(text: &str) -> Vec<u32> {
    let mut lengths = Vec::new();
    let mut length = 0;
    let mut close = |length: &mut usize| {
        if *length > 0 {
            lengths.push(u32::try_from(std::mem::take(length)).unwrap_or(u32::MAX));
        }
    };
    for mut line in text.split_inclusive('\n') {
        if length + line.len() > PASSAGE {
            close(&mut length);
        }
        while line.len() > PASSAGE + PASSAGE / 2 {
            let (piece, rest) = line.split_at(cut(line));
            length += piece.len();
            line = rest;
            close(&mut length);
        }
        length += line.len();
    }
    close(&mut length);
    lengths
}

/// Where a long line is cut.
fn cut(line: &str) -> usize {
    let piece = line.get(..line.floor_char_boundary(PASSAGE)).unwrap_or(line);
    let behind = |mark: &str| piece.rfind(mark).map(|at| at + mark.len()).filter(|at| *at > PASSAGE / 2);
    behind(". ").or_else(|| behind(" ")).unwrap_or(piece.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_lines_are_taken_together_and_long_ones_cut() {
        let line = |length: usize| "x".repeat(length - 1) + "\n";
        assert_eq!(passages(&[line(100), line(100), line(100)].concat()), [200, 100]);
        assert_eq!(passages(&line(375)), [375]);
        assert_eq!(passages(&line(376)), [250, 126]);
        let sentences = "A sentence that is of some length, and then some. ".repeat(8);
        assert_eq!(passages(&sentences), [250, 150]);
        assert_eq!(passages(""), [0; 0]);
    }

    proptest! {
        #[test]
        fn passages_are_all_of_it_and_no_character_is_cut(text in "(\\PC|\n| ){0,2000}") {
            let mut at = 0;
            for length in passages(&text) {
                prop_assert!(length > 0 && length as usize <= PASSAGE + PASSAGE / 2);
                at += length as usize;
                prop_assert!(text.is_char_boundary(at));
            }
            prop_assert_eq!(at, text.len());
        }
    }
}
