//! summary: the swarm, a run or a worker on one screen, short enough for a supervisor's context.

mod changes;
mod table;
mod tokens;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::causes::{self, CauseGroup, CauseGrouping, WorkerCause};
use super::evidence::{self, RUNNING};
use super::marker::Marker;
use super::overlaps;
use crate::analysis::checks::{CheckKind, FailedCheck};
use crate::analysis::worker_digest::{WorkerDigest, WorkerRow, latest_write};
use crate::catalog::Fingerprint;
use crate::view::{Member, RunMembers, View, VisibleWorkers};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{
    Outcome, Record, Status, ToolCall, Trace, Unresolved, WaitReason, Worker,
};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{block, count, duration, utc, when};

/// Maximum number of listed calls that did not fail.
const CALLS_MAX: usize = 12;
/// Maximum number of listed failed calls and of listed checks.
const FAILED_MAX: usize = 40;
/// Maximum length of a named path, in bytes.
const PATH_MAX: usize = 80;
/// Maximum length of quoted final words, in characters.
const WORDS_MAX: usize = 500;
/// Maximum length of a task or an error, in bytes.
const TASK_MAX: usize = 300;
/// Maximum number of workers named in a list, and of causes.
const NAMED_MAX: usize = 12;
/// Maximum length of the names of workers with one cause, in bytes.
const NAMES_MAX: usize = 80;
/// Maximum length of the text about a worker in a list, in bytes.
const TEXT_MAX: usize = 240;
/// Maximum length of an id before a title, in bytes.
const ID_MAX: usize = 120;
/// Maximum length of a title in a list, in bytes.
const TITLE_MAX: usize = 60;
/// Maximum length of the request of a worker that waits for a person, in bytes.
const WAITING_MAX: usize = 200;
/// Maximum length of a cause, in bytes.
const CAUSE_MAX: usize = 160;

