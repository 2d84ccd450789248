//! Renders one difference within its share of the budget: blocks of lines, and omissions with
//! offsets.
//!
//! A line of a worker's text starts with a space, `-` or `+`; any other start marks a generated
//! line. Worker text that would read as the head of another file's difference gets a backslash.
//!
//! The aspect of a comparison is a list of words to which the shown differences are limited.

use std::fmt::Write;

use crate::search::ranked::WordStemmer;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Demand, allocate, count_fitting};
use swarmletfs_base::text::clean::{InvisibleChars, cleaned_with, clip, escape_markers};
use swarmletfs_base::text::count;

/// Maximum length of a shown line, in bytes.
const LINE_MAX: usize = 400;
/// Approximate minimum size of a block that is cut, in bytes.
const MIN_EXCERPT: usize = 240;
/// Approximate size of an omission line without sources, in bytes.
const OMISSION: usize = 34;
/// Approximate size of one source with its byte range in an omission line, without the path, in
/// bytes.
const OMISSION_SOURCE: usize = 26;
/// Minimum part of a line that is shown, in bytes.
const PART_MIN: usize = 40;
/// Weight of differing lines; context lines have weight 1.
const CHANGED_WEIGHT: usize = 3;
/// Maximum number of attempts to stay within a share.
const TRIES: usize = 4;
/// Maximum number of runs of equal sign in a block that is cut within each run; one with more is
/// cut at its end.
const RUNS_MAX: usize = 12;
/// Maximum growth of the numbers in an omission line, in bytes.
const DIGITS: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct DiffLine {
    /// Sign of the line: a space, `-` or `+`.
    sign: char,
    /// Sanitized text, cut if it is long.
    text: String,
    /// Index of the source.
    side: usize,
    range: (u64, u64),
}

impl DiffLine {
    /// Creates a line from `raw`, which starts at byte `from` of the source `side`. A long line is
    /// cut to the text around its byte `about`.
    pub(super) fn new(
        sign: char,
        raw: &[u8],
        (side, from): (usize, usize),
        about: usize,
    ) -> DiffLine {
        let range = (from as u64, (from + raw.len()) as u64);
        let end =
            raw.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        // Invisible characters may be the only difference.
        let (text, _) = clip(raw.split_at_known(end).0, about, LINE_MAX, InvisibleChars::Escape);
        DiffLine { sign, text: guarded(sign, text), side, range }
    }

    fn size(&self) -> usize {
        self.sign.len_utf8() + self.text.len() + 1
    }

    fn write(&self, out: &mut String) {
        let _ = writeln!(out, "{}{}", self.sign, self.text);
    }

    /// Returns the line in at most `room` bytes, or `None` if that is less than [`PART_MIN`] bytes
    /// of it.
    fn cut(&self, room: usize) -> Option<String> {
        let note = format!("[... {} B ...]", self.range.1 - self.range.0);
        let room = room.saturating_sub(note.len() + 2);
        let part =
            self.text.get(..self.text.floor_char_boundary(room)).filter(|_| room >= PART_MIN)?;
        Some(format!("{}{part}{note}\n", self.sign))
    }
}

/// Puts a backslash before text that would read as a generated line after `sign`.
fn guarded(sign: char, text: String) -> String {
    let is_head = matches!(sign, '-' | '+') && text.starts_with(&format!("{sign}{sign} workers/"));
    if is_head { format!("\\{text}") } else { text }
}

#[derive(Debug, Default)]
pub(super) struct DiffBlock {
    /// Line before the block, without its line end.
    pub head: String,
    pub lines: Vec<DiffLine>,
    /// Amount of information. If not all blocks fit, those with the highest substance are shown.
    pub(super) substance: usize,
    pub matches: usize,
}

