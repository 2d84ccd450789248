//! The inode table of the notes: maps numbers to files on disk, and counts the kernel's lookups.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::write::EntryIdentity;

/// Inode number.
pub(crate) type NoteIno = u64;

/// The bit that tells these numbers from those of the other files of a mount.
const NOTE: NoteIno = crate::tree::FOREIGN_INO;
/// Inode number of the directory of all notes.
pub(super) const ROOT: NoteIno = NOTE | 1;
/// Most parents of an inode.
const DEPTH_MAX: usize = 256;

/// Returns true if the number is that of a note or of a directory of notes.
pub(crate) fn is_note(ino: NoteIno) -> bool {
    ino & NOTE != 0
}

struct Inode {
    parent: NoteIno,
    name: Name,
    identity: EntryIdentity,
    lookups: u64,
}

/// All inodes that the kernel knows.
pub(super) struct NoteInodes {
    root: EntryIdentity,
    entries: HashMap<NoteIno, Inode>,
    numbers: HashMap<EntryIdentity, NoteIno>,
    last: NoteIno,
}

impl NoteInodes {
    pub(super) fn new(root: EntryIdentity) -> NoteInodes {
        NoteInodes { root, entries: HashMap::new(), numbers: HashMap::new(), last: ROOT }
    }

    /// Counts one lookup of the entry `name` in `parent`, and adds it if it is new. Returns its
    /// number.
    pub(super) fn look_up(
        &mut self,
        parent: NoteIno,
        name: Name,
        identity: EntryIdentity,
    ) -> NoteIno {
        let number = match self.numbers.get(&identity) {
            Some(number) => *number,
            None => {
                self.last += 1;
                self.numbers.insert(identity, self.last);
                self.last
            }
        };
        let entry = self.entries.entry(number).or_insert_with(|| Inode {
            parent,
            name: name.clone(),
            identity,
            lookups: 0,
        });
        entry.lookups += 1;
        // Another program may have renamed it in the store.
        (entry.parent, entry.name) = (parent, name);
        number
    }

    /// Returns the number for a listing. A number that the kernel does not know yet is arbitrary.
    pub(super) fn number(&self, identity: EntryIdentity) -> NoteIno {
        self.numbers.get(&identity).copied().unwrap_or(NOTE | identity.inode())
    }

    /// Gives back `count` lookups.
    pub(super) fn forget(&mut self, ino: NoteIno, count: u64) {
        let Some(entry) = self.entries.get_mut(&ino) else { return };
        entry.lookups = entry.lookups.saturating_sub(count);
        if entry.lookups == 0 {
            let identity = entry.identity;
            self.entries.remove(&ino);
            if self.numbers.get(&identity) == Some(&ino) {
                self.numbers.remove(&identity);
            }
        }
    }

    /// Records that an entry was removed from disk. What gets its place there is another one.
    pub(super) fn remove(&mut self, identity: EntryIdentity) {
        self.numbers.remove(&identity);
    }

    /// Records a new name.
    pub(super) fn rename(&mut self, identity: EntryIdentity, parent: NoteIno, name: Name) {
        let entry = self.numbers.get(&identity).and_then(|ino| self.entries.get_mut(ino));
        if let Some(entry) = entry {
            (entry.parent, entry.name) = (parent, name);
        }
    }

    /// Fails with [`Error::Stale`] if the inode has another identity, or was removed.
    pub(super) fn check(&self, ino: NoteIno, found: EntryIdentity) -> Result<()> {
        let is_same =
            if ino == ROOT { found == self.root } else { self.numbers.get(&found) == Some(&ino) };
        if is_same { Ok(()) } else { Err(Error::Stale) }
    }

    /// Returns the path of an inode.
    pub(super) fn path(&self, ino: NoteIno) -> Result<RelPath> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != ROOT {
            if names.len() == DEPTH_MAX {
                return Err(Error::NameTooLong);
            }
            let entry = self.entries.get(&at).ok_or(Error::Stale)?;
            names.push(entry.name.as_bytes());
            at = entry.parent;
        }
        names.reverse();
        RelPath::parse(names.join(&b'/'))
    }
}
