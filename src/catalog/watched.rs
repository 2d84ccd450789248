//! Finished workers of whose folders the kernel tells when they change, so that nobody has to look for that.
//!
//! A worker is watched from the first survey of its files on, before each folder is looked at. What changes once may
//! change again soon: such a worker is not watched for a while, but looked at as often as an unfinished one.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::Entry;
use crate::error::Result;
use crate::name::RelPath;
use crate::store::{Event, Store, Watch, WatchId, is_local};

/// The folders that are watched, and whose they are.
pub(super) struct Watched {
    watch: Watch,
    folders: Mutex<HashMap<WatchId, Folder>>,
}

struct Folder {
    of: Changed,
    /// By now the worker may be known anew.
    entry: Weak<Entry>,
}

/// A worker that has changed: the number of its store, and where it lies there.
pub type Changed = (usize, RelPath);

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
        let of = (entry.source, entry.worker.root.clone());
        folders.insert(id, Folder { of, entry: Arc::downgrade(entry) });
        self.watch.counted(folders.len());
        true
    }

    /// Waits for changes, no longer than `limit`. The workers whose files have changed, which are looked at anew from now on; `None` once `end` is
    /// readable or closed.
    pub(super) fn wait(&self, end: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Option<HashSet<Changed>>> {
        let Some(events) = self.watch.wait(end, limit)? else { return Ok(None) };
        let mut folders = self.folders.lock();
        let mut changed = HashSet::new();
        let mut note = |folder: &Folder| {
            folder.entry.upgrade().iter().for_each(|entry| entry.stir());
            changed.insert(folder.of.clone());
        };
        for event in events {
            match event {
                Event::Changed(id) => {
                    folders.get(&id).into_iter().for_each(&mut note);
                    self.watch.remove(id);
                }
                Event::Gone(id) => drop(folders.remove(&id)),
                Event::Lost => folders.values().for_each(&mut note),
            }
        }
        self.watch.counted(folders.len());
        Ok(Some(changed))
    }
}
