//! Queries on the tree, for MCP and the command line.

use std::io;
use std::sync::Arc;

use super::handle::Handle;
use super::{Fh, Ino, Tree};
use crate::error::Result;
use crate::name::Name;
use crate::query::call_output;
use crate::query::compare::{self, CompareAnswer, CompareQuery};
use crate::query::grep::{self, GrepAnswer, GrepQuery};
use crate::query::search::{self, SearchAnswer, SearchQuery};
use crate::render::expand::{ExpandError, ExpandStats, InputFormat};
use crate::render::list;
use crate::route::Scope;
use crate::text::budget::Budget;

impl Tree {
    /// Searches the files under `ino` for lines that match. `ino` may stand for all workers, a run,
    /// a worker, or a path in a worker's folder. Returns `None` if it stands for nothing that can
    /// be searched.
    pub fn grep(&self, ino: Ino, query: &GrepQuery) -> Result<Option<GrepAnswer>> {
        self.namespace.grep(&self.node(ino)?, query)
    }

    /// Ranks the passages of the files under `ino` by the words of the query. Returns `None` if
    /// `ino` stands for nothing that can be searched.
    pub fn search(&self, ino: Ino, query: &SearchQuery) -> Result<Option<SearchAnswer>> {
        self.namespace.search(&self.node(ino)?, query)
    }

    /// Lists the workers of the run at `ino`, or of the swarm at the root. Returns `None` if no
    /// worker has the id `query.after`.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::error::Error::NotFound) if `ino` stands for no workers.
    pub fn list_workers(&self, ino: Ino, query: &list::Query) -> Result<Option<list::Answer>> {
        self.namespace.list_workers(&self.node(ino)?, query)
    }

    /// Searches the files of `workers` for lines that match.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::error::Error::NotFound) if one of `workers` is not in the view.
    pub fn grep_workers(&self, workers: Arc<[Name]>, query: &GrepQuery) -> Result<GrepAnswer> {
        grep::answer(self.namespace.renderer().analyzer(), &Scope::Workers(workers), query)
    }

    /// Ranks the passages in the files of `workers` by the words of the query.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::error::Error::NotFound) if one of `workers` is not in the view.
    pub fn search_workers(
        &self,
        workers: Arc<[Name]>,
        query: &SearchQuery,
    ) -> Result<SearchAnswer> {
        search::answer(self.namespace.renderer().analyzer(), &Scope::Workers(workers), query)
    }

    /// Compares workers: what they share and where they differ.
    pub fn compare(&self, query: &CompareQuery) -> Result<CompareAnswer> {
        compare::answer(self.namespace.renderer().analyzer(), query)
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

    /// Opens the output of a call, in the worker's folder or outside of it.
    pub fn open_output(
        &self,
        call: &call_output::CallSelector<'_>,
    ) -> Result<(call_output::OutputLocation, Option<Fh>)> {
        let (place, file) = call_output::open(self.namespace.renderer().analyzer(), call)?;
        Ok((place, file.map(|file| self.handles.lock().add(Handle::File(None, file.into())))))
    }
}
