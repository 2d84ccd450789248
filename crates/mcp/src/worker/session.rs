//! A worker and its view, the record of its calls, and the tools for that record.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::kept_command::BackgroundCommands;
use super::{ToolRun, WorkerFn, WorkerTool, definition};
use crate::slice::NotedText;
use crate::tools::{ToolError, ToolResult, non_empty, parse_arguments};
use swarmletfs_base::name::printable;
use swarmletfs_base::split::Split;
use swarmletfs_record::write::{
    Call, CallEnd, Dir, Durability, During, Error, Finish, Store, Worker,
};

/// Longest text of an argument that is recorded, in bytes.
const RECORDED_MAX: usize = 64 << 10;
/// Largest task in the instructions, in bytes.
const TASK_MAX: usize = 8 << 10;

#[derive(Debug)]
pub struct WorkerSession {
    worker: Worker,
    workspace: PathBuf,
    /// The view, at the path of the workspace.
    pub(super) view: Dir,
    /// Held while a tool changes a file, so that calls at once do not undo each other.
    changes: Mutex<()>,
    task: String,
    background: Mutex<BackgroundCommands>,
}

impl WorkerSession {
    /// Opens the view of the worker `id` at `workspace`.
    ///
    /// # Errors
    ///
    /// There is no such worker, it has finished, or the view cannot be opened.
    pub fn open(store: &Store, id: &[u8], workspace: &Path) -> Result<WorkerSession, Error> {
        let worker = store.worker(id)?;
        let task = worker.metadata()?.get("task").and_then(Value::as_str).map(str::to_owned);
        let view = Dir::open(workspace, Durability::None);
        let view = view.during("open the workspace", workspace, b"")?;
        let task = task.unwrap_or_default();
        let (workspace, changes) = (workspace.to_owned(), Mutex::default());
        let background = Mutex::default();
        Ok(WorkerSession { worker, workspace, view, changes, task, background })
    }

    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Keeps other tools from changing files while the guard lives.
    pub(super) fn lock_files(&self) -> MutexGuard<'_, ()> {
        self.changes.lock()
    }

    pub(super) fn background(&self) -> MutexGuard<'_, BackgroundCommands> {
        self.background.lock()
    }

    pub(super) fn instructions(&self) -> String {
        let workspace = printable(self.workspace.as_os_str().as_encoded_bytes());
        let id = self.worker.id().display();
        let task = self.task.split_at_most(TASK_MAX).0;
        format!(
            "The tools of worker {id} for the workspace {workspace}. Paths are relative to it. \
             Changes go to a draft, which a person reviews; the workspace itself does not change. \
             Each call is recorded. Call finish at the end, with the result.\n\nTask: {task}"
        )
    }

    fn begin(&self, tool: &str, arguments: &JsonObject) -> Result<Call, ToolError> {
        let input = Value::Object(arguments.clone());
        let call = self.worker.begin_call(tool, Some(shortened(input)));
        call.map_err(|error| ToolError::new(format!("the call was not made: {error}")))
    }

    /// Calls a tool, and records the call with its result as the output.
    pub(super) fn record(
        &self,
        tool: &str,
        arguments: JsonObject,
        work: impl FnOnce(JsonObject) -> ToolResult,
    ) -> ToolResult {
        self.record_running(tool, arguments, |call, arguments| {
            let result = work(arguments);
            let (text, error) = match &result {
                Ok(output) => {
                    (output.text.clone() + output.note.as_deref().unwrap_or_default(), None)
                }
                Err(error) => (error.0.clone(), Some(error.0.clone())),
            };
            let end = CallEnd::success(error.is_none()).error(error.unwrap_or_default());
            let written = call.write_all(text.as_bytes());
            RecordedWork {
                result,
                end: if written.is_ok() { end } else { end.truncated() },
                write_error: written.err().map(|error| error.to_string()),
            }
        })
    }

    /// Calls a tool that writes the output of its call while it runs, and records the call. A panic
    /// of the tool ends the call, too.
    ///
    /// # Errors
    ///
    /// The tool fails, or the call cannot be recorded.
    pub(super) fn record_running(
        &self,
        tool: &str,
        arguments: JsonObject,
        work: impl FnOnce(&mut Call, JsonObject) -> RecordedWork,
    ) -> ToolResult {
        let mut call = self.begin(tool, &arguments)?;
        match catch_unwind(AssertUnwindSafe(|| work(&mut call, arguments))) {
            Ok(done) => noting_record(done.result, done.write_error, call.end(done.end).err()),
            Err(panic) => {
                // The first error counts.
                let _ = call.end(CallEnd::success(false).error("an internal error of the tool"));
                resume_unwind(panic)
            }
        }
    }
}

