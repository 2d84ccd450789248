//! Formats the answer of a search query.
//!
//! The first line states the extent and the results of the search. The passages of each file follow
//! below a line with their position and the outcome of the call. Each such line ends in a tag that
//! occurs in no worker's text, so no worker can forge one.

use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

use super::SearchQuery;
use crate::analysis::missing::Missing;
use crate::query::answer::INVALID_QUERY;
use crate::query::{AnswerPage, FileAnswer, Totals};
use crate::search::ranked::{Filters, RankedQuery};
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::{
    TAG_LEN, cleaned, escape_markers, one_line, removed_note, unused_tag,
};

/// Longest query that is repeated in the answer, in bytes.
const QUERY_MAX: usize = 200;
/// Divisor of the budget that a repeated query may take.
const QUERY_PART: usize = 32;
/// Approximate size of the first line without the query, in bytes.
const HEAD: usize = 170;
/// Approximate size of a byte range, in bytes.
const RANGE: usize = 16;
const GAP: &str = "[...]\n";

#[derive(Debug, Clone)]
pub struct FilePassages {
    pub worker: Name,
    pub path: String,
    pub outcome: Option<Outcome>,
    /// Number of shown passages with a word of the query.
    pub passages: u64,
    pub text: Vec<(Range<u64>, Rc<str>)>,
}

pub type SearchAnswer = FileAnswer<SearchFound>;

#[derive(Debug, Clone, Default)]
pub struct SearchFound {
    /// The passages that fit the budget, the best first.
    pub shown: Vec<FilePassages>,
    /// Number of passages left out as duplicates or near-duplicates.
    pub duplicates: u64,
}

impl SearchAnswer {
    pub(super) fn refusal(query: &SearchQuery, error: String, budget: Budget) -> SearchAnswer {
        let page = AnswerPage::refusal(&display(query, budget), INVALID_QUERY, error, budget);
        SearchAnswer { page, totals: Totals::default(), found: SearchFound::default() }
    }

    pub(super) fn shown_bytes(&self) -> usize {
        self.found.shown.iter().flat_map(|file| &file.text).map(|(_, text)| text.len()).sum()
    }

    /// Returns true if every passage with a word of the query is shown or a duplicate.
    pub(super) fn shows_all(&self) -> bool {
        self.found.shown.iter().map(|file| file.passages).sum::<u64>() + self.found.duplicates
            >= self.totals.matches
    }
}

pub(super) struct AnswerFormatter<'a> {
    pub query: &'a SearchQuery,
    pub totals: &'a Totals,
    pub budget: Budget,
    /// Returns the parts that the deadline has cut off so far.
    pub missing: &'a dyn Fn() -> Option<Missing>,
}

impl AnswerFormatter<'_> {
    pub(super) fn head_size(&self) -> usize {
        HEAD + display(self.query, self.budget).len()
    }

    /// Returns the size of the line above the passages of `path`, and the additional size of each
    /// excerpt, in bytes.
    pub(super) fn frame(path: &str) -> (usize, usize) {
        let line = "\n, bytes , unknown: \n".len() + TAG_LEN;
        (path.len() + line, RANGE + GAP.len() + 1)
    }

    pub(super) fn empty(&self) -> SearchAnswer {
        let mut answer = self.format(Vec::new(), 0);
        let page = &mut answer.page;
        let brief = self.totals.brief("passage", page.missing.as_ref());
        page.text = self.budget.first_fitting([page.text.as_str(), brief.as_str()]).to_owned();
        answer
    }

    /// Formats an answer with `shown`, regardless of the budget. `duplicates` is the number of
    /// passages left out as duplicates.
    pub(super) fn format(&self, shown: Vec<FilePassages>, duplicates: u64) -> SearchAnswer {
        let mut body: Vec<(String, String)> = Vec::new();
        for file in &shown {
            let ranges: Vec<String> =
                file.text.iter().map(|(range, _)| display_range(range)).collect();
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
            let hidden =
                if hidden == 0 { String::new() } else { format!(", {}", removed_note(hidden)) };
            body.push((
                format!("{}, bytes {}{outcome}{hidden}:", file.path, ranges.join(", ")),
                text,
            ));
        }
        let all: String = body.iter().map(|(line, text)| format!("{line}\n{text}")).collect();
        let tag = unused_tag(&all);
        let missing = (self.missing)();
        let mut text =
            self.head(missing.as_ref(), shown.iter().map(|file| file.passages).sum(), duplicates);
        body.iter().for_each(|(line, passages)| {
            let _ = write!(text, "\n{line} {tag}\n{passages}");
        });
        let page = AnswerPage { error: None, text, missing, is_complete: true };
        SearchAnswer { page, totals: self.totals.clone(), found: SearchFound { shown, duplicates } }
    }

    fn head(&self, missing: Option<&Missing>, shown: u64, duplicates: u64) -> String {
        let mut head = format!("[{}: ", display(self.query, self.budget));
        if self.totals.matches == 0 {
            let query = RankedQuery::parse(&self.query.words);
            head.push_str("no passage");
            if query.filters != Filters::default() {
                head.push_str(" that matches the filters");
            }
            head.push_str(match query.phrases.len() {
                0 => " has one of the words",
                1 => " has the phrase",
                _ => " has all phrases",
            });
            if !query.excluded.is_empty() {
                head.push_str(" and none of the excluded ones");
            }
        } else {
            head.push_str(&self.totals.found("passage"));
            if shown < self.totals.matches {
                let _ = write!(head, ", best {shown} shown");
            }
            if duplicates > 0 {
                let _ = write!(head, ", {duplicates} say nearly the same");
            }
        }
        let _ = write!(head, "; {}", self.totals.searched);
        if let Some(missing) = missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }
}

fn display(query: &SearchQuery, budget: Budget) -> String {
    one_line(&query.to_string(), QUERY_MAX.min(budget.approx_bytes() / QUERY_PART))
}

/// Formats a range by its first and its last byte, from 0.
fn display_range(range: &Range<u64>) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}
