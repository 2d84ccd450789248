//! Snapshot of all workers of all stores.
//!
//! A snapshot is replaced as a whole and numbered by generation. The catalog holds every worker;
//! [`crate::view`], its only user, restricts which workers a reader may see. The catalog answers
//! from memory and reads the disk again when the snapshot is older than [`Freshness`] allows. No
//! thread polls while nobody reads.
//!
//! Locks: a caller that can use the current snapshot only tries `refresh_lock`. A caller that needs
//! a new snapshot waits for it and holds no other lock meanwhile. A holder of `refresh_lock` takes
//! only the locks of `watcher` and of single entries, each briefly. No lock of an entry is held
//! during a disk read.

mod entry;
mod fingerprint;
mod scan;
mod source;
mod watcher;

use std::borrow::Cow;
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

pub use entry::Entry;
pub use fingerprint::{Access, FileStat, Fingerprint, list_files};
pub use source::{
    STALE_AFTER, Source, SourceError, holds_workers, is_artifact_store, is_own_mount,
};
pub use watcher::WorkerLocation;

use scan::{ScanContext, ScanScope};
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{
    Record, RecordedChanges, RecordedEdits, Remarks, RemovedWorker, SkipReport, Skipped, Status,
    WorkerCheck,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::store::{DirEntry, Kind, Store, Time};
use swarmletfs_trace::RecordSource;
use watcher::Watcher;

#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    /// Maximum age of unfinished workers and of the list of workers.
    pub unfinished: Duration,
    pub finished: Duration,
}

impl Default for Freshness {
    fn default() -> Freshness {
        Freshness { unfinished: Duration::from_secs(1), finished: Duration::from_secs(60) }
    }
}

impl Freshness {
    /// Returns the maximum age of a result that took `cost`.
    ///
    /// It is at least [`COST_FACTOR`] times the cost, so that huge stores stay usable. A freshness
    /// of zero disables caching.
    fn max_age(fresh: Duration, cost: Duration) -> Duration {
        if fresh.is_zero() { fresh } else { fresh.max(cost * COST_FACTOR) }
    }
}

/// Minimum ratio of the age of a cached result to its cost.
const COST_FACTOR: u32 = 20;

pub struct Catalog {
    sources: Vec<Source>,
    freshness: Freshness,
    current: ArcSwap<Snapshot>,
    refresh_lock: Mutex<()>,
    /// Set by [`Catalog::watch`].
    watcher: OnceLock<Watcher>,
}

pub struct Snapshot {
    /// Number of the snapshot; grows with every change of the other public fields.
    pub generation: u64,
    /// All workers in unspecified order.
    pub entries: Vec<Arc<Entry>>,
    pub skipped: Skipped,
    /// Entries of each store that are not shown, with a few names.
    pub skip_reports: Vec<SkipReport>,
    /// Problems of listing the stores, one sentence each.
    pub problems: Vec<String>,
    /// Workers that were not read completely; they may contain further workers.
    pub unread: Vec<WorkerLocation>,
    /// Entries that were replaced since the previous generation. `None` if workers were added or
    /// removed, or if too many entries changed.
    pub changes: Option<Vec<EntryChange>>,
    /// Last check of all workers that may have changed.
    checked: ScanTiming,
    /// Last search for new and removed workers.
    listed: ScanTiming,
}

#[derive(Debug, Clone, Copy)]
struct ScanTiming {
    start: Instant,
    cost: Duration,
}

impl ScanTiming {
    fn is_fresh(&self, fresh: Duration) -> bool {
        !self.fresh_for(fresh).is_zero()
    }

    fn fresh_for(&self, fresh: Duration) -> Duration {
        Freshness::max_age(fresh, self.cost).saturating_sub(self.start.elapsed())
    }
}

#[derive(Clone)]
pub struct EntryChange {
    pub old: Arc<Entry>,
    pub new: Arc<Entry>,
}

impl Catalog {
    /// Reads all workers of `sources`.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be listed.
    pub fn open(sources: Vec<Source>, freshness: Freshness) -> Result<Catalog> {
        let first = scan::scan_first(&sources, freshness);
        if let Some(error) = first.error {
            return Err(error);
        }
        Ok(Catalog {
            sources,
            freshness,
            current: ArcSwap::from_pointee(first.snapshot),
            refresh_lock: Mutex::new(()),
            watcher: OnceLock::new(),
        })
    }

