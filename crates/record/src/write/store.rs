//! Opens stores for writing, and makes new ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::audit_log;
use super::dir::{Dir, Durability};
use super::error::{During, Error, Result};
use super::folder::{StoreFolder, WriteOptions};
use super::leftovers::{self, Leftover, Leftovers};
use super::new_worker::{self, NewWorker};
use super::supervisor_file::{self, ListedFile, NotePlace};
use super::worker::Worker;
use crate::audit;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::{Disk, Kind, Store as _};
use swarmletfs_trace::swarmlet::WORKERS;
use swarmletfs_trace::{Detection, Format, Swarmlet};

/// A store that was opened for writing.
///
/// # Examples
///
/// ```
/// use swarmletfs_record::write::{CallEnd, Finish, NewWorker, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// Store::init(folder.path().join("swarm"))?;
///
/// let store = Store::open(folder.path().join("swarm"))?;
/// let worker = store.create_worker(NewWorker::new("Count the users").id("w1"))?;
/// worker.begin_call("sql", None)?.end(CallEnd::exit_code(0))?;
/// store.worker("w1")?.finish(Finish::completed().result("There are 42 users."))?;
/// assert!(store.take_warnings().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store(Arc<StoreFolder>);

#[derive(Debug, Clone, Default)]
#[must_use = "`StoreOptions::open` opens the store"]
pub struct StoreOptions(WriteOptions);

impl StoreOptions {
    /// Sets whether changes wait for the disk; they do by default.
    pub fn durability(mut self, durability: Durability) -> StoreOptions {
        self.0.durability = durability;
        self
    }

    /// Sets the limit of the log of changes, in bytes; 256 MiB by default.
    pub fn audit_max(mut self, bytes: u64) -> StoreOptions {
        self.0.audit_max = bytes;
        self
    }

    pub fn role(mut self, role: impl Into<String>) -> StoreOptions {
        self.0.role = Some(role.into());
        self
    }

    /// Opens the store at `path`.
    ///
    /// # Errors
    ///
    /// See [`Store::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store> {
        open(path.as_ref(), self.0)
    }
}

impl Store {
    /// Makes a new store at `path`: a directory that is missing or empty. A store that exists stays
    /// as it is. Returns the store.
    ///
    /// # Errors
    ///
    /// The directory holds something else, or cannot be written.
    pub fn init(path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        let options = WriteOptions::default();
        // A crash may have left a part of a store, which this completes.
        let is_new = match Disk::open(path) {
            Err(PathError::NotFound) => true,
            _ => must_be_swarmlet(path)? == Detection::Empty && !is_made(path),
        };
        if let Some(outer) = is_new.then(|| enclosing_store(path)).flatten() {
            let outer = printable(outer.as_os_str().as_encoded_bytes());
            return Err(not_a_store(path, &format!("it is inside the store {outer}"), NEW_FOLDER));
        }
        let root = Dir::create(path, options.durability).during("create the folder", path, b"")?;
        if is_new {
            let make = || {
                for name in [WORKERS, audit::FOLDER] {
                    // Writers of the named directory must be able to record.
                    root.create_dir_alike(&Name::new(name)?)?;
                }
                Ok(())
            };
            make().during("make a store in", path, b"")?;
        }
        let store = open(path, options)?;
        if is_new {
            store.0.append_log(&audit_log::entry("init", None));
        }
        Ok(store)
    }

