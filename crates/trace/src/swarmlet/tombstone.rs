//! The record that stays of a removed worker: `tombstones/<id>.json`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::layout::{TOMBSTONES, path};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::Name;
use swarmletfs_base::store::{Kind, Store, is_temporary};

/// Maximum size of the file, in bytes.
pub const SIZE_MAX: u64 = 256 << 10;
const SUFFIX: &[u8] = b".json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The beginning of its task.
    #[serde(default)]
    pub task: String,
    /// Its outcome: `ok`, `failed` or `unknown`.
    pub outcome: String,
    pub removed_at: Timestamp,
    /// The rule that it was removed by, as `--older-than 30d`.
    pub rule: String,
    /// Path of the store with its copy, if it was archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_to: Option<String>,
}

/// Lists the workers of `store` that have a record, also a damaged one. Returns none if the records
/// cannot be listed.
pub(super) fn list(store: &dyn Store) -> Vec<Name> {
    let entries = store.list(&path(TOMBSTONES)).unwrap_or_default().into_iter();
    let files = entries.filter(|entry| entry.kind == Kind::File && !is_temporary(&entry.name));
    files.filter_map(|entry| Tombstone::worker_of(&entry.name)).collect()
}

impl Tombstone {
    /// Returns the name of the file for the worker `id`.
    ///
    /// # Errors
    ///
    /// The id is too long for the name of a file.
    pub fn file_name(id: &Name) -> Result<Name> {
        Name::new([id.as_bytes(), SUFFIX].concat())
    }

    /// Returns the id of the worker whose file has this name; `None` for other files.
    pub fn worker_of(file: &Name) -> Option<Name> {
        Name::new(file.as_bytes().strip_suffix(SUFFIX)?).ok()
    }

    /// Parses the file. Returns `None` if it is damaged.
    pub fn parse(json: &[u8]) -> Option<Tombstone> {
        serde_json::from_slice(json).ok()
    }
}
