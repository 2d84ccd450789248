//! Scan of all stores for new, changed and removed workers. Unchanged entries are reused.
//!
//! Parsed workers are cached on disk, so that the next start need not read the metadata of
//! unchanged workers. The workers of a store are split over several cache entries. The key of an
//! entry covers everything that decides which bytes of the store are read ([`Source::scope`]) and
//! the number of the entry. A cached worker is used only if the metadata fingerprint that it was
//! parsed from is unchanged. Workers that may change or have flaws are not cached.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::entry::{CheckState, MetadataFingerprint, PackedFields, encode};
use super::watcher::Watcher;
use super::{Entry, EntryChange, Freshness, ScanTiming, Snapshot, Source};
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{
    Interner, Owner, SharedStr, SkipReason, SkipReport, Skipped, Status, Worker,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::store::{Store, TICK_MAX};

/// Result of a scan, with the first error from listing a store.
pub(super) struct ScanResult {
    pub(super) snapshot: Snapshot,
    pub(super) error: Option<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanScope {
    /// All workers except finished ones that were checked recently.
    All,
    /// New workers. Known entries are reused unchecked, and entries of removed workers are dropped.
    NewOnly,
}

pub(super) struct ScanContext<'a> {
    scope: ScanScope,
    /// Cached workers of each store; empty after the first scan.
    persisted: &'a [PersistedWorkers],
    watcher: Option<&'a Watcher>,
    words: Mutex<Interner>,
}

impl<'a> ScanContext<'a> {
    pub(super) fn new(watcher: Option<&'a Watcher>) -> ScanContext<'a> {
        ScanContext { scope: ScanScope::All, persisted: &[], watcher, words: Mutex::default() }
    }

    /// Makes `worker` share equal words with other workers and with its `previous` entry.
    fn intern(&self, worker: &mut Worker, previous: Option<&Entry>) {
        let mut words = self.words.lock();
        previous.iter().for_each(|previous| previous.intern_into(&mut words));
        let fields = [
            worker.owner.as_mut().map(|owner| &mut owner.0),
            worker.run.as_mut(),
            worker.parent.as_mut(),
        ];
        fields.into_iter().flatten().for_each(|word| *word = words.intern(word.clone()));
    }
}

/// Scans all stores for the first time. Unchanged workers come from the cache.
pub(super) fn scan_first(sources: &[Source], freshness: Freshness) -> ScanResult {
    let persisted: Vec<PersistedWorkers> = sources.iter().map(PersistedWorkers::load).collect();
    let context = ScanContext { persisted: &persisted, ..ScanContext::new(None) };
    let result = scan_from(sources, None, freshness, &context);
    for (number, (source, persisted)) in sources.iter().zip(&persisted).enumerate() {
        persisted.save_if_outdated(source, number, &result.snapshot.entries);
    }
    result
}

pub(super) fn scan(
    sources: &[Source],
    previous: &Snapshot,
    scope: ScanScope,
    freshness: Freshness,
    watcher: Option<&Watcher>,
) -> ScanResult {
    let context = ScanContext { scope, ..ScanContext::new(watcher) };
    // New workers often share their words with the last one.
    previous.entries.last().iter().for_each(|last| last.intern_into(&mut context.words.lock()));
    scan_from(sources, Some(previous), freshness, &context)
}

fn scan_from(
    sources: &[Source],
    previous: Option<&Snapshot>,
    freshness: Freshness,
    context: &ScanContext<'_>,
) -> ScanResult {
    let (start, mut listing_cost, mut new_workers) = (Instant::now(), Duration::ZERO, 0);
    let previous_of = |number: usize| {
        let all = previous.map(|previous| previous.entries.as_slice()).unwrap_or_default();
        all.iter().filter(move |entry| entry.source == number)
    };
    let mut entries = Vec::with_capacity(previous.map_or(0, |previous| previous.entries.len()));
    let (mut skip_reports, mut problems, mut unread, mut first_error) =
        (Vec::new(), Vec::new(), Vec::new(), None);
    for (number, source) in sources.iter().enumerate() {
        let listing_start = Instant::now();
        let found = source.format.find_workers(&*source.store);
        listing_cost += listing_start.elapsed();
        let mut found = match found {
            Ok(found) => found,
            Err(error) => {
                // Keeps the previous entries: a temporary failure to list the store does not remove
                // its workers.
                warn!("cannot list the store {}: {error}", source.store.describe());
                problems.push(format!("a store could not be listed: {error}"));
                entries.extend(previous_of(number).cloned());
                first_error.get_or_insert(error);
                skip_reports.push(SkipReport::default());
                continue;
            }
        };
        // The open directory has no name any more.
        if source.store.stat(&RelPath::root()).is_ok_and(|root| root.nlink == 0) {
            problems.push("the folder of a store was removed".into());
        }
        problems.extend(source.outages());
        unread.extend(found.incomplete.into_iter().map(|root| (number, root)));
        found.folders.retain(|folder| source.admits(folder));
        let folders = match_previous(&found.folders, previous_of(number).collect());
        let checked = parallel_map(&folders, |&(folder, old)| match old {
            Some(old)
                if context.scope == ScanScope::NewOnly || !is_check_due(source, old, freshness) =>
            {
                Ok(Some(Arc::clone(old)))
            }
            _ => check_folder(source, number, folder, old, context),
        });
        let mut skip_report = found.skipped;
        for ((folder, old), checked) in folders.into_iter().zip(checked) {
            let entry = entry_or_skip(folder, old, checked, &mut skip_report);
            new_workers += usize::from(entry.is_some() && old.is_none());
            entries.extend(entry);
        }
        skip_reports.push(skip_report);
    }
    let mut skipped = Skipped::default();
    skip_reports.iter().for_each(|report| skipped += report);
    let changes = previous.and_then(|previous| changes(&previous.entries, &entries));
    let has_changed = previous.is_none_or(|previous| {
        changes.as_ref().is_none_or(|changes| !changes.is_empty())
            || previous.skip_reports != skip_reports
            || previous.problems != problems
            || previous.unread != unread
    });
    let generation = previous.map_or(0, |previous| previous.generation) + u64::from(has_changed);
    // The generation stays the same, so readers of the one before it still need these changes.
    let changes =
        if has_changed { changes } else { previous.and_then(|previous| previous.changes.clone()) };
    let whole_scan = ScanTiming { start, cost: start.elapsed() };
    let listing = ScanTiming { start, cost: listing_cost };
    let (checked, listed) = match previous.filter(|_| context.scope == ScanScope::NewOnly) {
        // A new worker is checked only once, so its cost does not count. Directories that are not
        // workers are checked in every scan.
        Some(previous) if new_workers == 0 => (previous.checked, whole_scan),
        Some(previous) => (previous.checked, listing),
        None => (whole_scan, listing),
    };
    let snapshot = Snapshot {
        generation,
        entries,
        skipped,
        skip_reports,
        problems,
        unread,
        changes,
        checked,
        listed,
    };
    ScanResult { snapshot, error: first_error }
}

/// Returns the entry of a checked directory, or `old` if the check failed. Adds the directory to
/// `report` if it exists but is not shown.
fn entry_or_skip(
    folder: &RelPath,
    old: Option<&Arc<Entry>>,
    checked: Result<Option<Arc<Entry>>>,
    report: &mut SkipReport,
) -> Option<Arc<Entry>> {
    match (checked, old) {
        (Ok(Some(entry)), _) => return Some(entry),
        (Ok(None), _) => report.add(folder.clone(), SkipReason::NotAWorker, None),
        (Err(Error::NotFound | Error::NotADirectory), _) => {}
        // Like a symlink, a foreign mount is counted and not followed.
        (Err(Error::Escape), _) => report.add(folder.clone(), SkipReason::ForeignMount, None),
        (Err(_), Some(old)) => return Some(Arc::clone(old)),
        (Err(error), None) => {
            // Omits the name: the log is also written for views that may not see this worker.
            warn!("cannot read a folder of a store: {error}");
            report.add(folder.clone(), SkipReason::Unreadable, Some(error));
        }
    }
    None
}

fn match_previous<'a>(
    folders: &'a [RelPath],
    previous: Vec<&'a Arc<Entry>>,
) -> Vec<(&'a RelPath, Option<&'a Arc<Entry>>)> {
    // Usually the order is unchanged, and only directories that are not workers have no entry.
    let mut rest = previous.iter().copied().peekable();
    let in_order = folders
        .iter()
        .map(|folder| (folder, rest.next_if(|entry| entry.root == *folder)))
        .collect();
    if rest.peek().is_none() {
        return in_order;
    }
    let by_root: HashMap<&RelPath, &Arc<Entry>> =
        previous.into_iter().map(|entry| (&entry.root, entry)).collect();
    folders.iter().map(|folder| (folder, by_root.get(folder).copied())).collect()
}

/// Maximum length of a list of changes. A longer list would keep too many old entries in memory.
pub(super) const CHANGES_MAX: usize = 64;

/// Lists the entries that were replaced since `previous`. Returns `None` if workers were added or
/// removed, or if too many entries changed.
fn changes(previous: &[Arc<Entry>], current: &[Arc<Entry>]) -> Option<Vec<EntryChange>> {
    if previous.len() != current.len() {
        return None;
    }
    let mut changes = Vec::new();
    for (old, new) in previous.iter().zip(current).filter(|(old, new)| !Arc::ptr_eq(old, new)) {
        if (old.source, &old.root) != (new.source, &new.root) {
            return None;
        }
        if changes.len() == CHANGES_MAX {
            return None;
        }
        changes.push(EntryChange { old: old.clone(), new: new.clone() });
    }
    Some(changes)
}

/// Returns true if a worker must be checked again. The time between two checks of a finished worker
/// is spread by its key, so that not all are due at once.
fn is_check_due(source: &Source, entry: &Entry, freshness: Freshness) -> bool {
    let [spread, ..] = entry.key;
    let interval = freshness.finished / 2 + freshness.finished * u32::from(spread) / 512;
    !entry.is_past_tick() || !source.is_settled(entry, freshness) || !entry.was_checked(interval)
}

const REREADS_MAX: usize = 3;

/// Checks one directory in the store `number`. Returns `old` if it is unchanged, a new entry if it
/// changed, and `None` if it is not a worker.
pub(super) fn check_folder(
    source: &Source,
    number: usize,
    path: &RelPath,
    old: Option<&Arc<Entry>>,
    context: &ScanContext<'_>,
) -> Result<Option<Arc<Entry>>> {
    // Entered once, so that the fingerprint and the metadata are of the same directory.
    let folder = source.format.enter(&*source.store, path)?;
    let mut entry = read_entry(source, &*folder, number, path, old, context)?;
    let watcher = context.watcher.filter(|_| source.can_watch());
    for _ in 0..REREADS_MAX {
        match (watcher, &entry) {
            // Reads again after adding the watch: it does not report earlier changes.
            (Some(watcher), Some(read))
                if read.is_unfinished() && watcher.watch_unfinished(read, &*folder) =>
            {
                entry = read_entry(source, &*folder, number, path, entry.as_ref(), context)?;
            }
            _ => break,
        }
    }
    Ok(entry)
}

/// Reads the entry of `folder`, which lies at `path` in the store `number`. Returns `old` if the
/// metadata is unchanged, and `None` if the directory is not a worker.
fn read_entry(
    source: &Source,
    folder: &dyn Store,
    number: usize,
    path: &RelPath,
    old: Option<&Arc<Entry>>,
    context: &ScanContext<'_>,
) -> Result<Option<Arc<Entry>>> {
    let (now, start) = (Instant::now(), SystemTime::now());
    let Some(state) = source.format.folder_state(folder, path)? else { return Ok(None) };
    let is_stale = source.is_stale(state.newest_write, start);
    // A worker that becomes stale counts as changed.
    let metadata_key = if is_stale { stale_key(&state.key) } else { state.key };
    let unchanged = old.filter(|old| old.metadata.key == metadata_key);
    let past_tick = state.newest_change.was_past_tick(start)
        || unchanged.is_some_and(|old| now >= old.metadata.first_seen + TICK_MAX);
    if let Some(old) = unchanged.filter(|old| old.whole && old.is_past_tick()) {
        old.mark_checked(now);
        return Ok(Some(Arc::clone(old)));
    }
    // Another directory under the old name is not related to the old worker.
    let same_folder = old.filter(|old| old.metadata.identity == state.identity);
    let last_good = same_folder.map(|old| old.worker());
    let persisted =
        context.persisted.get(number).and_then(|workers| workers.take(path, metadata_key));
    let mut worker =
        persisted.unwrap_or_else(|| source.format.read_worker(folder, path, last_good.as_ref()));
    // A copy of an old session is not running because its file is new.
    let is_stale =
        is_stale || source.is_copied(state.newest_write, worker.last_message.map(Into::into));
    if is_stale {
        worker.abandon();
    }
    if let Some(old) = unchanged.filter(|_| last_good.is_some_and(|last_good| last_good == worker))
    {
        old.past_tick.store(past_tick, Ordering::Relaxed);
        old.mark_checked(now);
        return Ok(Some(Arc::clone(old)));
    }
    let mut key = entry_key(state.key, unchanged.is_none(), &worker);
    if worker.status == Status::Abandoned {
        key = stale_key(&key);
    }
    let metadata = MetadataFingerprint {
        identity: state.identity,
        key: metadata_key,
        last_write: state.newest_write,
        is_stale,
        first_seen: now,
    };
    // A worker that changed recently is likely to change again.
    let changed_at = old.and_then(|old| old.check_state.lock().changed_at);
    let check_state = CheckState { checked_at: Some(now), changed_at, fingerprint: None };
    context.intern(&mut worker, same_folder.map(|old| &**old));
    let format = source.format.name();
    let entry = Entry::new(worker, number, format, key, metadata, past_tick, check_state);
    Ok(Some(Arc::new(entry)))
}

fn stale_key(key: &[u8; 16]) -> [u8; 16] {
    digest(blake3::Hasher::new().update(b"stale").update(key))
}

/// Returns a hash of everything parsed of a worker.
///
/// A complete record follows from the metadata fingerprint `metadata_key` if that `is_new`.
/// Otherwise the record also depends on the previous one and on which files were readable.
fn entry_key(metadata_key: Key, is_new: bool, worker: &Worker) -> Key {
    if is_new && worker.is_complete && !worker.is_torn() {
        return metadata_key;
    }
    digest(blake3::Hasher::new().update(&metadata_key).update(&encode(worker)))
}

/// Number of uncached workers from which on the cache is written again.
const UNCACHED_MIN: u64 = 256;
const CHUNK_WORKERS: usize = 16_384;
const CHUNKS_MAX: u32 = 64;

/// Cached workers of a store by path. [`PersistedWorkers::take`] removes each, to save memory with
/// very many workers.
#[derive(Default)]
pub(super) struct PersistedWorkers(
    HashMap<RelPath, (Key, Mutex<Option<PersistedWorker<'static>>>)>,
);

#[derive(Serialize, Deserialize)]
struct PersistedWorker<'a> {
    key: Key,
    root: Cow<'a, [u8]>,
    /// Id of the worker if it differs from the name of its directory.
    id: Option<Cow<'a, [u8]>>,
    owner: Option<SharedStr>,
    run: Option<SharedStr>,
    parent: Option<SharedStr>,
    status: Status,
    packed: Cow<'a, PackedFields>,
}

impl PersistedWorkers {
    pub(super) fn load(source: &Source) -> PersistedWorkers {
        let Some(cache) = source.cache().filter(|_| source.is_whole()) else {
            return PersistedWorkers::default();
        };
        let (scope, mut workers) = (source.scope(), HashMap::new());
        for number in 0..CHUNKS_MAX {
            let body = cache.get(chunk_key(scope, number)).and_then(|entry| entry.body());
            let chunk: Vec<PersistedWorker<'static>> =
                body.and_then(|body| postcard::from_bytes(&body).ok()).unwrap_or_default();
            // Chunks behind one that is not full are left over from a larger store.
            let is_last = chunk.len() < CHUNK_WORKERS;
            workers.extend(chunk.into_iter().filter_map(|worker| {
                let root = RelPath::parse(&worker.root).ok()?;
                Some((root, (worker.key, Mutex::new(Some(worker)))))
            }));
            if is_last {
                break;
            }
        }
        PersistedWorkers(workers)
    }

    /// Removes and returns the worker at `root` if it was parsed from metadata with this
    /// fingerprint key.
    pub(super) fn take(&self, root: &RelPath, metadata_key: Key) -> Option<Worker> {
        let (_, worker) = self.0.get(root).filter(|(key, _)| *key == metadata_key)?;
        worker.lock().take()?.into_worker(root)
    }

    fn had(&self, root: &RelPath, metadata_key: Key) -> bool {
        self.0.get(root).is_some_and(|(key, _)| *key == metadata_key)
    }

    /// Writes the workers of the store `number` to the cache, unless nearly all were loaded from
    /// it.
    fn save_if_outdated(&self, source: &Source, number: usize, entries: &[Arc<Entry>]) {
        let Some(cache) = source.cache().filter(|_| source.is_whole()) else { return };
        let cacheable =
            || entries.iter().filter(|entry| entry.source == number && is_cacheable(entry));
        let uncached =
            cacheable().filter(|entry| !self.had(&entry.root, entry.metadata.key)).count();
        if uncached as u64 >= cache.threshold(UNCACHED_MIN) {
            save(cache, source.scope(), cacheable());
        }
    }
}

/// Returns true if parsing the worker again at the next start would give an equal record.
fn is_cacheable(entry: &Entry) -> bool {
    entry.whole && entry.flaws.is_empty() && entry.is_past_tick()
}

fn save<'a>(cache: &DiskCache, scope: Key, mut entries: impl Iterator<Item = &'a Arc<Entry>>) {
    for number in 0..CHUNKS_MAX {
        let chunk: Vec<PersistedWorker<'_>> =
            entries.by_ref().take(CHUNK_WORKERS).map(|entry| PersistedWorker::new(entry)).collect();
        let is_last = chunk.len() < CHUNK_WORKERS;
        if let Ok(body) = postcard::to_stdvec(&chunk) {
            cache.put(chunk_key(scope, number), Vec::new(), body);
        }
        if is_last {
            break;
        }
    }
}

