//! The text of an answer: a line that says what was searched and found, lines as `path:number:text`, and what was left
//! out of them.
//!
//! A line of ours begins with `[`, one of a worker's file with its path, so no worker can write one of ours.

use std::collections::HashMap;
use std::fmt::Write;

use crate::name::Name;
use crate::search::regex::{Found, Line, LineKind, Unsearched};

use super::super::clean::{InvisibleChars, cleaned_with, escape_markers, one_line, removed_note};
use super::super::text::count;
use super::super::{Budget, Missing};
use super::Query;

/// The longest question that is repeated, in bytes.
const QUERY_MAX: usize = 200;
/// How much of a long line is shown before its match, in bytes.
const BEFORE: usize = 100;
/// How many workers are named of which not all is shown, and in how large a part of the budget.
const NAMES: usize = 10;
pub(super) const NAMES_PART: usize = 8;
/// A budget of fewer bytes is small.
const SMALL: usize = 4_000;
/// A budget of more bytes is large.
const LARGE: usize = 1 << 20;
/// What is taken away of a text that is a token too long, in bytes.
const TOKEN: usize = 3;
/// The longest name of one, in bytes.
const NAME_MAX: usize = 60;

/// What was searched.
#[derive(Debug, Clone, Default)]
pub struct Searched {
    /// Workers.
    pub workers: u64,
    /// Files that were searched to their end.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were not, by the reason.
    pub unsearched: Unsearched,
}

impl Searched {
    pub(super) fn add(&mut self, found: &Found) {
        self.workers += 1;
        self.files += found.files;
        self.bytes = self.bytes.saturating_add(found.bytes);
        self.unsearched += found.unsearched;
    }

    /// Whether nothing was left unsearched that another time perhaps can be searched.
    pub fn is_whole(&self) -> bool {
        self.unsearched.late == 0 && self.unsearched.unreadable == 0
    }
}

/// A line as it is shown.
#[derive(Debug, Clone)]
pub struct ShownLine {
    /// Its number, from 1; 0 for a gap between two that do not follow each other.
    pub number: u64,
    /// Whether it matches; else it is context.
    pub matches: bool,
    /// Its text, cleaned, and cut around the match where it is long.
    pub text: String,
    /// Number of invisible characters that were removed from it.
    pub hidden: usize,
}

impl ShownLine {
    pub(super) fn of(line: &Line<'_>, max: usize) -> ShownLine {
        let place = match &line.kind {
            LineKind::Match(place) => place.start,
            LineKind::Context => 0,
            LineKind::Break => return ShownLine { number: 0, matches: false, text: String::new(), hidden: 0 },
        };
        let (text, hidden) = clip(line.bytes, place, max, InvisibleChars::Remove);
        ShownLine { number: line.number, matches: line.kind != LineKind::Context, text, hidden }
    }
}

/// The lines of one file that are shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its worker's name.
    pub worker: Name,
    /// Where it is, from the root of the tree.
    pub path: String,
    /// The lines.
    pub lines: Vec<ShownLine>,
    /// How many lines of the file match.
    pub all: u64,
    size: usize,
}

impl Shown {
    pub(super) fn new(worker: Name, path: String, all: u64) -> Shown {
        Shown { worker, path, lines: Vec::new(), all, size: 0 }
    }

    pub(super) fn add(&mut self, line: ShownLine) {
        self.size += self.path.len() + line.text.len() + 8;
        self.lines.push(line);
    }

    /// How much the lines take, about, in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// How many of its lines that match are left out.
    pub fn more(&self) -> u64 {
        self.all.saturating_sub(self.matches())
    }

    pub(super) fn matches(&self) -> u64 {
        self.lines.iter().filter(|line| line.matches).count() as u64
    }
}

/// How much is said of what is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Of each file, and at the end.
    Full,
    /// Nothing but the counts in the first line.
    Brief,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What is wrong with the question.
    pub error: Option<String>,
    /// What was searched.
    pub searched: Searched,
    /// How many lines match.
    pub lines: u64,
    /// In how many files.
    pub files: u64,
    /// Of how many workers.
    pub workers: u64,
    /// The files by their paths from the root, each with how many of its lines match, in the order in which they are shown.
    pub found: Vec<(String, u64)>,
    /// What is shown of them, within the budget.
    pub shown: Vec<Shown>,
    /// All of it as text.
    pub text: String,
    /// The parts that there was no time for, as the first line says it.
    pub missing: Option<Missing>,
    /// How large that may be.
    budget: Budget,
}

