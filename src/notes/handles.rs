//! NoteHandles of open notes and directories of notes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{ListedNote, NoteFh, NoteIno};
use crate::error::{Error, Result};
use crate::write::File;

/// An open file.
pub(super) struct OpenNote {
    ino: NoteIno,
    pub(super) file: File,
    /// True if it was created or written and has not been synchronized since.
    pub(super) is_dirty: AtomicBool,
}

/// An open file or directory.
pub(super) enum NoteHandle {
    File(Arc<OpenNote>),
    /// A directory, with its last listing.
    Folder(Option<Arc<[ListedNote]>>),
}

/// Table of all open handles.
#[derive(Default)]
pub(super) struct NoteHandles {
    last: NoteFh,
    open: HashMap<NoteFh, NoteHandle>,
}

impl NoteHandles {
    pub(super) fn add_file(&mut self, ino: NoteIno, file: File, is_dirty: bool) -> NoteFh {
        let is_dirty = AtomicBool::new(is_dirty);
        self.add(NoteHandle::File(Arc::new(OpenNote { ino, file, is_dirty })))
    }

    pub(super) fn add_folder(&mut self) -> NoteFh {
        self.add(NoteHandle::Folder(None))
    }

    fn add(&mut self, handle: NoteHandle) -> NoteFh {
        self.last += 1;
        self.open.insert(self.last, handle);
        self.last
    }

    pub(super) fn file(&self, fh: NoteFh) -> Result<Arc<OpenNote>> {
        match self.open.get(&fh) {
            Some(NoteHandle::File(open)) => Ok(open.clone()),
            Some(NoteHandle::Folder(_)) => Err(Error::IsADirectory),
            None => Err(Error::UnknownHandle),
        }
    }

    /// Returns a file that is open through this inode.
    pub(super) fn file_of(&self, ino: NoteIno) -> Option<Arc<OpenNote>> {
        self.open.values().find_map(|handle| match handle {
            NoteHandle::File(open) if open.ino == ino => Some(open.clone()),
            _ => None,
        })
    }

    pub(super) fn listing(&self, fh: NoteFh) -> Result<Option<Arc<[ListedNote]>>> {
        match self.open.get(&fh) {
            Some(NoteHandle::Folder(listing)) => Ok(listing.clone()),
            Some(NoteHandle::File(_)) => Err(Error::NotADirectory),
            None => Err(Error::UnknownHandle),
        }
    }

    pub(super) fn set_listing(&mut self, fh: NoteFh, listed: Arc<[ListedNote]>) -> Result<()> {
        match self.open.get_mut(&fh) {
            Some(NoteHandle::Folder(listing)) => *listing = Some(listed),
            Some(NoteHandle::File(_)) => return Err(Error::NotADirectory),
            None => return Err(Error::UnknownHandle),
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, fh: NoteFh) -> Option<NoteHandle> {
        self.open.remove(&fh)
    }
}
