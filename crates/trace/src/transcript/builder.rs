//! Adds turns to the index of a transcript.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use super::super::input::InputBudget;
use super::super::value::{shorten, shorten_word, truncate};
use super::calls::{
    AccessedFiles, CallNumbers, FILES_MAX, WORD_MAX, add_call, add_result, call_result, release_id,
    shorten_id, shorten_path,
};
use super::index::{
    CallEntry, CallResult, Conversation, Ending, LineEntry, LineFile, MessageTokens, RecentMessage,
    ReportedEnd, SessionFacts, Shown, StatedStatus, TextRef, Title, TitleSource, TranscriptIndex,
};
use super::location::{Holds, Shape, TranscriptLocation};
use super::messages::{
    MODELS_MAX, MessageNumbers, Repeat, add_tokens, count_mark, note_message, take_tokens,
    text_hash,
};
use super::requests::RequestPart;
use super::thread::{self, Links};
use super::turn::{ResultPart, Role, Span, Turn, TurnEvent, Verdict};
use swarmletfs_base::digest::digest;
use swarmletfs_base::model::{FileAccess, Status, Tokens};
use swarmletfs_base::name::to_file_name;
use swarmletfs_base::split::Split;

/// Maximum number of conversations inside one transcript; records of further ones are counted.
pub(crate) const AGENTS_MAX: usize = 10_000;
/// Maximum length of the kept beginning of a text, in bytes.
pub(crate) const HEAD_MAX: usize = 8_192;
/// Maximum number of unrecognized record types that are counted separately.
const UNKNOWN_TYPES_MAX: usize = 50;
const TYPE_MAX: usize = 64;
/// Maximum number of calls whose results are checked when messages are removed.
const REOPENED_MAX: usize = 1_000;
/// Maximum number of messages whose tokens may still change. Lines of messages that are written at
/// once are mixed.
const RECENT_MAX: usize = 8;

/// The place of the first record with certain parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordOrigin {
    Own,
    /// Earlier in the transcript.
    Repeated,
    /// In the session with this ID.
    Copied(String),
}

pub(crate) struct IndexBuilder<'f> {
    pub(crate) index: TranscriptIndex,
    accessed_files: AccessedFiles<'f>,
    /// See [`TranscriptFormat::states_calls_once`](super::format::TranscriptFormat).
    pub(super) calls_are_stated_once: bool,
    shape: Shape,
    holds: Holds,
    agents: HashMap<String, usize>,
    calls: Vec<CallNumbers>,
    counted: Vec<HashSet<u64>>,
    messages: Vec<MessageNumbers>,
    /// The conversation of each record that the format noted, by the record's ID.
    records: HashMap<String, usize>,
    seen: HashSet<u64>,
    /// Number of the conversation of the document that is being read, once it has one.
    document: Option<usize>,
    inputs: InputBudget,
    /// True if the document states the tokens of the whole conversation.
    pub(crate) states_total: bool,
}

