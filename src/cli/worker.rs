//! `swarmletfs worker`: creates a worker, records its work, and finishes it.
//!
//! Each command is a thin layer over [`swarmletfs_record::write`].

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::exit::UsageError;
use super::spool;
use super::terminal::{display_path, escape_controls};
use super::tree_commands::{ReaderArgs, cat};
use super::write_args::{
    self, STDIN, WorkerArgs, WriteArgs, into_cli_error, named_worker, open_worker,
};
use swarmletfs_record::write::{CallEnd, Error, Finish};

pub(super) const HELP: &str = "\
Example:
  id=$(swarmletfs worker create --task 'Check the backups')
  swarmletfs worker record $id --tool sh --exit 1 < output
  swarmletfs worker finish $id --result report.txt";

/// Commands that record a worker.
#[derive(Debug, Subcommand)]
pub(super) enum WorkerCommand {
    /// Create a worker and print its id
    #[command(after_help = CREATE_HELP)]
    Create(Box<CreateArgs>),
    /// Record a tool call, with its output from stdin
    #[command(after_help = RECORD_HELP)]
    Record(RecordCallArgs),
    /// Add messages from stdin to the conversation, one JSON object per line
    #[command(after_help = MESSAGE_HELP)]
    Message(MessageArgs),
    /// Write a file of the worker, with its content from stdin
    #[command(after_help = PUT_HELP, override_usage = "swarmletfs worker put [OPTIONS] [ID] PATH")]
    Put(PutArgs),
    /// Finish a worker; it does not change any more
    #[command(after_help = FINISH_HELP)]
    Finish(FinishArgs),
    /// Set the supervisor's notes on a worker
    #[command(after_help = ANNOTATE_HELP)]
    Annotate(AnnotateArgs),
    /// Print the summary of a worker
    #[command(after_help = SHOW_HELP)]
    Show(ShowArgs),
}

pub(super) fn run(command: &WorkerCommand) -> anyhow::Result<ExitCode> {
    match command {
        WorkerCommand::Create(arguments) => run_create(arguments),
        WorkerCommand::Record(arguments) => run_record(arguments),
        WorkerCommand::Message(arguments) => run_message(arguments),
        WorkerCommand::Put(arguments) => run_put(arguments),
        WorkerCommand::Finish(arguments) => run_finish(arguments),
        WorkerCommand::Annotate(arguments) => run_annotate(arguments),
        WorkerCommand::Show(arguments) => run_show(arguments),
    }
}

const CREATE_HELP: &str = "\
The id alone is printed, so that a shell can keep it. Commands that record need it as ID or in \
$SWARMLET_WORKER.

Examples:
  id=$(swarmletfs worker create --task 'Check the backups' --run 48 --type ops --tag nightly)
  export SWARMLET_WORKER=$(swarmletfs worker create --task 'Fix issue 12' --model large-1)
  swarmletfs worker create --id w1 --context spec.md=docs/spec.md

Exit code: 0 if the worker was created, 1 if not, 2 for a usage error.";

/// Arguments of `worker create`.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// What the worker is told to do
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "task_file")]
    task: String,

    /// A file with the task, which may be longer than an argument; - for stdin
    #[arg(long, value_name = "FILE")]
    task_file: Option<PathBuf>,

    #[command(flatten)]
    worker: WorkerArgs,

    /// The working directory [default: the current folder]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// A file to keep as context/KEY: what the worker is given; can be given several times
    #[arg(long = "context", value_name = "KEY=FILE")]
    context: Vec<OsString>,

    /// Start an index.json in the store, if it has none; swarmletfs itself needs none
    #[arg(long)]
    index: bool,

    /// Print the id and the path as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Creates the worker.
///
/// # Errors
///
/// The id is taken, a value cannot be used, or the store cannot be written.
fn run_create(arguments: &CreateArgs) -> anyhow::Result<ExitCode> {
    let task = match &arguments.task_file {
        Some(path) => write_args::read_text(path)?,
        None => arguments.task.clone(),
    };
    let mut new = arguments.worker.describe(task);
    if let Some(cwd) = working_directory(arguments.cwd.as_deref())? {
        new = new.cwd(cwd);
    }
    for pair in &arguments.context {
        let (key, path) = split_context(pair)?;
        let file =
            File::open(&path).with_context(|| format!("cannot read {}", display_path(&path)))?;
        new = new.context(key, file);
    }
    if arguments.index {
        new = new.starting_index();
    }
    let worker =
        arguments.write.with_store(|store| store.create_worker(new).map_err(into_cli_error))?;
    let id = worker.id().to_text();
    let value = json!({"worker": id, "path": worker.path()});
    Ok(write_args::print(arguments.json, &id, &value))
}

