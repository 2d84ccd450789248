//! Attributes of a node: those of its source, less every permission to change or run with other rights.

use super::inode::Signature;
use crate::catalog::Access;
use crate::digest::digest;
use crate::store::{Identity, Kind, Meta, Time};

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A link within the tree.
    Link,
}

impl NodeKind {
    /// A word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeKind::File => "file",
            NodeKind::Folder => "folder",
            NodeKind::Link => "link",
        }
    }
}

/// What is behind a node: two nodes of the same name with different identities are different inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ident {
    /// Nothing that could be another.
    Fixed,
    /// A file or folder of the store.
    Source(Identity),
    /// These bytes, by their hash.
    Content([u8; 16]),
}

/// What stat tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: NodeKind,
    /// Size in bytes: for a generated file exactly what a read returns.
    pub size: u64,
    /// Permission bits, within 0555.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    pub(super) ident: Ident,
}

impl Attr {
    /// What tells one state of it from another.
    pub(super) fn signature(&self) -> Signature {
        (self.mtime, self.ctime, self.size)
    }

    /// Of a file or folder of the store.
    pub(super) fn of_source(meta: &Meta) -> Attr {
        let kind = if meta.kind == Kind::Folder { NodeKind::Folder } else { NodeKind::File };
        Attr {
            kind,
            size: if kind == NodeKind::Folder { 0 } else { meta.size },
            mode: meta.mode & 0o555,
            uid: meta.uid,
            gid: meta.gid,
            mtime: meta.mtime,
            ctime: meta.ctime,
            ident: Ident::Source(meta.identity),
        }
    }

    /// Of a folder that is in no store, within the store's root folder `root`.
    pub(super) fn of_folder(root: &Meta, newest: Time) -> Attr {
        Attr { mtime: newest, ctime: newest, ident: Ident::Fixed, ..Attr::of_source(root) }
    }

    /// Of a link within the tree.
    pub(super) fn of_link(target: &[u8], root: &Meta, newest: Time) -> Attr {
        let mut hash = blake3::Hasher::new();
        hash.update(target);
        Attr {
            kind: NodeKind::Link,
            size: target.len() as u64,
            mode: 0o777,
            ident: Ident::Content(digest(&hash)),
            ..Attr::of_folder(root, newest)
        }
    }

    /// Of one version of a generated file.
    pub(super) fn of_version(size: u64, content: [u8; 16], access: Access, newest: Time) -> Attr {
        Attr {
            kind: NodeKind::File,
            size,
            mode: access.mode,
            uid: access.uid,
            gid: access.gid,
            mtime: newest,
            ctime: newest,
            ident: Ident::Content(content),
        }
    }
}
