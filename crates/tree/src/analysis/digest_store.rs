//! Digests on disk: a restart need not find out again why unchanged workers failed.
//!
//! All digests of a view are one entry in the cache directory. Its key covers the cache format,
//! the stores and the view's owner. A digest is used only for the exact state of the worker's files
//! that it describes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::worker_digest::WorkerDigest;
use swarmletfs_base::cache::{DiskCache, key};
use swarmletfs_base::digest::Key;
use swarmletfs_base::name::Name;

/// Minimum number of new digests that is worth a write.
const MIN_NEW: u64 = 32;
const WRITE_INTERVAL: Duration = Duration::from_secs(300);

/// Identifies a digest: the state of the worker's files, and the key of its catalog entry.
pub type DigestKey = (Key, Key);

pub struct DigestStore {
    cache: Arc<DiskCache>,
    key: Key,
    unsaved: Mutex<UnsavedDigests>,
}

#[derive(Default)]
struct UnsavedDigests {
    count: usize,
    last_write: Option<Instant>,
}

impl DigestStore {
    pub fn new(cache: Arc<DiskCache>, scope: &Key) -> DigestStore {
        DigestStore { cache, key: key("fragments", &[scope]), unsaved: Mutex::default() }
    }

    pub fn load(&self) -> Vec<(Name, DigestKey, WorkerDigest)> {
        let body = self.cache.get(self.key).and_then(|entry| entry.body()).unwrap_or_default();
        let all: Vec<(Vec<u8>, DigestKey, WorkerDigest)> =
            postcard::from_bytes(&body).unwrap_or_default();
        all.into_iter()
            .filter_map(|(name, key, digest)| Some((Name::new(name).ok()?, key, digest)))
            .collect()
    }

    /// Counts `computed` new digests. Returns true if it is time to write, and resets the count.
    pub fn is_due(&self, computed: usize) -> bool {
        let mut unsaved = self.unsaved.lock();
        unsaved.count += computed;
        let is_due = unsaved.count as u64 >= self.cache.threshold(MIN_NEW)
            && unsaved.last_write.is_none_or(|written| written.elapsed() >= WRITE_INTERVAL);
        if is_due {
            *unsaved = UnsavedDigests { count: 0, last_write: Some(Instant::now()) };
        }
        is_due
    }

    pub fn save(&self, all: &[(Name, DigestKey, Arc<WorkerDigest>)]) {
        let lasting = all.iter().filter(|(.., digest)| digest.may_outlive_process());
        let all: Vec<(&[u8], DigestKey, &WorkerDigest)> =
            lasting.map(|(name, key, digest)| (name.as_bytes(), *key, &**digest)).collect();
        if let Ok(body) = postcard::to_stdvec(&all) {
            self.cache.put(self.key, Vec::new(), body);
        }
    }
}
