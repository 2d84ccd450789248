//! Reads pages of one state of a database within bounds.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pages::DatabaseState;
use swarmletfs_base::error::{Error, Result};

/// Maximum time for one query.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of bytes that one query reads.
const BYTES_MAX: u64 = 4 << 30;

/// Numbers of the pages that a query read.
pub(crate) type Visited = Vec<u32>;

/// A reader of one state of a database, with a limit in time and size.
pub(crate) struct Query<'a> {
    snapshot: &'a DatabaseState,
    end: Instant,
    bytes_left: Cell<u64>,
    visited: RefCell<HashSet<u32>>,
}

impl<'a> Query<'a> {
    pub(crate) fn new(snapshot: &'a DatabaseState) -> Query<'a> {
        Query {
            snapshot,
            end: Instant::now() + TIME_MAX,
            bytes_left: Cell::new(BYTES_MAX),
            visited: RefCell::default(),
        }
    }

    /// Ends the query. Returns the pages that it read.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if one of them may have been overwritten meanwhile.
    pub(crate) fn finish(self) -> Result<Visited> {
        match self.snapshot.is_intact()? {
            true => Ok(self.visited.into_inner().into_iter().collect()),
            false => Err(Error::Stale),
        }
    }

    pub(super) fn usable(&self) -> usize {
        self.snapshot.usable
    }

    /// Returns the size of the database, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.snapshot.size()
    }

    pub(super) fn page(&self, number: u32) -> Result<Arc<[u8]>> {
        let left = self.bytes_left.get().checked_sub(self.usable() as u64);
        let Some(left) = left.filter(|_| Instant::now() < self.end) else {
            return Err(Error::Malformed("the database takes too long to read"));
        };
        self.bytes_left.set(left);
        self.visited.borrow_mut().insert(number);
        self.snapshot.page(number)
    }
}
