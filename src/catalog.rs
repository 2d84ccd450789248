//! All workers of all stores, as last seen: swapped whole, numbered by generation.
//!
//! The catalog knows everything, whoever asks; who may see what is the business of [`crate::view`], which is the only
//! one to hold a catalog. It answers from memory and looks at the disk again when what it holds is older than
//! [`Freshness`] allows; there is no thread that polls while nobody reads.
//!
//! Locks: `refreshing` is only tried by those who can show what is held; those who must not miss what came meanwhile wait
//! for it, holding nothing. Whoever holds it takes no other lock but those of `watched` and an entry's own, each for a
//! moment. No lock of an entry is held across a disk read.

mod entry;
mod kept;
mod packed;
mod scan;
mod source;
mod state;
mod survey;
mod watched;

use std::borrow::Cow;
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

pub use entry::Entry;
pub use source::{Source, SourceError, is_own_mount, looks_like_sessions, looks_like_store};
pub use survey::{Access, FileStat, Stamp, files};
pub use watched::Changed;

use crate::cache::{DiskCache, Key, key};
use crate::error::{Error, Result};
use crate::model::{Record, SkipReport, Skipped};
use crate::name::{Name, RelPath};
use crate::parallel::parallel_map;
use crate::store::{Kind, Store};
use crate::trace::RecordSource;
use scan::{Pass, Which};
use watched::Watched;

/// How old what is shown may be.
#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    /// Of unfinished workers, and of the lists of workers.
    pub unfinished: Duration,
    /// Of workers that have finished.
    pub finished: Duration,
}

impl Default for Freshness {
    fn default() -> Freshness {
        Freshness { unfinished: Duration::from_secs(1), finished: Duration::from_secs(60) }
    }
}

impl Freshness {
    /// For how long a look holds that cost so much: repeated at the earliest after [`COST_FACTOR`] times its cost, so
    /// that huge stores stay usable. A freshness of zero means always.
    fn holds(fresh: Duration, cost: Duration) -> Duration {
        if fresh.is_zero() { fresh } else { fresh.max(cost * COST_FACTOR) }
    }
}

/// How many times its cost a look holds at least.
const COST_FACTOR: u32 = 20;

/// Everything in the stores.
pub struct Catalog {
    sources: Vec<Source>,
    freshness: Freshness,
    current: ArcSwap<Snapshot>,
    refreshing: Mutex<()>,
    /// Where somebody waits for changes.
    watched: OnceLock<Watched>,
}

/// The catalog at one moment.
pub struct Snapshot {
    /// Grows with every change of the rest.
    pub generation: u64,
    /// All workers, in no order that readers may rely on.
    pub entries: Vec<Arc<Entry>>,
    /// What the stores hold that is not shown, all together.
    pub skipped: Skipped,
    /// The same of each store, with a few names.
    pub passed: Vec<SkipReport>,
    /// What went wrong when a store was listed, one sentence each.
    pub troubles: Vec<String>,
    /// The workers of which not all was read yet: in them there may be more. Each by its store and where it lies there.
    pub unread: Vec<(usize, RelPath)>,
    /// What became of the generation before, where its workers are still all there are and few are known anew.
    pub changes: Option<Vec<Change>>,
    /// When all that may have changed were looked at.
    looked: Taken,
    /// When it was looked for who has come or gone.
    listed: Taken,
}

/// When something was looked at, and how long that took.
#[derive(Debug, Clone, Copy)]
struct Taken {
    at: Instant,
    cost: Duration,
}

impl Taken {
    fn holds(&self, fresh: Duration) -> bool {
        self.at.elapsed() < Freshness::holds(fresh, self.cost)
    }
}

/// A worker that is known anew, in its place.
#[derive(Clone)]
pub struct Change {
    /// As it was.
    pub old: Arc<Entry>,
    /// As it is.
    pub new: Arc<Entry>,
}

impl Catalog {
    /// Reads all workers of `sources`. Errors: a store that cannot be listed.
    pub fn open(sources: Vec<Source>, freshness: Freshness) -> Result<Catalog> {
        let first = scan::scan_first(&sources, freshness);
        if let Some(error) = first.error {
            return Err(error);
        }
        Ok(Catalog {
            sources,
            freshness,
            current: ArcSwap::from_pointee(first.snapshot),
            refreshing: Mutex::new(()),
            watched: OnceLock::new(),
        })
    }

