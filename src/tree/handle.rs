//! Open files and folders.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Fh, Ino, NodeKind};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::File;

/// One entry of a folder.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its name.
    pub name: Name,
    /// What it is.
    pub kind: NodeKind,
    /// A number for readdir. It is the inode's number only where that does not depend on what is behind the name.
    pub ino: Ino,
}

/// All entries of a folder at one moment.
#[derive(Debug, Clone)]
pub struct Entries {
    /// Sorted by name.
    pub items: Arc<[Item]>,
    /// Of what the kernel may keep, a number that tells these entries from those at other times: no place in the one is
    /// then taken for a place in the other. Else 0.
    pub version: u32,
}

/// What is open.
#[derive(Clone)]
pub(super) enum Handle {
    /// One version of a generated file.
    Bytes(Arc<[u8]>),
    /// A file of the store, and the inode it was opened by.
    File(Ino, Arc<dyn File>),
    /// A folder.
    Folder(Arc<Mutex<Listing>>),
}

/// The entries of an open folder.
#[derive(Default)]
pub(super) struct Listing {
    /// As they were when last read; nothing where that was not done yet.
    pub(super) entries: Option<Entries>,
    /// Whether somebody was given them.
    pub(super) given: bool,
    /// Whether the kernel may keep them.
    pub(super) kept: bool,
}

/// All that is open.
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

    /// A file of the store that is open by this inode.
    pub(super) fn file(&self, ino: Ino) -> Option<Arc<dyn File>> {
        self.open.values().find_map(|handle| match handle {
            Handle::File(by, file) if *by == ino => Some(file.clone()),
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
