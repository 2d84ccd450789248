//! The index of a transcript: everything except its texts, which stay in the file. Plain values, so
//! that an index can be stored and extended when the transcript grows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::jsonl::LastLine;
use super::super::value::shorten_word;
use super::requests::Requests;
use super::summaries::Summaries;
use super::turn::{Span, Verdict};
use swarmletfs_base::model::{ContextUse, FileAccess, StatedCost, Status, Tokens, Worker};
use swarmletfs_base::name::{Name, to_file_name};
use swarmletfs_base::split::Split;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TranscriptIndex {
    /// Number of bytes read, up to the end of a line.
    pub(crate) bytes_read: u64,
    /// Number of non-empty lines read.
    pub(crate) line_count: u64,
    pub(crate) last_line: LastLine,
    /// Number of lines that are not a JSON object.
    pub(crate) bad_lines: u64,
    pub(crate) unknown_types: BTreeMap<String, u64>,
    /// True if the file exceeds the size limit, so that its end is never read.
    pub(crate) too_long: bool,
    pub(crate) facts: SessionFacts,
    pub(crate) summaries: Summaries,
    /// The conversation of the file itself.
    pub(crate) main: Conversation,
    pub(crate) agents: Vec<Conversation>,
    /// Hashes of the records that have IDs.
    pub(crate) seen: Vec<u64>,
    /// The ends of workers with transcripts of their own that the records report, by the ID of
    /// the worker.
    pub(crate) ends: BTreeMap<String, ReportedEnd>,
    #[serde(skip)]
    pub(crate) agents_by_name: HashMap<Name, usize>,
    /// Number of lines of subagents beyond [`super::builder::AGENTS_MAX`], or of a subagent's own
    /// subagents.
    pub(crate) excess_agent_lines: u64,
    pub(crate) documents: u64,
    pub(crate) is_torn: bool,
    /// True if new contents cannot be added without reading all that is before them.
    pub(crate) restarts: bool,
    /// The records that this transcript may repeat, while it is read.
    #[serde(skip)]
    pub(crate) history: Option<Arc<CopiedHistory>>,
}

/// The records of another session, some of which a transcript repeats at its beginning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CopiedHistory {
    pub(crate) session: String,
    /// Hashes of the records, as in [`TranscriptIndex::seen`].
    pub(crate) seen: HashSet<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SessionFacts {
    pub(crate) id: Option<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) branch: Option<String>,
    pub(crate) title: Option<Title>,
    /// The ID of the session that started this one.
    pub(crate) parent: Option<String>,
    /// The ID of the session of which this one is a copy with another continuation.
    pub(crate) forked_from: Option<String>,
    pub(crate) agent_type: Option<String>,
    /// The ID of the session at the root of the sessions that started each other.
    pub(crate) root: Option<String>,
    /// Number of the first record that is not copied from another session.
    pub(crate) first_own_record: Option<u64>,
    /// Size of the beginning of the file that is copied from another session, in bytes.
    pub(crate) copied_bytes: u64,
    /// Time of the last record of a copied history; in a history that has no mark at its end, only
    /// while it is read.
    pub(crate) copied_at_ms: Option<i64>,
    /// The tokens of the session from which this one was copied.
    pub(crate) tokens_before: Option<Tokens>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Title {
    pub(crate) source: TitleSource,
    pub(crate) text: String,
}

/// The source of a title. A later one in this order is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum TitleSource {
    /// A line of type `summary`.
    Summary,
    Generated,
    User,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Conversation {
    /// The ID of the subagent; empty for the file's own conversation.
    pub(crate) agent: String,
    pub(crate) family: Family,
    /// The first message of the user.
    pub(crate) task: Option<TextRef>,
    /// The first message written by the program, used if there is no task.
    pub(crate) fallback_task: Option<TextRef>,
    pub(crate) requests: Requests,
    pub(crate) last_text: Option<TextRef>,
    pub(crate) submission: Option<TextRef>,
    pub(crate) ending: Ending,
    pub(crate) stated: Option<StatedStatus>,
    /// True if another one states the status: an evaluation, or the parent, whose transcript may
    /// hold the final words.
    pub(crate) is_stated_by_other: bool,
    /// Time of the first message, in milliseconds since 1970.
    pub(crate) first_ms: Option<i64>,
    pub(crate) last_ms: Option<i64>,
    pub(crate) model: Option<String>,
    /// Tokens of all messages except the recent ones, by model.
    pub(crate) tokens: BTreeMap<String, Tokens>,
    pub(crate) context: ContextUse,
    pub(crate) cost: CostSoFar,
    /// Length of all that the assistant wrote, in bytes.
    pub(crate) written_bytes: u64,
    /// The messages whose tokens were counted last, in order. Later lines may still change them.
    pub(crate) recent_messages: Vec<RecentMessage>,
    /// Hashes of the IDs of all earlier messages whose tokens were counted.
    pub(crate) counted: Vec<u64>,
    /// Number of the first call without a result, for results that name no call.
    pub(crate) first_open: usize,
    pub(crate) calls: Vec<CallEntry>,
    /// Length of the main arguments of all calls that were ever added, in bytes.
    pub(crate) commands_total: u64,
    /// Number of calls beyond [`super::calls::CALLS_MAX`].
    pub(crate) excess_calls: u64,
    pub(crate) orphan_results: u64,
    /// Number of records of its document that cannot be read, if the document is one of many.
    pub(crate) bad_records: u64,
    pub(crate) marks: Vec<MessageMark>,
    pub(crate) lines: Vec<LineEntry>,
}

