//! Fragments kept for the next start: how each worker ended and why need not be found out again where nothing changed.
//!
//! All of a view are one entry of the cache folder, under a key of the program's source, of the stores and of whose the
//! view is. Each is used only for the very state of its worker's files that it was made of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Key;
use super::checks::Check;
use super::fragment::Fragment;
use crate::cache::{DiskCache, key};
use crate::model::{Outcome, Tokens};
use crate::name::Name;

/// For fewer new ones nothing is written, and not sooner than so long after the last time.
const FEW: u64 = 32;
const PAUSE: Duration = Duration::from_secs(300);

/// What a fragment is known by: the state of its worker's files, and what the catalog has.
pub(super) type Of = (Key, Key);

/// Where the fragments of a view are kept.
pub(super) struct Shelf {
    cache: Arc<DiskCache>,
    key: Key,
    /// How many were made since anything was written, and when that was.
    fresh: Mutex<(usize, Option<Instant>)>,
}

/// A fragment as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    /// The worker's name.
    name: Vec<u8>,
    of: Of,
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

impl Shelf {
    /// Returns the shelf in `cache` of the view that `scope` stands for.
    pub(super) fn new(cache: Arc<DiskCache>, scope: &Key) -> Shelf {
        Shelf { cache, key: key("fragments", &[scope]), fresh: Mutex::new((0, None)) }
    }

    /// All that are kept.
    pub(super) fn all(&self) -> Vec<(Name, Of, Fragment)> {
        let body = self.cache.get(self.key).and_then(|kept| kept.body()).unwrap_or_default();
        let all: Vec<Written> = postcard::from_bytes(&body).unwrap_or_default();
        all.into_iter().filter_map(Written::read).collect()
    }

    /// Whether it is time to keep what there is, now that so many more were made.
    pub(super) fn is_due(&self, made: usize) -> bool {
        let mut fresh = self.fresh.lock();
        fresh.0 += made;
        let due = fresh.0 as u64 >= self.cache.threshold(FEW) && fresh.1.is_none_or(|at| at.elapsed() >= PAUSE);
        if due {
            *fresh = (0, Some(Instant::now()));
        }
        due
    }

    /// Keeps these and no others.
    pub(super) fn keep(&self, all: &[(Name, Of, Arc<Fragment>)]) {
        let all: Vec<Written> =
            all.iter().filter_map(|(name, of, fragment)| Written::of(name, *of, fragment)).collect();
        if let Ok(body) = postcard::to_stdvec(&all) {
            self.cache.put(self.key, Vec::new(), body);
        }
    }
}

impl Written {
    /// `None` for one that may not outlive the process.
    fn of(name: &Name, of: Of, fragment: &Fragment) -> Option<Written> {
        // What its metadata tells of it now is no part of its state then.
        if !fragment.whole || !fragment.is_of_its_folder || fragment.worker.is_some() {
            return None;
        }
        let outcome = match fragment.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        };
        let tokens = fragment.tokens.map(|tokens| {
            let Tokens { input, output, cache_read, cache_creation } = tokens;
            [input, output, cache_read, cache_creation]
        });
        let check = |check: &Check| (check.name.to_string(), check.says.clone(), check.file.clone());
        Some(Written {
            name: name.as_bytes().to_vec(),
            of,
            outcome,
            calls: fragment.calls,
            failed: fragment.failed,
            unknown: fragment.unknown,
            output_bytes: fragment.output_bytes,
            tools: fragment.tools.clone(),
            tokens,
            cause: fragment.cause.clone(),
            checks: fragment.checks.iter().map(check).collect(),
        })
    }

    fn read(self) -> Option<(Name, Of, Fragment)> {
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
        let check = |(name, says, file): (String, String, String)| Check { name: name.into(), says, file };
        let fragment = Fragment {
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
            is_of_its_folder: true,
        };
        Some((Name::new(self.name).ok()?, self.of, fragment))
    }
}
