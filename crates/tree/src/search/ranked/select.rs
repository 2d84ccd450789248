//! Selects the passages to show: the best first, with their neighbors, within a byte limit.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::ops::Range;
use std::rc::Rc;

use foldhash::fast::RandomState;

use super::conversation::PassageKind;
use super::order::{BestPassages, Candidate, Least, Walk};
use super::query::RankedQuery;
use super::rank::{
    ChunkId, PassageId, RankedPassages, ScoredPassage, chunk_id, is_in_same_chunk, word_set,
};
use super::words::{WordStemmer, words};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;

/// Selected bytes of a chunk that halve the score of its other passages, if results are spread.
const SPREAD: i64 = 200;
/// Number of consecutive words in a shingle.
const SHINGLE: usize = 4;
/// Share of known shingles that makes a passage a duplicate, in percent.
const DUPLICATE_PERCENT: usize = 80;
/// Passages with fewer words are never near-duplicates.
const COMPARABLE_WORDS: usize = 2 * SHINGLE;
/// Score of passages from failed calls, in percent of their normal score.
const FAVORED: i64 = 220;
/// Score of passages with a name of the query as it is, in percent of their normal score.
const NAMED: i64 = 300;
/// Number of passages that are checked for such a name.
const NAMED_AMONG: usize = 400;
/// Number of best passages that are checked for failed calls.
const FAVORED_AMONG: usize = 100;
/// Number of workers that are checked for failed calls.
const FAVORED_WORKERS: usize = 16;
/// Passages to try before the deadline applies, so that a match is shown if one is counted.
const TRIED_MIN: usize = 32;
/// Passages that may be refused between two checks of the deadline. A refusal reads nothing.
const REFUSED_PER_CHECK: usize = 64;
/// Remaining bytes that are too few for a passage.
const PASSAGE_MIN: usize = 60;

#[derive(Clone, Copy)]
pub struct SelectionLimits<'a> {
    /// Total size in bytes, including the lines around passages.
    pub bytes: usize,
    /// Desired length of each excerpt, in bytes.
    pub excerpt: usize,
    /// True if the bytes are to be spread over files.
    pub spread: bool,
    /// Returns the bytes that a file takes beside its passages, and each excerpt beside its text.
    pub frame: &'a dyn Fn(usize, &RelPath) -> (usize, usize),
}

pub(super) type ReadRange<'a> = &'a dyn Fn(usize, &RelPath, Range<u64>) -> Option<Rc<str>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHit {
    /// Index of the worker among the ranked workers.
    pub worker: usize,
    pub path: RelPath,
    /// The ranges of the passages, each of one kind.
    pub ranges: Vec<(Range<u64>, PassageKind)>,
    /// Number of selected passages that count as matches.
    pub passages: u64,
}

/// Numbers of passages with a word of a query, and of the files and workers that have some.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MatchCounts {
    pub passages: u64,
    pub files: u64,
    pub workers: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassageSelection {
    /// The files, ordered by their best passage.
    pub hits: Vec<FileHit>,
    /// Number of matches that repeat a selected passage, and of near-duplicates that were left out.
    pub duplicates: u64,
    /// True if the deadline did not cut the selection short.
    pub complete: bool,
}

#[derive(Default)]
struct SelectedChunk {
    passages: BTreeSet<u32>,
    bytes: usize,
    /// Position in the order of selection, given by the best passage.
    turn: usize,
}

/// Lengths and hashes of the passages of a chunk, the first of which is the name of the file.
struct ChunkText<'a> {
    first: u32,
    lengths: &'a [u16],
    word_hashes: &'a [u64],
}

impl ChunkText<'_> {
    /// Returns the length of the passages that [`minimal`] returns for a passage, in bytes.
    fn least(&self, passage: u32) -> u32 {
        let at = passage.wrapping_sub(self.first) as usize;
        let length = |at: usize| self.lengths.get(at).map(|length| u32::from(*length));
        let after_name = if at == 0 { length(1) } else { None };
        length(at).map_or(u32::MAX, |least| least + after_name.unwrap_or(0))
    }

    /// Returns a hash of the words of a passage. The name has none.
    fn word_hash(&self, passage: u32) -> Option<u64> {
        let at = passage.wrapping_sub(self.first) as usize;
        self.word_hashes.get(at).copied().filter(|_| at > 0)
    }
}

