//! An opened store, shared by its workers and calls, the directory of a worker in it, opened for
//! changes, the index.json of the store, and its log of changes.
//!
//! Readers need no index: it is updated where another program made one. The size of the log stays
//! within a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::io::Errno;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::dir::{Dir, Durability, File, Lock, Metadata, from_io, lock_file};
use super::error::{During, Result, bad_content};
use super::lines::{self, MetadataMap, append_lines, to_document, to_line};
use super::registry;
use crate::audit::{self, AuditEntry, AuditPath, LogGroup, LogName};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{CALLS, INDEX, INDEX_MAX, METADATA};

/// Default limit of the log of changes, in bytes.
const AUDIT_MAX: u64 = 256 << 20;

#[derive(Debug, Clone)]
pub(super) struct WriteOptions {
    pub(super) durability: Durability,
    pub(super) audit_max: u64,
    pub(super) role: Option<String>,
    pub(super) space: Option<Arc<SpaceLimit>>,
    pub(super) check: Option<NewWorkerCheck>,
}

/// The bytes that files of a store may still grow by.
#[derive(Debug)]
pub struct SpaceLimit(AtomicU64);

impl SpaceLimit {
    pub fn new(bytes: u64) -> SpaceLimit {
        SpaceLimit(AtomicU64::new(bytes))
    }

    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Takes space for `bytes`.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if there is not as much. All later calls fail, too, until space is set again.
    pub(super) fn take(&self, bytes: usize) -> io::Result<()> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(bytes as u64)
        });
        if taken.is_err() {
            self.set(0);
            return Err(Errno::DQUOT.into());
        }
        Ok(())
    }

    pub fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Decides whether a worker that was created, with its id, may keep it.
#[derive(Clone)]
pub struct NewWorkerCheck(pub Arc<dyn Fn(&Name) -> bool + Send + Sync>);

