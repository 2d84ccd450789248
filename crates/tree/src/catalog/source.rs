//! A store together with the format of its traces, named on the command line or discovered.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::watcher::max_finished_watches;
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{SkipReason, SkipReport};
use swarmletfs_base::name::{Name, RelPath, printable_path};
use swarmletfs_base::store::{Disk, Inotify, SingleLinkStore, Store, Time, is_local};
use swarmletfs_trace::known::{self, Detected, FORMATS, alternatives, expected_contents};
use swarmletfs_trace::{Detection, Format, KnownFormat, Probe, ProbeBudget, Swarmlet};

/// Default time without a write after which an unfinished worker counts as abandoned.
pub const STALE_AFTER: Duration = Duration::from_secs(60 * 60);

/// Time between a worker's last message and a write to its files from which on the files count as
/// copies. It exceeds the difference between any two time zones, which some programs do not record.
const COPIED_AFTER: Duration = Duration::from_secs(36 * 60 * 60);

pub struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) outputs: Option<Arc<dyn Store>>,
    /// Paths where a directory of outputs stored out of band was searched for and missing.
    missing_outputs: Vec<PathBuf>,
    pub(super) format: Box<dyn Format>,
    /// The only file that is read as a transcript, or `None` for the whole store.
    file: Option<RelPath>,
    /// True if the user declared that no hard link connects two owners.
    allows_hard_links: bool,
    /// True if files with several hard links are hidden: the store is read for one owner.
    hides_links: bool,
    stale_after: Duration,
    /// True if only this machine writes to the store; computed on first use.
    local: OnceLock<bool>,
    /// Beginning of the ids of the only workers that are read; empty for all.
    id_prefix: Vec<u8>,
    cache: Option<Arc<DiskCache>>,
    index: Option<Arc<DiskCache>>,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot open the store {}: {}", printable_path(.path), reason(.error))]
    Open {
        path: PathBuf,
        /// Error of the system.
        error: Error,
    },
    #[error("cannot use {} as a store: it is a swarmletfs mount; give the store behind it", printable_path(.0))]
    OwnMount(PathBuf),
    #[error(
        "cannot use {} as a store: it is one worker; give the folder that holds it: {}",
        printable_path(.0),
        printable_path(.0.parent().unwrap_or(.0))
    )]
    OneWorker(PathBuf),
    #[error(
        "no workers in {}: expected {expected}{}{}",
        printable_path(.path),
        not_followed(.skipped),
        if *.searched_all { "" } else { UNSEARCHED },
    )]
    NoWorkers {
        path: PathBuf,
        expected: String,
        skipped: SkipReport,
        /// True if no limit ended the search for transcripts.
        searched_all: bool,
    },
    #[error("cannot use {} as a store: it is a file; expected {expected}", printable_path(.path))]
    NotATranscript {
        path: PathBuf,
        /// Description of the contents that would make it a store.
        expected: String,
    },
}

const UNSEARCHED: &str = "; it holds too many files to look at each: name its format with --format";

fn split_last(path: &Path) -> Option<(&Path, Name)> {
    Some((path.parent()?, Name::new(path.file_name()?.as_encoded_bytes()).ok()?))
}

/// Opens the directory of outputs stored out of band, which is in `path` or beside it. Also returns
/// the paths where it is missing.
fn open_outputs(path: &Path) -> (Option<Arc<dyn Store>>, Vec<PathBuf>) {
    let mut missing = Vec::new();
    // Opened as a separate root, because `..` cannot leave the store's root.
    let outputs = OUTPUTS.iter().map(|folder| path.join(folder)).find_map(|folder| {
        let opened = Disk::open_nofollow(&folder).ok();
        if opened.is_none() {
            missing.push(folder);
        }
        opened
    });
    (outputs.map(|outputs| Arc::new(outputs) as Arc<dyn Store>), missing)
}

/// Returns the format of `store`, or checks that it is the given one. `path` is the store's name in
/// errors.
fn detect_format(
    store: &dyn Store,
    path: &Path,
    format: Option<&'static KnownFormat>,
) -> Result<Box<dyn Format>, SourceError> {
    let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
    let detected = match format {
        None => known::detect(store).map_err(failed)?,
        Some(known) => match known.create().detect(store).map_err(failed)? {
            Detection::Workers | Detection::Empty => Detected::Format(known),
            Detection::OneWorker => Detected::OneWorker,
            Detection::Other => Detected::Unknown { searched_all: true },
        },
    };
    match detected {
        Detected::Format(known) => Ok(known.create()),
        Detected::OneWorker => Err(SourceError::OneWorker(path.to_path_buf())),
        Detected::Unknown { searched_all } => {
            let skipped = Swarmlet::default().find_workers(store).map_err(failed)?.skipped;
            let expected = match format {
                None => expected_contents(&FORMATS),
                Some(known) => expected_contents(&[known]),
            };
            let path = path.to_path_buf();
            Err(SourceError::NoWorkers { path, expected, skipped, searched_all })
        }
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::NotFound => "there is no such folder; name an existing one with --store".into(),
        Error::NotADirectory => "it is not a folder; name a folder of workers".into(),
        Error::Special => "it is neither a folder nor a regular file".into(),
        other => other.to_string(),
    }
}

