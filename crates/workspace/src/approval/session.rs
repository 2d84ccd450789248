//! One worker's changes, and the commands of a person on them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::applied::{self, Application, AppliedRecord};
use super::check::{Action, ApplyPlan, ChangeStep, Conflict, MergeSource, StoredContents, check};
use super::commits::{self, BranchMove, CommitSource, CommitTarget};
use super::moves::{self, Recovered, RecoveredCommand, must_be_own, recover_drafts};
use super::selection::{ChangeSelection, UnappliedChange};
use super::stage::{self, ApprovalCommand, Journal, Phase};
use crate::draft::{Draft, DraftRecord, DraftState};
use swarmletfs_base::model::{EntryState, ReviewState, WorkspaceChanges};
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::text::count;
use swarmletfs_record::audit::AuditPath;
use swarmletfs_record::write::{Dir, During, Error, Lock, Result, Store, Worker};
use swarmletfs_trace::swarmlet::{APPLIED, BASE, CHANGES, CHANGES_FILE};

const CHANGES_MAX: u64 = 256 << 20;

/// A worker with a draft, whose changes can be applied.
#[derive(Debug)]
pub struct Approval<'a> {
    store: &'a Store,
    worker: Worker,
}

/// The way with a file that both the worker and others changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Merging {
    #[default]
    No,
    /// It is merged if the changes do not contradict each other.
    Clean,
    /// It is merged, with both sides of each contradiction between markers.
    Markers,
}

/// How changes are applied.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    pub merging: Merging,
    /// The place of the commits; `None` leaves them out.
    pub commits: Option<CommitTarget>,
}

#[derive(Debug, Default)]
pub struct Checked {
    /// The changes to make, sorted by path.
    pub files: Vec<CheckedFile>,
    /// Reasons why nothing can be applied; empty if everything can.
    pub conflicts: Vec<Conflict>,
    /// Number of changes that the workspace has already.
    pub done: usize,
    /// Folders that stay, because others have entries in them.
    pub kept: Vec<RelPath>,
    pub running: Vec<Name>,
    /// The branch to move, or that was moved.
    pub commits: Option<BranchMove>,
}

#[derive(Debug)]
pub struct CheckedFile {
    pub path: RelPath,
    pub action: Action,
    /// True if the worker's content was merged with another one.
    pub is_merged: bool,
    /// Number of contradictions in it that are between markers.
    pub conflicts: u64,
}

#[derive(Debug)]
pub struct ApprovalOutcome {
    pub checked: Checked,
    /// Number of the application; `None` if nothing changed.
    pub number: Option<u64>,
}

/// A workspace that no other command changes, and the draft of a worker that has ended.
pub(super) struct Locked {
    pub(super) workspace: Dir,
    pub(super) draft: Draft,
    running: Vec<Draft>,
    _workspace_lock: Lock,
    _draft_lock: Lock,
}

