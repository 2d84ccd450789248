//! Options of the commands that write, the store that they open, and options that describe a new
//! worker.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Map, Value};

use super::discover::{self, workspace_store};
use super::exit::{self, UsageError};
pub(super) use super::sizes::parse_size;
use super::spool::SpoolSession;
use super::terminal::{display_path, print_message};
use crate::approval::Merging;
use crate::store::is_object_url;
use crate::trace::KnownFormat;
use swarmletfs_record::write::{Durability, Error, NewWorker, Store, StoreOptions, Worker};

/// Environment variable with the id of the worker that a command belongs to.
pub(super) const WORKER_VARIABLE: &str = "SWARMLET_WORKER";

pub(super) const STORE_VARIABLE: &str = "SWARMLET_STORE";

/// Environment variable with the maximum size of a spool.
const SPOOL_VARIABLE: &str = "SWARMLETFS_SPOOL_MAX";

/// Default of the maximum size of a spool, in bytes.
const SPOOL_MAX: u64 = 4 << 30;

/// Mode of the folder of the stores of workspaces.
const OWN_FOLDER: u32 = 0o700;

/// Options of every command that writes to a store.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct WriteArgs {
    /// The store to write to: a folder, or the URL of an object store, such as
    /// s3://BUCKET/PREFIX [default: $SWARMLET_STORE, $SWARMLET_DATA_PATH, or the nearest store from
    /// the current folder upwards]
    #[arg(long, value_name = "STORE")]
    pub(super) store: Option<PathBuf>,

    /// Maximum size of the files that wait to be uploaded to an object store: bytes, optionally
    /// with k, M or G [default: $SWARMLETFS_SPOOL_MAX, or 4G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spool_max: Option<u64>,

    /// Do not wait until changes are on disk: faster, but the last ones are lost if the machine
    /// stops
    #[arg(long)]
    no_sync: bool,

    /// Maximum size of the log of changes; the oldest files are removed: bytes, optionally with k,
    /// M or G [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) audit_max: Option<u64>,

    /// Print no messages but errors
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl WriteArgs {
    pub(super) fn for_store(path: PathBuf) -> WriteArgs {
        WriteArgs { store: Some(path), ..WriteArgs::default() }
    }

    /// Opens the store and calls `change` with it. Afterwards prints the problems that did not
    /// prevent a change, also if another one failed.
    ///
    /// # Errors
    ///
    /// There is no store, it cannot be opened for writing, or `change` fails.
    pub(super) fn with_store<T>(
        &self,
        change: impl FnOnce(&Store) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        survive_size_limits()?;
        let path = self.find()?;
        if !is_object_url(&path) {
            return self.change_store(&path, self.options(), change);
        }
        let spool = SpoolSession::begin(&path, self.spool_max()?, self.quiet)?;
        let options = self.options().space(spool.space());
        let options = options.check_new_workers(spool.check_new_workers());
        let changed = self.change_store(&spool.store_path(), options, change);
        let changed = changed.map_err(|error| spool.explain(error));
        spool.finish();
        changed
    }

    /// Returns the maximum size of a spool, in bytes.
    ///
    /// # Errors
    ///
    /// The variable has no size: a usage error.
    fn spool_max(&self) -> anyhow::Result<u64> {
        let variable = std::env::var_os(SPOOL_VARIABLE).filter(|value| !value.is_empty());
        match (self.spool_max, variable) {
            (Some(size), _) => Ok(size),
            (None, None) => Ok(SPOOL_MAX),
            (None, Some(value)) => parse_size(&value.to_string_lossy()).map_err(|reason| {
                UsageError(format!("cannot use ${SPOOL_VARIABLE}: {reason}")).into()
            }),
        }
    }

    fn change_store<T>(
        &self,
        path: &Path,
        options: StoreOptions,
        change: impl FnOnce(&Store) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let store = options.open(path).map_err(into_cli_error)?;
        let changed = change(&store);
        if !self.quiet {
            store.take_warnings().iter().for_each(|warning| print_message(warning));
        }
        changed
    }

    /// Returns the URL of the store, if it is an object store.
    ///
    /// # Errors
    ///
    /// There is no store, or several were found.
    pub(super) fn object_url(&self) -> anyhow::Result<Option<String>> {
        let path = self.find()?;
        Ok(is_object_url(&path).then(|| path.to_string_lossy().trim_end_matches('/').to_owned()))
    }

    fn options(&self) -> StoreOptions {
        let durability = if self.no_sync { Durability::None } else { Durability::Full };
        let mut options = StoreOptions::default().durability(durability);
        if let Some(bytes) = self.audit_max {
            options = options.audit_max(bytes);
        }
        if let Some(worker) = current_worker() {
            options = options.role(format!("worker:{}", worker.to_string_lossy()));
        }
        options
    }

    /// Returns these options with the absolute path of the store for a command that runs in
    /// `workspace`. If there is no store, makes the one of the workspace. Prints the path, unless
    /// the user named it.
    ///
    /// # Errors
    ///
    /// Several stores were found, or none can be made.
    pub(super) fn resolved(&self, workspace: &Path) -> anyhow::Result<WriteArgs> {
        let path = match &self.store {
            Some(store) => store.clone(),
            None => self.find_or_make(workspace)?,
        };
        // If it does not exist, opening it says so.
        let store = Some(std::fs::canonicalize(&path).unwrap_or(path));
        Ok(WriteArgs { store, ..self.clone() })
    }

    fn find(&self) -> anyhow::Result<PathBuf> {
        match &self.store {
            Some(store) => Ok(store.clone()),
            None => find_store(&mut |message| self.inform(message)),
        }
    }

    fn find_or_make(&self, workspace: &Path) -> anyhow::Result<PathBuf> {
        for folder in [&*current_folder()?, workspace] {
            if let Some(store) = find_from(folder, &mut |message| self.inform(message))? {
                return Ok(store);
            }
        }
        let shown = display_path(workspace);
        let path = workspace_store(workspace).with_context(|| {
            format!(
                "cannot make a store for {shown}: neither $XDG_STATE_HOME nor $HOME is set; set \
                 one, or give a store with `--store DIR`"
            )
        })?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(OWN_FOLDER).create(folder).with_context(|| {
            format!("cannot make {}; give a store with `--store DIR`", display_path(folder))
        })?;
        Store::init(&path)?;
        self.inform(&format!(
            "made the store {}; commands in {shown} find it",
            display_path(&path)
        ));
        Ok(path)
    }

    fn inform(&self, message: &str) {
        if !self.quiet {
            print_message(message);
        }
    }
}

