//! The order of passages by score, as far as it is read.
//!
//! A query of common words has hundreds of thousands of passages, of which few are ever considered.
//! The best ones are sorted first. The others are collected only after these, and only if they fit
//! into the remaining room, which is mostly small.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of passages that are sorted first.
const SORTED_MIN: usize = 1_000;

/// A passage that may be selected. Candidates sort by descending score, and by path among equal
/// scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) score: Reverse<i64>,
    pub(super) worker: u32,
    /// Index of the passage among the passages of its worker.
    pub(super) at: u32,
    /// Minimum size of the passage without the lines around it, in bytes.
    pub(super) least: u32,
}

/// Keeps the least of the offered items.
pub(super) struct Least<T> {
    /// The greatest of the kept items is on top.
    items: BinaryHeap<T>,
    count: usize,
}

impl<T: Ord> Least<T> {
    pub(super) fn new(count: usize) -> Least<T> {
        Least { items: BinaryHeap::with_capacity(count), count }
    }

    pub(super) fn offer(&mut self, item: T) {
        if self.items.len() < self.count {
            self.items.push(item);
        } else if let Some(mut greatest) = self.items.peek_mut().filter(|most| item < **most) {
            *greatest = item;
        }
    }

    pub(super) fn into_sorted(self) -> Vec<T> {
        self.items.into_sorted_vec()
    }
}

pub struct BestPassages {
    best: Vec<Candidate>,
}

impl BestPassages {
    /// Chooses from the passages that `each` passes to its argument.
    pub(super) fn new(each: impl FnOnce(&mut dyn FnMut(Candidate))) -> BestPassages {
        let mut best = Least::new(SORTED_MIN);
        each(&mut |candidate| best.offer(candidate));
        BestPassages { best: best.into_sorted() }
    }
}

/// Passages that are sorted as far as they are read.
struct LazyOrder {
    /// The passages, of which the first `sorted` are in order.
    all: Vec<Candidate>,
    sorted: usize,
}

impl LazyOrder {
    /// Returns the passage at `position`, or `None` after the last one. May remove passages that
    /// follow and take more than `room` bytes.
    fn get(&mut self, position: usize, room: usize) -> Option<Candidate> {
        if position >= self.sorted && self.sorted < self.all.len() {
            let mut number = 0;
            self.all.retain(|one| {
                number += 1;
                number <= self.sorted || one.least as usize <= room
            });
            let (_, rest) = self.all.split_at_mut_checked(self.sorted)?;
            let more = self.sorted.max(SORTED_MIN).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable(more);
            }
            rest.split_at_mut_checked(more)?.0.sort_unstable();
            self.sorted += more;
        }
        self.all.get(position).copied()
    }
}

pub(super) struct Walk<'a> {
    best: &'a [Candidate],
    /// Returns the passages after the given one that take at most the given number of bytes, in any
    /// order.
    others: &'a dyn Fn(Candidate, usize) -> Vec<Candidate>,
    /// The passages after the best, once these are used up.
    rest: Option<LazyOrder>,
    /// Number of passages before the next one.
    next: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        best: &'a BestPassages,
        others: &'a dyn Fn(Candidate, usize) -> Vec<Candidate>,
    ) -> Walk<'a> {
        Walk { best: &best.best, others, rest: None, next: 0 }
    }

    /// Returns the next passage. May leave out passages that take more than `room` bytes, which
    /// never grows.
    pub(super) fn peek(&mut self, room: usize) -> Option<Candidate> {
        let Some(position) = self.next.checked_sub(self.best.len()) else {
            return self.best.get(self.next).copied();
        };
        let last = *self.best.last().filter(|_| self.best.len() >= SORTED_MIN)?;
        let others = || LazyOrder { all: (self.others)(last, room), sorted: 0 };
        self.rest.get_or_insert_with(others).get(position, room)
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns passages with few distinct scores. Each takes at most 20 bytes.
    fn candidates(count: usize) -> Vec<Candidate> {
        let mut rng = crate::scale::rng();
        let candidate = |at| Candidate {
            score: Reverse(rng.i64(..50)),
            worker: at as u32 / 100,
            at: at as u32 % 100,
            least: rng.u32(..=20),
        };
        (0..count).map(candidate).collect()
    }

    #[test]
    fn a_walk_visits_all_that_fits_in_order() {
        let sizes = [0, 1, SORTED_MIN - 1, SORTED_MIN, SORTED_MIN + 1, 20 * SORTED_MIN];
        // Steps after which there is one byte less.
        let steps = [1, SORTED_MIN / 2, SORTED_MIN, usize::MAX];
        for (size, steps) in sizes.into_iter().flat_map(|size| steps.map(|steps| (size, steps))) {
            let all = candidates(size);
            let mut sorted = all.clone();
            sorted.sort();
            let best = BestPassages::new(|take| all.iter().copied().for_each(take));
            let others = |last: Candidate, room| -> Vec<Candidate> {
                let after = all.iter().filter(|one| **one > last && one.least as usize <= room);
                after.copied().collect()
            };
            let mut rest = sorted.iter().peekable();
            let (mut walk, mut room, mut visited) = (Walk::new(&best, &others), 20, 0);
            while let Some(found) = walk.peek(room) {
                walk.advance();
                visited += 1;
                while let Some(skipped) = rest.next_if(|one| **one != found) {
                    assert!(skipped.least as usize > room, "{size} {steps}");
                }
                assert_eq!(rest.next(), Some(&found), "{size} {steps}");
                if visited % steps == 0 {
                    room = room.saturating_sub(1);
                }
            }
            assert!(rest.all(|one| one.least as usize > room), "{size} {steps}");
            let is_large = size > 2 * SORTED_MIN;
            assert!(!is_large || (visited < size) == (steps < size), "{size} {steps}");
        }
    }
}
