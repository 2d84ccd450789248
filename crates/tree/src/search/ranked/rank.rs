//! Scores passages against a query with BM25.
//!
//! A passage is scored on four levels: by itself, in two neighborhoods, and by its file. The topic
//! of a passage is often named shortly before it, and the topic of a file elsewhere in the file.
//!
//! All statistics come from the selected workers. Scores are integers, so that the order does not
//! depend on floating-point differences between machines. Equal scores are ordered by path.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use super::conversation::PassageKind;
use super::index::WorkerIndex;
use super::query::RankedQuery;
use super::segment::{FileChunk, NEAR, Segment, SegmentHeader};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::split::Split;

/// BM25's k1: how soon further occurrences of a word stop counting.
const K1: f64 = 2.0;
/// BM25's b: how much the length of a text counts.
const B: f64 = 0.9;
/// Factor of the bonus for many distinct words of the query.
const COORDINATION: f64 = 0.5;
/// Weights of the levels: the passage, its neighborhoods, its file.
const WEIGHTS: [f64; LEVELS] = [1.0, 0.5, 0.5, 1.2];
const LEVELS: usize = NEAR.len() + 2;
const FILE: usize = LEVELS - 1;
/// Bonus factor of a passage that has all words of the query together with its neighbors.
const COVERAGE: f64 = 3.0;
/// Weights of the parts of a conversation other than the words of the agent.
const REQUEST: f64 = 1.1;
const DOCUMENT: f64 = 0.75;
const THOUGHT: f64 = 0.7;
const PROGRAM: f64 = 0.6;
const CALL: f64 = 0.4;
/// Exponent of the coverage. It is steep, so that many repeats of one word do not outweigh a
/// passage with all words.
const COVERAGE_POWER: i32 = 24;
/// Lowest score of a passage, as a share of its neighbor's score.
const NEIGHBOR_SHARE: f64 = 0.75;
/// Maximum number of word sets with which the passages of a record are compared.
const WORD_SETS_MAX: usize = 64;
/// Score units per 1.0.
pub(super) const UNIT: f64 = 1_000_000.0;

#[derive(Debug, Clone, Copy)]
struct TermMatch {
    passage: u32,
    term: u32,
    term_freq: u32,
}

struct SegmentMatches {
    /// The matches, ordered by passage and term.
    all: Vec<TermMatch>,
    /// Passages with an excluded word, in order.
    excluded: Vec<u32>,
}

#[derive(Debug, Clone, Default)]
struct LevelStats {
    texts: u64,
    words: u64,
    /// Number of texts with each word of the query.
    doc_freqs: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScoredPassage {
    pub(super) id: PassageId,
    /// Score in millionths.
    pub(super) score: i64,
    /// The words of the query in the passage, as bits; 0 if one of them is beyond the 64th.
    pub(super) words: u64,
    /// True if the passage has a word of the query; false if it is only near such a passage.
    pub(super) has_word: bool,
    /// True if the passage is in a record and another file of the worker has a passage with all
    /// its words of the query.
    pub(super) repeats: bool,
}

impl ScoredPassage {
    /// Returns true if the passage counts as a match.
    pub(super) fn counts(&self) -> bool {
        self.has_word && !self.repeats
    }
}

/// The position of a passage. Positions sort in the order of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PassageId {
    pub(super) worker: u32,
    pub(super) segment: u32,
    pub(super) chunk: u32,
    pub(super) passage: u32,
}

/// A chunk: worker, segment, and its index in the segment.
pub(super) type ChunkId = (u32, u32, u32);

pub(super) fn chunk_id(id: PassageId) -> ChunkId {
    (id.worker, id.segment, id.chunk)
}

pub(super) fn is_in_same_chunk(a: &ScoredPassage, b: &ScoredPassage) -> bool {
    chunk_id(a.id) == chunk_id(b.id)
}

