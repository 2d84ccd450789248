//! Store in memory or on disk, changed and read without the code under test.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store};

use crate::hostile::make_fifo;
use crate::support::TestStore;

/// Seconds and nanoseconds.
pub type Time = (i64, u32);
/// Identity of an inode.
pub type Identity = (u64, Time);

/// One entry of a store.
#[derive(Debug, Clone)]
pub struct RawEntry {
    pub kind: RawKind,
    pub mode: u32,
    pub links: u64,
    pub mtime: Time,
    pub identity: Identity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawKind {
    File(Vec<u8>),
    Folder,
    Link,
    Special,
}

/// All entries of a store by path; the root has the empty path.
#[derive(Debug, Default)]
pub struct RawEntries(pub BTreeMap<Vec<u8>, RawEntry>);

impl RawEntries {
    pub fn get(&self, path: &[u8]) -> Option<&RawKind> {
        self.0.get(path).map(|entry| &entry.kind)
    }

    /// Returns the bytes of a file.
    pub fn file(&self, path: &[u8]) -> Option<&[u8]> {
        match self.get(path) {
            Some(RawKind::File(bytes)) => Some(bytes),
            _ => None,
        }
    }

    pub fn is_folder(&self, path: &[u8]) -> bool {
        self.get(path) == Some(&RawKind::Folder)
    }

    /// Returns everything below a directory by relative path.
    pub fn below<'a>(&'a self, folder: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a RawEntry)> {
        let inside = move |path: &'a [u8]| match folder {
            [] => Some(path).filter(|path| !path.is_empty()),
            _ => path.strip_prefix(folder)?.strip_prefix(b"/"),
        };
        self.0.iter().filter_map(move |(path, entry)| Some((inside(path)?, entry)))
    }

    /// Returns the direct children of a directory by name.
    pub fn inside<'a>(
        &'a self,
        folder: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a RawEntry)> {
        self.below(folder).filter(|(path, _)| !path.contains(&b'/'))
    }
}

impl RawEntries {
    /// Returns the entries as a view of one owner reads them: a file with several hard links is a
    /// symlink.
    pub fn without_hard_links(&self) -> RawEntries {
        let judged = |(path, entry): (&Vec<u8>, &RawEntry)| {
            let shared = entry.links > 1 && matches!(entry.kind, RawKind::File(_));
            let kind = if shared { RawKind::Link } else { entry.kind.clone() };
            (path.clone(), RawEntry { kind, ..entry.clone() })
        };
        RawEntries(self.0.iter().map(judged).collect())
    }
}

/// A store that can be changed. The caller ensures that all parents of a changed path are
/// directories.
pub trait MutableStore {
    /// Returns all entries.
    fn raw(&self) -> RawEntries;
    /// Writes a file in place, or creates it.
    fn write(&self, path: &[u8], bytes: &[u8]);
    /// Appends to an existing file.
    fn append(&self, path: &[u8], bytes: &[u8]);
    /// Truncates an existing file.
    fn truncate(&self, path: &[u8], length: usize);
    /// Replaces the entry with a new file.
    fn replace(&self, path: &[u8], bytes: &[u8]);
    /// Replaces the entry with one that is not a file.
    fn create_special(&self, path: &[u8], kind: Kind);
    /// Adds a hard link, replacing the entry at `to`.
    fn link(&self, from: &[u8], to: &[u8]);
    /// Removes an entry recursively.
    fn remove(&self, path: &[u8]);
    /// Renames an entry, replacing the entry at `to`.
    fn rename(&self, from: &[u8], to: &[u8]);
}

fn rel(path: &[u8]) -> RelPath {
    RelPath::parse(path).unwrap()
}

impl MutableStore for Memory {
    fn raw(&self) -> RawEntries {
        let mut all = BTreeMap::new();
        let mut open = vec![RelPath::root()];
        while let Some(path) = open.pop() {
            let meta = self.stat(&path).unwrap();
            let kind = match meta.kind {
                Kind::Folder => {
                    open.extend(
                        self.list(&path).unwrap().iter().map(|entry| path.join(&entry.name)),
                    );
                    RawKind::Folder
                }
                Kind::File => {
                    let mut bytes = vec![0; meta.size as usize];
                    assert_eq!(
                        self.open(&path).unwrap().read_at(&mut bytes, 0).unwrap(),
                        bytes.len()
                    );
                    RawKind::File(bytes)
                }
                Kind::Link => RawKind::Link,
                Kind::Special => RawKind::Special,
            };
            let identity = (meta.identity.ino, (meta.identity.born.secs, meta.identity.born.nanos));
            let mtime = (meta.mtime.secs, meta.mtime.nanos);
            all.insert(
                path.as_bytes().to_vec(),
                RawEntry { kind, mode: meta.mode, links: meta.nlink.into(), mtime, identity },
            );
        }
        RawEntries(all)
    }

    fn write(&self, path: &[u8], bytes: &[u8]) {
        Memory::write(self, &rel(path), bytes);
    }

