//! The command line: parses the arguments and dispatches to one module per command.
//!
//! Options are documented where they are declared. The modules here hold no logic of the tree. They
//! find a store, check a mountpoint, run a session, and turn a failure into a message and an exit
//! code. `anyhow` is used only here; the library below has its own error types.
//!
//! # Modules
//!
//! The commands, and every message to a person. `serve` runs a mount, `discover` and
//! `session_places` find stores, and `store_selection` opens them. `tree_commands` holds the
//! commands that need no mount: `ls`, `tree`, `stat`, `cat`, `grep`, `search` and `compare`.
//! `mount_helper` is the program under the name `mount.swarmletfs`, as mount(8) runs it. `doctor`
//! finds problems, `validate` reports the parts of a store that were not understood, and `probe`
//! tries operations that may hang in another process. `run` runs a command as a worker: it makes
//! the worker and its draft, has `sandbox` run the command, lets `draft` search for changes in a
//! thread of its own, and finishes the worker. `hook` answers a hook of an agent program: it opens
//! a store that is restricted to one transcript, and prints the `verdict` of `output`. `in_process`
//! has the functions that a program calls in its own process instead of a command; none of them
//! prints.
//!
//! # Processes
//!
//! `mount` starts itself again as the serving process, which reports over a pipe when the mount
//! answers. When a store directory is replaced, the serving process opens the new one and mounts it
//! in place of the old. The old mount lives on for processes that have it open.

mod apply;
mod archive;
mod attach;
mod audit;
mod background;
mod budget_arg;
mod cache_args;
mod changes;
mod colors;
mod completions;
mod control;
mod dash_o;
mod diagnosis;
mod discard;
mod discover;
mod doctor;
mod duration;
mod exit;
mod expand;
mod folder_identity;
mod gc;
mod hook;
pub mod in_process;
mod init;
mod limits;
mod live_mount;
mod log;
mod log_place;
#[cfg(feature = "mcp")]
mod mcp;
mod mount;
mod mount_helper;
mod mount_options;
mod mountinfo;
mod mountpoint;
mod note;
mod owners_map;
mod pager;
mod plan;
mod probe;
mod progress;
mod prompt;
mod quiet;
mod read_session;
mod reads;
mod record;
mod run;
mod run_command;
mod serve;
mod servers;
mod session_places;
mod short_form;
mod since;
mod store_selection;
mod teardown;
mod terminal;
mod tree_commands;
mod umount;
mod undo;
mod validate;
mod wait;
mod worker;
mod worker_args;
mod write_args;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::name::printable;
use crate::route::cursor::Cursor;
use crate::sandbox::{Stage, serve_stage};
use mount_options::MountOptions;

const EXAMPLES: &str = "\
Examples:
  swarmletfs mount /data/swarmlet /mnt/swarm     mount a store
  swarmletfs /mnt/swarm                          mount the stores that are found automatically
  swarmletfs mount --owner 7 --run 48 /mnt/run   mount one owner's workers of one run
  cat /mnt/swarm/README.md                       read how to use the mount
  swarmletfs ls workers; swarmletfs cat summary  read the same tree without a mount
  swarmletfs grep 'timeout|refused'              find matching lines, failed workers first
  swarmletfs search 'connection timeout'         find relevant passages, best match first
  swarmletfs compare WORKER WORKER               show what two workers share and how they differ
  swarmletfs since 0                             show all changes, and a cursor for the next \
call
  swarmletfs wait --timeout 10m                  wait until all workers have finished
  swarmletfs doctor                              find problems, and how to fix them
  swarmletfs validate /data/swarmlet             find what a store holds and nothing understands
  swarmletfs umount /mnt/swarm                   unmount";

const MOUNT_HELP: &str = "\
The store is the first of these: --store, STORE, $SWARMLET_STORE, $SWARMLET_DATA_PATH, the \
nearest store from the current folder upwards, a known path (/data/swarmlet, /data/workers, \
/data/swarmlet/workers), the sessions of all programs that are found (Claude Code: \
$CLAUDE_CONFIG_DIR or ~/.claude). A message on stderr names the store and the reason for the \
choice.