pub struct WorkerMatches {
    segments: Vec<(Arc<SegmentHeader>, SegmentMatches)>,
    /// Statistics of primary files and of the other files.
    levels: [Levels; 2],
}

type Levels = [LevelStats; LEVELS];

impl WorkerMatches {
    /// Looks up the words of `query`.
    ///
    /// `is_primary` returns true for files whose words count for document frequencies. Files
    /// that only repeat other files are not primary.
    pub fn new(
        worker: &WorkerIndex,
        query: &RankedQuery,
        is_primary: &dyn Fn(&RelPath) -> bool,
    ) -> WorkerMatches {
        let mut levels = [empty_levels(query), empty_levels(query)];
        let segments: Vec<_> = worker
            .segments
            .iter()
            .map(|segment| (segment.header.clone(), SegmentMatches::new(segment, query)))
            .collect();
        segments
            .iter()
            .for_each(|(header, matches)| count(header, matches, is_primary, &mut levels));
        WorkerMatches { segments, levels }
    }

    pub(super) fn headers(&self) -> impl Iterator<Item = &Arc<SegmentHeader>> {
        self.segments.iter().map(|(header, _)| header)
    }

    /// Returns the highest number of passages that have a word of the query near them.
    fn most_scored(&self) -> usize {
        let [.., far] = NEAR;
        let most = self.segments.iter().map(|(header, matches)| {
            header.words.len().min(matches.all.len().saturating_mul(2 * far + 1))
        });
        most.sum()
    }
}

pub struct RankedPassages {
    pub(super) workers: Vec<WorkerMatches>,
    pub(super) passages: Vec<Vec<ScoredPassage>>,
    pub(super) excluded: Vec<PassageId>,
}

impl RankedPassages {
    /// Marks the passages whose words of the query are all in one passage of a file that tells the
    /// same at first hand. `hand` returns how many hands are between: 0 for the first.
    pub fn mark_repeats(&mut self, hand: &dyn Fn(&RelPath) -> usize) {
        let mut passages = std::mem::take(&mut self.passages);
        for worker in &mut passages {
            let hands = worker.chunk_by(is_in_same_chunk).map(|chunk| self.hand(chunk, hand));
            let hands: Vec<usize> = hands.collect();
            let last = hands.iter().copied().max().unwrap_or_default();
            // Most workers have no word of the query in a file that repeats others.
            if last == 0 {
                continue;
            }
            let mut known: Vec<u64> = Vec::new();
            for number in 0..=last {
                let mut more = Vec::new();
                let chunks = worker.chunk_by_mut(is_in_same_chunk).zip(&hands);
                for (chunk, _) in chunks.filter(|(_, hand)| **hand == number) {
                    for one in chunk {
                        let holds = |all: &u64| one.words & !all == 0;
                        one.repeats = one.words != 0 && known.iter().any(holds);
                        more.extend((one.words != 0).then_some(one.words));
                    }
                }
                known.append(&mut more);
                known.sort_unstable();
                known.dedup();
                // Most words first: the largest sets hold most of the others.
                known.sort_by_key(|set: &u64| Reverse(set.count_ones()));
                known.truncate(WORD_SETS_MAX);
            }
        }
        self.passages = passages;
    }

    fn hand(&self, passages: &[ScoredPassage], hand: &dyn Fn(&RelPath) -> usize) -> usize {
        let chunk = passages.first().and_then(|one| {
            self.header(one.id).and_then(|header| header.chunks.get(one.id.chunk as usize))
        });
        chunk.map_or(0, |chunk| hand(&chunk.path))
    }

    pub(super) fn header(&self, id: PassageId) -> Option<&SegmentHeader> {
        self.workers
            .get(id.worker as usize)?
            .segments
            .get(id.segment as usize)
            .map(|(header, _)| &**header)
    }
}

