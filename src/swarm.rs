//! Reading a swarm in this process: the values that a Rust program works with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::cli::in_process::{Stores, not_searchable, path_message, read_file};
use crate::error::Error as ReadError;
use crate::fuse::{self, MountAccess};
use crate::name::printable;
use crate::query::grep::{GrepOptions, GrepQuery};
use crate::query::search::{SearchOptions, SearchQuery};
use crate::query::{AnswerPage, FileQuery};
use crate::text::budget::Budget;
use crate::tree::{NodeKind, Symlinks, Tree};

const INDEX: &str = "index.json";
const SUMMARY: &str = "summary";

/// Reason why a swarm could not be read. The text names the path or the argument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The view has no such worker, run or file: it is absent or belongs to another owner.
    #[error("{0}")]
    NotFound(String),
    /// An argument cannot be used, such as a regex that does not parse.
    #[error("{0}")]
    Invalid(String),
    /// A store cannot be opened or read.
    #[error("{0}")]
    Unreadable(String),
    /// The directory tree cannot be mounted.
    #[error("cannot mount {directory}: {source}", directory = .directory.display())]
    Mount {
        /// The place for the mount.
        directory: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl Error {
    fn at_path(path: &[u8], error: &ReadError) -> Error {
        let text = path_message(path, error);
        match error.is_miss() || error.is_not_found() {
            true => Error::NotFound(text),
            false => Error::Unreadable(text),
        }
    }
}

/// Opens everything in the store at `path`. [`OpenOptions`] opens several, or one owner's part.
///
/// # Errors
///
/// [`Error::Unreadable`] if `path` is not a store, or cannot be read.
pub fn open(path: impl Into<PathBuf>) -> Result<Swarm, Error> {
    OpenOptions::new().store(path).open()
}

/// The stores to open, and the part of them that exists in the view.
///
/// Without a store, the one that the command line would read is opened: that of `$SWARMLET_STORE`,
/// the nearest one from the current directory upwards, or the sessions of known agent programs.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let store = folder.path().join("swarm");
/// # swarmletfs::write::Store::init(&store)?;
/// let swarm = swarmletfs::OpenOptions::new().store(store).owner("alice").open()?;
/// assert!(swarm.workers()?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    stores: Vec<PathBuf>,
    owner: Option<String>,
    run: Option<String>,
    max_time: Option<Duration>,
}

impl OpenOptions {
    /// Creates options that open the default store with all workers.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Adds a store: a directory of workers, or of sessions of an agent program.
    pub fn store(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.stores.push(path.into());
        self
    }

    /// Shows the workers of this owner only.
    pub fn owner(mut self, id: impl Into<String>) -> OpenOptions {
        self.owner = Some(id.into());
        self
    }

    /// Shows the workers of this run only.
    pub fn run(mut self, id: impl Into<String>) -> OpenOptions {
        self.run = Some(id.into());
        self
    }

    /// Bounds the time that a generated text may take. It then says what is missing. Without a
    /// bound, texts are complete.
    pub fn max_time(mut self, time: Duration) -> OpenOptions {
        self.max_time = Some(time);
        self
    }

    /// Opens the stores.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if there is no store, or one cannot be read.
    pub fn open(self) -> Result<Swarm, Error> {
        let fail = |error: anyhow::Error| Error::Unreadable(format!("{error:#}"));
        let stores = Stores::find(self.stores, self.owner.as_deref(), self.run.as_deref());
        let stores = stores.map_err(fail)?;
        let tree = stores.open(self.max_time).map_err(fail)?;
        Ok(Swarm { tree: Arc::new(tree), stores: stores.paths().into() })
    }
}

/// A view of stores: what `swarmletfs mount` with the same options shows. Clones are cheap and
/// share caches. Each method sees what was written before its call.
#[derive(Clone)]
pub struct Swarm {
    tree: Arc<Tree>,
    stores: Arc<[PathBuf]>,
}

