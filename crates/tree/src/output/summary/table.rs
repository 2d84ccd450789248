//! The table of the newest workers: in the summary of a run or the swarm, and of `swarmletfs list`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::analysis::attention::{Attention, ReasonKind};
use crate::analysis::worker_digest::WorkerRow;
use crate::view::VisibleWorkers;
use swarmletfs_base::model::{Outcome, ReviewState, Status, Worker};
use swarmletfs_base::name::Name;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{clip_chars, minute, rounded};

/// Width of a summary, in characters. The widths below are for a table of this width.
const WIDTH: usize = 80;
/// Minimum width of the title's column, in characters.
const TITLE_MIN: usize = 20;
/// Width of the title's column from which on other columns need not be cut, in characters.
const TITLE_GOOD: usize = 28;
/// Widths to which project and branch are cut, in the order in which they are tried.
const PLACE_WIDTHS: [[usize; 2]; 3] = [[14, 20], [10, 12], [7, 8]];
/// Maximum length of a cell before it is fitted, in bytes.
const CELL_MAX: usize = 300;
const GAP: &str = "  ";

pub struct Column {
    header: &'static str,
    /// One cell per row; an empty one shows nothing.
    cells: Vec<String>,
}

impl Column {
    pub fn new(header: &'static str, cells: impl Iterator<Item = String>) -> Column {
        Column { header, cells: cells.collect() }
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(String::is_empty)
    }

    /// Returns the width that shows every cell, in characters.
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.fold(self.header.len(), usize::max)
    }

    fn clip(&mut self, width: usize) {
        for cell in &mut self.cells {
            *cell = clip_chars(cell, width);
        }
    }
}

/// A worker of a list: the time when it began, its row, and the attention that it needs.
pub type ListedWorker<'a> = (Option<Timestamp>, &'a WorkerRow, &'a Attention);