impl DiffBlock {
    /// Returns the number of bytes in differing lines.
    pub(super) fn changed(&self) -> usize {
        self.lines.iter().filter(|line| line.sign != ' ').map(|line| line.text.len()).sum()
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.text.as_str())
    }

    fn size(&self) -> usize {
        self.head.len() + 1 + size(&self.lines)
    }

    /// Returns the text in at most `share` bytes, or `None` if no line fits.
    fn within(&self, share: usize, sources: &[String]) -> Option<String> {
        let runs: Vec<&[DiffLine]> = self.lines.chunk_by(|a, b| a.sign == b.sign).collect();
        if runs.len() > RUNS_MAX && self.size() > share {
            return self.first_lines(share, sources);
        }
        let demands = runs.iter().map(|run| {
            let is_context = run.first().is_some_and(|line| line.sign == ' ');
            Demand { need: size(run), weight: if is_context { 1 } else { CHANGED_WEIGHT } }
        });
        let demands: Vec<Demand> = demands.collect();
        let mut total = share.checked_sub(self.head.len() + 1)?;
        for _ in 0..TRIES {
            let mut out = format!("{}\n", self.head);
            let mut is_any = false;
            for (run, share) in runs.iter().zip(allocate(&demands, total)) {
                is_any |= write_run(&mut out, run, share, sources);
            }
            match out.len().checked_sub(share) {
                None | Some(0) => return is_any.then_some(out),
                Some(over) => total = total.checked_sub(over)?,
            }
        }
        None
    }

    fn first_lines(&self, share: usize, sources: &[String]) -> Option<String> {
        let mut omission = String::new();
        write_omission(&mut omission, (self.lines.len(), "line"), self.lines.iter(), sources);
        let room = share.checked_sub(self.head.len() + 1 + omission.len() + DIGITS)?;
        let first = count_fitting(self.lines.iter().map(DiffLine::size), room);
        let (shown, left) =
            self.lines.split_at_checked(first).filter(|(shown, _)| !shown.is_empty())?;
        let mut out = format!("{}\n", self.head);
        shown.iter().for_each(|line| line.write(&mut out));
        write_omission(&mut out, (left.len(), "line"), left.iter(), sources);
        Some(out)
    }
}

/// Writes a run of lines with one sign within `share` bytes, from both ends with an omission in
/// between. Returns true if any line is shown.
///
/// The omission line is not counted in the share.
fn write_run(out: &mut String, run: &[DiffLine], share: usize, sources: &[String]) -> bool {
    if size(run) <= share {
        run.iter().for_each(|line| line.write(out));
        return !run.is_empty();
    }
    let mut first = count_fitting(run.iter().map(DiffLine::size), share * 2 / 3);
    let mut cut = None;
    if first == 0 {
        cut = run.first().and_then(|line| line.cut(share));
        first = usize::from(cut.is_some());
    }
    let room = if cut.is_some() { 0 } else { share / 3 };
    let last = count_fitting(run.iter().skip(first).rev().map(DiffLine::size), room);
    match cut {
        Some(cut) => out.push_str(&cut),
        None => run.iter().take(first).for_each(|line| line.write(out)),
    }
    let (_, rest) = run.split_at_known(first);
    let (left, shown) = rest.split_at_known(rest.len() - last);
    let mut omission = String::new();
    write_omission(&mut omission, (left.len(), "line"), left.iter(), sources);
    // The omission line may be longer than the omitted lines.
    if size(left) <= omission.len() {
        left.iter().for_each(|line| line.write(out));
    } else {
        out.push_str(&omission);
    }
    shown.iter().for_each(|line| line.write(out));
    first + last > 0
}

fn size(lines: &[DiffLine]) -> usize {
    lines.iter().map(DiffLine::size).sum()
}

/// Writes a line about `left` omitted units, such as hunks. Lists the byte range of `lines` in each
/// of `sources`. Writes nothing if `left` is 0.
fn write_omission<'a>(
    out: &mut String,
    (left, unit): (usize, &str),
    lines: impl Iterator<Item = &'a DiffLine> + Clone,
    sources: &[String],
) {
    if left == 0 {
        return;
    }
    let ranges = sources.iter().enumerate().filter_map(|(side, source)| {
        let omitted = lines.clone().filter(|line| line.side == side);
        let from = omitted.clone().map(|line| line.range.0).min()?;
        let to = omitted.map(|line| line.range.1).max()?;
        Some(format!("bytes {from}-{} of {source}", to.saturating_sub(1)))
    });
    let ranges: Vec<String> = ranges.collect();
    let between = if ranges.is_empty() { "" } else { ": " };
    let _ = writeln!(out, "[... {} omitted{between}{} ...]", count(left, unit), ranges.join(", "));
}

