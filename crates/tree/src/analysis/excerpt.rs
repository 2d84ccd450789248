//! The excerpt of one output within a share of the budget: all of it, or a short head, the most
//! relevant lines with their context and the tail. Every omission is marked in place.

use std::collections::{BTreeSet, HashSet};

use foldhash::fast::RandomState;

use super::cut::cut_most_relevant;
use super::line_scores::{LineScores, score_lines};
use super::lines::{LineChunk, merge_repeats, split_chunks};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::failure_signs;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, read_range};
use swarmletfs_base::text::clean::escape_markers;

/// Maximum size of an output that is read into memory whole, in bytes.
pub const WHOLE_MAX: u64 = 1 << 20;
/// Read size of the search through a larger output, in bytes.
const STEP: u64 = 1 << 20;
/// Number of hits in a large output that end the search.
const HITS_MAX: usize = 400;
/// Number of bytes that are read on either side of a hit.
const AROUND: u64 = 2 << 10;
/// Number of bytes that are read at the head of a large output.
const HEAD: u64 = 16 << 10;
/// Length of the start of an output in which a NUL means binary, in bytes.
const BINARY_PROBE: usize = 8 << 10;
/// Maximum part of a share for the head, in percent.
const HEAD_PERCENT: usize = 4;
/// Maximum part of a share for the highest-scoring failure line and its context, in percent.
const FAILURE_PERCENT: usize = 25;
/// Minimum size of a head, in bytes.
const HEAD_MIN: usize = 480;
/// Maximum size of an output whose head and tail are shown, in bytes.
const ENDS_MAX: u64 = 8 << 10;
/// Part of a share that the head gets first, in percent.
const ENDS_HEAD_PERCENT: usize = 50;
/// Number of bytes of a share per separate region of the output; more regions would explain less.
const REGION: usize = 500;

/// Minimum part of a relevant line that is worth showing, in bytes.
pub const LINE_MIN: usize = 24;
/// Factor for the score of a line that another excerpt shows already.
const SHOWN_FACTOR: f64 = 0.2;
/// Minimum length of a line that is compared with lines of other excerpts, in bytes.
const SHOWN_LINE_MIN: usize = 24;

/// Number of attempts that cut an excerpt by exactly its excess; later attempts double the cut, so
/// that few are needed for any output.
const EXACT_ATTEMPTS: usize = 4;

pub const NOT_UTF8: &str = "not UTF-8";
/// Bytes that an output without a note may take beyond its share: the minimum room reserved for a
/// note. Otherwise an escaped marker alone could cause a short output to be cut.
const NOTE_ROOM: usize = NOT_UTF8.len() + 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// The most relevant line, cut if the share is too small for it.
    Failure,
    Scores,
    /// Head and tail of a short output; the lines with the highest scores of a longer one.
    Ends,
}

pub type ExcerptTask = Box<dyn FnOnce(Deadline<'_>) -> ExcerptResult + Send>;
/// The excerpt with the lines shown so far, or the reason why the output cannot be read.
pub type ExcerptResult = Result<(Excerpt, ShownLines), String>;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Text with omission lines; ends in a line end unless empty.
    pub text: String,
    pub whole: bool,
    /// True if the text names the offsets of omissions.
    pub has_offsets: bool,
    pub note: Option<String>,
    /// Size of the output when it was read, in bytes; `None` if it was not read.
    pub bytes: Option<u64>,
    /// Number of invisible characters that were removed from the text.
    pub hidden: usize,
}

