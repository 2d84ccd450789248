//! Leftovers of a crash in a store, and their repair.
//!
//! A change in progress holds a lock, which the system releases when its process ends. So a
//! temporary entry or an open call without a lock was left behind.

use std::sync::Arc;
use std::time::Duration;

use super::call::{self, OpenCall};
use super::dir::{Dir, Lock};
use super::error::{During, Result};
use super::folder::{StoreFolder, WorkerFolder};
use super::{lines, names, registry};
use crate::audit::AuditPath;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_trace::swarmlet::{CALLS, METADATA, METRICS, REGISTRY};

/// Youngest temporary entry that counts as left behind: its lock may not be taken yet.
const AGE_MIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// The directory of a worker that was not created wholly, from the root of the store.
    NewWorker(RelPath),
    /// A file under a temporary name, from the root of the store.
    TemporaryFile(RelPath),
    /// A call of a worker that has not finished: it began, and nothing records it any more.
    OpenCall {
        worker: Name,
        /// The output of the call, from the worker's directory.
        call: RelPath,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub found: Vec<Leftover>,
    /// Workers that could not be searched: they cannot be read, or the time ran out.
    pub unread: u64,
}

pub(super) fn find(store: &StoreFolder, deadline: Deadline<'_>) -> Result<Leftovers> {
    let mut leftovers = Leftovers::default();
    find_in_registry(store, &mut leftovers);
    let names = store.workers.list().during("list", store.workers.path(), b"")?;
    for name in names {
        if !deadline.has_time() {
            leftovers.unread += 1;
            continue;
        }
        let found = if is_temporary(&name) {
            find_temporary(&store.workers, &store.workers_path, &name)
                .map(|found| found.into_iter().collect())
        } else {
            find_in_worker(store, &name)
        };
        match found {
            Ok(found) => leftovers.found.extend(found),
            Err(_) => leftovers.unread += 1,
        }
    }
    Ok(leftovers)
}

fn find_in_registry(store: &StoreFolder, leftovers: &mut Leftovers) {
    let find = || {
        let Some(registry) = registry::open(&store.root)? else { return Ok(Vec::new()) };
        let names = registry.list()?.into_iter().filter(is_temporary);
        let path = RelPath::constant(REGISTRY);
        names.map(|name| find_temporary(&registry, &path, &name)).collect::<PathResult<Vec<_>>>()
    };
    match find() {
        Ok(found) => leftovers.found.extend(found.into_iter().flatten()),
        Err(_) => leftovers.unread += 1,
    }
}

fn find_in_worker(store: &StoreFolder, id: &Name) -> Result<Vec<Leftover>, PathError> {
    let folder = match store.workers.enter(&id.clone().into()) {
        // Readers count entries that are no directories.
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        folder => folder?,
    };
    if folder.kind(&RelPath::constant(METADATA))? != Some(Kind::File) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in folder.list()?.into_iter().filter(is_temporary) {
        found.extend(find_temporary(&folder, &store.worker_path(id), &name)?);
    }
    // A worker that has finished does not change any more.
    let is_finished =
        lines::read(&folder).is_ok_and(|fields| lines::must_be_unfinished(&fields, id).is_err());
    if !is_finished {
        for call in lost_calls(&folder)? {
            let call = RelPath::constant(CALLS).join(&call.file_name()?);
            found.push(Leftover::OpenCall { worker: id.clone(), call });
        }
    }
    Ok(found)
}

fn lost_calls(folder: &Dir) -> Result<Vec<OpenCall>, PathError> {
    let mut lost = Vec::new();
    for call in call::find_open(folder)? {
        if call.file_name().is_ok() && !call::is_recorded_now(folder, &call)? {
            lost.push(call);
        }
    }
    Ok(lost)
}

