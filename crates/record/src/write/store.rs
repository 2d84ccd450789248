//! Opens stores for writing, makes new ones, and adds the copy of a worker to a store, such as an
//! archive.
//!
//! The directory `supervisor` of a store holds the notes of the supervisor of the workers. A note
//! is written whole, beside the workers, and then renamed. So a reader sees the old one or the new
//! one, also after a crash.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::dir::{Dir, Durability};
use super::error::{During, Error, Result};
use super::folder::{IfMissing, NewWorkerCheck, SpaceLimit, StoreFolder, WriteOptions};
use super::leftovers::{self, Leftover, Leftovers};
use super::lines::entry_of;
use super::new_worker::{self, NewWorker, publish_folder};
use super::worker::Worker;
use super::{folder, names, registry};
use crate::audit;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::{Disk, Kind, Store as _, Time, is_object_url, is_temporary};
use swarmletfs_trace::swarmlet::{RegistryRecord, SUPERVISOR, WORKERS};
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

    /// Limits the bytes that outputs and files may grow by.
    pub fn space(mut self, space: Arc<SpaceLimit>) -> StoreOptions {
        self.0.space = Some(space);
        self
    }

    /// Removes a worker that was created, and reports its id as taken, if `check` refuses it.
    pub fn check_new_workers(mut self, check: NewWorkerCheck) -> StoreOptions {
        self.0.check = Some(check);
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
        must_be_local(path)?;
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
            store.0.append_log(&folder::audit_entry("init", None));
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
        let worker = new_worker::create(&self.0, new)?;
        if self.0.options.check.as_ref().is_none_or(|check| (check.0)(worker.id())) {
            return Ok(worker);
        }
        let id = worker.id().clone();
        self.forget_worker(&id, |_| true)?;
        Err(Error::Taken(id.display()))
    }

    /// Returns the worker `id`, to record more of it.
    ///
    /// # Errors
    ///
    /// [`Error::NoWorker`] if there is none, even if another entry has the name; [`Error::Gone`] if
    /// it was removed.
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
        write_note(&self.0, path, content, place)
    }

    /// Lists the files of the supervisor's notes, sorted by path.
    ///
    /// # Errors
    ///
    /// A directory cannot be read.
    pub fn notes(&self) -> Result<Vec<ListedFile>> {
        list_notes(&self.0)
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

const COPY_LATER: &str = "try a folder, and `swarmletfs sync` to copy it there";

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

/// Fails for an object store, which is written through a spool. Its URL would be taken for a
/// relative path.
fn must_be_local(path: &Path) -> Result<()> {
    if !is_object_url(path) {
        return Ok(());
    }
    Err(not_a_store(path, "an object store is no folder", COPY_LATER))
}

/// Fails unless `path` is a store of workers, or a directory that may become one.
fn must_be_swarmlet(path: &Path) -> Result<Detection> {
    must_be_local(path)?;
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

impl Store {
    /// Adds the worker `id`, whose directory `fill` fills and checks, with its `record` in the
    /// registry. Readers see all of it at once. Starts an index in a store without one.
    ///
    /// # Errors
    ///
    /// `fill` fails, the id is taken, or the store cannot be written.
    pub fn add_copy(
        &self,
        id: &Name,
        record: Option<RegistryRecord>,
        fill: impl FnOnce(&Dir) -> Result<()>,
    ) -> Result<Worker> {
        let store = self.folder();
        // Held until the worker is there: a record without a worker is removed.
        let locked = record.map(|record| Ok((registry::lock(&store.root)?, record))).transpose()?;
        let added = publish_folder(store, id, |folder| {
            fill(folder)?;
            match &locked {
                Some(((registry, _lock), record)) => {
                    registry::put_copy(registry, id, folder, record.clone())
                }
                None => Ok(()),
            }
        })?;
        store.update_index(id, IfMissing::Create);
        store.log_in_store("archive", Some(&id.to_text()), Vec::new(), &Ok(()));
        Ok(added)
    }

    /// Adds the `record` of a worker that was copied before, whose directory is `folder`.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn add_record_of_copy(
        &self,
        id: &Name,
        folder: &Dir,
        record: RegistryRecord,
    ) -> Result<()> {
        let (registry, _lock) = registry::lock(&self.folder().root)?;
        registry::put_copy(&registry, id, folder, record)
    }

    /// Opens the worker `id`; `None` if there is none.
    pub fn find_worker(&self, id: &Name) -> Result<Option<Worker>> {
        match Worker::open(Arc::clone(self.folder()), id) {
            Ok(worker) => Ok(Some(worker)),
            Err(Error::NoWorker { .. } | Error::Gone { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotePlace {
    /// In place of an existing note.
    Whole,
    /// Behind the content of an existing note.
    End,
}

/// Writes the note `path`, from the directory: a new one, or as `place` says. Returns the parsed
/// path.
fn write_note(
    store: &StoreFolder,
    path: &[u8],
    content: &[u8],
    place: NotePlace,
) -> Result<RelPath> {
    let written = parse_note_path(path).and_then(|path| {
        let put = || put(store, &path, content, place);
        put().during("write", &store.root.path().join(SUPERVISOR), path.as_bytes())?;
        Ok(path)
    });
    let shown = format!("{SUPERVISOR}/{}", String::from_utf8_lossy(path));
    store.log_in_store("note", None, vec![entry_of(&shown, content)], &written);
    written
}

#[derive(Debug, Clone)]
pub struct ListedFile {
    /// Path from the directory of the notes.
    pub path: RelPath,
    pub size: u64,
    pub mtime: Time,
}

/// Lists all notes, sorted by path. Links and special files are left out.
fn list_notes(store: &StoreFolder) -> Result<Vec<ListedFile>> {
    let list = || {
        let Some(top) = existing(store)? else { return Ok(Vec::new()) };
        let (mut listed, mut folders) = (Vec::new(), vec![RelPath::root()]);
        while let Some(folder) = folders.pop() {
            let opened = top.enter(&folder).and_then(|dir| Ok((dir.list()?, dir)));
            let (names, dir) = match opened {
                // It was removed or replaced meanwhile.
                Err(error) if error.is_not_found() => continue,
                opened => opened?,
            };
            for name in names.into_iter().filter(|name| !is_temporary(name)) {
                let Some(entry) = dir.entry(&RelPath::from(name.clone()))? else { continue };
                let path = folder.join(&name);
                if entry.kind == Kind::File {
                    let (secs, nanos) = entry.mtime;
                    let (size, mtime) = (entry.size, Time { secs, nanos });
                    listed.push(ListedFile { path, size, mtime });
                } else if entry.kind == Kind::Folder && path.depth() < names::DEPTH_MAX {
                    folders.push(path);
                }
            }
        }
        listed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    };
    list().during("list", store.root.path(), SUPERVISOR.as_bytes())
}

fn existing(store: &StoreFolder) -> Result<Option<Dir>, PathError> {
    match store.root.enter(&RelPath::constant(SUPERVISOR)) {
        Ok(folder) => Ok(Some(folder)),
        Err(PathError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn create(store: &StoreFolder) -> Result<Dir, PathError> {
    let (root, folder) = (&store.root, Name::new(SUPERVISOR)?);
    if root.kind(&RelPath::from(folder.clone()))?.is_none() {
        // Everyone who writes to the store may write notes.
        root.create_dir_alike(&folder)?;
    }
    root.enter(&RelPath::from(folder))
}

fn put(
    store: &StoreFolder,
    path: &RelPath,
    content: &[u8],
    place: NotePlace,
) -> Result<(), PathError> {
    let mut parent = create(store)?;
    // Two writers that append wait for each other.
    let _lock = parent.lock()?;
    for name in path.parent().names() {
        parent = parent.enter_or_create(&name)?;
    }
    let name = path.file_name().ok_or(PathError::InvalidName)?;
    let old = match place {
        NotePlace::Whole => None,
        NotePlace::End => parent.open_to_read(&name)?,
    };
    let mut whole: Box<dyn Read> = match old {
        Some(old) => Box::new(old.chain(content)),
        None => Box::new(content),
    };
    // Beside the workers, where `doctor` finds the leftovers of a crash.
    store.workers.write_temporary(&mut *whole)?.replace(&parent, &name)
}

/// Parses the path of a note from the directory of the notes.
///
/// # Errors
///
/// The path leads elsewhere, or cannot be written.
pub fn parse_note_path(path: &[u8]) -> Result<RelPath> {
    names::parse_path(path, "the path of a note", "strategy.md")
}
