//! The index of a transcript: everything except its texts, which stay in the file. Plain values, so
//! that an index can be stored and extended when the transcript grows.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::super::jsonl::LastLine;
use super::requests::Requests;
use super::summaries::Summaries;
use super::turn::{Span, Verdict};
use crate::model::{FileAccess, Status, Tokens, Worker};
use crate::name::{Name, to_file_name};

/// The index of a transcript, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) struct TranscriptIndex {
    /// Number of bytes read, up to the end of a line.
    pub(in crate::trace) bytes_read: u64,
    /// Number of non-empty lines read.
    pub(in crate::trace) line_count: u64,
    /// State of the last line.
    pub(in crate::trace) last_line: LastLine,
    /// Number of lines that are not a JSON object.
    pub(in crate::trace) bad_lines: u64,
    /// Number of lines of each unrecognized type.
    pub(in crate::trace) unknown_types: BTreeMap<String, u64>,
    /// True if the file exceeds the size limit, so that its end is never read.
    pub(in crate::trace) too_long: bool,
    /// Facts about the session that the records state.
    pub(in crate::trace) facts: SessionFacts,
    /// The summaries that are about this session, or may be.
    pub(in crate::trace) summaries: Summaries,
    /// The conversation of the file itself.
    pub(in crate::trace) main: Conversation,
    /// Conversations of subagents inside the file.
    pub(in crate::trace) agents: Vec<Conversation>,
    /// Hashes of the records that have IDs.
    pub(in crate::trace) seen: Vec<u64>,
    /// The ends of workers with transcripts of their own that the records report, by ID.
    pub(in crate::trace) ends: BTreeMap<String, ReportedEnd>,
    /// Indexes into `agents`, by the name of the worker.
    #[serde(skip)]
    pub(in crate::trace) agents_by_name: HashMap<Name, usize>,
    /// Number of lines of subagents beyond [`super::builder::AGENTS_MAX`], or of a subagent's own
    /// subagents.
    pub(in crate::trace) excess_agent_lines: u64,
    /// Number of documents, if the transcript consists of them.
    pub(in crate::trace) documents: u64,
    /// True if the transcript ends inside a document.
    pub(in crate::trace) is_torn: bool,
    /// True if new contents cannot be added without reading all that is before them.
    pub(in crate::trace) restarts: bool,
}

/// Facts about a session that its records state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) struct SessionFacts {
    /// The ID of the session.
    pub(in crate::trace) id: Option<String>,
    pub(in crate::trace) cwd: Option<String>,
    pub(in crate::trace) branch: Option<String>,
    /// The title from the preferred source.
    pub(in crate::trace) title: Option<Title>,
    /// The ID of the session that started this one.
    pub(in crate::trace) parent: Option<String>,
    /// The ID of the session of which this one is a copy with another continuation.
    pub(in crate::trace) forked_from: Option<String>,
    /// The kind of agent, as the program names it.
    pub(in crate::trace) agent_type: Option<String>,
    /// The ID of the session at the root of the sessions that started each other.
    pub(in crate::trace) root: Option<String>,
    /// Number of the first record that is not copied from another session.
    pub(in crate::trace) first_own_record: Option<u64>,
}

/// The title of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct Title {
    pub(in crate::trace) source: TitleSource,
    pub(in crate::trace) text: String,
}

