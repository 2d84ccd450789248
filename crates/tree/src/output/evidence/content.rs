//! The content of an evidence.txt before a budget cuts it: the sections, and the lines around them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::notes::{FAILED, RUNNING, SUSPECT, hidden_note, note_max, offsets_note, suspect_line};
use crate::analysis::excerpt::{Excerpt, ExcerptResult, ExcerptTask, length};
use crate::analysis::missing::Missing;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::store::File;
use swarmletfs_base::text::budget::count_fitting_with_rest;
use swarmletfs_base::text::clean::{TAG_LEN, one_line};

/// Maximum length of the input under a section line, in bytes.
const INPUT_MAX: usize = 120;

/// One output that may be shown, with the data of its section line.
#[derive(Debug, Clone, Default)]
pub(super) struct OutputSection {
    /// Path of the output, safe to print.
    pub path: String,
    /// File that the offsets of omissions refer to, safe to print; `None` if it is the file at
    /// `path`.
    pub source: Option<String>,
    /// Admission order when the budget is short; 0 is first.
    pub priority: usize,
    /// Rank of its kind, 0 first. If a section does not fit, none of a later rank is shown.
    pub rank: usize,
    /// Outcome of the call; `None` for a file that is not a call.
    pub outcome: Option<Outcome>,
    /// The line of the output for which a call that is ok by the record looks like a failure.
    pub suspect: Option<String>,
    /// True if the call has begun and not ended, in a worker that has not finished.
    pub is_running: bool,
    /// True if the section line states that a later call resolved the failure.
    pub is_resolved: bool,
    pub exit_code: Option<i64>,
    pub bytes: u64,
    pub input: Option<String>,
    /// Reason why the output cannot be read, as a part of a sentence.
    pub unreadable: Option<String>,
}

pub(super) struct FrameContent<'a> {
    /// Subject of the evidence: `Worker 123 (abc-123)`.
    pub title: String,
    /// Counts in the header: `Calls: 14 (3 failed, 1 unknown)`.
    pub counted: String,
    /// Returns the lines between header and sections. The arguments are the room for the lines and
    /// the part of it that the first failed section needs to show one line, in bytes.
    pub lines: &'a dyn Fn(usize, usize) -> String,
    /// Returns one line about the first failure within the given number of bytes, or an empty
    /// string if that is too little. Replaces a section that does not fit.
    pub failure: &'a dyn Fn(usize) -> String,
    /// True if `lines` already name the failures.
    pub(super) lines_name_failures: bool,
    /// The sections in display order.
    pub sections: Vec<OutputSection>,
    pub open: &'a dyn Fn(usize) -> Result<Box<dyn File>, String>,
    /// Runs the task for a section by its number; for many workers on a thread that can be
    /// abandoned.
    pub run: &'a dyn Fn(usize, ExcerptTask) -> ExcerptResult,
    pub deadline: Deadline<'a>,
    pub missing: &'a dyn Fn() -> Option<Missing>,
    /// True once an output could not be read that should be readable.
    pub(super) read_failed: Cell<bool>,
    /// The line of each short step that was read; `None` if it is not shown on one line.
    pub(super) short_lines: RefCell<HashMap<usize, Option<String>>>,
}

