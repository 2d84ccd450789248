//! Formats the answer of a grep query.
//!
//! The first line states the extent and the results of the search. Matching lines follow as
//! `path:number:text`, with markers for omitted ones. The program's own lines begin with `[` and
//! lines of a worker's file begin with its path, so no worker can forge one.

use std::collections::HashMap;
use std::fmt::Write;

use crate::search::regex::{FoundLine, LineKind, Unsearched};
use swarmletfs_base::name::Name;

use super::GrepQuery;
use crate::analysis::missing::Missing;
use crate::query::{AnswerPage, Coverage, FileAnswer, INVALID_QUERY, Totals};
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Budget, count_fitting, count_fitting_with_rest};
use swarmletfs_base::text::clean::{InvisibleChars, clip, one_line, removed_note};
use swarmletfs_base::text::count;

/// Longest query that is repeated in the answer, in bytes.
const QUERY_MAX: usize = 200;
/// Number of incompletely shown workers that are named.
pub(super) const NAMES: usize = 10;
/// Divisor of the budget that the names of these workers may take.
pub(super) const NAMES_PART: usize = 8;
/// Budgets below this are small, in bytes.
const SMALL: usize = 4_000;
/// Budgets above this are large, in bytes.
const LARGE: usize = 1 << 20;
/// Text to remove for each token above the budget, in bytes.
const TOKEN: usize = 3;
/// Longest name of a worker or a record in a list of names, in bytes.
const NAME_MAX: usize = 60;

#[derive(Debug, Clone)]
pub enum ShownLine {
    Match(LineText),
    Context(LineText),
    /// A gap between lines that are not consecutive.
    Gap,
}

/// The text of a shown line.
#[derive(Debug, Clone)]
pub struct LineText {
    /// Line number, from 1.
    pub number: u64,
    /// Sanitized text, cut around the match if it is long.
    pub text: String,
    /// Number of invisible characters that were removed.
    pub hidden: usize,
}

impl ShownLine {
    pub fn new(line: &FoundLine<'_>, max: usize) -> ShownLine {
        let clipped = |start| {
            let (text, hidden) = clip(line.bytes, start, max, InvisibleChars::Remove);
            LineText { number: line.number, text, hidden }
        };
        match &line.kind {
            LineKind::Match(range) => ShownLine::Match(clipped(range.start)),
            LineKind::Context => ShownLine::Context(clipped(0)),
            LineKind::Break => ShownLine::Gap,
        }
    }

    fn is_match(&self) -> bool {
        matches!(self, ShownLine::Match(_))
    }

    fn text(&self) -> Option<&LineText> {
        match self {
            ShownLine::Match(line) | ShownLine::Context(line) => Some(line),
            ShownLine::Gap => None,
        }
    }

    fn len(&self) -> usize {
        self.text().map_or(0, |line| line.text.len())
    }

    /// Writes the line as `path:number:text`, with `-` around the number of a line of context.
    pub fn write(&self, out: &mut String, path: &str) {
        let _ = match self {
            ShownLine::Match(LineText { number, text, .. }) => {
                writeln!(out, "{path}:{number}:{text}")
            }
            ShownLine::Context(LineText { number, text, .. }) => {
                writeln!(out, "{path}-{number}-{text}")
            }
            ShownLine::Gap => writeln!(out, "--"),
        };
    }
}

#[derive(Debug, Clone)]
pub struct FileLines {
    pub worker: Name,
    /// Path from the root of the tree.
    pub path: String,
    pub lines: Vec<ShownLine>,
    /// Number of matching lines in the file, without copies.
    pub all: u64,
    /// Files of the worker that repeat some of these lines.
    pub also_in: Vec<String>,
    size: usize,
}

impl FileLines {
    pub fn new(worker: Name, path: String, all: u64, also_in: Vec<String>) -> FileLines {
        FileLines { worker, path, lines: Vec::new(), all, also_in, size: 0 }
    }

