//! Where the changes happen: a store in memory or on disk, changed and looked at without the code that is under test.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use swarmletfs::name::RelPath;
use swarmletfs::store::{Kind, Memory, Store};

use crate::hostile::make_fifo;
use crate::support::TestStore;

/// Seconds and nanoseconds.
pub type Time = (i64, u32);
/// What is behind a name: another one under the same name is something else.
pub type Identity = (u64, Time);

/// One entry of a store, as it lies there.
#[derive(Debug, Clone)]
pub struct Lying {
    pub what: What,
    pub mode: u32,
    pub links: u64,
    pub mtime: Time,
    pub identity: Identity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    File(Vec<u8>),
    Folder,
    Link,
    Special,
}

/// All entries of a store by path; the root under the empty one.
#[derive(Debug, Default)]
pub struct Raw(pub BTreeMap<Vec<u8>, Lying>);

impl Raw {
    pub fn get(&self, path: &[u8]) -> Option<&What> {
        self.0.get(path).map(|lying| &lying.what)
    }

    /// The bytes of a file.
    pub fn file(&self, path: &[u8]) -> Option<&[u8]> {
        match self.get(path) {
            Some(What::File(bytes)) => Some(bytes),
            _ => None,
        }
    }

    pub fn is_folder(&self, path: &[u8]) -> bool {
        self.get(path) == Some(&What::Folder)
    }

    /// All that is in a folder, however deep, by its path from there.
    pub fn below<'a>(&'a self, folder: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Lying)> {
        let inside = move |path: &'a [u8]| match folder {
            [] => Some(path).filter(|path| !path.is_empty()),
            _ => path.strip_prefix(folder)?.strip_prefix(b"/"),
        };
        self.0.iter().filter_map(move |(path, lying)| Some((inside(path)?, lying)))
    }

    /// What is directly in a folder, by name.
    pub fn inside<'a>(&'a self, folder: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Lying)> {
        self.below(folder).filter(|(path, _)| !path.contains(&b'/'))
    }
}

impl Raw {
    /// What lies there for who reads for one owner: a file with more than one hard link is a link.
    pub fn unshared(&self) -> Raw {
        let judged = |(path, lying): (&Vec<u8>, &Lying)| {
            let shared = lying.links > 1 && matches!(lying.what, What::File(_));
            let what = if shared { What::Link } else { lying.what.clone() };
            (path.clone(), Lying { what, ..lying.clone() })
        };
        Raw(self.0.iter().map(judged).collect())
    }
}

/// A store that can be changed. Whoever changes it has seen to it that only folders stand above what is changed.
pub trait Ground {
    /// Everything in it.
    fn raw(&self) -> Raw;
    /// Writes a file in place, or a new one.
    fn write(&self, path: &[u8], bytes: &[u8]);
    /// Writes at the end of a file that is there.
    fn append(&self, path: &[u8], bytes: &[u8]);
    /// Cuts a file that is there.
    fn cut(&self, path: &[u8], length: usize);
    /// Puts another file in the place of whatever is there.
    fn replace(&self, path: &[u8], bytes: &[u8]);
    /// Puts what is no file in the place of whatever is there.
    fn plant(&self, path: &[u8], kind: Kind);
    /// Gives a file a further name, in the place of whatever is there.
    fn link(&self, from: &[u8], to: &[u8]);
    /// Takes away whatever is there.
    fn remove(&self, path: &[u8]);
    /// Gives what is there another name; what had that name is gone.
    fn rename(&self, from: &[u8], to: &[u8]);
}

fn rel(path: &[u8]) -> RelPath {
    RelPath::parse(path).unwrap()
}

impl Ground for Memory {
    fn raw(&self) -> Raw {
        let mut all = BTreeMap::new();
        let mut open = vec![RelPath::root()];
        while let Some(path) = open.pop() {
            let meta = self.stat(&path).unwrap();
            let what = match meta.kind {
                Kind::Folder => {
                    open.extend(self.list(&path).unwrap().iter().map(|entry| path.join(&entry.name)));
                    What::Folder
                }
                Kind::File => {
                    let mut bytes = vec![0; meta.size as usize];
                    assert_eq!(self.open(&path).unwrap().read_at(&mut bytes, 0).unwrap(), bytes.len());
                    What::File(bytes)
                }
                Kind::Link => What::Link,
                Kind::Special => What::Special,
            };
            let identity = (meta.identity.ino, (meta.identity.born.secs, meta.identity.born.nanos));
            let mtime = (meta.mtime.secs, meta.mtime.nanos);
            all.insert(
                path.as_bytes().to_vec(),
                Lying { what, mode: meta.mode, links: meta.nlink.into(), mtime, identity },
            );
        }
        Raw(all)
    }

