//! Adds turns to the index of a transcript.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use serde_json::Value;

use super::super::bounded;
use super::super::input::{INPUT_MAX, InputBudget, one_line};
use super::super::value::{shorten, shorten_word, truncate};
use super::format::TranscriptFormat;
use super::index::{
    CallEntry, CallResult, Conversation, Ending, LastMessage, LineEntry, LineFile, MessageMark,
    Shown, StatedStatus, TextRef, Title, TitleSource, TranscriptIndex,
};
use super::location::{Holds, Shape, TranscriptLocation};
use super::requests::RequestPart;
use super::thread::{self, Links};
use super::turn::{Arguments, CallPart, ResultPart, Role, Span, Turn, TurnEvent, Verdict};
use crate::digest::digest;
use crate::failure_signs::suspect_line;
use crate::model::{AccessKind, FileAccess, Outcome, Status, Tokens};

/// Maximum number of conversations inside one transcript; records of further ones are counted.
pub(in crate::trace) const AGENTS_MAX: usize = 10_000;
/// Maximum number of calls in a conversation; further ones are counted.
pub(in crate::trace) const CALLS_MAX: usize = 100_000;
/// Maximum length of the kept beginning of a text, in bytes.
pub(in crate::trace) const HEAD_MAX: usize = 8_192;
/// Maximum number of unrecognized record types that are counted separately.
const UNKNOWN_TYPES_MAX: usize = 50;
/// Maximum length of the name of an unrecognized record type, in bytes.
const TYPE_MAX: usize = 64;
/// Maximum length of a tool name, ID or other short value, in bytes.
const WORD_MAX: usize = 300;
/// Maximum number of files of one call.
const FILES_MAX: usize = 200;
/// Maximum number of messages with IDs that are kept.
const MARKS_MAX: usize = 100_000;
/// Number of messages among which the first record of a repeated one is searched.
const REPEATS_MAX: usize = 1_000;
/// Maximum length of a call's text that is no JSON, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// The most informative arguments of a call, best first.
const KEY_ARGUMENTS: [&str; 12] = [
    "command",
    "cmd",
    "file_path",
    "notebook_path",
    "path",
    "absolute_path",
    "pattern",
    "query",
    "url",
    "code",
    "description",
    "prompt",
];
/// The arguments that hold a command for a shell.
const COMMAND_ARGUMENTS: [&str; 2] = ["command", "cmd"];
/// Maximum number of models whose tokens are counted separately.
const MODELS_MAX: usize = 50;

/// Adds records to an index, one at a time.
pub(in crate::trace) struct IndexBuilder<'f> {
    pub(in crate::trace) index: TranscriptIndex,
    format: &'f dyn TranscriptFormat,
    shape: Shape,
    holds: Holds,
    /// Numbers of the conversations inside the transcript, by ID.
    agents: HashMap<String, usize>,
    /// Numbers of the calls by ID, for each conversation; the transcript's own comes first.
    calls: Vec<HashMap<String, usize>>,
    /// The conversation of each record that the format noted, by the record's ID.
    records: HashMap<String, usize>,
    inputs: InputBudget,
}