impl RankedPassages {
    /// Counts the passages with a word of the query, without those that repeat others.
    pub fn match_counts(&self) -> MatchCounts {
        let mut counts = MatchCounts::default();
        let mut last: Option<(u32, &RelPath)> = None;
        for passages in self.by_chunk() {
            let matches = passages.iter().filter(|one| one.counts()).count();
            counts.passages += matches as u64;
            let Some(first) = passages.first().filter(|_| matches > 0) else { continue };
            // Passages are in the order of paths, so the passages of a file follow one another.
            let Some(path) = self.path_ref(chunk_id(first.id)) else { continue };
            let file = (first.id.worker, path);
            counts.files += u64::from(last != Some(file));
            counts.workers += u64::from(last.is_none_or(|(worker, _)| worker != first.id.worker));
            last = Some(file);
        }
        counts
    }

    /// Keeps the passages that contain the phrases of `query`, possibly running into the next
    /// passage, in the text that `read` returns. Returns false if there was not time to check all.
    pub fn retain_phrases(
        &mut self,
        query: &RankedQuery,
        read: ReadRange<'_>,
        deadline: Deadline<'_>,
    ) -> bool {
        if query.phrases.is_empty() {
            return true;
        }
        let mut complete = true;
        let mut passages = std::mem::take(&mut self.passages);
        for worker in &mut passages {
            worker.retain(|one| {
                complete &= deadline.has_time();
                complete && one.has_word && self.has_phrases(one.id, query, read)
            });
        }
        self.passages = passages;
        complete
    }

    fn has_phrases(&self, id: PassageId, query: &RankedQuery, read: ReadRange<'_>) -> bool {
        let range = self.range(id, id.passage..id.passage + 1 + u32::from(self.has_next(id)));
        let text = self
            .path(chunk_id(id))
            .zip(range)
            .and_then(|(path, range)| read(id.worker as usize, &path, range));
        text.is_some_and(|text| query.contains_phrases(&text))
    }

    /// Raises the scores of passages from failed calls, if some of them are among the best. Readers
    /// who search a swarm are mostly interested in failures.
    ///
    /// `is_failed` returns true if a worker's file is the output of a failed call. It is slow, so
    /// it is called for few workers only.
    pub fn favor_failures(&mut self, is_failed: &dyn Fn(usize, &RelPath) -> bool) {
        let mut best = Least::new(FAVORED_AMONG);
        for one in self.passages.iter().flatten().filter(|one| one.has_word) {
            best.offer((Reverse(one.score), one.id));
        }
        let (mut workers, mut failed) = (BTreeSet::new(), BTreeMap::new());
        for (_, id) in best.into_sorted() {
            if workers.len() >= FAVORED_WORKERS && !workers.contains(&id.worker) {
                continue;
            }
            workers.insert(id.worker);
            let chunk = chunk_id(id);
            failed.entry(chunk).or_insert_with(|| {
                self.path(chunk).is_some_and(|path| is_failed(id.worker as usize, &path))
            });
        }
        failed.retain(|_, is_failed| *is_failed);
        for chunk in failed.into_keys() {
            let (worker, ..) = chunk;
            let Some(passages) = self.passages.get_mut(worker as usize) else { continue };
            let begin = passages.partition_point(|one| chunk_id(one.id) < chunk);
            let passages = passages.iter_mut().skip(begin);
            for one in passages.take_while(|one| chunk_id(one.id) == chunk) {
                one.score = one.score.saturating_mul(FAVORED) / 100;
            }
        }
    }

    /// Raises the scores of passages with a name of several words as it is in the query, among the
    /// best of those that have its words. `read` returns the text of a passage.
    pub fn favor_identifiers(
        &mut self,
        query: &RankedQuery,
        read: ReadRange<'_>,
        deadline: Deadline<'_>,
    ) {
        let stems = WordStemmer::default();
        for name in &query.identifiers {
            let parts = stems.stem_text(name);
            let has_part = query.terms.iter().map(|term| u32::from(parts.contains(term)));
            let wanted = word_set(&has_part.collect::<Vec<_>>());
            let mut best = Least::new(NAMED_AMONG);
            for one in self.passages.iter().flatten() {
                if wanted != 0 && one.words & wanted == wanted {
                    best.offer((Reverse(one.score), one.id));
                }
            }
            let found = best.into_sorted().into_iter().map(|(_, id)| id).filter(|id| {
                let range = self.range(*id, id.passage..id.passage + 1);
                let text = self.path(chunk_id(*id)).zip(range).filter(|_| deadline.has_time());
                let text = text.and_then(|(path, range)| read(id.worker as usize, &path, range));
                text.is_some_and(|text| text.to_lowercase().contains(name))
            });
            for id in found.collect::<Vec<_>>() {
                let Some(passages) = self.passages.get_mut(id.worker as usize) else { continue };
                let at = passages.binary_search_by_key(&id, |one| one.id).ok();
                if let Some(one) = at.and_then(|at| passages.get_mut(at)) {
                    one.score = one.score.saturating_mul(NAMED) / 100;
                }
            }
        }
    }

