//! Queries about the workers of a view. Each reads its data through an [`Analyzer`] and returns its
//! answer as a value.

mod answer;
pub mod call_output;
pub mod compare;
pub mod grep;
pub mod search;
pub mod since;
pub mod wait;

use std::fmt;
use std::sync::Arc;

pub use answer::{AnswerPage, Coverage, FileAnswer, Totals};

use crate::analysis::analyzer::Analyzer;
use crate::analysis::missing::Missing;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::route::Scope;
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::text::budget::Budget;

/// The workers whose files a query searches.
pub struct QueryInput<'a> {
    pub analyzer: &'a Analyzer,
    pub scope: &'a Scope,
    pub visible: &'a VisibleWorkers,
    pub states: &'a WorkerStates,
}

impl QueryInput<'_> {
    /// Returns the size limit of the answer, which is `requested` unless that is `None`.
    pub fn budget(&self, requested: Option<Budget>) -> Budget {
        self.analyzer.settings.budget_or(self.scope.default_budget(), requested)
    }

    /// Returns the parts that are missing: `late_files` files, and sessions that are not read yet.
    /// Returns `None` if there are none and time has not `ran_out`.
    pub fn missing(&self, late_files: u64, ran_out: bool) -> Option<Missing> {
        let sessions = self.scope.unread_sessions(self.visible);
        Missing { files: late_files, sessions, ..Missing::default() }.if_any(ran_out)
    }
}

/// A query that searches the files of workers, by a regex or by words.
pub trait FileQuery: fmt::Display {
    type Found;

    /// Returns the query, restricted to the files under `path` in a worker's directory.
    #[must_use]
    fn under(&self, path: Option<RelPath>) -> Self;

    /// Answers the query about the workers in `input`. The answer is complete only if everything
    /// was read and the files shown are still in the states of `input`.
    fn answer(&self, input: &QueryInput<'_>) -> FileAnswer<Self::Found>;
}

/// Answers `query` about the files of `scope` in their current state.
///
/// # Errors
/// [`Error::NotFound`] if the scope is not in the view.
pub fn run<Q: FileQuery>(
    analyzer: &Analyzer,
    scope: &Scope,
    query: &Q,
) -> Result<FileAnswer<Q::Found>> {
    let visible = analyzer.view.visible();
    let states = states_in(analyzer, &visible, scope)?;
    let input = QueryInput { analyzer, scope, visible: &visible, states: &states };
    let answer = query.answer(&input);
    analyzer.settings.note_missing(answer.page.missing.as_ref());
    Ok(answer)
}

pub fn states_in(
    analyzer: &Analyzer,
    visible: &VisibleWorkers,
    scope: &Scope,
) -> Result<WorkerStates> {
    let members = match scope {
        Scope::Swarm => &visible.members,
        Scope::Run(name) => &visible.runs.get(name).ok_or(Error::NotFound)?.members,
        Scope::Selected(selection) => return Ok(analyzer.states(&analyzer.selected(selection))),
        Scope::Workers(names) => {
            let mut members = names
                .iter()
                .map(|name| analyzer.view.find_worker(name))
                .collect::<Result<Vec<_>>>()?;
            // Two names may be the beginnings of one id.
            members.sort_by(|a, b| a.name.cmp(&b.name));
            members.dedup_by(|a, b| a.name == b.name);
            return Ok(analyzer.states(&members));
        }
        Scope::Worker(name) => {
            let member = analyzer.view.worker(name)?;
            let fingerprint = analyzer.view.fingerprint(&member, true)?;
            return Ok(vec![(member, Ok(fingerprint))]);
        }
    };
    Ok(analyzer.states(members))
}

pub fn is_unchanged(
    analyzer: &Analyzer,
    (member, fingerprint): &(Arc<Member>, Result<Arc<Fingerprint>>),
) -> bool {
    fingerprint.as_ref().is_ok_and(|fingerprint| analyzer.view.is_unchanged(member, fingerprint))
}