/// Ranks the passages of `workers`, which are in the order of their names.
///
/// `weigh` returns the weight of a worker's file in percent. Weight 0 leaves the file out, though
/// its words still count for document frequencies.
pub fn rank(
    workers: Vec<WorkerMatches>,
    query: &RankedQuery,
    weigh: &(dyn Fn(usize, &RelPath) -> u32 + Sync),
) -> RankedPassages {
    let mut stats = [empty_levels(query), empty_levels(query)];
    for worker in &workers {
        stats
            .iter_mut()
            .flatten()
            .zip(worker.levels.iter().flatten())
            .for_each(|(level, more)| level.add(more));
    }
    // Without primary files, the others provide the statistics.
    let [primary, others] = stats;
    let stats = if primary.iter().any(|level| level.texts > 0) { primary } else { others };
    let levels = stats.map(|level| LevelScorer::new(&level));
    let numbered: Vec<(u32, &WorkerMatches)> = (0..).zip(&workers).collect();
    let scored = parallel_map(&numbered, |(worker, matches)| {
        let mut scored = Vec::with_capacity(matches.most_scored());
        let mut excluded = Vec::new();
        for (segment, (header, matches)) in (0..).zip(&matches.segments) {
            let id = PassageId { worker: *worker, segment, chunk: 0, passage: 0 };
            score(header, matches, &levels, id, &|path| weigh(*worker as usize, path), &mut scored);
            excluded.extend(
                matches.excluded.iter().map(|passage| PassageId { passage: *passage, ..id }),
            );
        }
        scored.shrink_to_fit();
        (scored, excluded)
    });
    let mut ranked = RankedPassages { workers, passages: Vec::new(), excluded: Vec::new() };
    for (scored, excluded) in scored {
        ranked.passages.push(scored);
        ranked.excluded.extend(excluded);
    }
    ranked
}

impl SegmentMatches {
    fn new(segment: &Segment, query: &RankedQuery) -> SegmentMatches {
        let mut all = Vec::new();
        for (term, text) in (0..).zip(&query.terms) {
            all.extend(segment.postings(text).map(|(passage, term_freq)| TermMatch {
                passage,
                term,
                term_freq,
            }));
        }
        // The postings of each term are sorted, and a stable sort merges sorted runs.
        all.sort_by_key(|found: &TermMatch| (found.passage, found.term));
        all.shrink_to_fit();
        SegmentMatches { all, excluded: excluded(segment, query) }
    }

    fn within(&self, Range { start: first, end }: Range<u32>) -> &[TermMatch] {
        let (_, all) =
            self.all.split_at_known(self.all.partition_point(|found| found.passage < first));
        all.split_at_known(all.partition_point(|found| found.passage < end)).0
    }
}

/// Returns the passages with an excluded word, in order.
pub(super) fn excluded(segment: &Segment, query: &RankedQuery) -> Vec<u32> {
    let passages = query.excluded.iter().flat_map(|text| segment.postings(text));
    let mut excluded: Vec<u32> = passages.map(|(passage, _)| passage).collect();
    excluded.sort_unstable();
    excluded.dedup();
    excluded
}

impl LevelStats {
    fn add(&mut self, more: &LevelStats) {
        self.texts += more.texts;
        self.words += more.words;
        self.doc_freqs
            .iter_mut()
            .zip(&more.doc_freqs)
            .for_each(|(doc_freq, more)| *doc_freq += more);
    }

    fn add_text(&mut self, counts: &TermCounts) {
        for term in &counts.present {
            self.doc_freqs.get_mut(*term).into_iter().for_each(|doc_freq| *doc_freq += 1);
        }
    }
}

struct TermCounts {
    term_freqs: Vec<u32>,
    present: Vec<usize>,
}

impl TermCounts {
    fn new(terms: usize) -> TermCounts {
        TermCounts { term_freqs: vec![0; terms], present: Vec::new() }
    }

    fn clear(&mut self) {
        for term in &self.present {
            self.term_freqs.get_mut(*term).into_iter().for_each(|term_freq| *term_freq = 0);
        }
        self.present.clear();
    }

