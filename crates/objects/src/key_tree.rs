//! A tree of directories from the keys of a listing.
//!
//! The keys are sorted, so a directory is a range of them, and a path is found by halving. A
//! directory has no entry of its own. Its times follow from its entries, because readers rely on a
//! directory to change when one of them is added, replaced or removed: the seconds are from the
//! newest entry, and the fraction is a hash of all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Time, is_temporary};

use crate::parts;

/// Longest name of a file on Linux, in bytes.
const NAME_MAX: usize = 255;
/// The byte after `/`, which follows all keys beneath a directory.
const AFTER_SLASH: u8 = b'/' + 1;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedObject {
    /// Path from the prefix.
    pub(crate) path: Arc<str>,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) etag: Option<Arc<str>>,
    /// The objects that this one consists of; empty for an object of the store itself.
    pub(crate) parts: Box<[ListedObject]>,
}

impl ListedObject {
    /// Returns the objects that hold the bytes of this one, in order.
    pub(crate) fn sources(&self) -> &[ListedObject] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }
}

#[derive(Default)]
pub(crate) struct KeyTree {
    /// Sorted by path. None is a directory of another.
    objects: Vec<ListedObject>,
    /// Number of keys that were left out.
    pub(crate) left_out: u64,
    /// Times of the directories that were asked for.
    folder_times: Mutex<HashMap<RelPath, Time>>,
}

pub(crate) enum FoundKey<'a> {
    Object(&'a ListedObject),
    Folder,
}

/// An entry of a directory.
struct Child<'a> {
    name: &'a [u8],
    /// The object itself, or the first one beneath the directory.
    object: &'a ListedObject,
    kind: Kind,
}