/// Returns the store to write to if none is named on the command line. Calls `note` with its path
/// and the reason for the choice, unless a variable names it.
///
/// # Errors
///
/// There is no store, or several were found.
pub(super) fn find_store(note: &mut dyn FnMut(&str)) -> anyhow::Result<PathBuf> {
    let current = current_folder()?;
    match find_from(&current, note)? {
        Some(store) => Ok(store),
        None => Err(discover::no_store(&environment(&current)).into()),
    }
}

fn current_folder() -> anyhow::Result<PathBuf> {
    std::env::current_dir()
        .context("the current folder does not exist any more: change to another one")
}

/// Returns the environment of a search for a store to write to. Sessions of programs are none.
fn environment(folder: &Path) -> discover::Environment<'_> {
    discover::Environment::new(folder, KnownFormat::by_name("swarmlet"))
}

fn find_from(folder: &Path, note: &mut dyn FnMut(&str)) -> anyhow::Result<Option<PathBuf>> {
    let Some(chosen) = discover::find(&[], &[], &environment(folder))? else { return Ok(None) };
    if !chosen.are_named {
        chosen.messages().iter().for_each(|message| note(message));
    }
    Ok(chosen.stores.into_iter().next().map(|store| store.path))
}

/// Makes a write beyond a file size limit (ulimit -f) fail as on a full disk. By default, it ends
/// the process.
///
/// # Errors
///
/// The signal cannot be handled.
pub(super) fn survive_size_limits() -> anyhow::Result<()> {
    let received = Arc::new(AtomicBool::new(false));
    let registered = signal_hook::flag::register(Signal::XFSZ.as_raw(), received);
    registered.map(drop).context("cannot handle signals")
}

/// Returns the id in [`WORKER_VARIABLE`], unless it is empty.
pub(super) fn current_worker() -> Option<OsString> {
    std::env::var_os(WORKER_VARIABLE).filter(|id| !id.is_empty())
}

/// Returns `id`, or else the id in [`WORKER_VARIABLE`].
///
/// # Errors
///
/// Neither is given: a usage error.
pub(super) fn named_worker(id: Option<&OsString>) -> anyhow::Result<OsString> {
    id.cloned().or_else(current_worker).ok_or_else(|| {
        let message = format!(
            "no worker is named; give its ID, or set ${WORKER_VARIABLE}: \
             export {WORKER_VARIABLE}=$(swarmletfs worker create)"
        );
        UsageError(message).into()
    })
}

/// Opens the worker `id`, or else the one of [`WORKER_VARIABLE`].
///
/// # Errors
///
/// No worker is named, or it cannot be opened.
pub(super) fn open_worker(store: &Store, id: Option<&OsString>) -> anyhow::Result<Worker> {
    store.worker(named_worker(id)?.as_bytes()).map_err(into_cli_error)
}

/// Converts an error of a change; a value that cannot be used is a usage error.
pub(super) fn into_cli_error(error: Error) -> anyhow::Error {
    match error {
        Error::Invalid { .. } => UsageError(error.to_string()).into(),
        error => error.into(),
    }
}

/// The path that stands for stdin.
pub(super) const STDIN: &str = "-";

/// Maximum size of a text in a file, in bytes. Callers may refuse shorter ones.
const TEXT_MAX: u64 = 2 << 20;