/// Returns the symlinks and foreign mounts that may lead to the expected workers, in parentheses.
fn not_followed(skipped: &SkipReport) -> String {
    let named = |reason, what| {
        let names: Vec<String> =
            skipped.entries(reason).examples.keys().map(RelPath::display).collect();
        if names.is_empty() { String::new() } else { format!(" ({what}: {})", names.join(", ")) }
    };
    named(SkipReason::Link, "links are not followed")
        + &named(SkipReason::ForeignMount, "other file systems are not entered")
}

/// Paths of the directory of outputs stored out of band: in the store, or beside it.
const OUTPUTS: [&str; 2] = ["tool_outputs", "../tool_outputs"];

impl Source {
    /// Opens the directory `path` as a store and detects the format of its traces.
    ///
    /// An empty directory is a store whose swarm has not started. A transcript is a store of its
    /// worker and of the workers recorded inside it.
    ///
    /// # Errors
    ///
    /// Fails if the path cannot be read, or has no known format.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        Source::open_as(path, None)
    }

    /// Opens `path` like [`Source::open`], but as a store of `format` if one is given. The other
    /// formats are then not tried.
    ///
    /// # Errors
    ///
    /// Fails if the path cannot be read, or does not have the format.
    pub fn open_as(
        path: &Path,
        format: Option<&'static KnownFormat>,
    ) -> Result<Source, SourceError> {
        let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
        let store = match Disk::open(path) {
            Err(Error::NotADirectory) => return Source::open_file(path, format),
            store => store.map_err(failed)?,
        };
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let format = detect_format(&store, path, format)?;
        let (outputs, missing_outputs) = open_outputs(path);
        Ok(Source { missing_outputs, format, ..Source::from_store(Arc::new(store), outputs) })
    }

    /// Detects the format of the open `store`, which messages call `name`, unless a `format` is
    /// given. `beside` is the directory of outputs stored out of band if the store itself has none.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read, or has no known format.
    pub fn open_store(
        store: Arc<dyn Store>,
        name: &Path,
        beside: Option<Arc<dyn Store>>,
        format: Option<&'static KnownFormat>,
    ) -> Result<Source, SourceError> {
        let format = detect_format(&*store, name, format)?;
        let [inside, _] = OUTPUTS;
        let outputs = store.enter(&RelPath::constant(inside)).ok().map(Arc::from).or(beside);
        Ok(Source { format, ..Source::from_store(store, outputs) })
    }

    fn open_file(path: &Path, format: Option<&'static KnownFormat>) -> Result<Source, SourceError> {
        let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
        let (store, file) = Disk::open_parent(path).map_err(failed)?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        // Reports that the file is special or cannot be read.
        store.open(&file).map_err(failed)?;
        let budget = ProbeBudget::default();
        let probe = Probe::new(&store, &file, &budget);
        let recognized = match format {
            None => known::recognize(&probe),
            Some(known) => Some(known).filter(|known| known.recognizes(&probe)),
        };
        let created = recognized.and_then(|known| known.create_for_file(file.clone()));
        let Some(created) = created else {
            let readable = FORMATS.into_iter().filter(|known| {
                known.has_transcripts() && format.is_none_or(|format| format.name == known.name)
            });
            let programs: Vec<&str> = readable.map(|known| known.program.name).collect();
            let expected = match (programs.as_slice(), format) {
                ([], Some(format)) => expected_contents(&[format]),
                (programs, _) => format!("a transcript of {}", alternatives(programs)),
            };
            return Err(SourceError::NotATranscript { path: path.to_path_buf(), expected });
        };
        let source = Source::from_store(Arc::new(store), None);
        Ok(Source { format: created, file: Some(file), ..source })
    }

    /// Opens the folder of one worker, an absolute path, as a store that holds only this worker.
    pub fn open_worker(path: &Path) -> Result<Source, SourceError> {
        let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
        let (parent, name) = split_last(path).ok_or_else(|| failed(Error::NotFound))?;
        // Outputs stored out of band and the index belong to the folder around `workers`.
        let (root, worker) = match split_last(parent) {
            Some((root, folder)) if folder.as_bytes() == b"workers" => {
                (root, RelPath::from(folder).join(&name))
            }
            _ => (parent, RelPath::from(name)),
        };
        let store = Disk::open(root).map_err(failed)?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let (outputs, _) = open_outputs(root);
        let source = Source::from_store(Arc::new(store), outputs);
        Ok(source.with_format(Box::new(Swarmlet::only(worker))))
    }

    /// Opens a program's folder `path` as a store that holds only the worker of `transcript`, a
    /// path from that folder, in `format`. Nothing else is listed or read.
    pub fn open_transcript(
        path: &Path,
        transcript: RelPath,
        format: Box<dyn Format>,
    ) -> Result<Source, SourceError> {
        let store = Disk::open(path)
            .map_err(|error| SourceError::Open { path: path.to_path_buf(), error })?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let source = Source::from_store(Arc::new(store), None).with_format(format);
        Ok(Source { file: Some(transcript), ..source })
    }

    /// Creates a source from an open store of worker artifacts and the store of its outputs stored
    /// out of band.
    pub fn from_store(store: Arc<dyn Store>, outputs: Option<Arc<dyn Store>>) -> Source {
        Source {
            store,
            outputs,
            missing_outputs: Vec::new(),
            format: Box::new(Swarmlet::default()),
            file: None,
            allows_hard_links: false,
            hides_links: false,
            stale_after: STALE_AFTER,
            local: OnceLock::new(),
            cache: None,
            id_prefix: Vec::new(),
            index: None,
        }
    }

    /// Returns true if both read the same directory, or the same file in it.
    pub(super) fn is_same_store(&self, other: &Source) -> bool {
        let identities = (self.store.identity(), other.store.identity());
        self.file == other.file && matches!(identities, (Ok(mine), Ok(others)) if mine == others)
    }

    pub fn with_format(self, format: Box<dyn Format>) -> Source {
        Source { format, ..self }
    }

    /// Sets the disk cache of parsed workers and of the format. Must be called before anything is
    /// read.
    pub fn with_cache(mut self, cache: Arc<DiskCache>) -> Source {
        self.format.set_disk_cache(cache.clone());
        Source { cache: Some(cache), ..self }
    }

    pub fn with_index_cache(self, index: Arc<DiskCache>) -> Source {
        Source { index: Some(index), ..self }
    }

    /// Reads only workers whose ids begin with `prefix`, if the format finds ids without reading
    /// workers. Such a source neither uses nor fills the cache of parsed workers.
    #[must_use]
    pub fn with_id_prefix(self, prefix: &[u8]) -> Source {
        let id_prefix = if self.format.ids_are_folder_names() { prefix } else { &[] };
        Source { id_prefix: id_prefix.to_vec(), ..self }
    }

    /// Returns true unless [`Source::with_id_prefix`] excludes the id of the worker in `folder`.
    pub(super) fn admits(&self, folder: &RelPath) -> bool {
        folder.file_name().is_none_or(|name| name.as_bytes().starts_with(&self.id_prefix))
    }

    /// Returns true if all workers are read.
    pub(super) fn is_whole(&self) -> bool {
        self.id_prefix.is_empty()
    }

    /// Declares that no hard link in this store connects two owners, as in hard-linked backups. A
    /// view of one owner then shows files with several hard links.
    pub fn allowing_hard_links(self) -> Source {
        Source { allows_hard_links: true, ..self }
    }

    /// Hides files with several hard links, for a view of one owner: such a file may be another
    /// owner's.
    pub fn hiding_hard_links(self) -> Source {
        if self.allows_hard_links {
            return self;
        }
        let hide_links = |store| Arc::new(SingleLinkStore::new(store)) as Arc<dyn Store>;
        Source {
            store: hide_links(self.store),
            outputs: self.outputs.map(hide_links),
            hides_links: true,
            ..self
        }
    }

    pub(super) fn cache(&self) -> Option<&Arc<DiskCache>> {
        self.cache.as_ref()
    }

    pub(super) fn index(&self) -> Option<&Arc<DiskCache>> {
        self.index.as_ref()
    }

    /// Returns the part of a cache key that covers everything that decides which bytes of this
    /// store are read. Two views may share results only if their scopes are equal.
    pub(super) fn scope(&self) -> Key {
        let outputs = self.outputs.as_deref().map(store_key);
        let outputs = outputs.as_ref().map(Key::as_slice).unwrap_or_default();
        let hides_links = [u8::from(self.hides_links)];
        let file = self.file.as_ref().map(RelPath::as_bytes).unwrap_or_default();
        let store = store_key(&*self.store);
        key("scope", &[self.format.name().as_bytes(), &store, outputs, &hides_links, file])
    }

    #[must_use]
    pub fn with_stale_after(self, stale_after: Duration) -> Source {
        Source { stale_after, ..self }
    }

    /// Returns true if a worker last written at `last_write` counts as abandoned unless it has
    /// finished. Only formats that record no end need this: the clock decides instead.
    pub(super) fn is_stale(&self, last_write: Time, now: SystemTime) -> bool {
        !self.format.finished_is_final()
            && now.duration_since(last_write.to_system()).is_ok_and(|age| age >= self.stale_after)
    }

    /// Returns true if a worker was written long after its last message, so that its files are
    /// copies. The clock of such a worker stopped when it was copied.
    pub(super) fn is_copied(&self, last_write: Time, last_message: Option<Time>) -> bool {
        let age = last_message.map(|at| last_write.secs.saturating_sub(at.secs));
        let age = age.and_then(|age| u64::try_from(age).ok()).map(Duration::from_secs);
        !self.format.finished_is_final()
            && age.is_some_and(|age| age >= self.stale_after.max(COPIED_AFTER))
    }

    pub(super) fn stale_since(&self, last_write: Time) -> Time {
        let after = i64::try_from(self.stale_after.as_secs()).unwrap_or(i64::MAX);
        Time { secs: last_write.secs.saturating_add(after), ..last_write }
    }

    pub(super) fn is_settled(&self, entry: &super::Entry, freshness: super::Freshness) -> bool {
        self.format.finished_is_final()
            && !entry.is_unfinished()
            && !entry.has_changed(freshness.finished)
    }

    /// Returns the directories on disk that contain everything the source reads, for a sandbox.
    pub(super) fn roots(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stores = [Some(&self.store), self.outputs.as_ref()].into_iter().flatten();
        stores
            .filter_map(|store| store.root())
            .chain(self.cache.iter().chain(&self.index).map(|cache| cache.root()))
    }

    /// Returns the maximum number of watched directories of finished workers. `None` if the file
    /// system does not report changes made by other machines.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses an inotify instance.
    pub fn max_watches(&self) -> Result<Option<usize>> {
        if self.is_local() {
            Inotify::new().map(|inotify| Some(max_finished_watches(&inotify)))
        } else {
            Ok(None)
        }
    }

    /// Returns true if the system reports changes of workers' directories and the format supports
    /// watching.
    pub(super) fn can_watch(&self) -> bool {
        self.format.finished_is_final() && self.is_local()
    }

    /// Returns true if only this machine writes to the store. A store never extends beyond one
    /// mount.
    pub(super) fn is_local(&self) -> bool {
        if let Some(local) = self.local.get() {
            return *local;
        }
        // An error may be temporary, so it is not cached.
        let Ok(path_fd) = self.store.path_fd(&RelPath::root()) else { return false };
        *self.local.get_or_init(|| path_fd.is_some_and(|path_fd| is_local(path_fd.as_fd())))
    }

    /// Returns true if opening the source again would find another directory, or outputs that were
    /// missing.
    pub(super) fn is_replaced(&self) -> bool {
        self.store.is_replaced()
            || self.outputs.as_ref().is_some_and(|outputs| outputs.is_replaced())
            || self.missing_outputs.iter().any(|folder| Disk::open_nofollow(folder).is_ok())
    }

    /// Returns why old states of the stores are shown.
    pub(super) fn outages(&self) -> impl Iterator<Item = String> {
        let stores = [Some(&self.store), self.outputs.as_ref()].into_iter().flatten();
        stores.filter_map(|store| store.outage())
    }

    pub fn format(&self) -> &dyn Format {
        &*self.format
    }
}

