//! Renders the differences between copies of one item, and the passages that only one worker has.

use std::cell::OnceCell;
use std::ops::Range;
use std::time::Instant;

use super::calls::{self, CallSequence};
use super::files::{ComparedItem, Comparison, DiffKind, ItemRank, NotComparedReason};
use super::lines::{
    CONTEXT, DiffStep, TextIndex, TextPassage, common_items, drop_trivial_matches, hunk_header,
    hunks, line_bytes, lines, passages,
};
use super::section::{Aspect, DiffBlock, DiffLine, DiffSection};

/// Weight of final words and files in `outputs/`.
const RESULT_WEIGHT: usize = 4;
/// Weight of calls that failed or have different outcomes.
const FAILURE_WEIGHT: usize = 3;
/// Maximum size of a group of adjacent passages, in bytes.
const ADJACENT_MAX: usize = 1_000;
/// Maximum number of lines of a hunk that is not split by the aspect.
const HUNK_MAX: usize = 24;
/// Divisor of the remaining time that one difference may take.
const TIME_DIVISOR: u32 = 4;

pub(super) struct Differ<'a> {
    comparison: &'a Comparison<'a>,
    aspect: Option<&'a Aspect>,
    /// Index of each worker's text, built on demand, and true if all text could be read.
    indexes: Vec<OnceCell<(TextIndex, bool)>>,
    items: &'a [ComparedItem],
}

struct DiffText {
    raw: Vec<u8>,
    lines: Vec<Range<usize>>,
}

impl DiffText {
    fn new(raw: Vec<u8>) -> DiffText {
        DiffText { lines: lines(&raw), raw }
    }

    fn start(&self, at: usize) -> usize {
        self.lines.get(at).map_or(self.raw.len(), |range| range.start)
    }

    fn line(&self, at: usize) -> &[u8] {
        self.lines.get(at).map_or(&[], |line| line_bytes(&self.raw, line))
    }

    /// Returns the line `at` of the source `side`, cut around its byte `about` if it is long.
    fn diff_line(&self, sign: char, side: usize, at: usize, about: Option<usize>) -> DiffLine {
        DiffLine::new(sign, self.line(at), (side, self.start(at)), about.unwrap_or(0))
    }

    fn trimmed(&self) -> Vec<&[u8]> {
        self.lines.iter().map(|line| line_bytes(&self.raw, line).trim_ascii_end()).collect()
    }
}