The default MOUNTPOINT is $XDG_RUNTIME_DIR/swarm. Root has no default.

Examples:
  swarmletfs mount /data/swarmlet /mnt/swarm
  swarmletfs mount --owner 7 --run 48 /mnt/run     one owner's workers of one run
  swarmletfs mount --foreground --log swarm.log /mnt/swarm

$SWARMLETFS_LOG sets what is logged: error, warn, info, debug, trace, or a filter such as \
swarmletfs=debug,fuser=warn. The default is info for --log, and warn for stderr in the \
foreground.";

const UMOUNT_HELP: &str = "\
Examples:
  swarmletfs umount /mnt/swarm
  swarmletfs umount --lazy /mnt/swarm              even while files are open";

const DOCTOR_HELP: &str = "\
Checks FUSE, the kernel, the walls of `run`, the stores, limits and mounts. Each finding is ok, a \
note (worth knowing) or a problem (prevents mounting or reading), with a remedy where one is \
known. The stores are those that `mount` would use. If none is named, the places of all known \
programs are checked, too, also of programs that cannot be read yet.

Without --repair, nothing is changed. As a test, an empty tree is mounted on a new folder in \
$TMPDIR, and a command is run behind the walls of `run` in another one. Both are removed afterwards.

--repair mends what recorders left that ended early, as by a crash: it removes workers that were \
not created wholly and temporary files, and ends calls whose recorder is gone, with an unknown \
outcome. Each repair is printed and is in the log of changes. What is being recorded is left alone.

Examples:
  swarmletfs doctor
  swarmletfs doctor --repair /data/swarmlet

Exit code: 0 if nothing prevents mounting and reading, 1 if something does.

--json prints one object: version (2), problems and notes (their numbers), findings (each with \
topic, check, level, about, says, cure), and the facts: program, kernel, fuse, run, stores, \
places, view, limits, mounts. The schema is docs/doctor.schema.json.";

const SINCE_HELP: &str = "\
Prints one line per worker, oldest change first: new, changed or finished (now or earlier), its \
status and name, the time of its last write, and its new or changed files. The last line is the \
next cursor: CURSOR=$(swarmletfs since now), and later `swarmletfs since $CURSOR`.

The answer has at most 16000 bytes. Omitted changes are counted, and the next cursor covers \
them. A change may be reported twice, but is never lost. No mount is needed; in a mounted tree, \
since/CURSOR has the same content.

Examples:
  swarmletfs since 0                               everything so far
  CURSOR=$(swarmletfs since now)
  swarmletfs since $CURSOR                         changes from then on

Exit code: 0 if everything was read, 1 if a store cannot be read, 2 for a usage error, 3 if \
--max-time ended before all sessions were searched for workers, as the first line then says.";

const WAIT_HELP: &str = "\
Prints what happened since the start, or since --since, in the format of `swarmletfs since`; the \
last line is the next cursor. When the time is over, it prints the workers that have not \
finished, and the cursor from the start.

A change is noticed within about a second, or a few seconds in a store of thousands of workers; \
a finished worker that resumes, within a minute. While there is no worker, it waits. --until \
failed returns at once if a worker has the status failed already; with --since, only workers that \
changed since then count. An abandoned session counts as finished; the first line names it.

Examples:
  swarmletfs wait --timeout 10m
  swarmletfs wait --until failed
  swarmletfs wait --until any --since $CURSOR

Exit code: 0 if the event occurred, 1 if waiting failed, 2 for a usage error, 3 if the time ran \
out.";