    /// From now on workers are watched where that can be done, and [`Catalog::changes`] is to be called for as
    /// long as anybody reads. How many folders may be watched. Errors: the system watches nothing for this process.
    pub fn watch(&self) -> Result<usize> {
        // Who calls it twice has it once.
        let _ = self.watched.set(Watched::new()?);
        let Some(watched) = self.watched.get() else { return Ok(0) };
        let tells = |entry: &Entry| self.sources.get(entry.source).is_some_and(Source::tells);
        let held = self.current.load();
        let moving = held.entries.iter().filter(|entry| entry.is_moving() && tells(entry));
        watched.note_unawaited(moving.map(Arc::downgrade).collect());
        Ok(watched.most())
    }

    /// Waits for changes of workers that are watched, no longer than `limit`; these are looked at anew from now on. Which
    /// they are of those that were believed not to change; `None` once `end` is readable or closed.
    pub fn changes(&self, end: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Option<HashSet<Changed>>> {
        let Some(watched) = self.watched.get() else { return Ok(None) };
        let lists =
            |number: usize, name: &Name| self.sources.get(number).is_some_and(|one| one.format.affects_listing(name));
        // As long as that took, others look at the catalog.
        let limit = self.await_some(watched).map_or(limit, |took| Some(limit.map_or(took, |limit| limit.min(took))));
        watched.wait(end, limit, lists)
    }

    /// Has changes be told of a few of those who were unfinished when nothing was watched yet: in a large store it takes
    /// long until all are looked at again. How long that took; `None` once there are no more.
    fn await_some(&self, watched: &Watched) -> Option<Duration> {
        let some = watched.unawaited();
        let wanted: Vec<&Entry> = some.iter().map(|entry| &**entry).collect();
        if wanted.is_empty() {
            return None;
        }
        let began = Instant::now();
        self.look_alone(&wanted, &self.refreshing.lock());
        Some(began.elapsed())
    }

    /// Whether workers' folders may take time to be looked into.
    pub fn makes_folders(&self) -> bool {
        self.sources.iter().any(|source| source.format.has_virtual_folders())
    }

    /// The folders on disk beneath which all stores lie.
    pub fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.sources.iter().flat_map(Source::roots).collect()
    }

    /// Whether opening the stores again would find other folders in their places.
    pub fn is_replaced(&self) -> bool {
        self.sources.iter().any(Source::is_replaced)
    }

    /// All workers, looked at anew where what is held is too old. While another thread does so, what is held.
    pub fn current(&self) -> Arc<Snapshot> {
        let held = self.current.load_full();
        let fresh = self.freshness.unfinished;
        let (looked, listed) = (held.looked.holds(fresh), held.listed.holds(fresh));
        let stirred = self.watched.get().filter(|watched| watched.is_due());
        if looked && listed && stirred.is_none() {
            return held;
        }
        if let Some(alone) = self.refreshing.try_lock() {
            if !looked {
                self.scan_alone(Which::All, &alone);
            } else if !listed {
                self.scan_alone(Which::Unknown, &alone);
            }
            stirred.iter().for_each(|watched| self.look_at_stirred(watched, &alone));
        }
        self.current.load_full()
    }

    /// All workers, looked at after this was called: none is missing that was there then.
    pub fn current_now(&self) -> Arc<Snapshot> {
        self.scan_alone(Which::All, &self.refreshing.lock());
        self.current.load_full()
    }

    /// Reads `sessions`, each by its store and where it lies there, for the workers inside them, until `go_on` returns false.
    /// `done` is called after each.
    pub fn read_on(&self, sessions: &[(usize, RelPath)], go_on: &(dyn Fn() -> bool + Sync), done: &(dyn Fn() + Sync)) {
        parallel_map(sessions, |(number, path)| {
            if let Some(source) = self.sources.get(*number).filter(|_| go_on()) {
                source.format.find_nested_workers(&*source.store, path, go_on);
            }
            done();
        });
    }

