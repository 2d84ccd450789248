//! What is shown of one output under a share: all of it, or a little of its head, the lines that matter with those
//! around them, and its tail, with every omission said where it happens.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet, VecDeque};

use super::cut::cut_most_telling;
use super::lines::{Piece, once, pieces};
use super::signs;
use super::weigh::{Weighed, weigh};
use crate::error::Result;
use crate::render::clean::defuse;
use crate::store::{File, read_range};

/// Up to this size an output is taken into memory whole, in bytes.
pub(super) const WHOLE_MAX: u64 = 1 << 20;
/// A larger one is searched in steps of this size, in bytes.
const STEP: usize = 1 << 20;
/// How many places that matter are kept while searching a large output.
const HITS_MAX: usize = 400;
/// How much is read around such a place, and of the head, in bytes.
const AROUND: u64 = 2 << 10;
const HEAD: u64 = 16 << 10;
/// NUL within this many bytes means binary.
const BINARY_PROBE: usize = 8 << 10;
/// The part of a share that the head may fill, in percent.
const HEAD_PERCENT: usize = 4;
/// The part of a share that the heaviest line that tells of a failure may fill, with those around it, in percent.
const FAILURE_PERCENT: usize = 25;
/// A head of less than this is none, in bytes.
const HEAD_LEAST: usize = 480;
/// For so many bytes of a share one place of the output is shown: more of them would explain less.
const PLACE: usize = 500;

/// The least of a telling line that is worth showing, in bytes.
pub(super) const LINE_LEAST: usize = 24;
/// What is left of the weight of a line that is shown of another output already; shorter lines are never taken for the
/// same, in bytes.
const SEEN: f64 = 0.2;
const SEEN_LEAST: usize = 24;

/// Number of attempts to cut an excerpt by no more than it is too long; after that the cut doubles each time, so that
/// few attempts suffice whatever the output.
const EXACT_ATTEMPTS: usize = 4;

/// The note on an output that is not UTF-8.
pub(super) const NOT_UTF8: &str = "not UTF-8";
/// What an output without a note may take beyond its share, in bytes: the least room that is kept for a note. A
/// backslash in a marker is then no reason to cut a short output.
const NOTE_ROOM: usize = NOT_UTF8.len() + 2;

/// What is shown of an output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::render) struct Excerpt {
    /// The text, omissions included; ends in a line end unless empty.
    pub(super) text: String,
    /// Whether nothing was left out.
    pub(super) whole: bool,
    /// True if the text names the offsets of what was left out.
    pub(super) has_offsets: bool,
    /// What else is to be said of it on its section line.
    pub(super) note: Option<String>,
    /// The size of the output in bytes, as found; `None` if it was not read.
    pub(super) bytes: Option<u64>,
    /// Number of invisible characters that were removed from what is shown.
    pub(super) hidden: usize,
}

