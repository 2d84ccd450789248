//! `swarmletfs worker finish`: finishes a worker.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::exit::UsageError;
use crate::cli::terminal::display_path;
use crate::cli::write_args::{self, STDIN, WriteArgs, into_cli_error, open_worker};
use swarmletfs_record::write::Finish;

pub(super) const HELP: &str = "\
The status is `completed`, or `failed` if --error or another --exit-code than 0 is given. The final \
words become result.txt; they are written before the status.

Examples:
  swarmletfs worker finish $id --result report.txt
  echo 'All backups are fine.' | swarmletfs worker finish $id --result -
  swarmletfs worker finish $id --status failed --error 'restore test failed'

Exit code: 0 if the worker has finished, 1 if not, 2 for a usage error.";

/// Arguments of `worker finish`.
#[derive(Debug, Args)]
pub(crate) struct FinishArgs {
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
pub(super) fn run(arguments: &FinishArgs) -> anyhow::Result<ExitCode> {
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
