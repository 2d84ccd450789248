//! Which passages are shown, within a bound: the best first, each with its neighbours, none twice.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::rc::Rc;

use super::query::Query;
use super::rank::{At, Ranked, Scored};
use super::words::words;
use crate::name::RelPath;

/// With so many bytes of a file shown, its other passages count half, where the bytes are to be spread over files.
const SPREAD: i64 = 200;
/// So many words in a row are compared to tell whether a passage says what was shown before; and so many of them, in
/// hundredths, are the same then.
const ROW: usize = 4;
const SAME: usize = 80;
/// What has fewer words is not compared.
const FEW: usize = 2 * ROW;
/// The score of passages in outputs of failed calls, in percent of what it is without that.
const FAVORED: i64 = 150;
/// Among how many of the best passages, and of how many workers, failed calls are looked for.
const FAVORED_AMONG: usize = 100;
const FAVORED_WORKERS: usize = 16;
/// So many passages are looked at before the clock is, so that something is shown of what is counted.
const FIRST: usize = 32;
/// What is left of the room is not worth a passage.
const LITTLE: usize = 60;

/// How much is shown, and of what.
#[derive(Clone, Copy)]
pub struct Room<'a> {
    /// In bytes, with what stands around the passages.
    pub bytes: usize,
    /// How long what is shown of one place should be at least, in bytes.
    pub hit: usize,
    /// Whether the bytes are to be spread over files.
    pub spread: bool,
    /// What a file takes beside its passages, and each place in it, in bytes.
    pub frame: &'a dyn Fn(usize, &RelPath) -> (usize, usize),
}

/// Reads what a worker's file holds there, in bytes.
pub(super) type Read<'a> = &'a dyn Fn(usize, &RelPath, Range<u64>) -> Option<Rc<str>>;

/// What is shown of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The worker's place among those that were ranked.
    pub worker: usize,
    /// The file, from the worker's folder.
    pub path: RelPath,
    /// What is shown of it, in bytes, in order.
    pub ranges: Vec<Range<u64>>,
    /// How many passages with a word of the question these are.
    pub passages: u64,
}

/// What was chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The files, that with the best passage first.
    pub hits: Vec<Hit>,
    /// How many passages were left out since they say what is shown, or nearly.
    pub same: u64,
    /// Whether there was time for all.
    pub complete: bool,
}

/// What is shown of one piece.
#[derive(Default)]
struct Shown {
    passages: BTreeSet<u32>,
    bytes: usize,
    /// Its turn: that of the best passage.
    turn: usize,
}

/// A piece: worker, part, number in it.
type Piece = (u32, u32, u32);

impl Ranked {
    /// How many passages have a word of the question.
    pub fn count(&self) -> u64 {
        self.passages.iter().filter(|one| one.has_word).count() as u64
    }

    /// How many files and workers these are in.
    pub fn spread_over(&self) -> (u64, u64) {
        let mut pieces: Vec<Piece> = self.passages.iter().filter(|one| one.has_word).map(|one| piece(one.at)).collect();
        pieces.dedup();
        let files: BTreeSet<(u32, RelPath)> =
            pieces.into_iter().filter_map(|of| Some((of.0, self.path(of)?))).collect();
        let workers: BTreeSet<u32> = files.iter().map(|(worker, _)| *worker).collect();
        (files.len() as u64, workers.len() as u64)
    }

    /// Leaves those that say the phrases of `query`, perhaps with what follows; `read` gives what a file holds. Says whether
    /// there was time for all.
    pub fn retain_saying(&mut self, query: &Query, read: Read<'_>, go_on: &dyn Fn() -> bool) -> bool {
        if query.phrases.is_empty() {
            return true;
        }
        let mut complete = true;
        let passages = std::mem::take(&mut self.passages);
        let says = |one: &Scored| {
            complete &= go_on();
            if !one.has_word || !complete {
                return false;
            }
            let at = one.at;
            let next = self.has_next(at);
            let range = self.range(at, at.passage..at.passage + 1 + u32::from(next));
            let text = self.path(piece(at)).zip(range).and_then(|(path, range)| read(at.worker as usize, &path, range));
            text.is_some_and(|text| query.says(&text))
        };
        self.passages = passages.into_iter().filter(says).collect();
        complete
    }

