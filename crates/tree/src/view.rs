//! A catalog restricted to the workers that one owner may see: the only way to a worker's name or
//! bytes.
//!
//! A view is fixed when the mount starts: stores, owner and run. All layers above read through it.
//! A worker outside the view is not in [`VisibleWorkers`], and no count, size or time comes from
//! anywhere else. An absent worker and another owner's worker are therefore indistinguishable.
//!
//! Symlinks and special files in a worker's directory are counted but not shown. In a view of one
//! owner, a file with more than one hard link is not shown either, since it may belong to another
//! owner. The directory of a worker is opened once for all of its files.

mod name_index;
mod visible;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::Cache;

pub use crate::catalog::WorkerLocation;
pub use visible::{Member, RunMembers, VisibleWorkers, find_by_prefix};

use crate::catalog::{self, Catalog, FileStat, Fingerprint, Freshness, Snapshot, Source};
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{
    Output, Record, RecordedChanges, Remarks, RemovedWorker, ToolCall, WorkerCheck,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{self, DirEntry, File, FileOpener, Kind, Meta, Store, Time};
use visible::KeptNames;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Show only this owner's workers. Workers without an owner are then hidden.
    pub owner: Option<String>,
    pub run: Option<String>,
}

/// Most parsed records in the cache, which serves the several files generated from one record.
const RECORD_CACHE_ITEMS: usize = 64;
/// Most attempts to refresh a worker that changes at each attempt.
const REFRESH_TRIES: usize = 5;

pub struct View {
    /// Shared by the views of the owners of one mount.
    catalog: Arc<Catalog>,
    filter: Filter,
    /// Names that do not follow from the workers' ids alone, and hold for as long as the mount.
    names: KeptNames,
    visible: Mutex<Arc<VisibleWorkers>>,
    /// Records by the version of the fingerprint and the key of the entry.
    records: Cache<(Key, Key), Arc<Record>>,
    /// Removed workers by store and id: true if a restricted view would show the worker. The record
    /// of a removed worker does not change.
    removed: Mutex<HashMap<(usize, Name), bool>>,
}

impl View {
    /// Opens a view of `sources`, restricted by `filter`. The filter decides how the sources are
    /// read, so it must be known before the first read.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be listed.
    pub fn new(sources: Vec<Source>, freshness: Freshness, filter: Filter) -> Result<View> {
        let sources = match filter.owner {
            Some(_) => sources.into_iter().map(Source::hiding_hard_links).collect(),
            None => sources,
        };
        Ok(View::of_catalog(Arc::new(Catalog::open(sources, freshness)?), filter))
    }

    /// Opens a view of `sources` for each of `owners`, restricted to `run` if it is given. The
    /// stores are listed once for all of them.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be listed.
    pub fn for_owners<'a>(
        sources: Vec<Source>,
        freshness: Freshness,
        run: Option<&str>,
        owners: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<View>> {
        let sources = sources.into_iter().map(Source::hiding_hard_links).collect();
        let catalog = Arc::new(Catalog::open(sources, freshness)?);
        let filter =
            |owner: &str| Filter { owner: Some(owner.to_owned()), run: run.map(str::to_owned) };
        let views = owners.into_iter().map(|id| View::of_catalog(catalog.clone(), filter(id)));
        Ok(views.collect())
    }

    fn of_catalog(catalog: Arc<Catalog>, filter: Filter) -> View {
        let names = KeptNames::default();
        let visible = VisibleWorkers::new(&catalog.current(), &filter, &names);
        View {
            catalog,
            filter,
            names,
            visible: Mutex::new(Arc::new(visible)),
            records: Cache::new(RECORD_CACHE_ITEMS),
            removed: Mutex::default(),
        }
    }

    /// Keeps the names of the workers of `previous`, a view of other stores, some of which may also
    /// be stores of this view.
    pub fn keeping_names_of(self, previous: &View) -> View {
        let numbers = self.catalog.numbers_of_stores(&previous.catalog);
        let names = previous.visible().numbered_names(&numbers);
        let visible = VisibleWorkers::new(&self.catalog.current(), &self.filter, &names);
        View { names, visible: Mutex::new(Arc::new(visible)), ..self }
    }