/// Returns `given`, or else the current directory. Returns `None` if the latter cannot be in
/// metadata.json because its path is not UTF-8.
///
/// # Errors
///
/// `given` is not UTF-8: a usage error.
fn working_directory(given: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(given) = given else {
        return Ok(std::env::current_dir().ok().and_then(|cwd| cwd.to_str().map(str::to_owned)));
    };
    let Some(cwd) = given.to_str() else {
        let shown = display_path(given);
        return Err(UsageError(format!("cannot use --cwd {shown}: it is not UTF-8")).into());
    };
    Ok(Some(cwd.to_owned()))
}

fn split_context(pair: &OsString) -> anyhow::Result<(String, PathBuf)> {
    let bytes = pair.as_bytes();
    let split = memchr::memchr(b'=', bytes).and_then(|at| bytes.split_at_checked(at));
    let pair = split.and_then(|(key, file)| {
        let key = std::str::from_utf8(key).ok()?;
        Some((key.to_owned(), file.strip_prefix(b"=")?))
    });
    let Some((key, file)) = pair else {
        let shown = escape_controls(&String::from_utf8_lossy(bytes));
        return Err(UsageError(format!("cannot use --context {shown}: expected KEY=FILE")).into());
    };
    Ok((key, OsString::from_vec(file.to_vec()).into()))
}

const RECORD_HELP: &str = "\
The output is recorded while it is read, so that readers can follow it. The path of the output in \
the worker's folder is printed. Several calls of a worker may be recorded at once.

Without --exit and --outcome, readers judge the output, or the outcome is unknown. To run and \
record a command, use `swarmletfs record -- COMMAND`.

Examples:
  swarmletfs worker record $id --tool ssh_exec --input '{\"host\": \"heron\"}' --exit 1 < output
  fetch | swarmletfs worker record --tool fetch --outcome ok --duration-ms 234

Exit code: 0 if the call was recorded, 1 if not, 2 for a usage error.";

/// Arguments of `worker record`.
#[derive(Debug, Args)]
pub(super) struct RecordCallArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(value_name = "ID")]
    id: Option<OsString>,

    /// The name of the tool
    #[arg(long, value_name = "NAME")]
    tool: String,

    /// The input of the call: JSON, or a text
    #[arg(long, value_name = "JSON", conflicts_with = "input_file")]
    input: Option<String>,

    /// A file with the input, which may be longer than an argument
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,

    /// The exit code of the command; 0 means success
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    exit: Option<i64>,

    /// The outcome of a call without an exit code
    #[arg(long, value_enum, conflicts_with = "exit")]
    outcome: Option<OutcomeArg>,

    /// The reason of a failure
    #[arg(long, value_name = "TEXT", default_value = "")]
    error: String,

    /// The duration in milliseconds [default: as long as stdin was read]
    #[arg(long, value_name = "MS")]
    duration_ms: Option<u64>,

    /// Print the number, path and size of the output as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutcomeArg {
    Ok,
    Failed,
    Unknown,
}

/// Records the call.
///
/// # Errors
///
/// The worker cannot be found or has finished, stdin cannot be read, or the store cannot be
/// written. A call that was begun is ended.
fn run_record(arguments: &RecordCallArgs) -> anyhow::Result<ExitCode> {
    let input = match arguments.input_file.as_deref() {
        Some(path) if path == Path::new(STDIN) => {
            let message = "cannot use --input-file -: stdin is the output of the call; \
                           try a file, or --input JSON";
            return Err(UsageError(message.into()).into());
        }
        Some(path) => Some(write_args::read_text(path)?),
        None => arguments.input.clone(),
    };
    // An input that is not JSON is a text.
    let input = input.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)));
    let (worker, recorded) = arguments.write.with_store(|store| {
        let worker = open_worker(store, arguments.id.as_ref())?;
        let mut call = worker.begin_call(&arguments.tool, input).map_err(into_cli_error)?;
        let written = call.write_from(&mut io::stdin().lock());
        let recorded = call.end(call_end(arguments, written.as_ref().err()));
        // The first error is the one to report.
        let recorded = written.and(recorded).map_err(into_cli_error)?;
        Ok((worker, recorded))
    })?;
    let value = json!({
        "worker": worker.id().to_text(),
        "seq": recorded.seq,
        "path": recorded.path.to_text(),
        "bytes": recorded.bytes,
    });
    Ok(write_args::print(arguments.json, &recorded.path.display(), &value))
}

/// Returns the end of a call whose output could not be recorded as a whole if there is a
/// `write_error`.
fn call_end(arguments: &RecordCallArgs, write_error: Option<&Error>) -> CallEnd {
    let end = match (arguments.exit, arguments.outcome) {
        (Some(code), _) => CallEnd::exit_code(code),
        (None, Some(OutcomeArg::Ok)) => CallEnd::success(true),
        (None, Some(OutcomeArg::Failed)) => CallEnd::success(false),
        (None, Some(OutcomeArg::Unknown) | None) => CallEnd::unknown(),
    };
    let end = match arguments.duration_ms {
        Some(ms) => end.duration(Duration::from_millis(ms)),
        None => end,
    };
    let Some(lost) = write_error else { return end.error(&arguments.error) };
    let error = format!("{}; the recording is not complete: {lost}", arguments.error);
    end.error(error.trim_start_matches("; ")).truncated()
}