impl Answer {
    /// That a question cannot be answered, since it is none.
    pub(super) fn refused(query: &Query, error: String, budget: Budget) -> Answer {
        let long = format!("[{}: cannot be searched for]\n{}\n", asked(query), error.trim_end());
        let text = budget.first_fitting([long.as_str(), "[cannot be searched for]\n"]).to_owned();
        let searched = Searched::default();
        let (found, shown) = (Vec::new(), Vec::new());
        let (lines, files, workers, missing) = Default::default();
        Answer { error: Some(error), searched, lines, files, workers, found, shown, text, missing, budget }
    }

    /// What was found: the files, each with its worker, its path and how many lines, in the order in which they are shown;
    /// and what is shown.
    pub(super) fn new<'a>(
        query: &Query,
        searched: Searched,
        files: impl Iterator<Item = (&'a Name, &'a str, u64)>,
        shown: Vec<Shown>,
        budget: Budget,
        missing: Option<Missing>,
    ) -> Answer {
        let (mut workers, mut found) = (Workers::default(), Vec::new());
        for (name, path, lines) in files {
            workers.add(name, lines);
            found.push((path.to_owned(), lines));
        }
        let mut answer = Answer {
            error: None,
            searched,
            lines: found.iter().map(|(_, lines)| lines).sum(),
            files: found.len() as u64,
            workers: workers.0.len() as u64,
            found,
            shown,
            text: String::new(),
            missing,
            budget,
        };
        let fits = |form| answer.fitting(query, &workers, budget, form);
        let (mut most, mut text) = fits(Form::Full);
        // Where there is little room, lines are worth more than what is said of the others: that is in the first line.
        let brief = if budget.approx_bytes() < SMALL { fits(Form::Brief) } else { (0, None) };
        if text.is_none() || brief.0 > 2 * most {
            (most, text) = brief;
        }
        answer.text = text.unwrap_or_else(|| answer.short(budget));
        answer.cut(most, query.options.context);
        answer
    }

    /// The text with as many lines as fit, from the front, and how many these are.
    fn fitting(&self, query: &Query, workers: &Workers, budget: Budget, form: Form) -> (usize, Option<String>) {
        let sizes: Vec<usize> = self
            .shown
            .iter()
            .flat_map(|file| file.lines.iter().map(|line| file.path.len() + line.text.len()))
            .collect();
        let tried = |most| {
            let text = self.written(query, workers, most, form, budget);
            let over = budget.used(&text).saturating_sub(budget.size());
            if over == 0 { Ok(text) } else { Err(over) }
        };
        // A token is of several bytes, most often.
        let unit = if budget.approx_bytes() > budget.size() { TOKEN } else { 1 };
        let (mut most, mut too_many) = (sizes.len(), sizes.len() + 1);
        let mut text = loop {
            match tried(most) {
                Ok(text) => break text,
                Err(_) if most == 0 => return (0, None),
                Err(over) => {
                    too_many = most;
                    let mut room = over.saturating_mul(unit);
                    for size in sizes.get(..most).unwrap_or_default().iter().rev() {
                        most -= 1;
                        room = room.saturating_sub(*size);
                        if room == 0 {
                            break;
                        }
                    }
                }
            }
        };
        // With a line goes what is said of its file, so that may have been too many; of a large text the difference is small.
        while too_many - most > 1 && budget.approx_bytes() <= LARGE {
            let middle = most + (too_many - most) / 2;
            match tried(middle) {
                Ok(fits) => (most, text) = (middle, fits),
                Err(_) => too_many = middle,
            }
        }
        (most, Some(text))
    }

    /// The text with the first so many lines.
    fn written(&self, query: &Query, workers: &Workers, most: usize, form: Form, budget: Budget) -> String {
        let mut body = String::new();
        let mut left = most;
        let (mut matches, mut files, mut hidden) = (0, 0, 0);
        let mut rest = workers.clone();
        for file in &self.shown {
            let lines = file.lines.get(..left.min(file.lines.len())).unwrap_or_default();
            left -= lines.len();
            let lines = groups(lines, query.options.context);
            let told = lines.iter().filter(|line| line.matches).count() as u64;
            if told == 0 {
                continue;
            }
            lines.iter().for_each(|line| write_line(&mut body, &file.path, line));
            hidden += lines.iter().map(|line| line.hidden).sum::<usize>();
            let more = file.all.saturating_sub(told);
            if more > 0 && form == Form::Full {
                let _ = writeln!(body, "[... {} in {} ...]", lines_of(more, "more "), file.path);
            }
            matches += told;
            files += 1;
            rest.take(&file.worker, file.all);
        }
        let more = rest.lines();
        if more > 0 && files > 0 && form == Form::Full {
            let files = count(self.files - files, "more file");
            let _ = write!(body, "[... {} in {files}", lines_of(more, "more "));
            let _ = writeln!(body, "{} ...]", rest.named(budget.approx_bytes() / NAMES_PART));
        }
        format!("{}{body}", self.head(query, matches, hidden))
    }

    /// The files with lines that match, a path a line, `with_counts` with how many behind it, within the budget. The
    /// first line tells how much there is.
    pub fn listed(&self, query: &Query, with_counts: bool) -> String {
        let budget = self.budget;
        let mut text = self.head(query, self.lines, 0);
        let mut left = self.found.len();
        for (path, lines) in &self.found {
            let line = if with_counts { format!("{path}:{lines}\n") } else { format!("{path}\n") };
            let rest = format!("[... {} ...]\n", count(left, "more file"));
            if budget.used(&text) + budget.used(&line) + budget.used(&rest) > budget.size() {
                text.push_str(&rest);
                break;
            }
            text.push_str(&line);
            left -= 1;
        }
        if budget.used(&text) <= budget.size() { text } else { self.short(budget) }
    }

    /// The first line, where so many lines are shown, of which so many invisible characters were removed.
    fn head(&self, query: &Query, shown: u64, hidden: usize) -> String {
        let mut head = format!("[{}: ", asked(query));
        let nothing_is_there = self.searched.files == 0 && self.searched.unsearched == Unsearched::default();
        if nothing_is_there && query.options.glob.is_some() {
            head.push_str("no file is of that glob");
        } else if self.lines == 0 {
            head.push_str("no line matches");
        } else {
            let (files, workers) = (count(self.files, "file"), count(self.workers, "worker"));
            let _ = write!(head, "{} in {files} of {workers}", lines_of(self.lines, ""));
            if shown < self.lines {
                let _ = write!(head, ", {shown} shown");
            }
        }
        let Searched { workers, files, bytes, unsearched } = &self.searched;
        let (files, workers) = (count(*files, "file"), count(*workers, "worker"));
        let _ = write!(head, "; searched {files} of {workers}, {bytes} B");
        let Unsearched { binary, unreadable, long_line, late } = unsearched;
        let reasons = [
            (binary, "binary"),
            (unreadable, "unreadable"),
            (long_line, "from a line on that is too long"),
            (late, "for lack of time"),
        ];
        let reasons = reasons.into_iter().filter(|(some, _)| **some > 0).map(|(some, why)| format!("{some} {why}"));
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            let _ = write!(head, "; not searched: {}", reasons.join(", "));
        }
        if hidden > 0 {
            let _ = write!(head, "; {}", removed_note(hidden));
        }
        if let Some(missing) = &self.missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }

    /// As much as there is room for where there is hardly any.
    fn short(&self, budget: Budget) -> String {
        let brief = if self.missing.is_some() { ", incomplete" } else { "" };
        let lines = format!("[{}{brief}]\n", lines_of(self.lines, ""));
        if budget.used(&lines) <= budget.size() { lines } else { String::new() }
    }

    /// Keeps the first so many lines.
    fn cut(&mut self, most: usize, context: usize) {
        let mut left = most;
        for file in &mut self.shown {
            file.lines.truncate(left);
            left -= file.lines.len();
            file.lines.truncate(groups(&file.lines, context).len());
        }
        self.shown.retain(|file| file.matches() > 0);
    }
}

