//! Prints long texts as git does: in a pager on a terminal.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::text::diff_text;

/// Variables that name a pager, the first one that is set.
const VARIABLES: [&str; 2] = ["GIT_PAGER", "PAGER"];
/// The pager if no variable names one.
const DEFAULT: &str = "less";
/// Options of less: end at once if all fits on a screen, keep colors, and clear nothing.
const LESS_OPTIONS: &str = "FRX";

/// Options of commands that show a diff.
#[derive(Debug, Clone, Args)]
pub(super) struct DiffArgs {
    /// When to color the diff
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorArg,

    /// Print the diff at once, not in a pager
    #[arg(long)]
    no_pager: bool,
}

/// When to use colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColorArg {
    Auto,
    Always,
    Never,
}

impl DiffArgs {
    /// Shows a diff: as it is, or on a terminal with colors, escaped and in a pager.
    ///
    /// # Errors
    ///
    /// Stdout cannot be written.
    pub(super) fn show(&self, diff: &[u8]) -> anyhow::Result<ExitCode> {
        let is_terminal = io::stdout().is_terminal();
        let has_colors = self.has_colors(is_terminal);
        let painted = (is_terminal || has_colors).then(|| diff_text::paint(diff, has_colors));
        let bytes = painted.as_deref().map_or(diff, str::as_bytes);
        if is_terminal && !self.no_pager && !diff.is_empty() && page(bytes)? {
            return Ok(ExitCode::SUCCESS);
        }
        print(bytes)
    }

    /// Shows a diff at once, to ask about it.
    ///
    /// # Errors
    ///
    /// Stdout cannot be written.
    pub(super) fn show_at_once(&self, diff: &[u8]) -> anyhow::Result<ExitCode> {
        DiffArgs { no_pager: true, ..self.clone() }.show(diff)
    }

    fn has_colors(&self, is_terminal: bool) -> bool {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self.color {
            ColorArg::Always => true,
            ColorArg::Never => false,
            ColorArg::Auto => {
                let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                is_terminal && !is_set("NO_COLOR") && !is_dumb
            }
        }
    }
}

/// Prints bytes on stdout. A closed pipe needs no message.
///
/// # Errors
///
/// Stdout cannot be written.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::FAILURE),
        written => written.context("cannot write to stdout").map(|()| ExitCode::SUCCESS),
    }
}

/// Shows bytes in a pager. Returns false if there is none.
fn page(bytes: &[u8]) -> anyhow::Result<bool> {
    let named = VARIABLES.iter().find_map(std::env::var_os);
    let mut pager = match named {
        Some(pager) if pager.is_empty() || pager == "cat" => return Ok(false),
        Some(pager) => {
            let mut shell = Command::new("sh");
            shell.args([OsString::from("-c"), pager]);
            shell
        }
        None => Command::new(DEFAULT),
    };
    if std::env::var_os("LESS").is_none() {
        pager.env("LESS", LESS_OPTIONS);
    }
    // The pager decides what Ctrl-C does. Afterwards it ends this process, as usual.
    let has_ended = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(Signal::INT.as_raw(), Arc::clone(&has_ended))
        .context("cannot handle signals")?;
    let spawned = pager.stdin(Stdio::piped()).spawn();
    let ended = spawned.map(|mut child| {
        if let Some(mut stdin) = child.stdin.take() {
            // The reader may end the pager before it has read everything.
            let _ = stdin.write_all(bytes);
        }
        child.wait()
    });
    has_ended.store(true, Ordering::SeqCst);
    Ok(ended.is_ok())
}