impl KeyTree {
    /// Leaves out objects whose names are too long, or equal a directory.
    pub(crate) fn new(mut objects: Vec<ListedObject>, removed: u64) -> KeyTree {
        let listed = objects.len();
        objects.retain(|object| object.path.split('/').all(|name| name.len() <= NAME_MAX));
        objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let (mut objects, ignored) = parts::join_growing(objects);
        objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let mut objects = parts::join(objects);
        let parts: usize = objects.iter().map(|object| object.parts.len().max(1) - 1).sum();
        // An object of the store precedes one that is made of parts.
        objects.sort_by(|a, b| (&a.path, a.parts.len()).cmp(&(&b.path, b.parts.len())));
        objects.dedup_by(|a, b| a.path == b.path);
        let all = KeyTree { objects, ..KeyTree::default() };
        let is_folder: Vec<bool> =
            all.objects.iter().map(|object| all.has_folder(object.path.as_bytes())).collect();
        let mut is_folder = is_folder.into_iter();
        let mut objects = all.objects;
        objects.retain(|_| !is_folder.next().unwrap_or_default());
        let left_out = removed + (listed - ignored - parts - objects.len()) as u64;
        KeyTree { objects, left_out, ..KeyTree::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(crate) fn has_same_objects(&self, other: &KeyTree) -> bool {
        self.objects == other.objects
    }

    /// Finds the object or the directory at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::NotADirectory`] beneath an object.
    pub(crate) fn find(&self, path: &RelPath) -> Result<FoundKey<'_>> {
        if path.is_root() && !self.is_empty() || self.has_folder(path.as_bytes()) {
            return Ok(FoundKey::Folder);
        }
        if let Some(object) = self.object(path.as_bytes()) {
            return Ok(FoundKey::Object(object));
        }
        let parents = std::iter::successors(Some(path.parent()), |path| Some(path.parent()));
        let mut parents = parents.take_while(|parent| !parent.is_root());
        match parents.any(|parent| self.object(parent.as_bytes()).is_some()) {
            true => Err(Error::NotADirectory),
            false => Err(Error::NotFound),
        }
    }

    /// Lists the directory at `path`.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        match self.find(path)? {
            FoundKey::Object(_) => return Err(Error::NotADirectory),
            FoundKey::Folder => {}
        }
        let entries = self.children(path).filter_map(|child| {
            let name = Name::new(child.name).ok().filter(|name| !is_temporary(name))?;
            Some(DirEntry { name, kind: child.kind })
        });
        Ok(entries.collect())
    }

    /// Returns the time of the directory at `path`; see the module.
    pub(crate) fn folder_time(&self, path: &RelPath) -> Time {
        if let Some(time) = self.folder_times.lock().get(path) {
            return *time;
        }
        let (mut hash, mut newest) = (blake3::Hasher::new(), Time::default());
        for child in self.children(path) {
            newest = newest.max(child.object.modified);
            hash.update(&(child.name.len() as u64).to_le_bytes()).update(child.name);
            if child.kind == Kind::File {
                let ListedObject { size, modified, etag, .. } = child.object;
                hash.update(&size.to_le_bytes());
                hash.update(&modified.secs.to_le_bytes()).update(&modified.nanos.to_le_bytes());
                hash.update(etag.as_deref().unwrap_or_default().as_bytes());
            }
        }
        let time =
            Time { secs: newest.secs, nanos: u32::from_le_bytes(digest(&hash)) % 1_000_000_000 };
        self.folder_times.lock().insert(path.clone(), time);
        time
    }

    /// Returns the object at a position in the order of paths.
    pub(crate) fn at(&self, position: usize) -> Option<&ListedObject> {
        self.objects.get(position)
    }

    /// Returns the positions from `start` on of the objects that have the name of `path` in the
    /// directories beside its own, at most `count`.
    pub(crate) fn namesakes(&self, path: &RelPath, start: usize, count: usize) -> Vec<usize> {
        let folders = path.parent().parent();
        let slash: &[u8] = if folders.is_root() { b"" } else { b"/" };
        let beneath = [folders.as_bytes(), slash].concat();
        let Some(name) = path.file_name() else { return Vec::new() };
        let (mut found, mut at) = (Vec::new(), start);
        // Directories without the name are passed over, but not without a limit.
        for _ in 0..count.saturating_mul(2) {
            let Some(object) = self.objects.get(at).filter(|_| found.len() < count) else { break };
            let Some(rest) = object.path.as_bytes().strip_prefix(&*beneath) else { break };
            let Some(folder) = memchr::memchr(b'/', rest).and_then(|end| rest.get(..end)) else {
                at += 1;
                continue;
            };
            let wanted = [&*beneath, folder, b"/", name.as_bytes()].concat();
            let position = self.position(&wanted);
            if position >= start && self.object(&wanted).is_some() {
                found.push(position);
            }
            at = self.position(&[&*beneath, folder, &[AFTER_SLASH]].concat());
        }
        found
    }

    /// Returns the position of the first object whose path is not before `path`.
    pub(crate) fn position(&self, path: &[u8]) -> usize {
        self.objects.partition_point(|object| object.path.as_bytes() < path)
    }

    fn object(&self, path: &[u8]) -> Option<&ListedObject> {
        self.objects.get(self.position(path)).filter(|object| object.path.as_bytes() == path)
    }

    fn has_folder(&self, path: &[u8]) -> bool {
        let beneath = [path, b"/"].concat();
        let first = self.objects.get(self.position(&beneath));
        first.is_some_and(|object| object.path.as_bytes().starts_with(&beneath))
    }

    fn children(&self, folder: &RelPath) -> impl Iterator<Item = Child<'_>> {
        let slash: &[u8] = if folder.is_root() { b"" } else { b"/" };
        let beneath = [folder.as_bytes(), slash].concat();
        let mut at = self.position(&beneath);
        std::iter::from_fn(move || {
            let object = self.objects.get(at)?;
            let rest = object.path.as_bytes().strip_prefix(&*beneath)?;
            let Some(end) = memchr::memchr(b'/', rest) else {
                at += 1;
                return Some(Child { name: rest, object, kind: Kind::File });
            };
            let name = rest.get(..end)?;
            at = self.position(&[&*beneath, name, &[AFTER_SLASH]].concat());
            Some(Child { name, object, kind: Kind::Folder })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(keys: &[&str]) -> KeyTree {
        let objects = keys.iter().enumerate().map(|(at, key)| ListedObject {
            path: (*key).into(),
            size: at as u64,
            modified: Time { secs: 1_000 + at as i64, nanos: 0 },
            etag: Some(format!("\"{at}\"").into()),
            parts: Box::default(),
        });
        KeyTree::new(objects.collect(), 0)
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn names(tree: &KeyTree, folder: &str) -> Vec<(String, Kind)> {
        let mut names: Vec<_> = tree
            .list(&path(folder))
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name.display(), entry.kind))
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names
    }

    #[test]
    fn directories_are_the_prefixes_of_keys() {
        let tree = tree(&["a/b/c", "a-x", "a/b/d", "a0", "z", "a/b-c/d"]);
        let (file, folder) = (|name: &str| (name.to_owned(), Kind::File), Kind::Folder);
        let root = [("a".into(), folder), file("a-x"), file("a0"), file("z")];
        assert_eq!(names(&tree, ""), root);
        assert_eq!(names(&tree, "a"), [("b".into(), folder), ("b-c".into(), folder)]);
        assert_eq!(names(&tree, "a/b"), [file("c"), file("d")]);
        for (at, error) in
            [("y", Error::NotFound), ("a/b/c/x", Error::NotADirectory), ("a/c", Error::NotFound)]
        {
            assert_eq!(tree.find(&path(at)).err(), Some(error.clone()), "{at}");
            assert_eq!(tree.list(&path(at)).err(), Some(error), "{at}");
        }
        assert_eq!(tree.list(&path("z")).err(), Some(Error::NotADirectory));
    }

    #[test]
    fn an_object_with_the_name_of_a_directory_is_left_out() {
        let long = "x".repeat(256);
        let tree = tree(&["a", "a/b", "a-", &long, &format!("c/{long}/d"), "e"]);
        let shown = [("a", Kind::Folder), ("a-", Kind::File), ("e", Kind::File)];
        assert_eq!(names(&tree, ""), shown.map(|(name, kind)| (name.to_owned(), kind)));
        assert_eq!(tree.left_out, 3);
        assert!(matches!(tree.find(&path("a")), Ok(FoundKey::Folder)));
    }

    #[test]
    fn a_marker_makes_an_empty_directory() {
        let tree = tree(&["a/.swarmletfs-marker"]);
        assert_eq!(names(&tree, ""), [("a".to_owned(), Kind::Folder)]);
        assert_eq!(names(&tree, "a"), []);
    }

    #[test]
    fn the_time_of_a_directory_changes_with_its_entries() {
        let keys = ["a/1", "a/2", "a/b/3", "c/4"];
        let before = tree(&keys);
        let time = |tree: &KeyTree, folder: &str| tree.folder_time(&path(folder));
        let removed = tree(&["a/1", "a/b/3", "c/4"]);
        assert_ne!(time(&before, "a"), time(&removed, "a"));
        let replaced = KeyTree::new(
            keys.iter()
                .enumerate()
                .map(|(at, key)| ListedObject {
                    etag: Some(if *key == "a/2" {
                        "new".into()
                    } else {
                        format!("\"{at}\"").into()
                    }),
                    ..before.objects[at].clone()
                })
                .collect(),
            0,
        );
        assert_ne!(time(&before, "a"), time(&replaced, "a"));
        assert_eq!(time(&before, "c"), time(&replaced, "c"));
        assert_eq!(time(&before, "a").secs, 1_002);
        assert_eq!(time(&before, "a"), time(&tree(&keys), "a"));
    }

    #[test]
    fn an_empty_tree_has_no_root() {
        assert_eq!(tree(&[]).find(&RelPath::root()).err(), Some(Error::NotFound));
    }
}
