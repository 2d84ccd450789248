//! Reads and renders workers on threads that can be abandoned, so that no worker delays answers
//! about others.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::{Rendered, Renderer, Scope};
use crate::analysis::excerpt::{ExcerptResult, ExcerptTask};
use crate::analysis::settings::{Control, Deadline};
use crate::catalog::Fingerprint;
use crate::digest::Key;
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
    /// Runs `work` on a thread that can be abandoned. `work` should stop when `has_time` or the
    /// control of renders returns false; this function returns within `grace` after that.
    ///
    /// # Errors
    /// [`Unfinished`] if `work` does not stop in time or an abandoned task holds the subject.
    pub(super) fn run_isolated<R: Send + 'static>(
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
    pub(super) fn record(
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
    pub(super) fn run_cut(&self, member: &Member, cut: ExcerptTask, has_time: Deadline<'_>) -> ExcerptResult {
        let result = self.run_isolated(&Subject::Worker(member.name.clone()), PART_GRACE, has_time, cut);
        result.unwrap_or_else(|unfinished| Err(Error::from(unfinished).to_string()))
    }

    /// Returns the search index of a worker as of `stamp`. If it is not cached, reads the worker's
    /// files while `has_time` returns true.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if reading does not end; those of
    /// [`crate::search::ranked::Index::read`].
    pub(super) fn indexed(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        has_time: Deadline<'_>,
    ) -> Result<WorkerIndex> {
        if let Some(indexed) = self.index.cached(member, stamp) {
            return Ok(indexed);
        }
        let subject = Subject::Worker(member.name.clone());
        let (renderer, member, stamp) = (self.clone(), member.clone(), stamp.clone());
        let read = move |in_time: Deadline<'_>| renderer.index.read(&renderer.view, &member, &stamp, in_time);
        self.run_isolated(&subject, PART_GRACE, has_time, read)?
    }

    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::Abandoned`] if `render` does not end; those of `render`.
    pub(super) fn render_isolated(
        &self,
        key: Key,
        scope: &Scope,
        has_time: Deadline<'_>,
        render: impl FnOnce(&Renderer, &Scope) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let (renderer, scope) = (self.clone(), scope.clone());
        self.run_isolated(&Subject::Answer(key), OVERDUE, has_time, move |_| render(&renderer, &scope))?
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
