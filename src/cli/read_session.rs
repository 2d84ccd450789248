//! Reading for commands without a mount: within `--max-time`, with a progress line on a terminal.
//!
//! The progress line is written to stderr after a short delay, and erased before the command
//! prints. Ctrl-C ends the process as usual.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::{duration, exit};
use crate::analysis::settings::{Control, Settings};
use crate::catalog::{Freshness, Source};
use crate::deadline::Deadline;
use crate::text::budget::Budget;
use crate::text::count;
use crate::view::{Filter, View};

/// Interval between updates of the progress line, and the delay before it first appears.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

/// Options that limit the time for reading.
#[derive(Debug, Default, Args)]
pub(super) struct TimeArgs {
    /// Stop reading after this time and answer with what was read so far: 10s, 2m, or whole seconds
    /// [default: read everything]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    max_time: Option<Duration>,
}

/// The deadline and progress of one command.
pub(super) struct ReadSession {
    control: Arc<Control>,
    progress: Option<ProgressLine>,
}

impl ReadSession {
    /// Starts the clock.
    pub(super) fn start(arguments: &TimeArgs) -> ReadSession {
        // A deadline beyond the clock's range never passes.
        let end = arguments.max_time.and_then(|time| Instant::now().checked_add(time));
        ReadSession { control: Arc::new(Control::until(end)), progress: None }
    }

    /// Returns settings that let renders read until the deadline. `budget` bounds evidence.txt.
    pub(super) fn settings(&self, budget: Option<Budget>) -> Settings {
        Settings { budget, ..Settings::without_deadline(self.control.clone()) }
    }

    /// Opens the stores and reads the sessions that may contain more workers.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be found or read.
    pub(super) fn view(&mut self, selection: &StoreSelection) -> anyhow::Result<View> {
        if io::stderr().is_terminal() {
            self.progress = Some(ProgressLine::start(self.control.clone()));
        }
        let view = selection.open(Freshness::default())?;
        self.read_sessions(&view);
        Ok(view)
    }

    /// Opens a single store and reads the sessions that may contain more workers.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub(super) fn view_of(&mut self, source: Source) -> anyhow::Result<View> {
        if io::stderr().is_terminal() {
            self.progress = Some(ProgressLine::start(self.control.clone()));
        }
        let view = View::new(vec![source], Freshness::default(), Filter::default())
            .context("cannot read the store")?;
        self.read_sessions(&view);
        Ok(view)
    }

    /// Reads the sessions that may contain more workers.
    fn read_sessions(&self, view: &View) {
        let control = &self.control;
        view.read_sessions(
            Deadline::new(&|| control.may_continue()),
            &|sessions| control.start_stage(sessions as u64),
            &|| control.count_one(),
        );
    }

    /// Returns the deadline and the counter of progress.
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Marks the list of workers as incomplete if `unread` sessions were not searched for workers.
    pub(super) fn note_unread(&self, unread: usize) {
        if unread > 0 {
            self.control.note_incomplete();
            print_message(&format!(
                "{} not searched for workers; try a longer --max-time",
                count(unread, "session")
            ));
        }
    }

    /// Returns true if an answer is incomplete because the time ran out.
    pub(super) fn is_incomplete(&self) -> bool {
        self.control.is_incomplete()
    }

    /// Takes the progress line, which the caller erases before it prints.
    pub(super) fn take_progress(&mut self) -> Option<ProgressLine> {
        self.progress.take()
    }

    /// Returns `code`, or the timeout code if the command succeeded with an incomplete answer.
    pub(super) fn exit_code(&self, code: ExitCode) -> ExitCode {
        if code == ExitCode::SUCCESS && self.is_incomplete() { exit::timed_out() } else { code }
    }
}

/// A progress line on stderr; dropping it erases the line.
pub(super) struct ProgressLine {
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    fn start(control: Arc<Control>) -> ProgressLine {
        let (running, ended) = mpsc::channel();
        // If the thread cannot be started, there is no progress line.
        let thread = thread::Builder::new()
            .name("progress".into())
            .spawn(move || show_progress(&control, &ended))
            .ok();
        ProgressLine { running: Some(running), thread }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Updates the progress line until `ended` is closed, then erases it.
fn show_progress(control: &Control, ended: &Receiver<()>) {
    let (start, mut is_shown) = (Instant::now(), false);
    while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        // A closed stderr is no reason to fail.
        let _ =
            write!(io::stderr().lock(), "\r\x1b[K{}", line(control.progress(), start.elapsed()));
        is_shown = true;
    }
    if is_shown {
        let _ = write!(io::stderr().lock(), "\r\x1b[K");
    }
}

/// Returns the text of the progress line: how much of a total is done, and the elapsed time. The
/// total is 0 until the workers are counted.
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
    fn progress_line_shows_count_and_time() {
        let time = Duration::from_millis(4_900);
        assert_eq!(line((0, 0), time), "reading, 4 s");
        assert_eq!(line((12, 552), time), "reading: 12 of 552 workers, 4 s");
    }
}