/// Returns the temporary entry `name` of `folder`, which has the path `parent`, if no process is
/// writing it.
fn find_temporary(
    folder: &Dir,
    parent: &RelPath,
    name: &Name,
) -> Result<Option<Leftover>, PathError> {
    let path = parent.join(name);
    Ok(left_behind(folder, name)?.map(|(kind, _)| match kind {
        Kind::Folder => Leftover::NewWorker(path),
        _ => Leftover::TemporaryFile(path),
    }))
}

/// Returns the kind of the temporary entry `name`, and its lock, so that no process can begin to
/// write it. Returns `None` if it is gone or being written.
fn left_behind(folder: &Dir, name: &Name) -> Result<Option<(Kind, Option<Lock>)>, PathError> {
    let Some(meta) = folder.meta(name)? else { return Ok(None) };
    // The age is looked at first: the lock of a new entry is not to be taken before its writer
    // takes it. A time in the future says nothing.
    let age = meta.modified().ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age < AGE_MIN) {
        return Ok(None);
    }
    let path = RelPath::from(name.clone());
    let Some(kind) = folder.kind(&path)? else { return Ok(None) };
    let lock = match kind {
        Kind::Folder => folder.enter(&path)?.try_lock()?,
        Kind::File => folder.try_lock_file(name)?,
        // Nothing writes these.
        Kind::Link | Kind::Special => return Ok(Some((kind, None))),
    };
    Ok(lock.map(|lock| (kind, Some(lock))))
}

/// Returns true if this is the directory of a worker whose removal was interrupted.
pub(super) fn is_removal(leftover: &Leftover) -> bool {
    let Leftover::NewWorker(path) = leftover else { return false };
    path.file_name().is_some_and(|name| names::is_removed_name(&name))
}

/// Repairs `leftover`: removes a temporary entry, and states that the recorder of a call is gone.
/// Returns false if it is gone or in use by now.
pub(super) fn repair(store: &Arc<StoreFolder>, leftover: &Leftover) -> Result<bool> {
    let repaired = match leftover {
        Leftover::NewWorker(path) | Leftover::TemporaryFile(path) => remove_temporary(store, path),
        Leftover::OpenCall { worker, call } => end_call(store, worker, call),
    };
    if !matches!(repaired, Ok(false)) {
        log_repair(store, leftover, &repaired);
    }
    repaired
}

pub(super) fn log_repair(store: &StoreFolder, leftover: &Leftover, repaired: &Result<bool>) {
    let (worker, path) = match leftover {
        Leftover::NewWorker(path) | Leftover::TemporaryFile(path) => (None, path.clone()),
        Leftover::OpenCall { worker, call } => {
            (Some(worker.to_text()), store.worker_path(worker).join_path(call))
        }
    };
    let paths = vec![AuditPath { path: path.to_text().into(), bytes: 0, sha256: None }];
    store.log_in_store("repair", worker.as_deref(), paths, repaired);
}

fn remove_temporary(store: &StoreFolder, path: &RelPath) -> Result<bool> {
    let remove = || {
        let Some(name) = path.file_name() else { return Ok(false) };
        let folder = store.root.enter(&path.parent())?;
        if !is_temporary(&name) {
            return Ok(false);
        }
        let Some((_, _lock)) = left_behind(&folder, &name)? else { return Ok(false) };
        folder.remove_all(&name).map(|()| true)
    };
    remove().during("remove", store.root.path(), path.as_bytes())
}

fn end_call(store: &Arc<StoreFolder>, id: &Name, path: &RelPath) -> Result<bool> {
    let worker = WorkerFolder::open(Arc::clone(store), id)?;
    let (lock, _) = worker.lock_unfinished()?;
    let place = worker.folder().path();
    let lost = lost_calls(worker.folder()).during("read", place, METRICS.as_bytes())?;
    let lost = lost.iter().find(|call| call.file_name().ok() == path.file_name());
    let Some(call) = lost else { return Ok(false) };
    let line = call::line_of_lost_recorder(call).during("write", place, METRICS.as_bytes())?;
    worker.append(&lock, METRICS, &line).map(|()| true)
}
