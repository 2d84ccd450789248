//! The format of the worker artifact store: one directory per worker, in `workers/` (as specified)
//! or in the store's root (as the first implementation writes it).
//!
//! The directories are authoritative. A missing, corrupt or contradicting index.json hides no
//! worker; it only supplies values that the metadata lacks.

mod check;
mod index;
mod layout;
mod literal;
mod metadata;
mod metrics;
mod outcome;
mod printed;
mod python;
mod record;
mod registry;
mod status;
mod thread;
mod tombstone;
mod workspace;

pub use index::SIZE_MAX as INDEX_MAX;
pub use layout::{
    APPLIED, AUDIT, BASE, CALLS, CHANGES, CHANGES_FILE, COMMENTS, COMMITS, DRAFTS, METADATA,
    REGISTRY, SUPERVISOR, TASK, TOMBSTONES, WORKERS,
};
pub use metadata::{SIZE_MAX as METADATA_MAX, own_status};
pub use metrics::{CALL_EVENT, FILE as METRICS, START_EVENT};
pub use python::to_json as python_to_json;
pub use record::{EXECUTION_LOG, LOGS, RESULT, TOOLS_USED, split_call_name};
pub use registry::{FolderId, RegistryRecord, SIZE_MAX as REGISTRY_MAX, SUPERVISOR_NOTES};
pub use thread::FILE as THREAD;
pub use tombstone::{SIZE_MAX as TOMBSTONE_MAX, Tombstone};

pub const INDEX: &str = "index.json";

use std::sync::Arc;

use parking_lot::Mutex;

use registry::RegisteredFolder;

use super::meta::{hash_meta, if_exists, if_file_or_folder};
use super::{Candidates, Detection, FolderState, Format, RecordSource};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    Owner, Record, RecordedChanges, RecordedEdits, Remarks, RemovedWorker, SkipReport, Worker,
    WorkerCheck,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store, read_whole};

#[derive(Default)]
pub struct Swarmlet {
    index: Mutex<index::StoreIndex>,
    cached: Mutex<Option<layout::CachedCandidates>>,
    /// The registry, if the store had one when it was last searched.
    registry: Mutex<Option<Arc<dyn Store>>>,
    /// The only worker to read, or `None` for all.
    only: Option<RelPath>,
}

impl Swarmlet {
    /// Returns true if `store` was prepared for recording and has no worker yet.
    pub fn is_new_store(store: &dyn Store) -> bool {
        layout::is_new(store)
    }

    /// Creates a format whose store holds only the worker at `path`. Nothing else is listed.
    pub fn only(path: RelPath) -> Swarmlet {
        Swarmlet { only: Some(path), ..Swarmlet::default() }
    }

    /// Returns the registry of `store`, if it has one.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    fn registry(&self, store: &dyn Store) -> Result<Option<Arc<dyn Store>>> {
        let known = self.registry.lock().clone();
        if known.is_some() {
            return Ok(known);
        }
        // A worker may have been registered since the last search.
        let found = registry::open(store)?;
        self.registry.lock().clone_from(&found);
        Ok(found)
    }
}

