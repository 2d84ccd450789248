//! Checks a worker's claims against its record, and the quality of the record itself. Each check is
//! a function that returns a [`FailedCheck`] for each problem that it finds.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::success_claim::{SuccessClaim, shows_check};
use crate::catalog::Fingerprint;
use swarmletfs_base::model::{
    CallKind, Flaw, Outcome, Output, Record, Skipped, Status, ToolCall, Trace, UnansweredCalls,
    Unused, WorkStep,
};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::count;
use swarmletfs_base::unicode::count_hidden;

const REPEATED_MIN: usize = 3;
const NAMES_SHOWN: usize = 5;
/// Maximum number of calls whose outputs are searched for a mention of a check.
const OUTPUTS_MAX: usize = 100;
/// Maximum length of a name, input or status quoted from a trace, in bytes.
const QUOTE_MAX: usize = 80;

/// The meaning of a failed check, in the order in which checks are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// The worker claims success, and its record contradicts that.
    Doubt,
    /// A fact about the worker that contradicts no claim.
    Remark,
    /// A part of the record is missing, damaged or contradictory.
    DataQuality,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheck {
    pub name: Cow<'static, str>,
    pub kind: CheckKind,
    #[serde(rename = "says")]
    pub message: String,
    /// The file that proves it, relative to the worker's directory.
    pub file: String,
}

impl FailedCheck {
    /// Creates a finding about the quality of the record.
    pub fn new(
        name: &'static str,
        message: impl Into<String>,
        file: impl Into<String>,
    ) -> FailedCheck {
        let kind = CheckKind::DataQuality;
        FailedCheck { name: name.into(), kind, message: message.into(), file: file.into() }
    }

    pub(super) fn with_kind(self, kind: CheckKind) -> FailedCheck {
        FailedCheck { kind, ..self }
    }
}

enum Claim {
    Status,
    Words(SuccessClaim),
}

impl Claim {
    fn find(Record { worker, trace, .. }: &Record) -> Option<Claim> {
        if worker.status != Status::Completed {
            None
        } else if trace.status_is_derived {
            SuccessClaim::find(trace.final_words.as_deref()?)
                .filter(|claim| claim.is_whole)
                .map(Claim::Words)
        } else {
            Some(Claim::Status)
        }
    }

    /// Returns the calls that contradict the claim, in order: checks that are red at the end,
    /// deliveries that failed for good, and a last call that failed. A stated success is also
    /// contradicted by the failure of a call of which nothing is known but its tool.
    fn contradictions<'a>(&self, trace: &'a Trace) -> Vec<&'a ToolCall> {
        let last = trace.failed_last_call().map(|call| &call.path);
        let mut calls = trace.unresolved().into_calls();
        calls.retain(|call| {
            if last == Some(&call.path) {
                return true;
            }
            let mut steps = call.steps();
            steps.remove(&WorkStep::CiState);
            match self {
                Claim::Words(claim) => !steps.is_empty() && claim.covers(&steps),
                Claim::Status => !steps.is_empty() || !call.is_command,
            }
        });
        calls
    }

    fn source(&self) -> &'static str {
        match self {
            Claim::Status => "its status says success",
            Claim::Words(_) => "its final words claim success",
        }
    }
}

/// Time without a write, while others write, after which an unfinished worker counts as silent.
/// Tools commonly limit a call to ten minutes.
const SILENT: Duration = Duration::from_secs(15 * 60);
/// Name of the check that finds silent workers. It applies only to files about many workers:
/// silence is measured against the writes of others, not against the clock.
pub const SILENT_NAME: &str = "silent";
/// Name of the check that reports parts of the record that there was no time to read.
const LATE_NAME: &str = "not_read_in_time";

/// Returns the duration of a worker's silence: from `last`, its last write, to `newest`, the last
/// write of any worker. Returns `None` if the worker is not silent.
pub fn silent(status: Status, last: Time, newest: Time) -> Option<Duration> {
    let silence = Duration::from_secs(
        u64::try_from(newest.secs.saturating_sub(last.secs)).unwrap_or_default(),
    );
    (!status.is_finished() && status != Status::Unknown && silence >= SILENT).then_some(silence)
}

