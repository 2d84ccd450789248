//! Checks a worker's claims against its record. Each check is a function that returns a
//! [`FailedCheck`] for what it finds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::Fingerprint;
use crate::model::{
    Flaw, Outcome, Output, Record, Skipped, Status, Trace, UnansweredCalls, Unused,
};
use crate::store::Time;
use crate::text::clean::one_line;
use crate::text::count;
use crate::unicode::count_hidden;

/// Name of the check that finds a completed worker without final words.
pub(super) const NO_FINAL_WORDS: &str = "no_final_words";
/// Name of the check that finds a record with hidden text.
pub(super) const INVISIBLE_CHARACTERS: &str = "invisible_characters";
/// Minimum number of failures of one call that are reported as repeated.
const REPEATED_MIN: usize = 3;
/// Maximum number of tools or kinds of lines named in a check.
const NAMES_SHOWN: usize = 5;
/// Maximum length of a name, input or status quoted from a trace, in bytes.
const QUOTE_MAX: usize = 80;

/// A check that a worker's record does not pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedCheck {
    /// The name of the check, equal in all files.
    pub(crate) name: Cow<'static, str>,
    /// The reason, as a sentence.
    #[serde(rename = "says")]
    pub(crate) message: String,
    /// The file that proves it, relative to the worker's directory.
    pub(crate) file: String,
}

impl FailedCheck {
    pub(crate) fn new(
        name: &'static str,
        message: impl Into<String>,
        file: impl Into<String>,
    ) -> FailedCheck {
        FailedCheck { name: name.into(), message: message.into(), file: file.into() }
    }
}

/// Time without a write, while others write, after which an unfinished worker counts as silent.
/// Tools commonly limit a call to ten minutes.
const SILENT: Duration = Duration::from_secs(15 * 60);
/// Name of the check that finds silent workers. It applies only to files about many workers:
/// silence is measured against the writes of others, not against the clock.
pub(crate) const SILENT_NAME: &str = "silent";
/// Name of the check that reports what there was no time to read.
pub(super) const LATE_NAME: &str = "not_read_in_time";

/// Returns the duration of a worker's silence: from `last`, its last write, to `newest`, the last
/// write of any worker. Returns `None` if the worker is not silent.
pub(crate) fn silent(status: Status, last: Time, newest: Time) -> Option<Duration> {
    let silence = Duration::from_secs(
        u64::try_from(newest.secs.saturating_sub(last.secs)).unwrap_or_default(),
    );
    (!status.is_finished() && status != Status::Unknown && silence >= SILENT).then_some(silence)
}

/// Runs all checks and returns those that the record does not pass. `missing` returns those about
/// files that final words claim.
pub(crate) fn run(
    record: &Record,
    fingerprint: &Fingerprint,
    missing: &dyn Fn() -> Vec<FailedCheck>,
) -> Vec<FailedCheck> {
    let trace = &record.trace;
    let flaws = record.worker.flaws.iter().map(flaw);
    flaws
        .chain(no_tool_call(record))
        .chain(no_final_words(record))
        .chain(unsupported_success(record))
        .chain(missing_claimed_files(record, missing))
        .chain(calls_without_result(record))
        .chain(repeated_failures(trace))
        .chain(unreadable_outputs(trace))
        .chain(unreadable_files(trace))
        .chain(bad_lines(trace))
        .chain(partial_reads(trace))
        .chain(truncated_outputs(trace))
        .chain(unused_lines(&trace.unused))
        .chain(late_outputs(record))
        .chain(invisible_characters(record))
        .chain(skipped_entries(fingerprint.skipped))
        .collect()
}

/// Returns the check that fails because of a flaw of the worker's files.
fn flaw(flaw: &Flaw) -> FailedCheck {
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
        Flaw::IndexDisagrees(word) => (
            "index_disagrees",
            format!("the store's index.json has another status: {}", one_line(word, QUOTE_MAX)),
        ),
    };
    FailedCheck::new(name, one_line(&message, 300), "metadata.json")
}

fn no_tool_call(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    let has_finished = worker.status.is_finished() && worker.status != Status::Abandoned;
    let is_idle = has_finished && trace.records_calls && trace.calls.is_empty();
    is_idle.then(|| {
        FailedCheck::new("no_tool_call", "it finished without any tool call", "tool_calls")
    })
}

