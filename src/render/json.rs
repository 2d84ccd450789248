//! The structs behind index.json. They exist so that the model need not be serializable.
//!
//! Names and paths are those in the mount. If one is not UTF-8, its text holds U+FFFD for the
//! invalid bytes, and a second key with the suffix `_hex` holds all bytes in hexadecimal.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::checks::Check;
use crate::model::{self, SharedStr, Skipped};

/// index.json of a worker.
#[derive(Serialize)]
pub(super) struct WorkerIndex<'a> {
    pub(super) complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incomplete: Option<String>,
    #[serde(flatten)]
    pub(super) worker: IndexRow<'a>,
    pub(super) tool_calls: Vec<CallRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tools_used: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) final_words: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) summary: Option<Cow<'a, str>>,
    pub(super) files: Vec<FileRow>,
    pub(super) total_files: u64,
    pub(super) total_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) outputs_not_read_in_time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<TokenCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<TranscriptStats>,
    pub(super) checks: &'a [Check],
    pub(super) marker: String,
}

/// The tokens that a worker used.
#[derive(Serialize)]
pub(super) struct TokenCounts {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cache_read: u64,
    pub(super) cache_creation: u64,
}

impl From<model::Tokens> for TokenCounts {
    fn from(tokens: model::Tokens) -> TokenCounts {
        let model::Tokens { input, output, cache_read, cache_creation } = tokens;
        TokenCounts { input, output, cache_read, cache_creation }
    }
}

/// Statistics about the transcript from which a worker's directory is derived.
#[derive(Serialize)]
pub(super) struct TranscriptStats {
    pub(super) lines: u64,
    pub(super) unparsable_lines: u64,
    pub(super) unknown_records: BTreeMap<String, u64>,
    pub(super) results_without_calls: u64,
    pub(super) calls_without_results: u64,
    pub(super) calls_not_shown: u64,
    pub(super) truncated_outputs: Vec<String>,
}

/// A worker in any index.json.
#[derive(Serialize)]
pub(super) struct IndexRow<'a> {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id_hex: Option<String>,
    pub(super) task: String,
    pub(super) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status_source: Option<&'a str>,
    /// `ok`, `failed` or `unknown`; null if it was not read in time.
    pub(super) outcome: Option<&'static str>,
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_write: Option<String>,
    pub(super) tags: &'a [SharedStr],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) calls: Option<CallCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    #[serde(rename = "check_names", skip_serializing_if = "Vec::is_empty")]
    pub(super) checks: Vec<&'a str>,
}

/// Numbers of calls by outcome.
#[derive(Serialize)]
pub(super) struct CallCounts {
    pub(super) total: usize,
    pub(super) failed: usize,
    pub(super) unknown: usize,
    pub(super) bytes: u64,
}

/// A tool call.
#[derive(Serialize)]
pub(super) struct CallRow {
    pub(super) seq: u64,
    pub(super) tool: String,
    pub(super) file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_hex: Option<String>,
    pub(super) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
    pub(super) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unreadable: Option<String>,
}

/// A file of a worker.
#[derive(Serialize)]
pub(super) struct FileRow {
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path_hex: Option<String>,
    pub(super) bytes: u64,
    pub(super) mtime: String,
}

/// The part before the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub(super) struct SwarmHead {
    pub(super) complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incomplete: Option<String>,
}

/// The part after the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub(super) struct SwarmTail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_id: Option<&'a str>,
    pub(super) last_updated: String,
    pub(super) total_workers: usize,
    pub(super) active_workers: usize,
    pub(super) outcomes_read: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skipped: Option<SkippedRow>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) troubles: &'a [String],
}

/// Numbers of entries in the stores that are not shown.
#[derive(Serialize)]
pub(super) struct SkippedRow {
    pub(super) links: u64,
    pub(super) special: u64,
    pub(super) not_workers: u64,
    pub(super) unreadable: u64,
}

impl From<Skipped> for SkippedRow {
    fn from(skipped: Skipped) -> SkippedRow {
        let Skipped { links, special, not_workers, unreadable } = skipped;
        SkippedRow { links, special, not_workers, unreadable }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