impl Swarm {
    /// Returns the absolute paths of the stores.
    pub fn stores(&self) -> &[PathBuf] {
        &self.stores
    }

    /// Returns all workers, sorted by id.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a store cannot be read.
    pub fn workers(&self) -> Result<Vec<Worker>, Error> {
        self.workers_in(b"workers")
    }

    /// Returns the worker with this id, or the only one whose id begins so.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is none, [`Error::Unreadable`] if there are several.
    pub fn worker(&self, id: impl AsRef<[u8]>) -> Result<Worker, Error> {
        let path = self.resolve(&join(b"workers", id.as_ref())?)?;
        Ok(Worker(Directory { swarm: self.clone(), path }))
    }

    /// Returns all runs, sorted by name.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a store cannot be read.
    pub fn runs(&self) -> Result<Vec<Run>, Error> {
        let entries = self.list("runs")?.into_iter();
        entries.filter(|entry| entry.kind == NodeKind::Folder).map(|e| self.run(e.name)).collect()
    }

    /// Returns the run with this id; `latest` is the newest one.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is none.
    pub fn run(&self, id: impl AsRef<[u8]>) -> Result<Run, Error> {
        let path = self.resolve(&join(b"runs", id.as_ref())?)?;
        Ok(Run(Directory { swarm: self.clone(), path }))
    }

    /// Returns the summary of all workers: one screen.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a store cannot be read.
    pub fn summary(&self) -> Result<String, Error> {
        self.text(SUMMARY.into())
    }

    /// Returns excerpts of the outputs of all workers, failures first, within `budget`.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a store cannot be read.
    pub fn evidence(&self, budget: impl Into<Budget>) -> Result<String, Error> {
        self.text(evidence_name(budget.into()))
    }

    /// Returns index.json of the swarm, which docs/index.schema.json describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a store cannot be read.
    pub fn index(&self) -> Result<Map<String, Value>, Error> {
        self.json(INDEX.into())
    }

    /// Returns the lines of all files that match a regex, failed workers first, within `budget`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `regex` is not a regex, [`Error::Unreadable`] if a store cannot be
    /// read.
    pub fn grep(&self, regex: &str, budget: impl Into<Budget>) -> Result<String, Error> {
        self.grep_in(b".", regex, budget.into())
    }

    /// Returns the passages of all files that are most relevant to `words`, within `budget`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there are no words, [`Error::Unreadable`] if a store cannot be read.
    pub fn search(&self, words: &str, budget: impl Into<Budget>) -> Result<String, Error> {
        self.search_in(b".", words, budget.into())
    }

