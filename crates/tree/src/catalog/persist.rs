//! Cache of parsed workers on disk, so that the next start need not read the metadata of unchanged
//! workers.
//!
//! The workers of a store are split over several cache entries. The key of an entry covers
//! everything that decides which bytes of the store are read ([`Source::scope`]) and the number of
//! the entry. A cached worker is used only if the metadata fingerprint that it was parsed from is
//! unchanged. Workers that may change or have flaws are not cached.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::packed::PackedFields;
use super::{Entry, Source};
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::model::{Owner, SharedStr, Status, Worker};
use swarmletfs_base::name::{Name, RelPath};

/// Number of uncached workers from which on the cache is written again.
const UNCACHED_MIN: u64 = 256;
const CHUNK_WORKERS: usize = 16_384;
const CHUNKS_MAX: u32 = 64;

/// Cached workers of a store by path. [`PersistedWorkers::take`] removes each, to save memory with
/// very many workers.
#[derive(Default)]
pub(super) struct PersistedWorkers(
    HashMap<RelPath, (Key, Mutex<Option<PersistedWorker<'static>>>)>,
);

#[derive(Serialize, Deserialize)]
struct PersistedWorker<'a> {
    key: Key,
    root: Cow<'a, [u8]>,
    /// Id of the worker if it differs from the name of its directory.
    id: Option<Cow<'a, [u8]>>,
    owner: Option<SharedStr>,
    run: Option<SharedStr>,
    parent: Option<SharedStr>,
    status: Status,
    packed: Cow<'a, PackedFields>,
}

impl PersistedWorkers {
    pub(super) fn load(source: &Source) -> PersistedWorkers {
        let Some(cache) = source.cache().filter(|_| source.is_whole()) else {
            return PersistedWorkers::default();
        };
        let (scope, mut workers) = (source.scope(), HashMap::new());
        for number in 0..CHUNKS_MAX {
            let body = cache.get(chunk_key(scope, number)).and_then(|entry| entry.body());
            let chunk: Vec<PersistedWorker<'static>> =
                body.and_then(|body| postcard::from_bytes(&body).ok()).unwrap_or_default();
            // Chunks behind one that is not full are left over from a larger store.
            let is_last = chunk.len() < CHUNK_WORKERS;
            workers.extend(chunk.into_iter().filter_map(|worker| {
                let root = RelPath::parse(&worker.root).ok()?;
                Some((root, (worker.key, Mutex::new(Some(worker)))))
            }));
            if is_last {
                break;
            }
        }
        PersistedWorkers(workers)
    }

    /// Removes and returns the worker at `root` if it was parsed from metadata with this
    /// fingerprint key.
    pub(super) fn take(&self, root: &RelPath, metadata_key: Key) -> Option<Worker> {
        let (_, worker) = self.0.get(root).filter(|(key, _)| *key == metadata_key)?;
        worker.lock().take()?.into_worker(root)
    }

    fn had(&self, root: &RelPath, metadata_key: Key) -> bool {
        self.0.get(root).is_some_and(|(key, _)| *key == metadata_key)
    }

    /// Writes the workers of the store `number` to the cache, unless nearly all were loaded from
    /// it.
    pub(super) fn save_if_outdated(&self, source: &Source, number: usize, entries: &[Arc<Entry>]) {
        let Some(cache) = source.cache().filter(|_| source.is_whole()) else { return };
        let cacheable =
            || entries.iter().filter(|entry| entry.source == number && is_cacheable(entry));
        let uncached =
            cacheable().filter(|entry| !self.had(&entry.root, entry.metadata.key)).count();
        if uncached as u64 >= cache.threshold(UNCACHED_MIN) {
            save(cache, source.scope(), cacheable());
        }
    }
}

/// Returns true if parsing the worker again at the next start would give an equal record.
fn is_cacheable(entry: &Entry) -> bool {
    entry.whole && entry.flaws.is_empty() && entry.is_past_tick()
}

fn save<'a>(cache: &DiskCache, scope: Key, mut entries: impl Iterator<Item = &'a Arc<Entry>>) {
    for number in 0..CHUNKS_MAX {
        let chunk: Vec<PersistedWorker<'_>> =
            entries.by_ref().take(CHUNK_WORKERS).map(|entry| PersistedWorker::new(entry)).collect();
        let is_last = chunk.len() < CHUNK_WORKERS;
        if let Ok(body) = postcard::to_stdvec(&chunk) {
            cache.put(chunk_key(scope, number), Vec::new(), body);
        }
        if is_last {
            break;
        }
    }
}

fn chunk_key(scope: Key, number: u32) -> Key {
    key("workers", &[&scope, &number.to_le_bytes()])
}

impl<'a> PersistedWorker<'a> {
    fn new(entry: &'a Entry) -> PersistedWorker<'a> {
        let is_folder_name = entry.root.file_name().as_ref() == Some(&entry.id.0);
        PersistedWorker {
            key: entry.metadata.key,
            root: entry.root.as_bytes().into(),
            id: (!is_folder_name).then(|| entry.id.0.as_bytes().into()),
            owner: entry.owner.clone().map(|owner| owner.0),
            run: entry.run.clone(),
            parent: entry.parent.clone(),
            status: entry.status,
            packed: Cow::Borrowed(entry.packed()),
        }
    }

    /// Decodes the worker at `root`. Returns `None` if the encoding is invalid.
    fn into_worker(self, root: &RelPath) -> Option<Worker> {
        let name = match self.id {
            Some(id) => Name::new(id).ok()?,
            None => root.file_name()?,
        };
        let mut worker = Worker {
            owner: self.owner.map(Owner),
            run: self.run,
            parent: self.parent,
            status: self.status,
            ..Worker::new(name, root.clone())
        };
        self.packed.unpack(&mut worker)?;
        Some(worker)
    }
}