    fn write(&self, path: &[u8], bytes: &[u8]) {
        Memory::write(self, &rel(path), bytes);
    }

    fn append(&self, path: &[u8], bytes: &[u8]) {
        let before = self.raw().file(path).unwrap().to_vec();
        Memory::write(self, &rel(path), [&before, bytes].concat());
    }

    fn cut(&self, path: &[u8], length: usize) {
        let before = self.raw().file(path).unwrap().to_vec();
        Memory::write(self, &rel(path), &before[..length]);
    }

    fn replace(&self, path: &[u8], bytes: &[u8]) {
        Memory::replace(self, &rel(path), bytes);
    }

    fn plant(&self, path: &[u8], kind: Kind) {
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

impl Ground for TestStore {
    fn raw(&self) -> Raw {
        let mut all = BTreeMap::new();
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let at = self.at(&path);
            let meta = fs::symlink_metadata(&at).unwrap();
            let kind = meta.file_type();
            let what = if kind.is_dir() {
                for entry in fs::read_dir(&at).unwrap() {
                    let name = entry.unwrap().file_name().into_encoded_bytes();
                    open.push(if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() });
                }
                What::Folder
            } else if kind.is_file() {
                What::File(fs::read(&at).unwrap())
            } else if kind.is_symlink() {
                What::Link
            } else {
                assert!(kind.is_fifo());
                What::Special
            };
            let born = meta.created().ok().and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
            let born = born.map_or((0, 0), |born| (born.as_secs() as i64, born.subsec_nanos()));
            let mtime = (meta.mtime(), meta.mtime_nsec() as u32);
            let (mode, links, identity) = (meta.mode() & 0o7777, meta.nlink(), (meta.ino(), born));
            all.insert(path, Lying { what, mode, links, mtime, identity });
        }
        Raw(all)
    }

    fn write(&self, path: &[u8], bytes: &[u8]) {
        told_by_stat(&self.at(path), || {
            TestStore::write(self, path, bytes);
        });
    }

    fn append(&self, path: &[u8], bytes: &[u8]) {
        told_by_stat(&self.at(path), || {
            File::options().append(true).open(self.at(path)).unwrap().write_all(bytes).unwrap();
        });
    }

    fn cut(&self, path: &[u8], length: usize) {
        told_by_stat(&self.at(path), || {
            File::options().write(true).open(self.at(path)).unwrap().set_len(length as u64).unwrap();
        });
    }

    fn replace(&self, path: &[u8], bytes: &[u8]) {
        let fresh = self.path().with_extension("fresh");
        fs::write(&fresh, bytes).unwrap();
        self.put(&fresh, path);
    }

    fn plant(&self, path: &[u8], kind: Kind) {
        self.remove(path);
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        match kind {
            Kind::Folder => fs::create_dir(self.at(path)).unwrap(),
            // A way to what another owner's worker has; a store in memory has links that lead nowhere.
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
    /// Renames: a file over a file in one step, and anything else into the place of what is taken away first.
    fn put(&self, from: &Path, to: &[u8]) {
        fs::create_dir_all(self.at(to).parent().unwrap()).unwrap();
        if !(from.is_file() && self.at(to).is_file()) {
            self.remove(to);
        }
        fs::rename(from, self.at(to)).unwrap();
    }
}

/// Changes a file in place until stat tells of it: within one tick of a coarse clock it may not, and then nobody can
/// know.
fn told_by_stat(path: &Path, change: impl Fn()) {
    let stat = || fs::symlink_metadata(path).ok().map(|meta| (meta.ino(), meta.ctime(), meta.ctime_nsec()));
    let before = stat();
    change();
    while before.is_some() && stat() == before {
        File::options().append(true).open(path).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    }
}
