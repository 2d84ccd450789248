//! Reads and renders what workers wrote on threads that can be given up, so that no worker holds up answers about others.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::evidence::{Cut, CutResult};
use super::fragments::GoOn;
use super::settings::Control;
use super::{Key, Rendered, Renderer, Scope};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::Record;
use crate::name::{Name, printable};
use crate::search::ranked::Indexed;
use crate::view::Member;
use crate::watchdog::{OVERDUE, Unfinished};

/// Time that a part of an answer may take to return once its time is over.
pub(super) const GRACE_OF_PART: Duration = Duration::from_millis(500);

/// The subject of a piece of work: while one piece is left behind, no other is started on it.
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
            Unfinished::GivenUp => Error::GivenUp,
        }
    }
}

impl Renderer {
    /// Runs `work` on a thread that can be left behind, which stops when `go_on` or whoever controls renders says so, and
    /// returns within `grace` after that.
    pub(super) fn run<R: Send + 'static>(
        &self,
        subject: &Subject,
        grace: Duration,
        go_on: GoOn<'_>,
        work: impl FnOnce(GoOn<'_>) -> R + Send + 'static,
    ) -> Result<R, Unfinished> {
        self.watchdog.wait(subject, go_on)?;
        let control = self.settings.control.clone();
        self.watchdog
            .run(subject, grace, go_on, move |in_time| work(&|| in_time() && Control::lets_go_on(control.as_ref())))
    }

    /// Returns the record of a worker as of `stamp`, read while `go_on` returns true.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::GivenUp`] if reading it does not end; those of [`crate::view::View::record`].
    pub(super) fn record(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        grace: Duration,
        go_on: GoOn<'_>,
    ) -> Result<Arc<Record>> {
        if let Some(record) = self.view.cached_record(member, stamp) {
            return Ok(record);
        }
        let subject = Subject::Worker(member.name.clone());
        let (view, member, stamp) = (self.view.clone(), member.clone(), stamp.clone());
        self.run(&subject, grace, go_on, move |in_time| view.record(&member, &stamp, in_time))?
    }

    /// Makes an excerpt of a worker's output with `cut`.
    ///
    /// # Errors
    /// A sentence on why it cannot be read.
    pub(super) fn cut(&self, member: &Member, cut: Cut, go_on: GoOn<'_>) -> CutResult {
        let made = self.run(&Subject::Worker(member.name.clone()), GRACE_OF_PART, go_on, cut);
        made.unwrap_or_else(|unfinished| Err(Error::from(unfinished).to_string()))
    }

    /// Returns what there is of a worker's words as of `stamp`, read while `go_on` returns true where it is not known.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::GivenUp`] if reading it does not end; those of [`crate::search::ranked::Index::read`].
    pub(super) fn words(&self, member: &Arc<Member>, stamp: &Arc<Fingerprint>, go_on: GoOn<'_>) -> Result<Indexed> {
        if let Some(words) = self.index.cached(member, stamp) {
            return Ok(words);
        }
        let subject = Subject::Worker(member.name.clone());
        let (renderer, member, stamp) = (self.clone(), member.clone(), stamp.clone());
        let read = move |in_time: GoOn<'_>| renderer.index.read(&renderer.view, &member, &stamp, in_time);
        self.run(&subject, GRACE_OF_PART, go_on, read)?
    }

    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::GivenUp`] if that does not end.
    pub(super) fn answer(
        &self,
        key: Key,
        scope: &Scope,
        go_on: GoOn<'_>,
        render: impl FnOnce(&Renderer, &Scope) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let (renderer, scope) = (self.clone(), scope.clone());
        self.run(&Subject::Answer(key), OVERDUE, go_on, move |_| render(&renderer, &scope))?
    }

    /// Logs each subject whose work was given up and still has not ended, once.
    pub(super) fn log_overdue(&self) {
        for subject in self.watchdog.overdue() {
            let what = match subject {
                Subject::Worker(name) => format!("the files of worker {}", printable(name.as_bytes())),
                Subject::Answer(_) => "an answer about many workers".into(),
            };
            warn!("reading {what} does not end; it was given up, and answers without it say so");
        }
    }
}
