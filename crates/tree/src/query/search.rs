//! `search/<words>` and `semantic/<words>`: the passages that match the words, or are closest to
//! their meaning, the best first, within a budget.
//!
//! [`crate::search::ranked`] ranks the passages. This module selects workers and files, and
//! `page` reads the passages and formats the answer.

mod page;

use super::{Coverage, FileQuery, QueryInput, Totals};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::route::Scope;
pub use crate::route::search::{SearchMode, SearchOptions, SearchQuery};
use crate::route::shown_path::{shown_path, worker_path};
use crate::search::ranked::{
    self, CONVERSATION, ClosestPassages, FilterValues, Filters, IndexPart, MatchCounts,
    QueryMeaning, RankedPassages, RankedQuery, SelectionLimits, Unread, WorkerIndex, WorkerMatches,
    tool_of,
};
use crate::search::regex::Unsearched;
use crate::search::{Glob, is_raw_record};
use crate::view::{Member, find_by_prefix};
use page::{AnswerFormatter, PassageReader};
pub use page::{FilePassages, SearchAnswer, SearchFound};
use std::sync::Arc;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{CallKind, Outcome};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::parallel::parallel_rounds;
use tracing::debug;

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
        let admitted: Vec<_> = workers
            .iter()
            .map(|(member, _)| {
                let is_agent = member.entry.worker().parent.is_some();
                let percent = if is_agent { AGENT_PERCENT } else { 100 };
                (&member.name, filter.admits(member), percent)
            })
            .collect();
        let weigh = |worker: usize, path: &RelPath| match admitted.get(worker) {
            Some((name, true, percent)) => filter.weight(name, path) * percent / 100,
            _ => 0,
        };
        let mut ranked = ranked::rank(matches, &parsed, &weigh);
        let compared = match self.options.mode {
            SearchMode::Words => None,
            SearchMode::Meaning | SearchMode::Both => {
                let is_admitted = |worker| admitted.get(worker).is_some_and(|(_, yes, _)| *yes);
                let deadline = reading.deadline();
                Some(compare(analyzer, &workers, &is_admitted, &ranked, &parsed, &weigh, deadline))
            }
        };
        let reader = PassageReader::new(analyzer, workers);
        let showing = analyzer.settings.grant(showing);
        let deadline = showing.deadline();
        let mut phrases_read = ranked.retain_phrases(
            &parsed,
            &|worker, path, range| reader.read_in_order(worker, path, range),
            deadline,
        );
        ranked.mark_repeats(&hand);
        ranked.favor_failures(&|worker, path| {
            reader.outcome(worker, path, deadline) == Some(Outcome::Failed)
        });
        ranked.favor_identifiers(
            &parsed,
            &|worker, path, range| reader.read(worker, path, range),
            deadline,
        );
        let MatchCounts { passages, files, workers } = ranked.match_counts();
        let mut totals = Totals { matches: passages, files, workers, searched };
        let mut uncompared = 0;
        if let Some((closest, late)) = &compared {
            uncompared = *late;
            if self.options.mode == SearchMode::Meaning {
                ranked.clear();
                totals.matches = closest.compared;
                (totals.files, totals.workers) = (totals.searched.files, totals.searched.workers);
            }
            ranked.merge(closest, &parsed);
            phrases_read &= ranked.retain_phrases(
                &parsed,
                &|worker, path, range| reader.read(worker, path, range),
                deadline,
            );
        }
        let missing = || {
            let is_late = reading.ran_out() || showing.ran_out() || reader.is_late();
            input.missing(totals.searched.unsearched.late, is_late)
        };
        let (query, parsed) = (self, &parsed);
        let formatter = AnswerFormatter {
            query,
            parsed,
            totals: &totals,
            uncompared,
            budget,
            missing: &missing,
        };
        let is_one = matches!(scope, Scope::Worker(_));
        let mut answer = fit(&formatter, &ranked, &reader, is_one, deadline);
        answer.page.is_complete &=
            phrases_read && totals.searched.is_whole() && uncompared == 0 && showing.has_time();
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
            let index = analyzer.indexed(member, fingerprint, IndexPart::Words, deadline);
            analyzer.settings.count_one();
            let index = index?;
            let matches = WorkerMatches::new(&index, parsed, &|path| hand(path) < RECORD);
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

