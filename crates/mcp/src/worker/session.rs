//! A worker and its view, the record of its calls, and the tools for that record.
//!
//! A command of a worker has a process that keeps it and everything that it starts. This keeper is
//! another process of this program: a subreaper, which knows the processes of one command although
//! they leave its process group or become daemons.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use parking_lot::{Mutex, MutexGuard};
use rmcp::model::JsonObject;
use rmcp::schemars::{self, JsonSchema};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;

use super::{ToolRun, WorkerTool};
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
    pub(super) workspace: PathBuf,
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

/// Name of the tool that ends the worker.
pub(super) const FINISH: &str = "finish";

pub(super) fn tools() -> Vec<WorkerTool> {
    vec![
        WorkerTool::recorded(
            "note",
            "Adds a note to the worker's record: what it found, decided or plans. The supervisor \
             reads it.",
            false,
            note,
        ),
        WorkerTool::new::<FinishInput>(
            FINISH,
            "Ends the worker, with its result. The tools are gone afterwards, and a person can \
             review the changes.",
            false,
            finish,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoteInput {
    /// The note
    text: String,
}

fn note(run: &ToolRun<'_>, input: NoteInput) -> ToolResult {
    let noted = run.session.worker.message("assistant", &input.text);
    noted.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(NotedText::new("noted"))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum FinishStatus {
    Completed,
    Failed,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
        .or_else(|error| run.session.record(FINISH, arguments, |_| Err(error)))
}

fn finish_now(run: &ToolRun<'_>, arguments: JsonObject) -> ToolResult {
    let input: FinishInput = parse_arguments(FINISH, arguments)?;
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

/// The internal command that keeps a command; its argument is the text for sh -c. Its stdin is a
/// socket, to which it writes the end of the command: the exit code, or the negative number of a
/// signal, as a little-endian i32.
pub const COMMAND_KEEPER: &str = "__worker-command";
/// Order to a keeper: send SIGTERM to all processes.
pub const END: u8 = b't';
/// Order to a keeper: end all processes by SIGKILL.
pub const KILL: u8 = b'k';

/// This program, also where its path is hidden.
const PROGRAM: &str = "/proc/self/exe";
/// Most commands with processes in the background.
const BACKGROUND_MAX: usize = 64;
const END_SIZE: usize = 4;

#[derive(Debug)]
pub(super) struct KeptCommand {
    keeper: Child,
    socket: UnixStream,
    /// The bytes of the message about the end that have arrived.
    message: Vec<u8>,
    /// The end of the command, once it has ended. Processes that it started may run on.
    pub(super) end: Option<CommandEnd>,
    /// True once the keeper has ended, and with it all processes of the command.
    pub(super) is_gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandEnd {
    Exited(i32),
    Signaled(i32),
    /// Its keeper ended before it.
    Unknown,
}

impl KeptCommand {
    /// Starts `sh -c script` in the folder `workspace`. Returns it with its output.
    pub(super) fn start(
        workspace: &Path,
        script: &str,
    ) -> std::io::Result<(KeptCommand, Option<ChildStdout>, Option<ChildStderr>)> {
        let (socket, stdin) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut keeper = Command::new(PROGRAM)
            .args([COMMAND_KEEPER, "--", script])
            .current_dir(workspace)
            .env("PWD", workspace)
            .stdin(OwnedFd::from(stdin))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdout, stderr) = (keeper.stdout.take(), keeper.stderr.take());
        let message = Vec::with_capacity(END_SIZE);
        let command = KeptCommand { keeper, socket, message, end: None, is_gone: false };
        Ok((command, stdout, stderr))
    }

    /// Checks whether the command, and all processes that it started, have ended.
    pub(super) fn update(&mut self) {
        let mut buffer = [0; END_SIZE];
        while !self.is_gone {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.is_gone = true,
                Ok(size) => self.message.extend(buffer.iter().take(size)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_gone = true,
            }
        }
        if self.end.is_none() {
            self.end = match self.message.first_chunk().map(|bytes| i32::from_le_bytes(*bytes)) {
                Some(code @ 0..) => Some(CommandEnd::Exited(code)),
                Some(signal) => Some(CommandEnd::Signaled(signal.saturating_neg())),
                None => self.is_gone.then_some(CommandEnd::Unknown),
            };
        }
        if self.is_gone {
            // It closes the socket by its end.
            let _ = self.keeper.wait();
        }
    }

    /// Sends an order to the keeper: [`END`] or [`KILL`].
    pub(super) fn order(&mut self, order: u8) {
        // The command may have stopped its keeper.
        let _ = kill_process(Pid::from_child(&self.keeper), Signal::CONT);
        // A keeper that has ended closes the socket, which the next update notices.
        let _ = self.socket.write_all(&[order]);
    }

    /// Ends the keeper alone.
    pub(super) fn abandon(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        self.is_gone = true;
        self.end = self.end.or(Some(CommandEnd::Unknown));
    }
}

/// Ended commands that left processes in the background.
#[derive(Debug, Default)]
pub(super) struct BackgroundCommands(Vec<KeptCommand>);

impl BackgroundCommands {
    /// Adds a command whose result is known, unless all its processes have ended.
    pub(super) fn keep(&mut self, command: KeptCommand) {
        self.0.push(command);
        self.forget_ended();
    }

    /// Fails if too many commands run in the background to start another one. Each takes threads of
    /// this process.
    pub(super) fn must_have_room(&mut self) -> Result<(), ToolError> {
        self.forget_ended();
        if self.0.len() < BACKGROUND_MAX {
            return Ok(());
        }
        let text = format!(
            "cannot run the command: processes of {BACKGROUND_MAX} earlier ones run in the \
             background; try finish, or a session with less of them"
        );
        Err(ToolError::new(text))
    }

    fn forget_ended(&mut self) {
        self.0.retain_mut(|command| {
            command.update();
            !command.is_gone
        });
    }
}
