//! Queries about the workers of a view. Each reads its data through an [`Analyzer`] and returns its
//! answer as a value. The parts that the answers share are here, too.

pub mod call_output;
pub mod compare;
pub mod grep;
pub mod search;
pub mod since;
pub mod wait;

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use crate::analysis::analyzer::Analyzer;
use crate::analysis::missing::Missing;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::Fingerprint;
use crate::route::Scope;
use crate::search::regex::Unsearched;
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::count;

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

/// Maximum number of named workers that were not searched in time.
const LATE_MAX: usize = 5;
const INVALID_QUERY: &str = "invalid query";

#[derive(Debug, Clone, Default)]
pub struct AnswerPage {
    pub error: Option<String>,
    pub text: String,
    /// Parts that were skipped for lack of time; the first line of `text` names them.
    pub missing: Option<Missing>,
    /// True if everything was read in the state that the answer is about.
    pub is_complete: bool,
}

impl AnswerPage {
    /// Returns the page that refuses an invalid query: `query` and `problem` in the first line,
    /// then `error`. Within a small budget only `problem` remains.
    pub fn refusal(query: &str, problem: &str, error: String, budget: Budget) -> AnswerPage {
        let long = format!("[{query}: {problem}]\n{}\n", error.trim_end());
        let brief = format!("[{problem}]\n");
        let text = budget.first_fitting([long.as_str(), brief.as_str()]).to_owned();
        AnswerPage { error: Some(error), text, missing: None, is_complete: true }
    }
}

#[derive(Debug, Clone)]
pub struct FileAnswer<T> {
    pub page: AnswerPage,
    pub totals: Totals,
    pub found: T,
}

/// The numbers of matches and of the files and workers that have some, with the extent of the
/// search.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub matches: u64,
    pub files: u64,
    pub workers: u64,
    pub searched: Coverage,
}

impl Totals {
    /// Formats the numbers of matches, their files and workers. `unit` names a match.
    pub(super) fn found(&self, unit: &str) -> String {
        let (files, workers) = (count(self.files, "file"), count(self.workers, "worker"));
        format!("{} in {files} of {workers}", count(self.matches, unit))
    }

    /// Formats an answer for a budget that is too small for the first line.
    pub(super) fn brief(&self, unit: &str, missing: Option<&Missing>) -> String {
        let incomplete = if missing.is_some() { ", incomplete" } else { "" };
        format!("[{}{incomplete}]\n", count(self.matches, unit))
    }
}

#[derive(Debug, Clone, Default)]
pub struct Coverage {
    pub workers: u64,
    /// Number of files that were read to their end.
    pub files: u64,
    pub bytes: u64,
    pub unsearched: Unsearched,
    /// Up to five workers with files that were not searched in time.
    pub late_workers: Vec<Name>,
}

impl Coverage {
    pub(super) fn of(self, worker: &Name) -> Coverage {
        let late_workers = if self.unsearched.late > 0 { vec![worker.clone()] } else { Vec::new() };
        Coverage { late_workers, ..self }
    }

    /// Returns true if no file was left out that a later search could read.
    pub fn is_whole(&self) -> bool {
        self.unsearched.late == 0 && self.unsearched.unreadable == 0
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, more: Coverage) {
        self.workers += more.workers;
        self.files += more.files;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.unsearched += more.unsearched;
        let room = LATE_MAX.saturating_sub(self.late_workers.len());
        self.late_workers.extend(more.late_workers.into_iter().take(room));
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { workers, files, bytes, unsearched, late_workers } = self;
        let (files, workers) = (count(*files, "file"), count(*workers, "worker"));
        write!(f, "searched {files} of {workers}, {bytes} B")?;
        let Unsearched { binary, unreadable, long_line, late } = *unsearched;
        let reasons = [
            (binary, "binary"),
            (unreadable, "unreadable"),
            (long_line, "after a line that is too long"),
            (late, "for lack of time"),
        ];
        let mut separator = "; not searched: ";
        for (files, reason) in reasons.into_iter().filter(|(files, _)| *files > 0) {
            write!(f, "{separator}{files} {reason}")?;
            separator = ", ";
        }
        separator = " in ";
        for worker in late_workers {
            write!(f, "{separator}{}", worker.display())?;
            separator = ", ";
        }
        if late_workers.len() == LATE_MAX {
            write!(f, " and perhaps others")?;
        }
        Ok(())
    }
}