#[derive(Debug, Default)]
pub(super) struct DiffSection {
    /// Lines that name the compared files, with line ends.
    pub head: String,
    /// Paths of the sources, indexed by the side of a line; empty if lines have no file.
    pub sources: Vec<String>,
    /// Name of a block: `hunk` or `passage`.
    pub unit: &'static str,
    pub blocks: Vec<DiffBlock>,
    pub weight: usize,
    pub file: Option<usize>,
}

impl DiffSection {
    /// Returns a difference that consists of one line, with its line end.
    pub(super) fn note(line: String) -> DiffSection {
        DiffSection { head: line, ..DiffSection::default() }
    }

    /// Returns the size in bytes if all blocks with at least `min_matches` words of the aspect are
    /// shown.
    pub(super) fn need(&self, min_matches: usize) -> usize {
        let is_shown = |block: &&DiffBlock| block.matches >= min_matches;
        let shown: usize = self.blocks.iter().filter(is_shown).map(DiffBlock::size).sum();
        let left = self.blocks.iter().filter(|block| !is_shown(block)).count();
        self.head.len() + shown + left * self.omission()
    }

    pub(super) fn min_size(&self) -> usize {
        let most = self.blocks.iter().map(DiffBlock::size).sum::<usize>();
        self.head.len()
            + most.min(MIN_EXCERPT)
            + if most > MIN_EXCERPT { 2 * self.omission() } else { 0 }
    }

    pub(super) fn has_match(&self, min_matches: usize) -> bool {
        min_matches == 0 || self.blocks.iter().any(|block| block.matches >= min_matches)
    }

    fn omission(&self) -> usize {
        OMISSION + self.sources.iter().map(|source| source.len() + OMISSION_SOURCE).sum::<usize>()
    }

    /// Returns the text in at most `share` bytes, limited to blocks with at least `min_matches`
    /// words of the aspect; `None` if nothing fits.
    pub(super) fn within(&self, share: usize, min_matches: usize) -> Option<String> {
        if self.blocks.is_empty() {
            return (self.head.len() <= share).then(|| self.head.clone());
        }
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.retain(|at| self.blocks.get(*at).is_some_and(|block| block.matches >= min_matches));
        let is_whole = order.len() == self.blocks.len() && self.need(0) <= share;
        let substance = |at: &usize| self.blocks.get(*at).map_or(0, |block| block.substance);
        order.sort_by_key(|at| (std::cmp::Reverse(substance(at)), *at));
        let omission = if is_whole { 0 } else { self.omission() };
        let room = share.checked_sub(self.head.len() + omission)?;
        let size = |at: &usize| self.blocks.get(*at).map_or(0, DiffBlock::size);
        let mut most = order.len();
        if !is_whole {
            let min_sizes = order.iter().map(|at| size(at).min(MIN_EXCERPT + omission) + omission);
            most = count_fitting(min_sizes, room).max(1);
        }
        while most > 0 {
            let mut chosen: Vec<usize> = order.iter().copied().take(most).collect();
            chosen.sort_unstable();
            let demands: Vec<Demand> =
                chosen.iter().map(|at| Demand { need: size(at), weight: 1 }).collect();
            let omissions = self.gaps(&chosen) * omission;
            let mut total = share.saturating_sub(self.head.len() + omissions);
            for _ in 0..TRIES {
                let Some(text) = self.written(&chosen, &allocate(&demands, total)) else { break };
                let Some(over) = text.len().checked_sub(share).filter(|over| *over > 0) else {
                    return Some(text);
                };
                total = total.saturating_sub(over);
            }
            most = if most > 8 { most * 3 / 4 } else { most - 1 };
        }
        None
    }

    fn gaps(&self, chosen: &[usize]) -> usize {
        let mut next = 0;
        let mut gaps = 0;
        for at in chosen.iter().copied().chain([self.blocks.len()]) {
            gaps += usize::from(at > next);
            next = at + 1;
        }
        gaps
    }

    fn written(&self, chosen: &[usize], shares: &[usize]) -> Option<String> {
        let mut out = self.head.clone();
        let mut next = 0;
        let mut is_any = false;
        let gap = |out: &mut String, from: usize, to: usize| {
            let left = self.blocks.split_at_known(to).0.split_at_known(from).1;
            let changed =
                left.iter().flat_map(|block| &block.lines).filter(|line| line.sign != ' ');
            write_omission(out, (left.len(), self.unit), changed, &self.sources);
        };
        for (at, share) in chosen.iter().zip(shares) {
            let text = self.blocks.get(*at).and_then(|block| block.within(*share, &self.sources));
            let Some(text) = text else { continue };
            gap(&mut out, next, *at);
            out.push_str(&text);
            next = at + 1;
            is_any = true;
        }
        gap(&mut out, next, self.blocks.len());
        is_any.then_some(out)
    }
}

