//! Path resolution for the disk store, confined to its root by `openat2`.
//!
//! The flags BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV make the kernel refuse `..`, absolute
//! paths, symlinks and foreign mounts, so no race can occur between check and use. Where the call
//! is missing, as for a worker in a sandbox, `walk` does the same, name by name. A path is first
//! opened with O_PATH, which never blocks and never touches a device. It is opened for reading only
//! if its descriptor has the expected type. A single name in an open directory can be stat'ed
//! without a descriptor: it cannot leave the directory except by a mount, which the mount id
//! reveals.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::Kind;
pub(super) use super::walk::mount_id;
use super::walk::walk;
use crate::error::{Error, Result};
use crate::name::RelPath;

const WANTED: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

pub const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

const ATTEMPTS: usize = 16;

/// Returns an `O_PATH` descriptor of `path`. If the last component is a symlink, the descriptor
/// refers to the symlink itself.
pub(super) fn open_path(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, path, flags)
}

pub(super) fn stat(root: BorrowedFd<'_>, path: &RelPath) -> Result<Statx> {
    statx(open_path(root, path)?.as_fd())
}

/// Stats `path` in a directory on the mount `mount`; a single name needs only one system call.
pub(super) fn stat_on_mount(
    folder: BorrowedFd<'_>,
    mount: Option<u64>,
    path: &RelPath,
) -> Result<Statx> {
    match stat_entry(folder, mount, path)? {
        Some(found) => Ok(found),
        None => stat(folder, path),
    }
}

/// Stats the entry `path` of a directory on the mount `mount` without a descriptor. Returns `None`
/// if that is not possible: the mount is not known, or `path` has several names.
pub(super) fn stat_entry(
    folder: BorrowedFd<'_>,
    mount: Option<u64>,
    path: &RelPath,
) -> Result<Option<Statx>> {
    if mount.is_none() || path.depth() != 1 {
        return Ok(None);
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(folder, path.as_os_str(), flags, WANTED)?;
    if mount_id(&found) == mount { Ok(Some(found)) } else { Err(Error::Escape) }
}

pub(super) fn statx(fd: BorrowedFd<'_>) -> Result<Statx> {
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, WANTED)?)
}

pub fn kind_of(stat: &Statx) -> Kind {
    kind_of_type(FileType::from_raw_mode(stat.stx_mode.into()))
}

pub(super) fn kind_of_type(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        _ => Kind::Special,
    }
}

/// Flags to open for reading. NONBLOCK makes the open return at once if a FIFO has replaced the
/// file.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Opens the regular file `path`, in a directory on the mount `mount`, for reading. Returns it with
/// its size.
pub(super) fn open_file(
    root: BorrowedFd<'_>,
    mount: Option<u64>,
    path: &RelPath,
) -> Result<(OwnedFd, u64)> {
    kind_of(&stat_on_mount(root, mount, path)?).must_be(Kind::File)?;
    let fd = open(root, path, READ)?;
    let stat = statx(fd.as_fd())?;
    // The path may have been replaced since the stat.
    if kind_of(&stat) != Kind::File {
        return Err(Error::Special);
    }
    Ok((fd, stat.stx_size))
}

pub(super) fn open_folder(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
    match open(root, path, READ | OFlags::DIRECTORY) {
        Err(error @ Error::NotADirectory) => {
            // Distinguishes a final non-directory from one among the parents.
            kind_of(&stat(root, path)?).must_be(Kind::Folder)?;
            Err(error)
        }
        opened => opened,
    }
}

fn open(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    // NOATIME leaves the store unmodified; only the owner of a file may request it.
    match openat2(root, path, flags | OFlags::NOATIME) {
        Err(Error::Io(Errno::PERM)) => openat2(root, path, flags),
        opened => opened,
    }
}

