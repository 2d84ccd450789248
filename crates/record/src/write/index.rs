//! The index.json of a store. Readers need none: it is updated where another program made one.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::dir::Dir;
use super::error::{During, Result, bad_content};
use super::lines::to_document;
use super::metadata::{self, MetadataMap};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_trace::swarmlet::{INDEX, INDEX_MAX};

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
pub(super) fn update(
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
pub(super) fn remove(workers: &Dir, ids: &BTreeSet<Name>) -> Result<()> {
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
