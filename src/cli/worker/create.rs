//! `swarmletfs worker create`: creates a worker and prints its id.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::cli::exit::UsageError;
use crate::cli::terminal::{display_path, escape_controls};
use crate::cli::worker_args::WorkerArgs;
use crate::cli::write_args::{self, WriteArgs, into_cli_error};

pub(super) const HELP: &str = "\
The id alone is printed, so that a shell can keep it. Commands that record need it as ID or in \
$SWARMLET_WORKER.

Examples:
  id=$(swarmletfs worker create --task 'Check the backups' --run 48 --type ops --tag nightly)
  export SWARMLET_WORKER=$(swarmletfs worker create --task 'Fix issue 12' --model large-1)
  swarmletfs worker create --id w1 --context spec.md=docs/spec.md

Exit code: 0 if the worker was created, 1 if not, 2 for a usage error.";

/// Arguments of `worker create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What the worker is told to do
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "task_file")]
    task: String,

    /// A file with the task, which may be longer than an argument; - for stdin
    #[arg(long, value_name = "FILE")]
    task_file: Option<PathBuf>,

    #[command(flatten)]
    worker: WorkerArgs,

    /// The working directory [default: the current folder]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// A file to keep as context/KEY: what the worker is given; can be given several times
    #[arg(long = "context", value_name = "KEY=FILE")]
    context: Vec<OsString>,

    /// Start an index.json in the store, if it has none; swarmletfs itself needs none
    #[arg(long)]
    index: bool,

    /// Print the id and the path as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Creates the worker.
///
/// # Errors
///
/// The id is taken, a value cannot be used, or the store cannot be written.
pub(super) fn run(arguments: &CreateArgs) -> anyhow::Result<ExitCode> {
    let task = match &arguments.task_file {
        Some(path) => write_args::read_text(path)?,
        None => arguments.task.clone(),
    };
    let mut new = arguments.worker.describe(task);
    if let Some(cwd) = working_directory(arguments.cwd.as_deref())? {
        new = new.cwd(cwd);
    }
    for pair in &arguments.context {
        let (key, path) = split_context(pair)?;
        let file =
            File::open(&path).with_context(|| format!("cannot read {}", display_path(&path)))?;
        new = new.context(key, file);
    }
    if arguments.index {
        new = new.starting_index();
    }
    let worker =
        arguments.write.with_store(|store| store.create_worker(new).map_err(into_cli_error))?;
    let id = worker.id().to_text();
    let value = json!({"worker": id, "path": worker.path()});
    Ok(write_args::print(arguments.json, &id, &value))
}

/// Returns `given`, or else the current directory. Returns `None` if the latter cannot be in
/// metadata.json because its path is not UTF-8.
///
/// # Errors
///
/// `given` is not UTF-8: a usage error.
fn working_directory(given: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(given) = given else {
        return Ok(std::env::current_dir().ok().and_then(|cwd| cwd.to_str().map(str::to_owned)));
    };
    let Some(cwd) = given.to_str() else {
        let shown = display_path(given);
        return Err(UsageError(format!("cannot use --cwd {shown}: it is not UTF-8")).into());
    };
    Ok(Some(cwd.to_owned()))
}

fn split_context(pair: &OsString) -> anyhow::Result<(String, PathBuf)> {
    let bytes = pair.as_bytes();
    let split = memchr::memchr(b'=', bytes).and_then(|at| bytes.split_at_checked(at));
    let pair = split.and_then(|(key, file)| {
        let key = std::str::from_utf8(key).ok()?;
        Some((key.to_owned(), file.strip_prefix(b"=")?))
    });
    let Some((key, file)) = pair else {
        let shown = escape_controls(&String::from_utf8_lossy(bytes));
        return Err(UsageError(format!("cannot use --context {shown}: expected KEY=FILE")).into());
    };
    Ok((key, OsString::from_vec(file.to_vec()).into()))
}
