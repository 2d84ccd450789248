//! The supervisor's notes as a directory that programs write to through a mount, without a kernel:
//! inodes, handles, and changes of the files in `supervisor/` of a store.
//!
//! An inode number identifies a file or directory on disk. Its path is made of its name and that of
//! its parents when it is used, so that a renamed directory takes its content along. Whatever is
//! opened is compared with the inode: if another program has replaced it in the store, the request
//! fails with [`Error::Stale`], and the kernel looks the name up again.
//!
//! Links and special files are neither shown nor created: readers of the store follow none.
//!
//! Content is on disk when a file is closed or synchronized, and a name when its file is created
//! and closed, or renamed.

mod handles;
mod inodes;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, RenameFlags, StatVfs};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::{Kind, is_temporary};
use crate::write::{Dir, File, LiveMeta, file_meta, set_file_mode, set_file_times};
use handles::{NoteHandle, NoteHandles, OpenNote};
use inodes::{NoteInodes, ROOT};

pub(crate) use crate::store::Time;
pub(crate) use crate::write::{NewTime, OpenMode};
pub(crate) use inodes::{NoteIno, is_note};

/// Number of an open file or directory.
pub(crate) type NoteFh = u64;

/// The notes of a store, open for changes.
pub(crate) struct Notes {
    /// The directory `supervisor/`.
    dir: Dir,
    inodes: Mutex<NoteInodes>,
    handles: Mutex<NoteHandles>,
}

/// Attributes of a note or of a directory of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoteAttr {
    pub(crate) ino: NoteIno,
    pub(crate) is_folder: bool,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Permission bits, within 0777.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

/// Changes of attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewAttr {
    /// Permission bits; others are ignored.
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Size in bytes.
    pub(crate) size: Option<u64>,
    pub(crate) atime: NewTime,
    pub(crate) mtime: NewTime,
}

/// An entry of a directory of notes.
#[derive(Debug, Clone)]
pub(crate) struct ListedNote {
    pub(crate) name: Name,
    pub(crate) is_folder: bool,
    pub(crate) ino: NoteIno,
}

impl Notes {
    /// Serves the directory `dir`, with all its content.
    ///
    /// # Errors
    ///
    /// This user may not write to it.
    pub(crate) fn new(dir: Dir) -> Result<Notes> {
        dir.must_be_writable()?;
        let identity = dir.live_meta(&RelPath::root())?.ok_or(Error::NotFound)?.identity();
        Ok(Notes {
            dir,
            inodes: Mutex::new(NoteInodes::new(identity)),
            handles: Mutex::new(NoteHandles::default()),
        })
    }

    /// Returns the directory that is written to.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Looks up `name` in the directory `parent`, and the directory of all notes without a name.
    /// Each success adds one lookup, which the caller must give back with [`Notes::forget`].
    pub(crate) fn look_up(&self, parent: NoteIno, name: Option<&[u8]>) -> Result<NoteAttr> {
        let Some(name) = name else {
            let meta = self.dir.live_meta(&RelPath::root())?.ok_or(Error::NotFound)?;
            return Ok(attr(ROOT, &meta));
        };
        let name = parse_name(name)?;
        let meta = self.meta(&self.path(parent)?.join(&name))?;
        Ok(self.add(parent, name, &meta))
    }

    /// Gives back `count` lookups.
    pub(crate) fn forget(&self, ino: NoteIno, count: u64) {
        self.inodes.lock().forget(ino, count);
    }

    /// Returns the attributes of an inode.
    pub(crate) fn attr(&self, ino: NoteIno) -> Result<NoteAttr> {
        match self.current(ino) {
            Ok((_, meta)) => Ok(attr(ino, &meta)),
            // A file that was removed or replaced stays in use through its open handles.
            Err(error) => match self.handles.lock().file_of(ino) {
                Some(open) => Ok(attr(ino, &file_meta(&open.file)?)),
                None => Err(error),
            },
        }
    }

