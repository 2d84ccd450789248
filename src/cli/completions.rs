//! `swarmletfs completions` and `swarmletfs man`: completion scripts of shells, and manual pages,
//! from the definition of the command line.
//!
//! A script completes commands and options by itself. For a value that a store has, it calls the
//! hidden command of [`answer`].

mod answer;
mod candidates;
mod cursor;
mod fish;
mod nushell;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::aot::{Bash, Fish, Generator, Zsh};
use clap_complete_nushell::Nushell;

pub(super) use answer::{CompleteArgs, complete};

use super::terminal::display_path;
use super::{mount_helper, pager};

/// Functions of the scripts that complete values from the store.
const BASH_STORE: &str = include_str!("completions/store.bash");
const ZSH_STORE: &str = include_str!("completions/store.zsh");

/// The end of a script for zsh, which calls its function if it was loaded by its name.
const ZSH_END: &str = "if [ \"$funcstack[1]\"";

/// Name of the program in scripts and pages.
const PROGRAM: &str = "swarmletfs";

/// Help text of `completions` after the options.
pub(super) const COMPLETIONS_HELP: &str = "\
Prints a script that completes commands, options and their values. It also completes workers, \
runs, paths of the tree and mountpoints, from the store that the command would read, within 300 ms \
or $SWARMLETFS_COMPLETION_TIME. Names with control or invisible characters are left out.

Examples:
  swarmletfs completions bash > ~/.local/share/bash-completion/completions/swarmletfs
  swarmletfs completions zsh > \"${fpath[1]}/_swarmletfs\"
  swarmletfs completions fish > ~/.config/fish/completions/swarmletfs.fish

Exit code: 0 if the script was printed, 1 if not, 2 for a usage error.";

/// Help text of `man` after the options.
pub(super) const MAN_HELP: &str = "\
Writes a page for each command into DIR, which is made if it is missing: swarmletfs.1, \
swarmletfs-mount.1, and so on, and mount.swarmletfs.8 about /etc/fstab. Without DIR, prints the \
page of swarmletfs itself.

Examples:
  swarmletfs man | man -l -
  swarmletfs man ~/.local/share/man/man1

Exit code: 0 if the pages were written, 1 if not, 2 for a usage error.";

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder to write the pages of all commands to
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Nushell,
}

/// Prints the completions of `command` for a shell.
///
/// # Errors
///
/// Stdout cannot be written.
pub(super) fn run(arguments: &CompletionsArgs, command: Command) -> anyhow::Result<ExitCode> {
    let hidden = hidden_options(&command);
    let script = match arguments.shell {
        Shell::Bash => {
            let script = renamed(&script(Bash, command));
            let script = hidden.iter().fold(script, |script, name| {
                // Its script has all options of a command on one line.
                script.replace(&format!(" --{name} "), " ")
            });
            script + BASH_STORE
        }
        Shell::Zsh => {
            let script = renamed(&without_lines(&script(Zsh, command), &hidden));
            script.replacen(ZSH_END, &format!("{ZSH_STORE}{ZSH_END}"), 1)
        }
        Shell::Fish => {
            let values = fish::store_values(&command);
            without_lines(&script(Fish, command), &hidden) + &values
        }
        Shell::Nushell => {
            let known = command.clone();
            let script = without_lines(&script(Nushell, command), &hidden);
            nushell::with_store_values(&script, &known)
        }
    };
    pager::print(script.as_bytes())
}

fn script(shell: impl Generator, mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Renames the function of a script, which another one calls.
fn renamed(script: &str) -> String {
    let line = |line| if line == "_swarmletfs() {" { "_swarmletfs_static() {" } else { line };
    script.lines().map(|text| format!("{}\n", line(text))).collect()
}

/// Returns the long names of hidden options, which the generators would complete.
fn hidden_options(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter(|argument| argument.is_hide_set());
    let own = own.filter_map(|argument| argument.get_long()).map(str::to_owned);
    own.chain(command.get_subcommands().flat_map(hidden_options)).collect()
}

/// Removes the lines of a script that offer one of the options called `hidden`.
fn without_lines(script: &str, hidden: &[String]) -> String {
    let is_shown = |line: &&str| !hidden.iter().any(|name| line.contains(name.as_str()));
    script.lines().filter(is_shown).map(|line| format!("{line}\n")).collect()
}

/// Prints the manual page of `command`, or writes one page for each of its commands.
///
/// # Errors
///
/// The pages or stdout cannot be written.
pub(super) fn write_man(arguments: &ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    let Some(dir) = &arguments.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return pager::print(&page);
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .and_then(|()| mount_helper::write_man_page(dir))
        .with_context(|| format!("cannot write to {}", display_path(dir)))?;
    Ok(ExitCode::SUCCESS)
}
