//! Passages of text that are found in one worker's files only: blocks of lines, compared without their white space.

use std::collections::HashSet;
use std::ops::Range;

use super::lines::lines;
use crate::digest::digest;

/// A block of more lines is compared line by line.
const BLOCK_MAX: usize = 12;

/// What is known of the text of a worker: its passages and its lines.
#[derive(Debug, Default)]
pub(super) struct Known(HashSet<[u8; 16]>);

/// Lines that belong together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// Where each of them is.
    pub(super) lines: Vec<Range<usize>>,
    /// How many bytes of them are words.
    pub(super) substance: usize,
}

impl Known {
    /// Takes what a text says.
    pub(super) fn add(&mut self, text: &[u8]) {
        for block in blocks(text) {
            for line in &block {
                self.0.extend(hash(text, std::slice::from_ref(line)));
            }
            if (2..=BLOCK_MAX).contains(&block.len()) {
                self.0.extend(hash(text, &block));
            }
        }
    }

    fn has(&self, text: &[u8], lines: &[Range<usize>]) -> bool {
        // What says nothing is found everywhere.
        hash(text, lines).is_none_or(|hash| self.0.contains(&hash))
    }
}

/// The passages of a text, in order, that none of `others` has; and how many there are in all.
pub(super) fn passages(text: &[u8], others: &[&Known]) -> (Vec<Passage>, usize) {
    let (mut found, mut all) = (Vec::new(), 0);
    for block in blocks(text) {
        let is_long = block.len() > BLOCK_MAX;
        let is_new = |line: &Range<usize>| !others.iter().any(|known| known.has(text, std::slice::from_ref(line)));
        if is_long {
            let parts: Vec<&[Range<usize>]> = block.chunk_by(|a, b| is_new(a) == is_new(b)).collect();
            all += parts.len();
            let new = parts.into_iter().filter(|part| part.first().is_some_and(is_new));
            found.extend(new.map(|part| Passage::of(text, part)));
            continue;
        }
        all += 1;
        let is_whole = others.iter().any(|known| known.has(text, &block));
        if !is_whole && block.iter().any(is_new) {
            found.push(Passage::of(text, &block));
        }
    }
    (found, all)
}

impl Passage {
    fn of(text: &[u8], lines: &[Range<usize>]) -> Passage {
        let bytes = lines.iter().flat_map(|line| text.get(line.clone()).unwrap_or_default());
        let substance = bytes.filter(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii()).count();
        Passage { lines: lines.to_vec(), substance }
    }
}

/// Lines without an empty one between them.
fn blocks(text: &[u8]) -> Vec<Vec<Range<usize>>> {
    let all = lines(text);
    let is_empty = |line: &Range<usize>| text.get(line.clone()).unwrap_or_default().trim_ascii().is_empty();
    all.split(is_empty).filter(|block| !block.is_empty()).map(<[Range<usize>]>::to_vec).collect()
}

/// A hash of the words of lines; none if there is no letter or digit in them.
fn hash(text: &[u8], lines: &[Range<usize>]) -> Option<[u8; 16]> {
    let words = lines.iter().flat_map(|line| text.get(line.clone()).unwrap_or_default().split(u8::is_ascii_whitespace));
    let mut hash = blake3::Hasher::new();
    let mut says = false;
    for word in words.filter(|word| !word.is_empty()) {
        says |= word.iter().any(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii());
        hash.update(word);
        hash.update(b" ");
    }
    says.then(|| digest(&hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, other: &str) -> (Vec<String>, usize) {
        let mut known = Known::default();
        known.add(other.as_bytes());
        let (found, all) = passages(text.as_bytes(), &[&known]);
        let text_of =
            |passage: &Passage| passage.lines.iter().map(|line| text.get(line.clone()).unwrap()).collect::<String>();
        (found.iter().map(text_of).collect(), all)
    }

    #[test]
    fn passages_are_compared_without_white_space_and_order() {
        let other = "one  two\nthree\n\n* item\n* other\n\nlast\n";
        assert_eq!(found("last\n\none two three\n", other), (vec![], 2));
        assert_eq!(found("* other\n* item\n", other), (vec![], 1), "each of its lines is there");
        assert_eq!(found("new\nthree\n\n---\n\nlast\n", other), (vec!["new\nthree\n".into()], 3));
        assert_eq!(found("", other), (vec![], 0));
    }

    #[test]
    fn long_blocks_are_compared_line_by_line() {
        let text: String = (0..40).map(|n| format!("line {n}\n")).collect();
        let other = text.replace("line 20\n", "").replace("line 21\n", "");
        assert_eq!(found(&text, &other), (vec!["line 20\nline 21\n".into()], 3));
    }
}
