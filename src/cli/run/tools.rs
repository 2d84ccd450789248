//! A worker whose command is a server of tools, which one client uses over stdin and stdout.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, FromArgMatches};

use super::report::Reporter;
use super::{RunArgs, session};

/// This program, also where its path is hidden.
const PROGRAM: &str = "/proc/self/exe";

/// The worker of a server of tools.
#[derive(Debug)]
pub(in crate::cli) struct ToolsRun {
    /// The id. A worker of this id that runs and has no draft is used. `None` for a new worker.
    pub(in crate::cli) id: Option<String>,
    pub(in crate::cli) workspace: PathBuf,
    /// What a new worker is told to do.
    pub(in crate::cli) task: String,
    pub(in crate::cli) store: Option<PathBuf>,
    pub(in crate::cli) owner: Option<String>,
    pub(in crate::cli) run: Option<String>,
    /// Paths of the workspace that the worker must not see.
    pub(in crate::cli) hide: Vec<PathBuf>,
    pub(in crate::cli) no_network: bool,
}

/// Runs the server `command`, an internal command of this program, as a worker in a sandbox. Its
/// last argument is the workspace.
///
/// # Errors
///
/// There is no store or workspace, or the server was not run.
pub(in crate::cli) fn serve_tools(tools: ToolsRun, command: &str) -> anyhow::Result<ExitCode> {
    let workspace = std::fs::canonicalize(&tools.workspace)
        .with_context(|| format!("cannot use {} as the workspace", tools.workspace.display()))?;
    let options: [(&str, Option<OsString>); 4] = [
        ("--id", tools.id.map(OsString::from)),
        ("--store", tools.store.map(OsString::from)),
        ("--owner", tools.owner.map(OsString::from)),
        ("--run", tools.run.map(OsString::from)),
    ];
    let mut line: Vec<OsString> =
        vec!["run".into(), "--workspace".into(), workspace.clone().into()];
    line.extend(["--task".into(), tools.task.into()]);
    for (name, value) in options {
        line.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    }
    line.extend(tools.hide.into_iter().flat_map(|path| ["--hide".into(), path.into()]));
    line.extend(tools.no_network.then(|| "--no-network".into()));
    line.extend(["--".into(), PROGRAM.into(), command.into(), workspace.into()]);
    let parsed = RunArgs::augment_args(clap::Command::new("run")).try_get_matches_from(line)?;
    let mut arguments = RunArgs::from_arg_matches(&parsed)?;
    arguments.serves_tools = true;
    session::run(&arguments, &Reporter::person(false))
}
