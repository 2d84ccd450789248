//! `swarmletfs undo`: restores the files that the last `apply` replaced.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::apply::report_conflicts;
use super::changes::open;
use super::exit;
use super::prompt::Prompt;
use super::terminal::{display_path, print_message};
use super::write_args::{WriteArgs, into_cli_error};
use crate::approval::describe_change;
use crate::text::count;
use swarmletfs_record::write::Store;

pub(super) const HELP: &str = "\
Takes back the last `swarmletfs apply` of the worker that was not taken back yet: all or nothing. \
Each file must be as it was applied; otherwise nothing is changed, and the conflicts are listed. \
The changes can be applied again.

Examples:
  swarmletfs undo w1
  swarmletfs undo w1 --yes

Exit code: 0 if the changes were taken back or there is nothing to undo, 1 for a conflict, a no or \
a failure, 2 for a usage error.";

/// Arguments of `undo`.
#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// The worker
    #[arg(value_name = "WORKER")]
    worker: OsString,

    /// Take the changes back without asking
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Takes the changes back.
///
/// # Errors
///
/// The worker cannot be found or is running, there is nobody to ask, or the workspace or the store
/// cannot be written.
pub(super) fn run(arguments: &UndoArgs) -> anyhow::Result<ExitCode> {
    arguments.write.with_store(|store| undo(store, arguments))
}

const CURE: &str = "try to move the changed files away";

fn undo(store: &Store, arguments: &UndoArgs) -> anyhow::Result<ExitCode> {
    let approval = open(store, &arguments.worker)?;
    let workspace = approval.workspace().map_err(into_cli_error)?;
    if !arguments.yes {
        let checked = approval.check_undo().map_err(into_cli_error)?;
        if let Some(code) = report_conflicts(&checked, &approval, "undo", CURE) {
            approval.log_conflicts("undo", checked);
            return Ok(code);
        }
        if !checked.files.is_empty() {
            let action = format!("undo the changes of {}", approval.id().display());
            let mut prompt = Prompt::open(&action)?;
            checked.files.iter().for_each(|file| print_message(&describe_change(file)));
            let changes = count(checked.files.len() as u64, "change");
            let question = format!("Make {changes} in {}?", display_path(&workspace));
            if !prompt.confirm(&question)? {
                print_message("nothing was changed");
                return Ok(exit::failure());
            }
        }
    }
    let undone = approval.undo().map_err(into_cli_error)?;
    if let Some(code) = report_conflicts(&undone.checked, &approval, "undo", CURE) {
        return Ok(code);
    }
    if !arguments.write.quiet {
        for folder in &undone.checked.kept {
            let folder = folder.display();
            print_message(&format!("the folder {folder} stays: others have entries in it"));
        }
        let changes = count(undone.checked.files.len() as u64, "change");
        print_message(&match undone.number {
            Some(_) => format!("took back {changes} in {}", display_path(&workspace)),
            None => "nothing to undo".to_owned(),
        });
    }
    Ok(ExitCode::SUCCESS)
}
