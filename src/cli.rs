//! The command line: parses the arguments and dispatches to one module per command.
//!
//! Options are documented where they are declared. The modules here hold no logic of the tree. They
//! find a store, check a mountpoint, run a session, and turn a failure into a message and an exit
//! code. `anyhow` is used only here; the library below has its own error types.
//!
//! # Modules
//!
//! The commands, and every message to a person. `serve` runs a mount, `discover` finds stores, and
//! `store_selection` opens them. `tree_commands` holds the commands that need no mount: `list`,
//! `report`, `export`, `cost`, `log`, `diff`, `ls`, `tree`, `stat`, `cat`, `grep`, `search` and
//! `compare`; `live_page` serves the page of `report`, and `top` is the live view on a terminal.
//! `help` puts the commands into groups, and options behind their command. `mount_helper` is the
//! program under the name `mount.swarmletfs`, as mount(8) runs it. `doctor` finds problems,
//! `validate` reports the parts of a store that were not understood, and `probe` tries operations
//! that may hang in another process. `run` runs a command as a worker: it makes the worker and its
//! draft, has `sandbox` run the command, lets `draft` search for changes in a thread of its own,
//! and finishes the worker. `hook` answers a hook of an agent program: it opens a store that is
//! restricted to one transcript, and prints the `verdict` of `output`. `in_process` has the
//! functions that a program calls in its own process instead of a command; none of them prints.
//!
//! # Processes
//!
//! `mount` starts itself again as the serving process, which reports over a pipe when the mount
//! answers. When a store directory is replaced, the serving process opens the new one and mounts it
//! in place of the old. The old mount lives on for processes that have it open.

mod apply;
mod archive;
mod audit;
mod catalog;
mod changes;
mod colors;
mod completions;
mod control;
mod diagnosis;
mod discover;
mod doctor;
mod drafts;
mod duration;
mod exit;
mod expand;
mod flush;
mod gc;
mod help;
mod hook;
pub mod in_process;
mod init;
#[cfg(feature = "mcp")]
mod live_page;
mod log;
#[cfg(feature = "mcp")]
mod mcp;
mod model_args;
mod mount;
mod mount_helper;
mod mount_options;
mod mountinfo;
mod mountpoint;
mod note;
mod object_args;
mod object_facts;
#[cfg_attr(not(feature = "object-store"), path = "cli/no_object_stores.rs")]
mod object_stores;
mod output_file;
mod pager;
mod plan;
mod probe;
mod read_session;
mod record;
mod review;
mod run;
mod run_command;
mod serve;
mod sizes;
#[cfg_attr(not(feature = "object-store"), path = "cli/no_spool.rs")]
mod spool;
mod spools;
mod store_selection;
mod sync;
mod sync_ends;
mod teardown;
mod terminal;
mod top;
mod tree_commands;
mod umount;
mod validate;
mod view_args;
mod wait;
mod worker;
mod write_args;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

use plan::read_own_programs;

use crate::name::printable;
use crate::sandbox::{Stage, serve_stage};

const EXAMPLES: &str = "\
Examples:
  swarmletfs mount /data/swarmlet /mnt/swarm     mount a store
  swarmletfs /mnt/swarm                          mount the stores that are found automatically
  swarmletfs mount --owner 7 --run 48 /mnt/run   mount one owner's workers of one run
  cat /mnt/swarm/README.md                       read how to use the mount
  swarmletfs list --since 3d                     list the workers of the last three days
  swarmletfs log WORKER                          print the messages and calls of a worker
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

