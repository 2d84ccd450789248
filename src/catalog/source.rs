//! A store together with the format of its traces, named on the command line or discovered.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::watcher::max_finished_watches;
use crate::cache::{DiskCache, Key, key};
use crate::error::{Error, Result};
use crate::model::{SkipReason, SkipReport};
use crate::name::{RelPath, printable};
use crate::store::{Disk, Inotify, SingleLinkStore, Store, Time, is_local};
use crate::trace::{ClaudeCode, Codex, Detection, Format, Swarmlet};

/// Default time without a write after which an unfinished worker counts as abandoned.
pub const STALE_AFTER: Duration = Duration::from_secs(60 * 60);

/// A store and the format of its traces.
pub struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) outputs: Option<Arc<dyn Store>>,
    /// Paths where a directory of outputs stored out of band was searched for and missing.
    missing_outputs: Vec<PathBuf>,
    pub(super) format: Box<dyn Format>,
    /// True if the user declared that no hard link connects two owners.
    allows_hard_links: bool,
    /// True if files with several hard links are hidden: the store is read for one owner.
    hides_links: bool,
    /// Time without a write after which an unfinished worker counts as abandoned.
    stale_after: Duration,
    /// True if only this machine writes to the store; computed on first use.
    local: OnceLock<bool>,
    /// Disk cache of parsed workers and of the format.
    cache: Option<Arc<DiskCache>>,
    /// Disk cache of the search index.
    index: Option<Arc<DiskCache>>,
}

/// Reason why a directory cannot be read as a store of traces.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The directory cannot be opened.
    #[error("cannot open the store {}: {}", display_path(.path), reason(.error))]
    Open {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        error: Error,
    },
    /// The directory is on a swarmletfs mount.
    #[error("cannot use {} as a store: it is a swarmletfs mount; give the store behind it", display_path(.0))]
    OwnMount(PathBuf),
    /// The directory is one worker.
    #[error(
        "cannot use {} as a store: it is one worker; give the folder that holds it: {}",
        display_path(.0),
        display_path(.0.parent().unwrap_or(.0))
    )]
    OneWorker(PathBuf),
    /// The directory has no workers of any known format.
    #[error(
        "no workers in {}: expected folders with a metadata.json or a tool_calls/, there or in its \
         workers/, or transcripts of Claude Code{}",
        display_path(.path),
        not_followed(.skipped)
    )]
    NoWorkers {
        /// The directory.
        path: PathBuf,
        /// Entries that are not workers.
        skipped: SkipReport,
    },
}