    /// Raises the passages of outputs of failed calls, where some of them are among the best: who searches a swarm most often
    /// wants to know what went wrong. `is_failed` tells of a worker and a path whether it is such an output; it is asked about
    /// few workers, since that may take a while.
    pub fn favor_failures(&mut self, is_failed: &dyn Fn(usize, &RelPath) -> bool) {
        let mut best: Vec<&Scored> = self.passages.iter().filter(|one| one.has_word).collect();
        best.sort_unstable_by_key(|one| (Reverse(one.score), one.at));
        let (mut workers, mut asked) = (BTreeSet::new(), BTreeMap::new());
        for one in best.into_iter().take(FAVORED_AMONG) {
            if workers.len() >= FAVORED_WORKERS && !workers.contains(&one.at.worker) {
                continue;
            }
            workers.insert(one.at.worker);
            let of = piece(one.at);
            asked
                .entry(of)
                .or_insert_with(|| self.path(of).is_some_and(|path| is_failed(one.at.worker as usize, &path)));
        }
        for one in &mut self.passages {
            if asked.get(&piece(one.at)) == Some(&true) {
                one.score = one.score.saturating_mul(FAVORED) / 100;
            }
        }
    }

    /// The best passages, as far as there is room for them, grouped by file. What says nearly what is shown comes after all
    /// others.
    pub fn choose(&self, room: Room<'_>, read: Read<'_>, go_on: &dyn Fn() -> bool) -> Chosen {
        let mut choice = Choice::new(self, room, read);
        // Of equal ones the first: they are in the order of paths.
        let mut heap: BinaryHeap<(i64, Reverse<usize>)> =
            self.passages.iter().enumerate().map(|(at, one)| (one.score, Reverse(at))).collect();
        let mut again = Vec::new();
        let (mut complete, mut tried) = (true, 0);
        while let Some((score, Reverse(at))) = heap.pop() {
            let Some(one) = self.passages.get(at) else { continue };
            let now = choice.worth(one);
            if now < score {
                heap.push((now, Reverse(at)));
                continue;
            }
            tried += 1;
            complete &= tried <= FIRST && choice.shown.is_empty() || go_on();
            if !complete || choice.left < LITTLE {
                break;
            }
            if choice.offer(one, false) == Offer::Said {
                again.push(one);
            }
        }
        for one in &again {
            complete &= go_on();
            if !complete || choice.left < LITTLE {
                break;
            }
            choice.offer(one, true);
        }
        Chosen { complete, ..choice.chosen() }
    }

    /// A passage with its better neighbours, until there is enough of it; without those that are shown already.
    fn grown(&self, at: At, shown: Option<&BTreeSet<u32>>, enough: usize) -> Vec<u32> {
        let is_shown = |passage: &u32| shown.is_some_and(|shown| shown.contains(passage));
        let mut grown = self.alone(at);
        let (mut from, mut to) = (at.passage, grown.last().copied().unwrap_or(at.passage));
        let mut length = self.length(at, &grown);
        let (first, end) = self.bounds(at);
        let may = |passage: u32| self.banned.binary_search(&At { passage, piece: 0, ..at }).is_err();
        while length < enough {
            // The name of a file is none of its text.
            let before = from.checked_sub(1).filter(|passage| *passage > first && may(*passage));
            let behind = Some(to + 1).filter(|passage| *passage < end && may(*passage));
            let score = |passage: Option<u32>| {
                passage.map(|passage| self.scored(At { passage, ..at }).map_or(0, |one| one.score))
            };
            let passage = match (before, behind) {
                (None, None) => break,
                (before, behind) if behind.is_some() && score(behind) >= score(before) => {
                    to += 1;
                    to
                }
                _ => {
                    from -= 1;
                    from
                }
            };
            let more = self.length(at, &[passage]);
            if length + more > enough + enough / 2 {
                break;
            }
            length += more;
            if !is_shown(&passage) {
                grown.push(passage);
            }
        }
        grown
    }

