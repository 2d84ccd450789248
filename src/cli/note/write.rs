//! `swarmletfs note write` and `note append`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use crate::cli::write_args::{self, STDIN, WriteArgs, into_cli_error};
use crate::trace::swarmlet::SUPERVISOR;
use swarmletfs_record::write::NotePlace;

pub(super) const HELP: &str = "\
PATH is a path in supervisor/, such as strategy.md or plans/week1.md; missing folders are made. A \
TEXT gets a newline at its end if it has none; stdin is written as it is. Readers see the old note \
or the new one, never a part.

Examples:
  swarmletfs note write strategy.md 'Three workers, one per module.'
  swarmletfs note append log/decisions.md 'w2 was wrong: it tested the old build.'
  swarmletfs note write synthesis.md < synthesis.md

Exit code: 0 if the note was written, 1 if not, 2 for a usage error.";

/// Maximum size of one write, in bytes. One byte more is read to detect a longer text.
const SIZE_MAX: u64 = 64 << 20;

/// Arguments of `note write` and `note append`.
#[derive(Debug, Args)]
pub(crate) struct WriteNoteArgs {
    /// The note, as a path in supervisor/
    #[arg(value_name = "PATH")]
    path: OsString,

    /// The text; - for stdin
    #[arg(value_name = "TEXT", default_value = STDIN)]
    text: OsString,

    /// Print the path and the number of bytes as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Writes the text.
///
/// # Errors
///
/// The path cannot be used, the text cannot be read or is too long, or the store cannot be written.
pub(super) fn run(arguments: &WriteNoteArgs, place: NotePlace) -> anyhow::Result<ExitCode> {
    let content = if arguments.text == STDIN { read_stdin()? } else { line(&arguments.text) };
    let path = arguments.write.with_store(|store| {
        store.write_note(arguments.path.as_bytes(), &content, place).map_err(into_cli_error)
    })?;
    let shown = format!("{SUPERVISOR}/{}", path.display());
    let value = json!({"path": shown, "written": content.len()});
    Ok(write_args::print(arguments.json, &shown, &value))
}

fn line(text: &OsString) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if !bytes.ends_with(b"\n") && !bytes.is_empty() {
        bytes.push(b'\n');
    }
    bytes
}

fn read_stdin() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(SIZE_MAX + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
    if bytes.len() as u64 > SIZE_MAX {
        bail!("cannot write the note: stdin has more than 64 MiB; try several notes");
    }
    Ok(bytes)
}
