//! A worker from its start to its end. Changes are searched for while its command runs, in a thread
//! of its own.
//!
//! A descriptor of a file or folder leads to the real file system, past the mounts of the sandbox:
//! the command could open it anew for writing, or an entry beneath it. So a command reads
//! those from a pipe.

use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{FileType, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Map, Value};

use super::isolation::{self, Isolation};
use super::report::{ChangeCounts, Reporter, RunEnd, RunEvent};
use super::{RunArgs, StartPlace};
use crate::approval::{Approval, Merging, keep_review_state, recover_workspace};
use crate::cli::exit;
use crate::cli::record::command_line;
use crate::cli::run_command::{self, CommandSpec, Ended, Sink, StreamMode};
use crate::cli::terminal::display_path;
use crate::cli::write_args::into_cli_error;
use crate::deadline::Deadline;
use crate::draft::{ChangeSearch, Draft, DraftRecord, DraftState, SearchReport};
use crate::model::{CommandExit, Status};
use swarmletfs_record::write::{
    Dir, Error, ExecutionLog, Finish, LogState, NewWorker, Store, Worker,
};

const OTHERS: u32 = 0o7;

/// Why a worker of a server of tools was abandoned.
const NO_FINISH: &str = "the session ended without finish";

pub(super) fn run(arguments: &RunArgs, reporter: &Reporter) -> anyhow::Result<ExitCode> {
    let place = StartPlace::find(&arguments.workspace)?;
    arguments
        .write
        .resolved(&place.workspace)?
        .with_store(|store| run_in(store, arguments, &place, reporter, None))
}

struct LogSink {
    log: ExecutionLog,
    /// False for a protocol, of which the calls are recorded.
    is_kept: bool,
}

impl Sink for LogSink {
    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        std::io::Write::write_all(&mut self.log, bytes).context("cannot write logs/execution.log")
    }
}

/// The worker that another one goes on for.
pub(super) struct Previous<'a> {
    pub(super) approval: Approval<'a>,
    pub(super) merging: Merging,
}

/// Runs a new worker, or the one that waits. It goes on with the changes of `previous`, if there is
/// one.
///
/// # Errors
///
/// The command was not run.
pub(super) fn run_in(
    store: &Store,
    arguments: &RunArgs,
    place: &StartPlace,
    reporter: &Reporter,
    previous: Option<&Previous<'_>>,
) -> anyhow::Result<ExitCode> {
    // A worker must not begin with a workspace that is half changed.
    let recovered = recover_workspace(store, &place.workspace).with_context(|| {
        let workspace = display_path(&place.workspace);
        format!(
            "cannot use {workspace} as the workspace: a command that changed it was interrupted"
        )
    })?;
    recovered.iter().for_each(|command| reporter.notice(command.to_string()));
    // Checked before the worker is made, so that a refusal leaves none.
    let isolation = Isolation::choose(arguments, place, store, reporter)?;
    if isolation.is_isolated() {
        detach_input()?;
    }
    let mut record = DraftRecord::new(&place.workspace, isolation.engine);
    record.all_changes = arguments.all_changes;
    record.is_durable = arguments.durable;
    record.set_command(&arguments.command);
    let preset = arguments.access.preset.to_possible_value();
    record.preset = preset.map(|preset| preset.get_name().to_owned());
    record.continues = previous.map(|previous| previous.approval.id().to_text().into_owned());
    for path in &arguments.access.hide {
        let hidden = place.hidden(path)?;
        if place.workspace.join(&hidden).is_symlink() {
            let shown = display_path(path);
            reporter.notice(format!("{shown} is a link: --hide does not hide its target"));
        }
        record.hide(&hidden);
    }
    if let Some(top) = place.enclosing_repository() {
        let (workspace, top) = (display_path(&place.workspace), display_path(top));
        reporter.notice(format!(
            "the workspace {workspace} is inside the git repository {top}, so git does not work in \
             it; try --workspace {top}"
        ));
    }
    let plan = |previous: &Previous<'_>| previous.approval.plan_continuation(previous.merging);
    let continuation = previous.map(plan).transpose()?;
    for note in continuation.iter().flat_map(|continuation| &continuation.notes) {
        reporter.notice(note);
    }
    let existing = waiting_worker(store, arguments)?;
    let is_new = existing.is_none();
    let worker = match existing {
        Some(worker) => worker,
        None => store.create_worker(new_worker(arguments, place)).map_err(into_cli_error)?,
    };
    reporter.report(&RunEvent::Started { worker: worker.id().display() });
    let started = (&worker, is_new);
    let begin = |draft: &Draft| match (previous, continuation) {
        (Some(previous), Some(plan)) => previous.approval.continue_in(plan, draft),
        _ => Ok(()),
    };
    let ran = run_worker(arguments, place, store, started, (record, isolation), begin, reporter);
    ran.inspect_err(|error| {
        // Another session may have begun with an existing worker.
        if !is_new {
            return;
        }
        // The first error counts. A worker without an end is found by `doctor`.
        let end = Finish::failed(format!("it was not run: {error:#}"));
        let _ = worker.ensure_finished(end, true);
    })
}

