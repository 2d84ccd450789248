//! Parses transcript lines into an index. Resumes where the last read ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use memchr::memmem;
use serde_json::Value;

use super::super::bounded;
use super::super::input::{INPUT_MAX, InputBudget, one_line};
use super::super::jsonl::{self, LastLine};
use super::super::lenient::MaybeU64;
use super::super::value::{shorten, shorten_word, truncate};
use super::index::{
    CallEntry, CallResult, Conversation, Ending, LastMessage, LineEntry, LineFile, TextRef, Title,
    TitleSource, TranscriptIndex,
};
use super::layout::TranscriptKind;
use super::requests::{ProgramTexts, REFUSED_PREFIX, RequestPart, refusal_words, user_text};
use super::schema::{
    ContentBlock, Span, TokenUsage, ToolUseResult, TranscriptLine, Turn, decode, parse_millis,
};
use super::thread;
use crate::deadline::Deadline;
use crate::digest::digest;
use crate::error::Result;
use crate::failure_signs::suspect_line;
use crate::model::{AccessKind, FileAccess, Tokens};
use crate::store::{File, read_range};

/// Maximum number of subagents in one file; lines of further ones are counted.
pub(super) const AGENTS_MAX: usize = 10_000;
/// Maximum number of calls in a conversation; further ones are counted.
pub(super) const CALLS_MAX: usize = 100_000;
/// Maximum length of the kept beginning of a text, in bytes.
pub(super) const HEAD_MAX: usize = 8_192;
/// Maximum number of unrecognized line types that are counted separately.
const UNKNOWN_TYPES_MAX: usize = 50;
/// Maximum length of the name of an unrecognized line type, in bytes.
const TYPE_MAX: usize = 64;
/// Maximum length of a tool name, ID or other short value, in bytes.
const WORD_MAX: usize = 300;
/// The most informative arguments of a call, best first.
const KEY_ARGUMENTS: [&str; 9] = [
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "query",
    "url",
    "description",
    "prompt",
];
/// The argument that holds a command for a shell.
const COMMAND_ARGUMENT: &str = "command";
/// The arguments that hold the path of a file that a call reads or changes.
const FILE_ARGUMENTS: [&str; 2] = ["file_path", "notebook_path"];
/// The arguments that hold new content of a file.
const CONTENT_ARGUMENTS: [&str; 4] = ["new_string", "content", "new_source", "edits"];
/// Maximum number of models whose tokens are counted separately.
const MODELS_MAX: usize = 50;
/// Number of bytes in which an exit code is searched.
const EXIT_CODE_MAX: usize = 40;

/// Line types that hold nothing to show.
const IGNORED_TYPES: [&str; 15] = [
    "system",
    "file-history-snapshot",
    "pr-link",
    "last-prompt",
    "attachment",
    "permission-mode",
    "agent-name",
    "tag",
    "mode",
    "tools-used",
    "api-request",
    "api-request-blob",
    "api-request-shape",
    "atis-latch",
    "cost-state",
];
/// Prefix of the message that starts a prompt stored under a name. The assistant answers it.
const PROMPT_PREFIX: &str = "<command-message>";
/// Prefixes of the messages that record that the user left.
const FAREWELL_PREFIXES: [&str; 3] = [
    "<command-name>/exit</command-name>",
    "<command-name>/quit</command-name>",
    "<command-name>/clear</command-name>",
];
/// The prefix of the message that records an interruption by the user.
const INTERRUPTED_PREFIX: &str = "[Request interrupted by user";
/// Prefixes of the result of a call that never ran: a parallel call failed, the user refused it, or
/// it had no permission.
const NOT_RUN_PREFIXES: [&str; 7] = [
    "Sibling tool call errored",
    "Cancelled: parallel tool call",
    REFUSED_PREFIX,
    "Permission to use ",
    "Claude requested permissions to",
    "This command requires approval",
    INTERRUPTED_PREFIX,
];
/// A tag that the program puts around a result.
const TOOL_USE_ERROR_TAG: &str = "<tool_use_error>";
/// The prefix of a result that is stored in a file of its own.
const SPILLED_PREFIX: &str = "<persisted-output>";
/// The note of a tool that omitted a part of its output.
const TRUNCATION_NOTE: &str = " truncated]";
/// The model name of messages that no model wrote.
const SYNTHETIC_MODEL: &str = "<synthetic>";

