//! The parts that the answers to queries share.

use std::fmt;
use std::ops::AddAssign;

use crate::analysis::missing::Missing;
use crate::search::regex::Unsearched;
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::count;

/// Maximum number of workers that are named because there was no time for them.
const LATE_MAX: usize = 5;
/// Problem in the first line of the answer to a query that cannot be parsed.
pub(super) const INVALID_QUERY: &str = "invalid query";

/// The page that answers a query, and the state that it was made in.
#[derive(Debug, Clone, Default)]
pub struct AnswerPage {
    /// Error in the query.
    pub error: Option<String>,
    /// The whole answer as text.
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

/// The answer to a query that searches files.
#[derive(Debug, Clone)]
pub struct FileAnswer<T> {
    /// The formatted answer.
    pub page: AnswerPage,
    /// The numbers on the page.
    pub totals: Totals,
    /// The matches on the page.
    pub found: T,
}

/// The numbers of matches that a query found, and the files that it read.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Number of matching lines or passages.
    pub matches: u64,
    /// Number of files with matches.
    pub files: u64,
    /// Number of workers with matches.
    pub workers: u64,
    /// Extent of the search.
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

/// The extent of a search.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    /// Number of workers.
    pub workers: u64,
    /// Number of files that were read to their end.
    pub files: u64,
    /// Amount of data read, in bytes.
    pub bytes: u64,
    /// Files that were not searched, by reason.
    pub unsearched: Unsearched,
    /// The workers with files that there was no time to search: up to five.
    pub late_workers: Vec<Name>,
}

impl Coverage {
    /// Returns this extent of the search of `worker`.
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
    /// Formats the extent for the first line of an answer.
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