    /// Describes the view for people: the number of workers and of runs.
    pub fn describe(&self) -> String {
        let visible = self.visible();
        let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let workers = count(visible.members.len(), "worker");
        match visible.runs.len() {
            0 => workers,
            runs => format!("{workers} in {}", count(runs, "run")),
        }
    }

    /// Returns the cache for data derived from workers, if there is one, and the key prefix of this
    /// view.
    pub fn digest_store(&self) -> Option<(Arc<DiskCache>, Key)> {
        self.catalog.cache().map(|cache| (cache, self.scope()))
    }

    /// Returns the cache for the search index, if there is one, and the key prefix of this view.
    pub fn word_index(&self) -> Option<(Arc<DiskCache>, Key)> {
        self.catalog.index().map(|index| (index, self.scope()))
    }

    /// Returns a cache key that covers all settings on which the contents of this view depend.
    fn scope(&self) -> Key {
        let Filter { owner, run } = &self.filter;
        let set = |filter: &Option<String>| [u8::from(filter.is_some())];
        let text = |filter: &Option<String>| filter.clone().unwrap_or_default().into_bytes();
        key("view", &[&self.catalog.scope(), &set(owner), &text(owner), &set(run), &text(run)])
    }

    pub fn run(&self) -> Option<&str> {
        self.filter.run.as_deref()
    }