    /// A passage by itself: of a name the first passage of what it names, too.
    fn alone(&self, at: At) -> Vec<u32> {
        let (first, end) = self.bounds(at);
        let behind = (at.passage == first && first + 1 < end).then_some(first + 1);
        std::iter::once(at.passage).chain(behind).collect()
    }

    fn scored(&self, at: At) -> Option<&Scored> {
        self.passages.binary_search_by_key(&at, |one| one.at).ok().and_then(|at| self.passages.get(at))
    }

    fn path(&self, (worker, part, piece): Piece) -> Option<RelPath> {
        let text = self.text(At { worker, part, piece, passage: 0 })?;
        Some(text.pieces.get(piece as usize)?.path.clone())
    }

    /// The first passage of the piece, which is its name, and the one behind its last.
    fn bounds(&self, at: At) -> (u32, u32) {
        let pieces = self.text(at).map(|text| text.pieces.as_slice()).unwrap_or_default();
        let first = pieces.iter().take(at.piece as usize).map(|piece| piece.passages).sum::<u32>();
        (first, first + pieces.get(at.piece as usize).map_or(0, |piece| piece.passages))
    }

    fn has_next(&self, at: At) -> bool {
        at.passage + 1 < self.bounds(at).1
    }

    /// A hash of what a passage says; none of a name, which many files may have.
    fn said(&self, at: At) -> Option<u64> {
        if at.passage == self.bounds(at).0 {
            return None;
        }
        self.text(at)?.said.get(at.passage as usize).copied()
    }

    /// How long passages of the part are together, in bytes.
    fn length(&self, at: At, passages: &[u32]) -> usize {
        let lengths = self.text(at).map(|text| text.lengths.as_slice()).unwrap_or_default();
        passages.iter().filter_map(|passage| lengths.get(*passage as usize)).map(|length| usize::from(*length)).sum()
    }

    /// Where passages of a piece are in its file, in bytes. A name is where the file begins: with what follows it.
    fn range(&self, at: At, passages: Range<u32>) -> Option<Range<u64>> {
        let text = self.text(at)?;
        let piece = text.pieces.get(at.piece as usize)?;
        let (first, end) = self.bounds(at);
        let sum = |from: u32, to: u32| {
            let lengths = text.lengths.get(from as usize..to as usize).unwrap_or_default();
            lengths.iter().map(|length| u64::from(*length)).sum::<u64>()
        };
        let to = if passages.start == first { passages.end.max(first + 2) } else { passages.end };
        let start = piece.start + sum(first, passages.start);
        Some(start..start + sum(passages.start, to.min(end)))
    }

    fn hit(&self, of: Piece, shown: &Shown) -> Option<Hit> {
        let (worker, part, piece) = of;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut passages = 0;
        for passage in &shown.passages {
            let at = At { worker, part, piece, passage: *passage };
            let range = self.range(at, *passage..*passage + 1)?;
            passages += u64::from(self.scored(at).is_some_and(|one| one.has_word));
            match ranges.last_mut().filter(|last| last.end >= range.start) {
                Some(last) => last.end = last.end.max(range.end),
                None => ranges.push(range),
            }
        }
        Some(Hit { worker: worker as usize, path: self.path(of)?, ranges, passages })
    }
}

/// What came of an offer.
#[derive(Debug, PartialEq, Eq)]
enum Offer {
    /// It is shown now, or was before.
    Taken,
    /// There is no place for it.
    Refused,
    /// Nearly the same is shown.
    Said,
}

/// What was chosen so far.
struct Choice<'a> {
    ranked: &'a Ranked,
    room: Room<'a>,
    read: Read<'a>,
    left: usize,
    shown: BTreeMap<Piece, Shown>,
    /// What is shown: passages as a whole, and every few words of them.
    whole: HashSet<u64>,
    rows: HashSet<u64>,
    /// How many were not taken since they say the same, or nearly.
    same: u64,
}