/// The source of a title. A later one in this order is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::trace) enum TitleSource {
    /// A line of type `summary`.
    Summary,
    /// The program generated the title.
    Generated,
    /// The user set the title.
    User,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) struct Conversation {
    /// The ID of the subagent; empty for the file's own conversation.
    pub(in crate::trace) agent: String,
    /// The first message of the user.
    pub(in crate::trace) task: Option<TextRef>,
    /// The first message written by the program, used if there is no task.
    pub(in crate::trace) fallback_task: Option<TextRef>,
    /// The messages of the user.
    pub(in crate::trace) requests: Requests,
    /// The last text of the assistant.
    pub(in crate::trace) last_text: Option<TextRef>,
    /// The work that the assistant handed in.
    pub(in crate::trace) submission: Option<TextRef>,
    /// The last event of the conversation, as far as it was read.
    pub(in crate::trace) ending: Ending,
    /// The status that the records state.
    pub(in crate::trace) stated: Option<StatedStatus>,
    /// True if the stated status is in the parent's transcript, and the final words may be too.
    pub(in crate::trace) is_stated_by_parent: bool,
    /// Time of the first message, in milliseconds since 1970.
    pub(in crate::trace) first_ms: Option<i64>,
    /// Time of the last message, in milliseconds since 1970.
    pub(in crate::trace) last_ms: Option<i64>,
    pub(in crate::trace) model: Option<String>,
    /// Tokens of all messages except the recent ones, by model.
    pub(in crate::trace) tokens: BTreeMap<String, Tokens>,
    /// Length of all that the assistant wrote, in bytes.
    pub(in crate::trace) written_bytes: u64,
    /// The messages whose tokens were counted last, in order. They may change still.
    pub(in crate::trace) recent_messages: Vec<RecentMessage>,
    /// Hashes of the IDs of all messages before whose tokens were counted.
    pub(in crate::trace) counted: Vec<u64>,
    /// Number of the first call without a result, for results that name no call.
    pub(in crate::trace) first_open: usize,
    pub(in crate::trace) calls: Vec<CallEntry>,
    /// Number of calls beyond [`super::calls::CALLS_MAX`].
    pub(in crate::trace) excess_calls: u64,
    /// Number of results without a matching call.
    pub(in crate::trace) orphan_results: u64,
    /// The messages that have IDs, in order.
    pub(in crate::trace) marks: Vec<MessageMark>,
    /// The lines of the conversation, in order.
    pub(in crate::trace) lines: Vec<LineEntry>,
}

/// The status of a conversation that its records state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct StatedStatus {
    pub(in crate::trace) status: Status,
    /// The word of the record.
    pub(in crate::trace) word: Option<String>,
}

/// The end of a worker, as reported to the one that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportedEnd {
    pub(in crate::trace) status: Status,
    /// The word of the record.
    pub(in crate::trace) word: String,
    /// What the record says of it.
    pub(in crate::trace) message: String,
}

impl ReportedEnd {
    /// Gives `worker` this end in place of that by its own record.
    pub(crate) fn apply(&self, worker: &mut Worker) {
        worker.status = self.status;
        worker.status_source = Some(self.word.as_str().into());
        worker.error = Some(self.message.clone()).filter(|message| !message.is_empty());
    }
}

/// The place of a message that has an ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct MessageMark {
    /// Hash of the ID.
    pub(in crate::trace) id: u64,
    /// Hash of the message's text.
    pub(in crate::trace) text: u64,
    /// Numbers of calls, requests and lines before the message.
    pub(in crate::trace) calls: usize,
    pub(in crate::trace) requests: usize,
    pub(in crate::trace) lines: usize,
    /// The tokens of the message, if a record states them.
    pub(in crate::trace) tokens: Option<Box<MessageTokens>>,
    /// True if the tokens are among those of the conversation.
    pub(in crate::trace) is_counted: bool,
}

/// The tokens of one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct MessageTokens {
    /// The model under which they are counted.
    pub(in crate::trace) model: String,
    pub(in crate::trace) tokens: Tokens,
}

/// The ID and tokens of a message. Each line of a message repeats its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct RecentMessage {
    pub(in crate::trace) id: String,
    pub(in crate::trace) model: String,
    pub(in crate::trace) tokens: Tokens,
}

/// The parts of a record that the thread shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) enum Shown {
    #[default]
    All,
    /// The record repeats a message: its new calls and results, and its text if that is new.
    New { text: bool },
}

/// A line, with the offsets at which it ends in the generated thread and source files, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) struct LineEntry {
    pub(in crate::trace) span: Span,
    pub(in crate::trace) shown: Shown,
    pub(in crate::trace) thread_end: u64,
    pub(in crate::trace) source_end: u64,
}

/// A file that is generated line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) enum LineFile {
    /// The transcript's own lines.
    Source,
    /// The lines in the format of the thread.
    Thread,
}

