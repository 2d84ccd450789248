//! `swarmletfs worker`: creates a worker, records its work, and finishes it.
//!
//! Each command is a thin layer over [`swarmletfs_record::write`].

mod annotate;
mod create;
mod finish;
mod message;
mod put;
mod record;
mod show;

use std::process::ExitCode;

use clap::Subcommand;

pub(super) const HELP: &str = "\
Example:
  id=$(swarmletfs worker create --task 'Check the backups')
  swarmletfs worker record $id --tool sh --exit 1 < output
  swarmletfs worker finish $id --result report.txt";

/// Commands that record a worker.
#[derive(Debug, Subcommand)]
pub(super) enum WorkerCommand {
    /// Create a worker and print its id
    #[command(after_help = create::HELP)]
    Create(Box<create::CreateArgs>),
    /// Record a tool call, with its output from stdin
    #[command(after_help = record::HELP)]
    Record(record::RecordCallArgs),
    /// Add messages from stdin to the conversation, one JSON object per line
    #[command(after_help = message::HELP)]
    Message(message::MessageArgs),
    /// Write a file of the worker, with its content from stdin
    #[command(after_help = put::HELP, override_usage = "swarmletfs worker put [OPTIONS] [ID] PATH")]
    Put(put::PutArgs),
    /// Finish a worker; it does not change any more
    #[command(after_help = finish::HELP)]
    Finish(finish::FinishArgs),
    /// Set the supervisor's notes on a worker
    #[command(after_help = annotate::HELP)]
    Annotate(annotate::AnnotateArgs),
    /// Print the summary of a worker
    #[command(after_help = show::HELP)]
    Show(show::ShowArgs),
}

pub(super) fn run(command: &WorkerCommand) -> anyhow::Result<ExitCode> {
    match command {
        WorkerCommand::Create(arguments) => create::run(arguments),
        WorkerCommand::Record(arguments) => record::run(arguments),
        WorkerCommand::Message(arguments) => message::run(arguments),
        WorkerCommand::Put(arguments) => put::run(arguments),
        WorkerCommand::Finish(arguments) => finish::run(arguments),
        WorkerCommand::Annotate(arguments) => annotate::run(arguments),
        WorkerCommand::Show(arguments) => show::run(arguments),
    }
}
