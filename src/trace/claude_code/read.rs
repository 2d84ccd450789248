//! From lines to facts. What was read before is gone on from where it ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use memchr::memmem;
use serde_json::Value;

use super::super::input::{INPUT_MAX, Inputs, one_line};
use super::super::jsonl::{self, Last};
use super::super::known;
use super::super::value::{cut, short_word, shortened};
use super::facts::{Call, Chain, Done, End, Facts, LastMessage, Piece, Said, Span};
use super::line::{Block, Line, Turn, Usage, decode};
use super::thread;
use crate::digest::digest;
use crate::error::Result;
use crate::model::Tokens;
use crate::store::{File, read_range};

/// So many subagents are told apart in one file; lines of further ones are counted.
pub(super) const AGENTS_MAX: usize = 10_000;
/// So many calls of a conversation are kept; further ones are counted.
pub(super) const CALLS_MAX: usize = 100_000;
/// How much of a task or of last words is kept, in bytes.
pub(super) const HEAD_MAX: usize = 8_192;
/// How many types of lines that are not known are told apart, and the longest name of one in bytes.
const UNKNOWN_MAX: usize = 50;
const TYPE_MAX: usize = 64;
/// The longest name of a tool, id or word that is kept, in bytes.
const WORD_MAX: usize = 300;
/// The arguments that tell most of what a call does.
const FIRST: [&str; 9] =
    ["command", "file_path", "notebook_path", "path", "pattern", "query", "url", "description", "prompt"];
/// How far an exit code is looked for, in bytes.
const EXIT_MAX: usize = 40;

/// Types of lines that tell nothing that is shown.
const NOT_SHOWN: [&str; 12] = [
    "system",
    "file-history-snapshot",
    "queue-operation",
    "pr-link",
    "last-prompt",
    "attachment",
    "permission-mode",
    "custom-title",
    "ai-title",
    "agent-name",
    "tag",
    "mode",
];
/// What a user's message begins with that the program wrote, not the user.
const NOT_A_TASK: [&str; 4] = ["<command-", "<local-command-", "Caveat: The messages below", "<system-reminder>"];
const INTERRUPTED: &str = "[Request interrupted by user";
/// What the result of a call begins with that was never carried out: another one failed that was made with it, or its user
/// said no.
const CANCELLED: [&str; 4] =
    ["Sibling tool call errored", "Cancelled: parallel tool call", "The user doesn't want to proceed", INTERRUPTED];
/// What a result is wrapped in that the program wrote, not the tool.
const TOOL_USE_ERROR: &str = "<tool_use_error>";
/// What a result begins with that lies in a file of its own.
const SPILLED: &str = "<persisted-output>";
/// What a tool writes where it left something out.
const TRUNCATED: &str = " truncated]";
/// Models that are none.
const SYNTHETIC: &str = "<synthetic>";

/// Whose file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A session's, in which side chains are those of others.
    Session,
    /// A subagent's own.
    Agent,
}

/// Reads on in `file` from where `facts` end until `go_on` says no. Whether that was all.
pub(super) fn read_on(file: &dyn File, whose: Whose, facts: Facts, go_on: &dyn Fn() -> bool) -> Result<(Facts, bool)> {
    if facts.too_long {
        return Ok((facts, true));
    }
    let facts = without_last(file, facts)?;
    let (start, before) = (facts.read, facts.last);
    let mut reader = Reader::new(facts, whose);
    let (lines, end, last) = jsonl::from(file, start, go_on, |line| {
        reader.facts.lines += 1;
        reader.take(Span { at: line.at, len: line.bytes.len() }, line.bytes)
    })?;
    let mut facts = reader.facts;
    facts.read = end;
    facts.last = if end == start && last == Last::Whole { before } else { last };
    facts.bad += lines.bad;
    facts.lines += lines.too_long;
    facts.too_long = lines.partly.is_some_and(|partly| !partly.late);
    Ok((facts, !lines.partly.is_some_and(|partly| partly.late)))
}

