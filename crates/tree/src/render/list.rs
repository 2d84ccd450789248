//! Lists the workers of a run or the swarm, with the values of index.json.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::{Renderer, any_late};
use crate::analysis::attention::Attention;
use crate::analysis::facets::Facet;
use crate::analysis::missing::Missing;
use crate::analysis::peers::among_peers;
use crate::analysis::worker_digest::WorkerRow;
use crate::output::index;
pub use crate::output::json::IndexRow;
use crate::output::summary::table::{begun, newest_first, table_of};
use crate::query::states_in;
use crate::route::Scope;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::SharedStr;
use swarmletfs_base::name::Name;

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

/// Conditions on the workers of a table; each must hold.
#[derive(Debug, Clone, Default)]
pub struct NewestQuery {
    /// Values of facets, as text.
    pub values: Vec<(Facet, String)>,
    /// Time since which a worker began.
    pub since: Option<Timestamp>,
    /// Part of the title or the task, in any letter case.
    pub text: Option<String>,
    /// Width of the table in characters; `None` cuts nothing.
    pub width: Option<usize>,
}

/// The workers that a [`NewestQuery`] admits, newest first, as a table and as entries of
/// index.json.
#[derive(Debug)]
pub struct NewestWorkers {
    pub table: String,
    pub workers: Vec<IndexRow>,
    pub missing: Option<Missing>,
}

impl NewestQuery {
    fn admits(&self, row: &WorkerRow, attention: &Attention) -> bool {
        let digest = row.digest.as_deref();
        let has = |(facet, value): &(Facet, String)| match facet {
            // Among others, a worker may need more than by its own record.
            Facet::Attention => digest.is_some() && attention.level().as_str() == value,
            facet => facet.has_value(value, &row.member.entry, digest),
        };
        let worker = row.worker();
        let contains = |text: &String| {
            let text = text.to_lowercase();
            [worker.title(), &worker.task].iter().any(|words| words.to_lowercase().contains(&text))
        };
        self.values.iter().all(has)
            && self.since.is_none_or(|since| begun(row).is_some_and(|at| at >= since))
            && self.text.as_ref().is_none_or(contains)
    }
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
        for row in index::swarm_rows(&visible, &rows, &among_peers(&rows)) {
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

    /// Lists the workers of the view that `query` admits, newest first.
    ///
    /// # Errors
    /// The states of the workers cannot be read.
    pub fn newest(&self, query: &NewestQuery) -> Result<NewestWorkers> {
        let clock = self.analyzer.settings.clock(10);
        let visible = self.analyzer.view.visible();
        let states = states_in(&self.analyzer, &visible, &Scope::Swarm)?;
        let (rows, _) = self.worker_rows(&states, true, clock.deadline());
        let attention = among_peers(&rows);
        let admitted = rows.iter().zip(&attention).filter(|(row, needs)| query.admits(row, needs));
        let newest = newest_first(admitted);
        let entries = index::swarm_rows(&visible, &rows, &attention);
        let mut entries: HashMap<&Name, IndexRow> =
            rows.iter().map(|row| &row.member.name).zip(entries).collect();
        let ran_out = clock.ran_out() || any_late(&states);
        let missing = Missing {
            unread_workers: rows.iter().filter(|row| row.is_late(ran_out)).count(),
            workers: rows.len(),
            sessions: Scope::Swarm.unread_sessions(&visible),
            ..Missing::default()
        };
        let missing = missing.if_any(ran_out);
        self.analyzer.settings.note_missing(missing.as_ref());
        Ok(NewestWorkers {
            table: table_of(&visible, &newest, query.width),
            workers: newest
                .iter()
                .filter_map(|(_, row, _)| entries.remove(&row.member.name))
                .collect(),
            missing,
        })
    }
}
