//! Adds the copy of a worker to another store, such as an archive.

use std::sync::Arc;

use super::dir::Dir;
use super::error::{During, Error, Result};
use super::index::IfMissing;
use super::store::Store;
use super::worker::Worker;
use super::{audit_log, temporary};
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
        let workers = &store.workers;
        let created =
            temporary::worker_name().and_then(|name| Ok((workers.create_dir(&name)?, name)));
        let (folder, name) = created.during("create a folder in", workers.path(), b"")?;
        // The lock tells a copy in progress from one that a crash interrupted.
        let locked = folder.lock().during("lock", folder.path(), b"");
        let added = locked.and_then(|_lock| {
            fill(&folder)?;
            let renamed = workers.rename_new(&name, id);
            renamed.during("create", workers.path(), id.as_bytes())
        });
        if let Err(error) = added {
            // The first error counts; what is left behind, `doctor` finds.
            let _ = workers.remove_all(&name);
            return Err(error);
        }
        store.update_index(id, IfMissing::Create);
        let mut entry = audit_log::entry("archive", store.options.role.clone());
        entry.worker = Some(id.to_text().into_owned());
        store.append_log(&entry);
        Worker::open(Arc::clone(store), id)
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