/// The relations of a conversation inside a transcript that holds several families.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Family {
    pub(crate) parent: Option<String>,
    pub(crate) run: Option<String>,
}

/// The cost of a conversation. Each process that runs it states its own cost so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CostSoFar {
    /// The sum over the processes before the last one.
    earlier: StatedCost,
    /// The start of the last process, in milliseconds since 1970.
    start_ms: Option<i64>,
    latest: Option<StatedCost>,
}

impl CostSoFar {
    /// Sets the cost that the process with this start states. A process that goes on with another
    /// one's numbers keeps its start as well.
    pub(crate) fn set(&mut self, start_ms: Option<i64>, cost: StatedCost) {
        if self.start_ms != start_ms
            && let Some(before) = self.latest.take()
        {
            self.earlier += &before;
        }
        self.start_ms = start_ms;
        self.latest = Some(cost);
    }

    /// Adds the cost of another attempt.
    pub(crate) fn add(&mut self, cost: StatedCost) {
        self.earlier += &self.latest.replace(cost).unwrap_or_default();
    }

    /// Replaces all costs before.
    pub(crate) fn replace(&mut self, cost: StatedCost) {
        *self = CostSoFar { latest: Some(cost), ..CostSoFar::default() };
    }

    /// Returns the cost of all processes. `tokens` counts the conversation itself: a cost
    /// that is for fewer leaves something out.
    pub(crate) fn total(&self, tokens: u64) -> Option<StatedCost> {
        let mut total = self.latest.clone()?;
        total += &self.earlier;
        total.is_partial |= total.tokens > 0 && total.tokens < tokens;
        Some(total)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatedStatus {
    pub(crate) status: Status,
    /// The status in the words of the record.
    pub(crate) word: Option<String>,
}

/// The end of a worker, as reported to the worker that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedEnd {
    pub(crate) status: Status,
    pub(crate) word: String,
    pub(crate) message: String,
    /// The text that the worker returned, in the record that reports the end.
    pub(crate) result: Option<TextRef>,
}

impl ReportedEnd {
    /// Replaces the status of `worker`, its source and the error, which come from its own record.
    /// A report of success counts only if that record shows no end, and one without a message
    /// leaves the error of the same failure.
    pub fn apply(&self, worker: &mut Worker) {
        let is_known = worker.status == self.status && self.message.is_empty();
        if is_known || self.status == Status::Completed && worker.status.is_finished() {
            return;
        }
        worker.status = self.status;
        worker.status_source = Some(self.word.as_str().into());
        worker.error = Some(self.message.clone()).filter(|message| !message.is_empty());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessageMark {
    /// Hash of the ID.
    pub(crate) id: u64,
    /// Hash of the message's text.
    pub(crate) text: u64,
    /// Numbers of calls, requests and lines before the message.
    pub(crate) calls: usize,
    pub(crate) requests: usize,
    pub(crate) lines: usize,
    /// The tokens of the message, if a record states them.
    pub(crate) tokens: Option<Box<MessageTokens>>,
    /// True if the tokens are included in the counts of the conversation.
    pub(crate) is_counted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessageTokens {
    pub(crate) model: String,
    pub(crate) tokens: Tokens,
}

/// The ID and tokens of a message. Each line of a message repeats its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentMessage {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) tokens: Tokens,
}

/// The parts of a record that the thread shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Shown {
    #[default]
    All,
    /// The record repeats a message: its new calls and results, and its text if that is new.
    New { text: bool },
}

/// A line, with the offsets at which it ends in the generated thread and source files, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LineEntry {
    pub(crate) span: Span,
    pub(crate) shown: Shown,
    pub(crate) thread_end: u64,
    pub(crate) source_end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFile {
    Source,
    Thread,
}

impl LineEntry {
    pub(crate) fn end(&self, file: LineFile) -> u64 {
        match file {
            LineFile::Source => self.source_end,
            LineFile::Thread => self.thread_end,
        }
    }
}

/// A reference to a text in the transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TextRef {
    pub(crate) span: Span,
    pub(crate) bytes: u64,
    /// Hash of the whole text.
    pub(crate) hash: u64,
    /// The beginning of the text, at most [`super::builder::HEAD_MAX`] bytes.
    pub(crate) head: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Ending {
    #[default]
    Empty,
    /// The assistant's turn: a user's message, a result or a thought came last.
    AwaitingReply,
    CalledTool,
    Answered,
    Interrupted,
    /// The user left before the assistant answered.
    Left,
    /// The work goes on in the session with this ID.
    Continued(String),
    /// The API returned an error; holds its text.
    ApiError(String),
}

impl Ending {
    /// Returns true if nothing has ended the conversation, so that it may go on.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Ending::AwaitingReply | Ending::CalledTool | Ending::Interrupted)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallEntry {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) span: Span,
    pub(crate) at_ms: Option<i64>,
    pub(crate) input: Option<String>,
    /// Length of the beginning of `input` that holds the main argument, in bytes.
    pub(crate) subject_len: usize,
    /// True if the main argument is a command for a shell.
    pub(crate) is_command: bool,
    /// Length of the main argument in commands.txt, in bytes; 0 if it is not there.
    pub(crate) command_bytes: u64,
    /// The files that the call read or changed, from its arguments and its result.
    pub(crate) files: Vec<FileAccess>,
    pub(crate) result: Option<CallResult>,
    /// The offset and the part of the first result, if a report replaced it.
    pub(crate) receipt: Option<(u64, usize)>,
    /// The ID of the work that the call started and that goes on after its result.
    pub(crate) task: Option<String>,
    /// The outcome in a record of its own. It takes precedence over the outcome of the result.
    pub(crate) stated: Option<Verdict>,
    /// A record of its own that describes the changes of files.
    pub(crate) change_record: Option<Span>,
}

impl CallEntry {
    /// Returns the outcome of the call, or `None` if it has neither a result nor a stated outcome.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let result = self.result.as_ref().map(|result| result.verdict);
        match (self.stated, result) {
            (Some(stated), Some(result)) => Some(Verdict {
                exit_code: stated.exit_code.or(result.exit_code),
                duration_ms: stated.duration_ms.or(result.duration_ms),
                ..stated
            }),
            (stated, result) => stated.or(result),
        }
    }

