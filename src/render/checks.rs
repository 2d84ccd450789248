//! A worker's claims held against its record: no model, no guess, each with a name and the file that shows it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::text::{count, one_line};
use crate::catalog::Fingerprint;
use crate::model::{Flaw, Outcome, Output, Record, Status, Trace, Unanswered, Unused};
use crate::store::Time;
use crate::unicode::count_hidden;

/// A worker that completed without a word of its own.
pub(super) const NO_FINAL_WORDS: &str = "no_final_words";
/// A worker whose record hides text from whoever reads it.
pub(super) const INVISIBLE_CHARACTERS: &str = "invisible_characters";
/// How often the same call must fail to be told.
const REPEATED: usize = 3;
/// How many tools are named in a check.
const TOOLS_SHOWN: usize = 5;
/// The longest name out of a trace in a check, in bytes.
const QUOTE_MAX: usize = 80;

/// Something a worker's record does not bear out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Its name, the same in all files.
    pub(super) name: Cow<'static, str>,
    /// What was found, as a sentence.
    pub(super) says: String,
    /// The file that shows it, from the worker's folder.
    pub(super) file: String,
}

impl Check {
    pub(super) fn new(name: &'static str, says: String, file: impl Into<String>) -> Check {
        Check { name: name.into(), says, file: file.into() }
    }
}

/// A worker that is not finished, and wrote nothing for this long while others did, is silent. Tools commonly give a call
/// ten minutes at most.
const SILENT: Duration = Duration::from_secs(15 * 60);
/// Its name. It is found among many workers alone: of one, there is nothing to measure it against but a clock.
pub(super) const SILENT_NAME: &str = "silent";
/// The name of the check that finds what there was no time to read.
pub(super) const LATE_NAME: &str = "not_read_in_time";

/// Returns for how long a worker of this status that wrote last at `last` has been silent, measured against `newest`, the
/// last write of any worker. `None` if it is not silent.
pub(super) fn silent(status: Status, last: Time, newest: Time) -> Option<Duration> {
    let since = Duration::from_secs(u64::try_from(newest.secs.saturating_sub(last.secs)).unwrap_or_default());
    (!status.is_finished() && status != Status::Unknown && since >= SILENT).then_some(since)
}

/// All checks that found something. `missing` tells which files that it names in its final words are not there.
pub(super) fn of(record: &Record, stamp: &Fingerprint, missing: &dyn Fn(&str) -> Vec<String>) -> Vec<Check> {
    let Record { worker, trace, unread } = record;
    let mut checks: Vec<Check> = worker.flaws.iter().map(flaw).collect();
    let finished = worker.status.is_finished();
    if finished && trace.records_calls && trace.calls.is_empty() {
        checks.push(Check::new("no_tool_call", "it finished without any tool call".into(), "tool_calls"));
    }
    if worker.status == Status::Completed && trace.final_words.is_none() && !trace.words_with_parent {
        checks.push(Check::new(NO_FINAL_WORDS, "it finished without a word of its own".into(), "result.txt"));
    }
    if worker.status == Status::Completed {
        success(trace, &mut checks);
        let missing = trace.final_words.as_deref().map(missing).unwrap_or_default();
        checks.extend(missing.into_iter().map(|file| {
            let says = "its final words name this file, which is not there".into();
            Check::new("claimed_file_missing", says, file)
        }));
    }
    if finished && !trace.unanswered.tools.is_empty() {
        let says = format!("calls that left no output: {}", quoted(&trace.unanswered));
        checks.push(Check::new("call_without_result", says, "thread.jsonl"));
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
        checks.push(Check::new("bad_lines", format!("{lines} lines could not be read"), *file));
    }
    for (file, partly) in &trace.partly {
        let (name, why) = if partly.late { (LATE_NAME, " in time") } else { ("not_read_whole", "") };
        checks.push(Check::new(name, format!("only its first {} bytes were read{why}", partly.bytes), *file));
    }
    if let Some(file) = trace.truncated.first() {
        let says = match trace.truncated.len() {
            1 => "an output was cut before it was written down".into(),
            n => format!("{n} outputs were cut before they were written down; the first is this"),
        };
        checks.push(Check::new("truncated_at_source", says, file.display()));
    }
    unused(&trace.unused, &mut checks);
    if *unread > 0 {
        let says = format!("{unread} outputs were not looked into in time; their outcome is shown as unknown");
        checks.push(Check::new(LATE_NAME, says, "tool_calls"));
    }
    if let Some(hidden) = Some(hidden(record)).filter(|hidden| *hidden > 0) {
        let what = count(hidden as u64, "invisible character");
        let says =
            format!("{what} in its task, words, names and inputs; generated files leave them out or escape them");
        checks.push(Check::new(INVISIBLE_CHARACTERS, says, "."));
    }
    let skipped = stamp.skipped;
    if !skipped.is_empty() {
        let says = format!(
            "in its folder and not shown: {} links, {} special files, {} unreadable",
            skipped.links, skipped.special, skipped.unreadable
        );
        checks.push(Check::new("not_shown", says, "."));
    }
    checks
}

