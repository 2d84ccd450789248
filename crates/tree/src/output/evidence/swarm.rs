//! evidence.txt of many workers: one line per cause with the workers it affects, a line for each
//! doubtful claim and each wait for a person, then excerpts: a call of each cause, the calls for
//! which workers need attention, newest first, and the other calls that failed or look failed.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::call_section;
use super::content::{FrameContent, OutputSection};
use crate::analysis::attention::{AttentionLevel, AttentionReason, ReasonKind};
use crate::analysis::excerpt::{ExcerptResult, ExcerptTask};
use crate::analysis::missing::Missing;
use crate::analysis::root_cause::{open_call, root_cause_call};
use crate::analysis::worker_digest::WorkerRow;
use crate::output::Body;
use crate::output::causes::{self, CauseGrouping, CauseKind, WorkerCause};
use crate::route::name_collision;
use crate::view::{Member, View, WorkerFiles};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Record, ToolCall};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Time};
use swarmletfs_base::text::budget::Budget;

/// Access to the workers of a swarm, which are read on demand.
pub struct SwarmReader<'a> {
    pub view: &'a View,
    pub record: &'a dyn Fn(&WorkerRow) -> Option<Arc<Record>>,
    pub run: &'a dyn Fn(&Member, ExcerptTask) -> ExcerptResult,
    pub deadline: Deadline<'a>,
    pub missing: &'a dyn Fn() -> Option<Missing>,
}

/// Minimum size of a section with its lines, in bytes; bounds the number of records that are read.
const SECTION_MIN: usize = 300;

struct ShownCall<'a> {
    worker: &'a WorkerRow,
    call: ToolCall,
    /// Time of the call, or of the worker's last write if that is unknown, in nanoseconds since
    /// 1970.
    at: i128,
    is_resolved: bool,
}

impl ShownCall<'_> {
    fn key(&self) -> (Name, RelPath) {
        (self.worker.member.name.clone(), self.call.path.clone())
    }

    fn section(&self, priority: usize) -> OutputSection {
        let name = &self.worker.member.name;
        let folder = name_collision::shown_name(name, name_collision::is_index);
        let section = call_section(&self.call, &format!("workers/{}/", folder.display()), priority);
        let is_open = self.call.looks_failed() && !self.is_resolved && !self.call.is_miss();
        let rank = usize::from(!is_open);
        OutputSection { rank, is_resolved: self.is_resolved, ..section }
    }
}

/// Returns at most `max` calls that failed or look like failures, of workers that did not fail:
/// first the unresolved ones, then the resolved ones, each newest first.
///
/// Workers are read from the latest last write on, until `max` unresolved calls are found or `max`
/// workers are read.
fn failed_calls<'a>(
    rows: &'a [WorkerRow],
    record: &dyn Fn(&WorkerRow) -> Option<Arc<Record>>,
    max: usize,
) -> Vec<ShownCall<'a>> {
    let last_write = |row: &WorkerRow| {
        row.fingerprint.as_ref().map(|fingerprint| fingerprint.last_write()).unwrap_or_default()
    };
    let mut workers: Vec<&WorkerRow> = rows
        .iter()
        .filter(|row| row.outcome() != Some(Outcome::Failed) && row.failure_counts() != (0, 0))
        .collect();
    workers.sort_by_cached_key(|worker| (Reverse(last_write(worker)), worker.member.name.clone()));
    let mut calls: Vec<ShownCall<'_>> = Vec::new();
    let mut unresolved_calls = 0;
    for worker in workers.into_iter().take(max) {
        if unresolved_calls >= max {
            break;
        }
        let Some(record) = record(worker) else { continue };
        let trace = &record.trace;
        let unresolved: HashSet<&RelPath> =
            trace.unresolved().into_calls().into_iter().map(|call| &call.path).collect();
        unresolved_calls += unresolved.len();
        let last_write = nanoseconds(last_write(worker));
        calls.extend(trace.calls.iter().filter(|call| call.looks_failed()).map(|call| ShownCall {
            worker,
            call: call.clone(),
            at: call.at.map_or(last_write, |at| at.as_nanosecond()),
            is_resolved: !unresolved.contains(&call.path) && !call.is_miss(),
        }));
        // Sorting after each worker would take quadratic time.
        if calls.len() > 2 * max {
            keep_first(&mut calls, max);
        }
    }
    keep_first(&mut calls, max);
    calls
}

/// Returns at most `max` calls for which workers that did not fail need attention. Calls of high
/// attention come first, each part newest first.
fn reason_calls<'a>(
    rows: &'a [WorkerRow],
    record: &dyn Fn(&WorkerRow) -> Option<Arc<Record>>,
    max: usize,
) -> Vec<ShownCall<'a>> {
    let mut found: Vec<(AttentionLevel, &WorkerRow, &AttentionReason)> = rows
        .iter()
        .filter(|row| row.outcome() != Some(Outcome::Failed))
        .filter_map(|row| Some((row, &row.digest.as_ref()?.attention)))
        .flat_map(|(row, attention)| attention.reasons.iter().map(move |reason| (row, reason)))
        .filter(|(_, reason)| reason.call.is_some())
        .map(|(row, reason)| (reason.level, row, reason))
        .collect();
    found.sort_by(|(level, row, reason), (other_level, other_row, other)| {
        (level, Reverse(reason.since), &row.member.name, reason.kind).cmp(&(
            other_level,
            Reverse(other.since),
            &other_row.member.name,
            other.kind,
        ))
    });
    let calls = found.into_iter().take(max).filter_map(|(_, worker, reason)| {
        let record = record(worker)?;
        let call = record.trace.calls.iter().find(|call| Some(call.seq) == reason.call)?.clone();
        Some(ShownCall { worker, call, at: i128::MIN, is_resolved: false })
    });
    calls.collect()
}