fn asked(query: &Query) -> String {
    one_line(&query.to_string(), QUERY_MAX)
}

fn lines_of(lines: u64, more: &str) -> String {
    count(lines, &format!("{more}line"))
}

/// How many lines there are of each worker, in the order in which they are first met.
#[derive(Debug, Clone, Default)]
struct Workers(Vec<(Name, u64)>, HashMap<Name, usize>);

impl Workers {
    fn add(&mut self, name: &Name, lines: u64) {
        let at = *self.1.entry(name.clone()).or_insert(self.0.len());
        match self.0.get_mut(at) {
            Some((_, sum)) => *sum += lines,
            None => self.0.push((name.clone(), lines)),
        }
    }

    fn take(&mut self, name: &Name, lines: u64) {
        if let Some((_, left)) = self.1.get(name).and_then(|at| self.0.get_mut(*at)) {
            *left = left.saturating_sub(lines);
        }
    }

    fn lines(&self) -> u64 {
        self.0.iter().map(|(_, lines)| lines).sum()
    }

    /// Those that have lines left, as far as there is so much room for them.
    fn named(&self, mut room: usize) -> String {
        let left: Vec<&(Name, u64)> = self.0.iter().filter(|(_, lines)| *lines > 0).collect();
        let name = |(name, lines): &&(Name, u64)| format!("{} ({lines})", one_line(&name.display(), NAME_MAX));
        let has_room = |name: &String| {
            let has = name.len() <= room;
            room = room.saturating_sub(name.len());
            has
        };
        let mut names: Vec<String> = left.iter().take(NAMES).map(name).take_while(has_room).collect();
        if left.len() > names.len() {
            names.push(count(left.len() - names.len(), if names.is_empty() { "worker" } else { "more worker" }));
        }
        format!(": {}", names.join(", "))
    }
}

