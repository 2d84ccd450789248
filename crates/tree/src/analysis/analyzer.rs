//! Reads workers on threads that can be abandoned, so that no worker delays answers about others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::warn;

use super::digest_cache::{DigestCache, DigestResult};
use super::digest_store::DigestStore;
use super::excerpt::{ExcerptResult, ExcerptTask};
use super::facets::{FacetIndexes, KnownFiles};
use super::settings::{Control, PART_GRACE, Settings, Subject};
use super::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::search::ranked::{Index, IndexPart, WorkerIndex};
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Record;
use swarmletfs_base::name::printable;
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::store::Time;
use swarmletfs_base::watchdog::{Unfinished, Watchdog};

/// Reads the state of a worker's files, or returns a cached one; see [`View::fingerprint`].
type ReadState = fn(&View, &Member, bool) -> Result<Arc<Fingerprint>>;

/// Reads and caches the facts that answers need about the workers of a view, within the time that
/// the settings allow. Clones share all state.
#[derive(Clone)]
pub struct Analyzer {
    pub view: Arc<View>,
    pub settings: Settings,
    pub(super) cache: Arc<DigestCache>,
    pub(super) facet_indexes: Arc<FacetIndexes>,
    pub(super) known_files: Arc<KnownFiles>,
    pub(super) index: Arc<Index>,
    /// True while a caller runs the backfill of `cache` and `index`.
    pub(super) is_backfilling: Arc<AtomicBool>,
    watchdog: Watchdog<Subject>,
}

impl Analyzer {
    pub fn new(view: View, settings: Settings) -> Analyzer {
        let watchdog = Watchdog::default();
        let store = view.digest_store().map(|(cache, scope)| DigestStore::new(cache, &scope));
        let cache = Arc::new(DigestCache::new(settings.patience(), store, watchdog.clone()));
        let index = Arc::new(Index::new(view.word_index(), settings.trees));
        Analyzer {
            view: Arc::new(view),
            settings,
            cache,
            facet_indexes: Arc::default(),
            known_files: Arc::default(),
            index,
            is_backfilling: Arc::default(),
            watchdog,
        }
    }

    /// Creates an analyzer of `view`, which must have the same restriction as the view of this
    /// analyzer. It takes over the digests of this one.
    pub fn with_view(&self, view: View) -> Analyzer {
        let analyzer = Analyzer::new(view, self.settings.clone());
        analyzer.cache.adopt(&self.cache);
        analyzer
    }

    /// Returns the digests of `states`, in their order. `is_whole_view` is true if these are all
    /// workers of the view, so that the cache directory may keep the digests.
    pub fn digests(
        &self,
        states: &WorkerStates,
        is_whole_view: bool,
        deadline: Deadline<'_>,
    ) -> Vec<DigestResult> {
        self.cache.get_all(&self.view, states, is_whole_view, &self.settings, deadline)
    }

    /// Runs `work` on a thread that can be abandoned. `work` should stop when `deadline` passes or
    /// the control of renders stops it; this function returns within `grace` after that.
    ///
    /// # Errors
    /// [`Unfinished`] if `work` does not stop in time or an abandoned task holds the subject.
    pub fn run_isolated<R: Send + 'static>(
        &self,
        subject: &Subject,
        grace: Duration,
        deadline: Deadline<'_>,
        work: impl FnOnce(Deadline<'_>) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.watchdog.wait(subject, deadline)?;
        let control = self.settings.control.clone();
        self.watchdog.run(subject, grace, deadline, move |deadline| {
            work(Deadline::new(&|| deadline.has_time() && Control::permits(control.as_ref())))
        })
    }

    /// Returns the record of a worker as of `fingerprint`, read until `deadline`. Returns within
    /// `grace` after that.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; the errors of
    /// [`crate::view::View::record`].
    pub fn record(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        grace: Duration,
        deadline: Deadline<'_>,
    ) -> Result<Arc<Record>> {
        if let Some(record) = self.view.cached_record(member, fingerprint) {
            return Ok(record);
        }
        let subject = Subject::Worker(member.name.clone());
        let (view, member, fingerprint) = (self.view.clone(), member.clone(), fingerprint.clone());
        self.run_isolated(&subject, grace, deadline, move |deadline| {
            view.record(&member, &fingerprint, deadline)
        })?
    }

    /// Runs `cut`, which makes an excerpt of a worker's output.
    ///
    /// # Errors
    /// A sentence that says why the output cannot be read.
    pub fn run_cut(
        &self,
        member: &Member,
        cut: ExcerptTask,
        deadline: Deadline<'_>,
    ) -> ExcerptResult {
        let result =
            self.run_isolated(&Subject::Worker(member.name.clone()), PART_GRACE, deadline, cut);
        result.unwrap_or_else(|unfinished| Err(Error::from(unfinished).to_string()))
    }

    /// Returns the search index of a worker as of `fingerprint`. If it is not cached, reads the
    /// worker's files until `deadline`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; the errors of
    /// [`crate::search::ranked::Index::read`].
    pub fn indexed(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        part: IndexPart,
        deadline: Deadline<'_>,
    ) -> Result<WorkerIndex> {
        if let Some(indexed) = self.index.cached(member, fingerprint, part) {
            return Ok(indexed);
        }
        let subject = Subject::Worker(member.name.clone());
        let (analyzer, member, fingerprint) = (self.clone(), member.clone(), fingerprint.clone());
        self.run_isolated(&subject, PART_GRACE, deadline, move |deadline| {
            analyzer.index.read(&analyzer.view, &member, &fingerprint, part, deadline)
        })?
    }

