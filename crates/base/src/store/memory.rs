//! Store in memory, for tests and generated stores.
//!
//! It behaves like a disk wherever a reader can observe it. Rewriting a file keeps its inode;
//! replacing it allocates a new one. Every change advances the clock. An open file stays readable
//! after its name is removed.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{DirEntry, File, Identity, Kind, Meta, Store, Time, copy_from, is_temporary};
use crate::error::{Error, Result};
use crate::name::RelPath;

/// Start of the clock, in seconds since 1970; every change advances it by one second.
const EPOCH: i64 = 1_700_000_000;

pub struct Memory {
    state: Arc<RwLock<MemoryState>>,
    base: RelPath,
    /// Identity of the root when it was entered.
    identity: Identity,
}

struct MemoryState {
    changes: u64,
    nodes: BTreeMap<RelPath, SharedNode>,
}

/// An inode, shared by its hard links and open files.
type SharedNode = Arc<RwLock<NodeContent>>;

struct NodeContent {
    bytes: Vec<u8>,
    meta: Meta,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Memory {
    pub fn new() -> Memory {
        let mut state = MemoryState { changes: 0, nodes: BTreeMap::new() };
        let root = state.node(Kind::Folder, 0o755, Vec::new());
        let identity = root.read().meta.identity;
        state.nodes.insert(RelPath::root(), root);
        Memory { state: Arc::new(RwLock::new(state)), base: RelPath::root(), identity }
    }

    /// Writes a file in place, or creates it with its parent directories.
    pub fn write(&self, path: &RelPath, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        let mut state = self.state.write();
        match state.nodes.get(path).filter(|node| node.read().meta.kind == Kind::File).cloned() {
            Some(node) => {
                let now = state.tick();
                let mut body = node.write();
                let meta = Meta { size: bytes.len() as u64, mtime: now, ctime: now, ..body.meta };
                *body = NodeContent { bytes, meta };
            }
            None => {
                state.remove(path);
                state.put(path, Kind::File, 0o644, bytes);
            }
        }
    }

    /// Replaces the entry at `path` with a new file, as a rename does.
    pub fn replace(&self, path: &RelPath, bytes: impl Into<Vec<u8>>) {
        let mut state = self.state.write();
        state.remove(path);
        state.put(path, Kind::File, 0o644, bytes.into());
    }

    /// Creates an entry that is not a file, such as a directory, a symlink or a FIFO.
    pub fn put(&self, path: &RelPath, kind: Kind) {
        let mut state = self.state.write();
        state.remove(path);
        state.put(path, kind, 0o755, Vec::new());
    }

    /// Adds the hard link `to` to the file `from`, replacing the entry at `to`. Does nothing if
    /// `from` is not a file.
    pub fn link(&self, from: &RelPath, to: &RelPath) {
        let mut state = self.state.write();
        let node =
            state.nodes.get(from).filter(|node| node.read().meta.kind == Kind::File).cloned();
        let Some(node) = node.filter(|_| from != to) else { return };
        state.remove(to);
        state.create_parents(to);
        let now = state.tick();
        let meta = node.read().meta;
        node.write().meta = Meta { nlink: meta.nlink + 1, ctime: now, ..meta };
        state.nodes.insert(to.clone(), node);
        state.touch(&to.parent());
    }

    pub fn remove(&self, path: &RelPath) {
        self.state.write().remove(path);
    }

    /// Renames an entry with its contents, replacing the entry at `to`.
    pub fn rename(&self, from: &RelPath, to: &RelPath) {
        let mut state = self.state.write();
        if !state.nodes.contains_key(from) || from == to {
            return;
        }
        state.remove(to);
        state.create_parents(to);
        let moved: Vec<RelPath> =
            state.nodes.keys().filter(|path| path.is_within(from)).cloned().collect();
        for path in moved {
            let Some(inner) = path.as_bytes().strip_prefix(from.as_bytes()) else { continue };
            let target = RelPath::parse([to.as_bytes(), inner].concat());
            if let (Some(node), Ok(target)) = (state.nodes.remove(&path), target) {
                state.nodes.insert(target, node);
            }
        }
        state.touch(&from.parent());
        state.touch(&to.parent());
    }
}

impl MemoryState {
    fn tick(&mut self) -> Time {
        self.changes += 1;
        Time { secs: EPOCH.saturating_add_unsigned(self.changes), nanos: 0 }
    }

    fn node(&mut self, kind: Kind, mode: u32, bytes: Vec<u8>) -> SharedNode {
        let now = self.tick();
        let identity = Identity { dev: 1, ino: self.changes, born: now };
        let size = bytes.len() as u64;
        let meta =
            Meta { kind, size, mode, uid: 0, gid: 0, nlink: 1, identity, mtime: now, ctime: now };
        Arc::new(RwLock::new(NodeContent { bytes, meta }))
    }

    fn put(&mut self, path: &RelPath, kind: Kind, mode: u32, bytes: Vec<u8>) {
        self.create_parents(path);
        let node = self.node(kind, mode, bytes);
        self.nodes.insert(path.clone(), node);
        self.touch(&path.parent());
    }

    /// Creates the parent directories of `path`, replacing entries that are not directories.
    fn create_parents(&mut self, path: &RelPath) {
        let parent = path.parent();
        if self.nodes.get(&parent).is_none_or(|node| node.read().meta.kind != Kind::Folder) {
            self.remove(&parent);
            self.put(&parent, Kind::Folder, 0o755, Vec::new());
        }
    }