    /// Changes attributes. `fh` is a handle of the file, if there is one.
    ///
    /// # Errors
    ///
    /// `EPERM` for another owner or group.
    pub(crate) fn set_attr(
        &self,
        ino: NoteIno,
        fh: Option<NoteFh>,
        new: NewAttr,
    ) -> Result<NoteAttr> {
        let before = self.attr(ino)?;
        if new.uid.is_some_and(|uid| uid != before.uid)
            || new.gid.is_some_and(|gid| gid != before.gid)
        {
            return Err(Error::Io(Errno::PERM));
        }
        let open = {
            let handles = self.handles.lock();
            match fh {
                Some(fh) => Some(handles.file(fh)?),
                None => handles.file_of(ino),
            }
        };
        if let Some(size) = new.size {
            self.truncate(ino, fh.and(open.as_deref()), size)?;
        }
        let times = [new.atime, new.mtime];
        let sets_times = times != [NewTime::Kept; 2];
        match self.current(ino) {
            Ok((path, meta)) => {
                if let Some(mode) = new.mode {
                    self.dir.set_mode(&path, mode, meta.identity())?;
                }
                match path.file_name() {
                    _ if !sets_times => {}
                    Some(name) => self.parent_of(&path)?.set_live_times(&name, times)?,
                    None => self.dir.set_own_times(times)?,
                }
            }
            Err(error) => {
                let open = open.ok_or(error)?;
                if let Some(mode) = new.mode {
                    set_file_mode(&open.file, mode)?;
                }
                if sets_times {
                    set_file_times(&open.file, times)?;
                }
            }
        }
        self.attr(ino)
    }

