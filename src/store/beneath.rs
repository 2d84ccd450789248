//! Opening beneath a root, and only there: every path of the disk store goes through these functions.
//!
//! `openat2` with BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV refuses `..`, absolute paths, links of every kind
//! and foreign mounts in the kernel, where no race can come between check and use. A path is first opened with
//! O_PATH, which never blocks and never touches a device, looked at through that descriptor, and opened for reading
//! only if it is what was asked for. What merely is to be stat'ed in a folder that was opened so needs no descriptor: a
//! name by itself leads nowhere but to what is there, or to what is mounted there, which is refused too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::Kind;
use crate::error::{Error, Result};
use crate::name::RelPath;

/// What is asked of stat: the time of birth too, where the file system knows one, and the mount.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

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

/// Stats what `path` is in a folder that lies on the mount `mount`: the same, with one call where it is a name by itself.
pub(super) fn stat_on(folder: BorrowedFd<'_>, mount: Option<u64>, path: &RelPath) -> Result<Statx> {
    if mount.is_none() || path.depth() != 1 {
        return stat(folder, path);
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(folder, path.as_os_str(), flags, WANTED)?;
    if mount_of(&found) == mount { Ok(found) } else { Err(Error::Escape) }
}

/// Stats what a descriptor stands for.
pub(super) fn statx(fd: BorrowedFd<'_>) -> Result<Statx> {
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, WANTED)?)
}

/// The mount on which lies what was stat'ed; `None` where the system does not tell.
pub(super) fn mount_of(stat: &Statx) -> Option<u64> {
    StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID).then_some(stat.stx_mnt_id)
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

/// What is opened is opened with these. NONBLOCK: should a FIFO take a file's place, the open returns at once.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the regular file `path` for reading.
pub(super) fn open_file(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
    kind_of(&stat(root, path)?).must_be(Kind::File)?;
    let fd = open(root, path, READ)?;
    // What was a file just now may be something else.
    if kind_of(&statx(fd.as_fd())?) != Kind::File {
        return Err(Error::Special);
    }
    Ok(fd)
}

/// Opens the folder `path` for listing. The system opens nothing else where a folder is asked for.
pub(super) fn open_folder(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
    match open(root, path, READ | OFlags::DIRECTORY) {
        Err(error @ Error::NotADirectory) => {
            // A part on the way, or what is there instead.
            kind_of(&stat(root, path)?).must_be(Kind::Folder)?;
            Err(error)
        }
        opened => opened,
    }
}

fn open(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    // NOATIME keeps the store untouched to the last bit; only the owner of a file may ask for it.
    match openat2(root, path, flags | OFlags::NOATIME) {
        Err(Error::Io(Errno::PERM)) => openat2(root, path, flags),
        opened => opened,
    }
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

    type Open = fn(BorrowedFd<'_>, &RelPath) -> Result<OwnedFd>;

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
        for (path, open) in [("file", open_file as Open), ("", open_folder)] {
            let path = RelPath::parse(path).unwrap();
            let (located, opened) = (locate(root.as_fd(), &path).unwrap(), open(root.as_fd(), &path).unwrap());
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
        for open in [open_file as Open, open_folder] {
            assert_eq!(open(root.as_fd(), &link).err(), Some(Error::Escape));
        }
    }

    #[test]
    fn what_is_no_folder_is_not_opened_as_one() {
        let (dir, root) = folder();
        rustix::fs::mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let errors = ["file", "file/inner", "pipe", "none", "link"].map(|path| {
            let opened = open_folder(root.as_fd(), &RelPath::parse(path).unwrap());
            opened.err().unwrap()
        });
        use Error::{Escape, NotADirectory, NotFound, Special};
        assert_eq!(errors, [NotADirectory, NotADirectory, Special, NotFound, Escape]);
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