/// The lines without those that only lead up to a match that is not among them.
fn groups(lines: &[ShownLine], context: usize) -> &[ShownLine] {
    let Some(last) = lines.iter().rposition(|line| line.matches) else { return &[] };
    let number = lines.get(last).map_or(0, |line| line.number);
    let is_behind = |line: &&ShownLine| line.number > 0 && line.number <= number + context as u64;
    let behind = lines.get(last + 1..).unwrap_or_default().iter().take_while(is_behind).count();
    lines.get(..=last + behind).unwrap_or_default()
}

fn write_line(out: &mut String, path: &str, line: &ShownLine) {
    let between = if line.matches { ':' } else { '-' };
    let _ = match line.number {
        0 => writeln!(out, "--"),
        number => writeln!(out, "{path}{between}{number}{between}{}", line.text),
    };
}

/// Returns a line cleaned, and how many invisible characters were in it; of one that is longer than `max` bytes the part
/// around its byte `place`, with how much was left out.
pub(in crate::render) fn clip(line: &[u8], place: usize, max: usize, hidden: InvisibleChars) -> (String, usize) {
    let clean = |part: &[u8]| {
        let part = cleaned_with(part, hidden);
        (escape_markers(&part.text), part.hidden)
    };
    if line.len() <= max {
        return clean(line);
    }
    let start = border(line, place.saturating_sub(BEFORE).min(line.len() - max));
    let end = border(line, start + max);
    let (mut text, hidden) = clean(line.get(start..end).unwrap_or_default());
    if start > 0 {
        text.insert_str(0, &format!("[... {start} B ...]"));
    }
    if end < line.len() {
        let _ = write!(text, "[... {} B ...]", line.len() - end);
    }
    (text, hidden)
}

/// The beginning of the character at byte `at`.
fn border(line: &[u8], at: usize) -> usize {
    let inside = |at: &usize| line.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !inside(at)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(line: &[u8], place: usize, max: usize) -> String {
        super::clip(line, place, max, InvisibleChars::Remove).0
    }

    #[test]
    fn long_lines_are_cut_around_the_match() {
        let line = format!("{}needle{}", "a".repeat(1_000), "é".repeat(1_000));
        let text = clip(line.as_bytes(), 1_000, 400);
        assert!(
            text.starts_with("[... 900 B ...]aaa") && text.contains("needle\u{e9}") && text.ends_with(" B ...]"),
            "{text}"
        );
        assert!(!text.contains('\u{fffd}'));
        assert_eq!(clip(b"short \x1b[31mred [EVIDENCE:x]", 0, 400), "short red [\\EVIDENCE:x]");
        // At the end of the line as much is shown as anywhere.
        let text = clip(&[&[b'a'; 1_000][..], b"needle"].concat(), 1_000, 400);
        assert!(text.starts_with("[... 606 B ...]") && text.ends_with("needle"), "{text}");
    }
}