impl FrameContent<'_> {
    pub(super) fn is_failed(&self, number: usize) -> bool {
        self.sections.get(number).is_some_and(|section| section.outcome == Some(Outcome::Failed))
    }

    pub(super) fn looks_failed(&self, number: usize) -> bool {
        self.sections.get(number).is_some_and(|section| {
            section.outcome == Some(Outcome::Failed) || section.suspect.is_some()
        })
    }

    /// Returns the maximum number of bytes that a section takes in addition to its excerpt. They
    /// hold the input of the call if `input` is true, and the note on invisible characters if
    /// `notes_hidden` is true.
    pub(super) fn overhead(
        &self,
        section: &OutputSection,
        input: bool,
        notes_hidden: bool,
    ) -> usize {
        let hidden = if notes_hidden { hidden_note(length(section.bytes)).len() } else { 0 };
        let offsets = section.source.as_deref().map_or(0, |source| offsets_note(source).len());
        self.section_line(section, None, "", input).len()
            + TAG_LEN
            + note_max(section.bytes)
            + offsets
            + hidden
    }

    /// Returns the lines before an excerpt: path, size, outcome and notes on the excerpt, then
    /// `tag`, then the input if `input` is true.
    pub(super) fn section_line(
        &self,
        section: &OutputSection,
        excerpt: Option<&Excerpt>,
        tag: &str,
        input: bool,
    ) -> String {
        let mut line = String::from("\n");
        if section.outcome == Some(Outcome::Failed) {
            line.push_str(FAILED);
        } else if section.suspect.is_some() {
            line.push_str(SUSPECT);
        }
        line.push_str(&section.path);
        // An output may have grown since it was listed; the size must match the excerpt.
        let bytes = excerpt.and_then(|excerpt| excerpt.bytes).unwrap_or(section.bytes);
        line.push_str(&format!(" ({bytes} B"));
        match (section.outcome, section.exit_code) {
            _ if section.is_running => line.push_str(&format!(", {RUNNING}")),
            (_, Some(code)) => line.push_str(&format!(", exit={code}")),
            (Some(Outcome::Unknown), None) => line.push_str(", outcome unknown"),
            (Some(Outcome::Ok), None) => line.push_str(", ok"),
            (Some(Outcome::NotRun), None) => line.push_str(", not run"),
            (Some(Outcome::Failed) | None, None) => {}
        }
        if section.is_resolved {
            line.push_str(", resolved later");
        }
        if let Some(note) = excerpt.and_then(|excerpt| excerpt.note.as_deref()) {
            line.push_str(&format!(", {note}"));
        }
        if let Some(hidden) = excerpt.map(|excerpt| excerpt.hidden).filter(|hidden| *hidden > 0) {
            line.push_str(&hidden_note(hidden));
        }
        if let Some(source) =
            section.source.as_deref().filter(|_| excerpt.is_some_and(|excerpt| excerpt.has_offsets))
        {
            line.push_str(&offsets_note(source));
        }
        line.push_str(&format!("): {tag}\n"));
        if let Some(input) = section.input.as_ref().filter(|_| input) {
            line.push_str(&format!("$ {}\n", one_line(input, INPUT_MAX)));
        }
        if let Some(suspect) = section.suspect.as_ref().filter(|_| input) {
            line.push_str(&suspect_line(suspect));
        }
        line
    }

    /// Returns the size of a list of omitted sections that names none of them, in bytes.
    pub(super) fn listing_min(&self) -> usize {
        listing_heading(self.sections.len(), "").len() + TAG_LEN
    }

    /// Returns the list of the omitted sections numbered `listed`: names while `room` bytes allow,
    /// then a count. The heading ends in `tag`.
    pub(super) fn not_shown(&self, listed: &[usize], room: usize, tag: &str) -> String {
        if listed.is_empty() {
            return String::new();
        }
        let heading = listing_heading(listed.len(), "").len() + TAG_LEN;
        let more = |n: usize| if n == 0 { String::new() } else { format!("and {n} more\n") };
        let lines = listed.iter().map(|number| self.listed_line(*number));
        let named = count_fitting_with_rest(
            lines.clone().map(|line| line.len()),
            room.saturating_sub(heading),
            |rest| more(rest).len(),
        );
        let more = if named == 0 { String::new() } else { more(listed.len() - named) };
        listing_heading(listed.len(), tag) + &lines.take(named).collect::<String>() + &more
    }

    pub(super) fn listed_line(&self, number: usize) -> String {
        let Some(section) = self.sections.get(number) else { return String::new() };
        let outcome = match (section.outcome, &section.suspect) {
            _ if section.is_running => format!("{RUNNING}, "),
            (Some(_), Some(_)) => "suspect, ".to_owned(),
            (Some(Outcome::NotRun), None) => "not run, ".to_owned(),
            (Some(outcome), None) => format!("{outcome}, "),
            (None, _) => String::new(),
        };
        format!("{} ({outcome}{} B)\n", section.path, section.bytes)
    }
}

fn listing_heading(count: usize, tag: &str) -> String {
    format!("\nNot shown ({count}): {tag}\n")
}

/// Returns the bytes that show a section whole.
///
/// That is one more than the size of the output, since a missing final line end is added.
pub(super) fn need_of(section: &OutputSection) -> usize {
    match &section.unreadable {
        Some(reason) => reason.len() + "()\n".len(),
        None => usize::try_from(section.bytes).map_or(usize::MAX, |n| n.saturating_add(1)),
    }
}
