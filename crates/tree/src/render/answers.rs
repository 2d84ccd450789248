//! Renders the answers to queries.

use std::sync::Arc;

use super::{CoveredWorkers, Rendered, Renderer};
use crate::analysis::settings::Subject;
use crate::catalog::Fingerprint;
use crate::output::since;
use crate::query::compare::{self, CompareQuery};
use crate::query::search::SearchQuery;
use crate::query::since::ViewSnapshot;
use crate::query::{AnswerPage, FileQuery, QueryInput};
use crate::route::cursor::Cursor;
use crate::route::{Report, Scope};
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::watchdog::OVERDUE;

impl Renderer {
    /// Renders an answer about many workers with `render`.
    ///
    /// # Errors
    ///
    /// [`Error::Late`](swarmletfs_base::error::Error::Late) or
    /// [`Error::Abandoned`](swarmletfs_base::error::Error::Abandoned) if `render` does not end; any
    /// error of `render`.
    pub(super) fn render_isolated(
        &self,
        subject: &Subject,
        deadline: Deadline<'_>,
        render: impl FnOnce(&Renderer) -> Result<Rendered> + Send + 'static,
    ) -> Result<Rendered> {
        let renderer = self.clone();
        self.analyzer.run_isolated(subject, OVERDUE, deadline, move |_| render(&renderer))?
    }

    pub(super) fn file_answer(
        &self,
        scope: &Scope,
        workers: &CoveredWorkers,
        query: &impl FileQuery,
    ) -> Result<Rendered> {
        let CoveredWorkers { visible, states, .. } = workers;
        let input = QueryInput { analyzer: &self.analyzer, scope, visible, states };
        self.rendered_page(workers, query.answer(&input).page)
    }

    pub(super) fn compare_file(
        &self,
        CoveredWorkers { visible, states, .. }: CoveredWorkers,
        query: &CompareQuery,
    ) -> Result<Rendered> {
        let (answer, states) = compare::answer_in(&self.analyzer, query, states)?;
        self.rendered_page(&CoveredWorkers { visible, states, removed: 0 }, answer.page)
    }

    pub(super) fn since_file(&self, snapshot: &ViewSnapshot, cursor: Cursor) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        let deadline = Deadline::new(&clock);
        let digests = |states: &_| self.analyzer.digests(states, false, deadline);
        let view = &self.analyzer.view;
        let (text, complete, missing) = since::answer(view, snapshot, cursor, digests);
        let (newest, access) = snapshot.newest_and_access(&self.analyzer.view)?;
        Ok(Rendered { bytes: text.into_bytes().into(), newest, access, complete, missing })
    }

    /// Renders the summary of a worker with the passages relevant to `query`.
    pub(super) fn focus_file(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        query: &SearchQuery,
    ) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        let summary =
            self.render_worker(member.clone(), fingerprint.clone(), Report::Summary, &clock)?;
        let workers = CoveredWorkers {
            visible: self.analyzer.view.visible(),
            states: vec![(member.clone(), Ok(fingerprint.clone()))],
            removed: 0,
        };
        let passages = self.file_answer(&Scope::Worker(member.name.clone()), &workers, query)?;
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

    fn rendered_page(&self, workers: &CoveredWorkers, page: AnswerPage) -> Result<Rendered> {
        let fingerprints =
            workers.states.iter().filter_map(|(_, fingerprint)| fingerprint.as_deref().ok());
        let (newest, access) = self.newest_and_access(workers, fingerprints)?;
        let AnswerPage { text, missing, is_complete: complete, .. } = page;
        Ok(Rendered { bytes: text.into_bytes().into(), newest, access, complete, missing })
    }
}
