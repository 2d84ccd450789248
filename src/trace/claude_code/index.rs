//! What is known of a transcript once it was read: everything but the texts, which stay where they are. Plain values,
//! so that they can be kept and gone on from when the transcript has grown.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::super::jsonl::LastLine;
use crate::model::Tokens;
use crate::name::{Name, to_file_name};

/// Where a line stands in the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// What a file tells, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TranscriptIndex {
    /// How much was read, in bytes: up to the end of a line.
    pub(super) bytes_read: u64,
    /// How many lines that is, the empty ones left out.
    pub(super) line_count: u64,
    /// Whether the last of them may still be written to.
    pub(super) last_line: LastLine,
    /// Lines that are no JSON object.
    pub(super) bad_lines: u64,
    /// Lines of types that are not known, by type.
    pub(super) unknown_types: BTreeMap<String, u64>,
    /// Whether there is more that is never read, since the file is too long.
    pub(super) too_long: bool,
    /// The session that the lines name.
    pub(super) session: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) branch: Option<String>,
    /// A title that somebody gave it.
    pub(super) title: Option<String>,
    /// The conversation of the file itself.
    pub(super) main: Conversation,
    /// Those of subagents that are told inside of it.
    pub(super) agents: Vec<Conversation>,
    /// Which of them has which name as a worker.
    #[serde(skip)]
    pub(super) agents_by_name: HashMap<Name, usize>,
    /// Lines of subagents beyond [`super::parser::AGENTS_MAX`], or of a subagent's own.
    pub(super) excess_agent_lines: u64,
    /// Whether some are side chains, which are told apart by what was read before.
    pub(super) has_side_chains: bool,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Conversation {
    /// The subagent whose it is; empty for the file's own.
    pub(super) agent: String,
    /// The first thing it was told.
    pub(super) task: Option<TextRef>,
    /// What it was told before that, which only stands for a task where there is none.
    pub(super) fallback_task: Option<TextRef>,
    /// The last thing it said.
    pub(super) last_text: Option<TextRef>,
    /// How it ended, as far as it was read.
    pub(super) ending: Ending,
    /// What its parent was told about its end.
    pub(super) reported_status: Option<String>,
    /// Of its first and last line, in milliseconds since 1970.
    pub(super) first_ms: Option<i64>,
    pub(super) last_ms: Option<i64>,
    pub(super) model: Option<String>,
    /// Tokens of all its messages but the last.
    #[serde(with = "TokensDef")]
    pub(super) tokens: Tokens,
    pub(super) last_message: Option<LastMessage>,
    pub(super) calls: Vec<CallEntry>,
    /// Calls beyond [`super::parser::CALLS_MAX`].
    pub(super) excess_calls: u64,
    /// Results of calls that were never made.
    pub(super) orphan_results: u64,
    /// Its lines, each with where it ends in the thread and in the source that are made of them.
    pub(super) lines: Vec<LineEntry>,
}

/// The last message of a conversation with its tokens, which stand in each of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastMessage {
    pub(super) id: String,
    #[serde(with = "TokensDef")]
    pub(super) tokens: Tokens,
}

/// How tokens are written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Tokens")]
struct TokensDef {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_creation: u64,
}

/// A line and the ends of what is made of it, in bytes from the beginning of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LineEntry {
    pub(super) span: Span,
    pub(super) thread_end: u64,
    pub(super) source_end: u64,
}

/// A text, where it stands and how it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextRef {
    pub(super) span: Span,
    /// How long it is, in bytes.
    pub(super) bytes: u64,
    /// A hash of all of it.
    pub(super) hash: u64,
    /// Its beginning, at most [`super::parser::HEAD_MAX`] bytes.
    pub(super) head: String,
}

