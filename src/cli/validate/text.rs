//! The report as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::report::{ReportedGroup, ReportedLevel, TargetKind, ValidationReport};
use crate::text::clean::escape_markers;

impl ValidationReport {
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let kind = match self.target.kind {
            TargetKind::Store => "store",
            TargetKind::Worker => "worker",
            TargetKind::Transcript => "transcript",
        };
        let contents = &self.contents;
        writeln!(out, "{}: {kind} of format {}", self.target.path, self.target.format)?;
        writeln!(out, "workers: {}{}", contents.workers, parts(&contents.status))?;
        writeln!(out, "calls: {}{}", contents.calls, parts(&contents.outcomes))?;
        writeln!(out, "messages: {}", contents.messages)?;
        writeln!(out, "not understood: {}", self.not_understood)?;
        writeln!(out, "notes: {}", self.notes)?;
        if !self.store.is_empty() {
            writeln!(out, "\nstore")?;
            write_groups(out, &self.store)?;
        }
        for worker in &self.workers {
            writeln!(out, "\nworker {} ({})", escape_markers(&worker.name), worker.path)?;
            write_groups(out, &worker.remarks)?;
        }
        if self.more_workers > 0 {
            writeln!(out, "\n{} more workers with remarks; try --all", self.more_workers)?;
        }
        Ok(())
    }
}

fn write_groups(out: &mut String, groups: &[ReportedGroup]) -> std::fmt::Result {
    for group in groups {
        let prefix = if group.level == ReportedLevel::Note { "note: " } else { "" };
        for remark in &group.first {
            writeln!(out, "  {prefix}{}", remark.says)?;
        }
        let more = group.count.saturating_sub(group.first.len() as u64);
        if more > 0 {
            writeln!(out, "  {prefix}and {more} more of this kind")?;
        }
    }
    Ok(())
}

/// Returns counts in parentheses, or nothing.
fn parts(counts: &BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}
