//! `swarmletfs worker put`: writes a file of the worker.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::cli::terminal::escape_controls;
use crate::cli::write_args::{self, WriteArgs, into_cli_error, open_worker};

pub(super) const HELP: &str = "\
PATH is relative to the worker's folder. Folders on the way are made, and an existing file is \
replaced as a whole. Files that are part of the record (metadata.json, thread.jsonl, tool_calls/…) \
have commands of their own.

Examples:
  swarmletfs worker put $id outputs/report.md < report.md
  make-chart | swarmletfs worker put outputs/chart.svg       # of $SWARMLET_WORKER

Exit code: 0 if the file was written, 1 if not, 2 for a usage error.";

/// Arguments of `worker put`.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
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
pub(super) fn run(arguments: &PutArgs) -> anyhow::Result<ExitCode> {
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
