//! Decides who needs a person, and why, from a worker's own record.
//!
//! Trouble is rare in real sessions, so a reason that holds for many workers is wrong. High are: a
//! wait for a person, a failure, a claim that the record contradicts, a check that is red at the
//! end, and a delivery that failed for good.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use jiff::Timestamp;
use regex::Regex;
use serde::{Deserialize, Serialize};
use unicode_segmentation::UnicodeSegmentation;

use super::checks::{CheckKind, FailedCheck};
use super::root_cause;
use crate::view::WorkerFiles;
use swarmletfs_base::failure_signs::denier;
use swarmletfs_base::model::{
    CallKind, LastStep, Outcome, Record, Status, ToolCall, Trace, WorkStep,
};
use swarmletfs_base::text::clean::one_line;

/// Number of equal calls, or of rounds of two calls, that make a loop.
const LOOP_MIN: usize = 5;
/// Maximum length of the line of a reason, in bytes.
const LINE_MAX: usize = 200;
/// Maximum number of reasons of one kind.
const REASONS_MAX: usize = 5;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, Hash,
)]
#[serde(rename_all = "snake_case")]
pub enum AttentionLevel {
    High,
    Low,
    #[default]
    None,
}

impl AttentionLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            AttentionLevel::High => "high",
            AttentionLevel::Low => "low",
            AttentionLevel::None => "none",
        }
    }
}

/// Kind of a reason, in the order in which reasons are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// It waits for a person.
    Waits,
    Failed,
    /// It claims something that its record contradicts.
    Contradicted,
    /// A check was red when it was last seen.
    RedAtEnd,
    /// A command that delivers or changes something failed, and nothing made it good.
    OpenFailure,
    /// A worker that it started failed, and it did not make that good.
    ChildFailed,
    /// A call was refused, and no later call did its work.
    Denied,
    /// The same call, or the same two calls in turn, five times or more.
    Loop,
    /// It stopped in the middle of its work.
    Cut,
    /// Its user stopped it.
    Interrupted,
    /// It used over three times as much as its peers.
    Waste,
}

impl ReasonKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ReasonKind::Waits => "waits",
            ReasonKind::Failed => "failed",
            ReasonKind::Contradicted => "contradicted",
            ReasonKind::RedAtEnd => "red_at_end",
            ReasonKind::OpenFailure => "open_failure",
            ReasonKind::ChildFailed => "child_failed",
            ReasonKind::Denied => "denied",
            ReasonKind::Loop => "loop",
            ReasonKind::Cut => "cut",
            ReasonKind::Interrupted => "interrupted",
            ReasonKind::Waste => "waste",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionReason {
    pub kind: ReasonKind,
    pub level: AttentionLevel,
    /// The file that proves it, relative to the worker's directory.
    pub file: Option<String>,
    pub call: Option<u64>,
    pub line: String,
    pub since: Option<Timestamp>,
}

impl AttentionReason {
    pub fn new(kind: ReasonKind, level: AttentionLevel, line: &str) -> AttentionReason {
        let line = one_line(line, LINE_MAX);
        AttentionReason { kind, level, file: None, call: None, line, since: None }
    }

    /// Returns who refused the call, if the reason is a refusal that says it.
    pub fn denier(&self) -> Option<&'static str> {
        denier(&self.line).filter(|_| self.kind == ReasonKind::Denied)
    }

    pub fn about(self, call: &ToolCall) -> AttentionReason {
        let file = Some(call.path.display());
        AttentionReason { file, call: Some(call.seq), since: call.at, ..self }
    }
}

/// The reasons why a worker needs a person, most important first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attention {
    pub reasons: Vec<AttentionReason>,
}

impl Attention {
    pub fn level(&self) -> AttentionLevel {
        self.reasons.iter().map(|reason| reason.level).min().unwrap_or_default()
    }