impl fmt::Debug for NewWorkerCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewWorkerCheck")
    }
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions {
            durability: Durability::Full,
            audit_max: AUDIT_MAX,
            role: None,
            space: None,
            check: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct StoreFolder {
    pub(super) root: Dir,
    /// The directory of the workers: `workers/`, or the root itself in the flat layout.
    pub(super) workers: Dir,
    /// Path of the directory of the workers from the root.
    pub(super) workers_path: RelPath,
    pub(super) options: WriteOptions,
    pub(super) warnings: Mutex<Vec<String>>,
}

impl StoreFolder {
    /// Returns the path of the worker `id` from the root.
    pub(super) fn worker_path(&self, id: &Name) -> RelPath {
        self.workers_path.join(id)
    }

    /// Adds a change, or an attempt at one, to the log of changes. `paths` are relative to the
    /// worker's directory.
    ///
    /// The change has already happened, so an error of the log becomes a warning.
    pub(super) fn log<T>(
        &self,
        action: &str,
        worker: &str,
        paths: Vec<AuditPath>,
        result: &Result<T>,
    ) {
        let mut paths = paths;
        // The name may be one that was refused, so it is text.
        let folder = self.workers_path.to_text();
        let slash = if folder.is_empty() { "" } else { "/" };
        for file in &mut paths {
            file.path = format!("{folder}{slash}{worker}/{}", file.path);
        }
        self.log_in_store(action, Some(worker).filter(|worker| !worker.is_empty()), paths, result);
    }

    /// Adds a change, or an attempt at one, to the log of changes. `paths` are relative to the
    /// store.
    pub(super) fn log_in_store<T>(
        &self,
        action: &str,
        worker: Option<&str>,
        paths: Vec<AuditPath>,
        result: &Result<T>,
    ) {
        let mut entry = audit_entry(action, self.options.role.clone());
        entry.worker = worker.map(str::to_owned);
        entry.paths = paths;
        if let Err(error) = result {
            entry.result = error.to_string();
        }
        self.append_log(&entry);
    }

    /// Appends an entry to the log of changes. An error becomes a warning, except in a sandbox,
    /// where nobody can write the log.
    pub(super) fn append_log(&self, entry: &AuditEntry) {
        match append(&self.root, entry, self.options.audit_max) {
            Err(error) if error.errno() != Some(Errno::ROFS) => self.warn(error.to_string()),
            _ => {}
        }
    }

    /// Writes the entry of the worker `id` into the index of the store. The worker's own files
    /// count, so an error becomes a warning.
    pub(super) fn update_index(&self, id: &Name, if_missing: IfMissing) {
        let path = self.worker_path(id);
        let read = |folder: &Dir| registry::metadata(&self.root, id, folder);
        if let Err(error) = update_index(&self.workers, &path, id, if_missing, read) {
            self.warn(error.to_string());
        }
    }

    /// Takes space for `bytes` that a file grows by.
    ///
    /// # Errors
    ///
    /// There is not as much left.
    pub(super) fn take_space(&self, bytes: usize) -> io::Result<()> {
        self.options.space.as_ref().map_or(Ok(()), |space| space.take(bytes))
    }

    pub(super) fn warn(&self, problem: String) {
        self.warnings.lock().push(problem);
    }
}

#[derive(Debug)]
pub(super) struct WorkerFolder {
    store: Arc<StoreFolder>,
    folder: Dir,
    id: Name,
}

impl WorkerFolder {
    pub(super) fn open(store: Arc<StoreFolder>, id: &Name) -> Result<WorkerFolder> {
        let is_worker = |folder: &Dir| -> Result<bool, PathError> {
            Ok(folder.kind(&RelPath::constant(METADATA))?.is_some()
                || folder.kind(&RelPath::constant(CALLS))? == Some(Kind::Folder))
        };
        let opened = if is_temporary(id) {
            Ok(None)
        } else {
            let entered = match store.workers.enter(&id.clone().into()) {
                Err(PathError::Escape) => store.workers.enter_mount(id),
                entered => entered,
            };
            entered.and_then(|folder| Ok(is_worker(&folder)?.then_some(folder)))
        };
        match opened {
            Ok(Some(folder)) => Ok(WorkerFolder { store, folder, id: id.clone() }),
            // A link gets the same error as an absent worker.
            Ok(None) | Err(PathError::NotFound | PathError::NotADirectory | PathError::Escape) => {
                Err(registry::absence(&store.root, id))
            }
            Err(error) => Err(error).during("open", store.workers.path(), id.as_bytes()),
        }
    }

    pub(super) fn id(&self) -> &Name {
        &self.id
    }

    pub(super) fn folder(&self) -> &Dir {
        &self.folder
    }

    pub(super) fn store(&self) -> &StoreFolder {
        &self.store
    }

    /// Locks the worker and returns its metadata.
    ///
    /// # Errors
    ///
    /// [`Error::Finished`](super::Error::Finished) if it has finished.
    pub(super) fn lock_unfinished(&self) -> Result<(Lock, MetadataMap)> {
        let lock = self.folder.lock().during("lock", self.folder.path(), b"")?;
        let fields = lines::read(&self.folder)?;
        lines::must_be_unfinished(&fields, &self.id)?;
        Ok((lock, fields))
    }

    /// Appends whole lines to the file `name` in the worker's directory, and waits until they are
    /// on disk.
    pub(super) fn append(&self, _lock: &Lock, name: &str, lines: &[u8]) -> Result<()> {
        self.append_and(name, lines, |file| self.folder.sync_file(file))
    }

    pub(super) fn append_without_sync(&self, _lock: &Lock, name: &str, lines: &[u8]) -> Result<()> {
        self.append_and(name, lines, |_| Ok(()))
    }

    fn append_and(
        &self,
        name: &str,
        lines: &[u8],
        sync: impl FnOnce(&File) -> Result<(), PathError>,
    ) -> Result<()> {
        let append = || {
            let mut file = self.folder.open_append(&Name::new(name)?)?;
            let is_complete =
                |line: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
            append_lines(&mut file, lines, is_complete, sync)
        };
        let removed = append().during("write", self.folder.path(), name.as_bytes())?;
        if removed > 0 {
            self.store.warn(format!(
                "{name} of worker {}: removed {removed} bytes of a line that was not complete",
                self.id.display()
            ));
        }
        Ok(())
    }
}

/// The fields of the metadata that an entry repeats.
const REPEATED: [&str; 7] =
    ["owner_id", "task", "task_type", "tags", "status", "summary", "created_at"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    Leave,
    Create,
}

/// Writes the entry of the worker `id` into the index beside the workers. `worker_path` is the path
/// of the worker from the root of the store, and `read` reads its metadata.
///
/// # Errors
///
/// The index cannot be read or written, or is not understood; it stays as it was then.
pub(super) fn update_index(
    workers: &Dir,
    worker_path: &RelPath,
    id: &Name,
    missing: IfMissing,
    read: impl FnOnce(&Dir) -> Result<MetadataMap>,
) -> Result<()> {
    let (path, file) = (workers.path(), INDEX.as_bytes());
    let name = Name::new(INDEX).during("update", path, file)?;
    // Nothing is locked where there is no index.
    let existing = workers.kind(&name.clone().into()).during("find", path, file)?;
    if missing == IfMissing::Leave && existing.is_none() {
        return Ok(());
    }
    let _lock = workers.lock().during("lock", path, b"")?;
    let mut index = match workers.read(&name, INDEX_MAX).during("read", path, file)? {
        Some(bytes) => {
            serde_json::from_slice(&bytes).map_err(|_| bad_content(path, INDEX, "it is no JSON"))?
        }
        None if missing == IfMissing::Leave => return Ok(()),
        None => json!({"workers": []}),
    };
    // Read under the lock: another process may have finished the worker meanwhile.
    let folder = workers.enter(&id.clone().into()).during("open", path, id.as_bytes())?;
    let entry = entry(worker_path, id, &read(&folder)?);
    let entries = entries_of(&mut index, path)?;
    let count = insert(entries, id, entry);
    save(workers, &name, &mut index, count)
}

/// Removes the entries of the workers `ids`. A store without an index has none.
///
/// # Errors
///
/// The index cannot be read or written, or is not understood; it stays as it was then.
pub(super) fn remove_from_index(workers: &Dir, ids: &BTreeSet<Name>) -> Result<()> {
    let (path, file) = (workers.path(), INDEX.as_bytes());
    let name = Name::new(INDEX).during("update", path, file)?;
    if workers.kind(&name.clone().into()).during("find", path, file)?.is_none() {
        return Ok(());
    }
    let _lock = workers.lock().during("lock", path, b"")?;
    let Some(bytes) = workers.read(&name, INDEX_MAX).during("read", path, file)? else {
        return Ok(());
    };
    let mut index =
        serde_json::from_slice(&bytes).map_err(|_| bad_content(path, INDEX, "it is no JSON"))?;
    let entries = entries_of(&mut index, path)?;
    let before = entries.len();
    entries.retain(|entry| {
        let id = id_of(entry).and_then(|id| Name::new(id).ok());
        id.is_none_or(|id| !ids.contains(&id))
    });
    let count = entries.len();
    if count == before {
        return Ok(());
    }
    save(workers, &name, &mut index, count)
}

fn entries_of<'a>(index: &'a mut Value, path: &Path) -> Result<&'a mut Vec<Value>> {
    let entries = match index {
        Value::Array(entries) => Some(entries),
        Value::Object(object) => object.get_mut("workers").and_then(Value::as_array_mut),
        _ => None,
    };
    entries.ok_or_else(|| bad_content(path, INDEX, "it has no list of workers"))
}

