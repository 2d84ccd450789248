//! `swarmletfs note read`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::cli::tree_commands::{ReaderArgs, cat};

pub(super) const HELP: &str = "\
Prints supervisor/PATH of the tree, byte for byte.

Example:
  swarmletfs note read strategy.md

Exit code: 0 if the note was printed, 1 if not, 2 for a usage error.";

/// Arguments of `note read`.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// The note, as a path in supervisor/
    #[arg(value_name = "PATH")]
    path: OsString,

    #[command(flatten)]
    reader: ReaderArgs,
}

pub(super) fn run(arguments: &ReadArgs) -> anyhow::Result<ExitCode> {
    cat::print(&arguments.reader, &[[b"supervisor/", arguments.path.as_bytes()].concat()])
}
