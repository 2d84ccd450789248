//! `swarmletfs note`: the notes of the supervisor of the workers, in `supervisor/` of the store.

mod list;
mod read;
mod worker_map;
mod write;

use std::process::ExitCode;

use clap::Subcommand;

pub(super) const HELP: &str = "\
Examples:
  swarmletfs note write strategy.md 'One worker per module.'
  swarmletfs note list";

/// Commands for the notes.
#[derive(Debug, Subcommand)]
pub(super) enum NoteCommand {
    /// Write a note: a new one, or in place of an existing one
    #[command(after_help = write::HELP)]
    Write(write::WriteNoteArgs),
    /// Add to the end of a note
    #[command(after_help = write::HELP)]
    Append(write::WriteNoteArgs),
    /// List the notes
    #[command(after_help = list::HELP)]
    List(list::ListArgs),
    /// Print a note
    #[command(after_help = read::HELP)]
    Read(read::ReadArgs),
    /// Write worker_map.json, which has each worker's task and state
    #[command(after_help = worker_map::HELP)]
    WorkerMap(worker_map::WorkerMapArgs),
}

pub(super) fn run(command: &NoteCommand) -> anyhow::Result<ExitCode> {
    match command {
        NoteCommand::Write(arguments) => {
            write::run(arguments, swarmletfs_record::write::NotePlace::Whole)
        }
        NoteCommand::Append(arguments) => {
            write::run(arguments, swarmletfs_record::write::NotePlace::End)
        }
        NoteCommand::List(arguments) => list::run(arguments),
        NoteCommand::Read(arguments) => read::run(arguments),
        NoteCommand::WorkerMap(arguments) => worker_map::run(arguments),
    }
}
