//! The table of workers that opens the summary of a run or the swarm.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::analysis::worker_digest::WorkerRow;
use crate::view::VisibleWorkers;
use swarmletfs_base::model::{Outcome, Status, Worker};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{clip_chars, duration, minute};

const ROWS_MAX: usize = 30;
/// Width that the table keeps to if it can, in characters.
const WIDTH: usize = 120;
/// Minimum width of the title's column, in characters.
const TITLE_MIN: usize = 24;
/// Width of the title's column from which on other columns need not be cut, in characters.
const TITLE_GOOD: usize = 36;
/// Widths to which project and branch are cut, in the order in which they are tried.
const PLACE_WIDTHS: [[usize; 2]; 3] = [[20, 24], [14, 16], [10, 10]];
/// Maximum length of a cell before it is fitted, in bytes.
const CELL_MAX: usize = 300;
const GAP: &str = "  ";
/// Durations from this one on are shown without milliseconds, in milliseconds.
const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
/// Durations from this one on are shown without seconds, in milliseconds.
const HOUR_MS: u64 = 60 * MINUTE_MS;

struct Column {
    header: &'static str,
    /// One cell per row; an empty one shows nothing.
    cells: Vec<String>,
    is_number: bool,
}

impl Column {
    fn new(header: &'static str, cells: impl Iterator<Item = String>) -> Column {
        Column { header, cells: cells.collect(), is_number: false }
    }

    fn numbers(header: &'static str, cells: impl Iterator<Item = String>) -> Column {
        Column { is_number: true, ..Column::new(header, cells) }
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

/// Returns the table of the newest workers, with a line that counts the others. Empty without
/// workers.
pub(super) fn table(visible: &VisibleWorkers, rows: &[WorkerRow]) -> String {
    let mut newest = newest_first(rows.iter());
    newest.sort_by_key(|(_, row)| row.status() != Status::Waiting);
    newest.truncate(ROWS_MAX);
    let mut columns = columns(visible, &newest);
    columns.retain(|column| !column.is_empty());
    fit(&mut columns);
    let mut out = String::new();
    if !newest.is_empty() {
        push_line(&mut out, &columns, |column| column.header);
    }
    for at in 0..newest.len() {
        push_line(&mut out, &columns, |column| column.cells.get(at).map_or("", String::as_str));
    }
    if columns.iter().any(|column| column.header == CALLS_DETAILED) {
        out.push_str(
            "f: failed calls, s: suspect calls, which are ok by the record but look failed\n",
        );
    }
    if rows.len() > newest.len() {
        out.push_str(&format!("and {} more in index.json\n", rows.len() - newest.len()));
    }
    out
}

/// Header of the column of calls if none failed or is suspect.
const CALLS: &str = "calls";
/// Header of the column of calls with the numbers of failed and suspect ones.
const CALLS_DETAILED: &str = "calls (f,s)";
const TITLE: &str = "title";
/// Headers of the columns that say where a worker worked.
const PLACES: [&str; 2] = ["project", "branch"];

fn columns(visible: &VisibleWorkers, newest: &[(Option<Timestamp>, &WorkerRow)]) -> Vec<Column> {
    let rows = || newest.iter().map(|(_, row)| *row);
    let workers: Vec<_> = rows().map(WorkerRow::worker).collect();
    let of_worker = |cell: fn(&Worker) -> Option<String>| {
        let cells = workers.iter().map(|worker| cell(worker).unwrap_or_default());
        cells.map(|cell| one_line(&cell, CELL_MAX)).collect::<Vec<_>>()
    };
    let [project, branch] = PLACES;
    let any_bad = rows()
        .filter_map(|row| row.digest.as_ref())
        .any(|digest| digest.failed > 0 || digest.suspect > 0);
    let calls = rows().map(|row| {
        let Some(digest) = row.digest.as_ref().filter(|digest| digest.calls > 0) else {
            return String::new();
        };
        match (any_bad, digest.failed + digest.suspect) {
            (false, _) | (true, 0) => digest.calls.to_string(),
            _ => format!("{} ({},{})", digest.calls, digest.failed, digest.suspect),
        }
    });
    let changed = rows().map(|row| {
        let changed = row.digest.as_ref().map_or(0, |digest| digest.files_changed());
        if changed > 0 { changed.to_string() } else { String::new() }
    });
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
        Column::new("when (UTC)", newest.iter().map(|(at, _)| at.map(minute).unwrap_or_default())),
        Column::new("took", of_worker(|worker| worker.duration_ms.map(took)).into_iter()),
        Column::new(TITLE, of_worker(|worker| Some(worker.title().to_owned())).into_iter()),
        Column::new("source", source),
        Column::new(project, of_worker(|worker| worker.project().map(str::to_owned)).into_iter()),
        Column::new(
            branch,
            of_worker(|worker| worker.branch.as_deref().map(str::to_owned)).into_iter(),
        ),
        Column::new(if any_bad { CALLS_DETAILED } else { CALLS }, calls),
        Column::numbers("changed", changed),
        Column::new("outcome", rows().map(outcome)),
    ]
}

/// Cuts the columns of text so that the table has the right width.
fn fit(columns: &mut [Column]) {
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
        WIDTH.saturating_sub(gaps + widths.sum::<usize>())
    };
    let is_good = |widths: &[usize; 2]| title_room(columns, *widths) >= longest.min(TITLE_GOOD);
    let [.., narrowest] = PLACE_WIDTHS;
    let widths = PLACE_WIDTHS.into_iter().find(is_good).unwrap_or(narrowest);
    let title = title_room(columns, widths).max(TITLE_MIN);
    for column in columns {
        match PLACES.iter().zip(widths).find(|(place, _)| **place == column.header) {
            Some((_, max)) => column.clip(max),
            None if column.header == TITLE => column.clip(title),
            None => {}
        }
    }
}

