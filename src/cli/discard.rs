//! `swarmletfs discard`: drops the draft of a worker.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::changes::open;
use super::exit;
use super::prompt::Prompt;
use super::terminal::print_message;
use super::write_args::{WriteArgs, into_cli_error};
use swarmletfs_record::write::Store;

pub(super) const HELP: &str = "\
Removes what the worker wrote in its view of the workspace. Its changes cannot be applied any \
more. The record of the worker stays, with its changes as `swarmletfs changes` shows them, and changes \
that were applied can still be taken back.

Example:
  swarmletfs discard w1

Exit code: 0 if the draft was discarded, 1 for a no or a failure, 2 for a usage error.";

/// Arguments of `discard`.
#[derive(Debug, Args)]
pub(super) struct DiscardArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Discard without asking
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Discards the draft.
///
/// # Errors
///
/// The worker cannot be found, is running or has no draft, there is nobody to ask, or the store
/// cannot be written.
pub(super) fn run(arguments: &DiscardArgs) -> anyhow::Result<ExitCode> {
    arguments.write.with_store(|store| discard(store, arguments))
}

fn discard(store: &Store, arguments: &DiscardArgs) -> anyhow::Result<ExitCode> {
    let approval = open(store, &arguments.worker)?;
    // Found before the question: a worker without a draft has nothing to discard.
    approval.check_discard().map_err(into_cli_error)?;
    let worker = approval.id().display();
    if !arguments.yes {
        let mut prompt = Prompt::open(&format!("discard the changes of {worker}"))?;
        if !prompt.confirm(&format!("Discard the draft of {worker}?"))? {
            print_message("nothing was discarded");
            return Ok(exit::failure());
        }
    }
    let was_kept = approval.discard().map_err(into_cli_error)?;
    if !arguments.write.quiet {
        let text = if was_kept { "discarded the draft of" } else { "nothing to discard:" };
        print_message(&format!("{text} {worker}"));
    }
    Ok(ExitCode::SUCCESS)
}
