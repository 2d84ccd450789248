//! Shared parts of `list`, `log`, `diff`, `ls`, `tree`, `stat`, `cat`, `grep`, `search` and
//! `compare`, which read the tree without a mount.
//!
//! They open the stores as `since` does and build the tree in this process. They read it through
//! the calls that serve the kernel's requests in a mount. So names, bytes, sizes, modes and times
//! are the same as in a mount, and the view hides the same files.
//!
//! A path that fails is one message on stderr and exit code 1; the command continues with the next
//! path. With `--max-time`, an incomplete answer is exit code 3.

pub(super) mod cat;
pub(super) mod compare;
pub(super) mod cost;
mod entry;
pub(super) mod export;
pub(super) mod format;
pub(super) mod grep;
pub(super) mod json;
pub(super) mod list;
pub(super) mod ls;
pub(super) mod one_worker;
mod painted_answer;
mod path_hint;
mod query;
pub(super) mod report;
pub(super) mod search;
pub(super) mod stat;
pub(super) mod summarize;
pub(super) mod tree;

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use clap::{ArgAction, Args};
use rustix::io::Errno;

pub(super) use query::NOT_SEARCHABLE;

use self::entry::TreeEntry;
use super::colors;
use super::exit;
use super::model_args::ModelArgs;
use super::pager::{AnswerKind, PagedStdout, PagerArgs};
use super::plan::read_prices;
use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal::{ProgressLine, print_message};
use super::view_args::{self, ViewArgs};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::model::Prices;
use crate::name::printable;
use crate::route::Scope;
use crate::store::Time;
use crate::text::budget::Budget;
use crate::tree::{NodeKind, Settings, Symlinks, Tree};

const BUFFER_SIZE: usize = 64 << 10;

/// Options that select the tree and limit reading.
#[derive(Debug, Args)]
pub(super) struct ReaderArgs {
    #[command(flatten)]
    view: ViewArgs,

    /// Maximum size of evidence.txt: bytes, optionally with k or M, or tokens, as in 8000tok
    /// [default: 16000 per worker, 28000 for a run or the swarm]
    #[arg(long, value_name = "SIZE", value_parser = view_args::parse_budget)]
    budget: Option<Budget>,

    #[command(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    pager: PagerArgs,
}

/// Options that select the workers and limit reading, without a size of evidence.txt.
#[derive(Debug, Args)]
struct WorkersArgs {
    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    pager: PagerArgs,
}

/// The language model that a command may ask.
#[derive(Debug, Args)]
struct AskingArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Compute the cost of the model from the prices in this JSON file; see
    /// `swarmletfs cost --help`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
}

/// Help without its short form, for commands in which -h is `--human-readable`.
#[derive(Debug, Args)]
struct LongHelp {
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A tree to read, and whether a path of it failed.
pub(super) struct TreeReader {
    pub(super) tree: Tree,
    /// Paths of the stores, for hints on paths of the disk.
    stores: Vec<PathBuf>,
    failed: Cell<bool>,
    session: RefCell<ReadSession>,
}

impl TreeReader {
    /// Opens the stores that `arguments` select and prints which ones they are.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be found or read.
    pub(super) fn open(arguments: &ReaderArgs) -> anyhow::Result<TreeReader> {
        TreeReader::open_view(&arguments.view, &arguments.time, arguments.budget)
    }

    fn open_view(
        view: &ViewArgs,
        time: &TimeArgs,
        budget: Option<Budget>,
    ) -> anyhow::Result<TreeReader> {
        Self::open_selection(StoreSelection::from_args(view)?, time, budget)
    }

    fn open_workers(
        arguments: &WorkersArgs,
        prices: Option<Arc<Prices>>,
    ) -> anyhow::Result<TreeReader> {
        let selection = StoreSelection::from_args(&arguments.view)?;
        Self::open_with(selection, &arguments.time, |settings| Settings { prices, ..settings })
    }

    /// Opens the stores that `view` selects, with the model of `asking`.
    ///
    /// # Errors
    ///
    /// Fails if a store cannot be found or read, or the model cannot be started.
    fn open_asking(
        view: &ViewArgs,
        time: &TimeArgs,
        asking: Option<&AskingArgs>,
    ) -> anyhow::Result<TreeReader> {
        let selection = StoreSelection::from_args(view)?;
        let prose = match asking {
            Some(AskingArgs { model, prices }) => {
                let prices = read_prices(prices.as_deref())?;
                model.start(prices, || view.cache.open(&selection.stores))?
            }
            None => None,
        };
        Self::open_with(selection, time, |settings| Settings { prose, ..settings })
    }

    fn open_selection(
        selection: StoreSelection,
        time: &TimeArgs,
        budget: Option<Budget>,
    ) -> anyhow::Result<TreeReader> {
        Self::open_with(selection, time, |settings| Settings { budget, ..settings })
    }

    fn open_with(
        selection: StoreSelection,
        time: &TimeArgs,
        change: impl FnOnce(Settings) -> Settings,
    ) -> anyhow::Result<TreeReader> {
        let mut session = ReadSession::start(time);
        let settings = change(session.settings());
        let tree = Tree::new(session.view(&selection)?, settings);
        Ok(TreeReader {
            tree,
            stores: selection.stores,
            failed: Cell::new(false),
            session: session.into(),
        })
    }

    fn out(&self, pager: PagerArgs, content: AnswerKind, has_colors: bool) -> CommandOutput {
        let stdout = PagedStdout::new(pager, content);
        CommandOutput::new(stdout, has_colors, self.session.borrow_mut().take_progress())
    }

    /// Marks lists of workers as incomplete if the time did not suffice to find all workers.
    fn note_unread(&self) {
        self.session.borrow().note_unread(self.tree.view().visible().unread.len());
    }

