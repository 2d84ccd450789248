//! A cache of worker digests.
//!
//! Digests from an earlier process are loaded at the first use. Missing ones are computed on
//! several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::digest_store::{DigestKey, DigestStore};
use super::retry::RetryBudget;
use super::settings::{Control, PART_GRACE, Settings, Subject};
use super::worker_digest::WorkerDigest;
use super::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::parallel::parallel_rounds;
use swarmletfs_base::watchdog::{Unfinished, Watchdog};

const CAPACITY: usize = 200_000;
/// Maximum duration of one backfill step. Other requests run between steps.
const BACKFILL_STEP: Duration = Duration::from_millis(250);
/// Cost of a file in bytes, added to its size: about the amount read of each of many files.
const FILE_COST: u64 = 64 << 10;

pub enum DigestResult {
    /// The digest, with the state of the worker's files that it describes.
    Ready(Arc<WorkerDigest>, Arc<Fingerprint>),
    /// Time ran out, or the worker cannot be read.
    Unread,
    Gone,
}

impl DigestResult {
    pub fn digest(&self) -> Option<&Arc<WorkerDigest>> {
        match self {
            DigestResult::Ready(digest, _) => Some(digest),
            DigestResult::Unread | DigestResult::Gone => None,
        }
    }

    pub fn matches(&self, requested: &Result<Arc<Fingerprint>>) -> bool {
        match (self, requested) {
            (DigestResult::Ready(_, fingerprint), Ok(requested)) => {
                fingerprint.key == requested.key
            }
            (DigestResult::Gone, Err(error)) => *error == Error::NotFound,
            _ => false,
        }
    }
}

pub struct DigestCache {
    /// The latest digest of each worker by name, and the state that it describes.
    digests: Cache<Name, (DigestKey, Arc<WorkerDigest>)>,
    worker_timeout: Duration,
    /// True if a request ran out of time since [`DigestCache::has_backlog`] last checked.
    is_incomplete: AtomicBool,
    /// Index of the worker that the backfill reads next, or `None` if there is no backlog.
    next_worker: Mutex<Option<usize>>,
    store: Option<DigestStore>,
    loaded: Once,
    watchdog: Watchdog<Subject>,
}

impl DigestCache {
    pub fn new(
        worker_timeout: Duration,
        store: Option<DigestStore>,
        watchdog: Watchdog<Subject>,
    ) -> DigestCache {
        DigestCache {
            digests: Cache::new(CAPACITY),
            worker_timeout,
            is_incomplete: AtomicBool::new(false),
            next_worker: Mutex::new(None),
            store,
            loaded: Once::new(),
            watchdog,
        }
    }

    fn load_stored(&self) {
        self.loaded.call_once(|| {
            for (name, key, digest) in self.store.iter().flat_map(DigestStore::load) {
                self.digests.insert(name, (key, Arc::new(digest)));
            }
        });
    }

    /// Takes over the digests in the cache of another view with the same restriction. A digest is
    /// used only for a worker in the state that it describes.
    pub fn adopt(&self, other: &DigestCache) {
        // Loaded later, they would replace the digests that are taken over.
        self.load_stored();
        other.digests.iter().for_each(|(name, digest)| self.digests.insert(name, digest));
    }

    fn cached(&self, member: &Member, fingerprint: &Fingerprint) -> Option<Arc<WorkerDigest>> {
        let (key, digest) = self.digests.get(&member.name)?;
        (key == digest_key(member, fingerprint)).then_some(digest)
    }

