//! One worker as data for a page, within a number of bytes: its requests, excerpts, calls and
//! changes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::json::TokenCounts;
use crate::analysis::checks::FailedCheck;
use crate::analysis::excerpt::{Focus, ShownLines, excerpt, min_share};
use crate::analysis::worker_digest::WorkerDigest;
use crate::view::{Member, View, WorkerFiles};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{CallState, Record, Status, ToolCall};
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Demand, allocate};
use swarmletfs_base::text::clean::one_line;

/// Maximum lengths of a call's input, in bytes: of one that failed, and of another one.
const INPUTS_MAX: [usize; 2] = [600, 200];
/// Size of a call without its input and its output, in bytes.
const CALL_SIZE: usize = 160;
/// Maximum sizes of an excerpt in bytes: of a call that failed, and of another one.
const EXCERPTS_MAX: [usize; 2] = [6_000, 1_500];
/// Weights of outputs of calls that failed, and of other ones.
const WEIGHTS: [usize; 2] = [8, 1];
/// Maximum length of a name, a path or a line, in bytes.
const LINE_MAX: usize = 300;
const FILES_MAX: usize = 100;
/// Maximum length of a tool's name in a sum, in bytes.
const TOOL_MAX: usize = 60;
/// Maximum number of tools that are counted by name for a worker.
const TOOLS_MAX: usize = 30;
const OTHER_TOOLS: &str = "others";
/// Maximum number of the largest outputs of a worker.
const LARGEST_MAX: usize = 3;

