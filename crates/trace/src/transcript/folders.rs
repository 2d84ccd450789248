//! The directories that hold transcripts, entered once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::format::TranscriptFormat;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

const FOLDERS_MAX: usize = 256;

/// Directories of transcripts, entered once and reused by every access to a worker.
#[derive(Default)]
pub(super) struct Folders(Mutex<HashMap<RelPath, Arc<dyn Store>>>);

impl Folders {
    pub(super) fn enter(&self, store: &dyn Store, folder: &RelPath) -> Result<Arc<dyn Store>> {
        let held = self.0.lock().get(folder).cloned();
        match held {
            Some(held) => Ok(held),
            None => store.enter(folder).map(Into::into),
        }
    }

    /// Reopens directories that were replaced, and drops those that are gone.
    pub(super) fn refresh(
        &self,
        store: &dyn Store,
        format: &dyn TranscriptFormat,
        transcripts: &[RelPath],
    ) {
        let wanted: HashSet<RelPath> = transcripts
            .iter()
            .filter_map(|path| format.locate(path))
            .map(|location| location.folder)
            .collect();
        let held = self.0.lock().clone();
        let fresh = wanted.into_iter().take(FOLDERS_MAX).filter_map(|path| {
            let current = store.stat(&path).ok()?.identity;
            let entered = match held.get(&path) {
                Some(held)
                    if held.stat(&RelPath::root()).is_ok_and(|meta| meta.identity == current) =>
                {
                    held.clone()
                }
                _ => store.enter(&path).ok()?.into(),
            };
            Some((path, entered))
        });
        *self.0.lock() = fresh.collect();
    }
}
