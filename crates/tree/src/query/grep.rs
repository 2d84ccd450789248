//! `grep/<regex>`: the matching lines within a budget, failed workers first.
//!
//! The files are searched twice. The first pass counts the matching lines of every file
//! ([`crate::search`]). The budget is then allocated over the files, so that a file with thousands
//! of lines does not displace the others. The second pass reads only the lines that have a share,
//! so memory use depends on the size of the answer.
//!
//! `page` formats the answer.

mod page;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tracing::debug;

pub use crate::route::grep::{GrepOptions, GrepQuery};
pub use page::{FileLines, GrepAnswer, GrepFound, LineText, ShownLine};
use page::{NAMES, NAMES_PART};

use super::{Coverage, FileQuery, QueryInput, is_unchanged};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::digest_cache::DigestResult;
use crate::analysis::settings::PART_GRACE;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::route::shown_path::{display_path, record_format, shown_path, worker_path};
use crate::search::is_raw_record;
use crate::search::regex::{self, FileMatchCount, FileTraits, Pattern, WorkerMatchCounts};
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Outcome, Status};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::parallel::{parallel_map, parallel_rounds};
use swarmletfs_base::text::budget::{Budget, Demand, allocate};

/// Longest shown text of a matching line, in bytes.
const LINE_MAX: usize = 400;
/// Longest shown text of a line of context, in bytes.
const CONTEXT_MAX: usize = 160;
/// Approximate size of a shown line beside its path and its text, in bytes.
const FRAME: usize = 10;
/// Approximate size of the first and last line of an answer without query and names, in bytes.
const HEAD: usize = 220;
/// Approximate size of an omission marker without its path, in bytes.
const OMISSION: usize = 30;
/// Approximate size of the text of a line of context, in bytes.
const CONTEXT: usize = 80;
/// Weight of files of failed workers in the allocation of the budget; other files have 1.
const FAILED_WEIGHT: usize = 3;

struct Candidate {
    member: Arc<Member>,
    outcome: Outcome,
    /// Index of the file's worker.
    turn: usize,
    hits: FileMatchCount,
    path: String,
}

impl FileQuery for GrepQuery {
    type Found = GrepFound;

    fn under(&self, under: Option<RelPath>) -> GrepQuery {
        GrepQuery { under, ..self.clone() }
    }

