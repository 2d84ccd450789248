//! `summary@<words>` of a worker: its summary, followed by the passages relevant to the words.

use std::sync::Arc;

use super::query_dir::{ParsedName, has_word};
use super::{Generated, Rendered, Renderer, Scope, search};
use crate::analysis::settings::Clock;
use crate::analysis::worker_states::WorkerStates;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::text::budget::Budget;
use crate::view::VisibleWorkers;

/// Name of the listed file that this one extends.
const SUMMARY: &str = "summary";

/// Parses `summary@<words>`. A size as in `summary.8k@` bounds the passages.
pub(super) fn parse_name(name: &Name) -> Option<search::Query> {
    let name = ParsedName::parse(name).filter(|name| name.word == SUMMARY)?;
    let (budget, others) = name.budget()?;
    let words = name.target.filter(|words| others.is_empty() && has_word(words))?;
    let options = search::Options { budget: Some(budget.unwrap_or(Budget::FOCUS)), glob: None };
    Some(search::Query { options, words, under: None })
}

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
