//! One pass over all stores: what is new, what changed, what is gone. What did not change is carried over as it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tracing::warn;

use super::entry::{Glanced, Looked};
use super::kept::Kept;
use super::watched::Watched;
use super::{Change, Entry, Freshness, Snapshot, Source, Taken};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::{Interner, SkipReason, SkipReport, Skipped, Worker};
use crate::name::RelPath;
use crate::parallel::parallel_map;
use crate::store::{Store, TICK_MAX};
use crate::trace::FolderState;

/// A pass, and the first error that kept a store from being listed.
pub(super) struct Scanned {
    pub(super) snapshot: Snapshot,
    pub(super) error: Option<Error>,
}

/// Which workers a pass looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All but the finished ones that were looked at lately.
    All,
    /// Those that are not known yet. Those that are stay as they are, but for who has gone.
    Unknown,
}

/// What is at hand when workers are looked at.
pub(super) struct Pass<'a> {
    which: Which,
    /// What was kept at the last start, of each store.
    kept: &'a [Kept],
    /// Where changes can be awaited.
    watched: Option<&'a Watched>,
    /// What was read so far.
    words: Mutex<Interner>,
}

impl<'a> Pass<'a> {
    pub(super) fn over(watched: Option<&'a Watched>) -> Pass<'a> {
        Pass { which: Which::All, kept: &[], watched, words: Mutex::default() }
    }

    /// Has `worker` hold the words that others say alike as they hold them, among them the one that it was `before`.
    fn share(&self, worker: &mut Worker, before: Option<&Entry>) {
        let mut words = self.words.lock();
        before.iter().for_each(|before| before.teach(&mut words));
        let said = [worker.owner.as_mut().map(|owner| &mut owner.0), worker.run.as_mut(), worker.parent.as_mut()];
        said.into_iter().flatten().for_each(|word| *word = words.intern(word.clone()));
    }
}

/// Looks at all workers for the first time; what was kept of them is not read again.
pub(super) fn scan_first(sources: &[Source], freshness: Freshness) -> Scanned {
    let kept: Vec<Kept> = sources.iter().map(Kept::of).collect();
    let scanned = scan_from(sources, None, freshness, &Pass { kept: &kept, ..Pass::over(None) });
    for (number, (source, kept)) in sources.iter().zip(&kept).enumerate() {
        kept.renew(source, number, &scanned.snapshot.entries);
    }
    scanned
}

/// Looks at workers again.
pub(super) fn scan(
    sources: &[Source],
    before: &Snapshot,
    which: Which,
    freshness: Freshness,
    watched: Option<&Watched>,
) -> Scanned {
    let pass = Pass { which, ..Pass::over(watched) };
    // Who comes next says much the same as who came last.
    before.entries.last().iter().for_each(|last| last.teach(&mut pass.words.lock()));
    scan_from(sources, Some(before), freshness, &pass)
}

fn scan_from(sources: &[Source], before: Option<&Snapshot>, freshness: Freshness, pass: &Pass<'_>) -> Scanned {
    let (began, mut listing, mut came) = (Instant::now(), Duration::ZERO, 0);
    let before_of = |number: usize| {
        let all = before.map(|before| before.entries.as_slice()).unwrap_or_default();
        all.iter().filter(move |entry| entry.source == number)
    };
    let mut entries = Vec::with_capacity(before.map_or(0, |before| before.entries.len()));
    let (mut all_passed, mut troubles, mut unread, mut first_error) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (number, source) in sources.iter().enumerate() {
        let asked = Instant::now();
        let found = source.format.find_workers(&*source.store);
        listing += asked.elapsed();
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                // The last good list stays: a store that cannot be listed for a moment has not lost its workers.
                warn!("cannot list the store {}: {error}", source.store.describe());
                troubles.push(format!("a store could not be listed: {error}"));
                entries.extend(before_of(number).cloned());
                first_error.get_or_insert(error);
                all_passed.push(SkipReport::default());
                continue;
            }
        };
        // No name leads to it any more; what is not told is why, and whether another will come.
        if source.store.stat(&RelPath::root()).is_ok_and(|root| root.nlink == 0) {
            troubles.push("the folder of a store was removed".into());
        }
        unread.extend(found.incomplete.into_iter().map(|root| (number, root)));
        let mut passed = found.skipped;
        let known = known(&found.folders, before_of(number).collect());
        let looked = parallel_map(&known, |&(folder, old)| {
            let held = old.filter(|old| {
                let is_settled = old.is_at_rest() && source.is_settled(old, freshness);
                pass.which == Which::Unknown || is_settled && old.is_checked(due(old, freshness))
            });
            let looked = held.map(|held| Ok(Some(Arc::clone(held))));
            looked.unwrap_or_else(|| look(source, number, folder, old, pass))
        });
        for ((folder, old), looked) in known.into_iter().zip(looked) {
            match looked {
                Ok(Some(entry)) => {
                    came += usize::from(old.is_none());
                    entries.push(entry);
                }
                Ok(None) => passed.add(folder.clone(), SkipReason::NotAWorker, None),
                Err(Error::NotFound | Error::NotADirectory) => {}
                // A foreign mount: like a link, not followed but counted.
                Err(Error::Escape) => passed.add(folder.clone(), SkipReason::ForeignMount, None),
                Err(error) => match old {
                    Some(old) => entries.push(Arc::clone(old)),
                    None => {
                        // Not by name: the log of a narrowed view is the log of this.
                        warn!("a folder of a store cannot be looked at: {error}");
                        passed.add(folder.clone(), SkipReason::Unreadable, Some(error));
                    }
                },
            }
        }
        all_passed.push(passed);
    }
    let mut skipped = Skipped::default();
    all_passed.iter().for_each(|passed| skipped += passed);
    let changes = before.and_then(|before| changes(&before.entries, &entries));
    let changed = before.is_none_or(|before| {
        changes.as_ref().is_none_or(|changes| !changes.is_empty())
            || before.passed != all_passed
            || before.troubles != troubles
            || before.unread != unread
    });
    let generation = before.map_or(0, |before| before.generation) + u64::from(changed);
    // Who has not seen this generation yet goes by what became of the one before.
    let changes = if changed { changes } else { before.and_then(|before| before.changes.clone()) };
    let passed = all_passed;
    let whole = Taken { at: began, cost: began.elapsed() };
    let (looked, listed) = match before.filter(|_| pass.which == Which::Unknown) {
        // A look at who has come is made once; at what is no worker, each time.
        Some(before) if came == 0 => (before.looked, whole),
        Some(before) => (before.looked, Taken { at: began, cost: listing }),
        None => (whole, Taken { at: began, cost: listing }),
    };
    let snapshot = Snapshot { generation, entries, skipped, passed, troubles, unread, changes, looked, listed };
    Scanned { snapshot, error: first_error }
}