/// Extends `index` with the new lines of `file`, until `deadline` passes. Returns the index, and
/// true if it is complete.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read_on(
    file: &dyn File,
    kind: TranscriptKind,
    index: TranscriptIndex,
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    if index.too_long {
        return Ok((index, true));
    }
    let index = without_last_line(file, index)?;
    let (start, before) = (index.bytes_read, index.last_line);
    let mut parser = TranscriptParser::new(index, kind);
    let (lines, end, last) = jsonl::for_each_from(file, start, deadline, |line| {
        parser.index.line_count += 1;
        parser.parse_line(Span { offset: line.offset, len: line.bytes.len() }, line.bytes)
    })?;
    let mut index = parser.index;
    index.bytes_read = end;
    index.last_line = if end == start && last == LastLine::Complete { before } else { last };
    index.bad_lines += lines.bad;
    index.line_count += lines.too_long;
    index.too_long = lines.partial.is_some_and(|partial| !partial.timed_out);
    Ok((index, !lines.partial.is_some_and(|partial| partial.timed_out)))
}

/// Removes the last line from the counts if it will be read again. An unterminated line that was
/// decoded is complete in nearly every case. If more bytes follow it, it was misread, and indexing
/// starts over.
fn without_last_line(file: &dyn File, index: TranscriptIndex) -> Result<TranscriptIndex> {
    let (lines, bad) = match index.last_line {
        LastLine::Complete => return Ok(index),
        LastLine::Unterminated => {
            let next = read_range(file, index.bytes_read, 1)?;
            return Ok(if next.is_empty() { index } else { TranscriptIndex::default() });
        }
        LastLine::Torn => (1, 0),
        LastLine::TooLong => (1, 1),
    };
    let (line_count, bad_lines) =
        (index.line_count.saturating_sub(lines), index.bad_lines.saturating_sub(bad));
    Ok(TranscriptIndex { line_count, bad_lines, last_line: LastLine::Complete, ..index })
}

/// Adds lines to an index, one at a time.
pub(super) struct TranscriptParser {
    pub(super) index: TranscriptIndex,
    kind: TranscriptKind,
    agents: HashMap<String, usize>,
    /// Indexes of the calls by ID, for each conversation; the file's own comes first.
    calls: Vec<HashMap<String, usize>>,
    /// The conversation of each side chain line, by the line's ID.
    side_chain_lines: HashMap<String, usize>,
    inputs: InputBudget,
}

impl TranscriptParser {
    pub(super) fn new(index: TranscriptIndex, kind: TranscriptKind) -> TranscriptParser {
        let conversations = || [&index.main].into_iter().chain(&index.agents);
        let inputs = conversations()
            .flat_map(|conversation| &conversation.calls)
            .filter_map(|call| call.input.as_ref());
        TranscriptParser {
            kind,
            agents: index
                .agents
                .iter()
                .enumerate()
                .map(|(at, conversation)| (conversation.agent.clone(), at + 1))
                .collect(),
            calls: conversations().map(call_numbers).collect(),
            side_chain_lines: HashMap::new(),
            inputs: InputBudget(inputs.map(String::len).sum()),
            index,
        }
    }

    /// Adds the line at `span`. Returns false if it is not a JSON object.
    pub(super) fn parse_line(&mut self, span: Span, bytes: &[u8]) -> bool {
        decode(bytes, |line| self.add_line(span, &line))
    }

    fn add_line(&mut self, span: Span, line: &TranscriptLine<'_>) {
        let index = &mut self.index;
        for (field, value) in [
            (&mut index.session, &line.session_id),
            (&mut index.cwd, &line.cwd),
            (&mut index.branch, &line.git_branch),
        ] {
            if field.is_none() {
                *field = value.non_empty().map(shorten_word);
            }
        }
        let summary = index.summaries.note_line(line.uuid.as_str());
        set_title(index, TitleSource::Summary, summary);
        if let Some(turn) = line.turn() {
            let conversation = match turn.agent_id {
                Some(agent) => self.agent_conversation(agent),
                None => self.conversation_of_line(line),
            };
            if let Some(conversation) = conversation {
                self.add_turn(conversation, span, line, &turn);
            }
            if let Some(result) = &line.tool_use_result.0 {
                self.set_reported_status(result.agent_id.as_str(), result.status.as_str());
            }
            return;
        }
        match line.kind.as_str() {
            "summary" => {
                let summary = line.summary.non_empty().map(|text| truncate(text, WORD_MAX));
                let own = summary.and_then(|text| index.summaries.add(line.leaf.as_str(), text));
                set_title(index, TitleSource::Summary, own);
            }
            "ai-title" => set_title(index, TitleSource::Generated, line.ai_title.non_empty()),
            "custom-title" => set_title(index, TitleSource::User, line.custom_title.non_empty()),
            "" => self.count_unknown_type("(none)"),
            "user" | "assistant" | "progress" => {}
            "queue-operation" => {
                let at_ms = parse_millis(line.timestamp.as_str());
                let message = line.content.as_str();
                index.main.requests.change_queue(line.operation.as_str(), message, span, at_ms);
            }
            kind if IGNORED_TYPES.contains(&kind) => {}
            kind => self.count_unknown_type(kind),
        }
    }

