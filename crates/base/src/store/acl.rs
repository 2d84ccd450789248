//! POSIX ACLs of the store's files.
//!
//! A mount does not pass ACLs on. It narrows the mode instead, so that nobody gains access through
//! the mount that the source denies. If a file has an ACL, the group bits of its mode are the ACL's
//! mask: an upper bound for every named user and group. Used alone, they would admit the whole
//! owning group. A named user with fewer rights than "other" also falls into the mode's "other"
//! class. Rights that an ACL grants beyond the mode's classes are dropped.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

const ATTRIBUTE: &str = "system.posix_acl_access";
/// Maximum size of an ACL, in bytes. A file with a longer one is readable only by its owner.
const SIZE_MAX: usize = 1_024;

const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy)]
pub(super) enum AclSource<'a> {
    Open(BorrowedFd<'a>),
    /// The inode of an `O_PATH` descriptor. Such a descriptor does not support `fgetxattr`; the
    /// path under /proc/self/fd does.
    Path(BorrowedFd<'a>),
    /// The entry with this name in an open directory. A symlink is not followed.
    Entry(BorrowedFd<'a>, &'a OsStr),
}

impl AclSource<'_> {
    fn read(self, list: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AclSource::Open(fd) => rustix::fs::fgetxattr(fd, ATTRIBUTE, list),
            AclSource::Path(fd) => {
                rustix::fs::getxattr(format!("/proc/self/fd/{}", fd.as_raw_fd()), ATTRIBUTE, list)
            }
            AclSource::Entry(folder, name) => {
                let mut path = OsString::from(format!("/proc/self/fd/{}/", folder.as_raw_fd()));
                path.push(name);
                rustix::fs::lgetxattr(path, ATTRIBUTE, list)
            }
        }
    }
}

/// Returns `mode`, the permission bits of the inode `source`, without the bits that its ACL denies.
pub(super) fn narrow_mode(source: AclSource<'_>, mode: u32) -> u32 {
    if mode & 0o077 == 0 {
        return mode;
    }
    let mut list = [0; SIZE_MAX];
    let bits = match source.read(&mut list) {
        Ok(length) => list.get(..length).and_then(mode_bits).unwrap_or(0),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return mode,
        Err(_) => 0,
    };
    mode & (!0o077 | bits)
}

/// Returns the largest group and other bits that grant nobody more than `list`; `None` if `list` is
/// not an ACL.
fn mode_bits(list: &[u8]) -> Option<u32> {
    let (version, entries) = list.split_first_chunk()?;
    if u32::from_le_bytes(*version) != 2 {
        return None;
    }
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let entry = |[a, b, c, d, ..]: &[u8; 8]| {
        (u16::from_le_bytes([*a, *b]), u32::from(u16::from_le_bytes([*c, *d])))
    };
    // Rights that every entry of a kind grants; all rights if there is no such entry.
    let granted = |kind: u16| {
        let of_kind = entries.iter().map(entry).filter(|(found, _)| *found == kind);
        of_kind.fold(0o7, |common, (_, rights)| common & rights)
    };
    let mask = granted(MASK);
    let named = |kind: u16| {
        if entries.iter().any(|bytes| entry(bytes).0 == kind) { granted(kind) & mask } else { 0o7 }
    };
    let group = granted(OWNING_GROUP) & mask & named(USER);
    let others = granted(OTHERS) & named(USER) & named(GROUP);
    Some(group << 3 | others)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, XattrFlags};

    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let bytes = |(kind, rights): &(u16, u16)| {
            [kind.to_le_bytes(), rights.to_le_bytes(), [9; 2], [9; 2]].concat()
        };
        [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(bytes).collect()].concat()
    }

    #[test]
    fn mode_bits_grant_no_more_than_the_acl() {
        for (entries, wanted) in [
            (&[(OWNING_GROUP, 5), (OTHERS, 4)][..], 0o54),
            (&[(OWNING_GROUP, 0), (MASK, 6), (USER, 6), (OTHERS, 4)], 0o04),
            (&[(OWNING_GROUP, 6), (MASK, 4), (USER, 4), (OTHERS, 4)], 0o44),
            (&[(OWNING_GROUP, 6), (MASK, 6), (USER, 0), (OTHERS, 4)], 0o00),
            (&[(OWNING_GROUP, 6), (MASK, 6), (GROUP, 0), (OTHERS, 4)], 0o60),
            (&[(OWNING_GROUP, 6), (MASK, 0), (GROUP, 4), (OTHERS, 4)], 0o00),
        ] {
            assert_eq!(mode_bits(&list(entries)), Some(wanted), "{entries:?}");
        }
    }

    #[test]
    fn each_source_has_the_acl_of_its_inode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let open = |path: &Path, flags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let folder = open(dir.path(), OFlags::PATH | OFlags::DIRECTORY);
        let bits = |name: &str, mode| {
            narrow_mode(AclSource::Entry(folder.as_fd(), OsStr::new(name)), mode)
        };
        assert_eq!(bits("file", 0o644), 0o644, "without an ACL");
        // The user 1 has no rights, and the mask is the group's.
        let owner = 0x01;
        let entries = [(owner, 6), (USER, 0), (OWNING_GROUP, 4), (MASK, 4), (OTHERS, 4)];
        let ids = |mut list: Vec<u8>| {
            for (number, entry) in (0_u32..).zip(list[4..].chunks_mut(8)) {
                let id = if number == 1 { 1 } else { u32::MAX };
                entry[4..].copy_from_slice(&id.to_le_bytes());
            }
            list
        };
        let set = rustix::fs::setxattr(&file, ATTRIBUTE, &ids(list(&entries)), XattrFlags::empty());
        if set == Err(Errno::OPNOTSUPP) {
            return;
        }
        set.unwrap();
        let (opened, path) = (open(&file, OFlags::RDONLY), open(&file, OFlags::PATH));
        for source in [AclSource::Open(opened.as_fd()), AclSource::Path(path.as_fd())] {
            assert_eq!(narrow_mode(source, 0o644), 0o600);
        }
        assert_eq!(bits("file", 0o644), 0o600);
        assert_eq!(bits("none", 0o644), 0o600, "what cannot be read grants nothing");
        assert_eq!(bits("link", 0o777), 0o777, "a link has no ACL and is not followed");
    }

    #[test]
    fn malformed_acl_is_rejected() {
        for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x04\0\x07\0\0\0\0"] {
            assert_eq!(mode_bits(bytes), None);
        }
    }
}
