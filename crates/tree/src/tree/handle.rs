//! Handles of open files, and listings of directories.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Fh, Ino, NodeKind};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::File;

#[derive(Debug, Clone)]
pub struct ListedEntry {
    pub name: Name,
    pub kind: NodeKind,
    /// Number for readdir. It equals the inode's number only if that does not depend on the
    /// content.
    pub ino: Ino,
}

#[derive(Debug, Clone)]
pub struct DirListing {
    /// Entries, sorted by name.
    pub items: Arc<[ListedEntry]>,
    /// Version of the listing. A position in one version is never used in another.
    pub version: NonZeroU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirPosition {
    Start,
    /// After so many entries of the listing of this version.
    After(NonZeroU32, usize),
}

#[derive(Clone)]
pub(super) enum Handle {
    /// One version of a generated file.
    Bytes(Arc<[u8]>),
    /// A file in a store, and the inode through which it was opened, if any.
    File(Option<Ino>, Arc<dyn File>),
}

#[derive(Default)]
pub(super) struct Handles {
    last: Fh,
    open: HashMap<Fh, Handle>,
}

impl Handles {
    pub(super) fn add(&mut self, handle: Handle) -> Fh {
        self.last += 1;
        self.open.insert(self.last, handle);
        self.last
    }

    pub(super) fn get(&self, fh: Fh) -> Result<Handle> {
        self.open.get(&fh).cloned().ok_or(Error::UnknownHandle)
    }

    /// Returns a file in a store that is open through this inode.
    pub(super) fn file(&self, ino: Ino) -> Option<Arc<dyn File>> {
        self.open.values().find_map(|handle| match handle {
            Handle::File(opened_by, file) if *opened_by == Some(ino) => Some(file.clone()),
            _ => None,
        })
    }

    pub(super) fn remove(&mut self, fh: Fh) -> Option<Handle> {
        self.open.remove(&fh)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}
