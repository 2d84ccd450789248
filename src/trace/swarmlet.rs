//! The worker artifact store: a folder a worker, in `workers/` (as specified) or directly in the store (as the first
//! implementation writes it).
//!
//! The folders are the truth: a missing, corrupt or contradicting index.json hides no worker. It only adds what the
//! metadata leaves out.

mod index;
mod layout;
mod literal;
mod metadata;
mod metrics;
mod outcome;
mod outputs;
mod python;
mod record;
mod thread;

pub(crate) use python::texts as python_texts;

use parking_lot::Mutex;

use super::meta::{found, hash_meta, present};
use super::{Fit, Format, Found, Glance, Place};
use crate::digest::digest;
use crate::error::Result;
use crate::model::{Record, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Store};

/// The format of the worker artifact store, for one store.
#[derive(Default)]
pub struct Swarmlet {
    /// What the store's index.json files said when last read.
    index: Mutex<index::Index>,
    /// The folders that were found last.
    found: Mutex<Option<layout::Listing>>,
}

impl Format for Swarmlet {
    fn name(&self) -> &'static str {
        "swarmlet"
    }

    fn sign(&self) -> &'static str {
        "a metadata.json or a tool_calls/"
    }

    fn fit(&self, store: &dyn Store) -> Result<Fit> {
        layout::fit(store)
    }

    fn find(&self, store: &dyn Store) -> Result<Found> {
        let held = self.found.lock().take();
        let (found, listing) = layout::find_again(store, held)?;
        *self.found.lock() = listing;
        let known = self.index.lock().clone();
        let fresh = known.refresh(store, &found.folders);
        *self.index.lock() = fresh;
        Ok(found)
    }

    fn glance(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<Glance>> {
        let own = folder.stat_without_acl(&RelPath::root())?;
        // Whatever bears the name makes the folder a worker: a link or a FIFO there is a flaw, not an absence.
        let metadata = found(folder.stat_without_acl(&layout::path(layout::METADATA)))?;
        let calls = present(folder.stat_without_acl(&layout::path(layout::CALLS)))?;
        if metadata.is_none() && calls.is_none_or(|calls| calls.kind != Kind::Folder) {
            return Ok(None);
        }
        // A layout without `task` in its metadata has it in a file of its own.
        let task = present(folder.stat_without_acl(&layout::path(layout::TASK)))?;
        let mut hash = blake3::Hasher::new();
        // A worker is known by its folder's name, and not every rename shows in what stat tells of the folder.
        hash.update(path.as_bytes());
        hash.update(&[0]);
        let (mut newest, mut newest_change) = (own.last_write(), own.ctime);
        for meta in [Some(own), metadata, calls, task] {
            hash_meta(&mut hash, meta.as_ref());
            if let Some(meta) = meta {
                (newest, newest_change) = (newest.max(meta.last_write()), newest_change.max(meta.ctime));
            }
        }
        let said = self.index.lock().get(path);
        hash.update(said.as_bytes());
        Ok(Some(Glance { identity: own.identity, key: digest(&hash), newest, newest_change }))
    }

    fn lists(&self, name: &Name) -> bool {
        [layout::METADATA, layout::CALLS, layout::TASK].iter().any(|file| file.as_bytes() == name.as_bytes())
    }

    fn worker(&self, folder: &dyn Store, path: &RelPath, last_good: Option<&Worker>) -> Worker {
        let said = self.index.lock().get(path);
        let entries = said.entries();
        metadata::worker(folder, path, &entries, last_good).0
    }

    fn record(&self, place: Place<'_>, last_good: &Worker, go_on: &dyn Fn() -> bool) -> Result<Record> {
        let said = self.index.lock().get(&last_good.root);
        let entries = said.entries();
        let (worker, metadata) = metadata::worker(place.folder, &last_good.root, &entries, Some(last_good));
        Ok(record::record(place, worker, &metadata, go_on))
    }

    fn supervisor(&self) -> Option<RelPath> {
        RelPath::parse(layout::SUPERVISOR).ok()
    }

    fn index_files(&self) -> Vec<RelPath> {
        index::FILES.iter().filter_map(|path| RelPath::parse(path).ok()).collect()
    }
}