    /// Returns the best passages, which [`RankedPassages::select`] considers first.
    pub fn best(&self) -> BestPassages {
        BestPassages::new(|take| self.each_candidate(take))
    }

    /// Returns the passages after `last` that take at most `room` bytes.
    fn others(&self, last: Candidate, room: usize) -> Vec<Candidate> {
        let mut others = Vec::new();
        self.each_candidate(|one| {
            if one.least as usize <= room && one > last {
                others.push(one);
            }
        });
        others
    }

    fn each_candidate(&self, mut take: impl FnMut(Candidate)) {
        for passages in &self.passages {
            let mut next = 0..;
            for passages in passages.chunk_by(is_in_same_chunk) {
                let chunk = passages.first().and_then(|one| self.chunk(one.id));
                for (one, at) in passages.iter().zip(&mut next) {
                    let score = Reverse(one.score);
                    let least = chunk.as_ref().map_or(u32::MAX, |it| it.least(one.id.passage));
                    take(Candidate { score, worker: one.id.worker, at, least });
                }
            }
        }
    }

    fn by_chunk(&self) -> impl Iterator<Item = &[ScoredPassage]> {
        self.passages.iter().flat_map(|passages| passages.chunk_by(is_in_same_chunk))
    }

    fn chunk(&self, id: PassageId) -> Option<ChunkText<'_>> {
        let (header, (first, end)) = (self.header(id)?, self.bounds(id)?);
        let range = first as usize..end as usize;
        let lengths = header.lengths.get(range.clone())?;
        Some(ChunkText { first, lengths, word_hashes: header.word_hashes.get(range)? })
    }

    /// Selects the best passages within `limits`, grouped by file. Near-duplicates of selected
    /// passages come last, judged by the text that `read` returns. `best` holds the best of all
    /// passages.
    pub fn select(
        &self,
        best: &BestPassages,
        limits: SelectionLimits<'_>,
        read: ReadRange<'_>,
        deadline: Deadline<'_>,
    ) -> PassageSelection {
        let mut selector = Selector::new(self, limits, read);
        // Passages whose scores became lower.
        let mut lowered: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        let mut duplicates = Vec::new();
        let (mut complete, mut tried) = (true, 0);
        let others = |last, room| self.others(last, room);
        let mut walk = Walk::new(best, &others);
        let mut unchecked = REFUSED_PER_CHECK;
        loop {
            let first = walk.peek(selector.left);
            let candidate = match (first, lowered.peek()) {
                (None, None) => break,
                (Some(first), Some(Reverse(other))) if first > *other => *other,
                (None, Some(Reverse(other))) => *other,
                (Some(first), _) => first,
            };
            if first == Some(candidate) {
                walk.advance();
            } else {
                lowered.pop();
            }
            // Once there is little room, passages are refused without a look at them.
            let may_fit = candidate.least as usize <= selector.left;
            let one = self.candidate(candidate).filter(|_| may_fit);
            if let Some(one) = one {
                let now = Reverse(selector.current_score(one));
                if now > candidate.score {
                    lowered.push(Reverse(Candidate { score: now, ..candidate }));
                    continue;
                }
            }
            tried += 1;
            if unchecked >= REFUSED_PER_CHECK {
                unchecked = 0;
                complete &=
                    tried <= TRIED_MIN && selector.selected.is_empty() || deadline.has_time();
            }
            if !complete || selector.left < PASSAGE_MIN {
                break;
            }
            match one.map(|one| (one, selector.offer(one, false))) {
                None | Some((_, Some(Offer::Refused))) => unchecked += 1,
                Some((one, offer)) => {
                    unchecked = REFUSED_PER_CHECK;
                    duplicates.extend((offer == Some(Offer::Duplicate)).then_some(one));
                }
            }
        }
        for one in &duplicates {
            complete &= deadline.has_time();
            if !complete || selector.left < PASSAGE_MIN {
                break;
            }
            selector.offer(one, true);
        }
        let near = duplicates.into_iter().filter(|one| selector.is_near_duplicate(one)).count();
        let duplicates = (selector.repeat_count() + near) as u64;
        PassageSelection { hits: selector.finish(), duplicates, complete }
    }

    /// Extends a passage by its better neighbors to about `enough` bytes. Leaves out neighbors that
    /// are in `shown`.
    fn extended(
        &self,
        id: PassageId,
        shown: Option<&BTreeSet<u32>>,
        enough: usize,
    ) -> Option<Vec<u32>> {
        let mut extended: Vec<u32> = minimal(id.passage, self.bounds(id)?).collect();
        let (mut from, mut to) = (id.passage, extended.last().copied().unwrap_or(id.passage));
        let mut length = self.length(id, extended.iter().copied())?;
        let (first, end) = self.bounds(id)?;
        let may = |passage: u32| {
            self.excluded.binary_search(&PassageId { passage, chunk: 0, ..id }).is_err()
        };
        while length < enough {
            // The first passage stands for the file's name and has no text.
            let before = from.checked_sub(1).filter(|passage| *passage > first && may(*passage));
            let after = Some(to + 1).filter(|passage| *passage < end && may(*passage));
            let score = |passage: Option<u32>| {
                passage.map(|passage| {
                    self.scored(PassageId { passage, ..id }).map_or(0, |one| one.score)
                })
            };
            let passage = match (before, after) {
                (None, None) => break,
                (before, after) if after.is_some() && score(after) >= score(before) => {
                    to += 1;
                    to
                }
                _ => {
                    from -= 1;
                    from
                }
            };
            let more = self.length(id, [passage])?;
            if length + more > enough + enough / 2 {
                break;
            }
            length += more;
            if shown.is_none_or(|shown| !shown.contains(&passage)) {
                extended.push(passage);
            }
        }
        Some(extended)
    }

    fn candidate(&self, candidate: Candidate) -> Option<&ScoredPassage> {
        self.passages.get(candidate.worker as usize)?.get(candidate.at as usize)
    }

    fn scored(&self, id: PassageId) -> Option<&ScoredPassage> {
        let passages = self.passages.get(id.worker as usize)?;
        passages.binary_search_by_key(&id, |one| one.id).ok().and_then(|at| passages.get(at))
    }

    fn path(&self, chunk: ChunkId) -> Option<RelPath> {
        self.path_ref(chunk).cloned()
    }

    fn path_ref(&self, (worker, segment, chunk): ChunkId) -> Option<&RelPath> {
        let header = self.header(PassageId { worker, segment, chunk, passage: 0 })?;
        Some(&header.chunks.get(chunk as usize)?.path)
    }

    /// Returns the first passage of the chunk, which is its name, and the end of its passages.
    fn bounds(&self, id: PassageId) -> Option<(u32, u32)> {
        let chunk = self.header(id)?.chunks.get(id.chunk as usize)?;
        Some((chunk.first, chunk.first.checked_add(chunk.passages)?))
    }

    fn has_next(&self, id: PassageId) -> bool {
        self.bounds(id).is_some_and(|(_, end)| id.passage + 1 < end)
    }

    fn kind(&self, id: PassageId) -> Option<PassageKind> {
        self.header(id)?.kinds.get(id.passage as usize).copied()
    }

    /// Returns the first passage of the answer to the request that a passage is of.
    fn reply(&self, id: PassageId) -> Option<PassageId> {
        let (_, end) = self.bounds(id)?;
        let kinds = &self.header(id)?.kinds;
        (kinds.get(id.passage as usize) == Some(&PassageKind::Request)).then_some(())?;
        let after = kinds.get(id.passage as usize..end as usize)?.iter();
        let is_answer = |kind: &PassageKind| *kind == PassageKind::Answer;
        let found = (id.passage..).zip(after).find(|(_, kind)| is_answer(kind));
        found.map(|(passage, _)| PassageId { passage, ..id })
    }

    fn word_hash(&self, id: PassageId) -> Option<u64> {
        self.chunk(id)?.word_hash(id.passage)
    }

    fn length(&self, id: PassageId, passages: impl IntoIterator<Item = u32>) -> Option<usize> {
        let lengths = &self.header(id)?.lengths;
        let length = |passage| lengths.get(passage as usize).map(|length| usize::from(*length));
        passages.into_iter().map(length).sum()
    }

    /// Returns the byte range of passages in their file. A name has the range of the first passage
    /// of the text.
    fn range(&self, id: PassageId, passages: Range<u32>) -> Option<Range<u64>> {
        let header = self.header(id)?;
        let chunk = header.chunks.get(id.chunk as usize)?;
        let (first, end) = self.bounds(id)?;
        let sum = |from: u32, to: u32| {
            let lengths = header.lengths.get(from as usize..to as usize)?;
            Some(lengths.iter().map(|length| u64::from(*length)).sum::<u64>())
        };
        let to = if passages.start == first { passages.end.max(first + 2) } else { passages.end };
        let start = chunk.start + sum(first, passages.start)?;
        Some(start..start + sum(passages.start, to.min(end))?)
    }

    fn hit(&self, id: ChunkId, selected: &SelectedChunk) -> Option<FileHit> {
        let (worker, segment, chunk) = id;
        let mut ranges: Vec<(Range<u64>, PassageKind)> = Vec::new();
        let mut passages = 0;
        for passage in &selected.passages {
            let id = PassageId { worker, segment, chunk, passage: *passage };
            let range = self.range(id, *passage..*passage + 1)?;
            passages += u64::from(self.scored(id).is_some_and(ScoredPassage::counts));
            let kind = self.kind(id).unwrap_or(PassageKind::File);
            let last =
                ranges.last_mut().filter(|(last, of)| last.end >= range.start && *of == kind);
            match last {
                Some((last, _)) => last.end = last.end.max(range.end),
                None => ranges.push((range, kind)),
            }
        }
        Some(FileHit { worker: worker as usize, path: self.path(id)?, ranges, passages })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Offer {
    /// The passage is selected now, or was before.
    Selected,
    /// The passage does not fit, has no word of the query, or repeats a selected passage.
    Refused,
    /// The passage nearly repeats selected passages.
    Duplicate,
}

struct Selector<'a> {
    ranked: &'a RankedPassages,
    limits: SelectionLimits<'a>,
    read: ReadRange<'a>,
    left: usize,
    selected: BTreeMap<ChunkId, SelectedChunk>,
    /// Hashes of whole selected passages.
    word_hashes: HashSet<u64, RandomState>,
    shingles: HashSet<u64, RandomState>,
}

