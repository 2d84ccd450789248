//! Facts about object stores for people, also in a build without them.

use std::time::Duration;

use crate::store::Time;

/// How an object store is listed.
#[derive(Debug)]
pub(crate) struct ListingFacts {
    /// Number of requests of a listing.
    pub(crate) requests: usize,
    /// Time after which it is read again, if someone reads.
    pub(crate) interval: Duration,
    /// The catalog, if there is one that can be used.
    pub(crate) catalog: Option<ShownCatalog>,
    /// True if the store honors the conditions of writes, or why that is not known.
    pub(crate) conditions: Result<bool, String>,
}

#[derive(Debug)]
pub(crate) struct ShownCatalog {
    pub(crate) workers: usize,
    pub(crate) files: usize,
    /// Number of announcements that wait.
    pub(crate) news: usize,
    /// Time of the last listing of all workers.
    pub(crate) listed_at: String,
}

/// The effect of bringing a catalog up to date.
#[derive(Debug, Default)]
pub(crate) struct CatalogOutcome {
    /// Numbers of workers and files in the catalog.
    pub(crate) workers: usize,
    pub(crate) files: usize,
    /// Numbers of rows that were written and removed.
    pub(crate) changed: usize,
    pub(crate) removed: usize,
    /// Number of announcements that were taken.
    pub(crate) announcements: usize,
    /// Numbers of listings, and of other requests.
    pub(crate) listings: u64,
    pub(crate) others: u64,
}

/// Files of a spool that are not in the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) workers: u64,
    /// Workers among them that have ended.
    pub(crate) ended: u64,
    /// Time of the oldest of the files.
    pub(crate) since: Option<Time>,
    /// Workers that could not be read, or that no time was left for.
    pub(crate) uncounted: u64,
}

impl Waiting {
    /// Adds a file that was written at `written`.
    pub(crate) fn add(&mut self, bytes: u64, written: Option<Time>) {
        self.files += 1;
        self.bytes += bytes;
        self.since = self.since.into_iter().chain(written).min();
    }

    pub(crate) fn is_none(&self) -> bool {
        self.files == 0 && self.uncounted == 0
    }
}

/// The work of a flush for one spool.
#[derive(Debug, Default)]
pub(crate) struct FlushedSpool {
    pub(crate) url: String,
    /// Numbers of uploads and bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Workers that appeared in the object store, and workers that are there as a whole now.
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    /// Size of the latter, in bytes.
    pub(crate) closed_bytes: u64,
    pub(crate) waiting: Waiting,
    /// Why something waits, with the remedy.
    pub(crate) failure: Option<String>,
}
