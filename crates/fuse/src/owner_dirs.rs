//! The directories around the trees of a mount for several owners.
//!
//! ```text
//! README.md
//! owners/
//!   alice/      alice's tree: owned by her user, with mode 0700
//!   bob/
//! self          a symlink to the tree of its reader
//! ```
//!
//! They are the same for every user, and show nothing of the stores: no number, size or time. So
//! the kernel's caches give nothing away. It checks the mode of an owner's directory at every
//! access, cached or not. Only the target of `self` depends on the reader, and the kernel does not
//! cache it.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyEntry,
};

use super::empty_attr;
use swarmletfs_base::name::Name;
use swarmletfs_base::split::Split;
use swarmletfs_tree::tree::{FileOwner, Ino, InoRange, ROOT};

/// Time for which the kernel may cache names and attributes. They never change.
pub(super) const TTL: Duration = Duration::from_secs(3_600);

const README: Ino = ROOT + 1;
const OWNERS: Ino = ROOT + 2;
const SELF: Ino = ROOT + 3;

const README_NAME: &str = "README.md";
const OWNERS_NAME: &str = "owners";
const SELF_NAME: &str = "self";

const README_TEXT: &str = "\
# Traces of workers, by owner

`owners/<id>/` holds what the workers of one owner left. Only that owner's user can enter it.
`self` leads to your own directory, if there is one for your user. Begin with `self/README.md`.
";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerDir {
    pub name: Name,
    /// The user who can read it.
    pub user: FileOwner,
}

pub struct OwnerDirs {
    /// Sorted by name, each with the inode of the root of its tree.
    owners: Vec<(OwnerDir, Ino)>,
    /// Attributes of [`ROOT`]; the others are derived from them.
    root: FileAttr,
}

impl OwnerDirs {
    /// Creates the directories around the trees of `owners`, which are sorted by name. The user of
    /// this process owns the directories that are not an owner's.
    pub fn new(owners: Vec<OwnerDir>) -> OwnerDirs {
        let roots: Vec<Ino> = InoRange::split(owners.len()).map(InoRange::root).collect();
        let now = SystemTime::now();
        let root = FileAttr {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            atime: now,
            mtime: now,
            ctime: now,
            ..empty_attr(ROOT, FileType::Directory, 0o555)
        };
        OwnerDirs { owners: owners.into_iter().zip(roots).collect(), root }
    }

    /// Returns true if `ino` is one of these directories or of the files in them. The roots of the
    /// trees are not.
    pub(super) fn contains(&self, ino: Ino) -> bool {
        (ROOT..=SELF).contains(&ino)
    }

    pub(super) fn attr(&self, ino: Ino) -> Option<FileAttr> {
        let FileAttr { kind, perm, size, uid, gid, .. } = match ino {
            ROOT | OWNERS => self.root,
            README => {
                let size = README_TEXT.len() as u64;
                FileAttr { kind: FileType::RegularFile, perm: 0o444, size, ..self.root }
            }
            // As for /proc/self, the size is no one's: the target depends on the reader.
            SELF => FileAttr { kind: FileType::Symlink, perm: 0o777, ..self.root },
            _ => {
                let (owner, _) = self.owners.iter().find(|(_, root)| *root == ino)?;
                let FileOwner { uid, gid } = owner.user;
                FileAttr { perm: 0o700, uid, gid, ..self.root }
            }
        };
        let blocks = size.div_ceil(512);
        Some(FileAttr { ino: INodeNo(ino), kind, perm, size, blocks, uid, gid, ..self.root })
    }

    fn entries(&self, ino: Ino) -> Option<Vec<(&OsStr, Ino)>> {
        match ino {
            ROOT => {
                let entries = [(README_NAME, README), (OWNERS_NAME, OWNERS), (SELF_NAME, SELF)];
                Some(entries.map(|(name, ino)| (OsStr::new(name), ino)).to_vec())
            }
            OWNERS => Some(
                self.owners.iter().map(|(owner, root)| (owner.name.as_os_str(), *root)).collect(),
            ),
            _ => None,
        }
    }

    /// Returns the target of `self` for the user `uid`: the first directory of that user.
    fn target(&self, uid: u32) -> Option<Vec<u8>> {
        let (owner, _) = self.owners.iter().find(|(owner, _)| owner.user.uid == uid)?;
        Some([OWNERS_NAME.as_bytes(), b"/", owner.name.as_bytes()].concat())
    }

    pub(super) fn look_up(&self, parent: Ino, name: &OsStr, reply: ReplyEntry) {
        let Some(entries) = self.entries(parent) else { return reply.error(Errno::ENOTDIR) };
        let found = entries.into_iter().find(|(entry, _)| *entry == name);
        match found.and_then(|(_, ino)| self.attr(ino)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    pub(super) fn read_link(&self, uid: u32, reply: ReplyData) {
        match self.target(uid) {
            Some(target) => reply.data(&target),
            None => reply.error(Errno::ENOENT),
        }
    }

    pub(super) fn read(&self, offset: u64, size: usize, reply: ReplyData) {
        let text = README_TEXT.as_bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        reply.data(text.split_at_most(start).1.split_at_most(size).0);
    }

    pub(super) fn read_dir(&self, ino: Ino, offset: u64, mut reply: ReplyDirectory) {
        let Some(entries) = self.entries(ino) else { return reply.error(Errno::ENOTDIR) };
        let dots = [".", ".."].map(|name| (OsStr::new(name), ino));
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, ino)) in (1..).zip(dots.into_iter().chain(entries)).skip(skipped) {
            let Some(attr) = self.attr(ino) else { continue };
            if reply.add(attr.ino, next, attr.kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs() -> OwnerDirs {
        let owner = |name: &str, uid| OwnerDir {
            name: Name::new(name).unwrap(),
            user: FileOwner { uid, gid: uid + 1_000 },
        };
        OwnerDirs::new(vec![owner("alice", 1), owner("alice-ci", 1), owner("bob", 2)])
    }

    #[test]
    fn self_leads_to_the_first_directory_of_the_reader() {
        let dirs = dirs();
        assert_eq!(dirs.target(1).as_deref(), Some(b"owners/alice".as_slice()));
        assert_eq!(dirs.target(2).as_deref(), Some(b"owners/bob".as_slice()));
        assert_eq!(dirs.target(3), None);
        assert_eq!(dirs.target(0), None);
    }

    #[test]
    fn each_directory_belongs_to_its_user_alone() {
        let dirs = dirs();
        let entries = dirs.entries(OWNERS).unwrap();
        let names: Vec<&OsStr> = entries.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["alice", "alice-ci", "bob"]);
        for ((_, ino), uid) in entries.into_iter().zip([1, 1, 2]) {
            let attr = dirs.attr(ino).unwrap();
            assert_eq!((attr.uid, attr.gid, attr.perm), (uid, uid + 1_000, 0o700));
            assert_eq!((attr.kind, attr.ino), (FileType::Directory, INodeNo(ino)));
            assert_eq!((attr.mtime, attr.size), (dirs.root.mtime, 0), "nothing of the tree");
            assert!(!dirs.contains(ino), "the tree answers for what is in it");
        }
    }
}
