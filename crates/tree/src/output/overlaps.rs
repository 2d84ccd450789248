//! The section of a summary on files that several workers edited at overlapping times.

use crate::analysis::overlaps::{Overlap, overlaps};
use crate::analysis::worker_digest::WorkerRow;
use swarmletfs_base::text::clean::one_line;

const FILES_MAX: usize = 12;
const WORKERS_MAX: usize = 6;
/// Maximum length of a worker's name, in bytes.
const NAME_MAX: usize = 120;
/// Maximum length of a path, in bytes.
const PATH_MAX: usize = 200;

/// Returns a line for each file that several workers edited at overlapping times; empty if there is
/// none.
pub(super) fn section(rows: &[WorkerRow]) -> String {
    let found = overlaps(rows);
    if found.is_empty() {
        return String::new();
    }
    let lines: String = found.iter().take(FILES_MAX).map(line).collect();
    let more = match found.len().saturating_sub(FILES_MAX) {
        0 => String::new(),
        more => format!("  and {more} more\n"),
    };
    format!("\n{lines}{more}")
}

fn line(Overlap { path, members, .. }: &Overlap<'_>) -> String {
    let count = if members.len() == 2 { "two".into() } else { members.len().to_string() };
    let names = members.iter().take(WORKERS_MAX);
    let names: Vec<String> =
        names.map(|member| one_line(&member.name.display(), NAME_MAX)).collect();
    let more = match members.len().saturating_sub(WORKERS_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (path, names) = (one_line(path, PATH_MAX), names.join(", "));
    format!("edited by {count} at once: {path}: {names}{more}\n")
}
