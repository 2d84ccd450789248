//! `swarmletfs completions` and `swarmletfs man`: completion scripts of shells, and manual pages,
//! from the definition of the command line.
//!
//! A script calls the program while a line is typed, with a variable that names the shell. The
//! program may delay the shell only for a moment and prints no error.

mod shell;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::env::{CompleteEnv, EnvCompleter, Shells};

use super::terminal::display_path;
use super::{mount_helper, pager};
use shell::Shell;

const PROGRAM: &str = "swarmletfs";

const VARIABLE: &str = "SWARMLETFS_COMPLETE";

pub(super) const COMPLETIONS_HELP: &str = "\
Prints a script that completes commands, options and their values. It also completes workers, \
runs, paths of the tree and mountpoints, from the store that the command would read, within 300 ms \
or $SWARMLETFS_COMPLETION_TIME. Names with control or invisible characters are left out.

Examples:
  swarmletfs completions bash > ~/.local/share/bash-completion/completions/swarmletfs
  swarmletfs completions zsh > \"${fpath[1]}/_swarmletfs\"
  swarmletfs completions fish > ~/.config/fish/completions/swarmletfs.fish

Exit code: 0 if the script was printed, 1 if not, 2 for a usage error.";

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

pub(super) fn run(arguments: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    arguments.shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    pager::print(&script)
}

/// Completes a line if the script of a shell runs the program. Returns `None` if not.
pub(super) fn complete(arguments: &[OsString], command: impl Fn() -> Command) -> Option<ExitCode> {
    if arguments.is_empty() {
        return None;
    }
    let shells = Shells(&[&Shell::Bash, &Shell::Zsh, &Shell::Fish]);
    let completion = CompleteEnv::with_factory(command).var(VARIABLE).shells(shells);
    let current_dir = std::env::current_dir().ok();
    match completion.try_complete(arguments, current_dir.as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        Err(_) => Some(ExitCode::FAILURE),
    }
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
