//! `swarmletfs mcp`: serves the tree over the Model Context Protocol, for agents that cannot mount.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::rand::{GetRandomFlags, getrandom};
use tracing::warn;

use super::changes;
use super::exit::{self, UsageError};
use super::model_args::ModelArgs;
use super::plan::read_prices;
use super::record::parse_timeout;
use super::run::{EnvOption, LimitArgs, ToolsRun, env_parser, serve_tools};
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::view_args::ViewArgs;
use super::write_args::{STORE_VARIABLE, into_cli_error, named_worker, survive_size_limits};
use crate::catalog::Freshness;
use crate::digest::to_hex;
use crate::mcp::{
    HttpConfig, ServedTree, Supervisor, Token, WorkerSession, serve, serve_http, serve_worker,
};
use crate::name::Name;
use crate::text::budget::Budget;
use crate::tree::{Settings, Tree};
use swarmletfs_record::write::{Store, StoreOptions};

const TOKEN_VARIABLE: &str = "SWARMLETFS_TOKEN";

pub(super) const HELP: &str = "\
Speaks the Model Context Protocol on stdin and stdout with one client, which starts it. A \
configuration entry for Claude Code (.mcp.json) and most other clients:

  {\"mcpServers\": {\"swarm\": {\"command\": \"swarmletfs\", \"args\": [\"mcp\", \"--store\", \
\"/data/swarmlet\"]}}}

Tools: list_workers, summarize, get_evidence, get_tool_output, compare, changes_since, expand, \
search, grep, list_dir, read_file, info, exists, glob. Files are resources: \
swarm:///workers/ID/summary. Without a role, everything is read-only, as in a mount with the same \
options.

--as supervisor adds tools that write to the store: create_worker, annotate_worker, \
write_note, read_note, changes, and apply_changes, which shows the diff of a worker's changes to \
the person behind the client (elicitation), and applies it only after a yes. A client that cannot \
ask the person is not offered it.

--as worker:ID gives the client only tools for the files of a workspace, in the sandbox of \
`swarmletfs run`: ls, read_file, write_file, edit_file, delete_file, glob, grep, execute; and note \
and finish for the worker's record. Changes go to a draft, each call is recorded, and the worker \
ends with the session. The worker is created if there is none with this id.

--http serves any number of clients at http://ADDR/mcp (streamable HTTP). ADDR must be a \
loopback address. Clients authenticate with Authorization: Bearer TOKEN. The token is \
$SWARMLETFS_TOKEN; without it, a new one is generated and printed on stderr. A connection has 10 \
seconds to present the token, and each body 10 seconds to arrive; a connection is closed after a \
minute without a request.

Examples:
  swarmletfs mcp --store /data/swarmlet
  swarmletfs mcp --as supervisor --store /data/swarmlet
  swarmletfs mcp --as worker --workspace ~/project
  swarmletfs mcp --http 8750

Exit code: 0 when the client closes stdin, 1 for a failure, 2 for a usage error.";

/// Arguments of `mcp`.
#[derive(Debug, Args)]
pub(super) struct McpArgs {
    /// Serve over HTTP at this loopback address, as 127.0.0.1:8750, instead of stdin and stdout
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http: Option<SocketAddr>,

    /// Maximum size of evidence.txt: bytes, optionally with k or M, or tokens, as in 8000tok
    /// [default: 16000 per worker, 28000 for a run or the swarm]
    #[arg(long, value_name = "SIZE", value_parser = Budget::parse)]
    budget: Option<Budget>,

    /// Compute costs that records do not state, from the prices in this JSON file; see
    /// `swarmletfs cost --help`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,

    /// The role: `supervisor` creates workers and asks the person to apply their changes;
    /// `worker:ID` works as that worker on a workspace, and `worker` as a new one [default: only
    /// reading]
    #[arg(long = "as", value_name = "ROLE", value_parser = Role::parse)]
    role: Option<Role>,

    /// As a supervisor, the time that the person has to answer: 30s, 5m, 1h30m, or whole seconds
    /// [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    answer_timeout: Option<Duration>,

    /// As a worker, the folder to work on [default: the current folder]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,

    /// As a new worker, what it is told to do
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,

    /// As a worker, a path of the workspace that it must not see, such as .env; can be given
    /// several times
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,

    /// As a worker, a variable that its commands receive: NAME or a pattern such as 'AWS_*' of
    /// yours, or NAME=VALUE; can be given several times
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = env_parser())]
    env: Vec<EnvOption>,

    /// As a worker, give its commands no network but their own localhost
    #[arg(long)]
    no_network: bool,

    #[command(flatten)]
    limits: LimitArgs,

    /// True for the process that runs a worker
    #[arg(long = "__runner", hide = true)]
    is_runner: bool,

    #[command(flatten)]
    view: ViewArgs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Supervisor,
    /// A worker with this id; `None` for a new one.
    Worker(Option<String>),
}