pub(super) struct RecordedWork {
    pub(super) result: ToolResult,
    pub(super) end: CallEnd,
    /// The reason why the output is not recorded completely.
    pub(super) write_error: Option<String>,
}

fn noting_record(
    result: ToolResult,
    write_error: Option<String>,
    end_error: Option<Error>,
) -> ToolResult {
    let problem = write_error.or_else(|| end_error.map(|error| error.to_string()));
    let Some(problem) = problem else { return result };
    let note = format!("[... the record of this call is not complete: {problem} ...]");
    result.map(|output| NotedText {
        note: Some(output.note.map_or(note.clone(), |other| format!("{other}\n{note}"))),
        ..output
    })
}

/// Returns arguments without the rest of long texts, for the record.
fn shortened(value: Value) -> Value {
    match value {
        Value::String(text) if text.len() > RECORDED_MAX => {
            let kept = text.split_at_most(RECORDED_MAX).0;
            let omitted = text.len() - kept.len();
            Value::String(format!("{kept}[... {omitted} B omitted ...]"))
        }
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, shortened(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(shortened).collect(),
        value => value,
    }
}

pub(super) fn tools() -> Vec<WorkerTool> {
    vec![
        WorkerTool {
            definition: definition::<NoteInput>(
                "note",
                "Adds a note to the worker's record: what it found, decided or plans. The \
                 supervisor reads it.",
                false,
            ),
            call: WorkerFn::Recorded(note),
        },
        WorkerTool {
            definition: definition::<FinishInput>(
                "finish",
                "Ends the worker, with its result. The tools are gone afterwards, and a person can \
                 review the changes.",
                false,
            ),
            call: WorkerFn::Finish(finish),
        },
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct NoteInput {
    /// The note
    text: String,
}

fn note(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    let input: NoteInput = parse_arguments("note", arguments)?;
    let noted = run.session.worker.message("assistant", &input.text);
    noted.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(NotedText::new("noted"))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(crate = "rmcp::schemars")]
enum FinishStatus {
    Completed,
    Failed,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct FinishInput {
    /// How the worker ended [default: completed, or failed if there is an error]
    status: Option<FinishStatus>,
    /// The final words, for the supervisor
    result: Option<String>,
    /// One line that serves as the title of the worker
    summary: Option<String>,
    /// The reason of a failure
    error: Option<String>,
}

/// Finishes the worker. A refused end is recorded as a call; an accepted end is recorded as the end
/// of the worker only, which no call follows.
fn finish(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    finish_now(run, arguments.clone())
        .or_else(|error| run.session.record("finish", arguments, |_| Err(error)))
}

fn finish_now(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    let input: FinishInput = parse_arguments("finish", arguments)?;
    let error = non_empty(input.error);
    let end = match (input.status, error) {
        (Some(FinishStatus::Completed), Some(_)) => {
            let text = "cannot finish as completed with an error; leave one of them out";
            return Err(ToolError::new(text));
        }
        (Some(FinishStatus::Completed) | None, None) => Finish::completed(),
        (_, error) => Finish::failed(error.unwrap_or_default()),
    };
    let end = match non_empty(input.result) {
        Some(result) => end.result(result),
        None => end,
    };
    let end = end.summary(input.summary.unwrap_or_default());
    let finished = run.session.worker.finish(end);
    finished.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(NotedText::new("the worker has finished"))
}