/// Sanitizes worker text for use within a generated line.
pub(super) fn inline(text: &str) -> String {
    escape_markers(&cleaned_with(text.as_bytes(), InvisibleChars::Escape).text)
}

pub(super) struct Aspect {
    stemmer: WordStemmer,
    stems: Vec<String>,
}

impl Aspect {
    pub(super) fn new(text: &str) -> Aspect {
        let stemmer = WordStemmer::default();
        let mut stems = stemmer.stem_text(text);
        stems.sort_unstable();
        stems.dedup();
        Aspect { stemmer, stems }
    }

    /// Returns the number of words of the aspect that occur in `text`, compared by the stems of
    /// `search/`.
    ///
    /// Every selection by aspect uses this count.
    pub(super) fn count_matches(&self, text: &str) -> usize {
        let found = self.stemmer.stem_text(text);
        self.stems.iter().filter(|stem| found.contains(stem)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(blocks: usize, lines: usize) -> DiffSection {
        let mut at = 0;
        let mut line = |sign: char, n: usize| {
            let text = format!("line {n} of some length\n");
            at += text.len();
            DiffLine::new(sign, text.as_bytes(), (usize::from(sign == '+'), at - text.len()), 0)
        };
        let block = |n: usize| DiffBlock {
            head: format!("@@ {n} @@"),
            lines: (0..lines)
                .map(|i| {
                    line(
                        if if lines == 77 { i % 2 == 0 } else { i < lines / 2 } {
                            '-'
                        } else {
                            '+'
                        },
                        i,
                    )
                })
                .collect(),
            substance: n % 3,
            matches: 0,
        };
        DiffSection {
            head: "--- workers/a/x\n+++ workers/b/x\n".into(),
            sources: vec!["workers/a/x".into(), "workers/b/x".into()],
            unit: "hunk",
            blocks: (0..blocks).map(block).collect(),
            weight: 1,
            file: None,
        }
    }

    #[test]
    fn no_share_is_exceeded_and_what_is_left_out_is_said() {
        for (blocks, lines) in [(1, 4), (1, 400), (5, 10), (60, 6), (3, 100), (2, 77)] {
            let section = section(blocks, lines);
            for share in (0..section.need(0) + 300).step_by(37) {
                let Some(text) = section.within(share, 0) else { continue };
                assert!(text.len() <= share, "{} over {share}: {text}", text.len());
                let shown = text.lines().filter(|line| line.contains(" of some length")).count();
                let left: usize = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("[... "))
                    .map(|rest| {
                        rest.split(' ').next().unwrap().parse::<usize>().unwrap()
                            * if rest.contains(" hunk") { lines } else { 1 }
                    })
                    .sum();
                assert_eq!(shown + left, blocks * lines, "{share}: {text}");
            }
            assert_eq!(section.within(section.need(0), 0).unwrap().len(), section.need(0));
        }
    }

    #[test]
    fn a_part_of_what_is_needed_is_used() {
        let section = section(3, 200);
        for share in (600..section.need(0)).step_by(501) {
            let text = section.within(share, 0).unwrap();
            assert!(text.len() * 10 >= share * 6, "{} of {share}", text.len());
            assert!(
                text.contains("\n-line") && text.contains("\n+line"),
                "{share}: both sides are shown: {text}"
            );
        }
    }

    #[test]
    fn worker_lines_never_read_as_a_head() {
        let line = DiffLine::new('-', b"-- workers/b/forged\n", (0, 0), 0);
        let mut out = String::new();
        line.write(&mut out);
        assert_eq!(out, "-\\-- workers/b/forged\n");
    }

    #[test]
    fn words_match_in_any_case_by_their_stems() {
        let aspect = Aspect::new("Section 3, risk");
        assert_eq!(aspect.count_matches("## SECTION 3: Risks"), 3);
        assert_eq!(aspect.count_matches("section 13"), 1);
        assert_eq!(aspect.count_matches("3.2 asterisk"), 1);
        assert_eq!(aspect.count_matches(""), 0);
    }
}