impl<'f> IndexBuilder<'f> {
    pub(crate) fn new(
        index: TranscriptIndex,
        accessed_files: AccessedFiles<'f>,
        location: &TranscriptLocation,
    ) -> IndexBuilder<'f> {
        let conversations = || [&index.main].into_iter().chain(&index.agents);
        let inputs = conversations()
            .flat_map(|conversation| &conversation.calls)
            .filter_map(|call| call.input.as_ref());
        IndexBuilder {
            accessed_files,
            shape: location.shape,
            holds: location.holds,
            calls_are_stated_once: false,
            records: HashMap::new(),
            seen: index.seen.iter().copied().collect(),
            document: None,
            states_total: false,
            agents: index
                .agents
                .iter()
                .enumerate()
                .map(|(at, conversation)| (conversation.agent.clone(), at + 1))
                .collect(),
            calls: conversations().map(CallNumbers::new).collect(),
            counted: conversations().map(|own| own.counted.iter().copied().collect()).collect(),
            messages: conversations().map(MessageNumbers::new).collect(),
            inputs: InputBudget(inputs.map(String::len).sum()),
            index,
        }
    }

    /// Sets a fact about the session unless it is set already or `value` is empty.
    pub(crate) fn set_fact(fact: &mut Option<String>, value: &str) {
        if fact.is_none() && !value.is_empty() {
            *fact = Some(shorten_word(value.to_owned()));
        }
    }

    /// Sets the title unless the session has one from a preferred source.
    pub(crate) fn set_title(&mut self, source: TitleSource, text: Option<String>) {
        let Some(text) = text.map(|text| truncate(text, WORD_MAX)) else { return };
        let title = &mut self.index.facts.title;
        if title.as_ref().is_none_or(|title| title.source <= source) {
            *title = Some(Title { source, text });
        }
    }

    pub(crate) fn count_unknown_type(&mut self, kind: &str) {
        let counts = &mut self.index.unknown_types;
        let kind = shorten(kind, TYPE_MAX);
        let kind = if counts.len() < UNKNOWN_TYPES_MAX || counts.contains_key(&kind) {
            kind
        } else {
            "(others)".into()
        };
        *counts.entry(kind).or_default() += 1;
    }

    /// Returns the conversation with a number. The transcript's own conversation is 0.
    pub(crate) fn conversation(&mut self, number: usize) -> Option<&mut Conversation> {
        self.index.numbered_mut(number)
    }

    /// Returns the number of the conversation `agent` inside the transcript, adding it if
    /// necessary. Returns `None` and counts the record if there are too many, or if the transcript
    /// is one worker.
    pub(crate) fn agent_conversation(&mut self, agent: &str) -> Option<usize> {
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
                self.calls.push(CallNumbers::default());
                self.counted.push(HashSet::new());
                self.messages.push(MessageNumbers::default());
                Some(*new.insert(count + 1))
            }
        }
    }

    pub(super) fn begin_document(&mut self) {
        self.index.documents += 1;
        self.document = None;
        self.states_total = false;
    }

    /// Ends the current document, of which `bad` records cannot be read. If it is
    /// torn, `torn` tells if the rest is lost: nothing will complete it.
    pub(super) fn end_document(&mut self, bad: u64, torn: Option<bool>) {
        let is_lost = torn == Some(true);
        let number = if is_lost { self.document_conversation() } else { self.document };
        let (Some(number), lost) = (number, bad + u64::from(is_lost)) else { return };
        if torn.is_some() {
            self.set_status(number, Status::Unknown, Some("its record is torn"));
        }
        self.conversation(number).into_iter().for_each(|own| own.bad_records += lost);
    }

    /// Returns the number of the conversation of the document that is being read. Adds it under
    /// the number of the document if necessary.
    pub(crate) fn document_conversation(&mut self) -> Option<usize> {
        if self.document.is_none() {
            let name = self.free_agent_id(&format!("document-{}", self.index.documents));
            self.document = self.agent_conversation(&name);
        }
        self.document
    }

    /// Sets the ID of the conversation of the current document. If an earlier document has the ID,
    /// the number of the current one is appended.
    pub(crate) fn name_document(&mut self, id: &str) {
        let wanted = shorten_id(id);
        let Some(number) = self.document_conversation().filter(|_| !wanted.is_empty()) else {
            return;
        };
        let id = self.free_agent_id(&wanted);
        let Some(at) = number.checked_sub(1) else { return };
        let Some(conversation) = self.index.agents.get_mut(at) else { return };
        self.index.agents_by_name.remove(&conversation.worker_name());
        let before = std::mem::replace(&mut conversation.agent, id.clone());
        self.index.agents_by_name.insert(conversation.worker_name(), at);
        self.agents.remove(&before);
        self.agents.insert(id, number);
    }

    /// Returns `id`, completed by a number if a conversation has it already.
    fn free_agent_id(&self, id: &str) -> String {
        let is_free = |id: &String| {
            let name = to_file_name(id, &[]);
            !self.agents.contains_key(id) && !self.index.agents_by_name.contains_key(&name)
        };
        let numbered = (self.index.documents..).map(|number| shorten_id(&format!("{id}~{number}")));
        let mut ids = std::iter::once(id.to_owned()).chain(numbered);
        // Each further attempt needs another conversation.
        ids.find(is_free).unwrap_or_default()
    }

    pub(crate) fn find_agent(&self, agent: &str) -> Option<usize> {
        self.agents.get(&shorten_id(agent)).copied()
    }

    pub(crate) fn may_hold_agents(&self) -> bool {
        self.holds != Holds::One
    }

    /// Returns true if the transcript's own conversation is a worker.
    pub(crate) fn may_be_worker(&self) -> bool {
        self.holds != Holds::Nested
    }

    pub(crate) fn reads_documents(&self) -> bool {
        self.shape != Shape::Lines
    }

    /// Creates a reference to a text whose beginning is not kept.
    pub(crate) fn unread_text(span: Span, text: &str) -> TextRef {
        TextRef { head: String::new(), ..text_ref(span, text) }
    }

    pub(crate) fn note_record(&mut self, id: &str, conversation: usize) {
        self.records.insert(shorten_id(id), conversation);
    }

    pub(crate) fn conversation_of_record(&self, id: &str) -> Option<usize> {
        self.records.get(&shorten_id(id)).copied()
    }

    pub(crate) fn clear_status(&mut self, number: usize) {
        if let Some(conversation) = self.conversation(number) {
            conversation.stated = None;
        }
    }

    pub(crate) fn set_status(&mut self, number: usize, status: Status, word: Option<&str>) {
        if let Some(conversation) = self.conversation(number) {
            let word = word.map(|word| shorten(word, WORD_MAX));
            conversation.stated = Some(StatedStatus { status, word });
        }
    }

    /// Finds out whether a record with the same parts was added before, here or to the session that
    /// this transcript repeats. Remembers the parts.
    pub(crate) fn note_parts<'a>(&mut self, parts: impl Iterator<Item = &'a str>) -> RecordOrigin {
        let mut hash = blake3::Hasher::new();
        for part in parts {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        let hash = u64::from_le_bytes(digest(&hash));
        let is_new = self.seen.insert(hash);
        self.index.seen.extend(is_new.then_some(hash));
        let history = self.index.history.as_ref().filter(|history| history.seen.contains(&hash));
        match history {
            _ if !is_new => RecordOrigin::Repeated,
            Some(history) => RecordOrigin::Copied(history.session.clone()),
            None => RecordOrigin::Own,
        }
    }

    /// Removes everything about the transcript's own conversation: its records up to the end of
    /// `span` repeat records of the session `source`, where they count. The task stays for a copy
    /// that has no request of its own.
    pub(crate) fn skip_copied(&mut self, span: Span, source: &str) {
        let task = self.index.main.task.take().or_else(|| self.index.main.fallback_task.take());
        self.clear_main();
        self.index.main.fallback_task = task;
        IndexBuilder::set_fact(&mut self.index.facts.forked_from, source);
        self.index.facts.copied_bytes = span.offset + span.len as u64;
    }

    /// Adds the reports in a turn that is no part of the conversation.
    pub(crate) fn add_reports(&mut self, number: usize, span: Span, turn: &Turn<'_>) {
        let Some(conversation) = self.index.numbered_mut(number) else { return };
        let Some(ids) = self.calls.get_mut(number) else { return };
        for (part, result) in turn.results.iter().enumerate() {
            add_result(conversation, ids, span, part, turn.at_ms, result);
        }
    }

    /// Records the end of a worker that this transcript started and that has a transcript of its
    /// own. `None` means that the worker goes on.
    pub(crate) fn note_end(&mut self, worker: &str, end: Option<ReportedEnd>) {
        let (ends, worker) = (&mut self.index.ends, shorten_id(worker));
        match end {
            None => drop(ends.remove(&worker)),
            Some(_) if worker.is_empty() => {}
            Some(_) if ends.len() >= AGENTS_MAX && !ends.contains_key(&worker) => {}
            Some(end) => drop(ends.insert(worker, end)),
        }
    }

    pub(crate) fn has_call(&self, number: usize, id: &str) -> bool {
        self.calls.get(number).is_some_and(|ids| ids.by_id.contains_key(&shorten_id(id)))
    }

    /// Sets the outcome that a record states for an earlier call. Returns false if there is no such
    /// call.
    pub(crate) fn set_verdict(&mut self, number: usize, id: &str, verdict: Verdict) -> bool {
        let Some(call) = self.call_mut(number, id) else { return false };
        call.stated = Some(verdict);
        true
    }

    /// Records that the agent itself ended the work `task` of an earlier call. The work has no
    /// outcome.
    pub(crate) fn stop_task(&mut self, number: usize, task: &str) {
        let Some(at) = self.calls.get(number).and_then(|ids| ids.starter(task)) else { return };
        let call = self.conversation(number).and_then(|own| own.calls.get_mut(at));
        if let Some(result) = call.and_then(|call| call.result.as_mut()) {
            result.is_open = false;
        }
    }

    pub(crate) fn call_and_later(
        &self,
        number: usize,
        id: &str,
    ) -> Option<(&CallEntry, &[CallEntry])> {
        let at = *self.calls.get(number)?.by_id.get(&shorten_id(id))?;
        self.index.numbered(number)?.calls.get(at..)?.split_first()
    }

    pub(crate) fn call_tool(&self, number: usize, id: &str) -> Option<&str> {
        self.call_and_later(number, id).map(|(call, _)| call.tool.as_str())
    }

    fn call_mut(&mut self, number: usize, id: &str) -> Option<&mut CallEntry> {
        let at = *self.calls.get(number)?.by_id.get(&shorten_id(id))?;
        self.conversation(number)?.calls.get_mut(at)
    }

    pub(crate) fn set_change_record(&mut self, number: usize, id: &str, span: Span) {
        if let Some(call) = self.call_mut(number, id) {
            call.change_record = Some(span);
        }
    }

    /// Sets the result of an earlier call until its own arrives. The record at `span` reports it;
    /// it is not part of the conversation, and holds no other result.
    pub(crate) fn add_reported_result(
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

    /// Removes the last `count` requests of a conversation, and its last text. The calls stay.
    pub(crate) fn roll_back(&mut self, number: usize, count: usize) {
        let Some(conversation) = self.conversation(number) else { return };
        let left = conversation.requests.len().saturating_sub(count);
        conversation.requests.truncate(left);
        conversation.last_text = None;
        conversation.ending = Ending::AwaitingReply;
        if left == 0 {
            conversation.task = None;
        }
    }

    pub(crate) fn set_files(&mut self, number: usize, id: &str, files: Vec<FileAccess>) {
        if let Some(call) = self.call_mut(number, id) {
            call.files = files.into_iter().take(FILES_MAX).map(shorten_path).collect();
        }
    }

    /// Counts the tokens of a message. Several records of a message repeat its tokens.
    pub(crate) fn count_tokens(&mut self, number: usize, id: &str, model: &str, tokens: Tokens) {
        if model.is_empty() && tokens == Tokens::default() {
            return;
        }
        let Some(conversation) = self.index.numbered_mut(number) else { return };
        let Some(counted) = self.counted.get_mut(number) else { return };
        conversation.context.add_request(conversation.last_ms, tokens.context());
        let (id, model) = (shorten_id(id), shorten(model, WORD_MAX));
        let recent = &mut conversation.recent_messages;
        if let Some(known) = recent.iter_mut().find(|known| known.id == id && !id.is_empty()) {
            (known.model, known.tokens) = (model, tokens);
            return;
        }
        if !id.is_empty() && counted.contains(&text_hash(&id)) {
            return;
        }
        recent.push(RecentMessage { id, model, tokens });
        if recent.len() > RECENT_MAX {
            let RecentMessage { id, model, tokens } = recent.remove(0);
            if !id.is_empty() && counted.insert(text_hash(&id)) {
                conversation.counted.push(text_hash(&id));
            }
            add_tokens(conversation, model, tokens);
        }
    }

    pub(crate) fn set_model(&mut self, number: usize, model: &str) {
        let Some(conversation) = self.conversation(number).filter(|_| !model.is_empty()) else {
            return;
        };
        let model = shorten(model, WORD_MAX);
        // Tokens that were counted before belong to this model, too.
        for message in conversation.recent_messages.iter_mut().filter(|own| own.model.is_empty()) {
            message.model.clone_from(&model);
        }
        conversation.model = Some(model);
    }

    /// Sets the task of a conversation to the text of the turn at `span`, which the thread does not
    /// show.
    pub(crate) fn set_task(&mut self, number: usize, span: Span, text: &str) {
        if let Some(conversation) = self.conversation(number).filter(|_| !text.trim().is_empty()) {
            conversation.task.get_or_insert_with(|| text_ref(span, text));
        }
    }

    /// Sets the tokens of a message that was added. They replace the tokens in earlier records of
    /// the message.
    pub(crate) fn set_message_tokens(
        &mut self,
        number: usize,
        id: &str,
        model: &str,
        tokens: Tokens,
    ) {
        let Some(messages) = self.messages.get_mut(number) else { return };
        let Some(&at) = messages.by_id.get(&text_hash(id)) else {
            return self.count_tokens(number, id, model, tokens);
        };
        messages.counted.insert(at);
        let Some(conversation) = self.conversation(number) else { return };
        conversation.context.add_request(conversation.last_ms, tokens.context());
        take_tokens(conversation, at);
        if let Some(mark) = conversation.marks.get_mut(at) {
            let model = shorten(model, WORD_MAX);
            mark.tokens = Some(Box::new(MessageTokens { model, tokens }));
        }
        count_mark(conversation, at);
    }

    pub(crate) fn has_message(&self, number: usize, id: &str) -> bool {
        let messages = self.messages.get(number);
        messages.is_some_and(|messages| messages.by_id.contains_key(&text_hash(id)))
    }

    /// Replaces the counts of tokens by a total for the whole conversation.
    pub(crate) fn set_total_tokens(&mut self, number: usize, tokens: Tokens) {
        if let Some(conversation) = self.conversation(number) {
            conversation.tokens.clear();
            let model = conversation.model.clone().unwrap_or_default();
            conversation.recent_messages = vec![RecentMessage { id: String::new(), model, tokens }];
        }
    }

    /// Sets the counts of tokens by model, which replace all counts before.
    pub(crate) fn set_tokens_by_model(&mut self, number: usize, tokens: BTreeMap<String, Tokens>) {
        if let Some(conversation) = self.conversation(number) {
            let tokens = tokens.into_iter().take(MODELS_MAX);
            conversation.tokens =
                tokens.map(|(model, tokens)| (shorten(&model, WORD_MAX), tokens)).collect();
            conversation.recent_messages.clear();
        }
    }

    /// Returns true if tokens were counted by message.
    pub(crate) fn has_counted_tokens(&self, number: usize) -> bool {
        let conversation = self.index.numbered(number);
        conversation.is_some_and(|own| !own.recent_messages.is_empty())
    }

    /// Sets the model of a conversation unless it is known already.
    pub(crate) fn set_default_model(&mut self, number: usize, model: &str) {
        if let Some(conversation) = self.conversation(number).filter(|_| !model.is_empty()) {
            conversation.model.get_or_insert_with(|| shorten(model, WORD_MAX));
        }
    }

    /// Sets the task that counts if the user wrote no message, unless it is set already.
    pub(crate) fn set_fallback_task(&mut self, number: usize, span: Span, text: &str) {
        if let Some(conversation) = self.conversation(number).filter(|_| !text.trim().is_empty()) {
            conversation.fallback_task.get_or_insert_with(|| text_ref(span, text));
        }
    }

    /// Continues a conversation after the message `parent`: removes all messages after it, with
    /// their calls, requests and lines. Does nothing if there is no message with the ID.
    pub(crate) fn continue_after(&mut self, number: usize, parent: &str) {
        let messages = self.messages.get(number);
        let at = messages.and_then(|messages| messages.by_id.get(&text_hash(parent)).copied());
        if let Some(at) = at {
            self.truncate_messages(number, at + 1);
        }
    }

    /// Removes the message with an ID and all after it from a conversation, with their calls,
    /// requests and lines. Removes all messages if there is none with the ID.
    pub(crate) fn rewind_to(&mut self, number: usize, id: &str) {
        let messages = self.messages.get(number);
        let at = messages.and_then(|messages| messages.by_id.get(&text_hash(id)).copied());
        self.truncate_messages(number, at.unwrap_or(0));
    }

    /// Removes all messages but the first `count` from a conversation, with their calls, requests
    /// and lines.
    pub(crate) fn truncate_messages(&mut self, number: usize, count: usize) {
        let Some(conversation) = self.conversation(number) else { return };
        let marks = &conversation.marks;
        let (calls, requests, lines) = match marks.get(count) {
            Some(mark) => (mark.calls, mark.requests, mark.lines),
            None if marks.is_empty() => (0, 0, 0),
            None => return,
        };
        let cut = conversation.lines.get(lines).map_or(u64::MAX, |line| line.span.offset);
        (count..conversation.marks.len()).for_each(|at| take_tokens(conversation, at));
        let marks = conversation.marks.split_off(count.min(conversation.marks.len()));
        let removed = conversation.calls.split_off(calls.min(conversation.calls.len()));
        conversation.requests.truncate(requests);
        conversation.lines.truncate(lines);
        for call in conversation.calls.iter_mut().rev().take(REOPENED_MAX) {
            // The result belongs to the messages that were removed.
            if call.result.as_ref().is_some_and(|result| result.span.offset >= cut) {
                call.result = None;
            }
        }
        conversation.first_open = conversation.first_open.min(calls);
        conversation.ending = Ending::AwaitingReply;
        conversation.last_text = None;
        conversation.stated = None;
        if requests == 0 {
            conversation.task = None;
        }
        if let Some(messages) = self.messages.get_mut(number) {
            for (at, mark) in (count..).zip(marks) {
                messages.by_id.remove(&mark.id);
                messages.counted.remove(&at);
            }
        }
        if let Some(ids) = self.calls.get_mut(number) {
            for call in removed {
                ids.by_id.remove(&call.id);
            }
        }
    }

    /// Records that the last text of a conversation was not its end.
    pub(crate) fn note_no_final_words(&mut self, number: usize) {
        let Some(conversation) = self.conversation(number) else { return };
        conversation.last_text = None;
        if conversation.ending == Ending::Answered {
            conversation.ending = Ending::AwaitingReply;
        }
    }

    /// Replaces the messages of a conversation by the messages with `ids`, each of which the format
    /// adds again by [`IndexBuilder::add_turns_again`]. Only their tokens count, and the last one
    /// decides how the conversation ended. Calls and requests stay: they took place.
    pub(crate) fn replace_messages(&mut self, number: usize, ids: &[&str]) {
        let Some(messages) = self.messages.get_mut(number) else { return };
        let numbers = ids.iter().filter_map(|id| messages.by_id.get(&text_hash(id)).copied());
        let kept: HashSet<usize> = numbers.collect();
        let mut counted = std::mem::take(&mut messages.counted);
        let Some(conversation) = self.conversation(number) else { return };
        counted
            .iter()
            .filter(|at| !kept.contains(at))
            .for_each(|at| take_tokens(conversation, *at));
        counted.clear();
        // A record that repeats a message can lack its tokens.
        counted.extend(kept.into_iter().filter(|at| count_mark(conversation, *at)));
        if conversation.ending != Ending::Empty {
            conversation.ending = Ending::AwaitingReply;
        }
        conversation.last_text = None;
        if let Some(messages) = self.messages.get_mut(number) {
            messages.counted = counted;
        }
    }

    /// Records that the work of a conversation goes on in the session `id`.
    pub(crate) fn note_continued(&mut self, number: usize, id: &str) {
        if let Some(conversation) = self.conversation(number).filter(|own| own.ending.is_open()) {
            conversation.ending = Ending::Continued(shorten_id(id));
        }
    }

    /// Removes everything about the transcript's own conversation and its session: another session
    /// begins in the file.
    pub(crate) fn begin_session(&mut self) {
        self.index.facts = SessionFacts::default();
        self.clear_main();
    }

    fn clear_main(&mut self) {
        self.index.main = Conversation::default();
        self.calls.first_mut().into_iter().for_each(|numbers| *numbers = CallNumbers::default());
        // A set that was large takes as long to clear, and copied records clear it often.
        self.counted.first_mut().into_iter().for_each(|ids| *ids = HashSet::new());
        self.messages.first_mut().into_iter().for_each(|numbers| *numbers = Default::default());
    }

    /// Adds the turns of the record at `span` again, which repeats messages in the order that the
    /// conversation has now.
    pub(crate) fn add_turns_again(&mut self, number: usize, span: Span, turns: &[Turn<'_>]) {
        self.add_record_turns(number, span, turns, true);
    }

    pub(crate) fn add_turns(&mut self, number: usize, span: Span, turns: &[Turn<'_>]) {
        self.add_record_turns(number, span, turns, false);
    }

    fn add_record_turns(&mut self, number: usize, span: Span, turns: &[Turn<'_>], again: bool) {
        let accessed_files = self.accessed_files;
        let as_lines = self.shape == Shape::Lines;
        let Some(conversation) = self.index.numbered_mut(number) else { return };
        let Some(ids) = self.calls.get_mut(number) else { return };
        let Some(messages) = self.messages.get_mut(number) else { return };
        let (mut links, mut shown) = (Links::default(), Shown::All);
        let mut requests = 0;
        for turn in turns {
            let request = RequestPart::Message { number: requests };
            requests += usize::from(turn.request.is_some());
            conversation.first_ms = conversation.first_ms.or(turn.at_ms);
            conversation.last_ms = turn.at_ms.or(conversation.last_ms);
            let repeat = note_message(conversation, messages, turn);
            match repeat {
                Repeat::New => {}
                Repeat::Changed => shown = Shown::New { text: true },
                Repeat::Same => shown = Shown::New { text: false },
            }
            for result in &turn.results {
                let part = links.results.len();
                links.results.push(add_result(conversation, ids, span, part, turn.at_ms, result));
            }
            match repeat {
                Repeat::New => add_message(conversation, span, request, turn),
                // The request is known.
                Repeat::Changed if turn.role != Role::Assistant => {
                    note_ending(conversation, span, turn);
                }
                Repeat::Changed => add_message(conversation, span, request, turn),
                Repeat::Same if again => note_ending(conversation, span, turn),
                Repeat::Same => {}
            }
            for call in &turn.calls {
                conversation.ending = Ending::CalledTool;
                if self.calls_are_stated_once {
                    release_id(conversation, ids, span, call);
                }
                links.calls.push(add_call(
                    conversation,
                    ids,
                    &mut self.inputs,
                    accessed_files,
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

fn add_message(conversation: &mut Conversation, span: Span, part: RequestPart, turn: &Turn<'_>) {
    note_ending(conversation, span, turn);
    if turn.role == Role::Assistant {
        if !turn.is_synthetic {
            if !turn.model.is_empty() {
                conversation.model = Some(shorten(&turn.model, WORD_MAX));
            }
            conversation.written_bytes += written_bytes(turn);
        }
        return;
    }
    let requests = &mut conversation.requests;
    requests.note_left_out(turn.left_out);
    if turn.text.trim().is_empty() {
        return;
    }
    match turn.event {
        TurnEvent::ProgramText | TurnEvent::Report | TurnEvent::Interruption => {
            requests.note_program_message();
        }
        TurnEvent::Compaction => {
            requests.note_program_message();
            conversation.context.add_compaction(turn.at_ms);
            conversation.fallback_task.get_or_insert_with(|| text_ref(span, &turn.text));
        }
        TurnEvent::Submission => {
            conversation.submission = Some(text_ref(span, &turn.text));
        }
        TurnEvent::Command | TurnEvent::Message | TurnEvent::Farewell | TurnEvent::ApiError => {
            match own_request(turn) {
                Some(request) if turn.event == TurnEvent::Command => {
                    requests.add(span, part, turn.at_ms, request);
                    conversation.fallback_task = Some(text_ref(span, request));
                }
                Some(request) => {
                    requests.add(span, part, turn.at_ms, request);
                    conversation.task.get_or_insert_with(|| text_ref(span, request));
                }
                None => {
                    conversation.fallback_task.get_or_insert_with(|| text_ref(span, &turn.text));
                }
            }
        }
    }
}

/// Returns the text that a person wrote in the message, unless it is blank.
fn own_request<'a>(turn: &'a Turn<'_>) -> Option<&'a str> {
    turn.request.as_deref().filter(|request| !request.trim().is_empty())
}

fn note_ending(conversation: &mut Conversation, span: Span, turn: &Turn<'_>) {
    let is_empty = turn.text.trim().is_empty();
    let ending = &mut conversation.ending;
    if turn.role == Role::Assistant {
        if turn.event == TurnEvent::ApiError {
            *ending = Ending::ApiError(truncate(turn.text.clone().into_owned(), HEAD_MAX));
        } else if !is_empty {
            conversation.last_text = Some(text_ref(span, &turn.text));
            *ending = Ending::Answered;
        } else if *ending != Ending::Answered {
            *ending = Ending::AwaitingReply;
        }
        return;
    }
    match turn.event {
        TurnEvent::Report => *ending = Ending::AwaitingReply,
        _ if is_empty => {}
        TurnEvent::ProgramText | TurnEvent::Compaction | TurnEvent::Submission => {}
        TurnEvent::Interruption => *ending = Ending::Interrupted,
        _ if own_request(turn).is_some() => *ending = Ending::AwaitingReply,
        TurnEvent::Farewell if ending.is_open() => *ending = Ending::Left,
        TurnEvent::Command | TurnEvent::Farewell | TurnEvent::Message | TurnEvent::ApiError => {}
    }
}

/// Returns the length of the assistant's texts, thoughts and arguments in a turn, in bytes.
fn written_bytes(turn: &Turn<'_>) -> u64 {
    let arguments = turn.calls.iter().map(|call| call.arguments.as_text().map_or(0, str::len));
    (turn.text.len() + turn.thinking.len() + arguments.sum::<usize>()) as u64
}

fn text_ref(span: Span, text: &str) -> TextRef {
    let (head, _) = text.split_at_most(HEAD_MAX);
    TextRef { span, bytes: text.len() as u64, hash: text_hash(text), head: head.to_owned() }
}

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