    /// Runs `work`, which should stop when `--max-time` ends.
    fn in_time<R>(&self, work: impl FnOnce(Deadline<'_>) -> R) -> R {
        let control = self.session.borrow().control.clone();
        work(Deadline::new(&|| control.may_continue()))
    }

    fn is_incomplete(&self) -> bool {
        self.session.borrow().is_incomplete()
    }

    /// Prints the reason why `path` cannot be read. The command continues and fails at its end.
    pub(super) fn fail(&self, path: &[u8], error: &Error) {
        self.failed.set(true);
        let remedy = if is_absence(error) { path_hint::suggest(self, path) } else { None };
        let remedy = remedy.map(|remedy| format!(": {remedy}")).unwrap_or_default();
        let shown = if path.is_empty() { "''".to_owned() } else { printable(path) };
        print_message(&format!("{shown}: {}{remedy}", sentence(error)));
    }

    /// Returns the workers that `path` stands for; all without one.
    ///
    /// # Errors
    ///
    /// It stands for no workers.
    fn scope(&self, path: Option<&OsStr>) -> anyhow::Result<Scope> {
        let path = path.unwrap_or(OsStr::new(".")).as_bytes();
        let scope = self
            .tree
            .with_path(path, Symlinks::Follow, |found| self.tree.worker_scope(found.leaf().ino));
        scope.map_err(|error| {
            let (path, reason) = (printable(path), sentence(&error));
            anyhow!(
                "cannot find workers at {path}: {reason}; try a run (runs/ID) or a folder such as \
                 by/outcome/failed, of which `swarmletfs ls by` lists all"
            )
        })
    }

    /// Records a failure that was printed elsewhere.
    pub(super) fn note_failure(&self) {
        self.failed.set(true);
    }

    /// Returns the exit code; `written` is the result of writing to stdout. A closed pipe needs no
    /// message.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written.
    pub(super) fn end(&self, written: io::Result<()>) -> anyhow::Result<ExitCode> {
        self.end_output("stdout", written)
    }

    /// Like [`TreeReader::end`], after writing to `output`.
    ///
    /// # Errors
    ///
    /// Fails if `output` cannot be written.
    pub(super) fn end_output(
        &self,
        output: impl fmt::Display,
        written: io::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).with_context(|| format!("cannot write to {output}"))
            }
            Ok(()) if self.failed.get() => Ok(ExitCode::FAILURE),
            written => Ok(self.session.borrow().exit_code(exit::from_write(written))),
        }
    }
}

/// Returns the paths on the command line, or the root if there are none.
pub(super) fn paths(typed: &[OsString]) -> Vec<&[u8]> {
    if typed.is_empty() { vec![b"."] } else { typed.iter().map(|path| path.as_bytes()).collect() }
}

/// Joins `name` to the directory `path`, which is `.` or empty for the root.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        b"." | b"" => name.to_vec(),
        [.., b'/'] => [path, name].concat(),
        _ => [path, b"/", name].concat(),
    }
}

/// Returns the message for an error. Anything that is absent for clients of a mount is just "not
/// found" here, to hide its cause.
pub(super) fn sentence(error: &Error) -> String {
    if is_absence(error) { Error::NotFound.to_string() } else { error.to_string() }
}

fn is_absence(error: &Error) -> bool {
    error.errno() == Errno::NOENT && !matches!(error, Error::AmbiguousId(_))
}

/// Standard output; a write erases the progress line first.
struct ProgressStdout {
    stdout: PagedStdout,
    progress: Option<ProgressLine>,
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

struct CommandOutput {
    stdout: BufWriter<ProgressStdout>,
    is_terminal: bool,
    has_colors: bool,
    /// Time when the command began to print.
    start: SystemTime,
}

impl CommandOutput {
    fn new(stdout: PagedStdout, has_colors: bool, progress: Option<ProgressLine>) -> CommandOutput {
        CommandOutput {
            stdout: BufWriter::with_capacity(BUFFER_SIZE, ProgressStdout { stdout, progress }),
            is_terminal: io::stdout().is_terminal(),
            has_colors,
            start: SystemTime::now(),
        }
    }

    /// Writes a name or path: raw, or escaped on a terminal, so that it cannot control that.
    fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal || self.has_colors {
            self.stdout.write_all(printable(name).as_bytes())
        } else {
            self.stdout.write_all(name)
        }
    }

    /// Writes the label of an entry, in the color of its kind if there are colors.
    fn entry_name(&mut self, entry: &TreeEntry, has_failed: bool) -> io::Result<()> {
        let style = match entry.kind {
            _ if has_failed => Some(colors::FAILED),
            NodeKind::Folder => Some(colors::FOLDER),
            NodeKind::Link => Some(colors::LINK),
            NodeKind::File => None,
        };
        match style.filter(|_| self.has_colors) {
            Some(style) => self.text(&colors::painted(style, printable(&entry.label))),
            None => self.name(&entry.label),
        }
    }

    /// Renders a time in UTC, with its age on a terminal.
    fn time(&self, time: Time) -> String {
        if self.is_terminal {
            format::utc_with_age(time, self.start)
        } else {
            format::utc_seconds(time)
        }
    }

    /// Writes text that needs no escaping.
    fn text(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())
    }

    /// Ends the output and waits for the end of a pager. Returns `written`, the result of writing.
    /// A pager that a reader ended early is no error.
    fn close(&mut self, written: io::Result<()>) -> io::Result<()> {
        let written = written.and_then(|()| self.stdout.flush());
        let sink = self.stdout.get_mut();
        sink.progress = None;
        sink.stdout.close(written)
    }
}
