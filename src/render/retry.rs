//! How often something is made again because the files that it is made of changed meanwhile.

use std::time::{Duration, Instant};

/// So often in any case,
const FEW: u32 = 5;
/// and so often at the most, as long as it has not taken too long: a mix of two moments must be next to impossible, and
/// what grows all the time must not be made for as long as anybody waits.
const MANY: u32 = 40;

/// The attempts at one thing.
pub(super) struct RetryBudget {
    begun: Instant,
    patience: Duration,
    made: u32,
}

impl RetryBudget {
    /// None yet; a few in any case, and more for as long as `patience`.
    pub(super) fn new(patience: Duration) -> RetryBudget {
        RetryBudget { begun: Instant::now(), patience, made: 0 }
    }

    /// Counts an attempt that came to nothing. Whether another one is worth it.
    pub(super) fn another(&mut self) -> bool {
        self.made += 1;
        self.made < FEW || self.made < MANY && self.begun.elapsed() < self.patience
    }

    /// Whether no attempt has come to nothing.
    pub(super) fn is_first(&self) -> bool {
        self.made == 0
    }
}
