//! The store's index.json: an object with `workers`, or a bare array of metadata copies. It only fills gaps.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::layout::path;
use super::meta::{found, hash_meta, short};
use super::value::{short_word, status_of, string, strings};
use crate::model::{Owner, Status};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Store, read_whole};

/// Where an index can lie, from the store's root. It speaks of the workers in its own folder.
pub(super) const FILES: [&str; 2] = ["workers/index.json", "index.json"];
/// A larger one is not read, in bytes.
const SIZE_MAX: u64 = 64 << 20;
/// So many owners may say something of the same id.
const OWNERS_MAX: usize = 16;

/// What an index says of one worker.
#[derive(Debug, Default)]
pub(super) struct IndexEntry {
    /// Whose worker it speaks of, if it says.
    owner: Option<String>,
    pub(super) task: Option<String>,
    pub(super) task_type: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) summary: Option<String>,
    pub(super) status: Option<(Status, String)>,
    pub(super) created_at: Option<String>,
    /// Changes with any of the above.
    pub(super) digest: [u8; 16],
}

impl IndexEntry {
    /// Whether it may be about a worker of `owner`: an id is another's too, where two layouts meet in one store.
    pub(super) fn is_about(&self, owner: Option<&Owner>) -> bool {
        !matches!((&self.owner, owner), (Some(said), Some(owner)) if *said != owner.0)
    }
}

/// What one index file says.
#[derive(Debug, Clone, Default)]
struct Listing {
    /// The state of the file that this was read from.
    key: [u8; 16],
    /// By the worker's folder.
    entries: Arc<HashMap<RelPath, Vec<Arc<IndexEntry>>>>,
}

/// What all index files say.
#[derive(Debug, Clone, Default)]
pub(super) struct Index([Listing; FILES.len()]);

impl Index {
    /// All entries of this worker's folder, in the order of the index.
    pub(super) fn get(&self, folder: &RelPath) -> Vec<Arc<IndexEntry>> {
        self.0.iter().find_map(|listing| listing.entries.get(folder)).cloned().unwrap_or_default()
    }

    /// The index as it is now. A file that is unchanged, or torn just now, says what it said before; whatever is in the
    /// place of one, the other is read.
    pub(super) fn refresh(mut self, store: &dyn Store) -> Index {
        for (file, listing) in FILES.iter().zip(&mut self.0) {
            listing.refresh(store, &path(file));
        }
        self
    }
}

/// The key that no state of a file has: the next look reads again.
const UNREAD: [u8; 16] = [0; 16];

impl Listing {
    fn refresh(&mut self, store: &dyn Store, file: &RelPath) {
        let meta = match found(store.stat(file)) {
            Ok(meta) => meta.filter(|meta| meta.kind == Kind::File),
            // What was read before stays until it can be told.
            Err(_) => return self.key = UNREAD,
        };
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        let key = short(&hash);
        if key == self.key {
            return;
        }
        let read = if meta.is_some() { read_whole(store, file, SIZE_MAX) } else { Ok(None) };
        self.key = if read.is_ok() { key } else { UNREAD };
        let items = match read {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes),
            Ok(None) => Ok(Items::default()),
            Err(_) => return,
        };
        // Rewritten in place: half a file now is a whole one soon, and its stat will differ.
        if let Ok(Items(found)) = items {
            let folder = file.parent();
            self.entries = Arc::new(found.into_iter().map(|(id, found)| (folder.join(&id), found)).collect());
        }
    }
}

/// What an index file lists. Read item by item, so that a large index costs no more memory than what is kept of it.
#[derive(Default)]
struct Items(HashMap<Name, Vec<Arc<IndexEntry>>>);

/// One item; fields of any type, since a wrong one is no reason to lose the others.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Item {
    id: Value,
    worker_id: Value,
    owner_id: Value,
    config: Value,
    task: Value,
    task_type: Value,
    tags: Value,
    summary: Value,
    status: Value,
    created_at: Value,
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Items, D::Error> {
        deserializer.deserialize_any(Shapes)
    }
}

/// A bare list, or an object with the list under `workers`. Anything else lists nothing.
struct Shapes;

impl<'de> Visitor<'de> for Shapes {
    type Value = Items;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of workers, or an object that holds one")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items, A::Error> {
        let mut entries: HashMap<Name, Vec<Arc<IndexEntry>>> = HashMap::new();
        while let Some(item) = list.next_element::<Lenient>()? {
            let Lenient(Some(item)) = item else { continue };
            let id = string(Some(&item.id)).or_else(|| string(Some(&item.worker_id)));
            if let Some(name) = id.and_then(|id| Name::new(id).ok()) {
                let (entry, known) = (entry(&item), entries.entry(name).or_default());
                // The first of an owner counts.
                if known.len() < OWNERS_MAX && known.iter().all(|other| other.owner != entry.owner) {
                    known.push(Arc::new(entry));
                }
            }
        }
        Ok(Items(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Items, A::Error> {
        let mut items = Items::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                items = map.next_value()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(items)
    }
}

/// An item, or nothing where an item is no object.
struct Lenient(Option<Item>);

impl<'de> Deserialize<'de> for Lenient {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lenient, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Lenient(serde_json::from_value(value).ok()))
    }
}

fn entry(item: &Item) -> IndexEntry {
    let mut entry = IndexEntry {
        owner: string(Some(&item.owner_id)).or_else(|| string(item.config.get("owner_id"))).map(short_word),
        task: string(Some(&item.task)),
        task_type: string(Some(&item.task_type)),
        tags: strings(Some(&item.tags)),
        summary: string(Some(&item.summary)),
        status: string(Some(&item.status)).map(|word| (status_of(&word), word)),
        created_at: string(Some(&item.created_at)),
        digest: [0; 16],
    };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{entry:?}").as_bytes());
    entry.digest = short(&hash);
    entry
}
