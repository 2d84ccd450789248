//! Line-based diff of two texts: common lines and hunks; and the passages that occur in the files
//! of one worker only. A passage is a block of lines, compared without white space.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use swarmletfs_base::digest::digest;
use swarmletfs_base::split::Split;

/// Number of context lines before and after a difference.
pub(super) const CONTEXT: usize = 3;

/// One line of a hunk, by its number in its text from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiffStep {
    /// Line in both texts: its number in the first and in the second.
    Same(usize, usize),
    Old(usize),
    New(usize),
}

pub(super) fn line_bytes<'a>(text: &'a [u8], line: &Range<usize>) -> &'a [u8] {
    text.split_at_known(line.end).0.split_at_known(line.start).1
}

/// Returns the byte range of each line, including its line end.
pub(super) fn lines(text: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut all = Vec::new();
    for end in memchr::memchr_iter(b'\n', text).map(|at| at + 1).chain([text.len()]) {
        if end > start {
            all.push(start..end);
        }
        start = end;
    }
    all
}

/// Returns the items that two sequences have in common, in order, as pairs of indices.
///
/// After `deadline` the result may not be the longest.
pub(super) fn common_items<T: AsRef<[u8]>>(
    old: &[T],
    new: &[T],
    deadline: Instant,
) -> Vec<(usize, usize)> {
    // Items of only one sequence are removed first, so that texts with little in common compare
    // fast.
    let mut known: HashMap<&[u8], (u32, bool)> = HashMap::new();
    for item in old {
        let next = known.len() as u32;
        known.entry(item.as_ref()).or_insert((next, false));
    }
    let in_new: Vec<(u32, usize)> = new
        .iter()
        .enumerate()
        .filter_map(|(at, item)| {
            let (number, is_shared) = known.get_mut(item.as_ref())?;
            *is_shared = true;
            Some((*number, at))
        })
        .collect();
    let in_old: Vec<(u32, usize)> = old
        .iter()
        .enumerate()
        .filter_map(|(at, item)| {
            known.get(item.as_ref()).filter(|(_, shared)| *shared).map(|(number, _)| (*number, at))
        })
        .collect();
    let numbers =
        |items: &[(u32, usize)]| items.iter().map(|(number, _)| *number).collect::<Vec<u32>>();
    let (from, to) = (numbers(&in_old), numbers(&in_new));
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &from, &to, Some(deadline));
    let equal = ops.into_iter().filter_map(|op| match op {
        DiffOp::Equal { old_index, new_index, len } => {
            Some((old_index..old_index + len).zip(new_index..))
        }
        _ => None,
    });
    equal.flatten().filter_map(|(a, b)| Some((in_old.get(a)?.1, in_new.get(b)?.1))).collect()
}

/// Returns `pairs` without matches inside changes that carry no words, such as empty lines and
/// braces.
pub(super) fn drop_trivial_matches<T: AsRef<[u8]>>(
    pairs: &[(usize, usize)],
    old: &[T],
    new: &[T],
) -> Vec<(usize, usize)> {
    let ends = (old.len(), new.len());
    let mut kept = Vec::with_capacity(pairs.len());
    for run in pairs.chunk_by(|a, b| (a.0 + 1, a.1 + 1) == *b) {
        let is_begin = run.first() == Some(&(0, 0));
        let is_end = run.last().is_some_and(|(a, b)| (a + 1, b + 1) == ends);
        let mut lines = run.iter().filter_map(|(at, _)| old.get(*at));
        if is_begin || is_end || lines.any(|line| line.as_ref().iter().any(is_word)) {
            kept.extend_from_slice(run);
        }
    }
    // Equal lines next to the kept ones stay as well.
    let mut all: Vec<(usize, usize)> = Vec::with_capacity(pairs.len());
    let is_same = |a: usize, b: usize| {
        old.get(a).zip(new.get(b)).is_some_and(|(a, b)| a.as_ref() == b.as_ref())
    };
    for (a, b) in kept.into_iter().chain([ends]) {
        let mut begin = all.last().map_or((0, 0), |(a, b)| (a + 1, b + 1));
        while begin.0 < a && begin.1 < b && is_same(begin.0, begin.1) {
            all.push(begin);
            begin = (begin.0 + 1, begin.1 + 1);
        }
        let most = (a - begin.0).min(b - begin.1);
        let behind = (1..=most).take_while(|back| is_same(a - back, b - back)).count();
        all.extend((1..=behind).rev().map(|back| (a - back, b - back)));
        all.extend((a < ends.0 && b < ends.1).then_some((a, b)));
    }
    all
}

/// Returns true if the byte belongs to a word: an ASCII letter or digit, or any other character.
pub(super) fn is_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// Returns the differing lines with their context as hunks. `pairs` are the lines in common, and
/// `ends` the numbers of lines of both texts.
pub(super) fn hunks(pairs: &[(usize, usize)], ends: (usize, usize)) -> Vec<Vec<DiffStep>> {
    let (mut hunks, mut open): (Vec<Vec<DiffStep>>, Vec<DiffStep>) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (0, 0);
    let mut same: Vec<DiffStep> = Vec::new();
    for (a, b) in pairs.iter().copied().chain([ends]) {
        if (old, new) != (a, b) {
            // The equal lines are context inside a hunk, or end one hunk and start the next.
            let begin = same.len().saturating_sub(CONTEXT);
            if !open.is_empty() && same.len() > 2 * CONTEXT {
                open.extend(same.iter().take(CONTEXT));
                hunks.push(std::mem::take(&mut open));
            }
            let begin = if open.is_empty() { begin } else { 0 };
            open.extend(same.drain(..).skip(begin));
            open.extend((old..a).map(DiffStep::Old));
            open.extend((new..b).map(DiffStep::New));
        }
        same.push(DiffStep::Same(a, b));
        (old, new) = (a + 1, b + 1);
    }
    // The last step is the end of the texts, not a line.
    same.pop();
    if !open.is_empty() {
        open.extend(same.into_iter().take(CONTEXT));
        hunks.push(open);
    }
    hunks
}

