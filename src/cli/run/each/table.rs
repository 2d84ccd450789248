//! The ends of the workers, as a table.

use std::time::Duration;

use crate::cli::run::report::{RunEnd, RunEvent};
use crate::cli::terminal::escape_controls;
use crate::text;

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
            RunEvent::Ended(end) => self.end = Some(end),
        }
    }

    /// Returns true if the worker succeeded and its record is complete.
    pub(super) fn is_completed(&self) -> bool {
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

pub(super) fn render(rows: &[Row]) -> String {
    let heading = ["WORKER", "OUTCOME", "TIME", "CHANGES"].map(str::to_owned);
    let lines: Vec<[String; 4]> = std::iter::once(heading).chain(rows.iter().map(cells)).collect();
    let mut widths = [0; 4];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
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
    use super::*;
    use crate::cli::run::report::ChangeCounts;

    #[test]
    fn table_has_a_line_for_each_task() {
        let mut rows = ["one", "two\u{1b}", "three"].map(Row::new);
        rows[0].update(RunEvent::Started { worker: "w-1".into() });
        rows[0].update(RunEvent::Ended(RunEnd {
            worker: "w-1".into(),
            status: COMPLETED.into(),
            error: String::new(),
            duration: Duration::from_millis(1500),
            changes: Some(ChangeCounts { files: 2, added: 3, removed: 1, refused: 0, ignored: 0 }),
            notes: Vec::new(),
        }));
        rows[1].update(RunEvent::Failed("no store".into()));
        rows[1].has_run = true;
        assert_eq!(
            render(&rows),
            "WORKER     OUTCOME            TIME      CHANGES\n\
             w-1        completed          1s 500ms  2 files changed (+3 -1)\n\
             two\\u{1b}  not run: no store\n\
             three      not started\n"
        );
        assert_eq!(rows.each_ref().map(Row::is_completed), [true, false, false]);
    }
}
