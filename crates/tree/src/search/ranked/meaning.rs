//! The passages that are closest to a query by their meaning.

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::index::WorkerIndex;
use super::order::Least;
use super::query::RankedQuery;
use super::rank::{
    PassageId, RankedPassages, ScoredPassage, UNIT, WorkerMatches, chunks, excluded, kind_weight,
};
use super::segment::to_u32;
use swarmletfs_base::name::RelPath;
use swarmletfs_meaning::{DIMENSIONS, Embedder, similarity};

/// Passages that are ranked by meaning: so many are more than any answer shows.
const CLOSEST: usize = 1_000;
/// Weight of the meaning where words count, too.
const MEANING: f64 = 0.3;
/// Number of passages of which one shows how well the words of a query fit.
const COVERING: usize = 20;

/// A passage, ordered by how close it is to the query.
type Close = (Reverse<i64>, PassageId);

/// The passages of workers that are closest to a query, and how many were compared.
#[derive(Debug, Default)]
pub struct ClosestPassages {
    best: Vec<Close>,
    pub compared: u64,
}

/// The embedding of a query.
pub struct QueryMeaning([i8; DIMENSIONS]);

impl QueryMeaning {
    /// Returns `None` if the words of the query have no meaning that is known.
    pub fn new(query: &RankedQuery) -> Option<QueryMeaning> {
        Embedder::default().embed(&query.text).map(QueryMeaning)
    }

    /// Returns the closest passages of the worker with the number `worker`, whose index has
    /// embeddings. `weigh` returns the weight of a file in percent; 0 leaves it out.
    pub fn closest(
        &self,
        worker: usize,
        index: &WorkerIndex,
        query: &RankedQuery,
        weigh: &dyn Fn(&RelPath) -> u32,
    ) -> ClosestPassages {
        let QueryMeaning(wanted) = self;
        let mut best = Least::new(CLOSEST);
        let mut compared = 0;
        for (number, (segment, meaning)) in (0..).zip(index.segments.iter().zip(&index.meanings)) {
            let excluded = excluded(segment, query);
            let rows = meaning.embeddings.as_chunks::<DIMENSIONS>().0;
            let mut rows = meaning.passages.iter().zip(rows).peekable();
            for (chunk, file) in (0..).zip(chunks(&segment.header)) {
                let weight = f64::from(weigh(&file.file.path)) / 100.0;
                while let Some((passage, row)) =
                    rows.next_if(|(passage, _)| **passage < file.numbers.end)
                {
                    if weight == 0.0 || excluded.binary_search(passage).is_ok() {
                        continue;
                    }
                    compared += 1;
                    let kind = segment.header.kinds.get(*passage as usize).copied();
                    let weight = weight * kind.map_or(1.0, kind_weight);
                    let score = (UNIT * weight * similarity(wanted, row)).round() as i64;
                    let id = PassageId {
                        worker: to_u32(worker),
                        segment: number,
                        chunk,
                        passage: *passage,
                    };
                    best.offer((Reverse(score), id));
                }
            }
        }
        ClosestPassages { best: best.into_sorted(), compared }
    }
}

impl ClosestPassages {
    pub fn add(&mut self, mut more: ClosestPassages) {
        self.compared += more.compared;
        self.best.append(&mut more.best);
        self.best.sort_unstable();
        self.best.truncate(CLOSEST);
    }
}

impl RankedPassages {
    /// Adds the passages that are closest to `query` by meaning. The score becomes the share of the
    /// best score by words, times the share of the words that one of the best passages has, plus
    /// three tenths of the share of the best score by meaning.
    pub fn merge(&mut self, closest: &ClosestPassages, query: &RankedQuery) {
        let share = |score: i64, best: i64| UNIT * score as f64 / best.max(1) as f64;
        let mut by_words = Least::new(COVERING);
        for one in self.passages.iter().flatten() {
            by_words.offer((Reverse(one.score), Reverse(one.words.count_ones()), one.id));
        }
        let by_words = by_words.into_sorted();
        let best = by_words.first().map_or(0, |(score, ..)| score.0);
        let words = by_words.iter().map(|(_, words, _)| words.0).max().unwrap_or_default();
        let fit = f64::from(words) / query.terms.len().max(1) as f64;
        let closest_score = closest.best.first().map_or(0, |(score, _)| score.0);
        let mut close: HashMap<PassageId, f64, RandomState> = HashMap::default();
        close.extend(
            closest.best.iter().map(|(score, id)| (*id, MEANING * share(score.0, closest_score))),
        );
        for one in self.passages.iter_mut().flatten() {
            let meaning = close.remove(&one.id);
            // It was perhaps only near a word, and is found by itself now.
            one.has_word |= meaning.is_some();
            let meaning = meaning.unwrap_or_default();
            one.score = (fit * share(one.score, best) + meaning).round() as i64;
        }
        for (id, meaning) in close {
            let passages = self.passages.get_mut(id.worker as usize);
            let score = meaning.round() as i64;
            let added = ScoredPassage { id, score, words: 0, has_word: true, repeats: false };
            passages.into_iter().for_each(|passages| passages.push(added));
        }
        self.passages.iter_mut().for_each(|passages| passages.sort_unstable_by_key(|one| one.id));
    }

    /// Drops all passages, and keeps the workers.
    pub fn clear(&mut self) {
        self.passages.iter_mut().for_each(Vec::clear);
    }

    /// Returns true if `index` has the passages that were ranked of a worker.
    pub fn has_segments(&self, worker: usize, index: &WorkerIndex) -> bool {
        let ranked = self.workers.get(worker).map(WorkerMatches::headers);
        ranked.is_some_and(|ranked| ranked.eq(index.segments.iter().map(|segment| &segment.header)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_passages_are_found_whether_or_not_they_have_a_word() {
        let id = |passage| PassageId { worker: 0, segment: 0, chunk: 0, passage };
        let scored = |passage, score, words: u64| ScoredPassage {
            id: id(passage),
            score,
            words,
            has_word: words > 0,
            repeats: false,
        };
        let mut ranked = RankedPassages {
            workers: Vec::new(),
            passages: vec![vec![scored(1, 200, 1), scored(2, 100, 0), scored(3, 50, 0)]],
            excluded: Vec::new(),
        };
        let closest = ClosestPassages {
            best: vec![(Reverse(500), id(2)), (Reverse(250), id(9))],
            compared: 4,
        };
        ranked.merge(&closest, &RankedQuery::parse("disk full"));
        let found = ranked.passages.iter().flatten();
        let found: Vec<_> = found.map(|one| (one.id.passage, one.score, one.has_word)).collect();
        // One of the two words is found.
        let expected =
            [(1, 500_000, true), (2, 550_000, true), (3, 125_000, false), (9, 150_000, true)];
        assert_eq!(found, expected);
    }
}