impl<'a> Selector<'a> {
    fn new(
        ranked: &'a RankedPassages,
        limits: SelectionLimits<'a>,
        read: ReadRange<'a>,
    ) -> Selector<'a> {
        Selector {
            ranked,
            limits,
            read,
            left: limits.bytes,
            selected: BTreeMap::new(),
            word_hashes: HashSet::default(),
            shingles: HashSet::default(),
        }
    }

    /// Returns the score of a passage, lowered by how much of its chunk is selected.
    fn current_score(&self, one: &ScoredPassage) -> i64 {
        match self.selected.get(&chunk_id(one.id)) {
            Some(selected) if self.limits.spread => {
                let spread = i128::from(SPREAD);
                let lowered = i128::from(one.score) * spread / (spread + selected.bytes as i128);
                i64::try_from(lowered).unwrap_or(i64::MAX)
            }
            _ => one.score,
        }
    }

    /// Selects a passage with its neighbors if it fits. A near-duplicate is selected only if it
    /// is offered `again`. Returns `None` if the passage cannot be read.
    fn offer(&mut self, one: &ScoredPassage, again: bool) -> Option<Offer> {
        let (ranked, id, chunk) = (self.ranked, one.id, chunk_id(one.id));
        let selected = self.selected.get(&chunk);
        if self.is_selected(id) {
            return Some(Offer::Selected);
        }
        let is_adjacent = selected.is_some_and(|selected| touches(&selected.passages, id.passage));
        // A passage without a match is context only.
        if !one.has_word && !is_adjacent {
            return Some(Offer::Refused);
        }
        if one.repeats || one.has_word && self.is_repeat(ranked.word_hash(id)) {
            return Some(Offer::Refused);
        }
        let minimal: Vec<u32> = minimal(id.passage, ranked.bounds(id)?).collect();
        let least = ranked.length(id, minimal.iter().copied())?;
        let path = ranked.path(chunk)?;
        let (file_frame, excerpt_frame) = (self.limits.frame)(id.worker as usize, &path);
        let frame = if selected.is_some() { 0 } else { file_frame }
            + if is_adjacent { 0 } else { excerpt_frame };
        if least + frame > self.left {
            return Some(Offer::Refused);
        }
        let range = ranked.range(id, id.passage..id.passage + 1)?;
        let shingles = shingles(&(self.read)(id.worker as usize, &path, range)?);
        if !again && one.has_word && is_near_duplicate(&shingles, &self.shingles) {
            return Some(Offer::Duplicate);
        }
        let extended = ranked.extended(
            id,
            selected.map(|selected| &selected.passages),
            self.limits.excerpt,
        )?;
        let extended_length = ranked.length(id, extended.iter().copied())?;
        let (passages, length) = match extended_length + frame <= self.left {
            true => (extended, extended_length),
            false => (minimal, least),
        };
        let reply = ranked.reply(id).and_then(|reply| {
            let reply = ranked.extended(reply, None, self.limits.excerpt / 2)?;
            let more = ranked.length(id, reply.iter().copied())? + excerpt_frame;
            (length + frame + more <= self.left).then_some((reply, more))
        });
        let (mut passages, mut length) = (passages, length);
        if let Some((reply, more)) = reply.filter(|_| one.has_word) {
            passages.extend(reply);
            length += more;
        }
        let hashes = passages
            .iter()
            .filter_map(|passage| ranked.word_hash(PassageId { passage: *passage, ..id }));
        self.word_hashes.extend(hashes);
        self.shingles.extend(shingles);
        self.left -= length + frame;
        let turn = self.selected.len();
        let selected = self
            .selected
            .entry(chunk)
            .or_insert(SelectedChunk { turn, ..SelectedChunk::default() });
        selected.bytes += length;
        selected.passages.extend(passages);
        Some(Offer::Selected)
    }

    fn is_selected(&self, id: PassageId) -> bool {
        let selected = self.selected.get(&chunk_id(id));
        selected.is_some_and(|selected| selected.passages.contains(&id.passage))
    }

    fn is_repeat(&self, word_hash: Option<u64>) -> bool {
        word_hash.is_some_and(|hash| self.word_hashes.contains(&hash))
    }

    /// Returns true if a passage that was refused as a near-duplicate counts as one in the end.
    fn is_near_duplicate(&self, one: &ScoredPassage) -> bool {
        one.counts() && !self.is_selected(one.id) && !self.is_repeat(self.ranked.word_hash(one.id))
    }

    fn repeat_count(&self) -> usize {
        let mut count = 0;
        for passages in self.ranked.by_chunk() {
            let Some(chunk) = passages.first().and_then(|one| self.ranked.chunk(one.id)) else {
                continue;
            };
            let repeats = passages.iter().filter(|one| {
                one.counts()
                    && self.is_repeat(chunk.word_hash(one.id.passage))
                    && !self.is_selected(one.id)
            });
            count += repeats.count();
        }
        count
    }

    fn finish(self) -> Vec<FileHit> {
        let mut hits: Vec<(usize, FileHit)> = self
            .selected
            .into_iter()
            .filter_map(|(id, chunk)| Some((chunk.turn, self.ranked.hit(id, &chunk)?)))
            .collect();
        hits.sort_by_key(|(turn, _)| *turn);
        hits.into_iter().map(|(_, hit)| hit).collect()
    }
}

/// Returns a passage of a chunk alone, or the file's name with the first passage of its text.
fn minimal(passage: u32, (first, end): (u32, u32)) -> impl Iterator<Item = u32> {
    let after = (passage == first && first + 1 < end).then_some(first + 1);
    std::iter::once(passage).chain(after)
}

fn touches(passages: &BTreeSet<u32>, passage: u32) -> bool {
    passages.contains(&(passage + 1))
        || passage.checked_sub(1).is_some_and(|before| passages.contains(&before))
}

/// Returns hashes of all runs of [`SHINGLE`] words in `text`; none if it is too short to compare.
fn shingles(text: &str) -> Vec<u64> {
    let mut text_words = Vec::new();
    words(text, |word| text_words.push(word.to_owned()));
    if text_words.len() < COMPARABLE_WORDS {
        return Vec::new();
    }
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    text_words.windows(SHINGLE).map(|shingle| hasher.hash_one(shingle)).collect()
}

fn is_near_duplicate(shingles: &[u64], known: &HashSet<u64, RandomState>) -> bool {
    let repeated = shingles.iter().filter(|shingle| known.contains(shingle)).count();
    !shingles.is_empty() && repeated * 100 >= shingles.len() * DUPLICATE_PERCENT
}
