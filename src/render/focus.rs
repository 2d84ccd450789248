//! `summary@<words>` of a worker: its summary, followed by the passages relevant to the words.

use std::sync::Arc;

use super::{Rendered, Renderer, search};
use crate::analysis::settings::Clock;
use crate::analysis::worker_states::WorkerStates;
use crate::error::{Error, Result};
use crate::route::{Generated, Scope};
use crate::view::VisibleWorkers;

impl Renderer {
    /// Renders the summary of a worker with the passages relevant to `query`.
    pub(super) fn focus_file(
        &self,
        scope: &Scope,
        visible: &VisibleWorkers,
        states: &WorkerStates,
        query: &search::Query,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let [(member, Ok(stamp))] = states.as_slice() else { return Err(Error::NotFound) };
        let summary = self.render_worker(Arc::clone(member), stamp.clone(), &Generated::Summary, clock)?;
        let passages = self.search_file(scope, visible, states, query)?;
        // An incomplete summary already begins with such a line.
        let line = match (&summary.missing, &passages.missing) {
            (None, Some(missing)) => format!("{missing}\n"),
            _ => String::new(),
        };
        let bytes = [line.as_bytes(), &*summary.bytes, b"\n", &*passages.bytes].concat();
        let (complete, missing) = (summary.complete && passages.complete, summary.missing.or(passages.missing.clone()));
        Ok(Rendered { bytes: bytes.into(), complete, missing, ..passages })
    }
}
