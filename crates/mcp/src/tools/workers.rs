//! Tools for workers: list, evidence, comparison and changes.

use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{
    NotedText, ToolEntry, ToolError, ToolResult, budget, non_empty, page_output, path_component,
    tool, worker_id,
};
use crate::slice::{OpenFile, SliceRequest, echo};
use crate::tools::files::byte_limit;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{ReviewState, SharedStr};
use swarmletfs_base::name::{Name, printable};
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::parse_time;
use swarmletfs_tree::analysis::facets::Facet;
use swarmletfs_tree::query::call_output;
use swarmletfs_tree::query::compare::{CompareOptions, CompareQuery};
use swarmletfs_tree::render::expand::InputFormat;
use swarmletfs_tree::render::list::{IndexRow, WorkerQuery};
use swarmletfs_tree::render::prose::WorkerProse;
use swarmletfs_tree::tree::{Symlinks, Tree};

/// Default number of listed workers.
const LIMIT: usize = 50;

pub(super) fn tools() -> Vec<ToolEntry> {
    vec![
        tool(
            "list_workers",
            "Lists workers, newest first, one object per line: id, title, status (what it reports \
            itself), outcome (what its record shows: ok, failed or unknown), attention (high or low \
            if it needs a person) and why, cause of a failure, and where and when it worked. \
            workers/<id>/index.json has more. Start here, or with read_file summary.",
            list_workers,
        ),
        tool(
            "get_evidence",
            "Returns proof: an excerpt of tool outputs within a budget, failures first, with byte \
            offsets of what was omitted. Covers one worker, the workers of a job, a run, or, with \
            no argument, the whole swarm.",
            get_evidence,
        ),
        tool(
            "get_tool_output",
            "Returns the raw output of one tool call, exactly, even if it was stored outside of \
            the worker's folder. Name a worker and a call, or the artifact id of a \
            [TOOL_OUTPUT:artifact_id=...] stub.",
            get_tool_output,
        ),
        tool(
            "summarize",
            "Summarizes one worker on one screen: status, outcome and cause, task, its tool calls, \
            its own final words, and checks of its claims against its record. With focus, also the \
            passages that match those words; with prose, a few sentences of a language model \
            instead.",
            summarize,
        ),
        tool(
            "compare",
            "Compares two to eight workers: files of one name as unified diffs, passages that only \
            one worker has, calls and how they ended. With aspect, only what matches those words; \
            with prose, a few sentences of a language model instead.",
            compare,
        ),
        tool(
            "changes_since",
            "Lists what changed since a cursor, one line per worker: its status, and which of its \
            files are new or changed. The last line is the next cursor. Start with cursor now, or \
            0 for everything.",
            changes_since,
        ),
        tool(
            "expand",
            "Inserts evidence after every marker [EVIDENCE:run_id=..,job_id=..,worker_id=..] in a \
            text; the rest of the text is unchanged.",
            expand,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListWorkersInput {
    /// Only workers with this status: created, running, completed, failed, unknown, or the word the
    /// worker's program wrote
    status: Option<String>,
    /// Only workers with this outcome: ok, failed, unknown
    outcome: Option<String>,
    /// Only workers that need a person this much: high, low, none
    attention: Option<String>,
    /// Only workers with this type of task
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only workers with this tag
    tag: Option<String>,
    /// Only workers of this day in UTC, as in 2026-02-15, or of these, as in
    /// 2026-02-09..2026-02-15
    day: Option<String>,
    /// Only workers that began since then, as in 2026-02-15 or 2026-02-15T10:00:00Z
    since: Option<String>,
    /// Only workers in a folder of this name
    project: Option<String>,
    /// Only workers on this branch of git
    branch: Option<String>,
    /// Only workers that edited this file: its path from their working folder
    file: Option<String>,
    /// Only workers that called this tool
    tool: Option<String>,
    /// Only workers with this text in their title or task, in any letter case
    text: Option<String>,
    /// Only workers of this run; latest is the run with the newest change
    #[serde(alias = "run_id")]
    run: Option<String>,
    /// Most workers to list [default: 50]
    limit: Option<usize>,
    /// next_cursor of the previous answer, to continue its list
    cursor: Option<String>,
}

fn list_workers(tree: &Tree, args: ListWorkersInput) -> ToolResult {
    let values = [
        (Facet::Status, args.status),
        (Facet::Outcome, args.outcome),
        (Facet::Attention, args.attention),
        (Facet::Type, args.kind),
        (Facet::Tag, args.tag),
        (Facet::Day, args.day),
        (Facet::Project, args.project),
        (Facet::Branch, args.branch),
        (Facet::File, args.file),
        (Facet::Tool, args.tool),
    ];
    let values = values.into_iter().filter_map(|(facet, value)| Some((facet, non_empty(value)?)));
    let since = non_empty(args.since).map(|since| {
        parse_time(&since).ok_or_else(|| {
            ToolError::new("since: give a day as 2026-02-15, or a time as 2026-02-15T10:00:00Z")
        })
    });
    let since = since.transpose()?;
    let query = WorkerQuery {
        values: values.collect(),
        since,
        text: non_empty(args.text),
        after: non_empty(args.cursor),
        ..WorkerQuery::default()
    };
    let folder = non_empty(args.run)
        .map_or_else(String::new, |run| format!("runs/{}/", path_component(&run)));
    let listed = tree.with_path(format!("{folder}.").as_bytes(), Symlinks::Follow, |place| {
        tree.list_workers(place.leaf().ino, &query)
    });
    let answer =
        listed.map_err(ToolError::at(&format!("{folder}index.json")))?.ok_or_else(|| {
            ToolError::new("cannot find the worker of this cursor; list again without it")
        })?;
    let workers = &answer.workers;
    let text = super::list(
        "workers",
        workers.iter().take(args.limit.unwrap_or(LIMIT).max(1)).map(CompactWorker::new),
        |shown| workers.len() - shown,
        |shown| workers.iter().take(shown).next_back().map(|last| last.id.as_str()).into(),
    )?;
    // A filter without a match may be misspelled, so list the values that exist.
    let note = workers.is_empty().then(|| {
        if answer.statuses.is_empty() {
            return "[... there are no workers yet ...]".to_owned();
        }
        // Types come from workers, so their number and length are unbounded.
        let types: Vec<String> = answer.task_types.iter().take(20).map(|kind| echo(kind)).collect();
        let words = |words: &BTreeSet<&str>| words.iter().copied().collect::<Vec<_>>().join(", ");
        format!(
            "[... no worker matches all of these filters; \
             statuses: {}; outcomes: {}; types: {} ...]",
            words(&answer.statuses),
            words(&answer.outcomes),
            types.join(", ")
        )
    });
    Ok(NotedText { text, note })
}

/// The parts of a worker's entry in index.json that tell workers apart.
#[derive(Serialize)]
struct CompactWorker<'a> {
    id: &'a str,
    title: &'a str,
    status: &'static str,
    outcome: Option<&'static str>,
    /// `high` or `low`; absent for workers that need nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<&'static str>,
    /// The most important reason for attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    /// Names of the checks that contradict its claim of success.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    doubts: &'a BTreeSet<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [SharedStr],
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_changed: Option<usize>,
    /// The state of a draft that waits for a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft: Option<ReviewState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
}

impl CompactWorker<'_> {
    fn new(row: &IndexRow) -> CompactWorker<'_> {
        let reason = row.attention.as_ref().and_then(|found| found.reasons.first());
        CompactWorker {
            id: &row.id,
            title: &row.title,
            status: row.status,
            outcome: row.outcome,
            attention: reason.and(row.attention.as_ref()).map(|found| found.level.as_str()),
            why: reason.map(|reason| format!("{}: {}", reason.kind.as_str(), reason.line)),
            // The reason of a failed worker is the cause.
            cause: row.cause.as_deref().filter(|cause| {
                reason.is_none_or(|reason| !cause.starts_with(reason.line.trim_end_matches('…')))
            }),
            doubts: &row.doubts,
            began: row.started_at.as_deref().or(row.created_at.as_deref()),
            last_message: row.last_message.as_deref(),
            project: row.project.as_deref(),
            branch: row.branch.as_deref(),
            kind: row.task_type.as_deref(),
            tags: &row.tags,
            run_id: row.run_id.as_deref(),
            parent_id: row.parent_id.as_deref(),
            calls: row.calls.as_ref().map(|calls| calls.total),
            files_changed: row.files_changed,
            draft: row.draft.as_ref().map(|draft| draft.state).filter(|state| state.is_open()),
            cost_usd: row.cost.as_ref().map(|cost| cost.usd),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GetEvidenceInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: Option<String>,
    /// A job, to cover all its workers
    #[serde(alias = "job_id")]
    job: Option<String>,
    /// A run; latest is the run with the newest change
    #[serde(alias = "run_id")]
    run: Option<String>,
    /// Most bytes of output [default: 16000 for one worker, 28000 for several]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of output
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

fn get_evidence(tree: &Tree, args: GetEvidenceInput) -> ToolResult {
    let budget = budget(args.bytes, args.tokens)?;
    let file = evidence_file(budget);
    let path = match (non_empty(args.worker), non_empty(args.job), non_empty(args.run)) {
        (Some(worker), None, None) => return worker_file(tree, &worker, &file),
        (None, None, Some(run)) => format!("runs/{}/{file}", path_component(&run)),
        (None, None, None) => file,
        (None, Some(job), None) => return job_evidence(tree, &job, budget),
        _ => return Err(ToolError::new("get_evidence: name only one of worker, job and run")),
    };
    generated_file(tree, &path)
}

/// Returns the evidence of all workers of a job within one budget. A job with one worker gets that
/// worker's file.
fn job_evidence(tree: &Tree, job: &str, budget: Option<Budget>) -> ToolResult {
    let path = format!("by/job/{}", path_component(job));
    let listed =
        tree.with_path(path.as_bytes(), Symlinks::Follow, |place| place.leaf().list_folder());
    let listed = listed.map_err(ToolError::at(&path))?;
    if let [worker] = &*listed {
        return worker_file(tree, &worker.name.to_text(), &evidence_file(budget));
    }
    let mut text = Vec::new();
    let done =
        tree.renderer().expand_workers(listed.iter().map(|worker| &worker.name), budget, &mut text);
    done.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(NotedText::from_bytes(&text))
}

fn evidence_file(budget: Option<Budget>) -> String {
    budget.map_or("evidence.txt".into(), |budget| format!("evidence.{}.txt", budget.name()))
}

pub(crate) fn worker_file(tree: &Tree, worker: &str, file: &str) -> ToolResult {
    let id = worker_id(worker);
    let folder = format!("workers/{}", path_component(&id));
    tree.with_path(folder.as_bytes(), Symlinks::Follow, |_| Ok(()))
        .map_err(|error| ToolError::new(format!("{}: {error}; try list_workers", echo(&id))))?;
    generated_file(tree, &format!("{folder}/{file}"))
}

fn generated_file(tree: &Tree, path: &str) -> ToolResult {
    let most = Budget::MAX.size();
    let read = OpenFile::at_path(tree, path.as_bytes())
        .and_then(|file| file.read_all(most))
        .map_err(ToolError::at(path))?;
    read.map(|bytes| NotedText::from_bytes(&bytes))
        .ok_or_else(|| ToolError::new(format!("{path} is too large")))
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum CallArg {
    Number(i64),
    File(String),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GetNotedTextInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: Option<String>,
    /// The call: its number (seq in index.json), or its file, such as 002_ssh_exec.txt
    call: Option<CallArg>,
    /// The id of an output that was stored elsewhere, instead of worker and call
    artifact_id: Option<String>,
    /// Number of bytes to skip [default: 0]
    #[serde(default)]
    offset: u64,
    /// Number of bytes to read [default: 16000; at most 1048576]
    limit: Option<u64>,
}

fn get_tool_output(tree: &Tree, args: GetNotedTextInput) -> ToolResult {
    let worker =
        non_empty(args.worker).map(|worker| Name::new(worker_id(&worker).as_bytes())).transpose();
    let worker = worker.map_err(|_| ToolError::new("there is no such worker; try list_workers"))?;
    let number = args.call.as_ref().and_then(|call| match call {
        CallArg::Number(number) => Some(u64::try_from(*number).unwrap_or(0)),
        // A model may send a number as a string.
        CallArg::File(file) => file.parse().ok(),
    });
    let artifact = non_empty(args.artifact_id);
    let call = match (&worker, &args.call, &artifact) {
        (Some(worker), Some(_), None) if let Some(number) = number => {
            call_output::CallSelector::Number(worker, number)
        }
        (Some(worker), Some(CallArg::File(file)), None) => {
            call_output::CallSelector::File(worker, file)
        }
        (None, None, Some(id)) => call_output::CallSelector::Artifact(id),
        _ => {
            return Err(ToolError::new(
                "get_tool_output: name a worker and a call, or an artifact_id",
            ));
        }
    };
    let (place, fh) = tree.open_output(&call).map_err(|error| {
        let hint =
            "try list_workers for workers, and tool_calls in workers/<id>/index.json for calls";
        ToolError::new(format!("there is no such call: {error}; {hint}"))
    })?;
    let path = format!("workers/{}/{}", place.worker.display(), place.path.display());
    match (fh, place.missing) {
        (Some(fh), _) => {
            let request = SliceRequest::Bytes(args.offset, byte_limit(args.limit));
            let slice = OpenFile::from_handle(tree, fh, path.clone()).slice(request);
            slice.map_err(ToolError::at(&path))
        }
        (None, missing) => Err(ToolError::new(format!("{path}: {}", missing.unwrap_or_default()))),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SummarizeInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: String,
    /// Words, to also show the passages that match them
    focus: Option<String>,
    /// True for two or three sentences of a language model, if this server may ask one
    #[serde(default)]
    prose: bool,
}

fn summarize(tree: &Tree, args: SummarizeInput) -> ToolResult {
    if args.prose {
        let id = worker_id(&args.worker);
        let form = WorkerProse::about(non_empty(args.focus).as_deref());
        let failed = |error| ToolError::new(format!("{}: {error}; try list_workers", echo(&id)));
        let question = Name::new(id.as_bytes())
            .and_then(|name| tree.renderer().worker_question(&name, &form))
            .map_err(failed)?;
        return Ok(NotedText::new(tree.renderer().answer(&question, Deadline::never()).text));
    }
    let file = non_empty(args.focus)
        .map_or("summary".to_owned(), |words| format!("summary@{}", escape(&words)));
    worker_file(tree, &args.worker, &file)
}

/// Escapes words for use in a path, in which every `%XX` is decoded.
fn escape(words: &str) -> String {
    words.replace('%', "%25").replace('/', "%2F")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CompareInput {
    /// The workers' ids or unique beginnings of them, two to eight
    #[serde(alias = "worker_ids")]
    workers: Vec<String>,
    /// Words, to show only what matches them
    aspect: Option<String>,
    /// True for a few sentences of a language model instead, if this server may ask one
    #[serde(default)]
    prose: bool,
    /// Most bytes of output [default: 28000]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of output
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

fn compare(tree: &Tree, args: CompareInput) -> ToolResult {
    let options =
        CompareOptions { budget: budget(args.bytes, args.tokens)?, aspect: non_empty(args.aspect) };
    let (number, most) = (args.workers.len(), CompareQuery::WORKERS_MAX);
    if number > most {
        let text = format!("cannot compare {number} workers; try at most {most}");
        return Err(ToolError::new(text));
    }
    let ids: Vec<_> = args.workers.iter().map(|worker| worker_id(worker)).collect();
    let query = CompareQuery::new(options, ids.iter().map(|id| id.as_bytes()));
    let failed = |error| {
        let named: Vec<String> =
            args.workers.iter().map(|worker| printable(worker.as_bytes())).collect();
        ToolError::new(format!("{}: {error}; try list_workers", named.join(", ")))
    };
    if args.prose {
        let answer = tree.renderer().compare_prose(&query, Deadline::never()).map_err(failed)?;
        return Ok(NotedText::new(answer.1.text));
    }
    let answer = tree.compare(&query).map_err(failed)?;
    page_output(answer.page)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChangesSinceInput {
    /// The last line of an earlier answer; now, or 0 for everything
    cursor: String,
}

fn changes_since(tree: &Tree, args: ChangesSinceInput) -> ToolResult {
    swarmletfs_tree::route::cursor::Cursor::parse(&args.cursor).map_err(ToolError::new)?;
    generated_file(tree, &format!("since/{}", path_component(&args.cursor)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExpandInput {
    /// The text
    text: String,
    /// Most bytes of evidence in all [default: 28000]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of evidence in all
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

fn expand(tree: &Tree, args: ExpandInput) -> ToolResult {
    let mut text = Vec::new();
    let done = tree.renderer().expand(
        InputFormat::Text,
        budget(args.bytes, args.tokens)?,
        args.text.as_bytes(),
        &mut text,
    );
    let stats = done.map_err(|error| ToolError::new(error.to_string()))?;
    let note = stats.not_expanded().map(|text| format!("[... {text} ...]"));
    Ok(NotedText { note, ..NotedText::from_bytes(&text) })
}