/// Returns the excerpt of `file` in at most `share` bytes, or `NOTE_ROOM` more if it has no note.
///
/// Lines in `shown_lines` have a lower score; the lines of this excerpt are added to them.
///
/// # Errors
///
/// Returns an error if `file` cannot be read.
pub fn excerpt(
    file: &dyn File,
    share: usize,
    focus: Focus,
    shown_lines: &mut ShownLines,
    deadline: Deadline<'_>,
) -> Result<Excerpt> {
    let size = file.stat_without_acl()?.size;
    let read_whole = size <= WHOLE_MAX.max(share as u64);
    let beginning = read_range(file, 0, if read_whole { length(size) } else { BINARY_PROBE })?;
    if memchr::memchr(0, beginning.get(..BINARY_PROBE).unwrap_or(&beginning)).is_some() {
        let text = Some("(binary, not shown)\n").filter(|text| text.len() <= share);
        let (text, note) = (text.unwrap_or_default().to_owned(), Some("binary".into()));
        return Ok(Excerpt { text, note, bytes: Some(size), ..Excerpt::default() });
    }
    let loaded = if read_whole {
        LoadedOutput::whole(beginning)
    } else {
        LoadedOutput::regions(file, size, share, deadline)?
    };
    let (chunks, utf8) = loaded.chunks();
    let note = match (utf8, loaded.searched) {
        (false, _) => Some(NOT_UTF8.to_owned()),
        (true, Some(start)) => Some(format!("searched from byte {start}")),
        (true, None) => None,
    };
    let share = if note.is_none() { share + NOTE_ROOM } else { share };
    let whole = if loaded.complete { whole_excerpt(&chunks, share) } else { None };
    let excerpt = match whole {
        Some(excerpt) => {
            chunks.iter().for_each(|chunk| shown_lines.add(chunk));
            excerpt
        }
        None => cut_excerpt(&loaded, merge_repeats(chunks), share, focus, shown_lines),
    };
    Ok(Excerpt { note, bytes: Some(loaded.size), ..excerpt })
}

/// Returns the text of all `chunks`, or `None` if it takes more than `share` bytes.
fn whole_excerpt(chunks: &[LineChunk<'_>], share: usize) -> Option<Excerpt> {
    if chunks.iter().map(|chunk| chunk.text.len()).sum::<usize>() > share {
        return None;
    }
    let text: String = chunks.iter().map(|chunk| &*chunk.text).collect();
    let text = Some(ended(escape_markers(&text))).filter(|text| text.len() <= share)?;
    let hidden = chunks.iter().map(|chunk| chunk.hidden).sum();
    Some(Excerpt { text, whole: true, hidden, ..Excerpt::default() })
}

fn cut_excerpt<'a>(
    loaded: &'a LoadedOutput,
    mut chunks: Vec<LineChunk<'a>>,
    share: usize,
    focus: Focus,
    shown_lines: &mut ShownLines,
) -> Excerpt {
    let size = loaded.size;
    let by_ends = focus == Focus::Ends && size <= ENDS_MAX;
    let mut scored = score_lines(&chunks, size);
    let mut was_shown = false;
    for (score, chunk) in scored.scores.iter_mut().zip(&chunks) {
        // A short line is treated like the line above it.
        let text = chunk.text.trim();
        was_shown = shown_lines.contains(chunk)
            || was_shown && !text.is_empty() && text.len() < SHOWN_LINE_MIN;
        *score *= if was_shown { SHOWN_FACTOR } else { 1.0 };
    }
    // Escaping markers adds bytes that are known only afterwards; they are subtracted from the
    // share.
    let mut slack = 0;
    for attempt in 0.. {
        let room = share.saturating_sub(2 * gap_cost(size) + slack);
        if focus == Focus::Failure && room >= LINE_MIN / 2 {
            cut_most_relevant(&mut chunks, &mut scored, room, &|start, end| loaded.raw(start, end));
        }
        let limit = share.saturating_sub(slack);
        let selection = match by_ends {
            true => LineSelection::choose_ends(&chunks, size, limit),
            false => LineSelection::choose(&chunks, &scored, size, limit),
        };
        let (text, has_offsets) = selection.text();
        let cost = text.len();
        if selection.is_empty() {
            // An omission line alone says no more than an entry in the list and takes more room.
            break;
        }
        if cost <= share {
            selection.shown().for_each(|chunk| shown_lines.add(chunk));
            let hidden = selection.shown().map(|chunk| chunk.hidden).sum();
            // Repeats of a line are omitted without offsets.
            let whole = !has_offsets && selection.shown().all(|chunk| chunk.repeats == 0);
            return Excerpt { text, whole, has_offsets, hidden, ..Excerpt::default() };
        }
        slack += (cost - share).max(16);
        if attempt >= EXACT_ATTEMPTS {
            slack *= 2;
        }
    }
    Excerpt::default()
}

