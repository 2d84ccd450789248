//! index.json: a worker in full, or a line for each worker of a run or the swarm, for programs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rustix::io::Errno;

use super::Body;
use super::json::{
    AttentionJson, CallCounts, CallRow, ChangedFile, ContextJson, DraftJson, FileRow, FileUses,
    IndexRow, ReadFile, ReasonJson, SwarmHead, SwarmTail, TranscriptStats, WaitingJson,
    WorkerIndexJson,
};
use super::marker::Marker;
use crate::analysis::attention::Attention;
use crate::analysis::checks::CheckKind;
use crate::analysis::file_uses::FileUse;
use crate::analysis::missing::Missing;
use crate::analysis::spending::WorkerCost;
use crate::analysis::worker_digest::{self, WorkerDigest, WorkerRow};
use crate::analysis::{NO_RESULT, UNRECORDED, checks, peers};
use crate::catalog::Fingerprint;
use crate::route::shown_path::shown_path;
use crate::route::{Group, name_collision};
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Flaw, Outcome, Output, Prices, Record, Trace, Worker};
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::json::{hex, printable};
use swarmletfs_base::text::{utc, when};
use swarmletfs_base::unicode::visible;

/// Maximum length of a task in the index of many workers, in bytes.
const TASK_MAX: usize = 200;
/// Maximum length of a cause in the index of many workers, in bytes.
const CAUSE_MAX: usize = 200;
/// Maximum number of files listed for a worker. Others are only counted.
const FILES_MAX: usize = 1_000;
/// Maximum number of files in each list of files that a worker's calls read or changed.
const USES_MAX: usize = 500;

/// Renders index.json of a worker. It is complete only if it shows the state `fingerprint`.
///
/// # Errors
/// The worker's files cannot be listed.
pub fn worker(
    view: &View,
    member: &Member,
    fingerprint: &Fingerprint,
    record: &Record,
    missing: Option<Missing>,
    prices: Option<&Prices>,
) -> Result<Body> {
    let Record { worker, trace, unread } = record;
    let (files, now) = view.files(member, FILES_MAX)?;
    let digest = WorkerDigest::new(view, member, fingerprint, record);
    let index = WorkerIndexJson {
        complete: missing.is_none(),
        incomplete: missing.map(|missing| missing.to_string()),
        worker: IndexRow {
            task: visible(trace.task.as_deref().unwrap_or(&worker.task)).into_owned(),
            ..row(member, worker, Some(&digest), Some(fingerprint), prices)
        },
        tool_calls: trace.calls.iter().map(call).collect(),
        tools_used: trace.tools_used.clone(),
        final_words: trace.final_words.as_deref().map(|words| visible(words).into_owned()),
        error: worker.error.as_deref().map(visible),
        summary: worker.summary.as_deref().map(visible),
        supervisor_notes: worker.supervisor_notes.as_deref().map(visible),
        claimed: claims(worker),
        file_uses: file_uses(&digest.files),
        files: files
            .into_iter()
            .map(|file| {
                let path = shown_path(&file.path);
                let (text, bytes) = (path.to_text().into_owned(), hex(path.as_bytes()));
                FileRow { path: text, path_hex: bytes, bytes: file.bytes, mtime: utc(file.mtime) }
            })
            .collect(),
        total_files: now.files,
        total_bytes: now.bytes,
        outputs_not_read_in_time: *unread,
        tokens: trace.tokens.map(Into::into),
        tokens_by_model: trace
            .tokens_by_model
            .iter()
            .map(|(model, tokens)| (visible(model).into_owned(), (*tokens).into()))
            .collect(),
        tokens_complete: trace.tokens_are_partial.then_some(false),
        source: source(trace),
        checks: &digest.checks,
        marker: Marker::new(member, worker).to_string(),
    };
    let text = serde_json::to_string_pretty(&index).map_err(|_| Error::Io(Errno::IO))?;
    Ok(Body {
        bytes: (printable(&text) + "\n").into_bytes(),
        complete: digest.whole && now.key == fingerprint.key,
    })
}

/// Returns the claims in a worker's metadata that contradict the registry of the store, by field.
fn claims(worker: &Worker) -> BTreeMap<&str, Cow<'_, str>> {
    let claims = worker.flaws.iter().filter_map(|flaw| match flaw {
        Flaw::Claim { field, text } => Some((field.as_str(), visible(text))),
        _ => None,
    });
    claims.collect()
}