    /// Returns true if the call started work whose end the record does not show.
    pub(crate) fn is_open(&self) -> bool {
        self.stated.is_none() && self.result.as_ref().is_some_and(|result| result.is_open)
    }

    /// Returns the beginning of the command, or `None` if the call runs none.
    pub(crate) fn command(&self) -> Option<&str> {
        let input = self.input.as_deref().filter(|_| self.is_command);
        input.and_then(|input| input.get(..input.floor_char_boundary(self.subject_len)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallResult {
    pub(crate) span: Span,
    /// Number of the result in its record, from 0.
    pub(crate) part: usize,
    pub(crate) at_ms: Option<i64>,
    pub(crate) bytes: u64,
    pub(crate) hash: u64,
    pub(crate) verdict: Verdict,
    /// A line of the output of a command that is ok by the record, but looks like a failure.
    pub(crate) suspect: Option<String>,
    pub(crate) is_misuse: bool,
    /// The reason why the call was refused.
    pub(crate) denial: Option<String>,
    /// The name of the file that holds the whole output. Empty if the call names it.
    pub(crate) spilled: Option<String>,
    pub(crate) truncated: bool,
    /// True if the result is a report about the call. The assistant's own result replaces it.
    pub(crate) is_report: bool,
    /// True if the work of the call has not ended as far as the record shows.
    pub(crate) is_open: bool,
}

impl TranscriptIndex {
    /// Returns the conversation of `agent`, or the file's own for `None`.
    pub(crate) fn conversation(&self, agent: Option<&Name>) -> Option<&Conversation> {
        match agent {
            None => Some(&self.main),
            Some(name) => self.agents.get(*self.agents_by_name.get(name)?),
        }
    }

    /// Returns the conversation with a number. The transcript's own conversation is 0.
    pub(crate) fn numbered(&self, number: usize) -> Option<&Conversation> {
        match number.checked_sub(1) {
            None => Some(&self.main),
            Some(at) => self.agents.get(at),
        }
    }

    pub(crate) fn numbered_mut(&mut self, number: usize) -> Option<&mut Conversation> {
        match number.checked_sub(1) {
            None => Some(&mut self.main),
            Some(at) => self.agents.get_mut(at),
        }
    }

    /// Returns an empty index for a new read from the beginning. It keeps the number of documents
    /// and whether the transcript was torn.
    pub(crate) fn before_rewrite(&self) -> TranscriptIndex {
        let (documents, is_torn) = (self.documents, self.is_torn);
        TranscriptIndex { documents, is_torn, ..TranscriptIndex::default() }
    }

    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }

    /// Deserializes an index. Returns `None` if `bytes` are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<TranscriptIndex> {
        let mut index: TranscriptIndex = postcard::from_bytes(bytes).ok()?;
        index.agents_by_name = index
            .agents
            .iter()
            .enumerate()
            .map(|(at, conversation)| (conversation.worker_name(), at))
            .collect();
        Some(index)
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        let conversations = self.agents.iter().chain([&self.main]);
        let conversations = conversations.map(|conversation| conversation.weight() as u64);
        conversations.sum::<u64>()
            + 30 * self.seen.len() as u64
            + 300 * self.ends.len() as u64
            + self.summaries.weight() as u64
            + 1_000
    }
}

impl Conversation {
    fn weight(&self) -> usize {
        let calls: usize = self
            .calls
            .iter()
            .map(|call| {
                let files: usize = call.files.iter().map(|file| 40 + file.path.len()).sum();
                600 + files + call.input.as_ref().map_or(0, String::len)
            })
            .sum();
        let marks = size_of::<MessageMark>() + size_of::<MessageTokens>();
        1_000
            + calls
            + self.lines.len() * size_of::<LineEntry>()
            + self.counted.len() * 30
            + self.marks.len() * marks
            + self.requests.weight()
    }

    pub(crate) fn worker_name(&self) -> Name {
        to_file_name(&self.agent, &[])
    }

    pub(crate) fn file_bytes(&self, file: LineFile) -> u64 {
        self.lines.last().map_or(0, |line| line.end(file))
    }

    /// Returns the task, or else the fallback task.
    pub(crate) fn task(&self) -> Option<&TextRef> {
        self.task.as_ref().or(self.fallback_task.as_ref())
    }

    /// Returns the calls of the last message with calls, and the index of the first of them.
    pub(super) fn last_answer(&self) -> (usize, &[CallEntry]) {
        let last = self.calls.last().map(|call| call.span.offset);
        let own = self.calls.iter().rev().take_while(|call| Some(call.span.offset) == last);
        let from = self.calls.len() - own.count();
        (from, self.calls.split_at_known(from).1)
    }

    /// Returns the tools of the calls in the last message with calls that have no result.
    pub(crate) fn open_calls_of_last_answer(&self) -> impl Iterator<Item = &str> {
        let (_, own) = self.last_answer();
        own.iter().filter(|call| call.result.is_none()).map(|call| call.tool.as_str())
    }

    /// Sets the relations that are not known yet.
    pub(crate) fn set_family(&mut self, parent: &str, run: &str) {
        for (known, text) in [(&mut self.family.parent, parent), (&mut self.family.run, run)] {
            if known.is_none() && !text.is_empty() {
                *known = Some(shorten_word(text.to_owned()));
            }
        }
    }

    /// Returns true if a record states the tokens of the whole conversation.
    pub(crate) fn has_total(&self) -> bool {
        self.recent_messages.iter().any(|message| message.id.is_empty())
    }

    /// Returns the last text, if the conversation ended with it, or if its own records state that
    /// it ended.
    pub(crate) fn final_words(&self) -> Option<&TextRef> {
        let is_stated = self.stated.as_ref().is_some_and(|stated| {
            let is_open =
                matches!(stated.status, Status::Created | Status::Running | Status::Waiting);
            !is_open && !self.is_stated_by_other
        });
        self.last_text.as_ref().filter(|_| is_stated || self.ending == Ending::Answered)
    }

    /// Returns the work that the assistant handed in, or else its final words.
    pub(crate) fn result(&self) -> Option<&TextRef> {
        self.submission.as_ref().or_else(|| self.final_words())
    }

    /// Returns the tokens by model, including the recent messages.
    pub(crate) fn tokens_by_model(&self) -> BTreeMap<String, Tokens> {
        let all = self.tokens.iter().map(|(model, tokens)| (model, *tokens));
        let recent = self.recent_messages.iter().map(|message| (&message.model, message.tokens));
        let mut by_model: BTreeMap<String, Tokens> = BTreeMap::new();
        for (model, tokens) in all.chain(recent) {
            *by_model.entry(model.clone()).or_default() += tokens;
        }
        by_model
    }
}

impl CallEntry {
    /// Returns the name of the call's file. `at` is the call's index, from 0.
    pub(crate) fn file_name(&self, at: usize) -> Name {
        let name = to_file_name(&format!("{:03}_{}.txt", at + 1, self.tool), &[]);
        if name.as_bytes().ends_with(b".txt") {
            return name;
        }
        // A long tool name was truncated, and the extension with it.
        let whole = [name.as_bytes(), b".txt"].concat();
        Name::new(whole).unwrap_or(name)
    }
}
