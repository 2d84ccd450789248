//! Formats: how a tool writes down what its agents did, and how that is read.
//!
//! A [`Format`] turns the bytes of a [`Store`] into [`Worker`]s and [`Record`]s. It is found by looking at the store.
//! Input is read as it is found: torn, half-written, of another version, hostile. A format knows nothing of views:
//! whose a worker is, it only reports.

mod bounded;
mod claude_code;
mod input;
mod jsonl;
mod lenient;
mod meta;
mod swarmlet;
mod value;

pub use claude_code::ClaudeCode;
pub use swarmlet::Swarmlet;
pub(crate) use swarmlet::python_strings;

use std::sync::Arc;

use crate::cache::DiskCache;
use crate::error::Result;
use crate::model::{Record, SkipReport, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Identity, Store, Time};

/// Whether a store is of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    /// It holds at least one worker.
    Workers,
    /// It could become one: an empty folder, or one prepared for workers.
    Empty,
    /// It is one worker, not a store of them.
    OneWorker,
    /// It holds something else.
    Other,
}

/// What a look at a folder tells, cheap enough to be taken of every worker again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderState {
    /// The folder itself.
    pub identity: Identity,
    /// Changes whenever [`Format::worker`] could tell something else.
    pub key: [u8; 16],
    /// The newest write among the files that were looked at; see [`Meta::last_write`](crate::store::Meta::last_write).
    pub newest_write: Time,
    /// The newest change of any kind among them, as the file system tells it.
    pub newest_change: Time,
}

/// Folders that may be workers, and what was passed over on the way.
#[derive(Debug, Default, Clone)]
pub struct Candidates {
    /// Paths from the store's root.
    pub folders: Vec<RelPath>,
    /// What lies among them and is no such folder.
    pub skipped: SkipReport,
    /// Those of the folders of which not all was read yet: in them there may be more.
    pub incomplete: Vec<RelPath>,
}

/// The bytes a worker's record is read from.
#[derive(Clone, Copy)]
pub struct RecordSource<'a> {
    /// The worker's own folder, entered.
    pub folder: &'a dyn Store,
    /// Where outputs that were stored out of band lie, if anywhere.
    pub outputs: Option<&'a dyn Store>,
}

/// One way of writing traces down. An instance belongs to one store and may remember what it read there.
pub trait Format: Send + Sync {
    /// The name it is asked for by.
    fn name(&self) -> &'static str;

    /// What a folder holds that is a worker, for people.
    fn worker_description(&self) -> &'static str;

    /// Whether `store` is of this format.
    fn detect(&self, store: &dyn Store) -> Result<Detection>;

    /// The folders that may be workers.
    fn find_workers(&self, store: &dyn Store) -> Result<Candidates>;

    /// Enters one of them: as it is on disk, or as a folder made of what is on disk.
    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        store.enter(path)
    }

    /// Looks at one of them, entered as `folder`, which lies at `path` in its store; `None` if it is no worker.
    fn folder_state(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<FolderState>>;

    /// Reads what listing and metadata tell. `last_good` is what was read of the same folder before; it is kept
    /// where the metadata is torn just now. Never fails: what is wrong stands in the worker's flaws.
    fn read_worker(&self, folder: &dyn Store, path: &RelPath, last_good: Option<&Worker>) -> Worker;

    /// Reads a worker anew and looks into its files. `last_good` is what was read of it before; it is kept where the
    /// metadata is torn just now. Stops looking into outputs when `go_on` says no.
    fn read_record(&self, source: RecordSource<'_>, last_good: &Worker, go_on: &dyn Fn() -> bool) -> Result<Record>;

    /// Reads what lies at `path`, which [`Candidates::unread`] named, for the workers inside it, until `go_on` returns false.
    fn find_nested_workers(&self, _store: &dyn Store, _path: &RelPath, _go_on: &dyn Fn() -> bool) {}

    /// Whether no more is to be expected of a worker that says it has finished.
    fn finished_is_final(&self) -> bool {
        true
    }

    /// Whether [`Format::glance`] and [`Format::worker`] look at what is called so in a worker's folder.
    fn affects_listing(&self, _name: &Name) -> bool {
        true
    }

    /// Whether the workers' folders are made of something else when they are looked into, which takes time.
    fn has_virtual_folders(&self) -> bool {
        false
    }

    /// From now on, what takes long to read is kept in `cache`, too. Nothing was read before.
    fn set_disk_cache(&mut self, _cache: Arc<DiskCache>) {}

    /// The folder of the supervisor's own notes, where the format has one.
    fn supervisor_folder(&self) -> Option<RelPath> {
        None
    }

    /// Files that list all workers and so belong to nobody's view but the one of everything.
    fn index_files(&self) -> Vec<RelPath> {
        Vec::new()
    }
}