/// The same facts as if the last line had not been met, where it is going to be met again. If it was taken though its
/// end was missing, that is all of it in nearly every case; where more comes, it was another line than was thought.
fn without_last(file: &dyn File, facts: Facts) -> Result<Facts> {
    let (lines, bad) = match facts.last {
        Last::Whole => return Ok(facts),
        Last::Taken => {
            let next = read_range(file, facts.read, 1)?;
            return Ok(if next.is_empty() { facts } else { Facts::default() });
        }
        Last::Torn => (1, 0),
        Last::TooLong => (1, 1),
    };
    let (lines, bad) = (facts.lines.saturating_sub(lines), facts.bad.saturating_sub(bad));
    Ok(Facts { lines, bad, last: Last::Whole, ..facts })
}

/// Takes one line after the other.
pub(super) struct Reader {
    pub(super) facts: Facts,
    whose: Whose,
    agents: HashMap<String, usize>,
    /// Of each conversation, the file's own first: which call has which id.
    calls: Vec<HashMap<String, usize>>,
    /// Lines of side chains by their id, and the conversation that they belong to.
    side_lines: HashMap<String, usize>,
    inputs: Inputs,
}

impl Reader {
    pub(super) fn new(facts: Facts, whose: Whose) -> Reader {
        let ids = |chain: &Chain| chain.calls.iter().enumerate().map(|(at, call)| (call.id.clone(), at)).collect();
        let chains = || [&facts.own].into_iter().chain(&facts.agents);
        let inputs = chains().flat_map(|chain| &chain.calls).filter_map(|call| call.input.as_ref());
        Reader {
            whose,
            agents: facts.agents.iter().enumerate().map(|(at, chain)| (chain.agent.clone(), at + 1)).collect(),
            calls: chains().map(ids).collect(),
            side_lines: HashMap::new(),
            inputs: Inputs(inputs.map(String::len).sum()),
            facts,
        }
    }

    /// Takes the line that stands at `span`; false if it is no JSON object.
    pub(super) fn take(&mut self, span: Span, bytes: &[u8]) -> bool {
        decode(bytes, |line| self.line(span, &line))
    }

    fn line(&mut self, span: Span, line: &Line<'_>) {
        let facts = &mut self.facts;
        for (known, said) in
            [(&mut facts.session, &line.session_id), (&mut facts.cwd, &line.cwd), (&mut facts.branch, &line.git_branch)]
        {
            if known.is_none() {
                *known = said.some().map(short_word);
            }
        }
        if let Some(turn) = line.turn() {
            let chain = match turn.progress_of {
                Some(agent) => self.agent(agent),
                None => self.chain_of(line),
            };
            if let Some(chain) = chain {
                self.turn(chain, span, line, &turn);
            }
            if let Some(told) = &line.tool_use_result.0 {
                self.report(told.agent_id.as_str(), told.status.as_str());
            }
            return;
        }
        match line.kind.as_str() {
            "summary" => facts.title = line.summary.some().map(|title| cut(title, WORD_MAX)).or(facts.title.take()),
            "" => self.unknown("(none)"),
            "user" | "assistant" | "progress" => {}
            kind if NOT_SHOWN.contains(&kind) => {}
            kind => self.unknown(kind),
        }
    }

    fn unknown(&mut self, kind: &str) {
        let known = &mut self.facts.unknown;
        let kind = shortened(kind, TYPE_MAX);
        let kind = if known.len() < UNKNOWN_MAX || known.contains_key(&kind) { kind } else { "(others)".into() };
        *known.entry(kind).or_default() += 1;
    }

    /// The conversation that a line of the file belongs to, by number; the file's own is 0.
    fn chain_of(&mut self, line: &Line<'_>) -> Option<usize> {
        if self.whose == Whose::Agent || !line.is_sidechain.is_set() {
            return Some(0);
        }
        if let Some(agent) = line.agent_id.0.as_deref().filter(|agent| !agent.is_empty()) {
            return self.agent(agent);
        }
        // The oldest form: a side chain is named by nothing but its first line.
        self.facts.has_side_chains = true;
        let uuid = key(line.uuid.as_str());
        let parent = self.side_lines.get(&key(line.parent_uuid.as_str())).copied();
        let chain = match parent {
            Some(chain) => chain,
            None if uuid.is_empty() => return None,
            None => self.agent(&uuid)?,
        };
        self.side_lines.insert(uuid, chain);
        Some(chain)
    }

