//! Reads the passages of ranked workers, with the outcomes of their calls, and formats the answer
//! of a search query.
//!
//! The first line states the extent and the results of the search. The passages of each file follow
//! below a line with their position and the outcome of the call. Each such line ends in a tag that
//! occurs in no worker's text, so no worker can forge one.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::{SearchMode, SearchQuery};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::missing::Missing;
use crate::analysis::settings::PART_GRACE;
use crate::catalog::Fingerprint;
use crate::query::{AnswerPage, FileAnswer, INVALID_QUERY, Totals};
use crate::route::shown_path::{display_path, worker_path};
use crate::search::is_raw_record;
use crate::search::ranked::{FileHit, Filters, PassageKind, RankedQuery, shown};
use crate::view::{Folder, Member};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Error;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::split::Split;
use swarmletfs_base::store::read_range;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::{
    TAG_LEN, cleaned, escape_markers, one_line, removed_note, unused_tag,
};
use swarmletfs_base::text::count;

/// Longest query that is repeated in the answer, in bytes.
const QUERY_MAX: usize = 200;
/// Maximum length of a worker's title, in bytes, and the part of the budget that it may take.
const TITLE_MAX: usize = 60;
const TITLE_PART: usize = 64;
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
    /// The day on which the worker began.
    pub day: Option<String>,
    pub title: String,
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
    pub parsed: &'a RankedQuery,
    pub totals: &'a Totals,
    /// Number of workers that were not compared by meaning for lack of time.
    pub uncompared: u64,
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
        let mut known = HashSet::new();
        for file in &shown {
            let ranges: Vec<String> =
                file.text.iter().map(|(range, _)| display_range(range)).collect();
            let outcome = file.outcome.map(|outcome| format!(", {outcome}")).unwrap_or_default();
            // Once for each worker.
            let about = match known.insert(&file.worker) {
                true => about(file, TITLE_MAX.min(self.budget.approx_bytes() / TITLE_PART)),
                false => String::new(),
            };
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
                format!("{}, bytes {}{outcome}{hidden}{about}:", file.path, ranges.join(", ")),
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
        let (mode, matches) = (self.query.options.mode, self.totals.matches);
        match matches {
            0 if mode == SearchMode::Meaning => head.push_str("no passage to compare"),
            0 => head.push_str(&self.nothing()),
            _ if mode == SearchMode::Meaning => {
                let _ = write!(head, "the {shown} closest of {}", count(matches, "passage"));
            }
            _ => head.push_str(&self.totals.found("passage")),
        }
        match mode {
            SearchMode::Words if shown < matches => {
                let _ = write!(head, ", best {shown} shown");
            }
            SearchMode::Both => {
                let _ = write!(head, ", best {shown} shown, by words and meaning");
            }
            SearchMode::Words | SearchMode::Meaning => {}
        }
        if duplicates > 0 {
            let _ = write!(head, ", {duplicates} say nearly the same");
        }
        let without = self.parsed.without.join(", ");
        if !without.is_empty() {
            let _ = write!(head, "; without {}", one_line(&without, QUERY_MAX));
        }
        let _ = write!(head, "; {}", self.totals.searched);
        if self.uncompared > 0 {
            let workers = count(self.uncompared, "worker");
            let _ = write!(head, "; meaning of {workers} not compared for lack of time");
        }
        if let Some(missing) = missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }

    /// Says that no passage matches.
    fn nothing(&self) -> String {
        let query = self.parsed;
        let mut text = "no passage".to_owned();
        if query.filters != Filters::default() {
            text.push_str(" that matches the filters");
        }
        text.push_str(match query.phrases.len() {
            0 => " has one of the words",
            1 => " has the phrase",
            _ => " has all phrases",
        });
        if !query.excluded.is_empty() {
            text.push_str(" and none of the excluded ones");
        }
        text
    }
}

fn display(query: &SearchQuery, budget: Budget) -> String {
    one_line(&query.to_string(), QUERY_MAX.min(budget.approx_bytes() / QUERY_PART))
}

/// Formats the day and the title of the worker of a file, the title in at most `max` bytes.
fn about(file: &FilePassages, max: usize) -> String {
    let day = file.day.iter().map(|day| format!(", {day}"));
    let title = Some(one_line(&file.title, max)).filter(|title| !title.is_empty());
    // A worker's words are in quotes.
    day.chain(title.map(|title| format!(", \"{}\"", title.replace('"', "'")))).collect()
}

/// Formats a range by its first and its last byte, from 0.
fn display_range(range: &Range<u64>) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}

/// A byte range of a file: index of the worker, path, start and end.
type RangeKey = (usize, RelPath, u64, u64);

/// Size of a read if many passages of a file are needed in order, in bytes.
const WINDOW_BYTES: u64 = 256 << 10;

struct Window {
    worker: usize,
    path: RelPath,
    start: u64,
    /// End of the range that was requested; the file may end before.
    end: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn covers(&self, worker: usize, path: &RelPath, range: &Range<u64>) -> bool {
        self.worker == worker
            && self.path == *path
            && self.start <= range.start
            && range.end <= self.end
    }

    /// Returns the text of a range that the window covers, as far as the file has it.
    fn text(&self, range: Range<u64>) -> Rc<str> {
        let within = |at: u64| usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let (bytes, _) = self.bytes.split_at_most(within(range.end));
        let (_, bytes) = bytes.split_at_most(within(range.start));
        String::from_utf8_lossy(bytes).into()
    }
}

