//! Digests on disk: a restart need not find out again why unchanged workers failed.
//!
//! All digests of a view are one entry in the cache directory. Its key covers the cache format,
//! the stores and the view's owner. A digest is used only for the exact state of the worker's files
//! that it describes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::checks::FailedCheck;
use super::file_uses::FileUse;
use super::worker_digest::WorkerDigest;
use swarmletfs_base::cache::{DiskCache, key};
use swarmletfs_base::digest::Key;
use swarmletfs_base::model::{Outcome, StatedCost, Tokens};
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

#[derive(Serialize, Deserialize)]
struct StoredDigest {
    name: Vec<u8>,
    key: DigestKey,
    outcome: u8,
    calls: usize,
    failed: usize,
    unknown: usize,
    suspect: usize,
    not_run: usize,
    open: usize,
    open_call: String,
    files: Vec<FileUse>,
    output_bytes: u64,
    tools: Vec<String>,
    tokens: Option<Tokens>,
    tokens_by_model: BTreeMap<String, Tokens>,
    tokens_are_partial: bool,
    cost: Option<StatedCost>,
    peak_context: Option<u64>,
    compactions: u64,
    cause: String,
    checks: Vec<FailedCheck>,
    attention: Attention,
    last_green: Option<Timestamp>,
}

impl DigestStore {
    pub fn new(cache: Arc<DiskCache>, scope: &Key) -> DigestStore {
        DigestStore { cache, key: key("fragments", &[scope]), unsaved: Mutex::default() }
    }

    pub fn load(&self) -> Vec<(Name, DigestKey, WorkerDigest)> {
        let body = self.cache.get(self.key).and_then(|entry| entry.body()).unwrap_or_default();
        let all: Vec<StoredDigest> = postcard::from_bytes(&body).unwrap_or_default();
        all.into_iter().filter_map(StoredDigest::into_digest).collect()
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
        let all: Vec<StoredDigest> = all
            .iter()
            .filter_map(|(name, key, digest)| StoredDigest::new(name, *key, digest))
            .collect();
        if let Ok(body) = postcard::to_stdvec(&all) {
            self.cache.put(self.key, Vec::new(), body);
        }
    }
}

impl StoredDigest {
    /// Serializes a digest. Returns `None` for a digest that must not outlive the process.
    fn new(name: &Name, key: DigestKey, digest: &WorkerDigest) -> Option<StoredDigest> {
        // Newer metadata than the catalog's, or files elsewhere, are not part of the key.
        if !digest.whole || !digest.is_self_contained || digest.worker.is_some() {
            return None;
        }
        let outcome = match digest.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown | Outcome::NotRun => 2,
        };
        Some(StoredDigest {
            name: name.as_bytes().to_vec(),
            key,
            outcome,
            calls: digest.calls,
            failed: digest.failed,
            unknown: digest.unknown,
            suspect: digest.suspect,
            not_run: digest.not_run,
            open: digest.open,
            open_call: digest.open_call.clone(),
            files: digest.files.clone(),
            output_bytes: digest.output_bytes,
            tools: digest.tools.clone(),
            tokens: digest.tokens,
            tokens_by_model: digest.tokens_by_model.clone(),
            tokens_are_partial: digest.tokens_are_partial,
            cost: digest.cost.clone(),
            peak_context: digest.peak_context,
            compactions: digest.compactions,
            cause: digest.cause.clone(),
            checks: digest.checks.clone(),
            attention: digest.attention.clone(),
            last_green: digest.last_green,
        })
    }

    /// Returns the digest with its worker and key, or `None` if the worker's name is invalid.
    fn into_digest(self) -> Option<(Name, DigestKey, WorkerDigest)> {
        let outcome = match self.outcome {
            0 => Outcome::Ok,
            1 => Outcome::Failed,
            _ => Outcome::Unknown,
        };
        let digest = WorkerDigest {
            worker: None,
            outcome,
            calls: self.calls,
            failed: self.failed,
            unknown: self.unknown,
            suspect: self.suspect,
            not_run: self.not_run,
            open: self.open,
            open_call: self.open_call,
            files: self.files,
            output_bytes: self.output_bytes,
            tools: self.tools,
            tokens: self.tokens,
            tokens_by_model: self.tokens_by_model,
            tokens_are_partial: self.tokens_are_partial,
            cost: self.cost,
            peak_context: self.peak_context,
            compactions: self.compactions,
            cause: self.cause,
            checks: self.checks,
            attention: self.attention,
            last_green: self.last_green,
            whole: true,
            late: false,
            is_self_contained: true,
        };
        Some((Name::new(self.name).ok()?, self.key, digest))
    }
}