/// How a conversation ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Ending {
    /// Nothing was said yet.
    #[default]
    Empty,
    /// It is to answer: a user spoke, a result came, it thinks.
    AwaitingReply,
    /// It called a tool.
    CalledTool,
    /// It said something, and no more.
    Answered,
    /// Its user stopped it.
    Interrupted,
    /// The model could not be asked: what was said instead.
    ApiError(String),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallEntry {
    pub(super) id: String,
    pub(super) tool: String,
    /// Where the line stands that made it, in bytes.
    pub(super) line_offset: u64,
    /// When it was made, in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    /// What it was made with, as one line.
    pub(super) input: Option<String>,
    pub(super) result: Option<CallResult>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallResult {
    pub(super) span: Span,
    /// When it came, in milliseconds since 1970.
    pub(super) at_ms: Option<i64>,
    /// How long the text is that stands there, in bytes.
    pub(super) bytes: u64,
    /// A hash of it.
    pub(super) hash: u64,
    pub(super) failed: bool,
    /// Whether it says that the call was never carried out.
    pub(super) cancelled: bool,
    pub(super) exit_code: Option<i64>,
    /// Whether all of it lies in a file of its own.
    pub(super) spilled: bool,
    /// Whether the text itself says that some of it was left out.
    pub(super) truncated: bool,
}

impl TranscriptIndex {
    /// The conversation of this subagent, or for none the file's own.
    pub(super) fn conversation(&self, agent: Option<&Name>) -> Option<&Conversation> {
        match agent {
            None => Some(&self.main),
            Some(name) => self.agents.get(*self.agents_by_name.get(name)?),
        }
    }

    /// The bytes that [`TranscriptIndex::decode`] makes the same of.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }

    /// What was encoded; none if it is something else.
    pub(super) fn decode(bytes: &[u8]) -> Option<TranscriptIndex> {
        let mut index: TranscriptIndex = postcard::from_bytes(bytes).ok()?;
        index.agents_by_name =
            index.agents.iter().enumerate().map(|(at, conversation)| (conversation.worker_name(), at)).collect();
        Some(index)
    }

    /// About how much memory this takes, in bytes.
    pub(super) fn weight(&self) -> u64 {
        let conversations = self.agents.iter().chain([&self.main]);
        let of = |conversation: &Conversation| {
            let calls: usize =
                conversation.calls.iter().map(|call| 400 + call.input.as_ref().map_or(0, String::len)).sum();
            1_000 + calls + conversation.lines.len() * size_of::<LineEntry>()
        };
        conversations.map(|conversation| of(conversation) as u64).sum::<u64>() + 1_000
    }
}

impl Conversation {
    /// Its name as a worker.
    pub(super) fn worker_name(&self) -> Name {
        to_file_name(&self.agent, &[])
    }

    /// How long the thread is that is made of it, in bytes.
    pub(super) fn thread_bytes(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.thread_end)
    }

    /// How long its lines are together, in bytes.
    pub(super) fn source_bytes(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.source_end)
    }

    /// Its task, if it was given one.
    pub(super) fn task(&self) -> Option<&TextRef> {
        self.task.as_ref().or(self.fallback_task.as_ref())
    }

    /// Its last words, if it has ended with words.
    pub(super) fn final_words(&self) -> Option<&TextRef> {
        self.last_text.as_ref().filter(|_| self.ending == Ending::Answered)
    }

    /// All its tokens, if any were counted.
    pub(super) fn all_tokens(&self) -> Option<Tokens> {
        let mut all = self.tokens;
        all += self.last_message.as_ref()?.tokens;
        Some(all)
    }
}

impl CallEntry {
    /// The name of its file; `at` is its place among the calls.
    pub(super) fn file_name(&self, at: usize) -> Name {
        let name = to_file_name(&format!("{:03}_{}.txt", at + 1, self.tool), &[]);
        if name.as_bytes().ends_with(b".txt") {
            return name;
        }
        // A tool's name that was too long was cut, and the ending with it.
        let whole = [name.as_bytes(), b".txt"].concat();
        Name::new(whole).unwrap_or(name)
    }
}
