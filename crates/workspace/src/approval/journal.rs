//! journal.json: the moves that a command is about to make in a workspace, for recovery after a
//! crash.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::{decode, encode};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::is_temporary;
use swarmletfs_record::write::{Dir, During, EntryIdentity, Error, Result};

const VERSION: u32 = 1;
const JOURNAL: &str = "journal.json";
const JOURNAL_MAX: u64 = 256 << 20;

/// The content of journal.json. Workers cannot write it, so it can be trusted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    pub(super) operation: ApprovalCommand,
    pub(super) number: u64,
    pub(super) phase: Phase,
    /// Temporary names in the workspace: of new entries until they are moved to their place, and
    /// then of old ones.
    temporaries: Vec<String>,
    pub(super) moves: Vec<Move>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ApprovalCommand {
    Apply,
    Undo,
}

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

    pub(super) fn path(&self) -> PathResult<RelPath> {
        RelPath::parse(decode(&self.0))
    }
}

impl Journal {
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

    pub(super) fn temporaries(&self) -> PathResult<Vec<RelPath>> {
        self.temporaries.iter().map(|path| RelPath::parse(decode(path))).collect()
    }

    /// Reads the journal of a draft; `None` if no command was interrupted.
    pub(super) fn read(draft: &Dir) -> Result<Option<Journal>> {
        let read = || draft.read_own(&Name::new(JOURNAL)?, JOURNAL_MAX);
        let Some(json) = read().during("read", draft.path(), JOURNAL.as_bytes())? else {
            return Ok(None);
        };
        let journal = serde_json::from_slice(&json).ok();
        let journal = journal.filter(|journal: &Journal| journal.version == VERSION);
        let unknown = || {
            Error::invalid(JOURNAL.as_bytes(), "a journal", "another version may have written it")
        };
        let journal = journal.ok_or_else(unknown)?;
        if !journal.is_consistent().during("read", draft.path(), JOURNAL.as_bytes())? {
            let reason = "it names paths that no command of this program moves or removes";
            return Err(Error::invalid(JOURNAL.as_bytes(), "a journal", reason));
        }
        Ok(Some(journal))
    }

    /// Returns true if only temporary names are removed, and each entry moves to or from one.
    fn is_consistent(&self) -> PathResult<bool> {
        let temporaries: BTreeSet<RelPath> = self.temporaries()?.into_iter().collect();
        let is_named = |path: &RelPath| path.file_name().is_some_and(|name| is_temporary(&name));
        if !temporaries.iter().all(is_named) {
            return Ok(false);
        }
        for step in &self.moves {
            let is_known = match step {
                Move::Rename { from, to, .. } => {
                    let (from, to) = (temporaries.contains(&from.path()?), to.path()?);
                    from != temporaries.contains(&to)
                }
                Move::Exchange { temporary, path, .. } => {
                    temporaries.contains(&temporary.path()?) && !temporaries.contains(&path.path()?)
                }
                Move::Mode { .. } => true,
            };
            if !is_known {
                return Ok(false);
            }
        }
        Ok(true)
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

    pub(super) fn remove(draft: &Dir) -> Result<()> {
        let remove = || {
            draft.remove_entry(&Name::new(JOURNAL)?)?;
            draft.sync()
        };
        remove().during("remove", draft.path(), JOURNAL.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_record::write::Durability;

    const TEMPORARY: &str = "a/.swarmletfs-tmp-1";

    /// Returns true if a journal with these temporary names and moves is read.
    fn is_read(temporaries: &[&str], moves: serde_json::Value) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(folder.path(), Durability::None).unwrap();
        let json = serde_json::json!({
            "version": VERSION, "operation": "apply", "number": 1, "phase": "moving",
            "temporaries": temporaries, "moves": moves,
        });
        std::fs::write(folder.path().join(JOURNAL), json.to_string()).unwrap();
        Journal::read(&dir).is_ok_and(|journal| journal.is_some())
    }

    /// Promise: A journal moves and removes only what a command of this program would.
    #[test]
    fn a_journal_that_no_command_wrote_is_refused() {
        let entry = serde_json::json!({"inode": 7, "created": [0, 0]});
        let rename = |from: &str, to: &str| serde_json::json!([{"step": "rename", "from": from, "to": to, "entry": entry}]);
        let none = || serde_json::json!([]);
        assert!(is_read(&[TEMPORARY], none()));
        assert!(is_read(&[TEMPORARY], rename("a/x", TEMPORARY)));
        assert!(is_read(&[TEMPORARY], rename(TEMPORARY, "a/x")));
        assert!(!is_read(&["a/x"], none()));
        assert!(!is_read(&[TEMPORARY, "../.swarmletfs-tmp-1"], none()));
        assert!(!is_read(&[TEMPORARY], rename("a/x", "a/y")));
        assert!(!is_read(&[], rename("a/x", TEMPORARY)));
        let exchange = serde_json::json!([
            {"step": "exchange", "temporary": "a/y", "path": "a/x", "new": entry, "old": entry}
        ]);
        assert!(!is_read(&[TEMPORARY], exchange));
    }
}