/// Returns how many invisible characters there are in the texts of a record, but those of ordinary writing.
fn hidden(record: &Record) -> usize {
    let Record { worker, trace, .. } = record;
    let texts = [&worker.error, &worker.summary, &trace.task, &trace.final_words];
    let texts = texts.into_iter().filter_map(Option::as_deref);
    let task = trace.task.is_none().then_some(&*worker.task);
    let words = [&worker.run, &worker.job, &worker.model, &worker.task_type, &worker.status_source];
    let words = words.into_iter().filter_map(Option::as_deref).chain(worker.tags.iter().map(|tag| &**tag));
    let calls = trace.calls.iter().flat_map(|call| call.input.as_deref().into_iter().chain([&*call.tool]));
    texts.chain(task).chain(words).chain(calls).map(count_hidden).sum()
}

fn flaw(flaw: &Flaw) -> Check {
    let (name, says) = match flaw {
        Flaw::BadTranscript(reason) => {
            return Check::new("bad_transcript", one_line(&format!("its transcript: {reason}"), 300), "source.jsonl");
        }
        Flaw::NoMessages => {
            return Check::new("no_message", "nothing was said in its transcript".into(), "source.jsonl");
        }
        Flaw::NoMetadata => ("no_metadata", "there is no metadata.json".into()),
        Flaw::BadMetadata { reason, kept: true, .. } => {
            ("bad_metadata", format!("metadata.json is {reason}; what was read of it before is shown"))
        }
        Flaw::BadMetadata { reason, kept: false, .. } => ("bad_metadata", format!("metadata.json is {reason}")),
        Flaw::OtherId(id) => ("other_id", format!("metadata.json says it is {}", one_line(id, QUOTE_MAX))),
        Flaw::TwoOwners => ("two_owners", "metadata.json names two owners, so it has none".into()),
        Flaw::IndexDisagrees(word) => {
            ("index_disagrees", format!("the store's index.json says {}", one_line(word, QUOTE_MAX)))
        }
    };
    Check::new(name, one_line(&says, 300), "metadata.json")
}

/// The status says success; does the record?
fn success(trace: &Trace, checks: &mut Vec<Check>) {
    if let Some(last) = trace.last_failed() {
        let says = "its status says success, but its last call failed".into();
        checks.push(Check::new("success_but_last_call_failed", says, last.path.display()));
    } else if let Some(call) = trace.unrecovered().last() {
        let tool = one_line(&call.tool, QUOTE_MAX);
        let says = format!("its status says success, but a call of {tool} failed and none of it succeeded later");
        checks.push(Check::new("failure_never_made_good", says, call.path.display()));
    }
}

/// What a transcript holds that is shown nowhere.
fn unused(unused: &Unused, checks: &mut Vec<Check>) {
    let mut say = |name, count: u64, what: &str| {
        if count > 0 {
            checks.push(Check::new(name, format!("{count} {what}"), "source.jsonl"));
        }
    };
    let kinds = unused.kinds.keys().take(TOOLS_SHOWN).map(|kind| one_line(kind, QUOTE_MAX)).collect::<Vec<_>>();
    let what = format!("lines are of kinds that are not known: {}", kinds.join(", "));
    say("unknown_records", unused.kinds.values().sum(), &what);
    say("results_without_calls", unused.stray_results, "results are of calls that were never made");
    say("calls_not_shown", unused.more_calls, "further calls are too many to be shown");
    say("workers_not_shown", unused.more_agents, "lines are of subagents that are not shown");
}

fn repeated(trace: &Trace, checks: &mut Vec<Check>) {
    let mut failures: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for call in &trace.calls {
        // Without its input a call cannot be told to be the same.
        let Some(input) = &call.input else { continue };
        match call.outcome {
            Outcome::Failed if call.cancelled => {}
            Outcome::Failed => {
                let entry = failures.entry((&call.tool, input)).or_default();
                entry.0 += 1;
                entry.1 = call.path.display();
            }
            // It was tried until it went well, as one does who looks for a fault.
            Outcome::Ok => drop(failures.remove(&(call.tool.as_str(), input.as_str()))),
            Outcome::Unknown => {}
        }
    }
    for ((tool, input), (times, file)) in failures {
        if times >= REPEATED {
            let says = format!("failed {times} times: {} {}", one_line(tool, QUOTE_MAX), one_line(input, QUOTE_MAX));
            checks.push(Check::new("same_call_failed_again", says, file));
        }
    }
}

/// The first tools by name, those of several calls with their number; the calls of the others are counted.
fn quoted(unanswered: &Unanswered) -> String {
    let name = |(tool, calls): (&String, &u64)| {
        let tool = one_line(tool, QUOTE_MAX);
        if *calls > 1 { format!("{tool} ({calls})") } else { tool }
    };
    let shown = unanswered.tools.iter().take(TOOLS_SHOWN).map(name).collect::<Vec<_>>().join(", ");
    let more = unanswered.tools.values().skip(TOOLS_SHOWN).sum::<u64>() + unanswered.more;
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}
