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

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, fcntl_getfl};
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "bytes").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let root = rustix::fs::openat(CWD, dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (dir, root)
    }

    #[test]
    fn what_is_opened_never_waits_leaves_no_trace_and_is_not_inherited() {
        let (_dir, root) = folder();
        for (path, kind) in [("file", Kind::File), ("", Kind::Folder)] {
            let path = RelPath::parse(path).unwrap();
            let (located, opened) = (locate(root.as_fd(), &path).unwrap(), open(root.as_fd(), &path, kind).unwrap());
            assert!(fcntl_getfl(&located).unwrap().contains(OFlags::PATH), "{path:?}");
            let flags = fcntl_getfl(&opened).unwrap();
            assert!(flags.contains(OFlags::NONBLOCK | OFlags::NOATIME), "{path:?}: {flags:?}");
            for fd in [located, opened] {
                assert_eq!(fcntl_getfd(&fd).unwrap(), FdFlags::CLOEXEC, "{path:?}");
            }
        }
    }

    #[test]
    fn a_link_is_found_as_one_and_not_opened() {
        let (_dir, root) = folder();
        let link = RelPath::parse("link").unwrap();
        assert_eq!(kind_of(&stat(root.as_fd(), &link).unwrap()), Kind::Link);
        for wanted in [Kind::File, Kind::Folder] {
            assert_eq!(open(root.as_fd(), &link, wanted).err(), Some(Error::Escape));
        }
    }

    #[test]
    fn the_time_of_birth_is_told_where_it_is_known() {
        let (dir, root) = folder();
        let Ok(born) = dir.path().join("file").metadata().unwrap().created() else { return };
        let born = born.duration_since(std::time::UNIX_EPOCH).unwrap();
        let told = stat(root.as_fd(), &RelPath::parse("file").unwrap()).unwrap().stx_btime;
        assert_eq!((told.tv_sec.unsigned_abs(), told.tv_nsec), (born.as_secs(), born.subsec_nanos()));
    }
}