/// Returns the header of a hunk as in a unified diff: `@@ -3,7 +3,9 @@`.
pub(super) fn hunk_header(hunk: &[DiffStep]) -> String {
    let side = |number: fn(&DiffStep) -> Option<usize>, before: usize| {
        let mut numbers = hunk.iter().filter_map(number);
        let first = numbers.next();
        let count = first.map_or(0, |_| 1 + numbers.count());
        format!("{},{count}", first.map_or(before, |first| first + 1))
    };
    let old = |step: &DiffStep| match step {
        DiffStep::Same(old, _) | DiffStep::Old(old) => Some(*old),
        DiffStep::New(_) => None,
    };
    let new = |step: &DiffStep| match step {
        DiffStep::Same(_, new) | DiffStep::New(new) => Some(*new),
        DiffStep::Old(_) => None,
    };
    format!("@@ -{} +{} @@", side(old, 0), side(new, 0))
}

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
    use proptest::prelude::*;
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn texts(text: &str) -> Vec<&str> {
        lines(text.as_bytes())
            .into_iter()
            .map(|range| text.get(range).unwrap().trim_end())
            .collect()
    }

    fn diff(old: &str, new: &str) -> String {
        let (old, new) = (texts(old), texts(new));
        let ends = (old.len(), new.len());
        let pairs = drop_trivial_matches(&common_items(&old, &new, later()), &old, &new);
        let line = |step: &DiffStep| match step {
            DiffStep::Same(a, _) => format!(" {}\n", old[*a]),
            DiffStep::Old(a) => format!("-{}\n", old[*a]),
            DiffStep::New(b) => format!("+{}\n", new[*b]),
        };
        hunks(&pairs, ends)
            .iter()
            .map(|hunk| hunk_header(hunk) + "\n" + &hunk.iter().map(line).collect::<String>())
            .collect()
    }

    #[test]
    fn hunks_match_a_unified_diff() {
        assert_eq!(diff("a\nb\nc\n", "a\nb\nc\n"), "");
        assert_eq!(diff("a\nb\nc\n", "a\nx\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
        assert_eq!(diff("", "x\n"), "@@ -0,0 +1,1 @@\n+x\n");
        assert_eq!(diff("x\n", ""), "@@ -1,1 +0,0 @@\n-x\n");
        let old: String = (0..30).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n5\n", "\nfive\n").replace("\n25\n", "\n");
        assert_eq!(
            diff(&old, &new),
            "@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n@@ -23,7 +23,6 @@\n 22\n 23\n 24\n-25\n 26\n 27\n 28\n"
        );
        let near = old.replace("\n5\n", "\nfive\n").replace("\n12\n", "\ntwelve\n");
        assert_eq!(
            diff(&old, &near).matches("@@ -").count(),
            1,
            "six lines between two changes keep them together"
        );
    }

    #[test]
    fn common_empty_lines_do_not_split_a_rewritten_block() {
        assert_eq!(
            diff("one\n\ntwo\n", "three\n\nfour\n"),
            "@@ -1,3 +1,3 @@\n-one\n-\n-two\n+three\n+\n+four\n"
        );
        assert_eq!(
            diff("a\nb\n\nc\nd\n", "a\nx\n\ny\n\nc\ne\n"),
            "@@ -1,5 +1,7 @@\n a\n-b\n+x\n+\n+y\n \n c\n-d\n+e\n"
        );
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn a_diff_leads_from_one_text_to_the_other(
            old in proptest::collection::vec("[abc{}]?", 0..40), new in proptest::collection::vec("[abc{}]?", 0..40),
        ) {
            let ends = (old.len(), new.len());
            let pairs = drop_trivial_matches(&common_items(&old, &new, later()), &old, &new);
            prop_assert!(pairs.iter().all(|(a, b)| old[*a] == new[*b]));
            prop_assert!(pairs.is_sorted_by(|x, y| x.0 < y.0 && x.1 < y.1));
            let steps: Vec<DiffStep> = hunks(&pairs, ends).concat();
            let gone: Vec<usize> = steps.iter().filter_map(|s| if let DiffStep::Old(a) = s { Some(*a) } else { None }).collect();
            let come: Vec<usize> = steps.iter().filter_map(|s| if let DiffStep::New(b) = s { Some(*b) } else { None }).collect();
            let unpaired = |all: usize, of: Vec<usize>| (0..all).filter(|n| !of.contains(n)).collect::<Vec<_>>();
            prop_assert_eq!(gone, unpaired(old.len(), pairs.iter().map(|p| p.0).collect()));
            prop_assert_eq!(come, unpaired(new.len(), pairs.iter().map(|p| p.1).collect()));
        }
    }

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
