//! Finds the parts of a worker that were not understood, for every format: from its record, and by
//! a search for the lines of its files that the record only counts.

use serde::Deserialize;

use super::jsonl::{self, LineStats};
use super::lenient::MaybeStr;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{
    Flaw, Outcome, Output, Record, RemarkLevel, RemarkSubject, Remarks, SkipReason, SkipReport,
    ToolCall, WorkerCheck,
};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;
use swarmletfs_base::text::{count, one_line};

pub(super) type RemarkKind = (RemarkLevel, &'static str);

const THREAD: &str = "thread.jsonl";
const SOURCE: &str = "source.jsonl";
/// Maximum length of a quoted word, in bytes.
const QUOTE_MAX: usize = 60;

/// Returns the kind of remarks on something that was not understood.
pub(super) const fn problem(kind: &'static str) -> RemarkKind {
    (RemarkLevel::NotUnderstood, kind)
}

/// Returns the kind of remarks on something that was understood.
pub(super) const fn note(kind: &'static str) -> RemarkKind {
    (RemarkLevel::Note, kind)
}

/// Returns a word from a file in quotes, cleaned, and shortened if it is long.
pub(super) fn quote(word: &str) -> String {
    format!("\"{}\"", one_line(word, QUOTE_MAX))
}

/// Returns the remarks on a worker that follow from its record alone, and finds the lines of a
/// transcript that the record counts. Keeps `limit` remarks of each kind.
pub(super) fn check_worker(
    folder: &dyn Store,
    record: &Record,
    limit: usize,
    deadline: Deadline<'_>,
) -> WorkerCheck {
    let mut check = WorkerCheck::new(limit);
    add_record_remarks(record, &mut check.remarks);
    let trace = &record.trace;
    let mut found = FoundLines::default();
    if !trace.unused.kinds.is_empty() || trace.bad_lines.iter().any(|(file, _)| *file == SOURCE) {
        found = add_source_lines(folder, record, &mut check, deadline);
    }
    let remarks = &mut check.remarks;
    for (file, lines) in trace.bad_lines.iter().filter(|(file, _)| *file != SOURCE || !found.bad) {
        let text = || format!("{}: not a JSON object", count(*lines, "line"));
        remarks.add(problem("bad_lines"), &RelPath::constant(file), RemarkSubject::Content, text);
    }
    for (kind, lines) in trace.unused.kinds.iter().filter(|_| !found.unknown) {
        let text = || format!("{}: type {} is not known", count(*lines, "line"), quote(kind));
        remarks.add(problem("unknown_type"), &RelPath::root(), RemarkSubject::Content, text);
    }
    check.messages = count_messages(folder, deadline, &mut check.is_complete);
    check
}

#[derive(Default)]
struct FoundLines {
    bad: bool,
    unknown: bool,
}

/// Adds the remarks that follow from the worker's record alone, except those on lines.
pub(super) fn add_record_remarks(record: &Record, remarks: &mut Remarks) {
    let (worker, trace) = (&record.worker, &record.trace);
    let own = RelPath::root();
    let metadata = RelPath::constant("metadata.json");
    let content = RemarkSubject::Content;
    for flaw in &worker.flaws {
        match flaw {
            Flaw::NoMetadata => {
                remarks.add(note("no_metadata"), &metadata, RemarkSubject::Entry, || {
                    "is missing, so the worker has no status and no owner".into()
                });
            }
            Flaw::BadMetadata { reason, .. } => {
                remarks.add(problem("bad_metadata"), &metadata, content, || reason.clone());
            }
            Flaw::IdMismatch(id) => remarks.add(problem("other_id"), &metadata, content, || {
                let folder = worker.id.to_text();
                format!(
                    "worker_id {} is not the folder's name; {} is used",
                    quote(id),
                    quote(&folder)
                )
            }),
            Flaw::ConflictingOwners => {
                remarks.add(problem("two_owners"), &metadata, content, || {
                    "owner_id has two values; the worker is shown to neither owner".into()
                });
            }
            Flaw::Claim { field, text } => {
                remarks.add(problem("claims_otherwise"), &metadata, content, || {
                    format!("claims {field} {}; the registry of the store counts", quote(text))
                });
            }
            Flaw::BadRegistration(reason) => {
                remarks.add(problem("bad_registration"), &metadata, content, || {
                    format!("the record in the registry of the store is {reason}")
                });
            }
            Flaw::IndexDisagrees(word) => {
                remarks.add(problem("index_disagrees"), &metadata, content, || {
                    format!(
                        "the store's index.json has another status, {}; metadata.json is used",
                        quote(word)
                    )
                });
            }
            Flaw::BadTranscript(reason) => {
                remarks.add(problem("bad_transcript"), &own, content, || {
                    format!("the transcript cannot be read: {reason}")
                });
            }
            Flaw::NoMessages => remarks.add(note("no_messages"), &own, content, || {
                "the transcript has no messages".into()
            }),
        }
    }
    for (path, reason) in &trace.unreadable {
        remarks.add(problem("unreadable"), path, content, || format!("cannot be read: {reason}"));
    }
    for (file, read) in trace.partial_reads.iter().filter(|(_, read)| !read.timed_out) {
        remarks.add(problem("too_long"), &RelPath::constant(file), content, || {
            format!("only the first {} were read; the rest never is", count(read.bytes, "byte"))
        });
    }
    let unused = &trace.unused;
    let open = trace.calls.iter().filter(|call| call.is_open).count();
    let without_end = if worker.status.is_finished() { open } else { 0 };
    let sums = [
        (problem("orphan_results"), unused.orphan_results, "result", "without a call"),
        (problem("excess_calls"), unused.excess_calls, "call", "beyond the limit, not shown"),
        (
            problem("excess_lines"),
            unused.excess_agent_lines,
            "line",
            "of subagents beyond the limit, not shown",
        ),
        (note("unanswered"), trace.unanswered.total(), "call", "without a result"),
        (note("call_without_end"), without_end as u64, "call", "without a record of the end"),
        (
            note("truncated"),
            trace.truncated.len() as u64,
            "output",
            "truncated before being recorded",
        ),
    ];
    for (kind, number, noun, rest) in sums.into_iter().filter(|(_, number, ..)| *number > 0) {
        remarks.add(kind, &own, content, || format!("{} {rest}", count(number, noun)));
    }
    let is_unknown = |call: &&ToolCall| {
        call.outcome == Outcome::Unknown && !call.is_open && call.output != Output::Pending
    };
    let unknown = trace.calls.iter().filter(is_unknown).count();
    if unknown > 0 && record.unread == 0 {
        remarks.add(note("unknown_outcome"), &own, content, || {
            format!("{} of unknown outcome: nothing states it", count(unknown as u64, "call"))
        });
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TypedLine<'a> {
    #[serde(borrow, rename = "type")]
    kind: MaybeStr<'a>,
}

/// Adds the lines of the transcript that are not JSON objects or have an unrecognized type.
fn add_source_lines(
    folder: &dyn Store,
    record: &Record,
    check: &mut WorkerCheck,
    deadline: Deadline<'_>,
) -> FoundLines {
    let path = RelPath::constant(SOURCE);
    let mut found = FoundLines::default();
    let stats = folder.open(&path).and_then(|file| {
        jsonl::for_each_from(&*file, 0, deadline, |line| {
            let subject = RemarkSubject::Line(line.number);
            let Ok(typed) = serde_json::from_slice::<TypedLine<'_>>(line.bytes) else {
                // A last line without a newline may still be written.
                if line.bytes.ends_with(b"\n") {
                    found.bad = true;
                    let text = || "not a JSON object".into();
                    check.remarks.add(problem("bad_lines"), &path, subject, text);
                }
                return false;
            };
            let kind = typed.kind.as_str();
            if record.trace.unused.kinds.contains_key(kind) {
                found.unknown = true;
                let text = || format!("type {} is not known", quote(kind));
                check.remarks.add(problem("unknown_type"), &path, subject, text);
            }
            true
        })
    });
    check.is_complete &= stats.is_ok_and(|(stats, ..)| !timed_out(&stats));
    found
}

fn timed_out(stats: &LineStats) -> bool {
    stats.partial.is_some_and(|partial| partial.timed_out)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ThreadLine<'a> {
    #[serde(borrow)]
    role: MaybeStr<'a>,
}

/// Returns the number of messages in the worker's thread. Returns `None` if it has none. Sets
/// `is_complete` to false if time ran out.
fn count_messages(
    folder: &dyn Store,
    deadline: Deadline<'_>,
    is_complete: &mut bool,
) -> Option<u64> {
    let mut messages = 0;
    let file = folder.open(&RelPath::constant(THREAD)).ok()?;
    let stats = jsonl::for_each(&*file, deadline, |line| {
        let line = serde_json::from_slice::<ThreadLine<'_>>(line);
        messages += u64::from(line.as_ref().is_ok_and(|line| is_message(line.role.as_str())));
        line.is_ok()
    });
    *is_complete &= stats.is_ok_and(|stats| !timed_out(&stats));
    Some(messages)
}

/// Returns true for the role of a message; results of calls are none.
pub(super) fn is_message(role: &str) -> bool {
    !role.is_empty() && role != "tool"
}

/// Returns the remarks on entries of a store that were skipped. Keeps `limit` of each kind.
pub(super) fn check_skipped(skipped: &SkipReport, description: &str, limit: usize) -> Remarks {
    let mut remarks = Remarks::new(limit);
    let reasons = [
        (SkipReason::Unreadable, problem("unreadable"), "cannot be read"),
        (SkipReason::Link, problem("links"), "is a link, which is not followed"),
        (
            SkipReason::ForeignMount,
            problem("foreign_mounts"),
            "is another file system, which is not entered",
        ),
        (SkipReason::Special, problem("special"), "is a special file, which is not opened"),
        (SkipReason::NotAWorker, problem("not_workers"), "is not a worker"),
    ];
    for (reason, kind, text) in reasons {
        let entries = skipped.entries(reason);
        for (path, error) in &entries.examples {
            remarks.add(kind, path, RemarkSubject::Entry, || match (error, reason) {
                (Some(error), _) => format!("{text}: {error}"),
                (None, SkipReason::NotAWorker) => {
                    format!("{text}; a worker is a folder with {description}")
                }
                (None, _) => text.into(),
            });
        }
        let more = entries.count.saturating_sub(entries.examples.len() as u64);
        remarks.add_unkept(kind, more);
    }
    remarks
}
