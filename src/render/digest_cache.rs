//! The digests of many workers: kept as long as their workers do not change, and made by several threads where many
//! are missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::digest_store::{DigestKey, DigestStore};
use super::isolate::{GRACE_OF_PART, Subject};
use super::retry::RetryBudget;
use super::settings::{Control, Deadline, Settings};
use super::worker_digest::WorkerDigest;
use super::worker_states::WorkerStates;

use crate::catalog::Stamp;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::spread::spread;
use crate::view::{Member, View};
use crate::watchdog::{Unfinished, Watchdog};

/// How many are kept.
const CAPACITY: usize = 200_000;
/// For how long what was not read in time is read on, before it is another request's turn.
const BACKFILL_STEP: Duration = Duration::from_millis(250);
/// A file counts like so many bytes more: of each about so much is read even where it is one of many.
const FILE_COST: u64 = 64 << 10;

/// What came of asking for a digest.
pub(super) enum DigestResult {
    /// It is here, with the state of the worker's files that it is of.
    Ready(Arc<WorkerDigest>, Arc<Stamp>),
    /// There was no time for it, or its worker cannot be read.
    Unread,
    /// There is no such worker by now.
    Gone,
}

impl DigestResult {
    /// The digest, if it is here.
    pub(super) fn digest(&self) -> Option<&Arc<WorkerDigest>> {
        match self {
            DigestResult::Ready(digest, _) => Some(digest),
            DigestResult::Unread | DigestResult::Gone => None,
        }
    }

    /// Whether it is here, and of the state that was asked for.
    pub(super) fn matches(&self, asked: &Result<Arc<Stamp>>) -> bool {
        match (self, asked) {
            (DigestResult::Ready(_, stamp), Ok(asked)) => stamp.key == asked.key,
            (DigestResult::Gone, Err(error)) => *error == Error::NotFound,
            _ => false,
        }
    }
}

/// What is kept of the workers of a view.
pub(super) struct DigestCache {
    /// DigestKey each worker, by its name, the latest and the state that it is of.
    kept: Cache<Name, (DigestKey, Arc<WorkerDigest>)>,
    /// How long one of many may take.
    each: Duration,
    /// Whether not all could be made in time that were asked for.
    is_behind: AtomicBool,
    /// Which worker is next to be read for them; none once they have been.
    catching_up: Mutex<Option<usize>>,
    shelf: Option<DigestStore>,
    /// Done once what was kept before this start is here.
    fetched: Once,
    watchdog: Watchdog<Subject>,
}

impl DigestCache {
    /// None yet; one of many may take `each` to be made.
    pub(super) fn new(each: Duration, shelf: Option<DigestStore>, watchdog: Watchdog<Subject>) -> DigestCache {
        DigestCache {
            kept: Cache::new(CAPACITY),
            each,
            is_behind: AtomicBool::new(false),
            catching_up: Mutex::new(None),
            shelf,
            fetched: Once::new(),
            watchdog,
        }
    }

    /// Takes what was kept before this start.
    fn load_persisted(&self) {
        let keep = |(name, of, one)| self.kept.insert(name, (of, Arc::new(one)));
        self.fetched.call_once(|| self.shelf.iter().for_each(|shelf| shelf.all().into_iter().for_each(keep)));
    }

    /// That of a worker in this state, if it is kept.
    fn cached(&self, member: &Member, stamp: &Stamp) -> Option<Arc<WorkerDigest>> {
        let (of, digest) = self.kept.get(&member.name)?;
        (of == digest_key(member, stamp)).then_some(digest)
    }