    /// Names the kinds of the reasons, most important first.
    pub fn kinds(&self) -> String {
        let kinds: BTreeSet<ReasonKind> = self.reasons.iter().map(|reason| reason.kind).collect();
        kinds.into_iter().map(ReasonKind::as_str).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn add(&mut self, reason: AttentionReason) {
        self.reasons.push(reason);
        self.reasons.sort_by_key(|reason| reason.kind);
    }

    /// Finds the reasons in a worker's own record. `checks` are those that it does not pass.
    /// `failure` is the cause of its failure, if its outcome is failed.
    pub(super) fn find(
        files: &WorkerFiles<'_>,
        record: &Record,
        checks: &[FailedCheck],
        failure: Option<&str>,
    ) -> Attention {
        let Record { worker, trace, .. } = record;
        let open = open_calls(files, record);
        let last = worker.last_message;
        let mut reasons: Vec<AttentionReason> = waits(record).into_iter().collect();
        let is_explained = trace
            .failed_last_call()
            .is_none_or(|call| open.iter().any(|reason| reason.call == Some(call.seq)));
        if let Some(cause) = failure.filter(|_| open.is_empty() || !is_explained) {
            let reason = AttentionReason::new(ReasonKind::Failed, AttentionLevel::High, cause);
            let reason = match trace.failed_last_call() {
                Some(call) => reason.about(call),
                None => AttentionReason { since: last, ..reason },
            };
            reasons.push(reason);
        }
        let doubts = checks.iter().filter(|check| check.kind == CheckKind::Doubt);
        reasons.extend(doubts.take(REASONS_MAX).map(|check| {
            let kind = ReasonKind::Contradicted;
            let call = trace.calls.iter().find(|call| call.path.display() == check.file);
            AttentionReason {
                file: Some(check.file.clone()),
                call: call.map(|call| call.seq),
                since: call.and_then(|call| call.at).or(last),
                ..AttentionReason::new(kind, AttentionLevel::High, &check.message)
            }
        }));
        reasons.extend(open);
        // A refusal for which the worker waits is one reason.
        let waits_for = reasons.iter().find(|reason| reason.kind == ReasonKind::Waits);
        let waits_for = waits_for.and_then(|reason| reason.call);
        let denied = denials(trace);
        reasons.extend(denied.into_iter().filter(|reason| waits_for != reason.call));
        reasons.extend(repetition(trace));
        let ended = match (worker.status, trace.last_step) {
            (Status::Abandoned, LastStep::Result) => {
                Some((ReasonKind::Cut, "it stopped before it answered the last result"))
            }
            (Status::Abandoned, LastStep::Call) if worker.parent.is_some() => {
                Some((ReasonKind::Cut, "it stopped before its last call had a result"))
            }
            (Status::Abandoned | Status::Unknown, LastStep::Interruption) => {
                Some((ReasonKind::Interrupted, "its user stopped it"))
            }
            _ => None,
        };
        reasons.extend(ended.map(|(kind, line)| AttentionReason {
            since: last,
            ..AttentionReason::new(kind, AttentionLevel::Low, line)
        }));
        reasons.sort_by_key(|reason| reason.kind);
        Attention { reasons }
    }
}

/// Returns the checks that are red at the end and the deliveries that failed for good, latest
/// first. Nothing is at its end while the worker works.
fn open_calls(files: &WorkerFiles<'_>, record: &Record) -> Vec<AttentionReason> {
    if !record.worker.status.is_finished() {
        return Vec::new();
    }
    let unresolved = record.trace.unresolved().into_calls();
    let with_steps = unresolved.into_iter().rev().map(|call| (call, call.steps()));
    let found = with_steps.filter(|(_, steps)| !steps.is_empty()).take(REASONS_MAX);
    let reasons = found.map(|(call, steps)| {
        let kind = match steps.iter().any(|step| step.is_check()) {
            true => ReasonKind::RedAtEnd,
            false => ReasonKind::OpenFailure,
        };
        // The state elsewhere may have changed since the last look.
        let is_elsewhere = steps.iter().all(|step| *step == WorkStep::CiState);
        let level = if is_elsewhere { AttentionLevel::Low } else { AttentionLevel::High };
        let line = call.suspect.clone().or_else(|| root_cause::message(files, call));
        let line = line.or_else(|| call.input.clone()).unwrap_or_default();
        AttentionReason::new(kind, level, &line).about(call)
    });
    reasons.collect()
}

/// Returns the request to a person for which a worker waits.
fn waits(Record { worker, trace, .. }: &Record) -> Option<AttentionReason> {
    let high = |line: &str| AttentionReason::new(ReasonKind::Waits, AttentionLevel::High, line);
    if let Some(wait) = &worker.waiting {
        return Some(AttentionReason { since: wait.since, ..high(&wait.request) });
    }
    if worker.status == Status::Waiting {
        let reason = high("its record does not say for what");
        return Some(AttentionReason { since: worker.last_message, ..reason });
    }
    // A worker that another one started asks that one.
    if worker.parent.is_some() {
        return None;
    }
    let last_call = trace.calls.last();
    match (worker.status, trace.last_step) {
        (Status::Completed, _) => {
            let question = closing_question(trace.final_words.as_deref()?)?;
            Some(AttentionReason { since: worker.last_message, ..high(&question) })
        }
        (Status::Abandoned | Status::Unknown, LastStep::Refusal) => {
            let call = last_call?;
            Some(
                high(&format!("its user refused a call of {} and said no more", call.tool))
                    .about(call),
            )
        }
        (Status::Abandoned, LastStep::Call) => {
            let call = last_call?;
            Some(high(&format!("a call of {} has no result", call.tool)).about(call))
        }
        _ => None,
    }
}

/// Returns the last refused calls whose work no later call of their tool did, latest first. A
/// refused plan or question is an answer.
fn denials(trace: &Trace) -> Vec<AttentionReason> {
    let mut done: HashMap<&str, BTreeSet<WorkStep>> = HashMap::new();
    let mut found: Vec<AttentionReason> = Vec::new();
    for call in trace.calls.iter().rev() {
        if call.outcome == Outcome::Ok {
            done.entry(&call.tool).or_default().extend(call.steps());
        }
        let Some(line) = call.denial.as_deref().filter(|_| call.kind() != CallKind::Ask) else {
            continue;
        };
        let later = done.get(call.tool.as_str());
        // Without steps, another edit or command took its place.
        if later.is_none_or(|later| !call.steps().is_subset(later)) {
            let reason = AttentionReason::new(ReasonKind::Denied, AttentionLevel::Low, line);
            found.push(reason.about(call));
        }
        if found.len() == REASONS_MAX {
            break;
        }
    }
    found
}

/// Finds the longest row of equal calls, or of two calls in turn.
fn repetition(trace: &Trace) -> Option<AttentionReason> {
    let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
    let calls = trace.calls.iter().filter_map(|call| Some((call, call.input.as_deref()?)));
    let calls: Vec<(&ToolCall, usize)> = calls
        .map(|(call, input)| {
            let next = numbers.len();
            (call, *numbers.entry((&call.tool, input)).or_insert(next))
        })
        .collect();
    let row = |period: usize| {
        let (mut best, mut length) = ((0, 0), 0);
        for at in period..calls.len() {
            let number = |at: usize| calls.get(at).map(|(_, number)| *number);
            length = if number(at) == number(at - period) { length + 1 } else { 0 };
            if length > best.0 {
                best = (length, at);
            }
        }
        (best.0 / period + 1, best.1)
    };
    let (times, at) = [1, 2].map(row).into_iter().max()?;
    let (call, _) = calls.get(at).filter(|_| times >= LOOP_MIN)?;
    let input = call.input.as_deref().unwrap_or_default();
    let line = format!("{times} times: {} {input}", call.tool);
    Some(AttentionReason::new(ReasonKind::Loop, AttentionLevel::Low, &line).about(call))
}

/// Maximum length of the end of a message that is searched, in bytes.
const END_MAX: usize = 4 << 10;
/// Number of sentences at the end of a message, one of which may ask.
const SENTENCES: usize = 2;

/// Matches a sentence without a question mark that asks a person to decide.
const REQUEST: &str = r"(?xi-u)
    \b(?:please|kindly)\ (?:confirm|choose|decide|advise|approve|clarify|pick|let\ me\ know|tell\ me|provide|specify)\b
    | \blet\ me\ know\ (?:which|whether|how|what|your|when\ you(?:'re|\ are)\ ready)\b
    | \b(?:waiting|wait)\ for\ (?:your|you|the\ user(?:'s)?)\b
    | \b(?:need|needs|require|requires)\ your\ (?:approval|confirmation|decision|input|permission|go-ahead|answer)\b
    | \bawaiting\ (?:your|approval|confirmation|instructions|input)\b
    | \bbefore\ I\ (?:proceed|continue|start|go\ on),?\ (?:I\ need|please|tell|let)\b";

static REQUESTS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(REQUEST).ok());

/// Returns the last sentence of `words` that asks a person to choose or confirm, if one of the last
/// ones does. A question in a block of code or in an earlier paragraph asks nobody.
fn closing_question(words: &str) -> Option<String> {
    let end = words.trim_end();
    let end = end.get(end.ceil_char_boundary(end.len().saturating_sub(END_MAX))..)?;
    if end.ends_with("```") {
        return None;
    }
    let paragraph = end.rsplit("\n\n").next()?;
    let lines = paragraph.lines().filter(|line| !line.trim().is_empty());
    let sentences: Vec<&str> = lines.flat_map(str::unicode_sentences).map(str::trim).collect();
    let mut last = sentences.iter().rev().take(SENTENCES);
    let found = last.find(|sentence| asks(sentence))?;
    // Marks of emphasis begin or end in other sentences.
    Some(found.trim_matches(['*', '_', ' ']).to_owned())
}

fn asks(sentence: &str) -> bool {
    let bare = sentence.trim_end_matches(['*', '_', ')', '"', '”', '`', ' ']);
    bare.ends_with(['?', '？'])
        || REQUESTS.as_ref().is_some_and(|request| request.is_match(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_at_the_end_is_found() {
        for (words, question) in [
            ("All green.\n\nReady to commit?", "Ready to commit?"),
            (
                "Done. Want me to add it, or leave them visible?",
                "Want me to add it, or leave them visible?",
            ),
            ("Two ways:\n\n1. a\n2. b\n\n**Which one do you prefer?**", "Which one do you prefer?"),
            ("Which way? Or should I combine both?", "Or should I combine both?"),
            ("I have a plan. Please confirm.", "Please confirm."),
        ] {
            assert_eq!(closing_question(words).as_deref(), Some(question), "{words}");
        }
    }

    #[test]
    fn an_answer_asks_nothing() {
        for words in [
            "",
            "Done.",
            "Why did it fail? Because the path was wrong. It is mended now. All tests pass.",
            "Ready for your next instructions.",
            "If you think it is fine, I can remove it.",
            "Is it odd?\n\nNo, it is meant.",
            "```\nreally?\n```",
        ] {
            assert_eq!(closing_question(words), None, "{words}");
        }
    }
}