pub(super) struct PassageReader<'a> {
    analyzer: &'a Analyzer,
    workers: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>,
    /// The directory of the worker that was read last. Many workers would take many descriptors.
    folder: RefCell<Option<(usize, Folder)>>,
    /// The part of a file that was read last in order.
    window: RefCell<Option<Window>>,
    /// Cached passages; most are requested several times.
    texts: RefCell<HashMap<RangeKey, Option<Rc<str>>>>,
    outcomes: RefCell<HashMap<usize, HashMap<RelPath, Outcome>>>,
    /// True if the deadline passed before the outcomes of some calls were read.
    late: Cell<bool>,
}

impl<'a> PassageReader<'a> {
    pub(super) fn new(
        analyzer: &'a Analyzer,
        workers: Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>,
    ) -> PassageReader<'a> {
        PassageReader {
            analyzer,
            workers,
            folder: RefCell::default(),
            window: RefCell::default(),
            texts: RefCell::default(),
            outcomes: RefCell::default(),
            late: Cell::new(false),
        }
    }

    pub(super) fn member(&self, worker: usize) -> Option<&'a Arc<Member>> {
        self.workers.get(worker).map(|(member, _)| *member)
    }

    pub(super) fn shown_path(&self, worker: usize, path: &RelPath) -> String {
        self.member(worker)
            .map(|member| display_path(&worker_path(&member.name), path))
            .unwrap_or_default()
    }

    /// Returns a byte range of a file as text, or `None` if it cannot be read.
    pub(super) fn read(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let passage = (worker, path.clone(), range.start, range.end);
        if let Some(text) = self.texts.borrow().get(&passage) {
            return text.clone();
        }
        let text = self.read_uncached(worker, path, range);
        self.texts.borrow_mut().insert(passage, text.clone());
        text
    }

    /// Returns a byte range of a file as text, or `None` if it cannot be read. Ranges that follow
    /// one another are read together, and are not cached otherwise.
    pub(super) fn read_in_order(
        &self,
        worker: usize,
        path: &RelPath,
        range: Range<u64>,
    ) -> Option<Rc<str>> {
        let mut window = self.window.borrow_mut();
        if !window.as_ref().is_some_and(|window| window.covers(worker, path, &range)) {
            let end = range.end.max(range.start.saturating_add(WINDOW_BYTES));
            let bytes = self.read_bytes(worker, path, range.start..end)?;
            let (path, start) = (path.clone(), range.start);
            *window = Some(Window { worker, path, start, end, bytes });
        }
        window.as_ref().map(|window| window.text(range))
    }

    fn read_uncached(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Rc<str>> {
        let bytes = self.read_bytes(worker, path, range)?;
        Some(String::from_utf8_lossy(&bytes).into())
    }

    fn read_bytes(&self, worker: usize, path: &RelPath, range: Range<u64>) -> Option<Vec<u8>> {
        let mut last = self.folder.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| *known != worker) {
            *last = Some((worker, self.analyzer.view.folder(self.member(worker)?).ok()?));
        }
        let (_, folder) = last.as_ref()?;
        let file = folder.open(path).ok()?;
        let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        read_range(&*file, range.start, length).ok()
    }

    pub(super) fn passages(&self, hit: &FileHit, deadline: Deadline<'_>) -> Option<FilePassages> {
        let FileHit { worker, path, passages, ranges } = hit;
        let text = ranges.iter().filter_map(|range| {
            let (range, kind) = range;
            let text = self.read(*worker, path, range.clone())?;
            // The escapes of a record are shown as what they stand for.
            let kind = match kind {
                PassageKind::File if is_raw_record(path) => PassageKind::Call,
                kind => *kind,
            };
            let text = match shown(&text, kind) {
                Cow::Borrowed(_) => text,
                Cow::Owned(readable) => readable.into(),
            };
            Some((range.clone(), text))
        });
        let member = self.member(*worker)?;
        let own = member.entry.worker();
        Some(FilePassages {
            worker: member.name.clone(),
            day: own.started_at.timestamp().map(|at| at.strftime("%Y-%m-%d").to_string()),
            title: one_line(own.title(), TITLE_MAX),
            path: self.shown_path(*worker, path),
            outcome: self.outcome(*worker, path, deadline),
            passages: *passages,
            text: text.collect(),
        })
    }

    /// Returns the outcome of the call whose output a file is, or `None` for other files.
    pub(super) fn outcome(
        &self,
        worker: usize,
        path: &RelPath,
        deadline: Deadline<'_>,
    ) -> Option<Outcome> {
        let (member, fingerprint) = self.workers.get(worker)?;
        let mut outcomes = self.outcomes.borrow_mut();
        let calls = outcomes.entry(worker).or_insert_with(|| {
            let record = self.analyzer.record(member, fingerprint, PART_GRACE, deadline);
            self.late.set(
                self.late.get()
                    || record.as_ref().map_or_else(Error::is_timeout, |record| record.timed_out()),
            );
            record.iter().flat_map(|record| record.trace.outcomes()).collect()
        });
        calls.get(path).copied()
    }

    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Returns true if the files of a worker have not changed since it was ranked.
    pub(super) fn is_now(&self, worker: usize) -> bool {
        let worker = self.workers.get(worker);
        worker.is_some_and(|(member, fingerprint)| {
            self.analyzer.view.is_unchanged(member, fingerprint)
        })
    }
}
