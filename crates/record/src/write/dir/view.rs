//! Files of a worker's view of a workspace, which the tools of that worker read and write.
//!
//! A workspace holds links, and its programs follow them. So links are followed here, but only
//! those that stay beneath the directory: a link that leads out, also by an absolute path, is an
//! [`Error::Escape`]. The view is a draft, so nothing waits for the disk.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::{DIR_MODE, Dir, FILE_MODE, File, from_io, stat};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, kind_of};

/// Keeps the resolution of a path beneath the directory, and in its mount.
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
/// Flags of every open. NONBLOCK makes it return at once for a FIFO.
const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

const BASIC: StatxFlags = StatxFlags::BASIC_STATS;

/// An entry of a directory of a view. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewEntry {
    pub name: Name,
    pub kind: EntryKind,
    pub size: u64,
}

impl Dir {
    pub fn view_folder(&self, path: &RelPath) -> Result<Dir> {
        let fd = self.open_within(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(self.child(fd, path))
    }

    pub fn view_file(&self, path: &RelPath) -> Result<File> {
        must_be_file(self.open_within(path, OFlags::RDONLY, Mode::empty())?)
    }

    /// Returns the kind and the size of the entry `path` of a view. Links are followed.
    pub fn view_kind(&self, path: &RelPath) -> Result<(EntryKind, u64)> {
        let fd = self.open_within(path, OFlags::PATH, Mode::empty())?;
        let found = stat(fd.as_fd())?;
        Ok((kind_of(&found).into(), found.stx_size))
    }

    /// Lists this directory of a view, sorted by name.
    pub fn view_entries(&self) -> Result<Vec<ViewEntry>> {
        let mut names = self.list()?;
        names.sort();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let found = rustix::fs::statx(&self.fd, name.as_os_str(), flags, BASIC);
            // Others are removed while they are listed.
            let Ok(found) = found else { continue };
            entries.push(ViewEntry { name, kind: kind_of(&found).into(), size: found.stx_size });
        }
        Ok(entries)
    }

    /// Writes the file `path` of a view: a new one, or the whole content of the existing one, which
    /// keeps its permissions. Missing directories are made.
    ///
    /// # Errors
    ///
    /// If the disk is full, the file keeps its old content. After another error of the system, it
    /// may have a part of the new one.
    pub fn write_view_file(&self, path: &RelPath, content: &[u8]) -> Result<()> {
        self.make_view_folders(&path.parent())?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let mut file = must_be_file(self.open_within(path, flags, FILE_MODE)?)?;
        // The file is not replaced by a new one: it may be reached by a link or have several names.
        reserve(&file, content.len() as u64)?;
        file.write_all(content).map_err(from_io)?;
        file.set_len(content.len() as u64).map_err(from_io)
    }

    /// Removes the file or link `path` of a view. A link is removed itself.
    ///
    /// # Errors
    ///
    /// It is a directory.
    pub fn remove_view_file(&self, path: &RelPath) -> Result<()> {
        let name = path.file_name().ok_or(Error::IsADirectory)?;
        let parent = self.view_folder(&path.parent())?;
        match parent.kind(&RelPath::from(name.clone()))? {
            None => Err(Error::NotFound),
            Some(Kind::Folder) => Err(Error::IsADirectory),
            Some(_) => Ok(rustix::fs::unlinkat(&parent.fd, name.as_os_str(), AtFlags::empty())?),
        }
    }

    fn make_view_folders(&self, path: &RelPath) -> Result<()> {
        let mut made = RelPath::root();
        for name in path.names() {
            let next = made.join(&name);
            match self.view_folder(&next) {
                Err(Error::NotFound) => self.view_folder(&made)?.make_view_folder(&name)?,
                opened => drop(opened?),
            }
            made = next;
        }
        Ok(())
    }

    fn make_view_folder(&self, name: &Name) -> Result<()> {
        match rustix::fs::mkdirat(&self.fd, name.as_os_str(), DIR_MODE) {
            // Another call of the worker made it meanwhile.
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        }
    }

    fn open_within(&self, path: &RelPath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        // O_PATH allows no other flags than these.
        let more = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OPEN };
        self.open_resolving(path, flags | more, mode, WITHIN)
    }
}

/// Reserves space for `size` bytes, so that writing them does not fill the disk. The content stays.
/// On a file system that cannot reserve, writing alone shows whether there is space.
fn reserve(file: &File, size: u64) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}

fn must_be_file(fd: OwnedFd) -> Result<File> {
    kind_of(&stat(fd.as_fd())?).must_be(Kind::File)?;
    Ok(File::from(fd))
}
