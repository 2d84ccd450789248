//! The costs of workers: a page for people, and the same for programs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::summary::table::{Column, TITLE, render};
use super::summary::tokens;
use crate::analysis::facets;
use crate::analysis::spending::{CostSum, Spending};
use crate::analysis::worker_digest::WorkerRow;
use crate::view::VisibleWorkers;
use swarmletfs_base::model::{Outcome, Prices, Tokens, Worker};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{count, rounded};

/// Maximum length of a cell before it is fitted, in bytes.
const CELL_MAX: usize = 300;
/// The name of a group of workers whose records do not state one.
const UNNAMED: &str = "-";

/// What costs are summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostGroup {
    /// By worker, with all workers that it started.
    #[default]
    Worker,
    Run,
    Day,
    Project,
    Model,
}

impl CostGroup {
    pub const ALL: [CostGroup; 5] =
        [CostGroup::Worker, CostGroup::Run, CostGroup::Day, CostGroup::Project, CostGroup::Model];

    pub fn as_str(self) -> &'static str {
        match self {
            CostGroup::Worker => "worker",
            CostGroup::Run => "run",
            CostGroup::Day => "day",
            CostGroup::Project => "project",
            CostGroup::Model => "model",
        }
    }

    /// Returns the name of the group to which a worker belongs.
    fn name(self, worker: &Worker) -> Option<String> {
        match self {
            CostGroup::Run => worker.run.as_deref().map(str::to_owned),
            CostGroup::Day => facets::day(worker).map(|day| day.to_string()),
            CostGroup::Project => worker.project().map(str::to_owned),
            CostGroup::Worker | CostGroup::Model => None,
        }
    }
}

#[derive(Debug)]
pub struct CostPage {
    pub text: String,
    pub json: CostsJson,
}

/// The costs of all groups, in dollars.
#[derive(Debug, Serialize)]
pub struct CostsJson {
    pub total: CostSumJson,
    /// The workers whose outcome is failed, with those that they started.
    pub failed: CostSumJson,
    pub by: &'static str,
    pub groups: Vec<CostGroupJson>,
}

#[derive(Debug, Serialize)]
pub struct CostGroupJson {
    /// The id of a worker, or the value that the workers of a group share; null if no record states
    /// one.
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    #[serde(flatten)]
    pub sum: CostSumJson,
}

#[derive(Debug, Serialize)]
pub struct CostSumJson {
    pub workers: usize,
    /// The sum of `stated_usd` and `computed_usd`; null if no cost is known.
    pub usd: Option<f64>,
    pub stated_usd: f64,
    pub computed_usd: f64,
    /// False if there was more that is not known.
    pub complete: bool,
    /// Number of workers that used tokens and whose cost is not known.
    pub unknown_workers: usize,
    pub tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_context_tokens: Option<u64>,
    pub compactions: u64,
}

/// Workers whose costs are summed.
struct CostRow<'a> {
    name: Option<String>,
    /// The worker, if the group is one worker with those that it started.
    worker: Option<&'a WorkerRow>,
    workers: Vec<&'a WorkerRow>,
    sum: CostSum,
    /// The tokens of the workers, of one model only if the row is about that.
    tokens: u64,
}

