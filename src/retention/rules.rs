//! The rules that choose the workers to remove.

use std::time::Duration;

use crate::model::Status;

/// The largest age of a worker.
#[derive(Debug, Clone)]
pub(crate) struct AgeLimit {
    /// The age as the user wrote it.
    pub(crate) text: String,
    pub(crate) age: Duration,
}

/// The largest size of all workers together.
#[derive(Debug, Clone)]
pub(crate) struct SizeLimit {
    /// The size as the user wrote it.
    pub(crate) text: String,
    pub(crate) bytes: u64,
}

/// Rules that choose the workers to remove.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Removes workers that ended longer ago.
    pub(crate) older_than: Option<AgeLimit>,
    /// Removes the oldest workers until the size of the rest is within this limit.
    pub(crate) max_size: Option<SizeLimit>,
    /// Removes the oldest workers until at most so many are left.
    pub(crate) max_workers: Option<u64>,
    /// Removes only workers of this status.
    pub(crate) status: Option<Status>,
    /// Keeps workers that failed.
    pub(crate) keep_failed: bool,
}
