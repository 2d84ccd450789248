//! The text of an answer: a line that says what was searched and found, then each file's passages below a line that says
//! where they are and how the call ended.
//!
//! Every line of ours behind the first ends in a tag that is in no worker's text, so no worker can write one.

use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

use super::super::clean::{TAG_LEN, cleaned, escape_markers, one_line, removed_note, unused_tag};
use super::super::text::count;
use super::super::{Budget, Missing};
use super::Query;
use crate::model::Outcome;
use crate::name::Name;
use crate::search::ranked::{self, Filters, Indexed, Unread};

/// How much of a question is repeated at most: in bytes, and as a part of the budget.
const QUERY_MAX: usize = 200;
const QUERY_PART: usize = 32;
/// What the first line takes beside the question, and what is said of a place in a file, about, in bytes.
const HEAD: usize = 170;
const RANGE: usize = 16;
const GAP: &str = "[...]\n";

/// What was searched.
#[derive(Debug, Clone, Default)]
pub struct Searched {
    /// Workers.
    pub workers: u64,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were not, by the reason.
    pub unread: Unread,
}

impl Searched {
    /// What there is of a worker.
    pub(super) fn of(found: &Indexed) -> Searched {
        Searched { workers: 1, files: found.files, bytes: found.bytes, unread: found.unread }
    }

    /// Whether nothing was left unsearched that another time perhaps can be searched.
    pub fn is_whole(&self) -> bool {
        self.unread.late == 0 && self.unread.unreadable == 0
    }
}

impl std::ops::AddAssign for Searched {
    fn add_assign(&mut self, more: Searched) {
        self.workers += more.workers;
        self.files += more.files;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.unread += more.unread;
    }
}

/// What is shown of one file.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its worker's name.
    pub worker: Name,
    /// Where it is, from the root of the tree.
    pub path: String,
    /// How the call ended whose output it is; none of other files.
    pub outcome: Option<Outcome>,
    /// How many passages with a word of the question are shown.
    pub passages: u64,
    /// What is shown, with where it is in the file, in bytes.
    pub text: Vec<(Range<u64>, Rc<str>)>,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// What is wrong with the question.
    pub error: Option<String>,
    /// What was searched.
    pub searched: Searched,
    /// How many passages have a word of the question.
    pub passages: u64,
    /// In how many files.
    pub files: u64,
    /// Of how many workers.
    pub workers: u64,
    /// What is shown of them, within the budget; the best first.
    pub shown: Vec<Shown>,
    /// How many passages were left out since they say nearly what is shown.
    pub same: u64,
    /// All of it as text.
    pub text: String,
    /// The parts that there was no time for, as the first line says it.
    pub missing: Option<Missing>,
}

impl Answer {
    /// That a question cannot be answered, since it is none.
    pub(super) fn refused(query: &Query, error: String, budget: Budget) -> Answer {
        let long = format!("[{}: cannot be searched for]\n{}\n", asked(query, budget), error.trim_end());
        let text = budget.first_fitting([long.as_str(), "[cannot be searched for]\n"]).to_owned();
        Answer { error: Some(error), text, ..Answer::default() }
    }

    /// How much is shown, in bytes.
    pub(super) fn shown_bytes(&self) -> usize {
        self.shown.iter().flat_map(|file| &file.text).map(|(_, text)| text.len()).sum()
    }

    /// Whether every passage is shown that has a word of the question.
    pub(super) fn is_all(&self) -> bool {
        self.shown.iter().map(|file| file.passages).sum::<u64>() + self.same >= self.passages
    }
}

/// What an answer is written from.
pub(super) struct Page<'a> {
    pub(super) query: &'a Query,
    pub(super) searched: &'a Searched,
    pub(super) passages: u64,
    pub(super) files: u64,
    pub(super) workers: u64,
    pub(super) budget: Budget,
    /// Returns what there was no time for, as far as that is known by now.
    pub(super) missing: &'a dyn Fn() -> Option<Missing>,
}