    fn count_unknown_type(&mut self, kind: &str) {
        let counts = &mut self.index.unknown_types;
        let kind = shorten(kind, TYPE_MAX);
        let kind = if counts.len() < UNKNOWN_TYPES_MAX || counts.contains_key(&kind) {
            kind
        } else {
            "(others)".into()
        };
        *counts.entry(kind).or_default() += 1;
    }

    /// Returns the number of the conversation that a line belongs to; the file's own is 0.
    fn conversation_of_line(&mut self, line: &TranscriptLine<'_>) -> Option<usize> {
        if self.kind == TranscriptKind::Agent || !line.is_sidechain.is_set() {
            return Some(0);
        }
        if let Some(agent) = line.agent_id.0.as_deref().filter(|agent| !agent.is_empty()) {
            return self.agent_conversation(agent);
        }
        // The oldest form: only the first line identifies a side chain.
        self.index.has_side_chains = true;
        let uuid = shorten_id(line.uuid.as_str());
        let parent = self.side_chain_lines.get(&shorten_id(line.parent_uuid.as_str())).copied();
        let conversation = match parent {
            Some(conversation) => conversation,
            None if uuid.is_empty() => return None,
            None => self.agent_conversation(&uuid)?,
        };
        self.side_chain_lines.insert(uuid, conversation);
        Some(conversation)
    }

    /// Returns the number of a subagent's conversation inside the file, adding it if necessary.
    fn agent_conversation(&mut self, agent: &str) -> Option<usize> {
        // Listing a store does not search for subagents of subagents.
        if self.kind == TranscriptKind::Agent {
            self.index.excess_agent_lines += 1;
            return None;
        }
        let count = self.agents.len();
        match self.agents.entry(shorten_id(agent)) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(_) if count >= AGENTS_MAX => {
                self.index.excess_agent_lines += 1;
                None
            }
            Entry::Vacant(new) => {
                let conversation =
                    Conversation { agent: new.key().clone(), ..Conversation::default() };
                self.index
                    .agents_by_name
                    .insert(conversation.worker_name(), self.index.agents.len());
                self.index.agents.push(conversation);
                self.calls.push(HashMap::new());
                Some(*new.insert(count + 1))
            }
        }
    }

    /// Notes the final status of a subagent, as reported to its parent.
    fn set_reported_status(&mut self, agent: &str, status: &str) {
        if agent.is_empty() || status.is_empty() {
            return;
        }
        let at = self.agents.get(&shorten_id(agent));
        if let Some(conversation) = at.and_then(|at| self.index.agents.get_mut(at.checked_sub(1)?))
        {
            conversation.reported_status = Some(shorten(status, WORD_MAX));
        }
    }

    fn add_turn(&mut self, number: usize, span: Span, line: &TranscriptLine<'_>, turn: &Turn<'_>) {
        let agents = &mut self.index.agents;
        let conversation = match number.checked_sub(1) {
            None => &mut self.index.main,
            Some(at) => match agents.get_mut(at) {
                Some(conversation) => conversation,
                None => return,
            },
        };
        let Some(ids) = self.calls.get_mut(number) else { return };
        conversation.first_ms = conversation.first_ms.or(turn.at_ms);
        conversation.last_ms = turn.at_ms.or(conversation.last_ms);
        match turn.kind {
            "assistant" => {
                add_assistant_turn(conversation, ids, &mut self.inputs, span, line, turn)
            }
            _ => add_user_turn(conversation, ids, span, line, turn),
        }
        let mut thread_bytes = ByteCounter(0);
        // Counting cannot fail.
        let _ = thread::write_turn(&mut thread_bytes, turn, &|id| {
            let at = *ids.get(&shorten_id(id))?;
            Some((at, conversation.calls.get(at)?))
        });
        let thread_end = conversation.file_bytes(LineFile::Thread) + thread_bytes.0;
        let source_end = conversation.file_bytes(LineFile::Source) + span.len as u64;
        conversation.lines.push(LineEntry { span, thread_end, source_end });
    }
}

