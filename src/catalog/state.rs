//! The state that all files of a worker are in: surveyed when what is held of it is too old, and held in its entry.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::survey::{self, FileStat, Look, Moment, Stamp};
use super::{Catalog, Entry, Freshness, Source};
use crate::error::Result;
use crate::store::TICK_MAX;

/// What is held of the state of a worker's files.
#[derive(Clone)]
pub(super) struct Surveyed {
    at: Instant,
    /// When a state of this key was first seen.
    since: Instant,
    cost: Duration,
    pub(super) stamp: Arc<Stamp>,
    /// Whether a change of anything in it would have been told.
    watched: bool,
}

impl Catalog {
    /// The state of all files of a worker: at most a second old if `closely` or if the worker is unfinished, else as
    /// old as a finished worker may be shown. Of one that is watched, the state it is in.
    pub fn stamp(&self, entry: &Arc<Entry>, closely: bool) -> Result<Arc<Stamp>> {
        let held = entry.looked.lock().surveyed.as_deref().cloned();
        let fresh_of = |held: &Surveyed| {
            // What could not be read may be readable by now.
            let moving = held.stamp.skipped.unreadable > 0 || !held.stamp.lasts() || closely && !held.watched;
            if moving { self.freshness.unfinished } else { self.holds(entry) }
        };
        if let Some(held) = held.filter(|held| held.at.elapsed() < Freshness::holds(fresh_of(held), held.cost)) {
            return Ok(held.stamp);
        }
        self.stamp_now(entry)
    }

    /// The state of all files of a worker as it is now.
    pub fn stamp_now(&self, entry: &Arc<Entry>) -> Result<Arc<Stamp>> {
        let (at, moment) = (Instant::now(), self.moment(entry));
        let (stirred, known) = {
            let looked = entry.looked.lock();
            (looked.stirred, looked.surveyed.as_deref().cloned())
        };
        let was_watched = known.as_ref().is_some_and(|held| held.watched);
        let tells = self.sources.get(entry.source).is_some_and(Source::tells);
        let watched = self.watched.get().filter(|_| !was_watched && tells && self.is_settled(entry));
        let folder = self.folder(entry)?;
        let look = |look| -> Result<(Arc<Stamp>, bool)> {
            let (mut entered, mut told) = (0_u32, 0);
            let stamp = survey::survey(&*folder, (look, moment), None, &mut |inner| {
                entered += 1;
                told += u32::from(watched.is_some_and(|watched| watched.add(entry, inner)));
            })?;
            Ok((Arc::new(stamp), entered > 0 && entered == told))
        };
        // Who may read them is known as long as nothing changes, and is what takes longest to be told.
        let same = match known.as_ref().filter(|held| held.stamp.lasts()) {
            Some(held) => {
                let (seen, told) = look(Look::Glimpse)?;
                seen.is_as(&held.stamp).then(|| (held.stamp.clone(), told))
            }
            None => None,
        };
        let (stamp, told) = same.map_or_else(|| look(Look::Whole), Ok)?;
        // By whatever clock it has its times, what is the same for so long is past.
        let since = known.filter(|held| held.stamp.key == stamp.key).map_or(at, |held| held.since);
        let stamp = if at >= since + TICK_MAX { stamp.lasting() } else { stamp };
        // Held until it is put down: a change meanwhile ends it. And of a folder that could not be entered none would be told.
        let mut looked = entry.looked.lock();
        let watched = (was_watched || told) && stamp.skipped.unreadable == 0 && looked.stirred == stirred;
        // What was made of a version that does not last is of use for as long as that is fresh, also to who looked meanwhile.
        let fresh =
            looked.surveyed.as_ref().filter(|held| !held.watched && held.at.elapsed() < self.freshness.unfinished);
        if let Some(fresh) = fresh.filter(|held| !stamp.lasts() && stamp.is_version_of(&held.stamp)) {
            return Ok(fresh.stamp.clone());
        }
        looked.surveyed = Some(Box::new(Surveyed { at, since, cost: at.elapsed(), stamp: stamp.clone(), watched }));
        Ok(stamp)
    }

    /// All files of a worker, sorted by path, at most `most`; and the state of all.
    pub fn files(&self, entry: &Entry, most: usize) -> Result<(Vec<FileStat>, Stamp)> {
        let (mut files, look) = (Vec::new(), (Look::Whole, self.moment(entry)));
        let stamp = survey::survey(&*self.folder(entry)?, look, Some(&mut files), &mut |_| {})?;
        files.truncate(most);
        Ok((files, stamp))
    }

    fn moment(&self, entry: &Entry) -> Moment {
        Moment { began: SystemTime::now(), here: self.sources.get(entry.source).is_some_and(Source::is_local) }
    }
}
