//! `run --recover`: ends a worker whose runner is gone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use super::report::{ChangeCounts, Reporter, RunEnd, RunEvent};
use super::session::conclude;
use crate::cli::write_args::{WriteArgs, into_cli_error};
use crate::draft::{ChangeSearch, Draft, DraftState};
use crate::write::{Error, Finish, Store};

/// The error of a worker whose runner is gone.
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
    let end = write.with_store(|store| recover(store, id, &reporter))?;
    let is_done = end.changes.is_some();
    reporter.report(&RunEvent::Ended(end));
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends a worker whose runner is gone. Returns its end, without changes if they or the end could
/// not be recorded.
///
/// # Errors
///
/// The worker runs, has ended, or was not started by `run`.
pub(super) fn recover(store: &Store, id: &OsStr, reporter: &Reporter) -> anyhow::Result<RunEnd> {
    let worker = store.worker(id.as_bytes()).map_err(into_cli_error)?;
    let shown = worker.id().display();
    let Some(mut draft) = Draft::open(store, worker.id())? else {
        bail!(
            "cannot recover worker {shown}: it has no draft, so `run` did not start it; try \
             `swarmletfs worker finish {shown} --status failed`"
        );
    };
    let Some(_lock) = draft.try_lock()? else {
        bail!("cannot recover worker {shown}: it still runs; end it, or wait for its end");
    };
    if draft.record().state != DraftState::Running {
        bail!("cannot recover worker {shown}: it has ended, and its changes are recorded");
    }
    let mut end = RunEnd {
        worker: shown,
        status: "failed".to_owned(),
        error: ERROR.to_owned(),
        duration: Duration::ZERO,
        changes: None,
        notes: Vec::new(),
    };
    if !draft.is_prepared()? {
        // There is nothing to keep of a command that did not run. A copy may have filled the disk,
        // so it goes before anything is written.
        draft.remove_layers()?;
        let finished = worker.finish(Finish::failed(ERROR_BEFORE));
        if !matches!(finished, Err(Error::Finished { .. })) {
            finished?;
        }
        draft.discard()?;
        end.error = ERROR_BEFORE.to_owned();
        end.changes = Some(ChangeCounts::default());
        return Ok(end);
    }
    let mut search = ChangeSearch::new(&draft, &worker);
    let cure = format!("try `swarmletfs discard {}`", end.worker);
    let finish = (Finish::failed(ERROR), cure.as_str());
    let problems = conclude(&worker, &mut draft, &mut search, finish, &mut end);
    problems.iter().for_each(|problem| reporter.failure(problem));
    if !problems.is_empty() {
        end.changes = None;
    }
    Ok(end)
}