/// Sets the title unless it has one from a preferred source.
fn set_title(index: &mut TranscriptIndex, source: TitleSource, text: Option<String>) {
    let Some(text) = text.map(|text| truncate(text, WORD_MAX)) else { return };
    if index.title.as_ref().is_none_or(|title| title.source <= source) {
        index.title = Some(Title { source, text });
    }
}

/// Returns the indexes of a conversation's calls, by ID.
pub(super) fn call_numbers(conversation: &Conversation) -> HashMap<String, usize> {
    conversation.calls.iter().enumerate().map(|(at, call)| (call.id.clone(), at)).collect()
}

fn add_assistant_turn(
    conversation: &mut Conversation,
    ids: &mut HashMap<String, usize>,
    inputs: &mut InputBudget,
    span: Span,
    line: &TranscriptLine<'_>,
    turn: &Turn<'_>,
) {
    let message = turn.message;
    if message.model.as_str() != SYNTHETIC_MODEL {
        if let Some(model) = message.model.non_empty() {
            conversation.model = Some(shorten(&model, WORD_MAX));
        }
        if let Some(usage) = &message.usage.0 {
            count_tokens(conversation, message.id.as_str(), message.model.as_str(), usage);
        }
        conversation.written_bytes += written_bytes(turn);
    }
    let text = message.content.text();
    if line.is_api_error.is_set() {
        conversation.ending = Ending::ApiError(truncate(text.into_owned(), HEAD_MAX));
    } else if !text.trim().is_empty() {
        conversation.last_text = Some(text_ref(span, &text));
        conversation.ending = Ending::Answered;
    } else if conversation.ending != Ending::Answered {
        conversation.ending = Ending::AwaitingReply;
    }
    for block in message.content.blocks().iter().filter(|block| block.kind.as_str() == "tool_use") {
        conversation.ending = Ending::CalledTool;
        add_call(conversation, ids, inputs, span, turn.at_ms, block);
    }
}

fn add_call(
    conversation: &mut Conversation,
    ids: &mut HashMap<String, usize>,
    inputs: &mut InputBudget,
    span: Span,
    at_ms: Option<i64>,
    block: &ContentBlock<'_>,
) {
    let id = shorten_id(block.id.as_str());
    // A repeated line does not repeat its calls.
    if ids.contains_key(&id) {
        return;
    }
    if conversation.calls.len() >= CALLS_MAX {
        conversation.excess_calls += 1;
        return;
    }
    let arguments = block.input.and_then(|raw| bounded::parse_any(raw.get()));
    let is_command =
        arguments.as_ref().is_some_and(|fields| fields.get(COMMAND_ARGUMENT).is_some());
    let file = arguments.as_ref().and_then(accessed_file);
    let (input, subject_len) = arguments.and_then(input_line).unzip();
    let input = input.map(|line| inputs.truncate_input(line));
    let tool =
        block.name.non_empty().map_or_else(|| "tool".into(), |name| shorten(&name, WORD_MAX));
    ids.insert(id.clone(), conversation.calls.len());
    conversation.calls.push(CallEntry {
        id,
        tool,
        line_offset: span.offset,
        at_ms,
        subject_len: subject_len.unwrap_or(0).min(input.as_ref().map_or(0, String::len)),
        input,
        is_command,
        file,
        result: None,
    });
}

/// Returns the file that the arguments of a call name, with the lines that they add and remove.
fn accessed_file(arguments: &Value) -> Option<FileAccess> {
    let path = FILE_ARGUMENTS.iter().find_map(|name| arguments.get(name)?.as_str())?;
    let changes = CONTENT_ARGUMENTS.iter().any(|name| arguments.get(name).is_some());
    let lines = |name: &str| {
        arguments.get(name).and_then(Value::as_str).map_or(0, |text| text.lines().count() as u64)
    };
    Some(FileAccess {
        path: shorten(path, WORD_MAX),
        kind: if changes { AccessKind::Edited } else { AccessKind::Read },
        added: CONTENT_ARGUMENTS.iter().map(|name| lines(name)).sum(),
        removed: lines("old_string"),
    })
}

