//! `swarmletfs worker message`: adds messages from stdin to the conversation.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use crate::cli::write_args::{self, WriteArgs, into_cli_error, open_worker};

pub(super) const HELP: &str = "\
A message has a `role` (user, assistant, system, tool) and a `content`; a message of the assistant \
may have `tool_calls`. One without a `timestamp` gets the time. All messages are recorded, or none.

Examples:
  echo '{\"role\": \"user\", \"content\": \"Check the backups.\"}' | swarmletfs worker message $id
  swarmletfs worker message $id < messages.jsonl

Exit code: 0 if all messages were recorded, 1 if none was, 2 for a usage error.";

const SIZE_MAX: u64 = 64 << 20;

/// Arguments of `worker message`.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
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
pub(super) fn run(arguments: &MessageArgs) -> anyhow::Result<ExitCode> {
    let (worker, lines) = arguments.write.with_store(|store| {
        let worker = open_worker(store, arguments.id.as_ref())?;
        let lines = read_lines()?;
        worker.message_lines(&lines).map_err(into_cli_error)?;
        Ok((worker, lines))
    })?;
    // Empty lines are not messages.
    let lines = lines.split(|byte| *byte == b'\n');
    let messages = lines.filter(|line| !line.trim_ascii().is_empty()).count();
    let value = json!({"worker": worker.id().to_text(), "messages": messages});
    Ok(write_args::print(arguments.json, "", &value))
}

/// Reads stdin.
///
/// # Errors
///
/// Stdin cannot be read, or has more than [`SIZE_MAX`] bytes.
fn read_lines() -> anyhow::Result<Vec<u8>> {
    let mut lines = Vec::new();
    io::stdin().lock().take(SIZE_MAX + 1).read_to_end(&mut lines).context("cannot read stdin")?;
    if lines.len() as u64 > SIZE_MAX {
        bail!("cannot record messages: more than 64 MiB at once; try fewer at a time");
    }
    Ok(lines)
}
