//! Who looks at a mounted tree: without a kernel, or through one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::io::Errno;
use swarmletfs::error::Error;
use swarmletfs::tree::{Fh, Ino, Tree};

use super::compare::Sight;
use crate::support::{Seen, see, see_folder, seen};

/// Looks at one view.
pub trait Eyes {
    /// All that is listed.
    fn all(&self) -> Result<Sight, String>;
    /// What is under one name, listed or not.
    fn at(&self, path: &[u8]) -> Result<Seen, Errno>;
    /// Opens a file and keeps it open.
    fn open(&self, path: &[u8]) -> Result<Held, Errno>;
    /// What is open, read from its start, and the size told of it.
    fn read(&self, held: &Held) -> Result<(Vec<u8>, u64), Errno>;
    /// Closes it.
    fn close(&self, held: Held);
}

/// What is kept open.
pub enum Held {
    Number(Ino, Fh),
    File(File),
}

/// More than any file here has.
const ROOM: usize = 1 << 20;

impl Eyes for Tree {
    fn all(&self) -> Result<Sight, String> {
        see_folder(self, "").map_err(|error| format!("in looking at all: {error}"))
    }

    fn at(&self, path: &[u8]) -> Result<Seen, Errno> {
        see(self, path).map_err(|error| error.errno())
    }

    fn open(&self, path: &[u8]) -> Result<Held, Errno> {
        let errno = |error: Error| error.errno();
        let found = seen::find(self, path).map_err(errno)?;
        match Tree::open(self, found.ino) {
            Ok(opened) => Ok(Held::Number(found.ino, opened.fh)),
            Err(error) => {
                self.forget(found.ino, 1);
                Err(errno(error))
            }
        }
    }

    fn read(&self, held: &Held) -> Result<(Vec<u8>, u64), Errno> {
        let Held::Number(ino, fh) = held else { unreachable!("of another kind") };
        let bytes = Tree::read(self, *fh, 0, ROOM, <[u8]>::to_vec).map_err(|error| error.errno())?;
        let (attr, _) = self.attr(*ino).map_err(|error| error.errno())?;
        Ok((bytes, attr.size))
    }

    fn close(&self, held: Held) {
        let Held::Number(ino, fh) = held else { unreachable!("of another kind") };
        self.release(fh);
        self.forget(ino, 1);
    }
}

/// A mountpoint.
pub struct Mounted(pub PathBuf);

impl Mounted {
    fn path(&self, path: &[u8]) -> PathBuf {
        self.0.join(OsStr::from_bytes(path))
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Eyes for Mounted {
    fn all(&self) -> Result<Sight, String> {
        let mut all = Sight::new();
        let mut open = vec![Vec::new()];
        while let Some(folder) = open.pop() {
            let said = |error: std::io::Error| format!("{}: {error}", folder.escape_ascii());
            for entry in fs::read_dir(self.path(&folder)).map_err(said)? {
                let name = entry.map_err(said)?.file_name().into_encoded_bytes();
                let path = if folder.is_empty() { name } else { [&folder, &b"/"[..], &name].concat() };
                let seen = self.at(&path).map_err(|errno| format!("{}: {errno}", path.escape_ascii()))?;
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
        let (bytes, _) = self.read(&Held::File(file))?;
        Ok(Seen::File { attr: attr(&meta), mtime: mtime(&meta), bytes })
    }

    fn open(&self, path: &[u8]) -> Result<Held, Errno> {
        File::open(self.path(path)).map(Held::File).map_err(errno)
    }

    fn read(&self, held: &Held) -> Result<(Vec<u8>, u64), Errno> {
        let Held::File(file) = held else { unreachable!("of another kind") };
        let mut bytes = vec![0; ROOM];
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

    fn close(&self, held: Held) {
        drop(held);
    }
}
