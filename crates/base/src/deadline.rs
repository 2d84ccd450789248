//! Time limits that work polls, so that it stops soon after they pass.

use std::time::{Duration, Instant};

/// The limit of the time for a piece of work.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use swarmletfs_base::deadline::Deadline;
///
/// let end = Instant::now() + Duration::from_secs(60);
/// assert!(Deadline::new(&end).has_time());
/// assert!(!Deadline::new(&|| false).has_time());
/// assert!(Deadline::never().has_time());
/// ```
#[derive(Clone, Copy)]
pub struct Deadline<'a>(&'a dyn TimeLimit);

impl<'a> Deadline<'a> {
    /// Creates a deadline that passes once `limit` has no time left. The limit is a closure, the
    /// [`Instant`] of the deadline, or a clock.
    pub fn new(limit: &'a dyn TimeLimit) -> Deadline<'a> {
        Deadline(limit)
    }

    pub fn never() -> Deadline<'static> {
        Deadline(&|| true)
    }

    pub fn passed() -> Deadline<'static> {
        Deadline(&|| false)
    }

    pub fn has_time(self) -> bool {
        self.0.has_time()
    }

    /// Returns the time that is left, or `None` if it is not known.
    pub fn time_left(self) -> Option<Duration> {
        self.0.time_left()
    }
}

/// Decides when a [`Deadline`] passes.
pub trait TimeLimit: Sync {
    fn has_time(&self) -> bool;

    /// Returns the time that is left, or `None` if it is not known.
    fn time_left(&self) -> Option<Duration> {
        None
    }
}

impl<F: Fn() -> bool + Sync> TimeLimit for F {
    fn has_time(&self) -> bool {
        self()
    }
}

impl TimeLimit for Instant {
    fn has_time(&self) -> bool {
        Instant::now() < *self
    }

    fn time_left(&self) -> Option<Duration> {
        Some(self.saturating_duration_since(Instant::now()))
    }
}