/// Renders the summary of a worker. Also returns true if everything was read.
pub fn worker(
    view: &View,
    member: &Member,
    fingerprint: &Fingerprint,
    record: &Record,
    deadline: Deadline<'_>,
) -> (String, bool) {
    let Record { worker, trace, unread } = record;
    let digest = WorkerDigest::new(view, member, fingerprint, record);
    let (changes, has_changes) = changes::line(view, member, &digest, deadline);
    let mut out = String::new();
    let mut line = |label: &str, text: &str| {
        if !text.is_empty() {
            out.push_str(&format!("{label:<8} {text}\n"));
        }
    };
    line("worker", &one_line(&member.name.display(), 300));
    line("status", &status(worker, fingerprint));
    line("outcome", &outcome(worker, trace, &trace.unresolved()));
    line("cause", &digest.cause);
    line("time", &times(worker));
    line("tokens", &tokens::worker(record));
    line("task", &one_line(trace.task.as_deref().unwrap_or(&worker.task), TASK_MAX));
    line(
        "error",
        &worker.error.as_deref().map(|error| one_line(error, TASK_MAX)).unwrap_or_default(),
    );
    let notes = worker.supervisor_notes.as_deref().map(|notes| one_line(notes, TASK_MAX));
    line("notes", &notes.map(|notes| format!("by the supervisor: {notes}")).unwrap_or_default());
    line("changes", &changes);
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

pub(super) fn outcome(worker: &Worker, trace: &Trace, unresolved: &Unresolved<'_>) -> String {
    let outcome = trace.outcome(worker.status);
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
            _ => "its last call failed".into(),
        },
        Outcome::Unknown if worker.status == Status::Waiting => "it waits for a person".into(),
        Outcome::Unknown if !worker.status.is_finished() => "not finished".into(),
        Outcome::Unknown if worker.status == Status::Abandoned => {
            "it ended without an answer".into()
        }
        Outcome::Unknown => match &*unresolved.failed {
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

fn call_row(call: &ToolCall, status: Status) -> String {
    let is_running = call.is_running(status);
    let outcome = match call.outcome {
        _ if is_running => RUNNING,
        Outcome::Failed => "FAILED",
        _ if call.suspect.is_some() => "SUSPECT",
        outcome => outcome.as_str(),
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

/// Renders the summary of a run or the swarm: the table of workers, counts, and lists. The lists
/// name the workers that failed, are doubtful, have not finished or cannot be read. `removed`
/// counts the workers that were removed.
pub fn swarm(
    visible: &VisibleWorkers,
    run: Option<&RunMembers>,
    rows: &[WorkerRow],
    removed: usize,
    newest: Time,
) -> String {
    let mut out = table::table(visible, rows);
    if !out.is_empty() {
        out.push('\n');
    }
    match run {
        Some(run) => out.push_str(&format!("run      {}\n", one_line(&run.id, 300))),
        None if visible.runs.is_empty() => {}
        None => out.push_str(&format!("runs     {}\n", visible.runs.len())),
    }
    out.push_str(&worker_counts(rows));
    if removed > 0 {
        out.push_str(&format!("removed  {}\n", count(removed, "worker")));
    }
    out.push_str(&format!("newest   {}\n", if rows.is_empty() { "-".into() } else { utc(newest) }));
    let digests = rows.iter().filter_map(|row| row.digest.as_ref());
    let bytes = digests.clone().map(|digest| digest.output_bytes).fold(0, u64::saturating_add);
    let calls: usize = digests.map(|digest| digest.calls).sum();
    out.push_str(&format!("outputs  {bytes} B of {}\n", count(calls, "call")));
    out.push_str(&totals(rows));
    let waiting = rows.iter().filter(|row| row.status() == Status::Waiting);
    let waiting = waiting.map(|row| (&*row.member, waiting_for(&row.worker())));
    list(&mut out, "waiting for a person", waiting.collect());
    let failed: Vec<&WorkerRow> =
        rows.iter().filter(|row| row.outcome() == Some(Outcome::Failed)).collect();
    let latest = latest_write(rows);
    failures(&mut out, &failed, latest);
    out.push_str(&unresolved_failures(visible, rows));
    out.push_str(&overlaps::section(rows));
    // Below, each worker is listed once, apart from data quality: the lists leave out failed and
    // unreadable workers.
    let others = || {
        rows.iter()
            .filter(|row| row.outcome() != Some(Outcome::Failed) && row.unreadable().is_none())
    };
    let doubtful = others().filter_map(|row| Some((&*row.member, doubts(row)?)));
    list(&mut out, "doubts, where the record contradicts a claim", doubtful.collect());
    let mut unfinished: Vec<&WorkerRow> = others().filter(|row| is_at_work(row.status())).collect();
    unfinished.sort_by_key(|row| {
        Reverse(row.fingerprint.as_ref().map(|fingerprint| fingerprint.last_write()))
    });
    let unfinished = unfinished.into_iter().map(|row| (&*row.member, progress(row, latest)));
    list(&mut out, "not finished, by last write", unfinished.collect());
    let abandoned = others().filter(|row| row.status() == Status::Abandoned);
    let abandoned = abandoned.map(|row| (&*row.member, progress(row, latest)));
    list(&mut out, "abandoned", abandoned.collect());
    let unreadable =
        rows.iter().filter_map(|row| Some((&*row.member, row.unreadable()?.to_owned())));
    list(&mut out, "could not be read", unreadable.collect());
    out.push_str(&data_quality(rows));
    if run.is_none() {
        out.push_str(&not_shown(visible));
    }
    out.push_str(
        "\nMore: evidence.txt here; summary, evidence.txt and index.json in workers/<id>/.\n",
    );
    out
}

/// Returns true if a worker has not finished and needs nobody.
fn is_at_work(status: Status) -> bool {
    !status.is_finished() && status != Status::Waiting
}

/// Says since when a worker waits, and for what.
pub(super) fn waiting_for(worker: &Worker) -> String {
    let Some(WaitReason { since, request }) = &worker.waiting else {
        return "its record does not say for what".into();
    };
    let since = since.map(|time| format!("since {}, ", utc(time.into()))).unwrap_or_default();
    format!("{since}{}", one_line(request, WAITING_MAX))
}

fn worker_counts(rows: &[WorkerRow]) -> String {
    let by_status = Status::ALL.into_iter().filter_map(|status| {
        let n = rows.iter().filter(|row| row.status() == status).count();
        (n > 0).then(|| format!("{n} {status}"))
    });
    let by_status = by_status.collect::<Vec<_>>().join(", ");
    let colon = if by_status.is_empty() { "" } else { ": " };
    let with_outcome = |wanted| rows.iter().filter(|row| row.outcome() == wanted).count();
    let late = match (with_outcome(None), rows.len()) {
        (0, _) => String::new(),
        (unread, all) => format!(" (outcomes read: {} of {all})", all - unread),
    };
    format!(
        "workers  {}{colon}{by_status}\noutcomes {} failed, {} unknown, {} ok{late}\n",
        rows.len(),
        with_outcome(Some(Outcome::Failed)),
        with_outcome(Some(Outcome::Unknown)),
        with_outcome(Some(Outcome::Ok))
    )
}

/// Returns the total time and tokens of the workers that record them.
fn totals(rows: &[WorkerRow]) -> String {
    let mut out = String::new();
    let timed: Vec<u64> = rows.iter().filter_map(|row| row.worker().duration_ms).collect();
    if !timed.is_empty() {
        let all = timed.iter().copied().fold(0, u64::saturating_add);
        out.push_str(&format!("time     {} of {}\n", duration(all), count(timed.len(), "worker")));
    }
    let tokens = tokens::swarm(rows);
    if !tokens.is_empty() {
        out.push_str(&format!("tokens   {tokens}\n"));
    }
    out
}

/// Describes the doubts about a worker: all names, and the first one in words. Returns `None`
/// without any.
fn doubts(row: &WorkerRow) -> Option<String> {
    let FailedCheck { message, file, .. } = row.checks(CheckKind::Doubt).next()?;
    Some(format!("{}: {message} [{file}]", row.doubt()?))
}

/// Lists the workers that fail a check of data quality, by check.
fn data_quality(rows: &[WorkerRow]) -> String {
    let mut found: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.unreadable().is_none()) {
        for check in row.checks(CheckKind::DataQuality) {
            let members = found.entry(&check.name).or_default();
            if members.last().is_none_or(|last| last.name != row.member.name) {
                members.push(&row.member);
            }
        }
    }
    let mut out = String::new();
    for (name, members) in found {
        let group = CauseGroup { members, cause: name };
        out.push_str(&format!("  {name}: {}\n", group.describe(NAMES_MAX)));
    }
    if out.is_empty() { out } else { format!("\ndata quality:\n{out}") }
}

fn progress(row: &WorkerRow, latest: Time) -> String {
    let last = last_activity(&row.worker(), row.fingerprint.as_deref());
    let silent = row
        .silent(latest)
        .map(|silence| format!(", silent for {}", duration(silence.as_millis() as u64)));
    let digest = row.digest.as_ref().filter(|_| !row.status().is_finished());
    let calls = digest.and_then(|digest| running_calls(digest));
    format!("{}, {last}{}{}", row.status(), silent.unwrap_or_default(), calls.unwrap_or_default())
}

/// Returns a clause that names the running call of an unfinished worker, the first of several, and
/// counts the calls that ended. Returns `None` if no call is known to run.
fn running_calls(digest: &WorkerDigest) -> Option<String> {
    let more = match digest.open.checked_sub(1)? {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let ended = count(digest.calls.saturating_sub(digest.open), "call");
    Some(format!("; {ended} ended, running: {}{more}", digest.open_call))
}

/// Names the time of a worker's last message, or of its last write if its messages have no times.
fn last_activity(worker: &Worker, fingerprint: Option<&Fingerprint>) -> String {
    match (worker.last_message, fingerprint) {
        (Some(time), _) => format!("last message {time}"),
        (None, Some(fingerprint)) => format!("last write {}", utc(fingerprint.newest_mtime)),
        (None, None) => "last write unknown".into(),
    }
}

fn failures(out: &mut String, failed: &[&WorkerRow], latest: Time) {
    if failed.is_empty() {
        return;
    }
    let failing: Vec<WorkerCause<'_>> =
        failed.iter().copied().filter_map(WorkerCause::from_failure).collect();
    let rows: HashMap<&Name, &WorkerRow> =
        failed.iter().map(|row| (&row.member.name, *row)).collect();
    let groups = causes::groups(&failing, CauseGrouping::Text);
    out.push_str(&format!("\nfailed ({}), by cause:\n", failed.len()));
    for group in groups.iter().take(NAMED_MAX) {
        let cause = one_line(group.cause, CAUSE_MAX);
        let rows: Vec<&WorkerRow> =
            group.members.iter().filter_map(|member| rows.get(&member.name)).copied().collect();
        out.push_str(&format!(
            "  {}: {cause}{}\n",
            group.describe(NAMES_MAX),
            note_on(&rows, latest)
        ));
    }
    let rest = groups.iter().skip(NAMED_MAX);
    let workers: usize = rest.clone().map(|group| group.members.len()).sum();
    if workers > 0 {
        out.push_str(&format!(
            "  and {} with {}, in evidence.txt\n",
            count(workers, "more worker"),
            count(rest.len(), "more cause")
        ));
    }
}

/// Lists the workers whose outcome is unknown because a call failed and no later call resolved it.
/// Leaves out workers whose doubts say more.
fn unresolved_failures(visible: &VisibleWorkers, rows: &[WorkerRow]) -> String {
    let listed = rows.iter().filter(|row| row.doubt().is_none() && row.unreadable().is_none());
    let listed = table::newest_first(listed.filter(|row| row.unresolved_failure().is_some()));
    if listed.is_empty() {
        return String::new();
    }
    let mut out = format!("\nunresolved failures ({}), newest first:\n", listed.len());
    for (_, row) in listed.iter().take(NAMED_MAX) {
        let id = visible.short_id(&row.member.name).display();
        let title = one_line(row.worker().title(), TITLE_MAX);
        let label = [one_line(&id, ID_MAX), title].join(" ");
        let call = one_line(row.unresolved_failure().unwrap_or_default(), TEXT_MAX);
        out.push_str(&format!("  {}: {call}\n", label.trim_end()));
    }
    out + &more_in_index(listed.len(), NAMED_MAX)
}

/// Returns a note for a line about failed workers that claim success or have not finished.
fn note_on(rows: &[&WorkerRow], latest: Time) -> String {
    if let [row] = rows {
        return match row.doubt() {
            Some(doubt) => format!(" (claims success, but checks disagree: {doubt})"),
            None if row.status().is_finished() => String::new(),
            None => format!(" (not finished: {})", progress(row, latest)),
        };
    }
    let claiming = rows.iter().filter(|row| row.doubt().is_some()).count();
    let unfinished = rows.iter().filter(|row| !row.status().is_finished()).count();
    let counts = [(claiming, "claim success"), (unfinished, "not finished")];
    let counts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, text)| format!("{n} {text}")).collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

fn list(out: &mut String, title: &str, workers: Vec<(&Member, String)>) {
    if workers.is_empty() {
        return;
    }
    out.push_str(&format!("\n{title} ({}):\n", workers.len()));
    for (member, text) in workers.iter().take(NAMED_MAX) {
        out.push_str(&format!(
            "  {}: {}\n",
            one_line(&member.name.display(), 120),
            one_line(text, TEXT_MAX)
        ));
    }
    out.push_str(&more_in_index(workers.len(), NAMED_MAX));
}

/// Returns the entries of the stores that are not shown, and the warnings of the view.
fn not_shown(visible: &VisibleWorkers) -> String {
    let mut out = String::new();
    if let Some(skipped) = visible.skipped.filter(|skipped| !skipped.is_empty()) {
        out.push_str(&format!(
            "\nin the store but not shown: {} links, {} special files, {} folders that are not workers, {} unreadable\n",
            skipped.links, skipped.special, skipped.not_workers, skipped.unreadable
        ));
    }
    for trouble in &visible.list_errors {
        out.push_str(&format!("\nwarning: {}\n", one_line(trouble, 300)));
    }
    out
}
