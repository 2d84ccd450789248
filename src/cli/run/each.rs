//! `run --each`: a worker for each line of a file, several at a time.
//!
//! Each worker is run by a process of its own, because a runner waits for all of its children and
//! receives all signals. Stderr shows how the workers go on: a live line for each that runs on a
//! terminal, and otherwise a line at each end. Stdout gets a table of the ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use memchr::memmem;
use parking_lot::Mutex;
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::report::{Reporter, RunEnd, RunEvent};
use super::{RunArgs, StartPlace, recover, session};
use crate::cli::exit::{self, UsageError};
use crate::cli::help::own_arguments;
use crate::cli::terminal::{display_path, escape_controls, print_message, table};
use crate::cli::write_args::{self, WriteArgs};
use crate::text;

/// The part of a command that is replaced by the line.
const PLACEHOLDER: &[u8] = b"{}";

/// Runs a worker for each line of the file at `tasks`, and prints a table of their ends.
///
/// # Errors
///
/// The file cannot be read or has no line, or the command has no placeholder.
pub(super) fn run(arguments: &RunArgs, tasks: &Path) -> anyhow::Result<ExitCode> {
    if !has_placeholder(&arguments.command) {
        let message = "no argument of the command has {}, which each line replaces";
        return Err(UsageError(message.to_owned()).into());
    }
    let text = write_args::read_text(tasks)?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        bail!("cannot run workers: {} has no line; write one task a line", display_path(tasks));
    }
    let jobs = match arguments.jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let workspace = StartPlace::find(&arguments.workspace)?.workspace;
    let write = arguments.write.resolved(&workspace)?;
    let display = Display::new(arguments.write.quiet);
    let mut rows: Vec<Row> = lines.iter().map(|line| Row::new(line)).collect();
    run_pool(&mut rows, jobs, &display)?;
    drop(display);
    recover_killed(&write, &mut rows);
    let mut out = io::stdout().lock();
    let printed = out.write_all(render_table(&rows).as_bytes()).and_then(|()| out.flush());
    let is_success = rows.iter().all(Row::is_completed);
    Ok(if is_success { exit::from_write(printed) } else { ExitCode::FAILURE })
}

fn recover_killed(write: &WriteArgs, rows: &mut [Row]) {
    let reporter = Reporter::person(write.quiet);
    for row in rows.iter_mut().filter(|row| row.end.is_none()) {
        let Some(worker) = &row.worker else { continue };
        let recovered =
            write.with_store(|store| recover::recover(store, OsStr::new(worker), &reporter));
        match recovered {
            Ok(recovered) => row.end = Some(recovered.end),
            Err(error) => print_message(&format!("{error:#}")),
        }
    }
}

/// Runs the worker of one line, and reports it to the process that reads stdout.
pub(super) fn run_line(mut arguments: RunArgs, line: &OsStr) -> ExitCode {
    // If the other process is killed, nobody could end this one. Fails for no valid signal.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    arguments.write.quiet = true;
    arguments.task = Some(line.to_string_lossy().into_owned());
    for word in &mut arguments.command {
        *word = fill_in(word, line);
    }
    let reporter = match take_stdout() {
        Ok(pipe) => Reporter::Process(pipe),
        Err(error) => return exit::report(Err(error)),
    };
    session::run(&arguments, &reporter).unwrap_or_else(|error| {
        reporter.failure(&error);
        exit::not_recorded()
    })
}

/// Returns true if a word of a command has a place for the line.
pub(super) fn has_placeholder(command: &[OsString]) -> bool {
    command.iter().any(|word| memmem::find(word.as_bytes(), PLACEHOLDER).is_some())
}

pub(super) fn fill_in(word: &OsStr, line: &OsStr) -> OsString {
    let word = word.as_bytes();
    let mut filled = Vec::with_capacity(word.len());
    let mut copied = 0;
    for at in memmem::find_iter(word, PLACEHOLDER) {
        filled.extend(word.get(copied..at).into_iter().flatten());
        filled.extend(line.as_bytes());
        copied = at + PLACEHOLDER.len();
    }
    filled.extend(word.get(copied..).into_iter().flatten());
    OsString::from_vec(filled)
}