    fn append(&self, path: &[u8], bytes: &[u8]) {
        let before = self.raw().file(path).unwrap().to_vec();
        Memory::write(self, &rel(path), [&before, bytes].concat());
    }

    fn truncate(&self, path: &[u8], length: usize) {
        let before = self.raw().file(path).unwrap().to_vec();
        Memory::write(self, &rel(path), &before[..length]);
    }

    fn replace(&self, path: &[u8], bytes: &[u8]) {
        Memory::replace(self, &rel(path), bytes);
    }

    fn create_special(&self, path: &[u8], kind: Kind) {
        self.put(&rel(path), kind);
    }

    fn link(&self, from: &[u8], to: &[u8]) {
        Memory::link(self, &rel(from), &rel(to));
    }

    fn remove(&self, path: &[u8]) {
        Memory::remove(self, &rel(path));
    }

    fn rename(&self, from: &[u8], to: &[u8]) {
        Memory::rename(self, &rel(from), &rel(to));
    }
}

impl MutableStore for TestStore {
    fn raw(&self) -> RawEntries {
        let mut all = BTreeMap::new();
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let at = self.at(&path);
            let meta = fs::symlink_metadata(&at).unwrap();
            let kind = meta.file_type();
            let kind = if kind.is_dir() {
                for entry in fs::read_dir(&at).unwrap() {
                    let name = entry.unwrap().file_name().into_encoded_bytes();
                    open.push(if path.is_empty() {
                        name
                    } else {
                        [&path, &b"/"[..], &name].concat()
                    });
                }
                RawKind::Folder
            } else if kind.is_file() {
                RawKind::File(fs::read(&at).unwrap())
            } else if kind.is_symlink() {
                RawKind::Link
            } else {
                assert!(kind.is_fifo());
                RawKind::Special
            };
            let born = meta
                .created()
                .ok()
                .and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
            let born = born.map_or((0, 0), |born| (born.as_secs() as i64, born.subsec_nanos()));
            let mtime = (meta.mtime(), meta.mtime_nsec() as u32);
            let (mode, links, identity) = (meta.mode() & 0o7777, meta.nlink(), (meta.ino(), born));
            all.insert(path, RawEntry { kind, mode, links, mtime, identity });
        }
        RawEntries(all)
    }

    fn write(&self, path: &[u8], bytes: &[u8]) {
        until_stat_changes(&self.at(path), || {
            TestStore::write(self, path, bytes);
        });
    }

    fn append(&self, path: &[u8], bytes: &[u8]) {
        until_stat_changes(&self.at(path), || {
            File::options().append(true).open(self.at(path)).unwrap().write_all(bytes).unwrap();
        });
    }

    fn truncate(&self, path: &[u8], length: usize) {
        until_stat_changes(&self.at(path), || {
            File::options()
                .write(true)
                .open(self.at(path))
                .unwrap()
                .set_len(length as u64)
                .unwrap();
        });
    }

    fn replace(&self, path: &[u8], bytes: &[u8]) {
        let fresh = self.path().with_extension("fresh");
        fs::write(&fresh, bytes).unwrap();
        self.put(&fresh, path);
    }

    fn create_special(&self, path: &[u8], kind: Kind) {
        self.remove(path);
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        match kind {
            Kind::Folder => fs::create_dir(self.at(path)).unwrap(),
            // Points to another owner's worker. Symlinks in memory have no target.
            Kind::Link => symlink("../b/metadata.json", self.at(path)).unwrap(),
            Kind::Special => make_fifo(&self.at(path)),
            Kind::File => unreachable!("a file is written"),
        }
    }

    fn link(&self, from: &[u8], to: &[u8]) {
        self.remove(to);
        fs::create_dir_all(self.at(to).parent().unwrap()).unwrap();
        fs::hard_link(self.at(from), self.at(to)).unwrap();
    }

    fn remove(&self, path: &[u8]) {
        match fs::symlink_metadata(self.at(path)) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(self.at(path)).unwrap(),
            Ok(_) => fs::remove_file(self.at(path)).unwrap(),
            Err(_) => {}
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) {
        self.put(&self.at(from), to);
    }
}

impl TestStore {
    /// Renames `from` to `to`: atomically for files, otherwise after removing `to`.
    fn put(&self, from: &Path, to: &[u8]) {
        fs::create_dir_all(self.at(to).parent().unwrap()).unwrap();
        if !(from.is_file() && self.at(to).is_file()) {
            self.remove(to);
        }
        fs::rename(from, self.at(to)).unwrap();
    }
}

/// Repeats a change in place until stat shows it: within one tick of a coarse clock, no reader can
/// detect a change.
fn until_stat_changes(path: &Path, change: impl Fn()) {
    let stat = || {
        fs::symlink_metadata(path).ok().map(|meta| (meta.ino(), meta.ctime(), meta.ctime_nsec()))
    };
    let before = stat();
    change();
    while before.is_some() && stat() == before {
        File::options()
            .append(true)
            .open(path)
            .unwrap()
            .set_modified(std::time::SystemTime::now())
            .unwrap();
    }
}
