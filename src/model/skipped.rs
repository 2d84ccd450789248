//! What lies in a store and is not shown, and why.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::name::RelPath;

/// What a store holds that is not shown, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skipped {
    /// Symbolic links, which are never followed; in the view of one owner also files with more than one hard link.
    pub links: u64,
    /// FIFOs, sockets and devices, which are never opened, and foreign mounts.
    pub special: u64,
    /// Folders among the workers that are none.
    pub not_workers: u64,
    /// Folders that could not be read.
    pub unreadable: u64,
}

impl Skipped {
    /// Whether nothing was skipped.
    pub fn is_empty(&self) -> bool {
        *self == Skipped::default()
    }
}

/// Why something among the workers of a store is not shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SkipReason {
    /// A symbolic link, which is never followed.
    Link,
    /// A FIFO, socket or device, which is never opened.
    Special,
    /// A folder with another file system mounted on it, which is never entered.
    ForeignMount,
    /// A folder that is no worker.
    NotAWorker,
    /// A folder that could not be read.
    Unreadable,
}

/// What lies among the workers of a store and is not shown: how much for each reason, and the first few by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkipReport(BTreeMap<SkipReason, SkippedEntries>);

/// How many there are for one reason, and which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkippedEntries {
    /// How many.
    pub count: u64,
    /// The first [`EXAMPLES_MAX`] by path, from the store's root, each with the error that was met, if any was.
    pub examples: BTreeMap<RelPath, Option<Error>>,
}

/// How many are remembered by name.
pub const EXAMPLES_MAX: usize = 3;

impl SkipReport {
    /// Adds one that is passed over.
    pub fn add(&mut self, path: RelPath, reason: SkipReason, error: Option<Error>) {
        let skipped = self.0.entry(reason).or_default();
        skipped.count += 1;
        skipped.examples.insert(path, error);
        if skipped.examples.len() > EXAMPLES_MAX {
            skipped.examples.pop_last();
        }
    }

    /// What is passed over for this reason.
    pub fn entries(&self, reason: SkipReason) -> SkippedEntries {
        self.0.get(&reason).cloned().unwrap_or_default()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::AddAssign<&SkipReport> for Skipped {
    fn add_assign(&mut self, report: &SkipReport) {
        let count = |reason| report.0.get(&reason).map_or(0, |skipped| skipped.count);
        self.links += count(SkipReason::Link);
        self.special += count(SkipReason::Special) + count(SkipReason::ForeignMount);
        self.not_workers += count(SkipReason::NotAWorker);
        self.unreadable += count(SkipReason::Unreadable);
    }
}
