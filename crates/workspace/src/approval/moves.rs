//! Makes the moves of a journal, completes or rolls back interrupted commands in a workspace, and
//! finds the other workers on it, which changes there may affect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use jiff::Timestamp;
use rustix::io::Errno;

use super::applied::{self, Application};
use super::check::ApplyPlan;
use super::stage::{ApprovalCommand, Journal, Move, Phase, copy_checked};
use crate::draft::{Draft, DraftState};
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::is_temporary;
use swarmletfs_record::write::{Dir, During, EntryIdentity, Error, Result, Store};
use swarmletfs_trace::swarmlet::BASE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovered {
    Finished,
    RolledBack,
}

/// Makes the moves of `journal` in their order, and waits until they are on disk.
///
/// # Errors
///
/// The workspace cannot be written. Moves may have been made.
pub(super) fn make_all(workspace: &Dir, journal: &Journal) -> Result<()> {
    for step in &journal.moves {
        make(workspace, step).during("change", workspace.path(), &shown(step))?;
    }
    sync_all(workspace, journal)
}

fn make(workspace: &Dir, step: &Move) -> PathResult<()> {
    match step {
        Move::Rename { from, to, .. } => rename(workspace, &from.path()?, &to.path()?),
        Move::Exchange { temporary, path, .. } => {
            exchange(workspace, &temporary.path()?, &path.path()?)
        }
        Move::Mode { path, entry, to, .. } => workspace.set_mode(&path.path()?, *to, *entry),
    }
}

/// Returns the path of the workspace that a move changes.
fn shown(step: &Move) -> Vec<u8> {
    let path = match step {
        Move::Rename { from, to, .. } => {
            let is_new = |path: &RelPath| path.file_name().is_some_and(|name| is_temporary(&name));
            from.path().and_then(|from| if is_new(&from) { to.path() } else { Ok(from) })
        }
        Move::Exchange { path, .. } | Move::Mode { path, .. } => path.path(),
    };
    path.map(|path| path.as_bytes().to_vec()).unwrap_or_default()
}

/// Takes a move of `journal` back, if it was made.
///
/// # Errors
///
/// [`PathError::Escape`] if a folder of a moved entry is a link now, so that the entry cannot be
/// reached.
fn take_back(workspace: &Dir, journal: &Journal, step: &Move) -> PathResult<()> {
    match step {
        Move::Rename { from, to, entry } => {
            let (from, to) = (from.path()?, to.path()?);
            if is_reached(workspace, &from, *entry)? || !is_at(workspace, &to, *entry)? {
                return Ok(());
            }
            rename(workspace, &to, &from)
        }
        Move::Exchange { temporary, path, new, .. } => {
            let (temporary, path) = (temporary.path()?, path.path()?);
            if is_at(workspace, &temporary, *new)? || !is_at(workspace, &path, *new)? {
                return Ok(());
            }
            exchange(workspace, &temporary, &path)
        }
        Move::Mode { path, entry, from, .. } => {
            let path = path.path()?;
            match workspace.entry(&path) {
                Ok(Some(now)) if now.identity == *entry && now.mode != *from => {
                    workspace.set_mode(&path, *from, *entry)
                }
                Ok(_) => Ok(()),
                // A new entry is removed regardless of its permissions.
                Err(PathError::Escape) if is_new(journal, *entry) => Ok(()),
                Err(error) => Err(error),
            }
        }
    }
}

fn is_at(workspace: &Dir, path: &RelPath, entry: EntryIdentity) -> PathResult<bool> {
    Ok(workspace.entry(path)?.is_some_and(|now| now.identity == entry))
}

/// Like [`is_at`], but nothing is at a path that leads through a link.
fn is_reached(workspace: &Dir, path: &RelPath, entry: EntryIdentity) -> PathResult<bool> {
    match is_at(workspace, path, entry) {
        Err(PathError::Escape) => Ok(false),
        reached => reached,
    }
}

/// Returns true if a move of `journal` puts this entry into the workspace.
fn is_new(journal: &Journal, entry: EntryIdentity) -> bool {
    journal.moves.iter().any(|step| match step {
        Move::Rename { entry: moved, .. } => *moved == entry,
        Move::Exchange { new, .. } => *new == entry,
        Move::Mode { .. } => false,
    })
}

/// Opens the folder of `path`. Returns it with the name in it.
fn place(workspace: &Dir, path: &RelPath) -> PathResult<(Dir, Name)> {
    let name = path.file_name().ok_or(PathError::InvalidName)?;
    Ok((workspace.enter(&path.parent())?, name))
}

fn rename(workspace: &Dir, from: &RelPath, to: &RelPath) -> PathResult<()> {
    let ((folder, name), (to_folder, to)) = (place(workspace, from)?, place(workspace, to)?);
    folder.move_entry(&name, &to_folder, &to)
}

fn exchange(workspace: &Dir, one: &RelPath, other: &RelPath) -> PathResult<()> {
    let ((folder, name), (other_folder, other)) =
        (place(workspace, one)?, place(workspace, other)?);
    folder.exchange_entries(&name, &other_folder, &other)
}

