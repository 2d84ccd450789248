//! The index of a transcript: everything except its texts, which stay in the file. Plain values, so
//! that an index can be stored and extended when the transcript grows.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::super::jsonl::LastLine;
use super::requests::Requests;
use super::schema::Span;
use super::summaries::Summaries;
use crate::model::{FileAccess, Tokens};
use crate::name::{Name, to_file_name};

/// The index of a transcript, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TranscriptIndex {
    /// Number of bytes read, up to the end of a line.
    pub(super) bytes_read: u64,
    /// Number of non-empty lines read.
    pub(super) line_count: u64,
    /// State of the last line.
    pub(super) last_line: LastLine,
    /// Number of lines that are not a JSON object.
    pub(super) bad_lines: u64,
    /// Number of lines of each unrecognized type.
    pub(super) unknown_types: BTreeMap<String, u64>,
    /// True if the file exceeds the size limit, so that its end is never read.
    pub(super) too_long: bool,
    /// The session ID stated in the lines.
    pub(super) session: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) branch: Option<String>,
    /// The title from the preferred source.
    pub(super) title: Option<Title>,
    /// The summaries that are about this session, or may be.
    pub(super) summaries: Summaries,
    /// The conversation of the file itself.
    pub(super) main: Conversation,
    /// Conversations of subagents inside the file.
    pub(super) agents: Vec<Conversation>,
    /// Indexes into `agents`, by the name of the worker.
    #[serde(skip)]
    pub(super) agents_by_name: HashMap<Name, usize>,
    /// Number of lines of subagents beyond [`super::parser::AGENTS_MAX`], or of a subagent's own
    /// subagents.
    pub(super) excess_agent_lines: u64,
    /// True if there are side chains, whose lines can only be assigned by reading all lines before
    /// them.
    pub(super) has_side_chains: bool,
}

/// The title of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Title {
    pub(super) source: TitleSource,
    pub(super) text: String,
}

/// The source of a title. A later one in this order is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum TitleSource {
    /// A line of type `summary`.
    Summary,
    /// The program generated the title.
    Generated,
    /// The user set the title.
    User,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Conversation {
    /// The ID of the subagent; empty for the file's own conversation.
    pub(super) agent: String,
    /// The first message of the user.
    pub(super) task: Option<TextRef>,
    /// The first message written by the program, used if there is no task.
    pub(super) fallback_task: Option<TextRef>,
    /// The messages of the user.
    pub(super) requests: Requests,
    /// The last text of the assistant.
    pub(super) last_text: Option<TextRef>,
    /// The last event of the conversation, as far as it was read.
    pub(super) ending: Ending,
    /// The final status that was reported to the parent.
    pub(super) reported_status: Option<String>,
    /// Time of the first message, in milliseconds since 1970.
    pub(super) first_ms: Option<i64>,
    /// Time of the last message, in milliseconds since 1970.
    pub(super) last_ms: Option<i64>,
    pub(super) model: Option<String>,
    /// Tokens of all messages except the last, by model.
    pub(super) tokens: BTreeMap<String, Tokens>,
    /// Length of all that the assistant wrote, in bytes.
    pub(super) written_bytes: u64,
    pub(super) last_message: Option<LastMessage>,
    pub(super) calls: Vec<CallEntry>,
    /// Number of calls beyond [`super::parser::CALLS_MAX`].
    pub(super) excess_calls: u64,
    /// Number of results without a matching call.
    pub(super) orphan_results: u64,
    /// The lines of the conversation, in order.
    pub(super) lines: Vec<LineEntry>,
}

/// The ID and tokens of a conversation's last message. Each line of a message repeats its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastMessage {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) tokens: Tokens,
}

/// A line, with the offsets at which it ends in the generated thread and source files, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LineEntry {
    pub(super) span: Span,
    pub(super) thread_end: u64,
    pub(super) source_end: u64,
}

/// A file that is generated line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFile {
    /// The transcript's own lines.
    Source,
    /// The lines in the format of the thread.
    Thread,
}

impl LineEntry {
    /// Returns the offset at which the line ends in `file`, in bytes.
    pub(super) fn end(&self, file: LineFile) -> u64 {
        match file {
            LineFile::Source => self.source_end,
            LineFile::Thread => self.thread_end,
        }
    }
}

/// A reference to a text in the transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextRef {
    pub(super) span: Span,
    /// Length of the text in bytes.
    pub(super) bytes: u64,
    /// Hash of the whole text.
    pub(super) hash: u64,
    /// The beginning of the text, at most [`super::parser::HEAD_MAX`] bytes.
    pub(super) head: String,
}

