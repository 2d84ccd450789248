//! Entries of a store that are not shown, and the reasons.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::name::RelPath;

/// Number of entries of a store that are not shown, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Skipped {
    /// Symbolic links, which are never followed. In a view limited to one owner, also files with
    /// more than one hard link.
    pub links: u64,
    /// FIFOs, sockets and devices, which are never opened, and foreign mounts.
    pub special: u64,
    pub not_workers: u64,
    pub unreadable: u64,
}

impl Skipped {
    pub fn is_empty(&self) -> bool {
        *self == Skipped::default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SkipReason {
    Link,
    /// A FIFO, socket or device, which is never opened.
    Special,
    /// A directory with another file system mounted on it, which is never entered.
    ForeignMount,
    NotAWorker,
    Unreadable,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkipReport(BTreeMap<SkipReason, SkippedEntries>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkippedEntries {
    pub count: u64,
    /// The first [`EXAMPLES_MAX`] entries by path from the store's root, each with its error, if
    /// any.
    pub examples: BTreeMap<RelPath, Option<Error>>,
}

/// Maximum number of skipped entries kept by path, for each reason.
pub const EXAMPLES_MAX: usize = 3;

impl SkipReport {
    pub fn add(&mut self, path: RelPath, reason: SkipReason, error: Option<Error>) {
        let skipped = self.0.entry(reason).or_default();
        skipped.count += 1;
        skipped.examples.insert(path, error);
        if skipped.examples.len() > EXAMPLES_MAX {
            skipped.examples.pop_last();
        }
    }

    pub fn extend(&mut self, other: SkipReport) {
        for (reason, more) in other.0 {
            let skipped = self.0.entry(reason).or_default();
            skipped.count += more.count;
            skipped.examples.extend(more.examples);
            while skipped.examples.len() > EXAMPLES_MAX {
                skipped.examples.pop_last();
            }
        }
    }

    pub fn entries(&self, reason: SkipReason) -> SkippedEntries {
        self.0.get(&reason).cloned().unwrap_or_default()
    }

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
