//! `swarmletfs show`, `log` and `diff`: print the summary of a worker, its messages and calls, and
//! the changes that its record holds.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::compare::{WORKERS, named};
use super::{TreeReader, WorkersArgs, cat, is_absence, path_hint};
use crate::cli::colors::ColorArgs;
use crate::cli::pager::{AnswerKind, for_terminal};
use crate::cli::terminal::print_message;
use crate::error::Result;
use crate::name::{Name, printable};
use crate::route::CHANGES;
use crate::tree::Symlinks;

pub(crate) const SHOW_HELP: &str = "\
Prints workers/ID/summary of the tree. ID may be the beginning of an id. `swarmletfs worker show \
--json` prints index.json.

Example:
  swarmletfs show w1

Exit code: 0 if the worker was read, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

pub(crate) const LOG_HELP: &str = "\
Prints the messages of workers/ID/thread.jsonl and the calls of the worker in their order, with \
times (UTC), outcomes and the beginnings of inputs. ID may be the beginning of an id.

Examples:
  swarmletfs log w1
  swarmletfs log w1 | grep FAILED

Exit code: 0 if the worker was read, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

pub(crate) const DIFF_HELP: &str = "\
Prints workers/ID/changes.diff: a diff that `git apply` and `patch -p1` accept, on a terminal with \
colors. ID may be the beginning of an id. `swarmletfs changes` also has the changes of single files.

Examples:
  swarmletfs diff w1
  swarmletfs diff w1 | git apply

Exit code: 0 if the changes were shown, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

/// Arguments of `show` and `log`.
#[derive(Debug, Args)]
pub(crate) struct OneWorkerArgs {
    /// The worker
    #[arg(value_name = "ID")]
    worker: OsString,

    #[command(flatten)]
    reader: WorkersArgs,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(crate) struct WorkerDiffArgs {
    #[command(flatten)]
    worker: OneWorkerArgs,

    #[command(flatten)]
    color: ColorArgs,
}

pub(crate) fn show(arguments: &OneWorkerArgs) -> anyhow::Result<ExitCode> {
    print(arguments, AnswerKind::Text, |reader, id| read_file(reader, id, "summary"))
}

pub(crate) fn log(arguments: &OneWorkerArgs) -> anyhow::Result<ExitCode> {
    print(arguments, AnswerKind::Text, |reader, id| {
        Ok(reader.tree.renderer().worker_log(&Name::new(id)?)?.into_bytes())
    })
}

pub(crate) fn diff(arguments: &WorkerDiffArgs) -> anyhow::Result<ExitCode> {
    print(&arguments.worker, AnswerKind::Diff, |reader, id| {
        let diff = read_file(reader, id, CHANGES)?;
        Ok(for_terminal(&diff, arguments.color).into_owned())
    })
}

fn read_file(reader: &TreeReader, id: &[u8], name: &str) -> Result<Vec<u8>> {
    cat::read_whole(reader, &[WORKERS, id, b"/", name.as_bytes()].concat())
}

/// Prints the bytes that `read` returns for the id of the worker.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
fn print(
    arguments: &OneWorkerArgs,
    kind: AnswerKind,
    read: impl FnOnce(&TreeReader, &[u8]) -> Result<Vec<u8>>,
) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open_workers(&arguments.reader, None)?;
    let mut out = reader.out(arguments.reader.pager, kind, false);
    let id = named(&arguments.worker);
    let bytes = read(&reader, id).unwrap_or_else(|error| {
        let worker = [WORKERS, id].concat();
        let reason = match reader.tree.with_path(&worker, Symlinks::Follow, |_| Ok(())) {
            Ok(()) if is_absence(&error) => {
                "its record holds no changes; try `swarmletfs log`".to_owned()
            }
            Err(error) if is_absence(&error) => {
                let hint = path_hint::suggest(&reader, &worker);
                let hint = hint.unwrap_or_else(|| "try `swarmletfs list`".to_owned());
                format!("no worker of this view has this id; {hint}")
            }
            _ => error.to_string(),
        };
        print_message(&format!("cannot show worker {}: {reason}", printable(id)));
        reader.note_failure();
        Vec::new()
    });
    let written = out.stdout.write_all(&bytes);
    reader.end(out.close(written))
}
