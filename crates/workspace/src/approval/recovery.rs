//! Completes or rolls back interrupted commands in a workspace, and finds the other workers on it,
//! which changes there may affect.

use std::fmt;
use std::path::Path;

use jiff::Timestamp;

use super::check::ApplyPlan;
use super::moves::{self, Recovered};
use super::stage::{ApprovalCommand, Journal, copy_checked};
use crate::draft::{Draft, DraftState};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_record::write::{Dir, During, Error, Result, Store};
use swarmletfs_trace::swarmlet::BASE;

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
    for draft in overlapping_drafts(store, path)? {
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

/// Lists the drafts of a workspace. Unreadable drafts are left out: their workers may belong to
/// other users.
pub(super) fn drafts_of_workspace(store: &Store, workspace: &Path) -> Result<Vec<Draft>> {
    Ok(readable(store)?.filter(|draft| draft.record().workspace() == workspace).collect())
}

/// Lists the drafts of a workspace, of the workspaces that contain it, and of the workspaces inside
/// it. Unreadable drafts are left out.
fn overlapping_drafts(store: &Store, workspace: &Path) -> Result<Vec<Draft>> {
    let overlaps = |draft: &Draft| {
        let other = draft.record().workspace();
        other.starts_with(workspace) || workspace.starts_with(&other)
    };
    Ok(readable(store)?.filter(overlaps).collect())
}

fn readable(store: &Store) -> Result<impl Iterator<Item = Draft>> {
    let names = Draft::list(store)?;
    Ok(names.into_iter().filter_map(|name| Draft::open(store, &name).ok().flatten()))
}

/// Returns the drafts whose workers run, except the draft of `worker`.
pub(super) fn running_drafts(drafts: Vec<Draft>, worker: &Name) -> Vec<Draft> {
    let runs = |draft: &Draft| {
        draft.worker() != worker
            && draft.record().state == DraftState::Running
            && matches!(draft.try_lock(), Ok(None))
    };
    drafts.into_iter().filter(runs).collect()
}

/// Saves the entries that `plan` replaces as bases of running workers, which may have read them in
/// the workspace until now.
pub(super) fn save_bases(running: &[Draft], workspace: &Dir, plan: &ApplyPlan) -> Result<()> {
    for draft in running {
        for (path, step) in &plan.steps {
            let Some(before) = &step.before else { continue };
            // A file that changed since the worker began may not be the one that the worker found.
            let is_base = before.kind() == EntryKind::File
                && !step.is_in_place()
                && is_before(before.meta.ctime, draft.record().started_at);
            if is_base {
                let state = before.state();
                let save = || {
                    let mut folder = draft.folder().enter_or_create(&Name::new(BASE)?)?;
                    for name in path.parent().names() {
                        folder = folder.enter_or_create(&name)?;
                    }
                    let name = path.file_name().ok_or(PathError::InvalidName)?;
                    if folder.kind(&RelPath::from(name.clone()))?.is_some() {
                        return Ok(());
                    }
                    let file = workspace.open_workspace_file(path)?;
                    copy_checked(&folder, &name, file, &state).map(drop)
                };
                save().during("write", draft.folder().path(), path.as_bytes())?;
            }
        }
    }
    Ok(())
}

fn is_before((seconds, nanoseconds): (i64, u32), time: Timestamp) -> bool {
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(i32::MAX);
    (seconds, nanoseconds) < (time.as_second(), time.subsec_nanosecond())
}