impl<'a> Approval<'a> {
    pub fn open(store: &'a Store, id: &[u8]) -> Result<Approval<'a>> {
        Ok(Approval { store, worker: store.worker(id)? })
    }

    pub fn id(&self) -> &Name {
        self.worker.id()
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    pub(super) fn store_path(&self) -> &Path {
        self.store.root().path()
    }

    /// Returns the path of the workspace.
    ///
    /// # Errors
    ///
    /// The worker has no draft, so its workspace is not known.
    pub fn workspace(&self) -> Result<PathBuf> {
        Ok(self.draft("find the workspace of")?.record().workspace())
    }

    /// Reads changes.json of the worker.
    ///
    /// # Errors
    ///
    /// The worker has no changes, or they cannot be read.
    pub fn changes(&self) -> Result<WorkspaceChanges> {
        let folder = self.worker.folder();
        let read = || folder.read(&Name::new(CHANGES_FILE)?, CHANGES_MAX);
        let json = read().during("read", folder.path(), CHANGES_FILE.as_bytes())?;
        let Some(json) = json else {
            return Err(self.error(
                "read the changes of",
                "it has recorded none",
                "`swarmletfs run` runs a worker in a view of a workspace",
            ));
        };
        if !self.worker.vouches_for(&json)? {
            return Err(self.error(
                "read the changes of",
                "its runner did not write its changes.json",
                "it has changes when the runner has found some, at the latest at its end",
            ));
        }
        serde_json::from_slice(&json).map_err(|error| {
            let reason = format!("line {}: {error}", error.line());
            Error::invalid(CHANGES_FILE.as_bytes(), "changes of a workspace", reason)
        })
    }

    /// Returns the decision about the changes of the worker.
    ///
    /// # Errors
    ///
    /// The worker has no draft, or its record cannot be read.
    pub fn review_state(&self) -> Result<ReviewState> {
        let state = self.draft("review the changes of")?.record().state;
        if state == DraftState::Running {
            return Ok(ReviewState::Running);
        }
        if self.continued_in()?.is_some() {
            return Ok(ReviewState::Continued);
        }
        let (mut is_taken_back, mut applied) = (false, BTreeSet::new());
        let records = self.applications()?;
        let has_parts = !applied_parts(&records).is_empty();
        for record in records {
            if record.undone_at.is_some() {
                is_taken_back = true;
                continue;
            }
            let whole = record.files.into_iter().filter(|file| !file.is_part);
            applied.extend(whole.map(|file| file.path));
            applied.extend(record.commits.into_iter().flat_map(|made| made.paths));
        }
        let changes = match self.changes() {
            Ok(changes) => changes.files,
            Err(_) if state == DraftState::Discarded => Vec::new(),
            Err(_) => return Ok(ReviewState::Unknown),
        };
        let left = changes.iter().any(|file| {
            file.refused.is_none() && !file.is_folder() && !applied.contains(&file.path)
        });
        Ok(match (state, applied.is_empty(), left) {
            (DraftState::Discarded, true, _) => ReviewState::Discarded,
            (_, _, true) if has_parts => ReviewState::PartlyApplied,
            (_, true, false) => ReviewState::Empty,
            (_, true, true) if is_taken_back => ReviewState::TakenBack,
            (_, true, true) => ReviewState::Waiting,
            (DraftState::Discarded, false, _) | (_, false, false) => ReviewState::Applied,
            (_, false, true) => ReviewState::PartlyApplied,
        })
    }

    /// Returns the records of the completed applications, oldest first.
    pub(super) fn applications(&self) -> Result<Vec<AppliedRecord>> {
        let folder = self.worker.folder();
        let numbers = applied::numbers(folder)?.into_iter();
        let read = numbers.map(|number| Application::open(folder, number)?.read());
        read.filter_map(Result::transpose).collect()
    }

    /// Returns [`Approval::review_state`], and keeps it where readers of the store see it.
    ///
    /// # Errors
    ///
    /// See [`Approval::review_state`]. That it cannot be kept is no error.
    pub fn keep_review_state(&self) -> Result<ReviewState> {
        self.worker.keep_review_state(|| self.review_state())
    }

    /// Returns true if changes of `path` were not recorded because it is ignored in the workspace.
    pub fn is_ignored(&self, path: &RelPath) -> bool {
        let draft = self.draft("find the workspace of");
        draft.is_ok_and(|draft| draft.ignores(path))
    }

    /// Returns true if a command that changed the workspace for this worker was interrupted.
    pub fn is_half_applied(&self) -> Result<bool> {
        let Some(draft) = Draft::open(self.store, self.id())? else { return Ok(false) };
        Ok(Journal::read(draft.folder())?.is_some())
    }

    /// Finishes or takes back interrupted commands in the workspace. Waits for commands that still
    /// run.
    pub fn recover(&self) -> Result<Vec<RecoveredCommand>> {
        let Some(draft) = Draft::open(self.store, self.id())? else { return Ok(Vec::new()) };
        recover_workspace(self.store, &draft.record().workspace())
    }

    /// Checks the changes of `selection` against the workspace, and changes nothing.
    ///
    /// # Errors
    ///
    /// The worker runs or has no draft, or the workspace cannot be read.
    pub fn check(&self, selection: &ChangeSelection, options: &ApplyOptions) -> Result<Checked> {
        let locked = self.lock("apply the changes of", false)?;
        self.plan(&locked, selection, options).map(|(_, checked)| checked)
    }

    /// Applies the changes of `selection`, all or none.
    ///
    /// # Errors
    ///
    /// The worker runs or has no draft, or the workspace or the store cannot be written. Nothing is
    /// applied then, unless the error says otherwise.
    pub fn apply(
        &self,
        selection: &ChangeSelection,
        options: &ApplyOptions,
    ) -> Result<ApprovalOutcome> {
        let mut paths = Vec::new();
        let applied = self.apply_logged(selection, options, &mut paths);
        self.log("apply", paths, &applied);
        applied
    }

    fn apply_logged(
        &self,
        selection: &ChangeSelection,
        options: &ApplyOptions,
        paths: &mut Vec<AuditPath>,
    ) -> Result<ApprovalOutcome> {
        let locked = self.lock("apply the changes of", false)?;
        let (plan, checked) = self.plan(&locked, selection, options)?;
        *paths = audit_paths(CHANGES, &plan);
        let is_empty = plan.steps.is_empty() && checked.commits.is_none();
        if is_empty || !plan.conflicts.is_empty() {
            return Ok(ApprovalOutcome { checked, number: None });
        }
        let number = applied::numbers(self.worker.folder())?.last().map_or(1, |last| last + 1);
        let contents = StoredContents::new(self.worker.folder(), CHANGES);
        let order = (ApprovalCommand::Apply, number, checked.commits.as_ref());
        self.carry_out(&locked, &plan, order, &contents)?;
        if let Some(planned) = &checked.commits {
            commits::make(&locked.workspace, planned).map_err(|error| {
                let cure = "its files are applied; try the same command again";
                self.error("apply the commits of", &error.to_string(), cure)
            })?;
        }
        let _ = self.keep_review_state();
        Ok(ApprovalOutcome { checked, number: Some(number) })
    }

    /// Returns the last application that was not taken back; `None` if there is none.
    fn last_applied(&self) -> Result<Option<AppliedRecord>> {
        for number in applied::numbers(self.worker.folder())?.into_iter().rev() {
            let record = Application::open(self.worker.folder(), number)?.read()?;
            if let Some(record) = record.filter(|record| record.undone_at.is_none()) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Returns true if changes were applied and not taken back.
    pub fn is_applied(&self) -> Result<bool> {
        self.last_applied().map(|last| last.is_some())
    }

    /// Returns the time of the last application that was not taken back.
    pub fn applied_at(&self) -> Result<Option<Timestamp>> {
        self.last_applied().map(|last| last.map(|record| record.applied_at))
    }

    /// Checks the changes of [`Approval::undo`], and changes nothing.
    ///
    /// # Errors
    ///
    /// The worker runs or has no draft, or the workspace cannot be read.
    pub fn check_undo(&self) -> Result<Checked> {
        let locked = self.lock("undo the changes of", true)?;
        match self.last_applied()? {
            None => Ok(Checked::default()),
            Some(record) => {
                if let Some(made) = &record.commits {
                    self.take_back(&locked.workspace, made, true)?;
                }
                let plan = check(&locked.workspace, &record.reverse()?, None)?;
                Ok(Checked { commits: record.commits, ..summarize(&plan, &locked) })
            }
        }
    }

    /// Puts back the contents that the last application replaced.
    ///
    /// # Errors
    ///
    /// The worker runs or has no draft, or the workspace or the store cannot be written. Nothing is
    /// put back then, unless the error says otherwise.
    pub fn undo(&self) -> Result<ApprovalOutcome> {
        let mut paths = Vec::new();
        let undone = self.undo_logged(&mut paths);
        self.log("undo", paths, &undone);
        undone
    }

    fn undo_logged(&self, paths: &mut Vec<AuditPath>) -> Result<ApprovalOutcome> {
        let locked = self.lock("undo the changes of", true)?;
        let Some(record) = self.last_applied()? else {
            return Ok(ApprovalOutcome { checked: Checked::default(), number: None });
        };
        let number = record.number;
        let plan = check(&locked.workspace, &record.reverse()?, None)?;
        let application = Application::open(self.worker.folder(), number)?;
        *paths = audit_paths(&format!("{APPLIED}/{number}/replaced"), &plan);
        let checked = Checked { commits: record.commits.clone(), ..summarize(&plan, &locked) };
        if !plan.conflicts.is_empty() {
            return Ok(ApprovalOutcome { checked, number: None });
        }
        let contents = application.replaced();
        // First: after a crash, the branch is back and the files wait for the next undo.
        if let Some(made) = &record.commits {
            self.take_back(&locked.workspace, made, false)?;
        }
        self.carry_out(&locked, &plan, (ApprovalCommand::Undo, number, None), &contents)?;
        let _ = self.keep_review_state();
        Ok(ApprovalOutcome { checked, number: Some(number) })
    }

    /// Drops the draft. The record of the worker stays. Returns false if it was dropped before.
    ///
    /// # Errors
    ///
    /// The worker runs, has no recorded end or no draft, or the store cannot be written.
    pub fn discard(&self) -> Result<bool> {
        let discarded = self.discard_unlogged();
        self.worker.log("discard", Vec::new(), &discarded);
        discarded
    }

    fn discard_unlogged(&self) -> Result<bool> {
        self.recover()?;
        let (mut draft, _lock) = self.lock_to_discard()?;
        let was_kept = draft.record().state != DraftState::Discarded;
        draft.discard()?;
        // The changes that this worker went on with wait again.
        let previous = draft.record().continues.as_ref().map(Name::new);
        if let Some(Ok(previous)) = previous {
            keep_review_state(self.store, &previous);
        }
        let _ = self.keep_review_state();
        Ok(was_kept)
    }

    /// Fails if the draft cannot be discarded: the worker runs, has no recorded end, or has no
    /// draft.
    pub fn check_discard(&self) -> Result<()> {
        self.lock_to_discard().map(drop)
    }

    fn lock_to_discard(&self) -> Result<(Draft, Lock)> {
        let action = "discard the changes of";
        let draft = self.draft(action)?;
        let Some(lock) = draft.try_lock()? else { return Err(self.is_running(action)) };
        // Read again: the runner that held the lock may have ended the worker.
        let draft = self.draft(action)?;
        // Without its draft nothing could end the worker any more.
        if draft.record().state == DraftState::Running && !self.worker.has_finished()? {
            return Err(self.has_no_end(action));
        }
        Ok((draft, lock))
    }

    /// Plans an application: its steps, and the facts for a person.
    pub(super) fn plan(
        &self,
        locked: &Locked,
        selection: &ChangeSelection,
        options: &ApplyOptions,
    ) -> Result<(ApplyPlan, Checked)> {
        let mut unasked = Vec::new();
        // While it ran, the worker could write its changes.json. Only now nobody does.
        if let Some(source) = &selection.source {
            if self.changes()? != **source {
                let reason = "they changed while they were read";
                return Err(self.error("apply the changes of", reason, "try again"));
            }
            if !source.is_final {
                let cure = format!("try `swarmletfs run --recover {}`", self.id().display());
                let reason = "they were not searched for after its end";
                return Err(self.error("apply the changes of", reason, &cure));
            }
            unasked = selection.unasked_now(&locked.workspace, self.store_path());
        }
        let action = format!("apply the changes of {}", self.id().display());
        let folder = self.worker.folder();
        let (base, new) = (StoredContents::new(folder, BASE), StoredContents::new(folder, CHANGES));
        let marks_conflicts = options.merging == Merging::Markers;
        let source = MergeSource { base, new, action: &action, marks_conflicts };
        let merging = (options.merging != Merging::No).then_some(&source);
        let mut plan = check(&locked.workspace, selection, merging)?;
        let conflict = |UnappliedChange { path, reason }| Conflict { path, reason };
        plan.conflicts.extend(unasked.into_iter().map(conflict));
        let mut checked = summarize(&plan, locked);
        if let (Some(target), Some(source), true) =
            (&options.commits, &selection.source, plan.conflicts.is_empty())
        {
            let rules = selection.rules();
            let (worker, store) = (self.worker.folder(), self.store_path());
            let places = CommitSource { worker, store, draft: &locked.draft };
            let planned = commits::plan(&locked.workspace, &places, source, target, rules);
            checked.commits =
                planned.map_err(|it| self.error("apply the commits of", &it.reason, it.cure))?;
        }
        Ok((plan, checked))
    }

    /// Makes the steps of `plan`, all or none, as the application of this number.
    fn carry_out(
        &self,
        locked: &Locked,
        plan: &ApplyPlan,
        order: (ApprovalCommand, u64, Option<&BranchMove>),
        contents: &StoredContents<'_>,
    ) -> Result<()> {
        moves::save_bases(&locked.running, &locked.workspace, plan)?;
        let made = self.make_changes(locked, plan, order, contents);
        let (draft, worker) = (locked.draft.folder(), self.worker.folder());
        match (made, moves::recover(&locked.workspace, draft, worker)) {
            (Ok(()), Ok(_)) => Ok(()),
            // The journal was written, although an error was reported.
            (Err(_), Ok(Some(Recovered::Finished))) => Ok(()),
            (Err(error), Ok(_)) => Err(error),
            (Ok(()), Err(error)) => Err(Error::Approval {
                action: "remove what was replaced".to_owned(),
                reason: error.to_string(),
                cure: "all changes were made; the next command completes this".to_owned(),
            }),
            (Err(error), Err(later)) => Err(Error::Approval {
                action: format!("complete or take back the changes of {}", self.id().display()),
                reason: format!("{error}, and then: {later}"),
                cure: "the next command tries to take them back".to_owned(),
            }),
        }
    }

    fn make_changes(
        &self,
        locked: &Locked,
        plan: &ApplyPlan,
        (operation, number, commits): (ApprovalCommand, u64, Option<&BranchMove>),
        contents: &StoredContents<'_>,
    ) -> Result<()> {
        let (workspace, draft) = (&locked.workspace, locked.draft.folder());
        let temporaries = stage::name_temporaries(workspace, &plan.steps)?;
        let mut journal = Journal::new(operation, number, temporaries.values());
        journal.write(draft)?;
        let application = match operation {
            ApprovalCommand::Apply => {
                let application = Application::create(self.worker.folder(), number)?;
                self.save_replaced(&application, workspace, plan)?;
                Some(application)
            }
            ApprovalCommand::Undo => None,
        };
        journal.moves = stage::stage(workspace, &plan.steps, &temporaries, contents)?;
        journal.phase = Phase::Moving;
        journal.write(draft)?;
        moves::make_all(workspace, &journal)?;
        if let Some(path) = moves::find_unchecked(workspace, plan, &temporaries)? {
            return Err(self.changed_now(&path));
        }
        if let Some(application) = application {
            application.write(&AppliedRecord::new(
                number,
                plan.steps.values(),
                commits.cloned(),
            ))?;
        }
        journal.phase = Phase::Cleaning;
        journal.write(draft)
    }

    fn save_replaced(
        &self,
        application: &Application,
        workspace: &Dir,
        plan: &ApplyPlan,
    ) -> Result<()> {
        for (path, step) in &plan.steps {
            let Some(state) = step.before.as_ref().map(|before| before.state()) else { continue };
            if state.sha256.is_empty() || !changes_content(step) {
                continue;
            }
            let saved = application.save(workspace, path, &state);
            if !saved.during("save", workspace.path(), path.as_bytes())? {
                return Err(self.changed_now(path));
            }
        }
        Ok(())
    }

    /// Returns the record of the draft.
    ///
    /// # Errors
    ///
    /// The worker has none.
    pub fn draft_record(&self) -> Result<DraftRecord> {
        Ok(self.draft("continue the work of")?.record().clone())
    }

    /// Returns the worker that goes on with the changes of this one, unless they were discarded
    /// there.
    pub fn continued_in(&self) -> Result<Option<Name>> {
        let Some(draft) = Draft::open(self.store, self.id())? else { return Ok(None) };
        let next = draft.record().continued_by.as_ref().and_then(|id| Name::new(id).ok());
        let Some(next) = next else { return Ok(None) };
        let continued = Draft::open(self.store, &next)?;
        let is_kept = continued.is_some_and(|it| it.record().state != DraftState::Discarded);
        Ok(is_kept.then_some(next))
    }

    fn take_back(&self, workspace: &Dir, made: &BranchMove, only_checks: bool) -> Result<()> {
        let taken = commits::take_back(workspace, made, only_checks);
        taken.map_err(|it| self.error("undo the commits of", &it.reason, it.cure))
    }

    pub(super) fn draft(&self, action: &str) -> Result<Draft> {
        let no_draft = || {
            self.error(
                action,
                "it has no draft",
                "`swarmletfs run` runs a worker in a view of a workspace",
            )
        };
        Draft::open(self.store, self.id())?.ok_or_else(no_draft)
    }

    /// Locks the workspace and the draft, and recovers from interrupted commands.
    pub(super) fn lock(&self, action: &str, discarded_too: bool) -> Result<Locked> {
        let (workspace, workspace_lock) = self.lock_workspace(&self.draft(action)?)?;
        // Read again: the command that held the lock may have changed it.
        let draft = self.draft(action)?;
        let drafts = moves::drafts_of_workspace(self.store, &draft.record().workspace())?;
        for command in recover_drafts(self.store, &workspace, &drafts)? {
            keep_review_state(self.store, &command.worker);
        }
        let Some(draft_lock) = draft.try_lock()? else { return Err(self.is_running(action)) };
        if let Some(next) = self.continued_in()?.filter(|_| !discarded_too) {
            let next = next.display();
            let reason = format!("{next} went on with its changes");
            return Err(self.error(action, &reason, &format!("try {next}")));
        }
        match draft.record().state {
            DraftState::Ended => {}
            DraftState::Discarded if discarded_too => {}
            DraftState::Discarded => {
                return Err(self.error(
                    action,
                    "they were discarded",
                    "`swarmletfs changes` still shows them",
                ));
            }
            DraftState::Running => return Err(self.has_no_end(action)),
        }
        let running = moves::running_drafts(drafts, self.id());
        Ok(Locked {
            workspace,
            draft,
            running,
            _workspace_lock: workspace_lock,
            _draft_lock: draft_lock,
        })
    }

    fn lock_workspace(&self, draft: &Draft) -> Result<(Dir, Lock)> {
        let path = draft.record().workspace();
        let durability = draft.folder().durability();
        let workspace = Dir::open(&path, durability).during("open the workspace", &path, b"")?;
        let is_same = draft.record().is_workspace(&workspace);
        if !is_same.during("open the workspace", &path, b"")? {
            let reason = "the workspace is another folder now";
            let cure = format!(
                "move the one of the worker back to {}",
                printable(path.as_os_str().as_encoded_bytes())
            );
            return Err(self.error("change the workspace of", reason, &cure));
        }
        must_be_own(draft, &workspace)?;
        let lock = workspace.lock().during("lock the workspace", &path, b"")?;
        Ok((workspace, lock))
    }

    /// Adds an attempt that ended before it began to the log of changes.
    pub fn log_conflicts(&self, action: &str, checked: Checked) {
        self.log(action, Vec::new(), &Ok(ApprovalOutcome { checked, number: None }));
    }

    /// Adds an attempt that a person refused to the log of changes.
    pub fn log_refusal(&self, action: &str, reason: &str) {
        let error = self.error(&format!("{action} the changes of"), reason, "nothing was changed");
        self.worker.log::<()>(action, Vec::new(), &Err(error));
    }

    fn log(&self, action: &str, paths: Vec<AuditPath>, result: &Result<ApprovalOutcome>) {
        let conflicts = result.as_ref().map_or(0, |outcome| outcome.checked.conflicts.len());
        if conflicts > 0 {
            let reason = format!("{} in the workspace", count(conflicts as u64, "conflict"));
            let conflict: Result<()> = Err(self.error(
                &format!("{action} the changes of"),
                &reason,
                "nothing was changed",
            ));
            self.worker.log(action, paths, &conflict);
        } else {
            self.worker.log(action, paths, result);
        }
    }

    fn is_running(&self, action: &str) -> Error {
        self.error(action, "it is still running", "try again when it has ended")
    }

    fn has_no_end(&self, action: &str) -> Error {
        let cure = format!("try `swarmletfs run --recover {}`", self.id().display());
        self.error(action, "its end is not recorded", &cure)
    }

    fn changed_now(&self, path: &RelPath) -> Error {
        let reason = format!("{} changed or was changed at this moment", path.display());
        self.error("apply or undo the changes of", &reason, "nothing was changed; try again")
    }

    pub(super) fn error(&self, action: &str, reason: &str, cure: &str) -> Error {
        Error::Approval {
            action: format!("{action} {}", self.id().display()),
            reason: reason.to_owned(),
            cure: cure.to_owned(),
        }
    }
}

/// Keeps the decision about the draft of the worker `id` where readers of the store see it. After
/// an error, `swarmletfs review` does that.
pub fn keep_review_state(store: &Store, id: &Name) {
    let _ = Approval::open(store, id.as_bytes()).and_then(|approval| approval.keep_review_state());
}

/// Finishes or takes back interrupted commands in the workspace `path`, in the workspaces that
/// contain it, and in the workspaces inside it. Waits for commands that still run. Readers of the
/// store see the decisions that were interrupted.
///
/// # Errors
///
/// A workspace or the store cannot be written.
pub fn recover_workspace(store: &Store, path: &Path) -> Result<Vec<RecoveredCommand>> {
    let recovered = moves::recover_workspace(store, path)?;
    recovered.iter().for_each(|command| keep_review_state(store, &command.worker));
    Ok(recovered)
}

/// Returns the files of which only a part was applied, as they are then.
pub(super) fn applied_parts(records: &[AppliedRecord]) -> BTreeMap<RelPath, EntryState> {
    let mut parts = BTreeMap::new();
    let kept = records.iter().filter(|record| record.undone_at.is_none());
    for file in kept.flat_map(|record| &record.files) {
        let Ok(path) = file.path.parse() else { continue };
        match file.new.as_ref().filter(|_| file.is_part) {
            Some(new) => drop(parts.insert(path, new.clone())),
            None => drop(parts.remove(&path)),
        }
    }
    parts
}

/// Returns true if the step removes or replaces the content of a file.
fn changes_content(step: &ChangeStep) -> bool {
    let (Some(before), Some(after)) = (&step.before, &step.after) else { return true };
    !before.is_content_of(after)
}

fn summarize(plan: &ApplyPlan, locked: &Locked) -> Checked {
    let file = |step: &ChangeStep| CheckedFile {
        path: step.path.clone(),
        action: step.action(),
        is_merged: step.merged.is_some(),
        conflicts: step.merged.as_ref().map_or(0, |merged| merged.conflicts),
    };
    Checked {
        files: plan.steps.values().map(file).collect(),
        conflicts: plan.conflicts.clone(),
        done: plan.done,
        kept: plan.kept.clone(),
        running: locked.running.iter().map(|draft| draft.worker().clone()).collect(),
        commits: None,
    }
}

/// Returns the changed paths for the log of changes. They lead to the new contents in the worker's
/// directory.
fn audit_paths(folder: &str, plan: &ApplyPlan) -> Vec<AuditPath> {
    let entry = |step: &ChangeStep| AuditPath {
        path: format!("{folder}/{}", step.path.to_text()),
        bytes: step.after.as_ref().map_or(0, |after| after.size),
        sha256: step
            .after
            .as_ref()
            .map(|after| after.sha256.clone())
            .filter(|hash| !hash.is_empty()),
    };
    plan.steps.values().map(entry).collect()
}
