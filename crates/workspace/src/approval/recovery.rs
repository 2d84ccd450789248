//! Ends what interrupted commands left in a workspace.

use std::fmt;
use std::path::Path;

use super::journal::{ApprovalCommand, Journal};
use super::moves::{self, Recovered};
use super::neighbors;
use crate::draft::Draft;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::Name;
use swarmletfs_record::write::{Dir, During, Error, Result, Store};

/// An interrupted command that was ended.
#[derive(Debug)]
pub struct RecoveredCommand {
    worker: Name,
    command: ApprovalCommand,
    end: Recovered,
}

impl fmt::Display for RecoveredCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = match self.command {
            ApprovalCommand::Apply => "apply",
            ApprovalCommand::Undo => "undo",
        };
        let end = match self.end {
            Recovered::Finished => "was complete and has been cleaned up",
            Recovered::RolledBack => "was taken back; run it again",
        };
        let worker = self.worker.display();
        write!(f, "the interrupted `swarmletfs {command} {worker}` {end}")
    }
}

/// Finishes or takes back what interrupted commands left in the workspace `path`, in one that it is
/// a part of, and in those that are parts of it. Waits for commands that still run.
///
/// # Errors
///
/// A workspace or the store cannot be written.
pub fn recover_workspace(store: &Store, path: &Path) -> Result<Vec<RecoveredCommand>> {
    let mut recovered = Vec::new();
    for draft in neighbors::overlapping(store, path)? {
        if Journal::read(draft.folder())?.is_none() {
            continue;
        }
        let workspace = draft.record().workspace();
        let opened = match Dir::open(&workspace, draft.folder().durability()) {
            // It was removed, with all that was interrupted in it.
            Err(PathError::NotFound | PathError::NotADirectory) => continue,
            opened => opened.during("open the workspace", &workspace, b"")?,
        };
        // It was moved away, too.
        if !draft.record().is_workspace(&opened).during("open the workspace", &workspace, b"")? {
            continue;
        }
        let _lock = opened.lock().during("lock the workspace", &workspace, b"")?;
        recovered.extend(recover_drafts(store, &opened, std::slice::from_ref(&draft))?);
    }
    Ok(recovered)
}

/// Finishes or takes back what interrupted commands of these drafts left in a locked workspace.
///
/// # Errors
///
/// The workspace or the store cannot be written.
pub(super) fn recover_drafts(
    store: &Store,
    workspace: &Dir,
    drafts: &[Draft],
) -> Result<Vec<RecoveredCommand>> {
    let mut recovered = Vec::new();
    for draft in drafts {
        let Some(journal) = Journal::read(draft.folder())? else { continue };
        must_be_own(draft, workspace)?;
        let worker = store.worker(draft.worker().as_bytes())?;
        if let Some(end) = moves::recover(workspace, draft.folder(), worker.folder())? {
            let worker = draft.worker().clone();
            recovered.push(RecoveredCommand { worker, command: journal.operation, end });
        }
    }
    Ok(recovered)
}

/// Fails if root would move files in `workspace` for a user who could not: the journal of a draft
/// moves and removes what its owner chose.
///
/// # Errors
///
/// That is so, or the owners cannot be read.
pub(super) fn must_be_own(draft: &Draft, workspace: &Dir) -> Result<()> {
    let owners = || Ok((draft.folder().owner()?, workspace.owner()?));
    let (owner, of_workspace) = owners().during("open the workspace", workspace.path(), b"")?;
    if owner == rustix::process::geteuid().as_raw() || owner == of_workspace {
        return Ok(());
    }
    Err(Error::Approval {
        action: format!("change the workspace of {}", draft.worker().display()),
        reason: format!("its draft belongs to the user with the id {owner}"),
        cure: "run this as that user".to_owned(),
    })
}
