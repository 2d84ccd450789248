//! Opening beneath a root, and only there: every path of the disk store goes through these functions.
//!
//! `openat2` with BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV refuses `..`, absolute paths, links of every kind
//! and foreign mounts in the kernel, where no race can come between check and use. A path is first opened with
//! O_PATH, which never blocks and never touches a device, looked at through that descriptor, and opened for reading
//! only if it is what was asked for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::Kind;
use crate::error::{Error, Result};
use crate::name::RelPath;

/// How every path is resolved.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// How often an interrupted or raced call is made again before its error counts.
const ATTEMPTS: usize = 16;

/// A descriptor that stands for `path` without opening it. The last part may itself be a link, which is then what
/// the descriptor stands for.
pub(super) fn locate(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, path, flags)
}

/// Stats what `path` is, through a descriptor beneath the root.
pub(super) fn stat(root: BorrowedFd<'_>, path: &RelPath) -> Result<Statx> {
    statx(locate(root, path)?.as_fd())
}

/// Stats what a descriptor stands for, with its time of birth where the file system knows one.
pub(super) fn statx(fd: BorrowedFd<'_>) -> Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted)?)
}

/// What was stat'ed.
pub(super) fn kind_of(stat: &Statx) -> Kind {
    kind(FileType::from_raw_mode(stat.stx_mode.into()))
}

/// What the system's type of an entry is to a store.
pub(super) fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        _ => Kind::Special,
    }
}

/// Opens `path` for reading if it is of the `wanted` kind, a file or a folder.
pub(super) fn open(root: BorrowedFd<'_>, path: &RelPath, wanted: Kind) -> Result<OwnedFd> {
    kind_of(&stat(root, path)?).must_be(wanted)?;
    // NONBLOCK: should a FIFO take the file's place just now, the open returns at once and the check below refuses.
    let mut flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if wanted == Kind::Folder {
        flags |= OFlags::DIRECTORY;
    }
    // NOATIME keeps the store untouched to the last bit; only the owner of a file may ask for it.
    let fd = match openat2(root, path, flags | OFlags::NOATIME) {
        Err(Error::Io(Errno::PERM)) => openat2(root, path, flags)?,
        other => other?,
    };
    if kind_of(&statx(fd.as_fd())?) != wanted {
        return Err(Error::Special);
    }
    Ok(fd)
}

fn openat2(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    let mut last = Errno::AGAIN;
    for _ in 0..ATTEMPTS {
        match rustix::fs::openat2(root, path.as_os_str(), flags, Mode::empty(), BENEATH) {
            Ok(fd) => return Ok(fd),
            // AGAIN: a rename elsewhere raced with the resolution; the kernel asks to try again.
            Err(errno @ (Errno::INTR | Errno::AGAIN)) => last = errno,
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(last.into())
}
