//! A directory that programs change through a mount: files are opened, written and renamed as their
//! programs wish, with the semantics that they expect of any directory.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RawMode, RenameFlags, StatVfs, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT,
};
use rustix::io::Errno;

use super::workspace::{entry_meta, stat_with_birth};
use super::{Dir, EntryIdentity, EntryMeta, File, set_mode, stat};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Time, kind_of};

/// The permission bits of a mode, without setuid, setgid and sticky.
const PERMISSIONS: RawMode = 0o777;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenMode {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Every write goes to the end of the file, whatever its position is.
    pub(crate) append: bool,
}

/// Attributes of a file or directory.
#[derive(Debug, Clone)]
pub(crate) struct LiveMeta {
    pub(crate) entry: EntryMeta,
    /// Time of the last read, in seconds and nanoseconds.
    pub(crate) atime: (i64, u32),
}

/// A new time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewTime {
    /// The time stays.
    Kept,
    Now,
    At(Time),
}

impl OpenMode {
    fn flags(self) -> OFlags {
        let flags = match (self.read, self.write) {
            (_, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
        };
        if self.append { flags | OFlags::APPEND } else { flags }
    }
}

impl NewTime {
    fn to_timespec(self) -> Timespec {
        match self {
            NewTime::Kept => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            NewTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            NewTime::At(time) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Returns the attributes of the file or directory `path`, and `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Escape`] for a link, and [`Error::Special`] for anything else.
    pub(crate) fn live_meta(&self, path: &RelPath) -> Result<Option<LiveMeta>> {
        let fd = match self.openat2(path, OFlags::PATH, Mode::empty()) {
            Ok(fd) => fd,
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        live_meta(&fd).map(Some)
    }

    /// Opens the file `path`.
    ///
    /// # Errors
    ///
    /// `EPERM` if it would be written and has several names: another may be that of a file outside.
    pub(crate) fn open_live(&self, path: &RelPath, access: OpenMode) -> Result<File> {
        let opened = self.openat2(path, access.flags(), Mode::empty())?;
        kind_of(&stat(opened.as_fd())?).must_be(Kind::File)?;
        if access.write {
            match self.is_only_name(path, opened.as_fd()) {
                Ok(true) => {}
                Ok(false) | Err(Error::Escape) => return Err(Error::Io(Errno::PERM)),
                Err(error) => return Err(error),
            }
        }
        Ok(File::from(opened))
    }

    /// Creates the file `name` with these permissions and opens it.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken, by whatever it is.
    pub(crate) fn create_live(&self, name: &Name, mode: u32, access: OpenMode) -> Result<File> {
        let flags = access.flags() | OFlags::CREATE | OFlags::EXCL;
        let fd = self.openat2(&RelPath::from(name.clone()), flags, permissions(mode))?;
        let prepared = self.give_to_owner(fd.as_fd()).and_then(|()| give_mode(&fd, mode));
        self.or_remove(prepared, name, AtFlags::empty())?;
        Ok(File::from(fd))
    }

    /// Creates the directory `name` with these permissions.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken, by whatever it is.
    pub(crate) fn create_live_dir(&self, name: &Name, mode: u32) -> Result<()> {
        let created = self.create_dir(name)?;
        let prepared = give_mode(&created.fd, mode);
        self.or_remove(prepared, name, AtFlags::REMOVEDIR)?;
        self.sync()
    }

    /// Removes the file `name`.
    pub(crate) fn remove_live_file(&self, name: &Name) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::empty())?)
    }

    /// Removes the empty directory `name`.
    pub(crate) fn remove_live_dir(&self, name: &Name) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name.as_os_str(), AtFlags::REMOVEDIR)?)
    }

    /// Gives the entry `from` the name `to` in the directory `target`, and waits for the disk.
    pub(crate) fn rename_live(
        &self,
        from: &Name,
        target: &Dir,
        to: &Name,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.as_os_str(), to.as_os_str());
        rustix::fs::renameat_with(&self.fd, from, &target.fd, to, flags)?;
        target.sync()?;
        self.sync()
    }

    /// Sets the times of the entry `name` of this directory, which is not followed if it is a link.
    pub(crate) fn set_live_times(&self, name: &Name, times: [NewTime; 2]) -> Result<()> {
        let (times, flags) = (timestamps(times), AtFlags::SYMLINK_NOFOLLOW);
        Ok(rustix::fs::utimensat(&self.fd, name.as_os_str(), &times, flags)?)
    }

    /// Sets the times of this directory.
    pub(crate) fn set_own_times(&self, times: [NewTime; 2]) -> Result<()> {
        Ok(rustix::fs::futimens(&self.fd, &timestamps(times))?)
    }

    /// Returns the size of the file system and what is free of it.
    pub(crate) fn space(&self) -> Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(&self.fd)?)
    }

    /// Fails if this user may not create entries in this directory.
    pub(crate) fn must_be_writable(&self) -> Result<()> {
        let wanted = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        Ok(rustix::fs::accessat(&self.fd, ".", wanted, AtFlags::EACCESS)?)
    }

    /// Lists the files and directories in this directory, sorted by name. Links and special files
    /// are left out.
    pub(crate) fn list_live(&self) -> Result<Vec<(Name, LiveMeta)>> {
        let mut listed = Vec::new();
        for name in self.list()? {
            match self.live_meta(&RelPath::from(name.clone())) {
                Ok(Some(meta)) => listed.push((name, meta)),
                // It was removed meanwhile, or cannot be shown.
                Ok(None) | Err(Error::Escape | Error::Special) => {}
                Err(error) => return Err(error),
            }
        }
        listed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(listed)
    }
}

/// Returns the attributes of an open file.
pub(crate) fn file_meta(file: &File) -> Result<LiveMeta> {
    live_meta(file)
}

/// Sets the times of last read and last write of an open file.
pub(crate) fn set_file_times(file: &File, times: [NewTime; 2]) -> Result<()> {
    Ok(rustix::fs::futimens(file, &timestamps(times))?)
}

/// Sets the permissions of an open file.
pub(crate) fn set_file_mode(file: &File, mode: u32) -> Result<()> {
    Ok(rustix::fs::fchmod(file, permissions(mode))?)
}

impl LiveMeta {
    /// Returns what tells the entry from others that have had its name.
    pub(crate) fn identity(&self) -> EntryIdentity {
        self.entry.identity
    }
}

fn live_meta(fd: &impl AsFd) -> Result<LiveMeta> {
    let stat = stat_with_birth(fd)?;
    let entry = entry_meta(&stat);
    match entry.kind {
        Kind::File | Kind::Folder => {
            let atime = (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec);
            Ok(LiveMeta { entry, atime })
        }
        Kind::Link => Err(Error::Escape),
        Kind::Special => Err(Error::Special),
    }
}

fn timestamps([last_access, last_modification]: [NewTime; 2]) -> Timestamps {
    Timestamps {
        last_access: last_access.to_timespec(),
        last_modification: last_modification.to_timespec(),
    }
}

/// Gives a new entry the permissions that its creator asked for. The umask of this process may have
/// removed some. A directory keeps its setgid bit.
fn give_mode(created: &impl AsFd, mode: u32) -> Result<()> {
    let now = u32::from(stat(created.as_fd())?.stx_mode) & 0o7777;
    let wanted = (now & !PERMISSIONS) | (mode & PERMISSIONS);
    if wanted == now { Ok(()) } else { set_mode(created, wanted) }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & PERMISSIONS)
}
