//! The summary of a run or the swarm: who needs a person and why, then the course of the work.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use jiff::civil::Date;

use super::table::{self, ListedWorker};
use super::{progress, tokens};
use crate::analysis::attention::{Attention, AttentionReason, ReasonKind};
use crate::analysis::checks::CheckKind;
use crate::analysis::spending::Spending;
use crate::analysis::worker_digest::{WorkerRow, latest_write};
use crate::analysis::{facets, peers};
use crate::output::causes::{self, CauseGrouping, WorkerCause};
use crate::output::overlaps;
use crate::output::triage::{TriagePart, is_at_work, reason};
use crate::route::Group;
use crate::view::VisibleWorkers;
use swarmletfs_base::model::{Outcome, Prices, Status, Tokens};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{clip_chars, count, duration, rounded, utc};

/// Largest size of a summary of up to a thousand workers, in bytes.
const BYTES: usize = 4 << 10;
/// Number of lines in each list; the first that keeps the summary within [`BYTES`] is used.
const LINES: [Lines; 5] = [
    Lines { named: 12, rows: 15, days: 7 },
    Lines { named: 8, rows: 15, days: 5 },
    Lines { named: 6, rows: 10, days: 4 },
    Lines { named: 4, rows: 8, days: 3 },
    Lines { named: 2, rows: 5, days: 2 },
];
/// Width of a line, in characters.
const WIDTH: usize = 80;
/// Width of a title in a list, in characters.
const TITLE: usize = 28;
/// Maximum length of a name, a title or a text before it is fitted, in bytes.
const TEXT_MAX: usize = 400;
/// Maximum length of the names of workers with one cause, in bytes.
const NAMES_MAX: usize = 60;
/// Maximum number of kinds of bad data that are counted by name.
const KINDS_MAX: usize = 6;

#[derive(Clone, Copy)]
struct Lines {
    /// Workers named in each list.
    named: usize,
    /// Rows of the table.
    rows: usize,
    days: usize,
}

struct SwarmSummary<'a> {
    visible: &'a VisibleWorkers,
    group: &'a Group,
    rows: &'a [WorkerRow],
    spending: Spending<'a>,
    newest_first: Vec<ListedWorker<'a>>,
    /// Number of workers that were removed.
    removed: usize,
    newest: Time,
}

/// Renders the summary of a run or the swarm. `removed` counts the workers that were removed.
pub fn swarm(
    visible: &VisibleWorkers,
    group: &Group,
    rows: &[WorkerRow],
    removed: usize,
    newest: Time,
    prices: Option<&Prices>,
) -> String {
    let attention = peers::among_peers(rows, prices);
    let newest_first = table::newest_first(rows.iter().zip(&attention));
    let spending = Spending::new(rows, prices);
    let summary = SwarmSummary { visible, group, rows, spending, newest_first, removed, newest };
    let mut text = String::new();
    for lines in LINES {
        text = summary.text(lines);
        if text.len() <= BYTES {
            break;
        }
    }
    text
}