    fn add(&mut self, found: &TermMatch) {
        if let Some(term_freq) = self.term_freqs.get_mut(found.term as usize) {
            if *term_freq == 0 {
                self.present.push(found.term as usize);
            }
            *term_freq += found.term_freq;
        }
    }
}

/// A passage with some passages before and after it, and the words in all of them.
struct Neighborhood<'a> {
    /// Number of passages before and after.
    near: u32,
    passages: Range<u32>,
    words: u64,
    term_freqs: Vec<u32>,
    /// The matches from the first passage on.
    from_first: &'a [TermMatch],
    /// The matches after the last passage.
    after_last: &'a [TermMatch],
}

type Neighborhoods<'a> = [Neighborhood<'a>; FILE];

impl<'a> Neighborhood<'a> {
    fn all(terms: usize) -> Neighborhoods<'a> {
        let [close, far] = NEAR.map(|near| near as u32);
        [0, close, far].map(|near| Neighborhood {
            near,
            passages: 0..0,
            words: 0,
            term_freqs: vec![0; terms],
            from_first: &[],
            after_last: &[],
        })
    }

    /// Moves before the first passage of a chunk. `matches` are the words of the query in it.
    fn start(&mut self, chunk: &ChunkPassages<'_>, matches: &'a [TermMatch]) {
        self.passages = chunk.numbers.start..chunk.numbers.start;
        self.words = 0;
        self.term_freqs.fill(0);
        (self.from_first, self.after_last) = (matches, matches);
    }

    fn move_to(&mut self, passage: u32, chunk: &ChunkPassages<'_>) {
        let Range { start: first, end } = chunk.numbers;
        let from = passage.saturating_sub(self.near).max(first);
        let to = (passage + self.near + 1).min(end);
        // The passages in between are added first, so that every subtracted word was added before.
        self.words += chunk.word_count(self.passages.end..to);
        self.words -= chunk.word_count(self.passages.start..from);
        self.passages = from..to;
        while let Some((found, rest)) =
            self.after_last.split_first().filter(|(found, _)| found.passage < to)
        {
            self.after_last = rest;
            if let Some(term_freq) = self.term_freqs.get_mut(found.term as usize) {
                *term_freq += found.term_freq;
            }
        }
        while let Some((found, rest)) =
            self.from_first.split_first().filter(|(found, _)| found.passage < from)
        {
            self.from_first = rest;
            if let Some(term_freq) = self.term_freqs.get_mut(found.term as usize) {
                *term_freq -= found.term_freq;
            }
        }
    }
}

/// Calls `take` with every passage of a chunk that has a word of the query in its neighborhood,
/// and with its neighborhoods. `matches` are the words in the chunk. `neighborhoods` is reused by
/// every call.
fn each_passage<'a>(
    chunk: &ChunkPassages<'_>,
    matches: &'a [TermMatch],
    neighborhoods: &mut Neighborhoods<'a>,
    mut take: impl FnMut(u32, &Neighborhoods<'a>),
) {
    let Range { start: mut next, end } = chunk.numbers;
    let [.., far] = NEAR.map(|near| near as u32);
    neighborhoods.iter_mut().for_each(|neighborhood| neighborhood.start(chunk, matches));
    for found in matches {
        let from = next.max(found.passage.saturating_sub(far));
        let to = (found.passage + far + 1).min(end);
        for passage in from..to {
            for neighborhood in neighborhoods.iter_mut() {
                neighborhood.move_to(passage, chunk);
            }
            take(passage, neighborhoods);
        }
        next = next.max(to);
    }
}

pub(super) struct ChunkPassages<'a> {
    pub(super) file: &'a FileChunk,
    pub(super) numbers: Range<u32>,
    words: &'a [u16],
}

impl ChunkPassages<'_> {
    fn word_count(&self, passages: Range<u32>) -> u64 {
        let skipped = passages.start.saturating_sub(self.numbers.start) as usize;
        let words = self.words.iter().skip(skipped).take(passages.len());
        words.map(|count| u64::from(*count)).sum()
    }
}