impl<'f> IndexBuilder<'f> {
    /// Creates a builder that extends the index of the transcript at `location`.
    pub(in crate::trace) fn new(
        index: TranscriptIndex,
        format: &'f dyn TranscriptFormat,
        location: &TranscriptLocation,
    ) -> IndexBuilder<'f> {
        let conversations = || [&index.main].into_iter().chain(&index.agents);
        let inputs = conversations()
            .flat_map(|conversation| &conversation.calls)
            .filter_map(|call| call.input.as_ref());
        IndexBuilder {
            format,
            shape: location.shape,
            holds: location.holds,
            records: HashMap::new(),
            agents: index
                .agents
                .iter()
                .enumerate()
                .map(|(at, conversation)| (conversation.agent.clone(), at + 1))
                .collect(),
            calls: conversations().map(call_numbers).collect(),
            inputs: InputBudget(inputs.map(String::len).sum()),
            index,
        }
    }

    /// Sets a fact about the session unless it is set already or `value` is empty.
    pub(in crate::trace) fn set_fact(fact: &mut Option<String>, value: &str) {
        if fact.is_none() && !value.is_empty() {
            *fact = Some(shorten_word(value.to_owned()));
        }
    }

    /// Sets the title unless it has one from a preferred source.
    pub(in crate::trace) fn set_title(&mut self, source: TitleSource, text: Option<String>) {
        let Some(text) = text.map(|text| truncate(text, WORD_MAX)) else { return };
        let title = &mut self.index.facts.title;
        if title.as_ref().is_none_or(|title| title.source <= source) {
            *title = Some(Title { source, text });
        }
    }

    /// Counts a record of an unrecognized type.
    pub(in crate::trace) fn count_unknown_type(&mut self, kind: &str) {
        let counts = &mut self.index.unknown_types;
        let kind = shorten(kind, TYPE_MAX);
        let kind = if counts.len() < UNKNOWN_TYPES_MAX || counts.contains_key(&kind) {
            kind
        } else {
            "(others)".into()
        };
        *counts.entry(kind).or_default() += 1;
    }

    /// Returns the conversation with a number; the transcript's own is 0.
    pub(in crate::trace) fn conversation(&mut self, number: usize) -> Option<&mut Conversation> {
        match number.checked_sub(1) {
            None => Some(&mut self.index.main),
            Some(at) => self.index.agents.get_mut(at),
        }
    }

    /// Returns the number of the conversation `agent` inside the transcript, adding it if
    /// necessary. Returns `None` and counts the record if there are too many, or if the transcript
    /// is one worker.
    pub(in crate::trace) fn agent_conversation(&mut self, agent: &str) -> Option<usize> {
        // Listing a store does not search for subagents of subagents.
        if !self.may_hold_agents() {
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

    /// Returns the number of the conversation `agent`, if records of it were added.
    pub(in crate::trace) fn find_agent(&self, agent: &str) -> Option<usize> {
        self.agents.get(&shorten_id(agent)).copied()
    }

    /// Returns true if the transcript may hold other workers.
    pub(in crate::trace) fn may_hold_agents(&self) -> bool {
        self.holds != Holds::One
    }

    /// Notes the conversation of the record with an ID.
    pub(in crate::trace) fn note_record(&mut self, id: &str, conversation: usize) {
        self.records.insert(shorten_id(id), conversation);
    }

    /// Returns the conversation of a noted record.
    pub(in crate::trace) fn conversation_of_record(&self, id: &str) -> Option<usize> {
        self.records.get(&shorten_id(id)).copied()
    }

    /// Removes the stated status of a conversation.
    pub(in crate::trace) fn clear_status(&mut self, number: usize) {
        if let Some(conversation) = self.conversation(number) {
            conversation.stated = None;
        }
    }

    /// Sets the status that a record states for a conversation.
    pub(in crate::trace) fn set_status(
        &mut self,
        number: usize,
        status: Status,
        word: Option<&str>,
    ) {
        if let Some(conversation) = self.conversation(number) {
            let word = word.map(|word| shorten(word, WORD_MAX));
            conversation.stated = Some(StatedStatus { status, word });
        }
    }

    /// Returns true if the conversation has a call with this ID.
    pub(in crate::trace) fn has_call(&self, number: usize, id: &str) -> bool {
        self.calls.get(number).is_some_and(|ids| ids.contains_key(&shorten_id(id)))
    }

    /// Sets the outcome that a record states for an earlier call. Returns false if there is no such
    /// call.
    pub(in crate::trace) fn set_verdict(
        &mut self,
        number: usize,
        id: &str,
        verdict: Verdict,
    ) -> bool {
        let at = self.calls.get(number).and_then(|ids| ids.get(&shorten_id(id)).copied());
        let call = at.and_then(|at| self.conversation(number)?.calls.get_mut(at));
        let Some(call) = call else { return false };
        call.stated = Some(verdict);
        true
    }

    /// Returns the tool of an earlier call.
    pub(in crate::trace) fn call_tool(&self, number: usize, id: &str) -> Option<&str> {
        let at = *self.calls.get(number)?.get(&shorten_id(id))?;
        let conversation = match number.checked_sub(1) {
            None => &self.index.main,
            Some(agent) => self.index.agents.get(agent)?,
        };
        conversation.calls.get(at).map(|call| call.tool.as_str())
    }

    /// Returns an earlier call.
    fn call_mut(&mut self, number: usize, id: &str) -> Option<&mut CallEntry> {
        let at = *self.calls.get(number)?.get(&shorten_id(id))?;
        self.conversation(number)?.calls.get_mut(at)
    }

    /// Sets the record that describes the changes of files by an earlier call.
    pub(in crate::trace) fn set_change_record(&mut self, number: usize, id: &str, span: Span) {
        if let Some(call) = self.call_mut(number, id) {
            call.change_record = Some(span);
        }
    }

    /// Sets the result of an earlier call until its own arrives. The record at `span` reports it;
    /// it is not part of the conversation, and holds no other result.
    pub(in crate::trace) fn add_reported_result(
        &mut self,
        number: usize,
        span: Span,
        at_ms: Option<i64>,
        result: &ResultPart<'_>,
    ) {
        let call = self.call_mut(number, &result.call).filter(|call| call.result.is_none());
        if let Some(call) = call {
            let result = call_result(call, span, 0, at_ms, result);
            call.result = Some(CallResult { is_report: true, ..result });
        }
    }

    /// Takes back the last `count` requests of a conversation, and its last text. The calls stay.
    pub(in crate::trace) fn roll_back(&mut self, number: usize, count: usize) {
        let Some(conversation) = self.conversation(number) else { return };
        let left = conversation.requests.len().saturating_sub(count);
        conversation.requests.truncate(left);
        conversation.last_text = None;
        conversation.ending = Ending::AwaitingReply;
        if left == 0 {
            conversation.task = None;
        }
    }

    /// Sets the files that an earlier call changed.
    pub(in crate::trace) fn set_files(&mut self, number: usize, id: &str, files: Vec<FileAccess>) {
        let at = self.calls.get(number).and_then(|ids| ids.get(&shorten_id(id)).copied());
        if let Some(call) = at.and_then(|at| self.conversation(number)?.calls.get_mut(at)) {
            call.files = files.into_iter().take(FILES_MAX).map(shorten_path).collect();
        }
    }

    /// Counts the tokens of a message. Several records of a message repeat its tokens.
    pub(in crate::trace) fn count_tokens(
        &mut self,
        number: usize,
        id: &str,
        model: &str,
        tokens: Tokens,
    ) {
        if model.is_empty() && tokens == Tokens::default() {
            return;
        }
        let Some(conversation) = self.conversation(number) else { return };
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

    /// Replaces the counts of tokens by a total for the whole conversation.
    pub(in crate::trace) fn set_total_tokens(&mut self, number: usize, tokens: Tokens) {
        if let Some(conversation) = self.conversation(number) {
            conversation.tokens.clear();
            let model = conversation.model.clone().unwrap_or_default();
            conversation.last_message = Some(LastMessage { id: String::new(), model, tokens });
        }
    }

    /// Removes the message with an ID and all after it from a conversation. Removes all messages if
    /// there is none with the ID. The thread shows them still.
    pub(in crate::trace) fn rewind_to(&mut self, number: usize, id: &str) {
        let hash = text_hash(id);
        let Some(conversation) = self.conversation(number) else { return };
        let at = conversation.marks.iter().position(|mark| mark.id == hash).unwrap_or(0);
        let mark = conversation.marks.get(at).copied();
        let (calls, requests) = mark.map_or((0, 0), |mark| (mark.calls, mark.requests));
        conversation.marks.truncate(at);
        conversation.calls.truncate(calls);
        conversation.requests.truncate(requests);
        conversation.first_open = conversation.first_open.min(calls);
        conversation.ending = Ending::AwaitingReply;
        conversation.last_text = None;
        if requests == 0 {
            conversation.task = None;
        }
        if let Some(ids) = self.calls.get_mut(number) {
            ids.retain(|_, at| *at < calls);
        }
    }

    /// Adds the turns of the record at `span` to a conversation.
    pub(in crate::trace) fn add_turns(&mut self, number: usize, span: Span, turns: &[Turn<'_>]) {
        let format = self.format;
        let as_lines = self.shape == Shape::Lines;
        let (agents, main) = (&mut self.index.agents, &mut self.index.main);
        let conversation = match number.checked_sub(1) {
            None => main,
            Some(at) => match agents.get_mut(at) {
                Some(conversation) => conversation,
                None => return,
            },
        };
        let Some(ids) = self.calls.get_mut(number) else { return };
        let (mut links, mut shown) = (Links::default(), Shown::All);
        for turn in turns {
            conversation.first_ms = conversation.first_ms.or(turn.at_ms);
            conversation.last_ms = turn.at_ms.or(conversation.last_ms);
            let repeat = note_message(conversation, turn);
            match repeat {
                Repeat::New => {}
                Repeat::Changed => shown = Shown::New { text: true },
                Repeat::Same => shown = Shown::New { text: false },
            }
            for result in &turn.results {
                let part = links.results.len();
                links.results.push(add_result(conversation, ids, span, part, turn.at_ms, result));
            }
            if repeat != Repeat::Same {
                add_message(conversation, span, turn);
            }
            for call in &turn.calls {
                conversation.ending = Ending::CalledTool;
                links.calls.push(add_call(
                    conversation,
                    ids,
                    &mut self.inputs,
                    format,
                    span,
                    turn.at_ms,
                    call,
                ));
            }
        }
        let mut line = LineEntry { span, shown, ..LineEntry::default() };
        let mut thread_bytes = ByteCounter(0);
        // Counting cannot fail.
        let _ = thread::write_turns(&mut thread_bytes, turns, &line, &conversation.calls, &links);
        line.thread_end = conversation.file_bytes(LineFile::Thread) + thread_bytes.0;
        // Records of a document are written as lines.
        let newline = u64::from(!as_lines);
        line.source_end = conversation.file_bytes(LineFile::Source) + span.len as u64 + newline;
        conversation.lines.push(line);
    }
}

/// A message in relation to the messages before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    New,
    /// Has the ID of an earlier message, but another text.
    Changed,
    /// Has the ID and the text of an earlier message.
    Same,
}

/// Notes a message that has an ID.
fn note_message(conversation: &mut Conversation, turn: &Turn<'_>) -> Repeat {
    if turn.id.is_empty() {
        return Repeat::New;
    }
    let (id, text) = (text_hash(&turn.id), text_hash(&turn.text));
    let (calls, requests) = (conversation.calls.len(), conversation.requests.len());
    let known = conversation.marks.iter_mut().rev().take(REPEATS_MAX).find(|mark| mark.id == id);
    match known {
        Some(mark) if mark.text == text => Repeat::Same,
        Some(mark) => {
            mark.text = text;
            Repeat::Changed
        }
        None => {
            if conversation.marks.len() < MARKS_MAX {
                conversation.marks.push(MessageMark { id, text, calls, requests });
            }
            Repeat::New
        }
    }
}

/// Adds the text of a turn, and what it means for the course of the conversation.
fn add_message(conversation: &mut Conversation, span: Span, turn: &Turn<'_>) {
    if turn.role == Role::Assistant {
        add_answer(conversation, span, turn);
        return;
    }
    let requests = &mut conversation.requests;
    requests.note_left_out(turn.left_out);
    if turn.text.trim().is_empty() {
        return;
    }
    match turn.event {
        TurnEvent::ProgramText => {
            requests.note_program_message();
            return;
        }
        TurnEvent::Report => {
            conversation.ending = Ending::AwaitingReply;
            requests.note_program_message();
            return;
        }
        TurnEvent::Interruption => {
            conversation.ending = Ending::Interrupted;
            requests.note_program_message();
            return;
        }
        TurnEvent::Compaction => {
            requests.note_program_message();
            conversation.fallback_task.get_or_insert_with(|| text_ref(span, &turn.text));
            return;
        }
        TurnEvent::Message | TurnEvent::Prompt | TurnEvent::Farewell | TurnEvent::ApiError => {}
    }
    let Some(request) = turn.request.as_ref().filter(|request| !request.trim().is_empty()) else {
        if turn.event == TurnEvent::Prompt {
            conversation.ending = Ending::AwaitingReply;
        } else if turn.event == TurnEvent::Farewell && conversation.ending.is_open() {
            conversation.ending = Ending::Left;
        }
        conversation.fallback_task.get_or_insert_with(|| text_ref(span, &turn.text));
        return;
    };
    conversation.ending = Ending::AwaitingReply;
    conversation.requests.add(span, RequestPart::Message, turn.at_ms, request);
    conversation.task.get_or_insert_with(|| text_ref(span, &turn.text));
}

/// Adds the message of an assistant.
fn add_answer(conversation: &mut Conversation, span: Span, turn: &Turn<'_>) {
    if !turn.is_synthetic {
        if !turn.model.is_empty() {
            conversation.model = Some(shorten(&turn.model, WORD_MAX));
        }
        conversation.written_bytes += written_bytes(turn);
    }
    if turn.event == TurnEvent::ApiError {
        let text = turn.text.clone().into_owned();
        conversation.ending = Ending::ApiError(truncate(text, HEAD_MAX));
    } else if !turn.text.trim().is_empty() {
        conversation.last_text = Some(text_ref(span, &turn.text));
        conversation.ending = Ending::Answered;
    } else if conversation.ending != Ending::Answered {
        conversation.ending = Ending::AwaitingReply;
    }
}

/// Returns the length of the assistant's texts, thoughts and arguments in a turn, in bytes.
fn written_bytes(turn: &Turn<'_>) -> u64 {
    let arguments = turn.calls.iter().map(|call| call.arguments.as_text().map_or(0, str::len));
    (turn.text.len() + turn.thinking.len() + arguments.sum::<usize>()) as u64
}

/// Adds a call. Returns its index, or that of the call that it repeats.
fn add_call(
    conversation: &mut Conversation,
    ids: &mut HashMap<String, usize>,
    inputs: &mut InputBudget,
    format: &dyn TranscriptFormat,
    span: Span,
    at_ms: Option<i64>,
    call: &CallPart<'_>,
) -> Option<usize> {
    let at = conversation.calls.len();
    let id = shorten_id(&call.id);
    if let Some(known) = ids.get(&id).filter(|_| !id.is_empty()) {
        return Some(*known);
    }
    if at >= CALLS_MAX {
        conversation.excess_calls += 1;
        return None;
    }
    let arguments = call.arguments.as_text().and_then(bounded::parse_any);
    let arguments = arguments.or_else(|| match &call.arguments {
        Arguments::Text(text) => Some(Value::String(truncate(text.clone().into_owned(), TEXT_MAX))),
        Arguments::None | Arguments::Json(_) => None,
    });
    let tool = match shorten(&call.name, WORD_MAX) {
        name if name.is_empty() => "tool".into(),
        name => name,
    };
    let is_command = arguments
        .as_ref()
        .is_some_and(|fields| COMMAND_ARGUMENTS.iter().any(|name| fields.get(name).is_some()));
    let files = arguments.as_ref().map(|arguments| format.accessed_files(&tool, arguments));
    let (input, subject_len) = arguments.and_then(input_line).unzip();
    let input = input.map(|line| inputs.truncate_input(line));
    if !id.is_empty() {
        ids.insert(id.clone(), at);
    }
    conversation.calls.push(CallEntry {
        id,
        tool,
        span,
        at_ms,
        subject_len: subject_len.unwrap_or(0).min(input.as_ref().map_or(0, String::len)),
        input,
        is_command,
        files: files.into_iter().flatten().take(FILES_MAX).map(shorten_path).collect(),
        result: None,
        stated: None,
        change_record: None,
    });
    Some(at)
}

/// Shortens the path of a file of excessive length.
fn shorten_path(file: FileAccess) -> FileAccess {
    FileAccess { path: shorten(&file.path, WORD_MAX), ..file }
}

/// Returns the arguments of a call as one line, and the length of the main argument at its
/// beginning, in bytes. The main argument comes without its name.
fn input_line(mut arguments: Value) -> Option<(String, usize)> {
    let Some(fields) = arguments.as_object_mut() else {
        let line = one_line(&arguments)?;
        let subject_len = line.len();
        return Some((line, subject_len));
    };
    let first = KEY_ARGUMENTS
        .iter()
        .find_map(|name| fields.shift_remove(*name))
        .and_then(|value| one_line(&joined_words(value)));
    // `one_line` omits the name of a single argument, so names are added here.
    let named =
        fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", one_line(value)?)));
    let rest = one_line(&Value::String(named.collect::<Vec<_>>().join(" ")));
    let subject_len = first.as_ref().map_or(0, String::len);
    let parts: Vec<String> = [first, rest].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| (truncate(parts.join(" "), INPUT_MAX), subject_len))
}

/// Joins the words of a command that is a list. Of a command for a shell, only the script is kept.
fn joined_words(value: Value) -> Value {
    let words: Option<Vec<&str>> =
        value.as_array().and_then(|words| words.iter().map(Value::as_str).collect());
    match words.as_deref() {
        Some([_shell, "-c" | "-lc" | "-ic", script]) => Value::String((*script).to_owned()),
        Some(words) => match shlex::try_join(words.iter().copied()) {
            Ok(line) => Value::String(line),
            Err(_) => Value::String(words.join(" ")),
        },
        None => value,
    }
}

/// Adds a result to its call. Returns the index of the call, or `None` without one.
fn add_result(
    conversation: &mut Conversation,
    ids: &HashMap<String, usize>,
    span: Span,
    part: usize,
    at_ms: Option<i64>,
    result: &ResultPart<'_>,
) -> Option<usize> {
    conversation.ending = Ending::AwaitingReply;
    let at = if result.call.is_empty() {
        while conversation.calls.get(conversation.first_open).is_some_and(|c| c.result.is_some()) {
            conversation.first_open += 1;
        }
        Some(conversation.first_open).filter(|at| *at < conversation.calls.len())
    } else {
        ids.get(&shorten_id(&result.call)).copied()
    };
    let Some(call) = at.and_then(|at| conversation.calls.get_mut(at)) else {
        conversation.orphan_results += 1;
        return None;
    };
    // The assistant acted on the first of two results.
    if call.result.as_ref().is_some_and(|known| !known.is_report) {
        return at;
    }
    let verdict = result.verdict;
    if let Some(words) = result.refusal.as_ref().filter(|_| verdict.outcome == Outcome::NotRun) {
        let part = RequestPart::Refusal { result: part };
        conversation.requests.add(span, part, at_ms, words);
    }
    call.result = Some(call_result(call, span, part, at_ms, result));
    refine_files(&mut call.files, &result.files);
    at
}

/// Creates the result of `call` that is number `part` in the record at `span`.
fn call_result(
    call: &CallEntry,
    span: Span,
    part: usize,
    at_ms: Option<i64>,
    result: &ResultPart<'_>,
) -> CallResult {
    let suspect = match call.command() {
        _ if matches!(result.verdict.outcome, Outcome::Failed | Outcome::NotRun) => None,
        Some(command) => suspect_line(command, &result.text),
        None => None,
    };
    let hint = result.hint.as_ref().map(|line| truncate(line.clone().into_owned(), WORD_MAX));
    CallResult {
        span,
        part,
        at_ms,
        bytes: result.text.len() as u64,
        hash: text_hash(&result.text),
        verdict: result.verdict,
        suspect: hint.or(suspect),
        spilled: result.spilled,
        truncated: result.truncated,
        is_report: false,
    }
}

/// Replaces the files that the arguments of a call name by those that its result names.
fn refine_files(files: &mut Vec<FileAccess>, changed: &[FileAccess]) {
    match (files.as_mut_slice(), changed) {
        (_, []) => {}
        // The result may name the file in another way.
        ([file], [changed]) if file.kind != AccessKind::Read => {
            let path = std::mem::take(&mut file.path);
            *file = FileAccess { path, ..changed.clone() };
        }
        ([file], [_]) if file.kind == AccessKind::Read => {}
        (_, changed) => {
            *files = changed.iter().take(FILES_MAX).cloned().map(shorten_path).collect();
        }
    }
}

/// Returns the indexes of a conversation's calls, by ID.
pub(in crate::trace) fn call_numbers(conversation: &Conversation) -> HashMap<String, usize> {
    let calls = conversation.calls.iter().enumerate();
    calls.filter(|(_, call)| !call.id.is_empty()).map(|(at, call)| (call.id.clone(), at)).collect()
}

/// Shortens an ID of excessive length. Different IDs stay different.
pub(in crate::trace) fn shorten_id(id: &str) -> String {
    shorten(id, WORD_MAX)
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
