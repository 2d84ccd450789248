//! Removes workers: their directory, their draft and their entry in the index.
//!
//! The tombstone is written first. Then the directory gets a temporary name, which no reader shows,
//! the index loses the entry, and all is deleted. After a crash, the worker is whole or gone with
//! its tombstone, and [`Store::finish_removals`] deletes the rest.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::dir::{Dir, Lock};
use super::error::{During, Error, Result};
use super::folder::{self, StoreFolder, WorkerFolder};
use super::names;
use super::registry;
use super::store::Store;
use super::worker::Worker;
use crate::audit::AuditPath;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result as PathResult;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{DRAFTS, TOMBSTONES, Tombstone};

#[derive(Debug)]
#[must_use = "dropping a lock releases it"]
pub struct RemovalLock {
    tombstones: Dir,
    _lock: Lock,
}

pub enum Decision<G> {
    /// Removes it. The guard is held until it is gone.
    Remove(Box<Tombstone>, G),
    Keep(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    Yes,
    No(String),
}

impl Store {
    /// Takes the lock of all removals.
    ///
    /// # Errors
    ///
    /// Another process removes workers, or the store cannot be written.
    pub fn lock_removals(&self) -> Result<RemovalLock> {
        let root = &self.folder().root;
        let open = || {
            let tombstones = registry::open_tombstones(root)?;
            let lock = tombstones.try_lock()?;
            Ok((tombstones, lock))
        };
        let (tombstones, lock) = open().during("open", root.path(), TOMBSTONES.as_bytes())?;
        let Some(lock) = lock else {
            return Err(Error::Approval {
                action: "remove workers".to_owned(),
                reason: "another process removes workers of this store".to_owned(),
                cure: "try again when it has ended".to_owned(),
            });
        };
        Ok(RemovalLock { tombstones, _lock: lock })
    }

    /// Removes the worker `id` if `decide`, which is called while the worker is locked, says so.
    ///
    /// # Errors
    ///
    /// The store cannot be written. The worker is whole then, unless the text says otherwise.
    pub fn remove_worker<G>(
        &self,
        lock: &RemovalLock,
        id: &Name,
        decide: impl FnOnce() -> Result<Decision<G>>,
    ) -> Result<Removed> {
        let store = self.folder();
        let mut paths = Vec::new();
        let removed = remove(store, &lock.tombstones, id, decide, &mut paths);
        if !matches!(removed, Ok(Removed::No(_))) {
            store.log_in_store("gc", Some(&id.to_text()), paths, &removed);
        }
        removed
    }

    /// Removes the worker `id`, of which there is a copy elsewhere, if `is_unchanged` returns true
    /// while the worker is locked. Leaves no tombstone. Returns true if it was removed.
    ///
    /// # Errors
    ///
    /// The store cannot be written. The worker is whole then, or gone for readers.
    pub fn forget_worker(
        &self,
        id: &Name,
        is_unchanged: impl FnOnce(&Worker) -> bool,
    ) -> Result<bool> {
        let store = self.folder();
        let worker = Worker::open(Arc::clone(store), id)?;
        let locked = worker.folder().try_lock().during("lock", worker.folder().path(), b"")?;
        if locked.is_none() || !is_unchanged(&worker) {
            return Ok(false);
        }
        let workers = &store.workers;
        let remove = || {
            let name = names::removed_name()?;
            workers.rename_new(id, &name)?;
            Ok(name)
        };
        let renamed = remove().during("remove", workers.path(), id.as_bytes())?;
        folder::remove_from_index(workers, &BTreeSet::from([id.clone()]))?;
        registry::remove_one(&store.root, id)?;
        workers.remove_all(&renamed).during("remove", workers.path(), renamed.as_bytes())?;
        Ok(true)
    }

    /// Deletes the rest of workers whose directories were given a temporary name to remove them.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn delete_forgotten(&self) -> Result<()> {
        delete_all(&self.folder().workers, names::is_removed_name)
    }

