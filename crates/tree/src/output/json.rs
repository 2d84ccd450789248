//! The structs behind index.json. They exist so that the model need not be serializable.
//!
//! Names and paths are as in the mount. If one is not UTF-8, its text holds U+FFFD for the invalid
//! bytes, and a second key with the suffix `_hex` holds all bytes in hexadecimal.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::analysis::attention::{AttentionLevel, ReasonKind};
use crate::analysis::checks::FailedCheck;
use crate::analysis::spending::WorkerCost;
use swarmletfs_base::model::{self, ReviewState, SharedStr, Skipped};

#[derive(Serialize)]
pub struct WorkerIndexJson<'a> {
    pub complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    #[serde(flatten)]
    pub worker: IndexRow,
    pub tool_calls: Vec<CallRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools_used: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_words: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervisor_notes: Option<Cow<'a, str>>,
    /// The claims in the worker's metadata that contradict the registry of the store, by field.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claimed: BTreeMap<&'a str, Cow<'a, str>>,
    #[serde(flatten)]
    pub file_uses: FileUses,
    pub files: Vec<FileRow>,
    pub total_files: u64,
    pub total_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub outputs_not_read_in_time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCounts>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens_by_model: BTreeMap<String, TokenCounts>,
    /// False if the record counts only some of the tokens; else `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<TranscriptStats>,
    pub checks: &'a [FailedCheck],
    pub marker: String,
}

#[derive(Serialize, Default)]
pub struct FileUses {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<ReadFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_edited: Vec<ChangedFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_created: Vec<ChangedFile>,
    #[serde(skip_serializing_if = "is_zero")]
    pub files_not_listed: u64,
}

#[derive(Serialize)]
pub struct ReadFile {
    pub path: String,
    pub reads: u64,
}

#[derive(Serialize)]
pub struct ChangedFile {
    pub path: String,
    pub edits: u64,
    pub added: u64,
    pub removed: u64,
}

#[derive(Debug, Serialize)]
pub struct TokenCounts {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_creation: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_creation_1h: u64,
}

impl From<model::Tokens> for TokenCounts {
    fn from(tokens: model::Tokens) -> TokenCounts {
        let model::Tokens { input, output, cache_read, cache_creation, cache_creation_1h } = tokens;
        TokenCounts { input, output, cache_read, cache_creation, cache_creation_1h }
    }
}

/// Statistics about the transcript from which a worker's directory is derived.
#[derive(Serialize)]
pub struct TranscriptStats {
    pub lines: u64,
    pub unparsable_lines: u64,
    pub unknown_records: BTreeMap<String, u64>,
    pub results_without_calls: u64,
    pub calls_without_results: u64,
    pub calls_not_shown: u64,
    pub truncated_outputs: Vec<String>,
}

/// A request of a worker to a person.
#[derive(Debug, Serialize)]
pub struct WaitingJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(rename = "for")]
    pub request: String,
}

/// The changes of a worker in its view of a workspace, and the decision about them. Without
/// numbers, the worker was not read in time.
#[derive(Debug, Serialize)]
pub struct DraftJson {
    pub state: ReviewState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct IndexRow {
    /// Name of the worker's directory, with invalid UTF-8 replaced.
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_hex: Option<String>,
    /// The shortest beginning of `id` that no other worker of the view has; only in the index of
    /// many workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_id: Option<String>,
    /// The worker's summary or its task, as one line.
    pub title: String,
    pub task: String,
    /// Name of the format of the worker's trace, as in `by/source/`.
    pub format: &'static str,
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_source: Option<SharedStr>,
    /// `ok`, `failed` or `unknown`; null if it was not read in time.
    pub outcome: Option<&'static str>,
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_write: Option<String>,
    pub tags: Vec<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_type: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SharedStr>,
    /// The id of the worker whose history its record begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<SharedStr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallCounts>,
    /// Number of files that the worker changed according to its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_changed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Names of the checks that contradict a claim of success, sorted.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub doubts: BTreeSet<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextJson>,
    #[serde(rename = "check_names", skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Cow<'static, str>>,
}

#[derive(Debug, Serialize)]
pub struct CostJson {
    pub usd: f64,
    /// `stated` by the record, or `computed` from a list of prices.
    pub source: &'static str,
    /// False if it is the least that it was; else `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// True if it includes the workers that this one started; else `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub includes_children: Option<bool>,
}

impl From<WorkerCost> for CostJson {
    fn from(cost: WorkerCost) -> CostJson {
        CostJson {
            usd: cost.usd.dollars(),
            source: if cost.is_computed { "computed" } else { "stated" },
            complete: cost.is_partial.then_some(false),
            includes_children: cost.includes_children.then_some(true),
        }
    }
}

/// The use of a model's context.
#[derive(Debug, Serialize)]
pub struct ContextJson {
    /// The largest number of tokens that a request gave to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_tokens: Option<u64>,
    pub compactions: u64,
}

/// Who needs a person, and why.
#[derive(Debug, Serialize)]
pub struct AttentionJson {
    pub level: AttentionLevel,
    pub reasons: Vec<ReasonJson>,
}

#[derive(Debug, Serialize)]
pub struct ReasonJson {
    pub kind: ReasonKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Number of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    pub line: String,
    /// Who refused the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct CallCounts {
    pub total: usize,
    pub failed: usize,
    /// Number of calls that are ok by the record but look like failures.
    pub suspect: usize,
    pub unknown: usize,
    pub not_run: usize,
    pub bytes: u64,
}

#[derive(Serialize)]
pub struct CallRow {
    pub seq: u64,
    pub tool: String,
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_hex: Option<String>,
    pub outcome: &'static str,
    /// True for a call that began and of which no end is recorded; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

#[derive(Serialize)]
pub struct FileRow {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    pub bytes: u64,
    pub mtime: String,
}

/// The part before the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub struct SwarmHead {
    pub complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// The part after the rows in the index.json of a run or the swarm.
#[derive(Serialize)]
pub struct SwarmTail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<&'a str>,
    pub last_updated: String,
    pub total_workers: usize,
    pub active_workers: usize,
    pub outcomes_read: usize,
    /// Numbers of entries in the stores that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub troubles: &'a [String],
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
