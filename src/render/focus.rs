//! `summary@<words>` of a worker: its summary, and the passages of its files that bear on the words.

use std::sync::Arc;

use super::ask::{Folder, holds_a_word};
use super::fragments::{GoOn, Stamped};
use super::{Budget, Generated, Rendered, Renderer, Scope, search};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::view::Visible;

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
        visible: &Visible,
        stamped: &Stamped,
        query: &search::Query,
        go_on: GoOn<'_>,
    ) -> Result<Rendered> {
        let [(member, Ok(stamp))] = stamped.as_slice() else { return Err(Error::NotFound) };
        let summary = self.worker(Arc::clone(member), stamp.clone(), &Generated::Summary, go_on)?;
        let passages = self.search_file(scope, visible, stamped, query)?;
        let bytes = [&*summary.bytes, b"\n", &*passages.bytes].concat();
        Ok(Rendered { bytes: bytes.into(), complete: summary.complete && passages.complete, ..passages })
    }
}
