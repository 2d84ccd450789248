//! Renders the report as text: a line per finding, and its remedy below.

use std::time::SystemTime;

use super::DoctorReport;
use super::finding::Finding;
use crate::text::count;

/// Widths of the columns for level and topic, in characters.
const LEVEL_WIDTH: usize = 8;
const TOPIC_WIDTH: usize = 10;

/// Renders the report as text. Ages are those at `now`.
pub(super) fn render(report: &DoctorReport, now: SystemTime) -> String {
    let mut out = format!("swarmletfs {} on Linux {}\n\n", report.program, report.kernel.release);
    for finding in &report.findings {
        out.push_str(&format!(
            "{:LEVEL_WIDTH$}{:TOPIC_WIDTH$}{}{}\n",
            finding.level.as_str(),
            finding.topic,
            finding.message,
            age(report, finding, now).map(|age| format!(" ({age})")).unwrap_or_default()
        ));
        if let Some(remedy) = &finding.remedy {
            out.push_str(&format!("{:1$}→ {remedy}\n", "", LEVEL_WIDTH + TOPIC_WIDTH));
        }
    }
    out.push_str(&format!("\n{}\n", summary(report.problems, report.notes)));
    out
}

/// Returns the age of the newest write to a store, if that ends the message of `finding`.
fn age(report: &DoctorReport, finding: &Finding, now: SystemTime) -> Option<String> {
    let store = finding.about.as_ref().filter(|_| finding.check == "workers")?;
    report.stores.iter().find_map(|facts| facts.newest_age(store, now))
}

fn summary(problems: usize, notes: usize) -> String {
    match (problems, notes) {
        (0, 0) => "nothing stands in the way of mounting and reading".into(),
        (0, notes) => {
            format!("nothing stands in the way of mounting and reading; {}", count(notes, "note"))
        }
        (problems, 0) => count(problems, "problem"),
        (problems, notes) => format!("{}, {}", count(problems, "problem"), count(notes, "note")),
    }
}