/// Returns the worker that `--id` names if it exists and waits for its command. Returns `None` for
/// one that has finished, since a command cannot take its id.
///
/// # Errors
///
/// It is of another owner or run, or a command or a server of tools runs or ran as this worker.
fn waiting_worker(store: &Store, arguments: &RunArgs) -> anyhow::Result<Option<Worker>> {
    let Some(id) = &arguments.worker.id else { return Ok(None) };
    let worker = match store.worker(id) {
        Ok(worker) => worker,
        Err(Error::NoWorker { .. } | Error::Gone { .. }) => return Ok(None),
        Err(error) => return Err(into_cli_error(error)),
    };
    let id = worker.id().display();
    let metadata = match worker.metadata() {
        Err(Error::Finished { .. }) if !arguments.serves_tools => return Ok(None),
        metadata => metadata.map_err(into_cli_error)?,
    };
    if !arguments.worker.describes(&metadata) {
        bail!("cannot work as {id}: it is of another owner or run; try another id");
    }
    if Draft::open(store, worker.id())?.is_some() {
        bail!(
            "cannot work as {id}: it has a draft, so it works or worked elsewhere; try another \
             id, or `swarmletfs run --recover {id}` if that was killed"
        );
    }
    if !arguments.serves_tools && worker.has_calls().map_err(into_cli_error)? {
        bail!(
            "cannot work as {id}: it has recorded calls, so it works or worked elsewhere; try \
             another id"
        );
    }
    Ok(Some(worker))
}

fn new_worker(arguments: &RunArgs, place: &StartPlace) -> NewWorker {
    let task = arguments.task.clone().unwrap_or_else(|| command_line(&arguments.command));
    let new = arguments.worker.describe(task);
    // metadata.json holds no path that is not UTF-8.
    match place.workspace.to_str() {
        Some(workspace) => new.cwd(workspace),
        None => new,
    }
}

/// Runs the command of a worker, which was created now if `is_new`. `begin` fills its view.
fn run_worker(
    arguments: &RunArgs,
    place: &StartPlace,
    store: &Store,
    (worker, is_new): (&Worker, bool),
    (record, isolation): (DraftRecord, Isolation),
    begin: impl FnOnce(&Draft) -> Result<(), Error>,
    reporter: &Reporter,
) -> anyhow::Result<ExitCode> {
    let metadata = worker.metadata()?;
    let is_isolated = isolation.is_isolated();
    let (mut draft, _lock) = Draft::create(store, worker.id(), record)?;
    let layers = draft.prepare(&isolation.foreign).and_then(|()| begin(&draft));
    let prepared = layers.map_err(anyhow::Error::from).and_then(|()| {
        let sink = LogSink { log: worker.execution_log()?, is_kept: !arguments.serves_tools };
        let prepared = isolation.prepare(arguments, place, store, (worker, &draft))?;
        if is_isolated {
            // The command can write the folder of its worker, so the metadata there proves nothing.
            worker.register()?;
        }
        Ok((sink, prepared))
    });
    let (mut sink, prepared) = prepared.inspect_err(|_| {
        // The first error counts. There is nothing to keep of a command that did not run. A copy
        // may have filled the disk, so it goes before anything is written.
        let _ = draft.remove_layers();
        // A worker that existed is still to be worked as.
        let _ = if is_new { draft.discard() } else { draft.remove_whole(store) };
    })?;
    let spec = CommandSpec {
        command: prepared.command.clone(),
        environment: prepared.environment.clone(),
        timeout: arguments.limits.timeout,
        streams: StreamMode::of_option(arguments.tty),
        max_bytes: arguments.max_bytes,
        quiet: arguments.write.quiet,
    };
    // A second protection of the files that the command leaves there, until they are searched.
    let closed = is_isolated.then(|| ClosedFolder::close(worker.folder())).transpose()?;
    let mut search = ChangeSearch::new(&draft, worker);
    let mut ended = watch_during(&mut search, || run_command::run(&spec, &mut sink))??;
    if ended.exit_code == run_command::NOT_FOUND {
        prepared.private_program.iter().for_each(|text| reporter.notice(text));
    }
    if ended.exit_code == exit::NOT_RECORDED {
        // The sandbox may have failed.
        isolation::forget_trial(store);
    }
    let vanished = prepared.describe_vanished();
    drop(prepared);

    let mut problems = Vec::new();
    let restored = restore_record(worker, &sink.log, &metadata, &mut search);
    let logged = sink.log.end().map_err(anyhow::Error::from);
    if let Err(error) = ended.sink_error.take().map_or(logged, Err) {
        problems.push(error.context("the output is not recorded wholly"));
    }
    problems.extend(restored.err());
    let error = describe_failure(&ended, arguments.limits.timeout);
    let exit_code = i64::from(ended.exit_code);
    let reason = (!error.is_empty()).then(|| error.clone());
    let (finish, status, error) = match arguments.serves_tools && error.is_empty() {
        // A worker that succeeds says so by `finish`. Its server ends well in any case.
        true => (Finish::abandoned(NO_FINISH), Status::Abandoned, NO_FINISH.to_owned()),
        false if error.is_empty() => (Finish::completed(), Status::Completed, error),
        false => (Finish::failed(error.clone()), Status::Failed, error),
    };
    let finish = finish.exit_code(exit_code);
    // A server of tools ends well even if its worker failed.
    if !arguments.serves_tools {
        search.set_command_exit(CommandExit { exit_code, error: reason });
    }
    let mut end =
        RunEnd { duration: ended.duration, vanished, ..RunEnd::new(worker, status, &error) };
    let cure = format!("try `swarmletfs run --recover {}`", end.worker);
    // Without isolation, the command writes the log of changes itself.
    let conclusion = Conclusion { finish, cure: &cure, is_logged: arguments.access.no_sandbox };
    problems.extend(conclude(store, worker, &mut draft, &mut search, conclusion, &mut end));
    drop(closed);
    end.read_outcome(store, worker);
    problems.iter().for_each(|problem| reporter.failure(problem));
    reporter.report(&RunEvent::Ended(end.into()));
    let is_whole = problems.is_empty() && !ended.lost_output;
    let has_hidden_failure = ended.exit_code == 0 && !is_whole;
    Ok(if has_hidden_failure { exit::not_recorded() } else { ExitCode::from(ended.exit_code) })
}

