//! How well passages bear on a question.
//!
//! A passage is scored by BM25 four times: by itself, with its neighbours, with theirs, and by the file that it is in,
//! since what a passage is about is often said a little before it, and what a file is about in another place of it. All
//! counts are of the workers that are asked about. Scores are whole numbers, so that no machine's arithmetic changes an
//! order, and equal ones are ordered by path.

use std::sync::Arc;

use super::index::Indexed;
use super::part::{NEAR, Part, Text};
use super::query::Query;
use crate::name::RelPath;
use crate::parallel::parallel_map;

/// How soon a word's further occurrences count little, and how much length counts: BM25's k1 and b.
const SATURATION: f64 = 2.0;
const LENGTH: f64 = 0.9;
/// What it counts that many words of the question are there.
const COORDINATION: f64 = 0.5;
/// What the levels count: the passage, its neighbourhoods, its file.
const WEIGHTS: [f64; LEVELS] = [1.0, 0.5, 0.5, 1.2];
const LEVELS: usize = NEAR.len() + 2;
/// The file's place among the levels.
const FILE: usize = LEVELS - 1;
/// Factor by which the score of a passage grows that holds all words of the question together with its neighbors, and how fast
/// that falls with the words that are not there: many repeats of one word must not outweigh all words together.
const COVERAGE: f64 = 3.0;
const COVERAGE_POWER: i32 = 24;
/// What of its neighbour's score a passage has at least.
const BESIDE: f64 = 0.75;
/// Scores are counted in this part of one.
const UNIT: f64 = 1_000_000.0;

/// A word of the question in a passage.
#[derive(Debug, Clone, Copy)]
struct Match {
    passage: u32,
    term: u32,
    often: u32,
}

/// The words of the question in a part.
struct Matches {
    all: Vec<Match>,
    /// Passages that hold what may not be there.
    banned: Vec<u32>,
}

/// What is counted on one level: of all places there are, how many words they have, and how many of them hold each word.
#[derive(Debug, Clone, Default)]
struct Level {
    places: u64,
    words: u64,
    with: Vec<u64>,
}

/// A passage that may bear on the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scored {
    /// Where it is.
    pub(super) at: At,
    /// In millionths.
    pub(super) score: i64,
    /// Whether a word of the question is in it; else it is beside one that has some.
    pub(super) has_word: bool,
}

/// The place of a passage: in the order of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct At {
    pub(super) worker: u32,
    pub(super) part: u32,
    pub(super) piece: u32,
    /// In its part.
    pub(super) passage: u32,
}

/// Where the words of a question are among those of a worker.
pub struct Matched {
    parts: Vec<(Arc<Text>, Matches)>,
    /// Of files that count, and of the others.
    levels: [Vec<Level>; 2],
}

impl Matched {
    /// Looks the words of `query` up. `counts` says of a file's path whether its words count for how rare a word is: not those
    /// of what only tells of other files.
    pub fn of(worker: &Indexed, query: &Query, counts: &dyn Fn(&RelPath) -> bool) -> Matched {
        let mut levels = [levels(query), levels(query)];
        let matches = worker.parts.iter().map(|part| (part.text().clone(), Matches::of(part, query)));
        let parts: Vec<_> = matches.collect();
        parts.iter().for_each(|(text, matches)| count(text, matches, counts, &mut levels));
        Matched { parts, levels }
    }
}

/// What bears on a question.
pub struct Ranked {
    pub(super) workers: Vec<Matched>,
    /// In the order of paths.
    pub(super) passages: Vec<Scored>,
    /// Passages that may not be shown, in order.
    pub(super) banned: Vec<At>,
}

impl Ranked {
    pub(super) fn text(&self, at: At) -> Option<&Text> {
        self.workers.get(at.worker as usize)?.parts.get(at.part as usize).map(|(text, _)| &**text)
    }
}

