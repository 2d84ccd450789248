//! Lists the workers of a run or the swarm, with the values of index.json.

use std::collections::BTreeSet;

use super::Renderer;
use crate::output::index;
pub use crate::output::json::IndexRow;
use crate::query::states_in;
use crate::route::Scope;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::SharedStr;

/// Conditions on the workers of a list. `None` admits every worker. Letter case matters for the tag
/// only.
#[derive(Debug, Clone, Default)]
pub struct WorkerListQuery {
    /// Status, or the word that the worker's program wrote for it.
    pub status: Option<String>,
    pub outcome: Option<String>,
    /// Level of attention.
    pub attention: Option<String>,
    pub task_type: Option<String>,
    pub tag: Option<String>,
    /// Only workers after the one with this id.
    pub after: Option<String>,
}

/// The workers that a query admits, in the order of index.json.
#[derive(Debug, Default)]
pub struct WorkerList {
    pub workers: Vec<IndexRow>,
    /// All statuses in the scope, admitted or not; likewise `outcomes` and `task_types`.
    pub statuses: BTreeSet<&'static str>,
    pub outcomes: BTreeSet<&'static str>,
    pub task_types: BTreeSet<SharedStr>,
}

impl WorkerListQuery {
    /// Returns true if a worker meets all conditions but `after`.
    fn admits(&self, row: &IndexRow) -> bool {
        let is = |value: Option<&str>, wanted: &Option<String>| {
            wanted
                .as_ref()
                .is_none_or(|wanted| value.is_some_and(|value| value.eq_ignore_ascii_case(wanted)))
        };
        (is(Some(row.status), &self.status) || is(row.status_source.as_deref(), &self.status))
            && is(row.outcome, &self.outcome)
            && is(row.attention.as_ref().map(|found| found.level.as_str()), &self.attention)
            && is(row.task_type.as_deref(), &self.task_type)
            && self.tag.as_ref().is_none_or(|wanted| row.tags.iter().any(|tag| **tag == **wanted))
    }
}

impl Renderer {
    /// Lists the workers of a scope. Returns `None` if no worker has the id `after`.
    ///
    /// # Errors
    /// [`swarmletfs_base::error::Error::NotFound`] if the scope is not in the view.
    pub fn list(&self, scope: &Scope, query: &WorkerListQuery) -> Result<Option<WorkerList>> {
        let clock = self.analyzer.settings.clock(10);
        let visible = self.analyzer.view.visible();
        let states = states_in(&self.analyzer, &visible, scope)?;
        let (rows, _) = self.worker_rows(&states, *scope == Scope::Swarm, clock.deadline());
        let mut list = WorkerList::default();
        let mut has_begun = query.after.is_none();
        for row in index::swarm_rows(&visible, &rows) {
            list.statuses.insert(row.status);
            list.outcomes.extend(row.outcome);
            list.task_types.extend(row.task_type.clone());
            if !has_begun {
                has_begun = query.after.as_ref() == Some(&row.id);
            } else if query.admits(&row) {
                list.workers.push(row);
            }
        }
        Ok(has_begun.then_some(list))
    }
}