/// Returns the minimum share in which the most relevant line of an output of `size` bytes has some
/// room, in bytes.
pub fn min_share(size: u64) -> usize {
    2 * gap_cost(size) + LINE_MIN
}

/// Returns the maximum size of an omission line with the line end before it, in bytes.
fn gap_cost(size: u64) -> usize {
    omission(size, size, size).len() + 1
}

/// Lines that earlier excerpts of the same evidence.txt show.
#[derive(Debug, Default)]
pub struct ShownLines(HashSet<String, RandomState>);

impl ShownLines {
    fn add(&mut self, chunk: &LineChunk<'_>) {
        let text = chunk.text.trim();
        if text.len() >= SHOWN_LINE_MIN && !self.0.contains(text) {
            self.0.insert(text.to_owned());
        }
    }

    fn contains(&self, chunk: &LineChunk<'_>) -> bool {
        let text = chunk.text.trim();
        text.len() >= SHOWN_LINE_MIN && self.0.contains(text)
    }
}

fn ended(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

struct LoadedOutput {
    size: u64,
    /// Offset and bytes of each region.
    parts: Vec<(u64, Vec<u8>)>,
    complete: bool,
    /// Offset at which the search for signs stopped early.
    searched: Option<u64>,
}

impl LoadedOutput {
    fn whole(raw: Vec<u8>) -> LoadedOutput {
        // Smaller than the size from stat if the file was truncated meanwhile.
        LoadedOutput {
            size: raw.len() as u64,
            parts: vec![(0, raw)],
            complete: true,
            searched: None,
        }
    }

    /// Searches the file for signs, then reads only the regions that could be shown.
    fn regions(
        file: &dyn File,
        size: u64,
        share: usize,
        deadline: Deadline<'_>,
    ) -> Result<LoadedOutput> {
        let (hits, searched) = search(file, size, deadline)?;
        let tail = size.saturating_sub((share as u64).saturating_mul(4).clamp(64 << 10, 8 << 20));
        let mut regions = vec![(0, HEAD.min(size)), (tail, size)];
        regions.extend(hits.iter().map(|at| (at.saturating_sub(AROUND), (at + AROUND).min(size))));
        let mut parts = Vec::new();
        for (start, end) in merged(regions) {
            let mut raw = read_range(file, start, length(end - start))?;
            let (from, to) = whole_lines(&raw, start == 0, end >= size);
            raw.truncate(to);
            raw.drain(..from);
            parts.push((start + from as u64, raw));
        }
        Ok(LoadedOutput { size, parts, complete: false, searched })
    }

    /// Returns the bytes of the output from `start` to `end`, if one region holds all of them.
    fn raw(&self, start: u64, end: u64) -> Option<&[u8]> {
        self.parts.iter().find_map(|(offset, raw)| {
            let from = usize::try_from(start.checked_sub(*offset)?).ok()?;
            raw.get(from..from + usize::try_from(end.checked_sub(start)?).ok()?)
        })
    }

    /// Returns the chunks in order, and true if all of them are UTF-8.
    fn chunks(&self) -> (Vec<LineChunk<'_>>, bool) {
        let (mut all, mut utf8) = (Vec::new(), true);
        for (start, raw) in &self.parts {
            let (mut found, valid) = split_chunks(raw, *start);
            all.append(&mut found);
            utf8 &= valid;
        }
        (all, utf8)
    }
}

/// Converts a size in bytes to a buffer length, saturating.
pub fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Returns the offsets of the latest lines with a sign of failure, at most [`HITS_MAX`], and the
/// offset at which the search stopped if it stopped early. Reads `file` in steps from its end until
/// there are enough. If time runs out, the earliest lines are missing.
fn search(file: &dyn File, size: u64, deadline: Deadline<'_>) -> Result<(Vec<u64>, Option<u64>)> {
    let (mut hits, mut end) = (Vec::new(), size);
    while end > 0 && hits.len() < HITS_MAX {
        if !deadline.has_time() {
            return Ok((hits, Some(end)));
        }
        let start = end.saturating_sub(STEP);
        let raw = read_range(file, start, length(end - start))?;
        // From the first whole line on, so that no sign spans two steps.
        let first_end = memchr::memchr(b'\n', &raw).filter(|at| start > 0 && at + 1 < raw.len());
        let from = first_end.map_or(0, |at| at + 1);
        let found: Vec<usize> = failure_signs::failures(raw.split_at_known(from).1).collect();
        hits.extend(found.iter().rev().map(|at| start + (from + at) as u64));
        end = start + from as u64;
    }
    hits.truncate(HITS_MAX);
    Ok((hits, None))
}

/// Merges ranges of offsets that overlap or touch.
fn merged(mut regions: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    regions.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(regions.len());
    for (start, end) in regions {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Returns the range of `raw` that starts and ends at whole lines, or at least at whole characters.
/// `at_start` is true if `raw` is the start of the output, and `at_end` if it is its end.
fn whole_lines(raw: &[u8], at_start: bool, at_end: bool) -> (usize, usize) {
    let is_start = |at: &usize| raw.get(*at).is_none_or(|b| b & 0xc0 != 0x80);
    let half = raw.len() / 2;
    let (first_half, second_half) = raw.split_at_known(half);
    let from = match memchr::memchr(b'\n', first_half) {
        _ if at_start => 0,
        Some(at) => at + 1,
        None => (0..raw.len()).find(is_start).unwrap_or(0),
    };
    let to = match memchr::memrchr(b'\n', second_half) {
        _ if at_end => raw.len(),
        Some(at) => half + at + 1,
        None => (from..raw.len()).rev().find(is_start).unwrap_or(raw.len()),
    };
    (from, to.max(from))
}

/// The chunks that are shown, with an upper bound for the size of their text.
struct LineSelection<'a> {
    chunks: &'a [LineChunk<'a>],
    size: u64,
    chosen: Vec<bool>,
    cost: usize,
    gap_cost: usize,
}

impl<'a> LineSelection<'a> {
    fn empty(chunks: &'a [LineChunk<'a>], size: u64) -> LineSelection<'a> {
        let gap_cost = gap_cost(size);
        LineSelection { chunks, size, chosen: vec![false; chunks.len()], cost: gap_cost, gap_cost }
    }

    /// Chooses chunks from the start, then from the end, then from the start again while they fit.
    fn choose_ends(chunks: &'a [LineChunk<'a>], size: u64, share: usize) -> LineSelection<'a> {
        let mut selection = LineSelection::empty(chunks, size);
        let last = chunks.len();
        let mut take_while_fits = |order: &mut dyn Iterator<Item = usize>, limit| {
            order.take_while(|at| selection.take(*at, limit)).count()
        };
        let head = take_while_fits(&mut (0..last), share * ENDS_HEAD_PERCENT / 100);
        take_while_fits(&mut (head..last).rev(), share);
        take_while_fits(&mut (head..last), share);
        selection
    }

    fn choose(
        chunks: &'a [LineChunk<'a>],
        scored: &LineScores,
        size: u64,
        share: usize,
    ) -> LineSelection<'a> {
        let mut selection = LineSelection::empty(chunks, size);
        let head = share * HEAD_PERCENT / 100;
        for at in 0..chunks.len() {
            if head < HEAD_MIN || !selection.take(at, head) {
                break;
            }
        }
        if let Some(failure) = scored.failure {
            let before = selection.cost;
            selection.take(failure, share);
            selection.grow(before + share * FAILURE_PERCENT / 100, &scored.scores);
        }
        let mut order: Vec<(usize, (&LineChunk<'_>, &f64))> =
            chunks.iter().zip(&scored.scores).enumerate().collect();
        // Chunks of equal score are sorted latest first.
        order.sort_by(|(a, (_, a_score)), (b, (_, b_score))| {
            b_score.total_cmp(a_score).then(b.cmp(a))
        });
        let mut regions_left = (share / REGION).max(1);
        let mut shown: HashSet<&str, RandomState> = HashSet::default();
        for (at, (chunk, _)) in order {
            let text = chunk.text.trim();
            let joins = selection.joins_before(at) || selection.joins_after(at);
            // Neither a line without visible text nor a line shown elsewhere opens a region.
            let may_open = regions_left > 0 && !text.is_empty() && !shown.contains(text);
            if (joins || may_open) && selection.take(at, share) {
                regions_left -= usize::from(!joins);
                shown.insert(text);
            }
        }
        selection.grow(share, &scored.scores);
        selection
    }

    fn is_empty(&self) -> bool {
        !self.chosen.iter().any(|chosen| *chosen)
    }

    /// Adds the chunk `at` if the text stays within `limit` bytes. Returns true if the chunk is
    /// chosen.
    fn take(&mut self, at: usize, limit: usize) -> bool {
        if self.chosen.get(at) == Some(&true) {
            return true;
        }
        let Some(chunk) = self.chunks.get(at) else { return false };
        let gaps = 1 - i64::from(self.joins_before(at)) - i64::from(self.joins_after(at));
        let cost = self.cost as i64
            + gaps * self.gap_cost as i64
            + (chunk.text.len() + chunk.repeats_note().len()) as i64;
        let fits = cost <= limit as i64;
        if fits {
            self.cost = cost.max(0) as usize;
            if let Some(chosen) = self.chosen.get_mut(at) {
                *chosen = true;
            }
        }
        fits
    }

    /// Adds neighbors of chosen chunks within `limit` bytes, highest score first.
    fn grow(&mut self, limit: usize, scores: &[f64]) {
        let edge = |selection: &LineSelection<'_>, at: usize| {
            let is_beside = at.checked_sub(1).is_some_and(|before| selection.is_chosen(before))
                || selection.is_chosen(at + 1);
            let score = scores.get(at).filter(|_| is_beside && !selection.is_chosen(at))?;
            // The bits of numbers that are not negative sort like the numbers.
            Some((score.to_bits(), at))
        };
        let mut edges: BTreeSet<(u64, usize)> =
            (0..self.chunks.len()).filter_map(|at| edge(self, at)).collect();
        while let Some((_, at)) = edges.pop_last() {
            if self.take(at, limit) {
                let next = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
                edges.extend(next.filter_map(|at| edge(self, at)));
            }
        }
    }

    fn joins_before(&self, at: usize) -> bool {
        let Some(chunk) = self.chunks.get(at) else { return false };
        match at.checked_sub(1).and_then(|before| Some((before, self.chunks.get(before)?))) {
            None => chunk.start == 0,
            Some((at, before)) => self.is_chosen(at) && before.end == chunk.start,
        }
    }

    fn joins_after(&self, at: usize) -> bool {
        let Some(chunk) = self.chunks.get(at) else { return false };
        match self.chunks.get(at + 1) {
            None => chunk.end >= self.size,
            Some(next) => self.is_chosen(at + 1) && next.start == chunk.end,
        }
    }

    fn shown(&self) -> impl Iterator<Item = &'a LineChunk<'a>> {
        self.chunks.iter().zip(&self.chosen).filter(|(_, chosen)| **chosen).map(|(chunk, _)| chunk)
    }

    fn is_chosen(&self, at: usize) -> bool {
        self.chosen.get(at) == Some(&true)
    }

    /// Returns the text with its omission lines, and true if there are any.
    fn text(&self) -> (String, bool) {
        let mut runs: Vec<ChunkRun> = Vec::new();
        for chunk in self.shown() {
            match runs.last_mut().filter(|run| run.end == chunk.start) {
                Some(run) => run.add(chunk),
                None => {
                    let mut run = ChunkRun { start: chunk.start, ..ChunkRun::default() };
                    run.add(chunk);
                    runs.push(run);
                }
            }
        }
        let (mut text, mut has_offsets) = (String::new(), false);
        let mut shown_to = 0;
        let mut omit = |text: &mut String, start: u64, end: u64| {
            if start < end {
                text.push_str(&omission(end - start, start, end - 1));
                has_offsets = true;
            }
        };
        for run in runs {
            omit(&mut text, shown_to, run.start);
            shown_to = run.end;
            text.push_str(&ended(run.text()));
        }
        omit(&mut text, shown_to, self.size);
        (text, has_offsets)
    }
}

