//! `swarmletfs run`: runs a command as a worker, in its own view of a workspace.
//!
//! - `isolation`: the engine and the isolation, a remembered trial of it, and the command that is
//!   run in it
//! - `environment`: the variables that the command receives, and the needs of known programs
//! - `session`: a worker from its start to its end, and the changes while its command runs
//! - `report`: reports to a person or to the process of `--each`
//! - `recover`: ends a worker whose runner is gone
//! - `continued`: a worker that goes on with the changes of another one, and `rebase`
//! - `each`: a worker for each line of a file
//! - `tools`: a worker whose command is a server of its tools
//! - `user`: `--as`
//!
//! This file has the arguments, the workspace, and the paths in the arguments.

mod continued;
mod each;
mod environment;
mod isolation;
mod recover;
mod report;
mod session;
#[cfg(feature = "mcp")]
mod tools;
mod user;

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::{Args, ValueEnum};

use super::exit::{self, UsageError};
use super::record::parse_timeout;
use super::terminal::display_path;
use super::write_args::{MergeWay, WorkerArgs, WriteArgs, parse_size};
use crate::name::RelPath;
use crate::sandbox;
use continued::CommentUse;
pub(super) use continued::{REBASE_HELP, RebaseArgs, rebase};
pub(super) use environment::EnvOption;
use environment::Preset;
pub(super) use recover::with_drafts;
use report::Reporter;
#[cfg(feature = "mcp")]
pub(super) use tools::{ToolsRun, serve_tools};

/// This program, also where its path is hidden.
const PROGRAM: &str = "/proc/self/exe";

pub(super) const HELP: &str = "\
The command sees the workspace at its own path and can change it, but it changes a copy: an \
overlay of the kernel, in which nothing is copied at the start, or else a copy of all files. The \
rest of the machine can be read and not written, the store and other workers are not there, of \
your environment variables only harmless ones are passed on, and everything that the command \
started ends with it. What it changed is recorded with the worker, \
also while it runs. `swarmletfs changes` shows it, `apply` brings it into the workspace, and \
`discard` drops it. docs/RUN.md says what the isolation protects from, and what not.

A worker that `worker create` made, and that has done nothing, is run by its --id; it keeps its \
task and what else is known of it.

The output goes to stdout and stderr as it comes, and to logs/execution.log of the worker. The \
command finds its worker in $SWARMLET_WORKER and $SWARMLET_STORE, so that `swarmletfs record` in \
it records calls. Exit code 0 completes the worker; any other one, a signal or a timeout is a \
failure.

Examples:
  swarmletfs run --task 'Fix issue 12' --preset claude -- claude -p \"$(cat task.md)\"
  swarmletfs run --task 'Fix issue 12' --preset codex -- codex exec \"$(cat task.md)\"
  swarmletfs run --hide .env --no-network --timeout 30m -- make test
  swarmletfs run --env GITHUB_TOKEN --env 'AWS_*' -- ./deploy
  swarmletfs run --each tasks.txt -j 4 --preset gemini -- gemini -p {}
  swarmletfs run --continue ID
  swarmletfs run --recover ID

Exit code: that of the command, 128 + N if signal N ended it, 124 after --timeout, 126 if it cannot \
be run, 127 if it does not exist, and 125 if it was not run, or if it succeeded and its output or \
its changes could not be recorded wholly. With --each, 0 if all workers completed, and 1 if not. \
With --recover, 0 if the worker is ended, and 1 if not.";

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The folder that the command works on; it starts there, or in the current folder if that is
    /// beneath
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,

    /// What the worker is told to do [default: the command]
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,

    #[command(flatten)]
    worker: WorkerArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    limits: LimitArgs,

    /// Also record changes of files that .gitignore ignores, and of .git
    #[arg(long)]
    all_changes: bool,

    /// Wait for the disk at each copy that the overlay makes: slower, but a stop of the machine
    /// tears no file of the draft
    #[arg(long)]
    durable: bool,

    /// Record at most this much of the output, its beginning and its end: bytes, optionally with k,
    /// M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,

    /// Run the command on a terminal of its own, connected to this one
    #[arg(long)]
    tty: bool,

    /// End the worker ID, whose runner was killed: records its changes, and that it failed
    #[arg(long, value_name = "ID", conflicts_with_all = ["command", "each"])]
    recover: Option<OsString>,

    /// Run a worker for each line of FILE, with {} in the command replaced by the line, which is
    /// its task; - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "task", "tty"])]
    each: Option<PathBuf>,

    /// With --each, the number of workers at a time [default: the number of processors]
    #[arg(long, short, value_name = "N", requires = "each")]
    jobs: Option<NonZeroUsize>,

    /// Go on with the changes of the worker ID, in a new view of the workspace as it is now. The
    /// comments of `review` are added to the prompt of its own command, or replace {} in COMMAND
    #[arg(long = "continue", value_name = "ID")]
    #[arg(conflicts_with_all = ["each", "recover", "workspace"])]
    continues: Option<OsString>,

    /// With --continue, merge files that others changed, too; with =markers, keep both sides of a
    /// conflict, between conflict markers
    #[arg(long, value_enum, value_name = "WAY", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "clean", default_value = "clean")]
    merge: Option<MergeWay>,

    /// The line that this process is to run, as one of the processes of --each
    #[arg(long = "__line", value_name = "LINE", hide = true, requires = "each")]
    line: Option<OsString>,

    /// True for the process that becomes the one of --as
    #[arg(long = user::BECOMES, hide = true, requires = "as_user")]
    becomes_user: bool,

    #[command(flatten)]
    write: WriteArgs,

    /// True if the command is a server of tools: its stdout is a protocol, which is not recorded,
    /// and its worker may exist already
    #[arg(skip)]
    serves_tools: bool,

    /// The command and its arguments
    #[arg(last = true, required_unless_present_any = ["recover", "continues"])]
    #[arg(value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options that say what the command can reach.
