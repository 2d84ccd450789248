//! What is known of a transcript once it was read: everything but the texts, which stay where they are. Plain values,
//! so that they can be kept and gone on from when the transcript has grown.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::super::jsonl::Last;
use crate::model::Tokens;
use crate::name::{Name, to_file_name};

/// Where a line stands in the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) len: usize,
}

/// What a file tells, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    /// How much was read, in bytes: up to the end of a line.
    pub(super) read: u64,
    /// How many lines that is, the empty ones left out.
    pub(super) lines: u64,
    /// Whether the last of them may still be written to.
    pub(super) last: Last,
    /// Lines that are no JSON object.
    pub(super) bad: u64,
    /// Lines of types that are not known, by type.
    pub(super) unknown: BTreeMap<String, u64>,
    /// Whether there is more that is never read, since the file is too long.
    pub(super) too_long: bool,
    /// The session that the lines name.
    pub(super) session: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) branch: Option<String>,
    /// A title that somebody gave it.
    pub(super) title: Option<String>,
    /// The conversation of the file itself.
    pub(super) own: Chain,
    /// Those of subagents that are told inside of it.
    pub(super) agents: Vec<Chain>,
    /// Which of them has which name as a worker.
    #[serde(skip)]
    pub(super) names: HashMap<Name, usize>,
    /// Lines of subagents beyond [`super::read::AGENTS_MAX`], or of a subagent's own.
    pub(super) more_agents: u64,
    /// Whether some are side chains, which are told apart by what was read before.
    pub(super) has_side_chains: bool,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Chain {
    /// The subagent whose it is; empty for the file's own.
    pub(super) agent: String,
    /// The first thing it was told.
    pub(super) task: Option<Said>,
    /// What it was told before that, which only stands for a task where there is none.
    pub(super) instead: Option<Said>,
    /// The last thing it said.
    pub(super) words: Option<Said>,
    /// How it ended, as far as it was read.
    pub(super) end: End,
    /// What its parent was told about its end.
    pub(super) reported: Option<String>,
    /// Of its first and last line, in milliseconds since 1970.
    pub(super) first: Option<i64>,
    pub(super) last: Option<i64>,
    pub(super) model: Option<String>,
    /// Tokens of all its messages but the last.
    #[serde(with = "Counted")]
    pub(super) tokens: Tokens,
    pub(super) last_message: Option<LastMessage>,
    pub(super) calls: Vec<Call>,
    /// Calls beyond [`super::read::CALLS_MAX`].
    pub(super) more_calls: u64,
    /// Results of calls that were never made.
    pub(super) stray_results: u64,
    /// Its lines, each with where it ends in the thread and in the source that are made of them.
    pub(super) lines: Vec<Piece>,
}

/// The last message of a conversation with its tokens, which stand in each of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastMessage {
    pub(super) id: String,
    #[serde(with = "Counted")]
    pub(super) tokens: Tokens,
}

/// How tokens are written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Tokens")]
struct Counted {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_creation: u64,
}

/// A line and the ends of what is made of it, in bytes from the beginning of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) span: Span,
    pub(super) thread_end: u64,
    pub(super) source_end: u64,
}

/// A text, where it stands and how it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) span: Span,
    /// How long it is, in bytes.
    pub(super) bytes: u64,
    /// A hash of all of it.
    pub(super) hash: u64,
    /// Its beginning, at most [`super::read::HEAD_MAX`] bytes.
    pub(super) head: String,
}

/// How a conversation ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum End {
    /// Nothing was said yet.
    #[default]
    Nothing,
    /// It is to answer: a user spoke, a result came, it thinks.
    Asked,
    /// It called a tool.
    Called,
    /// It said something, and no more.
    Said,
    /// Its user stopped it.
    Interrupted,
    /// The model could not be asked: what was said instead.
    Failed(String),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) tool: String,
    /// Where the line stands that made it, in bytes.
    pub(super) made: u64,
    /// When it was made, in milliseconds since 1970.
    pub(super) at: Option<i64>,
    /// What it was made with, as one line.
    pub(super) input: Option<String>,
    pub(super) done: Option<Done>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) span: Span,
    /// When it came, in milliseconds since 1970.
    pub(super) at: Option<i64>,
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

impl Facts {
    /// The conversation of this subagent, or for none the file's own.
    pub(super) fn chain(&self, agent: Option<&Name>) -> Option<&Chain> {
        match agent {
            None => Some(&self.own),
            Some(name) => self.agents.get(*self.names.get(name)?),
        }
    }

    /// The bytes that [`Facts::decode`] makes the same of.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }

    /// What was encoded; none if it is something else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Facts> {
        let mut facts: Facts = postcard::from_bytes(bytes).ok()?;
        facts.names = facts.agents.iter().enumerate().map(|(at, chain)| (chain.name(), at)).collect();
        Some(facts)
    }

    /// About how much memory this takes, in bytes.
    pub(super) fn weight(&self) -> u64 {
        let chains = self.agents.iter().chain([&self.own]);
        let of = |chain: &Chain| {
            let calls: usize = chain.calls.iter().map(|call| 400 + call.input.as_ref().map_or(0, String::len)).sum();
            1_000 + calls + chain.lines.len() * size_of::<Piece>()
        };
        chains.map(|chain| of(chain) as u64).sum::<u64>() + 1_000
    }
}

impl Chain {
    /// Its name as a worker.
    pub(super) fn name(&self) -> Name {
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
    pub(super) fn task(&self) -> Option<&Said> {
        self.task.as_ref().or(self.instead.as_ref())
    }

    /// Its last words, if it has ended with words.
    pub(super) fn final_words(&self) -> Option<&Said> {
        self.words.as_ref().filter(|_| self.end == End::Said)
    }

    /// All its tokens, if any were counted.
    pub(super) fn all_tokens(&self) -> Option<Tokens> {
        let mut all = self.tokens;
        all += self.last_message.as_ref()?.tokens;
        Some(all)
    }
}

impl Call {
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
