//! index.json: what programs read. Of a worker in full; of a run or the swarm a line for each worker.

use super::checks;
use super::fragment::{self, Fragment};
use super::json::{Call, CallCounts, FileRow, Row, Source, SwarmHead, SwarmTail, WorkerIndex, hex, printable};
use super::marker;
use super::missing::Missing;
use super::own;
use super::text::{one_line, utc, when};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::{Outcome, Output, Record, Trace, Worker};
use crate::store::Time;
use crate::unicode::visible;
use crate::view::{Member, RunMembers, View, Visible};

/// The longest task in the index of many workers, in bytes.
const TASK_MAX: usize = 200;
/// What is said of a call that has no output yet.
pub(super) const NO_RESULT: &str = "no result has come";
/// The longest cause there, in bytes.
const CAUSE_MAX: usize = 200;
/// How many files of a worker are listed; the others are counted.
const FILES_MAX: usize = 1_000;

/// index.json of a worker, and whether it is of the state `stamp` and all was read.
pub(super) fn worker(
    view: &View,
    member: &Member,
    stamp: &Fingerprint,
    record: &Record,
    missing: Option<Missing>,
) -> Result<(Vec<u8>, bool)> {
    let Record { worker, trace, unread } = record;
    let (files, now) = view.files(member, FILES_MAX)?;
    let fragment = Fragment::of(view, member, stamp, record);
    let whole = fragment.whole && now.key == stamp.key;
    let index = WorkerIndex {
        complete: missing.is_none(),
        incomplete: missing.map(|missing| missing.to_string()),
        worker: Row {
            task: visible(trace.task.as_deref().unwrap_or(&worker.task)).into_owned(),
            ..row(member, worker, Some(&fragment), Some(stamp))
        },
        tool_calls: trace.calls.iter().map(call).collect(),
        tools_used: trace.tools_used.clone(),
        final_words: trace.final_words.as_deref().map(|words| visible(words).into_owned()),
        error: worker.error.as_deref().map(visible),
        summary: worker.summary.as_deref().map(visible),
        files: files
            .into_iter()
            .map(|file| {
                let path = own::shown_path(&file.path);
                let (text, bytes) = (path.to_text().into_owned(), hex(path.as_bytes()));
                FileRow { path: text, path_hex: bytes, bytes: file.bytes, mtime: utc(file.mtime) }
            })
            .collect(),
        total_files: now.files,
        total_bytes: now.bytes,
        outputs_not_read_in_time: *unread,
        tokens: trace.tokens.map(Into::into),
        source: source(trace),
        checks: &fragment.checks,
        marker: marker::of(member, worker),
    };
    let text = serde_json::to_string_pretty(&index).map_err(|_| Error::Io(rustix::io::Errno::IO))?;
    Ok(((printable(&text) + "\n").into_bytes(), whole))
}

fn source(trace: &Trace) -> Option<Source> {
    let unused = &trace.unused;
    (unused.lines > 0).then(|| Source {
        lines: unused.lines,
        unparsable_lines: trace.all_bad_lines(),
        unknown_records: unused.kinds.clone(),
        results_without_calls: unused.stray_results,
        calls_without_results: trace.unanswered.total(),
        calls_not_shown: unused.more_calls,
        truncated_outputs: trace.truncated.iter().map(|path| path.to_text().into_owned()).collect(),
    })
}

fn call(call: &crate::model::ToolCall) -> Call {
    Call {
        seq: call.seq,
        tool: call.tool.clone(),
        file: call.path.to_text().into_owned(),
        file_hex: hex(call.path.as_bytes()),
        outcome: call.outcome.as_str(),
        exit_code: call.exit_code,
        duration_ms: call.duration_ms,
        bytes: call.bytes,
        input: call.input.as_deref().map(|input| visible(input).into_owned()),
        unreadable: match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::Pending => Some(NO_RESULT.into()),
            Output::InPlace | Output::StoredOut(_) => None,
        },
    }
}