pub trait ClaimedFiles {
    fn missing(&self) -> Vec<FailedCheck>;

    /// Returns the output of a call, or the end of a long one. Returns `None` if it is unreadable.
    fn output(&self, call: &ToolCall) -> Option<String>;
}

/// Runs all checks and returns the failed ones: doubts first, data quality last.
pub fn run(
    record: &Record,
    fingerprint: &Fingerprint,
    files: &dyn ClaimedFiles,
) -> Vec<FailedCheck> {
    let trace = &record.trace;
    let claim = Claim::find(record);
    let contradictions =
        claim.as_ref().map(|claim| claim.contradictions(trace)).unwrap_or_default();
    let flaws = record.worker.flaws.iter().map(|found| flaw(found, record.worker.status));
    let mut found: Vec<FailedCheck> = flaws
        .chain(no_tool_call(record, claim.as_ref()))
        .chain(no_final_words(record))
        .chain(claim.iter().flat_map(|claim| unsupported_success(trace, claim, &contradictions)))
        .chain(checks_that_never_ran(record, files))
        .chain(missing_claimed_files(record, files))
        .chain(calls_without_result(record))
        .chain(calls_without_end(record))
        .chain(repeated_failures(trace, &contradictions))
        .chain(unreadable_outputs(trace))
        .chain(unreadable_files(trace))
        .chain(bad_lines(trace))
        .chain(partial_reads(trace))
        .chain(truncated_outputs(trace))
        .chain(unused_lines(&trace.unused))
        .chain(late_outputs(record))
        .chain(invisible_characters(record))
        .chain(skipped_entries(fingerprint.skipped))
        .collect();
    found.sort_by_key(|check| check.kind);
    found
}

fn flaw(flaw: &Flaw, status: Status) -> FailedCheck {
    let (name, message) = match flaw {
        Flaw::BadTranscript(reason) => {
            let message = one_line(&format!("its transcript: {reason}"), 300);
            return FailedCheck::new("bad_transcript", message, "source.jsonl");
        }
        Flaw::NoMessages => {
            let message = "its transcript has no messages";
            return FailedCheck::new("no_message", message, "source.jsonl");
        }
        Flaw::NoMetadata => ("no_metadata", "there is no metadata.json".into()),
        Flaw::BadMetadata { reason, last_good_shown: true, .. } => {
            ("bad_metadata", format!("metadata.json is {reason}; its earlier content is shown"))
        }
        Flaw::BadMetadata { reason, last_good_shown: false, .. } => {
            ("bad_metadata", format!("metadata.json is {reason}"))
        }
        Flaw::IdMismatch(id) => {
            ("other_id", format!("metadata.json has another id: {}", one_line(id, QUOTE_MAX)))
        }
        Flaw::ConflictingOwners => {
            ("two_owners", "metadata.json names two owners, so the worker has none".into())
        }
        Flaw::Claim { field, text } => (
            "claims_otherwise",
            format!("metadata.json claims {field} {}", one_line(text, QUOTE_MAX)),
        ),
        Flaw::BadRegistration(reason) => {
            let message = one_line(&format!("its record in registry/ is {reason}"), 300);
            return FailedCheck::new("bad_registration", message, "metadata.json");
        }
        Flaw::IndexDisagrees(word) => (
            "index_disagrees",
            format!("the store's index.json has another status: {}", one_line(word, QUOTE_MAX)),
        ),
    };
    let is_doubt = matches!(flaw, Flaw::IndexDisagrees(_)) && status == Status::Completed;
    let kind = if is_doubt { CheckKind::Doubt } else { CheckKind::DataQuality };
    FailedCheck::new(name, one_line(&message, 300), "metadata.json").with_kind(kind)
}