impl<'a> Choice<'a> {
    fn new(ranked: &'a Ranked, room: Room<'a>, read: Read<'a>) -> Choice<'a> {
        let (shown, whole, rows) = (BTreeMap::new(), HashSet::new(), HashSet::new());
        Choice { ranked, room, read, left: room.bytes, shown, whole, rows, same: 0 }
    }

    /// What a passage is worth now.
    fn worth(&self, one: &Scored) -> i64 {
        match self.shown.get(&piece(one.at)) {
            Some(shown) if self.room.spread => {
                let spread = i128::from(SPREAD);
                let part = i128::from(one.score) * spread / (spread + shown.bytes as i128);
                i64::try_from(part).unwrap_or(i64::MAX)
            }
            _ => one.score,
        }
    }

    /// Takes a passage with its neighbours, if there is room for it; one that is nearly said only if it is offered `again`.
    fn offer(&mut self, one: &Scored, again: bool) -> Offer {
        let (ranked, of) = (self.ranked, piece(one.at));
        let shown = self.shown.get(&of);
        if shown.is_some_and(|shown| shown.passages.contains(&one.at.passage)) {
            self.same -= u64::from(again);
            return Offer::Taken;
        }
        let beside = shown.is_some_and(|shown| touches(&shown.passages, one.at.passage));
        // What has no word of the question is there for what it is beside.
        if !one.has_word && !beside {
            return Offer::Refused;
        }
        if one.has_word && ranked.said(one.at).is_some_and(|hash| self.whole.contains(&hash)) {
            self.same += u64::from(!again);
            return Offer::Refused;
        }
        let Some(path) = ranked.path(of) else { return Offer::Refused };
        let (of_file, of_place) = (self.room.frame)(one.at.worker as usize, &path);
        let frame = if shown.is_some() { 0 } else { of_file } + if beside { 0 } else { of_place };
        let alone = ranked.alone(one.at);
        if ranked.length(one.at, &alone) + frame > self.left {
            return Offer::Refused;
        }
        let range = ranked.range(one.at, one.at.passage..one.at.passage + 1);
        let text = range.and_then(|range| (self.read)(one.at.worker as usize, &path, range));
        let Some(rows) = text.map(|text| rows(&text)) else { return Offer::Refused };
        if !again && one.has_word && is_said(&rows, &self.rows) {
            self.same += 1;
            return Offer::Said;
        }
        let grown = ranked.grown(one.at, shown.map(|shown| &shown.passages), self.room.hit);
        let passages = if ranked.length(one.at, &grown) + frame <= self.left { grown } else { alone };
        let length = ranked.length(one.at, &passages);
        self.whole.extend(passages.iter().filter_map(|passage| ranked.said(At { passage: *passage, ..one.at })));
        self.rows.extend(rows);
        self.left -= length + frame;
        self.same -= u64::from(again);
        let turn = self.shown.len();
        let shown = self.shown.entry(of).or_insert(Shown { turn, ..Shown::default() });
        shown.bytes += length;
        shown.passages.extend(passages);
        Offer::Taken
    }

    /// What is shown, by file.
    fn chosen(self) -> Chosen {
        let hit = |(of, shown): (Piece, Shown)| Some((shown.turn, self.ranked.hit(of, &shown)?));
        let mut hits: Vec<(usize, Hit)> = self.shown.into_iter().filter_map(hit).collect();
        hits.sort_by_key(|(turn, _)| *turn);
        Chosen { hits: hits.into_iter().map(|(_, hit)| hit).collect(), same: self.same, complete: true }
    }
}

fn piece(at: At) -> Piece {
    (at.worker, at.part, at.piece)
}

/// Whether `passage` is beside one of these.
fn touches(passages: &BTreeSet<u32>, passage: u32) -> bool {
    passages.contains(&(passage + 1)) || passage.checked_sub(1).is_some_and(|before| passages.contains(&before))
}

/// What a text says, as a hash of every few words in a row.
fn rows(text: &str) -> Vec<u64> {
    let mut said = Vec::new();
    words(text, |word| said.push(word.to_owned()));
    if said.len() < FEW {
        return Vec::new();
    }
    let hash = |row: &[String]| {
        let mut hasher = DefaultHasher::new();
        row.hash(&mut hasher);
        hasher.finish()
    };
    said.windows(ROW).map(hash).collect()
}

fn is_said(rows: &[u64], said: &HashSet<u64>) -> bool {
    let known = rows.iter().filter(|row| said.contains(row)).count();
    !rows.is_empty() && known * 100 >= rows.len() * SAME
}
