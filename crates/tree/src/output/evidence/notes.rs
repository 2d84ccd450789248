//! Fixed phrases of the frame: lines about failures and notes on section lines.

use crate::analysis::excerpt::{LINE_MIN, NOT_UTF8, WHOLE_MAX};
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::{one_line, removed_note};

pub(super) const FAILED: &str = "[FAILED] ";
/// Start of the section line of a call that is ok by the record, but looks like a failure.
pub(super) const SUSPECT: &str = "[SUSPECT] ";
/// Maximum length of the quoted line of such a call, in bytes.
pub const SUSPECT_MAX: usize = 160;
/// Word for a call that has begun and not ended, in a worker that has not finished.
pub const RUNNING: &str = "running";
pub(super) const FAILURE_LINE_MIN: usize = FAILED.len() + LINE_MIN + 1;

/// Returns the line that quotes why a call looks like a failure.
pub(super) fn suspect_line(line: &str) -> String {
    format!("Looks like a failure: {}\n", one_line(line, SUSPECT_MAX))
}

/// Returns one line about a failed call, cut to `room` bytes, or an empty string if that is too
/// little.
pub(super) fn failure_line(path: &str, message: &str, room: usize) -> String {
    let starts = [format!("{FAILED}{path}: "), FAILED.to_owned()];
    let line = starts.into_iter().find_map(|start| {
        let left = room.saturating_sub(start.len() + 1);
        let fits = left >= message.len().min(LINE_MIN) && !message.is_empty();
        fits.then(|| format!("{start}{}\n", one_line(message, left)))
    });
    line.unwrap_or_default()
}

/// Returns the part of the header that states how much of the budget is used.
pub(super) fn used_text(budget: Budget, used: usize) -> String {
    format!(" | Used: {} | ", budget.format_amount(used))
}

/// Returns the maximum length of a note on the section line of an output of `bytes` bytes.
///
/// The note itself is known only once the output is read.
pub(super) fn note_max(bytes: u64) -> usize {
    let note = if bytes > WHOLE_MAX { "searched from byte 18446744073709551615" } else { NOT_UTF8 };
    ", ".len() + note.len()
}

pub(super) fn offsets_note(source: &str) -> String {
    format!(", offsets in {source}")
}

pub(super) fn hidden_note(hidden: usize) -> String {
    format!(", {}", removed_note(hidden))
}