/// Replaces the counts from the arguments of a change by those from its result.
fn refine_file(file: &mut FileAccess, result: &ToolUseResult<'_>) {
    if file.kind == AccessKind::Read || result.file_path.as_str().is_empty() {
        return;
    }
    if result.kind.as_str() == "create" {
        let added = result.content.as_str().lines().count() as u64;
        (file.kind, file.added, file.removed) = (AccessKind::Created, added, 0);
        return;
    }
    let hunks = result.patch.0.iter().filter_map(|hunk| hunk.0.as_ref());
    let lines: Vec<&str> =
        hunks.flat_map(|hunk| hunk.lines.0.iter().map(|line| line.as_str())).collect();
    if !lines.is_empty() {
        let count = |sign: char| lines.iter().filter(|line| line.starts_with(sign)).count() as u64;
        (file.added, file.removed) = (count('+'), count('-'));
    }
}

/// Returns the length of the assistant's texts, thoughts and arguments in a turn, in bytes.
fn written_bytes(turn: &Turn<'_>) -> u64 {
    let blocks = turn.message.content.blocks().iter().map(|block| {
        block.text.as_str().len()
            + block.thinking.as_str().len()
            + block.input.map_or(0, |input| input.get().len())
    });
    blocks.sum::<usize>() as u64
}

/// Returns the arguments of a call as one line, and the length of the main argument at its
/// beginning, in bytes. The main argument comes without its name.
fn input_line(mut arguments: Value) -> Option<(String, usize)> {
    let fields = arguments.as_object_mut()?;
    let first = KEY_ARGUMENTS
        .iter()
        .find_map(|name| fields.shift_remove(*name))
        .and_then(|value| one_line(&value));
    // `one_line` omits the name of a single argument, so names are added here.
    let named =
        fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", one_line(value)?)));
    let rest = one_line(&Value::String(named.collect::<Vec<_>>().join(" ")));
    let subject_len = first.as_ref().map_or(0, String::len);
    let parts: Vec<String> = [first, rest].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| (truncate(parts.join(" "), INPUT_MAX), subject_len))
}

fn add_user_turn(
    conversation: &mut Conversation,
    ids: &HashMap<String, usize>,
    span: Span,
    line: &TranscriptLine<'_>,
    turn: &Turn<'_>,
) {
    let blocks = turn.message.content.blocks();
    let results: Vec<(usize, &ContentBlock<'_>)> = blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| block.kind.as_str() == "tool_result")
        .collect();
    // The fields of a line belong to its only result.
    let is_only = results.len() == 1;
    let details = line.tool_use_result.0.as_ref().filter(|_| is_only);
    let ran = line.call_ran().filter(|_| is_only);
    for (at, block) in results {
        conversation.ending = Ending::AwaitingReply;
        let number = ids.get(&shorten_id(block.tool_use_id.as_str()));
        match number.and_then(|at| conversation.calls.get_mut(*at)) {
            // The assistant acted on the first of two results.
            Some(call) if call.result.is_some() => {}
            Some(call) => {
                let result = call_result(span, turn.at_ms, block, call.command(), ran);
                if result.not_run
                    && let Some(words) = refusal_words(&block.content.text())
                {
                    let part = RequestPart::Refusal { block: at };
                    conversation.requests.add(span, part, turn.at_ms, words);
                }
                call.result = Some(result);
                if let Some((file, details)) = call.file.as_mut().zip(details) {
                    refine_file(file, details);
                }
            }
            None => conversation.orphan_results += 1,
        }
    }
    let text = turn.message.content.text();
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return;
    }
    if line.is_meta.is_set() {
        conversation.requests.note_program_message();
        return;
    }
    if line.is_notification() {
        // The assistant answers a report of the program.
        conversation.ending = Ending::AwaitingReply;
        conversation.requests.note_program_message();
        return;
    }
    if trimmed.starts_with(INTERRUPTED_PREFIX) {
        conversation.ending = Ending::Interrupted;
        conversation.requests.note_program_message();
        return;
    }
    if line.is_compact_summary.is_set() {
        // The conversation continues where it was.
        conversation.requests.note_program_message();
        conversation.fallback_task.get_or_insert_with(|| text_ref(span, &text));
        return;
    }
    let mut left_out = ProgramTexts::default();
    let request = user_text(turn, &mut left_out);
    conversation.requests.note_left_out(left_out);
    if request.trim().is_empty() {
        if trimmed.starts_with(PROMPT_PREFIX) {
            conversation.ending = Ending::AwaitingReply;
        } else if is_farewell(trimmed) && conversation.ending.is_open() {
            conversation.ending = Ending::Left;
        }
        conversation.fallback_task.get_or_insert_with(|| text_ref(span, &text));
        return;
    }
    conversation.ending = Ending::AwaitingReply;
    conversation.requests.add(span, RequestPart::Message, turn.at_ms, &request);
    conversation.task.get_or_insert_with(|| text_ref(span, &text));
}