impl<'a> SwarmSummary<'a> {
    fn text(&self, lines: Lines) -> String {
        let mut out = self.head();
        let latest = latest_write(self.rows);
        let max = lines.named;
        self.list(&mut out, TriagePart::AtWork, max, |row, _| {
            progress(row, latest) + &failed_line(row)
        });
        self.list(&mut out, TriagePart::NeedsYou, max, |row, attention| {
            first_line(attention) + &failed_line(row)
        });
        self.failures(&mut out, max);
        self.list(&mut out, TriagePart::Contradicted, max, |_, attention| first_line(attention));
        self.list(&mut out, TriagePart::ChildFailed, max, |_, attention| first_line(attention));
        self.list(&mut out, TriagePart::Stopped, max, |row, attention| {
            let stopped = reason(attention, &[ReasonKind::Cut, ReasonKind::Interrupted]);
            stopped.map_or_else(|| progress(row, latest), str::to_owned)
        });
        self.list(&mut out, TriagePart::Other, max, |_, attention| {
            let first = attention.reasons.first();
            let kind = first.map_or("", |found| found.kind.as_str()).replace('_', " ");
            let by = first.and_then(AttentionReason::denier);
            let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
            format!("{kind}{by}: {}", first_line(attention))
        });
        out.push_str(&overlaps::section(self.rows));
        let table = table::table(self.visible, &self.newest_first, lines.rows);
        if !table.is_empty() {
            out.push_str(&format!("\n{table}"));
        }
        out.push_str(&self.days(lines.days));
        out.push_str(&self.totals());
        out.push_str(&self.unreadable(max));
        out.push_str(&self.data_quality());
        if *self.group == Group::Swarm {
            out.push_str(&not_shown(self.visible));
        }
        out.push_str(
            "\nMore: evidence.txt here; workers/<id>/summary, evidence.txt, requests.txt;\n\
             by/attention/high, by/day/<day>, by/file/<path>; search/<words>; index.json.\n",
        );
        out
    }

    /// Counts the workers, and says who works and when the last message came.
    fn head(&self) -> String {
        let children = self.rows.iter().filter(|row| row.worker().parent.is_some()).count();
        let children = match children {
            0 => String::new(),
            some => format!(" ({some} started by others)"),
        };
        let run = self
            .group
            .run(self.visible)
            .map(|run| format!(" of run {}", one_line(&run.id, TEXT_MAX)));
        let working = self.rows.iter().filter(|row| is_at_work(row.status())).count();
        let working = match working {
            0 => "nobody is at work".into(),
            some => format!("{some} at work"),
        };
        let last = self.rows.iter().filter_map(|row| row.worker().last_message).max();
        let last = match last {
            Some(time) => format!(" Last message {}.", utc(time.into())),
            None => String::new(),
        };
        let workers = count(self.rows.len(), "worker");
        format!("{workers}{}{children}: {working}.{last}\n", run.unwrap_or_default())
    }