pub(super) fn chunks(header: &SegmentHeader) -> impl Iterator<Item = ChunkPassages<'_>> {
    header.chunks.iter().scan((0, header.words.as_slice()), |(first, rest), file| {
        let (words, after) = rest.split_at_checked(file.passages as usize)?;
        let numbers = *first..*first + file.passages;
        (*first, *rest) = (numbers.end, after);
        Some(ChunkPassages { file, numbers, words })
    })
}

fn empty_levels(query: &RankedQuery) -> Levels {
    std::array::from_fn(|_| LevelStats {
        doc_freqs: vec![0; query.terms.len()],
        ..LevelStats::default()
    })
}

/// Adds the statistics of a segment, separately for the files that `is_primary` accepts and the
/// others.
fn count(
    header: &SegmentHeader,
    matches: &SegmentMatches,
    is_primary: &dyn Fn(&RelPath) -> bool,
    [primary, others]: &mut [Levels; 2],
) {
    let [LevelStats { doc_freqs, .. }, ..] = primary;
    let terms = doc_freqs.len();
    let (mut file_counts, mut ends) = (TermCounts::new(terms), vec![0; terms]);
    for chunk in chunks(header) {
        let file = chunk.file;
        let levels = if is_primary(&file.path) { &mut *primary } else { &mut *others };
        let words = std::iter::once(file.words).chain(file.near).chain([file.words]);
        for (at, (level, words)) in levels.iter_mut().zip(words).enumerate() {
            level.texts += if at == FILE { 1 } else { u64::from(file.passages) };
            level.words += words;
        }
        let within = matches.within(chunk.numbers.clone());
        if within.is_empty() {
            continue;
        }
        file_counts.clear();
        within.iter().for_each(|found| file_counts.add(found));
        let [.., file_level] = levels;
        file_level.add_text(&file_counts);
        for (level, near) in levels.iter_mut().zip(std::iter::once(0).chain(NEAR)) {
            count_neighborhoods(&chunk, within, near as u32, &mut ends, &mut level.doc_freqs);
        }
    }
}

/// Adds to `doc_freqs` the number of passages of a chunk that have each word of the query among
/// them and the `near` passages on either side. `matches` are the words in the chunk. `ends` is
/// reused by every call.
fn count_neighborhoods(
    chunk: &ChunkPassages<'_>,
    matches: &[TermMatch],
    near: u32,
    ends: &mut [u32],
    doc_freqs: &mut [u64],
) {
    let Range { start: first, end } = chunk.numbers;
    // The passages before this one are counted already, for each word.
    ends.fill(first);
    for found in matches {
        let term = found.term as usize;
        if let (Some(counted), Some(doc_freq)) = (ends.get_mut(term), doc_freqs.get_mut(term)) {
            let from = found.passage.saturating_sub(near).max(*counted);
            let to = (found.passage + near + 1).min(end);
            *doc_freq += u64::from(to.saturating_sub(from));
            *counted = to.max(*counted);
        }
    }
}

struct LevelScorer {
    average_words: f64,
    /// Inverse document frequency of each word of the query.
    idfs: Vec<f64>,
    /// Sum of these frequencies, above 0.
    idf_sum: f64,
}

impl LevelScorer {
    fn new(level: &LevelStats) -> LevelScorer {
        let texts = level.texts as f64;
        let idfs: Vec<f64> =
            level.doc_freqs.iter().map(|doc_freq| idf(*doc_freq as f64, texts)).collect();
        LevelScorer {
            average_words: (level.words as f64 / texts.max(1.0)).max(1.0),
            idf_sum: idfs.iter().sum::<f64>().max(f64::MIN_POSITIVE),
            idfs,
        }
    }

