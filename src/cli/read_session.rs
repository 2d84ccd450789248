//! Reading for commands without a mount: within `--max-time`, with a progress line on a terminal.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::store_selection::StoreSelection;
use super::terminal::{ProgressLine, QuietArg, print_message};
use super::{duration, exit};
use crate::analysis::settings::{Control, Settings};
use crate::catalog::{Freshness, Source};
use crate::deadline::Deadline;
use crate::text::count;
use crate::view::{Filter, View};

/// Options that limit the time for reading.
#[derive(Debug, Default, Args)]
pub(super) struct TimeArgs {
    /// Stop reading after this time and answer with what was read so far: 10s, 2m, or whole seconds
    /// [default: read everything]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    max_time: Option<Duration>,
}

pub(super) struct ReadSession {
    pub(super) control: Arc<Control>,
    progress: Option<ProgressLine>,
}

impl ReadSession {
    pub(super) fn start(arguments: &TimeArgs) -> ReadSession {
        // A deadline beyond the clock's range never passes.
        let end = arguments.max_time.and_then(|time| Instant::now().checked_add(time));
        ReadSession { control: Arc::new(Control::until(end)), progress: None }
    }

    /// Returns settings that let renders read until the deadline. `budget` bounds evidence.txt.
    pub(super) fn settings(&self) -> Settings {
        Settings::without_deadline(self.control.clone())
    }

    /// Opens the stores and reads the sessions that may contain more workers.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be found or read.
    pub(super) fn view(&mut self, selection: &StoreSelection) -> anyhow::Result<View> {
        self.show_progress(selection.quiet);
        let view = selection.open(Freshness::default())?;
        self.read_sessions(&view);
        Ok(view)
    }

    pub(super) fn view_of(&mut self, source: Source) -> anyhow::Result<View> {
        self.show_progress(QuietArg::default());
        let view = View::new(vec![source], Freshness::default(), Filter::default())
            .context("cannot read the store")?;
        self.read_sessions(&view);
        Ok(view)
    }

    fn show_progress(&mut self, quiet: QuietArg) {
        let control = self.control.clone();
        self.progress = ProgressLine::start("reading", quiet, move || control.progress());
    }

    fn read_sessions(&self, view: &View) {
        let control = &self.control;
        view.read_sessions(
            Deadline::new(&|| control.may_continue()),
            &|sessions| control.start_stage(sessions as u64),
            &|| control.count_one(),
        );
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