/// Returns the file that is stdout, and lets the command write to nowhere.
fn take_stdout() -> anyhow::Result<File> {
    let take = || {
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        io::Result::Ok(File::from(pipe))
    };
    take().context("cannot replace stdout")
}

const OWN_PROGRAM: &str = "/proc/self/exe";

/// Time from SIGTERM to SIGKILL after a signal to end.
const GRACE: Duration = Duration::from_secs(10);

const WAIT_MAX: Duration = Duration::from_secs(3_600);

enum PoolEvent {
    Worker(usize, RunEvent),
    /// The process of a worker has ended, or could not be started.
    Over(usize, io::Result<()>),
    /// A thread finds nothing more to run.
    Idle,
    Signal,
}

#[derive(Default)]
struct Processes {
    /// True if no more are started.
    is_stopping: bool,
    running: BTreeMap<usize, OwnedFd>,
}

struct RunnerPool {
    lines: Vec<OsString>,
    next: AtomicUsize,
    processes: Mutex<Processes>,
}

/// Runs the workers of all rows, at most `jobs` at a time, and fills in their ends. A signal to end
/// this process ends them.
///
/// # Errors
///
/// Signals cannot be received, or the system refuses a thread.
fn run_pool(rows: &mut [Row], jobs: usize, display: &Display) -> anyhow::Result<()> {
    let pool = RunnerPool {
        lines: rows.iter().map(|row| OsString::from(format!("--__line={}", row.task))).collect(),
        next: AtomicUsize::new(0),
        processes: Mutex::default(),
    };
    let threads = jobs.min(rows.len());
    let (sender, events) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let signals_end = signals.handle();
    thread::scope(|scope| {
        let signal_sender = sender.clone();
        let forward_signals = move || {
            // Nobody receives it once all workers have ended.
            signals.forever().for_each(|_| drop(signal_sender.send(PoolEvent::Signal)));
        };
        thread::Builder::new()
            .spawn_scoped(scope, forward_signals)
            .context("cannot start a thread")?;
        // If the system refuses a thread, the threads that exist do all the work.
        let started = (0..threads).map_while(|_| {
            let (pool, sender) = (&pool, sender.clone());
            thread::Builder::new().spawn_scoped(scope, move || pool.work(&sender)).ok()
        });
        let started = started.count();
        pool.receive(rows, &events, started, display);
        signals_end.close();
        anyhow::ensure!(started > 0 || threads == 0, "cannot start a thread");
        Ok(())
    })
}