    /// Starts to watch workers where the file system supports it. Returns the maximum number of
    /// watched directories.
    ///
    /// The caller must then call [`Catalog::wait_for_changes`] in a loop while the catalog is in
    /// use.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses an inotify instance.
    pub fn watch(&self) -> Result<usize> {
        // A second call keeps the first watcher.
        let _ = self.watcher.set(Watcher::new()?);
        let Some(watcher) = self.watcher.get() else { return Ok(0) };
        let snapshot = self.current.load();
        let unfinished = snapshot.entries.iter().filter(|entry| {
            entry.is_unfinished() && self.source(entry).is_ok_and(Source::can_watch)
        });
        watcher.set_unwatched(unfinished.map(Arc::downgrade).collect());
        Ok(watcher.max_watches())
    }

    /// Waits for changes of watched workers, no longer than `limit`, and marks them for a check.
    ///
    /// Returns the finished workers that changed, or `None` when `end` becomes readable or closes.
    pub fn wait_for_changes(
        &self,
        end: BorrowedFd<'_>,
        limit: Option<Duration>,
    ) -> Result<Option<HashSet<WorkerLocation>>> {
        let Some(watcher) = self.watcher.get() else { return Ok(None) };
        // After a step, waits at most as long as the step took; meanwhile others can use the
        // catalog.
        let limit = match self.watch_unfinished_step(watcher) {
            Some(cost) => Some(limit.map_or(cost, |limit| limit.min(cost))),
            None => limit,
        };
        watcher.wait(end, limit, |number, name| {
            self.sources.get(number).is_some_and(|source| source.format.affects_listing(name))
        })
    }

    /// Watches some workers that were unfinished before watching began: in a large store, the next
    /// scan is long after. Returns the time it took, or `None` if none are left.
    fn watch_unfinished_step(&self, watcher: &Watcher) -> Option<Duration> {
        let step = watcher.take_unwatched();
        let entries: Vec<&Entry> = step.iter().map(|entry| &**entry).collect();
        if entries.is_empty() {
            return None;
        }
        let start = Instant::now();
        self.recheck_locked(&entries, &self.refresh_lock.lock());
        Some(start.elapsed())
    }

    /// Returns true if the directories of some workers are generated, which takes time.
    pub fn has_virtual_folders(&self) -> bool {
        self.sources.iter().any(|source| source.format.has_virtual_folders())
    }