/// Ranks the passages of `workers`, which are in the order of their names. `weigh` says of a worker's place among them and
/// of a file's path how much the file counts, in hundredths; 0 leaves it out, though its words are counted with the others.
pub fn rank(workers: Vec<Matched>, query: &Query, weigh: &(dyn Fn(usize, &RelPath) -> u32 + Sync)) -> Ranked {
    let mut counted = [levels(query), levels(query)];
    for worker in &workers {
        counted.iter_mut().flatten().zip(worker.levels.iter().flatten()).for_each(|(level, more)| level.add(more));
    }
    // Where there is nothing else, what tells of other files counts.
    let [counted, others] = counted;
    let counted = if counted.first().is_some_and(|level| level.places > 0) { counted } else { others };
    let levels: Vec<Scale> = counted.iter().zip(WEIGHTS).map(|(level, weight)| Scale::of(level, weight)).collect();
    let numbered: Vec<(u32, &Matched)> = (0..).zip(&workers).collect();
    let scored = parallel_map(&numbered, |(worker, matched)| {
        let mut scored = Vec::new();
        let mut banned = Vec::new();
        for (part, (text, matches)) in (0..).zip(&matched.parts) {
            let at = At { worker: *worker, part, piece: 0, passage: 0 };
            score(text, matches, &levels, at, &|path| weigh(*worker as usize, path), &mut scored);
            banned.extend(matches.banned.iter().map(|passage| At { passage: *passage, ..at }));
        }
        scored.shrink_to_fit();
        (scored, banned)
    });
    let mut ranked = Ranked { workers, passages: Vec::new(), banned: Vec::new() };
    ranked.passages.reserve_exact(scored.iter().map(|(scored, _)| scored.len()).sum());
    for (scored, banned) in scored {
        ranked.passages.extend(scored);
        ranked.banned.extend(banned);
    }
    ranked
}

impl Matches {
    fn of(part: &Part, query: &Query) -> Matches {
        let mut all = Vec::new();
        for (term, text) in (0..).zip(&query.terms) {
            all.extend(part.postings(text).map(|(passage, often)| Match { passage, term, often }));
        }
        all.sort_unstable_by_key(|found: &Match| (found.passage, found.term));
        all.shrink_to_fit();
        let mut banned: Vec<u32> =
            query.without.iter().flat_map(|text| part.postings(text)).map(|(passage, _)| passage).collect();
        banned.sort_unstable();
        banned.dedup();
        Matches { all, banned }
    }

    /// Those in the passages from `first` to before `end`.
    fn within(&self, first: u32, end: u32) -> &[Match] {
        let from = self.all.partition_point(|found| found.passage < first);
        let to = self.all.partition_point(|found| found.passage < end);
        self.all.get(from..to).unwrap_or_default()
    }
}

impl Level {
    fn add(&mut self, more: &Level) {
        self.places += more.places;
        self.words += more.words;
        self.with.iter_mut().zip(&more.with).for_each(|(with, more)| *with += more);
    }
}

/// How often each word of the question is in some place.
struct Tally {
    often: Vec<u32>,
    /// The words that are there.
    there: Vec<usize>,
}

impl Tally {
    fn new(terms: usize) -> Tally {
        Tally { often: vec![0; terms], there: Vec::new() }
    }

    fn clear(&mut self) {
        for term in self.there.drain(..) {
            self.often.get_mut(term).into_iter().for_each(|often| *often = 0);
        }
    }

    fn add(&mut self, found: &Match) {
        if let Some(often) = self.often.get_mut(found.term as usize) {
            if *often == 0 {
                self.there.push(found.term as usize);
            }
            *often += found.often;
        }
    }
}

/// A passage with what is in it, in its neighbourhoods, and how many words these have.
struct Place<'a> {
    passage: u32,
    tallies: &'a [Tally],
    words: [u64; FILE],
}

/// What a passage and its neighbourhoods hold, one after the other.
struct Tallies(Vec<Tally>);

