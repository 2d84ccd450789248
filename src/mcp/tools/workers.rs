//! Tools for workers: who there is, what their record shows, what changed.

use std::collections::BTreeSet;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, Called, Done, Fault, budget, given, part, tool, worker_id};
use crate::mcp::slice::{Open, Wanted, cut};
use crate::mcp::tools::files::bytes;
use crate::name::{Name, printable};
use crate::render::expand::Form;
use crate::render::{Budget, compare, output};
use crate::tree::{Links, Tree};

/// How many workers are listed where nothing is said.
const LIMIT: usize = 50;
/// The largest index that is read, in bytes.
const INDEX_MAX: usize = 256 << 20;

pub(super) fn tools() -> Vec<Called> {
    vec![
        tool(
            "list_workers",
            "Lists workers, an object a line: id, status (what it says of itself), outcome (what its record \
            shows: ok, failed or unknown), cause of a failure, task, type, tags, times, and checks that its claims do not pass. \
            Begin here, or with read_file summary.",
            list_workers,
        ),
        tool(
            "get_evidence",
            "The proof: an excerpt of tool outputs within a budget, failures first, with byte offsets of what \
            was omitted. Of one worker, of a job's workers, of a run, or, with neither, of the whole swarm.",
            get_evidence,
        ),
        tool(
            "get_tool_output",
            "The raw output of one tool call, exactly, also where it was stored outside of the worker's \
            folder. Name a worker and a call, or the artifact id of a [TOOL_OUTPUT:artifact_id=...] stub.",
            get_tool_output,
        ),
        tool(
            "summarize",
            "One worker on one screen: status, outcome and cause, task, its tool calls, its own final words, \
            and checks of its claims against its record. With focus, also the passages that bear on those words.",
            summarize,
        ),
        tool(
            "compare",
            "What two to eight workers share and where they differ: files of one name as unified diffs, passages \
            that only one has, calls and how they ended. With aspect only what bears on those words.",
            compare,
        ),
        tool(
            "changes_since",
            "What changed since a cursor, a line a worker: its status, and which of its files are new or \
            changed. The last line is the next cursor. Begin with cursor now, or 0 for everything.",
            changes_since,
        ),
        tool(
            "expand",
            "Puts evidence behind every marker [EVIDENCE:run_id=..,job_id=..,worker_id=..] in a text; the rest of \
            the text stays as it is.",
            expand,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct ListWorkers {
    /// Only of this status: created, running, completed, failed, unknown, or the word the worker's program wrote
    status: Option<String>,
    /// Only of this outcome: ok, failed, unknown
    outcome: Option<String>,
    /// Only of this type of task
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only with this tag
    tag: Option<String>,
    /// Only of this run; latest is the one with the newest change
    run: Option<String>,
    /// At most so many [default: 50]
    limit: Option<usize>,
    /// Where to go on: next_cursor of the last answer
    cursor: Option<String>,
}

fn list_workers(tree: &Tree, asked: ListWorkers) -> Done {
    let asked = ListWorkers {
        status: given(asked.status),
        outcome: given(asked.outcome),
        kind: given(asked.kind),
        tag: given(asked.tag),
        run: given(asked.run),
        cursor: given(asked.cursor),
        ..asked
    };
    let path = asked.run.as_ref().map_or("index.json".to_owned(), |run| format!("runs/{}/index.json", part(run)));
    let index = Open::at(tree, path.as_bytes()).and_then(|file| file.all(INDEX_MAX)).map_err(Fault::at(&path))?;
    let index: Value = serde_json::from_slice(&index.unwrap_or_default())
        .map_err(|_| Fault::new(format!("{path} is too large: narrow it with run, or list by/<facet>/<value>")))?;
    let text = |worker: &Value, field: &str| worker.get(field).and_then(Value::as_str).map(str::to_owned);
    let is = |worker: &Value, field: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| text(worker, field).is_some_and(|text| text.eq_ignore_ascii_case(wanted)))
    };
    let admits = |worker: &&Value| {
        let tags = worker.get("tags").and_then(Value::as_array);
        let has_tag = |tag: &String| tags.is_some_and(|tags| tags.iter().any(|one| one.as_str() == Some(tag)));
        (is(worker, "status", &asked.status) || is(worker, "status_source", &asked.status))
            && is(worker, "outcome", &asked.outcome)
            && is(worker, "task_type", &asked.kind)
            && asked.tag.as_ref().is_none_or(has_tag)
    };
    let workers = index.get("workers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let start = match &asked.cursor {
        None => 0,
        Some(cursor) => match workers.iter().position(|worker| text(worker, "id").as_ref() == Some(cursor)) {
            Some(at) => at + 1,
            None => return Err(Fault::new("the cursor leads nowhere by now: list again without it")),
        },
    };
    let wanted: Vec<&Value> = workers.get(start..).unwrap_or_default().iter().filter(admits).collect();
    let shown = wanted.iter().take(asked.limit.unwrap_or(LIMIT).max(1));
    let cursor =
        |shown: usize| shown.checked_sub(1).and_then(|last| wanted.get(last)?.get("id")).cloned().unwrap_or_default();
    let text = super::list("workers", shown, |shown| wanted.len() - shown, cursor);
    // Where nobody is of a value, it may be misspelt.
    let note = wanted.is_empty().then(|| {
        let values = |field: &str| -> BTreeSet<&str> {
            workers.iter().filter_map(|worker| worker.get(field).and_then(Value::as_str)).collect()
        };
        // Types are a worker's words, and may be of any length.
        let of = |field| values(field).into_iter().take(20).map(cut).collect::<Vec<_>>().join(", ");
        format!(
            "[... nobody is of all that; statuses here: {}; outcomes: {}; types: {} ...]",
            of("status"),
            of("outcome"),
            of("task_type")
        )
    });
    Ok(Answer { text, note })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct GetEvidence {
    /// The worker's id
    worker: Option<String>,
    /// A job: of all its workers
    job: Option<String>,
    /// A run; latest is the one with the newest change
    run: Option<String>,
    /// At most so many bytes [default: 16000 of a worker, 28000 of more]
    bytes: Option<u32>,
    /// At most so many tokens
    tokens: Option<u32>,
}

fn get_evidence(tree: &Tree, asked: GetEvidence) -> Done {
    let asked = GetEvidence { worker: given(asked.worker), job: given(asked.job), run: given(asked.run), ..asked };
    let budget = budget(asked.bytes, asked.tokens)?;
    let file = evidence_file(budget);
    let path = match (&asked.worker, &asked.job, &asked.run) {
        (Some(worker), None, None) => return of_worker(tree, worker, &file),
        (None, None, Some(run)) => format!("runs/{}/{file}", part(run)),
        (None, None, None) => file,
        (None, Some(job), None) => return of_job(tree, job, budget),
        _ => return Err(Fault::new("get_evidence: name one of worker, job and run")),
    };
    whole(tree, &path)
}

/// The evidence of all workers of a job: that of one as it is, that of several within one budget.
fn of_job(tree: &Tree, job: &str, budget: Option<Budget>) -> Done {
    let path = format!("by/job/{}", part(job));
    let listed = tree.at(path.as_bytes(), Links::Followed, |place| place.last().listed());
    let listed = listed.map_err(Fault::at(&path))?;
    let workers: Vec<&Name> = listed.iter().map(|item| &item.name).collect();
    if let [worker] = workers.as_slice() {
        return of_worker(tree, &worker.to_text(), &evidence_file(budget));
    }
    let id = |worker: &Name| percent_encode(worker.as_bytes(), NON_ALPHANUMERIC).to_string();
    let marker = |worker: &&Name| format!("[EVIDENCE:run_id=-,job_id=-,worker_id={}]\n", id(worker));
    let markers: String = workers.iter().map(marker).collect();
    let mut text = Vec::new();
    let done = tree.expand(Form::Text, budget, markers.as_bytes(), &mut text);
    done.map_err(|error| Fault::new(error.to_string()))?;
    Ok(Answer::of_bytes(&text))
}

/// The name of the evidence of that size.
fn evidence_file(budget: Option<Budget>) -> String {
    budget.map_or("evidence.txt".into(), |budget| format!("evidence.{}.txt", budget.name()))
}

/// A generated file of a worker.
fn of_worker(tree: &Tree, worker: &str, file: &str) -> Done {
    let id = worker_id(worker);
    tree.at(format!("workers/{}", part(id)).as_bytes(), Links::Followed, |_| Ok(()))
        .map_err(|error| Fault::new(format!("{}: {error}: list_workers shows who there is", cut(id))))?;
    whole(tree, &format!("workers/{}/{file}", part(id)))
}

/// All of a generated file.
fn whole(tree: &Tree, path: &str) -> Done {
    let most = Budget::MAX.size();
    let read = Open::at(tree, path.as_bytes()).and_then(|file| file.all(most)).map_err(Fault::at(path))?;
    read.map(|bytes| Answer::of_bytes(&bytes)).ok_or_else(|| Fault::new(format!("{path} is too large")))
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(crate = "rmcp::schemars")]
enum Call {
    Number(i64),
    File(String),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct GetToolOutput {
    /// The worker's id
    worker: Option<String>,
    /// The call: its number (seq in index.json), or its file, as 002_ssh_exec.txt
    call: Option<Call>,
    /// Instead of worker and call: the id of an output that was stored elsewhere
    artifact_id: Option<String>,
    /// From this byte on [default: 0]
    #[serde(default)]
    offset: u64,
    /// At most so many bytes [default: 16000; at most 1048576]
    limit: Option<u64>,
}

fn get_tool_output(tree: &Tree, asked: GetToolOutput) -> Done {
    let worker = given(asked.worker).map(|worker| Name::new(worker_id(&worker))).transpose();
    let worker = worker.map_err(|_| Fault::new("there is no such worker: list_workers shows who there is"))?;
    let number = asked.call.as_ref().and_then(|call| match call {
        Call::Number(number) => Some(u64::try_from(*number).unwrap_or(0)),
        // A number may come as a text.
        Call::File(file) => file.parse().ok(),
    });
    let artifact = given(asked.artifact_id);
    let call = match (&worker, &asked.call, &artifact) {
        (Some(worker), Some(_), None) if let Some(number) = number => output::Asked::Number(worker, number),
        (Some(worker), Some(Call::File(file)), None) => output::Asked::File(worker, file),
        (None, None, Some(id)) => output::Asked::Artifact(id),
        _ => return Err(Fault::new("get_tool_output: name a worker and a call, or an artifact_id")),
    };
    let opened = tree.open_output(&call).map_err(|error| {
        let cure = ": list_workers shows who there is, and tool_calls in workers/<id>/index.json what was called";
        Fault::new(format!("there is no such call: {error}{cure}"))
    })?;
    let (place, fh) = opened;
    let path = format!("workers/{}/{}", place.worker.display(), place.path.display());
    match (fh, place.missing) {
        (Some(fh), _) => {
            let slice = Open::of(tree, fh, path.clone()).slice(Wanted::Bytes(asked.offset, bytes(asked.limit)));
            slice.map(Answer::from).map_err(Fault::at(&path))
        }
        (None, missing) => Err(Fault::new(format!("{path}: {}", missing.unwrap_or_default()))),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Summarize {
    /// The worker's id
    worker: String,
    /// Words: also the passages of its files that bear on them
    focus: Option<String>,
}

fn summarize(tree: &Tree, asked: Summarize) -> Done {
    let file = given(asked.focus).map_or("summary".to_owned(), |words| format!("summary@{}", encoded(&words)));
    of_worker(tree, &asked.worker, &file)
}

/// Words as a part of a path: every `%XX` is decoded there.
fn encoded(words: &str) -> String {
    words.replace('%', "%25").replace('/', "%2F")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Compare {
    /// The workers' ids, two to eight
    workers: Vec<String>,
    /// Words: only what bears on them
    aspect: Option<String>,
    /// At most so many bytes [default: 28000]
    bytes: Option<u32>,
    /// At most so many tokens
    tokens: Option<u32>,
}

fn compare(tree: &Tree, asked: Compare) -> Done {
    let options = compare::Options { budget: budget(asked.bytes, asked.tokens)?, aspect: given(asked.aspect) };
    let query = compare::Query::new(options, asked.workers.iter().map(|worker| worker_id(worker).as_bytes()));
    let answer = tree.compare(&query).map_err(|error| {
        let named: Vec<String> = asked.workers.iter().map(|worker| printable(worker.as_bytes())).collect();
        Fault::new(format!("{}: {error}: list_workers shows who there is", named.join(", ")))
    })?;
    if answer.error.is_some() { Err(Fault::new(answer.text)) } else { Ok(Answer::of(answer.text)) }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct ChangesSince {
    /// The last line of an earlier answer; now, or 0 for everything
    cursor: String,
}

fn changes_since(tree: &Tree, asked: ChangesSince) -> Done {
    crate::render::since::Cursor::parse(&asked.cursor).map_err(Fault::new)?;
    whole(tree, &format!("since/{}", part(&asked.cursor)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Expand {
    /// The text
    text: String,
    /// At most so many bytes of evidence in all [default: 28000]
    bytes: Option<u32>,
    /// At most so many tokens of evidence in all
    tokens: Option<u32>,
}

fn expand(tree: &Tree, asked: Expand) -> Done {
    let mut text = Vec::new();
    let done = tree.expand(Form::Text, budget(asked.bytes, asked.tokens)?, asked.text.as_bytes(), &mut text);
    let expanded = done.map_err(|error| Fault::new(error.to_string()))?;
    Ok(Answer { note: expanded.left().map(|left| format!("[... {left} ...]")), ..Answer::of_bytes(&text) })
}
