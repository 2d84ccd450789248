//! Checks a worker's claims against its record. Each finding has a name and the file that proves
//! it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::catalog::Fingerprint;
use crate::model::{Flaw, Outcome, Output, Record, Status, Trace, UnansweredCalls, Unused};
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

/// A finding about a worker's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// The name of the check, equal in all files.
    pub(crate) name: Cow<'static, str>,
    /// The finding, as a sentence.
    #[serde(rename = "says")]
    pub(crate) message: String,
    /// The file that proves it, relative to the worker's directory.
    pub(crate) file: String,
}

impl Check {
    pub(crate) fn new(name: &'static str, message: String, file: impl Into<String>) -> Check {
        Check { name: name.into(), message, file: file.into() }
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

/// Runs all checks and returns their findings. `missing` returns those about files that final words
/// claim.
pub(crate) fn run(
    record: &Record,
    fingerprint: &Fingerprint,
    missing: &dyn Fn() -> Vec<Check>,
) -> Vec<Check> {
    let Record { worker, trace, unread } = record;
    let mut checks: Vec<Check> = worker.flaws.iter().map(flaw).collect();
    let finished = worker.status.is_finished();
    if finished && trace.records_calls && trace.calls.is_empty() {
        checks.push(Check::new(
            "no_tool_call",
            "it finished without any tool call".into(),
            "tool_calls",
        ));
    }
    if worker.status == Status::Completed
        && trace.final_words.is_none()
        && !trace.final_words_in_parent
    {
        checks.push(Check::new(
            NO_FINAL_WORDS,
            "it finished without any final words".into(),
            "result.txt",
        ));
    }
    if worker.status == Status::Completed {
        success(trace, &mut checks);
        checks.extend(missing());
    }
    if finished && !trace.unanswered.tools.is_empty() {
        let message = format!("calls without output: {}", quoted(&trace.unanswered));
        checks.push(Check::new("call_without_result", message, "thread.jsonl"));
    }
    repeated(trace, &mut checks);
    for call in &trace.calls {
        if let Output::Unreadable(reason) = &call.output {
            checks.push(Check::new("unreadable_output", reason.clone(), call.path.display()));
        }
    }
    for (file, reason) in &trace.unreadable {
        checks.push(Check::new("unreadable_file", reason.clone(), one_line(&file.display(), 300)));
    }
    for (file, lines) in &trace.bad_lines {
        checks.push(Check::new(
            "bad_lines",
            format!("{} could not be read", count(*lines, "line")),
            *file,
        ));
    }
    for (file, partly) in &trace.partial_reads {
        let (name, why) =
            if partly.timed_out { (LATE_NAME, " in time") } else { ("not_read_whole", "") };
        checks.push(Check::new(
            name,
            format!("only its first {} bytes were read{why}", partly.bytes),
            *file,
        ));
    }
    if let Some(file) = trace.truncated.first() {
        let message = match trace.truncated.len() {
            1 => "an output was truncated before it was recorded".into(),
            n => format!("{n} outputs were truncated before they were recorded; this is the first"),
        };
        checks.push(Check::new("truncated_at_source", message, file.display()));
    }
    unused(&trace.unused, &mut checks);
    if *unread > 0 {
        let message = format!(
            "not read in time: {}; their outcomes are shown as unknown",
            count(*unread, "output")
        );
        checks.push(Check::new(LATE_NAME, message, "tool_calls"));
    }
    if let Some(hidden) = Some(hidden(record)).filter(|hidden| *hidden > 0) {
        let characters = count(hidden as u64, "invisible character");
        let message = format!(
            "{characters} in its task, words, names and inputs; generated files omit or escape them"
        );
        checks.push(Check::new(INVISIBLE_CHARACTERS, message, "."));
    }
    let skipped = fingerprint.skipped;
    if !skipped.is_empty() {
        let message = format!(
            "in its folder but not shown: {}, {}, {} unreadable",
            count(skipped.links, "link"),
            count(skipped.special, "special file"),
            skipped.unreadable
        );
        checks.push(Check::new("not_shown", message, "."));
    }
    checks
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

/// Returns the check for a flaw of the worker's files.
fn flaw(flaw: &Flaw) -> Check {
    let (name, message) = match flaw {
        Flaw::BadTranscript(reason) => {
            return Check::new(
                "bad_transcript",
                one_line(&format!("its transcript: {reason}"), 300),
                "source.jsonl",
            );
        }
        Flaw::NoMessages => {
            return Check::new(
                "no_message",
                "its transcript has no messages".into(),
                "source.jsonl",
            );
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
    Check::new(name, one_line(&message, 300), "metadata.json")
}

/// Checks a claimed success against the outcomes of calls.
fn success(trace: &Trace, checks: &mut Vec<Check>) {
    if let Some(last) = trace.failed_last_call() {
        let message = "its status says success, but its last call failed".into();
        checks.push(Check::new("success_but_last_call_failed", message, last.path.display()));
    } else if let Some(call) = trace.unresolved().last() {
        let tool = one_line(&call.tool, QUOTE_MAX);
        let message = format!(
            "its status says success, but a call of {tool} failed and no later call of it succeeded"
        );
        checks.push(Check::new("failure_never_made_good", message, call.path.display()));
    }
}

/// Reports the parts of a transcript that are not shown.
fn unused(unused: &Unused, checks: &mut Vec<Check>) {
    let mut add = |name, count: u64, text: &str| {
        if count > 0 {
            checks.push(Check::new(name, format!("{count} {text}"), "source.jsonl"));
        }
    };
    let kinds = unused
        .kinds
        .keys()
        .take(NAMES_SHOWN)
        .map(|kind| one_line(kind, QUOTE_MAX))
        .collect::<Vec<_>>();
    let text = format!("lines are of unknown kinds: {}", kinds.join(", "));
    add("unknown_records", unused.kinds.values().sum(), &text);
    add("results_without_calls", unused.orphan_results, "results belong to no call");
    add(
        "calls_not_shown",
        unused.excess_calls,
        "further calls are not shown, because there are too many",
    );
    add(
        "workers_not_shown",
        unused.excess_agent_lines,
        "lines belong to subagents that are not shown",
    );
}

/// Reports calls that failed repeatedly with the same input and never succeeded after that.
fn repeated(trace: &Trace, checks: &mut Vec<Check>) {
    let mut failures: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for call in &trace.calls {
        // Calls can only be compared by their input.
        let Some(input) = &call.input else { continue };
        match call.outcome {
            Outcome::Failed => {
                let entry = failures.entry((&call.tool, input)).or_default();
                entry.0 += 1;
                entry.1 = call.path.display();
            }
            // Retrying until a call succeeds is normal when looking for a fault.
            Outcome::Ok => drop(failures.remove(&(call.tool.as_str(), input.as_str()))),
            Outcome::Unknown | Outcome::NotRun => {}
        }
    }
    for ((tool, input), (times, file)) in failures {
        if times >= REPEATED_MIN {
            let message = format!(
                "failed {times} times: {} {}",
                one_line(tool, QUOTE_MAX),
                one_line(input, QUOTE_MAX)
            );
            checks.push(Check::new("same_call_failed_again", message, file));
        }
    }
}

/// Lists the first tools by name, with the number of their calls if there are several. Counts the
/// calls of all other tools.
fn quoted(unanswered: &UnansweredCalls) -> String {
    let name = |(tool, calls): (&String, &u64)| {
        let tool = one_line(tool, QUOTE_MAX);
        if *calls > 1 { format!("{tool} ({calls})") } else { tool }
    };
    let shown = unanswered.tools.iter().take(NAMES_SHOWN).map(name).collect::<Vec<_>>().join(", ");
    let more = unanswered.tools.values().skip(NAMES_SHOWN).sum::<u64>() + unanswered.other_tools;
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}
