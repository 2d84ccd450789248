//! Decodes rows into turns, and the row of a session into facts.

use std::borrow::Cow;

use super::super::blocks::join_lines;
use super::super::lenient::{MaybeU64, object};
use super::super::transcript::{
    IndexBuilder, RawRecord, ResultPart, Role, TitleSource, Turn, TurnEvent,
};
use super::super::value::truncate;
use super::calls::{call_part, call_time, final_refusal, report, result_part};
use super::schema::{
    CacheTokens, MessageRecord, MessageRow, OpencodeBlock, RowRecord, SessionRow, TokenRecord,
};
use swarmletfs_base::model::{Status, Tokens};

/// Maximum length of a title, in bytes.
const TITLE_MAX: usize = 300;
/// The first line of the task of a subagent.
const SUBAGENT_PREFIX: &str = "You are a subagent spawned by another session.\n";
const INTERRUPTED: &str = "interrupted";
/// The types of errors that say that a person ended the run.
const ABORTED: [&str; 2] = ["aborted", "MessageAbortedError"];

pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let Some(line) = object::<RowRecord<'_>>(record.text) else { return false };
    let Some(row) = line.row else { return false };
    // Rows change in place.
    index.index.restarts = true;
    if matches!(line.table.as_str(), "session" | "session_v2") {
        let Some(session) = object::<SessionRow<'_>>(row.get()) else { return false };
        add_session(index, &session);
        return true;
    }
    let Some(message) = object::<MessageRow<'_>>(row.get()) else { return false };
    let Some(data) = &message.data.0 else { return false };
    let turns = turns(&line, &message);
    let session_ms = index.index.main.first_ms;
    if is_copied(&message, data, session_ms) {
        let request = turns.iter().find_map(|turn| turn.request.as_deref());
        if let Some(request) = request {
            index.set_fallback_task(0, record.span, request);
        }
        return true;
    }
    let kind = kind(&message);
    if !is_known(kind) {
        index.count_unknown_type(if kind.is_empty() { "(none)" } else { kind });
    }
    if !turns.is_empty() {
        index.add_turns(0, record.span, &turns);
    }
    note_status(index, kind, data, turns.iter().any(is_interruption));
    if kind == "assistant" {
        count_tokens(index, &message, data);
    }
    true
}

pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    let Some(line) = object::<RowRecord<'_>>(record.text) else { return };
    let Some(message) = line.row.and_then(|row| object::<MessageRow<'_>>(row.get())) else {
        return;
    };
    use_turns(&turns(&line, &message));
}

