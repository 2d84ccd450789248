//! evidence.txt: an excerpt of what the tools really put out, within a budget, failures first.
//!
//! Deterministic: the same record, view and budget give the same bytes. The work is split as the file is read: which
//! outputs and in what order (here, and [`swarm()`] for many workers, with a line of [`cause()`] each), how much of each
//! ([`super::shares`]), what of it ([`excerpt`], [`weigh`], [`signs`], [`lines`]), and the frame around it all ([`frame`]).
//! No model, no clock, and no knowledge of any particular tool.

mod admit;
mod cause;
mod cut;
mod excerpt;
mod frame;
mod lines;
mod signs;
mod strings;
mod swarm;
mod weigh;

pub(super) use cause::{NO_MESSAGE, cause, is_unexplained};
pub(super) use swarm::{Reading, swarm};

use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;

use frame::{Content, Section, failure_line};
pub(super) use frame::{Cut, CutResult};

use super::clean::{defuse, one_line};
use super::settings::Deadline;
use super::{Budget, Missing};
use crate::model::{Outcome, Output, Record, ToolCall, Trace};
use crate::name::RelPath;
use crate::store::File;
use crate::view::{Member, View};

/// The longest id in the title, in bytes.
const TITLE_MAX: usize = 200;
/// The longest error that is quoted, and the least of one, in bytes.
const ERROR_MAX: usize = 320;
const ERROR_LEAST: usize = 20;

/// The excerpt of one worker's outputs.
pub(super) fn worker(
    view: &View,
    member: &Member,
    record: &Record,
    budget: Budget,
    go_on: Deadline<'_>,
    missing: &dyn Fn() -> Option<Missing>,
) -> Written {
    let Record { worker, trace, .. } = record;
    let order = order(trace);
    let sections: Vec<Section> = if order.is_empty() {
        trace.loose.iter().enumerate().map(|(turn, file)| loose_section(&file.path, file.bytes, turn)).collect()
    } else {
        order.iter().zip(turns(&order)).map(|(call, turn)| section(call, "", turn)).collect()
    };
    let has_sections = !sections.is_empty();
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
    let failed = order.first().copied().filter(|call| call.outcome == Outcome::Failed);
    let message: OnceCell<Option<String>> = OnceCell::new();
    let job = worker.job.as_deref().unwrap_or("-");
    let content = Content {
        title: format!("Worker {} ({})", one_line(job, TITLE_MAX), one_line(&member.name.display(), TITLE_MAX)),
        counted,
        lines: &|room, kept| {
            let unread = trace.unreadable.first().map(|(_, reason)| ("Not read: ", reason.as_str()));
            let error = worker.error.as_deref().map(|error| ("Error: ", error));
            let room = if has_sections { room * 2 / 3 } else { room }.min(room.saturating_sub(kept));
            labelled(unread.into_iter().chain(error), room)
        },
        failure: &|room| {
            let message = message.get_or_init(|| failed.and_then(|call| cause::message(view, member, call)));
            let path = failed.map(|call| defuse(&call.path.display())).unwrap_or_default();
            message.as_deref().map_or_else(String::new, |message| failure_line(&path, message, room))
        },
        lines_tell_failures: false,
        sections,
        open: &open,
        cut: &|_, cut| cut(go_on),
        go_on,
        missing,
        failed: Cell::new(false),
    };
    content.within(budget)
}

/// Returns a line for each label with its text, cut to `room` bytes in all; one that cannot say anything in that is left out.
fn labelled<'a>(texts: impl Iterator<Item = (&'static str, &'a str)>, room: usize) -> String {
    let mut lines = String::new();
    for (label, text) in texts {
        let left = room.saturating_sub(lines.len() + label.len() + 1);
        if left >= text.len().min(ERROR_LEAST) {
            lines.push_str(&format!("{label}{}\n", one_line(text, ERROR_MAX.min(left))));
        }
    }
    if lines.len() <= room { lines } else { String::new() }
}

