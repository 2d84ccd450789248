//! Queries on the tree, for MCP and the command line.

use std::io;
use std::sync::Arc;

use super::handle::Handle;
use super::{Fh, Ino, Tree};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::query::{call_output, compare, grep, search};
use crate::render::expand::{ExpandError, ExpandStats, InputFormat};
use crate::render::list;
use crate::route::Scope;
use crate::text::budget::Budget;

impl Tree {
    /// Searches the files under `ino` for lines that match. `ino` may stand for all workers, a run,
    /// a worker, or a path in a worker's directory. Returns `None` if it stands for nothing that
    /// can be searched.
    pub fn grep(&self, ino: Ino, query: &grep::Query) -> Result<Option<grep::Answer>> {
        let Some((scope, under)) = self.node(ino)?.search_scope() else { return Ok(None) };
        let query = grep::Query { under, ..query.clone() };
        grep::answer(self.namespace.analyzer(), &scope, &query).map(Some)
    }

    /// Ranks the passages of the files under `ino` by the words of the query. Returns `None` if
    /// `ino` stands for nothing that can be searched.
    pub fn search(&self, ino: Ino, query: &search::Query) -> Result<Option<search::Answer>> {
        let Some((scope, under)) = self.node(ino)?.search_scope() else { return Ok(None) };
        let query = search::Query { under, ..query.clone() };
        search::answer(self.namespace.analyzer(), &scope, &query).map(Some)
    }

    /// Lists the workers of the run at `ino`, or of the swarm at the root. Returns `None` if no
    /// worker has the id `query.after`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if `ino` stands for no workers.
    pub fn list_workers(&self, ino: Ino, query: &list::Query) -> Result<Option<list::Answer>> {
        let Some((scope, None)) = self.node(ino)?.search_scope() else {
            return Err(Error::NotFound);
        };
        self.namespace.renderer().list(&scope, query)
    }

    /// Searches the files of `workers` for lines that match.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if one of `workers` is not in the view.
    pub fn grep_workers(&self, workers: Arc<[Name]>, query: &grep::Query) -> Result<grep::Answer> {
        grep::answer(self.namespace.analyzer(), &Scope::Workers(workers), query)
    }

    /// Ranks the passages in the files of `workers` by the words of the query.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if one of `workers` is not in the view.
    pub fn search_workers(
        &self,
        workers: Arc<[Name]>,
        query: &search::Query,
    ) -> Result<search::Answer> {
        search::answer(self.namespace.analyzer(), &Scope::Workers(workers), query)
    }

    /// Compares workers: what they share and where they differ.
    pub fn compare(&self, query: &compare::Query) -> Result<compare::Answer> {
        compare::answer(self.namespace.analyzer(), query)
    }

    /// Copies a text and expands its evidence markers; see
    /// [`Renderer::expand`](crate::render::Renderer::expand).
    pub fn expand(
        &self,
        format: InputFormat,
        budget: Option<Budget>,
        input: impl io::Read,
        output: impl io::Write,
    ) -> Result<ExpandStats, ExpandError> {
        self.namespace.renderer().expand(format, budget, input, output)
    }

    /// Writes the markers and the evidence of `workers`; see
    /// [`Renderer::expand_workers`](crate::render::Renderer::expand_workers).
    pub fn expand_workers<'a>(
        &self,
        workers: impl Iterator<Item = &'a Name>,
        budget: Option<Budget>,
        output: impl io::Write,
    ) -> Result<ExpandStats, ExpandError> {
        self.namespace.renderer().expand_workers(workers, budget, output)
    }

    /// Opens the output of a call, in the worker's directory or outside of it. The handle is `None`
    /// if the output is missing; the location then gives the reason.
    pub fn open_output(
        &self,
        call: &call_output::CallSelector<'_>,
    ) -> Result<(call_output::OutputLocation, Option<Fh>)> {
        let (place, file) = call_output::open(self.namespace.analyzer(), call)?;
        Ok((place, file.map(|file| self.handles.lock().add(Handle::File(None, file.into())))))
    }
}
