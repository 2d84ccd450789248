//! `swarmletfs ls`, `tree`, `stat`, `cat`, `grep`, `search` and `compare`: the tree without a mount, for where there is no
//! FUSE.
//!
//! The stores are opened as by `since`, the tree is made in this process, and it is read through the calls that the
//! kernel's requests become in a mount: so names, bytes, sizes, modes and times are those of a mount, and a view keeps to
//! itself what it keeps there. Here is what these commands share; each of them is a file of its own.
//!
//! One path that fails is one line on stderr and the exit code 1, and the next path is gone on with. Everything is read,
//! unless `--max-time` stops it; then the exit code is 3.

pub(super) mod cat;
pub(super) mod compare;
mod entry;
mod format;
pub(super) mod grep;
mod json;
pub(super) mod ls;
mod path_hint;
mod query;
pub(super) mod search;
pub(super) mod stat;
pub(super) mod tree;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgAction, Args};
use rustix::io::Errno;

use super::read_session::{Progress, ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::{ViewArgs, exit};
use crate::error::Error;
use crate::name::printable;
use crate::render::Budget;
use crate::tree::Tree;

/// How much is gathered before it is written, in bytes.
const BUFFER_SIZE: usize = 64 << 10;

/// Which tree is looked at: of which view, and how it was made.
#[derive(Debug, Args)]
pub(super) struct ReaderArgs {
    #[command(flatten)]
    view: ViewArgs,

    /// How large evidence.txt may be: bytes, with k or M, or tokens, as in 8000tok [default: 16000 a worker, 28000 a run or the swarm]
    #[arg(long, value_name = "SIZE", value_parser = Budget::parse)]
    budget: Option<Budget>,

    #[command(flatten)]
    time: TimeArgs,
}

/// Help without its short form, of those to whom -h is for sizes.
#[derive(Debug, Args)]
struct LongHelp {
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A tree that is looked at, and whether some path of it could not be.
pub(super) struct TreeReader {
    pub(super) tree: Tree,
    /// Where the stores lie, for who types a path of theirs.
    stores: Vec<PathBuf>,
    failed: Cell<bool>,
    session: RefCell<ReadSession>,
}

impl TreeReader {
    /// Opens the stores that `arguments` mean, and says which these are. Errors: they cannot be found or read.
    pub(super) fn open(arguments: &ReaderArgs) -> anyhow::Result<TreeReader> {
        TreeReader::open_view(&arguments.view, &arguments.time, arguments.budget)
    }

    /// Opens the stores of a view, to be read for as long as `time` says.
    fn open_view(view: &ViewArgs, time: &TimeArgs, budget: Option<Budget>) -> anyhow::Result<TreeReader> {
        let mut session = ReadSession::start(time);
        let selection = StoreSelection::from_args(view)?;
        let tree = Tree::new(session.view(&selection)?, session.settings(budget));
        Ok(TreeReader { tree, stores: selection.stores, failed: Cell::new(false), session: session.into() })
    }

    /// Returns where the command prints.
    fn out(&self) -> Output {
        Output::new(self.session.borrow_mut().take_progress())
    }

    /// Notes that lists of workers are incomplete if there was no time to find all workers.
    fn note_unread(&self) {
        self.session.borrow().note_unread(self.tree.unread_sessions());
    }

    /// Returns true if an answer was incomplete for lack of time.
    fn is_incomplete(&self) -> bool {
        self.session.borrow().is_incomplete()
    }

    /// Says that `path`, as it was typed or reached, cannot be read, and why. The command goes on and fails in the end.
    pub(super) fn fail(&self, path: &[u8], error: &Error) {
        self.failed.set(true);
        let cure = if is_absence(error) { path_hint::suggest(self, path) } else { None };
        let cure = cure.map(|cure| format!(": {cure}")).unwrap_or_default();
        let shown = if path.is_empty() { "''".to_owned() } else { printable(path) };
        print_message(&format!("{shown}: {}{cure}", sentence(error)));
    }

    /// Notes that something could not be read which was said elsewhere.
    pub(super) fn note_failure(&self) {
        self.failed.set(true);
    }

    /// The exit code, once `written` says how it went to write on stdout. A reader that has had enough is no failure to
    /// speak of. Errors: stdout cannot be written.
    pub(super) fn end(&self, written: io::Result<()>) -> anyhow::Result<ExitCode> {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
            Ok(()) if self.failed.get() => Ok(ExitCode::FAILURE),
            written => Ok(self.session.borrow().exit_code(exit::from_write(written))),
        }
    }
}

/// What is asked for, the root where nothing is.
pub(super) fn paths(typed: &[OsString]) -> Vec<&[u8]> {
    if typed.is_empty() { vec![b"."] } else { typed.iter().map(|path| path.as_bytes()).collect() }
}

/// `name` in the folder `path`, which is `.` or empty for the root.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        b"." | b"" => name.to_vec(),
        [.., b'/'] => [path, name].concat(),
        _ => [path, b"/", name].concat(),
    }
}

/// What is said of an error. What a client of a mount finds absent is absent here, whatever is behind it.
pub(super) fn sentence(error: &Error) -> String {
    if is_absence(error) { Error::NotFound.to_string() } else { error.to_string() }
}

fn is_absence(error: &Error) -> bool {
    error.errno() == Errno::NOENT
}

/// The standard output; what is written to it erases the line of progress.
struct ProgressStdout {
    stdout: StdoutLock<'static>,
    progress: Option<Progress>,
}

impl Write for ProgressStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.progress = None;
        self.stdout.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.progress = None;
        self.stdout.flush()
    }
}

/// Where a command prints.
struct Output {
    stdout: BufWriter<ProgressStdout>,
    /// Names move no cursor there.
    is_terminal: bool,
}

impl Output {
    fn new(progress: Option<Progress>) -> Output {
        let stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        Output { stdout: BufWriter::with_capacity(BUFFER_SIZE, ProgressStdout { stdout, progress }), is_terminal }
    }

    /// A name or a path: its bytes, or on a terminal what is safe to show of them.
    fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal { self.stdout.write_all(printable(name).as_bytes()) } else { self.stdout.write_all(name) }
    }

    /// Text of ours.
    fn text(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}