/// Compares the passages of `workers` with the meaning of `parsed`. Returns the closest, and the
/// number of workers that were not compared, or not wholly, for lack of time.
fn compare(
    analyzer: &Analyzer,
    workers: &ReadWorkers<'_>,
    is_admitted: &(dyn Fn(usize) -> bool + Sync),
    ranked: &RankedPassages,
    parsed: &RankedQuery,
    weigh: &(dyn Fn(usize, &RelPath) -> u32 + Sync),
    deadline: Deadline<'_>,
) -> (ClosestPassages, u64) {
    let (mut all, mut late) = (ClosestPassages::default(), 0);
    let Some(meaning) = QueryMeaning::new(parsed) else { return (all, late) };
    let numbered: Vec<_> =
        workers.iter().enumerate().filter(|(worker, _)| is_admitted(*worker)).collect();
    let found = parallel_rounds(
        &numbered,
        deadline,
        |(worker, (member, fingerprint)), deadline| {
            let index = analyzer.indexed(member, fingerprint, IndexPart::Meaning, deadline)?;
            // The worker may have changed since its words were read.
            if !ranked.has_segments(*worker, &index) {
                return Err(Error::Late);
            }
            let has_conversation = index.has_file(CONVERSATION);
            // The repeats of a conversation would take its place.
            let is_repeat = |path: &RelPath| has_conversation && hand(path) > 0;
            let weigh = |path: &RelPath| if is_repeat(path) { 0 } else { weigh(*worker, path) };
            Ok::<_, Error>((meaning.closest(*worker, &index, parsed, &weigh), index.unread.late))
        },
        |found| found.as_ref().map_or_else(Error::is_timeout, |(_, late)| *late > 0),
    );
    for found in found {
        match found {
            Ok((closest, unread)) => {
                all.add(closest);
                late += u64::from(unread > 0);
            }
            Err(error) => late += u64::from(error.is_timeout()),
        }
    }
    (all, late)
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

/// Weight of a file, in percent.
const FULL_WEIGHT: u32 = 100;
/// Score of a worker that another one started, in percent.
const AGENT_PERCENT: u32 = 90;
/// Weights of what a tool printed, and of what was only looked at.
const OUTPUT_WEIGHT: u32 = 70;
const LOOK_WEIGHT: u32 = 50;
/// Weight of a file that only repeats other files, in percent.
const REPEATED_WEIGHT: u32 = 60;
/// Characters with a meaning in a glob. A value of `worker:` without them is an id.
const GLOB_CHARACTERS: [char; 8] = ['*', '?', '[', ']', '{', '}', '!', '\\'];

/// Number of hands between a record and what it tells.
const RECORD: usize = 2;

/// Returns 0 for a file that tells something at first hand, 1 for one that repeats a part of the
/// conversation, and [`RECORD`] for a record, which repeats everything.
fn hand(path: &RelPath) -> usize {
    match path.as_bytes() {
        CONVERSATION => 0,
        b"task.txt" | b"requests.txt" | b"result.txt" => 1,
        _ if is_raw_record(path) => RECORD,
        _ => 0,
    }
}

pub(super) struct SearchFilter<'a> {
    under: Option<&'a RelPath>,
    glob: Option<Glob>,
    filters: &'a Filters,
    workers: FilterValues<Glob>,
    tools: FilterValues<Glob>,
    paths: FilterValues<Glob>,
}

/// Compiles the values of a filter. The query parser accepts only valid globs as values.
fn compiled(values: &FilterValues) -> FilterValues<Glob> {
    let globs = |texts: &[String]| texts.iter().filter_map(|text| Glob::new(text).ok()).collect();
    FilterValues { include: globs(&values.include), exclude: globs(&values.exclude) }
}

impl<'a> SearchFilter<'a> {
    /// Creates the filter of a query that covers `members`.
    ///
    /// # Errors
    /// A message, if the glob of the query's options is invalid or an id of a worker is ambiguous.
    pub(super) fn new(
        query: &'a SearchQuery,
        filters: &'a Filters,
        members: &[&Arc<Member>],
    ) -> Result<SearchFilter<'a>, String> {
        let glob = query.options.glob.as_deref().map(Glob::new).transpose()?;
        let completed = |ids: &[String]| {
            ids.iter().map(|id| complete_id(members, id)).collect::<Result<Vec<_>, _>>()
        };
        let workers = FilterValues {
            include: completed(&filters.workers.include)?,
            exclude: completed(&filters.workers.exclude)?,
        };
        let [workers, tools, paths] = [&workers, &filters.tools, &filters.paths].map(compiled);
        Ok(SearchFilter { under: query.under.as_ref(), glob, filters, workers, tools, paths })
    }

    pub(super) fn admits(&self, member: &Member) -> bool {
        let name = member.name.to_text();
        let status = member.entry.status.as_str();
        let worker = member.entry.worker();
        let source = worker.status_source.as_deref();
        self.workers.accepts(|glob| glob.matches_name(&name))
            && self.filters.statuses.accepts(|wanted| {
                status.eq_ignore_ascii_case(wanted)
                    || source.is_some_and(|status| status.eq_ignore_ascii_case(wanted))
            })
    }

    /// Returns the weight of a worker's file in percent; 0 if the file is not searched.
    pub(super) fn weight(&self, worker: &Name, path: &RelPath) -> u32 {
        match self.applies_to(worker, path) {
            true if hand(path) == RECORD => REPEATED_WEIGHT,
            true => match tool_of(path).map(String::from_utf8_lossy) {
                Some(tool) if CallKind::of_tool(&tool) == CallKind::Look => LOOK_WEIGHT,
                Some(_) => OUTPUT_WEIGHT,
                None if path.as_bytes() == b"commands.txt" => OUTPUT_WEIGHT,
                None => FULL_WEIGHT,
            },
            false => 0,
        }
    }

    fn applies_to(&self, worker: &Name, path: &RelPath) -> bool {
        let tool = tool_of(path).map(String::from_utf8_lossy);
        let shown = |path: &RelPath| worker_path(worker).join_path(&shown_path(path));
        self.under.is_none_or(|under| path.is_within(under))
            && self.glob.as_ref().is_none_or(|glob| glob.matches_path(&shown, path))
            && self
                .tools
                .accepts(|glob| tool.as_deref().is_some_and(|tool| glob.matches_name(tool)))
            && self.paths.accepts(|glob| glob.matches_path(&shown, path))
    }
}

/// Returns the glob of the only worker whose name begins with `id`. Returns `id` if it is a glob,
/// the name of a worker, or the beginning of no name.
fn complete_id(members: &[&Arc<Member>], id: &str) -> Result<String, String> {
    let is_name = || members.iter().any(|member| member.name.as_bytes() == id.as_bytes());
    if id.contains(GLOB_CHARACTERS) || is_name() {
        return Ok(id.to_owned());
    }
    match Name::new(id).and_then(|name| find_by_prefix(members.iter().copied(), &name)) {
        Ok(member) => Ok(globset::escape(&member.name.to_text())),
        Err(error @ Error::AmbiguousId(_)) => Err(format!("worker:{id}: {error}")),
        Err(_) => Ok(id.to_owned()),
    }
}