impl Format for Swarmlet {
    fn name(&self) -> &'static str {
        "swarmlet"
    }

    fn worker_description(&self) -> &'static str {
        "a metadata.json or a tool_calls/"
    }

    fn detect(&self, store: &dyn Store) -> Result<Detection> {
        layout::detect(store)
    }

    fn find_workers(&self, store: &dyn Store) -> Result<Candidates> {
        let found = match &self.only {
            Some(path) => Candidates { folders: vec![path.clone()], ..Candidates::default() },
            None => {
                let cached = self.cached.lock().take();
                let (found, cached) = layout::find_cached(store, cached)?;
                *self.cached.lock() = cached;
                found
            }
        };
        let registry = registry::open(store)?;
        *self.registry.lock() = registry;
        let index = self.index.lock().clone();
        let index = index.refresh(store, &found.folders);
        *self.index.lock() = index;
        Ok(found)
    }

    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        let folder = store.enter(path)?;
        // Only these workers run in a sandbox.
        let id = path.file_name().filter(|_| path.parent() == layout::path(WORKERS));
        let Some(id) = id else { return Ok(folder) };
        Ok(match self.registry(store)? {
            Some(registry) => RegisteredFolder::enter(folder, registry, &id),
            None => folder,
        })
    }

    fn folder_state(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<FolderState>> {
        let own = folder.stat_without_acl(&RelPath::root())?;
        // A link or FIFO of this name is a defect of a worker, so the directory still counts as
        // one.
        let metadata = if_exists(folder.stat_without_acl(&layout::path(layout::METADATA)))?;
        let calls = if_file_or_folder(folder.stat_without_acl(&layout::path(layout::CALLS)))?;
        let registered = registry::record_meta(folder)?;
        let has_calls = calls.is_some_and(|calls| calls.kind == Kind::Folder);
        // A worker that removes its files stays a worker.
        if metadata.is_none() && !has_calls && registered.is_none() {
            return Ok(None);
        }
        // One layout stores the task in a file of its own.
        let task = if_file_or_folder(folder.stat_without_acl(&layout::path(layout::TASK)))?;
        let mut hash = blake3::Hasher::new();
        // The directory's name identifies the worker, and not every rename changes the directory's
        // metadata.
        hash.update(path.as_bytes());
        hash.update(&[0]);
        let (mut newest_write, mut newest_change) = (own.last_write(), own.ctime);
        for meta in [Some(own), metadata, calls, task, registered] {
            hash_meta(&mut hash, meta.as_ref());
            if let Some(meta) = meta {
                (newest_write, newest_change) =
                    (newest_write.max(meta.last_write()), newest_change.max(meta.ctime));
            }
        }
        let indexed = self.index.lock().get(path);
        hash.update(indexed.as_bytes());
        Ok(Some(FolderState {
            identity: own.identity,
            key: digest(&hash),
            newest_write,
            newest_change,
        }))
    }

    fn affects_listing(&self, name: &Name) -> bool {
        [layout::METADATA, layout::CALLS, layout::TASK]
            .iter()
            .any(|file| file.as_bytes() == name.as_bytes())
    }

    fn read_worker(
        &self,
        folder: &dyn Store,
        path: &RelPath,
        last_good: Option<&Worker>,
    ) -> Worker {
        // Decoded without the lock.
        let indexed = self.index.lock().get(path);
        let entries = indexed.entries();
        metadata::read_worker(folder, path, &entries, last_good).worker
    }

    fn read_record(
        &self,
        source: RecordSource<'_>,
        last_good: &Worker,
        deadline: Deadline<'_>,
    ) -> Result<Record> {
        // Decoded without the lock.
        let indexed = self.index.lock().get(&last_good.root);
        let entries = indexed.entries();
        let read = metadata::read_worker(source.folder, &last_good.root, &entries, Some(last_good));
        Ok(record::read_record(source, read, deadline))
    }

    fn ids_are_folder_names(&self) -> bool {
        true
    }

    fn records_edits(&self) -> bool {
        true
    }

    fn may_have_edits(&self, listed: &[DirEntry]) -> bool {
        listed.iter().any(|entry| entry.name.as_bytes() == CHANGES_FILE.as_bytes())
    }

    fn finds_edits_at_once(&self) -> bool {
        true
    }

    fn has_edits(&self, folder: &dyn Store, _deadline: Deadline<'_>) -> Result<bool> {
        workspace::has_changes(folder)
    }

    fn read_changes(
        &self,
        source: RecordSource<'_>,
        _deadline: Deadline<'_>,
    ) -> Result<RecordedChanges> {
        let read = workspace::read_changes(source.folder)?;
        Ok(read.unwrap_or_else(|| RecordedChanges::Edits(RecordedEdits::default())))
    }

    fn folders_of_originals(&self, folder: &dyn Store) -> &'static [&'static str] {
        workspace::folders_of_originals(folder)
    }

    fn check_worker(
        &self,
        source: RecordSource<'_>,
        record: &Record,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> WorkerCheck {
        check::check_worker(source, record, limit, deadline)
    }

    fn check_store(
        &self,
        store: &dyn Store,
        outputs: Option<&dyn Store>,
        skipped: &SkipReport,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> Remarks {
        if self.only.is_some() {
            return Remarks::new(limit);
        }
        let description = self.worker_description();
        check::check_store(store, outputs, skipped, description, limit, deadline)
    }

    fn removed_worker(&self, store: &dyn Store, id: &Name) -> Option<RemovedWorker> {
        let path = layout::path(TOMBSTONES).join(&Tombstone::file_name(id).ok()?);
        let json = read_whole(store, &path, TOMBSTONE_MAX).ok()??;
        let tombstone = Tombstone::parse(&json)?;
        Some(RemovedWorker {
            owner: tombstone.owner.map(|owner| Owner(owner.into())),
            run: tombstone.run.map(Into::into),
            removed_at: tombstone.removed_at,
            rule: tombstone.rule,
        })
    }

    fn removed_ids(&self, store: &dyn Store) -> Vec<Name> {
        tombstone::list(store)
    }

    fn supervisor_folder(&self) -> Option<RelPath> {
        Some(layout::path(layout::SUPERVISOR))
    }

    fn index_files(&self) -> Vec<RelPath> {
        index::FILES.map(layout::path).to_vec()
    }
}