    pub fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.catalog.roots()
    }

    /// Returns true if a store builds workers' directories from other files, so that a stat may be
    /// slow.
    pub fn has_virtual_folders(&self) -> bool {
        self.catalog.has_virtual_folders()
    }

    pub fn abandoned_at(&self, member: &Member) -> Option<Time> {
        self.catalog.abandoned_at(&member.entry)
    }

    /// Returns true if the path of a store leads to another directory by now.
    pub fn is_replaced(&self) -> bool {
        self.catalog.is_replaced()
    }

    /// Returns the current workers of this view; they may be as old as the freshness settings
    /// allow.
    pub fn visible(&self) -> Arc<VisibleWorkers> {
        self.visible_in(&self.catalog.current())
    }

    /// Returns the generation of the workers that [`View::visible`] returned last. Reads nothing.
    pub fn known_generation(&self) -> u64 {
        self.visible.lock().generation
    }

    /// Returns the time for which [`View::visible`] returns the same workers again.
    pub fn fresh_for(&self) -> Duration {
        self.catalog.fresh_for()
    }

    /// Returns the workers of this view, scanned after the call began, so that no worker that
    /// existed then is missing.
    pub fn visible_now(&self) -> Arc<VisibleWorkers> {
        self.visible_in(&self.catalog.current_now())
    }

    /// Searches the sessions of this view that were not yet searched for workers inside them, until
    /// `deadline` passes. Calls `expect` with their number first, and `done` after each.
    pub fn read_sessions(
        &self,
        deadline: Deadline<'_>,
        expect: &dyn Fn(usize),
        done: &(dyn Fn() + Sync),
    ) {
        let mut visible = self.visible();
        while !visible.unread.is_empty() && deadline.has_time() {
            let unread =
                visible.members.iter().filter(|member| visible.unread.contains(&member.name));
            let unread: Vec<_> =
                unread.map(|member| (member.entry.source(), member.entry.root.clone())).collect();
            expect(unread.len());
            self.catalog.backfill(&unread, deadline, done);
            let before = std::mem::replace(&mut visible, self.visible_now());
            // A session that cannot be read stays unread; stop if no progress was made.
            if visible.unread.len() >= before.unread.len() {
                break;
            }
        }
    }

    fn visible_in(&self, snapshot: &Snapshot) -> Arc<VisibleWorkers> {
        let latest = self.visible.lock().clone();
        if latest.generation == snapshot.generation {
            return latest;
        }
        let current = latest
            .apply_changes(snapshot, &self.filter)
            .unwrap_or_else(|| VisibleWorkers::new(snapshot, &self.filter, &self.names));
        let current = Arc::new(current);
        let mut slot = self.visible.lock();
        // Another thread may have stored a newer generation meanwhile.
        if slot.generation < current.generation {
            *slot = current;
        }
        slot.clone()
    }

    /// Returns the worker with this name, checked for changes within the last second.
    pub fn worker(&self, id: &Name) -> Result<Arc<Member>> {
        let find = || self.visible().get(id).ok_or(Error::NotFound);
        let member = find()?;
        if self.catalog.recheck_if_stale(&member.entry) { find() } else { Ok(member) }
    }

    pub fn find_worker(&self, id: &Name) -> Result<Arc<Member>> {
        self.worker(&self.visible().find(id)?.name)
    }

    /// Returns this worker, checked for changes after the call began.
    pub fn worker_now(&self, member: &Member) -> Result<Arc<Member>> {
        let mut member = self.visible().get(&member.name).ok_or(Error::NotFound)?;
        // A concurrent check may have begun before this call, so check again after each change.
        for _ in 0..REFRESH_TRIES {
            if !self.catalog.recheck(&member.entry) {
                break;
            }
            member = self.visible().get(&member.name).ok_or(Error::NotFound)?;
        }
        Ok(member)
    }

    pub fn stat(&self, member: &Member, path: &RelPath) -> Result<Meta> {
        reject_links(self.catalog.folder(&member.entry)?.stat(path)?)
    }

    /// Returns the metadata of `path` but skips ACLs; the mode may be too permissive. Use it to
    /// detect changes only.
    pub fn stat_without_acl(&self, member: &Member, path: &RelPath) -> Result<Meta> {
        reject_links(self.catalog.folder(&member.entry)?.stat_without_acl(path)?)
    }

    pub fn list(&self, member: &Member, path: &RelPath) -> Result<Vec<DirEntry>> {
        Ok(without_links(self.catalog.folder(&member.entry)?.list(path)?))
    }

    pub fn folder(&self, member: &Member) -> Result<Folder> {
        let store = self.catalog.folder(&member.entry)?;
        let originals = self.catalog.folders_of_originals(&member.entry, &*store);
        Ok(Folder::new(store, originals))
    }

    pub fn open(&self, member: &Member, path: &RelPath) -> Result<Box<dyn File>> {
        self.catalog.folder(&member.entry)?.open(path)
    }

    /// Prepares the stores for [`View::backing`].
    ///
    /// # Errors
    ///
    /// The reason why passthrough is not possible.
    pub fn pass_through(&self) -> Result<()> {
        self.catalog.pass_through()
    }

    /// Opens the file `path` of a worker, which is open as `file`, a second time for FUSE
    /// passthrough, so that reads leave the atime alone. Returns `None` if that is not possible or
    /// another file has taken its place.
    pub fn backing(
        &self,
        member: &Member,
        path: &RelPath,
        file: &dyn File,
    ) -> Result<Option<OwnedFd>> {
        let Some(backing) = self.catalog.backing(&member.entry, path)? else { return Ok(None) };
        let is_same = store::identity_of(backing.as_fd())? == file.stat_without_acl()?.identity;
        Ok(is_same.then_some(backing))
    }

    pub fn open_output(&self, member: &Member, call: &ToolCall) -> Result<Option<Box<dyn File>>> {
        WorkerFiles::new(self, member).open_output(call)
    }

    /// Starts to watch workers for changes; see [`Catalog::watch`].
    pub fn watch(&self) -> Result<usize> {
        self.catalog.watch()
    }

    /// Waits up to `limit` for changes of watched workers, including workers outside of this view.
    /// Returns the changed workers whose attributes may be cached for long, or `None` once `end` is
    /// readable or closed.
    pub fn wait_for_changes(
        &self,
        end: BorrowedFd<'_>,
        limit: Option<Duration>,
    ) -> Result<Option<HashSet<WorkerLocation>>> {
        self.catalog.wait_for_changes(end, limit)
    }

    /// Returns the names of the workers of this view that are at `locations`.
    pub fn names_at(&self, locations: &HashSet<WorkerLocation>) -> HashSet<Name> {
        // The kernel has received no worker that is not in the latest set.
        let visible = self.visible.lock().clone();
        locations.iter().filter_map(|(source, root)| visible.name_at(*source, root)).collect()
    }

    /// Returns true if the entries of a worker's directory depend on that directory alone.
    pub fn is_listing_cacheable(&self, member: &Member) -> bool {
        self.catalog.listing_depends_on_dir_only(&member.entry)
    }

    /// Returns the time for which a listing of a worker's directory is valid while the directory's
    /// times are unchanged.
    pub fn listing_ttl(&self, member: &Member) -> Duration {
        self.catalog.listing_max_age(&member.entry)
    }

    pub fn attr_ttl(&self, member: &Member) -> Duration {
        self.catalog.max_age(&member.entry)
    }

    pub fn dir_attr_ttl(&self, member: &Member) -> Duration {
        self.catalog.dir_max_age(&member.entry)
    }

    pub fn fingerprint(&self, member: &Member, closely: bool) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint(&member.entry, closely)
    }

    /// Returns the fingerprint of all files of a worker, possibly without ACLs; see
    /// [`Catalog::fingerprint_without_acls`].
    pub fn fingerprint_without_acls(
        &self,
        member: &Member,
        closely: bool,
    ) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint_without_acls(&member.entry, closely)
    }

    /// Returns true if the worker is known and [`View::fingerprint_without_acls`] would read
    /// nothing, even if `closely`. Reads nothing itself, so a worker that came since the last scan
    /// is not known.
    pub fn has_fresh_fingerprint(&self, worker: &Name) -> bool {
        let visible = self.visible.lock().clone();
        visible
            .get(worker)
            .is_some_and(|member| self.catalog.has_fresh_fingerprint(&member.entry, true))
    }

    /// Returns true if the directory of the worker is listed at the cost of a few stats. Reads
    /// nothing itself, so a worker that came since the last scan is not known.
    pub fn lists_at_once(&self, worker: &Name) -> bool {
        let visible = self.visible.lock().clone();
        let member = visible.get(worker);
        member.is_some_and(|member| self.catalog.finds_edits_at_once(&member.entry))
    }

    pub fn last_fingerprint(&self, member: &Member) -> Option<Arc<Fingerprint>> {
        member.entry.last_fingerprint()
    }

    pub fn files(&self, member: &Member, limit: usize) -> Result<(Vec<FileStat>, Fingerprint)> {
        self.catalog.files(&member.entry, limit)
    }

    pub fn fingerprint_now(&self, member: &Member) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint_now(&member.entry)
    }

    /// Returns the fingerprint of a worker's files, taken after the call began, with ACLs only if
    /// `before` has them; see [`Catalog::fingerprint_again`].
    pub fn fingerprint_again(
        &self,
        member: &Member,
        before: &Fingerprint,
    ) -> Result<Arc<Fingerprint>> {
        self.catalog.fingerprint_again(&member.entry, before)
    }

    pub fn is_unchanged(&self, member: &Member, fingerprint: &Fingerprint) -> bool {
        self.fingerprint_again(member, fingerprint).is_ok_and(|now| now.key == fingerprint.key)
    }

    pub fn cached_record(&self, member: &Member, fingerprint: &Fingerprint) -> Option<Arc<Record>> {
        self.records.get(&(fingerprint.version, member.entry.key()))
    }

    /// Returns the record of a worker as of `fingerprint`, read until `deadline` passes.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if by its record the worker is no longer in this view.
    pub fn record(
        &self,
        member: &Member,
        fingerprint: &Fingerprint,
        deadline: Deadline<'_>,
    ) -> Result<Arc<Record>> {
        if let Some(record) = self.cached_record(member, fingerprint) {
            return Ok(record);
        }
        let record = self.catalog.record(&member.entry, deadline)?;
        if !visible::matches(&self.filter, record.worker.owner.as_ref(), record.worker.run.as_ref())
        {
            return Err(Error::NotFound);
        }
        let record = Arc::new(record);
        if record.is_complete() {
            self.records.insert((fingerprint.version, member.entry.key()), record.clone());
        }
        Ok(record)
    }

    /// Returns true if the record of a worker, whose directory has the entries `listed`, holds
    /// changes of files, or if `deadline` passed before that was known.
    pub fn has_edits(
        &self,
        member: &Member,
        listed: &[DirEntry],
        deadline: Deadline<'_>,
    ) -> Result<bool> {
        self.catalog.has_edits(&member.entry, listed, deadline)
    }

    pub fn changes(&self, member: &Member, deadline: Deadline<'_>) -> Result<RecordedChanges> {
        self.catalog.changes(&member.entry, deadline)
    }

    /// Finds the parts of a worker's files that were not understood. `record` is the worker's
    /// record. Keeps `limit` remarks of each kind, and stops when `deadline` passes.
    pub fn check_worker(
        &self,
        member: &Member,
        record: &Record,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> Result<WorkerCheck> {
        self.catalog.check_worker(&member.entry, record, limit, deadline)
    }

    /// Finds the parts of the store of this number, outside of its workers, that were not
    /// understood. Returns `None` for a restricted view, as the remarks may be about other workers.
    pub fn check_store(
        &self,
        number: usize,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> Result<Option<Remarks>> {
        let visible = self.visible();
        let reports = visible.skip_reports.as_ref();
        match reports.and_then(|reports| reports.get(number)) {
            Some(skipped) if !self.is_restricted() => {
                self.catalog.check_store(number, skipped, limit, deadline).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the known facts about the worker `id` if it was removed and this view would show it.
    /// For any other removed worker, the answer is the same as for an absent worker.
    pub fn removed_worker(&self, id: &Name) -> Option<RemovedWorker> {
        let mut removed = self.catalog.removed_workers(id);
        removed.find(|worker| {
            visible::matches(&self.filter, worker.owner.as_ref(), worker.run.as_ref())
        })
    }

    /// Returns the number of removed workers that this view would show. A worker of `visible` does
    /// not count as removed, even if a record says so. A damaged record counts only in an
    /// unrestricted view.
    pub fn removed_count(&self, visible: &VisibleWorkers) -> usize {
        let mut ids: HashSet<(usize, Name)> = self.catalog.removed_ids().collect();
        if ids.is_empty() {
            return 0;
        }
        for member in &visible.members {
            ids.remove(&(member.entry.source(), member.entry.id.0.clone()));
        }
        if !self.is_restricted() {
            return ids.len();
        }
        let mut removed = self.removed.lock();
        removed.retain(|key, _| ids.contains(key));
        for key in ids {
            if !removed.contains_key(&key)
                && let Some(worker) = self.catalog.removed_worker(key.0, &key.1)
            {
                let (owner, run) = (worker.owner.as_ref(), worker.run.as_ref());
                removed.insert(key, visible::matches(&self.filter, owner, run));
            }
        }
        removed.values().filter(|is_shown| **is_shown).count()
    }

    /// Returns the location of the supervisor's notes. They cover all workers, so a restricted view
    /// has none.
    pub fn supervisor(&self) -> Result<Option<SharedPath>> {
        if self.is_restricted() {
            return Ok(None);
        }
        Ok(self.catalog.supervisor()?.map(|(source, path)| SharedPath { source, path }))
    }

    /// Returns the location of the store's own list of workers. A restricted view has none.
    pub fn index_file(&self) -> Result<Option<SharedPath>> {
        if self.is_restricted() {
            return Ok(None);
        }
        Ok(self.catalog.index_file()?.map(|(source, path)| SharedPath { source, path }))
    }

    pub fn shared_stat(&self, shared: &SharedPath, path: &RelPath) -> Result<Meta> {
        reject_links(self.shared_store(shared)?.stat(&shared.path.join_path(path))?)
    }

    pub fn shared_list(&self, shared: &SharedPath, path: &RelPath) -> Result<Vec<DirEntry>> {
        Ok(without_links(self.shared_store(shared)?.list(&shared.path.join_path(path))?))
    }

    pub fn shared_open(&self, shared: &SharedPath, path: &RelPath) -> Result<Box<dyn File>> {
        self.shared_store(shared)?.open(&shared.path.join_path(path))
    }

    /// Returns the metadata of the first store's root, for its owner and permissions.
    pub fn root_meta(&self) -> Result<Meta> {
        self.catalog.source_store(0)?.stat(&RelPath::root())
    }

    /// Returns the time of the newest change in the view. In a view without workers that is the
    /// mtime of the store's root, unless the view is restricted: that time would reveal changes of
    /// hidden workers.
    pub fn newest(&self, visible: &VisibleWorkers) -> Result<Time> {
        if self.is_restricted() {
            return Ok(visible.newest);
        }
        Ok(visible.newest.max(self.root_meta()?.last_write()))
    }

    fn is_restricted(&self) -> bool {
        self.filter != Filter::default()
    }

    fn shared_store(&self, shared: &SharedPath) -> Result<&dyn store::Store> {
        self.catalog.source_store(shared.source)
    }
}

/// A path in a store that belongs to no worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPath {
    source: usize,
    path: RelPath,
}

fn reject_links(meta: Meta) -> Result<Meta> {
    match meta.kind {
        Kind::File | Kind::Folder => Ok(meta),
        Kind::Link => Err(Error::Escape),
        Kind::Special => Err(Error::Special),
    }
}

fn without_links(mut all: Vec<DirEntry>) -> Vec<DirEntry> {
    all.retain(|entry| matches!(entry.kind, Kind::File | Kind::Folder));
    all
}

/// An open directory of a worker. It stays the same directory even if its path is replaced.
pub struct Folder {
    store: Box<dyn Store>,
    opener: FileOpener,
    /// Directories that only hold copies of files from before the worker changed them.
    originals: &'static [&'static str],
}

impl Folder {
    pub(super) fn new(store: Box<dyn Store>, originals: &'static [&'static str]) -> Folder {
        Folder { store, opener: FileOpener::default(), originals }
    }

    /// Reads the data that all files need, until `deadline` passes.
    ///
    /// # Errors
    ///
    /// [`Error::Late`] if the deadline passes first.
    pub fn prepare(&self, deadline: Deadline<'_>) -> Result<()> {
        self.store.prepare(deadline)
    }

    /// Returns the visible files, sorted by path, and the number of directories that could not be
    /// listed. Leaves out copies of files from before the worker changed them.
    pub fn files(&self) -> Result<(Vec<RelPath>, u64)> {
        let (mut files, unlisted) = catalog::list_files(&*self.store)?;
        if !self.originals.is_empty() {
            files.retain(|path| !self.is_original(path));
        }
        Ok((files, unlisted))
    }

    fn is_original(&self, path: &RelPath) -> bool {
        let first = path.names().next().filter(|_| path.depth() > 1);
        let is_one =
            |name: &Name| self.originals.iter().any(|one| one.as_bytes() == name.as_bytes());
        first.as_ref().is_some_and(is_one)
    }

    pub fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.opener.open(&*self.store, path)
    }

    pub fn size(&self, path: &RelPath) -> Result<u64> {
        self.opener.stat_without_acl(&*self.store, path).map(|meta| meta.size)
    }
}