/// Mount the traces of a swarm of agents as a read-only folder tree, and read them within a budget.
#[derive(Debug, Parser)]
#[command(name = "swarmletfs", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount a store on a folder; `mount` can be omitted if the first path contains a `/`
    #[command(
        after_help = MOUNT_HELP,
        override_usage = "swarmletfs mount [OPTIONS] [[STORE] MOUNTPOINT]"
    )]
    Mount(Box<MountArgs>),
    /// Unmount a swarmletfs mount
    #[command(visible_alias = "unmount", after_help = UMOUNT_HELP)]
    Umount(UmountArgs),
    /// Add a store to a mount in use
    #[command(after_help = attach::ATTACH_HELP)]
    Attach(attach::AttachArgs),
    /// Remove a store from a mount in use
    #[command(after_help = attach::DETACH_HELP)]
    Detach(attach::AttachArgs),
    /// Check for problems with mounting and reading, and suggest fixes
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Say what a store or transcript holds, and what of it was not understood
    #[command(after_help = validate::HELP)]
    Validate(validate::ValidateArgs),
    /// List folders of the tree, without a mount
    #[command(after_help = tree_commands::ls::HELP, disable_help_flag = true)]
    Ls(tree_commands::ls::LsArgs),
    /// Print files of the tree, without a mount
    #[command(after_help = tree_commands::cat::HELP)]
    Cat(tree_commands::cat::CatArgs),
    /// Print the attributes of files and folders of the tree, without a mount
    #[command(after_help = tree_commands::stat::HELP)]
    Stat(tree_commands::stat::StatArgs),
    /// Print the tree as a diagram, without a mount
    #[command(after_help = tree_commands::tree::HELP, disable_help_flag = true)]
    Tree(tree_commands::tree::TreeCommandArgs),
    /// Search the files of all workers, of a run or of a worker for a regex, without a mount
    #[command(after_help = tree_commands::grep::HELP)]
    Grep(tree_commands::grep::GrepArgs),
    /// Search the files of all workers, of a run or of a worker for words, best match first,
    /// without a mount
    #[command(after_help = tree_commands::search::HELP)]
    Search(tree_commands::search::SearchArgs),
    /// Compare the results and actions of workers, without a mount
    #[command(after_help = tree_commands::compare::HELP)]
    Compare(tree_commands::compare::CompareArgs),
    /// Make a new store to record workers in
    #[command(after_help = init::HELP)]
    Init(init::InitArgs),
    /// Record a worker: create it, record its calls, messages and files, finish it
    #[command(subcommand, after_help = worker::HELP)]
    Worker(worker::WorkerCommand),
    /// Copy sessions of other programs before these remove them
    #[command(after_help = archive::HELP)]
    Archive(archive::ArchiveArgs),
    /// Write, list and read the notes of whoever supervises the workers
    #[command(subcommand, after_help = note::HELP)]
    Note(note::NoteCommand),
    /// Run a command and record it as a call of a worker
    #[command(
        after_help = record::HELP,
        override_usage = "swarmletfs record [OPTIONS] -- COMMAND [ARGUMENT]..."
    )]
    Record(record::RecordArgs),
    /// Run a command as a worker, in its own view of a workspace
    #[command(
        after_help = run::HELP,
        override_usage = "swarmletfs run [OPTIONS] -- COMMAND [ARGUMENT]...\n       \
                          swarmletfs run --each FILE [OPTIONS] -- COMMAND {}\n       \
                          swarmletfs run --recover ID [--store DIR]"
    )]
    Run(Box<run::RunArgs>),
    /// Show what a worker changed in its view of a workspace
    #[command(after_help = changes::HELP)]
    Changes(changes::ChangesArgs),
    /// Apply what a worker changed to the workspace, after showing it
    #[command(after_help = apply::HELP)]
    Apply(apply::ApplyArgs),
    /// Put back what the last `apply` of a worker's changes replaced
    #[command(after_help = undo::HELP)]
    Undo(undo::UndoArgs),
    /// Drop the draft of a worker, so that its changes cannot be applied
    #[command(after_help = discard::HELP)]
    Discard(discard::DiscardArgs),
    /// Remove old workers of a store, after listing them
    #[command(after_help = gc::HELP)]
    Gc(gc::GcArgs),
    /// Print the log of changes to a store
    #[command(after_help = audit::HELP)]
    Audit(audit::AuditArgs),
    /// Copy a text from stdin to stdout, with evidence inserted after its markers
    #[command(after_help = expand::HELP)]
    Expand(expand::ExpandArgs),
    /// Tell an agent's program what its subagents did, as a hook of that program
    #[command(subcommand, after_help = hook::HELP)]
    Hook(hook::HookCommand),
    /// Serve the tree over the Model Context Protocol, for agents that cannot mount
    #[cfg(feature = "mcp")]
    #[command(after_help = mcp::HELP)]
    Mcp(mcp::McpArgs),
    /// Print the completions of a shell
    #[command(after_help = completions::COMPLETIONS_HELP)]
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or write one for each command
    #[command(after_help = completions::MAN_HELP)]
    Man(completions::ManArgs),
    /// Print the changes since a cursor, and the next cursor
    #[command(after_help = SINCE_HELP)]
    Since(SinceArgs),
    /// Wait until all workers have finished, one has failed, or anything has changed
    #[command(after_help = WAIT_HELP)]
    Wait(WaitArgs),
}