fn no_final_words(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    let has_words = trace.final_words.is_some() || trace.final_words_in_parent;
    (worker.status == Status::Completed && !has_words).then(|| {
        FailedCheck::new(NO_FINAL_WORDS, "it finished without any final words", "result.txt")
    })
}

/// Checks a claim of success against the outcomes of the calls.
fn unsupported_success(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    if worker.status != Status::Completed {
        return None;
    }
    if let Some(last) = trace.failed_last_call() {
        let message = "its status says success, but its last call failed";
        let file = last.path.display();
        return Some(FailedCheck::new("success_but_last_call_failed", message, file));
    }
    let call = trace.unresolved().pop()?;
    let tool = one_line(&call.tool, QUOTE_MAX);
    let message = format!(
        "its status says success, but a call of {tool} failed and no later call of it succeeded"
    );
    Some(FailedCheck::new("failure_never_made_good", message, call.path.display()))
}

/// Returns the checks of `missing` if the worker claims success.
fn missing_claimed_files(
    record: &Record,
    missing: &dyn Fn() -> Vec<FailedCheck>,
) -> Vec<FailedCheck> {
    if record.worker.status == Status::Completed { missing() } else { Vec::new() }
}

fn calls_without_result(Record { worker, trace, .. }: &Record) -> Option<FailedCheck> {
    (worker.status.is_finished() && !trace.unanswered.tools.is_empty()).then(|| {
        let message = format!("calls without output: {}", quoted(&trace.unanswered));
        FailedCheck::new("call_without_result", message, "thread.jsonl")
    })
}

/// Lists the first tools by name, with the number of their calls if there are several. Counts the
/// calls of all other tools.
fn quoted(unanswered: &UnansweredCalls) -> String {
    let names = unanswered.tools.iter().take(NAMES_SHOWN).map(|(tool, calls)| {
        let tool = one_line(tool, QUOTE_MAX);
        if *calls > 1 { format!("{tool} ({calls})") } else { tool }
    });
    let shown = names.collect::<Vec<_>>().join(", ");
    let more = unanswered.tools.values().skip(NAMES_SHOWN).sum::<u64>() + unanswered.other_tools;
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Finds calls that failed repeatedly with the same input and never succeeded after that.
fn repeated_failures(trace: &Trace) -> impl Iterator<Item = FailedCheck> {
    let mut failures: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for call in &trace.calls {
        // Calls can only be compared by their input.
        let Some(input) = &call.input else { continue };
        match call.outcome {
            Outcome::Failed => {
                let (times, file) = failures.entry((&call.tool, input)).or_default();
                *times += 1;
                *file = call.path.display();
            }
            // Retrying until a call succeeds is normal when looking for a fault.
            Outcome::Ok => drop(failures.remove(&(call.tool.as_str(), input.as_str()))),
            Outcome::Unknown | Outcome::NotRun => {}
        }
    }
    let repeated = failures.into_iter().filter(|(_, (times, _))| *times >= REPEATED_MIN);
    repeated.map(|((tool, input), (times, file))| {
        let (tool, input) = (one_line(tool, QUOTE_MAX), one_line(input, QUOTE_MAX));
        let message = format!("failed {times} times: {tool} {input}");
        FailedCheck::new("same_call_failed_again", message, file)
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

/// Finds the parts of a transcript that are not shown.
fn unused_lines(unused: &Unused) -> impl Iterator<Item = FailedCheck> {
    let kinds = unused.kinds.keys().take(NAMES_SHOWN).map(|kind| one_line(kind, QUOTE_MAX));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
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
        (n > 0).then(|| FailedCheck::new(name, format!("{n} {text}"), "source.jsonl"))
    });
    checks.into_iter().flatten()
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
        FailedCheck::new(INVISIBLE_CHARACTERS, message, ".")
    })
}

/// Counts the invisible characters in the texts of a record, except those of ordinary writing.
fn hidden(record: &Record) -> usize {
    let Record { worker, trace, .. } = record;
    let texts = [&worker.error, &worker.summary, &trace.task, &trace.final_words];
    let texts = texts.into_iter().filter_map(Option::as_deref);
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