    /// The conversation of a subagent that is told inside of the file.
    fn agent(&mut self, agent: &str) -> Option<usize> {
        // What a subagent tells of its own subagents is not looked for when a store is listed.
        if self.whose == Whose::Agent {
            self.facts.more_agents += 1;
            return None;
        }
        let count = self.agents.len();
        match self.agents.entry(key(agent)) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(_) if count >= AGENTS_MAX => {
                self.facts.more_agents += 1;
                None
            }
            Entry::Vacant(new) => {
                let chain = Chain { agent: new.key().clone(), ..Chain::default() };
                self.facts.names.insert(chain.name(), self.facts.agents.len());
                self.facts.agents.push(chain);
                self.calls.push(HashMap::new());
                Some(*new.insert(count + 1))
            }
        }
    }

    /// What a parent was told about the end of a subagent.
    fn report(&mut self, agent: &str, status: &str) {
        if agent.is_empty() || status.is_empty() {
            return;
        }
        let at = self.agents.get(&key(agent));
        if let Some(chain) = at.and_then(|at| self.facts.agents.get_mut(at.checked_sub(1)?)) {
            chain.reported = Some(shortened(status, WORD_MAX));
        }
    }

    fn turn(&mut self, number: usize, span: Span, line: &Line<'_>, turn: &Turn<'_>) {
        let agents = &mut self.facts.agents;
        let chain = match number.checked_sub(1) {
            None => &mut self.facts.own,
            Some(at) => match agents.get_mut(at) {
                Some(chain) => chain,
                None => return,
            },
        };
        let Some(ids) = self.calls.get_mut(number) else { return };
        chain.first = chain.first.or(turn.at);
        chain.last = turn.at.or(chain.last);
        match turn.kind {
            "assistant" => assistant(chain, ids, &mut self.inputs, (span, line), turn),
            _ => user(chain, ids, (span, line), turn),
        }
        let mut counted = Counted(0);
        let find = |id: &str| ids.get(&key(id)).and_then(|at| Some((*at, chain.calls.get(*at)?)));
        // Counting cannot fail.
        let _ = thread::write(&mut counted, turn, &find);
        let (thread_end, source_end) = (chain.thread_bytes() + counted.0, chain.source_bytes() + span.len as u64);
        chain.lines.push(Piece { span, thread_end, source_end });
    }
}

fn assistant(
    chain: &mut Chain,
    ids: &mut HashMap<String, usize>,
    inputs: &mut Inputs,
    (span, line): (Span, &Line<'_>),
    turn: &Turn<'_>,
) {
    let message = turn.message;
    if let Some(model) = message.model.some().filter(|model| model != SYNTHETIC) {
        chain.model = Some(shortened(&model, WORD_MAX));
    }
    if let Some(usage) = &message.usage.0 {
        count(chain, message.id.as_str(), usage);
    }
    let text = message.content.text();
    if line.is_api_error.is_set() {
        chain.end = End::Failed(cut(text.into_owned(), HEAD_MAX));
    } else if !text.trim().is_empty() {
        chain.words = Some(said(span, &text));
        chain.end = End::Said;
    } else if chain.end != End::Said {
        chain.end = End::Asked;
    }
    for block in message.content.blocks().iter().filter(|block| block.kind.as_str() == "tool_use") {
        chain.end = End::Called;
        call(chain, ids, inputs, (span, turn.at), block);
    }
}

fn call(
    chain: &mut Chain,
    ids: &mut HashMap<String, usize>,
    inputs: &mut Inputs,
    (span, at): (Span, Option<i64>),
    block: &Block<'_>,
) {
    let id = key(block.id.as_str());
    // A line that is told twice is one call.
    if ids.contains_key(&id) {
        return;
    }
    if chain.calls.len() >= CALLS_MAX {
        chain.more_calls += 1;
        return;
    }
    let input = block.input.and_then(|raw| known::anything(raw.get())).and_then(input);
    let input = input.map(|line| inputs.keep(line));
    let tool = block.name.some().map_or_else(|| "tool".into(), |name| shortened(&name, WORD_MAX));
    ids.insert(id.clone(), chain.calls.len());
    chain.calls.push(Call { id, tool, made: span.at, at, input, done: None });
}

/// The input of a call as one line, that argument first, and without its name, which tells most of what is done.
fn input(mut arguments: Value) -> Option<String> {
    let fields = arguments.as_object_mut()?;
    let first = FIRST.iter().find_map(|name| fields.shift_remove(*name)).and_then(|value| one_line(&value));
    // A lone one would stand without its name.
    let named = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", one_line(value)?)));
    let rest = one_line(&Value::String(named.collect::<Vec<_>>().join(" ")));
    let parts: Vec<String> = [first, rest].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| cut(parts.join(" "), INPUT_MAX))
}

