//! Watches workers' directories through inotify, so that the catalog need not poll them.
//!
//! All directories of a finished worker are watched from its first fingerprint on; each watch is
//! added before the directory is read. A worker that changed once may change again soon: it is not
//! watched for a while, but polled like an unfinished worker. Of an unfinished worker only the
//! directory with its metadata is watched. It is still polled, but with many workers less often
//! than [`Freshness::unfinished`](super::Freshness::unfinished) demands.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Entry;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Inotify, Store, WatchEvent, WatchId, WatchScope};

pub(super) struct Watcher {
    inotify: Inotify,
    folders: Mutex<WatchedFolders>,
    dirty: Mutex<DirtyWorkers>,
    /// Unfinished workers found before watching began, not watched yet.
    unwatched: Mutex<Vec<Weak<Entry>>>,
}

#[derive(Default)]
struct WatchedFolders {
    by_id: HashMap<WatchId, WatchedFolder>,
    cached_until_change: usize,
}

impl WatchedFolders {
    /// Returns true if another directory may be watched. Half of the watches are for directories
    /// that are cached until a change, half for the others.
    fn has_room(&self, cached_until_change: bool, inotify: &Inotify) -> bool {
        let half = max_finished_watches(inotify);
        if cached_until_change {
            self.cached_until_change < half
        } else {
            self.by_id.len() - self.cached_until_change < inotify.max_watches() - half
        }
    }

    /// Adds or replaces a directory. A directory that is cached until a change remains so: its
    /// change is still to be reported.
    fn insert(&mut self, id: WatchId, folder: WatchedFolder) {
        let previous = self.by_id.get(&id).is_some_and(|previous| previous.cached_until_change);
        let cached_until_change = folder.cached_until_change || previous;
        self.remove(id);
        self.cached_until_change += usize::from(cached_until_change);
        self.by_id.insert(id, WatchedFolder { cached_until_change, ..folder });
    }

    fn remove(&mut self, id: WatchId) {
        let removed = self.by_id.remove(&id);
        self.cached_until_change -=
            usize::from(removed.is_some_and(|folder| folder.cached_until_change));
    }
}

struct DirtyWorkers {
    /// At most [`DIRTY_MAX`] workers.
    entries: Vec<Weak<Entry>>,
    due: Instant,
}

struct WatchedFolder {
    worker: WorkerLocation,
    /// The worker's entry when the watch was added; the catalog may have replaced it since.
    entry: Weak<Entry>,
    /// True if the worker's files are not polled: facts about them are cached until a change is
    /// reported.
    cached_until_change: bool,
}

/// Maximum number of dirty workers; further ones wait for the next scan of all workers.
const DIRTY_MAX: usize = 1_024;

/// Maximum number of unfinished workers that are watched in one step. Between steps, others can use
/// the catalog.
const UNWATCHED_STEP: usize = 256;

/// Returns the maximum number of watched directories of finished workers: half of all watches.
pub(super) fn max_finished_watches(inotify: &Inotify) -> usize {
    inotify.max_watches() / 2
}

/// Location of a worker: the number of its store and its path there.
pub type WorkerLocation = (usize, RelPath);

impl Watcher {
    /// Creates a watcher without watches.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses an inotify instance.
    pub(super) fn new() -> Result<Watcher> {
        let dirty = Mutex::new(DirtyWorkers { entries: Vec::new(), due: Instant::now() });
        Ok(Watcher {
            inotify: Inotify::new()?,
            folders: Mutex::default(),
            dirty,
            unwatched: Mutex::default(),
        })
    }

    pub(super) fn set_unwatched(&self, entries: Vec<Weak<Entry>>) {
        *self.unwatched.lock() = entries;
    }

    /// Removes and returns up to [`UNWATCHED_STEP`] unfinished workers that are still not watched.
    pub(super) fn take_unwatched(&self) -> Vec<Arc<Entry>> {
        let mut unwatched = self.unwatched.lock();
        let mut step = Vec::new();
        while step.len() < UNWATCHED_STEP
            && let Some(entry) = unwatched.pop()
        {
            step.extend(
                entry.upgrade().filter(|entry| !entry.watch_requested.load(Ordering::Relaxed)),
            );
        }
        if unwatched.is_empty() {
            unwatched.shrink_to_fit();
        }
        step
    }

