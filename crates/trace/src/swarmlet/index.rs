//! The store's index.json: an object with `workers`, or a plain list of metadata copies. It only
//! supplies missing values.

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

use super::super::bounded::BoundedValue;
use super::super::meta::{hash_meta, if_exists};
use super::super::value::{scalar_text, shorten_word, text_list, truncate};
use super::layout::path;

use swarmletfs_base::digest::{Key, digest};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Owner, TASK_MAX};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Store, Stream, TICK_MAX};

/// Paths of the index files from the store's root. Each describes the workers in its own directory.
pub(super) const FILES: [&str; 2] = ["workers/index.json", "index.json"];
/// Maximum size of an index file that is read, in bytes.
pub const SIZE_MAX: u64 = 64 << 20;
/// Maximum number of owners with entries for one ID.
const OWNERS_MAX: usize = 16;
/// Maximum number of unlisted directories that are remembered.
const UNLISTED_MAX: usize = 10_000;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct IndexEntry {
    owner: Option<String>,
    pub(super) task: Option<String>,
    pub(super) task_type: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) summary: Option<String>,
    pub(super) status: Option<String>,
    pub(super) created_at: Option<String>,
}

impl IndexEntry {
    /// Returns true if the entry may describe a worker of `owner`. Two layouts in one store can use
    /// an ID for different owners.
    pub(super) fn is_about(&self, owner: Option<&Owner>) -> bool {
        !matches!((&self.owner, owner), (Some(stated), Some(owner)) if **stated != *owner.0)
    }
}

#[derive(Debug, Clone, Default)]
struct IndexFile {
    /// Fingerprint of the file that the contents were read from. `None` if the next refresh must
    /// read the file again.
    key: Option<Key>,
    first_seen: Option<Instant>,
    /// True if no later write can leave the same fingerprint. A second write within one clock tick
    /// does not change it.
    is_settled: bool,
    entries: Arc<Entries>,
    /// Sum of the hashes of the directories that the file was read for.
    folders_hash: u64,
    unlisted: UnlistedFolders,
}

/// Hashes of the directories that an index names but that did not exist; `None` if there are too
/// many.
type UnlistedFolders = Option<Arc<HashSet<u64>>>;

fn hash_folder(folder: &RelPath) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(folder)
}

type Entries = HashMap<RelPath, FolderEntries>;

/// The entries of one directory, encoded in the order of the index. Decoded only when that worker's
/// metadata is read, to save memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FolderEntries(Box<[u8]>);

impl FolderEntries {
    /// Returns the encoded entries, which change whenever an entry does.
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

#[derive(Debug, Clone, Default)]
pub(super) struct StoreIndex([IndexFile; FILES.len()]);

impl StoreIndex {
    pub(super) fn get(&self, folder: &RelPath) -> FolderEntries {
        self.0
            .iter()
            .find_map(|index_file| index_file.entries.get(folder))
            .cloned()
            .unwrap_or_default()
    }

    /// Reads the index files again for `folders`. An unchanged or torn file keeps its contents.
    /// Each file is read regardless of the state of the other.
    pub(super) fn refresh(mut self, store: &dyn Store, folders: &[RelPath]) -> StoreIndex {
        // Independent of order, because a listing has none.
        let folders_hash = folders.iter().map(hash_folder).fold(0, u64::wrapping_add);
        for (file, index_file) in FILES.iter().zip(&mut self.0) {
            index_file.refresh(store, &path(file), folders, folders_hash);
        }
        self
    }
}

impl IndexFile {
    fn refresh(
        &mut self,
        store: &dyn Store,
        file: &RelPath,
        folders: &[RelPath],
        folders_hash: u64,
    ) {
        if folders_hash != self.folders_hash {
            self.drop_removed(folders);
        }
        let (now, began) = (Instant::now(), SystemTime::now());
        let meta = match if_exists(store.stat(file)) {
            Ok(meta) => meta.filter(|meta| meta.kind == Kind::File),
            // The contents stay until the file can be checked again.
            Err(_) => return self.key = None,
        };
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        let key = Some(digest(&hash));
        if key != self.key {
            self.first_seen = Some(now);
        } else if self.is_settled
            && (folders_hash == self.folders_hash || !self.may_name_new_folder(folders))
        {
            return self.folders_hash = folders_hash;
        }
        let is_at_rest = meta.is_none_or(|meta| meta.ctime.was_past_tick(began));
        self.is_settled =
            is_at_rest || self.first_seen.is_some_and(|first_seen| now >= first_seen + TICK_MAX);
        let read = if meta.is_some() {
            read_index(store, file, folders)
        } else {
            Ok(Some(IndexContents::default()))
        };
        (self.key, self.folders_hash) = (key.filter(|_| read.is_ok()), folders_hash);
        // A file that is torn while being rewritten will change its metadata soon.
        if let Ok(Some(contents)) = read {
            let unlisted = Some(contents.unlisted).filter(|unlisted| unlisted.len() < UNLISTED_MAX);
            (self.entries, self.unlisted) = (Arc::new(contents.entries), unlisted.map(Arc::new));
        }
    }