impl LineEntry {
    /// Returns the offset at which the line ends in `file`, in bytes.
    pub(in crate::trace) fn end(&self, file: LineFile) -> u64 {
        match file {
            LineFile::Source => self.source_end,
            LineFile::Thread => self.thread_end,
        }
    }
}

/// A reference to a text in the transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct TextRef {
    pub(in crate::trace) span: Span,
    /// Length of the text in bytes.
    pub(in crate::trace) bytes: u64,
    /// Hash of the whole text.
    pub(in crate::trace) hash: u64,
    /// The beginning of the text, at most [`super::builder::HEAD_MAX`] bytes.
    pub(in crate::trace) head: String,
}

/// The last event of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::trace) enum Ending {
    /// No message yet.
    #[default]
    Empty,
    /// The assistant's turn: a user's message, a result or a thought came last.
    AwaitingReply,
    /// A tool call.
    CalledTool,
    /// A text of the assistant.
    Answered,
    /// The user interrupted the assistant.
    Interrupted,
    /// The user left before the assistant answered.
    Left,
    /// The API returned an error; holds its text.
    ApiError(String),
}

impl Ending {
    /// Returns true if nothing has ended the conversation, so that it may go on.
    pub(in crate::trace) fn is_open(&self) -> bool {
        matches!(self, Ending::AwaitingReply | Ending::CalledTool | Ending::Interrupted)
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct CallEntry {
    pub(in crate::trace) id: String,
    pub(in crate::trace) tool: String,
    /// The record that made the call.
    pub(in crate::trace) span: Span,
    /// Time of the call, in milliseconds since 1970.
    pub(in crate::trace) at_ms: Option<i64>,
    /// The arguments as one line.
    pub(in crate::trace) input: Option<String>,
    /// Length of the beginning of `input` that holds the main argument, in bytes.
    pub(in crate::trace) subject_len: usize,
    /// True if the main argument is a command for a shell.
    pub(in crate::trace) is_command: bool,
    /// The files that the call read or changed, from its arguments and its result.
    pub(in crate::trace) files: Vec<FileAccess>,
    pub(in crate::trace) result: Option<CallResult>,
    /// The ID of the work that the call started and that goes on after its result.
    pub(in crate::trace) task: Option<String>,
    /// An outcome that a record of its own states. It wins over that of the result.
    pub(in crate::trace) stated: Option<Verdict>,
    /// A record of its own that describes the changes of files.
    pub(in crate::trace) change_record: Option<Span>,
}

impl CallEntry {
    /// Returns the outcome of the call, or `None` if it has neither a result nor a stated outcome.
    pub(in crate::trace) fn verdict(&self) -> Option<Verdict> {
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
    pub(in crate::trace) fn is_open(&self) -> bool {
        self.stated.is_none() && self.result.as_ref().is_some_and(|result| result.is_open)
    }

    /// Returns the beginning of the command, or `None` if the call runs none.
    pub(in crate::trace) fn command(&self) -> Option<&str> {
        let input = self.input.as_deref().filter(|_| self.is_command);
        input.map(|input| input.split_at(input.floor_char_boundary(self.subject_len)).0)
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::trace) struct CallResult {
    pub(in crate::trace) span: Span,
    /// Number of the result in its record, from 0.
    pub(in crate::trace) part: usize,
    /// Time of the result, in milliseconds since 1970.
    pub(in crate::trace) at_ms: Option<i64>,
    /// Length of the result's text in bytes.
    pub(in crate::trace) bytes: u64,
    /// Hash of the text.
    pub(in crate::trace) hash: u64,
    /// The outcome that the result states.
    pub(in crate::trace) verdict: Verdict,
    /// A line of the output of a command that is ok by the record, but looks like a failure.
    pub(in crate::trace) suspect: Option<String>,
    /// True if the whole output is in a file of its own.
    pub(in crate::trace) spilled: bool,
    /// True if the text states that a part was omitted.
    pub(in crate::trace) truncated: bool,
    /// True if the result is a report about the call. The assistant's own result replaces it.
    pub(in crate::trace) is_report: bool,
    /// True if the work of the call has not ended as far as the record shows.
    pub(in crate::trace) is_open: bool,
}

impl TranscriptIndex {
    /// Returns the conversation of `agent`, or the file's own for `None`.
    pub(in crate::trace) fn conversation(&self, agent: Option<&Name>) -> Option<&Conversation> {
        match agent {
            None => Some(&self.main),
            Some(name) => self.agents.get(*self.agents_by_name.get(name)?),
        }
    }

    /// Returns the conversation with a number; the transcript's own is 0.
    pub(in crate::trace) fn numbered(&self, number: usize) -> Option<&Conversation> {
        match number.checked_sub(1) {
            None => Some(&self.main),
            Some(at) => self.agents.get(at),
        }
    }

    /// Returns the conversation with a number, to change it.
    pub(in crate::trace) fn numbered_mut(&mut self, number: usize) -> Option<&mut Conversation> {
        match number.checked_sub(1) {
            None => Some(&mut self.main),
            Some(at) => self.agents.get_mut(at),
        }
    }

    /// Returns an empty index to start over with. It remembers if the transcript was a whole
    /// document.
    pub(in crate::trace) fn before_rewrite(&self) -> TranscriptIndex {
        let (documents, is_torn) = (self.documents, self.is_torn);
        TranscriptIndex { documents, is_torn, ..TranscriptIndex::default() }
    }

    /// Serializes the index; see [`TranscriptIndex::decode`].
    pub(in crate::trace) fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }

    /// Deserializes an index. Returns `None` if `bytes` are invalid.
    pub(in crate::trace) fn decode(bytes: &[u8]) -> Option<TranscriptIndex> {
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
    pub(in crate::trace) fn weight(&self) -> u64 {
        let conversations = self.agents.iter().chain([&self.main]);
        let conversations = conversations.map(|conversation| conversation.weight() as u64);
        conversations.sum::<u64>()
            + 30 * self.seen.len() as u64
            + self.summaries.weight() as u64
            + 1_000
    }
}

impl Conversation {
    /// Returns the approximate memory use, in bytes.
    fn weight(&self) -> usize {
        let calls: usize =
            self.calls.iter().map(|call| 600 + call.input.as_ref().map_or(0, String::len)).sum();
        let marks = size_of::<MessageMark>() + size_of::<MessageTokens>();
        1_000
            + calls
            + self.lines.len() * size_of::<LineEntry>()
            + self.counted.len() * 30
            + self.marks.len() * marks
            + self.requests.weight()
    }

    /// Returns the name of the worker.
    pub(in crate::trace) fn worker_name(&self) -> Name {
        to_file_name(&self.agent, &[])
    }

    /// Returns the length of a generated file, in bytes.
    pub(in crate::trace) fn file_bytes(&self, file: LineFile) -> u64 {
        self.lines.last().map_or(0, |line| line.end(file))
    }

    /// Returns the task, if there is one.
    pub(in crate::trace) fn task(&self) -> Option<&TextRef> {
        self.task.as_ref().or(self.fallback_task.as_ref())
    }

    /// Returns the last text, if the conversation ended with it, or if its own records state that
    /// it ended.
    pub(in crate::trace) fn final_words(&self) -> Option<&TextRef> {
        let is_stated = self.stated.as_ref().is_some_and(|stated| {
            !matches!(stated.status, Status::Created | Status::Running) && !self.is_stated_by_parent
        });
        self.last_text.as_ref().filter(|_| is_stated || self.ending == Ending::Answered)
    }

    /// Returns the work that the assistant handed in, or else its final words.
    pub(in crate::trace) fn result(&self) -> Option<&TextRef> {
        self.submission.as_ref().or_else(|| self.final_words())
    }

    /// Returns the tokens by model, if any were counted.
    pub(in crate::trace) fn tokens_by_model(&self) -> BTreeMap<String, Tokens> {
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
    pub(in crate::trace) fn file_name(&self, at: usize) -> Name {
        let name = to_file_name(&format!("{:03}_{}.txt", at + 1, self.tool), &[]);
        if name.as_bytes().ends_with(b".txt") {
            return name;
        }
        // A long tool name was truncated, and the extension with it.
        let whole = [name.as_bytes(), b".txt"].concat();
        Name::new(whole).unwrap_or(name)
    }
}