/// Commands that only this program runs; help and suggestions never mention them.
#[derive(Debug, Parser)]
enum InternalCommand {
    /// Accesses a path that may hang; see the module `probe`
    #[command(name = "__probe")]
    Probe { probe: probe::Probe, path: PathBuf },
    /// Serves a trial mount; see the module `doctor::trial_mount`
    #[command(name = "__trial")]
    Trial { what: doctor::TrialKind },
    /// Inspects the stores; see the module `doctor::stores`
    #[command(name = "__stores")]
    Stores(DoctorArgs),
    /// Serves a stage of a sandbox; see the module `sandbox`
    #[command(name = "__sandbox")]
    Sandbox {
        #[arg(value_parser = |name: &str| Stage::by_name(name).ok_or("no such stage"))]
        stage: Stage,
        descriptor: i32,
        status: Option<i32>,
    },
    /// Serves the tools of a worker in its sandbox; see the module `mcp`
    #[cfg(feature = "mcp")]
    #[command(name = mcp::WORKER_TOOLS)]
    WorkerTools { workspace: PathBuf },
    /// Keeps a command of a worker's tools; see the module `run_command::keeper`
    #[cfg(feature = "mcp")]
    #[command(name = crate::mcp::COMMAND_KEEPER)]
    CommandKeeper { script: OsString },
}

/// Arguments of `mount`. Most of them can also be given in `-o`.
#[derive(Debug, Args)]
struct MountArgs {
    /// The folder of traces, and the empty folder to mount it on
    #[arg(value_name = "[STORE] MOUNTPOINT", num_args = 0..=2)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    options: MountOptions,

    /// Comma-separated mount options, as passed by mount(8): store=, format=, only_owner=, owners=,
    /// run=, all_owners, audit, audit_max=, hard_links, no_cache, index=, no_index,
    /// allow_other, budget=, ttl=, stale=, log=, foreground, and the usual ones, which have no
    /// effect here; write a comma inside a value as \,
    #[arg(short = 'o', value_name = "OPTIONS")]
    lists: Vec<OsString>,

    #[command(flatten)]
    quiet: quiet::QuietArg,

    /// Set when the short form was used, as by mount(8)
    #[arg(long = "__short", hide = true)]
    short: bool,

    /// Set for the process that serves the mount in the background
    #[arg(long = "__serve", hide = true)]
    serve: bool,
}

#[derive(Debug, Args)]
struct UmountArgs {
    /// The mountpoint [default: $XDG_RUNTIME_DIR/swarm, except for root]
    mountpoint: Option<PathBuf>,

    /// Detach the mount at once, even while files are open; it ends when the last one is closed
    #[arg(long, short)]
    lazy: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
struct DoctorArgs {
    /// The folders of traces to check
    #[arg(value_name = "STORE")]
    paths: Vec<PathBuf>,