/// The files of a worker of a view. The worker's directory is opened with the first of them.
pub struct WorkerFiles<'a> {
    pub view: &'a View,
    pub member: &'a Member,
    folder: OnceLock<Result<Box<dyn Store>>>,
    opener: FileOpener,
}

impl<'a> WorkerFiles<'a> {
    /// Refers to the files of `member` and opens nothing yet.
    pub fn new(view: &'a View, member: &'a Member) -> WorkerFiles<'a> {
        WorkerFiles { view, member, folder: OnceLock::new(), opener: FileOpener::default() }
    }

    pub fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let folder = self.folder.get_or_init(|| self.view.catalog.folder(&self.member.entry));
        self.opener.open(&**folder.as_ref().map_err(Clone::clone)?, path)
    }

    /// Opens the output of a call, in the worker's directory or outside of it. Returns `None` if
    /// the output cannot be read; [`ToolCall::output`] holds the reason.
    pub fn open_output(&self, call: &ToolCall) -> Result<Option<Box<dyn File>>> {
        match &call.output {
            Output::InPlace => self.open(&call.path).map(Some),
            Output::OutOfBand(path) => match self.view.catalog.outputs(&self.member.entry) {
                Some(outputs) => outputs.open(path).map(Some),
                None => Ok(None),
            },
            Output::Pending | Output::Unrecorded | Output::Unreadable(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use swarmletfs_base::model::Status;
    use swarmletfs_base::store::Memory;
    use swarmletfs_trace::ClaudeCode;

    fn write(store: &Memory, status: &str) {
        let path = RelPath::parse("workers/w/metadata.json").unwrap();
        store.write(&path, format!(r#"{{"worker_id": "w", "status": "{status}"}}"#));
    }

    /// Returns a view that caches for an hour.
    fn view(store: &Arc<Memory>) -> View {
        let hour = Duration::from_secs(3_600);
        let freshness = Freshness { unfinished: hour, finished: hour };
        View::new(vec![Source::from_store(store.clone(), None)], freshness, Filter::default())
            .unwrap()
    }

    #[test]
    fn worker_now_returns_a_change_that_worker_may_miss() {
        let store = Arc::new(Memory::new());
        write(&store, "running");
        let view = view(&store);
        let name = Name::new("w").unwrap();
        let member = view.worker(&name).unwrap();
        write(&store, "success");
        assert_eq!(view.worker(&name).unwrap().entry.status, Status::Running);
        assert_eq!(view.worker_now(&member).unwrap().entry.status, Status::Completed);
    }

    #[test]
    fn equal_ids_get_names_that_programs_accept() {
        let long = "é".repeat(127);
        let stores: Vec<Arc<Memory>> = (0..3).map(|_| Arc::new(Memory::new())).collect();
        for store in &stores {
            for id in ["w", "w~2", &long] {
                let path = RelPath::parse(format!("workers/{id}/metadata.json")).unwrap();
                store.write(&path, "{}");
            }
        }
        let sources = stores.iter().map(|store| Source::from_store(store.clone(), None));
        let view = View::new(sources.collect(), Freshness::default(), Filter::default()).unwrap();
        let visible = view.visible();
        let mut names: Vec<String> =
            visible.members.iter().map(|member| member.name.display()).collect();
        assert!(names.iter().all(|name| name.len() <= 255), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 9, "{names:?}");
        assert!(["w", "w~2", "w~3", "w~4"].iter().all(|name| names.iter().any(|it| it == name)));
        for member in &visible.members {
            assert_eq!(visible.find(&member.name).unwrap().entry.root, member.entry.root);
        }
    }

    /// Promise: A change appears even if the scans that found it were for other readers and nothing
    /// changed afterwards.
    #[test]
    fn change_found_by_another_scan_appears() {
        let store = Arc::new(Memory::new());
        write(&store, "running");
        let view = view(&store);
        let status = |view: &View| view.visible().members.first().map(|member| member.entry.status);
        assert_eq!(status(&view), Some(Status::Running));
        // Another reader scans twice before this one.
        let scan_twice = || drop((view.catalog.current_now(), view.catalog.current_now()));
        write(&store, "success");
        scan_twice();
        assert_eq!(status(&view), Some(Status::Completed));
        store.remove(&RelPath::parse("workers/w").unwrap());
        scan_twice();
        assert_eq!(status(&view), None);
    }

    #[test]
    fn a_worker_that_changes_in_its_place_changes_nothing_else() {
        let store = Arc::new(Memory::new());
        let write = |id: &str, more: &str| {
            let path = RelPath::parse(format!("workers/{id}/metadata.json")).unwrap();
            store.write(&path, format!(r#"{{"worker_id": "{id}", "run_id": "r", {more}}}"#));
        };
        let (created, later) =
            (r#""created_at": "2026-01-20T00:00:00Z""#, r#""created_at": "2026-01-21T00:00:00Z""#);
        write("a", created);
        write("b", &format!(r#""parent_id": "a", {created}"#));
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view =
            View::new(vec![Source::from_store(store.clone(), None)], fresh, Filter::default())
                .unwrap();
        let before = view.visible();
        // The changed worker is found through every list, and the name index is not rebuilt.
        let [a, b] = ["a", "b"].map(|id| Name::new(id).unwrap());
        write("b", &format!(r#""parent_id": "a", "status": "failed", {created}"#));
        let after = view.visible();
        assert!(after.generation > before.generation && after.arrangement == before.arrangement);
        let run = &after.runs.values().next().unwrap().members;
        for member in [&after.get(&b).unwrap(), &after.members[1], &run[1], &after.children(&a)[0]]
        {
            assert_eq!((&member.name, member.entry.status), (&b, Status::Failed));
        }
        // A changed position in the order rebuilds everything.
        write("a", later);
        let moved = view.visible();
        assert_ne!(moved.arrangement, after.arrangement);
        let names: Vec<_> = moved.members.iter().map(|member| member.name.clone()).collect();
        assert_eq!(names, [b, a]);
    }

    /// Promise: Four or more characters of an id stand for the only worker whose id begins so.
    #[test]
    fn beginning_of_an_id_stands_for_the_only_worker() {
        let store = Arc::new(Memory::new());
        let write = |id: &str, owner: &str| {
            let path = RelPath::parse(format!("workers/{id}/metadata.json")).unwrap();
            store.write(&path, format!(r#"{{"owner_id": "{owner}"}}"#));
        };
        for id in ["build", "build-1", "build-2", "deploy", "ab"] {
            write(id, "mine");
        }
        for number in 0..30 {
            write(&format!("crowd-{number:02}"), "mine");
        }
        for id in ["dep-theirs", "deploy-theirs", "only-theirs"] {
            write(id, "theirs");
        }
        let found = |owner: Option<&str>, id: &str| {
            let filter = Filter { owner: owner.map(str::to_owned), run: None };
            let sources = vec![Source::from_store(store.clone(), None)];
            let view = View::new(sources, Freshness::default(), filter).unwrap();
            view.find_worker(&Name::new(id).unwrap()).map(|member| member.name.display())
        };
        let mine = |id: &str| found(Some("mine"), id);
        for (id, name) in
            [("build", "build"), ("depl", "deploy"), ("build-1", "build-1"), ("ab", "ab")]
        {
            assert_eq!(mine(id), Ok(name.into()), "{id}");
        }
        for id in ["dep", "a", "none", "deployment", "only-theirs", "only"] {
            assert_eq!(mine(id), Err(Error::NotFound), "{id}");
        }
        let ambiguous = |ids: &str| Err(Error::AmbiguousId(ids.into()));
        assert_eq!(mine("buil"), ambiguous("build, build-1, build-2"));
        // Another owner's workers make no id ambiguous.
        assert_eq!(found(None, "depl"), ambiguous("deploy, deploy-theirs"));
        let first =
            (0..10).map(|number| format!("crowd-{number:02}")).collect::<Vec<_>>().join(", ");
        assert_eq!(mine("crowd"), ambiguous(&format!("{first}, 20 more")));
    }

    #[test]
    fn workers_of_one_id_have_names_that_are_no_other_workers_id() {
        let stores: Vec<Source> = [&["a", "a~2"][..], &["a"], &["a"]]
            .into_iter()
            .map(|ids| {
                let store = Memory::new();
                for id in ids {
                    store.write(
                        &RelPath::parse(format!("workers/{id}/metadata.json")).unwrap(),
                        "{}",
                    );
                }
                Source::from_store(Arc::new(store), None)
            })
            .collect();
        let visible = View::new(stores, Freshness::default(), Filter::default()).unwrap().visible();
        let id_and_source = |name: &str| {
            let member = visible.get(&Name::new(name).unwrap()).unwrap();
            (member.entry.id.0.display(), member.entry.source())
        };
        assert_eq!(visible.members.len(), 4);
        assert_eq!(
            ["a", "a~2", "a~3", "a~4"].map(id_and_source),
            [("a".into(), 0), ("a~2".into(), 0), ("a".into(), 1), ("a".into(), 2)]
        );
    }

    #[test]
    fn only_formats_with_virtual_folders_may_have_slow_stats() {
        let source = || Source::from_store(Arc::new(Memory::new()), None);
        let makes = |source| {
            View::new(vec![source], Freshness::default(), Filter::default())
                .unwrap()
                .has_virtual_folders()
        };
        assert!(!makes(source()));
        assert!(makes(source().with_format(Box::new(ClaudeCode::transcripts()))));
    }
}
