//! The workers of a scope as data for a page: a row for each, with causes, costs and files that
//! several edited at once.

use std::collections::HashMap;

use serde::Serialize;

use super::causes::{self, CauseGrouping, WorkerCause};
use super::cost::{self, CostGroup, CostsJson};
use super::index;
use super::json::{IndexRow, TokenCounts};
use super::summary::{progress, table};
use super::triage::TriagePart;
use crate::analysis::attention::Attention;
use crate::analysis::overlaps::overlaps;
use crate::analysis::worker_digest::{WorkerRow, latest_write};
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::model::{Prices, Skipped};
use swarmletfs_base::name::Name;
use swarmletfs_base::text::clean::one_line;

/// Maximum length of a cause or a path, in bytes.
const LINE_MAX: usize = 300;
/// Maximum number of files that several workers edited at once.
const OVERLAPS_MAX: usize = 200;

#[derive(Serialize)]
pub struct OverviewJson {
    pub complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// The workers, newest first. Other lists name a worker by its place here.
    pub workers: Vec<OverviewRow>,
    /// Why workers failed, the most frequent cause first.
    pub causes: Vec<CauseJson>,
    pub overlaps: Vec<OverlapJson>,
    pub overlaps_not_listed: usize,
    /// The costs by model.
    pub costs: CostsJson,
    /// Numbers of entries in the stores that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    pub troubles: Vec<String>,
}

#[derive(Serialize)]
pub struct OverviewRow {
    /// The entry of index.json.
    #[serde(flatten)]
    pub row: IndexRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<TriagePart>,
    /// Its end in a word or two.
    pub end: String,
    /// Time of its start, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<i64>,
    /// The state of a worker that has not finished: its last activity and its running calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCounts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
}

#[derive(Serialize)]
pub struct CauseJson {
    pub cause: String,
    pub workers: Vec<usize>,
}

#[derive(Serialize)]
pub struct OverlapJson {
    pub path: String,
    pub edits: u64,
    pub workers: Vec<usize>,
}

/// Returns the overview of `rows`, which are in its order; `attention` is theirs.
pub fn overview(
    visible: &VisibleWorkers,
    rows: &[WorkerRow],
    attention: &[Attention],
    incomplete: Option<String>,
    prices: Option<&Prices>,
) -> OverviewJson {
    let latest = latest_write(rows);
    let places: HashMap<&Name, usize> =
        rows.iter().enumerate().map(|(at, row)| (&row.member.name, at)).collect();
    let place = |member: &&Member| places.get(&member.name).copied();
    let entries = index::swarm_rows(visible, rows, attention, prices);
    let workers = rows.iter().zip(attention).zip(entries).map(|((row, needs), entry)| {
        let digest = row.digest.as_deref();
        OverviewRow {
            row: entry,
            section: TriagePart::find(row, needs),
            end: table::end(row, needs),
            begun: table::begun(row).map(|time| time.as_millisecond()),
            progress: (!row.status().is_finished()).then(|| progress(row, latest)),
            tokens: digest.and_then(|digest| digest.tokens).map(Into::into),
            tools: digest.map(|digest| digest.tools.clone()).unwrap_or_default(),
        }
    });
    let failing: Vec<WorkerCause<'_>> = rows.iter().filter_map(WorkerCause::from_failure).collect();
    let groups = causes::groups(&failing, CauseGrouping::Text);
    let causes = groups.iter().map(|group| CauseJson {
        cause: one_line(group.cause, LINE_MAX),
        workers: group.members.iter().filter_map(place).collect(),
    });
    let edited = overlaps(rows);
    let listed = edited.iter().take(OVERLAPS_MAX).map(|overlap| OverlapJson {
        path: one_line(overlap.path, LINE_MAX),
        edits: overlap.edits,
        workers: overlap.members.iter().filter_map(place).collect(),
    });
    OverviewJson {
        complete: incomplete.is_none(),
        incomplete,
        workers: workers.collect(),
        causes: causes.collect(),
        overlaps: listed.collect(),
        overlaps_not_listed: edited.len().saturating_sub(OVERLAPS_MAX),
        costs: cost::page(visible, rows, CostGroup::Model, prices, usize::MAX).json,
        skipped: visible.skipped,
        troubles: visible.list_errors.iter().map(|text| one_line(text, LINE_MAX)).collect(),
    }
}