fn save(workers: &Dir, name: &Name, index: &mut Value, count: usize) -> Result<()> {
    if let Value::Object(object) = &mut *index {
        object.insert("total_workers".into(), count.into());
        object.insert("last_updated".into(), lines::time(Timestamp::now()).into());
    }
    let write = || {
        let bytes = to_document(index)?;
        workers.write_temporary(&mut bytes.as_slice())?.replace(workers, name)
    };
    write().during("write", workers.path(), INDEX.as_bytes())
}

fn id_of(entry: &Value) -> Option<&str> {
    entry.get("id").or_else(|| entry.get("worker_id")).and_then(Value::as_str)
}

/// Replaces or adds the entry of a worker. Returns the number of entries.
fn insert(entries: &mut Vec<Value>, id: &Name, entry: Map<String, Value>) -> usize {
    let is_same =
        |other: &Value| id_of(other).is_some_and(|other| other.as_bytes() == id.as_bytes());
    match entries.iter_mut().find(|entry| is_same(entry)) {
        // Fields of other writers are kept.
        Some(Value::Object(existing)) => existing.extend(entry),
        Some(existing) => *existing = entry.into(),
        None => entries.push(entry.into()),
    }
    entries.len()
}

fn entry(path: &RelPath, id: &Name, fields: &MetadataMap) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("id".into(), id.to_text().into());
    entry.insert("path".into(), path.to_text().into());
    for key in REPEATED {
        entry.extend(fields.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    entry
}

/// Share of the limit that one file may have. The oldest file is removed as a whole, so a limit
/// needs several.
const FILES: u64 = 16;
/// Share of a file's limit that is written between two checks of the limit of the log.
const CHECKS: u64 = 8;
/// Limit of one file, in bytes, however large the log may be. Readers read as much.
const FILE_MAX: u64 = 64 << 20;
/// Attempts to find a file with room, against other processes that fill or remove it.
const ATTEMPTS: u32 = 100;

/// Appends `entry` to the log beneath `root`. Old files are removed until all have at most `limit`
/// bytes.
///
/// # Errors
///
/// The log cannot be written.
pub(super) fn append(root: &Dir, entry: &AuditEntry, limit: u64) -> Result<()> {
    let folder = Path::new(audit::FOLDER);
    append_to(root, entry, limit).during("write the log of changes", &root.path().join(folder), b"")
}

fn append_to(root: &Dir, entry: &AuditEntry, limit: u64) -> Result<(), PathError> {
    let folder = root.enter_or_create(&Name::new(audit::FOLDER)?)?;
    let (line, day) = (to_line(entry)?, audit::day(entry.time));
    match append_line(&folder, &line, day.clone(), LogGroup::default(), limit) {
        // A file of another user may be closed to this one, or no file at all. This user then
        // writes a file of its own.
        Err(error) if is_closed(&error) => {
            let group = LogGroup { uid: Some(entry.uid), pid: None };
            append_line(&folder, &line, day, group, limit).map(drop)
        }
        appended => appended.map(drop),
    }
}

/// Appends whole lines of `group` to the log in `folder`, whose files have the names of
/// [`LogName`]. `day` is the day of the first entry. Files are removed until all have at most about
/// `limit` bytes. Returns the number of entries in them.
///
/// # Errors
///
/// The log cannot be written.
pub fn append_line(
    folder: &Dir,
    line: &[u8],
    day: String,
    group: LogGroup,
    limit: u64,
) -> Result<u64, PathError> {
    let mut log = latest(folder, day, group)?;
    for _ in 0..ATTEMPTS {
        let name = log.to_name()?;
        let mut file = folder.open_append(&name)?;
        lock_file(&file)?;
        let meta = file.metadata().map_err(from_io)?;
        // Another process removed it between the open and the lock.
        if meta.nlink() == 0 {
            continue;
        }
        let size = meta.len();
        if size > 0 && size.saturating_add(line.len() as u64) > file_max(limit) {
            log.part += 1;
            continue;
        }
        let is_complete = |line: &[u8]| serde_json::from_slice::<IgnoredAny>(line).is_ok();
        append_lines(&mut file, line, is_complete, |_| Ok(()))?;
        let step = (file_max(limit) / CHECKS).max(1);
        let size_after = size + line.len() as u64;
        let is_due = size == 0 || size / step != size_after / step;
        let room = file_max(limit).max(size_after);
        return if is_due { remove_oldest(folder, &log, room, limit) } else { Ok(0) };
    }
    Err(PathError::Io(Errno::BUSY))
}

fn file_max(limit: u64) -> u64 {
    (limit / FILES).min(FILE_MAX)
}

/// Returns the name of the latest file of a day and a group. Earlier ones are full, or were
/// removed.
fn latest(folder: &Dir, day: String, group: LogGroup) -> Result<LogName, PathError> {
    let names = folder.list()?;
    let logs = names.iter().filter_map(LogName::parse);
    let latest = logs.filter(|log| log.day == day && log.group == group).max();
    Ok(latest.unwrap_or(LogName { day, part: 1, group }))
}

/// Returns true if a file cannot be opened for writing by this user.
fn is_closed(error: &PathError) -> bool {
    let is_denied = matches!(error, PathError::Io(Errno::ACCESS | Errno::PERM));
    is_denied || error.is_not_a_file()
}

/// Removes files of the log until the others, and `room` for `current`, are within `limit`. Returns
/// the number of entries in them.
fn remove_oldest(folder: &Dir, current: &LogName, room: u64, limit: u64) -> Result<u64, PathError> {
    let mut files = Vec::new();
    for name in folder.list()? {
        if let Some(log) = LogName::parse(&name).filter(|log| log != current)
            && let Some(meta) = folder.meta(&name)?.filter(Metadata::is_file)
        {
            files.push((log, name, meta.len()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(.., size)| size).sum::<u64>() + room;
    let mut removed = 0;
    while total > limit {
        let group = heaviest_group(&files);
        let Some(at) = files.iter().position(|(log, ..)| group == Some(log.group)) else { break };
        let (_, name, size) = files.remove(at);
        // A file that cannot be read is removed uncounted.
        let contents = folder.read(&name, FILE_MAX).ok().flatten().unwrap_or_default();
        match folder.remove_all(&name) {
            Ok(()) => {
                total -= size;
                removed += memchr::memchr_iter(b'\n', &contents).count() as u64;
            }
            // A file of another user in a directory with the sticky bit.
            Err(error) if is_closed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

/// Returns the group that loses entries next: the user with the most bytes, and the process with
/// the most of that user. The processes with files of their own are compared together with all
/// others of their user first, so that many of them remove no more than one.
fn heaviest_group(files: &[(LogName, Name, u64)]) -> Option<LogGroup> {
    let groups = files.iter().map(|(log, _, size)| (log.group, *size));
    let uid = heaviest(groups.clone().map(|(group, size)| (group.uid, size)))?;
    let of_user = groups.filter(|(group, _)| group.uid == uid);
    let has_pid = heaviest(of_user.clone().map(|(group, size)| (group.pid.is_some(), size)))?;
    heaviest(of_user.filter(|(group, _)| group.pid.is_some() == has_pid))
}

/// Returns the key with the largest sum of sizes.
fn heaviest<K: Ord>(sizes: impl Iterator<Item = (K, u64)>) -> Option<K> {
    let mut sums: BTreeMap<K, u64> = BTreeMap::new();
    sizes.for_each(|(key, size)| *sums.entry(key).or_default() += size);
    sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(key, _)| key)
}

pub(super) fn audit_entry(action: &str, role: Option<String>) -> AuditEntry {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    AuditEntry {
        time: Timestamp::now(),
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id(),
        program: program.to_string_lossy().into_owned(),
        role,
        action: action.to_owned(),
        worker: None,
        paths: Vec::new(),
        result: "ok".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_the_most_entries_lose_the_next_ones() {
        let next = |files: &[(u32, Option<u32>, u64)]| {
            let file = |(uid, pid, size): &(u32, Option<u32>, u64)| {
                let group = LogGroup { uid: Some(*uid), pid: *pid };
                let log = LogName { day: "2026-01-20".to_owned(), part: 1, group };
                let name = log.to_name().unwrap();
                (log, name, *size)
            };
            let files: Vec<_> = files.iter().map(file).collect();
            heaviest_group(&files).map(|group| (group.uid.unwrap(), group.pid))
        };
        assert_eq!(next(&[]), None);
        // Users first, then the processes of one.
        assert_eq!(next(&[(1, None, 5), (2, None, 3), (2, Some(7), 3)]), Some((2, Some(7))));
        assert_eq!(next(&[(1, None, 5), (1, Some(7), 3), (1, Some(8), 1)]), Some((1, None)));
        assert_eq!(next(&[(1, None, 5), (1, Some(7), 2), (1, Some(8), 4)]), Some((1, Some(8))));
    }
}