#[derive(Serialize)]
pub struct PanelJson {
    /// The verdict on the worker, for its supervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The beginning of requests.txt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<TextJson>,
    /// evidence.txt within several budgets, the smallest first.
    pub evidence: Vec<EvidenceJson>,
    /// changes.diff, cut to a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
    pub calls: Vec<PanelCall>,
    pub calls_not_listed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_words: Option<TextJson>,
    pub files: Vec<PanelFile>,
    pub files_not_listed: usize,
    pub checks: Vec<FailedCheck>,
    pub tokens_by_model: BTreeMap<String, TokenCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextCurve>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// The use of a model's context over time, in milliseconds since 1970.
#[derive(Serialize)]
pub struct ContextCurve {
    /// Times and tokens of requests to the model.
    pub requests: Vec<(i64, u64)>,
    /// Times at which the conversation was replaced by a shorter one.
    pub compactions: Vec<i64>,
}

/// The beginning of a text.
#[derive(Serialize)]
pub struct TextJson {
    pub text: String,
    /// Size of the rest in bytes.
    pub left_out: usize,
}

#[derive(Serialize)]
pub struct EvidenceJson {
    pub budget: String,
    pub text: String,
}

#[derive(Serialize)]
pub struct PanelCall {
    pub seq: u64,
    pub tool: String,
    pub file: String,
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// True if it has begun and not ended in a worker that has not finished.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Start, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// An excerpt of the output with marked omissions; `None` without room for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// True if the excerpt is the whole output.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

#[derive(Serialize)]
pub struct PanelFile {
    pub path: String,
    pub edits: u64,
    pub added: u64,
    pub removed: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
}

/// The calls of a worker in short: for a timeline, and for sums over workers.
#[derive(Default, Serialize)]
pub struct CallMarks {
    pub ticks: Vec<Tick>,
    /// Numbers of calls by tool, and by [`CallState`].
    pub tools: BTreeMap<String, [u64; 6]>,
    /// The largest outputs: their sizes in bytes, and the numbers of their calls.
    pub largest: Vec<[u64; 2]>,
}

/// A call as a mark on a timeline: its start in milliseconds since 1970, its duration in
/// milliseconds if that is known, else -1, and its [`CallState`] as a number.
pub type Tick = [i64; 3];

/// Cuts a cleaned text to `max` bytes at the end of a line if there is one.
pub fn beginning(text: &str, max: usize) -> TextJson {
    if text.len() <= max {
        return TextJson { text: text.to_owned(), left_out: 0 };
    }
    let (kept, _) = text.split_at_most(max);
    let kept = kept.rsplit_once('\n').map_or(kept, |(lines, _)| lines);
    TextJson { text: kept.to_owned(), left_out: text.len() - kept.len() }
}

/// Returns the calls in short, with at most `max` ticks.
pub fn marks(record: &Record, max: usize) -> CallMarks {
    let (calls, status) = (&record.trace.calls, record.worker.status);
    let mut tools: BTreeMap<String, [u64; 6]> = BTreeMap::new();
    for call in calls {
        let tool = one_line(&call.tool, TOOL_MAX);
        let known = tools.contains_key(&tool) || tools.len() < TOOLS_MAX;
        let counts = tools.entry(if known { tool } else { OTHER_TOOLS.to_owned() }).or_default();
        if let Some(count) = counts.get_mut(call.state(status) as usize) {
            *count += 1;
        }
    }
    let mut largest: Vec<[u64; 2]> = calls.iter().map(|call| [call.bytes, call.seq]).collect();
    largest.sort_by_key(|size| std::cmp::Reverse(*size));
    largest.truncate(LARGEST_MAX);
    CallMarks { ticks: ticks(record, max), tools, largest }
}

/// Returns the ticks of at most `max` calls in their order, those first that did not succeed.
fn ticks(record: &Record, max: usize) -> Vec<Tick> {
    let status = record.worker.status;
    let timed: Vec<(i64, &ToolCall)> = record
        .trace
        .calls
        .iter()
        .filter_map(|call| Some((call.at?.as_millisecond(), call)))
        .collect();
    let mut kept = most_important(timed.iter().map(|(_, call)| *call), status, max);
    kept.sort_unstable();
    let kept = kept.into_iter().filter_map(|at| timed.get(at));
    kept.map(|(at, call)| {
        let duration = call.duration_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(-1);
        [*at, duration, call.state(status) as i64]
    })
    .collect()
}

/// Returns the places of at most `max` calls: first those that did not succeed, then the others,
/// each from the last one on.
fn most_important<'a>(
    calls: impl Iterator<Item = &'a ToolCall>,
    status: Status,
    max: usize,
) -> Vec<usize> {
    let mut ranked: Vec<(bool, usize)> =
        calls.enumerate().map(|(at, call)| (call.state(status) == CallState::Ok, at)).collect();
    ranked.sort_by_key(|(is_ok, at)| (*is_ok, std::cmp::Reverse(*at)));
    ranked.into_iter().take(max).map(|(_, at)| at).collect()
}

/// Returns calls with excerpts in about `room` bytes, in their order, and the number of calls that
/// have no place in it.
pub fn calls(
    view: &View,
    member: &Member,
    record: &Record,
    room: usize,
    deadline: Deadline<'_>,
) -> (Vec<PanelCall>, usize) {
    let (all, status) = (&record.trace.calls, record.worker.status);
    let mut left = room;
    let mut kept: Vec<PanelCall> = Vec::new();
    let mut sources: Vec<&ToolCall> = Vec::new();
    for at in most_important(all.iter(), status, all.len()) {
        let Some(call) = all.get(at) else { continue };
        let [failed, other] = INPUTS_MAX;
        let input_max = if call.looks_failed() { failed } else { other };
        let shown = PanelCall {
            seq: call.seq,
            tool: one_line(&call.tool, LINE_MAX),
            file: one_line(&call.path.display(), LINE_MAX),
            outcome: call.outcome.as_str(),
            suspect: call.suspect.as_deref().map(|line| one_line(line, LINE_MAX)),
            running: call.is_running(status),
            exit_code: call.exit_code,
            at: call.at.map(|at| at.as_millisecond()),
            duration_ms: call.duration_ms,
            bytes: call.bytes,
            input: call.input.as_deref().map(|input| one_line(input, input_max)),
            excerpt: None,
            whole: false,
        };
        let size = CALL_SIZE + shown.input.as_ref().map_or(0, String::len);
        if size > left {
            break;
        }
        left -= size;
        kept.push(shown);
        sources.push(call);
    }
    let demands: Vec<Demand> = sources
        .iter()
        .map(|call| {
            let ([failed, other], [heavy, light]) = (EXCERPTS_MAX, WEIGHTS);
            let (max, weight) = if call.looks_failed() { (failed, heavy) } else { (other, light) };
            Demand { need: usize::try_from(call.bytes).unwrap_or(max).min(max), weight }
        })
        .collect();
    let files = WorkerFiles::new(view, member);
    for ((shown, call), share) in kept.iter_mut().zip(sources).zip(allocate(&demands, left)) {
        if call.bytes == 0 || (share as u64) < call.bytes && share < min_share(call.bytes) {
            continue;
        }
        let Ok(Some(file)) = files.open_output(call) else { continue };
        let focus = if call.looks_failed() { Focus::Failure } else { Focus::Ends };
        let cut = excerpt(&*file, share, focus, &mut ShownLines::default(), deadline);
        if let Ok(cut) = cut {
            shown.whole = cut.whole;
            shown.excerpt = Some(cut.text).filter(|text| !text.is_empty());
        }
    }
    kept.sort_by_key(|call| call.seq);
    let not_listed = all.len().saturating_sub(kept.len());
    (kept, not_listed)
}

/// Returns the files that a worker changed, and the number of those that are not listed.
pub fn files(digest: &WorkerDigest) -> (Vec<PanelFile>, usize) {
    let changed: Vec<_> = digest.files.iter().filter(|file| file.edits > 0).collect();
    let not_listed = changed.len().saturating_sub(FILES_MAX);
    let shown = changed.into_iter().take(FILES_MAX).map(|file| PanelFile {
        path: one_line(&file.path, LINE_MAX),
        edits: file.edits,
        added: file.added,
        removed: file.removed,
        created: file.created,
    });
    (shown.collect(), not_listed)
}