    /// Returns a file by its path in the tree, such as `workers/w1/summary`. Names that are made on
    /// request work, such as `grep/timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no such file, [`Error::Unreadable`] if it cannot be read.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let opened = self.tree.with_path(path, Symlinks::Follow, |place| place.leaf().open());
        let opened = opened.map_err(|error| Error::at_path(path, &error))?;
        read_file(&self.tree, opened.fh, 0, None).map_err(|error| Error::at_path(path, &error))
    }

    /// Returns the entries of a directory of the tree, sorted by name. The path of the root is
    /// empty.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no such directory, [`Error::Unreadable`] if it cannot be
    /// read.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<SwarmEntry>, Error> {
        let path = path.as_ref();
        let path = if path.is_empty() { b"." } else { path };
        let listed =
            self.tree.with_path(path, Symlinks::Follow, |place| place.leaf().list_folder());
        let listed = listed.map_err(|error| Error::at_path(path, &error))?;
        let entries = listed
            .iter()
            .map(|entry| SwarmEntry { name: entry.name.as_bytes().to_vec(), kind: entry.kind });
        Ok(entries.collect())
    }

    /// Mounts the tree read-only at an empty directory. It stays until it is unmounted, as by
    /// `umount`, or this process ends.
    ///
    /// It needs `/dev/fuse`, and `fusermount3` if this process is not root, but not libfuse.
    ///
    /// # Errors
    ///
    /// [`Error::Mount`] if the system refuses.
    pub fn mount(
        &self,
        directory: impl AsRef<Path>,
        access: MountAccess,
    ) -> Result<MountedSwarm, Error> {
        let directory = directory.as_ref();
        let session = fuse::mount(self.tree.clone(), directory, access);
        session
            .map(MountedSwarm)
            .map_err(|source| Error::Mount { directory: directory.to_owned(), source })
    }

    fn workers_in(&self, directory: &[u8]) -> Result<Vec<Worker>, Error> {
        let workers = self.list(directory)?.into_iter();
        let workers = workers.filter(|entry| entry.kind != NodeKind::File);
        workers.map(|entry| self.worker(&entry.name)).collect()
    }

    fn grep_in(&self, directory: &[u8], regex: &str, budget: Budget) -> Result<String, Error> {
        let options = GrepOptions { budget: Some(budget), ..GrepOptions::default() };
        self.answer(directory, &GrepQuery { options, regex: regex.to_owned(), under: None })
    }

    fn search_in(&self, directory: &[u8], words: &str, budget: Budget) -> Result<String, Error> {
        let options = SearchOptions { budget: Some(budget), ..SearchOptions::default() };
        self.answer(directory, &SearchQuery { options, words: words.to_owned(), under: None })
    }

    fn answer(&self, directory: &[u8], query: &impl FileQuery) -> Result<String, Error> {
        let answer = self.tree.with_path(directory, Symlinks::Follow, |place| {
            self.tree.search(place.leaf().ino, query)
        });
        let answer = answer.map_err(|error| Error::at_path(directory, &error))?;
        match answer.map(|answer| answer.page) {
            Some(AnswerPage { error: None, text, .. }) => Ok(text),
            Some(page) => Err(Error::Invalid(page.text.trim_end().to_owned())),
            None => Err(Error::NotFound(not_searchable(directory))),
        }
    }

    fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, Error> {
        let resolved = self.tree.with_path(path, Symlinks::Follow, |place| Ok(place.path()));
        resolved.map_err(|error| Error::at_path(path, &error))
    }

    fn text(&self, path: Vec<u8>) -> Result<String, Error> {
        self.read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn json(&self, path: Vec<u8>) -> Result<Map<String, Value>, Error> {
        let bytes = self.read(&path)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Unreadable(format!("{}: {error}", printable(&path))))
    }
}

/// Directory of a worker or a run.
#[derive(Clone)]
struct Directory {
    swarm: Swarm,
    path: Vec<u8>,
}

impl Directory {
    fn id(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    fn path(&self, name: impl AsRef<[u8]>) -> Vec<u8> {
        [&*self.path, name.as_ref()].join(&b'/')
    }

    fn text(&self, name: impl AsRef<[u8]>) -> Result<String, Error> {
        self.swarm.text(self.path(name))
    }

    fn index(&self) -> Result<Map<String, Value>, Error> {
        self.swarm.json(self.path(INDEX))
    }

    fn evidence(&self, budget: Budget) -> Result<String, Error> {
        self.text(evidence_name(budget))
    }
}

/// A worker of a [`Swarm`].
#[derive(Debug, Clone)]
pub struct Worker(Directory);

impl Worker {
    /// Returns the id, which may have any bytes but `/` and NUL.
    pub fn id(&self) -> &[u8] {
        self.0.id()
    }

    /// Returns the facts about the worker: its index.json, which docs/index.schema.json
    /// describes. Among them are `status`, what the worker reports of itself, and `outcome`, what
    /// its record shows.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if it was removed, [`Error::Unreadable`] if it cannot be read.
    pub fn index(&self) -> Result<Map<String, Value>, Error> {
        self.0.index()
    }

    /// Returns the summary.
    ///
    /// # Errors
    ///
    /// The errors of [`Worker::index`].
    pub fn summary(&self) -> Result<String, Error> {
        self.0.text(SUMMARY)
    }