/// The folders, each with what was known of it.
fn known<'a>(folders: &'a [RelPath], before: Vec<&'a Arc<Entry>>) -> Vec<(&'a RelPath, Option<&'a Arc<Entry>>)> {
    // Most often they are the same in the same order, but for those that are no workers.
    let mut rest = before.iter().copied().peekable();
    let in_order = folders.iter().map(|folder| (folder, rest.next_if(|entry| entry.root == *folder))).collect();
    if rest.peek().is_none() {
        return in_order;
    }
    let by_root: HashMap<&RelPath, &Arc<Entry>> = before.into_iter().map(|entry| (&entry.root, entry)).collect();
    folders.iter().map(|folder| (folder, by_root.get(folder).copied())).collect()
}

/// More changes at once are not told one by one: those who were told would be held as long.
pub(super) const FEW: usize = 64;

/// What became of the workers `before`; `None` if they are not the same workers, or too many changed.
fn changes(before: &[Arc<Entry>], now: &[Arc<Entry>]) -> Option<Vec<Change>> {
    if before.len() != now.len() {
        return None;
    }
    let mut changes = Vec::new();
    for (old, new) in before.iter().zip(now).filter(|(old, new)| !Arc::ptr_eq(old, new)) {
        if (old.source, &old.root) != (new.source, &new.root) {
            return None;
        }
        if changes.len() == FEW {
            return None;
        }
        changes.push(Change { old: old.clone(), new: new.clone() });
    }
    Some(changes)
}

