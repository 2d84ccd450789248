//! Lists of access on the store's files. They are not passed on; the mode is narrowed instead, so that nobody may do
//! through a mount what they may not do at the source.
//!
//! Of a file with a list, the mode's bits for the group are the list's mask, an upper bound of what the list gives to
//! anybody it names; taken by themselves they would let in the whole owning group. And who is named with fewer rights
//! than others have is one of the others to a mode. What a list gives beyond the mode's classes is not given here.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

const ATTRIBUTE: &str = "system.posix_acl_access";
/// Longer lists are not read: of a file that has one, all but its owner are kept out.
const LENGTH_MAX: usize = 1_024;

const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// What a descriptor is held of.
#[derive(Clone, Copy)]
pub(super) enum Held {
    /// An open file.
    Open,
    /// A place in the tree, which has no attributes; what it leads to has.
    Place,
}

/// The 12 bits of `mode`, that of the file or folder that `fd` stands for, less what its list of access takes away.
pub(super) fn narrowed(fd: BorrowedFd<'_>, held: Held, mode: u32) -> u32 {
    if mode & 0o077 == 0 {
        return mode;
    }
    let mut list = [0; LENGTH_MAX];
    let read = match held {
        Held::Open => rustix::fs::fgetxattr(fd, ATTRIBUTE, &mut list),
        Held::Place => rustix::fs::getxattr(format!("/proc/self/fd/{}", fd.as_raw_fd()), ATTRIBUTE, &mut list),
    };
    let bits = match read {
        Ok(length) => list.get(..length).and_then(bits).unwrap_or(0),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return mode,
        Err(_) => 0,
    };
    mode & (!0o077 | bits)
}

/// The bits for the group and for others that nobody is given more by than by `list`; `None` if it is none.
fn bits(list: &[u8]) -> Option<u32> {
    let (version, entries) = list.split_first_chunk()?;
    if u32::from_le_bytes(*version) != 2 {
        return None;
    }
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let entry = |[a, b, c, d, ..]: &[u8; 8]| (u16::from_le_bytes([*a, *b]), u32::from(u16::from_le_bytes([*c, *d])));
    // What every entry of a kind gives: all, where there is none.
    let given = |kind: u16| {
        let of_kind = entries.iter().map(entry).filter(|(found, _)| *found == kind);
        of_kind.fold(0o7, |given, (_, rights)| given & rights)
    };
    let mask = given(MASK);
    let named = |kind: u16| if entries.iter().any(|bytes| entry(bytes).0 == kind) { given(kind) & mask } else { 0o7 };
    let group = given(OWNING_GROUP) & mask & named(USER);
    let others = given(OTHERS) & named(USER) & named(GROUP);
    Some(group << 3 | others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let bytes = |(kind, rights): &(u16, u16)| [kind.to_le_bytes(), rights.to_le_bytes(), [9; 2], [9; 2]].concat();
        [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(bytes).collect()].concat()
    }

    #[test]
    fn nobody_is_given_more_than_by_the_list() {
        for (entries, wanted) in [
            (&[(OWNING_GROUP, 5), (OTHERS, 4)][..], 0o54),
            (&[(OWNING_GROUP, 0), (MASK, 6), (USER, 6), (OTHERS, 4)], 0o04),
            (&[(OWNING_GROUP, 6), (MASK, 4), (USER, 4), (OTHERS, 4)], 0o44),
            (&[(OWNING_GROUP, 6), (MASK, 6), (USER, 0), (OTHERS, 4)], 0o00),
            (&[(OWNING_GROUP, 6), (MASK, 6), (GROUP, 0), (OTHERS, 4)], 0o60),
            (&[(OWNING_GROUP, 6), (MASK, 0), (GROUP, 4), (OTHERS, 4)], 0o00),
        ] {
            assert_eq!(bits(&list(entries)), Some(wanted), "{entries:?}");
        }
    }

    #[test]
    fn what_is_no_list_gives_nothing() {
        for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x04\0\x07\0\0\0\0"] {
            assert_eq!(bits(bytes), None);
        }
    }
}
