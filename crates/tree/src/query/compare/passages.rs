//! Finds passages that occur in the files of one worker only. A passage is a block of lines,
//! compared without white space.

use std::collections::HashSet;
use std::ops::Range;

use super::lines::{is_word, line_bytes, lines};
use swarmletfs_base::digest::digest;

/// Maximum number of lines in a block that is compared as a whole; a longer one is compared line by
/// line.
const BLOCK_MAX: usize = 12;

/// Hashes of the passages and lines in a worker's files.
#[derive(Debug, Default)]
pub(super) struct TextIndex(HashSet<[u8; 16]>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextPassage {
    pub lines: Vec<Range<usize>>,
    /// Number of bytes that belong to words.
    pub(super) substance: usize,
}

impl TextIndex {
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

    fn contains(&self, text: &[u8], lines: &[Range<usize>]) -> bool {
        // Lines without words count as found.
        hash(text, lines).is_none_or(|hash| self.0.contains(&hash))
    }
}

/// Returns the passages of a text that none of `others` contains, in order, and the number of all
/// passages.
pub(super) fn passages(text: &[u8], others: &[&TextIndex]) -> (Vec<TextPassage>, usize) {
    let (mut found, mut all) = (Vec::new(), 0);
    for block in blocks(text) {
        let is_long = block.len() > BLOCK_MAX;
        let is_new = |line: &Range<usize>| {
            !others.iter().any(|index| index.contains(text, std::slice::from_ref(line)))
        };
        if is_long {
            let parts: Vec<&[Range<usize>]> =
                block.chunk_by(|a, b| is_new(a) == is_new(b)).collect();
            all += parts.len();
            let new = parts.into_iter().filter(|part| part.first().is_some_and(is_new));
            found.extend(new.map(|part| TextPassage::new(text, part)));
            continue;
        }
        all += 1;
        let is_complete = others.iter().any(|index| index.contains(text, &block));
        if !is_complete && block.iter().any(is_new) {
            found.push(TextPassage::new(text, &block));
        }
    }
    (found, all)
}

impl TextPassage {
    fn new(text: &[u8], lines: &[Range<usize>]) -> TextPassage {
        let bytes = lines.iter().flat_map(|line| line_bytes(text, line));
        let substance = bytes.filter(|byte| is_word(byte)).count();
        TextPassage { lines: lines.to_vec(), substance }
    }
}

fn blocks(text: &[u8]) -> Vec<Vec<Range<usize>>> {
    let all = lines(text);
    let is_empty = |line: &Range<usize>| line_bytes(text, line).trim_ascii().is_empty();
    all.split(is_empty).filter(|block| !block.is_empty()).map(<[Range<usize>]>::to_vec).collect()
}

/// Returns a hash of the words in lines, or `None` if they have no letter or digit.
fn hash(text: &[u8], lines: &[Range<usize>]) -> Option<[u8; 16]> {
    let words = lines.iter().flat_map(|line| line_bytes(text, line).split(u8::is_ascii_whitespace));
    let mut hash = blake3::Hasher::new();
    let mut has_words = false;
    for word in words.filter(|word| !word.is_empty()) {
        has_words |= word.iter().any(is_word);
        hash.update(word);
        hash.update(b" ");
    }
    has_words.then(|| digest(&hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, other: &str) -> (Vec<String>, usize) {
        let mut known = TextIndex::default();
        known.add(other.as_bytes());
        let (found, all) = passages(text.as_bytes(), &[&known]);
        let text_of = |passage: &TextPassage| {
            passage.lines.iter().map(|line| text.get(line.clone()).unwrap()).collect::<String>()
        };
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
