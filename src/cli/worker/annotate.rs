//! `swarmletfs worker annotate`: sets the supervisor's notes on a worker.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;

use crate::cli::write_args::{self, STDIN, WriteArgs, into_cli_error, open_worker};

pub(super) const HELP: &str = "\
The notes are the worker's supervisor_notes: its summary and index.json show them. They replace \
earlier ones, also after the worker has finished; an empty text removes them.

Examples:
  swarmletfs worker annotate $id 'The fix is right, but it lacks a test.'
  swarmletfs worker annotate $id - < review.md

Exit code: 0 if the notes were set, 1 if not, 2 for a usage error.";

/// Maximum size of the notes, in bytes. One byte more is read to detect a longer text.
const SIZE_MAX: u64 = 1 << 20;

/// Arguments of `worker annotate`.
#[derive(Debug, Args)]
pub(crate) struct AnnotateArgs {
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

pub(super) fn run(arguments: &AnnotateArgs) -> anyhow::Result<ExitCode> {
    let read;
    let text = if arguments.text == STDIN {
        read = read_text()?;
        read.trim_end()
    } else {
        &arguments.text
    };
    let worker = arguments.write.with_store(|store| {
        let worker = open_worker(store, Some(&arguments.id))?;
        worker.annotate(text).map_err(into_cli_error)?;
        Ok(worker)
    })?;
    Ok(write_args::print(arguments.json, "", &json!({"worker": worker.id().to_text()})))
}

fn read_text() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(SIZE_MAX + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
    String::from_utf8(bytes).map_err(|_| anyhow!("cannot use stdin as notes: it is not UTF-8"))
}