impl RunnerPool {
    fn work(&self, sender: &Sender<PoolEvent>) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(line) = self.lines.get(index) else { break };
            let over = match self.start(index, line) {
                Ok(None) => break,
                Ok(Some(child)) => self.follow(index, child, sender),
                Err(error) => Err(error),
            };
            // The receiver waits until all threads are idle.
            let _ = sender.send(PoolEvent::Over(index, over));
        }
        let _ = sender.send(PoolEvent::Idle);
    }

    /// Starts the process of a worker, unless no more are started.
    fn start(&self, index: usize, line: &OsString) -> io::Result<Option<Child>> {
        let mut arguments = own_arguments();
        let mut command = Command::new(OWN_PROGRAM);
        // The options of this process, and the line that makes it run one worker.
        command.args(arguments.next()).arg(line).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut processes = self.processes.lock();
        if processes.is_stopping {
            return Ok(None);
        }
        let mut child = command.spawn()?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(fd) => processes.running.insert(index, fd),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        Ok(Some(child))
    }

    fn follow(&self, index: usize, mut child: Child, sender: &Sender<PoolEvent>) -> io::Result<()> {
        for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            let Ok(event) = serde_json::from_str(&line?) else { continue };
            let _ = sender.send(PoolEvent::Worker(index, event));
        }
        let waited = child.wait();
        self.processes.lock().running.remove(&index);
        waited.map(drop)
    }

    /// Receives events until all threads are idle.
    fn receive(
        &self,
        rows: &mut [Row],
        events: &Receiver<PoolEvent>,
        threads: usize,
        display: &Display,
    ) {
        let mut idle = 0;
        let mut kill_at: Option<Instant> = None;
        while idle < threads {
            let wait = kill_at.map_or(WAIT_MAX, |at| at.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(PoolEvent::Worker(index, event)) => {
                    if let Some(row) = rows.get_mut(index) {
                        display.show(index, row, &event);
                        row.update(event);
                    }
                }
                Ok(PoolEvent::Over(index, over)) => {
                    if let Some(row) = rows.get_mut(index) {
                        row.has_run = true;
                        if let Err(error) = over {
                            row.error = format!("its runner could not be run: {error}");
                        }
                        display.end(index, row);
                    }
                }
                Ok(PoolEvent::Idle) => idle += 1,
                Ok(PoolEvent::Signal) if kill_at.is_none() => {
                    self.stop(Signal::TERM);
                    kill_at = Some(Instant::now() + GRACE);
                }
                Ok(PoolEvent::Signal) | Err(RecvTimeoutError::Timeout) => {
                    if kill_at.is_some() {
                        self.stop(Signal::KILL);
                        kill_at = Some(Instant::now() + GRACE);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Starts no more processes, and signals those that run.
    fn stop(&self, signal: Signal) {
        let mut processes = self.processes.lock();
        processes.is_stopping = true;
        for process in processes.running.values() {
            // It may have ended.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

const TICK: Duration = Duration::from_millis(200);

const TEMPLATE: &str = "{spinner} {elapsed:>4} {prefix}  {wide_msg}";

struct Display {
    quiet: bool,
    /// The live lines; `None` without a terminal.
    live: Option<MultiProgress>,
    state: Mutex<DisplayState>,
}

#[derive(Default)]
struct DisplayState {
    bars: BTreeMap<usize, ProgressBar>,
    /// Notices that were printed. Each worker sends its own.
    notices: BTreeSet<String>,
}

impl Display {
    /// Returns a display on stderr. A quiet one shows errors only.
    fn new(quiet: bool) -> Display {
        let is_live = !quiet && std::io::stderr().is_terminal();
        Display { quiet, live: is_live.then(MultiProgress::new), state: Mutex::default() }
    }

    fn show(&self, index: usize, row: &Row, event: &RunEvent) {
        let mut state = self.state.lock();
        match event {
            RunEvent::Started { worker } => {
                if let Some(live) = &self.live {
                    let bar = live.add(ProgressBar::new_spinner());
                    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                        bar.set_style(style);
                    }
                    bar.set_prefix(escape_controls(worker));
                    bar.set_message(escape_controls(&row.task));
                    bar.enable_steady_tick(TICK);
                    state.bars.insert(index, bar);
                }
            }
            RunEvent::Notice(text) => {
                if state.notices.insert(text.clone()) {
                    self.print(text);
                }
            }
            // The end of the process shows both.
            RunEvent::Failed(_) | RunEvent::Ended(_) => {}
        }
    }

    fn end(&self, index: usize, row: &Row) {
        if let Some(bar) = self.state.lock().bars.remove(&index) {
            bar.finish_and_clear();
        }
        if !self.quiet || !row.is_completed() {
            let changes = row.end.as_ref().map(|end| format!(", {}", end.describe_changes()));
            let changes = changes.unwrap_or_default();
            self.print(&format!("{}: {}{changes}", row.name(), row.outcome()));
        }
        let vanished = row.end.as_ref().and_then(|end| end.vanished.as_ref());
        if let Some(vanished) = vanished.filter(|_| !self.quiet) {
            self.print(&format!("{}: {vanished}", row.name()));
        }
    }

    fn print(&self, text: &str) {
        match &self.live {
            Some(live) => live.suspend(|| print_message(text)),
            None => print_message(text),
        }
    }
}

const COMPLETED: &str = "completed";

#[derive(Debug)]
pub(super) struct Row {
    pub(super) task: String,
    pub(super) worker: Option<String>,
    pub(super) end: Option<RunEnd>,
    /// Reason for the lack of a worker, or for an incomplete record; may be empty.
    pub(super) error: String,
    /// True if the process that runs the worker has ended.
    pub(super) has_run: bool,
}

impl Row {
    pub(super) fn new(task: &str) -> Row {
        Row { task: task.to_owned(), worker: None, end: None, error: String::new(), has_run: false }
    }

    pub(super) fn update(&mut self, event: RunEvent) {
        match event {
            RunEvent::Started { worker } => self.worker = Some(worker),
            RunEvent::Notice(_) => {}
            RunEvent::Failed(error) => self.error = error,
            RunEvent::Ended(end) => self.end = Some(*end),
        }
    }

    /// Returns true if the worker succeeded and its record is complete.
    fn is_completed(&self) -> bool {
        self.error.is_empty() && self.end.as_ref().is_some_and(|end| end.status == COMPLETED)
    }

    pub(super) fn outcome(&self) -> String {
        match &self.end {
            Some(end) if self.error.is_empty() => end.outcome(),
            Some(end) => format!("{}; {}", end.outcome(), escape_controls(&self.error)),
            None if !self.has_run => "not started".to_owned(),
            None if self.error.is_empty() => "its runner was killed".to_owned(),
            None => format!("not run: {}", escape_controls(&self.error)),
        }
    }

    /// Returns the name of the worker, or else its task.
    pub(super) fn name(&self) -> String {
        escape_controls(self.worker.as_ref().unwrap_or(&self.task))
    }
}

fn render_table(rows: &[Row]) -> String {
    let heading = ["WORKER", "OUTCOME", "TIME", "CHANGES"].map(str::to_owned);
    table(heading, rows.iter().map(cells))
}

fn cells(row: &Row) -> [String; 4] {
    let end = row.end.as_ref();
    let duration = end.map(|end| end.duration).filter(|duration| *duration > Duration::ZERO);
    let duration = duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    [
        row.name(),
        row.outcome(),
        duration.map(text::duration).unwrap_or_default(),
        end.map(RunEnd::describe_changes).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::report::ChangeCounts;
    use super::*;

    #[test]
    fn every_placeholder_is_replaced_by_the_line() {
        let fill_in = |word: &str| fill_in(OsStr::new(word), OsStr::new("a {} b"));
        assert_eq!(fill_in("{}"), "a {} b");
        assert_eq!(fill_in("-p={},{}!"), "-p=a {} b,a {} b!");
        assert_eq!(fill_in("{ }"), "{ }");
        assert_eq!(fill_in(""), "");
    }

    #[test]
    fn table_has_a_line_for_each_task() {
        let mut rows = ["one", "two\u{1b}", "three"].map(Row::new);
        rows[0].update(RunEvent::Started { worker: "w-1".into() });
        rows[0].update(RunEvent::Ended(Box::new(RunEnd {
            worker: "w-1".into(),
            status: COMPLETED.into(),
            error: String::new(),
            outcome: "ok".into(),
            cause: String::new(),
            duration: Duration::from_millis(1500),
            changes: Some(ChangeCounts {
                files: 2,
                added: 3,
                removed: 1,
                ..ChangeCounts::default()
            }),
            notes: Vec::new(),
            vanished: None,
        })));
        rows[1].update(RunEvent::Failed("no store".into()));
        rows[1].has_run = true;
        assert_eq!(
            render_table(&rows),
            "WORKER     OUTCOME            TIME      CHANGES\n\
             w-1        ok                 1s 500ms  2 files changed (+3 -1)\n\
             two\\u{1b}  not run: no store\n\
             three      not started\n"
        );
        assert_eq!(rows.each_ref().map(Row::is_completed), [true, false, false]);
    }
}