/// Returns the files that a worker read or changed. A file that was created and then edited counts
/// as created.
fn file_uses(files: &[FileUse]) -> FileUses {
    let read = files.iter().filter(|file| file.reads > 0);
    let edited = files.iter().filter(|file| file.edits > 0 && !file.created);
    let created = files.iter().filter(|file| file.created);
    let changed = |file: &FileUse| ChangedFile {
        path: file.path.clone(),
        edits: file.edits,
        added: file.added,
        removed: file.removed,
    };
    let counts = [read.clone().count(), edited.clone().count(), created.clone().count()];
    FileUses {
        files_read: read
            .take(USES_MAX)
            .map(|file| ReadFile { path: file.path.clone(), reads: file.reads })
            .collect(),
        files_edited: edited.take(USES_MAX).map(changed).collect(),
        files_created: created.take(USES_MAX).map(changed).collect(),
        files_not_listed: counts
            .into_iter()
            .map(|count| count.saturating_sub(USES_MAX) as u64)
            .sum(),
    }
}

fn source(trace: &Trace) -> Option<TranscriptStats> {
    let unused = &trace.unused;
    (unused.lines > 0).then(|| TranscriptStats {
        lines: unused.lines,
        unparsable_lines: trace.total_bad_lines(),
        unknown_records: unused.kinds.clone(),
        results_without_calls: unused.orphan_results,
        calls_without_results: trace.unanswered.total(),
        calls_not_shown: unused.excess_calls,
        truncated_outputs: trace.truncated.iter().map(|path| path.to_text().into_owned()).collect(),
    })
}

fn call(call: &swarmletfs_base::model::ToolCall) -> CallRow {
    CallRow {
        seq: call.seq,
        tool: call.tool.clone(),
        file: call.path.to_text().into_owned(),
        file_hex: hex(call.path.as_bytes()),
        outcome: call.outcome.as_str(),
        open: call.is_open.then_some(true),
        suspect: call.suspect.as_deref().map(|line| visible(line).into_owned()),
        exit_code: call.exit_code,
        duration_ms: call.duration_ms,
        bytes: call.bytes,
        input: call.input.as_deref().map(|input| visible(input).into_owned()),
        unreadable: match &call.output {
            Output::Unreadable(reason) => Some(reason.clone()),
            Output::Pending => Some(NO_RESULT.into()),
            Output::Unrecorded => Some(UNRECORDED.into()),
            Output::InPlace | Output::OutOfBand(_) => None,
        },
    }
}

/// Renders index.json of a run or the swarm: one JSON object with each worker on a line of its own,
/// so that `grep` returns whole workers.
pub fn swarm(
    visible: &VisibleWorkers,
    group: &Group,
    rows: &[WorkerRow],
    newest: Time,
    missing: Option<Missing>,
    prices: Option<&Prices>,
) -> Result<Vec<u8>> {
    let json = |text: serde_json::Result<String>| {
        text.map(|text| printable(&text)).map_err(|_| Error::Io(Errno::IO))
    };
    let run = group.run(visible);
    let is_whole = *group == Group::Swarm;
    let head = SwarmHead {
        complete: missing.is_none(),
        incomplete: missing.map(|missing| missing.to_string()),
    };
    let head = json(serde_json::to_string(&head))?;
    let mut out = format!("{},\"workers\":[", head.strip_suffix('}').unwrap_or("{"));
    let attention = peers::among_peers(rows, prices);
    for (at, row) in swarm_rows(visible, rows, &attention, prices).enumerate() {
        out.push_str(if at == 0 { "\n" } else { ",\n" });
        out.push_str(&json(serde_json::to_string(&row))?);
    }
    let active = rows.iter().filter(|row| {
        use swarmletfs_base::model::Status::{Created, Running};
        matches!(row.status(), Created | Running)
    });
    let tail = SwarmTail {
        run_id: run.map(|run| run.id.as_str()),
        last_updated: utc(newest),
        total_workers: rows.len(),
        active_workers: active.count(),
        outcomes_read: rows.iter().filter(|row| row.digest.is_some()).count(),
        skipped: if is_whole { visible.skipped } else { None },
        troubles: if is_whole { &visible.list_errors } else { &[] },
    };
    let tail = json(serde_json::to_string(&tail))?;
    out.push_str("\n],");
    out.push_str(tail.strip_prefix('{').unwrap_or("}"));
    out.push('\n');
    Ok(out.into_bytes())
}

