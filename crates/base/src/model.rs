//! The data model of a swarm: workers, runs, tool calls and their outcomes.
//!
//! Plain values without I/O. `trace` decodes input into these types, and `render` formats them for
//! readers. Some are serializable, but for caches only. The model invents nothing: a fact that the
//! trace does not state is `None` or unknown. Equal strings of many workers share one allocation.

mod attempt;
mod call_state;
mod context;
mod cost;
mod remark;
mod work;
mod workspace_changes;

pub use call_state::CallState;
pub use context::ContextUse;
pub use cost::{Prices, StatedCost, Tokens, Usd};
pub use remark::{
    EXAMPLES_MAX, Remark, RemarkGroup, RemarkLevel, RemarkSubject, Remarks, SkipReason, SkipReport,
    Skipped, SkippedEntries, WorkerCheck,
};
pub use work::{CallKind, TestScope, WorkStep, add_programs};
pub use workspace_changes::{
    Base, CHANGES_FILES_MAX, CHANGES_VERSION, CONTENT_MAX, ChangeKind, ChangedFile, ChangedPath,
    CommandExit, CommitLine, EntryKind, EntryState, FileEdit, KeptCommits, RecordedChanges,
    RecordedEdits, RecordedHunk, ReviewState, TextReplacement, WorkspaceChanges, decode, encode,
};

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::{Name, RelPath};
use attempt::Successes;
use work::DoneSteps;

/// A worker's ID: the name of its directory in `workers/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId(pub Name);

impl WorkerId {
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        self.0.to_text()
    }
}

/// The owner of a worker. A number and a string in metadata are equal if they are spelled alike.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Owner(pub SharedStr);

/// Beginnings of a request that say nothing about it.
const COURTESIES: [&str; 9] = [
    "can you please ",
    "can you ",
    "could you please ",
    "could you ",
    "would you ",
    "please ",
    "i want you to ",
    "i'd like you to ",
    "ok, ",
];

/// Returns a request without a courtesy at its beginning.
fn without_courtesy(task: &str) -> &str {
    let task = task.trim_start();
    let courtesy = COURTESIES.iter().find(|courtesy| {
        task.get(..courtesy.len()).is_some_and(|start| start.eq_ignore_ascii_case(courtesy))
    });
    courtesy.and_then(|courtesy| task.get(courtesy.len()..)).unwrap_or(task)
}

/// The progress that a worker reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Status {
    /// Set up but not started.
    Created,
    Running,
    /// Waits for a person: for an answer to its question, or for permission.
    Waiting,
    Completed,
    Failed,
    /// Ended without an answer: its user left, or nothing was written for long.
    Abandoned,
    /// Not stated, or stated in an unrecognized word.
    Unknown,
}

impl Status {
    /// All statuses, in the order in which they are listed.
    pub const ALL: [Status; 7] = [
        Status::Waiting,
        Status::Failed,
        Status::Running,
        Status::Created,
        Status::Unknown,
        Status::Abandoned,
        Status::Completed,
    ];