/// Returns the workers that wait for a person, with their requests, newest first.
fn waits(rows: &[WorkerRow]) -> Vec<(&Member, String)> {
    let mut found: Vec<(&Member, &AttentionReason)> = rows
        .iter()
        .filter_map(|row| {
            let reasons = &row.digest.as_ref()?.attention.reasons;
            let reason = reasons.iter().find(|reason| reason.kind == ReasonKind::Waits)?;
            Some((&*row.member, reason))
        })
        .collect();
    found.sort_by_key(|(member, reason)| (Reverse(reason.since), member.name.clone()));
    found.into_iter().map(|(member, reason)| (member, reason.line.clone())).collect()
}

fn keep_first(calls: &mut Vec<ShownCall<'_>>, max: usize) {
    calls.sort_by(|a, b| {
        let key =
            |shown: &ShownCall<'_>| (shown.is_resolved || shown.call.is_miss(), Reverse(shown.at));
        key(a)
            .cmp(&key(b))
            .then_with(|| a.worker.member.name.cmp(&b.worker.member.name))
            .then_with(|| b.call.seq.cmp(&a.call.seq))
            .then_with(|| a.call.path.cmp(&b.call.path))
    });
    calls.truncate(max);
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

pub fn swarm(reader: &SwarmReader<'_>, title: String, rows: &[WorkerRow], budget: Budget) -> Body {
    let SwarmReader { view, record, run, deadline, missing } = *reader;
    let count = |wanted| rows.iter().filter(|row| row.outcome() == wanted).count();
    let unread = count(None);
    let unread = if unread == 0 { String::new() } else { format!(", {unread} not read in time") };
    let failing: Vec<WorkerCause<'_>> = rows.iter().filter_map(WorkerCause::from_failure).collect();
    // Failed workers have a line of their own.
    let others = rows.iter().filter(|row| row.outcome() != Some(Outcome::Failed));
    let doubts: Vec<(&Member, String)> =
        others.filter_map(|row| Some((&*row.member, row.doubt()?))).collect();
    let doubtful: Vec<WorkerCause<'_>> =
        doubts.iter().map(|(member, cause)| WorkerCause { member, cause }).collect();
    let by_name: HashMap<&Name, &WorkerRow> =
        rows.iter().map(|row| (&row.member.name, row)).collect();
    let waits = waits(rows);
    let waiting: Vec<WorkerCause<'_>> =
        waits.iter().map(|(member, cause)| WorkerCause { member, cause }).collect();
    let sections_max = budget.approx_bytes() / SECTION_MIN + 1;
    // One worker per cause is read first; each worker's own evidence.txt shows more.
    let mut calls: Vec<ShownCall<'_>> = causes::groups(&failing, CauseGrouping::Text)
        .iter()
        .take(sections_max)
        .filter_map(|group| group.members.first())
        .filter_map(|first| by_name.get(&first.name))
        .filter_map(|worker| {
            let call = root_cause_call(&record(worker)?.trace)?.clone();
            Some(ShownCall { worker, call, at: i128::MIN, is_resolved: false })
        })
        .collect();
    calls.sort_by_key(|shown| shown.call.outcome != Outcome::Failed);
    let mut listed: HashSet<(Name, RelPath)> = calls.iter().map(ShownCall::key).collect();
    let more = reason_calls(rows, record, sections_max).into_iter().chain(failed_calls(
        rows,
        record,
        sections_max,
    ));
    let more: Vec<ShownCall<'_>> = more.filter(|shown| listed.insert(shown.key())).collect();
    calls.extend(more);
    calls.truncate(sections_max);
    let sections: Vec<OutputSection> =
        calls.iter().enumerate().map(|(priority, shown)| shown.section(priority)).collect();
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        let shown = calls.get(number).ok_or("not there")?;
        open_call(&WorkerFiles::new(view, &shown.worker.member), &shown.call)
    };
    let counted_calls = if calls.is_empty() || !failing.is_empty() {
        String::new()
    } else {
        let (failed, suspect): (Vec<usize>, Vec<usize>) =
            rows.iter().map(WorkerRow::failure_counts).unzip();
        let sum = |counts: &[usize]| counts.iter().copied().fold(0, usize::saturating_add);
        format!(" | Calls: {} failed, {} suspect", sum(&failed), sum(&suspect))
    };
    let content = FrameContent {
        title,
        counted: format!(
            "Workers: {} ({} failed, {} unknown{unread}){counted_calls}",
            rows.len(),
            failing.len(),
            count(Some(Outcome::Unknown)),
        ),
        lines: &|room, _| {
            let failed = causes::lines(CauseKind::Failed, &failing, room);
            let left = room.saturating_sub(failed.len());
            let doubtful = causes::lines(CauseKind::Doubtful, &doubtful, left / 3);
            failed + &doubtful + &causes::lines(CauseKind::Waiting, &waiting, left / 3)
        },
        failure: &|room| causes::lines(CauseKind::Failed, &failing, room),
        lines_name_failures: true,
        sections,
        open: &open,
        run: &|number, task| match calls.get(number) {
            Some(shown) => run(&shown.worker.member, task),
            None => Err("not there".into()),
        },
        deadline,
        missing,
        read_failed: Cell::new(false),
        short_lines: RefCell::default(),
    };
    content.render(budget)
}