#[derive(Debug, Args)]
struct AccessArgs {
    /// The way to make the worker's view of the workspace [default: overlay, or copy if the
    /// workspace cannot be the base of an overlay]
    #[arg(long, value_enum, value_name = "ENGINE")]
    engine: Option<EngineArg>,

    /// A path that the command may also write, directly; can be given several times
    #[arg(long = "write", value_name = "PATH")]
    writable: Vec<PathBuf>,

    /// A socket that the command may use, such as /run/docker.sock; can be given several times
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,

    /// Let the command use the keys of the SSH agent
    #[arg(long)]
    ssh_agent: bool,

    /// A path of the workspace that the command must not see, such as .env; can be given several
    /// times
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,

    /// A variable that the command receives: NAME or a pattern such as 'AWS_*' of yours, or
    /// NAME=VALUE; can be given several times
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = env_parser())]
    env: Vec<EnvOption>,

    /// Let a known program write the folders in $HOME that it needs, and pass its variables on
    #[arg(long, value_enum, value_name = "PROGRAM", default_value = "none")]
    preset: Preset,

    /// Leave out the rules of Landlock for files, the second layer of the isolation, so that the
    /// command can make sandboxes of its own
    #[arg(long)]
    nested: bool,

    /// Give the command no network but its own localhost
    #[arg(long)]
    no_network: bool,

    /// Protect nothing: the command runs in a copy of the workspace, with all rights of this user
    #[arg(long, conflicts_with_all = ["hide", "no_network", "memory", "pids"])]
    no_sandbox: bool,

    /// As root, run everything as this user
    #[arg(long = "as", value_name = "USER")]
    as_user: Option<OsString>,
}

pub(super) fn env_parser() -> ValueParser {
    OsStringValueParser::new().try_map(EnvOption::parse).into()
}

/// Options that limit the command.
#[derive(Debug, Clone, Args)]
pub(super) struct LimitArgs {
    /// End the command and all processes that it started after this time: 30s, 5m, 1h30m, or whole
    /// seconds
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Maximum memory of the command: bytes, optionally with k, M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// Maximum number of processes of the command
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,
}

#[cfg(feature = "mcp")]
impl LimitArgs {
    pub(super) fn are_given(&self) -> bool {
        self.timeout.is_some() || self.memory.is_some() || self.pids.is_some()
    }
}

/// The way to make the view of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineArg {
    /// An overlay of the kernel; nothing is copied at the start
    Overlay,
    /// A copy of all files; what others change meanwhile does not show
    Copy,
}

pub(super) fn run(mut arguments: RunArgs) -> ExitCode {
    if let Some(user) = arguments.access.as_user.take() {
        match user::run_as(&user, &arguments.access.env, arguments.becomes_user) {
            Ok(None) => {}
            Ok(Some(code)) => return code,
            Err(error) => return exit::report_as_not_recorded(Err(error)),
        }
    }
    if let Some(id) = &arguments.recover {
        return exit::report(recover::run(&arguments.write, id));
    }
    if let Some(line) = arguments.line.take() {
        return each::run_line(arguments, &line);
    }
    if let Some(tasks) = &arguments.each {
        return exit::report(each::run(&arguments, tasks));
    }
    let reporter = Reporter::person(arguments.write.quiet);
    if let Some(id) = arguments.continues.take() {
        let ended = continued::run(arguments, &id, CommentUse::Prompt, &reporter);
        return exit::report_as_not_recorded(ended);
    }
    let recovered = recover_before(&mut arguments);
    exit::report_as_not_recorded(recovered.and_then(|()| session::run(&arguments, &reporter)))
}

/// Finds the store, or makes it, and ends the workers there whose runners were killed.
fn recover_before(arguments: &mut RunArgs) -> anyhow::Result<()> {
    let workspace = StartPlace::find(&arguments.workspace)?.workspace;
    arguments.write = arguments.write.resolved(&workspace)?;
    with_drafts(&arguments.write, |_| Ok(()))
}

