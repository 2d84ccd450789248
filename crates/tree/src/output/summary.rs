//! summary: the swarm, a run or a worker on one screen, short enough for a supervisor's context.

mod swarm;
pub mod table;
pub mod tokens;

pub use swarm::swarm;

use std::cmp::Reverse;

use super::evidence::{self, RUNNING};
use super::marker::Marker;
use crate::analysis::changes::{FileChange, FileChanges, read_changes};
use crate::analysis::checks::{CheckKind, FailedCheck};
use crate::analysis::worker_digest::{WorkerDigest, WorkerRow};
use crate::catalog::Fingerprint;
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{
    CallState, Outcome, Prices, Record, ReviewState, Status, ToolCall, Trace, Unresolved,
    WaitReason, Worker,
};
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{block, count, duration, rounded, utc, when};

/// Maximum number of listed calls that did not fail.
const CALLS_MAX: usize = 12;
/// Maximum number of listed failed calls and of listed checks.
const FAILED_MAX: usize = 40;
/// Size from which an output is named as large, in bytes.
const LARGE: u64 = 10_000;
/// Maximum number of changed files that are named.
const FILES_MAX: usize = 5;
/// Maximum number of large outputs that are named.
const LARGEST_MAX: usize = 3;
/// Maximum length of a named path, in bytes.
const PATH_MAX: usize = 80;
/// Maximum length of quoted final words, in characters.
const WORDS_MAX: usize = 500;
/// Maximum length of a task or an error, in bytes.
const TASK_MAX: usize = 300;
/// Maximum length of the request of a worker that waits for a person, in bytes.
const WAITING_MAX: usize = 200;

/// Renders the summary of a worker. Also returns true if everything was read.
pub fn worker(
    view: &View,
    member: &Member,
    fingerprint: &Fingerprint,
    record: &Record,
    prices: Option<&Prices>,
    deadline: Deadline<'_>,
) -> (String, bool) {
    let Record { worker, trace, unread } = record;
    let digest = WorkerDigest::new(view, member, fingerprint, record);
    let (changes, has_changes) = changes_line(view, member, &digest, deadline);
    let mut out = String::new();
    let mut line = |label: &str, text: &str| {
        if !text.is_empty() {
            out.push_str(&format!("{label:<8} {text}\n"));
        }
    };
    line("worker", &one_line(&member.name.display(), 300));
    line("status", &status(worker, fingerprint));
    line("outcome", &outcome(digest.outcome, worker, trace, &trace.unresolved()));
    line("cause", &digest.cause);
    line("time", &times(worker));
    line("tokens", &tokens::worker(record));
    line("cost", &tokens::cost(&digest, prices));
    line("context", &tokens::context(&digest));
    line("task", &one_line(trace.task.as_deref().unwrap_or(&worker.task), TASK_MAX));
    line(
        "error",
        &worker.error.as_deref().map(|error| one_line(error, TASK_MAX)).unwrap_or_default(),
    );
    let notes = worker.supervisor_notes.as_deref().map(|notes| one_line(notes, TASK_MAX));
    line("notes", &notes.map(|notes| format!("by the supervisor: {notes}")).unwrap_or_default());
    line("draft", worker.draft.map_or("", ReviewState::as_str));
    line("changes", &changes);
    line("largest", &largest_outputs(trace));
    line("calls", &calls_line(trace, worker.status, *unread));
    out.push_str(&call_table(trace, worker.status));
    if !trace.loose.is_empty() {
        let files: Vec<String> = trace
            .loose
            .iter()
            .map(|file| format!("{} ({} B)", file.path.display(), file.bytes))
            .collect();
        out.push_str(&format!("files    {}\n", one_line(&files.join(", "), 400)));
    }
    match &trace.final_words {
        Some(words) => {
            out.push_str("\nfinal words (its own, not verified):\n");
            out.push_str(&block(words, WORDS_MAX, "  "));
        }
        None if trace.final_words_in_parent => {
            out.push_str("\nfinal words: in its parent's call, not in its own record\n")
        }
        None => out.push_str("\nfinal words: none\n"),
    }
    out.push_str(&check_list(&digest.checks));
    out.push_str(&format!("\n{}\n", Marker::new(member, worker)));
    (out, digest.whole && has_changes)
}