/// index.json of a run or the swarm: one JSON object, every worker on a line of its own so that grep finds whole ones.
pub(super) fn swarm(
    visible: &Visible,
    run: Option<&RunMembers>,
    rows: &[fragment::Row<'_>],
    newest: Time,
    missing: Option<Missing>,
) -> Vec<u8> {
    // Plain structs of strings and numbers always serialise.
    let json = |text: serde_json::Result<String>| printable(&text.unwrap_or_else(|_| "{}".into()));
    let head = SwarmHead { complete: missing.is_none(), incomplete: missing.map(|missing| missing.to_string()) };
    let head = json(serde_json::to_string(&head));
    let mut out = format!("{},\"workers\":[", head.strip_suffix('}').unwrap_or("{"));
    let latest = fragment::latest_write(rows);
    for (at, one) in rows.iter().enumerate() {
        out.push_str(if at == 0 { "\n" } else { ",\n" });
        let worker = one.worker();
        let mut row = row(one.member, &worker, one.fragment.as_deref(), one.stamp.as_deref());
        row.checks.extend(one.silent(latest).map(|_| checks::SILENT_NAME));
        out.push_str(&json(serde_json::to_string(&row)));
    }
    let active = rows.iter().filter(|row| {
        use crate::model::Status::{Created, Running};
        matches!(row.status(), Created | Running)
    });
    let tail = SwarmTail {
        run_id: run.map(|run| run.id.as_str()),
        last_updated: utc(newest),
        total_workers: rows.len(),
        active_workers: active.count(),
        outcomes_read: rows.iter().filter(|row| row.fragment.is_some()).count(),
        skipped: if run.is_none() { visible.skipped.map(Into::into) } else { None },
        troubles: if run.is_none() { &visible.troubles } else { &[] },
    };
    let tail = json(serde_json::to_string(&tail));
    out.push_str("\n],");
    out.push_str(tail.strip_prefix('{').unwrap_or("}"));
    out.push('\n');
    out.into_bytes()
}

fn row<'a>(
    member: &Member,
    worker: &'a Worker,
    fragment: Option<&'a Fragment>,
    stamp: Option<&Fingerprint>,
) -> Row<'a> {
    let path = [b"workers/", own::shown(&member.name, own::is_index).as_bytes()].concat();
    Row {
        id: member.name.to_text().into_owned(),
        id_hex: hex(member.name.as_bytes()),
        path: String::from_utf8_lossy(&path).into_owned(),
        path_hex: hex(&path),
        task: one_line(&worker.task, TASK_MAX),
        status: worker.status.as_str(),
        status_source: worker.status_source.as_deref().filter(|word| *word != worker.status.as_str()),
        outcome: fragment.map(|fragment| fragment.outcome.as_str()),
        created_at: when(&worker.created_at),
        started_at: when(&worker.started_at),
        finished_at: when(&worker.finished_at),
        duration_ms: worker.duration_ms,
        last_write: stamp.map(|stamp| utc(stamp.newest_mtime)),
        tags: &worker.tags,
        task_type: worker.task_type.as_deref(),
        owner_id: worker.owner.as_ref().map(|owner| &*owner.0),
        run_id: worker.run.as_deref(),
        job_id: worker.job.as_deref(),
        parent_id: worker.parent.as_deref(),
        model: worker.model.as_deref(),
        cwd: worker.cwd.as_deref(),
        calls: fragment.map(|fragment| CallCounts {
            total: fragment.calls,
            failed: fragment.failed,
            unknown: fragment.unknown,
            bytes: fragment.output_bytes,
        }),
        cause: fragment
            .filter(|fragment| fragment.outcome == Outcome::Failed)
            .map(|fragment| one_line(&fragment.cause, CAUSE_MAX)),
        checks: fragment.map(|fragment| fragment.checks.iter().map(|check| &*check.name).collect()).unwrap_or_default(),
    }
}