    /// Looks at workers of which it was told that they have changed.
    fn look_at_stirred(&self, watched: &Watched, alone: &MutexGuard<'_, ()>) {
        let (began, stirred) = (Instant::now(), watched.stirred());
        let stirred: Vec<&Entry> = stirred.iter().map(|entry| &**entry).collect();
        // All of them may have been looked at just now.
        if !stirred.is_empty() {
            self.look_alone(&stirred, alone);
            watched.rest(Freshness::holds(self.freshness.unfinished, began.elapsed()));
        }
    }

    fn scan_alone(&self, which: Which, _alone: &MutexGuard<'_, ()>) {
        let held = self.current.load_full();
        let watched = self.watched.get();
        if which == Which::All {
            // All of these are looked at now; what changes from now on is looked at later.
            watched.iter().for_each(|watched| drop(watched.stirred()));
        }
        let now = scan::scan(&self.sources, &held, which, self.freshness, watched).snapshot;
        self.current.store(Arc::new(now));
    }

    /// Looks at one worker again if that was not done within the second. Says whether the catalog changed.
    pub fn look(&self, entry: &Entry) -> bool {
        if entry.is_checked(self.freshness.unfinished) {
            return false;
        }
        self.refreshing.try_lock().is_some_and(|alone| self.look_alone(&[entry], &alone))
    }

    /// Looks at one worker again. Says whether the catalog has another entry by now.
    pub fn look_now(&self, entry: &Entry) -> bool {
        self.look_alone(&[entry], &self.refreshing.lock())
    }

    /// Looks at workers again. Says whether the catalog has others in their places by now.
    fn look_alone(&self, wanted: &[&Entry], _alone: &MutexGuard<'_, ()>) -> bool {
        let held = self.current.load_full();
        let places: HashSet<*const Entry> = wanted.iter().map(|entry| std::ptr::from_ref(*entry)).collect();
        let pass = Pass::over(self.watched.get());
        let (mut found, mut entries) = (0, Cow::Borrowed(&held.entries));
        let mut changes: Option<Vec<Change>> = Some(Vec::new());
        // From the last on: what has gone leaves the places of the others.
        let held_ones = held.entries.iter().enumerate().rev();
        for (at, old) in held_ones.filter(|(_, entry)| places.contains(&Arc::as_ptr(entry))).take(places.len()) {
            found += 1;
            let Some(source) = self.sources.get(old.source) else { continue };
            let now = match scan::look(source, old.source, &old.root, Some(old), &pass) {
                Ok(Some(now)) if Arc::ptr_eq(&now, old) => continue,
                Ok(now) => now,
                Err(error) if error.is_not_found() => None,
                // What cannot be read for a moment stays as it was.
                Err(_) => continue,
            };
            match (&mut changes, &now) {
                (Some(changes), Some(new)) => changes.push(Change { old: old.clone(), new: new.clone() }),
                _ => changes = None,
            }
            entries.to_mut().splice(at..=at, now);
        }
        let Cow::Owned(entries) = entries else { return found < places.len() };
        let changes = changes.filter(|changes| changes.len() <= scan::FEW);
        let generation = held.generation + 1;
        let (skipped, passed) = (held.skipped, held.passed.clone());
        let (troubles, unread) = (held.troubles.clone(), held.unread.clone());
        let (looked, listed) = (held.looked, held.listed);
        let now = Snapshot { generation, entries, skipped, passed, troubles, unread, changes, looked, listed };
        self.current.store(Arc::new(now));
        true
    }

    fn is_settled(&self, entry: &Entry) -> bool {
        self.sources.get(entry.source).is_some_and(|source| source.is_settled(entry, self.freshness))
    }

    /// Whether what a folder of a worker lists follows from the folder alone; see [`Store::lists_by_folder`].
    pub fn lists_by_folder(&self, entry: &Entry) -> bool {
        self.sources.get(entry.source).is_some_and(|source| source.store.lists_by_folder())
    }

    /// For how long a folder of a worker lists the same while its times are the same. Where others can change it, not all
    /// changes may show in them at once.
    pub fn lists_for(&self, entry: &Entry) -> Duration {
        let local = self.sources.get(entry.source).is_some_and(Source::is_local);
        if local { self.freshness.finished } else { self.holds(entry) }
    }