    /// Opens the store at `path`. Symlinks are followed, since the caller named the path.
    ///
    /// # Errors
    ///
    /// The path is no directory, holds something else than a store, or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::default().open(path)
    }

    pub fn root(&self) -> &Dir {
        &self.0.root
    }

    /// Creates a worker. Readers see all of it at once.
    ///
    /// # Errors
    ///
    /// The id is taken, a value cannot be written, or the store cannot be written.
    pub fn create_worker(&self, new: NewWorker) -> Result<Worker> {
        new_worker::create(&self.0, new)
    }

    /// Returns the worker `id`, to record more of it.
    ///
    /// # Errors
    ///
    /// [`Error::NoWorker`] if there is none, even if another entry has the name.
    pub fn worker(&self, id: impl AsRef<[u8]>) -> Result<Worker> {
        let id = id.as_ref();
        let name = Name::new(id)
            .map_err(|_| Error::NoWorker { worker: printable(id), store: self.describe() })?;
        Worker::open(Arc::clone(&self.0), &name)
    }

    /// Writes the file `path` of the supervisor's notes: a new one, or as `place` says. Returns the
    /// path from the directory of the notes.
    ///
    /// # Errors
    ///
    /// The path leads elsewhere, or the store cannot be written.
    pub fn write_note(&self, path: &[u8], content: &[u8], place: NotePlace) -> Result<RelPath> {
        supervisor_file::write(&self.0, path, content, place)
    }

    /// Lists the files of the supervisor's notes, sorted by path.
    ///
    /// # Errors
    ///
    /// A directory cannot be read.
    pub fn notes(&self) -> Result<Vec<ListedFile>> {
        supervisor_file::list(&self.0)
    }

    /// Searches for the leftovers of crashes, until `deadline` passes.
    ///
    /// # Errors
    ///
    /// The workers cannot be listed.
    pub fn leftovers(&self, deadline: Deadline<'_>) -> Result<Leftovers> {
        leftovers::find(&self.0, deadline)
    }

    /// Repairs a leftover: removes a temporary entry, or states that the recorder of a call is
    /// gone. Returns false if it is gone or in use by now.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn repair(&self, leftover: &Leftover) -> Result<bool> {
        if leftovers::is_removal(leftover) {
            // Its draft and its entry in the index go with it.
            let lock = self.lock_removals()?;
            let finished = self.finish_removals(&lock).map(|()| true);
            leftovers::log_repair(&self.0, leftover, &finished);
            return finished;
        }
        leftovers::repair(&self.0, leftover)
    }

    /// Returns the problems that did not prevent a change since the last call: an index or the log
    /// of changes that could not be written, or the removed end of a line that a crash had torn.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.warnings.lock())
    }

    pub(super) fn folder(&self) -> &Arc<StoreFolder> {
        &self.0
    }

    fn describe(&self) -> String {
        printable(self.0.root.path().as_os_str().as_encoded_bytes())
    }
}

fn open(path: &Path, options: WriteOptions) -> Result<Store> {
    let detection = must_be_swarmlet(path)?;
    let root = Dir::open(path, options.durability).during("open", path, b"")?;
    let kind = root.kind(&RelPath::constant(WORKERS)).during("find", path, WORKERS.as_bytes())?;
    let workers_path = match (kind, detection) {
        (Some(Kind::Folder), _) => RelPath::constant(WORKERS),
        // A store whose workers are in its root keeps that layout.
        (_, Detection::Workers) => RelPath::root(),
        (_, _) => return Err(not_a_store(path, "it is empty", INIT)),
    };
    let workers = root.enter(&workers_path).during("open", path, workers_path.as_bytes())?;
    let warnings = Mutex::default();
    Ok(Store(Arc::new(StoreFolder { root, workers, workers_path, options, warnings })))
}

/// Returns true if `folder` has the directories that [`Store::init`] makes.
fn is_made(folder: &Path) -> bool {
    let has = |disk: &Disk, name| {
        disk.stat(&RelPath::constant(name)).is_ok_and(|meta| meta.kind == Kind::Folder)
    };
    Disk::open(folder).is_ok_and(|disk| has(&disk, WORKERS) && has(&disk, audit::FOLDER))
}

const INIT: &str = "try `swarmletfs init DIR` to make a new store";

const NEW_FOLDER: &str = "try a new or empty folder outside of it";

fn enclosing_store(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    // Other folders of workers are too common to tell a store that others use.
    path.ancestors().skip(1).find(|folder| is_made(folder)).map(Path::to_path_buf)
}

fn not_a_store(path: &Path, reason: &str, cure: &str) -> Error {
    let store = printable(path.as_os_str().as_encoded_bytes());
    Error::Store { store, reason: reason.into(), cure: cure.into() }
}

/// Fails unless `path` is a store of workers, or a directory that may become one.
fn must_be_swarmlet(path: &Path) -> Result<Detection> {
    let detected = Disk::open(path).and_then(|disk| {
        if disk.is_in_own_mount() {
            Err(PathError::ReadOnly)
        } else {
            Swarmlet::default().detect(&disk)
        }
    });
    let (reason, cure) = match detected {
        Ok(detection @ (Detection::Workers | Detection::Empty)) => return Ok(detection),
        Ok(Detection::OneWorker) => {
            ("it is the folder of one worker", "try the store that holds the worker")
        }
        Ok(Detection::Other) => {
            ("it holds something else than workers", "try `swarmletfs init` with a new folder")
        }
        Err(PathError::NotFound) => ("no such folder", INIT),
        Err(PathError::NotADirectory) => ("not a folder", INIT),
        Err(PathError::ReadOnly) => {
            ("it is a swarmletfs mount, which is read-only", "try the store that is mounted")
        }
        Err(error) => return Err(error).during("open the store", path, b""),
    };
    Err(not_a_store(path, reason, cure))
}