/// Returns a cache key of a store's path, and of the inode number and birth time of its root.
fn store_key(store: &dyn Store) -> Key {
    // The device number is omitted: it may change with every boot.
    let root = store.identity().ok().map(|identity| (identity.ino, identity.born));
    let (ino, born) = root.unwrap_or_default();
    let numbers = [
        &[u8::from(root.is_some())][..],
        &ino.to_le_bytes(),
        &born.secs.to_le_bytes(),
        &born.nanos.to_le_bytes(),
    ];
    key("store", &[store.describe().as_bytes(), &numbers.concat()])
}

/// Returns true if `path` is on a swarmletfs mount, which must not be used as a store.
pub fn is_own_mount(path: &Path) -> bool {
    Disk::open(path).is_ok_and(|store| store.is_in_own_mount())
}

/// Returns true if the directory `path` is a store of worker artifacts: it has at least one worker,
/// or was prepared for recording and has none yet. Used to discover stores.
pub fn is_artifact_store(path: &Path) -> bool {
    Disk::open(path).is_ok_and(|store| {
        let has_workers = || matches!(Swarmlet::default().detect(&store), Ok(Detection::Workers));
        !store.is_in_own_mount() && (has_workers() || Swarmlet::is_new_store(&store))
    })
}

/// Returns true if the directory `path` has at least one worker of `format`. Used to discover
/// stores.
pub fn holds_workers(path: &Path, format: &KnownFormat) -> bool {
    Disk::open(path).is_ok_and(|store| {
        !store.is_in_own_mount() && matches!(format.create().detect(&store), Ok(Detection::Workers))
    })
}
