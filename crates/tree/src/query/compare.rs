//! `compare/<a>..<b>`: the common parts of two or more workers and their differences, within a
//! budget.
//!
//! The answer starts with facts about each worker. Files of one path follow as unified diffs
//! against the first worker, final words and outputs before others. A file that only some workers
//! have is shown by the passages that no file of the others contains. Sequences of calls are
//! compared as well.
//!
//! - `files` finds the items of each worker.
//! - `differ` renders differences with `lines` and `calls`.
//! - `section` cuts a difference to its share, and `page` assembles the text.

mod calls;
mod differ;
mod facts;
mod files;
mod lines;
mod page;
mod section;

use std::sync::Arc;

use tracing::debug;

pub use crate::route::compare::{CompareOptions, CompareQuery};
use differ::Differ;
pub use facts::{Fact, WorkerFacts};
pub use files::DiffKind;
use files::{ComparedItem, ComparedItems, ComparedWorker, Comparison, ItemRank};
use page::Page;
pub use page::{CompareAnswer, FileDiff};
use section::{Aspect, DiffSection};

use super::{AnswerPage, is_unchanged};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::missing::Missing;
use crate::analysis::retry::RetryBudget;
use crate::analysis::settings::{Clock, PART_GRACE};
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::text::budget::Budget;

/// Maximum number of attempts to resolve workers that vanish meanwhile.
const LOOKUPS_MAX: usize = 3;

pub enum ResolvedQuery {
    Workers(WorkerStates),
    Refused(AnswerPage),
}

/// Returns the comparison of the current state of the workers in `query`.
///
/// # Errors
///
/// Returns an error if a worker vanishes or changes its owner during the comparison.
pub fn answer(analyzer: &Analyzer, query: &CompareQuery) -> Result<CompareAnswer> {
    match resolve(analyzer, query, &analyzer.view.visible())? {
        ResolvedQuery::Refused(page) => Ok(CompareAnswer { page, ..CompareAnswer::default() }),
        ResolvedQuery::Workers(states) => {
            let answer = answer_in(analyzer, query, states)?.0;
            analyzer.settings.note_missing(answer.page.missing.as_ref());
            Ok(answer)
        }
    }
}

/// Resolves the workers of a query.
///
/// # Errors
///
/// Returns [`Error::NotFound`] if workers keep vanishing.
pub fn resolve(
    analyzer: &Analyzer,
    query: &CompareQuery,
    visible: &VisibleWorkers,
) -> Result<ResolvedQuery> {
    let mut workers = query.workers(visible);
    for _ in 0..LOOKUPS_MAX {
        let members = match workers {
            Ok(members) => members,
            Err(error) => {
                let page = page::refusal(query, error, budget(analyzer, query));
                return Ok(ResolvedQuery::Refused(page));
            }
        };
        match members.iter().map(|member| current_state(analyzer, member)).collect() {
            Ok(states) => return Ok(ResolvedQuery::Workers(states)),
            // A worker vanished, so the names are resolved again.
            Err(_) => workers = query.workers(&analyzer.view.visible()),
        }
    }
    Err(Error::NotFound)
}

fn current_state(
    analyzer: &Analyzer,
    member: &Member,
) -> Result<(Arc<Member>, Result<Arc<Fingerprint>>)> {
    let member = analyzer.view.worker(&member.name)?;
    match analyzer.view.fingerprint(&member, true) {
        Err(Error::NotFound) => Err(Error::NotFound),
        fingerprint => Ok((member, fingerprint)),
    }
}

fn budget(analyzer: &Analyzer, query: &CompareQuery) -> Budget {
    analyzer.settings.budget_or(Budget::SWARM, query.options.budget)
}

/// Answers `query`, again while the compared files change, as far as attempts and time allow.
/// Returns the answer and the state it was made from; the answer is complete only if that is
/// `states`.
pub fn answer_in(
    analyzer: &Analyzer,
    query: &CompareQuery,
    mut states: WorkerStates,
) -> Result<(CompareAnswer, WorkerStates)> {
    debug!("running a comparison");
    let clock = analyzer.settings.clock(10);
    let mut attempts = RetryBudget::new(analyzer.settings.patience());
    loop {
        let mut answer = answer_once(analyzer, query, &states, &clock)?;
        let settled = states.iter().all(|state| is_unchanged(analyzer, state));
        if settled || !clock.has_time() || !attempts.try_again() {
            answer.page.is_complete &= settled && attempts.is_first() && clock.has_time();
            return Ok((answer, states));
        }
        states = states
            .iter()
            .map(|(member, _)| current_state(analyzer, member))
            .collect::<Result<WorkerStates>>()?;
    }
}