    /// Scores a text of `words` words. `term_freqs` are the frequencies of the query's words in it.
    fn score(&self, weight: f64, term_freqs: &[u32], words: u64) -> f64 {
        let length_norm = K1 * (1.0 - B + B * words as f64 / self.average_words);
        // Sums in the order of the query, so that rounding does not depend on the text.
        let (mut sum, mut present) = (0.0, 0.0);
        for (idf, term_freq) in self.idfs.iter().zip(term_freqs).filter(|(_, freq)| **freq > 0) {
            let term_freq = f64::from(*term_freq);
            sum += idf * term_freq * (K1 + 1.0) / (term_freq + length_norm);
            present += idf;
        }
        weight * sum * (1.0 + COORDINATION * present / self.idf_sum)
    }
}

fn idf(doc_freq: f64, texts: f64) -> f64 {
    (1.0 + (texts - doc_freq + 0.5).max(0.0) / (doc_freq + 0.5)).ln()
}

/// Scores the passages of one segment. `weigh` returns the weight of a file, as in [`rank`].
fn score(
    header: &SegmentHeader,
    matches: &SegmentMatches,
    levels: &[LevelScorer; LEVELS],
    id: PassageId,
    weigh: &dyn Fn(&RelPath) -> u32,
    scored: &mut Vec<ScoredPassage>,
) {
    let ([.., file_level], [.., file_weight]) = (levels, WEIGHTS);
    let terms = file_level.idfs.len();
    let mut file_counts = TermCounts::new(terms);
    let mut neighborhoods = Neighborhood::all(terms);
    for (number, chunk) in (0..).zip(chunks(header)) {
        let within = matches.within(chunk.numbers.clone());
        let weight = if within.is_empty() { 0 } else { weigh(&chunk.file.path) };
        if weight == 0 {
            continue;
        }
        let unit = UNIT * f64::from(weight) / 100.0;
        file_counts.clear();
        within.iter().for_each(|found| file_counts.add(found));
        let file_score = file_level.score(file_weight, &file_counts.term_freqs, chunk.file.words);
        let begin = scored.len();
        each_passage(&chunk, within, &mut neighborhoods, |passage, neighborhoods| {
            let near: f64 = levels
                .iter()
                .zip(WEIGHTS)
                .zip(neighborhoods)
                .map(|((level, weight), near)| level.score(weight, &near.term_freqs, near.words))
                .sum();
            let kind = header.kinds.get(passage as usize).copied();
            let unit = unit * kind.map_or(1.0, kind_weight);
            let [own, close, ..] = neighborhoods;
            let bonus = coverage_bonus(levels, &close.term_freqs);
            let score = ((near + file_score) * (1.0 + bonus) * unit).round() as i64;
            let id = PassageId { chunk: number, passage, ..id };
            let has_word = own.term_freqs.iter().any(|term_freq| *term_freq > 0);
            let words = word_set(&own.term_freqs);
            scored.push(ScoredPassage { id, score, words, has_word, repeats: false });
        });
        scored.get_mut(begin..).into_iter().for_each(raise_neighbors);
        if !matches.excluded.is_empty() {
            let mut kept = scored.split_off(begin);
            kept.retain(|one| matches.excluded.binary_search(&one.id.passage).is_err());
            scored.append(&mut kept);
        }
    }
}

/// Returns the weight of a passage by who says it.
pub(super) fn kind_weight(kind: PassageKind) -> f64 {
    match kind {
        PassageKind::File | PassageKind::Answer => 1.0,
        PassageKind::Request => REQUEST,
        PassageKind::Document => DOCUMENT,
        PassageKind::Thought => THOUGHT,
        PassageKind::Program => PROGRAM,
        PassageKind::Call => CALL,
    }
}

/// Returns the words with a frequency above 0 as bits, or 0 if one of them is beyond the 64th.
pub(super) fn word_set(term_freqs: &[u32]) -> u64 {
    let present = (0..).zip(term_freqs).filter(|(_, term_freq)| **term_freq > 0);
    let mut set = present.map(|(term, _)| 1_u64.checked_shl(term));
    set.try_fold(0, |set, bit| Some(set | bit?)).unwrap_or(0)
}