fn push_line<'a>(out: &mut String, columns: &'a [Column], cell: impl Fn(&'a Column) -> &'a str) {
    let cells = columns.iter().map(|column| {
        let (cell, width) = (cell(column), column.width());
        if column.is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    });
    out.push_str(cells.collect::<Vec<_>>().join(GAP).trim_end());
    out.push('\n');
}

/// Returns the workers with the times when they began, the newest first.
pub(super) fn newest_first<'a>(
    rows: impl Iterator<Item = &'a WorkerRow>,
) -> Vec<(Option<Timestamp>, &'a WorkerRow)> {
    let mut newest: Vec<_> = rows.map(|row| (begun(row), row)).collect();
    newest.sort_by(|(a, first), (b, second)| {
        Reverse(a).cmp(&Reverse(b)).then_with(|| first.member.name.cmp(&second.member.name))
    });
    newest
}

fn begun(row: &WorkerRow) -> Option<Timestamp> {
    let worker = row.worker();
    worker.started_at.timestamp().or_else(|| worker.created_at.timestamp()).or_else(|| {
        let last = row.fingerprint.as_ref()?.newest_mtime;
        Timestamp::new(last.secs, 0).ok()
    })
}

/// Formats a duration with its two largest units.
fn took(ms: u64) -> String {
    let unit = match ms {
        HOUR_MS.. => MINUTE_MS,
        SECOND_MS.. => SECOND_MS,
        _ => 1,
    };
    duration(ms / unit * unit)
}

fn outcome(row: &WorkerRow) -> String {
    let Some(digest) = &row.digest else { return "not read".into() };
    let status = row.status();
    match digest.outcome {
        Outcome::Failed => Outcome::Failed.to_string(),
        _ if !status.is_finished() && status != Status::Unknown => status.to_string(),
        _ if status == Status::Abandoned => status.to_string(),
        Outcome::Ok => match digest.unresolved_suspects {
            0 => Outcome::Ok.to_string(),
            1 => "ok, 1 looks failed".into(),
            more => format!("ok, {more} look failed"),
        },
        outcome => outcome.to_string(),
    }
}