fn openat2(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    let mut last = Errno::AGAIN;
    for _ in 0..ATTEMPTS {
        match open_beneath(root, path, flags, Mode::empty(), BENEATH) {
            Ok(fd) => return Ok(fd),
            // AGAIN: a concurrent rename raced with the resolution.
            Err(errno @ (Errno::INTR | Errno::AGAIN)) => last = errno,
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(last.into())
}

/// Opens `path` as openat2(2) does, with BENEATH among the restrictions.
pub fn open_beneath(
    root: BorrowedFd<'_>,
    path: &RelPath,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::openat2(root, path.as_os_str(), flags, mode, resolve) {
        Err(Errno::NOSYS) => walk(root, path, flags, mode, resolve),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, fcntl_getfl};
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    type Open = fn(BorrowedFd<'_>, &RelPath) -> Result<OwnedFd>;

    /// Opens a file in a directory whose mount is not known.
    fn open_anywhere(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
        open_file(root, None, path).map(|(fd, _)| fd)
    }

    /// Opens a file in a directory whose mount is known.
    fn open_on_mount(root: BorrowedFd<'_>, path: &RelPath) -> Result<OwnedFd> {
        open_file(root, mount_id(&statx(root)?), path).map(|(fd, _)| fd)
    }

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "bytes").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let root =
            rustix::fs::openat(CWD, dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .unwrap();
        (dir, root)
    }

    #[test]
    fn opened_descriptors_are_nonblocking_noatime_and_cloexec() {
        let (_dir, root) = folder();
        for (path, open) in
            [("file", open_anywhere as Open), ("file", open_on_mount), ("", open_folder)]
        {
            let path = RelPath::parse(path).unwrap();
            let (path_fd, opened) =
                (open_path(root.as_fd(), &path).unwrap(), open(root.as_fd(), &path).unwrap());
            assert!(fcntl_getfl(&path_fd).unwrap().contains(OFlags::PATH), "{path:?}");
            let flags = fcntl_getfl(&opened).unwrap();
            assert!(flags.contains(OFlags::NONBLOCK | OFlags::NOATIME), "{path:?}: {flags:?}");
            for fd in [path_fd, opened] {
                assert_eq!(fcntl_getfd(&fd).unwrap(), FdFlags::CLOEXEC, "{path:?}");
            }
        }
    }

    #[test]
    fn symlink_is_reported_as_link_and_not_opened() {
        let (_dir, root) = folder();
        let link = RelPath::parse("link").unwrap();
        assert_eq!(kind_of(&stat(root.as_fd(), &link).unwrap()), Kind::Link);
        for open in [open_anywhere as Open, open_on_mount, open_folder] {
            assert_eq!(open(root.as_fd(), &link).err(), Some(Error::Escape));
        }
    }

    #[test]
    fn open_folder_refuses_other_kinds() {
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
    fn opened_file_has_its_size() {
        let (_dir, root) = folder();
        let file = RelPath::parse("file").unwrap();
        for mount in [None, mount_id(&statx(root.as_fd()).unwrap())] {
            let (_, size) = open_file(root.as_fd(), mount, &file).unwrap();
            assert_eq!(size, 5, "{mount:?}");
        }
    }

    #[test]
    fn open_file_refuses_other_kinds() {
        let (dir, root) = folder();
        rustix::fs::mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for open in [open_anywhere as Open, open_on_mount] {
            let errors = ["", "pipe", "none", "file/inner"].map(|path| {
                let opened = open(root.as_fd(), &RelPath::parse(path).unwrap());
                opened.err().unwrap()
            });
            use Error::{IsADirectory, NotADirectory, NotFound, Special};
            assert_eq!(errors, [IsADirectory, Special, NotFound, NotADirectory]);
        }
    }

    #[test]
    fn statx_reports_the_birth_time() {
        let (dir, root) = folder();
        let Ok(born) = dir.path().join("file").metadata().unwrap().created() else { return };
        let born = born.duration_since(std::time::UNIX_EPOCH).unwrap();
        let btime = stat(root.as_fd(), &RelPath::parse("file").unwrap()).unwrap().stx_btime;
        assert_eq!(
            (btime.tv_sec.unsigned_abs(), btime.tv_nsec),
            (born.as_secs(), born.subsec_nanos())
        );
    }
}