    /// Deletes the rest of workers whose removal was interrupted after they were gone.
    ///
    /// # Errors
    ///
    /// The store cannot be read or written.
    pub fn finish_removals(&self, lock: &RemovalLock) -> Result<()> {
        let store = self.folder();
        let tombstones = &lock.tombstones;
        // Only the holder of the lock writes tombstones.
        delete_all(tombstones, is_temporary)?;
        delete_all(&store.workers, names::is_removed_name)?;
        let mut gone = BTreeSet::new();
        for id in registry::list_tombstones(&store.root)? {
            let kind = store.workers.kind(&id.clone().into());
            if kind.during("find", store.workers.path(), id.as_bytes())?.is_none() {
                gone.insert(id);
            }
        }
        folder::remove_from_index(&store.workers, &gone)?;
        // A worker is there before its record.
        registry::remove(&store.root, |id| Ok(store.workers.kind(&id.clone().into())?.is_none()))?;
        if let Some(drafts) = open_drafts(&store.root)? {
            delete_all(&drafts, names::is_removed_name)?;
            let names = drafts.list().during("list", drafts.path(), b"")?;
            for id in names.iter().filter(|name| gone.contains(*name)) {
                delete(&drafts, id).during("remove the draft", drafts.path(), id.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Lists the removed workers whose tombstones are damaged, until `deadline` passes.
    ///
    /// # Errors
    ///
    /// The tombstones cannot be listed.
    pub fn damaged_tombstones(&self, deadline: Deadline<'_>) -> Result<Vec<Name>> {
        let root = &self.folder().root;
        let mut ids = registry::list_tombstones(root)?;
        ids.retain(|id| {
            deadline.has_time() && !matches!(registry::read_tombstone(root, id), Ok(Some(_)))
        });
        Ok(ids)
    }

    /// Lists the entries of the directory of the workers that readers may show.
    pub fn worker_names(&self) -> Result<Vec<Name>> {
        let workers = &self.folder().workers;
        let mut names = workers.list().during("list", workers.path(), b"")?;
        names.retain(|name| !is_temporary(name));
        Ok(names)
    }

    pub fn worker_path(&self, id: &Name) -> RelPath {
        self.folder().worker_path(id)
    }
}

fn remove<G>(
    store: &Arc<StoreFolder>,
    folder: &Dir,
    id: &Name,
    decide: impl FnOnce() -> Result<Decision<G>>,
    paths: &mut Vec<AuditPath>,
) -> Result<Removed> {
    let worker = WorkerFolder::open(Arc::clone(store), id)?;
    let locked = worker.folder().try_lock().during("lock", worker.folder().path(), b"")?;
    let Some(_lock) = locked else {
        return Ok(Removed::No("a program is writing it".to_owned()));
    };
    let (tombstone, _guard) = match decide()? {
        Decision::Keep(reason) => return Ok(Removed::No(reason)),
        Decision::Remove(tombstone, guard) => (tombstone, guard),
    };
    let workers = &store.workers;
    paths.push(registry::write_tombstone(folder, id, &tombstone)?);
    let renamed = names::removed_name()
        .and_then(|name| workers.rename_new(id, &name).map(|()| name))
        .during("remove", workers.path(), id.as_bytes())?;
    // The worker is gone. The next removal completes the steps that follow.
    let complete = || {
        folder::remove_from_index(workers, &BTreeSet::from([id.clone()]))?;
        registry::remove_one(&store.root, id)?;
        if let Some(drafts) = open_drafts(&store.root)? {
            delete(&drafts, id).during("remove the draft", drafts.path(), id.as_bytes())?;
        }
        let delete = || {
            workers.remove_all(&renamed)?;
            workers.sync()
        };
        delete().during("remove", workers.path(), renamed.as_bytes())
    };
    if let Err(error) = complete() {
        store.warn(format!(
            "worker {} was removed, but not all of its files: {error}; the next `swarmletfs gc \
             --yes` removes the rest",
            id.display()
        ));
    }
    Ok(Removed::Yes)
}

fn open_drafts(root: &Dir) -> Result<Option<Dir>> {
    let path = RelPath::constant(DRAFTS);
    let open = || match root.kind(&path)? {
        Some(Kind::Folder) => root.enter(&path).map(Some),
        _ => Ok(None),
    };
    open().during("open", root.path(), DRAFTS.as_bytes())
}

/// Removes the entry `name` of `folder`, if there is one, under a temporary name.
fn delete(folder: &Dir, name: &Name) -> PathResult<()> {
    if folder.kind(&name.clone().into())?.is_none() {
        return Ok(());
    }
    let renamed = names::removed_name()?;
    folder.rename_new(name, &renamed)?;
    folder.remove_all(&renamed)?;
    folder.sync()
}

fn delete_all(folder: &Dir, unwanted: impl Fn(&Name) -> bool) -> Result<()> {
    let delete = || {
        let names = folder.list()?;
        let mut unwanted = names.iter().filter(|name| unwanted(name)).peekable();
        if unwanted.peek().is_none() {
            return Ok(());
        }
        unwanted.try_for_each(|name| folder.remove_all(name))?;
        folder.sync()
    };
    delete().during("remove what is left in", folder.path(), b"")
}