/// Keeps other users out of the directory of a worker. Dropping it gives the directory its mode
/// back.
struct ClosedFolder<'a> {
    folder: &'a Dir,
    mode: u32,
}

impl ClosedFolder<'_> {
    fn close(folder: &Dir) -> anyhow::Result<ClosedFolder<'_>> {
        let mode = folder.own_mode()?;
        folder.set_own_mode(mode & !OTHERS)?;
        Ok(ClosedFolder { folder, mode })
    }
}

impl Drop for ClosedFolder<'_> {
    fn drop(&mut self) {
        // It stays closed.
        let _ = self.folder.set_own_mode(self.mode);
    }
}

/// Restores the parts of its record that the command removed, as far as they are known, and notes
/// that.
fn restore_record(
    worker: &Worker,
    log: &ExecutionLog,
    metadata: &Map<String, Value>,
    search: &mut ChangeSearch,
) -> anyhow::Result<()> {
    let folder = worker.folder();
    // A closed folder would count as damaged.
    let _ = folder.make_self_accessible();
    let mut damage = Vec::new();
    match log.state() {
        LogState::Whole => {}
        LogState::Changed => damage.push("logs/execution.log is not what it printed"),
        LogState::Missing => damage.push("logs/execution.log is missing"),
    }
    let restored = worker.restore_metadata(metadata);
    if !matches!(restored, Ok(false)) {
        damage.push("metadata.json had lost fields");
    }
    if !damage.is_empty() {
        let damage = damage.join(", ");
        search.add_note(format!("the command damaged the record of its worker: {damage}"));
    }
    restored.map(drop).context("the record of the worker cannot be restored")
}

pub(super) struct Conclusion<'a> {
    /// The end to record, unless the worker finished itself.
    pub(super) finish: Finish,
    pub(super) cure: &'a str,
    /// True if the log of changes has the end of a worker that finished itself.
    pub(super) is_logged: bool,
}

/// Records the changes of a worker that runs no more, and its end, unless it finished itself.
/// Returns the errors of recording.
pub(super) fn conclude(
    store: &Store,
    worker: &Worker,
    draft: &mut Draft,
    search: &mut ChangeSearch,
    Conclusion { finish, cure, is_logged }: Conclusion<'_>,
    end: &mut RunEnd,
) -> Vec<anyhow::Error> {
    let (mut problems, mut needs_layers) = (Vec::new(), false);
    let searched = search.finish();
    worker.log("run", Vec::new(), &searched);
    match searched {
        Ok(report) => {
            // Files that could not be recorded are nowhere else.
            needs_layers = report.needs_layers;
            end.changes = Some(ChangeCounts::from(&report));
            end.notes = report.notes;
        }
        Err(error) => {
            problems.push(anyhow!("the changes are not recorded wholly: {error}; {cure}"));
        }
    }
    // A reader that sees the status finds everything else.
    match worker.ensure_finished(finish, is_logged) {
        Ok(None) => {}
        Ok(Some(status)) => {
            if end.status != status {
                end.error = String::new();
            }
            end.status = status;
        }
        Err(error) => problems.push(error.into()),
    }
    if problems.is_empty() {
        let concluded = draft.update(|record| record.state = DraftState::Ended);
        let concluded =
            concluded.and_then(|()| if needs_layers { Ok(()) } else { draft.remove_layers() });
        problems.extend(concluded.err().map(anyhow::Error::from));
    }
    keep_review_state(store, worker.id());
    problems
}

