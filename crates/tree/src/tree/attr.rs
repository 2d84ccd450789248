//! Attributes of a node: the attributes of its source, without any permission to write or to change
//! privileges.

use super::FileOwner;
use crate::catalog::Access;
use swarmletfs_base::digest::digest;
use swarmletfs_base::store::{Identity, Kind, Meta, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    File,
    Folder,
    /// A symlink within the tree.
    Link,
}

impl NodeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            NodeKind::File => "file",
            NodeKind::Folder => "folder",
            NodeKind::Link => "link",
        }
    }
}

/// State of a file or directory: mtime, ctime and size. Data read in an equal state is still valid.
pub(super) type Signature = (Time, Time, u64);

/// Identity of a node's content. Nodes with equal names and different content are different inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ContentId {
    /// The content cannot be replaced.
    Fixed,
    Source(Identity),
    Hash([u8; 16]),
}

/// File attributes as stat reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub kind: NodeKind,
    /// Size in bytes. For a generated file it is exactly the number of bytes that can be read.
    pub size: u64,
    /// Permission bits, within 0555.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Time,
    pub ctime: Time,
    pub(super) content_id: ContentId,
}

impl Attr {
    pub(super) fn signature(&self) -> Signature {
        (self.mtime, self.ctime, self.size)
    }

    /// Returns these attributes with `reader` as the owner and the only reader.
    pub(super) fn readable_only_by(self, reader: FileOwner) -> Attr {
        let FileOwner { uid, gid } = reader;
        let mode = match self.kind {
            NodeKind::File => 0o400 | self.mode & 0o100,
            NodeKind::Folder => 0o500,
            NodeKind::Link => self.mode,
        };
        Attr { mode, uid, gid, ..self }
    }

    /// Converts the metadata of a file or directory in a store.
    ///
    /// A directory keeps its identity if another one replaces it, since its entries are looked up
    /// by path, too.
    pub(super) fn from_meta(meta: &Meta) -> Attr {
        let kind = if meta.kind == Kind::Folder { NodeKind::Folder } else { NodeKind::File };
        Attr {
            kind,
            size: if kind == NodeKind::Folder { 0 } else { meta.size },
            mode: meta.mode & 0o555,
            uid: meta.uid,
            gid: meta.gid,
            mtime: meta.mtime,
            ctime: meta.ctime,
            content_id: match kind {
                NodeKind::Folder => ContentId::Fixed,
                _ => ContentId::Source(meta.identity),
            },
        }
    }

    /// Returns the attributes of a directory that exists in no store, with the owner and mode of
    /// the store's `root`.
    pub(super) fn virtual_folder(root: &Meta, newest: Time) -> Attr {
        Attr { mtime: newest, ctime: newest, content_id: ContentId::Fixed, ..Attr::from_meta(root) }
    }

    pub(super) fn symlink(target: &[u8], root: &Meta, newest: Time) -> Attr {
        let mut hash = blake3::Hasher::new();
        hash.update(target);
        Attr {
            kind: NodeKind::Link,
            size: target.len() as u64,
            mode: 0o777,
            content_id: ContentId::Hash(digest(&hash)),
            ..Attr::virtual_folder(root, newest)
        }
    }

    /// Returns the attributes of a version of a generated file: its `size` in bytes and the hash of
    /// its `content`.
    pub(super) fn generated(size: u64, content: [u8; 16], access: Access, newest: Time) -> Attr {
        Attr {
            kind: NodeKind::File,
            size,
            mode: access.mode,
            uid: access.uid,
            gid: access.gid,
            mtime: newest,
            ctime: newest,
            content_id: ContentId::Hash(content),
        }
    }
}
