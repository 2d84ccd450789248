//! A store together with the format of its traces, as named on the command line or found by itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::watched::most_believed;
use crate::cache::{DiskCache, Key, key};
use crate::error::{Error, Result};
use crate::model::{SkipReason, SkipReport};
use crate::name::{RelPath, printable};
use crate::store::{Disk, Entry, File, Meta, Store, Time, Unshared, Watch, is_local};
use crate::trace::{ClaudeCode, Detection, Format, Swarmlet};

/// A store and how to read it.
pub struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) outputs: Option<Arc<dyn Store>>,
    /// Where outputs stored out of band were looked for and there was no folder.
    no_outputs: Vec<PathBuf>,
    pub(super) format: Box<dyn Format>,
    /// Whether hard links are known not to lead from one owner to another.
    hard_links: bool,
    /// True if files with several hard links are hidden: the store is read for one owner.
    hides_links: bool,
    /// Whether nobody but this machine changes what it holds, once that was asked.
    local: OnceLock<bool>,
    /// Where the format keeps what it read.
    cache: Option<Arc<DiskCache>>,
    /// Where the words of its workers are kept.
    index: Option<Arc<DiskCache>>,
}

/// Why a folder cannot be read as a store of traces.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be opened.
    #[error("cannot open the store {}: {}", shown(.path), reason(.error))]
    Open {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        error: Error,
    },
    /// It lies in a mount of this program.
    #[error("cannot use {} as a store: it is a swarmletfs mount; give the store behind it", shown(.0))]
    OwnMount(PathBuf),
    /// It holds one worker's files.
    #[error("{} is one worker, not a store of workers; give the folder that holds it: {}", shown(.0), shown(.0.parent().unwrap_or(.0)))]
    OneWorker(PathBuf),
    /// It holds nothing that is known.
    #[error("no workers in {}: expected folders with a metadata.json or a tool_calls/, there or in its workers/, or transcripts of Claude Code{}", shown(.path), not_followed(.passed))]
    NoWorkers {
        /// The folder.
        path: PathBuf,
        /// What lies there and is no worker.
        passed: SkipReport,
    },
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

fn reason(error: &Error) -> String {
    match error {
        Error::NotFound => "there is no such folder (name one that is there with --store)".into(),
        Error::NotADirectory => "it is not a folder (a store is a folder of workers)".into(),
        other => other.to_string(),
    }
}

/// What may lead to the workers that are missed, in parentheses.
fn not_followed(passed: &SkipReport) -> String {
    let named = |reason, what| {
        let names: Vec<String> = passed.entries(reason).examples.keys().map(RelPath::display).collect();
        if names.is_empty() { String::new() } else { format!(" ({what}: {})", names.join(", ")) }
    };
    named(SkipReason::Link, "links are not followed")
        + &named(SkipReason::ForeignMount, "other file systems are not entered")
}

/// Where outputs lie that were stored out of band: in the store, or beside it.
const OUTPUTS: [&str; 2] = ["tool_outputs", "../tool_outputs"];

