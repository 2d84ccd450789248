//! The rules that choose the workers to remove.

use std::time::Duration;

use crate::model::Status;

#[derive(Debug, Clone)]
pub(crate) struct AgeLimit {
    pub(crate) text: String,
    pub(crate) age: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct SizeLimit {
    pub(crate) text: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Removes workers that ended longer ago.
    pub(crate) older_than: Option<AgeLimit>,
    /// Removes the oldest workers until the size of the rest is within this limit.
    pub(crate) max_size: Option<SizeLimit>,
    /// Removes the oldest workers until at most so many are left.
    pub(crate) max_workers: Option<u64>,
    pub(crate) status: Option<Status>,
    pub(crate) keep_failed: bool,
}
