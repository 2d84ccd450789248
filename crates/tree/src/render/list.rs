//! Lists the workers of a run or the swarm, and their costs.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::{Renderer, any_late};
use crate::analysis::attention::Attention;
use crate::analysis::facets::Facet;
use crate::analysis::missing::Missing;
use crate::analysis::peers::among_peers;
use crate::analysis::worker_digest::WorkerRow;
use crate::output::board::BoardRow;
use crate::output::cost::{self, CostGroup, CostPage};
use crate::output::index;
pub use crate::output::json::IndexRow;
use crate::output::summary::table::{begun, newest_first, table_of};
use crate::query::states_in;
use crate::route::Scope;
use crate::view::VisibleWorkers;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::SharedStr;
use swarmletfs_base::name::Name;

/// Conditions on the workers of a list; each must hold.
#[derive(Debug, Clone, Default)]
pub struct WorkerQuery {
    /// Values of facets, as text; see [`Facet::has_value`].
    pub values: Vec<(Facet, String)>,
    /// Time since which a worker began.
    pub since: Option<Timestamp>,
    /// Part of the title or the task, in any letter case.
    pub text: Option<String>,
    /// Only workers after the one with this id.
    pub after: Option<String>,
    /// Width of the table in characters, if one is wanted; `usize::MAX` cuts nothing.
    pub table: Option<usize>,
}

/// The workers that a query admits, newest first, as entries of index.json, and as a table if the
/// query wants one.
#[derive(Debug, Default)]
pub struct WorkerList {
    pub table: String,
    pub workers: Vec<IndexRow>,
    pub missing: Option<Missing>,
    /// All statuses in the scope, admitted or not; likewise `outcomes` and `task_types`.
    pub statuses: BTreeSet<&'static str>,
    pub outcomes: BTreeSet<&'static str>,
    pub task_types: BTreeSet<SharedStr>,
}

impl WorkerQuery {
    /// Returns true if a worker meets all conditions but `after`.
    pub(super) fn admits(&self, row: &WorkerRow, attention: &Attention) -> bool {
        let digest = row.digest.as_deref();
        let has = |(facet, value): &(Facet, String)| match facet {
            // Among others, a worker may need more than by its own record.
            Facet::Attention => {
                digest.is_some() && attention.level().as_str().eq_ignore_ascii_case(value)
            }
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

impl Renderer {
    /// Lists the workers of a scope that `query` admits, newest first. Returns `None` if no worker
    /// has the id `query.after`.
    ///
    /// # Errors
    /// [`swarmletfs_base::error::Error::NotFound`] if the scope is not in the view.
    pub fn list(&self, scope: &Scope, query: &WorkerQuery) -> Result<Option<WorkerList>> {
        let visible = self.analyzer.view.visible();
        let (rows, missing) = self.rows_in(scope, &visible)?;
        let attention = among_peers(&rows, self.prices());
        let mut newest = newest_first(rows.iter().zip(&attention));
        if let Some(after) = &query.after {
            let at = newest.iter().position(|(_, row, _)| row.member.name.to_text() == *after);
            let Some(at) = at else { return Ok(None) };
            newest.drain(..=at);
        }
        newest.retain(|(_, row, needs)| query.admits(row, needs));
        let mut list = WorkerList { missing, ..WorkerList::default() };
        let entries = index::swarm_rows(&visible, &rows, &attention, self.prices());
        let mut entries: HashMap<&Name, IndexRow> = rows
            .iter()
            .map(|row| &row.member.name)
            .zip(entries.inspect(|entry| {
                list.statuses.insert(entry.status);
                list.outcomes.extend(entry.outcome);
                list.task_types.extend(entry.task_type.clone());
            }))
            .collect();
        let table = query.table.map(|width| table_of(&visible, &newest, width));
        list.table = table.unwrap_or_default();
        let admitted = newest.iter().filter_map(|(_, row, _)| entries.remove(&row.member.name));
        list.workers = admitted.collect();
        Ok(Some(list))
    }

    /// Returns the workers of the view that `query` admits, for a live view of them, in no order.
    ///
    /// # Errors
    /// The states of the workers cannot be read.
    pub fn board(&self, query: &WorkerQuery) -> Result<(Vec<BoardRow>, Option<Missing>)> {
        let visible = self.analyzer.view.visible();
        let (rows, missing) = self.rows_in(&Scope::Swarm, &visible)?;
        let attention = among_peers(&rows, self.prices());
        let entries = index::swarm_rows(&visible, &rows, &attention, self.prices());
        let with_entries = rows.iter().zip(&attention).zip(entries);
        let admitted = with_entries.filter(|((row, needs), _)| query.admits(row, needs));
        let board = admitted.map(|((row, needs), entry)| BoardRow::new(row, needs, entry));
        Ok((board.collect(), missing))
    }

    /// Returns the costs of the workers of the view that `query` admits.
    ///
    /// # Errors
    /// The states of the workers cannot be read.
    pub fn costs(&self, query: &WorkerQuery, by: CostGroup) -> Result<(CostPage, Option<Missing>)> {
        let visible = self.analyzer.view.visible();
        let (rows, missing) = self.rows_in(&Scope::Swarm, &visible)?;
        let attention = among_peers(&rows, self.prices());
        let admitted = rows.into_iter().zip(&attention);
        let admitted = admitted.filter(|(row, needs)| query.admits(row, needs));
        let rows: Vec<WorkerRow> = admitted.map(|(row, _)| row).collect();
        Ok((
            cost::page(&visible, &rows, by, self.prices(), query.table.unwrap_or(usize::MAX)),
            missing,
        ))
    }

    /// Returns the workers of a scope, and the parts that are missing because time ran out.
    pub(super) fn rows_in(
        &self,
        scope: &Scope,
        visible: &VisibleWorkers,
    ) -> Result<(Vec<WorkerRow>, Option<Missing>)> {
        let clock = self.analyzer.settings.clock(10);
        let states = states_in(&self.analyzer, visible, scope)?;
        let (rows, _) = self.worker_rows(&states, *scope == Scope::Swarm, clock.deadline());
        let ran_out = clock.ran_out() || any_late(&states);
        let missing = Missing {
            unread_workers: rows.iter().filter(|row| row.is_late(ran_out)).count(),
            workers: rows.len(),
            sessions: scope.unread_sessions(visible),
            ..Missing::default()
        };
        let missing = missing.if_any(ran_out);
        self.analyzer.settings.note_missing(missing.as_ref());
        Ok((rows, missing))
    }
}