/// Failed calls, of these last the ones that were never carried out, then unknown, then ok. Of failed and of good ones the latest first: it tells where the work stands. Those
/// that say nothing of themselves are the steps of a transcript, and stay in the order they were made in.
fn order(trace: &Trace) -> Vec<&ToolCall> {
    let mut calls: Vec<&ToolCall> = trace.calls.iter().collect();
    let place = |call: &ToolCall| match call.outcome {
        Outcome::Unknown => (2, call.seq, u64::MAX - call.bytes),
        Outcome::Failed => (u8::from(call.cancelled), u64::MAX - call.seq, u64::MAX - call.bytes),
        Outcome::Ok => (3, u64::MAX - call.seq, u64::MAX - call.bytes),
    };
    calls.sort_by_key(|call| (place(call), call.path.clone()));
    calls
}

/// The call that tells most of why a worker failed: the latest that failed, else the latest that does not say how it
/// ended; none if all are known to have gone well.
fn decisive(trace: &Trace) -> Option<&ToolCall> {
    let order = order(trace);
    let first = order.first().filter(|call| call.outcome == Outcome::Failed);
    first.or_else(|| order.iter().rfind(|call| call.outcome == Outcome::Unknown)).copied()
}

/// Of every so many steps one is taken from the end.
const STEPS_A_ROUND: usize = 4;
/// A step of fewer bytes, of which it is not known what was done in it, is taken to hand over to another.
const BRIEF: u64 = 300;

/// In which turn each of the `calls`, which are in order, is heard where there is not room for all. Steps are heard from
/// the beginning, where the decisive one often is, and the last of all, and so on from both ends; brief ones behind the
/// others.
fn turns(calls: &[&ToolCall]) -> Vec<usize> {
    let is_step = |at: &usize| calls.get(*at).is_some_and(|call| call.outcome == Outcome::Unknown);
    let is_brief = |at: &usize| calls.get(*at).is_some_and(|call| call.bytes < BRIEF && call.input.is_none());
    let steps: Vec<usize> = (0..calls.len()).filter(is_step).collect();
    let (brief, telling): (VecDeque<usize>, VecDeque<usize>) = steps.iter().partition(|at| is_brief(at));
    let heard = [telling, brief].map(from_both_ends).concat();
    let mut turns: Vec<usize> = (0..calls.len()).collect();
    for (turn, at) in steps.into_iter().zip(heard) {
        if let Some(place) = turns.get_mut(at) {
            *place = turn;
        }
    }
    turns
}

/// The last, some of the first, the last but one, and so on.
fn from_both_ends(mut steps: VecDeque<usize>) -> Vec<usize> {
    let mut heard = Vec::with_capacity(steps.len());
    while let Some(step) = if heard.len() % STEPS_A_ROUND == 0 { steps.pop_back() } else { steps.pop_front() } {
        heard.push(step);
    }
    heard
}

/// The section of a call, which is heard in this turn; `prefix` stands before its path.
fn section(call: &ToolCall, prefix: &str, turn: usize) -> Section {
    Section {
        path: defuse(&format!("{prefix}{}", call.path.display())),
        source: match &call.output {
            // Its call's own file holds only the stub, so the offsets are for a file beside the store.
            Output::OutOfBand(file) => Some(format!("the store's tool_outputs/{}", defuse(&file.display()))),
            Output::InPlace | Output::Pending | Output::Unreadable(_) => None,
        },
        turn,
        outcome: Some(call.outcome),
        exit_code: call.exit_code,
        bytes: call.bytes,
        input: call.input.clone(),
        unreadable: match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::Pending => Some(super::index::NO_RESULT.into()),
            Output::InPlace | Output::OutOfBand(_) => None,
        },
    }
}

fn loose_section(path: &RelPath, bytes: u64, turn: usize) -> Section {
    let path = defuse(&path.display());
    Section { path, source: None, turn, outcome: None, exit_code: None, bytes, input: None, unreadable: None }
}

fn open_call(view: &View, member: &Member, call: &ToolCall) -> Result<Box<dyn File>, String> {
    match view.open_output(member, call) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err("stored out of band".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// An evidence.txt.
pub(super) struct Written {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// Whether all that it shows could be read; if not, it says so, and another time it may be.
    pub(super) whole: bool,
}

/// What the evidence of many workers needs of one of them.
pub(super) struct Account<'a> {
    /// The worker.
    pub(super) member: &'a Member,
    /// How it ended, and one line that says why it failed; `None` where there was no time to look into it.
    pub(super) end: Option<(Outcome, &'a str)>,
    /// What its record does not bear out, if it claims success.
    pub(super) doubt: Option<String>,
}
