//! Finished workers of whose folders the kernel tells when they change, so that nobody has to look for that.
//!
//! A worker is watched from the first survey of its files on, before each folder is looked at. What changes once may
//! change again soon: such a worker is not watched for a while, but looked at as often as an unfinished one.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Entry;
use crate::error::Result;
use crate::name::RelPath;
use crate::store::{Event, Store, Watch, WatchId, is_local};

/// The folders that are watched, and whose they are.
pub(super) struct Watched {
    watch: Watch,
    folders: Mutex<HashMap<WatchId, Weak<Entry>>>,
}

impl Watched {
    pub(super) fn new() -> Result<Watched> {
        Ok(Watched { watch: Watch::new()?, folders: Mutex::default() })
    }

    /// Watches a folder of `entry`, the worker's own folder being entered as `folder`. Whether that could be done.
    pub(super) fn add(&self, entry: &Arc<Entry>, folder: &dyn Store, path: &RelPath) -> bool {
        let Ok(Some(place)) = folder.place(path) else { return false };
        if !is_local(place.as_fd()) {
            return false;
        }
        // Held, so that what is told of the folder finds whose it is.
        let mut folders = self.folders.lock();
        let Some(id) = self.watch.add(place.as_fd()) else { return false };
        folders.insert(id, Arc::downgrade(entry));
        self.watch.counted(folders.len());
        true
    }

    /// Waits for changes. The workers whose files have changed; `None` once `end` is readable or closed.
    pub(super) fn wait(&self, end: BorrowedFd<'_>) -> Result<Option<Vec<Arc<Entry>>>> {
        let Some(events) = self.watch.wait(end)? else { return Ok(None) };
        let mut folders = self.folders.lock();
        let mut changed: Vec<Arc<Entry>> = Vec::new();
        for event in events {
            match event {
                Event::Changed(id) => {
                    changed.extend(folders.get(&id).and_then(Weak::upgrade));
                    self.watch.remove(id);
                }
                Event::Gone(id) => drop(folders.remove(&id)),
                Event::Lost => changed.extend(folders.values().filter_map(Weak::upgrade)),
            }
        }
        self.watch.counted(folders.len());
        drop(folders);
        changed.sort_by_key(Arc::as_ptr);
        changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Ok(Some(changed))
    }
}