#[derive(Debug)]
pub(super) struct StartPlace {
    /// Absolute and resolved.
    pub(super) workspace: PathBuf,
    /// The workspace, or a folder beneath it.
    pub(super) directory: PathBuf,
}

impl StartPlace {
    /// Finds the workspace at `path`. The command starts in the current folder if that is beneath.
    ///
    /// # Errors
    ///
    /// The path is no folder, or the root of the machine.
    pub(super) fn find(path: &Path) -> anyhow::Result<StartPlace> {
        let workspace = resolve(path, "the workspace")?;
        if !workspace.is_dir() {
            let shown = display_path(path);
            bail!("cannot use {shown} as the workspace: it is not a folder; try its folder");
        }
        if workspace.parent().is_none() {
            bail!("cannot use / as the workspace: it is the whole machine; try a folder beneath");
        }
        let current = std::env::current_dir().ok().filter(|dir| dir.starts_with(&workspace));
        Ok(StartPlace { directory: current.unwrap_or_else(|| workspace.clone()), workspace })
    }

    pub(super) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.workspace)
    }

    /// Returns the top of the git repository that the workspace is only a part of. Git does not
    /// look above the folders in `$GIT_CEILING_DIRECTORIES`.
    fn enclosing_repository(&self) -> Option<&Path> {
        let ceilings = std::env::var_os("GIT_CEILING_DIRECTORIES").unwrap_or_default();
        let ceilings: Vec<PathBuf> = std::env::split_paths(&ceilings).collect();
        let is_below = |folder: &&Path| !ceilings.iter().any(|ceiling| ceiling == folder);
        let is_top = |folder: &&Path| folder.join(".git").exists();
        let top = self.workspace.ancestors().take_while(is_below).find(is_top)?;
        (top != self.workspace).then_some(top)
    }

    fn directory_in_workspace(&self) -> &Path {
        self.directory.strip_prefix(&self.workspace).unwrap_or(Path::new(""))
    }

    /// Returns the path of the entry `hidden` from the workspace. A link is hidden itself.
    ///
    /// # Errors
    ///
    /// There is no such entry, or it is not in the workspace.
    pub(super) fn hidden(&self, hidden: &Path) -> anyhow::Result<OsString> {
        let shown = display_path(hidden);
        let absent = || format!("cannot hide {shown}: check the path");
        let absolute = std::path::absolute(hidden).with_context(absent)?;
        fs::symlink_metadata(&absolute).with_context(absent)?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(UsageError(format!("cannot hide {shown}: it has no name")).into());
        };
        let path = fs::canonicalize(parent).with_context(absent)?.join(name);
        let reason = match path.strip_prefix(&self.workspace) {
            Ok(inner) if inner.as_os_str().is_empty() => "it is the workspace".to_owned(),
            Ok(_) if self.directory.starts_with(&path) => "the command starts in it".to_owned(),
            Ok(inner) => match RelPath::parse(inner.as_os_str().as_bytes()) {
                Ok(_) => return Ok(inner.as_os_str().to_owned()),
                Err(error) => error.to_string(),
            },
            Err(_) => format!("it is not in the workspace {}", display_path(&self.workspace)),
        };
        Err(UsageError(format!("cannot hide {shown}: {reason}")).into())
    }

    /// Returns the resolved path of `--write`.
    ///
    /// # Errors
    ///
    /// There is no such entry, or a command must not write it directly.
    pub(super) fn writable(&self, path: &Path, store: &Path) -> anyhow::Result<PathBuf> {
        let resolved = resolve(path, "a path to write")?;
        let reason = sandbox::writable_refusal(&resolved, store).or_else(|| {
            let is_inside = self.holds(&resolved);
            is_inside
                .then_some("it is in the workspace; changes there are recorded without --write")
        });
        match reason {
            None => Ok(resolved),
            Some(reason) => {
                let shown = display_path(path);
                Err(UsageError(format!("cannot use --write {shown}: {reason}")).into())
            }
        }
    }
}

/// Returns the resolved path of a socket. `role` is its meaning, for a message.
///
/// # Errors
///
/// There is no such entry, or it is no socket.
fn resolve_socket(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let resolved = resolve(path, role)?;
    if fs::metadata(&resolved).is_ok_and(|meta| !meta.file_type().is_socket()) {
        let shown = display_path(path);
        return Err(UsageError(format!("cannot use {shown} as {role}: it is no socket")).into());
    }
    Ok(resolved)
}

/// Returns the absolute path of an existing entry, without links. `role` is its meaning, for a
/// message.
///
/// # Errors
///
/// There is no such entry.
pub(super) fn resolve(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let shown = display_path(path);
    fs::canonicalize(path).with_context(|| format!("cannot use {shown} as {role}: check the path"))
}