/// Returns the entries of `rows`; `attention` is their attention among all of them.
pub fn swarm_rows(
    visible: &VisibleWorkers,
    rows: &[WorkerRow],
    attention: &[Attention],
    prices: Option<&Prices>,
) -> impl Iterator<Item = IndexRow> {
    let latest = worker_digest::latest_write(rows);
    rows.iter().zip(attention).map(move |(worker_row, attention)| {
        let (digest, fingerprint) =
            (worker_row.digest.as_deref(), worker_row.fingerprint.as_deref());
        let mut row = row(&worker_row.member, &worker_row.worker(), digest, fingerprint, prices);
        let short = visible.short_id(&worker_row.member.name);
        row.short_id = Some(short.to_text().into_owned());
        row.attention = digest.map(|_| attention_json(attention));
        row.checks.extend(worker_row.silent(latest).map(|_| checks::SILENT_NAME.into()));
        row
    })
}

fn attention_json(attention: &Attention) -> AttentionJson {
    let reasons = attention.reasons.iter().map(|reason| ReasonJson {
        kind: reason.kind,
        file: reason.file.as_deref().map(|file| visible(file).into_owned()),
        call: reason.call,
        line: reason.line.clone(),
        by: reason.denier(),
        since: reason.since.map(|time| utc(time.into())),
    });
    AttentionJson { level: attention.level(), reasons: reasons.collect() }
}

fn row(
    member: &Member,
    worker: &Worker,
    digest: Option<&WorkerDigest>,
    fingerprint: Option<&Fingerprint>,
    prices: Option<&Prices>,
) -> IndexRow {
    let path = [
        b"workers/",
        name_collision::shown_name(&member.name, name_collision::is_index).as_bytes(),
    ]
    .concat();
    IndexRow {
        id: member.name.to_text().into_owned(),
        id_hex: hex(member.name.as_bytes()),
        short_id: None,
        title: one_line(worker.title(), TASK_MAX),
        path: String::from_utf8_lossy(&path).into_owned(),
        path_hex: hex(&path),
        task: one_line(&worker.task, TASK_MAX),
        format: member.entry.format(),
        status: worker.status.as_str(),
        status_source: worker
            .status_source
            .clone()
            .filter(|word| **word != *worker.status.as_str()),
        outcome: digest.map(|digest| digest.outcome.as_str()),
        created_at: when(&worker.created_at),
        started_at: when(&worker.started_at),
        finished_at: when(&worker.finished_at),
        duration_ms: worker.duration_ms,
        last_message: worker.last_message.map(|time| utc(time.into())),
        last_write: fingerprint.map(|fingerprint| utc(fingerprint.newest_mtime)),
        tags: worker.tags.clone(),
        task_type: worker.task_type.clone(),
        owner_id: worker.owner.as_ref().map(|owner| owner.0.clone()),
        run_id: worker.run.clone(),
        job_id: worker.job.clone(),
        parent_id: worker.parent.clone(),
        continues: worker.continues.clone(),
        waiting: worker.waiting.as_ref().map(|waiting| WaitingJson {
            since: waiting.since.map(|time| utc(time.into())),
            request: one_line(&waiting.request, TASK_MAX),
        }),
        model: worker.model.clone(),
        cwd: worker.cwd.clone(),
        project: worker.project().map(str::to_owned),
        branch: worker.branch.clone(),
        calls: digest.map(|digest| CallCounts {
            total: digest.calls,
            failed: digest.failed,
            suspect: digest.suspect,
            unknown: digest.unknown,
            not_run: digest.not_run,
            bytes: digest.output_bytes,
        }),
        files_changed: digest.map(WorkerDigest::files_changed),
        draft: worker.draft.map(|state| {
            let lines = digest.map(WorkerDigest::changed_lines);
            DraftJson {
                state,
                files: lines.map(|(files, ..)| files),
                added: lines.map(|(_, added, _)| added),
                removed: lines.map(|(.., removed)| removed),
            }
        }),
        doubts: digest
            .iter()
            .flat_map(|digest| &digest.checks)
            .filter(|check| check.kind == CheckKind::Doubt)
            .map(|check| check.name.clone())
            .collect(),
        attention: digest.map(|digest| attention_json(&digest.attention)),
        cost: digest.and_then(|digest| WorkerCost::find(digest, prices)).map(Into::into),
        context: digest
            .filter(|digest| digest.peak_context.is_some() || digest.compactions > 0)
            .map(|digest| ContextJson {
                peak_tokens: digest.peak_context,
                compactions: digest.compactions,
            }),
        cause: digest
            .filter(|digest| digest.outcome == Outcome::Failed)
            .map(|digest| one_line(&digest.cause, CAUSE_MAX)),
        checks: digest
            .map(|digest| digest.checks.iter().map(|check| check.name.clone()).collect())
            .unwrap_or_default(),
    }
}
