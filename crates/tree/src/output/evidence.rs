//! evidence.txt: excerpts of tool outputs within a budget, failures first.
//!
//! Rendering is deterministic: the same record, view and budget give the same bytes. It uses no
//! model and no clock, and no rule is specific to a tool.
//!
//! - This module selects and orders the outputs of one worker.
//! - [`swarm()`] does so for many workers, with one line of
//!   [`crate::analysis::root_cause::cause()`] for each.
//! - [`swarmletfs_base::text::budget`] allocates the budget to the outputs.
//! - [`crate::analysis::excerpt`] selects the lines of one output.
//! - `frame` adds the header, the section lines and the list of omitted outputs, with `notes`.

mod admit;
mod content;
mod frame;
mod notes;
mod short_steps;
mod swarm;

pub use notes::{RUNNING, SUSPECT_MAX};
pub use swarm::{SwarmReader, swarm};

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

use content::{FrameContent, OutputSection};
use notes::failure_line;

use crate::analysis::missing::Missing;
use crate::analysis::root_cause::{self, display_order, open_call};
use crate::analysis::{NO_RESULT, UNRECORDED};
use crate::output::Body;
use crate::view::{Member, View, WorkerFiles};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Output, Record, Status, ToolCall, Trace};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::File;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::{escape_markers, one_line};

/// Maximum length of an id in the title, in bytes.
const TITLE_MAX: usize = 200;
/// Maximum length of a quoted error, in bytes.
const ERROR_MAX: usize = 320;
/// Minimum length to which a quoted error is cut, in bytes.
const ERROR_MIN: usize = 20;

/// Renders the evidence.txt of one worker. `missing` returns the parts that were skipped for lack
/// of time so far.
pub fn worker(
    view: &View,
    member: &Member,
    record: &Record,
    budget: Budget,
    deadline: Deadline<'_>,
    missing: &dyn Fn() -> Option<Missing>,
) -> Body {
    let Record { worker, trace, .. } = record;
    let order = display_order(trace);
    let sections = sections(trace, &order, worker.status);
    let has_sections = !sections.is_empty();
    let counted = if order.is_empty() {
        format!("Calls: 0 | Files: {}", sections.len())
    } else {
        call_counts(trace, worker.status)
    };
    let files = WorkerFiles::new(view, member);
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        match (order.get(number), trace.loose.get(number)) {
            (Some(call), _) => open_call(&files, call),
            (None, Some(file)) => files.open(&file.path).map_err(|error| error.to_string()),
            (None, None) => Err("not there".into()),
        }
    };
    let failed = order.first().copied().filter(|call| call.outcome == Outcome::Failed);
    let message: OnceCell<Option<String>> = OnceCell::new();
    let job = worker.job.as_deref().unwrap_or("-");
    let content = FrameContent {
        title: format!(
            "Worker {} ({})",
            one_line(job, TITLE_MAX),
            one_line(&member.name.display(), TITLE_MAX)
        ),
        counted,
        lines: &|room, reserved| {
            let unread =
                trace.unreadable.first().map(|(_, reason)| ("Not read: ", reason.as_str()));
            let error = worker.error.as_deref().map(|error| ("Error: ", error));
            let room =
                if has_sections { room * 2 / 3 } else { room }.min(room.saturating_sub(reserved));
            labeled_lines(unread.into_iter().chain(error), room)
        },
        failure: &|room| {
            let message =
                message.get_or_init(|| failed.and_then(|call| root_cause::message(&files, call)));
            let path = failed.map(|call| escape_markers(&call.path.display())).unwrap_or_default();
            message
                .as_deref()
                .map_or_else(String::new, |message| failure_line(&path, message, room))
        },
        lines_name_failures: false,
        sections,
        open: &open,
        run: &|_, task| task(deadline),
        deadline,
        missing,
        read_failed: Cell::new(false),
        short_lines: RefCell::default(),
    };
    content.render(budget)
}

/// Returns the sections of a worker's calls in `order`, or of its files if it has no calls.
fn sections(trace: &Trace, order: &[&ToolCall], status: Status) -> Vec<OutputSection> {
    if order.is_empty() {
        let files = trace.loose.iter().enumerate();
        return files
            .map(|(priority, file)| loose_section(&file.path, file.bytes, priority))
            .collect();
    }
    let calls = order.iter().zip(priorities(order));
    let sections = calls.map(|(call, priority)| OutputSection {
        rank: rank(call),
        is_running: call.is_running(status),
        ..call_section(call, "", priority)
    });
    sections.collect()
}

