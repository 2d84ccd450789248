//! What a swarm is made of: workers, runs, tool calls, and what is known of them.
//!
//! Plain values. No I/O and no serialisation: what is read from disk is decoded in [`crate::trace`], what is written
//! for readers is shaped in [`crate::render`]. Nothing here is invented: what a trace does not say is `None` or
//! unknown.

mod intern;
mod skipped;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use jiff::Timestamp;

pub use intern::{Interner, SharedStr};
pub use skipped::{EXAMPLES_MAX, SkipReason, SkipReport, Skipped, SkippedEntries};

use crate::name::{Name, RelPath};

/// A worker's id: the name of its folder in `workers/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId(pub Name);

impl WorkerId {
    /// The id as text: invalid UTF-8 is replaced.
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        self.0.to_text()
    }
}

/// Whose a worker is. Numbers and strings in metadata are the same owner if they are written the same.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Owner(pub SharedStr);

/// How far a worker says it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Set up, not begun.
    Created,
    /// At work.
    Running,
    /// Finished, and says it succeeded.
    Completed,
    /// Finished, and says it failed.
    Failed,
    /// Not said, or said in a word that is not known.
    Unknown,
}

impl Status {
    /// Whether more is to be expected from the worker.
    pub fn is_finished(self) -> bool {
        matches!(self, Status::Completed | Status::Failed)
    }

    /// The word that generated files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a call or a worker ended, as far as the record shows. Unknown is never shown as ok.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Outcome {
    /// The record says it failed.
    Failed,
    /// The record does not say.
    Unknown,
    /// The record says it went well.
    Ok,
}

impl Outcome {
    /// The word that generated files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
            Outcome::Ok => "ok",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A time as a trace gives it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TraceTime {
    /// Not said.
    #[default]
    Absent,
    /// A point in time.
    At(Timestamp),
    /// Said in a form that is not understood; the source's own words.
    Unparsed(String),
}

impl TraceTime {
    /// The point in time, where there is one.
    pub fn timestamp(&self) -> Option<Timestamp> {
        match self {
            TraceTime::At(time) => Some(*time),
            TraceTime::Absent | TraceTime::Unparsed(_) => None,
        }
    }
}

/// What is wrong with a worker's record, found while reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// There is no metadata.json.
    NoMetadata,
    /// metadata.json cannot be read, or not as JSON; what is shown is from before, or nothing. The reason.
    BadMetadata {
        /// Why.
        reason: String,
        /// Whether an earlier good record is shown in its place.
        last_good_shown: bool,
    },
    /// metadata.json claims the id of another folder.
    IdMismatch(String),
    /// metadata.json names two different owners, so it has none.
    ConflictingOwners,
    /// The store's index says another status.
    IndexDisagrees(String),
    /// Its transcript cannot be read: the reason.
    BadTranscript(String),
    /// Its transcript holds nothing that was said.
    NoMessages,
}

/// A worker as listing and metadata tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// The folder's name in the store.
    pub id: WorkerId,
    /// The folder, from its store's root.
    pub root: RelPath,
    /// Whose it is, if it says.
    pub owner: Option<Owner>,
    /// The run it belongs to, if it says.
    pub run: Option<SharedStr>,
    /// The job within the run.
    pub job: Option<SharedStr>,
    /// The thread or worker that started it.
    pub parent: Option<SharedStr>,
    /// How far it is.
    pub status: Status,
    /// The word its source used for the status.
    pub status_source: Option<SharedStr>,
    /// The task it was given, cut at [`TASK_MAX`] bytes.
    pub task: String,
    /// The kind of task.
    pub task_type: Option<SharedStr>,
    /// Tags, as the store's index or the metadata has them.
    pub tags: Vec<SharedStr>,
    /// The model it ran on.
    pub model: Option<SharedStr>,
    /// The folder it worked in, as it says.
    pub cwd: Option<SharedStr>,
    /// When it was set up.
    pub created_at: TraceTime,
    /// When it began.
    pub started_at: TraceTime,
    /// When it ended.
    pub finished_at: TraceTime,
    /// How long it took, in milliseconds, as it says itself.
    pub duration_ms: Option<u64>,
    /// The error it ended with.
    pub error: Option<String>,
    /// A summary somebody wrote of it.
    pub summary: Option<String>,
    /// What is wrong with its record.
    pub flaws: Vec<Flaw>,
    /// Whether all was read that this is made of. If not, another time it perhaps can be, though nothing changes that
    /// stat tells of; what was read and is torn stays so until something does.
    pub is_complete: bool,
}

impl Worker {
    /// A worker of which nothing is known but where it lies.
    pub fn new(name: Name, root: RelPath) -> Worker {
        Worker {
            id: WorkerId(name),
            root,
            owner: None,
            run: None,
            job: None,
            parent: None,
            status: Status::Unknown,
            status_source: None,
            task: String::new(),
            task_type: None,
            tags: Vec::new(),
            model: None,
            cwd: None,
            created_at: TraceTime::Absent,
            started_at: TraceTime::Absent,
            finished_at: TraceTime::Absent,
            duration_ms: None,
            error: None,
            summary: None,
            flaws: Vec::new(),
            is_complete: true,
        }
    }