    /// Drops the entries of directories that do not exist any more, so that a torn file describes
    /// no later directory of the same name.
    fn drop_removed(&mut self, folders: &[RelPath]) {
        let kept = folders.iter().filter(|folder| self.entries.contains_key(folder)).count();
        if kept == self.entries.len() {
            return;
        }
        let existing: HashSet<&RelPath> = folders.iter().collect();
        let (entries, removed): (Entries, Entries) =
            Arc::unwrap_or_clone(std::mem::take(&mut self.entries))
                .into_iter()
                .partition(|(folder, _)| existing.contains(folder));
        self.entries = Arc::new(entries);
        if let Some(unlisted) = &mut self.unlisted {
            Arc::make_mut(unlisted).extend(removed.keys().map(hash_folder));
        }
        self.unlisted.take_if(|unlisted| unlisted.len() >= UNLISTED_MAX);
    }

    /// Returns true if the file names a directory that is new since it was read, or may name one.
    fn may_name_new_folder(&self, folders: &[RelPath]) -> bool {
        match &self.unlisted {
            Some(unlisted) if unlisted.is_empty() => false,
            Some(unlisted) => folders.iter().any(|folder| unlisted.contains(&hash_folder(folder))),
            None => true,
        }
    }
}

#[derive(Default)]
struct IndexContents {
    entries: Entries,
    owners: Owners,
    /// Hashes of named directories that are not wanted, at most [`UNLISTED_MAX`].
    unlisted: HashSet<u64>,
}

/// Reads the entries of `folders` from the index `file`. Returns `None` if it is torn.
///
/// # Errors
///
/// Fails if the file cannot be read.
fn read_index(
    store: &dyn Store,
    file: &RelPath,
    folders: &[RelPath],
) -> Result<Option<IndexContents>> {
    let opened = store.open(file)?;
    let mut contents = IndexContents::default();
    if opened.stat_without_acl()?.size > SIZE_MAX {
        return Ok(Some(contents));
    }
    let wanted = folders.iter().collect();
    let visitor = IndexVisitor { folder: &file.parent(), wanted: &wanted, contents: &mut contents };
    let mut json = Deserializer::from_reader(BufReader::new(Stream::new(&*opened).take(SIZE_MAX)));
    match visitor.deserialize(&mut json).and_then(|()| json.end()) {
        Ok(()) => Ok(Some(contents)),
        Err(error) if error.is_io() => Err(Error::Io(Errno::IO)),
        Err(_) => Ok(None),
    }
}

/// Visits an index: a plain list, or an object with a list under `workers`. Any other value is an
/// empty list. Reads one item at a time, so that a large index costs only the memory of the kept
/// entries.
struct IndexVisitor<'a> {
    folder: &'a RelPath,
    wanted: &'a HashSet<&'a RelPath>,
    contents: &'a mut IndexContents,
}

/// The owners of the entries of each directory that has several.
type Owners = HashMap<RelPath, Vec<Option<String>>>;

impl IndexContents {
    /// Adds an entry of a directory. The first entry of each owner wins.
    fn add(&mut self, folder: &RelPath, entry: IndexEntry) {
        let Some(packed) = self.entries.get_mut(folder) else {
            self.entries.entry(folder.clone()).or_default().add(&entry);
            return;
        };
        let owners = self
            .owners
            .entry(folder.clone())
            .or_insert_with(|| packed.entries().into_iter().map(|entry| entry.owner).collect());
        if owners.len() < OWNERS_MAX && !owners.contains(&entry.owner) {
            packed.add(&entry);
            owners.push(entry.owner);
        }
    }

    fn add_unlisted(&mut self, folder: &RelPath) {
        if self.unlisted.len() < UNLISTED_MAX {
            self.unlisted.insert(hash_folder(folder));
        }
    }
}