    pub(super) fn max_watches(&self) -> usize {
        self.inotify.max_watches()
    }

    /// Watches a directory of a finished worker, entered, on a local file system. Returns true on
    /// success.
    pub(super) fn watch_finished(&self, entry: &Arc<Entry>, folder: &dyn Store) -> bool {
        self.watch(entry, folder, true)
    }

    /// Watches the directory of an unfinished worker, entered, so that a change of its metadata is
    /// noticed soon. Returns true if the watch is new.
    pub(super) fn watch_unfinished(&self, entry: &Arc<Entry>, folder: &dyn Store) -> bool {
        !entry.watch_requested.swap(true, Ordering::Relaxed) && self.watch(entry, folder, false)
    }

    pub(super) fn is_due(&self) -> bool {
        let dirty = self.dirty.lock();
        !dirty.entries.is_empty() && dirty.due <= Instant::now()
    }

    pub(super) fn take_dirty(&self) -> Vec<Arc<Entry>> {
        take(&mut self.dirty.lock().entries).iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn postpone(&self, pause: Duration) {
        self.dirty.lock().due = Instant::now() + pause;
    }

    fn watch(&self, entry: &Arc<Entry>, folder: &dyn Store, cached_until_change: bool) -> bool {
        if !self.folders.lock().has_room(cached_until_change, &self.inotify) {
            return false;
        }
        let Ok(Some(path_fd)) = folder.path_fd(&RelPath::root()) else { return false };
        // Locked before the watch exists, so that its first event finds the worker.
        let mut folders = self.folders.lock();
        let scope =
            if cached_until_change { WatchScope::AllChanges } else { WatchScope::FileWrites };
        let Some(id) = self.inotify.add(path_fd.as_fd(), scope) else { return false };
        let worker = (entry.source, entry.root.clone());
        folders.insert(
            id,
            WatchedFolder { worker, entry: Arc::downgrade(entry), cached_until_change },
        );
        self.inotify.set_watched(folders.by_id.len());
        true
    }

    /// Waits for changes, no longer than `limit`, and marks the changed workers for a check.
    ///
    /// Returns the finished workers whose files changed, or `None` when `end` becomes readable or
    /// closes. `is_metadata` returns true if a file name in a worker's directory holds metadata in
    /// the store of that number.
    pub(super) fn wait(
        &self,
        end: BorrowedFd<'_>,
        limit: Option<Duration>,
        is_metadata: impl Fn(usize, &Name) -> bool,
    ) -> Result<Option<HashSet<WorkerLocation>>> {
        let Some(events) = self.inotify.wait(end, limit)? else { return Ok(None) };
        let mut folders = self.folders.lock();
        let mut changed = HashSet::new();
        let mut mark_changed = |folder: &WatchedFolder| {
            if folder.cached_until_change {
                changed.insert(folder.worker.clone());
            }
            let Some(entry) = folder.entry.upgrade() else { return };
            entry.mark_changed(folder.cached_until_change);
            let dirty = &mut self.dirty.lock().entries;
            if dirty.len() < DIRTY_MAX {
                dirty.push(folder.entry.clone());
            }
        };
        for event in events {
            match event {
                WatchEvent::Changed(id, name) => {
                    let Some(folder) = folders.by_id.get(&id) else { continue };
                    // A growing log of an unfinished worker is not metadata.
                    if folder.cached_until_change
                        || name.is_none_or(|name| is_metadata(folder.worker.0, &name))
                    {
                        mark_changed(folder);
                        self.inotify.remove(id);
                    }
                }
                WatchEvent::Removed(id) => folders.remove(id),
                WatchEvent::Overflow => folders.by_id.values().for_each(&mut mark_changed),
            }
        }
        self.inotify.set_watched(folders.by_id.len());
        Ok(Some(changed))
    }
}
