//! Path resolution for the disk store, confined to its root by `openat2`.
//!
//! The flags BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV make the kernel refuse `..`, absolute
//! paths, symlinks and foreign mounts, so no race can occur between check and use. A path is first
//! opened with O_PATH, which never blocks and never touches a device. It is opened for reading only
//! if its descriptor has the expected type. A single name in an open directory can be stat'ed
//! without a descriptor: it cannot leave the directory except by a mount, which the mount id
//! reveals.
//!
//! A process may be forbidden to call openat2(2), as a worker in a sandbox is. Then `walk` keeps
//! the same restrictions, name by name. Each name is opened in the directory before it without
//! following a link, so no race leads elsewhere. Links are followed by their text, and `..` goes
//! back to a directory that was passed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, readlinkat,
};
use rustix::io::Errno;

use super::Kind;
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

/// Maximum number of links on a path, as in the kernel.
const LINKS_MAX: usize = 40;

const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens `path` beneath `root` with the restrictions `resolve`, one of which must be BENEATH.
fn walk(
    root: BorrowedFd<'_>,
    path: &RelPath,
    mut flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let mount = mount_of(root)?;
    let check_mount = |entry: BorrowedFd<'_>| {
        let is_foreign = resolve.contains(ResolveFlags::NO_XDEV) && mount_of(entry)? != mount;
        if is_foreign { Err(Errno::XDEV) } else { Ok(()) }
    };
    let mut passed: Vec<OwnedFd> = Vec::new();
    let mut left: VecDeque<OsString> = split_path(path.as_os_str().as_bytes()).collect();
    let mut link_count = 0;
    while let Some(name) = left.pop_front() {
        let at = passed.last().map_or(root, AsFd::as_fd);
        if name == ".." {
            passed.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let is_last = left.is_empty();
        let entry = match openat(at, &name, ENTRY, Mode::empty()) {
            Err(Errno::NOENT) if is_last && flags.contains(OFlags::CREATE) => {
                return openat(at, &name, flags | OFlags::NOFOLLOW, mode);
            }
            entry => entry?,
        };
        check_mount(entry.as_fd())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode);
        let is_final_link = is_last && flags.contains(OFlags::NOFOLLOW);
        if kind.is_symlink() && !is_final_link {
            link_count += 1;
            if resolve.contains(ResolveFlags::NO_SYMLINKS) || link_count > LINKS_MAX {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(&entry, "", Vec::new())?.into_bytes();
            if target.starts_with(b"/") {
                return Err(Errno::XDEV);
            }
            if is_last && (target.ends_with(b"/") || target.ends_with(b"/.")) {
                flags |= OFlags::DIRECTORY;
            }
            let rest = std::mem::take(&mut left);
            left = split_path(&target).chain(rest).collect();
            continue;
        }
        if is_last {
            let opened = openat(at, &name, flags | OFlags::NOFOLLOW, mode)?;
            return check_mount(opened.as_fd()).map(|()| opened);
        }
        if !kind.is_dir() {
            return Err(Errno::NOTDIR);
        }
        passed.push(entry);
    }
    // The root, or a directory that the path went back to.
    openat(passed.last().map_or(root, AsFd::as_fd), ".", flags, mode)
}

fn mount_of(entry: BorrowedFd<'_>) -> rustix::io::Result<Option<u64>> {
    let stat = rustix::fs::statx(entry, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(mount_id(&stat))
}

/// Returns the mount id of a stat result, or `None` if the kernel did not report it.
pub(super) fn mount_id(stat: &Statx) -> Option<u64> {
    StatxFlags::from_bits_retain(stat.stx_mask)
        .contains(StatxFlags::MNT_ID)
        .then_some(stat.stx_mnt_id)
}

/// Splits a path into its names, without empty ones and `.`.
fn split_path(path: &[u8]) -> impl Iterator<Item = OsString> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(|name| OsString::from_vec(name.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

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

    /// Returns the inode at `path` by openat2(2) and by this module, or their errors.
    fn both(
        root: &OwnedFd,
        path: &str,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> [Result<u64, Errno>; 2] {
        let path = RelPath::parse(path).unwrap();
        let inode = |opened: rustix::io::Result<OwnedFd>| {
            opened.map(|fd| rustix::fs::fstat(&fd).unwrap().st_ino)
        };
        [
            inode(rustix::fs::openat2(root, path.as_os_str(), flags, Mode::empty(), resolve)),
            inode(walk(root.as_fd(), &path, flags, Mode::empty(), resolve)),
        ]
    }

    #[test]
    fn walk_resolves_like_openat2() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join("root").join(name);
        fs::create_dir_all(at("dir/inner")).unwrap();
        fs::write(folder.path().join("outside"), "").unwrap();
        fs::write(at("dir/file"), "").unwrap();
        for (target, link) in [
            ("dir", "folder-link"),
            ("dir/file", "file-link"),
            ("../dir/inner/../file", "dir/winding"),
            ("../outside", "out"),
            ("dir/../../root/dir", "out-and-back"),
            ("/etc", "absolute"),
            ("loop", "loop"),
            ("none", "dangling"),
            (".", "self"),
            ("dir/", "folder-slash"),
            ("dir/file/", "file-slash"),
            ("dir/file/.", "file-dot"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let root = openat(CWD, at(""), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let paths = [
            "",
            "dir",
            "dir/file",
            "dir/file/none",
            "none",
            "none/file",
            "folder-link",
            "folder-link/file",
            "file-link",
            "folder-slash",
            "folder-slash/file",
            "file-slash",
            "file-dot",
            "file-link/x",
            "dir/winding",
            "out",
            "out-and-back",
            "absolute",
            "absolute/passwd",
            "loop",
            "dangling",
            "self",
            "self/self/dir",
        ];
        for path in paths {
            for flags in [read, read | OFlags::NOFOLLOW, read | OFlags::DIRECTORY, ENTRY] {
                for resolve in [within, within | ResolveFlags::NO_SYMLINKS] {
                    let [expected, found] = both(&root, path, flags, resolve);
                    assert_eq!(found, expected, "{path} {flags:?} {resolve:?}");
                }
            }
        }
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let path = RelPath::parse("dir/inner/new").unwrap();
        walk(root.as_fd(), &path, new, Mode::RUSR, within).unwrap();
        assert_eq!(walk(root.as_fd(), &path, new, Mode::RUSR, within).err(), Some(Errno::EXIST));
        let [expected, found] = both(&root, "dir/inner/new", read, within);
        assert_eq!(found, expected);
    }

    #[test]
    fn mounts_are_entered_only_without_no_xdev() {
        let root = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for resolve in [ResolveFlags::BENEATH, ResolveFlags::BENEATH | ResolveFlags::NO_XDEV] {
            let [expected, found] =
                both(&root, "proc/version", OFlags::RDONLY | OFlags::CLOEXEC, resolve);
            assert_eq!(found.is_ok(), expected.is_ok(), "{resolve:?}");
            assert_eq!(found.err(), expected.err());
        }
    }
}
