//! evidence.txt: an excerpt of what the tools really put out, within a budget, failures first.
//!
//! Deterministic: the same record, view and budget give the same bytes. The work is split as the file is read: which
//! outputs and in what order (here, and [`swarm`] for many workers), how much of each ([`shares`]), what of it
//! ([`excerpt`], [`signs`], [`lines`]), made fit to be shown ([`clean`]), and the frame around it all ([`frame`]).
//! No model, no clock, and no knowledge of any particular tool.

mod excerpt;
mod frame;
mod lines;
mod shares;
mod signs;
mod swarm;

pub(super) use swarm::swarm;

use std::cmp::Reverse;

use frame::{Content, Section, title_part};

use super::Budget;
use super::clean::one_line;
use super::fragment::Fragment;
use crate::model::{Outcome, Output, ToolCall, Trace};
use crate::name::RelPath;
use crate::store::{File, read_range};
use crate::view::{Member, View};

/// The longest line of cause, in bytes.
const CAUSE_MAX: usize = 320;
/// How much of an output is looked at for a cause, from its end, in bytes.
const CAUSE_TAIL: usize = 256 << 10;

/// The excerpt of one worker's outputs.
pub(super) fn worker(view: &View, member: &Member, trace: &Trace, budget: Budget, go_on: &dyn Fn() -> bool) -> Vec<u8> {
    let worker = &member.entry.worker;
    let order = order(trace);
    let sections: Vec<Section> = if order.is_empty() {
        trace.loose.iter().map(|file| loose_section(&file.path, file.bytes)).collect()
    } else {
        order.iter().map(|call| section(call, "")).collect()
    };
    let counted = if order.is_empty() {
        format!("Calls: 0 | Files: {}", sections.len())
    } else {
        let (failed, unknown) = (trace.count(Outcome::Failed), trace.count(Outcome::Unknown));
        format!("Calls: {} ({failed} failed, {unknown} unknown)", trace.calls.len())
    };
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        match (order.get(number), trace.loose.get(number)) {
            (Some(call), _) => open_call(view, member, call),
            (None, Some(file)) => view.open(member, &file.path).map_err(|error| error.to_string()),
            (None, None) => Err("not there".into()),
        }
    };
    let job = worker.job.as_deref().unwrap_or("-");
    let content = Content {
        title: format!("Worker {} ({})", title_part(job), title_part(&member.name.display())),
        counted,
        lines: worker.error.iter().map(|error| format!("Error: {}", one_line(error, CAUSE_MAX))).collect(),
        more: &|_| "Error: too long for this budget".into(),
        sections,
        open: &open,
        go_on,
    };
    content.within(budget)
}

/// Failed calls, then unknown, then ok; within each, latest first; then larger first.
fn order(trace: &Trace) -> Vec<&ToolCall> {
    let mut calls: Vec<&ToolCall> = trace.calls.iter().collect();
    calls.sort_by_key(|call| (call.outcome, Reverse(call.seq), Reverse(call.bytes), call.path.clone()));
    calls
}

/// The section of a call; `prefix` stands before its path.
fn section(call: &ToolCall, prefix: &str) -> Section {
    Section {
        path: format!("{prefix}{}", call.path.display()),
        outcome: Some(call.outcome),
        exit_code: call.exit_code,
        bytes: call.bytes,
        input: call.input.clone(),
        unreadable: match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::InPlace | Output::StoredOut(_) => None,
        },
    }
}

fn loose_section(path: &RelPath, bytes: u64) -> Section {
    Section { path: path.display(), outcome: None, exit_code: None, bytes, input: None, unreadable: None }
}

fn open_call(view: &View, member: &Member, call: &ToolCall) -> Result<Box<dyn File>, String> {
    match view.open_output(member, call) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err("stored out of band".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// One line that says why a worker failed: the strongest line of its first call in the order of evidence, the latest
/// among equals; else its error, else the last line of that output.
pub(super) fn cause(view: &View, member: &Member, trace: &Trace) -> String {
    let worker = &member.entry.worker;
    let call = order(trace).into_iter().next().filter(|call| call.outcome != Outcome::Ok);
    let found = call.and_then(|call| cause_in(view, member, call));
    let line = match (found, &worker.error) {
        (Some((line, true)), _) => line,
        (_, Some(error)) => error.clone(),
        (Some((line, false)), None) => line,
        (None, None) => "nothing recorded says why".into(),
    };
    let code = call.and_then(|call| call.exit_code).map(|code| format!("exit={code}: ")).unwrap_or_default();
    one_line(&format!("{code}{line}"), CAUSE_MAX)
}

/// The most telling line of a call's output, and whether it bears a sign of failure.
fn cause_in(view: &View, member: &Member, call: &ToolCall) -> Option<(String, bool)> {
    let file = open_call(view, member, call).ok()?;
    let raw = read_range(&*file, call.bytes.saturating_sub(CAUSE_TAIL as u64), CAUSE_TAIL).ok()?;
    if memchr::memchr(0, &raw).is_some() {
        return None;
    }
    let (pieces, _) = lines::pieces(&raw, 0);
    let telling = |text: &&str| text.chars().any(char::is_alphanumeric);
    let texts: Vec<&str> = pieces.iter().map(|piece| piece.text.trim()).filter(telling).collect();
    let best =
        texts.iter().enumerate().filter_map(|(at, text)| signs::of_line(text).map(|sign| (sign, at, *text))).max();
    match best {
        Some((_, _, text)) => Some((text.to_owned(), true)),
        None => texts.last().map(|text| ((*text).to_owned(), false)),
    }
}

/// What the evidence of many workers needs of one of them.
pub(super) struct Account<'a> {
    /// The worker.
    pub(super) member: &'a Member,
    /// What is known of it; `None` where time ran out before it was looked into.
    pub(super) fragment: Option<std::sync::Arc<Fragment>>,
}