    /// A folder of traces to check, or a single transcript; can be given several times
    #[arg(long = "store", value_name = "PATH")]
    stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long, value_name = "NAME", value_parser = mount_options::format_names())]
    format: Option<String>,

    /// Count only what a mount with this owner would show
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    owner: Option<String>,

    /// Also count what a mount with this run would show
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    run: Option<String>,

    /// Repair what recorders that ended early left in the stores
    #[arg(long, conflicts_with = "owner")]
    repair: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Selects what the commands without a mount read. The stores are found as for `mount`.
#[derive(Debug, Args)]
struct ViewArgs {
    /// A folder of traces, or a single transcript; can be given several times [default: found as
    /// for `mount`]
    #[arg(long = "store", value_name = "PATH")]
    stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long = "format", value_name = "NAME", value_parser = mount_options::format_names())]
    store_format: Option<String>,

    /// Only the workers of this owner
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    owner: Option<String>,

    /// Only the workers of this run
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    run: Option<String>,

    /// With --owner, include files that have several hard links, for stores kept as hard-linked
    /// backups
    #[arg(long)]
    hard_links: bool,

    /// Time without a write after which an unfinished session of Claude Code counts as abandoned:
    /// 30s, 5m, 1h30m, or whole seconds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    stale: Option<Duration>,

    #[command(flatten)]
    cache: cache_args::CacheArgs,

    #[command(flatten)]
    quiet: quiet::QuietArg,
}

/// Arguments of `since`.
#[derive(Debug, Args)]
struct SinceArgs {
    /// The last line of an earlier answer; `now` for a cursor only, `0` for everything
    #[arg(value_parser = Cursor::parse)]
    cursor: Cursor,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: read_session::TimeArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
struct WaitArgs {
    /// The event to wait for
    #[arg(long, value_enum, default_value = "finished")]
    until: wait::UntilArg,

    /// Maximum time to wait: 30s, 5m, 1h30m, or whole seconds [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    timeout: Option<Duration>,

    /// Count changes since this cursor, so that none is lost between two waits [default: now]
    #[arg(long, value_name = "CURSOR", value_parser = Cursor::parse)]
    since: Option<Cursor>,