/// Returns the excerpt of `file`. Its text takes at most `share` bytes, or [`NOTE_ROOM`] more where it has no note.
///
/// Of lines that are `seen` already others are shown first; what is shown here is seen from then on. Of a call that
/// failed, the most telling line is shown before any other, and is cut if the share is too small for it.
pub(super) fn excerpt(
    file: &dyn File,
    share: usize,
    is_failed: bool,
    seen: &mut Seen,
    go_on: &dyn Fn() -> bool,
) -> Result<Excerpt> {
    let size = file.stat_without_acl()?.size;
    let taken_whole = size <= WHOLE_MAX.max(share as u64);
    let beginning = read_range(file, 0, if taken_whole { length(size) } else { BINARY_PROBE })?;
    if memchr::memchr(0, beginning.get(..BINARY_PROBE).unwrap_or(&beginning)).is_some() {
        let text = "(binary, not shown)\n";
        let fits = text.len() <= share;
        let text = if fits { text.to_owned() } else { String::new() };
        let note = Some("binary".into());
        return Ok(Excerpt { text, note, bytes: Some(size), ..Excerpt::default() });
    }
    let loaded = if taken_whole { Loaded::whole(beginning) } else { Loaded::parts(file, size, share, go_on)? };
    let (size, bytes) = (loaded.size, Some(loaded.size));
    let (pieces, utf8) = loaded.pieces();
    let note = match (utf8, loaded.searched) {
        (false, _) => Some(NOT_UTF8.to_owned()),
        (true, Some(end)) => Some(format!("searched to byte {end}")),
        (true, None) => None,
    };
    let share = if note.is_none() { share + NOTE_ROOM } else { share };
    if loaded.complete && pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= share {
        let text = ended(defuse(&pieces.iter().map(|piece| &*piece.text).collect::<String>()));
        if text.len() <= share {
            pieces.iter().for_each(|piece| seen.add(piece));
            let hidden = pieces.iter().map(|piece| piece.hidden).sum();
            return Ok(Excerpt { text, whole: true, has_offsets: false, note, bytes, hidden });
        }
    }
    let mut pieces = once(pieces);
    let mut weighed = weigh(&pieces, size);
    let mut was_seen = false;
    for (weight, piece) in weighed.weights.iter_mut().zip(&pieces) {
        // Short lines belong to the one above them.
        let text = piece.text.trim();
        was_seen = seen.has(piece) || was_seen && !text.is_empty() && text.len() < SEEN_LEAST;
        *weight *= if was_seen { SEEN } else { 1.0 };
    }
    // Defusing markers adds bytes that are known only afterwards; what they take is taken off the share.
    let mut slack = 0;
    for attempt in 0.. {
        let room = share.saturating_sub(2 * gap_cost(size) + slack);
        if is_failed && room >= LINE_LEAST / 2 {
            cut_most_telling(&mut pieces, &mut weighed, room, &|start, end| loaded.raw(start, end));
        }
        let selection = Selection::choose(&pieces, &weighed, size, share.saturating_sub(slack));
        let (text, has_offsets) = selection.text();
        let cost = text.len();
        if selection.is_empty() {
            // An omission alone says no more than a line of the list, and takes more room.
            return Ok(Excerpt { note, bytes, ..Excerpt::default() });
        }
        if cost <= share {
            selection.shown().for_each(|piece| seen.add(piece));
            let hidden = selection.shown().map(|piece| piece.hidden).sum();
            // A line that is shown once for many is left out without offsets.
            let whole = !has_offsets && selection.shown().all(|piece| piece.again == 0);
            return Ok(Excerpt { text, whole, has_offsets, note, bytes, hidden });
        }
        slack += (cost - share).max(16);
        if attempt >= EXACT_ATTEMPTS {
            slack *= 2;
        }
    }
    Ok(Excerpt { note, bytes, ..Excerpt::default() })
}

/// Returns the least share, in bytes, in which the most telling line of an output of `size` bytes has some room.
pub(super) fn least_share(size: u64) -> usize {
    2 * gap_cost(size) + LINE_LEAST
}

/// Returns the most that an omission takes, with the line end before it, in bytes.
fn gap_cost(size: u64) -> usize {
    omission(size, size, size).len() + 1
}

/// The lines that are shown of other outputs of the same evidence.
#[derive(Debug, Default)]
pub(in crate::render) struct Seen(HashSet<String>);

impl Seen {
    fn add(&mut self, piece: &Piece<'_>) {
        let text = piece.text.trim();
        if text.len() >= SEEN_LEAST && !self.0.contains(text) {
            self.0.insert(text.to_owned());
        }
    }

    fn has(&self, piece: &Piece<'_>) -> bool {
        self.0.contains(piece.text.trim())
    }
}