/// The last event of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Ending {
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
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Ending::AwaitingReply | Ending::CalledTool | Ending::Interrupted)
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallEntry {
    pub(super) id: String,
    pub(super) tool: String,
    /// Offset of the line that made the call, in bytes.
    pub(super) line_offset: u64,
    /// Time of the call, in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    /// The arguments as one line.
    pub(super) input: Option<String>,
    /// Length of the beginning of `input` that holds the main argument, in bytes.
    pub(super) subject_len: usize,
    /// True if the main argument is a command for a shell.
    pub(super) is_command: bool,
    /// The file that the call read or changed, from its arguments and its result.
    pub(super) file: Option<FileAccess>,
    pub(super) result: Option<CallResult>,
}

impl CallEntry {
    /// Returns the beginning of the command, or `None` if the call runs none.
    pub(super) fn command(&self) -> Option<&str> {
        let input = self.input.as_deref().filter(|_| self.is_command);
        input.map(|input| input.split_at(input.floor_char_boundary(self.subject_len)).0)
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallResult {
    pub(super) span: Span,
    /// Time of the result, in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    /// Length of the result's text in bytes.
    pub(super) bytes: u64,
    /// Hash of the text.
    pub(super) hash: u64,
    pub(super) failed: bool,
    /// True if the record or the text states that the call never ran.
    pub(super) not_run: bool,
    /// A line of the output of a command that is ok by the record, but looks like a failure.
    pub(super) suspect: Option<String>,
    pub(super) exit_code: Option<i64>,
    /// True if the whole output is in a file of its own.
    pub(super) spilled: bool,
    /// True if the text states that a part was omitted.
    pub(super) truncated: bool,
}

impl TranscriptIndex {
    /// Returns the conversation of `agent`, or the file's own for `None`.
    pub(super) fn conversation(&self, agent: Option<&Name>) -> Option<&Conversation> {
        match agent {
            None => Some(&self.main),
            Some(name) => self.agents.get(*self.agents_by_name.get(name)?),
        }
    }

    /// Serializes the index; see [`TranscriptIndex::decode`].
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }

    /// Deserializes an index. Returns `None` if `bytes` are invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<TranscriptIndex> {
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
    pub(super) fn weight(&self) -> u64 {
        let conversations = self.agents.iter().chain([&self.main]);
        let conversations = conversations.map(|conversation| conversation.weight() as u64);
        conversations.sum::<u64>() + self.summaries.weight() as u64 + 1_000
    }
}

impl Conversation {
    /// Returns the approximate memory use, in bytes.
    fn weight(&self) -> usize {
        let calls: usize =
            self.calls.iter().map(|call| 600 + call.input.as_ref().map_or(0, String::len)).sum();
        1_000 + calls + self.lines.len() * size_of::<LineEntry>() + self.requests.weight()
    }

    /// Returns the name of the worker.
    pub(super) fn worker_name(&self) -> Name {
        to_file_name(&self.agent, &[])
    }

    /// Returns the length of a generated file, in bytes.
    pub(super) fn file_bytes(&self, file: LineFile) -> u64 {
        self.lines.last().map_or(0, |line| line.end(file))
    }

    /// Returns the task, if there is one.
    pub(super) fn task(&self) -> Option<&TextRef> {
        self.task.as_ref().or(self.fallback_task.as_ref())
    }

    /// Returns the last text, if the conversation ended with it.
    pub(super) fn final_words(&self) -> Option<&TextRef> {
        self.last_text.as_ref().filter(|_| self.ending == Ending::Answered)
    }

    /// Returns the tokens by model, if any were counted.
    pub(super) fn tokens_by_model(&self) -> BTreeMap<String, Tokens> {
        let all = self.tokens.iter().map(|(model, tokens)| (model, *tokens));
        let last = self.last_message.iter().map(|last| (&last.model, last.tokens));
        let mut by_model: BTreeMap<String, Tokens> = BTreeMap::new();
        for (model, tokens) in all.chain(last) {
            *by_model.entry(model.clone()).or_default() += tokens;
        }
        by_model
    }
}

impl CallEntry {
    /// Returns the name of the call's file. `at` is the call's index, from 0.
    pub(super) fn file_name(&self, at: usize) -> Name {
        let name = to_file_name(&format!("{:03}_{}.txt", at + 1, self.tool), &[]);
        if name.as_bytes().ends_with(b".txt") {
            return name;
        }
        // A long tool name was truncated, and the extension with it.
        let whole = [name.as_bytes(), b".txt"].concat();
        Name::new(whole).unwrap_or(name)
    }
}