    fn truncate(&self, ino: NoteIno, open: Option<&OpenNote>, size: u64) -> Result<()> {
        if let Some(open) = open {
            rustix::fs::ftruncate(&open.file, size)?;
            open.is_dirty.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let file = self.open_file(ino, OpenMode { read: false, write: true, append: false })?;
        rustix::fs::ftruncate(&file, size)?;
        self.dir.sync_file(&file)
    }

    /// Creates a directory.
    pub(crate) fn make_folder(&self, parent: NoteIno, name: &[u8], mode: u32) -> Result<NoteAttr> {
        let (name, folder) = (parse_new_name(name)?, self.path(parent)?);
        self.dir.enter(&folder)?.create_live_dir(&name, mode)?;
        let meta = self.meta(&folder.join(&name))?;
        Ok(self.add(parent, name, &meta))
    }

    /// Creates a file, and opens it. An existing one is opened unless `is_exclusive`.
    pub(crate) fn create(
        &self,
        parent: NoteIno,
        name: &[u8],
        mode: u32,
        access: OpenMode,
        is_exclusive: bool,
    ) -> Result<(NoteAttr, NoteFh)> {
        let (name, path) = (parse_new_name(name)?, self.path(parent)?);
        let folder = self.dir.enter(&path)?;
        let (file, is_new) = match folder.create_live(&name, mode, access) {
            Err(Error::Io(Errno::EXIST)) if !is_exclusive => {
                (folder.open_live(&name.clone().into(), access)?, false)
            }
            created => (created?, true),
        };
        let meta = file_meta(&file)?;
        let attr = self.add(parent, name, &meta);
        let fh = self.handles.lock().add_file(attr.ino, file, is_new);
        Ok((attr, fh))
    }

    /// Creates an empty file.
    pub(crate) fn make_file(&self, parent: NoteIno, name: &[u8], mode: u32) -> Result<NoteAttr> {
        let access = OpenMode { read: false, write: true, append: false };
        let (attr, fh) = self.create(parent, name, mode, access, true)?;
        let synced = self.sync(attr.ino, fh);
        self.release(fh);
        synced.map(|()| attr)
    }

    /// Removes a file.
    pub(crate) fn remove_file(&self, parent: NoteIno, name: &[u8]) -> Result<()> {
        self.remove(parent, name, Dir::remove_live_file)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_folder(&self, parent: NoteIno, name: &[u8]) -> Result<()> {
        self.remove(parent, name, Dir::remove_live_dir)
    }

    fn remove(
        &self,
        parent: NoteIno,
        name: &[u8],
        remove: impl FnOnce(&Dir, &Name) -> Result<()>,
    ) -> Result<()> {
        let (name, folder) = (parse_name(name)?, self.path(parent)?);
        let removed = self.meta(&folder.join(&name))?.identity();
        remove(&self.dir.enter(&folder)?, &name)?;
        self.inodes.lock().remove(removed);
        Ok(())
    }

    /// Renames an entry, in place of one that has the new name.
    pub(crate) fn rename(
        &self,
        parent: NoteIno,
        name: &[u8],
        new_parent: NoteIno,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).contains(flags) {
            return Err(Error::Io(Errno::INVAL));
        }
        let (name, new_name) = (parse_name(name)?, parse_new_name(new_name)?);
        let (folder, new_folder) = (self.path(parent)?, self.path(new_parent)?);
        let (from, to) = (folder.join(&name), new_folder.join(&new_name));
        let moved = self.meta(&from)?.identity();
        let replaced = match self.meta(&to) {
            Ok(meta) => Some(meta.identity()),
            Err(_) => None,
        };
        let (from, to) = (self.dir.enter(&folder)?, self.dir.enter(&new_folder)?);
        let renamed = from.rename_live(&name, &to, &new_name, flags);
        // A rename may have happened although the disk failed afterwards, so what is there counts.
        let mut inodes = self.inodes.lock();
        let there = to.live_meta(&new_name.clone().into());
        if !there.is_ok_and(|meta| meta.is_some_and(|meta| meta.identity() == moved)) {
            return renamed;
        }
        match replaced {
            Some(other) if flags.contains(RenameFlags::EXCHANGE) => {
                inodes.rename(other, parent, name)
            }
            Some(other) if other != moved => inodes.remove(other),
            _ => {}
        }
        inodes.rename(moved, new_parent, new_name);
        renamed
    }

    /// Opens a file.
    pub(crate) fn open_note(&self, ino: NoteIno, access: OpenMode) -> Result<NoteFh> {
        let file = self.open_file(ino, access)?;
        Ok(self.handles.lock().add_file(ino, file, false))
    }

    /// Reads up to `size` bytes at `offset`, and fewer only at the end of the file.
    pub(crate) fn read(&self, fh: NoteFh, offset: u64, size: usize) -> Result<Vec<u8>> {
        let open = self.handles.lock().file(fh)?;
        let mut bytes = vec![0; size];
        let mut filled = 0;
        while filled < size {
            let (_, free) = bytes.split_at_mut(filled);
            match rustix::io::pread(&open.file, free, offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes at `offset`, or at the end if the file was opened to append. Returns the number of
    /// bytes written, which are fewer than given only if the disk is full or fails.
    pub(crate) fn write(&self, fh: NoteFh, offset: u64, mut bytes: &[u8]) -> Result<usize> {
        let open = self.handles.lock().file(fh)?;
        open.is_dirty.store(true, Ordering::Relaxed);
        let size = bytes.len();
        while !bytes.is_empty() {
            let written = size - bytes.len();
            match rustix::io::pwrite(&open.file, bytes, offset + written as u64) {
                Ok(0) => break,
                Ok(count) => bytes = bytes.split_at(count).1,
                Err(Errno::INTR) => {}
                Err(_) if written > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(size - bytes.len())
    }

    /// Reserves or frees space of a file, as fallocate(2) does.
    pub(crate) fn allocate(&self, fh: NoteFh, mode: u32, offset: u64, length: u64) -> Result<()> {
        let open = self.handles.lock().file(fh)?;
        open.is_dirty.store(true, Ordering::Relaxed);
        let mode = FallocateFlags::from_bits_retain(mode);
        Ok(rustix::fs::fallocate(&open.file, mode, offset, length)?)
    }

    /// Waits until what was written through the handle is on disk, and the name of the file.
    pub(crate) fn sync(&self, ino: NoteIno, fh: NoteFh) -> Result<()> {
        let open = self.handles.lock().file(fh)?;
        if !open.is_dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.dir.sync_file(&open.file).inspect_err(|_| {
            open.is_dirty.store(true, Ordering::Relaxed);
        })?;
        match self.current(ino) {
            Ok((path, _)) => self.parent_of(&path)?.sync(),
            // It has no name any more.
            Err(_) => Ok(()),
        }
    }

    /// Waits until the names in a directory are on disk.
    pub(crate) fn sync_folder(&self, ino: NoteIno) -> Result<()> {
        self.dir.enter(&self.path(ino)?)?.sync()
    }

    /// Opens a directory.
    pub(crate) fn open_folder(&self, ino: NoteIno) -> Result<NoteFh> {
        let (path, meta) = self.current(ino)?;
        meta.entry.kind.must_be(Kind::Folder)?;
        self.dir.enter(&path)?;
        Ok(self.handles.lock().add_folder())
    }

    /// Returns the entries of an open directory, sorted by name. They are listed again if
    /// `from_start`, as rewinddir(3) requires.
    pub(crate) fn entries(
        &self,
        ino: NoteIno,
        fh: NoteFh,
        from_start: bool,
    ) -> Result<Arc<[ListedNote]>> {
        if !from_start && let Some(listed) = self.handles.lock().listing(fh)? {
            return Ok(listed);
        }
        let listed = self.dir.enter(&self.path(ino)?)?.list_live()?;
        let inodes = self.inodes.lock();
        let listed: Arc<[ListedNote]> = listed
            .into_iter()
            .filter(|(name, _)| !is_temporary(name))
            .map(|(name, meta)| ListedNote {
                name,
                is_folder: meta.entry.kind == Kind::Folder,
                ino: inodes.number(meta.identity()),
            })
            .collect();
        drop(inodes);
        self.handles.lock().set_listing(fh, listed.clone())?;
        Ok(listed)
    }

    /// Closes a file or directory.
    pub(crate) fn release(&self, fh: NoteFh) {
        let handle: Option<NoteHandle> = self.handles.lock().remove(fh);
        // Dropped after the lock is released: closing may be slow.
        drop(handle);
    }

    /// Returns the size of the file system and what is free of it.
    pub(crate) fn space(&self) -> Result<StatVfs> {
        self.dir.space()
    }

    fn open_file(&self, ino: NoteIno, access: OpenMode) -> Result<File> {
        let file = self.dir.open_live(&self.path(ino)?, access)?;
        self.inodes.lock().check(ino, file_meta(&file)?.identity())?;
        Ok(file)
    }

    /// Returns the path of an inode and the attributes of what is there.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if it is something else by now.
    fn current(&self, ino: NoteIno) -> Result<(RelPath, LiveMeta)> {
        let path = self.path(ino)?;
        let meta = self
            .meta(&path)
            .map_err(|error| if error == Error::NotFound { Error::Stale } else { error })?;
        self.inodes.lock().check(ino, meta.identity())?;
        Ok((path, meta))
    }

    fn meta(&self, path: &RelPath) -> Result<LiveMeta> {
        self.dir.live_meta(path)?.ok_or(Error::NotFound)
    }

    fn path(&self, ino: NoteIno) -> Result<RelPath> {
        self.inodes.lock().path(ino)
    }

    fn parent_of(&self, path: &RelPath) -> Result<Dir> {
        self.dir.enter(&path.parent())
    }

    fn add(&self, parent: NoteIno, name: Name, meta: &LiveMeta) -> NoteAttr {
        attr(self.inodes.lock().look_up(parent, name, meta.identity()), meta)
    }
}

fn attr(ino: NoteIno, meta: &LiveMeta) -> NoteAttr {
    let time = |(secs, nanos)| Time { secs, nanos };
    let entry = &meta.entry;
    NoteAttr {
        ino,
        is_folder: entry.kind == Kind::Folder,
        size: entry.size,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        atime: time(meta.atime),
        mtime: time(entry.mtime),
        ctime: time(entry.ctime),
    }
}

/// Parses the name of an existing entry. Entries that are being written are not shown.
fn parse_name(raw: &[u8]) -> Result<Name> {
    let name = Name::new(raw)
        .map_err(|error| if error == Error::NameTooLong { error } else { Error::NotFound })?;
    if is_temporary(&name) { Err(Error::NotFound) } else { Ok(name) }
}

/// Parses the name of a new entry.
///
/// # Errors
///
/// `EPERM` for a name that marks entries that are being written, which nobody would see.
fn parse_new_name(raw: &[u8]) -> Result<Name> {
    let name = Name::new(raw)?;
    if is_temporary(&name) { Err(Error::Io(Errno::PERM)) } else { Ok(name) }
}
