//! Cached fingerprints of workers: taken again when too old, and stored in the worker's entry.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::fingerprint::{FileStat, Fingerprint, StatMode, WalkOptions, take_fingerprint};
use super::{Catalog, Entry, Freshness, Source};
use swarmletfs_base::error::Result;
use swarmletfs_base::store::TICK_MAX;

#[derive(Clone)]
pub(super) struct CachedFingerprint {
    taken_at: Instant,
    /// Time when a fingerprint with this key was first taken.
    key_since: Instant,
    cost: Duration,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) is_watched: bool,
}

impl CachedFingerprint {
    /// Returns true if taking the fingerprint with `stat_mode` would add nothing.
    fn suffices(&self, stat_mode: StatMode) -> bool {
        self.fingerprint.has_acls || stat_mode == StatMode::WithoutAcl
    }
}

impl Catalog {
    /// Returns the fingerprint of a worker's files.
    ///
    /// It is at most as old as [`Freshness::unfinished`] if `closely` or if the worker is
    /// unfinished; otherwise as old as [`Freshness::finished`]. A fingerprint of watched files is
    /// always current.
    pub fn fingerprint(&self, entry: &Arc<Entry>, closely: bool) -> Result<Arc<Fingerprint>> {
        self.cached_or_taken(entry, closely, StatMode::Full)
    }

    /// Returns the same as [`Catalog::fingerprint`], but need not read ACLs, which takes most of
    /// the time. Use it only for the times and the state of files.
    pub fn fingerprint_without_acls(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
    ) -> Result<Arc<Fingerprint>> {
        self.cached_or_taken(entry, closely, StatMode::WithoutAcl)
    }

    /// Returns true if [`Catalog::fingerprint_without_acls`] would read nothing.
    pub fn has_fresh_fingerprint(&self, entry: &Arc<Entry>, closely: bool) -> bool {
        self.fresh_fingerprint(entry, closely, StatMode::WithoutAcl).is_some()
    }

    fn cached_or_taken(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
        stat_mode: StatMode,
    ) -> Result<Arc<Fingerprint>> {
        match self.fresh_fingerprint(entry, closely, stat_mode) {
            Some(fingerprint) => Ok(fingerprint),
            None => self.take_fingerprint(entry, stat_mode),
        }
    }

    fn fresh_fingerprint(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
        stat_mode: StatMode,
    ) -> Option<Arc<Fingerprint>> {
        let cached = entry.check_state.lock().fingerprint.as_deref().cloned()?;
        if !cached.suffices(stat_mode) {
            return None;
        }
        // An unreadable file may have become readable.
        let may_change = cached.fingerprint.skipped.unreadable > 0
            || !cached.fingerprint.is_stable()
            || closely && !cached.is_watched;
        let fresh = if may_change { self.freshness.unfinished } else { self.max_age(entry) };
        let is_fresh = cached.taken_at.elapsed() < Freshness::max_age(fresh, cached.cost);
        is_fresh.then_some(cached.fingerprint)
    }

    pub fn fingerprint_now(&self, entry: &Arc<Entry>) -> Result<Arc<Fingerprint>> {
        self.take_fingerprint(entry, StatMode::Full)
    }

    /// Takes the fingerprint of a worker's files now. Reads ACLs only if they were read for
    /// `before`.
    pub fn fingerprint_again(
        &self,
        entry: &Arc<Entry>,
        before: &Fingerprint,
    ) -> Result<Arc<Fingerprint>> {
        let stat_mode = if before.has_acls { StatMode::Full } else { StatMode::WithoutAcl };
        self.take_fingerprint(entry, stat_mode)
    }

