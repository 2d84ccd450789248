//! Adds the copy of a worker to another store, such as an archive.

use std::sync::Arc;

use super::dir::Dir;
use super::error::{Error, Result};
use super::index::IfMissing;
use super::new_worker::publish_folder;
use super::registry;
use super::store::Store;
use super::worker::Worker;
use swarmletfs_base::name::Name;
use swarmletfs_trace::swarmlet::RegistryRecord;

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
            Err(Error::NoWorker { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
