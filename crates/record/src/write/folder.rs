//! An opened store, shared by its workers and calls, the directory of a worker in it, opened for
//! changes, and the index.json of the store.
//!
//! Readers need no index: it is updated where another program made one.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::audit_log;
use super::dir::{Dir, Durability, File, Lock};
use super::error::{During, Error, Result, bad_content};
use super::lines::{append_lines, to_document};
use super::metadata::{self, MetadataMap};
use super::registry;
use crate::audit::{AuditEntry, AuditPath};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{CALLS, INDEX, INDEX_MAX, METADATA};

/// Default limit of the log of changes, in bytes.
const AUDIT_MAX: u64 = 256 << 20;

#[derive(Debug, Clone)]
pub(super) struct WriteOptions {
    pub(super) durability: Durability,
    pub(super) audit_max: u64,
    pub(super) role: Option<String>,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions { durability: Durability::Full, audit_max: AUDIT_MAX, role: None }
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
        let mut entry = audit_log::entry(action, self.options.role.clone());
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
        match audit_log::append(&self.root, entry, self.options.audit_max) {
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
                let store = printable(store.root.path().as_os_str().as_encoded_bytes());
                Err(Error::NoWorker { worker: id.display(), store })
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
    /// [`Error::Finished`] if it has finished.
    pub(super) fn lock_unfinished(&self) -> Result<(Lock, MetadataMap)> {
        let lock = self.folder.lock().during("lock", self.folder.path(), b"")?;
        let fields = metadata::read(&self.folder)?;
        metadata::must_be_unfinished(&fields, &self.id)?;
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
        object.insert("last_updated".into(), metadata::time(Timestamp::now()).into());
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