    /// For how long may be believed what is told of a worker's files.
    pub fn holds(&self, entry: &Entry) -> Duration {
        if self.is_settled(entry) { self.freshness.finished } else { self.freshness.unfinished }
    }

    /// A worker's folder, entered. [`Error::NotFound`] where another folder has taken its place: what the catalog knows
    /// of a worker, and above all whose it is, was read in this one.
    pub fn folder(&self, entry: &Entry) -> Result<Box<dyn Store>> {
        let source = self.sources.get(entry.source).ok_or(Error::NotFound)?;
        let folder = source.format.enter(&*source.store, &entry.root)?;
        if folder.identity()? == entry.glanced.identity { Ok(folder) } else { Err(Error::NotFound) }
    }

    /// From now on, [`Catalog::backing`] opens files, where that can be done. Errors: why it cannot.
    pub fn pass_through(&self) -> Result<()> {
        self.sources.iter().try_for_each(|source| source.store.pass_through())
    }

    /// Opens a file of a worker so that the kernel may read it by itself; see [`Store::backing`].
    pub fn backing(&self, entry: &Entry, path: &RelPath) -> Result<Option<OwnedFd>> {
        match self.sources.get(entry.source) {
            Some(source) => source.store.backing(&entry.root.join_path(path)),
            None => Ok(None),
        }
    }

    /// A store by number; the first for a number that there is not.
    pub fn source_store(&self, number: usize) -> &dyn Store {
        match self.sources.get(number).or(self.sources.first()) {
            Some(source) => &*source.store,
            None => &source::NoStore,
        }
    }

    /// Reads a worker anew, with its trace, until `go_on` says no.
    pub fn record(&self, entry: &Entry, go_on: &dyn Fn() -> bool) -> Result<Record> {
        match self.sources.get(entry.source) {
            Some(source) => {
                let folder = self.folder(entry)?;
                let place = RecordSource { folder: &*folder, outputs: source.outputs.as_deref() };
                source.format.read_record(place, &entry.worker(), go_on)
            }
            None => Err(Error::NotFound),
        }
    }

    /// Where things are kept for the next start.
    pub fn cache(&self) -> Option<Arc<DiskCache>> {
        self.sources.iter().find_map(|source| source.cache().cloned())
    }

    /// Where words are kept for the next start.
    pub fn index(&self) -> Option<Arc<DiskCache>> {
        self.sources.iter().find_map(|source| source.index().cloned())
    }

    /// Returns the part of a cache key that stands for what is read of the stores.
    pub fn scope(&self) -> Key {
        let scopes: Vec<Key> = self.sources.iter().map(|source| source.scope().key()).collect();
        key("scopes", &scopes.iter().map(Key::as_slice).collect::<Vec<_>>())
    }

    /// The folder with outputs stored out of band that belongs to a worker's store.
    pub fn outputs(&self, entry: &Entry) -> Option<&dyn Store> {
        self.sources.get(entry.source).and_then(|source| source.outputs.as_deref())
    }

    /// The supervisor's notes: the first store that has such a folder, and its path there.
    pub fn supervisor(&self) -> Result<Option<(usize, RelPath)>> {
        for (number, source) in self.sources.iter().enumerate() {
            let Some(path) = source.format.supervisor_folder() else { continue };
            if is(&*source.store, &path, Kind::Folder)? {
                return Ok(Some((number, path)));
            }
        }
        Ok(None)
    }

    /// The store's own list of all workers, where there is one store and it has one.
    pub fn index_file(&self) -> Result<Option<(usize, RelPath)>> {
        let [source] = self.sources.as_slice() else { return Ok(None) };
        for path in source.format.index_files() {
            if is(&*source.store, &path, Kind::File)? {
                return Ok(Some((0, path)));
            }
        }
        Ok(None)
    }
}

/// Whether there is something of `kind` at `path`. Errors: that cannot be told.
fn is(store: &dyn Store, path: &RelPath, kind: Kind) -> Result<bool> {
    match store.stat(path) {
        Ok(meta) => Ok(meta.kind == kind),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
