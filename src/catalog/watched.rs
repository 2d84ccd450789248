//! Workers of whose folders the kernel tells when they change, so that nobody has to look for that.
//!
//! A finished worker is watched from the first survey of its files on, before each folder is looked at. What changes once
//! may change again soon: such a worker is not watched for a while, but looked at as often as an unfinished one. Of an
//! unfinished worker the folder with its metadata is awaited to change: it is looked at from time to time even so, but
//! where there are very many not as often as each should be.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Entry;
use crate::error::Result;
use crate::name::{Name, RelPath};
use crate::store::{Event, Store, Told, Watch, WatchId};

/// The folders that are watched, and whose they are.
pub(super) struct Watched {
    watch: Watch,
    folders: Mutex<Folders>,
    stirred: Mutex<Stirred>,
    /// Unfinished workers that were there before anything was watched, and are still to be awaited.
    unawaited: Mutex<Vec<Weak<Entry>>>,
}

#[derive(Default)]
struct Folders {
    by_id: HashMap<WatchId, Folder>,
    /// How many of them are believed.
    believed: usize,
}

impl Folders {
    /// Whether one more may be watched. Half of all are for those that are believed, half for the others.
    fn has_room(&self, believed: bool, watch: &Watch) -> bool {
        let half = most_believed(watch);
        if believed { self.believed < half } else { self.by_id.len() - self.believed < watch.most() - half }
    }

    /// One that was believed stays so: what has changed by now is still to be told.
    fn put(&mut self, id: WatchId, folder: Folder) {
        let believed = folder.believed || self.by_id.get(&id).is_some_and(|before| before.believed);
        self.remove(id);
        self.believed += usize::from(believed);
        self.by_id.insert(id, Folder { believed, ..folder });
    }

    fn remove(&mut self, id: WatchId) {
        let gone = self.by_id.remove(&id);
        self.believed -= usize::from(gone.is_some_and(|folder| folder.believed));
    }
}

/// Workers that have changed and that nobody has looked at since.
struct Stirred {
    /// At most [`FEW`].
    entries: Vec<Weak<Entry>>,
    /// They are not looked at before.
    due: Instant,
}

struct Folder {
    of: Changed,
    /// By now the worker may be known anew.
    entry: Weak<Entry>,
    /// Whether all that is told of the worker is believed until it changes.
    believed: bool,
}

/// More workers that change at once are left to the next look at all.
const FEW: usize = 1_024;

/// So many of those that were there before are awaited at once: others look at the catalog in between.
const AT_ONCE: usize = 256;

/// How many folders of finished workers may be watched: half of all.
pub(super) fn most_believed(watch: &Watch) -> usize {
    watch.most() / 2
}

/// A worker that has changed: the number of its store, and where it lies there.
pub type Changed = (usize, RelPath);

impl Watched {
    /// Watches nothing yet. Errors: those of the system.
    pub(super) fn new() -> Result<Watched> {
        let stirred = Mutex::new(Stirred { entries: Vec::new(), due: Instant::now() });
        Ok(Watched { watch: Watch::new()?, folders: Mutex::default(), stirred, unawaited: Mutex::default() })
    }

    /// Notes unfinished workers that nobody looked at since anything is watched.
    pub(super) fn note_unawaited(&self, entries: Vec<Weak<Entry>>) {
        *self.unawaited.lock() = entries;
    }

    /// A few of them that have not been awaited since, each once.
    pub(super) fn unawaited(&self) -> Vec<Arc<Entry>> {
        let mut all = self.unawaited.lock();
        let mut some = Vec::new();
        while some.len() < AT_ONCE
            && let Some(entry) = all.pop()
        {
            some.extend(entry.upgrade().filter(|entry| !entry.awaited.load(Ordering::Relaxed)));
        }
        if all.is_empty() {
            all.shrink_to_fit();
        }
        some
    }

    /// How many folders may be watched.
    pub(super) fn most(&self) -> usize {
        self.watch.most()
    }

    /// Watches a folder of a finished worker, entered, that lies on this machine. Whether that could be done.
    pub(super) fn add(&self, entry: &Arc<Entry>, folder: &dyn Store) -> bool {
        self.watch(entry, folder, true)
    }

    /// The same for an unfinished worker's own folder, entered: has it be looked at soon after what lists it has changed.
    /// Whether that is new.
    pub(super) fn await_change(&self, entry: &Arc<Entry>, folder: &dyn Store) -> bool {
        !entry.awaited.swap(true, Ordering::Relaxed) && self.watch(entry, folder, false)
    }

    /// Whether workers have changed that are to be looked at now.
    pub(super) fn is_due(&self) -> bool {
        let stirred = self.stirred.lock();
        !stirred.entries.is_empty() && stirred.due <= Instant::now()
    }

    /// The workers that have changed since this was called last.
    pub(super) fn stirred(&self) -> Vec<Arc<Entry>> {
        take(&mut self.stirred.lock().entries).iter().filter_map(Weak::upgrade).collect()
    }

    /// For so long from now on, none is to be looked at for having changed.
    pub(super) fn rest(&self, pause: Duration) {
        self.stirred.lock().due = Instant::now() + pause;
    }

    fn watch(&self, entry: &Arc<Entry>, folder: &dyn Store, believed: bool) -> bool {
        if !self.folders.lock().has_room(believed, &self.watch) {
            return false;
        }
        let Ok(Some(place)) = folder.place(&RelPath::root()) else { return false };
        // Held, so that what is told of the folder finds whose it is.
        let mut folders = self.folders.lock();
        let told = if believed { Told::Everything } else { Told::Written };
        let Some(id) = self.watch.add(place.as_fd(), told) else { return false };
        let of = (entry.source, entry.root.clone());
        folders.put(id, Folder { of, entry: Arc::downgrade(entry), believed });
        self.watch.counted(folders.by_id.len());
        true
    }

    /// Waits for changes, no longer than `limit`. The finished workers whose files have changed, which are looked at anew
    /// from now on; `None` once `end` is readable or closed. `lists` says of a store, by its number, under which names an
    /// unfinished one has what lists it.
    pub(super) fn wait(
        &self,
        end: BorrowedFd<'_>,
        limit: Option<Duration>,
        lists: impl Fn(usize, &Name) -> bool,
    ) -> Result<Option<HashSet<Changed>>> {
        let Some(events) = self.watch.wait(end, limit)? else { return Ok(None) };
        let mut folders = self.folders.lock();
        let mut changed = HashSet::new();
        let mut note = |folder: &Folder| {
            if folder.believed {
                changed.insert(folder.of.clone());
            }
            let Some(entry) = folder.entry.upgrade() else { return };
            entry.stir(folder.believed);
            let stirred = &mut self.stirred.lock().entries;
            if stirred.len() < FEW {
                stirred.push(folder.entry.clone());
            }
        };
        for event in events {
            match event {
                Event::Changed(id, name) => {
                    let Some(folder) = folders.by_id.get(&id) else { continue };
                    // A log that grows tells nothing that is awaited.
                    if folder.believed || name.is_none_or(|name| lists(folder.of.0, &name)) {
                        note(folder);
                        self.watch.remove(id);
                    }
                }
                Event::Gone(id) => folders.remove(id),
                Event::Lost => folders.by_id.values().for_each(&mut note),
            }
        }
        self.watch.counted(folders.by_id.len());
        Ok(Some(changed))
    }
}
