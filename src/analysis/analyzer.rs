//! Reads workers on threads that can be abandoned, so that no worker delays answers about others.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tracing::warn;

use super::digest_cache::{DigestCache, DigestResult};
use super::digest_store::DigestStore;
use super::excerpt::{ExcerptResult, ExcerptTask};
use super::facets::FacetIndexes;
use super::settings::{Control, Deadline, Settings};
use super::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::digest::Key;
use crate::error::{Error, Result};
use crate::model::Record;
use crate::name::{Name, printable};
use crate::search::ranked::{Index, WorkerIndex};
use crate::view::{Member, View};
use crate::watchdog::{Unfinished, Watchdog};

/// Time that a part of an answer may take to return after its deadline.
pub(crate) const PART_GRACE: Duration = Duration::from_millis(500);

/// The subject of a task. While an abandoned task runs, no other starts on its subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// The files of the worker with this name.
    Worker(Name),
    /// The answer about many workers with this key.
    Answer(Key),
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        match unfinished {
            Unfinished::Late => Error::Late,
            Unfinished::Abandoned => Error::Abandoned,
        }
    }
}

/// Reads and caches what answers need of the workers of a view, within the time that the settings
/// allow. Clones share all state.
#[derive(Clone)]
pub struct Analyzer {
    pub(crate) view: Arc<View>,
    pub(crate) settings: Settings,
    pub(super) cache: Arc<DigestCache>,
    pub(super) facet_indexes: Arc<FacetIndexes>,
    pub(super) index: Arc<Index>,
    /// True while a caller runs the backfill of `cache` and `index`.
    pub(super) is_backfilling: Arc<AtomicBool>,
    watchdog: Watchdog<Subject>,
}

impl Analyzer {
    /// Creates an analyzer of the workers of `view`.
    pub(crate) fn new(view: View, settings: Settings) -> Analyzer {
        let watchdog = Watchdog::new();
        let store = view.digest_store().map(|(cache, scope)| DigestStore::new(cache, &scope));
        let cache = Arc::new(DigestCache::new(settings.patience(), store, watchdog.clone()));
        let index = Arc::new(Index::new(view.word_index()));
        let (view, facet_indexes, is_backfilling) = (Arc::new(view), Arc::default(), Arc::default());
        Analyzer { view, settings, cache, facet_indexes, index, is_backfilling, watchdog }
    }

    /// Returns the digests of `states`, in their order. `is_whole_view` is true if these are all
    /// workers of the view, so that the cache directory may keep the digests.
    pub(crate) fn digests(
        &self,
        states: &WorkerStates,
        is_whole_view: bool,
        has_time: Deadline<'_>,
    ) -> Vec<DigestResult> {
        self.cache.get_all(&self.view, states, is_whole_view, &self.settings, has_time)
    }

    /// Runs `work` on a thread that can be abandoned. `work` should stop when `has_time` or the
    /// control of renders returns false; this function returns within `grace` after that.
    ///
    /// # Errors
    /// [`Unfinished`] if `work` does not stop in time or an abandoned task holds the subject.
    pub(crate) fn run_isolated<R: Send + 'static>(
        &self,
        subject: &Subject,
        grace: Duration,
        has_time: Deadline<'_>,
        work: impl FnOnce(Deadline<'_>) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.watchdog.wait(subject, has_time)?;
        let control = self.settings.control.clone();
        self.watchdog
            .run(subject, grace, has_time, move |in_time| work(&|| in_time() && Control::permits(control.as_ref())))
    }

    /// Returns the record of a worker as of `stamp`, read while `has_time` returns true.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; those of
    /// [`crate::view::View::record`].
    pub(crate) fn record(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        grace: Duration,
        has_time: Deadline<'_>,
    ) -> Result<Arc<Record>> {
        if let Some(record) = self.view.cached_record(member, stamp) {
            return Ok(record);
        }
        let subject = Subject::Worker(member.name.clone());
        let (view, member, stamp) = (self.view.clone(), member.clone(), stamp.clone());
        self.run_isolated(&subject, grace, has_time, move |in_time| view.record(&member, &stamp, in_time))?
    }

    /// Runs `cut`, which makes an excerpt of a worker's output.
    ///
    /// # Errors
    /// A sentence that says why the output cannot be read.
    pub(crate) fn run_cut(&self, member: &Member, cut: ExcerptTask, has_time: Deadline<'_>) -> ExcerptResult {
        let result = self.run_isolated(&Subject::Worker(member.name.clone()), PART_GRACE, has_time, cut);
        result.unwrap_or_else(|unfinished| Err(Error::from(unfinished).to_string()))
    }

    /// Returns the search index of a worker as of `stamp`. If it is not cached, reads the worker's
    /// files while `has_time` returns true.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; those of
    /// [`crate::search::ranked::Index::read`].
    pub(crate) fn indexed(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        has_time: Deadline<'_>,
    ) -> Result<WorkerIndex> {
        if let Some(indexed) = self.index.cached(member, stamp) {
            return Ok(indexed);
        }
        let subject = Subject::Worker(member.name.clone());
        let (analyzer, member, stamp) = (self.clone(), member.clone(), stamp.clone());
        let read = move |in_time: Deadline<'_>| analyzer.index.read(&analyzer.view, &member, &stamp, in_time);
        self.run_isolated(&subject, PART_GRACE, has_time, read)?
    }

    /// Logs each subject whose task was abandoned and still runs, once.
    pub(crate) fn log_overdue(&self) {
        for subject in self.watchdog.overdue() {
            let subject = match subject {
                Subject::Worker(name) => format!("the files of worker {}", printable(name.as_bytes())),
                Subject::Answer(_) => "an answer about many workers".into(),
            };
            warn!("reading {subject} does not end; the thread was abandoned, and answers without it say so");
        }
    }
}
