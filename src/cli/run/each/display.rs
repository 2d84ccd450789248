//! Shows on stderr how the workers of `--each` go on: a live line for each that runs on a terminal,
//! and otherwise a line at each end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::table::Row;
use crate::cli::run::report::RunEvent;
use crate::cli::terminal::{escape_controls, print_message};

const TICK: Duration = Duration::from_millis(200);

const TEMPLATE: &str = "{spinner} {elapsed:>4} {prefix}  {wide_msg}";

pub(super) struct Display {
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
    pub(super) fn new(quiet: bool) -> Display {
        let is_live = !quiet && std::io::stderr().is_terminal();
        Display { quiet, live: is_live.then(MultiProgress::new), state: Mutex::default() }
    }

    pub(super) fn show(&self, index: usize, row: &Row, event: &RunEvent) {
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
                if !self.quiet && state.notices.insert(text.clone()) {
                    self.print(text);
                }
            }
            // The end of the process shows both.
            RunEvent::Failed(_) | RunEvent::Ended(_) => {}
        }
    }

    pub(super) fn end(&self, index: usize, row: &Row) {
        if let Some(bar) = self.state.lock().bars.remove(&index) {
            bar.finish_and_clear();
        }
        if !self.quiet || !row.is_completed() {
            let changes = row.end.as_ref().map(|end| format!(", {}", end.describe_changes()));
            let changes = changes.unwrap_or_default();
            self.print(&format!("{}: {}{changes}", row.name(), row.outcome()));
        }
    }

    fn print(&self, text: &str) {
        match &self.live {
            Some(live) => live.suspend(|| print_message(text)),
            None => print_message(text),
        }
    }
}