/// For how long a look at a finished worker holds: for some shorter than for others, so that not all are due at once.
fn due(entry: &Entry, freshness: Freshness) -> Duration {
    let [some, ..] = entry.key;
    freshness.finished / 2 + freshness.finished * u32::from(some) / 512
}

/// So often a folder is looked at that changes whenever it is.
const LOOKS: usize = 3;

/// Looks at one folder: what is held of it if nothing changed, else what is read of it now; `None` if it is no worker.
pub(super) fn look(
    source: &Source,
    number: usize,
    path: &RelPath,
    old: Option<&Arc<Entry>>,
    pass: &Pass<'_>,
) -> Result<Option<Arc<Entry>>> {
    // Entered once: what the glance tells and what is read are of the same folder.
    let folder = source.format.enter(&*source.store, path)?;
    let mut seen = see(source, &*folder, number, path, old, pass)?;
    let watched = pass.watched.filter(|_| source.tells());
    for _ in 0..LOOKS {
        match (watched, &seen) {
            // What has changed since it was seen was told to nobody.
            (Some(watched), Some(entry)) if entry.is_moving() && watched.await_change(entry, &*folder) => {
                seen = see(source, &*folder, number, path, seen.as_ref(), pass)?;
            }
            _ => break,
        }
    }
    Ok(seen)
}

/// Looks at one folder, entered.
fn see(
    source: &Source,
    folder: &dyn Store,
    number: usize,
    path: &RelPath,
    old: Option<&Arc<Entry>>,
    pass: &Pass<'_>,
) -> Result<Option<Arc<Entry>>> {
    let (now, began) = (Instant::now(), SystemTime::now());
    let Some(glance) = source.format.folder_state(folder, path)? else { return Ok(None) };
    let same = old.filter(|old| old.glanced.key == glance.key);
    let at_rest = glance.newest_change.was_at_rest(began) || same.is_some_and(|old| now >= old.glanced.seen + TICK_MAX);
    if let Some(old) = same.filter(|old| old.whole && old.is_at_rest()) {
        old.check(now);
        return Ok(Some(Arc::clone(old)));
    }
    // Another folder under the old name has nothing to do with what was there before.
    let same_folder = old.filter(|old| old.glanced.identity == glance.identity);
    let last_good = same_folder.map(|old| old.worker());
    let kept = pass.kept.get(number).and_then(|kept| kept.take(path, glance.key));
    let mut worker = kept.unwrap_or_else(|| source.format.read_worker(folder, path, last_good.as_ref()));
    if let Some(old) = same.filter(|_| last_good.is_some_and(|known| known == worker)) {
        old.at_rest.store(at_rest, Ordering::Relaxed);
        old.check(now);
        return Ok(Some(Arc::clone(old)));
    }
    let key = key(&glance, same.is_none(), &worker);
    let glanced = Glanced { identity: glance.identity, key: glance.key, newest: glance.newest_write, seen: now };
    // What has changed lately may go on to.
    let stirred = old.and_then(|old| old.looked.lock().stirred);
    let looked = Looked { checked: Some(now), stirred, surveyed: None };
    pass.share(&mut worker, same_folder.map(|old| &**old));
    Ok(Some(Arc::new(Entry::new(worker, (number, path), (key, glanced, at_rest), looked))))
}

/// Changes with everything that a worker tells. What was read as a whole follows from what was glanced at, if that is `new`;
/// else it also follows from what was read before, and from what could be read just now.
fn key(glance: &FolderState, new: bool, worker: &Worker) -> [u8; 16] {
    if new && worker.is_complete && !worker.is_torn() {
        return glance.key;
    }
    let mut hash = blake3::Hasher::new();
    hash.update(&glance.key);
    hash.update(format!("{worker:?}").as_bytes());
    digest(&hash)
}
