//! Other workers on a workspace, which changes there may affect.

use std::path::Path;

use jiff::Timestamp;

use super::check::ApplyPlan;
use super::stage::copy_checked;
use crate::draft::{Draft, DraftState};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_record::write::{Dir, During, Result, Store};
use swarmletfs_trace::swarmlet::BASE;

/// Lists the drafts of a workspace. Unreadable drafts are left out: their workers may belong to
/// other users.
pub(super) fn drafts(store: &Store, workspace: &Path) -> Result<Vec<Draft>> {
    Ok(readable(store)?.filter(|draft| draft.record().workspace() == workspace).collect())
}

/// Lists the drafts of a workspace, of the workspaces that contain it, and of the workspaces inside
/// it. Unreadable drafts are left out.
pub(super) fn overlapping(store: &Store, workspace: &Path) -> Result<Vec<Draft>> {
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
pub(super) fn running(drafts: Vec<Draft>, worker: &Name) -> Vec<Draft> {
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