    fn answer(&self, input: &QueryInput<'_>) -> GrepAnswer {
        debug!("running a grep query");
        let QueryInput { analyzer, states, .. } = *input;
        // Leave time to order the files and to read their lines.
        let [searching, ordering, showing] =
            [7, 8, 10].map(|tenths| analyzer.settings.clock(tenths));
        let GrepOptions {
            ignore_case,
            invert_match,
            lists_files,
            lists_others,
            budget,
            ref glob,
            ..
        } = self.options;
        let budget = input.budget(budget);
        let pattern = match Pattern::new(&self.regex, ignore_case, glob.as_deref()) {
            Ok(pattern) => pattern.under(self.under.clone()).inverted(invert_match),
            Err(error) => return GrepAnswer::refusal(self, error, budget),
        };
        let mut members: Vec<(&Arc<Member>, &Result<Arc<Fingerprint>>)> =
            states.iter().map(|(member, fingerprint)| (member, fingerprint)).collect();
        // If time runs out, workers that are known to have failed have been searched.
        members.sort_by_key(|(member, _)| member.entry.status != Status::Failed);
        analyzer.settings.start_stage(members.len());
        let search = (&pattern, lists_others);
        let found = parallel_rounds(
            &members,
            searching.deadline(),
            |(member, fingerprint), deadline| {
                let found = count_matches(analyzer, member, fingerprint, search, deadline);
                analyzer.settings.count_one();
                found
            },
            |found| found.as_ref().is_some_and(|found| found.unsearched.late > 0),
        );
        let mut searched = Coverage::default();
        let (mut with_hits, mut hits): (WorkerStates, Vec<Vec<FileMatchCount>>) =
            (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for ((member, fingerprint), found) in members.iter().zip(found) {
            let Some(WorkerMatchCounts { files, bytes, others: without, unsearched, hits: found }) =
                found
            else {
                continue;
            };
            let worker_path = worker_path(&member.name);
            others.extend(without.iter().map(|path| display_path(&worker_path, path)));
            let extent = Coverage { workers: 1, files, bytes, unsearched, ..Coverage::default() };
            searched += extent.of(&member.name);
            if !found.is_empty() {
                with_hits.push(((*member).clone(), (*fingerprint).clone()));
                hits.push(found);
            }
        }
        let mut files = candidates(&with_hits, hits);
        // Reading the outcomes of all workers takes longer than the search.
        let known = if !lists_files && failed_workers_suffice(&files, budget) {
            Vec::new()
        } else {
            analyzer.digests(&with_hits, false, ordering.deadline())
        };
        for file in &mut files {
            if let Some(digest) = known.get(file.turn).and_then(DigestResult::digest) {
                file.outcome = digest.outcome;
            }
        }
        let showing = analyzer.settings.grant(showing);
        let files = in_order(analyzer, files, &with_hits, budget, showing.deadline());
        let shown = lines(analyzer, &files, self, &pattern, budget, showing.deadline());
        let is_late = known.iter().any(|found| found.digest().is_some_and(|digest| digest.late))
            || [&searching, &ordering, &showing].iter().any(|clock| clock.ran_out());
        let missing = input.missing(searched.unsearched.late, is_late);
        let shown_workers: HashSet<&Name> = shown.iter().map(|file| &file.worker).collect();
        let is_complete = showing.has_time()
            && searched.is_whole()
            && known.iter().all(|found| found.digest().is_some())
            && with_hits
                .iter()
                .filter(|(member, _)| shown_workers.contains(&member.name))
                .all(|state| is_unchanged(analyzer, state));
        let found =
            files.iter().map(|file| (&file.member.name, file.path.as_str(), file.hits.lines));
        let mut answer = GrepAnswer::new(self, searched, found, shown, budget, missing);
        answer.page.is_complete = is_complete;
        answer.found.others = others;
        answer
    }
}

/// Counts the matches in the files of a worker. Returns `None` if the worker was removed.
fn count_matches(
    analyzer: &Analyzer,
    member: &Member,
    fingerprint: &Result<Arc<Fingerprint>>,
    (pattern, lists_others): (&Pattern, bool),
    deadline: Deadline<'_>,
) -> Option<WorkerMatchCounts> {
    let mut found = WorkerMatchCounts::default();
    if !deadline.has_time() {
        found.unsearched.late =
            fingerprint.as_ref().map_or(1, |fingerprint| fingerprint.files.max(1));
        return Some(found);
    }
    let worker_path = worker_path(&member.name);
    match regex::search(
        &analyzer.view,
        member,
        &FileTraits {
            shown: &|path| worker_path.join_path(&shown_path(path)),
            record: &record_format,
        },
        pattern,
        (LINE_MAX, lists_others),
        deadline,
    ) {
        Ok(found) => Some(found),
        Err(Error::NotFound) => None,
        Err(error) if error.is_timeout() => {
            found.unsearched.late = 1;
            Some(found)
        }
        Err(_) => {
            found.unsearched.unreadable = 1;
            Some(found)
        }
    }
}

/// Returns true if the files of the workers whose status is failed take the whole budget. The
/// outcomes of the other workers then change nothing in the answer. `files` are ordered by worker,
/// and workers with the status failed come first.
///
/// The answer also names up to `NAMES` workers whose lines are not all shown, so as many failed
/// workers must be beyond the budget.
fn failed_workers_suffice(files: &[Candidate], budget: Budget) -> bool {
    let mut room = budget.approx_bytes();
    let mut left_out = 0;
    for worker in files.chunk_by(|a, b| a.turn == b.turn) {
        if worker.iter().any(|file| file.outcome != Outcome::Failed) {
            break;
        }
        let primary = worker.iter().filter(|file| !is_raw_record(&file.hits.path));
        let sizes: Vec<usize> = primary.map(|file| min_size(file, 0)).collect();
        left_out += usize::from(room == 0 && !sizes.is_empty());
        room = sizes.into_iter().fold(room, usize::saturating_sub);
    }
    left_out >= NAMES
}

/// Sorts the files: primary files before files that repeat others, failed workers first, and
/// within each worker failed calls first. Reads call outcomes only for files that may fit.
fn in_order(
    analyzer: &Analyzer,
    mut files: Vec<Candidate>,
    workers: &WorkerStates,
    budget: Budget,
    deadline: Deadline<'_>,
) -> Vec<Candidate> {
    files.sort_by_cached_key(|file| {
        (is_raw_record(&file.hits.path), file.outcome, file.turn, file.hits.path.clone())
    });
    let mut room = budget.approx_bytes();
    let may_fit = files.iter().take_while(|file| {
        let has_room = room > 0;
        room = room.saturating_sub(min_size(file, 0));
        has_room
    });
    let turns: Vec<usize> =
        may_fit.map(|file| file.turn).collect::<BTreeSet<_>>().into_iter().collect();
    let outcomes = parallel_map(&turns, |turn| -> HashMap<RelPath, Outcome> {
        let worker = workers.get(*turn).filter(|_| deadline.has_time());
        let record = worker.and_then(|(member, fingerprint)| {
            analyzer.record(member, fingerprint.as_ref().ok()?, PART_GRACE, deadline).ok()
        });
        record.iter().flat_map(|record| record.trace.outcomes()).collect()
    });
    let calls: HashMap<usize, HashMap<RelPath, Outcome>> =
        turns.into_iter().zip(outcomes).collect();
    files.sort_by_cached_key(|file| {
        let path = &file.hits.path;
        let failed =
            calls.get(&file.turn).and_then(|calls| calls.get(path)) == Some(&Outcome::Failed);
        (is_raw_record(path), file.outcome, file.turn, !failed, path.clone())
    });
    files
}

fn lines(
    analyzer: &Analyzer,
    files: &[Candidate],
    query: &GrepQuery,
    pattern: &Pattern,
    budget: Budget,
    deadline: Deadline<'_>,
) -> Vec<FileLines> {
    let context = query.options.context;
    // With a small budget, several short lines are worth more than one long line.
    let line_max = LINE_MAX.min(budget.approx_bytes() / 4);
    let mut room = budget.approx_bytes();
    let admitted = files.iter().take_while(|file| {
        let has_room = room > 0;
        room = room.saturating_sub(min_size(file, context));
        has_room
    });
    let admitted: Vec<&Candidate> = admitted.collect();
    let demands: Vec<Demand> = admitted
        .iter()
        .map(|file| Demand {
            need: full_size(file, context),
            weight: if file.outcome == Outcome::Failed { FAILED_WEIGHT } else { 1 },
        })
        .collect();
    let names = if demands.len() < files.len() { budget.approx_bytes() / NAMES_PART } else { 0 };
    let overhead = HEAD + query.regex.len() + names;
    let shares = allocate(&demands, budget.approx_bytes().saturating_sub(overhead));
    let shares: Vec<(&Candidate, usize)> = admitted.into_iter().zip(shares).collect();
    let shown = parallel_map(&shares, |(file, share)| {
        let mut shown = FileLines::new(
            file.member.name.clone(),
            file.path.clone(),
            file.hits.lines,
            file.hits.also_in.iter().map(|record| shown_path(record).display()).collect(),
        );
        let copies = &file.hits.copies;
        // The neighbors of a line in a record are other messages, whose copies are skipped.
        let context = if copies.is_empty() { context } else { 0 };
        let mut matches = 0..;
        // Sizes are estimates: a file whose share covers its estimate is shown in full. Any
        // other file needs room for its omission marker.
        let share = match *share < full_size(file, context) {
            true => share.saturating_sub(file.path.len() + OMISSION),
            false => usize::MAX,
        };
        // Lines that can no longer be read count as left out.
        let _ = regex::lines(
            &analyzer.view,
            &file.member,
            &file.hits.path,
            (pattern, context),
            deadline,
            |line| {
                if line.is_match() && matches.next().is_some_and(|at| copies.contains(at)) {
                    return true;
                }
                let has_match = shown.matches() > 0;
                let max = if line.is_match() { line_max } else { CONTEXT_MAX.min(line_max) };
                shown.add(ShownLine::new(&line, max));
                // Every file shows at least one match, even beyond its share.
                !(has_match && shown.size() > share)
            },
        );
        shown
    });
    shown.into_iter().filter(|shown| shown.matches() > 0).collect()
}

/// Returns the files of all workers, with the outcomes that follow from the statuses alone.
fn candidates(workers: &WorkerStates, hits: Vec<Vec<FileMatchCount>>) -> Vec<Candidate> {
    let mut files = Vec::new();
    for (turn, ((member, _), hits)) in workers.iter().zip(hits).enumerate() {
        let says_failed = member.entry.status == Status::Failed;
        let outcome = if says_failed { Outcome::Failed } else { Outcome::Unknown };
        let worker_path = worker_path(&member.name);
        files.extend(hits.into_iter().map(|hits| {
            let path = display_path(&worker_path, &hits.path);
            Candidate { member: member.clone(), outcome, turn, hits, path }
        }));
    }
    files
}

/// Returns the approximate size of one match of a file and its omission marker, in bytes.
fn min_size(file: &Candidate, context: usize) -> usize {
    let more = if file.hits.lines > 1 { file.path.len() + OMISSION } else { 0 };
    (file.path.len() + FRAME + CONTEXT).saturating_mul(1 + 2 * context).saturating_add(more)
}

fn full_size(file: &Candidate, context: usize) -> usize {
    let frame = file.path.len() + FRAME;
    let lines = usize::try_from(file.hits.lines).unwrap_or(usize::MAX);
    let each = frame.saturating_add(context.saturating_mul(2).saturating_mul(frame + CONTEXT));
    lines.saturating_mul(each).saturating_add(usize::try_from(file.hits.text).unwrap_or(usize::MAX))
}
