//! `run --recover`: ends a worker whose runner is gone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::bail;

use super::report::{ChangeCounts, Reporter, RunEnd, RunEvent};
use super::session::{Conclusion, conclude};
use crate::approval::keep_review_state;
use crate::cli::write_args::{WriteArgs, into_cli_error};
use crate::draft::{ChangeSearch, Draft, DraftState, MissingPart};
use crate::model::{Outcome, Status};
use crate::name::{Name, RelPath};
use crate::trace::swarmlet::CHANGES_FILE;
use swarmletfs_record::write::{Finish, Store, Worker};

const ERROR: &str = "the runner ended early";

/// The error of a worker whose runner ended before it could start the command.
const ERROR_BEFORE: &str = "the runner ended before the command began";

/// Records the changes of the worker `id`, and that it failed.
///
/// # Errors
///
/// The worker runs, has ended, or was not started by `run`, or the store cannot be written.
pub(super) fn run(write: &WriteArgs, id: &OsStr) -> anyhow::Result<ExitCode> {
    let reporter = Reporter::person(write.quiet);
    let recovered = write.with_store(|store| recover(store, id, &reporter))?;
    reporter.report(&RunEvent::Ended(recovered.end.into()));
    Ok(if recovered.is_ended { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) struct RecoveredRun {
    /// Its end, without changes if they are unknown or not recorded.
    pub(super) end: RunEnd,
    /// True if its end is recorded, with all changes that can be known.
    is_ended: bool,
}

/// Ends a worker whose runner is gone.
///
/// # Errors
///
/// The worker runs, has ended, or was not started by `run`.
pub(super) fn recover(
    store: &Store,
    id: &OsStr,
    reporter: &Reporter,
) -> anyhow::Result<RecoveredRun> {
    let worker = store.worker(id.as_bytes()).map_err(into_cli_error)?;
    let shown = worker.id().display();
    let open = || Draft::open(store, worker.id());
    let Some(draft) = open()? else {
        bail!(
            "cannot recover worker {shown}: it has no draft, so `run` did not start it; try \
             `swarmletfs worker finish {shown} --status failed`"
        );
    };
    let Some(_lock) = draft.try_lock()? else {
        bail!("cannot recover worker {shown}: it still runs; end it, or wait for its end");
    };
    // Read again: the runner that held the lock may have ended the worker.
    let mut draft = open()?.unwrap_or(draft);
    let state = draft.record().state;
    let is_left = match state {
        DraftState::Running => true,
        // Its workspace was missing, and may be back.
        DraftState::Ended => {
            worker.folder().kind(&RelPath::constant(CHANGES_FILE)).is_ok_and(|kind| kind.is_none())
        }
        DraftState::Discarded => !worker.has_finished()?,
    };
    if !is_left {
        bail!("cannot recover worker {shown}: it has ended, and its changes are recorded");
    }
    let mut end = RunEnd::new(&worker, Status::Failed, ERROR);
    end.outcome = Outcome::Failed.as_str().to_owned();
    let missing = draft.missing_part();
    if state == DraftState::Running && missing == Some(MissingPart::Layers) {
        // There is nothing to keep of a command that did not run. A copy may have filled the disk,
        // so it goes before anything is written.
        draft.remove_layers()?;
        end.error = ERROR_BEFORE.to_owned();
        end.changes = Some(ChangeCounts::default());
        finish_without_changes(store, &worker, &mut draft, DraftState::Discarded, &mut end)?;
        return Ok(RecoveredRun { end, is_ended: true });
    }
    let unknown = match (state, missing) {
        (DraftState::Discarded, _) | (_, Some(MissingPart::Layers)) => {
            Some(("they were discarded", DraftState::Discarded))
        }
        // The layers stay: they hold the files that the worker wrote.
        (_, Some(MissingPart::Workspace)) => {
            Some(("its workspace does not exist any more", DraftState::Ended))
        }
        (_, None) => None,
    };
    if let Some((reason, state)) = unknown {
        end.error = format!("{ERROR}; its changes are unknown, because {reason}");
        finish_without_changes(store, &worker, &mut draft, state, &mut end)?;
        return Ok(RecoveredRun { end, is_ended: true });
    }
    let mut search = ChangeSearch::new(&draft, &worker);
    let cure = format!("try `swarmletfs discard {}`", end.worker);
    let conclusion = Conclusion { finish: Finish::failed(ERROR), cure: &cure, is_logged: false };
    let problems = conclude(store, &worker, &mut draft, &mut search, conclusion, &mut end);
    problems.iter().for_each(|problem| reporter.failure(problem));
    let is_ended = problems.is_empty();
    if !is_ended {
        end.changes = None;
    }
    Ok(RecoveredRun { end, is_ended })
}

/// Opens the store for a command on drafts, and calls `change` with it. Before that, ends the
/// workers whose runners were killed.
///
/// # Errors
///
/// The errors of [`WriteArgs::with_store`].
pub(crate) fn with_drafts<T>(
    write: &WriteArgs,
    change: impl FnOnce(&Store) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    write.with_store(|store| {
        recover_killed(store, write.quiet);
        change(store)
    })
}

/// Ends the workers of a store whose runners were killed, and says so. Errors are only messages:
/// the command that follows is about something else, or meets them again.
fn recover_killed(store: &Store, quiet: bool) {
    let reporter = Reporter::person(quiet);
    let drafts = Draft::list(store).unwrap_or_default();
    for id in drafts {
        let Ok(Some(draft)) = Draft::open(store, &id) else { continue };
        let is_left = draft.record().state == DraftState::Running
            && draft.try_lock().is_ok_and(|lock| lock.is_some());
        if !is_left {
            continue;
        }
        match recover(store, id.as_os_str(), &reporter) {
            Ok(recovered) => reporter.report(&RunEvent::Ended(recovered.end.into())),
            Err(error) => reporter.failure(&error),
        }
    }
}

/// Records the end of a worker whose changes nobody can know, and the state of its draft.
fn finish_without_changes(
    store: &Store,
    worker: &Worker,
    draft: &mut Draft,
    state: DraftState,
    end: &mut RunEnd,
) -> anyhow::Result<()> {
    // A file that the worker may have written itself is no record of its changes.
    worker.folder().make_self_accessible()?;
    worker.folder().remove_all(&Name::new(CHANGES_FILE)?)?;
    if let Some(status) = worker.ensure_finished(Finish::failed(end.error.clone()), false)? {
        end.status = status;
    }
    if state == DraftState::Discarded {
        draft.discard()?;
    } else {
        draft.update(|record| record.state = state)?;
    }
    keep_review_state(store, worker.id());
    Ok(())
}
