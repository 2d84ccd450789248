//! Reads and renders workers on threads that can be abandoned, so that no worker delays answers
//! about others.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::evidence::{ExcerptResult, ExcerptTask};
use super::settings::{Control, Deadline};
use super::{Key, Rendered, Renderer};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::Record;
use crate::name::{Name, printable};
use crate::search::ranked::WorkerIndex;
use crate::view::Member;
use crate::watchdog::{OVERDUE, Unfinished};

/// Time that a part of an answer may take to return after its deadline.
pub(super) const PART_GRACE: Duration = Duration::from_millis(500);

/// The subject of a task. While an abandoned task runs, no other starts on its subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
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

impl Renderer {
    /// Runs `work` on a thread that can be abandoned. `work` should stop when `deadline` passes or
    /// the control of renders stops it; this function returns within `grace` after that.
    ///
    /// # Errors
    /// [`Unfinished`] if `work` does not stop in time or an abandoned task holds the subject.
    pub(super) fn run_isolated<R: Send + 'static>(
        &self,
        subject: &Subject,
        grace: Duration,
        deadline: Deadline<'_>,
        work: impl FnOnce(Deadline<'_>) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.watchdog.wait(subject, &|| deadline.has_time())?;
        let control = self.settings.control.clone();
        self.watchdog.run(subject, grace, &|| deadline.has_time(), move |in_time| {
            work(Deadline::new(&|| in_time() && Control::permits(control.as_ref())))
        })
    }

    /// Returns the record of a worker as of `stamp`, read until `deadline`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; those of
    /// [`crate::view::View::record`].
    pub(super) fn record(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        grace: Duration,
        deadline: Deadline<'_>,
    ) -> Result<Arc<Record>> {
        if let Some(record) = self.view.cached_record(member, stamp) {
            return Ok(record);
        }
        let subject = Subject::Worker(member.name.clone());
        let (view, member, stamp) = (self.view.clone(), member.clone(), stamp.clone());
        self.run_isolated(&subject, grace, deadline, move |deadline| {
            view.record(&member, &stamp, &|| deadline.has_time())
        })?
    }

    /// Runs `cut`, which makes an excerpt of a worker's output.
    ///
    /// # Errors
    /// A sentence that says why the output cannot be read.
    pub(super) fn run_cut(&self, member: &Member, cut: ExcerptTask, deadline: Deadline<'_>) -> ExcerptResult {
        let result = self.run_isolated(&Subject::Worker(member.name.clone()), PART_GRACE, deadline, cut);
        result.unwrap_or_else(|unfinished| Err(Error::from(unfinished).to_string()))
    }

    /// Returns the search index of a worker as of `stamp`. If it is not cached, reads the worker's
    /// files until `deadline`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; those of
    /// [`crate::search::ranked::Index::read`].
    pub(super) fn indexed(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        deadline: Deadline<'_>,
    ) -> Result<WorkerIndex> {
        if let Some(indexed) = self.index.cached(member, stamp) {
            return Ok(indexed);
        }
        let subject = Subject::Worker(member.name.clone());
        let (renderer, member, stamp) = (self.clone(), member.clone(), stamp.clone());
        self.run_isolated(&subject, PART_GRACE, deadline, move |deadline| {
            renderer.index.read(&renderer.view, &member, &stamp, &|| deadline.has_time())
        })?
    }

    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if `render` does not end; those of `render`.
    pub(super) fn render_isolated(
        &self,
        subject: &Subject,
        deadline: Deadline<'_>,
        render: impl FnOnce(&Renderer) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let renderer = self.clone();
        self.run_isolated(subject, OVERDUE, deadline, move |_| render(&renderer))?
    }

    /// Logs each subject whose task was abandoned and still runs, once.
    pub(super) fn log_overdue(&self) {
        for subject in self.watchdog.overdue() {
            let subject = match subject {
                Subject::Worker(name) => format!("the files of worker {}", printable(name.as_bytes())),
                Subject::Answer(_) => "an answer about many workers".into(),
            };
            warn!("reading {subject} does not end; the thread was abandoned, and answers without it say so");
        }
    }
}