/// Waits until the names in all changed folders are on disk.
fn sync_all(workspace: &Dir, journal: &Journal) -> Result<()> {
    let parents = || {
        let mut parents = BTreeSet::new();
        for step in &journal.moves {
            match step {
                Move::Rename { from, to, .. } => {
                    parents.extend([from.path()?.parent(), to.path()?.parent()]);
                }
                Move::Exchange { temporary, path, .. } => {
                    parents.extend([temporary.path()?.parent(), path.path()?.parent()]);
                }
                Move::Mode { .. } => {}
            }
        }
        for temporary in journal.temporaries()? {
            parents.insert(temporary.parent());
        }
        Ok(parents)
    };
    for folder in parents().during("write", workspace.path(), b"")? {
        let synced = match workspace.enter(&folder) {
            // It was removed.
            Err(error) if error.is_not_found() => Ok(()),
            // Its new permissions forbid its owner to read it.
            Err(PathError::Io(Errno::ACCESS)) => workspace.sync_file_system(),
            entered => entered.and_then(|folder| folder.sync()),
        };
        synced.during("write", workspace.path(), folder.as_bytes())?;
    }
    Ok(())
}

/// Returns the first path whose old entry is not the one that was checked: another process changed
/// it between the check and the move.
///
/// # Errors
///
/// The workspace cannot be read.
pub(super) fn find_unchecked(
    workspace: &Dir,
    plan: &ApplyPlan,
    temporaries: &BTreeMap<RelPath, RelPath>,
) -> Result<Option<RelPath>> {
    for (path, step) in &plan.steps {
        let Some(before) = &step.before else { continue };
        let now_at = if step.is_in_place() { Some(path) } else { temporaries.get(path) };
        let Some(now_at) = now_at else { continue };
        let is_checked = || {
            let now = match workspace.entry(now_at) {
                // A folder of its path is closed now. Its permissions were set by its identity.
                Err(PathError::Io(Errno::ACCESS)) if step.is_in_place() => {
                    return Ok(true);
                }
                now => now?,
            };
            let Some(now) = now else { return Ok(false) };
            let is_same = now.identity == before.meta.identity && now.kind == before.meta.kind;
            Ok(is_same
                && match before.kind() {
                    EntryKind::Folder if step.is_in_place() => true,
                    // Nobody may have put anything into a folder that is removed.
                    EntryKind::Folder => workspace.enter(now_at)?.list()?.is_empty(),
                    _ => now.size == before.meta.size && now.mtime == before.meta.mtime,
                })
        };
        if !is_checked().during("read", workspace.path(), path.as_bytes())? {
            return Ok(Some(path.clone()));
        }
    }
    Ok(None)
}

/// Finishes or takes back the command in the journal of a draft. Returns `None` if there is no
/// journal.
///
/// # Errors
///
/// The workspace or the store cannot be written. The next call continues.
pub(super) fn recover(workspace: &Dir, draft: &Dir, worker: &Dir) -> Result<Option<Recovered>> {
    let Some(journal) = Journal::read(draft)? else { return Ok(None) };
    let recovered = match journal.phase {
        Phase::Staging | Phase::Moving => {
            for step in journal.moves.iter().rev() {
                match take_back(workspace, &journal, step) {
                    Err(PathError::Io(Errno::EXIST) | PathError::Escape) => {
                        return Err(in_the_way(step));
                    }
                    taken => taken.during("put back", workspace.path(), &shown(step))?,
                }
            }
            Recovered::RolledBack
        }
        Phase::Cleaning => Recovered::Finished,
    };
    remove_temporaries(workspace, &journal)?;
    sync_all(workspace, &journal)?;
    match (recovered, journal.operation) {
        (Recovered::RolledBack, ApprovalCommand::Apply) => applied::remove(worker, journal.number)?,
        (Recovered::Finished, ApprovalCommand::Undo) => mark_undone(worker, journal.number)?,
        _ => {}
    }
    Journal::remove(draft)?;
    Ok(Some(recovered))
}

fn in_the_way(step: &Move) -> Error {
    Error::Approval {
        action: "put back what an interrupted command moved".to_owned(),
        reason: format!("something else is at {} or on the way to it", printable(&shown(step))),
        cure: "move it away, and try again".to_owned(),
    }
}

fn mark_undone(worker: &Dir, number: u64) -> Result<()> {
    let application = Application::open(worker, number)?;
    match application.read()? {
        Some(mut record) if record.undone_at.is_none() => {
            record.undone_at = Some(Timestamp::now());
            application.write(&record)
        }
        _ => Ok(()),
    }
}

/// Removes the entries that have temporary names: new ones that were not moved, or old ones.
fn remove_temporaries(workspace: &Dir, journal: &Journal) -> Result<()> {
    let temporaries = journal.temporaries().during("read", workspace.path(), b"")?;
    for path in temporaries {
        let remove = || {
            let (folder, name) = match place(workspace, &path) {
                // The folder was removed, with everything in it. A link in its place is an error.
                Err(PathError::NotFound) => return Ok(()),
                place => place?,
            };
            folder.remove_entry(&name).map(drop)
        };
        remove().during("remove", workspace.path(), path.as_bytes())?;
    }
    Ok(())
}

#[derive(Debug)]
pub struct RecoveredCommand {
    pub(super) worker: Name,
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
pub(super) fn recover_workspace(store: &Store, path: &Path) -> Result<Vec<RecoveredCommand>> {
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
        if let Some(end) = recover(workspace, draft.folder(), worker.folder())? {
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