/// Returns the table of the `max` first workers of `newest`, with a line that counts the others.
/// Workers that others started are left out if there are any that a person started. Empty without
/// workers.
pub(super) fn table(visible: &VisibleWorkers, newest: &[ListedWorker<'_>], max: usize) -> String {
    let has_parent = |row: &WorkerRow| row.worker().parent.is_some();
    let has_starters = newest.iter().any(|(_, row, _)| !has_parent(row));
    let shown: Vec<ListedWorker<'_>> = newest
        .iter()
        .filter(|(_, row, _)| !has_starters || !has_parent(row))
        .take(max)
        .copied()
        .collect();
    let mut out = table_of(visible, &shown, WIDTH);
    if newest.len() > shown.len() {
        out.push_str(&format!("and {} more in index.json\n", newest.len() - shown.len()));
    }
    out
}

/// Returns the table of `newest`, the result of [`newest_first`]. It keeps to `width`, in
/// characters, if it can. Empty without workers.
pub fn table_of(visible: &VisibleWorkers, newest: &[ListedWorker<'_>], width: usize) -> String {
    render(columns(visible, newest), width)
}

/// Lays out the columns that are not empty; see [`table_of`]. Empty without rows.
pub fn render(mut columns: Vec<Column>, width: usize) -> String {
    let rows = columns.first().map_or(0, |column| column.cells.len());
    columns.retain(|column| !column.is_empty());
    fit(&mut columns, width);
    let widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let line = |cell: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().zip(&widths);
        let cells = cells.map(|(column, width)| format!("{:<width$}", cell(column)));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned() + "\n"
    };
    let mut out = String::new();
    if rows > 0 {
        out.push_str(&line(&|column| column.header.to_owned()));
    }
    for at in 0..rows {
        out.push_str(&line(&|column| column.cells.get(at).cloned().unwrap_or_default()));
    }
    out
}

pub const TITLE: &str = "title";
/// Headers of the columns that say where a worker worked.
const PLACES: [&str; 2] = ["project", "branch"];

fn columns(visible: &VisibleWorkers, newest: &[ListedWorker<'_>]) -> Vec<Column> {
    let rows = || newest.iter().map(|(_, row, _)| *row);
    let workers: Vec<_> = rows().map(WorkerRow::worker).collect();
    let of_worker = |cell: fn(&Worker) -> Option<String>| {
        let cells = workers.iter().map(|worker| cell(worker).unwrap_or_default());
        cells.map(|cell| one_line(&cell, CELL_MAX)).collect::<Vec<_>>()
    };
    let [project, branch] = PLACES;
    // With a single source, the column would say the same in each row.
    let sources: BTreeSet<&str> = rows().map(|row| row.member.entry.format()).collect();
    let source = rows().map(|row| match sources.len() {
        0 | 1 => String::new(),
        _ => row.member.entry.format().to_owned(),
    });
    vec![
        Column::new(
            "id",
            rows().map(|row| one_line(&visible.short_id(&row.member.name).display(), CELL_MAX)),
        ),
        Column::new("when (UTC)", newest.iter().map(|(at, ..)| at.map(minute).unwrap_or_default())),
        Column::new(TITLE, of_worker(|worker| Some(worker.title().to_owned())).into_iter()),
        Column::new("source", source),
        Column::new(project, of_worker(|worker| worker.project().map(str::to_owned)).into_iter()),
        Column::new(
            branch,
            of_worker(|worker| worker.branch.as_deref().map(str::to_owned)).into_iter(),
        ),
        Column::new("+/-", rows().map(changed_lines)),
        Column::new("draft", workers.iter().map(|worker| waiting_draft(worker).to_owned())),
        Column::new("end", newest.iter().map(|(_, row, attention)| end(row, attention))),
    ]
}

/// Returns the numbers of lines that a worker added and removed; empty if it changed no file.
fn changed_lines(row: &WorkerRow) -> String {
    match row.digest.as_ref().map(|digest| digest.changed_lines()) {
        None | Some((0, ..)) => String::new(),
        Some((_, added, removed)) => format!("+{} -{}", rounded(added), rounded(removed)),
    }
}

/// Returns a word for a draft that waits for a decision; empty without one.
fn waiting_draft(worker: &Worker) -> &'static str {
    match worker.draft {
        Some(ReviewState::Waiting | ReviewState::TakenBack) => "waiting",
        Some(ReviewState::PartlyApplied) => "partly",
        Some(ReviewState::Unknown) => "unknown",
        _ => "",
    }
}

/// Cuts the columns of text so that the table keeps to `width` if it can.
fn fit(columns: &mut [Column], width: usize) {
    let scaled = |at_usual_width: usize| at_usual_width.saturating_mul(width) / WIDTH;
    let longest = columns.iter().find(|column| column.header == TITLE).map_or(0, Column::width);
    let gaps = GAP.len() * columns.len().saturating_sub(1);
    let title_room = |columns: &[Column], widths: [usize; 2]| {
        let widths = columns.iter().map(|column| match column.header {
            TITLE => 0,
            header => match PLACES.iter().zip(widths).find(|(place, _)| **place == header) {
                Some((_, max)) => column.width().min(max),
                None => column.width(),
            },
        });
        width.saturating_sub(gaps + widths.sum::<usize>())
    };
    let is_good =
        |widths: &[usize; 2]| title_room(columns, *widths) >= longest.min(scaled(TITLE_GOOD));
    let [.., narrowest] = PLACE_WIDTHS;
    let mut place_widths = PLACE_WIDTHS.into_iter().map(|widths| widths.map(scaled));
    let widths = place_widths.find(is_good).unwrap_or(narrowest);
    let title = title_room(columns, widths).max(TITLE_MIN);
    for column in columns {
        match PLACES.iter().zip(widths).find(|(place, _)| **place == column.header) {
            Some((_, max)) => column.clip(max),
            None if column.header == TITLE => column.clip(title),
            None => {}
        }
    }
}

/// Returns the workers with the times when they began, the newest first.
pub fn newest_first<'a>(
    rows: impl Iterator<Item = (&'a WorkerRow, &'a Attention)>,
) -> Vec<ListedWorker<'a>> {
    let mut newest: Vec<_> = rows.map(|(row, attention)| (begun(row), row, attention)).collect();
    newest.sort_by_cached_key(|(_, row, _)| newest_key(row));
    newest
}

/// Returns the key by which workers are sorted, the newest first.
pub fn newest_key(row: &WorkerRow) -> (Reverse<Option<Timestamp>>, Name) {
    (Reverse(begun(row)), row.member.name.clone())
}

/// Returns the time of a worker's start, or else of its creation or its last write.
pub fn begun(row: &WorkerRow) -> Option<Timestamp> {
    let worker = row.worker();
    worker.started_at.timestamp().or_else(|| worker.created_at.timestamp()).or_else(|| {
        let last = row.fingerprint.as_ref()?.newest_mtime;
        Timestamp::new(last.secs, 0).ok()
    })
}

/// Says in a word or two how a worker ended: its most important reason for attention, else its
/// outcome.
pub fn end(row: &WorkerRow, attention: &Attention) -> String {
    let Some(digest) = &row.digest else { return "not read".into() };
    let first = attention.reasons.first().map(|first| first.kind);
    let status = row.status();
    match (first, digest.outcome) {
        (Some(ReasonKind::Waits), Outcome::Failed) => "asks, failed".into(),
        (Some(ReasonKind::Waits), _) => "asks".into(),
        (Some(ReasonKind::RedAtEnd), Outcome::Failed) => "red".into(),
        (_, Outcome::Failed) => Outcome::Failed.to_string(),
        (Some(ReasonKind::Contradicted), _) => "contradicted".into(),
        (Some(ReasonKind::Cut), _) => "cut".into(),
        (Some(ReasonKind::Interrupted), _) => "stopped".into(),
        _ if !status.is_finished() && status != Status::Unknown => status.to_string(),
        _ if status == Status::Abandoned => status.to_string(),
        (_, Outcome::Ok) if digest.last_green.is_some() => "green".into(),
        (_, outcome) => outcome.to_string(),
    }
}
