//! POSIX ACLs of the store's files.
//!
//! A mount does not pass ACLs on. It narrows the mode instead, so that nobody gains access through
//! the mount that the source denies. If a file has an ACL, the group bits of its mode are the ACL's
//! mask: an upper bound for every named user and group. Used alone, they would admit the whole
//! owning group. A named user with fewer rights than "other" also falls into the mode's "other"
//! class. Rights that an ACL grants beyond the mode's classes are dropped.

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

/// Type of a descriptor; it decides how attributes are read.
#[derive(Clone, Copy)]
pub(super) enum FdKind {
    /// An open file.
    Open,
    /// An `O_PATH` descriptor. It does not support `fgetxattr`; the path under /proc/self/fd does.
    Path,
}

/// Returns `mode`, the permission bits of the inode behind `fd`, without the bits that its ACL
/// denies.
pub(super) fn narrow_mode(fd: BorrowedFd<'_>, fd_kind: FdKind, mode: u32) -> u32 {
    if mode & 0o077 == 0 {
        return mode;
    }
    let mut list = [0; SIZE_MAX];
    let read = match fd_kind {
        FdKind::Open => rustix::fs::fgetxattr(fd, ATTRIBUTE, &mut list),
        FdKind::Path => {
            rustix::fs::getxattr(format!("/proc/self/fd/{}", fd.as_raw_fd()), ATTRIBUTE, &mut list)
        }
    };
    let bits = match read {
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
    fn malformed_acl_is_rejected() {
        for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x04\0\x07\0\0\0\0"] {
            assert_eq!(mode_bits(bytes), None);
        }
    }
}
