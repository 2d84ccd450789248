//! The store's index.json: an object with `workers`, or a bare array of metadata copies. It only fills gaps.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::metadata::{status_of, string, strings};
use super::{hash_meta, present, short};
use crate::model::Status;
use crate::name::{Name, RelPath};
use crate::store::{Meta, Store, read_whole};

/// Where the index can lie, from the store's root.
pub(super) const FILES: [&str; 2] = ["workers/index.json", "index.json"];
/// A larger one is not read, in bytes.
const SIZE_MAX: u64 = 256 << 20;

/// What an index says of one worker.
#[derive(Debug, Default)]
pub(super) struct IndexEntry {
    pub(super) task: Option<String>,
    pub(super) task_type: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) summary: Option<String>,
    pub(super) status: Option<(Status, String)>,
    pub(super) created_at: Option<String>,
    /// Changes with any of the above.
    pub(super) digest: [u8; 16],
}

/// All entries by worker, and the state of the files they came from.
#[derive(Debug, Default)]
pub(super) struct Index {
    key: [u8; 16],
    entries: HashMap<Name, Arc<IndexEntry>>,
}

impl Index {
    pub(super) fn get(&self, id: &Name) -> Option<Arc<IndexEntry>> {
        self.entries.get(id).cloned()
    }
}

/// The index as it is now; `known` again if the files are unchanged, or torn just now.
pub(super) fn refresh(store: &dyn Store, known: Arc<Index>) -> Arc<Index> {
    let paths: Vec<RelPath> = FILES.iter().filter_map(|path| RelPath::parse(path).ok()).collect();
    let metas: Vec<Option<Meta>> = paths.iter().map(|path| present(store.stat(path)).ok().flatten()).collect();
    let mut hash = blake3::Hasher::new();
    metas.iter().for_each(|meta| hash_meta(&mut hash, meta.as_ref()));
    let key = short(&hash);
    if key == known.key {
        return known;
    }
    let mut entries = HashMap::new();
    for (path, _) in paths.iter().zip(&metas).filter(|(_, meta)| meta.is_some()) {
        let Ok(Some(bytes)) = read_whole(store, path, SIZE_MAX) else { continue };
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(index) => add(&mut entries, index),
            // Rewritten in place: half a file now is a whole one soon, and its stat will differ.
            Err(_) => return Arc::new(Index { key, entries: known.entries.clone() }),
        }
    }
    Arc::new(Index { key, entries })
}

fn add(entries: &mut HashMap<Name, Arc<IndexEntry>>, index: Value) {
    let list = match index {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("workers") {
            Some(Value::Array(list)) => list,
            _ => return,
        },
        _ => return,
    };
    for item in list {
        let id = string(item.get("id")).or_else(|| string(item.get("worker_id")));
        let Some(name) = id.and_then(|id| Name::new(id).ok()) else { continue };
        entries.entry(name).or_insert_with(|| Arc::new(entry(&item)));
    }
}

fn entry(item: &Value) -> IndexEntry {
    let mut entry = IndexEntry {
        task: string(item.get("task")),
        task_type: string(item.get("task_type")),
        tags: strings(item.get("tags")),
        summary: string(item.get("summary")),
        status: string(item.get("status")).map(|word| (status_of(&word), word)),
        created_at: string(item.get("created_at")),
        digest: [0; 16],
    };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{entry:?}").as_bytes());
    entry.digest = short(&hash);
    entry
}