    /// Returns the time of each worker's last activity: its last write, or its last message if that
    /// is earlier. Returns `None` for a worker whose files cannot be read. When time runs out, the
    /// catalog's listing supplies the time.
    pub fn last_writes(&self, members: &[Arc<Member>]) -> Vec<Option<Time>> {
        let (states, _) = self.states_in_time(members, View::fingerprint_without_acls);
        let last_writes = states.into_iter().map(|(member, fingerprint)| match fingerprint {
            Ok(fingerprint) => Some(member.entry.last_activity(fingerprint.last_write())),
            Err(Error::Late) => Some(member.entry.last_activity(member.entry.last_write())),
            Err(_) => None,
        });
        last_writes.collect()
    }

    /// Returns the state of each worker's files. When time runs out, the rest have their last known
    /// state or [`Error::Late`], and the backfill reads them.
    pub fn states(&self, members: &[Arc<Member>]) -> WorkerStates {
        self.states_read_by(members, View::fingerprint)
    }

    /// Returns the same states as [`Analyzer::states`], but need not read ACLs. A file whose mode
    /// decides who may read it must not be derived from these states.
    pub(super) fn states_without_acls(&self, members: &[Arc<Member>]) -> WorkerStates {
        self.states_read_by(members, View::fingerprint_without_acls)
    }

    fn states_read_by(&self, members: &[Arc<Member>], read: ReadState) -> WorkerStates {
        let (states, is_complete) = self.states_in_time(members, read);
        if !is_complete {
            self.cache.mark_incomplete();
        }
        states
    }

    /// Returns the state of each worker's files, and true if there was time to read all of them.
    /// Does not schedule a backfill.
    fn states_in_time(&self, members: &[Arc<Member>], read: ReadState) -> (WorkerStates, bool) {
        let clock = self.settings.clock(5);
        // Workers without a known state come first.
        let mut order: Vec<(usize, &Arc<Member>)> = members.iter().enumerate().collect();
        order.sort_by_cached_key(|(_, member)| self.view.last_fingerprint(member).is_some());
        let fingerprints = parallel_map(&order, |(_, member)| match clock.has_time() {
            true => read(&self.view, member, false),
            false => self.view.last_fingerprint(member).ok_or(Error::Late),
        });
        let is_complete = clock.has_time();
        let mut states: Vec<_> = order.into_iter().zip(fingerprints).collect();
        states.sort_unstable_by_key(|((at, _), _)| *at);
        let states =
            states.into_iter().map(|((_, member), fingerprint)| (member.clone(), fingerprint));
        (states.collect(), is_complete)
    }

    /// Logs each subject whose task was abandoned and still runs, once.
    pub fn log_overdue(&self) {
        for subject in self.watchdog.overdue() {
            let subject = match subject {
                Subject::Worker(name) => {
                    format!("the files of worker {}", printable(name.as_bytes()))
                }
                Subject::Answer(_) => "an answer about many workers".into(),
            };
            warn!(
                "reading {subject} does not end; the thread was abandoned, and answers without it say so"
            );
        }
    }
}

impl Analyzer {
    /// Claims the pending backfill. Returns true for one caller only, until
    /// [`Analyzer::backfill`] returns false.
    pub fn claim_backfill(&self) -> bool {
        // No short circuit: each call also updates its own backlog.
        (self.cache.has_backlog() | self.index.has_backlog())
            && !self.is_backfilling.swap(true, Ordering::AcqRel)
    }

    /// Reads workers from the backlog for a short time, and words for the search index if a search
    /// left some unread. Reads each worker once. Returns true if there is more to read.
    pub fn backfill(&self) -> bool {
        let mut step = BackfillStep { is_backfilling: &self.is_backfilling, more: false };
        step.more = self.cache.backfill(&self.view)
            || self.index.catch_up(&self.view, &|member, fingerprint, part, deadline| {
                self.indexed(member, fingerprint, part, deadline)
            });
        let more = step.more;
        drop(step);
        // A request that added to the backlog just before the drop saw a backfill in progress.
        more || self.claim_backfill()
    }
}

/// One step of the backfill. Dropping the last step, also in a panic, releases the claim.
struct BackfillStep<'a> {
    is_backfilling: &'a AtomicBool,
    more: bool,
}

impl Drop for BackfillStep<'_> {
    fn drop(&mut self) {
        self.is_backfilling.store(self.more, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use super::super::settings::Settings;
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::view::{Filter, View};
    use swarmletfs_base::store::Memory;

    #[test]
    fn one_caller_claims_the_backfill_until_it_ends_or_panics() {
        let source = Source::from_store(Arc::new(Memory::new()), None);
        let view = View::new(vec![source], Freshness::default(), Filter::default()).unwrap();
        let analyzer = Analyzer::new(view, Settings::default());
        assert!(!analyzer.claim_backfill());
        analyzer.cache.mark_incomplete();
        assert!(analyzer.claim_backfill());
        // The caller that holds the claim reads this backlog too.
        analyzer.cache.mark_incomplete();
        assert!(!analyzer.claim_backfill());
        assert!(!analyzer.backfill());
        analyzer.cache.mark_incomplete();
        assert!(analyzer.claim_backfill());
        let panics = || {
            let _step = BackfillStep { is_backfilling: &analyzer.is_backfilling, more: false };
            panic!("on purpose");
        };
        assert!(catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(analyzer.claim_backfill());
    }
}
