//! `swarmletfs attach` and `detach`: change the stores of a mount while it is in use.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::control::{StoreChange, send};
use super::progress::ProgressLine;
use super::quiet::QuietArg;

pub(super) const ATTACH_HELP: &str = "\
The mount stays: readers see the old workers or the old and the new ones, and what is open stays
open. Worker ids do not change; if a new worker has the id of another, its name gets a number, such
as m1~2.

Examples:
  swarmletfs attach ~/swarm /data/run-8
  swarmletfs detach ~/swarm /data/run-7";

pub(super) const DETACH_HELP: &str = "\
The mount stays: readers see the workers of all stores or of the remaining ones, and what is open
stays open. The last store of a mount cannot be detached.

Example:
  swarmletfs detach ~/swarm /data/run-7";

/// Arguments of `attach` and of `detach`.
#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// The mountpoint
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,

    /// The folder of traces, or a single transcript
    #[arg(value_name = "STORE")]
    store: PathBuf,

    #[command(flatten)]
    quiet: QuietArg,
}

pub(super) fn attach(arguments: &AttachArgs) -> anyhow::Result<ExitCode> {
    send_change(arguments, StoreChange::Attach)
}

pub(super) fn detach(arguments: &AttachArgs) -> anyhow::Result<ExitCode> {
    send_change(arguments, StoreChange::Detach)
}

fn send_change(
    arguments: &AttachArgs,
    change: fn(PathBuf) -> StoreChange,
) -> anyhow::Result<ExitCode> {
    let store = std::path::absolute(&arguments.store).context("cannot use an empty path")?;
    let progress = ProgressLine::without_counts("waiting for the mount", arguments.quiet);
    let sent = send(&arguments.mountpoint, &change(store));
    drop(progress);
    arguments.quiet.inform(&sent?);
    Ok(ExitCode::SUCCESS)
}