impl<'a> Differ<'a> {
    pub(super) fn new(
        comparison: &'a Comparison<'a>,
        items: &'a [ComparedItem],
        aspect: Option<&'a Aspect>,
    ) -> Differ<'a> {
        let indexes = comparison.workers.iter().map(|_| OnceCell::new()).collect();
        Differ { comparison, aspect, indexes, items }
    }

    /// Returns the differences between the first worker's sequence of calls and each other
    /// sequence.
    pub(super) fn calls(&self) -> Vec<DiffSection> {
        let mut sequences = self
            .comparison
            .workers
            .iter()
            .map(|worker| CallSequence { path: &worker.path, calls: worker.calls() });
        let Some(first) = sequences.next() else { return Vec::new() };
        let mut sections: Vec<DiffSection> = sequences
            .filter_map(|other| calls::section(first, other, self.comparison.minimal_until))
            .collect();
        for block in sections.iter_mut().flat_map(|section| &mut section.blocks) {
            self.measure(block);
        }
        sections
    }

    pub(super) fn sections(&self, number: usize) -> Vec<DiffSection> {
        let Some(item) = self.items.get(number) else { return Vec::new() };
        let mut sections = match item.kind() {
            DiffKind::Equal => Vec::new(),
            DiffKind::NotCompared => vec![not_compared(item)],
            DiffKind::OnlyIn => self.only_in(item),
            DiffKind::Differs => self.versions(item),
        };
        for section in &mut sections {
            section.file = Some(number);
            section.weight = match item.rank {
                ItemRank::Words | ItemRank::Outputs => RESULT_WEIGHT,
                _ if item.is_failure => FAILURE_WEIGHT,
                ItemRank::Own | ItemRank::Logs | ItemRank::Calls => 1,
                ItemRank::Steps => 0,
            };
        }
        sections
    }

    fn versions(&self, item: &ComparedItem) -> Vec<DiffSection> {
        let mut holders = item.holders();
        let Some(first) = holders.next() else { return Vec::new() };
        let version = |at: usize| item.versions.get(at).copied().flatten();
        let mut sections = Vec::new();
        let mut shown = vec![version(first)];
        for at in holders {
            if shown.contains(&version(at)) {
                continue;
            }
            shown.push(version(at));
            let others = item.holders().filter(|other| *other > at);
            let also = self.same_note(others.filter(|other| version(*other) == version(at)));
            sections.extend(self.pair(item, first, at, &also));
        }
        sections
    }

    fn pair(&self, item: &ComparedItem, old: usize, new: usize, also: &str) -> Option<DiffSection> {
        let text = |at: usize| {
            let (worker, copy) = (self.comparison.workers.get(at)?, item.copies.get(at)?.as_ref()?);
            Some((copy, self.comparison.text(worker, copy)))
        };
        let ((mine, from), (other, to)) = (text(old)?, text(new)?);
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (DiffText::new(from), DiffText::new(to)),
            (Err(skipped), _) | (_, Err(skipped)) => {
                let head = format!(
                    "[{} and {}{also} differ: {}]\n",
                    mine.path,
                    other.path,
                    reason(&skipped)
                );
                return Some(DiffSection::note(head));
            }
        };
        let (old, new) = (from.trimmed(), to.trimmed());
        let ends = (old.len(), new.len());
        // Each difference may take only a part of the remaining time, so that others are found as
        // well.
        let now = Instant::now();
        let deadline =
            now + self.comparison.minimal_until.saturating_duration_since(now) / TIME_DIVISOR;
        let pairs = drop_trivial_matches(&common_items(&old, &new, deadline), &old, &new);
        if Instant::now() > deadline {
            self.comparison.is_complete.set(false);
            self.comparison.is_late.set(true);
        }
        let blocks: Vec<DiffBlock> = hunks(&pairs, ends)
            .iter()
            .flat_map(|hunk| self.parts(hunk, &from, &to))
            .map(|hunk| self.hunk(hunk, &from, &to))
            .collect();
        if blocks.is_empty() {
            let head = format!(
                "[{} and {}{also} differ only in trailing white space]\n",
                mine.path, other.path
            );
            return Some(DiffSection::note(head));
        }
        Some(DiffSection {
            head: format!("--- {}\n+++ {}{also}\n", mine.path, other.path),
            sources: vec![mine.path.clone(), other.path.clone()],
            unit: "hunk",
            blocks,
            ..DiffSection::default()
        })
    }

    /// Splits a long hunk into parts that match the aspect and parts that do not.
    fn parts<'h>(
        &self,
        hunk: &'h [DiffStep],
        from: &DiffText,
        to: &DiffText,
    ) -> Vec<&'h [DiffStep]> {
        let Some(aspect) = self.aspect.filter(|_| hunk.len() > HUNK_MAX) else { return vec![hunk] };
        let matches = hunk.iter().map(|step| {
            let line = match step {
                DiffStep::Same(at, _) | DiffStep::Old(at) => from.line(*at),
                DiffStep::New(at) => to.line(*at),
            };
            aspect.count_matches(&String::from_utf8_lossy(line)) > 0
        });
        let matches: Vec<bool> = matches.collect();
        let is_near = |at: usize| {
            matches
                .get(at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(matches.len()))
                .is_some_and(|near| near.contains(&true))
        };
        let mut at = 0;
        hunk.chunk_by(|_, _| {
            at += 1;
            is_near(at - 1) == is_near(at)
        })
        .collect()
    }

    fn hunk(&self, hunk: &[DiffStep], from: &DiffText, to: &DiffText) -> DiffBlock {
        let mut block = DiffBlock::default();
        for run in
            hunk.chunk_by(|a, b| matches!(a, DiffStep::Same(..)) == matches!(b, DiffStep::Same(..)))
        {
            let old: Vec<usize> = run
                .iter()
                .filter_map(|step| if let DiffStep::Old(at) = step { Some(*at) } else { None })
                .collect();
            let new: Vec<usize> = run
                .iter()
                .filter_map(|step| if let DiffStep::New(at) = step { Some(*at) } else { None })
                .collect();
            // Replaced lines are cut around the first difference to their replacement.
            let prefixes: Vec<usize> = if old.len() == new.len() {
                old.iter()
                    .zip(&new)
                    .map(|(a, b)| common_prefix(from.line(*a), to.line(*b)))
                    .collect()
            } else {
                Vec::new()
            };
            let mut old_prefixes = prefixes.iter().copied();
            let mut new_prefixes = prefixes.iter().copied();
            block.lines.extend(run.iter().map(|step| match *step {
                DiffStep::Same(at, _) => from.diff_line(' ', 0, at, None),
                DiffStep::Old(at) => from.diff_line('-', 0, at, old_prefixes.next()),
                DiffStep::New(at) => to.diff_line('+', 1, at, new_prefixes.next()),
            }));
        }
        block.head = hunk_header(hunk);
        self.measure(&mut block);
        block
    }

    /// Returns the passages of an item that no file of the workers without it contains.
    fn only_in(&self, item: &ComparedItem) -> Vec<DiffSection> {
        let Some(at) = item.holders().next() else { return Vec::new() };
        let (Some(worker), Some(Some(copy))) =
            (self.comparison.workers.get(at), item.copies.get(at))
        else {
            return Vec::new();
        };
        let others: Vec<usize> = (0..self.comparison.workers.len())
            .filter(|other| !item.copies.get(*other).is_some_and(Option::is_some))
            .collect();
        let also = self.same_note(item.holders().skip(1));
        let lacking = self.paths(others.iter().copied());
        let note = |text: &str| {
            DiffSection::note(format!("[not in {lacking}: {}{also}: {text}]\n", copy.path))
        };
        let text = match self.comparison.text(worker, copy) {
            Ok(raw) => DiffText::new(raw),
            Err(skipped) => return vec![note(reason(&skipped))],
        };
        let indexed: Vec<&(TextIndex, bool)> =
            others.iter().filter_map(|other| self.index_of(*other)).collect();
        let indexes: Vec<&TextIndex> = indexed.iter().map(|(index, _)| index).collect();
        let (found, all) = passages(&text.raw, &indexes);
        if all == 0 {
            return vec![note("empty")];
        }
        if found.is_empty() {
            return vec![note("all of its text is in other files there")];
        }
        let sign = if at == 0 { '-' } else { '+' };
        let blocks = adjacent(&found, &text)
            .into_iter()
            .map(|part| self.passage(sign, &text, part))
            .collect();
        let subject = match found.len() {
            some if some == all => "none of its text is".into(),
            some => format!("{some} of its {all} passages are"),
        };
        let is_complete = indexed.iter().all(|(_, is_complete)| *is_complete);
        let limit = if is_complete { "" } else { " that could be read" };
        let location = if found.len() == all { "in any file there" } else { "in no file there" };
        let head =
            format!("[not in {lacking}: {}{also}; {subject} {location}{limit}]\n", copy.path);
        vec![DiffSection {
            head,
            sources: vec![copy.path.clone()],
            unit: "passage",
            blocks,
            ..DiffSection::default()
        }]
    }

    fn passage(&self, sign: char, text: &DiffText, part: &[TextPassage]) -> DiffBlock {
        let lines = || part.iter().flat_map(|passage| &passage.lines);
        let from = lines().next().map_or(0, |range| range.start);
        let to = lines().next_back().map_or(0, |range| range.end);
        let first = text.lines.partition_point(|range| range.start < from);
        let all =
            text.lines.iter().enumerate().skip(first).take_while(|(_, range)| range.end <= to);
        let lines = all.map(|(at, _)| text.diff_line(sign, 0, at, None)).collect();
        let head = format!("@@ bytes {from}-{} @@", to.saturating_sub(1));
        let substance = part.iter().map(|passage| passage.substance).sum();
        let mut block = DiffBlock { head, lines, substance, ..DiffBlock::default() };
        self.measure(&mut block);
        block
    }

    /// Returns the index of a worker's text, and true if all of its text files could be read.
    fn index_of(&self, at: usize) -> Option<&(TextIndex, bool)> {
        let (cell, worker) = (self.indexes.get(at)?, self.comparison.workers.get(at)?);
        Some(cell.get_or_init(|| {
            let (mut index, mut is_complete) = (TextIndex::default(), true);
            for copy in self.items.iter().filter_map(|item| item.copies.get(at)?.as_ref()) {
                match self.comparison.text(worker, copy) {
                    Ok(text) => index.add(&text),
                    Err(skipped) => is_complete &= skipped == NotComparedReason::Binary,
                }
            }
            (index, is_complete)
        }))
    }

    fn paths(&self, workers: impl Iterator<Item = usize>) -> String {
        let workers = workers.filter_map(|at| self.comparison.workers.get(at));
        workers.map(|worker| worker.path.as_str()).collect::<Vec<&str>>().join(", ")
    }

    /// Returns a note that the workers with these numbers have an equal copy; empty if there are
    /// none.
    fn same_note(&self, workers: impl Iterator<Item = usize>) -> String {
        let paths = self.paths(workers);
        if paths.is_empty() { paths } else { format!(" (the same: {paths})") }
    }

    fn measure(&self, block: &mut DiffBlock) {
        if block.substance == 0 {
            block.substance = block.changed();
        }
        if let Some(aspect) = self.aspect {
            let text: Vec<&str> = block.texts().collect();
            block.matches = aspect.count_matches(&text.join("\n"));
        }
    }
}