const MESSAGE_HELP: &str = "\
A message has a `role` (user, assistant, system, tool) and a `content`; a message of the assistant \
may have `tool_calls`. One without a `timestamp` gets the time. All messages are recorded, or none.

Examples:
  echo '{\"role\": \"user\", \"content\": \"Check the backups.\"}' | swarmletfs worker message $id
  swarmletfs worker message $id < messages.jsonl

Exit code: 0 if all messages were recorded, 1 if none was, 2 for a usage error.";

const MESSAGES_SIZE_MAX: u64 = 64 << 20;

/// Arguments of `worker message`.
#[derive(Debug, Args)]
pub(super) struct MessageArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(value_name = "ID")]
    id: Option<OsString>,

    /// Print the number of messages as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Records the messages.
///
/// # Errors
///
/// A line is no message, the worker cannot be found or has finished, or the store cannot be
/// written.
fn run_message(arguments: &MessageArgs) -> anyhow::Result<ExitCode> {
    let (worker, lines) = arguments.write.with_store(|store| {
        let worker = open_worker(store, arguments.id.as_ref())?;
        let lines = write_args::read_stdin(MESSAGES_SIZE_MAX, "fewer messages at a time")?;
        worker.message_lines(&lines).map_err(into_cli_error)?;
        Ok((worker, lines))
    })?;
    // Empty lines are not messages.
    let lines = lines.split(|byte| *byte == b'\n');
    let messages = lines.filter(|line| !line.trim_ascii().is_empty()).count();
    let value = json!({"worker": worker.id().to_text(), "messages": messages});
    Ok(write_args::print(arguments.json, "", &value))
}

const PUT_HELP: &str = "\
PATH is relative to the worker's folder. Folders on the way are made, and an existing file is \
replaced as a whole. Files that are part of the record (metadata.json, thread.jsonl, tool_calls/…) \
have commands of their own.

Examples:
  swarmletfs worker put $id outputs/report.md < report.md
  make-chart | swarmletfs worker put outputs/chart.svg       # of $SWARMLET_WORKER

Exit code: 0 if the file was written, 1 if not, 2 for a usage error.";

/// Arguments of `worker put`.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The worker [default: $SWARMLET_WORKER], and the path of the file
    #[arg(value_name = "[ID] PATH", required = true, num_args = 1..=2)]
    names: Vec<OsString>,

    /// Print the path and size as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Writes the file.
///
/// # Errors
///
/// The path leads elsewhere, the worker cannot be found or has finished, or the store cannot be
/// written.
fn run_put(arguments: &PutArgs) -> anyhow::Result<ExitCode> {
    let (id, path) = match arguments.names.as_slice() {
        [id, path] => (Some(id), path.clone()),
        [path] => (None, path.clone()),
        _ => (None, OsString::new()),
    };
    let (worker, bytes) = arguments.write.with_store(|store| {
        let worker = open_worker(store, id)?;
        let put = worker.put(path.as_bytes(), &mut io::stdin().lock());
        let bytes = put.map_err(into_cli_error)?;
        Ok((worker, bytes))
    })?;
    let path = escape_controls(&path.to_string_lossy());
    let value = json!({"worker": worker.id().to_text(), "path": path, "bytes": bytes});
    Ok(write_args::print(arguments.json, "", &value))
}

const FINISH_HELP: &str = "\
The status is `completed`, or `failed` if --error or another --exit-code than 0 is given. The final \
words become result.txt; they are written before the status.

Examples:
  swarmletfs worker finish $id --result report.txt
  echo 'All backups are fine.' | swarmletfs worker finish $id --result -
  swarmletfs worker finish $id --status failed --error 'restore test failed'

Exit code: 0 if the worker has finished, 1 if not, 2 for a usage error.";

/// Arguments of `worker finish`.
#[derive(Debug, Args)]
pub(super) struct FinishArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(value_name = "ID")]
    id: Option<OsString>,

    /// How the worker ended
    #[arg(long, value_enum)]
    status: Option<StatusArg>,

    /// A file with the final words; - for stdin
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,

    /// Why the worker failed
    #[arg(long, value_name = "TEXT", default_value = "")]
    error: String,

    /// One line that serves as the worker's title
    #[arg(long, value_name = "TEXT", default_value = "")]
    summary: String,

    /// The exit code of the worker's process
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    exit_code: Option<i64>,

    /// Print the status as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// End of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StatusArg {
    #[value(alias = "success")]
    Completed,
    Failed,
}

