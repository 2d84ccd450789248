//! Observer of a view: the tree without a kernel, or a mount.
//!
//! Files held open: one version of a generated file, or an own file as on disk, even after its name
//! is gone.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::io::Errno;

use super::compare::ObservedTree;
use super::mutable_store::{Identity, RawEntries, RawKind};
use super::view::ExpectedNode;
use crate::support::{Seen, see, see_folder, seen};
use swarmletfs_base::error::Error;
use swarmletfs_tree::tree::{Fh, Ino, Tree};

/// Reads one view.
pub trait Observer {
    /// Reads everything that is listed.
    fn all(&self) -> Result<ObservedTree, String>;
    /// Reads one path, listed or not.
    fn at(&self, path: &[u8]) -> Result<Seen, Errno>;
    /// Opens a file.
    fn open(&self, path: &[u8]) -> Result<OpenHandle, Errno>;
    /// Reads an open file from its start; also returns its size according to stat.
    fn read(&self, held: &OpenHandle) -> Result<(Vec<u8>, u64), Errno>;
    /// Closes an open file.
    fn close(&self, held: OpenHandle);
}

/// An open file of the tree or of a mount.
pub enum OpenHandle {
    Tree(Ino, Fh),
    File(File),
}

/// Size of a read, in bytes; larger than every file in these tests.
const READ_SIZE: usize = 1 << 20;

impl Observer for Tree {
    fn all(&self) -> Result<ObservedTree, String> {
        see_folder(self, "").map_err(|error| format!("cannot read the whole view: {error}"))
    }

    fn at(&self, path: &[u8]) -> Result<Seen, Errno> {
        see(self, path).map_err(|error| error.errno())
    }

    fn open(&self, path: &[u8]) -> Result<OpenHandle, Errno> {
        let errno = |error: Error| error.errno();
        let found = seen::find(self, path).map_err(errno)?;
        match Tree::open(self, found.ino) {
            Ok(opened) => Ok(OpenHandle::Tree(found.ino, opened.fh)),
            Err(error) => {
                self.forget(found.ino, 1);
                Err(errno(error))
            }
        }
    }

    fn read(&self, held: &OpenHandle) -> Result<(Vec<u8>, u64), Errno> {
        let OpenHandle::Tree(ino, fh) = held else { unreachable!("a handle of another observer") };
        let bytes =
            Tree::read(self, *fh, 0, READ_SIZE, <[u8]>::to_vec).map_err(|error| error.errno())?;
        let (attr, _) = self.attr(*ino).map_err(|error| error.errno())?;
        Ok((bytes, attr.size))
    }

    fn close(&self, held: OpenHandle) {
        let OpenHandle::Tree(ino, fh) = held else { unreachable!("a handle of another observer") };
        self.release(fh);
        self.forget(ino, 1);
    }
}

/// A mounted view.
pub struct Mounted(pub PathBuf);

