//! The worker artifact store: a folder a worker, in `workers/` (as specified) or directly in the store (as the first
//! implementation writes it).
//!
//! The folders are the truth: a missing, corrupt or contradicting index.json hides no worker. It only adds what the
//! metadata leaves out.

mod index;
mod input;
mod layout;
mod literal;
mod metadata;
mod metrics;
mod outcome;
mod outputs;
mod record;
mod thread;

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Fit, Format, Found, Glance, Place};
use crate::error::{Error, Result};
use crate::model::{Trace, Worker};
use crate::name::RelPath;
use crate::store::{Kind, Meta, Store, Time};

/// The format of the worker artifact store, for one store.
#[derive(Default)]
pub struct Swarmlet {
    /// What the store's index.json files said when last read.
    index: Mutex<Arc<index::Index>>,
}

impl Format for Swarmlet {
    fn name(&self) -> &'static str {
        "swarmlet"
    }

    fn fit(&self, store: &dyn Store) -> Result<Fit> {
        layout::fit(store)
    }

    fn find(&self, store: &dyn Store) -> Result<Found> {
        let known = self.index.lock().clone();
        let fresh = index::refresh(store, known);
        *self.index.lock() = fresh;
        layout::find(store)
    }

    fn glance(&self, store: &dyn Store, folder: &RelPath) -> Result<Option<Glance>> {
        let own = store.stat(folder)?;
        // Whatever bears the name makes the folder a worker: a link or a FIFO there is a flaw, not an absence.
        let metadata = found(store.stat(&layout::inside(folder, metadata::FILE)))?;
        let calls = present(store.stat(&layout::inside(folder, record::CALLS)))?;
        if metadata.is_none() && calls.is_none_or(|calls| calls.kind != Kind::Folder) {
            return Ok(None);
        }
        // A layout without `task` in its metadata has it in a file of its own.
        let task = present(store.stat(&layout::inside(folder, metadata::TASK_FILE)))?;
        let mut hash = blake3::Hasher::new();
        let mut newest = Time::default();
        for meta in [Some(own), metadata, calls, task] {
            hash_meta(&mut hash, meta.as_ref());
            newest = newest.max(meta.map(|meta| meta.mtime).unwrap_or_default());
        }
        if let Some(entry) = folder.file_name().and_then(|id| self.index.lock().get(&id)) {
            hash.update(&entry.digest);
        }
        Ok(Some(Glance { identity: own.identity, key: short(&hash), newest }))
    }

    fn worker(&self, store: &dyn Store, folder: &RelPath, last_good: Option<&Worker>) -> Worker {
        let entry = folder.file_name().and_then(|id| self.index.lock().get(&id));
        metadata::worker(store, folder, entry.as_deref(), last_good)
    }

    fn trace(&self, place: Place<'_>, worker: &Worker, go_on: &dyn Fn() -> bool) -> Result<(Trace, u64)> {
        record::trace(place, worker, go_on)
    }

    fn supervisor(&self) -> Option<RelPath> {
        RelPath::parse(layout::SUPERVISOR).ok()
    }

    fn index_files(&self) -> Vec<RelPath> {
        index::FILES.iter().filter_map(|path| RelPath::parse(path).ok()).collect()
    }
}

/// Turns "is not there" into `None`; other errors stay.
fn found(meta: Result<Meta>) -> Result<Option<Meta>> {
    match meta {
        Ok(meta) => Ok(Some(meta)),
        Err(Error::NotFound | Error::Escape | Error::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for what is read: a link or a special file in the place is not there either.
fn present(meta: Result<Meta>) -> Result<Option<Meta>> {
    Ok(found(meta)?.filter(|meta| matches!(meta.kind, Kind::File | Kind::Folder)))
}

fn hash_meta(hash: &mut blake3::Hasher, meta: Option<&Meta>) {
    let Some(meta) = meta else {
        hash.update(&[0]);
        return;
    };
    hash.update(&[1]);
    hash.update(&meta.identity.ino.to_le_bytes());
    hash.update(&meta.size.to_le_bytes());
    for time in [meta.mtime, meta.ctime] {
        hash.update(&time.secs.to_le_bytes());
        hash.update(&time.nanos.to_le_bytes());
    }
}

fn short(hash: &blake3::Hasher) -> [u8; 16] {
    let mut key = [0; 16];
    hash.finalize_xof().fill(&mut key);
    key
}
