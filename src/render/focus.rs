//! `summary@<words>` of a worker: its summary, and the passages of its files that bear on the words.

use std::sync::Arc;

use super::ask::{Folder, holds_a_word};
use super::fragments::Stamped;
use super::settings::Clock;
use super::{Budget, Generated, Rendered, Renderer, Scope, search};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::view::VisibleWorkers;

/// The listed file that it is an addition to.
const SUMMARY: &str = "summary";

/// What a name asks for: the words behind `summary@`, and with a size as in `summary.8k@` how large the passages may be.
pub(super) fn asked(name: &Name) -> Option<search::Query> {
    let folder = Folder::read(name).filter(|folder| folder.word == SUMMARY)?;
    let (budget, others) = folder.budget()?;
    let words = folder.of.filter(|words| others.is_empty() && holds_a_word(words))?;
    let options = search::Options { budget: Some(budget.unwrap_or(Budget::FOCUS)), glob: None };
    Some(search::Query { options, words, under: None })
}

impl Renderer {
    /// The summary of a worker with what bears on `query`.
    pub(super) fn focus_file(
        &self,
        scope: &Scope,
        visible: &VisibleWorkers,
        stamped: &Stamped,
        query: &search::Query,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let [(member, Ok(stamp))] = stamped.as_slice() else { return Err(Error::NotFound) };
        let summary = self.worker(Arc::clone(member), stamp.clone(), &Generated::Summary, clock)?;
        let passages = self.search_file(scope, visible, stamped, query)?;
        // The summary says in its own first line what it lacks.
        let line = match (&summary.missing, &passages.missing) {
            (None, Some(missing)) => format!("{missing}\n"),
            _ => String::new(),
        };
        let bytes = [line.as_bytes(), &*summary.bytes, b"\n", &*passages.bytes].concat();
        let (complete, missing) = (summary.complete && passages.complete, summary.missing.or(passages.missing.clone()));
        Ok(Rendered { bytes: bytes.into(), complete, missing, ..passages })
    }
}
