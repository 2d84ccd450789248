//! The fragments of many workers: kept as long as their workers do not change, and made by several threads where many
//! are missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::attempts::Attempts;
use super::fragment::Fragment;
use super::isolate::{GRACE_OF_PART, Subject};
use super::settings::{Control, Settings};
use super::shelf::{Of, Shelf};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::spread::spread;
use crate::view::{Member, View};
use crate::watchdog::{Unfinished, Watchdog};

/// How many are kept.
const KEPT: usize = 200_000;
/// For how long what was not read in time is read on, before it is another request's turn.
const CATCH_UP: Duration = Duration::from_millis(250);
/// A file counts like so many bytes more: of each about so much is read even where it is one of many.
const OF_A_FILE: u64 = 64 << 10;

/// The members of a scope, each with the state of its files.
pub(super) type Stamped = Vec<(Arc<Member>, Result<Arc<Fingerprint>>)>;
/// Whether there is time left.
pub(super) type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// What came of asking for a fragment.
pub(super) enum Found {
    /// It is here, with the state of the worker's files that it is of.
    Made(Arc<Fragment>, Arc<Fingerprint>),
    /// There was no time for it, or its worker cannot be read.
    Unread,
    /// There is no such worker by now.
    Gone,
}

impl Found {
    /// The fragment, if it is here.
    pub(super) fn fragment(&self) -> Option<&Arc<Fragment>> {
        match self {
            Found::Made(fragment, _) => Some(fragment),
            Found::Unread | Found::Gone => None,
        }
    }

    /// Whether it is here, and of the state that was asked for.
    pub(super) fn is_of(&self, asked: &Result<Arc<Fingerprint>>) -> bool {
        match (self, asked) {
            (Found::Made(_, stamp), Ok(asked)) => stamp.key == asked.key,
            (Found::Gone, Err(error)) => *error == Error::NotFound,
            _ => false,
        }
    }
}

/// What is kept of the workers of a view.
pub(super) struct Fragments {
    /// Of each worker, by its name, the latest and the state that it is of.
    kept: Cache<Name, (Of, Arc<Fragment>)>,
    /// How long one of many may take.
    each: Duration,
    /// Whether not all could be made in time that were asked for.
    is_behind: AtomicBool,
    /// Which worker is next to be read for them; none once they have been.
    catching_up: Mutex<Option<usize>>,
    shelf: Option<Shelf>,
    /// Done once what was kept before this start is here.
    fetched: Once,
    watchdog: Watchdog<Subject>,
}

impl Fragments {
    /// None yet; one of many may take `each` to be made.
    pub(super) fn new(each: Duration, shelf: Option<Shelf>, watchdog: Watchdog<Subject>) -> Fragments {
        Fragments {
            kept: Cache::new(KEPT),
            each,
            is_behind: AtomicBool::new(false),
            catching_up: Mutex::new(None),
            shelf,
            fetched: Once::new(),
            watchdog,
        }
    }

    /// Takes what was kept before this start.
    fn fetch(&self) {
        let keep = |(name, of, one)| self.kept.insert(name, (of, Arc::new(one)));
        self.fetched.call_once(|| self.shelf.iter().for_each(|shelf| shelf.all().into_iter().for_each(keep)));
    }

    /// That of a worker in this state, if it is kept.
    fn kept(&self, member: &Member, stamp: &Fingerprint) -> Option<Arc<Fragment>> {
        let (of, fragment) = self.kept.get(&member.name)?;
        (of == state(member, stamp)).then_some(fragment)
    }

