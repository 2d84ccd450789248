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
use crate::analysis::worker_digest::WorkerRow;
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
    pub(crate) record: &'a dyn Fn(&WorkerRow) -> Option<Arc<Record>>,
    /// Runs the excerpt of one output of a worker.
    pub(crate) run: &'a dyn Fn(&Member, ExcerptTask) -> ExcerptResult,
    /// Limits the time for reading outputs.
    pub(crate) deadline: Deadline<'a>,
    /// Returns the parts that were skipped for lack of time so far.
    pub(crate) missing: &'a dyn Fn() -> Option<Missing>,
}

/// Renders the evidence.txt of the workers in `rows`.
pub(crate) fn swarm(
    reader: &SwarmReader<'_>,
    title: String,
    rows: &[WorkerRow],
    budget: Budget,
) -> Body {
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
    // One worker per cause is read; each worker's own evidence.txt shows more.
    let sections_max = budget.approx_bytes() / 300 + 1;
    let examples: Vec<(&WorkerRow, Arc<Record>)> = causes::groups(&failing, CauseGrouping::Text)
        .iter()
        .take(sections_max)
        .filter_map(|group| group.members.first())
        .filter_map(|first| by_name.get(&first.name))
        .filter_map(|row| record(row).map(|record| (*row, record)))
        .collect();
    let mut calls: Vec<_> = examples
        .iter()
        .filter_map(|(row, record)| root_cause_call(&record.trace).map(|call| (*row, call)))
        .collect();
    calls.sort_by_key(|(_, call)| call.outcome != Outcome::Failed);
    let sections: Vec<OutputSection> = calls
        .iter()
        .enumerate()
        .map(|(priority, (row, call))| {
            let folder = name_collision::shown_name(&row.member.name, name_collision::is_index);
            call_section(call, &format!("workers/{}/", folder.display()), priority)
        })
        .collect();
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        let (row, call) = calls.get(number).ok_or("not there")?;
        open_call(view, &row.member, call)
    };
    let content = FrameContent {
        title,
        counted: format!(
            "Workers: {} ({} failed, {} unknown{unread})",
            rows.len(),
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
            Some((row, _)) => run(&row.member, task),
            None => Err("not there".into()),
        },
        deadline,
        missing,
        read_failed: Cell::new(false),
    };
    content.render(budget)
}
