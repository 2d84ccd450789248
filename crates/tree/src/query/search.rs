//! `search/<words>`: the passages that match the words, the best first, within a budget.
//!
//! [`crate::search::ranked`] ranks the passages. This module selects workers and files (`filter`),
//! reads the passages (`passage_reader`) and formats the answer (`page`).

mod filter;
mod page;
mod passage_reader;

use std::sync::Arc;

use tracing::debug;

pub use crate::route::search::{SearchOptions, SearchQuery};
use filter::SearchFilter;
use page::AnswerFormatter;
pub use page::{FilePassages, SearchAnswer, SearchFound};
use passage_reader::PassageReader;

use super::{Coverage, FileQuery, QueryInput, Totals};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::route::Scope;
use crate::route::shown_path::is_raw_record;
use crate::search::ranked::{
    self, MatchCounts, RankedPassages, RankedQuery, SelectionLimits, Unread, WorkerIndex,
    WorkerMatches,
};
use crate::search::regex::Unsearched;
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::parallel::parallel_rounds;

/// Desired length of an excerpt, as one part in this many of the budget.
const EXCERPT_PART: usize = 8;
/// Bounds of the desired length of an excerpt, in bytes.
const EXCERPT: std::ops::RangeInclusive<usize> = 150..=480;
/// Most selections per answer. The size of the lines around passages is known only after the
/// selection, which is therefore repeated while it overflows or leaves much room.
const TRIES: usize = 12;
/// Least reduction of the limit after an overflow, in bytes.
const SHRINK_MIN: usize = 40;
/// Unused room that justifies another selection, in bytes.
const UNUSED_MIN: usize = 100;

const NO_WORD: &str = "the query has no word beside its filters; try search/timeout";

impl FileQuery for SearchQuery {
    type Found = SearchFound;

    fn under(&self, under: Option<RelPath>) -> SearchQuery {
        SearchQuery { under, ..self.clone() }
    }

    fn answer(&self, input: &QueryInput<'_>) -> SearchAnswer {
        debug!("running a search query");
        let QueryInput { analyzer, states, scope, .. } = *input;
        let [reading, showing] = [7, 10].map(|tenths| analyzer.settings.clock(tenths));
        let budget = input.budget(self.options.budget);
        let parsed = RankedQuery::parse(&self.words);
        let members: Vec<_> = states.iter().map(|(member, _)| member).collect();
        let filter = match SearchFilter::new(self, &parsed.filters, &members) {
            Ok(_) if parsed.terms.is_empty() => {
                return SearchAnswer::refusal(self, NO_WORD.to_owned(), budget);
            }
            Ok(filter) => filter,
            Err(error) => return SearchAnswer::refusal(self, error, budget),
        };
        let (workers, matches, searched) =
            match_workers(analyzer, states, &parsed, reading.deadline());
        let admitted: Vec<_> =
            workers.iter().map(|(member, _)| (&member.name, filter.admits(member))).collect();
        let mut ranked =
            ranked::rank(matches, &parsed, &|worker, path| match admitted.get(worker) {
                Some((name, true)) => filter.weight(name, path),
                _ => 0,
            });
        let reader = PassageReader::new(analyzer, workers);
        let showing = analyzer.settings.grant(showing);
        let deadline = showing.deadline();
        let phrases_read = ranked.retain_phrases(
            &parsed,
            &|worker, path, range| reader.read_in_order(worker, path, range),
            deadline,
        );
        ranked.mark_repeats(&is_raw_record);
        ranked.favor_failures(&|worker, path| {
            reader.outcome(worker, path, deadline) == Some(Outcome::Failed)
        });
        let MatchCounts { passages, files, workers } = ranked.match_counts();
        let totals = Totals { matches: passages, files, workers, searched };
        let missing = || {
            let is_late = reading.ran_out() || showing.ran_out() || reader.is_late();
            input.missing(totals.searched.unsearched.late, is_late)
        };
        let formatter = AnswerFormatter { query: self, totals: &totals, budget, missing: &missing };
        let is_one = matches!(scope, Scope::Worker(_));
        let mut answer = fit(&formatter, &ranked, &reader, is_one, deadline);
        answer.page.is_complete &= phrases_read && totals.searched.is_whole() && showing.has_time();
        answer
    }
}