    /// Stores the digests of `workers` for the next start, if that is due after `computed` more
    /// digests.
    fn store<'a>(&self, computed: usize, workers: impl Iterator<Item = &'a Arc<Member>>) {
        if let Some(store) = self.store.as_ref().filter(|store| store.is_due(computed)) {
            store.save(&workers.filter_map(|member| self.lasting(member)).collect::<Vec<_>>());
        }
    }

    /// Returns the digest of a worker with its name and key, if it may match at the next start.
    fn lasting(&self, member: &Member) -> Option<(Name, DigestKey, Arc<WorkerDigest>)> {
        let (key, digest) = self.digests.get(&member.name)?;
        // A version that does not last cannot match at the next start.
        let fingerprint =
            member.entry.last_fingerprint().filter(|fingerprint| fingerprint.is_stable())?;
        (key == digest_key(member, &fingerprint)).then(|| (member.name.clone(), key, digest))
    }

    pub(super) fn mark_incomplete(&self) {
        self.is_incomplete.store(true, Ordering::Release);
    }

    pub fn has_backlog(&self) -> bool {
        let mut next = self.next_worker.lock();
        if self.is_incomplete.swap(false, Ordering::AcqRel) {
            next.get_or_insert(0);
        }
        next.is_some()
    }

    /// Computes missing digests for a short time, each once. Returns true if there are more.
    pub fn backfill(self: &Arc<Self>, view: &Arc<View>) -> bool {
        let started = Instant::now();
        let visible = view.visible();
        let Some(mut at) = *self.next_worker.lock() else { return false };
        self.load_stored();
        while let Some(member) =
            visible.members.get(at).filter(|_| started.elapsed() < BACKFILL_STEP)
        {
            at += 1;
            // Advance first: a worker that always fails must not block the others.
            *self.next_worker.lock() = Some(at);
            // Errors are ignored: the next request reads the worker again and reports them.
            if let Ok(fingerprint) = view.fingerprint(member, false) {
                self.get_or_compute(view, member, &fingerprint, None, Deadline::never());
            }
        }
        let more = at < visible.members.len();
        *self.next_worker.lock() = more.then_some(at);
        if !more {
            self.store(visible.members.len(), visible.members.iter());
        }
        more
    }

    /// Returns the digests of the workers in `states`, in their order. If `is_whole_view` is true,
    /// the digests may be stored for the next start.
    pub fn get_all(
        self: &Arc<Self>,
        view: &Arc<View>,
        states: &WorkerStates,
        is_whole_view: bool,
        settings: &Settings,
        deadline: Deadline<'_>,
    ) -> Vec<DigestResult> {
        self.load_stored();
        let mut results: Vec<DigestResult> = Vec::with_capacity(states.len());
        let mut missing: Vec<(u64, usize, &Arc<Member>, &Arc<Fingerprint>)> = Vec::new();
        for (at, (member, fingerprint)) in states.iter().enumerate() {
            results.push(match fingerprint {
                Ok(fingerprint) => match self.cached(member, fingerprint) {
                    Some(digest) => DigestResult::Ready(digest, fingerprint.clone()),
                    None => {
                        missing.push((read_cost(fingerprint), at, member, fingerprint));
                        DigestResult::Unread
                    }
                },
                Err(Error::NotFound) => DigestResult::Gone,
                Err(_) => DigestResult::Unread,
            });
        }
        // Small workers first, so that a large one does not use up the time of all others.
        missing.sort_unstable_by_key(|(cost, at, ..)| (*cost, *at));
        settings.start_stage(missing.len());
        let computed = parallel_rounds(
            &missing,
            deadline,
            |(_, _, member, fingerprint), deadline| {
                let control = settings.control.as_ref();
                let result = self.get_or_compute(view, member, fingerprint, control, deadline);
                settings.count_one();
                result
            },
            |result| match result {
                DigestResult::Ready(digest, _) => digest.late,
                DigestResult::Unread => true,
                DigestResult::Gone => false,
            },
        );
        for ((_, at, ..), result) in missing.iter().zip(computed) {
            if let Some(slot) = results.get_mut(*at) {
                *slot = result;
            }
        }
        if !deadline.has_time() {
            self.mark_incomplete();
        } else if is_whole_view {
            self.store(missing.len(), states.iter().map(|(member, _)| member));
        }
        results
    }

    /// Returns the digest of a worker in the state `fingerprint`, or in a later state if its files
    /// change meanwhile. If reading the files does not end, the digest says so.
    fn get_or_compute(
        self: &Arc<Self>,
        view: &Arc<View>,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        control: Option<&Arc<Control>>,
        deadline: Deadline<'_>,
    ) -> DigestResult {
        if let Some(digest) = self.cached(member, fingerprint) {
            return DigestResult::Ready(digest, fingerprint.clone());
        }
        if !deadline.has_time() {
            return DigestResult::Unread;
        }
        let subject = Subject::Worker(member.name.clone());
        // An abandoned thread may finish meanwhile and fill the cache.
        let waited = self.watchdog.wait(&subject, deadline);
        let started = Instant::now();
        let result = waited.and_then(|()| {
            let (cache, view, member) = (self.clone(), view.clone(), member.clone());
            let (fingerprint, control) = (fingerprint.clone(), control.cloned());
            self.watchdog.run(
                &subject,
                PART_GRACE,
                Deadline::new(&|| deadline.has_time() && started.elapsed() < self.worker_timeout),
                move |deadline| {
                    let has_time = || deadline.has_time() && Control::permits(control.as_ref());
                    cache.compute(&view, &member, fingerprint, Deadline::new(&has_time))
                },
            )
        });
        match result {
            Ok(result) => result,
            Err(Unfinished::Late) => DigestResult::Unread,
            Err(Unfinished::Abandoned) => DigestResult::Ready(
                Arc::new(WorkerDigest::unreadable(&Error::Abandoned)),
                fingerprint.clone(),
            ),
        }
    }

    /// Computes and caches the digest of a worker, again if its files change meanwhile.
    fn compute(
        &self,
        view: &View,
        member: &Member,
        mut fingerprint: Arc<Fingerprint>,
        deadline: Deadline<'_>,
    ) -> DigestResult {
        let mut attempts = RetryBudget::new(self.worker_timeout);
        loop {
            if let Some(digest) = self.cached(member, &fingerprint) {
                return DigestResult::Ready(digest, fingerprint);
            }
            let digest = match view.record(member, &fingerprint, deadline) {
                Ok(record) => WorkerDigest::new(view, member, &fingerprint, &record),
                Err(Error::NotFound) => return DigestResult::Gone,
                Err(error) => WorkerDigest::unreadable(&error),
            };
            let digest = Arc::new(digest);
            let now = match view.fingerprint_again(member, &fingerprint) {
                Ok(now) => now,
                Err(Error::NotFound) => return DigestResult::Gone,
                Err(_) => return DigestResult::Unread,
            };
            let settled = now.key == fingerprint.key;
            if settled && digest.whole {
                self.digests.insert(
                    member.name.clone(),
                    (digest_key(member, &fingerprint), digest.clone()),
                );
            }
            if settled {
                return DigestResult::Ready(digest, fingerprint);
            }
            if !deadline.has_time() || !attempts.try_again() {
                return DigestResult::Ready(digest, now);
            }
            fingerprint = now;
        }
    }
}

