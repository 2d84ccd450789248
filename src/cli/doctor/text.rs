//! Renders the report as text: a line per finding, and its remedy below.

use super::DoctorReport;
use crate::text::count;

/// Widths of the columns for level and topic, in characters.
const LEVEL_WIDTH: usize = 8;
const TOPIC_WIDTH: usize = 10;

pub(super) fn render(report: &DoctorReport) -> String {
    let mut out = format!("swarmletfs {} on Linux {}\n\n", report.program, report.kernel.release);
    for finding in &report.findings {
        out.push_str(&format!(
            "{:LEVEL_WIDTH$}{:TOPIC_WIDTH$}{}\n",
            finding.level.as_str(),
            finding.topic,
            finding.message,
        ));
        if let Some(remedy) = &finding.remedy {
            out.push_str(&format!("{:1$}→ {remedy}\n", "", LEVEL_WIDTH + TOPIC_WIDTH));
        }
    }
    out.push_str(&format!("\n{}\n", summary(report.problems, report.notes)));
    out
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
