//! Queries about the workers of a view. Each reads what it needs through an
//! [`Analyzer`] and returns its answer as a value.

pub mod call_output;
pub mod compare;
pub mod grep;
pub mod search;
pub mod since;
pub mod wait;

use crate::analysis::analyzer::Analyzer;
use crate::analysis::worker_states::WorkerStates;
use crate::error::{Error, Result};
use crate::route::Scope;
use crate::view::VisibleWorkers;

/// Returns the workers of a scope with the states of their files.
pub(crate) fn states_in(
    analyzer: &Analyzer,
    visible: &VisibleWorkers,
    scope: &Scope,
) -> Result<WorkerStates> {
    let members = match scope {
        Scope::Swarm => &visible.members,
        Scope::Run(name) => &visible.runs.get(name).ok_or(Error::NotFound)?.members,
        Scope::Selected(selection) => return Ok(analyzer.states(&analyzer.selected(selection))),
        Scope::Workers(names) => {
            let members = names
                .iter()
                .map(|name| analyzer.view.find_worker(name))
                .collect::<Result<Vec<_>>>()?;
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