fn user(chain: &mut Chain, ids: &HashMap<String, usize>, (span, line): (Span, &Line<'_>), turn: &Turn<'_>) {
    for block in turn.message.content.blocks().iter().filter(|block| block.kind.as_str() == "tool_result") {
        chain.end = End::Asked;
        let known = ids.get(&key(block.tool_use_id.as_str()));
        match known.and_then(|at| chain.calls.get_mut(*at)) {
            // Of two results the first is the one that was acted on.
            Some(call) if call.done.is_some() => {}
            Some(call) => call.done = Some(done(span, turn.at, block)),
            None => chain.stray_results += 1,
        }
    }
    let text = turn.message.content.text();
    let words = text.trim();
    if words.is_empty() || line.is_meta.is_set() {
        return;
    }
    if words.starts_with(INTERRUPTED) {
        chain.end = End::Interrupted;
        return;
    }
    chain.end = End::Asked;
    if line.is_compact_summary.is_set() || NOT_A_TASK.iter().any(|not| words.starts_with(not)) {
        if chain.instead.is_none() {
            chain.instead = Some(said(span, &text));
        }
    } else if chain.task.is_none() {
        chain.task = Some(said(span, &text));
    }
}

fn done(span: Span, at: Option<i64>, block: &Block<'_>) -> Done {
    let text = block.content.text();
    let spilled = text.trim_start().starts_with(SPILLED);
    Done {
        span,
        at,
        bytes: text.len() as u64,
        hash: hash(&text),
        failed: block.is_error.is_set(),
        cancelled: block.is_error.is_set() && is_cancelled(&text),
        exit_code: exit_code(&text),
        spilled,
        truncated: !spilled && memmem::find(text.as_bytes(), TRUNCATED.as_bytes()).is_some(),
    }
}

fn is_cancelled(text: &str) -> bool {
    let said = text.strip_prefix(TOOL_USE_ERROR).unwrap_or(text);
    CANCELLED.iter().any(|head| said.starts_with(head))
}

/// An id as it is kept: of hostile length it is cut, and stays different from others.
pub(super) fn key(id: &str) -> String {
    shortened(id, WORD_MAX)
}

/// `Exit code N` at the beginning.
fn exit_code(text: &str) -> Option<i64> {
    let rest = text.strip_prefix("Exit code ")?;
    let head = rest.get(..rest.floor_char_boundary(EXIT_MAX)).unwrap_or_default();
    head.split(|c: char| !(c.is_ascii_digit() || c == '-')).next()?.parse().ok()
}

/// Counts the tokens of a message, which stand again in each of its lines.
fn count(chain: &mut Chain, id: &str, usage: &Usage) {
    let number = |number: super::super::lenient::Number| number.0.unwrap_or_default();
    let tokens = Tokens {
        input: number(usage.input_tokens),
        output: number(usage.output_tokens),
        cache_read: number(usage.cache_read_input_tokens),
        cache_creation: number(usage.cache_creation_input_tokens),
    };
    let id = key(id);
    if let Some(before) = chain.last_message.replace(LastMessage { id: id.clone(), tokens })
        && (before.id != id || id.is_empty())
    {
        chain.tokens += before.tokens;
    }
}

fn said(span: Span, text: &str) -> Said {
    let head = text.get(..text.floor_char_boundary(HEAD_MAX)).unwrap_or_default();
    Said { span, bytes: text.len() as u64, hash: hash(text), head: head.to_owned() }
}

/// What tells a text from another one that takes its place, with the same length and at the same time as its record says.
fn hash(text: &str) -> u64 {
    u64::from_le_bytes(digest(blake3::Hasher::new().update(text.as_bytes())))
}

/// Counts what is written.
struct Counted(u64);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
