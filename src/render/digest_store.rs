//! DigestCache kept for the next start: how each worker ended and why need not be found out again where nothing changed.
//!
//! All of a view are one entry of the cache folder, under a key of the program's source, of the stores and of whose the
//! view is. Each is used only for the very state of its worker's files that it was made of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Key;
use super::checks::Check;
use super::worker_digest::WorkerDigest;
use crate::cache::{DiskCache, key};
use crate::model::{Outcome, Tokens};
use crate::name::Name;

/// For fewer new ones nothing is written, and not sooner than so long after the last time.
const FEW: u64 = 32;
const PAUSE: Duration = Duration::from_secs(300);

/// What a digest is known by: the state of its worker's files, and what the catalog has.
pub(super) type DigestKey = (Key, Key);

/// Where the digests of a view are kept.
pub(super) struct DigestStore {
    cache: Arc<DiskCache>,
    key: Key,
    /// How many were made since anything was written, and when that was.
    fresh: Mutex<(usize, Option<Instant>)>,
}

/// A digest as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    /// The worker's name.
    name: Vec<u8>,
    of: DigestKey,
    outcome: u8,
    calls: usize,
    failed: usize,
    unknown: usize,
    output_bytes: u64,
    tools: Vec<String>,
    tokens: Option<[u64; 4]>,
    cause: String,
    checks: Vec<(String, String, String)>,
}

impl DigestStore {
    /// Returns the shelf in `cache` of the view that `scope` stands for.
    pub(super) fn new(cache: Arc<DiskCache>, scope: &Key) -> DigestStore {
        DigestStore { cache, key: key("fragments", &[scope]), fresh: Mutex::new((0, None)) }
    }

    /// All that are kept.
    pub(super) fn all(&self) -> Vec<(Name, DigestKey, WorkerDigest)> {
        let body = self.cache.get(self.key).and_then(|kept| kept.body()).unwrap_or_default();
        let all: Vec<Written> = postcard::from_bytes(&body).unwrap_or_default();
        all.into_iter().filter_map(Written::read).collect()
    }

    /// Whether it is time to keep what there is, now that so many more were made.
    pub(super) fn is_due(&self, made: usize) -> bool {
        let mut fresh = self.fresh.lock();
        fresh.0 += made;
        let due = fresh.0 as u64 >= self.cache.worth(FEW) && fresh.1.is_none_or(|at| at.elapsed() >= PAUSE);
        if due {
            *fresh = (0, Some(Instant::now()));
        }
        due
    }

    /// Keeps these and no others.
    pub(super) fn keep(&self, all: &[(Name, DigestKey, Arc<WorkerDigest>)]) {
        let all: Vec<Written> = all.iter().filter_map(|(name, of, digest)| Written::new(name, *of, digest)).collect();
        if let Ok(body) = postcard::to_stdvec(&all) {
            self.cache.put(self.key, Vec::new(), body);
        }
    }
}

impl Written {
    /// `None` for one that may not outlive the process.
    fn new(name: &Name, of: DigestKey, digest: &WorkerDigest) -> Option<Written> {
        // What its metadata tells of it now is no part of its state then.
        if !digest.whole || !digest.is_self_contained || digest.worker.is_some() {
            return None;
        }
        let outcome = match digest.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        };
        let tokens = digest.tokens.map(|tokens| {
            let Tokens { input, output, cache_read, cache_creation } = tokens;
            [input, output, cache_read, cache_creation]
        });
        let check = |check: &Check| (check.name.to_string(), check.message.clone(), check.file.clone());
        Some(Written {
            name: name.as_bytes().to_vec(),
            of,
            outcome,
            calls: digest.calls,
            failed: digest.failed,
            unknown: digest.unknown,
            output_bytes: digest.output_bytes,
            tools: digest.tools.clone(),
            tokens,
            cause: digest.cause.clone(),
            checks: digest.checks.iter().map(check).collect(),
        })
    }

    fn read(self) -> Option<(Name, DigestKey, WorkerDigest)> {
        let outcome = match self.outcome {
            0 => Outcome::Ok,
            1 => Outcome::Failed,
            _ => Outcome::Unknown,
        };
        let tokens = self.tokens.map(|[input, output, cache_read, cache_creation]| Tokens {
            input,
            output,
            cache_read,
            cache_creation,
        });
        let check = |(name, message, file): (String, String, String)| Check { name: name.into(), message, file };
        let digest = WorkerDigest {
            worker: None,
            outcome,
            calls: self.calls,
            failed: self.failed,
            unknown: self.unknown,
            output_bytes: self.output_bytes,
            tools: self.tools,
            tokens,
            cause: self.cause,
            checks: self.checks.into_iter().map(check).collect(),
            whole: true,
            late: false,
            is_self_contained: true,
        };
        Some((Name::new(self.name).ok()?, self.of, digest))
    }
}
