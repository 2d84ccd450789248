//! Queries on the tree, for MCP and the command line.

use std::io;
use std::sync::Arc;

use super::handle::Handle;
use super::{Fh, Ino, Tree};
use crate::analysis::missing::Missing;
use crate::output::cost::{CostGroup, CostPage};
use crate::query::compare::{self, CompareAnswer, CompareQuery};
use crate::query::{self, FileAnswer, FileQuery, call_output};
use crate::render::expand::{ExpandError, ExpandStats, InputFormat};
use crate::render::list::{WorkerList, WorkerQuery};
use crate::route::Scope;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;

impl Tree {
    /// Searches the files under `ino`, which may stand for all workers, a run, a worker, or a path
    /// in a worker's directory. Returns `None` if it stands for nothing that can be searched.
    pub fn search<Q: FileQuery>(
        &self,
        ino: Ino,
        query: &Q,
    ) -> Result<Option<FileAnswer<Q::Found>>> {
        let Some((scope, under)) = self.node(ino)?.search_scope() else { return Ok(None) };
        query::run(self.namespace.analyzer(), &scope, &query.under(under)).map(Some)
    }

    /// Searches the files of `workers`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if one of `workers` is not in the view.
    pub fn search_workers<Q: FileQuery>(
        &self,
        workers: Arc<[Name]>,
        query: &Q,
    ) -> Result<FileAnswer<Q::Found>> {
        query::run(self.namespace.analyzer(), &Scope::Workers(workers), query)
    }

    /// Lists the workers of the run at `ino`, or of the swarm at the root. Returns `None` if no
    /// worker has the id `query.after`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if `ino` stands for no workers.
    pub fn list_workers(&self, ino: Ino, query: &WorkerQuery) -> Result<Option<WorkerList>> {
        let Some((scope, None)) = self.node(ino)?.search_scope() else {
            return Err(Error::NotFound);
        };
        self.namespace.renderer().list(&scope, query)
    }

    /// Returns the costs of the workers that `query` admits; see
    /// [`Renderer::costs`](crate::render::Renderer::costs).
    pub fn costs(&self, query: &WorkerQuery, by: CostGroup) -> Result<(CostPage, Option<Missing>)> {
        self.namespace.renderer().costs(query, by)
    }

    /// Returns the messages and calls of a worker as text; see
    /// [`Renderer::worker_log`](crate::render::Renderer::worker_log).
    pub fn worker_log(&self, id: &Name) -> Result<String> {
        self.namespace.renderer().worker_log(id)
    }

    pub fn compare(&self, query: &CompareQuery) -> Result<CompareAnswer> {
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
