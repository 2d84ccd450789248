//! Separates the summaries of a session from summaries that the program copied from other sessions.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use swarmletfs_base::digest::digest;

/// Maximum number of summaries that wait for their last line.
const PENDING_MAX: usize = 8;
/// Number of lines before a summary in which its last line is searched.
const LINES_MAX: usize = 1_000;

/// Summaries whose last line was not read yet, and the IDs of the lines that were.
///
/// A summary names the last line that it is about. It belongs to the session if the transcript has
/// that line, before the summary or after it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Summaries {
    /// Hashes of the IDs of the last lines that were read.
    lines: VecDeque<u64>,
    /// Oldest first.
    pending: VecDeque<PendingSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PendingSummary {
    leaf: u64,
    text: String,
}

impl Summaries {
    /// Adds a summary. `leaf` is the ID of the last line that it is about, or empty. Returns the
    /// text if the summary is known to be about this session.
    pub(crate) fn add(&mut self, leaf: &str, text: String) -> Option<String> {
        let hash = id_hash(leaf);
        if leaf.is_empty() || self.lines.contains(&hash) {
            self.pending.clear();
            return Some(text);
        }
        if self.pending.len() >= PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back(PendingSummary { leaf: hash, text });
        None
    }

    /// Records the ID of a line that was read. Returns the last summary that waited for this line;
    /// earlier ones are obsolete.
    pub(crate) fn note_line(&mut self, id: &str) -> Option<String> {
        if id.is_empty() {
            return None;
        }
        let hash = id_hash(id);
        if self.lines.len() >= LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(hash);
        let at = self.pending.iter().rposition(|summary| summary.leaf == hash)?;
        self.pending.drain(..=at).next_back().map(|summary| summary.text)
    }

    pub(crate) fn weight(&self) -> usize {
        let texts: usize = self.pending.iter().map(|summary| 50 + summary.text.len()).sum();
        texts + self.lines.len() * size_of::<u64>()
    }
}

fn id_hash(id: &str) -> u64 {
    u64::from_le_bytes(digest(blake3::Hasher::new().update(id.as_bytes())))
}