impl Role {
    fn parse(text: &str) -> Result<Role, String> {
        match text {
            SUPERVISOR => Ok(Role::Supervisor),
            WORKER => Ok(Role::Worker(None)),
            _ => match text.split_once(':') {
                Some((WORKER, id)) if !id.is_empty() => Ok(Role::Worker(Some(id.to_owned()))),
                _ => Err("expected supervisor, worker or worker:ID".into()),
            },
        }
    }
}

const SUPERVISOR: &str = "supervisor";

const WORKER: &str = "worker";

/// The internal command that serves the tools of a worker in its sandbox.
pub(super) const WORKER_TOOLS: &str = "__worker-tools";

const TASK_DEFAULT: &str = "Work by MCP";

const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Serves until the client disconnects or the process is stopped.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or if the address is in use.
pub(super) fn run(arguments: &McpArgs) -> anyhow::Result<ExitCode> {
    if let Some(address) = arguments.http {
        check_loopback(address)?;
    }
    check_options(arguments)?;
    if let Some(Role::Worker(id)) = &arguments.role {
        return run_worker(arguments, id.clone());
    }
    let selection = StoreSelection::from_args(&arguments.view)?;
    let supervisor = match &arguments.role {
        Some(Role::Supervisor) => Some(supervisor(arguments, &selection)?),
        _ => None,
    };
    let prices = read_prices(arguments.prices.as_deref())?;
    let cache = || arguments.view.cache.open(&selection.stores);
    let prose = arguments.model.start(prices.clone(), cache)?;
    let settings = Settings { budget: arguments.budget, prices, prose, ..Settings::default() };
    let trees = served_tree(selection, settings)?;
    match arguments.http {
        None => serve(trees, supervisor, || Ok((tokio::io::stdin(), tokio::io::stdout())))
            .context("cannot serve")?,
        Some(address) => {
            let (token, made) = token()?;
            let served = serve_http(trees, supervisor, HttpConfig { address, token }, |address| {
                print_message(&format!("serving at http://{address}/mcp"));
                if let Some(made) = made {
                    print_message(&format!("the token is {made}"));
                }
            });
            served.with_context(|| format!("cannot serve at {address}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the tree to serve, which is opened again once another folder replaced a store.
///
/// # Errors
///
/// A store cannot be read.
pub(super) fn served_tree(
    selection: StoreSelection,
    settings: Settings,
) -> anyhow::Result<ServedTree> {
    let tree = Tree::new(selection.open(Freshness::default())?, settings.clone());
    Ok(ServedTree::new(tree, move || match selection.open(Freshness::default()) {
        Ok(view) => Some(Tree::new(view, settings.clone())),
        Err(error) => {
            warn!("cannot serve the store that replaced the old one; the old one stays: {error:#}");
            None
        }
    }))
}

/// Rejects an address that other machines reach.
///
/// # Errors
///
/// Fails with a usage error if `address` is not on the loopback.
pub(super) fn check_loopback(address: SocketAddr) -> Result<(), UsageError> {
    match address.ip().is_loopback() {
        true => Ok(()),
        false => Err(UsageError(format!(
            "{address} is not on the loopback: use 127.0.0.1:PORT or [::1]:PORT, and a tunnel for \
             remote clients"
        ))),
    }
}

/// Rejects options of another role.
///
/// # Errors
///
/// Fails with a usage error if such an option is given.
fn check_options(arguments: &McpArgs) -> anyhow::Result<()> {
    let is_worker = matches!(arguments.role, Some(Role::Worker(_)));
    let view = &arguments.view;
    let refusals = [
        (is_worker && arguments.http.is_some(), "--http with --as worker; use stdin and stdout"),
        (is_worker && arguments.budget.is_some(), "--budget with --as worker; leave it out"),
        (is_worker && arguments.prices.is_some(), "--prices with --as worker; leave it out"),
        (is_worker && arguments.model.is_given(), "a model with --as worker; leave it out"),
        (is_worker && view.stores.len() > 1, "several stores with --as worker; name one"),
        (!is_worker && arguments.workspace.is_some(), "--workspace without --as worker; add it"),
        (!is_worker && arguments.task.is_some(), "--task without --as worker; add it"),
        (!is_worker && !arguments.hide.is_empty(), "--hide without --as worker; add it"),
        (!is_worker && !arguments.env.is_empty(), "--env without --as worker; add it"),
        (!is_worker && arguments.no_network, "--no-network without --as worker; add it"),
        (
            !is_worker && arguments.limits.are_given(),
            "--timeout, --memory or --pids without --as worker; add it",
        ),
        (
            arguments.answer_timeout.is_some() && arguments.role != Some(Role::Supervisor),
            "--answer-timeout without --as supervisor; add it",
        ),
    ];
    match refusals.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, options)) => Err(UsageError(format!("cannot use {options}")).into()),
        None => Ok(()),
    }
}

/// Serves the tools of a worker in a sandbox, until the client disconnects or finishes the worker.
///
/// # Errors
///
/// There is no store or workspace, or no sandbox can be made.
fn run_worker(arguments: &McpArgs, id: Option<String>) -> anyhow::Result<ExitCode> {
    if !arguments.is_runner {
        return start_runner();
    }
    let view = &arguments.view;
    let tools = ToolsRun {
        id,
        workspace: arguments.workspace.clone().unwrap_or_else(|| ".".into()),
        task: arguments.task.clone().unwrap_or_else(|| TASK_DEFAULT.to_owned()),
        store: view.stores.first().cloned(),
        owner: view.owner.clone(),
        run: view.run.clone(),
        hide: arguments.hide.clone(),
        env: arguments.env.clone(),
        no_network: arguments.no_network,
        limits: arguments.limits.clone(),
    };
    serve_tools(tools, WORKER_TOOLS)
}

/// Runs this command in another process, and waits for it.
///
/// Clients kill a server that does not end soon after they have closed its stdin. The other process
/// outlives that, and records the changes of the worker. It is in a process group of its own, since
/// some clients kill the group.
///
/// # Errors
///
/// The process cannot be started.
fn start_runner() -> anyhow::Result<ExitCode> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("swarmletfs").args(std::env::args_os().skip(1)).arg("--__runner");
    // A process of another group could not read from a terminal.
    if !std::io::stdin().is_terminal() {
        command.process_group(0);
    }
    let mut runner = command.spawn().context("cannot start a process")?;
    let ended = runner.wait().context("cannot wait for a process")?;
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, Into::into))
}

