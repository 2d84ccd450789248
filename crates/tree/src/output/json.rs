//! The structs behind index.json. They exist so that the model need not be serializable.
//!
//! Names and paths are those in the mount. If one is not UTF-8, its text holds U+FFFD for the
//! invalid bytes, and a second key with the suffix `_hex` holds all bytes in hexadecimal.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::analysis::checks::FailedCheck;
use crate::model::{self, SharedStr, Skipped};

/// index.json of a worker.
#[derive(Serialize)]
pub(crate) struct WorkerIndexJson<'a> {
    pub(crate) complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) incomplete: Option<String>,
    #[serde(flatten)]
    pub(crate) worker: IndexRow,
    pub(crate) tool_calls: Vec<CallRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools_used: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) final_words: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) supervisor_notes: Option<Cow<'a, str>>,
    /// What its metadata claims of it against the registry of the store.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) claimed: BTreeMap<&'a str, Cow<'a, str>>,
    #[serde(flatten)]
    pub(crate) file_uses: FileUses,
    pub(crate) files: Vec<FileRow>,
    pub(crate) total_files: u64,
    pub(crate) total_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) outputs_not_read_in_time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<TokenCounts>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tokens_by_model: BTreeMap<String, TokenCounts>,
    /// False if the record counts only some of the tokens; else `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<TranscriptStats>,
    pub(crate) checks: &'a [FailedCheck],
    pub(crate) marker: String,
}

/// The files that a worker's calls read or changed.
#[derive(Serialize, Default)]
pub(crate) struct FileUses {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files_read: Vec<ReadFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files_edited: Vec<ChangedFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files_created: Vec<ChangedFile>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) files_not_listed: u64,
}

/// A file that a worker's calls read.
#[derive(Serialize)]
pub(crate) struct ReadFile {
    pub(crate) path: String,
    pub(crate) reads: u64,
}

/// A file that a worker's calls changed.
#[derive(Serialize)]
pub(crate) struct ChangedFile {
    pub(crate) path: String,
    pub(crate) edits: u64,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

/// The tokens that a worker used.
#[derive(Serialize)]
pub(crate) struct TokenCounts {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_creation: u64,
}

impl From<model::Tokens> for TokenCounts {
    fn from(tokens: model::Tokens) -> TokenCounts {
        let model::Tokens { input, output, cache_read, cache_creation } = tokens;
        TokenCounts { input, output, cache_read, cache_creation }
    }
}

/// Statistics about the transcript from which a worker's directory is derived.
#[derive(Serialize)]
pub(crate) struct TranscriptStats {
    pub(crate) lines: u64,
    pub(crate) unparsable_lines: u64,
    pub(crate) unknown_records: BTreeMap<String, u64>,
    pub(crate) results_without_calls: u64,
    pub(crate) calls_without_results: u64,
    pub(crate) calls_not_shown: u64,
    pub(crate) truncated_outputs: Vec<String>,
}

/// A worker in any index.json.
#[derive(Debug, Serialize)]
pub struct IndexRow {
    /// Name of the worker's directory, with invalid UTF-8 replaced.
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id_hex: Option<String>,
    /// The shortest beginning of `id` that no other worker of the view has; only in the index of
    /// many workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) short_id: Option<String>,
    /// The worker's summary or its task, as one line.
    pub(crate) title: String,
    pub(crate) task: String,
    /// Name of the format of the worker's trace, as in `by/source/`.
    pub(crate) format: &'static str,
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status_source: Option<SharedStr>,
    /// `ok`, `failed` or `unknown`; null if it was not read in time.
    pub(crate) outcome: Option<&'static str>,
    pub(crate) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_write: Option<String>,
    pub(crate) tags: Vec<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task_type: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<CallCounts>,
    /// Number of files that the worker changed according to its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files_changed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    /// Names of the checks that contradict a claim of success, sorted.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) doubts: BTreeSet<Cow<'static, str>>,
    #[serde(rename = "check_names", skip_serializing_if = "Vec::is_empty")]
    pub(crate) checks: Vec<Cow<'static, str>>,
}

/// Numbers of calls by outcome.
#[derive(Debug, Serialize)]
pub(crate) struct CallCounts {
    pub(crate) total: usize,
    pub(crate) failed: usize,
    /// Number of calls that are ok by the record but look like failures.
    pub(crate) suspect: usize,
    pub(crate) unknown: usize,
    pub(crate) not_run: usize,
    pub(crate) bytes: u64,
}

/// A tool call.
#[derive(Serialize)]
pub(crate) struct CallRow {
    pub(crate) seq: u64,
    pub(crate) tool: String,
    pub(crate) file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file_hex: Option<String>,
    pub(crate) outcome: &'static str,
    /// True for a call that began and of which no end is recorded; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<bool>,
    /// The line of the output that looks like a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suspect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    pub(crate) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unreadable: Option<String>,
}

/// A file of a worker.
#[derive(Serialize)]
pub(crate) struct FileRow {
    pub(crate) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_hex: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) mtime: String,
}

/// The part before the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub(crate) struct SwarmHead {
    pub(crate) complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) incomplete: Option<String>,
}

/// The part after the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub(crate) struct SwarmTail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<&'a str>,
    pub(crate) last_updated: String,
    pub(crate) total_workers: usize,
    pub(crate) active_workers: usize,
    pub(crate) outcomes_read: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<SkippedRow>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) troubles: &'a [String],
}

/// Numbers of entries in the stores that are not shown.
#[derive(Serialize)]
pub(crate) struct SkippedRow {
    pub(crate) links: u64,
    pub(crate) special: u64,
    pub(crate) not_workers: u64,
    pub(crate) unreadable: u64,
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
