//! The order of passages by score, as far as it is read.

use std::cmp::Reverse;

/// Number of passages that are sorted first.
const SORTED_MIN: usize = 1_000;

/// A passage that may be selected. Candidates sort by descending score, and by path among equal
/// scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) score: Reverse<i64>,
    pub(super) worker: u32,
    /// Index of the passage among those of its worker.
    pub(super) at: u32,
    /// Bytes that it takes at least, without the lines around it.
    pub(super) least: u32,
}

/// Passages by descending score, in the order of paths among equal scores. Sorted as far as it was
/// read: few of many passages are ever considered.
pub struct PassageOrder {
    /// The first `sorted` of them come first, in order.
    all: Vec<Candidate>,
    sorted: usize,
}

impl PassageOrder {
    /// Creates the order of `all` passages.
    pub(super) fn new(all: Vec<Candidate>) -> PassageOrder {
        PassageOrder { all, sorted: 0 }
    }

    /// Returns the passage at `position`, or `None` after the last one.
    fn get(&mut self, position: usize) -> Option<Candidate> {
        if position >= self.sorted {
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

    /// Returns the passages after those that are sorted if they take at most `room` bytes, or
    /// `None` if most do.
    fn fitting_rest(&self, room: usize) -> Option<PassageOrder> {
        let (_, rest) = self.all.split_at_checked(self.sorted)?;
        let fits = |candidate: &&Candidate| candidate.least as usize <= room;
        let all = match rest.iter().filter(fits).count() {
            count if count > rest.len() / 2 => return None,
            _ => rest.iter().filter(fits).copied().collect(),
        };
        Some(PassageOrder::new(all))
    }
}

/// The passages of an order, one after the other.
pub(super) struct Walk<'a> {
    order: &'a mut PassageOrder,
    /// The passages that follow instead of the rest of `order`, since the others do not fit.
    fitting: Option<PassageOrder>,
    /// Position of the next passage in `fitting` or `order`.
    next: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(order: &'a mut PassageOrder) -> Walk<'a> {
        Walk { order, fitting: None, next: 0 }
    }

    /// Returns the next passage. May leave out passages that take more than `room` bytes, which
    /// never grows.
    pub(super) fn peek(&mut self, room: usize) -> Option<Candidate> {
        let order = self.fitting.as_ref().unwrap_or(self.order);
        // Once there is little room, most passages need not be sorted.
        if self.next > 0
            && self.next == order.sorted
            && let Some(rest) = order.fitting_rest(room)
        {
            (self.fitting, self.next) = (Some(rest), 0);
        }
        self.fitting.as_mut().unwrap_or(self.order).get(self.next)
    }

    /// Goes on to the following passage.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns passages with few distinct scores. Each takes at most 20 bytes.
    fn candidates(count: usize) -> Vec<Candidate> {
        let mut rng = fastrand::Rng::with_seed(1);
        let candidate = |at| Candidate {
            score: Reverse(rng.i64(..50)),
            worker: at as u32 / 100,
            at: at as u32 % 100,
            least: rng.u32(..=20),
        };
        (0..count).map(candidate).collect()
    }

    #[test]
    fn passages_are_ordered_by_score_and_path_however_far_it_is_read() {
        for count in [0, 1, SORTED_MIN, SORTED_MIN + 1, 5 * SORTED_MIN] {
            let all = candidates(count);
            let mut sorted = all.clone();
            sorted.sort();
            let mut order = PassageOrder::new(all);
            // A second reader begins again.
            for read in [count / 3, count + 1] {
                let found: Vec<_> = (0..read).map_while(|at| order.get(at)).collect();
                assert!(found == sorted[..read.min(count)], "{count} {read}");
            }
        }
    }

    #[test]
    fn a_walk_visits_all_that_fits_in_order() {
        let all = candidates(20 * SORTED_MIN);
        let mut sorted = all.clone();
        sorted.sort();
        let mut order = PassageOrder::new(all);
        // Steps after which there is one byte less.
        for steps in [10, SORTED_MIN / 2, SORTED_MIN, usize::MAX] {
            let mut rest = sorted.iter().peekable();
            let (mut walk, mut room, mut visited) = (Walk::new(&mut order), 20, 0);
            while let Some(found) = walk.peek(room) {
                walk.advance();
                visited += 1;
                let skipped = std::iter::from_fn(|| rest.next_if(|one| **one != found));
                assert!(skipped.into_iter().all(|one| one.least as usize > room), "{steps}");
                assert_eq!(rest.next(), Some(&found), "{steps}");
                if visited % steps == 0 {
                    room = room.saturating_sub(1);
                }
            }
            assert!(rest.all(|one| one.least as usize > room), "{steps}");
            let left_out = sorted.len() - visited;
            assert_eq!(left_out > 0, steps <= SORTED_MIN, "{steps}: {left_out}");
        }
    }
}