    /// Keeps those of these workers for the next start if that is due, now that so many more were made.
    fn keep<'a>(&self, made: usize, workers: impl Iterator<Item = &'a Arc<Member>>) {
        if let Some(shelf) = self.shelf.as_ref().filter(|shelf| shelf.is_due(made)) {
            let kept = |member: &Arc<Member>| {
                let (of, fragment) = self.kept.get(&member.name)?;
                // What was made of a version that does not last is of no use to the next start.
                let stamp = member.entry.last_fingerprint().filter(|stamp| stamp.is_stable())?;
                (of == state(member, &stamp)).then(|| (member.name.clone(), of, fragment))
            };
            shelf.keep(&workers.filter_map(kept).collect::<Vec<_>>());
        }
    }

    /// Notes that something was not looked at in time.
    pub(super) fn fall_behind(&self) {
        self.is_behind.store(true, Ordering::Release);
    }

    /// Whether there is something left for [`Fragments::catch_up`] to do.
    pub(super) fn is_behind(&self) -> bool {
        let mut next = self.catching_up.lock();
        if self.is_behind.swap(false, Ordering::AcqRel) {
            next.get_or_insert(0);
        }
        next.is_some()
    }

    /// Makes for a moment those that are missing, each once. Whether there are more of them.
    pub(super) fn catch_up(self: &Arc<Self>, view: &Arc<View>) -> bool {
        let begun = Instant::now();
        let go_on = || begun.elapsed() < CATCH_UP;
        let visible = view.visible();
        let Some(mut at) = *self.catching_up.lock() else { return false };
        self.fetch();
        while let Some(member) = visible.members.get(at).filter(|_| go_on()) {
            at += 1;
            // One that cannot be made at all must not keep the others from being.
            *self.catching_up.lock() = Some(at);
            // What cannot be read now is read when it is asked for, and told.
            if let Ok(stamp) = view.fingerprint(member, false) {
                self.one(view, member, &stamp, None, &|| true);
            }
        }
        let more = at < visible.members.len();
        *self.catching_up.lock() = more.then_some(at);
        if !more {
            self.keep(visible.members.len(), visible.members.iter());
        }
        more
    }

    /// What comes of each of `stamped`, in their order. Where these are `all` of the view, they may be kept for the next
    /// start.
    pub(super) fn of(
        self: &Arc<Self>,
        view: &Arc<View>,
        stamped: &Stamped,
        all: bool,
        settings: &Settings,
        go_on: GoOn<'_>,
    ) -> Vec<Found> {
        self.fetch();
        let mut found: Vec<Found> = Vec::with_capacity(stamped.len());
        let mut missing: Vec<(u64, usize, &Arc<Member>, &Arc<Fingerprint>)> = Vec::new();
        for (at, (member, stamp)) in stamped.iter().enumerate() {
            found.push(match stamp {
                Ok(stamp) => match self.kept(member, stamp) {
                    Some(fragment) => Found::Made(fragment, stamp.clone()),
                    None => {
                        let size = stamp.files.saturating_mul(OF_A_FILE).saturating_add(stamp.bytes);
                        missing.push((size, at, member, stamp));
                        Found::Unread
                    }
                },
                Err(Error::NotFound) => Found::Gone,
                Err(_) => Found::Unread,
            });
        }
        // Small workers first: one that takes long to look into must not cost the others their line.
        missing.sort_unstable_by_key(|(size, at, ..)| (*size, *at));
        settings.expect(missing.len());
        let made = spread(&missing, |(_, _, member, stamp)| {
            let one = self.one(view, member, stamp, settings.control.as_ref(), go_on);
            settings.count_one();
            one
        });
        for ((_, at, ..), one) in missing.iter().zip(made) {
            if let Some(slot) = found.get_mut(*at) {
                *slot = one;
            }
        }
        if !go_on() {
            self.fall_behind();
        } else if all {
            self.keep(missing.len(), stamped.iter().map(|(member, _)| member));
        }
        found
    }

    /// Returns the fragment of one worker: of the state given, or of a later one if its files changed meanwhile. If
    /// reading them does not end, it says so.
    fn one(
        self: &Arc<Self>,
        view: &Arc<View>,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        control: Option<&Arc<Control>>,
        go_on: GoOn<'_>,
    ) -> Found {
        if let Some(fragment) = self.kept(member, stamp) {
            return Found::Made(fragment, stamp.clone());
        }
        if !go_on() {
            return Found::Unread;
        }
        let subject = Subject::Worker(member.name.clone());
        // What was left behind is read by now, or soon.
        let waited = self.watchdog.wait(&subject, go_on);
        let begun = Instant::now();
        let in_time = || go_on() && begun.elapsed() < self.each;
        let make = {
            let (fragments, view, member, stamp) = (self.clone(), view.clone(), member.clone(), stamp.clone());
            let control = control.cloned();
            move |in_time: GoOn<'_>| {
                fragments.make(&view, &member, stamp, &|| in_time() && Control::lets_go_on(control.as_ref()))
            }
        };
        match waited.and_then(|()| self.watchdog.run(&subject, GRACE_OF_PART, &in_time, make)) {
            Ok(found) => found,
            Err(Unfinished::Late) => Found::Unread,
            Err(Unfinished::GivenUp) => Found::Made(Arc::new(Fragment::unreadable(&Error::GivenUp)), stamp.clone()),
        }
    }

    fn make(&self, view: &View, member: &Member, mut stamp: Arc<Fingerprint>, in_time: GoOn<'_>) -> Found {
        let mut attempts = Attempts::new(self.each);
        loop {
            if let Some(fragment) = self.kept(member, &stamp) {
                return Found::Made(fragment, stamp);
            }
            // A record that cannot be read is told as such, and one that is read in part is shown in part.
            let fragment = match view.record(member, &stamp, in_time) {
                Ok(record) => Fragment::of(view, member, &stamp, &record),
                Err(Error::NotFound) => return Found::Gone,
                Err(error) => Fragment::unreadable(&error),
            };
            let fragment = Arc::new(fragment);
            let now = match view.fingerprint_now(member) {
                Ok(now) => now,
                Err(Error::NotFound) => return Found::Gone,
                Err(_) => return Found::Unread,
            };
            let settled = now.key == stamp.key;
            if settled && fragment.whole {
                self.kept.insert(member.name.clone(), (state(member, &stamp), fragment.clone()));
            }
            if settled {
                return Found::Made(fragment, stamp);
            }
            if !in_time() || !attempts.another() {
                return Found::Made(fragment, now);
            }
            stamp = now;
        }
    }
}

fn state(member: &Member, stamp: &Fingerprint) -> Of {
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
        let view = View::over(vec![Source::from_store(store.clone(), None)], fresh, Filter::default()).unwrap();
        let view = Arc::new(view);
        let fragments = Arc::new(Fragments::new(Duration::from_secs(60), None, Watchdog::new()));
        for number in 1..=100 {
            store.write(&path(&format!("tool_calls/{number:03}_sh.txt")), "x");
            let member = view.worker(&Name::new("w").unwrap()).unwrap();
            let stamped = vec![(member.clone(), view.fingerprint_now(&member))];
            let found = fragments.of(&view, &stamped, true, &Settings::default(), &|| true);
            assert_eq!(found.first().and_then(Found::fragment).unwrap().calls, number);
        }
        assert_eq!(fragments.kept.len(), 1);
    }
}
