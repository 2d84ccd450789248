//! Reads and renders what workers wrote on threads that can be given up, so that no worker holds up answers about others.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::fragments::GoOn;
use super::settings::Control;
use super::{Generated, Key, Rendered, Renderer, Scope};
use crate::catalog::Stamp;
use crate::error::{Error, Result};
use crate::model::{Record, Trace};
use crate::name::{Name, RelPath, printable};
use crate::search::ranked::Indexed;
use crate::view::Member;
use crate::watchdog::GivenUp;

/// Time that work on a worker may take to return once its deadline has passed.
pub(super) const GRACE: Duration = Duration::from_millis(750);
/// The same of an answer about many workers, each of which may take its own.
const GRACE_OF_MANY: Duration = Duration::from_secs(3);

/// What work is about, of which one piece after the other is given up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// The files of the worker with this name.
    Worker(Name),
    /// The answer about many workers with this key.
    Answer(Key),
}

impl From<GivenUp> for Error {
    fn from(_: GivenUp) -> Error {
        Error::GivenUp
    }
}

impl Renderer {
    /// Runs `work` on a thread that can be given up, which stops when `go_on` or whoever controls renders says so.
    fn run<R: Send + 'static>(
        &self,
        subject: &Subject,
        go_on: GoOn<'_>,
        work: impl FnOnce(GoOn<'_>) -> R + Send + 'static,
    ) -> Result<R, GivenUp> {
        let control = self.settings.control.clone();
        let grace = if matches!(subject, Subject::Worker(_)) { GRACE } else { GRACE_OF_MANY };
        self.watchdog
            .run(subject, grace, go_on, move |in_time| work(&|| in_time() && Control::lets_go_on(control.as_ref())))
    }

    /// Returns the record of a worker as of `stamp`, read while `go_on` returns true.
    ///
    /// # Errors
    /// [`Error::GivenUp`] if reading it does not end; those of [`crate::view::View::record`].
    pub(super) fn record(&self, member: &Arc<Member>, stamp: &Arc<Stamp>, go_on: GoOn<'_>) -> Result<Arc<Record>> {
        if let Some(record) = self.view.cached_record(member, stamp) {
            return Ok(record);
        }
        let subject = Subject::Worker(member.name.clone());
        let (view, member, stamp) = (self.view.clone(), member.clone(), stamp.clone());
        self.run(&subject, go_on, move |in_time| view.record(&member, &stamp, in_time))?
    }

    /// Returns what there is of a worker's words as of `stamp`, read while `go_on` returns true where it is not known.
    ///
    /// # Errors
    /// [`Error::GivenUp`] if reading it does not end; those of [`crate::search::ranked::Index::read`].
    pub(super) fn words(&self, member: &Arc<Member>, stamp: &Arc<Stamp>, go_on: GoOn<'_>) -> Result<Indexed> {
        if let Some(words) = self.index.cached(member, stamp) {
            return Ok(words);
        }
        let subject = Subject::Worker(member.name.clone());
        let (renderer, member, stamp) = (self.clone(), member.clone(), stamp.clone());
        let read = move |in_time: GoOn<'_>| renderer.index.read(&renderer.view, &member, &stamp, in_time);
        self.run(&subject, go_on, read)?
    }

    /// Renders `file` of a worker. If that does not end, renders it of the worker's metadata alone, with a line that says
    /// so.
    pub(super) fn worker_file(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Stamp>,
        file: &Generated,
        go_on: GoOn<'_>,
    ) -> Result<Rendered> {
        let subject = Subject::Worker(member.name.clone());
        let whole = {
            let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
            move |_: GoOn<'_>| renderer.worker(member, stamp, &file, &renderer.settings.clock(10))
        };
        if let Ok(rendered) = self.run(&subject, go_on, whole) {
            return rendered;
        }
        // Another subject: nothing that the worker's files hold takes part in it.
        let subject = Subject::Answer(stamp.key);
        let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
        self.run(&subject, &|| false, move |_| {
            let (record, no_time) = (unread_record(&member), renderer.settings.clock(0));
            let (bytes, _, missing) = renderer.worker_bytes(&member, &stamp, &record, &file, &no_time)?;
            Ok(Rendered { bytes: bytes.into(), newest: stamp.newest, access: stamp.access, complete: false, missing })
        })?
    }

    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    /// [`Error::GivenUp`] if that does not end.
    pub(super) fn answer(
        &self,
        key: Key,
        scope: &Scope,
        go_on: GoOn<'_>,
        render: impl FnOnce(&Renderer, &Scope) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let (renderer, scope) = (self.clone(), scope.clone());
        self.run(&Subject::Answer(key), go_on, move |_| render(&renderer, &scope))?
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

/// The record of a worker of whose files nothing could be read.
fn unread_record(member: &Member) -> Record {
    let unreadable = vec![(RelPath::root(), Error::GivenUp.to_string())];
    Record { worker: member.entry.worker(), trace: Trace { unreadable, ..Trace::default() }, unread: 0 }
}
