//! `swarmletfs note`: the notes of the supervisor of the workers, in `supervisor/` of the store.
//!
//! `worker_map.json` states the task and the state of each worker.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::spool;
use super::terminal::{escape_controls, print_message};
use super::tree_commands::{ReaderArgs, cat};
use super::write_args::{self, STDIN, WriteArgs, into_cli_error};
use crate::name::RelPath;
use crate::store::Time;
use crate::trace::swarmlet::SUPERVISOR;
use swarmletfs_record::write::{NotePlace, parse_note_path};

pub(super) const HELP: &str = "\
Examples:
  swarmletfs note write strategy.md 'One worker per module.'
  swarmletfs note list";

/// Commands for the notes.
#[derive(Debug, Subcommand)]
pub(super) enum NoteCommand {
    /// Write a note: a new one, or in place of an existing one
    #[command(after_help = WRITE_HELP)]
    Write(WriteNoteArgs),
    /// Add to the end of a note
    #[command(after_help = WRITE_HELP)]
    Append(WriteNoteArgs),
    /// List the notes
    #[command(after_help = LIST_HELP)]
    List(ListArgs),
    /// Print a note
    #[command(after_help = READ_HELP)]
    Read(ReadArgs),
    /// Write worker_map.json, which has each worker's task and state
    #[command(after_help = WORKER_MAP_HELP)]
    WorkerMap(WorkerMapArgs),
}

pub(super) fn run(command: &NoteCommand) -> anyhow::Result<ExitCode> {
    match command {
        NoteCommand::Write(arguments) => {
            run_write(arguments, swarmletfs_record::write::NotePlace::Whole)
        }
        NoteCommand::Append(arguments) => {
            run_write(arguments, swarmletfs_record::write::NotePlace::End)
        }
        NoteCommand::List(arguments) => run_list(arguments),
        NoteCommand::Read(arguments) => run_read(arguments),
        NoteCommand::WorkerMap(arguments) => run_worker_map(arguments),
    }
}

const WRITE_HELP: &str = "\
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
pub(super) struct WriteNoteArgs {
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
fn run_write(arguments: &WriteNoteArgs, place: NotePlace) -> anyhow::Result<ExitCode> {
    let content = if arguments.text == STDIN {
        write_args::read_stdin(SIZE_MAX, "several notes")?
    } else {
        line(&arguments.text)
    };
    if let Some(url) = arguments.write.object_url()? {
        let path = parse_note_path(arguments.path.as_bytes()).map_err(into_cli_error)?;
        spool::write_note(&url, &path, &content, place)?;
        return Ok(print_written(arguments.json, &path, content.len()));
    }
    let path = arguments.write.with_store(|store| {
        store.write_note(arguments.path.as_bytes(), &content, place).map_err(into_cli_error)
    })?;
    Ok(print_written(arguments.json, &path, content.len()))
}

fn print_written(as_json: bool, path: &RelPath, size: usize) -> ExitCode {
    let shown = format!("{SUPERVISOR}/{}", path.display());
    write_args::print(as_json, &shown, &json!({"path": shown, "written": size}))
}

fn line(text: &OsString) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if !bytes.ends_with(b"\n") && !bytes.is_empty() {
        bytes.push(b'\n');
    }
    bytes
}

const READ_HELP: &str = "\
Prints supervisor/PATH of the tree, byte for byte.

Example:
  swarmletfs note read strategy.md

Exit code: 0 if the note was printed, 1 if not, 2 for a usage error.";

/// Arguments of `note read`.
#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    /// The note, as a path in supervisor/
    #[arg(value_name = "PATH")]
    path: OsString,

    #[command(flatten)]
    reader: ReaderArgs,
}

fn run_read(arguments: &ReadArgs) -> anyhow::Result<ExitCode> {
    cat::print(&arguments.reader, &[[b"supervisor/", arguments.path.as_bytes()].concat()])
}

const WORKER_MAP_HELP: &str = "\
Writes supervisor/worker_map.json from the tree's index.json: for each worker its id, task, type, \
status, outcome, parent, run and owner, as far as they are known. An existing one is replaced.

Examples:
  swarmletfs note worker-map
  swarmletfs note read worker_map.json

