//! The store's index.json: an object with `workers`, or a bare array of metadata copies. It only fills gaps.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{BufReader, Read};
use std::sync::Arc;

use rustix::io::Errno;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Deserializer, Map, Value};

use super::super::meta::{found, hash_meta, short};
use super::super::value::{cut, short_word, status_of, string, strings};
use super::known::Known;
use super::layout::path;

use crate::error::{Error, Result};
use crate::model::{Owner, Status, TASK_MAX};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Store, Stream};

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
    /// The state of the file that this was read from, and of the list of folders it was read for.
    key: [u8; 16],
    entries: Arc<Entries>,
}

/// By the worker's folder.
type Entries = HashMap<RelPath, Vec<Arc<IndexEntry>>>;

/// What all index files say.
#[derive(Debug, Clone, Default)]
pub(super) struct Index([Listing; FILES.len()]);

impl Index {
    /// All entries of this worker's folder, in the order of the index.
    pub(super) fn get(&self, folder: &RelPath) -> Vec<Arc<IndexEntry>> {
        self.0.iter().find_map(|listing| listing.entries.get(folder)).cloned().unwrap_or_default()
    }

    /// The index as it is now, of these folders. A file that is unchanged, or torn just now, says what it said before;
    /// whatever is in the place of one, the other is read.
    pub(super) fn refresh(mut self, store: &dyn Store, folders: &[RelPath]) -> Index {
        // In no order, since a listing has none.
        let hashes = folders.iter().map(|folder| BuildHasherDefault::<DefaultHasher>::default().hash_one(folder));
        let of_folders = hashes.fold(0, u64::wrapping_add);
        for (file, listing) in FILES.iter().zip(&mut self.0) {
            listing.refresh(store, &path(file), folders, of_folders);
        }
        self
    }
}

/// The key that no state of a file has: the next look reads again.
const UNREAD: [u8; 16] = [0; 16];

impl Listing {
    fn refresh(&mut self, store: &dyn Store, file: &RelPath, folders: &[RelPath], of_folders: u64) {
        let meta = match found(store.stat(file)) {
            Ok(meta) => meta.filter(|meta| meta.kind == Kind::File),
            // What was read before stays until it can be told.
            Err(_) => return self.key = UNREAD,
        };
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        hash.update(&of_folders.to_le_bytes());
        let key = short(&hash);
        if key == self.key {
            return;
        }
        let read = if meta.is_some() { read(store, file, folders) } else { Ok(Some(Entries::new())) };
        self.key = if read.is_ok() { key } else { UNREAD };
        // Rewritten in place: half a file now is a whole one soon, and its stat will differ.
        if let Ok(Some(entries)) = read {
            self.entries = Arc::new(entries);
        }
    }
}

/// What the index `file` says of these folders; `None` if it is torn. Errors: it cannot be read.
fn read(store: &dyn Store, file: &RelPath, folders: &[RelPath]) -> Result<Option<Entries>> {
    let open = store.open(file)?;
    let mut entries = Entries::new();
    if open.meta()?.size > SIZE_MAX {
        return Ok(Some(entries));
    }
    let wanted = folders.iter().collect();
    let items = Items { folder: &file.parent(), wanted: &wanted, entries: &mut entries };
    let mut json = Deserializer::from_reader(BufReader::new(Stream::new(&*open).take(SIZE_MAX)));
    match items.deserialize(&mut json).and_then(|()| json.end()) {
        Ok(()) => Ok(Some(entries)),
        Err(error) if error.is_io() => Err(Error::Io(Errno::IO)),
        Err(_) => Ok(None),
    }
}

/// What an index file lists: a bare list, or an object with the list under `workers`. Anything else lists nothing. Read
/// item by item, so that a large index costs no more memory than what is kept of it.
struct Items<'a> {
    /// The folder that the index lies in.
    folder: &'a RelPath,
    /// The folders of which anything is kept.
    wanted: &'a HashSet<&'a RelPath>,
    entries: &'a mut Entries,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of workers, or an object that holds one")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<Known>()? {
            let Value::Object(item) = item.value else { continue };
            let id = string(item.get("id")).or_else(|| string(item.get("worker_id")));
            let Some(folder) = id.and_then(|id| Name::new(id).ok()).map(|id| self.folder.join(&id)) else { continue };
            if self.wanted.contains(&folder) {
                let (entry, known) = (entry(&item), self.entries.entry(folder).or_default());
                // The first of an owner counts.
                if known.len() < OWNERS_MAX && known.iter().all(|other| other.owner != entry.owner) {
                    known.push(Arc::new(entry));
                }
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Items { folder, wanted, entries } = self;
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                // Said twice, the last counts.
                entries.clear();
                map.next_value_seed(Items { folder, wanted, entries: &mut *entries })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

fn entry(item: &Map<String, Value>) -> IndexEntry {
    let config = item.get("config");
    let text = |key: &str| string(item.get(key)).map(|text| cut(text, TASK_MAX));
    let owner = string(item.get("owner_id")).or_else(|| string(config.and_then(|config| config.get("owner_id"))));
    let mut entry = IndexEntry {
        owner: owner.map(short_word),
        task: text("task"),
        task_type: string(item.get("task_type")).map(short_word),
        tags: strings(item.get("tags")),
        summary: text("summary"),
        status: string(item.get("status")).map(|word| (status_of(&word), short_word(word))),
        created_at: text("created_at"),
        digest: [0; 16],
    };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{entry:?}").as_bytes());
    entry.digest = short(&hash);
    entry
}