impl Source {
    /// Opens the folder `path` as a store and finds the format of its traces by looking. An empty folder is a store
    /// whose swarm has not begun.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
        let store = Disk::open(path).map_err(failed)?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let mut chosen = None;
        for format in formats() {
            match format.detect(&store).map_err(failed)? {
                Detection::Workers | Detection::Empty => {
                    chosen = Some(format);
                    break;
                }
                Detection::OneWorker => return Err(SourceError::OneWorker(path.to_path_buf())),
                Detection::Other => {}
            }
        }
        let Some(format) = chosen else {
            let passed = Swarmlet::default().find_workers(&store).map_err(failed)?.skipped;
            return Err(SourceError::NoWorkers { path: path.to_path_buf(), passed });
        };
        // A root of its own: the store's root never reaches beyond itself.
        let mut no_outputs = Vec::new();
        let outputs = OUTPUTS.iter().map(|folder| path.join(folder)).find_map(|folder| {
            let found = Disk::open_found(&folder).ok();
            if found.is_none() {
                no_outputs.push(folder);
            }
            found
        });
        let outputs = outputs.map(|outputs| Arc::new(outputs) as Arc<dyn Store>);
        Ok(Source { no_outputs, format, ..Source::over(Arc::new(store), outputs) })
    }

    /// A worker artifact store that is open already, with the store of its stored-out outputs.
    pub fn over(store: Arc<dyn Store>, outputs: Option<Arc<dyn Store>>) -> Source {
        let format = Box::new(Swarmlet::default());
        let local = OnceLock::new();
        let (hard_links, hides_links) = (false, false);
        Source {
            store,
            outputs,
            no_outputs: Vec::new(),
            format,
            hard_links,
            hides_links,
            local,
            cache: None,
            index: None,
        }
    }

    /// The same store, its traces being of this format.
    pub fn read_as(self, format: Box<dyn Format>) -> Source {
        Source { format, ..self }
    }

    /// The same store, of which nothing was read yet; what takes long to read of it is kept in `cache`.
    pub fn keeping_in(mut self, cache: Arc<DiskCache>) -> Source {
        self.format.set_disk_cache(cache.clone());
        Source { cache: Some(cache), ..self }
    }

    /// The same store; the words of its workers are kept in `index` for the next start.
    pub fn indexed_in(self, index: Arc<DiskCache>) -> Source {
        Source { index: Some(index), ..self }
    }

    /// Says that no hard link in this store leads from one owner to another, as in one that is kept as hard-linked
    /// backups: a view of one owner then shows files that have several, which it does not otherwise.
    pub fn admitting_hard_links(self) -> Source {
        Source { hard_links: true, ..self }
    }

    /// The same as a view of one owner reads it: a file with more than one hard link may be another owner's.
    pub(crate) fn of_one_owner(self) -> Source {
        if self.hard_links {
            return self;
        }
        let unshared = |store| Arc::new(Unshared::new(store)) as Arc<dyn Store>;
        Source { store: unshared(self.store), outputs: self.outputs.map(unshared), hides_links: true, ..self }
    }

    /// Where things are kept for the next start.
    pub(super) fn cache(&self) -> Option<&Arc<DiskCache>> {
        self.cache.as_ref()
    }

    /// Where words are kept for the next start.
    pub(super) fn index(&self) -> Option<&Arc<DiskCache>> {
        self.index.as_ref()
    }

    /// Returns what decides which bytes are read of this store.
    pub(super) fn scope(&self) -> ReadScope {
        ReadScope {
            format: self.format.name(),
            store: StoreId::new(&*self.store),
            outputs: self.outputs.as_deref().map(StoreId::new),
            hides_links: self.hides_links,
        }
    }

    /// Whether no more is to be expected of a worker.
    pub(super) fn is_settled(&self, entry: &super::Entry, freshness: super::Freshness) -> bool {
        self.format.finished_is_final() && !entry.is_moving() && !entry.is_stirred(freshness.finished)
    }

    /// The folders on disk beneath which all of it lies that is read.
    pub(super) fn roots(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stores = [Some(&self.store), self.outputs.as_ref()].into_iter().flatten();
        stores.filter_map(|store| store.root()).chain(self.cache.iter().chain(&self.index).map(|cache| cache.root()))
    }

    /// How many folders of its finished workers can be watched; `None` where its file system does not tell of changes by others. Errors: the
    /// system watches nothing for this process.
    pub fn watchable(&self) -> Result<Option<usize>> {
        if self.is_local() { Watch::new().map(|watch| Some(most_believed(&watch))) } else { Ok(None) }
    }

    /// Whether changes of a worker's folder can be told, and tell of the worker.
    pub(super) fn tells(&self) -> bool {
        self.format.finished_is_final() && self.is_local()
    }

    /// Whether nobody but this machine changes what it holds: all of it lies on one mount.
    pub(super) fn is_local(&self) -> bool {
        if let Some(local) = self.local.get() {
            return *local;
        }
        // What cannot be told just now is asked again.
        let Ok(place) = self.store.place(&RelPath::root()) else { return false };
        *self.local.get_or_init(|| place.is_some_and(|place| is_local(place.as_fd())))
    }

    /// Whether opening it again would find another folder in its place, or outputs where there were none.
    pub(super) fn is_replaced(&self) -> bool {
        self.store.is_replaced()
            || self.outputs.as_ref().is_some_and(|outputs| outputs.is_replaced())
            || self.no_outputs.iter().any(|folder| Disk::open_found(folder).is_ok())
    }

    /// How its traces are read.
    pub fn format(&self) -> &dyn Format {
        &*self.format
    }
}

