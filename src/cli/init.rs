//! `swarmletfs init`: makes a new store.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::terminal::{display_path, print_message, shell_quote};
use super::write_args;
use swarmletfs_record::write::Store;

pub(super) const HELP: &str = "\
A store is a folder with one folder per worker in workers/, and the log of changes in audit/. DIR \
is made if it is missing; a store that exists stays as it is.

Examples:
  swarmletfs init swarm
  export SWARMLET_STORE=$PWD/swarm
  id=$(swarmletfs worker create --task 'Check the backups')

Several users: make DIR with the group and the mode that new workers shall have, as in
  install -d -m 2770 -g swarm /srv/swarm && swarmletfs init /srv/swarm

Exit code: 0 if DIR is a store, 1 if not, 2 for a usage error.";

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The folder to make a store of: a new or empty one
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Makes the store and prints its path.
///
/// # Errors
///
/// The folder holds something else, or cannot be written.
pub(super) fn run(arguments: &InitArgs) -> anyhow::Result<ExitCode> {
    let store = Store::init(&arguments.dir)?;
    store.take_warnings().iter().for_each(|warning| print_message(warning));
    let value = json!({"store": display_path(&arguments.dir)});
    let text = format!("the store is {}", shell_quote(&arguments.dir));
    Ok(write_args::print(arguments.json, &text, &value))
}