/// Calls `use_blocks` with the texts, thoughts and calls of a message.
pub(super) fn with_blocks(text: &str, use_blocks: &mut dyn FnMut(&[&OpencodeBlock<'_>])) {
    let Some(line) = object::<RowRecord<'_>>(text) else { return };
    let Some(message) = line.row.and_then(|row| object::<MessageRow<'_>>(row.get())) else {
        return;
    };
    if let Some(data) = &message.data.0 {
        use_blocks(&blocks(&line, data));
    }
}

/// Returns the type of a message, which is its role in version 1.
fn kind<'a>(message: &'a MessageRow<'_>) -> &'a str {
    let role = message.data.0.as_ref().map(|data| data.role.as_str()).unwrap_or_default();
    if message.kind.as_str().is_empty() { role } else { message.kind.as_str() }
}

fn is_known(kind: &str) -> bool {
    matches!(kind, "user" | "assistant" | "system" | "synthetic" | "idle" | "shell" | "skill")
        || kind == "compaction"
        || kind.ends_with("-switched")
}

/// Returns true if a fork took over the message: its ID ends in its number. Version 1 leaves no
/// mark: the message is older than its session, which was made at `session_ms`.
fn is_copied(message: &MessageRow<'_>, data: &MessageRecord<'_>, session_ms: Option<i64>) -> bool {
    let Some(number) = message.seq.0 else {
        let created = data.time.0.as_ref().and_then(|time| time.created.0);
        return created.zip(session_ms).is_some_and(|(created, session)| created < session);
    };
    let end = format!("_{number}");
    message.id.as_str().strip_suffix(&*end).is_some_and(|id| id.contains('_'))
}

fn is_interruption(turn: &Turn<'_>) -> bool {
    turn.event == TurnEvent::Interruption
}

fn add_session(index: &mut IndexBuilder<'_>, session: &SessionRow<'_>) {
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, session.id.as_str());
    IndexBuilder::set_fact(&mut facts.parent, session.parent_id.as_str());
    IndexBuilder::set_fact(&mut facts.forked_from, session.fork_session_id.as_str());
    IndexBuilder::set_fact(&mut facts.cwd, session.directory.as_str());
    IndexBuilder::set_fact(&mut facts.agent_type, session.agent.as_str());
    let title = session.title.non_empty().map(|title| truncate(title, TITLE_MAX));
    index.set_title(TitleSource::Generated, title);
    index.index.main.first_ms = session.time_created.0;
    if let Some(model) = &session.model.0 {
        index.set_default_model(0, model.id.as_str());
    }
    // The session also counts requests that are no message, such as the one for its title.
    if let Some(input) = session.tokens_input.0 {
        let tokens = Tokens {
            input,
            output: sum(session.tokens_output.0, session.tokens_reasoning.0),
            cache_read: session.tokens_cache_read.0.unwrap_or_default(),
            cache_creation: session.tokens_cache_write.0.unwrap_or_default(),
            ..Tokens::default()
        };
        // A session that was imported states zeros.
        if tokens != Tokens::default() {
            index.set_total_tokens(0, tokens);
        }
    }
    if let Some(cost) = session.cost.as_stated_cost() {
        index.index.main.cost.replace(cost);
    }
}

fn sum(one: Option<u64>, two: Option<u64>) -> u64 {
    one.unwrap_or_default().saturating_add(two.unwrap_or_default())
}

fn tokens(counts: &TokenRecord) -> Tokens {
    let cache = counts.cache.0.as_ref();
    let cached = |count: fn(&CacheTokens) -> MaybeU64| cache.and_then(|cache| count(cache).0);
    Tokens {
        input: counts.input.0.unwrap_or_default(),
        output: sum(counts.output.0, counts.reasoning.0),
        cache_read: cached(|cache| cache.read).unwrap_or_default(),
        cache_creation: cached(|cache| cache.write).unwrap_or_default(),
        ..Tokens::default()
    }
}

/// Counts the tokens and the cost of a message, unless the session states its own.
fn count_tokens(index: &mut IndexBuilder<'_>, message: &MessageRow<'_>, data: &MessageRecord<'_>) {
    let model = model(data);
    index.set_model(0, model);
    let Some(counts) = &data.tokens.0 else { return };
    let tokens = tokens(counts);
    let main = &mut index.index.main;
    // The total of the session has no ID.
    if main.recent_messages.first().is_some_and(|first| first.id.is_empty()) {
        main.context.add_request(main.last_ms, tokens.context());
        return;
    }
    index.count_tokens(0, message.id.as_str(), model, tokens);
    if let Some(cost) = data.cost.as_stated_cost() {
        index.index.main.cost.add(cost);
    }
}

fn model<'a>(data: &'a MessageRecord<'_>) -> &'a str {
    match &data.model.0 {
        Some(model) if !model.id.as_str().is_empty() => model.id.as_str(),
        _ => data.model_id.as_str(),
    }
}

fn note_status(
    index: &mut IndexBuilder<'_>,
    kind: &str,
    data: &MessageRecord<'_>,
    is_interrupted: bool,
) {
    let (status, word) = match (kind, data.outcome.as_str(), data.finish.as_str()) {
        ("idle", "succeeded", _) => (Status::Completed, None),
        ("idle", "failed", _) => (Status::Failed, None),
        ("idle", word, _) => (Status::Unknown, Some(word)),
        ("assistant", ..) if is_interrupted => (Status::Unknown, Some(INTERRUPTED)),
        ("assistant", ..) if data.error.is_set() => (Status::Failed, Some(&*data.error.kind)),
        ("assistant", ..) if completed_ms(data).is_none() => (Status::Running, None),
        ("assistant", _, "stop") => (Status::Completed, None),
        ("user" | "assistant", ..) => return index.clear_status(0),
        _ => return,
    };
    index.set_status(0, status, word.filter(|word| !word.is_empty()));
    if kind == "idle" {
        let main = &mut index.index.main;
        main.last_ms = data.time.0.as_ref().and_then(|time| time.created.0).or(main.last_ms);
    }
}

fn completed_ms(data: &MessageRecord<'_>) -> Option<i64> {
    data.time.0.as_ref().and_then(|time| time.completed.0)
}

fn blocks<'a>(line: &'a RowRecord<'_>, data: &'a MessageRecord<'_>) -> Vec<&'a OpencodeBlock<'a>> {
    let parts = line.parts.0.iter().filter_map(|part| part.0.as_ref()?.data.0.as_ref());
    data.content.0.iter().filter_map(|block| block.0.as_ref()).chain(parts).collect()
}

fn turns<'a>(line: &'a RowRecord<'_>, message: &'a MessageRow<'_>) -> Vec<Turn<'a>> {
    let Some(data) = &message.data.0 else { return Vec::new() };
    let created = data.time.0.as_ref().and_then(|time| time.created.0).or(message.time_created.0);
    let turn = Turn { at_ms: created, ..Turn::default() };
    let blocks = blocks(line, data);
    let program_text = |text: Cow<'a, str>| {
        vec![Turn { role: Role::System, text, event: TurnEvent::ProgramText, ..Turn::default() }]
    };
    match kind(message) {
        "user" => vec![user_turn(data, &blocks, turn)],
        "assistant" if data.summary.is_set => {
            let text = texts(&blocks, |_| true);
            vec![Turn { role: Role::System, text, event: TurnEvent::Compaction, ..turn }]
        }
        "assistant" => assistant_turns(data, &blocks, turn),
        "synthetic" => {
            let text = data.text.as_str();
            let notice = data.metadata.0.as_ref();
            let results: Vec<ResultPart<'_>> =
                notice.and_then(|notice| report(notice, text)).into_iter().collect();
            let event = TurnEvent::Report;
            vec![Turn { role: Role::System, text: text.into(), results, event, ..turn }]
        }
        "compaction" if !data.summary.text.is_empty() => {
            let text = (&*data.summary.text).into();
            vec![Turn { role: Role::System, text, event: TurnEvent::Compaction, ..turn }]
        }
        "system" | "skill" => program_text(data.text.as_str().into()),
        "shell" => program_text(data.command.as_str().into()),
        _ => Vec::new(),
    }
}