fn read_cost(fingerprint: &Fingerprint) -> u64 {
    fingerprint.files.saturating_mul(FILE_COST).saturating_add(fingerprint.bytes)
}

fn digest_key(member: &Member, fingerprint: &Fingerprint) -> DigestKey {
    (fingerprint.version, member.entry.key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::view::Filter;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::Memory;

    #[test]
    fn a_worker_that_keeps_changing_takes_one_entry() {
        let store = Arc::new(Memory::new());
        let path = |name: &str| RelPath::parse(format!("workers/w/{name}")).unwrap();
        store.write(&path("metadata.json"), r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view =
            View::new(vec![Source::from_store(store.clone(), None)], fresh, Filter::default())
                .unwrap();
        let view = Arc::new(view);
        let cache = Arc::new(DigestCache::new(Duration::from_secs(60), None, Watchdog::default()));
        for number in 1..=100 {
            store.write(&path(&format!("tool_calls/{number:03}_sh.txt")), "x");
            let member = view.worker(&Name::new("w").unwrap()).unwrap();
            let states = vec![(member.clone(), view.fingerprint_now(&member))];
            let results =
                cache.get_all(&view, &states, true, &Settings::default(), Deadline::never());
            assert_eq!(results.first().and_then(DigestResult::digest).unwrap().calls, number);
        }
        assert_eq!(cache.digests.len(), 1);
    }
}