/// Returns the bonus for the words of the query that a passage has together with its neighbors. The
/// words are weighted by their inverse document frequencies, and `term_freqs` counts them in all of
/// these passages.
fn coverage_bonus([scorer, ..]: &[LevelScorer; LEVELS], term_freqs: &[u32]) -> f64 {
    if scorer.idfs.len() < 2 {
        return 0.0;
    }
    // Sum in the order of the query, so that rounding does not depend on the text.
    let present = scorer.idfs.iter().zip(term_freqs).filter(|(_, term_freq)| **term_freq > 0);
    let present = present.map(|(idf, _)| idf).sum::<f64>();
    COVERAGE * (present / scorer.idf_sum).powi(COVERAGE_POWER)
}

/// Raises each passage to at least [`NEIGHBOR_SHARE`] of the original score of its neighbors.
fn raise_neighbors(mut scored: &mut [ScoredPassage]) {
    let original = |one: &ScoredPassage| (one.id.passage, one.score);
    let mut before = None;
    while let Some((one, rest)) = scored.split_first_mut() {
        let (passage, score) = original(one);
        let neighbors = [before, rest.first().map(original)].into_iter().flatten();
        let close = neighbors.filter(|(other, _)| other.abs_diff(passage) == 1);
        let shares = close.map(|(_, score)| (score as f64 * NEIGHBOR_SHARE) as i64);
        one.score = shares.fold(score, i64::max);
        (before, scored) = (Some((passage, score)), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the passages with each word in their neighborhoods one by one.
    #[test]
    fn neighborhoods_are_counted_as_if_one_by_one() {
        let mut rng = crate::scale::rng();
        let file = FileChunk {
            path: RelPath::parse("a").unwrap(),
            start: 0,
            first: 0,
            passages: 30,
            words: 30,
            near: [0; NEAR.len()],
        };
        let words: Vec<u16> = (7..37).collect();
        let chunk = ChunkPassages { file: &file, numbers: 7..37, words: &words };
        for likelihood in [0.02, 0.2, 0.9] {
            let mut matches = Vec::new();
            for (passage, term) in (7..37).flat_map(|passage| [(passage, 0), (passage, 1)]) {
                if rng.f64() < likelihood {
                    matches.push(TermMatch { passage, term, term_freq: 1 });
                }
            }
            for near in [0, 1, 2] {
                let mut counted = [0; 2];
                count_neighborhoods(&chunk, &matches, near, &mut [0; 2], &mut counted);
                let expected = [0, 1].map(|term| {
                    let has = |passage: &u32| {
                        let is_near = |found: &&TermMatch| found.passage.abs_diff(*passage) <= near;
                        matches.iter().filter(is_near).any(|found| found.term == term)
                    };
                    (7..37).filter(has).count() as u64
                });
                assert_eq!(counted, expected, "{matches:?} {near}");
            }
            let mut seen = Vec::new();
            each_passage(&chunk, &matches, &mut Neighborhood::all(2), |passage, near| {
                seen.push((
                    passage,
                    near.each_ref().map(|one| (one.words, one.term_freqs.clone())),
                ));
            });
            let expected = (7..37).filter_map(|passage| {
                let counts = [0, 1, 2].map(|near| {
                    let words = (7..37).filter(|other: &u32| other.abs_diff(passage) <= near);
                    let words = words.map(u64::from).sum::<u64>();
                    let near = matches.iter().filter(|one| one.passage.abs_diff(passage) <= near);
                    let term_freqs = near.fold(vec![0, 0], |mut sums, found| {
                        sums[found.term as usize] += found.term_freq;
                        sums
                    });
                    (words, term_freqs)
                });
                (counts[2].1 != [0, 0]).then_some((passage, counts))
            });
            assert_eq!(seen, expected.collect::<Vec<_>>());
        }
    }
}