/// Names the calls with the largest outputs, if these are large.
fn largest_outputs(trace: &Trace) -> String {
    let mut calls: Vec<&ToolCall> = trace.calls.iter().filter(|call| call.bytes >= LARGE).collect();
    calls.sort_by_key(|call| (Reverse(call.bytes), call.seq));
    let named = calls.iter().take(LARGEST_MAX).map(|call| {
        let file = call.path.file_name().map(|name| name.display()).unwrap_or_default();
        format!("{} {}B", one_line(&file, PATH_MAX), rounded(call.bytes))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Lists the checks that a worker's record does not pass, by kind: doubts first, data quality last.
fn check_list(checks: &[FailedCheck]) -> String {
    let kinds = [
        ("doubts", CheckKind::Doubt),
        ("remarks", CheckKind::Remark),
        ("data quality", CheckKind::DataQuality),
    ];
    let mut out = String::new();
    for (title, kind) in kinds {
        let found: Vec<&FailedCheck> = checks.iter().filter(|check| check.kind == kind).collect();
        if found.is_empty() {
            let is_named = kind == CheckKind::Doubt;
            out.push_str(if is_named { "\ndoubts: none\n" } else { "" });
            continue;
        }
        out.push_str(&format!("\n{title}:\n"));
        for FailedCheck { name, message, file, .. } in found.iter().take(FAILED_MAX) {
            let (message, file) = (one_line(message, 400), one_line(file, 300));
            out.push_str(&format!("  ! {name}: {message} [{file}]\n"));
        }
        out.push_str(&more_in_index(found.len(), FAILED_MAX));
    }
    out
}

/// Returns the line that counts the entries beyond the first `shown` of `all`; empty if there are
/// none.
fn more_in_index(all: usize, shown: usize) -> String {
    if all > shown { format!("  and {} more in index.json\n", all - shown) } else { String::new() }
}

fn status(worker: &Worker, fingerprint: &Fingerprint) -> String {
    let source = worker.status_source.as_deref().filter(|word| *word != worker.status.as_str());
    let source =
        source.map(|word| format!(" (its record says {})", one_line(word, 60))).unwrap_or_default();
    let last = if worker.status.is_finished() && worker.status != Status::Abandoned {
        String::new()
    } else {
        format!(", {}", last_activity(worker, Some(fingerprint)))
    };
    format!("{}{source}{last}", worker.status)
}

pub(super) fn outcome(
    outcome: Outcome,
    worker: &Worker,
    trace: &Trace,
    unresolved: &Unresolved<'_>,
) -> String {
    let why = match outcome {
        Outcome::Ok => match unresolved.suspects.len() {
            0 if trace.command.is_some() => "its command exited with 0".into(),
            0 => "completed without unresolved failures".into(),
            1 => return "ok by the record; 1 call looks like a failure".into(),
            more => return format!("ok by the record; {more} calls look like failures"),
        },
        Outcome::NotRun => "it never ran".into(),
        Outcome::Failed if worker.status == Status::Failed => "its status says so".into(),
        Outcome::Failed => match &trace.command {
            Some(command) if command.exit_code != 0 => {
                format!("its command exited with {}", command.exit_code)
            }
            _ if trace.failed_last_call().is_some() => "its last call failed".into(),
            _ => match unresolved.open().max_by_key(|call| call.seq) {
                Some(call) if call.steps().iter().any(|step| step.is_check()) => {
                    format!("{} was red when it was last seen", call_file(call))
                }
                Some(call) => format!("{} failed, and nothing later made it good", call_file(call)),
                None => "its last call failed".into(),
            },
        },
        Outcome::Unknown if worker.status == Status::Waiting => "it waits for a person".into(),
        Outcome::Unknown if !worker.status.is_finished() => "not finished".into(),
        Outcome::Unknown if worker.status == Status::Abandoned => {
            "it ended without an answer".into()
        }
        Outcome::Unknown => match &*unresolved.failed {
            [] if trace.outcome(worker.status) == Outcome::Ok => {
                "its record contradicts its final words".into()
            }
            [] => gap(trace).unwrap_or_else(|| "no call is known to have succeeded".into()),
            [call] => format!("{} failed, and nothing later made it good", call_file(call)),
            [others @ .., call] => {
                let (file, more) = (call_file(call), others.len());
                format!("{file} and {more} more failed, and nothing later made them good")
            }
        },
    };
    format!("{outcome}: {why}")
}

/// Names the gap in a worker's record that leaves its outcome unknown.
fn gap(trace: &Trace) -> Option<String> {
    if let Some(open) = trace.calls.iter().rfind(|call| call.is_open) {
        return Some(format!("the end of {} is not recorded", call_file(open)));
    }
    let unanswered = trace.unanswered.total();
    if unanswered > 0 {
        return Some(format!("no result of {} is recorded", count(unanswered, "call")));
    }
    trace.has_gaps().then(|| "a part of its record is missing".into())
}

fn call_file(call: &ToolCall) -> String {
    one_line(&call.path.display(), PATH_MAX)
}

fn times(worker: &Worker) -> String {
    let from = when(&worker.started_at).or_else(|| when(&worker.created_at));
    let to = when(&worker.finished_at);
    let mut parts = Vec::new();
    match (from, to) {
        (Some(from), Some(to)) => parts.push(format!("{from} to {to}")),
        (Some(from), None) => parts.push(format!("from {from}")),
        (None, Some(to)) => parts.push(format!("to {to}")),
        (None, None) => {}
    }
    parts.extend(worker.duration_ms.map(duration));
    parts.join(", ")
}

fn calls_line(trace: &Trace, status: Status, unread: u64) -> String {
    if trace.calls.is_empty() && !trace.records_calls {
        let used = if trace.tools_used.is_empty() {
            String::new()
        } else {
            format!("; tools used: {}", trace.tools_used.join(", "))
        };
        return one_line(&format!("not recorded{used}"), 400);
    }
    let running = trace.running(status);
    let running_text = if running == 0 { String::new() } else { format!(", {running} running") };
    let late = if unread == 0 { String::new() } else { format!(", {unread} not read in time") };
    format!(
        "{}: {} failed, {} suspect, {} unknown, {} ok, {} not run{running_text}{late}",
        trace.calls.len(),
        trace.count(Outcome::Failed),
        trace.suspects(),
        trace.count(Outcome::Unknown).saturating_sub(running),
        trace.count(Outcome::Ok).saturating_sub(trace.suspects()),
        trace.count(Outcome::NotRun)
    )
}

/// Lists the latest calls that failed or look failed, and as many others as fit on a screen, in
/// order. Counts the omitted calls.
fn call_table(trace: &Trace, status: Status) -> String {
    let mut others = CALLS_MAX;
    let mut failed = FAILED_MAX;
    let mut shown: Vec<bool> = vec![false; trace.calls.len()];
    for (call, shown) in trace.calls.iter().zip(shown.iter_mut()).rev() {
        let left = if call.looks_failed() { &mut failed } else { &mut others };
        *shown = *left > 0;
        *left = left.saturating_sub(1);
    }
    let mut out = String::new();
    let push_omitted = |out: &mut String, n: usize| {
        if n > 0 {
            out.push_str(&format!("  …       {} omitted\n", count(n, "call")));
        }
    };
    let mut hidden = 0;
    for (call, shown) in trace.calls.iter().zip(shown) {
        if shown {
            push_omitted(&mut out, hidden);
            hidden = 0;
            out.push_str(&call_row(call, status));
        } else {
            hidden += 1;
        }
    }
    push_omitted(&mut out, hidden);
    out
}

pub(super) fn call_row(call: &ToolCall, status: Status) -> String {
    let is_running = call.is_running(status);
    let outcome = match call.state(status) {
        CallState::Running => RUNNING,
        CallState::Failed => "FAILED",
        CallState::Suspect => "SUSPECT",
        state => state.as_str(),
    };
    let code = call.exit_code.map(|code| format!(" exit={code}")).unwrap_or_default();
    let time = match (call.duration_ms, call.at) {
        (_, Some(start)) if is_running => format!(" since {}", utc(start.into())),
        (Some(ms), _) => format!(" {}", duration(ms)),
        (None, _) => String::new(),
    };
    let input = call
        .input
        .as_deref()
        .map(|input| format!("  $ {}", one_line(input, 80)))
        .unwrap_or_default();
    let name = call.path.file_name().map(|name| name.display()).unwrap_or_default();
    let suspect = call.suspect.as_deref().map(|line| {
        format!("          looks like a failure: {}\n", one_line(line, evidence::SUSPECT_MAX))
    });
    format!(
        "  {outcome:<7} {}{code} {} B{time}{input}\n{}",
        one_line(&name, 120),
        call.bytes,
        suspect.unwrap_or_default()
    )
}

/// Says since when a worker waits, and for what.
pub(super) fn waiting_for(worker: &Worker) -> String {
    let Some(WaitReason { since, request }) = &worker.waiting else {
        return "its record does not say for what".into();
    };
    let since = since.map(|time| format!("since {}, ", utc(time.into()))).unwrap_or_default();
    format!("{since}{}", one_line(request, WAITING_MAX))
}

pub(super) fn progress(row: &WorkerRow, latest: Time) -> String {
    let last = last_activity(&row.worker(), row.fingerprint.as_deref());
    let silent = row
        .silent(latest)
        .map(|silence| format!(", silent for {}", duration(silence.as_millis() as u64)));
    let digest = row.digest.as_ref().filter(|_| !row.status().is_finished());
    let calls = digest.and_then(|digest| running_calls(digest));
    let calls = calls.map(|calls| format!("\n{calls}")).unwrap_or_default();
    format!("{}, {last}{}{calls}", row.status(), silent.unwrap_or_default())
}

/// Returns a line that counts the calls of an unfinished worker that ended and that run, and names
/// the first of these. Returns `None` if no call is known to run.
fn running_calls(digest: &WorkerDigest) -> Option<String> {
    let open = digest.open;
    let ended = count(digest.calls.saturating_sub(open), "call");
    (open > 0).then(|| format!("{ended} ended, {open} running: {}", digest.open_call))
}

/// Names the time of a worker's last message, or of its last write if its messages have no times.
fn last_activity(worker: &Worker, fingerprint: Option<&Fingerprint>) -> String {
    match (worker.last_message, fingerprint) {
        (Some(time), _) => format!("last message {time}"),
        (None, Some(fingerprint)) => format!("last write {}", utc(fingerprint.newest_mtime)),
        (None, None) => "last write unknown".into(),
    }
}

/// Describes the changed files: their number, the lines that changed in all, and the largest files.
/// Also returns true if the edits were read; otherwise the numbers of lines are left out.
fn changes_line(
    view: &View,
    member: &Member,
    digest: &WorkerDigest,
    deadline: Deadline<'_>,
) -> (String, bool) {
    // A render that is out of time must not wait for the worker's files.
    if digest.files_changed() == 0 || !deadline.has_time() {
        return (without_numbers(digest), digest.files_changed() == 0);
    }
    match read_changes(view, member, deadline) {
        Ok(Some(changes)) if deadline.has_time() => (with_numbers(&changes), true),
        Ok(None) if deadline.has_time() => (without_numbers(digest), true),
        _ => (without_numbers(digest), false),
    }
}

fn with_numbers(changes: &FileChanges) -> String {
    let (added, removed) = changes.counts();
    let head = format!("{}, +{added} -{removed}", count(changes.file_count(), "file"));
    let mut files: Vec<(usize, &FileChange)> = changes
        .files
        .iter()
        .filter(|file| !file.is_folder)
        .map(|file| (file.counts().0 + file.counts().1, file))
        .collect();
    files.sort_by_key(|(lines, _)| Reverse(*lines));
    with_names(head, files.into_iter().map(|(_, file)| file.full_path()).collect())
}

/// Describes the changed files in the order of the lines of all edits. These numbers differ from
/// the numbers in changes.diff, so they are not shown.
fn without_numbers(digest: &WorkerDigest) -> String {
    let mut files: Vec<_> = digest.files.iter().filter(|file| file.edits > 0).collect();
    if files.is_empty() {
        return String::new();
    }
    files.sort_by_key(|file| Reverse(file.added.saturating_add(file.removed)));
    let head = count(files.len(), "file");
    with_names(head, files.into_iter().map(|file| file.path.clone()).collect())
}

fn with_names(head: String, files: Vec<String>) -> String {
    if files.is_empty() {
        return head;
    }
    let names: Vec<String> =
        files.iter().take(FILES_MAX).map(|path| one_line(path, PATH_MAX)).collect();
    let more = if files.len() > FILES_MAX { ", …" } else { "" };
    format!("{head}: {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::file_uses::FileUse;
    use swarmletfs_base::error::Error;

    #[test]
    fn without_the_edits_files_are_named_without_numbers_largest_first() {
        let mut digest = WorkerDigest::unreadable(&Error::NotFound);
        assert_eq!(without_numbers(&digest), "");
        let file = |path: &str, edits, added| FileUse {
            path: path.into(),
            reads: 1,
            edits,
            created: false,
            added,
            removed: 2,
            edited_at: None,
        };
        digest.files = vec![file("a", 1, 3), file("b", 0, 0), file("c", 2, 9)];
        assert_eq!(without_numbers(&digest), "2 files: c, a");
    }
}