    pub fn from_word(word: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.as_str() == word)
    }

    pub fn is_finished(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Abandoned)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Waiting => "waiting",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Abandoned => "abandoned",
            Status::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of a call or a worker, as far as the record shows. Unknown is never shown as ok.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Outcome {
    Failed,
    /// The record states neither success nor failure.
    #[default]
    Unknown,
    Ok,
    /// The call never ran: its user refused it, it lacked permission, or it was cancelled.
    NotRun,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
            Outcome::Ok => "ok",
            Outcome::NotRun => "not_run",
        }
    }

    pub fn from_word(word: &str) -> Option<Outcome> {
        let all = [Outcome::Failed, Outcome::Unknown, Outcome::Ok, Outcome::NotRun];
        all.into_iter().find(|outcome| outcome.as_str() == word)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedWorker {
    pub owner: Option<Owner>,
    pub run: Option<SharedStr>,
    pub removed_at: Timestamp,
    /// The retention rule that removed it.
    pub rule: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TraceTime {
    #[default]
    Absent,
    At(Timestamp),
    /// The source's text, which cannot be parsed.
    Unparsed(String),
}

impl TraceTime {
    pub fn timestamp(&self) -> Option<Timestamp> {
        match self {
            TraceTime::At(time) => Some(*time),
            TraceTime::Absent | TraceTime::Unparsed(_) => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Flaw {
    NoMetadata,
    /// metadata.json cannot be read, or is not valid JSON. The last good record or nothing is
    /// shown.
    BadMetadata {
        /// The error, as part of a sentence.
        reason: String,
        last_good_shown: bool,
    },
    /// metadata.json states this ID, which is not the name of its directory.
    IdMismatch(String),
    /// metadata.json names two different owners, so the worker has none.
    ConflictingOwners,
    /// metadata.json contradicts the registry of the store in this field; the registry counts.
    Claim {
        field: String,
        text: String,
    },
    /// The record in the registry of the store cannot be used. The text continues `the record is`.
    BadRegistration(String),
    /// The store's index states this different status.
    IndexDisagrees(String),
    /// The transcript cannot be read, for this reason.
    BadTranscript(String),
    NoMessages,
}

/// A worker, as described by its listing and its metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// Path of its directory from the store's root.
    pub root: RelPath,
    pub owner: Option<Owner>,
    pub run: Option<SharedStr>,
    pub job: Option<SharedStr>,
    /// The thread or worker that started it.
    pub parent: Option<SharedStr>,
    /// The id of the worker whose history its record begins with, as its record states it.
    pub continues: Option<SharedStr>,
    pub status: Status,
    /// The status as its source spells it.
    pub status_source: Option<SharedStr>,
    /// The task of the worker, truncated to [`TASK_MAX`] bytes.
    pub task: String,
    pub task_type: Option<SharedStr>,
    /// Tags from the metadata, else from the store's index.
    pub tags: Vec<SharedStr>,
    pub branch: Option<SharedStr>,
    pub model: Option<SharedStr>,
    pub cwd: Option<SharedStr>,
    pub created_at: TraceTime,
    pub started_at: TraceTime,
    pub finished_at: TraceTime,
    /// Time of its last message, if its messages have times.
    pub last_message: Option<Timestamp>,
    pub duration_ms: Option<u64>,
    pub error: Option<String>,
    /// A summary of the worker, from its metadata, its transcript or the store's index.
    pub summary: Option<String>,
    pub supervisor_notes: Option<String>,
    /// The decision about its draft, from the registry of the store.
    pub draft: Option<ReviewState>,
    /// The request that it waits for. Only with [`Status::Waiting`], if its record states it.
    pub waiting: Option<WaitReason>,
    pub flaws: Vec<Flaw>,
    /// True if every source of this value could be read. If false, a later attempt may succeed
    /// although no fingerprint changes. A source that was read and is torn does not count: it stays
    /// so until its fingerprint changes.
    pub is_complete: bool,
}

/// A request of a worker to a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitReason {
    pub since: Option<Timestamp>,
    /// The question or the call, as one line.
    pub request: String,
}

impl Worker {
    pub fn new(name: Name, root: RelPath) -> Worker {
        Worker {
            id: WorkerId(name),
            root,
            owner: None,
            run: None,
            job: None,
            parent: None,
            continues: None,
            status: Status::Unknown,
            status_source: None,
            task: String::new(),
            task_type: None,
            tags: Vec::new(),
            branch: None,
            model: None,
            cwd: None,
            created_at: TraceTime::Absent,
            started_at: TraceTime::Absent,
            finished_at: TraceTime::Absent,
            last_message: None,
            duration_ms: None,
            error: None,
            summary: None,
            supervisor_notes: None,
            draft: None,
            waiting: None,
            flaws: Vec::new(),
            is_complete: true,
        }
    }

    /// Returns the name of its project: the last component of its working directory, or of the
    /// repository to which a worktree belongs (`app/.worktrees/1`, `app/.claude/worktrees/a`).
    pub fn project(&self) -> Option<&str> {
        let parts: Vec<&str> =
            self.cwd.as_deref()?.split('/').filter(|part| !part.is_empty()).collect();
        let is_worktrees = |part: &&str| matches!(*part, ".worktrees" | "worktrees");
        let repository = parts
            .iter()
            .position(is_worktrees)
            .and_then(|at| parts.iter().take(at).rfind(|part| !part.starts_with('.')));
        repository.or(parts.last()).copied()
    }

    /// Returns its summary if it has one, and else its task. Where the first line of the task only
    /// introduces a document (`Implement the following plan:`), returns the heading of that.
    pub fn title(&self) -> &str {
        if let Some(summary) = self.summary.as_deref().filter(|text| !text.trim().is_empty()) {
            return summary;
        }
        let introduced = self.task.trim_start().split_once('\n');
        let introduced = introduced.filter(|(first, _)| first.trim_end().ends_with(':'));
        match introduced.and_then(|(_, rest)| rest.trim_start().strip_prefix("# ")) {
            None => without_courtesy(&self.task),
            Some(heading) => {
                let line = heading.trim_start().lines().next().unwrap_or_default();
                // The kind of the document says nothing: `# Plan: Fix the walker`.
                let kinds = ["Plan:", "Plan -", "Implementation Plan:", "Implementation plan:"];
                kinds.iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or(line).trim()
            }
        }
    }

    /// Marks the worker as abandoned unless it has finished, waits for a person, or states no end.
    pub fn abandon(&mut self) {
        let is_unstated = self.status == Status::Unknown && self.status_source.is_none();
        if !self.status.is_finished() && self.status != Status::Waiting && !is_unstated {
            let source = self.status_source.take();
            self.status_source = Some(source.unwrap_or_else(|| self.status.as_str().into()));
            self.status = Status::Abandoned;
        }
    }

    pub fn is_torn(&self) -> bool {
        is_torn(&self.flaws)
    }

    /// Returns true if this record, or the last good one that replaces it, comes from metadata.
    pub fn has_record(&self) -> bool {
        !self.flaws.iter().any(|flaw| {
            matches!(flaw, Flaw::NoMetadata | Flaw::BadMetadata { last_good_shown: false, .. })
        })
    }
}

/// Returns true if `flaws` say that metadata cannot be read or is not valid JSON.
pub fn is_torn(flaws: &[Flaw]) -> bool {
    flaws.iter().any(|flaw| matches!(flaw, Flaw::BadMetadata { .. }))
}

/// Maximum length of a task, summary or error of a listed worker, in bytes.
pub const TASK_MAX: usize = 600;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolCall {
    /// The number of the call, from its file name, starting at 1.
    pub seq: u64,
    pub tool: String,
    /// Path of its file from the worker's directory.
    pub path: RelPath,
    pub output: Output,
    pub at: Option<Timestamp>,
    pub outcome: Outcome,
    /// True if the record states that the call began, and not that it ended.
    pub is_open: bool,
    /// A line of the output of a call that is ok by the record, but looks like a failure.
    pub suspect: Option<String>,
    /// True if the call failed, or looks failed, and did not do its work: a wrong option, an absent
    /// program or file.
    pub is_misuse: bool,
    /// The reason why its user, a rule or a hook refused the call. `None` for calls that ran, and
    /// for calls that were cancelled with others.
    pub denial: Option<String>,
    pub exit_code: Option<i64>,
    pub duration_ms: Option<u64>,
    /// Size of the output.
    pub bytes: u64,
    /// The arguments of the call, as one line.
    pub input: Option<String>,
    /// Part of `input` that holds the main argument, in bytes; empty if no argument is the main
    /// one.
    pub subject: Range<usize>,
    /// True if the main argument is a command for a shell.
    pub is_command: bool,
    pub files: Vec<FileAccess>,
}

impl ToolCall {
    pub fn new(seq: u64, tool: impl Into<String>, path: RelPath) -> ToolCall {
        ToolCall { seq, tool: tool.into(), path, ..ToolCall::default() }
    }

    pub fn subject(&self) -> Option<&str> {
        self.input.as_deref()?.get(self.subject.clone()).filter(|subject| !subject.is_empty())
    }

    /// Returns the words of each command that the call ran in a shell.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let line = self.subject().filter(|_| self.is_command);
        line.map(attempt::split).unwrap_or_default()
    }

    /// Returns true if the call is open in a worker of this status that has not finished.
    pub fn is_running(&self, status: Status) -> bool {
        self.is_open && !status.is_finished()
    }

    /// Returns the state of the call in a worker of this status, as it is shown.
    pub fn state(&self, status: Status) -> CallState {
        match self.outcome {
            _ if self.is_running(status) => CallState::Running,
            Outcome::Failed => CallState::Failed,
            _ if self.suspect.is_some() => CallState::Suspect,
            Outcome::Ok => CallState::Ok,
            Outcome::Unknown => CallState::Unknown,
            Outcome::NotRun => CallState::NotRun,
        }
    }

    /// Returns true if a failure of the call leaves nothing undone: it only looked at something,
    /// its tool refused an edit without effect, or it was called in a wrong way.
    pub fn is_miss(&self) -> bool {
        self.is_misuse || matches!(self.kind(), CallKind::Look | CallKind::Edit | CallKind::Ask)
    }

    /// Returns true if the call is a check that found nothing wrong.
    pub fn is_green_check(&self) -> bool {
        self.outcome == Outcome::Ok && self.suspect.is_none() && self.kind() == CallKind::Check
    }

    /// Returns true if the call failed, or is ok by the record but looks like a failure.
    pub fn looks_failed(&self) -> bool {
        self.outcome == Outcome::Failed || self.suspect.is_some()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileAccess {
    pub path: String,
    pub kind: AccessKind,
    /// Number of added lines.
    pub added: u64,
    pub removed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum AccessKind {
    Read,
    Edited,
    Created,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Output {
    /// The call's own file.
    #[default]
    InPlace,
    /// This path in the directory of out-of-band outputs beside the store.
    OutOfBand(RelPath),
    /// None, because no result has arrived.
    Pending,
    /// None, because the program records no results.
    Unrecorded,
    /// Unreadable; holds the reason as part of a sentence.
    Unreadable(String),
}

/// A file of a worker that serves as evidence but belongs to no tool call, such as a log or a
/// report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LooseFile {
    pub path: RelPath,
    pub bytes: u64,
}

/// A worker and its trace, both read in one pass so that they describe the same moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub worker: Worker,
    pub trace: Trace,
    /// Number of calls whose outputs were not read in time; their outcome is unknown.
    pub unread: u64,
}

impl Record {
    /// Returns true if everything was read. If false, a later read may find more.
    pub fn is_complete(&self) -> bool {
        !self.timed_out() && self.trace.unreadable.is_empty() && self.worker.is_complete
    }

    pub fn timed_out(&self) -> bool {
        self.unread > 0 || self.trace.partial_reads.iter().any(|(_, read)| read.timed_out)
    }

    pub fn outcome(&self) -> Outcome {
        self.trace.outcome(self.worker.status)
    }
}

/// The contents of a worker's files. Read on request, and never kept for all workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The calls, by number.
    pub calls: Vec<ToolCall>,
    /// True if the worker's layout records tool calls at all.
    pub records_calls: bool,
    /// True if the worker is a command that may record neither calls nor words.
    pub is_plain_command: bool,
    /// The end of that command, if the program that ran it recorded one.
    pub command: Option<CommandExit>,
    /// Files to show if there are no calls, most informative first.
    pub loose: Vec<LooseFile>,
    /// Tools that the worker reports to have used, if only their names are recorded.
    pub tools_used: Vec<String>,
    /// The whole task, up to the limit of a generated file.
    pub task: Option<String>,
    /// The worker's last message. `None` if its result is empty or a placeholder.
    pub final_words: Option<String>,
    /// True if the last message is in the parent's record and not in the worker's own.
    pub final_words_in_parent: bool,
    pub last_step: LastStep,
    /// Calls that appear in the thread but left no output.
    pub unanswered: UnansweredCalls,
    /// Number of lines that could not be parsed, by JSONL file.
    pub bad_lines: Vec<(&'static str, u64)>,
    pub partial_reads: Vec<(&'static str, PartialRead)>,
    /// Existing files that could not be read, with the reason; a later attempt may succeed.
    pub unreadable: Vec<(RelPath, String)>,
    /// Tokens used, if the source counts them.
    pub tokens: Option<Tokens>,
    pub tokens_by_model: BTreeMap<String, Tokens>,
    /// True if the source counts far fewer tokens than the worker wrote.
    pub tokens_are_partial: bool,
    /// The cost, if the source states it.
    pub cost: Option<StatedCost>,
    pub context: ContextUse,
    pub truncated: Vec<RelPath>,
    pub unused: Unused,
    /// True if the source states no status, so that it is derived from the conversation. Then only
    /// the final words claim success.
    pub status_is_derived: bool,
    /// Directories in which the worker's layout keeps its own files, whether or not they exist.
    pub own_folders: &'static [&'static str],
    /// Files that the worker changed in its own view of a workspace, by path; the first ones if
    /// there are many.
    pub workspace_files: Vec<WorkspaceFile>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkspaceFile {
    pub path: String,
    pub kind: ChangeKind,
    pub added: u64,
    pub removed: u64,
}

/// The last step in the record of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LastStep {
    #[default]
    Other,
    /// A call without a result.
    Call,
    /// A result, or a message, that the worker has not answered.
    Result,
    /// A call that its user refused.
    Refusal,
    /// A stop by its user.
    Interruption,
}

/// Counts of transcript parts that are not shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unused {
    pub source: &'static str,
    pub lines: u64,
    /// True if the transcript is a document that ends inside a value, or holds something else than
    /// JSON. Nothing behind that place was read.
    pub is_torn: bool,
    /// Number of lines of each unrecognized type.
    pub kinds: BTreeMap<String, u64>,
    pub orphan_results: u64,
    /// Number of calls beyond the limit.
    pub excess_calls: u64,
    pub excess_agent_lines: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnansweredCalls {
    pub tools: BTreeMap<String, u64>,
    /// Number of calls of tools beyond the limit.
    pub other_tools: u64,
}

/// Maximum number of tools that are counted separately among unanswered calls.
const TOOLS_MAX: usize = 1_000;

impl UnansweredCalls {
    pub fn add(&mut self, tool: String) {
        if self.tools.len() < TOOLS_MAX || self.tools.contains_key(&tool) {
            *self.tools.entry(tool).or_default() += 1;
        } else {
            self.other_tools += 1;
        }
    }

    pub fn total(&self) -> u64 {
        self.tools.values().sum::<u64>() + self.other_tools
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialRead {
    pub bytes: u64,
    /// True if time ran out. If false, the rest is never read.
    pub timed_out: bool,
}

/// The calls that no later call resolves, in order; see [`Trace::unresolved`].
#[derive(Debug, Default)]
pub struct Unresolved<'a> {
    pub failed: Vec<&'a ToolCall>,
    pub suspects: Vec<&'a ToolCall>,
}

impl<'a> Unresolved<'a> {
    /// Returns all of the calls by number.
    pub fn into_calls(self) -> Vec<&'a ToolCall> {
        let mut calls = [self.failed, self.suspects].concat();
        calls.sort_by_key(|call| call.seq);
        calls
    }

    /// Returns the checks that are red at the end and the deliveries that failed for good, in no
    /// order, without looks at checks that run elsewhere, since their state may have changed.
    pub fn open(&self) -> impl Iterator<Item = &'a ToolCall> {
        let all = self.failed.iter().chain(&self.suspects).copied();
        all.filter(|call| call.steps().iter().any(|step| *step != WorkStep::CiState))
    }
}

impl Trace {
    /// Returns the outcome of the worker.
    ///
    /// - Failed if `status` is failed, if its own command failed, see
    ///   [`Trace::failed_last_call`], or if a failed check or delivery was not made good; see
    ///   [`Unresolved::open`].
    /// - Ok if it completed, its own command or at least one call is ok, every failed call is a
    ///   miss or was made good, and the end of no call is missing; see [`Trace::unresolved`] and
    ///   [`Trace::has_gaps`].
    /// - Unknown otherwise.
    pub fn outcome(&self, status: Status) -> Outcome {
        let exit_code = self.command.as_ref().map(|command| command.exit_code);
        let command_failed = exit_code.is_some_and(|code| code != 0);
        if status == Status::Failed || command_failed || self.failed_last_call().is_some() {
            return Outcome::Failed;
        }
        let unresolved = self.unresolved();
        if status.is_finished() && unresolved.open().next().is_some() {
            Outcome::Failed
        } else if status == Status::Completed
            && (exit_code.is_some() || self.has_ok_call())
            && unresolved.failed.is_empty()
            && !self.has_gaps()
        {
            Outcome::Ok
        } else {
            Outcome::Unknown
        }
    }

    /// Returns true if the end of a call is not recorded, or was lost with other records.
    pub fn has_gaps(&self) -> bool {
        let Unused { excess_calls, is_torn, .. } = &self.unused;
        self.calls.iter().any(|call| call.is_open)
            || self.unanswered.total() > 0
            || !self.bad_lines.is_empty()
            || !self.partial_reads.is_empty()
            || *excess_calls > 0
            || *is_torn
    }

    /// Returns the last executed call if it failed and was no miss. Where no call succeeded at all,
    /// a miss counts as well.
    pub fn failed_last_call(&self) -> Option<&ToolCall> {
        self.calls.iter().rfind(|call| call.outcome != Outcome::NotRun).filter(|call| {
            call.outcome == Outcome::Failed && (!call.is_miss() || !self.has_ok_call())
        })
    }

    fn has_ok_call(&self) -> bool {
        self.calls.iter().any(|call| call.outcome == Outcome::Ok)
    }

    pub fn outcomes(&self) -> impl Iterator<Item = (RelPath, Outcome)> {
        self.calls.iter().map(|call| (call.path.clone(), call.outcome))
    }

    /// Returns the calls that failed or look failed, are no miss, and that no later call makes
    /// good. A later call does if it is ok, does not look like a failure, and makes the same
    /// attempt or takes the same steps in the same or a wider scope.
    ///
    /// Parses the commands of all calls, so callers should keep the result.
    pub fn unresolved(&self) -> Unresolved<'_> {
        let mut successes = Successes::default();
        let mut done = DoneSteps::default();
        let mut found = Unresolved::default();
        // Iterating backward shows in one pass which attempts succeed later.
        for call in self.calls.iter().rev() {
            let unresolved = match call.outcome {
                Outcome::Failed => &mut found.failed,
                _ if call.suspect.is_some() => &mut found.suspects,
                Outcome::Ok => {
                    successes.add(call);
                    done.add(call);
                    continue;
                }
                Outcome::Unknown | Outcome::NotRun => continue,
            };
            if call.is_miss() || successes.resolve(call) {
                continue;
            }
            let steps = call.steps();
            // A suspect call is ok by the record. Only a check or a delivery in it can be open.
            let matters = call.outcome == Outcome::Failed || !steps.is_empty() || !call.is_command;
            if matters && (steps.is_empty() || !done.cover(&steps)) {
                unresolved.push(call);
            }
        }
        found.failed.reverse();
        found.suspects.reverse();
        found
    }

    pub fn total_bad_lines(&self) -> u64 {
        self.bad_lines.iter().map(|(_, lines)| lines).sum()
    }

    pub fn suspects(&self) -> usize {
        self.calls.iter().filter(|call| call.suspect.is_some()).count()
    }

    pub fn running(&self, status: Status) -> usize {
        self.calls.iter().filter(|call| call.is_running(status)).count()
    }

    pub fn count(&self, outcome: Outcome) -> usize {
        self.calls.iter().filter(|call| call.outcome == outcome).count()
    }
}

/// A short string that many workers may share.
pub type SharedStr = Arc<str>;

#[derive(Default)]
pub struct Interner(HashSet<SharedStr>);

impl Interner {
    pub fn intern(&mut self, text: SharedStr) -> SharedStr {
        match self.0.get(&text) {
            Some(known) => known.clone(),
            None => {
                self.0.insert(text.clone());
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, outcome: Outcome) -> ToolCall {
        ToolCall { outcome, ..ToolCall::new(1, tool, RelPath::root()) }
    }

    fn outcome(status: Status, calls: &[(&str, Outcome)]) -> Outcome {
        let calls = calls.iter().map(|(tool, outcome)| call(tool, *outcome)).collect();
        Trace { calls, ..Trace::default() }.outcome(status)
    }

    /// Promise: The outcome follows the record, not the worker's claim.
    #[test]
    fn outcome_follows_the_record_not_the_claim() {
        use Outcome::{Failed, Ok, Unknown};
        assert_eq!(outcome(Status::Completed, &[("a", Ok)]), Ok);
        assert_eq!(outcome(Status::Completed, &[("a", Ok), ("a", Failed)]), Failed);
        assert_eq!(outcome(Status::Completed, &[("a", Failed), ("a", Ok)]), Ok);
        assert_eq!(outcome(Status::Completed, &[("a", Failed), ("b", Ok)]), Unknown);
        assert_eq!(outcome(Status::Completed, &[]), Unknown);
        assert_eq!(outcome(Status::Completed, &[("a", Unknown)]), Unknown);
        assert_eq!(outcome(Status::Running, &[("a", Ok)]), Unknown);
        assert_eq!(outcome(Status::Failed, &[("a", Ok)]), Failed);
    }

    #[test]
    fn a_title_says_what_is_wanted() {
        for (task, title) in [
            (
                "Implement the following plan:\n\n# Plan: Fix the walker\n\n## Context",
                "Fix the walker",
            ),
            (
                "Implement the following plan:\n\nno heading",
                "Implement the following plan:\n\nno heading",
            ),
            ("Can you please fix the tests?", "fix the tests?"),
            ("canyon", "canyon"),
            ("", ""),
        ] {
            let mut worker = Worker::new(Name::new("a").unwrap(), RelPath::root());
            worker.task = task.into();
            assert_eq!(worker.title(), title, "{task}");
        }
    }

    #[test]
    fn a_worktree_belongs_to_the_project_of_its_repository() {
        for (cwd, project) in [
            ("/a/app", Some("app")),
            ("/a/app/.worktrees/1", Some("app")),
            ("/a/app/.claude/worktrees/b/src", Some("app")),
            ("/worktrees/x", Some("x")),
            ("/", None),
        ] {
            let mut worker = Worker::new(Name::new("a").unwrap(), RelPath::root());
            worker.cwd = Some(cwd.into());
            assert_eq!(worker.project(), project, "{cwd}");
        }
    }

    #[test]
    fn unresolved_failures_are_found_in_linear_time() {
        let begun = std::time::Instant::now();
        let calls = (0..100_000).map(|_| call("a", Outcome::Failed)).collect();
        let trace = Trace { calls, ..Trace::default() };
        // A quadratic scan takes minutes; the time limit only guards against that.
        assert_eq!(trace.unresolved().failed.len(), 100_000);
        assert!(begun.elapsed().as_secs() < 20);
    }

    #[test]
    fn a_failure_without_arguments_is_resolved_by_a_later_call_of_the_tool() {
        use Outcome::{Failed, Ok, Unknown};
        let calls =
            [("a", Ok), ("a", Failed), ("b", Failed), ("a", Unknown), ("b", Ok), ("b", Failed)];
        let calls = calls.iter().map(|(tool, outcome)| call(tool, *outcome)).collect();
        let trace = Trace { calls, ..Trace::default() };
        let found: Vec<&str> =
            trace.unresolved().failed.iter().map(|call| call.tool.as_str()).collect();
        assert_eq!(found, ["a", "b"]);
    }

    #[test]
    fn equal_strings_share_one_allocation() {
        let mut interner = Interner::default();
        let [one, again, other] = ["1", "1", "2"].map(|said| interner.intern(said.into()));
        assert!(Arc::ptr_eq(&one, &again));
        assert_eq!([&*one, &*other], ["1", "2"]);
    }
}