    /// Returns the directories on disk that contain all stores, for a sandbox.
    pub fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.sources.iter().flat_map(Source::roots).collect()
    }

    /// Returns the numbers that the stores of `previous` have here, `None` for a missing one.
    pub fn numbers_of_stores(&self, previous: &Catalog) -> Vec<Option<usize>> {
        let is_same = |old: &Source, new: &Source| new.is_same_store(old);
        let number = |old| self.sources.iter().position(|new| is_same(old, new));
        previous.sources.iter().map(number).collect()
    }

    /// Returns true if opening the stores again would find other directories.
    pub fn is_replaced(&self) -> bool {
        self.sources.iter().any(Source::is_replaced)
    }

    /// Returns the current snapshot, refreshed if it is too old. While another thread refreshes it,
    /// returns the old one.
    pub fn current(&self) -> Arc<Snapshot> {
        let snapshot = self.current.load_full();
        let fresh = self.freshness.unfinished;
        let (is_checked, is_listed) =
            (snapshot.checked.is_fresh(fresh), snapshot.listed.is_fresh(fresh));
        let due_watcher = self.watcher.get().filter(|watcher| watcher.is_due());
        if is_checked && is_listed && due_watcher.is_none() {
            return snapshot;
        }
        if let Some(lock) = self.refresh_lock.try_lock() {
            if !is_checked {
                self.rescan(ScanScope::All, &lock);
            } else if !is_listed {
                self.rescan(ScanScope::NewOnly, &lock);
            }
            if let Some(watcher) = due_watcher {
                self.recheck_dirty(watcher, &lock);
            }
        }
        self.current.load_full()
    }

    /// Returns the time for which [`Catalog::current`] returns the current snapshot without another
    /// scan, unless a change is reported.
    pub fn fresh_for(&self) -> Duration {
        let (snapshot, fresh) = (self.current.load(), self.freshness.unfinished);
        snapshot.checked.fresh_for(fresh).min(snapshot.listed.fresh_for(fresh))
    }

    /// Scans all stores and returns the new snapshot. It has every worker that existed when this
    /// was called.
    pub fn current_now(&self) -> Arc<Snapshot> {
        self.rescan(ScanScope::All, &self.refresh_lock.lock());
        self.current.load_full()
    }

    /// Reads `sessions` for the workers inside them, until `deadline` passes. Calls `done` after
    /// each.
    pub fn backfill(
        &self,
        sessions: &[WorkerLocation],
        deadline: Deadline<'_>,
        done: &(dyn Fn() + Sync),
    ) {
        parallel_map(sessions, |(number, path)| {
            if let Some(source) = self.sources.get(*number).filter(|_| deadline.has_time()) {
                source.format.find_nested_workers(&*source.store, path, deadline);
            }
            done();
        });
    }

    fn recheck_dirty(&self, watcher: &Watcher, lock: &MutexGuard<'_, ()>) {
        let (start, dirty) = (Instant::now(), watcher.take_dirty());
        let dirty: Vec<&Entry> = dirty.iter().map(|entry| &**entry).collect();
        // A scan just before this may have taken them all.
        if !dirty.is_empty() {
            self.recheck_locked(&dirty, lock);
            watcher.postpone(Freshness::max_age(self.freshness.unfinished, start.elapsed()));
        }
    }

    fn rescan(&self, scope: ScanScope, _lock: &MutexGuard<'_, ()>) {
        let previous = self.current.load_full();
        let watcher = self.watcher.get();
        if scope == ScanScope::All
            && let Some(watcher) = watcher
        {
            // The scan checks all dirty workers; later changes are reported again.
            drop(watcher.take_dirty());
        }
        let snapshot =
            scan::scan(&self.sources, &previous, scope, self.freshness, watcher).snapshot;
        self.current.store(Arc::new(snapshot));
    }

    /// Checks one worker unless that was done within [`Freshness::unfinished`]. Returns true if the
    /// catalog changed.
    pub fn recheck_if_stale(&self, entry: &Entry) -> bool {
        if entry.was_checked(self.freshness.unfinished) {
            return false;
        }
        self.refresh_lock.try_lock().is_some_and(|lock| self.recheck_locked(&[entry], &lock))
    }

    /// Checks one worker. Returns true if the catalog no longer holds `entry`.
    pub fn recheck(&self, entry: &Entry) -> bool {
        self.recheck_locked(&[entry], &self.refresh_lock.lock())
    }

    fn recheck_locked(&self, stale: &[&Entry], _lock: &MutexGuard<'_, ()>) -> bool {
        let previous = self.current.load_full();
        let stale: HashSet<*const Entry> =
            stale.iter().map(|entry| std::ptr::from_ref(*entry)).collect();
        let context = ScanContext::new(self.watcher.get());
        let (mut found, mut entries) = (0, Cow::Borrowed(&previous.entries));
        let mut changes: Option<Vec<EntryChange>> = Some(Vec::new());
        // In reverse, so that a removal does not shift the indexes of the remaining entries.
        let indexed = previous.entries.iter().enumerate().rev();
        for (index, old) in
            indexed.filter(|(_, entry)| stale.contains(&Arc::as_ptr(entry))).take(stale.len())
        {
            found += 1;
            let Ok(source) = self.source(old) else { continue };
            let checked =
                match scan::check_folder(source, old.source, &old.root, Some(old), &context) {
                    Ok(Some(entry)) if Arc::ptr_eq(&entry, old) => continue,
                    Ok(entry) => entry,
                    Err(error) if error.is_not_found() => None,
                    // The error may be temporary, so the entry stays.
                    Err(_) => continue,
                };
            match (&mut changes, &checked) {
                (Some(changes), Some(new)) => {
                    changes.push(EntryChange { old: old.clone(), new: new.clone() })
                }
                _ => changes = None,
            }
            entries.to_mut().splice(index..=index, checked);
        }
        let Cow::Owned(entries) = entries else { return found < stale.len() };
        let snapshot = Snapshot {
            generation: previous.generation + 1,
            entries,
            skipped: previous.skipped,
            skip_reports: previous.skip_reports.clone(),
            problems: previous.problems.clone(),
            unread: previous.unread.clone(),
            changes: changes.filter(|changes| changes.len() <= scan::CHANGES_MAX),
            checked: previous.checked,
            listed: previous.listed,
        };
        self.current.store(Arc::new(snapshot));
        true
    }

    fn source(&self, entry: &Entry) -> Result<&Source> {
        self.sources.get(entry.source).ok_or(Error::NotFound)
    }

    fn is_settled(&self, entry: &Entry) -> bool {
        self.source(entry).is_ok_and(|source| source.is_settled(entry, self.freshness))
    }

    /// Returns the time at which a worker became abandoned by the clock, if it did.
    pub fn abandoned_at(&self, entry: &Entry) -> Option<Time> {
        let is_abandoned = entry.metadata.is_stale && entry.status == Status::Abandoned;
        let source = self.source(entry).ok().filter(|_| is_abandoned)?;
        Some(source.stale_since(entry.last_write()))
    }

    /// Returns true if a listing depends only on the directory; see
    /// [`Store::listing_depends_on_dir_only`].
    pub fn listing_depends_on_dir_only(&self, entry: &Entry) -> bool {
        self.source(entry).is_ok_and(|source| source.store.listing_depends_on_dir_only())
    }

    /// Returns the maximum age of a listing of a worker's directory whose times are unchanged. If
    /// other machines can write to it, its times may not show a change at once.
    pub fn listing_max_age(&self, entry: &Entry) -> Duration {
        let local = self.source(entry).is_ok_and(Source::is_local);
        if local { self.freshness.finished } else { self.max_age(entry) }
    }

    pub fn max_age(&self, entry: &Entry) -> Duration {
        if self.is_settled(entry) { self.freshness.finished } else { self.freshness.unfinished }
    }

    /// Returns the maximum age of cached metadata of a worker's directories. Unlike a file, which
    /// is checked at each open, a directory is listed without a request until its metadata expire.
    pub fn dir_max_age(&self, entry: &Entry) -> Duration {
        let max_age = self.max_age(entry);
        if entry.is_watched() { max_age } else { max_age.min(self.freshness.unfinished) }
    }

    /// Enters a worker's directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if another directory replaced it: the owner in `entry` is only known for
    /// the original directory.
    pub fn folder(&self, entry: &Entry) -> Result<Box<dyn Store>> {
        let source = self.source(entry)?;
        let folder = source.format.enter(&*source.store, &entry.root)?;
        if folder.identity()? == entry.metadata.identity {
            Ok(folder)
        } else {
            Err(Error::NotFound)
        }
    }

    /// Returns the directories in a worker's directory, entered as `folder`, that only hold copies
    /// of earlier contents; see [`Format::folders_of_originals`].
    ///
    /// [`Format::folders_of_originals`]: swarmletfs_trace::Format::folders_of_originals
    pub fn folders_of_originals(
        &self,
        entry: &Entry,
        folder: &dyn Store,
    ) -> &'static [&'static str] {
        self.source(entry).map_or(&[], |source| source.format.folders_of_originals(folder))
    }

    /// Enables [`Catalog::backing`] if the stores support it.
    ///
    /// # Errors
    ///
    /// Fails if a store supports passthrough but the system refuses it.
    pub fn pass_through(&self) -> Result<()> {
        self.sources.iter().try_for_each(|source| source.store.pass_through())
    }

    pub fn backing(&self, entry: &Entry, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.source(entry)?.store.backing(&entry.root.join_path(path))
    }

    /// Returns a store by number.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if no store has this number.
    pub fn source_store(&self, number: usize) -> Result<&dyn Store> {
        self.sources.get(number).map(|source| &*source.store).ok_or(Error::NotFound)
    }

    pub fn record(&self, entry: &Entry, deadline: Deadline<'_>) -> Result<Record> {
        let source = self.source(entry)?;
        let folder = self.folder(entry)?;
        let place = RecordSource { folder: &*folder, outputs: source.outputs.as_deref() };
        let mut record = source.format.read_record(place, &entry.worker(), deadline)?;
        if entry.status == Status::Abandoned {
            record.worker.abandon();
        }
        Ok(record)
    }

    /// Returns true if [`Catalog::has_edits`] costs no more than an open for this worker.
    pub fn finds_edits_at_once(&self, entry: &Entry) -> bool {
        let source = self.sources.get(entry.source);
        source.is_some_and(|source| source.format.finds_edits_at_once())
    }

    /// Returns true if the record of a worker, whose directory has the entries `listed`, holds
    /// changes of files, or if there was no time to find out.
    pub fn has_edits(
        &self,
        entry: &Entry,
        listed: &[DirEntry],
        deadline: Deadline<'_>,
    ) -> Result<bool> {
        match self.sources.get(entry.source) {
            Some(source) if !source.format.may_have_edits(listed) => Ok(false),
            Some(source) => source.format.has_edits(&*self.folder(entry)?, deadline),
            None => Err(Error::NotFound),
        }
    }

    pub fn changes(&self, entry: &Entry, deadline: Deadline<'_>) -> Result<RecordedChanges> {
        match self.sources.get(entry.source) {
            Some(source) if !source.format.records_edits() => {
                Ok(RecordedChanges::Edits(RecordedEdits::default()))
            }
            Some(source) => {
                let folder = self.folder(entry)?;
                let place = RecordSource { folder: &*folder, outputs: source.outputs.as_deref() };
                source.format.read_changes(place, deadline)
            }
            None => Err(Error::NotFound),
        }
    }

    /// Finds the parts of a worker that were not understood; see
    /// [`Format::check_worker`](swarmletfs_trace::Format::check_worker).
    pub fn check_worker(
        &self,
        entry: &Entry,
        record: &Record,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> Result<WorkerCheck> {
        let source = self.source(entry)?;
        let folder = self.folder(entry)?;
        let place = RecordSource { folder: &*folder, outputs: source.outputs.as_deref() };
        Ok(source.format.check_worker(place, record, limit, deadline))
    }

    /// Finds the parts of the store of this number, outside of its workers, that were not
    /// understood; see [`Format::check_store`](swarmletfs_trace::Format::check_store).
    pub fn check_store(
        &self,
        number: usize,
        skipped: &SkipReport,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> Result<Remarks> {
        let source = self.sources.get(number).ok_or(Error::NotFound)?;
        let (store, outputs) = (&*source.store, source.outputs.as_deref());
        Ok(source.format.check_store(store, outputs, skipped, limit, deadline))
    }

    pub fn cache(&self) -> Option<Arc<DiskCache>> {
        self.sources.iter().find_map(|source| source.cache().cloned())
    }

    pub fn index(&self) -> Option<Arc<DiskCache>> {
        self.sources.iter().find_map(|source| source.index().cloned())
    }

    /// Returns the part of a cache key that identifies the bytes read of the stores.
    pub fn scope(&self) -> Key {
        let scopes: Vec<Key> = self.sources.iter().map(Source::scope).collect();
        key("scopes", &scopes.iter().map(Key::as_slice).collect::<Vec<_>>())
    }

    pub fn outputs(&self, entry: &Entry) -> Option<&dyn Store> {
        self.source(entry).ok()?.outputs.as_deref()
    }

    /// Returns the directory of the supervisor's notes: the number of the first store that has one,
    /// and its path there.
    pub fn supervisor(&self) -> Result<Option<(usize, RelPath)>> {
        for (number, source) in self.sources.iter().enumerate() {
            let Some(path) = source.format.supervisor_folder() else { continue };
            if has_kind(&*source.store, &path, Kind::Folder)? {
                return Ok(Some((number, path)));
            }
        }
        Ok(None)
    }

    /// Returns the known facts about the removed workers with this id, at most one for each store.
    pub fn removed_workers(&self, id: &Name) -> impl Iterator<Item = RemovedWorker> {
        let removed = |source: &Source| source.format.removed_worker(&*source.store, id);
        self.sources.iter().filter_map(removed)
    }

    pub fn removed_ids(&self) -> impl Iterator<Item = (usize, Name)> {
        self.sources.iter().enumerate().flat_map(|(number, source)| {
            let ids = source.format.removed_ids(&*source.store);
            ids.into_iter().map(move |id| (number, id))
        })
    }

    pub fn removed_worker(&self, number: usize, id: &Name) -> Option<RemovedWorker> {
        let source = self.sources.get(number)?;
        source.format.removed_worker(&*source.store, id)
    }

    /// Returns the store's own list of all workers, if there is exactly one store and it has such a
    /// file.
    pub fn index_file(&self) -> Result<Option<(usize, RelPath)>> {
        let [source] = self.sources.as_slice() else { return Ok(None) };
        for path in source.format.index_files() {
            if has_kind(&*source.store, &path, Kind::File)? {
                return Ok(Some((0, path)));
            }
        }
        Ok(None)
    }
}

fn has_kind(store: &dyn Store, path: &RelPath, kind: Kind) -> Result<bool> {
    match store.stat(path) {
        Ok(meta) => Ok(meta.kind == kind),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