/// Looks up the words of `parsed` in the index of each worker.
///
/// Returns the readable workers in the order of their names, which is also the order of paths. The
/// matches in each and the extent of the search follow. Drops each worker's index once it was
/// searched.
fn match_workers<'a>(
    analyzer: &Analyzer,
    states: &'a WorkerStates,
    parsed: &RankedQuery,
    deadline: Deadline<'_>,
) -> (ReadWorkers<'a>, Vec<WorkerMatches>, Coverage) {
    let mut members: Vec<&(Arc<Member>, Result<Arc<Fingerprint>>)> = states.iter().collect();
    members.sort_by_key(|(member, _)| &member.name);
    analyzer.settings.start_stage(members.len());
    let found = parallel_rounds(
        &members,
        deadline,
        |(member, fingerprint), deadline| {
            let fingerprint = fingerprint.as_ref().map_err(Clone::clone)?;
            let index = analyzer.indexed(member, fingerprint, deadline);
            analyzer.settings.count_one();
            let index = index?;
            let matches = WorkerMatches::new(&index, parsed, &|path| !is_raw_record(path));
            Ok::<_, Error>((fingerprint, matches, coverage(&index).of(&member.name)))
        },
        |found| match found {
            Ok((.., extent)) => extent.unsearched.late > 0,
            Err(error) => error.is_timeout(),
        },
    );
    let mut searched = Coverage::default();
    let (mut workers, mut all) = (Vec::new(), Vec::new());
    for ((member, _), found) in members.into_iter().zip(found) {
        match found {
            Ok((fingerprint, matches, extent)) => {
                searched += extent;
                workers.push((member, fingerprint));
                all.push(matches);
            }
            Err(Error::NotFound) => {}
            Err(error) if error.is_timeout() => {
                let unsearched = Unsearched { late: 1, ..Unsearched::default() };
                let extent = Coverage { unsearched, ..Coverage::default() };
                searched += extent.of(&member.name);
            }
            Err(_) => searched.unsearched.unreadable += 1,
        }
    }
    (workers, all, searched)
}

fn coverage(index: &WorkerIndex) -> Coverage {
    let Unread { binary, unreadable, late } = index.unread;
    let unsearched = Unsearched { binary, unreadable, long_line: 0, late };
    let (files, bytes) = (index.files, index.bytes);
    Coverage { workers: 1, files, bytes, unsearched, ..Coverage::default() }
}

type ReadWorkers<'a> = Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>;

/// Returns the answer with as many passages as fit. If `is_one`, the search covers a single worker
/// and its passages are spread over files.
fn fit(
    formatter: &AnswerFormatter<'_>,
    ranked: &RankedPassages,
    reader: &PassageReader<'_>,
    is_one: bool,
    deadline: Deadline<'_>,
) -> SearchAnswer {
    let budget = formatter.budget;
    let frame =
        |worker: usize, path: &RelPath| AnswerFormatter::frame(&reader.shown_path(worker, path));
    // A token mostly has several bytes.
    let unit = budget.approx_bytes().checked_div(budget.size()).unwrap_or(1).max(1);
    let excerpt = (budget.approx_bytes() / EXCERPT_PART).clamp(*EXCERPT.start(), *EXCERPT.end());
    let mut room = budget.approx_bytes().saturating_sub(formatter.head_size());
    let (mut answer, mut fits, mut too_much) = (formatter.empty(), false, usize::MAX);
    let best = ranked.best();
    for _ in 0..TRIES {
        let limits = SelectionLimits { bytes: room, excerpt, spread: is_one, frame: &frame };
        let selection = ranked.select(
            &best,
            limits,
            &|worker, path, range| reader.read(worker, path, range),
            deadline,
        );
        let hits = selection.hits.iter();
        let shown = hits.filter_map(|hit| reader.passages(hit, deadline)).collect();
        let formatted = formatter.format(shown, selection.duplicates);
        let used = budget.used(&formatted.page.text);
        if used > budget.size() {
            if fits || room == 0 {
                break;
            }
            too_much = room;
            room = room.saturating_sub(((used - budget.size()) * unit).max(SHRINK_MIN));
            continue;
        }
        if !fits || formatted.shown_bytes() > answer.shown_bytes() {
            (answer, fits) = (formatted, true);
            answer.page.is_complete =
                selection.complete && selection.hits.iter().all(|hit| reader.is_now(hit.worker));
        }
        let left = (budget.size() - used) * unit;
        let more = room.saturating_add(left).min(too_much.saturating_sub(1));
        if left < UNUSED_MIN || more <= room || answer.shows_all() {
            break;
        }
        room = more;
    }
    answer
}
