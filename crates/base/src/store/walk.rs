//! Path resolution for processes that may not call openat2(2): the same restrictions, name by name.
//!
//! Each name is opened in the directory before it without following a link, so no race leads
//! elsewhere. Links are followed by their text, and `..` goes back to a directory that was passed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, readlinkat,
};
use rustix::io::Errno;

use crate::name::RelPath;

/// Maximum number of links on a path, as in the kernel.
const LINKS_MAX: usize = 40;

const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens `path` beneath `root` with the restrictions `resolve`, one of which must be BENEATH.
pub(super) fn walk(
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
    let mut left: VecDeque<OsString> = split(path.as_os_str().as_bytes()).collect();
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
            left = split(&target).chain(rest).collect();
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
fn split(path: &[u8]) -> impl Iterator<Item = OsString> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(|name| OsString::from_vec(name.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::CWD;

    use super::*;

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