    pub fn add(&mut self, line: ShownLine) {
        self.size += self.path.len() + line.len() + 8;
        self.lines.push(line);
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn more(&self) -> u64 {
        self.all.saturating_sub(self.matches())
    }

    pub fn matches(&self) -> u64 {
        self.lines.iter().filter(|line| line.is_match()).count() as u64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OmissionDetail {
    /// Markers after each file and at the end.
    Full,
    /// Counts in the first line only.
    Brief,
}

pub type GrepAnswer = FileAnswer<GrepFound>;

#[derive(Debug, Clone)]
pub struct GrepFound {
    /// Path from the root and number of matching lines of each file, in the order of the answer.
    /// That order is exact for the files that are not shown only if the query lists the files.
    pub files: Vec<(String, u64)>,
    /// Paths from the root of the files without a matching line, if the query lists them.
    pub others: Vec<String>,
    pub shown: Vec<FileLines>,
    budget: Budget,
}

impl GrepAnswer {
    pub(super) fn refusal(query: &GrepQuery, error: String, budget: Budget) -> GrepAnswer {
        let page = AnswerPage::refusal(&display(query), INVALID_QUERY, error, budget);
        let (files, others, shown) = Default::default();
        let found = GrepFound { files, others, shown, budget };
        GrepAnswer { page, totals: Totals::default(), found }
    }

    /// Formats an answer. `files` yields worker, path and number of matching lines of each file,
    /// in the order of the answer.
    pub fn new<'a>(
        query: &GrepQuery,
        searched: Coverage,
        files: impl Iterator<Item = (&'a Name, &'a str, u64)>,
        shown: Vec<FileLines>,
        budget: Budget,
        missing: Option<Missing>,
    ) -> GrepAnswer {
        let (mut workers, mut found) = (WorkerLines::default(), Vec::new());
        for (name, path, lines) in files {
            workers.add(name, lines);
            found.push((path.to_owned(), lines));
        }
        let totals = Totals {
            matches: found.iter().map(|(_, lines)| lines).sum(),
            files: found.len() as u64,
            workers: workers.counts.len() as u64,
            searched,
        };
        let page = AnswerPage { missing, is_complete: true, ..AnswerPage::default() };
        let found = GrepFound { files: found, others: Vec::new(), shown, budget };
        let mut answer = GrepAnswer { page, totals, found };
        let fit = |detail| answer.fit(query, &workers, budget, detail);
        let (mut most, mut text) = fit(OmissionDetail::Full);
        // With a small budget, lines are worth more than omission markers, whose counts are in the
        // first line anyway.
        let brief =
            if budget.approx_bytes() < SMALL { fit(OmissionDetail::Brief) } else { (0, None) };
        if text.is_none() || brief.0 > 2 * most {
            (most, text) = brief;
        }
        answer.page.text = text.unwrap_or_else(|| answer.minimal(budget));
        answer.truncate(most, query.options.context);
        answer
    }

    /// Returns the largest number of leading lines that fit the budget, and the text with them.
    fn fit(
        &self,
        query: &GrepQuery,
        workers: &WorkerLines,
        budget: Budget,
        detail: OmissionDetail,
    ) -> (usize, Option<String>) {
        let sizes: Vec<usize> = self
            .found
            .shown
            .iter()
            .flat_map(|file| file.lines.iter().map(|line| file.path.len() + line.len()))
            .collect();
        let format = |most| {
            let text = self.format(query, workers, most, detail, budget);
            let over = budget.used(&text).saturating_sub(budget.size());
            if over == 0 { Ok(text) } else { Err(over) }
        };
        // A token mostly has several bytes.
        let unit = if budget.approx_bytes() > budget.size() { TOKEN } else { 1 };
        let (mut most, mut too_many) = (sizes.len(), sizes.len() + 1);
        let mut text = loop {
            match format(most) {
                Ok(text) => break text,
                Err(_) if most == 0 => return (0, None),
                Err(over) => {
                    too_many = most;
                    let mut room = over.saturating_mul(unit);
                    for size in sizes.iter().take(most).rev() {
                        most -= 1;
                        room = room.saturating_sub(*size);
                        if room == 0 {
                            break;
                        }
                    }
                }
            }
        };
        // Removing a line also removes its file's marker, so too many lines may have been removed.
        // Large answers skip this search: the difference is small.
        while too_many - most > 1 && budget.approx_bytes() <= LARGE {
            let middle = most + (too_many - most) / 2;
            match format(middle) {
                Ok(fits) => (most, text) = (middle, fits),
                Err(_) => too_many = middle,
            }
        }
        (most, Some(text))
    }

    fn format(
        &self,
        query: &GrepQuery,
        workers: &WorkerLines,
        most: usize,
        detail: OmissionDetail,
        budget: Budget,
    ) -> String {
        let mut body = String::new();
        let mut left = most;
        let (mut matches, mut files, mut hidden) = (0, 0, 0);
        let mut rest = workers.clone();
        // Consecutive files whose lines are in equal records share one line about these.
        let (mut records, mut files_above): (&[String], usize) = (&[], 0);
        for file in &self.found.shown {
            let (lines, _) = file.lines.split_at_most(left);
            left -= lines.len();
            let lines = without_dangling_context(lines, query.options.context);
            let file_matches = lines.iter().filter(|line| line.is_match()).count() as u64;
            if file_matches == 0 {
                continue;
            }
            if file.also_in != records {
                body.push_str(&also_in(records, files_above, detail));
                (records, files_above) = (&file.also_in, 0);
            }
            files_above += 1;
            lines.iter().for_each(|line| line.write(&mut body, &file.path));
            hidden +=
                lines.iter().filter_map(ShownLine::text).map(|line| line.hidden).sum::<usize>();
            let more = file.all.saturating_sub(file_matches);
            if more > 0 && detail == OmissionDetail::Full {
                let _ = writeln!(body, "[... {} in {} ...]", count(more, "more line"), file.path);
            }
            matches += file_matches;
            files += 1;
            rest.take(&file.worker, file.all);
        }
        body.push_str(&also_in(records, files_above, detail));
        let more = rest.lines();
        if more > 0 && files > 0 && detail == OmissionDetail::Full {
            let files = count(self.totals.files - files, "more file");
            let _ = write!(body, "[... {} in {files}", count(more, "more line"));
            let _ = writeln!(body, "{} ...]", rest.names(budget.approx_bytes() / NAMES_PART));
        }
        format!("{}{body}", self.head(query, matches, hidden))
    }

    /// Returns a line for each file with matches: its path, `with_counts` followed by the number of
    /// matching lines.
    fn file_lines(&self, with_counts: bool) -> impl Iterator<Item = String> {
        let files = self.found.files.iter();
        files.map(move |(path, lines)| match with_counts {
            true => format!("{path}:{lines}\n"),
            false => format!("{path}\n"),
        })
    }

    /// Lists the files with matches within the budget, one path per line, `with_counts` followed by
    /// the number of matching lines. The first line states the totals.
    pub fn list_files(&self, query: &GrepQuery, with_counts: bool) -> String {
        let budget = self.found.budget;
        let mut text = self.head(query, self.totals.matches, 0);
        let rest = |left| format!("[... {} ...]\n", count(left, "more file"));
        let lines: Vec<String> = self.file_lines(with_counts).collect();
        let shown = count_fitting_with_rest(
            lines.iter().map(|line| budget.used(line)),
            budget.size().saturating_sub(budget.used(&text)),
            |left| budget.used(&rest(left + 1)),
        );
        text.extend(lines.iter().take(shown).map(String::as_str));
        if shown < lines.len() {
            text.push_str(&rest(lines.len() - shown));
        }
        if budget.used(&text) <= budget.size() { text } else { self.minimal(budget) }
    }

    /// Formats the first line. `shown` is the number of shown matches, and `hidden` the number of
    /// removed invisible characters.
    fn head(&self, query: &GrepQuery, shown: u64, hidden: usize) -> String {
        let mut head = format!("[{}: ", display(query));
        let Totals { matches, searched, .. } = &self.totals;
        let no_files = searched.files == 0 && searched.unsearched == Unsearched::default();
        if no_files && query.options.glob.is_some() {
            head.push_str("no file matches the glob");
        } else if *matches == 0 {
            head.push_str("no line matches");
        } else {
            head.push_str(&self.totals.found("line"));
            if shown < *matches {
                let _ = write!(head, ", {shown} shown");
            }
        }
        let _ = write!(head, "; {searched}");
        if hidden > 0 {
            let _ = write!(head, "; {}", removed_note(hidden));
        }
        if let Some(missing) = &self.page.missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }

    /// Formats an answer for a budget that is too small for the first line.
    fn minimal(&self, budget: Budget) -> String {
        let brief = self.totals.brief("line", self.page.missing.as_ref());
        budget.first_fitting([brief.as_str()]).to_owned()
    }

    /// Keeps the first `most` lines.
    fn truncate(&mut self, most: usize, context: usize) {
        let mut left = most;
        for file in &mut self.found.shown {
            file.lines.truncate(left);
            left -= file.lines.len();
            file.lines.truncate(without_dangling_context(&file.lines, context).len());
        }
        self.found.shown.retain(|file| file.matches() > 0);
    }
}

/// Formats the line below `files` files with lines that are also in `records`. It is empty if there
/// are no records.
fn also_in(records: &[String], files: usize, detail: OmissionDetail) -> String {
    if records.is_empty() || detail == OmissionDetail::Brief {
        return String::new();
    }
    let names: Vec<String> = records.iter().map(|name| one_line(name, NAME_MAX)).collect();
    let above =
        if files > 1 { format!(": lines of the {files} files above") } else { String::new() };
    format!("[also in {}{above}]\n", names.join(", "))
}

fn display(query: &GrepQuery) -> String {
    one_line(&query.to_string(), QUERY_MAX)
}

#[derive(Debug, Clone, Default)]
struct WorkerLines {
    counts: Vec<(Name, u64)>,
    indices: HashMap<Name, usize>,
}

impl WorkerLines {
    fn add(&mut self, name: &Name, lines: u64) {
        let at = *self.indices.entry(name.clone()).or_insert(self.counts.len());
        match self.counts.get_mut(at) {
            Some((_, sum)) => *sum += lines,
            None => self.counts.push((name.clone(), lines)),
        }
    }

    fn take(&mut self, name: &Name, lines: u64) {
        if let Some((_, left)) = self.indices.get(name).and_then(|at| self.counts.get_mut(*at)) {
            *left = left.saturating_sub(lines);
        }
    }

    fn lines(&self) -> u64 {
        self.counts.iter().map(|(_, lines)| lines).sum()
    }

    /// Lists the workers with lines left, in at most about `room` bytes.
    fn names(&self, room: usize) -> String {
        let left: Vec<&(Name, u64)> = self.counts.iter().filter(|(_, lines)| *lines > 0).collect();
        let mut names: Vec<String> = left
            .iter()
            .take(NAMES)
            .map(|(name, lines)| format!("{} ({lines})", one_line(&name.display(), NAME_MAX)))
            .collect();
        names.truncate(count_fitting(names.iter().map(String::len), room));
        if left.len() > names.len() {
            names.push(count(
                left.len() - names.len(),
                if names.is_empty() { "worker" } else { "more worker" },
            ));
        }
        format!(": {}", names.join(", "))
    }
}

/// Returns `lines` without trailing context of a match that is not among them.
fn without_dangling_context(lines: &[ShownLine], context: usize) -> &[ShownLine] {
    let last_match = lines.iter().enumerate().rev().find_map(|(at, line)| match line {
        ShownLine::Match(line) => Some((at, line.number)),
        ShownLine::Context(_) | ShownLine::Gap => None,
    });
    let Some((at, number)) = last_match else { return &[] };
    let end = number + context as u64;
    let after = lines
        .iter()
        .skip(at + 1)
        .take_while(|line| line.text().is_some_and(|line| line.number <= end))
        .count();
    lines.split_at_known(at + 1 + after).0
}
