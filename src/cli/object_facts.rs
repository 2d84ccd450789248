//! Facts about object stores for people, also in a build without them.

use std::time::Duration;

/// How an object store is listed.
#[derive(Debug)]
pub(super) struct ListingFacts {
    /// Number of requests of a listing.
    pub(super) requests: usize,
    /// Time after which it is read again, if someone reads.
    pub(super) interval: Duration,
    /// The catalog, if there is one that can be used.
    pub(super) catalog: Option<ShownCatalog>,
    /// True if the store honors the conditions of writes, or why that is not known.
    pub(super) conditions: Result<bool, String>,
}

#[derive(Debug)]
pub(super) struct ShownCatalog {
    pub(super) workers: usize,
    pub(super) files: usize,
    /// Number of announcements that wait.
    pub(super) news: usize,
    /// Time of the last listing of all workers.
    pub(super) listed_at: String,
}

/// The effect of bringing a catalog up to date.
#[derive(Debug, Default)]
pub(super) struct CatalogOutcome {
    /// Numbers of workers and files in the catalog.
    pub(super) workers: usize,
    pub(super) files: usize,
    /// Numbers of rows that were written and removed.
    pub(super) changed: usize,
    pub(super) removed: usize,
    /// Number of announcements that were taken.
    pub(super) announcements: usize,
    /// Numbers of listings, and of other requests.
    pub(super) listings: u64,
    pub(super) others: u64,
}