/// What decides which bytes are read of a store. Results of two views may be shared only where all of it is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadScope {
    format: &'static str,
    store: StoreId,
    /// The folder of outputs stored out of band.
    outputs: Option<StoreId>,
    hides_links: bool,
}

/// A store as the next start finds it again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoreId {
    path: String,
    /// Inode number and time of birth of its folder. Device numbers are left out: some change with every boot.
    folder: Option<(u64, Time)>,
}

impl StoreId {
    fn new(store: &dyn Store) -> StoreId {
        let folder = store.identity().ok().map(|identity| (identity.ino, identity.born));
        StoreId { path: store.describe(), folder }
    }

    fn key(&self) -> Key {
        let (ino, born) = self.folder.unwrap_or_default();
        let is_known = u8::from(self.folder.is_some());
        let numbers = [&[is_known][..], &ino.to_le_bytes(), &born.secs.to_le_bytes(), &born.nanos.to_le_bytes()];
        key("store", &[self.path.as_bytes(), &numbers.concat()])
    }
}

impl ReadScope {
    /// Returns the part of a cache key that stands for this scope.
    pub(super) fn key(&self) -> Key {
        let outputs = self.outputs.as_ref().map(StoreId::key);
        let outputs = outputs.as_ref().map(<[u8; 16]>::as_slice).unwrap_or_default();
        key("scope", &[self.format.as_bytes(), &self.store.key(), outputs, &[u8::from(self.hides_links)]])
    }
}

/// The formats that are known, in the order they are looked for.
fn formats() -> [Box<dyn Format>; 2] {
    [Box::new(Swarmlet::default()), Box::new(ClaudeCode::default())]
}

/// Returns true if `path` is or lies in a mount of this program, which is never used as a store.
pub fn is_own_mount(path: &Path) -> bool {
    Disk::open(path).is_ok_and(|store| store.is_in_own_mount())
}

/// Whether `path` is surely a store: it holds at least one worker. Used where nobody named it.
pub fn looks_like_store(path: &Path) -> bool {
    holds_workers(path, &Swarmlet::default())
}

/// Whether `path` surely holds Claude Code's sessions.
pub fn looks_like_sessions(path: &Path) -> bool {
    holds_workers(path, &ClaudeCode::default())
}

fn holds_workers(path: &Path, format: &dyn Format) -> bool {
    Disk::open(path)
        .is_ok_and(|store| !store.is_in_own_mount() && matches!(format.detect(&store), Ok(Detection::Workers)))
}

/// Stands where no store is: holds nothing.
pub(super) struct NoStore;

impl Store for NoStore {
    fn describe(&self) -> String {
        "nothing".into()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_replaced(&self) -> bool {
        false
    }

    fn stat(&self, _: &RelPath) -> Result<Meta> {
        Err(Error::NotFound)
    }

    fn list(&self, _: &RelPath) -> Result<Vec<Entry>> {
        Err(Error::NotFound)
    }

    fn open(&self, _: &RelPath) -> Result<Box<dyn File>> {
        Err(Error::NotFound)
    }

    fn enter(&self, _: &RelPath) -> Result<Box<dyn Store>> {
        Err(Error::NotFound)
    }
}