impl Mounted {
    fn path(&self, path: &[u8]) -> PathBuf {
        self.0.join(OsStr::from_bytes(path))
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Observer for Mounted {
    fn all(&self) -> Result<ObservedTree, String> {
        let mut all = ObservedTree::new();
        let mut open = vec![Vec::new()];
        while let Some(folder) = open.pop() {
            let said = |error: std::io::Error| format!("{}: {error}", folder.escape_ascii());
            for entry in fs::read_dir(self.path(&folder)).map_err(said)? {
                let name = entry.map_err(said)?.file_name().into_encoded_bytes();
                let path =
                    if folder.is_empty() { name } else { [&folder, &b"/"[..], &name].concat() };
                let seen =
                    self.at(&path).map_err(|errno| format!("{}: {errno}", path.escape_ascii()))?;
                if matches!(seen, Seen::Folder { .. }) {
                    open.push(path.clone());
                }
                if all.insert(path.clone(), seen).is_some() {
                    return Err(format!("{}: listed twice", path.escape_ascii()));
                }
            }
        }
        Ok(all)
    }

    fn at(&self, path: &[u8]) -> Result<Seen, Errno> {
        let at = self.path(path);
        let meta = fs::symlink_metadata(&at).map_err(errno)?;
        let attr = |meta: &fs::Metadata| (meta.mode() & 0o7777, meta.uid(), meta.gid());
        let mtime = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec() as u32);
        if meta.is_dir() {
            return Ok(Seen::Folder { attr: attr(&meta), mtime: mtime(&meta) });
        }
        if meta.is_symlink() {
            return fs::read_link(&at)
                .map(|target| Seen::Link(target.into_os_string().into_encoded_bytes()))
                .map_err(errno);
        }
        let file = File::open(&at).map_err(errno)?;
        let meta = file.metadata().map_err(errno)?;
        let (bytes, _) = self.read(&OpenHandle::File(file))?;
        Ok(Seen::File { attr: attr(&meta), mtime: mtime(&meta), bytes })
    }

    fn open(&self, path: &[u8]) -> Result<OpenHandle, Errno> {
        File::open(self.path(path)).map(OpenHandle::File).map_err(errno)
    }

    fn read(&self, held: &OpenHandle) -> Result<(Vec<u8>, u64), Errno> {
        let OpenHandle::File(file) = held else { unreachable!("a handle of another observer") };
        let mut bytes = vec![0; READ_SIZE];
        let mut filled = 0;
        loop {
            match file.read_at(&mut bytes[filled..], filled as u64).map_err(errno)? {
                0 => break,
                n => filled += n,
            }
        }
        bytes.truncate(filled);
        Ok((bytes, file.metadata().map_err(errno)?.len()))
    }

    fn close(&self, held: OpenHandle) {
        drop(held);
    }
}

/// An open file and its expected content.
pub struct OpenFile {
    /// Number of the view.
    pub view: usize,
    path: String,
    handle: OpenHandle,
    bytes: Vec<u8>,
    /// Identity of an own file on disk.
    identity: Option<Identity>,
}

impl OpenFile {
    /// Opens `path` if it is expected to be a file.
    pub fn new(
        view: usize,
        observer: &dyn Observer,
        path: &str,
        expected: Option<&ExpectedNode>,
    ) -> Result<Option<OpenFile>, String> {
        let failed = |errno| format!("{path}: cannot open: {errno}");
        let identity = match expected {
            Some(ExpectedNode::Own { identity, .. }) => Some(*identity),
            Some(ExpectedNode::Made { .. }) => None,
            Some(ExpectedNode::Folder(_) | ExpectedNode::Link(_)) | None => return Ok(None),
        };
        let handle = observer.open(path.as_bytes()).map_err(failed)?;
        let (bytes, _) = observer.read(&handle).map_err(failed)?;
        Ok(Some(OpenFile { view, path: path.to_owned(), handle, bytes, identity }))
    }

    /// Updates the expected content from the store. A file without a name keeps its last content.
    pub fn update(&mut self, raw: &RawEntries) {
        let mut entries = raw.0.values();
        if let Some(entry) = entries.find(|entry| Some(entry.identity) == self.identity)
            && let RawKind::File(bytes) = &entry.kind
        {
            self.bytes.clone_from(bytes);
        }
    }

    /// Reads the file again and compares.
    pub fn check(&self, observer: &dyn Observer) -> Result<(), String> {
        let path = &self.path;
        let (bytes, size) =
            observer.read(&self.handle).map_err(|errno| format!("{path}, held open: {errno}"))?;
        if bytes != self.bytes {
            let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
            return Err(format!(
                "{path}, held open: {:?} and not {:?}",
                shown(&bytes),
                shown(&self.bytes)
            ));
        }
        if size != bytes.len() as u64 {
            return Err(format!(
                "{path}, held open: {} bytes, and stat reports {size}",
                bytes.len()
            ));
        }
        Ok(())
    }

    pub fn close(self, observer: &dyn Observer) {
        observer.close(self.handle);
    }
}
