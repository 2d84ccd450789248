//! `swarmletfs note list`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use crate::cli::terminal::escape_controls;
use crate::cli::write_args::{self, WriteArgs, into_cli_error};

pub(super) const HELP: &str = "\
Prints the path in supervisor/ of each note, one per line, in byte order. With --json, an array of \
objects with path, size in bytes, and time of the last write.

Examples:
  swarmletfs note list
  swarmletfs note list --json | jq -r '.[].path'

Exit code: 0 if the notes were listed, 1 if not, 2 for a usage error.";

/// Arguments of `note list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(arguments: &ListArgs) -> anyhow::Result<ExitCode> {
    let notes = arguments.write.with_store(|store| store.notes().map_err(into_cli_error))?;
    let lines: Vec<String> =
        notes.iter().map(|note| escape_controls(&note.path.to_text()).to_string()).collect();
    let rows: Vec<_> = notes
        .iter()
        .map(|note| {
            let written = Timestamp::try_from(note.mtime.to_system()).ok();
            json!({
                "path": note.path.to_text(),
                "size": note.size,
                "last_write": written.map(|time| time.to_string()),
            })
        })
        .collect();
    Ok(write_args::print(arguments.json, &lines.join("\n"), &rows))
}