/// Reports a worker that made no call. A worker that claims no success may have had nothing to do.
fn no_tool_call(
    Record { worker, trace, .. }: &Record,
    claim: Option<&Claim>,
) -> Option<FailedCheck> {
    let has_finished = worker.status.is_finished() && worker.status != Status::Abandoned;
    let records_calls = trace.records_calls && !trace.is_plain_command;
    let is_idle = has_finished && records_calls && trace.calls.is_empty();
    let kind = match claim {
        Some(_) => CheckKind::Doubt,
        None if trace.status_is_derived => return None,
        None => CheckKind::Remark,
    };
    is_idle.then(|| {
        FailedCheck::new("no_tool_call", "it finished without any tool call", "tool_calls")
            .with_kind(kind)
    })
}

fn no_final_words(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    let has_words = trace.final_words.is_some() || trace.final_words_in_parent;
    (worker.status == Status::Completed && !has_words && !trace.is_plain_command).then(|| {
        FailedCheck::new("no_final_words", "it finished without any final words", "result.txt")
            .with_kind(CheckKind::Remark)
    })
}

/// Checks a claim of success against the `calls` that contradict it: the last one that failed, and
/// the last that looks failed.
fn unsupported_success(trace: &Trace, claim: &Claim, calls: &[&ToolCall]) -> Vec<FailedCheck> {
    let source = claim.source();
    let last_failed = trace.failed_last_call().map(|last| &last.path);
    let failed = calls.iter().rfind(|call| call.outcome == Outcome::Failed).map(|call| {
        let tool = one_line(&call.tool, QUOTE_MAX);
        if last_failed == Some(&call.path) {
            let message = format!("{source}, but its last call failed");
            FailedCheck::new("success_but_last_call_failed", message, call.path.display())
        } else {
            let message =
                format!("{source}, but a call of {tool} failed and nothing later made it good");
            FailedCheck::new("failure_never_made_good", message, call.path.display())
        }
    });
    let suspect = calls.iter().rfind(|call| call.outcome != Outcome::Failed).map(|call| {
        let line = one_line(call.suspect.as_deref().unwrap_or_default(), QUOTE_MAX);
        let message = format!("{source}, but a call looks failed and was not repeated: {line}");
        FailedCheck::new("success_but_call_looks_failed", message, call.path.display())
    });
    let found = failed.into_iter().chain(suspect);
    found.map(|check| check.with_kind(CheckKind::Doubt)).collect()
}

/// Finds a worker whose final words say that a check passed although no call ran one.
///
/// Finds nothing if arguments are not recorded, or if the checks may be part of a history that the
/// record does not hold. Reads outputs only if no command is such a check: a script may run it.
fn checks_that_never_ran(
    Record { worker, trace, unread }: &Record,
    files: &dyn ClaimedFiles,
) -> Vec<FailedCheck> {
    let words = trace.final_words.as_deref().filter(|_| worker.status == Status::Completed);
    let inputs_known = trace.calls.iter().all(|call| call.input.is_some());
    let is_readable = trace.records_calls && inputs_known && *unread == 0;
    let claim = words.filter(|_| is_readable && worker.continues.is_none());
    let Some(claim) = claim.and_then(SuccessClaim::find) else { return Vec::new() };
    let ran = trace.calls.iter().filter(|call| call.outcome != Outcome::NotRun);
    let steps: BTreeSet<WorkStep> = ran.clone().flat_map(ToolCall::steps).collect();
    let missing: Vec<(&str, &str)> = claim.without_check(&steps).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let mut indirect = ran
        .filter(|call| {
            matches!(call.kind(), CallKind::Command | CallKind::Check | CallKind::Delegate)
        })
        .rev()
        .take(OUTPUTS_MAX);
    if indirect.any(|call| files.output(call).is_none_or(|output| shows_check(&output))) {
        return Vec::new();
    }
    let found = missing.into_iter().map(|(name, message)| {
        FailedCheck::new(name, message, "tool_calls").with_kind(CheckKind::Doubt)
    });
    found.collect()
}

