//! Renders the answers to queries.

use std::sync::Arc;

use super::{CoveredWorkers, Rendered, Renderer};
use crate::analysis::isolation::Subject;
use crate::analysis::missing::Missing;
use crate::catalog::Fingerprint;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::output::since;
use crate::query::since::ViewSnapshot;
use crate::query::{compare, grep, search};
use crate::route::cursor::Cursor;
use crate::route::{Report, Scope};
use crate::view::Member;
use crate::watchdog::OVERDUE;

impl Renderer {
    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    /// [`Late`](crate::error::Error::Late) or [`Abandoned`](crate::error::Error::Abandoned) if
    /// `render` does not end; those of `render`.
    pub(super) fn render_isolated(
        &self,
        subject: &Subject,
        deadline: Deadline<'_>,
        render: impl FnOnce(&Renderer) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let renderer = self.clone();
        self.analyzer.run_isolated(subject, OVERDUE, deadline, move |_| render(&renderer))?
    }

    /// Renders the file that answers `query`.
    pub(super) fn grep_file(
        &self,
        scope: &Scope,
        workers: &CoveredWorkers,
        query: &grep::Query,
    ) -> Result<Rendered> {
        let CoveredWorkers { visible, states } = workers;
        let grep::Answer { text, is_complete, missing, .. } =
            grep::answer_in(&self.analyzer, scope, visible, states, query);
        self.rendered_answer(workers, text, is_complete, missing)
    }

    /// Renders the file that answers `query`.
    pub(super) fn search_file(
        &self,
        scope: &Scope,
        workers: &CoveredWorkers,
        query: &search::Query,
    ) -> Result<Rendered> {
        let CoveredWorkers { visible, states } = workers;
        let search::Answer { text, is_complete, missing, .. } =
            search::answer_in(&self.analyzer, scope, visible, states, query);
        self.rendered_answer(workers, text, is_complete, missing)
    }

    /// Renders the file that answers `query`.
    pub(super) fn compare_file(
        &self,
        CoveredWorkers { visible, states }: CoveredWorkers,
        query: &compare::Query,
    ) -> Result<Rendered> {
        let (compare::Answer { text, is_complete, missing, .. }, states) =
            compare::answer_in(&self.analyzer, query, states)?;
        self.rendered_answer(&CoveredWorkers { visible, states }, text, is_complete, missing)
    }

    /// Renders `since/CURSOR` from `snapshot`.
    pub(super) fn since_file(&self, snapshot: &ViewSnapshot, cursor: Cursor) -> Result<Rendered> {
        let (text, complete, missing) = since::answer(&self.analyzer.view, snapshot, cursor);
        let (newest, access) = snapshot.newest_and_access(&self.analyzer.view)?;
        Ok(Rendered { bytes: text.into_bytes().into(), newest, access, complete, missing })
    }

    /// Renders the summary of a worker with the passages relevant to `query`.
    pub(super) fn focus_file(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        query: &search::Query,
    ) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        let summary =
            self.render_worker(member.clone(), fingerprint.clone(), Report::Summary, &clock)?;
        let workers = CoveredWorkers {
            visible: self.analyzer.view.visible(),
            states: vec![(member.clone(), Ok(fingerprint.clone()))],
        };
        let passages = self.search_file(&Scope::Worker(member.name.clone()), &workers, query)?;
        // An incomplete summary already begins with such a line.
        let line = match (&summary.missing, &passages.missing) {
            (None, Some(missing)) => format!("{missing}\n"),
            _ => String::new(),
        };
        let bytes = [line.as_bytes(), &*summary.bytes, b"\n", &*passages.bytes].concat();
        let (complete, missing) =
            (summary.complete && passages.complete, summary.missing.or(passages.missing.clone()));
        Ok(Rendered { bytes: bytes.into(), complete, missing, ..passages })
    }

    /// Returns the file with the `text` of an answer about `workers`. `complete` is true if
    /// everything was read.
    fn rendered_answer(
        &self,
        workers: &CoveredWorkers,
        text: String,
        complete: bool,
        missing: Option<Missing>,
    ) -> Result<Rendered> {
        let fingerprints =
            workers.states.iter().filter_map(|(_, fingerprint)| fingerprint.as_deref().ok());
        let (newest, access) = self.newest_and_access(workers, fingerprints)?;
        Ok(Rendered { bytes: text.into_bytes().into(), newest, access, complete, missing })
    }
}
