//! The parts that the answers to queries share.

use std::fmt;
use std::ops::AddAssign;

use crate::analysis::missing::Missing;
use crate::search::regex::Unsearched;
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::count;

/// Maximum number of named workers that were not searched in time.
const LATE_MAX: usize = 5;
pub(super) const INVALID_QUERY: &str = "invalid query";

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
