//! A worker whose command is a server of tools, which one client uses over stdin and stdout.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, FromArgMatches};

use super::environment::EnvOption;
use super::report::Reporter;
use super::{LimitArgs, PROGRAM, RunArgs, resolve, session};

#[derive(Debug)]
pub(crate) struct ToolsRun {
    /// The id. A worker of this id that runs and has no draft is used. `None` for a new worker.
    pub(crate) id: Option<String>,
    pub(crate) workspace: PathBuf,
    pub(crate) task: String,
    pub(crate) store: Option<PathBuf>,
    pub(crate) owner: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) env: Vec<EnvOption>,
    pub(crate) no_network: bool,
    pub(crate) limits: LimitArgs,
}

/// Runs the server `command`, an internal command of this program, as a worker in a sandbox. Its
/// last argument is the workspace.
///
/// # Errors
///
/// There is no store or workspace, or the server was not run.
pub(crate) fn serve_tools(tools: ToolsRun, command: &str) -> anyhow::Result<ExitCode> {
    let workspace = resolve(&tools.workspace, "the workspace")?;
    // Joined with their names, values may begin with a dash.
    let option = |name: &str, value: &OsStr| {
        let mut option = OsString::from(name);
        option.push("=");
        option.push(value);
        option
    };
    let mut line = vec![
        "run".into(),
        option("--workspace", workspace.as_os_str()),
        option("--task", OsStr::new(&tools.task)),
    ];
    line.extend(tools.id.map(|id| option("--id", OsStr::new(&id))));
    line.extend(tools.store.map(|store| option("--store", store.as_os_str())));
    line.extend(tools.owner.map(|owner| option("--owner", OsStr::new(&owner))));
    line.extend(tools.run.map(|run| option("--run", OsStr::new(&run))));
    line.extend(tools.hide.iter().map(|path| option("--hide", path.as_os_str())));
    line.extend(tools.no_network.then(|| "--no-network".into()));
    line.extend(["--".into(), PROGRAM.into(), command.into(), workspace.into()]);
    let parsed = RunArgs::augment_args(clap::Command::new("run")).try_get_matches_from(line)?;
    let mut arguments = RunArgs::from_arg_matches(&parsed)?;
    arguments.serves_tools = true;
    arguments.limits = tools.limits;
    arguments.access.env = tools.env;
    session::run(&arguments, &Reporter::person(false))
}