    /// Whether its metadata could not be read, or not as JSON.
    pub fn is_torn(&self) -> bool {
        is_torn(&self.flaws)
    }

    /// Whether this, or what it was before its metadata was torn, was read from metadata.
    pub fn has_record(&self) -> bool {
        !self
            .flaws
            .iter()
            .any(|flaw| matches!(flaw, Flaw::NoMetadata | Flaw::BadMetadata { last_good_shown: false, .. }))
    }
}

/// Whether a worker with these flaws is one whose metadata could not be read, or not as JSON.
pub fn is_torn(flaws: &[Flaw]) -> bool {
    flaws.iter().any(|flaw| matches!(flaw, Flaw::BadMetadata { .. }))
}

/// The longest task, summary or error, in bytes, that is kept for every worker.
pub const TASK_MAX: usize = 600;

/// One tool call of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolCall {
    /// Its number, as its file says; calls count from 1.
    pub seq: u64,
    /// The tool's name.
    pub tool: String,
    /// Its file, from the worker's folder.
    pub path: RelPath,
    /// Where the output lies.
    pub output: Output,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether it was never carried out, since another call failed or its user said no, though it is marked as failed.
    pub cancelled: bool,
    /// The exit code, where one is known.
    pub exit_code: Option<i64>,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Size of the output in bytes.
    pub bytes: u64,
    /// What it was called with, as one line.
    pub input: Option<String>,
}

impl ToolCall {
    /// Whether it was carried out and failed.
    pub fn is_failure(&self) -> bool {
        self.outcome == Outcome::Failed && !self.cancelled
    }
}

/// Where the output of a call lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// In the call's own file.
    InPlace,
    /// In the folder of stored-out outputs beside the store, at this path.
    OutOfBand(RelPath),
    /// Nowhere: no result has come.
    Pending,
    /// Nowhere that can be read: the reason, as a part of a sentence.
    Unreadable(String),
}

/// A file of a worker that is evidence though it is no tool call (a log, a report).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LooseFile {
    /// The file, from the worker's folder.
    pub path: RelPath,
    /// Size in bytes.
    pub bytes: u64,
}

/// A worker together with its trace, both read in one go: what they tell is of one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What listing and metadata told at that moment.
    pub worker: Worker,
    /// What its files told.
    pub trace: Trace,
    /// How many calls there was no time to look into; their outcome is unknown.
    pub unread: u64,
}

impl Record {
    /// Whether all was read that there is; else another look may tell more.
    pub fn is_complete(&self) -> bool {
        !self.timed_out() && self.trace.unreadable.is_empty() && self.worker.is_complete
    }

    /// Returns true if there was no time to read all of it.
    pub fn timed_out(&self) -> bool {
        self.unread > 0 || self.trace.partial_reads.iter().any(|(_, read)| read.timed_out)
    }

    /// How the worker ended; see [`Trace::outcome`].
    pub fn outcome(&self) -> Outcome {
        self.trace.outcome(self.worker.status)
    }
}

/// What a look into a worker's files tells: read when asked for, never kept for all workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The calls, by number.
    pub calls: Vec<ToolCall>,
    /// Whether the worker's layout records tool calls at all.
    pub records_calls: bool,
    /// Where there are no calls: what to show instead, most telling first.
    pub loose: Vec<LooseFile>,
    /// Tools it says it used, where only their names are recorded.
    pub tools_used: Vec<String>,
    /// The task as a whole, up to the limit of a generated file.
    pub task: Option<String>,
    /// The worker's own last words; none if it left an empty or a placeholder result.
    pub final_words: Option<String>,
    /// Whether there are none in its own record because it said them to its parent, in whose record they are.
    pub final_words_in_parent: bool,
    /// Calls that the thread mentions and that left no output.
    pub unanswered: UnansweredCalls,
    /// Lines of JSONL files that could not be read, by file.
    pub bad_lines: Vec<(&'static str, u64)>,
    /// Files that were not read to their end.
    pub partial_reads: Vec<(&'static str, PartialRead)>,
    /// Files that are there and could not be read, with the reason; next time they perhaps can.
    pub unreadable: Vec<(RelPath, String)>,
    /// The tokens it took, where its source counts them.
    pub tokens: Option<Tokens>,
    /// Outputs that were cut before they were written down.
    pub truncated: Vec<RelPath>,
    /// What of a transcript could not be shown anywhere else.
    pub unused: Unused,
    /// Folders in which the worker's layout keeps its own files, whether or not they exist.
    pub own_folders: &'static [&'static str],
}

/// Tokens, as the source counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tokens {
    /// Read by the model, less those out of its cache.
    pub input: u64,
    /// Written by it.
    pub output: u64,
    /// Read out of its cache.
    pub cache_read: u64,
    /// Put into its cache.
    pub cache_creation: u64,
}

impl std::ops::AddAssign for Tokens {
    fn add_assign(&mut self, more: Tokens) {
        self.input = self.input.saturating_add(more.input);
        self.output = self.output.saturating_add(more.output);
        self.cache_read = self.cache_read.saturating_add(more.cache_read);
        self.cache_creation = self.cache_creation.saturating_add(more.cache_creation);
    }
}

