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

use super::super::known::Known;
use super::super::meta::{found, hash_meta};
use super::super::value::{cut, short_word, string, strings};
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
/// Of more folders that there are not it is not known which they are.
const OTHERS_MAX: usize = 10_000;

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
    /// The state of the file that this was read from; when that was first seen, and whether it lasts: within a tick the
    /// file may be written once more, and nothing would tell.
    key: [u8; 16],
    since: Option<Instant>,
    lasts: bool,
    entries: Arc<Entries>,
    /// The sum of the hashes of the folders that it was read for.
    of_folders: u64,
    others: Others,
}

/// The folders of which an index says something and which there were not, by their hashes; `None` where they are too many.
type Others = Option<Arc<HashSet<u64>>>;

fn hash_of(folder: &RelPath) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(folder)
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
        let of_folders = folders.iter().map(hash_of).fold(0, u64::wrapping_add);
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
        let key = digest(&hash);
        if key != self.key {
            self.since = Some(now);
        } else if self.lasts && (of_folders == self.of_folders || self.says_nothing_more_of(folders)) {
            return self.of_folders = of_folders;
        }
        let is_past = meta.is_none_or(|meta| meta.ctime.was_past_tick(began));
        self.lasts = is_past || self.since.is_some_and(|since| now >= since + TICK_MAX);
        let read = if meta.is_some() { read(store, file, folders) } else { Ok(Some(Said::default())) };
        (self.key, self.of_folders) = (if read.is_ok() { key } else { UNREAD }, of_folders);
        // Rewritten in place: half a file now is a whole one soon, and its stat will differ.
        if let Ok(Some(said)) = read {
            let others = Some(said.others).filter(|others| others.len() < OTHERS_MAX);
            (self.entries, self.others) = (Arc::new(said.entries), others.map(Arc::new));
        }
    }

    /// Whether these folders are those that it was read for and others that the file does not name.
    fn says_nothing_more_of(&self, folders: &[RelPath]) -> bool {
        let names = |others: &HashSet<u64>| folders.iter().any(|folder| others.contains(&hash_of(folder)));
        self.others.as_ref().is_some_and(|others| others.is_empty() || !names(others))
    }
}

/// What was read of an index.
#[derive(Default)]
struct Said {
    entries: Entries,
    owners: Owners,
    /// The hashes of folders that are not wanted, no more than [`OTHERS_MAX`].
    others: HashSet<u64>,
}

/// What the index `file` says of these folders; `None` if it is torn. Errors: it cannot be read.
fn read(store: &dyn Store, file: &RelPath, folders: &[RelPath]) -> Result<Option<Said>> {
    let open = store.open(file)?;
    let mut said = Said::default();
    if open.stat_without_acl()?.size > SIZE_MAX {
        return Ok(Some(said));
    }
    let wanted = folders.iter().collect();
    let items = Items { folder: &file.parent(), wanted: &wanted, said: &mut said };
    let mut json = Deserializer::from_reader(BufReader::new(Stream::new(&*open).take(SIZE_MAX)));
    match items.deserialize(&mut json).and_then(|()| json.end()) {
        Ok(()) => Ok(Some(said)),
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
    said: &'a mut Said,
}

/// Of folders with several entries, the owners that each has one for.
type Owners = HashMap<RelPath, Vec<Option<String>>>;

impl Said {
    /// Adds what is said of a folder; the first of an owner counts.
    fn add(&mut self, folder: &RelPath, entry: IndexEntry) {
        let Some(packed) = self.entries.get_mut(folder) else {
            self.entries.entry(folder.clone()).or_default().add(&entry);
            return;
        };
        let of_known = || packed.entries().into_iter().map(|entry| entry.owner).collect();
        let owners = self.owners.entry(folder.clone()).or_insert_with(of_known);
        if owners.len() < OWNERS_MAX && !owners.contains(&entry.owner) {
            packed.add(&entry);
            owners.push(entry.owner);
        }
    }

    fn add_other(&mut self, folder: &RelPath) {
        if self.others.len() < OTHERS_MAX {
            self.others.insert(hash_of(folder));
        }
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
            // What is of two owners is meant for neither.
            let Known { value: Value::Object(item), has_two_owners: false, .. } = item else { continue };
            let id = string(item.get("id")).or_else(|| string(item.get("worker_id")));
            let Some(folder) = id.and_then(|id| Name::new(id).ok()).map(|id| self.folder.join(&id)) else { continue };
            match self.wanted.get(&folder) {
                Some(folder) => self.said.add(folder, entry(&item)),
                None => self.said.add_other(&folder),
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Items { folder, wanted, said } = self;
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                // Said twice, the last counts.
                *said = Said::default();
                map.next_value_seed(Items { folder, wanted, said: &mut *said })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    fn folders(ids: &[&str]) -> Vec<RelPath> {
        ids.iter().map(|id| path(&format!("workers/{id}"))).collect()
    }

    /// As if it had been read long ago.
    fn lasting(mut index: Index) -> Index {
        index.0.iter_mut().for_each(|listing| listing.lasts = true);
        index
    }

    fn tasks(index: &Index, id: &str) -> Vec<Option<String>> {
        index.get(&path(&format!("workers/{id}"))).entries().into_iter().map(|entry| entry.task).collect()
    }

    #[test]
    fn an_index_is_read_again_only_for_folders_that_it_names() {
        let store = Memory::new();
        store.write(&path(FILES[0]), r#"[{"id": "a", "task": "A"}, {"id": "b", "task": "B"}]"#);
        let one = lasting(Index::default().refresh(&store, &folders(&["a"])));
        assert_eq!((tasks(&one, "a"), tasks(&one, "b")), (vec![Some("A".into())], vec![]));
        let two = one.clone().refresh(&store, &folders(&["a", "new"]));
        assert!(Arc::ptr_eq(&one.0[0].entries, &two.0[0].entries), "it does not name the new one");
        let three = two.refresh(&store, &folders(&["a", "b", "new"]));
        assert_eq!((tasks(&three, "a"), tasks(&three, "b")), (vec![Some("A".into())], vec![Some("B".into())]));
        // Where it names more than are kept in mind, it may name any.
        let many: Vec<Value> = (0..=OTHERS_MAX).map(|id| serde_json::json!({"id": format!("gone-{id}")})).collect();
        store.write(&path(FILES[0]), serde_json::to_vec(&many).unwrap());
        let one = lasting(three.refresh(&store, &folders(&["a"])));
        let two = one.clone().refresh(&store, &folders(&["a", "new"]));
        assert!(!Arc::ptr_eq(&one.0[0].entries, &two.0[0].entries));
        assert_eq!(tasks(&two, "a"), []);
    }
}