    /// Returns excerpts of the outputs of its calls, failures first, within `budget`.
    ///
    /// # Errors
    ///
    /// The errors of [`Worker::index`].
    pub fn evidence(&self, budget: impl Into<Budget>) -> Result<String, Error> {
        self.0.evidence(budget.into())
    }

    /// Returns its changes to files as a unified diff.
    ///
    /// # Errors
    ///
    /// The errors of [`Worker::index`].
    pub fn changes(&self) -> Result<String, Error> {
        self.0.text("changes.diff")
    }

    /// Returns a file by its path in the worker's directory, as [`Swarm::read`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Swarm::read`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        self.0.swarm.read(self.0.path(path))
    }

    /// Returns the entries of its directory, or of one below it, as [`Swarm::list`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Swarm::list`].
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<SwarmEntry>, Error> {
        self.0.swarm.list(self.0.path(path))
    }

    /// Returns the lines of its files that match a regex, as [`Swarm::grep`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Swarm::grep`].
    pub fn grep(&self, regex: &str, budget: impl Into<Budget>) -> Result<String, Error> {
        self.0.swarm.grep_in(&self.0.path, regex, budget.into())
    }

    /// Returns the passages of its files that are most relevant to `words`, as [`Swarm::search`]
    /// does.
    ///
    /// # Errors
    ///
    /// The errors of [`Swarm::search`].
    pub fn search(&self, words: &str, budget: impl Into<Budget>) -> Result<String, Error> {
        self.0.swarm.search_in(&self.0.path, words, budget.into())
    }
}

/// A run of a [`Swarm`]: workers that belong together.
#[derive(Debug, Clone)]
pub struct Run(Directory);

impl Run {
    /// Returns the name of its directory: the id, in which unusual bytes are `%XX`.
    pub fn id(&self) -> &[u8] {
        self.0.id()
    }

    /// Returns its workers, sorted by id.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the run is gone, [`Error::Unreadable`] if it cannot be read.
    pub fn workers(&self) -> Result<Vec<Worker>, Error> {
        self.0.swarm.workers_in(&self.0.path("workers"))
    }

    /// Returns index.json of the run.
    ///
    /// # Errors
    ///
    /// The errors of [`Run::workers`].
    pub fn index(&self) -> Result<Map<String, Value>, Error> {
        self.0.index()
    }

    /// Returns its summary: one screen.
    ///
    /// # Errors
    ///
    /// The errors of [`Run::workers`].
    pub fn summary(&self) -> Result<String, Error> {
        self.0.text(SUMMARY)
    }

    /// Returns excerpts of the outputs of its workers, failures first, within `budget`.
    ///
    /// # Errors
    ///
    /// The errors of [`Run::workers`].
    pub fn evidence(&self, budget: impl Into<Budget>) -> Result<String, Error> {
        self.0.evidence(budget.into())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.path))
    }
}

/// An entry of a directory of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwarmEntry {
    /// The name, which may have any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// The type of the entry.
    pub kind: NodeKind,
}

/// A tree that is mounted. Dropping this value leaves it mounted.
pub struct MountedSwarm(fuse::Session);

impl MountedSwarm {
    /// Waits up to `limit` until the tree is unmounted. Returns true if it is.
    pub fn has_ended(&self, limit: Duration) -> bool {
        self.0.has_ended(limit)
    }
}

fn evidence_name(budget: Budget) -> Vec<u8> {
    format!("evidence.{}.txt", budget.name()).into_bytes()
}

/// Returns the path of `name` in a directory of the tree.
fn join(directory: &[u8], name: &[u8]) -> Result<Vec<u8>, Error> {
    if name.is_empty() || name.contains(&b'/') {
        return Err(Error::Invalid(format!("{}: not an id", printable(name))));
    }
    Ok([directory, name].join(&b'/'))
}