impl Page<'_> {
    /// What the first line takes, about, in bytes.
    pub(super) fn head_room(&self) -> usize {
        HEAD + asked(self.query, self.budget).len()
    }

    /// What stands around the passages of the file at `path`, and around each place in it, in bytes.
    pub(super) fn frame(path: &str) -> (usize, usize) {
        let line = "\n, bytes , unknown: \n".len() + TAG_LEN;
        (path.len() + line, RANGE + GAP.len() + 1)
    }

    /// The answer where there is no room for any passage.
    pub(super) fn empty(&self) -> Answer {
        let mut answer = self.written(Vec::new(), 0);
        let incomplete = if answer.missing.is_some() { ", incomplete" } else { "" };
        let brief = format!("[{}{incomplete}]\n", count(self.passages, "passage"));
        answer.text = self.budget.first_fitting([answer.text.as_str(), brief.as_str()]).to_owned();
        answer
    }

    /// The answer that shows `shown`, whatever its size; `same` more say the same.
    pub(super) fn written(&self, shown: Vec<Shown>, same: u64) -> Answer {
        let mut body: Vec<(String, String)> = Vec::new();
        for file in &shown {
            let places: Vec<String> = file.text.iter().map(|(range, _)| place(range)).collect();
            let outcome = file.outcome.map(|outcome| format!(", {outcome}")).unwrap_or_default();
            let (mut text, mut hidden) = (String::new(), 0);
            for (at, (_, passage)) in file.text.iter().enumerate() {
                if at > 0 {
                    text.push_str(GAP);
                }
                for line in passage.split_inclusive('\n').map(|line| cleaned(line.as_bytes())) {
                    hidden += line.hidden;
                    text.push_str(&escape_markers(&line.text));
                }
                if !text.ends_with('\n') {
                    text.push('\n');
                }
            }
            let hidden = if hidden == 0 { String::new() } else { format!(", {}", removed_note(hidden)) };
            body.push((format!("{}, bytes {}{outcome}{hidden}:", file.path, places.join(", ")), text));
        }
        let all: String = body.iter().map(|(line, text)| format!("{line}\n{text}")).collect();
        let tag = unused_tag(&all);
        let missing = (self.missing)();
        let mut text = self.head(missing.as_ref(), shown.iter().map(|file| file.passages).sum(), same);
        body.iter().for_each(|(line, passages)| {
            let _ = write!(text, "\n{line} {tag}\n{passages}");
        });
        Answer {
            error: None,
            searched: self.searched.clone(),
            passages: self.passages,
            files: self.files,
            workers: self.workers,
            shown,
            same,
            text,
            missing,
        }
    }

    /// The first line.
    fn head(&self, missing: Option<&Missing>, shown: u64, same: u64) -> String {
        let mut head = format!("[{}: ", asked(self.query, self.budget));
        if self.passages == 0 {
            let admits_all = ranked::Query::parse(&self.query.words).filters == Filters::default();
            let who = if admits_all { "no passage" } else { "nothing that the filters admit" };
            let _ = write!(head, "{who} has one of the words");
        } else {
            let (files, workers) = (count(self.files, "file"), count(self.workers, "worker"));
            let _ = write!(head, "{} in {files} of {workers}", count(self.passages, "passage"));
            if shown < self.passages {
                let _ = write!(head, ", best {shown} shown");
            }
            if same > 0 {
                let _ = write!(head, ", {same} say nearly the same");
            }
        }
        let Searched { workers, files, bytes, unread } = self.searched;
        let (files, workers) = (count(*files, "file"), count(*workers, "worker"));
        let _ = write!(head, "; searched {files} of {workers}, {bytes} B");
        let Unread { binary, unreadable, late } = unread;
        let reasons = [(binary, "binary"), (unreadable, "unreadable"), (late, "for lack of time")];
        let reasons = reasons.into_iter().filter(|(some, _)| **some > 0).map(|(some, why)| format!("{some} {why}"));
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            let _ = write!(head, "; not searched: {}", reasons.join(", "));
        }
        if let Some(missing) = missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }
}

/// The question as it is repeated.
fn asked(query: &Query, budget: Budget) -> String {
    one_line(&query.to_string(), QUERY_MAX.min(budget.approx_bytes() / QUERY_PART))
}

/// The first and the last byte, from 0.
fn place(range: &Range<u64>) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}