fn display_path(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

fn reason(error: &Error) -> String {
    match error {
        Error::NotFound => "there is no such folder; name an existing one with --store".into(),
        Error::NotADirectory => "it is not a folder; name a folder of workers".into(),
        other => other.to_string(),
    }
}

/// Names the symlinks and foreign mounts that may lead to the expected workers, in parentheses.
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
    /// An empty directory is a store whose swarm has not started.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let failed = |error| SourceError::Open { path: path.to_path_buf(), error };
        let store = Disk::open(path).map_err(failed)?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let mut detected = None;
        for format in formats() {
            match format.detect(&store).map_err(failed)? {
                Detection::Workers | Detection::Empty => {
                    detected = Some(format);
                    break;
                }
                Detection::OneWorker => return Err(SourceError::OneWorker(path.to_path_buf())),
                Detection::Other => {}
            }
        }
        let Some(format) = detected else {
            let skipped = Swarmlet::default().find_workers(&store).map_err(failed)?.skipped;
            return Err(SourceError::NoWorkers { path: path.to_path_buf(), skipped });
        };
        // Opened as a separate root, because `..` cannot leave the store's root.
        let mut missing_outputs = Vec::new();
        let outputs = OUTPUTS.iter().map(|folder| path.join(folder)).find_map(|folder| {
            let opened = Disk::open_nofollow(&folder).ok();
            if opened.is_none() {
                missing_outputs.push(folder);
            }
            opened
        });
        let outputs = outputs.map(|outputs| Arc::new(outputs) as Arc<dyn Store>);
        Ok(Source { missing_outputs, format, ..Source::from_store(Arc::new(store), outputs) })
    }

    /// Opens Claude Code's folder `path` as a store that holds only the worker of `transcript`, a
    /// path from that folder. Nothing else is listed or read.
    pub fn open_transcript(path: &Path, transcript: RelPath) -> Result<Source, SourceError> {
        let store = Disk::open(path)
            .map_err(|error| SourceError::Open { path: path.to_path_buf(), error })?;
        if store.is_in_own_mount() {
            return Err(SourceError::OwnMount(path.to_path_buf()));
        }
        let format = Box::new(ClaudeCode::transcripts().only(transcript));
        Ok(Source::from_store(Arc::new(store), None).with_format(format))
    }

    /// Creates a source from an open store of worker artifacts and the store of its outputs stored
    /// out of band.
    pub fn from_store(store: Arc<dyn Store>, outputs: Option<Arc<dyn Store>>) -> Source {
        Source {
            store,
            outputs,
            missing_outputs: Vec::new(),
            format: Box::new(Swarmlet::default()),
            allows_hard_links: false,
            hides_links: false,
            stale_after: STALE_AFTER,
            local: OnceLock::new(),
            cache: None,
            index: None,
        }
    }

    /// Sets the format of the traces.
    pub fn with_format(self, format: Box<dyn Format>) -> Source {
        Source { format, ..self }
    }

    /// Sets the disk cache of parsed workers and of the format. Must be called before anything is
    /// read.
    pub fn with_cache(mut self, cache: Arc<DiskCache>) -> Source {
        self.format.set_disk_cache(cache.clone());
        Source { cache: Some(cache), ..self }
    }

    /// Sets the disk cache of the search index.
    pub fn with_index_cache(self, index: Arc<DiskCache>) -> Source {
        Source { index: Some(index), ..self }
    }

    /// Declares that no hard link in this store connects two owners, as in hard-linked backups. A
    /// view of one owner then shows files with several hard links.
    pub fn allowing_hard_links(self) -> Source {
        Source { allows_hard_links: true, ..self }
    }

    /// Hides files with several hard links, for a view of one owner: such a file may be another
    /// owner's.
    pub(crate) fn hiding_hard_links(self) -> Source {
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

    /// Returns the disk cache of parsed workers.
    pub(super) fn cache(&self) -> Option<&Arc<DiskCache>> {
        self.cache.as_ref()
    }

    /// Returns the disk cache of the search index.
    pub(super) fn index(&self) -> Option<&Arc<DiskCache>> {
        self.index.as_ref()
    }

    /// Returns the part of a cache key that covers everything that decides which bytes of this
    /// store are read. Two views may share results only if their scopes are equal.
    pub(super) fn scope(&self) -> Key {
        let outputs = self.outputs.as_deref().map(store_key);
        let outputs = outputs.as_ref().map(Key::as_slice).unwrap_or_default();
        let hides_links = [u8::from(self.hides_links)];
        key(
            "scope",
            &[self.format.name().as_bytes(), &store_key(&*self.store), outputs, &hides_links],
        )
    }

    /// Sets the time without a write after which an unfinished worker counts as abandoned.
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

    /// Returns the time at which a stale worker became stale.
    pub(super) fn stale_since(&self, last_write: Time) -> Time {
        let after = i64::try_from(self.stale_after.as_secs()).unwrap_or(i64::MAX);
        Time { secs: last_write.secs.saturating_add(after), ..last_write }
    }

    /// Returns true if the worker is finished and did not change recently.
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

    /// Returns the format of the traces.
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

/// Returns the known formats in the order of detection.
fn formats() -> [Box<dyn Format>; 3] {
    [
        Box::new(Swarmlet::default()),
        Box::new(Codex::transcripts()),
        Box::new(ClaudeCode::transcripts()),
    ]
}

/// Returns true if `path` is on a swarmletfs mount, which must not be used as a store.
pub fn is_own_mount(path: &Path) -> bool {
    Disk::open(path).is_ok_and(|store| store.is_in_own_mount())
}

/// Returns true if `path` is a store with at least one worker. Used to discover stores.
pub fn looks_like_store(path: &Path) -> bool {
    holds_workers(path, &Swarmlet::default())
}

/// Returns true if `path` has at least one session of Claude Code or Codex. Used to discover
/// stores.
pub fn looks_like_sessions(path: &Path) -> bool {
    holds_workers(path, &ClaudeCode::transcripts()) || holds_workers(path, &Codex::transcripts())
}

fn holds_workers(path: &Path, format: &dyn Format) -> bool {
    Disk::open(path).is_ok_and(|store| {
        !store.is_in_own_mount() && matches!(format.detect(&store), Ok(Detection::Workers))
    })
}