fn missing_claimed_files(record: &Record, files: &dyn ClaimedFiles) -> Vec<FailedCheck> {
    if record.worker.status == Status::Completed { files.missing() } else { Vec::new() }
}

fn calls_without_result(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    (worker.status.is_finished() && !trace.unanswered.tools.is_empty()).then(|| {
        let message = format!("calls without output: {}", tool_list(&trace.unanswered));
        FailedCheck::new("call_without_result", message, "thread.jsonl")
    })
}

/// Finds the calls of a finished worker whose end is not recorded. Names the first one.
fn calls_without_end(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    let mut open = trace.calls.iter().filter(|call| call.is_open);
    let first = open.next().filter(|_| worker.status.is_finished())?;
    let message = match open.count() {
        0 => "the call began, and its record does not say how it ended".into(),
        more => {
            format!("this call and {more} more began, and their record does not say how they ended")
        }
    };
    Some(FailedCheck::new("call_without_end", message, first.path.display()))
}

/// Lists the first tools by name, with the number of their calls if there are several. Counts the
/// calls of all other tools.
fn tool_list(unanswered: &UnansweredCalls) -> String {
    let names = unanswered.tools.iter().take(NAMES_SHOWN).map(|(tool, calls)| {
        let tool = one_line(tool, QUOTE_MAX);
        if *calls > 1 { format!("{tool} ({calls})") } else { tool }
    });
    let shown = names.collect::<Vec<_>>().join(", ");
    let more = unanswered.tools.values().skip(NAMES_SHOWN).sum::<u64>() + unanswered.other_tools;
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Finds calls that failed repeatedly with the same input and never succeeded after that. They are
/// a doubt if the last one is among the `contradictions` of the worker's claim.
fn repeated_failures(
    trace: &Trace,
    contradictions: &[&ToolCall],
) -> impl Iterator<Item = FailedCheck> {
    let contradicting: BTreeSet<&RelPath> = contradictions.iter().map(|call| &call.path).collect();
    let mut failures: BTreeMap<(&str, &str), (usize, &ToolCall)> = BTreeMap::new();
    for call in &trace.calls {
        // Calls can only be compared by their input.
        let Some(input) = &call.input else { continue };
        match call.outcome {
            Outcome::Failed => {
                let (times, last) = failures.entry((&call.tool, input)).or_insert((0, call));
                *times += 1;
                *last = call;
            }
            // Retrying until a call succeeds is normal when looking for a fault.
            Outcome::Ok => drop(failures.remove(&(call.tool.as_str(), input.as_str()))),
            Outcome::Unknown | Outcome::NotRun => {}
        }
    }
    let repeated = failures.into_iter().filter(|(_, (times, _))| *times >= REPEATED_MIN);
    repeated.map(move |((tool, input), (times, last))| {
        let (tool, input) = (one_line(tool, QUOTE_MAX), one_line(input, QUOTE_MAX));
        let message = format!("failed {times} times: {tool} {input}");
        let is_doubt = contradicting.contains(&last.path);
        FailedCheck::new("same_call_failed_again", message, last.path.display())
            .with_kind(if is_doubt { CheckKind::Doubt } else { CheckKind::Remark })
    })
}

fn unreadable_outputs(trace: &Trace) -> impl Iterator<Item = FailedCheck> {
    trace.calls.iter().filter_map(|call| match &call.output {
        Output::Unreadable(reason) => {
            Some(FailedCheck::new("unreadable_output", reason, call.path.display()))
        }
        _ => None,
    })
}

fn unreadable_files(trace: &Trace) -> impl Iterator<Item = FailedCheck> {
    trace.unreadable.iter().map(|(file, reason)| {
        FailedCheck::new("unreadable_file", reason, one_line(&file.display(), 300))
    })
}

fn bad_lines(trace: &Trace) -> impl Iterator<Item = FailedCheck> {
    trace.bad_lines.iter().map(|(file, lines)| {
        let message = format!("{} could not be read", count(*lines, "line"));
        FailedCheck::new("bad_lines", message, *file)
    })
}

fn partial_reads(trace: &Trace) -> impl Iterator<Item = FailedCheck> {
    trace.partial_reads.iter().map(|(file, read)| {
        let (name, why) =
            if read.timed_out { (LATE_NAME, " in time") } else { ("not_read_whole", "") };
        let message = format!("only its first {} bytes were read{why}", read.bytes);
        FailedCheck::new(name, message, *file)
    })
}

fn truncated_outputs(trace: &Trace) -> Option<FailedCheck> {
    let first = trace.truncated.first()?;
    let message = match trace.truncated.len() {
        1 => "an output was truncated before it was recorded".into(),
        n => format!("{n} outputs were truncated before they were recorded; this is the first"),
    };
    Some(FailedCheck::new("truncated_at_source", message, first.display()))
}

fn unused_lines(unused: &Unused) -> impl Iterator<Item = FailedCheck> {
    let kinds = unused.kinds.keys().take(NAMES_SHOWN).map(|kind| one_line(kind, QUOTE_MAX));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let torn = unused.is_torn.then(|| {
        let message = "it ends inside a value or is not JSON; nothing behind that place is shown";
        FailedCheck::new("torn_document", message, unused.source)
    });
    let parts = [
        (
            "unknown_records",
            unused.kinds.values().sum(),
            &*format!("lines are of unknown kinds: {kinds}"),
        ),
        ("results_without_calls", unused.orphan_results, "results belong to no call"),
        (
            "calls_not_shown",
            unused.excess_calls,
            "further calls are not shown, because there are too many",
        ),
        (
            "workers_not_shown",
            unused.excess_agent_lines,
            "lines belong to subagents that are not shown",
        ),
    ];
    let checks = parts.map(|(name, n, text)| {
        (n > 0).then(|| FailedCheck::new(name, format!("{n} {text}"), unused.source))
    });
    torn.into_iter().chain(checks.into_iter().flatten())
}

fn late_outputs(record: &Record) -> Option<FailedCheck> {
    (record.unread > 0).then(|| {
        let outputs = count(record.unread, "output");
        let message = format!("not read in time: {outputs}; their outcomes are shown as unknown");
        FailedCheck::new(LATE_NAME, message, "tool_calls")
    })
}

fn invisible_characters(record: &Record) -> Option<FailedCheck> {
    let hidden = hidden(record);
    (hidden > 0).then(|| {
        let characters = count(hidden as u64, "invisible character");
        let message = format!(
            "{characters} in its task, words, names and inputs; generated files omit or escape them"
        );
        FailedCheck::new("invisible_characters", message, ".")
    })
}

/// Counts the invisible characters in the texts of a record, except the ones of ordinary writing.
fn hidden(record: &Record) -> usize {
    let Record { worker, trace, .. } = record;
    let own = [&worker.error, &worker.summary, &worker.supervisor_notes];
    let texts = own.into_iter().chain([&trace.task, &trace.final_words]);
    let texts = texts.filter_map(Option::as_deref);
    let task = trace.task.is_none().then_some(&*worker.task);
    let words = [&worker.run, &worker.job, &worker.model, &worker.task_type, &worker.status_source];
    let words =
        words.into_iter().filter_map(Option::as_deref).chain(worker.tags.iter().map(|tag| &**tag));
    let calls =
        trace.calls.iter().flat_map(|call| call.input.as_deref().into_iter().chain([&*call.tool]));
    texts.chain(task).chain(words).chain(calls).map(count_hidden).sum()
}

fn skipped_entries(skipped: Skipped) -> Option<FailedCheck> {
    (!skipped.is_empty()).then(|| {
        let message = format!(
            "in its folder but not shown: {}, {}, {} unreadable",
            count(skipped.links, "link"),
            count(skipped.special, "special file"),
            skipped.unreadable
        );
        FailedCheck::new("not_shown", message, ".")
    })
}