    #[command(flatten)]
    view: ViewArgs,
}

/// Parses the command line and runs the command.
///
/// Returns 0 for success, 1 for failure, 2 for a usage error, and 3 if the time ran out before the
/// command was done. Never panics on any argument.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if mount_helper::is_named_by(&arguments) {
        return mount_helper::main(&arguments);
    }
    // Before the commands of users are described, which takes longer than a stage of a sandbox.
    if arguments.get(1).is_some_and(|first| first.as_encoded_bytes().starts_with(b"__"))
        && let Ok(inner) = InternalCommand::try_parse_from(&arguments)
    {
        return match inner {
            InternalCommand::Probe { probe, path } => probe::serve(probe, &path),
            InternalCommand::Trial { what } => doctor::serve_trial(what),
            InternalCommand::Stores(arguments) => doctor::answer_stores(&arguments),
            InternalCommand::Sandbox { stage, descriptor, status } => {
                serve_stage(stage, descriptor, status)
            }
            #[cfg(feature = "mcp")]
            InternalCommand::WorkerTools { workspace } => mcp::serve_worker_tools(&workspace),
            #[cfg(feature = "mcp")]
            InternalCommand::CommandKeeper { script } => {
                exit::report(run_command::keep_command(&script))
            }
        };
    }
    if let Some(code) = completions::complete(&arguments, Cli::command) {
        return code;
    }
    let arguments = short_form::expand(arguments, &Cli::command());
    if arguments.len() < 2 {
        return exit::from_write(Cli::command().print_help());
    }
    let parsed = Cli::command().try_get_matches_from(&arguments);
    let (cli, matches) = match parsed.and_then(|it| Ok((Cli::from_arg_matches(&it)?, it))) {
        Ok(parsed) => parsed,
        Err(error) => {
            // clap's message repeats the arguments. Parsing the escaped arguments gives a message
            // that is safe to print.
            let escaped = arguments.iter().map(|argument| printable(argument.as_encoded_bytes()));
            let mut error = Cli::try_parse_from(escaped).err().unwrap_or(error);
            short_form::hint(&mut error, &arguments);
            let code = exit::report_parse_error(&error);
            // Claude Code discards a prompt whose hook exits with 2.
            let is_hook = arguments.get(1).is_some_and(|command| command == "hook");
            let runs_command = |name: &OsString| name == "record" || name == "run";
            let is_before_command = arguments.get(1).is_some_and(runs_command);
            return match code {
                code if is_hook => exit::not_blocking(code),
                code if is_before_command => exit::before_command(code),
                code => code,
            };
        }
    };
    exit::report(match cli.command {
        Command::Mount(arguments) => {
            mount::run(*arguments, matches.subcommand_matches("mount")).map(|()| ExitCode::SUCCESS)
        }
        Command::Umount(arguments) => umount::run(arguments).map(|()| ExitCode::SUCCESS),
        Command::Attach(arguments) => attach::attach(&arguments),
        Command::Detach(arguments) => attach::detach(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Validate(arguments) => Ok(exit::report_as_trouble(validate::run(&arguments))),
        Command::Ls(arguments) => tree_commands::ls::run(&arguments),
        Command::Cat(arguments) => tree_commands::cat::run(&arguments),
        Command::Stat(arguments) => tree_commands::stat::run(&arguments),
        Command::Tree(arguments) => tree_commands::tree::run(&arguments),
        Command::Grep(arguments) => {
            Ok(exit::report_as_trouble(tree_commands::grep::run(&arguments)))
        }
        Command::Search(arguments) => {
            Ok(exit::report_as_trouble(tree_commands::search::run(&arguments)))
        }
        Command::Compare(arguments) => {
            Ok(exit::report_as_trouble(tree_commands::compare::run(&arguments)))
        }
        Command::Init(arguments) => init::run(&arguments),
        Command::Worker(command) => worker::run(&command),
        Command::Archive(arguments) => archive::run(&arguments),
        Command::Note(command) => note::run(&command),
        Command::Record(arguments) => Ok(record::run(arguments)),
        Command::Run(arguments) => Ok(run::run(*arguments)),
        Command::Changes(arguments) => changes::run(&arguments),
        Command::Apply(arguments) => apply::run(&arguments),
        Command::Undo(arguments) => undo::run(&arguments),
        Command::Discard(arguments) => discard::run(&arguments),
        Command::Gc(arguments) => gc::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Expand(arguments) => expand::run(&arguments),
        Command::Hook(command) => Ok(hook::run(&command)),
        #[cfg(feature = "mcp")]
        Command::Mcp(arguments) => mcp::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => completions::write_man(&arguments, Cli::command()),
        Command::Since(arguments) => since::run(&arguments),
        Command::Wait(arguments) => wait::run(&arguments),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_every_command_has_an_example() {
        let mut commands = vec![Cli::command()];
        while let Some(mut command) = commands.pop() {
            let help = command.render_long_help().to_string();
            let examples = help.split_once("Example");
            let is_shown = examples.is_some_and(|(_, after)| after.contains("\n  swarmletfs"));
            assert!(is_shown, "{help}");
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn mistyped_command_does_not_mount() {
        let error = Cli::try_parse_from(short_form::expand(
            ["swarmletfs", "mout", "/mnt/swarm"].map(OsString::from).to_vec(),
            &Cli::command(),
        ))
        .unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::InvalidSubcommand);
        assert!(error.to_string().contains("'mount'"), "{error}");
    }

    #[test]
    fn owner_and_all_owners_conflict() {
        let typed = ["swarmletfs", "mount", "--owner", "7", "--all-owners", "/mnt/swarm"];
        assert_eq!(
            Cli::try_parse_from(typed).unwrap_err().kind(),
            clap::error::ErrorKind::ArgumentConflict
        );
    }
}