/// Returns true if a message of the program records that the user left.
fn is_farewell(text: &str) -> bool {
    FAREWELL_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// Reads the result of a call. `ran` is true if the record states that the call ran, and `None` if
/// it does not say.
fn call_result(
    span: Span,
    at_ms: Option<i64>,
    block: &ContentBlock<'_>,
    command: Option<&str>,
    ran: Option<bool>,
) -> CallResult {
    let text = block.content.text();
    let failed = block.is_error.is_set();
    let spilled = text.trim_start().starts_with(SPILLED_PREFIX);
    CallResult {
        span,
        at_ms,
        bytes: text.len() as u64,
        hash: text_hash(&text),
        failed,
        not_run: failed && !ran.unwrap_or_else(|| !is_refusal(&text)),
        suspect: command.filter(|_| !failed).and_then(|command| suspect_line(command, &text)),
        exit_code: exit_code(&text),
        spilled,
        truncated: !spilled && memmem::find(text.as_bytes(), TRUNCATION_NOTE.as_bytes()).is_some(),
    }
}

/// Returns true if the result `text` states that the call never ran.
fn is_refusal(text: &str) -> bool {
    let text = text.strip_prefix(TOOL_USE_ERROR_TAG).unwrap_or(text);
    NOT_RUN_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// Shortens an ID of excessive length. Different IDs stay different.
pub(super) fn shorten_id(id: &str) -> String {
    shorten(id, WORD_MAX)
}

/// Parses `Exit code N` at the beginning of a result.
fn exit_code(text: &str) -> Option<i64> {
    let rest = text.strip_prefix("Exit code ")?;
    let (head, _) = rest.split_at(rest.floor_char_boundary(EXIT_CODE_MAX));
    head.split(|c: char| !(c.is_ascii_digit() || c == '-')).next()?.parse().ok()
}

/// Counts the tokens of a message. Each line of a message repeats them.
fn count_tokens(conversation: &mut Conversation, id: &str, model: &str, usage: &TokenUsage) {
    let number = |number: MaybeU64| number.0.unwrap_or_default();
    let tokens = Tokens {
        input: number(usage.input_tokens),
        output: number(usage.output_tokens),
        cache_read: number(usage.cache_read_input_tokens),
        cache_creation: number(usage.cache_creation_input_tokens),
    };
    if model.is_empty() && tokens == Tokens::default() {
        return;
    }
    let id = shorten_id(id);
    let last = LastMessage { id: id.clone(), model: shorten(model, WORD_MAX), tokens };
    if let Some(before) = conversation.last_message.replace(last)
        && (before.id != id || id.is_empty())
    {
        let counts = &mut conversation.tokens;
        let is_counted = counts.len() < MODELS_MAX || counts.contains_key(&before.model);
        let model = if is_counted { before.model } else { String::new() };
        *counts.entry(model).or_default() += before.tokens;
    }
}

fn text_ref(span: Span, text: &str) -> TextRef {
    let (head, _) = text.split_at(text.floor_char_boundary(HEAD_MAX));
    TextRef { span, bytes: text.len() as u64, hash: text_hash(text), head: head.to_owned() }
}

/// Returns a hash that tells a text from a replacement with equal length and time.
fn text_hash(text: &str) -> u64 {
    u64::from_le_bytes(digest(blake3::Hasher::new().update(text.as_bytes())))
}

/// A writer that counts bytes.
struct ByteCounter(u64);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
