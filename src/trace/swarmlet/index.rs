//! The store's index.json: an object with `workers`, or a bare array of metadata copies. It only fills gaps.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use rustix::io::Errno;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use super::super::meta::{found, hash_meta};
use super::super::value::{cut, short_word, string, strings};
use super::known::Known;
use super::layout::path;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::{Owner, TASK_MAX};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Store, Stream, TICK_MAX};

/// Where an index can lie, from the store's root. It speaks of the workers in its own folder.
pub(super) const FILES: [&str; 2] = ["workers/index.json", "index.json"];
/// A larger one is not read, in bytes.
const SIZE_MAX: u64 = 64 << 20;
/// So many owners may say something of the same id.
const OWNERS_MAX: usize = 16;

/// What an index says of one worker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct IndexEntry {
    /// Whose worker it speaks of, if it says.
    owner: Option<String>,
    pub(super) task: Option<String>,
    pub(super) task_type: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) summary: Option<String>,
    /// The word it uses for the status.
    pub(super) status: Option<String>,
    pub(super) created_at: Option<String>,
}

impl IndexEntry {
    /// Whether it may be about a worker of `owner`: an id is another's too, where two layouts meet in one store.
    pub(super) fn is_about(&self, owner: Option<&Owner>) -> bool {
        !matches!((&self.owner, owner), (Some(said), Some(owner)) if **said != *owner.0)
    }
}

/// What one index file says.
#[derive(Debug, Clone, Default)]
struct Listing {
    /// The state of the file that this was read from, and of the list of folders it was read for; when that was first seen,
    /// and whether it lasts: within a tick the file may be written once more, and nothing would tell.
    key: [u8; 16],
    since: Option<Instant>,
    lasts: bool,
    entries: Arc<Entries>,
}

/// By the worker's folder.
type Entries = HashMap<RelPath, FolderEntries>;

/// The entries of one folder, in the order of the index, encoded one behind the other: there is one for each worker, and
/// it is looked into only when that worker's metadata is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FolderEntries(Box<[u8]>);

impl FolderEntries {
    /// Changes with anything that is said.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn entries(&self) -> Vec<IndexEntry> {
        let (mut rest, mut entries) = (self.as_bytes(), Vec::new());
        while !rest.is_empty()
            && let Ok((entry, after)) = postcard::take_from_bytes(rest)
        {
            entries.push(entry);
            rest = after;
        }
        entries
    }

    fn add(&mut self, entry: &IndexEntry) {
        if let Ok(entry) = postcard::to_stdvec(entry) {
            self.0 = [self.as_bytes(), &entry].concat().into();
        }
    }
}

/// What all index files say.
#[derive(Debug, Clone, Default)]
pub(super) struct Index([Listing; FILES.len()]);

impl Index {
    /// All entries of this worker's folder.
    pub(super) fn get(&self, folder: &RelPath) -> FolderEntries {
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
        let (now, began) = (Instant::now(), SystemTime::now());
        let meta = match found(store.stat(file)) {
            Ok(meta) => meta.filter(|meta| meta.kind == Kind::File),
            // What was read before stays until it can be told.
            Err(_) => return self.key = UNREAD,
        };
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        hash.update(&of_folders.to_le_bytes());
        let key = digest(&hash);
        if key != self.key {
            self.since = Some(now);
        } else if self.lasts {
            return;
        }
        let is_past = meta.is_none_or(|meta| meta.ctime.was_at_rest(began));
        self.lasts = is_past || self.since.is_some_and(|since| now >= since + TICK_MAX);
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
    let (mut entries, mut owners) = (Entries::new(), Owners::new());
    if open.glimpse()?.size > SIZE_MAX {
        return Ok(Some(entries));
    }
    let wanted = folders.iter().collect();
    let items = Items { folder: &file.parent(), wanted: &wanted, entries: &mut entries, owners: &mut owners };
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
    owners: &'a mut Owners,
}

/// Of folders with several entries, the owners that each has one for.
type Owners = HashMap<RelPath, Vec<Option<String>>>;

/// Adds what is said of a folder; the first of an owner counts.
fn add(entries: &mut Entries, owners: &mut Owners, folder: &RelPath, entry: IndexEntry) {
    let Some(packed) = entries.get_mut(folder) else {
        entries.entry(folder.clone()).or_default().add(&entry);
        return;
    };
    let of_known = || packed.entries().into_iter().map(|entry| entry.owner).collect();
    let owners = owners.entry(folder.clone()).or_insert_with(of_known);
    if owners.len() < OWNERS_MAX && !owners.contains(&entry.owner) {
        packed.add(&entry);
        owners.push(entry.owner);
    }
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
            if let Some(folder) = self.wanted.get(&folder) {
                add(self.entries, self.owners, folder, entry(&item));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Items { folder, wanted, entries, owners } = self;
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                // Said twice, the last counts.
                entries.clear();
                owners.clear();
                map.next_value_seed(Items { folder, wanted, entries: &mut *entries, owners: &mut *owners })?;
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
    IndexEntry {
        owner: owner.map(short_word),
        task: text("task"),
        task_type: string(item.get("task_type")).map(short_word),
        tags: strings(item.get("tags")),
        summary: text("summary"),
        status: string(item.get("status")).map(short_word),
        created_at: text("created_at"),
    }
}