/// Mount the traces of a swarm of agents as a read-only folder tree, and read them within a budget.
#[derive(Debug, Parser)]
#[command(name = "swarmletfs", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount stores on a folder; `swarmletfs FOLDER/` is short for it
    #[command(
        after_help = mount::HELP,
        override_usage = "swarmletfs mount [OPTIONS] [[STORE] MOUNTPOINT]"
    )]
    Mount(Box<mount::MountArgs>),
    /// Unmount a swarmletfs mount
    #[command(visible_alias = "unmount", after_help = umount::HELP)]
    Umount(umount::UmountArgs),
    /// List workers in a table, newest first
    #[command(after_help = tree_commands::list::HELP)]
    List(Box<tree_commands::list::WorkerListArgs>),
    /// Show workers live on a terminal: who needs you, runs, ended
    #[command(after_help = top::HELP)]
    Top(Box<top::TopArgs>),
    /// Sum up the costs of workers
    #[command(after_help = tree_commands::cost::HELP)]
    Cost(Box<tree_commands::cost::CostArgs>),
    /// Write a page about the workers, to open in a browser
    #[command(after_help = tree_commands::report::HELP)]
    Report(Box<tree_commands::report::ReportArgs>),
    /// Write workers and their calls in a format of other programs
    #[command(after_help = tree_commands::export::HELP)]
    Export(Box<tree_commands::export::ExportArgs>),
    /// Print the summary of a worker
    #[command(after_help = tree_commands::one_worker::SHOW_HELP)]
    Show(tree_commands::one_worker::OneWorkerArgs),
    /// Print the messages and calls of a worker
    #[command(after_help = tree_commands::one_worker::LOG_HELP)]
    Log(tree_commands::one_worker::OneWorkerArgs),
    /// Print what a worker changed by its record, as a diff
    #[command(after_help = tree_commands::one_worker::DIFF_HELP)]
    Diff(tree_commands::one_worker::WorkerDiffArgs),
    /// Add a store to a mount in use
    #[command(after_help = control::ATTACH_HELP)]
    Attach(control::AttachArgs),
    /// Remove a store from a mount in use
    #[command(after_help = control::DETACH_HELP)]
    Detach(control::AttachArgs),
    /// Check for problems with mounting and reading, suggest fixes
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::DoctorArgs),
    /// Say what of a store or transcript was not understood
    #[command(after_help = validate::HELP)]
    Validate(validate::ValidateArgs),
    /// List folders of the tree
    #[command(after_help = tree_commands::ls::HELP, disable_help_flag = true)]
    Ls(tree_commands::ls::LsArgs),
    /// Print files of the tree
    #[command(after_help = tree_commands::cat::HELP)]
    Cat(tree_commands::cat::CatArgs),
    /// Print the attributes of files and folders
    #[command(after_help = tree_commands::stat::HELP)]
    Stat(tree_commands::stat::StatArgs),
    /// Print the tree as a diagram
    #[command(after_help = tree_commands::tree::HELP, disable_help_flag = true)]
    Tree(tree_commands::tree::TreeCommandArgs),
    /// Search the files of workers for a regex, failures first
    #[command(after_help = tree_commands::grep::HELP)]
    Grep(tree_commands::grep::GrepArgs),
    /// Search the files of workers for words, best match first
    #[command(after_help = tree_commands::search::HELP)]
    Search(tree_commands::search::SearchArgs),
    /// Compare the results and actions of workers
    #[command(after_help = tree_commands::compare::HELP)]
    Compare(Box<tree_commands::compare::CompareArgs>),
    /// Print workers in the words of a language model
    #[command(after_help = tree_commands::summarize::HELP)]
    Summarize(Box<tree_commands::summarize::SummarizeArgs>),
    /// Make a new store to record workers in
    #[command(after_help = init::HELP)]
    Init(init::InitArgs),
    /// Create a worker, record its calls and files, finish it
    #[command(subcommand, after_help = worker::HELP)]
    Worker(worker::WorkerCommand),
    /// Copy changed files of a folder or an object store to another one
    #[command(after_help = sync::HELP)]
    Sync(sync::SyncArgs),
    /// Upload the files that wait in the spools of object stores
    #[command(after_help = flush::HELP)]
    Flush(flush::FlushArgs),
    /// Copy sessions of other programs before these remove them
    #[command(after_help = archive::HELP)]
    Archive(archive::ArchiveArgs),
    /// Write, list and read the notes of the supervisor
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
                          swarmletfs run --continue ID [OPTIONS] [-- COMMAND [ARGUMENT]...]\n       \
                          swarmletfs run --recover ID [--store DIR]"
    )]
    Run(Box<run::RunArgs>),
    /// List the drafts that wait, or review one hunk by hunk
    #[command(after_help = review::HELP)]
    Review(review::ReviewArgs),
    /// Show what a worker changed in its view of a workspace
    #[command(after_help = changes::HELP)]
    Changes(changes::ChangesArgs),
    /// Bring a draft onto the workspace of now, and run its checks again
    #[command(after_help = run::REBASE_HELP)]
    Rebase(run::RebaseArgs),
    /// Apply what a worker changed, after showing it
    #[command(after_help = apply::HELP)]
    Apply(apply::ApplyArgs),
    /// Put back what the last `apply` replaced
    #[command(after_help = apply::UNDO_HELP)]
    Undo(apply::UndoArgs),
    /// Drop the changes of a worker, so that none can be applied
    #[command(after_help = apply::DISCARD_HELP)]
    Discard(apply::DiscardArgs),
    /// Remove old workers of a store, after listing them
    #[command(after_help = gc::HELP)]
    Gc(gc::GcArgs),
    /// Print the log of changes to a store
    #[command(after_help = audit::HELP)]
    Audit(audit::AuditArgs),
    /// Bring the catalog of an object store up to date
    #[command(after_help = catalog::HELP)]
    Catalog(catalog::CatalogArgs),
    /// Insert evidence after the markers in a text from stdin
    #[command(after_help = expand::HELP)]
    Expand(expand::ExpandArgs),
    /// Tell an agent's program what its subagents did
    #[command(subcommand, after_help = hook::HELP)]
    Hook(hook::HookCommand),
    /// Serve the tree over the Model Context Protocol
    #[cfg(feature = "mcp")]
    #[command(after_help = mcp::HELP)]
    Mcp(Box<mcp::McpArgs>),
    /// Serve the page of `report`, which then follows the workers
    #[cfg(feature = "mcp")]
    #[command(after_help = live_page::HELP)]
    Serve(Box<live_page::ServeArgs>),
    /// Print the completions of a shell
    #[command(after_help = completions::COMPLETIONS_HELP)]
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or write one for each command
    #[command(after_help = completions::MAN_HELP)]
    Man(completions::ManArgs),
    /// Print the changes since a cursor, and the next cursor
    #[command(after_help = wait::SINCE_HELP)]
    Since(wait::SinceArgs),
    /// Wait until workers have finished, failed, wait or changed
    #[command(after_help = wait::HELP)]
    Wait(wait::WaitArgs),
}