impl<'a> CostRow<'a> {
    fn new(spending: &Spending<'a>, name: Option<String>, members: &[usize]) -> CostRow<'a> {
        let workers: Vec<&WorkerRow> = members.iter().filter_map(|at| spending.row(*at)).collect();
        let digests = workers.iter().filter_map(|row| row.digest.as_ref());
        let tokens = digests.filter_map(|digest| digest.tokens).map(Tokens::total);
        let tokens = tokens.fold(0, u64::saturating_add);
        CostRow { name, worker: None, workers, sum: spending.sum(members), tokens }
    }

    fn peak(&self) -> Option<u64> {
        let digests = self.workers.iter().filter_map(|row| row.digest.as_ref());
        digests.filter_map(|digest| digest.peak_context).max()
    }

    fn compactions(&self) -> u64 {
        let digests = self.workers.iter().filter_map(|row| row.digest.as_ref());
        digests.map(|digest| digest.compactions).fold(0, u64::saturating_add)
    }

    fn title(&self) -> Option<String> {
        Some(one_line(self.worker?.worker().title(), CELL_MAX))
    }

    fn json(&self) -> CostSumJson {
        CostSumJson {
            workers: self.workers.len(),
            usd: self.sum.is_known().then(|| self.sum.total().dollars()),
            stated_usd: self.sum.stated.dollars(),
            computed_usd: self.sum.computed.dollars(),
            complete: self.sum.is_complete(),
            unknown_workers: self.sum.unknown,
            tokens: self.tokens,
            peak_context_tokens: self.peak(),
            compactions: self.compactions(),
        }
    }
}

/// Sums the costs of `rows` by group, the most expensive first; days are in their order, the latest
/// first. The table keeps to `width`, in characters, if it can.
pub fn page(
    visible: &VisibleWorkers,
    rows: &[WorkerRow],
    by: CostGroup,
    prices: Option<&Prices>,
    width: usize,
) -> CostPage {
    let spending = Spending::new(rows, prices);
    let all: Vec<usize> = (0..rows.len()).collect();
    let total = CostRow::new(&spending, None, &all);
    let has_failed =
        |at: &usize| spending.row(*at).is_some_and(|row| row.outcome() == Some(Outcome::Failed));
    let mut failed: Vec<usize> =
        all.iter().filter(|at| has_failed(at)).flat_map(|at| spending.family(*at)).collect();
    failed.sort_unstable();
    failed.dedup();
    let failed = CostRow::new(&spending, None, &failed);
    let mut groups = match by {
        CostGroup::Worker => by_worker(&spending),
        CostGroup::Model => by_model(&spending, rows, prices),
        CostGroup::Run | CostGroup::Day | CostGroup::Project => by_name(&spending, rows, by),
    };
    match by {
        CostGroup::Day => groups.reverse(),
        _ => groups.sort_by_cached_key(|group| {
            (Reverse(group.sum.total()), Reverse(group.tokens), group.name.clone())
        }),
    }
    let mut text = String::new();
    for (label, row) in [("total", &total), ("failed", &failed)] {
        let cost = match row.sum.describe() {
            known if !known.is_empty() => known,
            _ if row.tokens > 0 => "cost unknown; its records state none".into(),
            _ => continue,
        };
        text.push_str(&format!("{label:<8} {cost}, {} tokens\n", rounded(row.tokens)));
    }
    let tokens = tokens::swarm(rows);
    if !tokens.is_empty() {
        text.push_str(&format!("tokens   {tokens}\n"));
    }
    if let Some(peak) = total.peak() {
        let compactions = count(total.compactions(), "compaction");
        text.push_str(&format!(
            "context  largest request {} tokens, {compactions}\n",
            rounded(peak)
        ));
    }
    if !groups.is_empty() {
        text.push_str(&format!("\n{}", table(visible, &groups, by, width)));
        let marks = [
            (groups.iter().any(|group| group.sum.computed_workers > 0), "~ computed from prices"),
            (
                groups.iter().any(|group| group.sum.is_known() && !group.sum.is_complete()),
                "> at least, since records leave something out",
            ),
        ];
        let marks = marks.into_iter().filter(|(is_used, _)| *is_used).map(|(_, mark)| mark);
        let marks = marks.collect::<Vec<_>>().join("; ");
        if !marks.is_empty() {
            text.push_str(&format!("\n{marks}\n"));
        }
    }
    let json = CostsJson {
        total: total.json(),
        failed: failed.json(),
        by: by.as_str(),
        groups: groups
            .iter()
            .map(|group| CostGroupJson {
                name: group.name.clone(),
                title: group.title(),
                outcome: group.worker.and_then(WorkerRow::outcome).map(Outcome::as_str),
                sum: group.json(),
            })
            .collect(),
    };
    CostPage { text, json }
}

fn by_worker<'a>(spending: &Spending<'a>) -> Vec<CostRow<'a>> {
    let of_root = |at: usize| {
        let worker = spending.row(at)?;
        let name = Some(worker.member.name.display());
        let row = CostRow::new(spending, name, &spending.family(at));
        Some(CostRow { worker: Some(worker), ..row })
    };
    spending.roots().filter_map(of_root).collect()
}

/// Groups workers by a value. A worker whose record does not state one belongs to the group of the
/// worker that started it.
fn by_name<'a>(spending: &Spending<'a>, rows: &'a [WorkerRow], by: CostGroup) -> Vec<CostRow<'a>> {
    let mut members: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
    let own = |at: usize| rows.get(at).and_then(|row| by.name(&row.worker()));
    for at in 0..rows.len() {
        let name = own(at).or_else(|| spending.above(at).find_map(own));
        members.entry(name).or_default().push(at);
    }
    members.into_iter().map(|(name, at)| CostRow::new(spending, name, &at)).collect()
}

fn by_model<'a>(
    spending: &Spending<'a>,
    rows: &'a [WorkerRow],
    prices: Option<&Prices>,
) -> Vec<CostRow<'a>> {
    let mut used: BTreeMap<&str, (Vec<&WorkerRow>, u64)> = BTreeMap::new();
    for row in rows {
        for (model, tokens) in row.digest.iter().flat_map(|digest| &digest.tokens_by_model) {
            let (workers, sum) = used.entry(model).or_default();
            workers.push(row);
            *sum = sum.saturating_add(tokens.total());
        }
    }
    let mut sums = spending.by_model(prices);
    for model in sums.keys() {
        used.entry(model).or_default();
    }
    let rows = used.into_iter().map(|(model, (workers, tokens))| CostRow {
        name: Some(model.to_owned()).filter(|model| !model.is_empty()),
        worker: None,
        workers,
        sum: sums.remove(model).unwrap_or_default(),
        tokens,
    });
    rows.collect()
}

fn table(visible: &VisibleWorkers, groups: &[CostRow<'_>], by: CostGroup, width: usize) -> String {
    let column = |header, cell: &dyn Fn(&CostRow<'_>) -> String| {
        Column::new(header, groups.iter().map(cell))
    };
    let number = |n: u64| if n == 0 { String::new() } else { rounded(n) };
    let name = |group: &CostRow<'_>| match group.worker {
        Some(row) => visible.short_id(&row.member.name).display(),
        None => group.name.clone().unwrap_or_else(|| UNNAMED.to_owned()),
    };
    let columns = vec![
        column(by.as_str(), &|group| one_line(&name(group), CELL_MAX)),
        column("cost", &|group| group.sum.short()),
        column("workers", &|group| match group.workers.len() {
            1 if by == CostGroup::Worker => String::new(),
            workers => workers.to_string(),
        }),
        column("tokens", &|group| number(group.tokens)),
        column("largest request", &|group| number(group.peak().unwrap_or_default())),
        column("compacted", &|group| number(group.compactions())),
        column("outcome", &|group| {
            let outcome = group.worker.and_then(WorkerRow::outcome);
            outcome.map(|outcome| outcome.to_string()).unwrap_or_default()
        }),
        column(TITLE, &|group| group.title().unwrap_or_default()),
    ];
    render(columns, width)
}