fn user_turn<'a>(
    data: &'a MessageRecord<'_>,
    blocks: &[&'a OpencodeBlock<'_>],
    turn: Turn<'a>,
) -> Turn<'a> {
    let (text, own) = match data.text.as_str() {
        "" => (texts(blocks, |_| true), texts(blocks, |block| !block.synthetic.is_set())),
        text => (text.into(), text.into()),
    };
    let request = request(own);
    let event = match request.trim().is_empty() {
        true => TurnEvent::ProgramText,
        false => TurnEvent::Message,
    };
    Turn { role: Role::User, text, request: Some(request), event, ..turn }
}

/// Returns the words of a person in a message: without the line that the program puts before the
/// task of a subagent, and without the quotation marks around a task of `opencode run`.
fn request(text: Cow<'_, str>) -> Cow<'_, str> {
    let own = text.strip_prefix(SUBAGENT_PREFIX).unwrap_or(&text);
    let inner = own.strip_prefix('"').and_then(|own| own.strip_suffix('"'));
    let own = inner.filter(|inner| !inner.contains('"')).unwrap_or(own);
    if own.len() == text.len() { text } else { Cow::Owned(own.to_owned()) }
}

/// Returns the texts of a message, a line or more for each.
fn texts<'a>(
    blocks: &[&'a OpencodeBlock<'_>],
    is_wanted: impl Fn(&OpencodeBlock<'_>) -> bool,
) -> Cow<'a, str> {
    let texts = blocks.iter().filter(|block| block.kind.as_str() == "text" && is_wanted(block));
    join_lines(texts.map(|block| block.text.as_str()))
}

fn append<'a>(all: &mut Cow<'a, str>, text: &'a str) {
    if all.is_empty() {
        *all = text.into();
    } else {
        let all = all.to_mut();
        all.push('\n');
        all.push_str(text);
    }
}

/// Returns the turns of an answer: its texts with the calls after them, the results, and the texts
/// after those.
fn assistant_turns<'a>(
    data: &'a MessageRecord<'_>,
    blocks: &[&'a OpencodeBlock<'_>],
    turn: Turn<'a>,
) -> Vec<Turn<'a>> {
    let created = turn.at_ms;
    let answer = || Turn {
        role: Role::Assistant,
        at_ms: created,
        model: model(data).into(),
        ..Turn::default()
    };
    let (mut turns, mut current, mut results) = (Vec::new(), answer(), Vec::new());
    for block in blocks {
        let text = block.text.as_str();
        let is_text = matches!(block.kind.as_str(), "text" | "reasoning");
        if is_text && !text.trim().is_empty() && !current.calls.is_empty() {
            turns.push(std::mem::replace(&mut current, answer()));
            turns.append(&mut results);
        }
        match block.kind.as_str() {
            "text" => append(&mut current.text, text),
            "reasoning" => append(&mut current.thinking, text),
            "tool" => {
                current.calls.push(call_part(block));
                results.extend(result_part(block).map(|result| Turn {
                    at_ms: call_time(block).end_ms().or(created),
                    results: vec![result],
                    ..Turn::default()
                }));
            }
            _ => {}
        }
    }
    turns.push(current);
    turns.append(&mut results);
    turns.extend(end_turn(data, blocks, created));
    turns
}

/// Returns the turn for the error or the refusal with which an answer ended.
fn end_turn<'a>(
    data: &'a MessageRecord<'_>,
    blocks: &[&'a OpencodeBlock<'_>],
    created: Option<i64>,
) -> Option<Turn<'a>> {
    let at_ms = completed_ms(data).or(created);
    let turn = Turn { role: Role::System, at_ms, ..Turn::default() };
    let error = &data.error;
    if error.is_set() {
        let text: Cow<'_, str> =
            if error.message.is_empty() { (&*error.kind).into() } else { (&*error.message).into() };
        return Some(match ABORTED.contains(&&*error.kind) {
            true => Turn { text, event: TurnEvent::Interruption, ..turn },
            false => Turn {
                role: Role::Assistant,
                is_synthetic: true,
                text,
                event: TurnEvent::ApiError,
                ..turn
            },
        });
    }
    // Version 1 ends the run without a word.
    let text = blocks.iter().find_map(|block| final_refusal(block))?;
    Some(Turn { text: text.into(), event: TurnEvent::Interruption, ..turn })
}