    /// Returns the workers of a section, newest first.
    fn section(&self, section: TriagePart) -> Vec<&ListedWorker<'a>> {
        let all = self.newest_first.iter();
        all.filter(|(_, row, needs)| TriagePart::find(row, needs) == Some(section)).collect()
    }

    fn list(
        &self,
        out: &mut String,
        section: TriagePart,
        max: usize,
        text: impl Fn(&WorkerRow, &Attention) -> String,
    ) {
        let found = self.section(section);
        if found.is_empty() {
            return;
        }
        out.push_str(&format!("\n{} ({}):\n", section.title(), found.len()));
        for (at, row, attention) in found.iter().take(max) {
            out.push_str(&self.entry(*at, row, &text(row, attention)));
        }
        if found.len() > max {
            out.push_str(&format!("  and {} more in index.json\n", found.len() - max));
        }
    }

    fn unreadable(&self, max: usize) -> String {
        let found = self.rows.iter().filter_map(|row| Some((row, row.unreadable()?)));
        let lines = found.clone().take(max).map(|(row, why)| self.entry(None, row, why));
        let lines: String = lines.collect();
        match found.count() {
            0 => lines,
            all => format!("\ncould not be read ({all}):\n{lines}"),
        }
    }

    /// Formats a worker of a list: its short id, its day, its title, and a text. The first line of
    /// the text is beside them if it fits.
    fn entry(&self, at: Option<Timestamp>, row: &WorkerRow, text: &str) -> String {
        let id = one_line(&self.visible.short_id(&row.member.name).display(), TEXT_MAX);
        let day = at.map(|at| at.strftime("%d %b").to_string()).unwrap_or_default();
        let title = clip_chars(&one_line(row.worker().title(), TEXT_MAX), TITLE);
        let head = [id, day, title].into_iter().filter(|part| !part.is_empty());
        let head = format!("  {}", head.collect::<Vec<_>>().join("  "));
        let mut lines = text.lines().map(|line| one_line(line, TEXT_MAX)).peekable();
        let room = WIDTH.saturating_sub(head.chars().count() + 2);
        let mut out = match lines.next_if(|line| line.chars().count() <= room) {
            Some(first) => format!("{head}: {first}\n"),
            None => format!("{head}:\n"),
        };
        for line in lines {
            out.push_str(&format!("    {}\n", clip_chars(&line, WIDTH - 4)));
        }
        out
    }

    /// Lists those who failed, by cause, the most frequent one first.
    fn failures(&self, out: &mut String, max: usize) {
        let failed = self.section(TriagePart::Failed);
        let failing: Vec<WorkerCause<'_>> =
            failed.iter().filter_map(|(_, row, _)| WorkerCause::from_failure(row)).collect();
        if failing.is_empty() {
            return;
        }
        let rows: HashMap<&Name, &WorkerRow> =
            failed.iter().map(|(_, row, _)| (&row.member.name, *row)).collect();
        let groups = causes::groups(&failing, CauseGrouping::Text);
        out.push_str(&format!("\n{} ({}):\n", TriagePart::Failed.title(), failing.len()));
        for group in groups.iter().take(max) {
            if let [only] = group.members.as_slice()
                && let Some(row) = rows.get(&only.name)
            {
                let claims = if row.doubt().is_some() { "claims success, but " } else { "" };
                let text = format!("{claims}{}", group.cause);
                out.push_str(&self.entry(table::begun(row), row, &text));
                continue;
            }
            let cause = clip_chars(&one_line(group.cause, TEXT_MAX), WIDTH - 4);
            out.push_str(&format!("  {}:\n    {cause}\n", group.describe(NAMES_MAX)));
        }
        let rest = groups.iter().skip(max);
        let workers: usize = rest.clone().map(|group| group.members.len()).sum();
        if workers > 0 {
            let (workers, causes) =
                (count(workers, "more worker"), count(rest.len(), "more cause"));
            out.push_str(&format!("  and {workers} with {causes}, in evidence.txt\n"));
        }
    }

    /// Returns a line for each of the last days on which workers began.
    fn days(&self, max: usize) -> String {
        let mut days: BTreeMap<Date, Vec<usize>> = BTreeMap::new();
        for (at, row) in self.rows.iter().enumerate() {
            if let Some(day) = facets::day(&row.worker()) {
                days.entry(day).or_default().push(at);
            }
        }
        if days.len() < 2 {
            return String::new();
        }
        let line = |(day, workers): (&Date, &Vec<usize>)| {
            let rows = || workers.iter().filter_map(|at| self.rows.get(*at));
            let digests = || rows().filter_map(|row| row.digest.as_ref());
            let failed = digests().filter(|digest| digest.outcome == Outcome::Failed).count();
            let tokens = digests().filter_map(|digest| digest.tokens).map(Tokens::total);
            let tokens = tokens.fold(0, u64::saturating_add);
            let files: usize = digests().map(|digest| digest.files_changed()).sum();
            let parts = [
                Some(count(workers.len(), "worker")),
                (failed > 0).then(|| format!("{failed} failed")),
                (tokens > 0).then(|| format!("{} tokens", rounded(tokens))),
                Some(self.spending.sum(workers).short()).filter(|cost| !cost.is_empty()),
                (files > 0).then(|| format!("{} changed", count(files, "file"))),
            ];
            format!("  {day}  {}\n", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
        };
        let shown: String = days.iter().rev().take(max).map(line).collect();
        let more = days.len().saturating_sub(max);
        let more = match more {
            0 => String::new(),
            more => format!("  and {more} more in by/day\n"),
        };
        format!("\nby day:\n{shown}{more}")
    }

    /// Returns the numbers of workers by status and outcome, and their totals.
    fn totals(&self) -> String {
        let rows = self.rows;
        let by_status = Status::ALL.into_iter().filter_map(|status| {
            let n = rows.iter().filter(|row| row.status() == status).count();
            (n > 0).then(|| format!("{n} {status}"))
        });
        let by_status = by_status.collect::<Vec<_>>().join(", ");
        let colon = if by_status.is_empty() { "" } else { ": " };
        let with_outcome = |wanted| rows.iter().filter(|row| row.outcome() == wanted).count();
        let late = match (with_outcome(None), rows.len()) {
            (0, _) => String::new(),
            (unread, all) => format!(" (outcomes read: {} of {all})", all - unread),
        };
        let mut out = format!(
            "\nworkers  {}{colon}{by_status}\noutcomes {} failed, {} unknown, {} ok{late}\n",
            rows.len(),
            with_outcome(Some(Outcome::Failed)),
            with_outcome(Some(Outcome::Unknown)),
            with_outcome(Some(Outcome::Ok))
        );
        if *self.group == Group::Swarm && !self.visible.runs.is_empty() {
            out.push_str(&format!("runs     {}\n", self.visible.runs.len()));
        }
        if self.removed > 0 {
            out.push_str(&format!("removed  {}\n", count(self.removed, "worker")));
        }
        let newest = if rows.is_empty() { "-".into() } else { utc(self.newest) };
        out.push_str(&format!("newest   {newest}\n"));
        let digests = rows.iter().filter_map(|row| row.digest.as_ref());
        let bytes = digests.clone().map(|digest| digest.output_bytes).fold(0, u64::saturating_add);
        let calls: usize = digests.map(|digest| digest.calls).sum();
        out.push_str(&format!("outputs  {bytes} B of {}\n", count(calls, "call")));
        let timed: Vec<u64> = rows.iter().filter_map(|row| row.worker().duration_ms).collect();
        if !timed.is_empty() {
            let all = timed.iter().copied().fold(0, u64::saturating_add);
            let workers = count(timed.len(), "worker");
            out.push_str(&format!("time     {} of {workers}\n", duration(all)));
        }
        let tokens = tokens::swarm(rows);
        if !tokens.is_empty() {
            out.push_str(&format!("tokens   {tokens}\n"));
        }
        let all: Vec<usize> = (0..rows.len()).collect();
        let cost = self.spending.sum(&all).describe();
        if !cost.is_empty() {
            out.push_str(&format!("cost     {cost}\n"));
        }
        out
    }

    /// Returns one line with the numbers of workers whose records are damaged, by kind.
    fn data_quality(&self) -> String {
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.unreadable().is_none()) {
            let mut names: Vec<&str> =
                row.checks(CheckKind::DataQuality).map(|check| &*check.name).collect();
            names.dedup();
            for name in names {
                *found.entry(name).or_default() += 1;
            }
        }
        if found.is_empty() {
            return String::new();
        }
        let mut found: Vec<(&str, usize)> = found.into_iter().collect();
        found.sort_by_key(|(_, workers)| Reverse(*workers));
        let shown = found.iter().take(KINDS_MAX).map(|(name, workers)| format!("{name} {workers}"));
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = match found.len().saturating_sub(KINDS_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("\ndata quality, by number of workers: {shown}{more}\n")
    }
}

/// Returns a further line with the cause of the worker's failure; empty without one.
fn failed_line(row: &WorkerRow) -> String {
    row.failure_cause().map(|cause| format!("\nfailed: {cause}")).unwrap_or_default()
}

fn first_line(attention: &Attention) -> String {
    attention.reasons.first().map(|found| found.line.clone()).unwrap_or_default()
}

/// Returns the entries of the stores that are not shown, and the warnings of the view.
fn not_shown(visible: &VisibleWorkers) -> String {
    let mut out = String::new();
    if let Some(skipped) = visible.skipped.filter(|skipped| !skipped.is_empty()) {
        out.push_str(&format!(
            "\nin the store but not shown: {} links, {} special files, {} folders that are not workers, {} unreadable\n",
            skipped.links, skipped.special, skipped.not_workers, skipped.unreadable
        ));
    }
    for trouble in &visible.list_errors {
        out.push_str(&format!("\nwarning: {}\n", one_line(trouble, 300)));
    }
    out
}
