//! How commands without a mount read: everything, or as much as `--max-time` allows, with a line of progress on a terminal.
//!
//! The line is on stderr, comes only after a moment, and is erased before anything is printed. Ctrl-C ends the process as
//! it ends any program.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;

use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::{exit, wait};
use crate::catalog::Freshness;
use crate::render::{Budget, Control, Settings, count};
use crate::view::View;

/// How often the line of progress is written anew, and how long a command runs without one.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

/// Options that limit how long a command may read.
#[derive(Debug, Args)]
pub(super) struct TimeArgs {
    /// Stop reading after this time and answer with what was read until then: 10s, 2m, or whole seconds [default: read everything]
    #[arg(long, value_name = "TIME", value_parser = wait::parse_duration)]
    max_time: Option<Duration>,
}

/// One command's reading, from its start on.
pub(super) struct ReadSession {
    control: Arc<Control>,
    progress: Option<Progress>,
}

impl ReadSession {
    /// Starts the clock.
    pub(super) fn start(arguments: &TimeArgs) -> ReadSession {
        // A time that is later than any never comes.
        let end = arguments.max_time.and_then(|time| Instant::now().checked_add(time));
        ReadSession { control: Arc::new(Control::until(end)), progress: None }
    }

    /// Returns settings under which renders read until the time is over.
    pub(super) fn settings(&self, budget: Option<Budget>) -> Settings {
        Settings { budget, ..Settings::unhurried(self.control.clone()) }
    }

    /// Opens the stores, and reads the sessions that may hold more workers.
    ///
    /// # Errors
    ///
    /// A store cannot be found or read.
    pub(super) fn view(&mut self, selection: &StoreSelection) -> anyhow::Result<View> {
        if io::stderr().is_terminal() {
            self.progress = Some(Progress::start(self.control.clone()));
        }
        let view = selection.open(Freshness::default())?;
        let control = &self.control;
        let expect = |sessions| control.expect(sessions as u64);
        view.read_sessions(&|| control.may_go_on(), &expect, &|| control.count_one());
        Ok(view)
    }

    /// Notes that a list of workers is incomplete if `unread` sessions were not read for the workers inside them.
    pub(super) fn note_unread(&self, unread: usize) {
        if unread > 0 {
            self.control.note_incomplete();
            print_message(&format!(
                "{} not read for workers inside; try a longer --max-time",
                count(unread, "session")
            ));
        }
    }

    /// Returns true if an answer was incomplete for lack of time.
    pub(super) fn is_incomplete(&self) -> bool {
        self.control.is_incomplete()
    }

    /// Hands over the line of progress, to be erased when the command prints.
    pub(super) fn take_progress(&mut self) -> Option<Progress> {
        self.progress.take()
    }

    /// Returns the exit code of a command that did what it could and would end with `code`.
    pub(super) fn exit_code(&self, code: ExitCode) -> ExitCode {
        if code == ExitCode::SUCCESS && self.is_incomplete() { exit::timed_out() } else { code }
    }
}

/// A line of progress; dropping it erases it.
pub(super) struct Progress {
    /// Dropped to end the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    fn start(control: Arc<Control>) -> Progress {
        let (running, ended) = mpsc::channel();
        let begun = Instant::now();
        let show = move || {
            let mut is_shown = false;
            while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A stderr that is gone is no reason to fail.
                let _ = write!(io::stderr().lock(), "\r\x1b[K{}", line(control.progress(), begun.elapsed()));
                is_shown = true;
            }
            if is_shown {
                let _ = write!(io::stderr().lock(), "\r\x1b[K");
            }
        };
        // Without a thread there is no line.
        let thread = thread::Builder::new().name("progress".into()).spawn(show).ok();
        Progress { running: Some(running), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the text of the line: how many workers were read of how many, and for how long.
fn line((done, total): (u64, u64), time: Duration) -> String {
    let seconds = time.as_secs();
    match total {
        0 => format!("reading, {seconds} s"),
        _ => format!("reading: {done} of {}, {seconds} s", count(total, "worker")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_progress_tells_how_far_it_is() {
        let time = Duration::from_millis(4_900);
        assert_eq!(line((0, 0), time), "reading, 4 s");
        assert_eq!(line((12, 552), time), "reading: 12 of 552 workers, 4 s");
    }
}
