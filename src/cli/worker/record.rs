//! `swarmletfs worker record`: records a tool call, with its output from stdin.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::exit::UsageError;
use crate::cli::write_args::{self, STDIN, WriteArgs, into_cli_error, open_worker};
use swarmletfs_record::write::{CallEnd, Error};

pub(super) const HELP: &str = "\
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
pub(crate) struct RecordCallArgs {
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
pub(super) fn run(arguments: &RecordCallArgs) -> anyhow::Result<ExitCode> {
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