    fn remove(&mut self, path: &RelPath) {
        if path.is_root() {
            return;
        }
        let beginning = path.as_bytes();
        let within: Vec<RelPath> = self
            .nodes
            .range(path..)
            .map(|(other, _)| other)
            .take_while(|other| other.as_bytes().starts_with(beginning))
            .filter(|other| other.is_within(path))
            .cloned()
            .collect();
        let removed: Vec<SharedNode> =
            within.iter().filter_map(|other| self.nodes.remove(other)).collect();
        if removed.is_empty() {
            return;
        }
        self.touch(&path.parent());
        for node in removed {
            let now = self.tick();
            let meta = node.read().meta;
            node.write().meta = Meta { nlink: meta.nlink.saturating_sub(1), ctime: now, ..meta };
        }
    }

    fn touch(&mut self, folder: &RelPath) {
        let now = self.tick();
        if let Some(node) = self.nodes.get(folder) {
            let meta = node.read().meta;
            node.write().meta = Meta { mtime: now, ctime: now, ..meta };
        }
    }

    /// Returns the node at `path` in the directory `base`, which must still have this identity.
    fn find_in(&self, base: &RelPath, identity: Identity, path: &RelPath) -> Result<&SharedNode> {
        if self.find(base)?.read().meta.identity != identity {
            return Err(Error::NotFound);
        }
        self.find(&base.join_path(path))
    }

    /// Returns the node at `path`. A parent that is not a directory is an error, as on disk.
    fn find(&self, path: &RelPath) -> Result<&SharedNode> {
        // The parents of an existing node are all directories.
        if let Some(node) = self.nodes.get(path) {
            return Ok(node);
        }
        let mut folder = RelPath::root();
        for name in path.parent().names() {
            folder = folder.join(&name);
            match self.nodes.get(&folder).map(|node| node.read().meta.kind) {
                Some(Kind::Folder) => {}
                Some(Kind::Link) => return Err(Error::Escape),
                Some(Kind::File | Kind::Special) => return Err(Error::NotADirectory),
                None => return Err(Error::NotFound),
            }
        }
        Err(Error::NotFound)
    }
}

impl Store for Memory {
    fn describe(&self) -> String {
        "a store in memory".into()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_replaced(&self) -> bool {
        false
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        Ok(self.state.read().find_in(&self.base, self.identity, path)?.read().meta)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        let state = self.state.read();
        state.find_in(&self.base, self.identity, path)?.read().meta.kind.must_be(Kind::Folder)?;
        let path = self.base.join_path(path);
        // Paths are sorted, so those that start with the directory's path are adjacent.
        let below = state
            .nodes
            .range(&path..)
            .take_while(|(other, _)| other.as_bytes().starts_with(path.as_bytes()));
        let entries =
            below.filter(|(other, _)| other.is_within(&path) && other.depth() == path.depth() + 1);
        Ok(entries
            .filter_map(|(path, node)| {
                let name = path.file_name().filter(|name| !is_temporary(name))?;
                Some(DirEntry { name, kind: node.read().meta.kind })
            })
            .collect())
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let state = self.state.read();
        let node = state.find_in(&self.base, self.identity, path)?;
        node.read().meta.kind.must_be(Kind::File)?;
        Ok(Box::new(MemoryFile(node.clone())))
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        let meta = self.stat(path)?;
        meta.kind.must_be(Kind::Folder)?;
        let base = self.base.join_path(path);
        Ok(Box::new(Memory { state: Arc::clone(&self.state), base, identity: meta.identity }))
    }
}

struct MemoryFile(SharedNode);

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(copy_from(&self.0.read().bytes, offset, buffer))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.0.read().meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn write_keeps_the_inode_and_replace_allocates_a_new_one() {
        let store = Memory::new();
        store.write(&path("a/b"), "one");
        let first = store.stat(&path("a/b")).unwrap();
        let open = store.open(&path("a/b")).unwrap();
        store.write(&path("a/b"), "longer");
        let second = store.stat(&path("a/b")).unwrap();
        assert_eq!((second.identity, second.size), (first.identity, 6));
        assert!(second.mtime > first.mtime);
        assert_eq!(open.meta().unwrap(), second);
        store.replace(&path("a/b"), "new");
        assert_ne!(store.stat(&path("a/b")).unwrap().identity, first.identity);
        assert_eq!(super::super::read_range(&*open, 0, 10).unwrap(), b"longer");
    }

    #[test]
    fn list_leaves_out_temporary_entries() {
        let store = Memory::new();
        store.write(&path("a/.swarmletfs-new-1/metadata.json"), "{}");
        store.write(&path("a/.swarmletfs-tmp-2"), "");
        store.write(&path("a/.swarmletfs"), "");
        let names: Vec<String> =
            store.list(&path("a")).unwrap().into_iter().map(|entry| entry.name.display()).collect();
        assert_eq!(names, [".swarmletfs"]);
    }

    #[test]
    fn list_returns_direct_children_and_symlinks_are_not_followed() {
        let store = Memory::new();
        store.write(&path("a/b/c"), "");
        store.write(&path("ab"), "");
        store.put(&path("a/link"), Kind::Link);
        let names = |at: &RelPath| {
            store.list(at).map(|all| all.into_iter().map(|e| e.name.display()).collect::<Vec<_>>())
        };
        assert_eq!(names(&RelPath::root()).unwrap(), ["a", "ab"]);
        assert_eq!(names(&path("a")).unwrap(), ["b", "link"]);
        assert_eq!(store.stat(&path("a/link/x")), Err(Error::Escape));
        assert_eq!(store.stat(&path("ab/x")), Err(Error::NotADirectory));
        store.rename(&path("a"), &path("z"));
        assert_eq!(names(&path("z/b")).unwrap(), ["c"]);
        assert_eq!(store.stat(&path("a")), Err(Error::NotFound));
        store.remove(&path("z"));
        assert_eq!(names(&RelPath::root()).unwrap(), ["ab"]);
    }
}
