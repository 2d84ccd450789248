//! Prints long texts as git does: in a pager on a terminal.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use rustix::process::Signal;

use super::colors::ColorArgs;
use crate::text::unified;

/// Variables that name a pager for a diff. The first one that is set counts.
const DIFF_VARIABLES: &[&str] = &["SWARMLETFS_PAGER", "GIT_PAGER", "PAGER"];
const VARIABLES: &[&str] = &["SWARMLETFS_PAGER", "PAGER"];
/// The pager if no variable names one.
const DEFAULT: &str = "less";
/// Options of less: end at once if all fits on a screen, keep colors, and clear nothing.
const LESS_OPTIONS: &str = "FRX";
/// Options of less for files of workers: their escapes are shown, so that they have no effect.
const LESS_OPTIONS_RAW: &str = "FX";

/// The option of commands with long answers.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct PagerArgs {
    /// Print everything at once, not in a pager
    #[arg(long)]
    no_pager: bool,
}

/// Options of commands that show a diff.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    color: ColorArgs,

    #[command(flatten)]
    pager: PagerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    Diff,
    /// Text without control characters of others.
    Text,
    Raw,
}

impl DiffArgs {
    /// Shows a diff: as it is, or on a terminal with colors, escaped and in a pager.
    ///
    /// # Errors
    ///
    /// Stdout cannot be written.
    pub(super) fn show(&self, diff: &[u8]) -> anyhow::Result<ExitCode> {
        let mut out = PagedStdout::new(self.pager, AnswerKind::Diff);
        let written = out.write_all(&for_terminal(diff, self.color));
        end(out.close(written))
    }

    /// Shows a diff at once, before a question about it.
    pub(super) fn show_at_once(&self, diff: &[u8]) -> anyhow::Result<ExitCode> {
        DiffArgs { pager: PagerArgs { no_pager: true }, ..self.clone() }.show(diff)
    }
}

/// Returns a diff as it is, or on a terminal with colors and escaped.
pub(super) fn for_terminal(diff: &[u8], color: ColorArgs) -> Cow<'_, [u8]> {
    let has_colors = color.are_on();
    match has_colors || io::stdout().is_terminal() {
        true => unified::paint_diff(diff, has_colors).into_bytes().into(),
        false => diff.into(),
    }
}

/// Stdout, in a pager if it is a terminal. The pager starts with the first write.
pub(super) struct PagedStdout {
    arguments: PagerArgs,
    kind: AnswerKind,
    sink: Option<OutputSink>,
}

enum OutputSink {
    Stdout(StdoutLock<'static>),
    Pager(Pager),
}

impl PagedStdout {
    pub(super) fn new(arguments: PagerArgs, kind: AnswerKind) -> PagedStdout {
        PagedStdout { arguments, kind, sink: None }
    }

    /// Ends the output and waits for the end of the pager. Returns `written`, the result of
    /// writing. A pager that a reader ended early is no error.
    pub(super) fn close(&mut self, written: io::Result<()>) -> io::Result<()> {
        let written = written.and_then(|()| self.flush());
        match (self.sink.take(), written) {
            (Some(OutputSink::Pager(_)), Err(error))
                if error.kind() == io::ErrorKind::BrokenPipe =>
            {
                Ok(())
            }
            (_, written) => written,
        }
    }

    fn sink(&mut self) -> &mut OutputSink {
        let PagedStdout { arguments, kind, sink } = self;
        sink.get_or_insert_with(|| match Pager::start(*arguments, *kind) {
            Some(pager) => OutputSink::Pager(pager),
            None => OutputSink::Stdout(io::stdout().lock()),
        })
    }
}

impl Write for PagedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.sink() {
            _ if bytes.is_empty() => Ok(0),
            OutputSink::Stdout(stdout) => stdout.write(bytes),
            OutputSink::Pager(pager) => {
                pager.stdin.as_mut().map_or(Ok(0), |stdin| stdin.write(bytes))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Some(OutputSink::Stdout(stdout)) => stdout.flush(),
            Some(OutputSink::Pager(_)) | None => Ok(()),
        }
    }
}

/// A running pager. Dropping it waits for its end.
struct Pager {
    child: Child,
    /// `None` after its end.
    stdin: Option<ChildStdin>,
    has_ended: Arc<AtomicBool>,
}

impl Pager {
    /// Starts a pager. Returns `None` if stdout is no terminal that can move its cursor, if the
    /// user wants no pager, or if none is installed.
    fn start(arguments: PagerArgs, kind: AnswerKind) -> Option<Pager> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if arguments.no_pager || is_dumb || !io::stdout().is_terminal() {
            return None;
        }
        let variables = if kind == AnswerKind::Diff { DIFF_VARIABLES } else { VARIABLES };
        let mut command = match variables.iter().find_map(std::env::var_os) {
            Some(pager) if pager.is_empty() || pager == "cat" => return None,
            Some(pager) => {
                let mut shell = Command::new("sh");
                shell.args([OsString::from("-c"), pager]);
                shell
            }
            None => Command::new(DEFAULT),
        };
        if std::env::var_os("LESS").is_none() {
            let is_raw = kind == AnswerKind::Raw;
            command.env("LESS", if is_raw { LESS_OPTIONS_RAW } else { LESS_OPTIONS });
        }
        // The pager handles Ctrl-C. Afterwards, Ctrl-C ends this process, as usual.
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends_again = Arc::clone(&has_ended);
        let signal = Signal::INT.as_raw();
        signal_hook::flag::register_conditional_default(signal, ends_again).ok()?;
        match command.stdin(Stdio::piped()).spawn() {
            Ok(mut child) => Some(Pager { stdin: child.stdin.take(), child, has_ended }),
            Err(_) => {
                has_ended.store(true, Ordering::SeqCst);
                None
            }
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

/// Prints bytes on stdout. A closed pipe needs no message.
///
/// # Errors
///
/// Stdout cannot be written.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    end(out.write_all(bytes).and_then(|()| out.flush()))
}

fn end(written: io::Result<()>) -> anyhow::Result<ExitCode> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::FAILURE),
        written => written.context("cannot write to stdout").map(|()| ExitCode::SUCCESS),
    }
}