/// Reads a text from the file `path`, or from stdin if that is [`STDIN`].
///
/// # Errors
///
/// The file cannot be read, is not UTF-8, or has more than 2 MiB.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let size = if path == Path::new(STDIN) {
        io::stdin().lock().take(TEXT_MAX + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(TEXT_MAX + 1).read_to_end(&mut bytes))
    };
    let size = size.with_context(|| format!("cannot read {}", display_path(path)))?;
    // Checked before the encoding: the limit can be in the middle of a character.
    if size as u64 > TEXT_MAX {
        bail!("cannot use {}: it has more than 2 MiB; try a shorter text", display_path(path));
    }
    String::from_utf8(bytes).map_err(|_| {
        anyhow!("cannot use {}: it is not UTF-8; try to convert it", display_path(path))
    })
}

/// Reads all of stdin.
///
/// # Errors
///
/// It cannot be read, or has more than `max` bytes, for which `cure` is the remedy.
pub(super) fn read_stdin(max: u64, cure: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(max + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
    if bytes.len() as u64 > max {
        let text = format!("cannot use stdin: it has more than {} MiB; try {cure}", max >> 20);
        return Err(UsageError(text).into());
    }
    Ok(bytes)
}

/// Prints `text` to stdout, or `value` as JSON if `as_json`; returns the exit code.
pub(super) fn print(as_json: bool, text: &str, value: &impl Serialize) -> ExitCode {
    let line = if as_json { serde_json::to_string(value).unwrap_or_default() } else { text.into() };
    let mut out = io::stdout().lock();
    let printed = if line.is_empty() { Ok(()) } else { writeln!(out, "{line}") };
    exit::from_write(printed.and_then(|()| out.flush()))
}

/// The way with a file that both a worker and others changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MergeWay {
    /// Contradictions are conflicts, and nothing is changed
    Clean,
    /// Both sides of a contradiction are kept, between markers
    Markers,
}

impl MergeWay {
    pub(super) fn merging(way: Option<MergeWay>) -> Merging {
        match way {
            None => Merging::No,
            Some(MergeWay::Clean) => Merging::Clean,
            Some(MergeWay::Markers) => Merging::Markers,
        }
    }
}

/// Facts about a worker that are known at its start, besides its task.
#[derive(Debug, Clone, Args)]
pub(super) struct WorkerArgs {
    /// The id; taken ids are refused [default: made from the time and the task]
    #[arg(long, value_name = "ID")]
    pub(super) id: Option<String>,

    /// The run that the worker belongs to
    #[arg(long, value_name = "ID")]
    run: Option<String>,

    /// The worker's job in its run
    #[arg(long, value_name = "ID")]
    job: Option<String>,

    /// The owner, for views of one owner
    #[arg(long, value_name = "ID")]
    owner: Option<String>,

    /// The worker that starts this one
    #[arg(long, value_name = "ID")]
    parent: Option<String>,

    /// The kind of task
    #[arg(long = "type", value_name = "WORD")]
    task_type: Option<String>,

    /// The language model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// A tag; can be given several times
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
}

impl WorkerArgs {
    /// Returns true if a worker with this metadata has the owner and the run of these options.
    pub(super) fn describes(&self, metadata: &Map<String, Value>) -> bool {
        let is_given = |key: &str, given: &Option<String>| match given {
            Some(given) => metadata.get(key).and_then(Value::as_str) == Some(given),
            None => true,
        };
        is_given("owner_id", &self.owner) && is_given("run_id", &self.run)
    }

    /// Takes the facts of an earlier worker that are not given.
    pub(super) fn inherit(&mut self, metadata: &Map<String, Value>) {
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        for (key, value) in
            [("owner_id", &mut self.owner), ("run_id", &mut self.run), ("job_id", &mut self.job)]
        {
            *value = value.take().or_else(|| text(key));
        }
    }

    /// Makes this a worker that goes on for `previous`, with the id `next` unless one is given.
    pub(super) fn continue_as(&mut self, previous: &str, next: Option<String>) {
        self.id = self.id.take().or(next);
        self.parent = self.parent.take().or_else(|| Some(previous.to_owned()));
    }

    /// Returns a new worker for `task` with the values of these options.
    pub(super) fn describe(&self, task: impl Into<String>) -> NewWorker {
        type Setter = fn(NewWorker, String) -> NewWorker;
        let given: [(&Option<String>, Setter); 7] = [
            (&self.id, NewWorker::id),
            (&self.run, NewWorker::run),
            (&self.job, NewWorker::job),
            (&self.owner, NewWorker::owner),
            (&self.parent, NewWorker::parent),
            (&self.task_type, NewWorker::task_type),
            (&self.model, NewWorker::model),
        ];
        let given = given.into_iter().filter_map(|(value, set)| Some((value.clone()?, set)));
        let new = given.fold(NewWorker::new(task), |new, (value, set)| set(new, value));
        self.tags.iter().fold(new, NewWorker::tag)
    }
}