    /// Keeps those of these workers for the next start if that is due, now that so many more were made.
    fn persist<'a>(&self, made: usize, workers: impl Iterator<Item = &'a Arc<Member>>) {
        if let Some(shelf) = self.shelf.as_ref().filter(|shelf| shelf.is_due(made)) {
            let kept = |member: &Arc<Member>| {
                let (of, digest) = self.kept.get(&member.name)?;
                // What was made of a version that does not last is of no use to the next start.
                let stamp = member.entry.last_stamp().filter(|stamp| stamp.lasts())?;
                (of == digest_key(member, &stamp)).then(|| (member.name.clone(), of, digest))
            };
            shelf.keep(&workers.filter_map(kept).collect::<Vec<_>>());
        }
    }

    /// Notes that something was not looked at in time.
    pub(super) fn mark_incomplete(&self) {
        self.is_behind.store(true, Ordering::Release);
    }

    /// Whether there is something left for [`DigestCache::catch_up`] to do.
    pub(super) fn has_backlog(&self) -> bool {
        let mut next = self.catching_up.lock();
        if self.is_behind.swap(false, Ordering::AcqRel) {
            next.get_or_insert(0);
        }
        next.is_some()
    }

    /// Makes for a moment those that are missing, each once. Whether there are more of them.
    pub(super) fn backfill(self: &Arc<Self>, view: &Arc<View>) -> bool {
        let begun = Instant::now();
        let has_time = || begun.elapsed() < BACKFILL_STEP;
        let visible = view.visible();
        let Some(mut at) = *self.catching_up.lock() else { return false };
        self.load_persisted();
        while let Some(member) = visible.members.get(at).filter(|_| has_time()) {
            at += 1;
            // One that cannot be made at all must not keep the others from being.
            *self.catching_up.lock() = Some(at);
            // What cannot be read now is read when it is asked for, and told.
            if let Ok(stamp) = view.stamp(member, false) {
                self.get_or_compute(view, member, &stamp, None, &|| true);
            }
        }
        let more = at < visible.members.len();
        *self.catching_up.lock() = more.then_some(at);
        if !more {
            self.persist(visible.members.len(), visible.members.iter());
        }
        more
    }

    /// What comes of each of `states`, in their order. Where these are `all` of the view, they may be kept for the next
    /// start.
    pub(super) fn get_all(
        self: &Arc<Self>,
        view: &Arc<View>,
        states: &WorkerStates,
        all: bool,
        settings: &Settings,
        has_time: Deadline<'_>,
    ) -> Vec<DigestResult> {
        self.load_persisted();
        let mut found: Vec<DigestResult> = Vec::with_capacity(states.len());
        let mut missing: Vec<(u64, usize, &Arc<Member>, &Arc<Stamp>)> = Vec::new();
        for (at, (member, stamp)) in states.iter().enumerate() {
            found.push(match stamp {
                Ok(stamp) => match self.cached(member, stamp) {
                    Some(digest) => DigestResult::Ready(digest, stamp.clone()),
                    None => {
                        let size = stamp.files.saturating_mul(FILE_COST).saturating_add(stamp.bytes);
                        missing.push((size, at, member, stamp));
                        DigestResult::Unread
                    }
                },
                Err(Error::NotFound) => DigestResult::Gone,
                Err(_) => DigestResult::Unread,
            });
        }
        // Small workers first: one that takes long to look into must not cost the others their line.
        missing.sort_unstable_by_key(|(size, at, ..)| (*size, *at));
        settings.expect(missing.len());
        let made = spread(&missing, |(_, _, member, stamp)| {
            let one = self.get_or_compute(view, member, stamp, settings.control.as_ref(), has_time);
            settings.count_one();
            one
        });
        for ((_, at, ..), one) in missing.iter().zip(made) {
            if let Some(slot) = found.get_mut(*at) {
                *slot = one;
            }
        }
        if !has_time() {
            self.mark_incomplete();
        } else if all {
            self.persist(missing.len(), states.iter().map(|(member, _)| member));
        }
        found
    }

    /// Returns the digest of one worker: of the state given, or of a later one if its files changed meanwhile. If
    /// reading them does not end, it says so.
    fn get_or_compute(
        self: &Arc<Self>,
        view: &Arc<View>,
        member: &Arc<Member>,
        stamp: &Arc<Stamp>,
        control: Option<&Arc<Control>>,
        has_time: Deadline<'_>,
    ) -> DigestResult {
        if let Some(digest) = self.cached(member, stamp) {
            return DigestResult::Ready(digest, stamp.clone());
        }
        if !has_time() {
            return DigestResult::Unread;
        }
        let subject = Subject::Worker(member.name.clone());
        // What was left behind is read by now, or soon.
        let waited = self.watchdog.wait(&subject, has_time);
        let begun = Instant::now();
        let in_time = || has_time() && begun.elapsed() < self.each;
        let make = {
            let (digests, view, member, stamp) = (self.clone(), view.clone(), member.clone(), stamp.clone());
            let control = control.cloned();
            move |in_time: Deadline<'_>| {
                digests.compute(&view, &member, stamp, &|| in_time() && Control::permits(control.as_ref()))
            }
        };
        match waited.and_then(|()| self.watchdog.run(&subject, GRACE_OF_PART, &in_time, make)) {
            Ok(found) => found,
            Err(Unfinished::Late) => DigestResult::Unread,
            Err(Unfinished::GivenUp) => {
                DigestResult::Ready(Arc::new(WorkerDigest::unreadable(&Error::GivenUp)), stamp.clone())
            }
        }
    }

    fn compute(&self, view: &View, member: &Member, mut stamp: Arc<Stamp>, in_time: Deadline<'_>) -> DigestResult {
        let mut attempts = RetryBudget::new(self.each);
        loop {
            if let Some(digest) = self.cached(member, &stamp) {
                return DigestResult::Ready(digest, stamp);
            }
            // A record that cannot be read is told as such, and one that is read in part is shown in part.
            let digest = match view.record(member, &stamp, in_time) {
                Ok(record) => WorkerDigest::new(view, member, &stamp, &record),
                Err(Error::NotFound) => return DigestResult::Gone,
                Err(error) => WorkerDigest::unreadable(&error),
            };
            let digest = Arc::new(digest);
            let now = match view.stamp_now(member) {
                Ok(now) => now,
                Err(Error::NotFound) => return DigestResult::Gone,
                Err(_) => return DigestResult::Unread,
            };
            let settled = now.key == stamp.key;
            if settled && digest.whole {
                self.kept.insert(member.name.clone(), (digest_key(member, &stamp), digest.clone()));
            }
            if settled {
                return DigestResult::Ready(digest, stamp);
            }
            if !in_time() || !attempts.another() {
                return DigestResult::Ready(digest, now);
            }
            stamp = now;
        }
    }
}

fn digest_key(member: &Member, stamp: &Stamp) -> DigestKey {
    (stamp.version, member.entry.key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::name::RelPath;
    use crate::store::Memory;
    use crate::view::Filter;

    #[test]
    fn of_a_worker_that_changes_again_and_again_one_is_kept() {
        let store = Arc::new(Memory::new());
        let path = |name: &str| RelPath::parse(format!("workers/w/{name}")).unwrap();
        store.write(&path("metadata.json"), r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view = View::over(vec![Source::over(store.clone(), None)], fresh, Filter::default()).unwrap();
        let view = Arc::new(view);
        let digests = Arc::new(DigestCache::new(Duration::from_secs(60), None, Watchdog::new()));
        for number in 1..=100 {
            store.write(&path(&format!("tool_calls/{number:03}_sh.txt")), "x");
            let member = view.worker(&Name::new("w").unwrap()).unwrap();
            let states = vec![(member.clone(), view.stamp_now(&member))];
            let found = digests.get_all(&view, &states, true, &Settings::default(), &|| true);
            assert_eq!(found.first().and_then(DigestResult::digest).unwrap().calls, number);
        }
        assert_eq!(digests.kept.len(), 1);
    }
}
