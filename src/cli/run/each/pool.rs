//! The processes that run the workers, several at a time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::display::Display;
use super::table::Row;
use crate::cli::run::report::RunEvent;

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
pub(super) fn run(rows: &mut [Row], jobs: usize, display: &Display) -> anyhow::Result<()> {
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
        let mut arguments = std::env::args_os();
        let mut command = Command::new(OWN_PROGRAM);
        // The options of this process, and the line that makes it run one worker.
        command.args(arguments.by_ref().skip(1).take(1)).arg(line).args(arguments);
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