/// What a transcript holds that is not shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unused {
    /// How many lines it has, of which these are some.
    pub lines: u64,
    /// Lines of kinds that are not known, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Results of calls that were never made.
    pub orphan_results: u64,
    /// Calls that are too many.
    pub excess_calls: u64,
    /// Lines of subagents that are too many.
    pub excess_agent_lines: u64,
}

/// Calls without an output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnansweredCalls {
    /// How many, by tool.
    pub tools: BTreeMap<String, u64>,
    /// How many more there are, of further tools.
    pub other_tools: u64,
}

/// How many tools are told apart among the calls without an output.
const TOOLS_MAX: usize = 1_000;

impl UnansweredCalls {
    /// Counts a call of `tool`.
    pub fn add(&mut self, tool: String) {
        if self.tools.len() < TOOLS_MAX || self.tools.contains_key(&tool) {
            *self.tools.entry(tool).or_default() += 1;
        } else {
            self.other_tools += 1;
        }
    }

    /// How many calls there are.
    pub fn total(&self) -> u64 {
        self.tools.values().sum::<u64>() + self.other_tools
    }
}

/// How far a file was read that is longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialRead {
    /// How much of it was read, in bytes.
    pub bytes: u64,
    /// Whether there was no time for the rest; else more of it is never read.
    pub timed_out: bool,
}

impl Trace {
    /// How the worker ended: failed if it says so or the last call that was carried out failed; ok if it completed, at
    /// least one call is known to be ok and no failed call is left without a later success of the same tool; else unknown.
    pub fn outcome(&self, status: Status) -> Outcome {
        if status == Status::Failed || self.failed_last_call().is_some() {
            Outcome::Failed
        } else if status == Status::Completed
            && self.calls.iter().any(|call| call.outcome == Outcome::Ok)
            && self.unrecovered().next().is_none()
        {
            Outcome::Ok
        } else {
            Outcome::Unknown
        }
    }

    /// The last call that was carried out, if it failed.
    pub fn failed_last_call(&self) -> Option<&ToolCall> {
        self.calls.iter().rfind(|call| !call.cancelled).filter(|call| call.is_failure())
    }

    /// How each call ended, by its file.
    pub fn outcomes(&self) -> impl Iterator<Item = (RelPath, Outcome)> {
        self.calls.iter().map(|call| (call.path.clone(), call.outcome))
    }

    /// Failed calls that no later call of the same tool made good.
    pub fn unrecovered(&self) -> impl Iterator<Item = &ToolCall> {
        let mut recovered: HashSet<&str> = HashSet::new();
        let mut found = Vec::new();
        // From the end, so that one pass tells which tools succeed later.
        for call in self.calls.iter().rev() {
            if call.outcome == Outcome::Ok {
                recovered.insert(&call.tool);
            } else if call.is_failure() && !recovered.contains(call.tool.as_str()) {
                found.push(call);
            }
        }
        found.into_iter().rev()
    }

    /// How many lines could not be read, of all files.
    pub fn total_bad_lines(&self) -> u64 {
        self.bad_lines.iter().map(|(_, lines)| lines).sum()
    }

    /// How many calls ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.calls.iter().filter(|call| call.outcome == outcome).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, outcome: Outcome) -> ToolCall {
        ToolCall {
            seq: 1,
            tool: tool.into(),
            path: RelPath::root(),
            output: Output::InPlace,
            outcome,
            cancelled: false,
            exit_code: None,
            duration_ms: None,
            bytes: 0,
            input: None,
        }
    }

    fn outcome(status: Status, calls: &[(&str, Outcome)]) -> Outcome {
        let calls = calls.iter().map(|(tool, outcome)| call(tool, *outcome)).collect();
        Trace { calls, ..Trace::default() }.outcome(status)
    }

    #[test]
    fn outcome_follows_the_record_and_not_the_claim() {
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
    fn failures_that_were_never_recovered_are_found_in_one_pass() {
        let begun = std::time::Instant::now();
        let calls = (0..100_000).map(|_| call("a", Outcome::Failed)).collect();
        let trace = Trace { calls, ..Trace::default() };
        // Each call held against each later one takes minutes; the bound only guards against that.
        let counted = trace.unrecovered().take_while(|_| begun.elapsed().as_secs() < 20).count();
        assert_eq!(counted, 100_000);
    }

    #[test]
    fn a_failure_is_recovered_by_a_later_call_of_its_tool_alone() {
        use Outcome::{Failed, Ok, Unknown};
        let calls = [("a", Ok), ("a", Failed), ("b", Failed), ("a", Unknown), ("b", Ok), ("b", Failed)];
        let calls = calls.iter().map(|(tool, outcome)| call(tool, *outcome)).collect();
        let trace = Trace { calls, ..Trace::default() };
        let found: Vec<&str> = trace.unrecovered().map(|call| call.tool.as_str()).collect();
        assert_eq!(found, ["a", "b"]);
    }
}