/// Groups passages that are separated only by empty lines, up to [`ADJACENT_MAX`] bytes. A heading
/// starts a new group.
fn adjacent<'a>(found: &'a [TextPassage], text: &DiffText) -> Vec<&'a [TextPassage]> {
    let ends = |passage: &TextPassage| {
        (
            passage.lines.first().map(|range| range.start),
            passage.lines.last().map(|range| range.end),
        )
    };
    let mut group_start = 0;
    let follows = |a: &TextPassage, b: &TextPassage| {
        let ((Some(first), Some(end)), (Some(start), Some(last))) = (ends(a), ends(b)) else {
            return false;
        };
        let Some(between) = text.raw.get(end..start) else { return false };
        group_start = if group_start == 0 { first + 1 } else { group_start };
        let follows = between.trim_ascii().is_empty()
            && last + 1 - group_start <= ADJACENT_MAX
            && !text.raw.get(start..).is_some_and(|rest| rest.starts_with(b"#"));
        group_start = if follows { group_start } else { start + 1 };
        follows
    };
    found.chunk_by(follows).collect()
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn not_compared(item: &ComparedItem) -> DiffSection {
    let reason = item.skipped.as_ref().map(reason).unwrap_or_default();
    let paths: Vec<&str> = item.copies.iter().flatten().map(|copy| copy.path.as_str()).collect();
    DiffSection::note(format!("[{}: not compared: {reason}]\n", paths.join(", ")))
}

fn reason(skipped: &NotComparedReason) -> &str {
    match skipped {
        NotComparedReason::Binary => "binary",
        NotComparedReason::TooLarge => "too large to compare by line",
        NotComparedReason::Unreadable(reason) => reason,
        NotComparedReason::Late => "no time was left",
    }
}