fn ended(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The parts of an output that can be shown.
struct Loaded {
    /// Size of the output in bytes.
    size: u64,
    /// Where each part lies in it, and the part.
    parts: Vec<(u64, Vec<u8>)>,
    /// Whether the parts are all of it.
    complete: bool,
    /// Where the search for signs ended early.
    searched: Option<u64>,
}

impl Loaded {
    fn whole(raw: Vec<u8>) -> Loaded {
        // Less than stat told where the file was cut short just now.
        Loaded { size: raw.len() as u64, parts: vec![(0, raw)], complete: true, searched: None }
    }

    /// One pass over all of it for signs, then only the regions that could be shown.
    fn parts(file: &dyn File, size: u64, share: usize, go_on: &dyn Fn() -> bool) -> Result<Loaded> {
        let (hits, searched) = search(file, size, go_on)?;
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
        Ok(Loaded { size, parts, complete: false, searched })
    }

    /// Returns the bytes of the output from `start` to `end`, if one part holds all of them.
    fn raw(&self, start: u64, end: u64) -> Option<&[u8]> {
        self.parts.iter().find_map(|(offset, raw)| {
            let from = usize::try_from(start.checked_sub(*offset)?).ok()?;
            raw.get(from..from + usize::try_from(end.checked_sub(start)?).ok()?)
        })
    }

    /// Its pieces, in order, and whether all of them are UTF-8.
    fn pieces(&self) -> (Vec<Piece<'_>>, bool) {
        let (mut all, mut utf8) = (Vec::new(), true);
        for (start, raw) in &self.parts {
            let (mut found, valid) = pieces(raw, *start);
            all.append(&mut found);
            utf8 &= valid;
        }
        (all, utf8)
    }
}

/// A size that is to be taken into memory.
pub(super) fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Finds lines that tell of a failure in all of `file`, piecewise: the latest, as offsets. Also where it stopped, if early.
fn search(file: &dyn File, size: u64, go_on: &dyn Fn() -> bool) -> Result<(VecDeque<u64>, Option<u64>)> {
    let mut hits = VecDeque::new();
    let (mut offset, mut searched) = (0, None);
    while offset < size {
        if !go_on() {
            searched = Some(offset);
            break;
        }
        let raw = read_range(file, offset, STEP)?;
        if raw.is_empty() {
            break;
        }
        // Up to the last line end, so that no sign is torn between two steps.
        let len = memchr::memrchr(b'\n', &raw).map_or(raw.len(), |at| at + 1);
        for at in signs::failures(raw.get(..len).unwrap_or(&raw)) {
            hits.push_back(offset + at as u64);
            if hits.len() > HITS_MAX {
                hits.pop_front();
            }
        }
        offset += len as u64;
    }
    Ok((hits, searched))
}

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

/// The part of a region that begins and ends with whole lines, or at least with whole characters.
fn whole_lines(raw: &[u8], at_start: bool, at_end: bool) -> (usize, usize) {
    let is_start = |at: &usize| raw.get(*at).is_none_or(|b| b & 0xc0 != 0x80);
    let half = raw.len() / 2;
    let from = match memchr::memchr(b'\n', raw.get(..half).unwrap_or_default()) {
        _ if at_start => 0,
        Some(at) => at + 1,
        None => (0..raw.len()).find(is_start).unwrap_or(0),
    };
    let to = match memchr::memrchr(b'\n', raw.get(half..).unwrap_or_default()) {
        _ if at_end => raw.len(),
        Some(at) => half + at + 1,
        None => (from..raw.len()).rev().find(is_start).unwrap_or(raw.len()),
    };
    (from, to.max(from))
}

/// A weight that can be compared.
#[derive(PartialEq)]
struct Weight(f64);

impl Eq for Weight {}

impl Ord for Weight {
    fn cmp(&self, other: &Weight) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Weight {
    fn partial_cmp(&self, other: &Weight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Which pieces are shown, and an upper bound of what showing them costs.
struct Selection<'a> {
    pieces: &'a [Piece<'a>],
    size: u64,
    chosen: Vec<bool>,
    cost: usize,
    gap_cost: usize,
}

impl<'a> Selection<'a> {
    fn choose(pieces: &'a [Piece<'a>], weighed: &Weighed, size: u64, share: usize) -> Selection<'a> {
        let gap_cost = gap_cost(size);
        let mut selection = Selection { pieces, size, chosen: vec![false; pieces.len()], cost: gap_cost, gap_cost };
        let head = share * HEAD_PERCENT / 100;
        for at in 0..pieces.len() {
            if head < HEAD_LEAST || !selection.take(at, head) {
                break;
            }
        }
        let weight = |at: usize| weighed.weights.get(at).copied().unwrap_or_default();
        if let Some(failure) = weighed.failure {
            let before = selection.cost;
            selection.take(failure, share);
            selection.grow(before + share * FAILURE_PERCENT / 100, &weight);
        }
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        // Of lines of equal weight the latest first.
        order.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(b.cmp(a)));
        let mut places = (share / PLACE).max(1);
        let mut shown: HashSet<&str> = HashSet::new();
        for at in order {
            let text = pieces.get(at).map(|piece| piece.text.trim()).unwrap_or_default();
            let joins = selection.joins_before(at) || selection.joins_after(at);
            // A blank line, or one of nothing but escapes, is no place of its own; neither is what was shown elsewhere.
            let opens = || places > 0 && !text.is_empty() && !shown.contains(text);
            if (joins || opens()) && selection.take(at, share) {
                places -= usize::from(!joins);
                shown.insert(text);
            }
        }
        selection.grow(share, &weight);
        selection
    }

    fn is_empty(&self) -> bool {
        !self.chosen.iter().any(|chosen| *chosen)
    }

    /// Shows the piece `at` if that stays within `limit`; says whether it is shown.
    fn take(&mut self, at: usize, limit: usize) -> bool {
        if self.chosen.get(at) == Some(&true) {
            return true;
        }
        let Some(piece) = self.pieces.get(at) else { return false };
        let gaps = 1 - i64::from(self.joins_before(at)) - i64::from(self.joins_after(at));
        let cost = self.cost as i64 + gaps * self.gap_cost as i64 + (piece.text.len() + piece.repeats().len()) as i64;
        let fits = cost <= limit as i64;
        if fits {
            self.cost = cost.max(0) as usize;
            if let Some(chosen) = self.chosen.get_mut(at) {
                *chosen = true;
            }
        }
        fits
    }

    /// Shows more around what is shown, the heaviest first, as far as `limit` allows.
    fn grow(&mut self, limit: usize, weight: &dyn Fn(usize) -> f64) {
        let beside = |selection: &Selection<'_>, at: usize| {
            let shown =
                at.checked_sub(1).is_some_and(|before| selection.is_chosen(before)) || selection.is_chosen(at + 1);
            shown && !selection.is_chosen(at) && at < selection.pieces.len()
        };
        let mut edges: BTreeSet<(Weight, usize)> =
            (0..self.pieces.len()).filter(|at| beside(self, *at)).map(|at| (Weight(weight(at)), at)).collect();
        while let Some((_, at)) = edges.pop_last() {
            if self.take(at, limit) {
                let next = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter(|at| beside(self, *at));
                edges.extend(next.map(|at| (Weight(weight(at)), at)));
            }
        }
    }

    fn joins_before(&self, at: usize) -> bool {
        let start = self.pieces.get(at).map_or(0, |piece| piece.start);
        match at.checked_sub(1) {
            None => start == 0,
            Some(before) => self.is_chosen(before) && self.pieces.get(before).is_some_and(|piece| piece.end == start),
        }
    }

    fn joins_after(&self, at: usize) -> bool {
        let end = self.pieces.get(at).map_or(0, |piece| piece.end);
        match self.pieces.get(at + 1) {
            None => end >= self.size,
            Some(next) => self.is_chosen(at + 1) && next.start == end,
        }
    }

    fn shown(&self) -> impl Iterator<Item = &'a Piece<'a>> {
        self.pieces.iter().zip(&self.chosen).filter(|(_, chosen)| **chosen).map(|(piece, _)| piece)
    }

    fn is_chosen(&self, at: usize) -> bool {
        self.chosen.get(at) == Some(&true)
    }

    /// Returns the text with its omissions, and whether there are any.
    fn text(&self) -> (String, bool) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut runs: Vec<Run> = Vec::new();
        for piece in self.shown() {
            match (ranges.last_mut(), runs.last_mut()) {
                (Some(last), Some(run)) if last.1 == piece.start => {
                    last.1 = piece.end;
                    run.add(piece);
                }
                _ => {
                    ranges.push((piece.start, piece.end));
                    let mut run = Run::default();
                    run.add(piece);
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
        for ((start, end), run) in ranges.iter().zip(runs) {
            omit(&mut text, shown_to, *start);
            text.push_str(&ended(run.text()));
            shown_to = *end;
        }
        omit(&mut text, shown_to, self.size);
        (text, has_offsets)
    }
}

/// Pieces that follow each other, as text.
#[derive(Default)]
struct Run {
    /// What is ready.
    text: String,
    /// What a worker wrote behind that. It is looked at as a whole: a marker may be in several pieces.
    theirs: String,
}

impl Run {
    fn add(&mut self, piece: &Piece<'_>) {
        self.theirs.push_str(&piece.text);
        if piece.again > 0 {
            self.text.push_str(&defuse(&std::mem::take(&mut self.theirs)));
            self.text.push_str(&piece.repeats());
        }
    }

    fn text(self) -> String {
        self.text + &defuse(&self.theirs)
    }
}

/// Returns the line that says that `bytes` bytes are left out, from the offset `first` to `last`. The section line above
/// names the file.
fn omission(bytes: u64, first: u64, last: u64) -> String {
    format!("[... {bytes} B omitted: bytes {first}-{last} ...]\n")
}
