//! evidence.txt of many workers: one line per cause with the workers it affects, then excerpts of
//! the failed calls.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use super::call_section;
use super::content::{FrameContent, OutputSection};
use crate::analysis::excerpt::{ExcerptResult, ExcerptTask};
use crate::analysis::missing::Missing;
use crate::analysis::root_cause::{open_call, root_cause_call};
use crate::analysis::worker_digest::WorkerOutcome;
use crate::deadline::Deadline;
use crate::model::{Outcome, Record};
use crate::name::Name;
use crate::output::Body;
use crate::output::causes::{self, CauseGrouping, CauseKind, WorkerCause};
use crate::route::name_collision;
use crate::store::File;
use crate::text::budget::Budget;
use crate::view::{Member, View};

/// Access to the workers of a swarm, which are read on demand.
pub(crate) struct SwarmReader<'a> {
    /// View that opens the outputs.
    pub(crate) view: &'a View,
    /// Reads the record of a worker again.
    pub(crate) record: &'a dyn Fn(&WorkerOutcome<'_>) -> Option<Arc<Record>>,
    /// Runs the excerpt of one output of a worker.
    pub(crate) run: &'a dyn Fn(&Member, ExcerptTask) -> ExcerptResult,
    /// Limits the time for reading outputs.
    pub(crate) deadline: Deadline<'a>,
    /// Returns the parts that were skipped for lack of time so far.
    pub(crate) missing: &'a dyn Fn() -> Option<Missing>,
}

/// Renders the evidence.txt of `outcomes`.
pub(crate) fn swarm(
    reading: &SwarmReader<'_>,
    title: String,
    outcomes: &[WorkerOutcome<'_>],
    budget: Budget,
) -> Body {
    let SwarmReader { view, record, run, deadline, missing } = *reading;
    let outcome = |worker: &WorkerOutcome<'_>| worker.outcome.map(|(outcome, _)| outcome);
    let count = |wanted| outcomes.iter().filter(|worker| outcome(worker) == wanted).count();
    let unread = count(None);
    let unread = if unread == 0 { String::new() } else { format!(", {unread} not read in time") };
    let failing: Vec<WorkerCause<'_>> = outcomes
        .iter()
        .filter_map(|worker| match worker.outcome {
            Some((Outcome::Failed, cause)) => Some(WorkerCause { member: worker.member, cause }),
            _ => None,
        })
        .collect();
    // Failed workers have a line of their own.
    let doubtful: Vec<WorkerCause<'_>> = outcomes
        .iter()
        .filter(|worker| outcome(worker) != Some(Outcome::Failed))
        .filter_map(|worker| {
            Some(WorkerCause { member: worker.member, cause: worker.doubt.as_deref()? })
        })
        .collect();
    let by_name: HashMap<&Name, &WorkerOutcome<'_>> =
        outcomes.iter().map(|worker| (&worker.member.name, worker)).collect();
    // One worker per cause is read; each worker's own evidence.txt shows more.
    let sections_max = budget.approx_bytes() / 300 + 1;
    let examples: Vec<(&WorkerOutcome<'_>, Arc<Record>)> =
        causes::groups(&failing, CauseGrouping::Text)
            .iter()
            .take(sections_max)
            .filter_map(|group| group.members.first())
            .filter_map(|first| by_name.get(&first.name))
            .filter_map(|worker| record(worker).map(|record| (*worker, record)))
            .collect();
    let mut calls: Vec<_> = examples
        .iter()
        .filter_map(|(worker, record)| root_cause_call(&record.trace).map(|call| (*worker, call)))
        .collect();
    calls.sort_by_key(|(_, call)| call.outcome != Outcome::Failed);
    let sections: Vec<OutputSection> = calls
        .iter()
        .enumerate()
        .map(|(priority, (worker, call))| {
            let folder = name_collision::shown_name(&worker.member.name, name_collision::is_index);
            call_section(call, &format!("workers/{}/", folder.display()), priority)
        })
        .collect();
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        let (worker, call) = calls.get(number).ok_or("not there")?;
        open_call(view, worker.member, call)
    };
    let content = FrameContent {
        title,
        counted: format!(
            "Workers: {} ({} failed, {} unknown{unread})",
            outcomes.len(),
            failing.len(),
            count(Some(Outcome::Unknown)),
        ),
        lines: &|room, _| {
            let failed = causes::lines(CauseKind::Failed, &failing, room);
            let left = room.saturating_sub(failed.len());
            failed + &causes::lines(CauseKind::Doubtful, &doubtful, left / 2)
        },
        failure: &|room| causes::lines(CauseKind::Failed, &failing, room),
        lines_name_failures: true,
        sections,
        open: &open,
        run: &|number, task| match calls.get(number) {
            Some((worker, _)) => run(worker.member, task),
            None => Err("not there".into()),
        },
        deadline,
        missing,
        read_failed: Cell::new(false),
    };
    content.render(budget)
}