/// Commands that only this program runs; help and suggestions never mention them.
#[derive(Debug, Parser)]
enum InternalCommand {
    /// Accesses a path that may hang; see the module `probe`
    #[command(name = "__probe")]
    Probe { probe: probe::Probe, path: PathBuf },
    /// Serves a trial mount; see the module `doctor::fuse`
    #[command(name = "__trial")]
    Trial { what: doctor::TrialKind },
    /// Inspects the stores; see the module `doctor::stores`
    #[command(name = "__stores")]
    Stores(doctor::DoctorArgs),
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
    /// Keeps a command of a worker's tools; see `run_command::keep_command`
    #[cfg(feature = "mcp")]
    #[command(name = crate::mcp::COMMAND_KEEPER)]
    CommandKeeper { script: OsString },
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
    if let Some(code) = completions::complete(&arguments, help::command) {
        return code;
    }
    let mut command = help::command();
    let arguments = help::normalize(arguments, &command);
    let arguments = mount_helper::expand_short_form(arguments, &command);
    if arguments.len() < 2 {
        return exit::from_write(command.print_help());
    }
    let parsed = command.try_get_matches_from_mut(&arguments);
    let (cli, matches) = match parsed.and_then(|it| Ok((Cli::from_arg_matches(&it)?, it))) {
        Ok(parsed) => parsed,
        Err(error) => {
            // clap's message repeats the arguments. Parsing the escaped arguments gives a message
            // that is safe to print.
            let escaped = arguments.iter().map(|argument| printable(argument.as_encoded_bytes()));
            let mut error = command.try_get_matches_from(escaped).err().unwrap_or(error);
            mount_helper::hint_at_short_form(&mut error, &arguments);
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
    // A hook disturbs nobody.
    if let Err(error) = read_own_programs()
        && !matches!(cli.command, Command::Hook(_))
    {
        let code = exit::report(Err(error));
        return match cli.command {
            Command::Record(_) | Command::Run(_) | Command::Rebase(_) => exit::before_command(code),
            Command::Grep(_) | Command::Search(_) | Command::Compare(_) | Command::Validate(_) => {
                exit::trouble()
            }
            _ => code,
        };
    }
    exit::report(match cli.command {
        Command::Mount(arguments) => {
            mount::run(*arguments, matches.subcommand_matches("mount")).map(|()| ExitCode::SUCCESS)
        }
        Command::Umount(arguments) => umount::run(arguments).map(|()| ExitCode::SUCCESS),
        Command::List(arguments) => tree_commands::list::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Cost(arguments) => tree_commands::cost::run(&arguments),
        Command::Export(arguments) => tree_commands::export::run(&arguments),
        Command::Report(arguments) => tree_commands::report::run(&arguments),
        Command::Show(arguments) => tree_commands::one_worker::show(&arguments),
        Command::Log(arguments) => tree_commands::one_worker::log(&arguments),
        Command::Diff(arguments) => tree_commands::one_worker::diff(&arguments),
        Command::Attach(arguments) => control::attach(&arguments),
        Command::Detach(arguments) => control::detach(&arguments),
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
        Command::Summarize(arguments) => tree_commands::summarize::run(&arguments),
        Command::Init(arguments) => init::run(&arguments),
        Command::Worker(command) => worker::run(&command),
        Command::Archive(arguments) => archive::run(&arguments),
        Command::Sync(arguments) => sync::run(&arguments),
        Command::Flush(arguments) => flush::run(&arguments),
        Command::Note(command) => note::run(&command),
        Command::Record(arguments) => Ok(record::run(arguments)),
        Command::Run(arguments) => Ok(run::run(*arguments)),
        Command::Review(arguments) => review::run(&arguments),
        Command::Changes(arguments) => match &arguments.worker {
            Some(worker) => changes::run(worker, &arguments),
            None => review::list_all(&arguments.write, arguments.json),
        },
        Command::Rebase(arguments) => Ok(run::rebase(&arguments)),
        Command::Apply(arguments) => apply::run(&arguments),
        Command::Undo(arguments) => apply::run_undo(&arguments),
        Command::Discard(arguments) => apply::run_discard(&arguments),
        Command::Gc(arguments) => gc::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Catalog(arguments) => catalog::run(&arguments),
        Command::Expand(arguments) => expand::run(&arguments),
        Command::Hook(command) => hook::run(&command),
        #[cfg(feature = "mcp")]
        Command::Mcp(arguments) => mcp::run(&arguments),
        #[cfg(feature = "mcp")]
        Command::Serve(arguments) => live_page::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => completions::write_man(&arguments, help::command()),
        Command::Since(arguments) => wait::run_since(&arguments),
        Command::Wait(arguments) => wait::run(&arguments),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        help::command().debug_assert();
    }

    #[test]
    fn help_of_every_command_has_an_example() {
        let mut commands = vec![help::command()];
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
        let error = Cli::try_parse_from(mount_helper::expand_short_form(
            ["swarmletfs", "mout", "/mnt/swarm"].map(OsString::from).to_vec(),
            &help::command(),
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

    /// Describes `command` and the commands below it.
    #[cfg(feature = "mcp")]
    fn add_reference(command: &mut clap::Command, path: &str, out: &mut String) {
        let path = format!("{path}{}", command.get_name());
        let help = command.render_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        out.push_str(&format!("\n## {path}\n\n```\n{}\n```\n", help.join("\n").trim_end()));
        for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
            add_reference(below, &format!("{path} "), out);
        }
    }

    /// `SWARMLETFS_WRITE_REFERENCE=1 cargo test --lib reference` writes the page anew.
    #[cfg(feature = "mcp")]
    #[test]
    fn page_of_commands_has_the_help_of_each() {
        let mut command = help::command().term_width(100);
        command.build();
        let mut page = String::from(
            "# Commands\n\nThe help of each command, as `swarmletfs COMMAND --help` prints it. \
             [GUIDE.md](GUIDE.md) explains what the commands have in common.\n",
        );
        add_reference(&mut command, "", &mut page);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/COMMANDS.md");
        if std::env::var_os("SWARMLETFS_WRITE_REFERENCE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == page, "docs/COMMANDS.md is not the help; see the comment of this test");
    }
}