/// Reads the workers to compare.
///
/// # Errors
///
/// Returns [`Error::NotFound`] if a worker belongs to another owner by now.
fn compared_workers(
    analyzer: &Analyzer,
    states: &WorkerStates,
    clock: &Clock<'_>,
) -> Result<Vec<ComparedWorker>> {
    let workers = states.iter().map(|(member, fingerprint)| {
        let record = fingerprint.clone().and_then(|fingerprint| {
            analyzer.record(member, &fingerprint, PART_GRACE, clock.deadline())
        });
        match record {
            Err(Error::NotFound) => Err(Error::NotFound),
            record => Ok(ComparedWorker::new(&analyzer.view, member.clone(), record)),
        }
    });
    workers.collect()
}

fn answer_once(
    analyzer: &Analyzer,
    query: &CompareQuery,
    states: &WorkerStates,
    clock: &Clock<'_>,
) -> Result<CompareAnswer> {
    let budget = budget(analyzer, query);
    let digests = analyzer.digests(states, false, clock.deadline());
    let workers = compared_workers(analyzer, states, clock)?;
    let comparison = Comparison::new(&analyzer.view, workers, clock.deadline(), clock.end());
    let facts =
        comparison.workers.iter().zip(&digests).map(|(worker, made)| match &worker.record {
            Ok(record) => facts::facts(record, made.digest().map(|digest| &**digest)),
            Err(error) => facts::unreadable(&error.to_string()),
        });
    let facts = WorkerFacts::new(facts.collect());
    let aspect = query.options.aspect.as_deref().map(Aspect::new);
    let items = comparison.items();
    let (sections, omitted) = sections(&comparison, &items, aspect.as_ref(), budget.approx_bytes());
    let min_matches = sections
        .iter()
        .flat_map(|section| &section.blocks)
        .map(|block| block.matches)
        .max()
        .unwrap_or(0);
    let has_no_match = aspect.is_some() && min_matches == 0;
    let differs = !sections.is_empty() || !omitted.is_empty();
    let paths = comparison.workers.iter().map(|worker| worker.path.clone()).collect();
    let late_workers = comparison.workers.iter().zip(&digests).filter(|(worker, made)| {
        worker.record.as_ref().map_or_else(Error::is_timeout, |record| record.timed_out())
            || made.digest().is_some_and(|digest| digest.late)
    });
    let missing = Missing {
        unread_workers: late_workers.count(),
        workers: comparison.workers.len(),
        ..Missing::default()
    };
    let missing = missing.if_any(comparison.is_late.get() || clock.ran_out());
    let page = Page {
        query,
        paths,
        facts: &facts,
        items: &items,
        sections,
        omitted,
        min_matches,
        has_no_match,
        missing,
    };
    let mut answer = CompareAnswer {
        workers: comparison.workers.iter().map(|worker| worker.name().clone()).collect(),
        files: items.all.iter().map(|item| file_diff(item, &comparison)).collect(),
        always: items.always.clone(),
        differs,
        ..CompareAnswer::default()
    };
    let mut records = comparison.workers.iter().map(|worker| &worker.record);
    answer.page.is_complete = comparison.is_complete.get()
        && records.all(|record| record.as_ref().is_ok_and(|record| record.is_complete()))
        && digests.iter().all(|made| made.digest().is_some_and(|digest| digest.whole))
        && clock.has_time();
    answer.show(&page, budget);
    answer.page.missing = page.missing;
    answer.facts = facts;
    Ok(answer)
}

/// Returns the differences in display order, and the numbers of the items for which `room` is too
/// small.
///
/// With an aspect all items are compared, since the last one may match best.
fn sections(
    comparison: &Comparison<'_>,
    items: &ComparedItems,
    aspect: Option<&Aspect>,
    mut room: usize,
) -> (Vec<DiffSection>, Vec<usize>) {
    let differ = Differ::new(comparison, &items.all, aspect);
    let mut calls = Some(differ.calls());
    let (mut sections, mut omitted) = (Vec::new(), Vec::new());
    for (number, item) in items.all.iter().enumerate() {
        if item.rank > ItemRank::Outputs {
            sections.extend(calls.take().into_iter().flatten());
        }
        if item.kind() == DiffKind::Equal {
            continue;
        }
        if room == 0 || !comparison.deadline.has_time() {
            comparison.is_complete.set(comparison.is_complete.get() && room == 0);
            omitted.push(number);
            continue;
        }
        let found = differ.sections(number);
        if aspect.is_none() {
            room = found.iter().map(DiffSection::min_size).fold(room, usize::saturating_sub);
        }
        sections.extend(found);
    }
    sections.extend(calls.take().into_iter().flatten());
    (sections, omitted)
}

fn file_diff(item: &ComparedItem, comparison: &Comparison<'_>) -> FileDiff {
    let workers = item
        .holders()
        .filter_map(|at| comparison.workers.get(at).map(|worker| worker.name().clone()))
        .collect();
    FileDiff { path: item.name.clone(), kind: item.kind(), workers, text: String::new() }
}
