//! Completes or rolls back interrupted commands in a workspace.

use std::fmt;
use std::path::Path;

use super::journal::{ApprovalCommand, Journal};
use super::moves::{self, Recovered};
use super::neighbors;
use crate::draft::Draft;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::Name;
use swarmletfs_record::write::{Dir, During, Error, Result, Store};

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

/// Finishes or takes back interrupted commands in the workspace `path`, in the workspaces that
/// contain it, and in the workspaces inside it. Waits for commands that still run.
pub fn recover_workspace(store: &Store, path: &Path) -> Result<Vec<RecoveredCommand>> {
    let mut recovered = Vec::new();
    for draft in neighbors::overlapping(store, path)? {
        if Journal::read(draft.folder())?.is_none() {
            continue;
        }
        let workspace = draft.record().workspace();
        let opened = match Dir::open(&workspace, draft.folder().durability()) {
            // The workspace was removed, and with it everything that was interrupted.
            Err(PathError::NotFound | PathError::NotADirectory) => continue,
            opened => opened.during("open the workspace", &workspace, b"")?,
        };
        // Another directory is at the path, so the workspace was moved away.
        if !draft.record().is_workspace(&opened).during("open the workspace", &workspace, b"")? {
            continue;
        }
        let _lock = opened.lock().during("lock the workspace", &workspace, b"")?;
        recovered.extend(recover_drafts(store, &opened, std::slice::from_ref(&draft))?);
    }
    Ok(recovered)
}

/// Finishes or takes back interrupted commands of these drafts in a locked workspace.
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

/// Fails if root would move files in `workspace` for a user who may not: the owner of a draft
/// chooses the files that its journal moves and removes.
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