/// Finishes the worker.
///
/// # Errors
///
/// A call is still being recorded, the worker cannot be found or has finished, or the store cannot
/// be written.
fn run_finish(arguments: &FinishArgs) -> anyhow::Result<ExitCode> {
    let has_failed =
        !arguments.error.is_empty() || arguments.exit_code.is_some_and(|code| code != 0);
    if has_failed && arguments.status == Some(StatusArg::Completed) {
        let message = "cannot finish with --status completed and an error or another exit code than \
                       0; try --status failed";
        return Err(UsageError(message.into()).into());
    }
    let default = if has_failed { StatusArg::Failed } else { StatusArg::Completed };
    let (mut finish, status) = match arguments.status.unwrap_or(default) {
        StatusArg::Completed => (Finish::completed(), "completed"),
        StatusArg::Failed => (Finish::failed(&arguments.error), "failed"),
    };
    finish = finish.summary(&arguments.summary);
    if let Some(code) = arguments.exit_code {
        finish = finish.exit_code(code);
    }
    match arguments.result.as_deref() {
        Some(path) if path == Path::new(STDIN) => finish = finish.result_from(io::stdin()),
        Some(path) => {
            let file = File::open(path).with_context(|| {
                format!("cannot read the result from {}; for stdin, use -", display_path(path))
            })?;
            finish = finish.result_from(file);
        }
        None => {}
    }
    let worker = arguments.write.with_store(|store| {
        let worker = open_worker(store, arguments.id.as_ref())?;
        worker.finish(finish).map_err(into_cli_error)?;
        Ok(worker)
    })?;
    let value = json!({"worker": worker.id().to_text(), "status": status});
    Ok(write_args::print(arguments.json, "", &value))
}

const ANNOTATE_HELP: &str = "\
The notes are the worker's supervisor_notes: its summary and index.json show them. They replace \
earlier ones, also after the worker has finished; an empty text removes them.

Examples:
  swarmletfs worker annotate $id 'The fix is right, but it lacks a test.'
  swarmletfs worker annotate $id - < review.md

Exit code: 0 if the notes were set, 1 if not, 2 for a usage error.";

/// Maximum size of the notes, in bytes. One byte more is read to detect a longer text.
const NOTES_SIZE_MAX: u64 = 1 << 20;

/// Arguments of `worker annotate`.
#[derive(Debug, Args)]
pub(super) struct AnnotateArgs {
    /// The worker
    #[arg(value_name = "ID")]
    id: OsString,

    /// The notes; - for stdin
    #[arg(value_name = "TEXT")]
    text: String,

    /// Print the id as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

fn run_annotate(arguments: &AnnotateArgs) -> anyhow::Result<ExitCode> {
    let read;
    let text = if arguments.text == STDIN {
        read = read_text()?;
        read.trim_end()
    } else {
        &arguments.text
    };
    let url = arguments.write.object_url()?;
    let worker = arguments.write.with_store(|store| {
        let worker = match open_worker(store, Some(&arguments.id)) {
            // One that has ended, or is recorded elsewhere, lies in the object store alone.
            Err(error) => match (&url, error.downcast_ref()) {
                (Some(url), Some(Error::NoWorker { .. })) => {
                    spool::annotate(url, arguments.id.as_bytes(), text)?;
                    return Ok(arguments.id.to_string_lossy().into_owned());
                }
                _ => return Err(error),
            },
            Ok(worker) => worker,
        };
        worker.annotate(text).map_err(into_cli_error)?;
        Ok(worker.id().to_text().into_owned())
    })?;
    Ok(write_args::print(arguments.json, "", &json!({"worker": worker})))
}

fn read_text() -> anyhow::Result<String> {
    let bytes = write_args::read_stdin(NOTES_SIZE_MAX, "shorter notes")?;
    String::from_utf8(bytes).map_err(|_| anyhow!("cannot use stdin as notes: it is not UTF-8"))
}

pub(super) const SHOW_HELP: &str = "\
Prints workers/ID/summary of the tree, or with --json workers/ID/index.json. ID may be the \
beginning of an id.

Examples:
  swarmletfs worker show w1
  swarmletfs worker show w1 --json | jq .outcome

Exit code: 0 if the worker was read, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

/// Arguments of `worker show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(value_name = "ID")]
    id: Option<OsString>,

    /// Print index.json, with all calls
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reader: ReaderArgs,
}

fn run_show(arguments: &ShowArgs) -> anyhow::Result<ExitCode> {
    let id = named_worker(arguments.id.as_ref())?;
    let file: &[u8] = if arguments.json { b"/index.json" } else { b"/summary" };
    cat::print(&arguments.reader, &[[b"workers/", id.as_bytes(), file].concat()])
}
