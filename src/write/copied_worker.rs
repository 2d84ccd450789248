//! Adds the copy of a worker to another store, such as an archive.

use std::sync::Arc;

use super::dir::Dir;
use super::error::{Error, Result};
use super::index::IfMissing;
use super::new_worker::publish_folder;
use super::store::Store;
use super::worker::Worker;
use crate::name::Name;

impl Store {
    /// Adds the worker `id`, whose directory `fill` fills and checks. Readers see all of it at
    /// once. Starts an index in a store without one.
    ///
    /// # Errors
    ///
    /// `fill` fails, the id is taken, or the store cannot be written.
    pub(crate) fn add_copy(
        &self,
        id: &Name,
        fill: impl FnOnce(&Dir) -> Result<()>,
    ) -> Result<Worker> {
        let store = self.folder();
        let added = publish_folder(store, id, fill)?;
        store.update_index(id, IfMissing::Create);
        store.log_in_store("archive", Some(&id.to_text()), Vec::new(), &Ok(()));
        Ok(added)
    }

    /// Opens the worker `id`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(crate) fn find_worker(&self, id: &Name) -> Result<Option<Worker>> {
        match Worker::open(Arc::clone(self.folder()), id) {
            Ok(worker) => Ok(Some(worker)),
            Err(Error::NoWorker { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