/// Serves the tools of the worker of this sandbox, whose view is at `workspace`.
pub(super) fn serve_worker_tools(workspace: &Path) -> ExitCode {
    exit::report(serve_in_sandbox(workspace).map(|()| ExitCode::SUCCESS))
}

fn serve_in_sandbox(workspace: &Path) -> anyhow::Result<()> {
    let store = std::env::var_os(STORE_VARIABLE).context("cannot find the store")?;
    // In a sandbox, a read-only folder is in place of the store. Without one, the tools would
    // change the workspace itself.
    if access(Path::new(&store), Access::WRITE_OK) != Err(Errno::ROFS) {
        bail!("cannot serve the tools of a worker: this is no sandbox; try `mcp --as worker`");
    }
    // The commands of the worker must not reach the connection to the client through /proc.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot protect this process")?;
    // A disk quota is an error of a tool, and does not end the server.
    survive_size_limits()?;
    let store = Store::open(store)?;
    let id = named_worker(None)?;
    let session = WorkerSession::open(&store, id.as_bytes(), workspace)?;
    serve_worker(session, || Ok((tokio::io::stdin(), tokio::io::stdout()))).context("cannot serve")
}

/// Returns a supervisor of the selected store.
///
/// # Errors
///
/// There are several stores, or the store cannot be written.
fn supervisor(arguments: &McpArgs, selection: &StoreSelection) -> anyhow::Result<Supervisor> {
    let [store] = selection.stores.as_slice() else {
        let text = "cannot supervise several stores; name one with --store DIR".to_owned();
        return Err(UsageError(text).into());
    };
    let path = store.clone();
    let open = move || StoreOptions::default().role(SUPERVISOR).open(&path);
    open().map_err(into_cli_error)?;
    survive_size_limits()?;
    let read_diff = |store: &Store, worker: &Name| {
        changes::read_diff(store, worker, changes::WHOLE).map_err(|error| format!("{error:#}"))
    };
    let filter = selection.filter.clone();
    Ok(Supervisor::new(
        move || open().map_err(|error| error.to_string()),
        read_diff,
        (filter.owner, filter.run),
        arguments.answer_timeout.unwrap_or(ANSWER_TIMEOUT),
    ))
}

/// Parses an address. The loopback host may be omitted or written as `localhost`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    match port.parse() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => text.parse().map_err(|_| {
            "give IP:PORT, such as 127.0.0.1:8750 or [::1]:8750, or only a port".into()
        }),
    }
}

/// Returns the configured token, or a new random one with its text to print.
pub(super) fn token() -> anyhow::Result<(Token, Option<String>)> {
    if let Some(text) = std::env::var_os(TOKEN_VARIABLE) {
        let text = text.into_string().unwrap_or_default();
        let token =
            Token::new(&text).map_err(|error| UsageError(format!("${TOKEN_VARIABLE}: {error}")))?;
        return Ok((token, None));
    }
    let mut random = [0; 24];
    getrandom(&mut random, GetRandomFlags::empty()).context("cannot generate a token")?;
    let text = to_hex(&random);
    let token = Token::new(&text).map_err(anyhow::Error::msg)?;
    Ok((token, Some(text)))
}