/// Returns one line for each label and its text, in at most `room` bytes in total.
///
/// A line is left out if there is no room for [`ERROR_MIN`] bytes of its text.
fn labeled_lines<'a>(texts: impl Iterator<Item = (&'static str, &'a str)>, room: usize) -> String {
    let mut lines = String::new();
    for (label, text) in texts {
        let left = room.saturating_sub(lines.len() + label.len() + 1);
        if left >= text.len().min(ERROR_MIN) {
            lines.push_str(&format!("{label}{}\n", one_line(text, ERROR_MAX.min(left))));
        }
    }
    if lines.len() <= room { lines } else { String::new() }
}

/// Number of steps that are admitted per step from the end.
const STEPS_PER_ROUND: usize = 4;
/// A step without an input that is shorter than this counts as a handover, in bytes.
const BRIEF_STEP: u64 = 400;

/// Returns the admission priority of each call in `calls`, which are in display order; 0 is first.
///
/// Steps of a transcript are admitted alternately from both ends, since the failing step is often
/// an early one. Brief steps come last.
fn priorities(calls: &[&ToolCall]) -> Vec<usize> {
    let steps = calls.iter().enumerate().filter(|(_, call)| call.outcome == Outcome::Unknown);
    let (brief, long): (VecDeque<_>, VecDeque<_>) =
        steps.clone().partition(|(_, call)| call.bytes < BRIEF_STEP && call.input.is_none());
    let admitted = [long, brief].map(from_both_ends).concat();
    let mut priorities: Vec<usize> = (0..calls.len()).collect();
    for ((priority, _), (at, _)) in steps.zip(admitted) {
        if let Some(slot) = priorities.get_mut(at) {
            *slot = priority;
        }
    }
    priorities
}

/// Reorders `steps`: the last one, the first three, the last but one, the next three, and so on.
fn from_both_ends<T>(mut steps: VecDeque<T>) -> Vec<T> {
    let mut ordered = Vec::with_capacity(steps.len());
    while let Some(step) =
        if ordered.len() % STEPS_PER_ROUND == 0 { steps.pop_back() } else { steps.pop_front() }
    {
        ordered.push(step);
    }
    ordered
}

/// Returns the rank of a call among the calls of its worker.
fn rank(call: &ToolCall) -> usize {
    match call.outcome {
        Outcome::Failed => 0,
        _ if call.suspect.is_some() => 1,
        _ => 2,
    }
}

/// Returns the numbers of calls for the header. Suspect and running calls, and calls that never
/// ran, are named only if there are any.
fn call_counts(trace: &Trace, status: Status) -> String {
    let running = trace.running(status);
    let count = |number: usize, kind: &str| (number > 0).then(|| format!("{number} {kind}"));
    let counts = [
        Some(format!("{} failed", trace.count(Outcome::Failed))),
        count(trace.suspects(), "suspect"),
        Some(format!("{} unknown", trace.count(Outcome::Unknown).saturating_sub(running))),
        count(running, RUNNING),
        count(trace.count(Outcome::NotRun), "not run"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    format!("Calls: {} ({})", trace.calls.len(), counts.join(", "))
}

/// Returns the section of `call`, with `prefix` before its path.
fn call_section(call: &ToolCall, prefix: &str, priority: usize) -> OutputSection {
    OutputSection {
        path: escape_markers(&format!("{prefix}{}", call.path.display())),
        source: match &call.output {
            // The call's own file holds only a stub, so offsets refer to the stored output.
            Output::OutOfBand(file) => {
                Some(format!("the store's tool_outputs/{}", escape_markers(&file.display())))
            }
            Output::InPlace | Output::Pending | Output::Unrecorded | Output::Unreadable(_) => None,
        },
        priority,
        rank: 0,
        outcome: Some(call.outcome),
        suspect: call.suspect.clone(),
        is_resolved: false,
        is_running: false,
        exit_code: call.exit_code,
        bytes: call.bytes,
        input: call.input.clone(),
        unreadable: match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::Pending => Some(NO_RESULT.into()),
            Output::Unrecorded => Some(UNRECORDED.into()),
            Output::InPlace | Output::OutOfBand(_) => None,
        },
    }
}

fn loose_section(path: &RelPath, bytes: u64, priority: usize) -> OutputSection {
    let path = escape_markers(&path.display());
    OutputSection { path, priority, bytes, ..OutputSection::default() }
}
