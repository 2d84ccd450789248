//! `swarmletfs worker show`: prints the summary of a worker, as readers see it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::cli::tree_commands::{ReaderArgs, cat};
use crate::cli::write_args::named_worker;

pub(super) const HELP: &str = "\
Prints workers/ID/summary of the tree, or with --json workers/ID/index.json. ID may be the \
beginning of an id.

Examples:
  swarmletfs worker show w1
  swarmletfs worker show w1 --json | jq .outcome

Exit code: 0 if the worker was read, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

/// Arguments of `worker show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The worker [default: $SWARMLET_WORKER]
    #[arg(value_name = "ID")]
    id: Option<OsString>,

    /// Print index.json, with all calls
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reader: ReaderArgs,
}

pub(super) fn run(arguments: &ShowArgs) -> anyhow::Result<ExitCode> {
    let id = named_worker(arguments.id.as_ref())?;
    let file: &[u8] = if arguments.json { b"/index.json" } else { b"/summary" };
    cat::print(&arguments.reader, &[[b"workers/", id.as_bytes(), file].concat()])
}
