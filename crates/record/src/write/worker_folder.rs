//! The directory of a worker, opened for changes.

use std::sync::Arc;

use super::dir::{Dir, File};
use super::error::{During, Error, Result};
use super::folder::StoreFolder;
use super::lines::append_lines;
use super::lock::Lock;
use super::metadata::{self, MetadataMap};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{CALLS, METADATA};

#[derive(Debug)]
pub(super) struct WorkerFolder {
    store: Arc<StoreFolder>,
    folder: Dir,
    id: Name,
}

impl WorkerFolder {
    pub(super) fn open(store: Arc<StoreFolder>, id: &Name) -> Result<WorkerFolder> {
        let is_worker = |folder: &Dir| -> Result<bool, PathError> {
            Ok(folder.kind(&RelPath::constant(METADATA))?.is_some()
                || folder.kind(&RelPath::constant(CALLS))? == Some(Kind::Folder))
        };
        let opened = if is_temporary(id) {
            Ok(None)
        } else {
            let entered = match store.workers.enter(&id.clone().into()) {
                Err(PathError::Escape) => store.workers.enter_mount(id),
                entered => entered,
            };
            entered.and_then(|folder| Ok(is_worker(&folder)?.then_some(folder)))
        };
        match opened {
            Ok(Some(folder)) => Ok(WorkerFolder { store, folder, id: id.clone() }),
            // A link gets the same error as an absent worker.
            Ok(None) | Err(PathError::NotFound | PathError::NotADirectory | PathError::Escape) => {
                let store = printable(store.root.path().as_os_str().as_encoded_bytes());
                Err(Error::NoWorker { worker: id.display(), store })
            }
            Err(error) => Err(error).during("open", store.workers.path(), id.as_bytes()),
        }
    }

    pub(super) fn id(&self) -> &Name {
        &self.id
    }

    pub(super) fn folder(&self) -> &Dir {
        &self.folder
    }

    pub(super) fn store(&self) -> &StoreFolder {
        &self.store
    }

    /// Locks the worker and returns its metadata.
    ///
    /// # Errors
    ///
    /// [`Error::Finished`] if it has finished.
    pub(super) fn lock_unfinished(&self) -> Result<(Lock, MetadataMap)> {
        let lock = self.folder.lock().during("lock", self.folder.path(), b"")?;
        let fields = metadata::read(&self.folder)?;
        metadata::must_be_unfinished(&fields, &self.id)?;
        Ok((lock, fields))
    }

    /// Appends whole lines to the file `name` in the worker's directory, and waits until they are
    /// on disk.
    pub(super) fn append(&self, _lock: &Lock, name: &str, lines: &[u8]) -> Result<()> {
        self.append_and(name, lines, |file| self.folder.sync_file(file))
    }

    pub(super) fn append_without_sync(&self, _lock: &Lock, name: &str, lines: &[u8]) -> Result<()> {
        self.append_and(name, lines, |_| Ok(()))
    }

    fn append_and(
        &self,
        name: &str,
        lines: &[u8],
        sync: impl FnOnce(&File) -> Result<(), PathError>,
    ) -> Result<()> {
        let append = || {
            let mut file = self.folder.open_append(&Name::new(name)?)?;
            let is_complete =
                |line: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
            append_lines(&mut file, lines, is_complete, sync)
        };
        let removed = append().during("write", self.folder.path(), name.as_bytes())?;
        if removed > 0 {
            self.store.warn(format!(
                "{name} of worker {}: removed {removed} bytes of a line that was not complete",
                self.id.display()
            ));
        }
        Ok(())
    }
}
