//! journal.json: what a command is about to do in a workspace, so that a crash is no end.

use serde::{Deserialize, Serialize};

use crate::error::{Error as PathError, Result as PathResult};
use crate::model::{decode, encode};
use crate::name::{Name, RelPath};
use crate::write::{Dir, During, EntryIdentity, Error, Result};

/// The version of journal.json.
const VERSION: u32 = 1;
/// The file in the directory of a draft.
const JOURNAL: &str = "journal.json";
/// Maximum size of the file, in bytes.
const JOURNAL_MAX: u64 = 256 << 20;

/// The content of journal.json. Workers cannot write it, so it can be trusted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    pub(super) operation: ApprovalCommand,
    /// Number of the application.
    pub(super) number: u64,
    pub(super) phase: Phase,
    /// Temporary names in the workspace: of new entries until they are moved to their place, and
    /// then of old ones.
    temporaries: Vec<String>,
    /// The moves, in their order.
    pub(super) moves: Vec<Move>,
}

/// The interrupted command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ApprovalCommand {
    /// Applies changes.
    Apply,
    /// Takes an application back.
    Undo,
}

/// Progress of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// New entries are written under temporary names. After a crash, they are removed.
    Staging,
    /// Entries are moved. After a crash, they are moved back.
    Moving,
    /// All is done. After a crash, old entries are removed.
    Cleaning,
}

/// One change of the workspace, which happens as a whole and can be taken back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Move {
    /// An entry gets another name.
    Rename { from: Encoded, to: Encoded, entry: EntryIdentity },
    /// A new entry takes the place of an old one, which gets the temporary name.
    Exchange { temporary: Encoded, path: Encoded, new: EntryIdentity, old: EntryIdentity },
    /// An entry gets other permissions.
    Mode { path: Encoded, entry: EntryIdentity, from: u32, to: u32 },
}

/// A path of the workspace, percent-encoded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Encoded(String);

impl Encoded {
    pub(super) fn new(path: &RelPath) -> Encoded {
        Encoded(encode(path.as_bytes()))
    }

    /// Returns the path.
    pub(super) fn path(&self) -> PathResult<RelPath> {
        RelPath::parse(decode(&self.0))
    }
}

impl Journal {
    /// Returns the journal of a command that begins.
    pub(super) fn new<'a>(
        operation: ApprovalCommand,
        number: u64,
        temporaries: impl IntoIterator<Item = &'a RelPath>,
    ) -> Journal {
        let temporaries = temporaries.into_iter().map(|path| encode(path.as_bytes())).collect();
        Journal {
            version: VERSION,
            operation,
            number,
            phase: Phase::Staging,
            temporaries,
            moves: Vec::new(),
        }
    }

    /// Returns the temporary names.
    pub(super) fn temporaries(&self) -> PathResult<Vec<RelPath>> {
        self.temporaries.iter().map(|path| RelPath::parse(decode(path))).collect()
    }

    /// Reads the journal of a draft; `None` if no command was interrupted.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub(super) fn read(draft: &Dir) -> Result<Option<Journal>> {
        let read = || draft.read(&Name::new(JOURNAL)?, JOURNAL_MAX);
        let Some(json) = read().during("read", draft.path(), JOURNAL.as_bytes())? else {
            return Ok(None);
        };
        let journal = serde_json::from_slice(&json).ok();
        let journal = journal.filter(|journal: &Journal| journal.version == VERSION);
        let unknown = || {
            Error::invalid(JOURNAL.as_bytes(), "a journal", "another version may have written it")
        };
        journal.map(Some).ok_or_else(unknown)
    }

    /// Writes the journal.
    ///
    /// # Errors
    ///
    /// The draft cannot be written. The journal may have been written.
    pub(super) fn write(&self, draft: &Dir) -> Result<()> {
        let write = || {
            let json =
                serde_json::to_vec(self).map_err(|_| PathError::Io(rustix::io::Errno::INVAL))?;
            let temporary = draft.write_temporary(&mut json.as_slice())?;
            temporary.replace(draft, &Name::new(JOURNAL)?)
        };
        write().during("write", draft.path(), JOURNAL.as_bytes())
    }

    /// Removes the journal of a draft.
    ///
    /// # Errors
    ///
    /// The draft cannot be written.
    pub(super) fn remove(draft: &Dir) -> Result<()> {
        let remove = || {
            draft.remove_entry(&Name::new(JOURNAL)?)?;
            draft.sync()
        };
        remove().during("remove", draft.path(), JOURNAL.as_bytes())
    }
}