fn chunk_key(scope: Key, number: u32) -> Key {
    key("workers", &[&scope, &number.to_le_bytes()])
}

impl<'a> PersistedWorker<'a> {
    fn new(entry: &'a Entry) -> PersistedWorker<'a> {
        let is_folder_name = entry.root.file_name().as_ref() == Some(&entry.id.0);
        PersistedWorker {
            key: entry.metadata.key,
            root: entry.root.as_bytes().into(),
            id: (!is_folder_name).then(|| entry.id.0.as_bytes().into()),
            owner: entry.owner.clone().map(|owner| owner.0),
            run: entry.run.clone(),
            parent: entry.parent.clone(),
            status: entry.status,
            packed: Cow::Borrowed(&entry.packed),
        }
    }

    /// Decodes the worker at `root`. Returns `None` if the encoding is invalid.
    fn into_worker(self, root: &RelPath) -> Option<Worker> {
        let name = match self.id {
            Some(id) => Name::new(id).ok()?,
            None => root.file_name()?,
        };
        let mut worker = Worker {
            owner: self.owner.map(Owner),
            run: self.run,
            parent: self.parent,
            status: self.status,
            ..Worker::new(name, root.clone())
        };
        self.packed.unpack(&mut worker)?;
        Some(worker)
    }
}