#[derive(Default)]
struct ChunkRun {
    start: u64,
    /// Offset after the last byte in the file.
    end: u64,
    text: String,
    /// Worker text that follows. It is escaped as a whole, since a marker may span several chunks.
    unescaped: String,
}

impl ChunkRun {
    fn add(&mut self, chunk: &LineChunk<'_>) {
        self.end = chunk.end;
        self.unescaped.push_str(&chunk.text);
        if chunk.repeats > 0 {
            self.text.push_str(&escape_markers(&std::mem::take(&mut self.unescaped)));
            self.text.push_str(&chunk.repeats_note());
        }
    }

    fn text(self) -> String {
        self.text + &escape_markers(&self.unescaped)
    }
}

/// Returns the line that marks an omission of `bytes` bytes, from the offset `first` to `last`. The
/// section line above names the file.
fn omission(bytes: u64, first: u64, last: u64) -> String {
    format!("[... {bytes} B omitted: bytes {first}-{last} ...]\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::{Memory, Store};

    fn file(text: &str) -> Box<dyn File> {
        let (store, path) = (Memory::new(), RelPath::parse("output").unwrap());
        store.write(&path, text);
        store.open(&path).unwrap()
    }

    #[test]
    fn the_latest_lines_with_a_sign_are_found() {
        let mut rng = crate::scale::rng();
        for signs_in_thousand in [0, 1, 5, 100, 1_000] {
            let mut text = String::new();
            while text.len() < 3 * STEP as usize + 12_345 {
                text.push_str(&"x ".repeat(rng.usize(..100)));
                let has_sign = rng.usize(..1_000) < signs_in_thousand;
                text.push_str(if has_sign { "error: no\n" } else { "\n" });
            }
            let all: Vec<u64> =
                failure_signs::failures(text.as_bytes()).map(|at| at as u64).collect();
            let latest: Vec<u64> = all.iter().rev().take(HITS_MAX).copied().collect();
            let found = search(&*file(&text), text.len() as u64, Deadline::never()).unwrap();
            assert_eq!(found, (latest, None), "{signs_in_thousand} in a thousand");
        }
    }

    #[test]
    fn a_search_ends_in_lines_longer_than_a_step_and_in_files_that_shrank() {
        let size = 2 * STEP + 10;
        let long = format!("{}error: no\n", "x".repeat(size as usize));
        let found = search(&*file(&long), long.len() as u64, Deadline::never()).unwrap();
        assert_eq!(found, (vec![], None), "the sign is in the middle of a word");
        let long = format!("{}\nerror: no", "x".repeat(size as usize));
        let found = search(&*file(&long), long.len() as u64, Deadline::never()).unwrap();
        assert_eq!(found, (vec![size + 1], None));
        let found = search(&*file("error: no\n"), 5 * STEP, Deadline::never()).unwrap();
        assert_eq!(found, (vec![0], None));
    }

    #[test]
    fn a_search_without_time_says_so() {
        let found = search(&*file("error: no\n"), 10, Deadline::passed()).unwrap();
        assert_eq!(found, (vec![], Some(10)));
    }
}