impl From<&SearchReport> for ChangeCounts {
    fn from(report: &SearchReport) -> ChangeCounts {
        ChangeCounts {
            files: report.files,
            added: report.added,
            removed: report.removed,
            refused: report.refused,
            ignored: report.ignored,
            commits: report.commits,
        }
    }
}

/// Returns why the command failed; empty if it did not.
fn describe_failure(ended: &Ended, timeout: Option<Duration>) -> String {
    match (ended, timeout) {
        (Ended { spawn_error: Some(error), .. }, _) => format!("cannot be run: {error}"),
        (Ended { timed_out: true, .. }, Some(limit)) => format!("timed out after {limit:?}"),
        (Ended { signal: Some(signal), .. }, _) => format!("ended by {}", signal_name(*signal)),
        (Ended { exit_code: 0, .. }, _) => String::new(),
        (Ended { exit_code, .. }, _) => format!("exit code {exit_code}"),
    }
}

/// Returns a signal as `signal 9 (SIGKILL)`.
fn signal_name(number: i32) -> String {
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => format!("signal {number} ({})", signal.as_str()),
        Err(_) => format!("signal {number}"),
    }
}

const PAUSE_MIN: Duration = Duration::from_secs(2);

/// Length of a pause, in times of the search before it, so that searches of a large workspace take
/// a small share of the time.
const PAUSE_FACTOR: u32 = 4;

/// Calls `run` and returns its result. Meanwhile `search` looks for changes now and then.
///
/// # Errors
///
/// Fails if no thread can be started.
fn watch_during<T>(search: &mut ChangeSearch, run: impl FnOnce() -> T) -> anyhow::Result<T> {
    let has_ended = AtomicBool::new(false);
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let has_ended = &has_ended;
        let watcher = move || watch(search, &ended, has_ended);
        // The signals of this process are for the thread that runs the command. A new thread
        // begins with the mask of the one that starts it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let mask = mask.context("cannot block signals")?;
        let started = thread::Builder::new().spawn_scoped(scope, watcher);
        mask.thread_set_mask().context("cannot unblock signals")?;
        started.context("cannot start a thread")?;
        let result = run();
        has_ended.store(true, Ordering::Relaxed);
        drop(end);
        Ok(result)
    })
}

fn watch(search: &mut ChangeSearch, ended: &Receiver<()>, has_ended: &AtomicBool) {
    let has_time = || !has_ended.load(Ordering::Relaxed);
    let mut pause = PAUSE_MIN;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begun = Instant::now();
        // The last search reports an error that persists.
        if let Err(error) = search.update(Deadline::new(&has_time)) {
            tracing::debug!("a search for changes failed: {error}");
        }
        pause = PAUSE_MIN.max(begun.elapsed() * PAUSE_FACTOR);
    }
}

/// Puts a pipe in place of stdin if that is a file, and copies the file to it.
///
/// # Errors
///
/// Stdin is a folder, or no pipe or thread can be made.
fn detach_input() -> anyhow::Result<()> {
    let stdin = rustix::stdio::stdin();
    // A closed stdin leads nowhere.
    let Ok(stat) = fstat(stdin) else { return Ok(()) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            bail!(
                "cannot give a command a folder as its stdin, which leads out of its view; \
                 try `< /dev/null`"
            )
        }
        FileType::RegularFile | FileType::BlockDevice => {}
        _ => return Ok(()),
    }
    let mut file = File::from(stdin.try_clone_to_owned().context("cannot copy stdin")?);
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe for stdin")?;
    rustix::stdio::dup2_stdin(&read).context("cannot replace stdin")?;
    // The signals of this process are for the thread that runs the command.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let mask = mask.context("cannot block signals")?;
    let started = thread::Builder::new().spawn(move || {
        // The command may end before it has read everything.
        let _ = io::copy(&mut file, &mut File::from(write));
    });
    mask.thread_set_mask().context("cannot unblock signals")?;
    started.context("cannot start a thread")?;
    Ok(())
}