impl Tallies {
    fn new(terms: usize) -> Tallies {
        Tallies((0..FILE).map(|_| Tally::new(terms)).collect())
    }
}

/// Gives every passage of a piece that has a word of the question in its neighbourhood.
fn each_place(
    text: &Text,
    matches: &[Match],
    (first, end): (u32, u32),
    Tallies(tallies): &mut Tallies,
    mut take: impl FnMut(&Place<'_>),
) {
    let far = NEAR.iter().copied().max().unwrap_or(0) as u32;
    let mut next = first;
    let mut rest = matches;
    while let Some(found) = rest.first() {
        let from = next.max(found.passage.saturating_sub(far));
        let to = (found.passage + far + 1).min(end);
        for passage in from..to {
            let around = |near: u32| (passage.saturating_sub(near).max(first), (passage + near + 1).min(end));
            let mut words = [0; FILE];
            for ((near, words), tally) in std::iter::once(0).chain(NEAR).zip(&mut words).zip(tallies.iter_mut()) {
                let (from, to) = around(near as u32);
                let counts = text.words.get(from as usize..to as usize).unwrap_or_default();
                *words = counts.iter().map(|count| u64::from(*count)).sum();
                tally.clear();
                let begin = matches.partition_point(|found| found.passage < from);
                let near = matches.get(begin..).unwrap_or_default().iter().take_while(|found| found.passage < to);
                near.for_each(|found| tally.add(found));
            }
            take(&Place { passage, tallies, words });
        }
        next = next.max(to);
        rest = rest.get(rest.partition_point(|other| other.passage <= found.passage)..).unwrap_or_default();
    }
}

/// The first passage of each piece of a text, and the one behind its last.
fn bounds(text: &Text) -> impl Iterator<Item = (u32, u32)> {
    text.pieces.iter().scan(0_u32, |next, piece| {
        let first = *next;
        *next = next.saturating_add(piece.passages);
        Some((first, *next))
    })
}

fn levels(query: &Query) -> Vec<Level> {
    vec![Level { with: vec![0; query.terms.len()], ..Level::default() }; LEVELS]
}

/// Counts what there is in a part: of files that count, and of the others.
fn count(text: &Text, matches: &Matches, counts: &dyn Fn(&RelPath) -> bool, [counted, others]: &mut [Vec<Level>; 2]) {
    let terms = counted.first().map_or(0, |level| level.with.len());
    let (mut whole, mut tallies) = (Tally::new(terms), Tallies::new(terms));
    for ((first, end), piece) in bounds(text).zip(&text.pieces) {
        let levels = if counts(&piece.path) { &mut *counted } else { &mut *others };
        let words = std::iter::once(piece.words).chain(piece.near).chain([piece.words]);
        for (at, (level, words)) in levels.iter_mut().zip(words).enumerate() {
            level.places += if at == FILE { 1 } else { u64::from(piece.passages) };
            level.words += words;
        }
        let within = matches.within(first, end);
        if within.is_empty() {
            continue;
        }
        let add = |level: &mut Level, tally: &Tally| {
            tally.there.iter().for_each(|term| level.with.get_mut(*term).into_iter().for_each(|with| *with += 1));
        };
        whole.clear();
        within.iter().for_each(|found| whole.add(found));
        levels.get_mut(FILE).into_iter().for_each(|file| add(file, &whole));
        each_place(text, within, (first, end), &mut tallies, |place| {
            levels.iter_mut().zip(place.tallies).for_each(|(level, tally)| add(level, tally));
        });
    }
}

/// What a word is worth on a level, and what is long there.
struct Scale {
    weight: f64,
    /// How many words a place has on the average.
    usual: f64,
    /// What each word of the question is worth.
    worth: Vec<f64>,
}

impl Scale {
    fn of(level: &Level, weight: f64) -> Scale {
        let places = level.places as f64;
        let rare = |with: u64| (1.0 + (places - with as f64 + 0.5).max(0.0) / (with as f64 + 0.5)).ln();
        let usual = (level.words as f64 / places.max(1.0)).max(1.0);
        Scale { weight, usual, worth: level.with.iter().map(|with| rare(*with)).collect() }
    }

    fn score(&self, tally: &Tally, words: u64) -> f64 {
        let long = SATURATION * (1.0 - LENGTH + LENGTH * words as f64 / self.usual);
        // In the order of the question, so that the sum is the same however the words were met.
        let each = self.worth.iter().zip(&tally.often).filter(|(_, often)| **often > 0).map(|(worth, often)| {
            let often = f64::from(*often);
            worth * often * (SATURATION + 1.0) / (often + long)
        });
        let sum = each.sum::<f64>();
        let all = self.worth.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let there = tally.there.iter().filter_map(|term| self.worth.get(*term)).sum::<f64>();
        self.weight * sum * (1.0 + COORDINATION * there / all)
    }
}

fn score(
    text: &Text,
    matches: &Matches,
    levels: &[Scale],
    at: At,
    weigh: &dyn Fn(&RelPath) -> u32,
    scored: &mut Vec<Scored>,
) {
    let terms = levels.first().map_or(0, |level| level.worth.len());
    let (mut whole, mut tallies) = (Tally::new(terms), Tallies::new(terms));
    for (piece, ((first, end), of)) in (0..).zip(bounds(text).zip(&text.pieces)) {
        let within = matches.within(first, end);
        let weight = if within.is_empty() { 0 } else { weigh(&of.path) };
        if weight == 0 {
            continue;
        }
        let unit = UNIT * f64::from(weight) / 100.0;
        whole.clear();
        within.iter().for_each(|found| whole.add(found));
        let of_file = levels.get(FILE).map_or(0.0, |level| level.score(&whole, of.words));
        let begin = scored.len();
        each_place(text, within, (first, end), &mut tallies, |place| {
            let near = levels.iter().zip(place.tallies).zip(place.words);
            let near: f64 = near.map(|((level, tally), words)| level.score(tally, words)).sum();
            let score = ((near + of_file) * (1.0 + bonus(levels, place)) * unit).round() as i64;
            let has_word = place.tallies.first().is_some_and(|own| !own.there.is_empty());
            scored.push(Scored { at: At { piece, passage: place.passage, ..at }, score, has_word });
        });
        beside(scored.get_mut(begin..).unwrap_or_default());
        if !matches.banned.is_empty() {
            let mut kept = scored.split_off(begin);
            kept.retain(|one| matches.banned.binary_search(&one.at.passage).is_err());
            scored.append(&mut kept);
        }
    }
}

/// Returns the bonus of a place for how many words of the question it holds together with its neighbors, by their worth.
fn bonus(levels: &[Scale], place: &Place<'_>) -> f64 {
    let (Some(scale), Some(tally)) = (levels.first(), place.tallies.get(1)) else { return 0.0 };
    if scale.worth.len() < 2 {
        return 0.0;
    }
    let all = scale.worth.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    // In the order of the question, so that the sum is the same however the words were met.
    let there = scale.worth.iter().zip(&tally.often).filter(|(_, often)| **often > 0);
    let there = there.map(|(worth, _)| worth).sum::<f64>();
    COVERAGE * (there / all).powi(COVERAGE_POWER)
}

/// Gives those that are beside one with a higher score a part of it.
fn beside(scored: &mut [Scored]) {
    let before: Vec<(u32, i64)> = scored.iter().map(|one| (one.at.passage, one.score)).collect();
    let part = |at: Option<usize>, passage: u32| {
        let beside = at.and_then(|at| before.get(at)).filter(|(other, _)| other.abs_diff(passage) == 1);
        beside.map_or(0, |(_, score)| (*score as f64 * BESIDE) as i64)
    };
    for (at, one) in scored.iter_mut().enumerate() {
        let passage = one.at.passage;
        one.score = one.score.max(part(at.checked_sub(1), passage)).max(part(Some(at + 1), passage));
    }
}
