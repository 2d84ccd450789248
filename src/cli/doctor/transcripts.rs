//! Counts the content of transcripts that the generated worker directories do not show.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::cli::terminal::escape_controls;
use crate::deadline::Deadline;
use crate::text::count;
use crate::view::{View, VisibleWorkers};

/// Time limit to read transcripts.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of record types to name.
const MAX_NAMED_TYPES: usize = 5;

/// Totals over all transcripts that were read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TranscriptCounts {
    /// Number of workers whose transcripts were read; `workers` is the number of all.
    read: u64,
    workers: u64,
    lines: u64,
    unparsable_lines: u64,
    unknown_records: BTreeMap<String, u64>,
    results_without_calls: u64,
    calls_without_results: u64,
    calls_not_shown: u64,
    truncated_outputs: u64,
    torn_documents: u64,
}

impl TranscriptCounts {
    /// Reads transcripts in the store with index `number`, until the time limit.
    pub(super) fn new(view: &View, visible: &VisibleWorkers, number: usize) -> TranscriptCounts {
        let end = Instant::now() + READ_TIMEOUT;
        let deadline = Deadline::new(&end);
        let mut totals = TranscriptCounts::default();
        for member in visible.members.iter().filter(|member| member.entry.source() == number) {
            totals.workers += 1;
            if !deadline.has_time() {
                continue;
            }
            let record = view
                .fingerprint(member, false)
                .and_then(|fingerprint| view.record(member, &fingerprint, deadline));
            let Some(record) = record.ok().filter(|record| record.is_complete()) else { continue };
            let trace = &record.trace;
            totals.read += 1;
            totals.lines += trace.unused.lines;
            totals.unparsable_lines += trace.total_bad_lines();
            totals.torn_documents += u64::from(trace.unused.is_torn);
            for (kind, lines) in &trace.unused.kinds {
                *totals.unknown_records.entry(escape_controls(kind)).or_default() += lines;
            }
            totals.results_without_calls += trace.unused.orphan_results;
            totals.calls_without_results += trace.unanswered.total();
            totals.calls_not_shown += trace.unused.excess_calls;
            totals.truncated_outputs += trace.truncated.len() as u64;
        }
        totals
    }

    /// Returns the finding on the transcripts.
    pub(super) fn finding(&self) -> Finding {
        let unknown: u64 = self.unknown_records.values().sum();
        let kinds: Vec<&str> =
            self.unknown_records.keys().take(MAX_NAMED_TYPES).map(String::as_str).collect();
        let counts: Vec<String> = [
            (self.unparsable_lines, "lines that cannot be parsed".to_owned()),
            (self.torn_documents, "documents that are not whole".into()),
            (unknown, format!("lines of unknown types ({})", kinds.join(", "))),
            (self.results_without_calls, "results without a call".into()),
            (self.calls_without_results, "calls without a result".into()),
            (self.calls_not_shown, "calls beyond the number that is shown".into()),
            (self.truncated_outputs, "outputs truncated before they were recorded".into()),
        ]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{what}: {number}"))
        .collect();
        let TranscriptCounts { read, workers, lines, .. } = self;
        let read = format!(
            "read the transcripts of {read} of {workers} workers, {}",
            count(*lines, "line")
        );
        match counts.as_slice() {
            [] => Finding::ok("store", "transcripts", format!("{read}: everything is shown")),
            counts => {
                Finding::note("store", "transcripts", format!("{read}; {}", counts.join(", ")))
            }
        }
    }
}