Exit code: 0 if it was written, 1 if not, 2 for a usage error.";

const MAP_FILE: &str = "worker_map.json";
/// The fields of a worker in the tree's index.json that are taken over.
const MAP_FIELDS: [&str; 10] = [
    "id",
    "task",
    "task_type",
    "status",
    "outcome",
    "cause",
    "parent_id",
    "run_id",
    "owner_id",
    "path",
];

/// Arguments of `note worker-map`.
#[derive(Debug, Args)]
pub(super) struct WorkerMapArgs {
    /// Print the path and the number of workers as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

fn run_worker_map(arguments: &WorkerMapArgs) -> anyhow::Result<ExitCode> {
    let url = arguments.write.object_url()?;
    let write = |path: &Path, put: &dyn Fn(&[u8]) -> anyhow::Result<()>| {
        let index = cat::read(path, b"index.json")?;
        let index: Value = serde_json::from_slice(&index).context("cannot read index.json")?;
        let (map, count) = worker_map(&index);
        let mut text = serde_json::to_vec_pretty(&map)?;
        text.push(b'\n');
        put(&text)?;
        if index.get("complete") == Some(&Value::Bool(false)) && !arguments.write.quiet {
            print_message("not all workers could be read in time; worker_map.json says so");
        }
        Ok(count)
    };
    let count = match url {
        Some(url) => write(Path::new(&url), &|text| {
            let path = RelPath::constant(MAP_FILE);
            spool::write_note(&url, &path, text, NotePlace::Whole)
        }),
        None => arguments.write.with_store(|store| {
            write(store.root().path(), &|text| {
                let written = store.write_note(MAP_FILE.as_bytes(), text, NotePlace::Whole);
                written.map(drop).map_err(into_cli_error)
            })
        }),
    }?;
    let path = format!("supervisor/{MAP_FILE}");
    Ok(write_args::print(arguments.json, &path, &json!({"path": path, "workers": count})))
}

/// Returns the map of the workers in an index, and their number.
fn worker_map(index: &Value) -> (Value, usize) {
    let rows = index.get("workers").and_then(Value::as_array).map(Vec::as_slice);
    let workers: Vec<Value> = rows
        .into_iter()
        .flatten()
        .map(|row| {
            let known = MAP_FIELDS.iter().filter_map(|field| {
                row.get(*field).map(|value| ((*field).to_owned(), value.clone()))
            });
            Value::Object(known.collect::<Map<_, _>>())
        })
        .collect();
    let count = workers.len();
    let map = json!({
        "complete": index.get("complete"),
        "last_updated": index.get("last_updated"),
        "workers": workers,
    });
    (map, count)
}

const LIST_HELP: &str = "\
Prints the path in supervisor/ of each note, one per line, in byte order. With --json, an array of \
objects with path, size in bytes, and time of the last write.

Examples:
  swarmletfs note list
  swarmletfs note list --json | jq -r '.[].path'

Exit code: 0 if the notes were listed, 1 if not, 2 for a usage error.";

/// Arguments of `note list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

fn run_list(arguments: &ListArgs) -> anyhow::Result<ExitCode> {
    let notes: Vec<(String, u64, Time)> = match arguments.write.object_url()? {
        Some(url) => {
            let notes = spool::list_notes(&url)?.into_iter();
            notes.map(|note| (note.key, note.size, note.modified)).collect()
        }
        None => {
            let notes =
                arguments.write.with_store(|store| store.notes().map_err(into_cli_error))?;
            let notes = notes.into_iter();
            notes.map(|note| (note.path.to_text().into_owned(), note.size, note.mtime)).collect()
        }
    };
    let lines: Vec<String> =
        notes.iter().map(|(path, ..)| escape_controls(path).to_string()).collect();
    let rows: Vec<_> = notes
        .iter()
        .map(|(path, size, mtime)| {
            let written = Timestamp::try_from(mtime.to_system()).ok();
            json!({
                "path": path,
                "size": size,
                "last_write": written.map(|time| time.to_string()),
            })
        })
        .collect();
    Ok(write_args::print(arguments.json, &lines.join("\n"), &rows))
}