impl<'de> DeserializeSeed<'de> for IndexVisitor<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for IndexVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of workers, or an object that holds one")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<BoundedValue>()? {
            // An entry with conflicting owners describes neither's worker.
            let BoundedValue { value: Value::Object(item), has_conflicting_owners: false, .. } =
                item
            else {
                continue;
            };
            let id = scalar_text(item.get("id")).or_else(|| scalar_text(item.get("worker_id")));
            let Some(folder) = id.and_then(|id| Name::new(id).ok()).map(|id| self.folder.join(&id))
            else {
                continue;
            };
            match self.wanted.get(&folder) {
                Some(folder) => self.contents.add(folder, parse_entry(&item)),
                None => self.contents.add_unlisted(&folder),
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let IndexVisitor { folder, wanted, contents } = self;
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                // The last of several `workers` fields wins.
                *contents = IndexContents::default();
                map.next_value_seed(IndexVisitor { folder, wanted, contents: &mut *contents })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

fn parse_entry(item: &Map<String, Value>) -> IndexEntry {
    let config = item.get("config");
    let text = |key: &str| scalar_text(item.get(key)).map(|text| truncate(text, TASK_MAX));
    let owner = scalar_text(item.get("owner_id"))
        .or_else(|| scalar_text(config.and_then(|config| config.get("owner_id"))));
    IndexEntry {
        owner: owner.map(shorten_word),
        task: text("task"),
        task_type: scalar_text(item.get("task_type")).map(shorten_word),
        tags: text_list(item.get("tags")),
        summary: text("summary").or_else(|| text("title")),
        status: scalar_text(item.get("status")).map(shorten_word),
        created_at: text("created_at"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::store::Memory;

    fn folders(ids: &[&str]) -> Vec<RelPath> {
        ids.iter().map(|id| path(&format!("workers/{id}"))).collect()
    }

    /// Returns the index as if it had been read long ago.
    fn settled(mut index: StoreIndex) -> StoreIndex {
        index.0.iter_mut().for_each(|index_file| index_file.is_settled = true);
        index
    }

    fn tasks(index: &StoreIndex, id: &str) -> Vec<Option<String>> {
        index
            .get(&path(&format!("workers/{id}")))
            .entries()
            .into_iter()
            .map(|entry| entry.task)
            .collect()
    }

    #[test]
    fn an_index_is_read_again_only_for_new_folders_that_it_names() {
        let store = Memory::new();
        store.write(&path(FILES[0]), r#"[{"id": "a", "task": "A"}, {"id": "b", "task": "B"}]"#);
        let one = settled(StoreIndex::default().refresh(&store, &folders(&["a"])));
        assert_eq!((tasks(&one, "a"), tasks(&one, "b")), (vec![Some("A".into())], vec![]));
        let two = one.clone().refresh(&store, &folders(&["a", "new"]));
        assert!(Arc::ptr_eq(&one.0[0].entries, &two.0[0].entries), "it does not name the new one");
        let three = two.refresh(&store, &folders(&["a", "b", "new"]));
        assert_eq!(
            (tasks(&three, "a"), tasks(&three, "b")),
            (vec![Some("A".into())], vec![Some("B".into())])
        );
        // A directory that is gone keeps no entry, but the file is read again when it returns.
        let three = settled(three);
        let gone = three.clone().refresh(&store, &folders(&["b", "new"]));
        assert_eq!((tasks(&gone, "a"), tasks(&gone, "b")), (vec![], vec![Some("B".into())]));
        let back = gone.clone().refresh(&store, &folders(&["a", "b", "new"]));
        assert_eq!(tasks(&back, "a"), [Some("A".into())]);
        store.write(&path(FILES[0]), "[{");
        let torn = gone.refresh(&store, &folders(&["a", "b", "new"]));
        assert_eq!((tasks(&torn, "a"), tasks(&torn, "b")), (vec![], vec![Some("B".into())]));
        // An index that names more directories than are remembered may name any directory.
        let many: Vec<Value> =
            (0..=UNLISTED_MAX).map(|id| serde_json::json!({"id": format!("gone-{id}")})).collect();
        store.write(&path(FILES[0]), serde_json::to_vec(&many).unwrap());
        let one = settled(three.refresh(&store, &folders(&["a"])));
        let two = one.clone().refresh(&store, &folders(&["a", "new"]));
        assert!(!Arc::ptr_eq(&one.0[0].entries, &two.0[0].entries));
        assert_eq!(tasks(&two, "a"), []);
    }
}
