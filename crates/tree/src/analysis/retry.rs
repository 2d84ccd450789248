//! A limit on how often a file is rendered again because its inputs changed meanwhile.

use std::time::{Duration, Instant};

/// Attempts allowed even when patience has run out.
const MIN_ATTEMPTS: u32 = 5;
/// Attempts allowed while there is patience left. The number is large because a mix of two states
/// must be next to impossible, and finite because inputs may change all the time.
const MAX_ATTEMPTS: u32 = 40;

pub struct RetryBudget {
    started: Instant,
    patience: Duration,
    failed: u32,
}

impl RetryBudget {
    /// Creates a budget that allows a few attempts in any case, and more until `patience` has
    /// passed.
    pub fn new(patience: Duration) -> RetryBudget {
        RetryBudget { started: Instant::now(), patience, failed: 0 }
    }

    /// Counts a failed attempt. Returns true if another attempt is allowed.
    pub fn try_again(&mut self) -> bool {
        self.failed += 1;
        self.failed < MIN_ATTEMPTS
            || self.failed < MAX_ATTEMPTS && self.started.elapsed() < self.patience
    }

    pub fn is_first(&self) -> bool {
        self.failed == 0
    }
}