    fn take_fingerprint(
        &self,
        entry: &Arc<Entry>,
        stat_mode: StatMode,
    ) -> Result<Arc<Fingerprint>> {
        let (taken_at, start) = (Instant::now(), SystemTime::now());
        let (changed_at, cached) = {
            let state = entry.check_state.lock();
            (state.changed_at, state.fingerprint.as_deref().cloned())
        };
        let was_watched = cached.as_ref().is_some_and(|cached| cached.is_watched);
        let can_watch = self.source(entry).is_ok_and(Source::can_watch);
        let watcher =
            self.watcher.get().filter(|_| !was_watched && can_watch && self.is_settled(entry));
        let folder = self.folder(entry)?;
        let take = |stat_mode| -> Result<(Arc<Fingerprint>, bool)> {
            let (mut entered, mut watched) = (0_u32, 0);
            let options = self.walk_options(entry, stat_mode, start);
            let fingerprint = take_fingerprint(&*folder, options, None, &mut |dir| {
                entered += 1;
                watched +=
                    u32::from(watcher.is_some_and(|watcher| watcher.watch_finished(entry, dir)));
            })?;
            Ok((Arc::new(fingerprint), entered > 0 && entered == watched))
        };
        let known = cached.as_ref().map(|cached| &cached.fingerprint);
        let (mut fingerprint, is_watched) = match known.filter(|known| known.is_stable()) {
            // Reading ACLs is unnecessary if nothing changed.
            Some(known) if known.has_acls || stat_mode == StatMode::WithoutAcl => {
                let (taken, is_watched) = take(StatMode::WithoutAcl)?;
                match stat_mode {
                    _ if taken.matches_without_acl(known) => (known.clone(), is_watched),
                    StatMode::WithoutAcl => (taken, is_watched),
                    StatMode::Full => take(StatMode::Full)?,
                }
            }
            _ => take(stat_mode)?,
        };
        // A key that is unchanged for a full clock tick is stable, whichever clock set the ctimes.
        let same_key = cached.filter(|cached| cached.fingerprint.key == fingerprint.key);
        let key_since = same_key.map_or(taken_at, |cached| cached.key_since);
        if taken_at >= key_since + TICK_MAX {
            fingerprint = fingerprint.into_stable();
        }
        // Locked until the fingerprint is stored, so that a concurrent change invalidates it. A
        // directory that could not be entered is not watched.
        let mut state = entry.check_state.lock();
        let is_watched = (was_watched || is_watched)
            && fingerprint.skipped.unreadable == 0
            && state.changed_at == changed_at;
        // Data derived from an unstable version is usable while that version is fresh, also by
        // another thread that took the fingerprint at the same time. So the version of an earlier
        // fingerprint of the same state is kept.
        let fresh = state.fingerprint.as_ref().filter(|cached| {
            !cached.is_watched && cached.taken_at.elapsed() < self.freshness.unfinished
        });
        let same = fresh.filter(|cached| {
            !fingerprint.is_stable() && fingerprint.is_of_state(&cached.fingerprint)
        });
        if let Some(same) = same {
            if same.suffices(stat_mode) {
                return Ok(same.fingerprint.clone());
            }
            fingerprint = fingerprint.with_version(same.fingerprint.version);
        }
        let cost = taken_at.elapsed();
        let cached = CachedFingerprint {
            taken_at,
            key_since,
            cost,
            fingerprint: fingerprint.clone(),
            is_watched,
        };
        state.fingerprint = Some(Box::new(cached));
        Ok(fingerprint)
    }

    /// Returns at most `limit` files of a worker, sorted by path, and the fingerprint of all its
    /// files.
    pub fn files(&self, entry: &Entry, limit: usize) -> Result<(Vec<FileStat>, Fingerprint)> {
        let mut files = Vec::new();
        let options = self.walk_options(entry, StatMode::Full, SystemTime::now());
        let fingerprint =
            take_fingerprint(&*self.folder(entry)?, options, Some(&mut files), &mut |_| {})?;
        files.truncate(limit);
        Ok((files, fingerprint))
    }

    fn walk_options(&self, entry: &Entry, stat_mode: StatMode, start: SystemTime) -> WalkOptions {
        let is_local = self.source(entry).is_ok_and(Source::is_local);
        WalkOptions { stat_mode, start, is_local }
    }
}
