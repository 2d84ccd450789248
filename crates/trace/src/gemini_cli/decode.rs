//! Decodes messages into turns, and metadata into facts about the session.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::lenient::{MaybeList, MaybeStr, MaybeU64};
use super::super::transcript::{
    Arguments, CallPart, IndexBuilder, Member, RawRecord, ResultPart, Role, Span, Stage,
    TitleSource, Turn, TurnEvent, Verdict, parse_millis,
};
use super::super::value::truncate;
use super::schema::{
    DiffStat, DisplayedFile, LogMetadata, LogRecord, MessageTokenCounts, ToolCallRecord, decode,
};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome, Tokens};

/// The members of a document that are read. The messages come first, so that their records have
/// the number of a line's.
pub(super) const MEMBERS: [Member; 7] = [
    Member::List("messages"),
    Member::Value("sessionId"),
    Member::Value("startTime"),
    Member::Value("lastUpdated"),
    Member::Value("kind"),
    Member::Value("summary"),
    Member::Value("directories"),
];
pub(super) const SUBAGENT: &str = "subagent";
/// Maximum length of a title, in bytes.
const TITLE_MAX: usize = 300;
const SHELL: &str = "run_shell_command";
/// The tool by which a subagent gives its answer and ends.
const COMPLETE_TASK: &str = "complete_task";
const EXIT_CODE_PREFIX: &str = "Exit Code: ";
/// The prefix of an output whose whole text is in a file of its own.
const SPILLED_PREFIX: &str = "Output too large. Showing first ";
/// The prefix of the result of a command that goes on in the background.
const BACKGROUND_PREFIX: &str = "Command moved to background (PID: ";
/// The words in the result of a cancelled call that its user refused. Others may have run.
const REFUSED: &str = "did not allow";
const TRUNCATED_PREFIX: &str = "Tool output was too large and has been truncated.";
const INTERRUPTED: &str = "Request cancelled.";
/// Prefixes of messages that the program writes for the model in the user's name.
const CONTEXT_PREFIXES: [&str; 2] = ["<session_context>", "<hook_context>"];
/// Prefixes of messages that the program writes in the user's name, and the model answers.
const REPORT_PREFIXES: [&str; 2] = ["System: Potential loop detected.", "System: Please continue."];
const WORKSPACE_HEADING: &str = "- **Workspace Directories:**\n  - ";

/// Adds a line of a log, or a value of a document, to the index. Returns false if it cannot be
/// decoded.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    match MEMBERS.get(usize::from(record.span.part)) {
        Some(Member::Value(name)) => add_member(index, name, record.text),
        _ => match decode(record.text) {
            Some(line) => add_line(index, record, line),
            None => false,
        },
    }
}

pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    if let Some(message) = decode(record.text) {
        use_turns(&message_turns(&message));
    }
}

fn add_member(index: &mut IndexBuilder<'_>, name: &str, text: &str) -> bool {
    let mut metadata = LogMetadata::default();
    let word = || serde_json::from_str::<MaybeStr<'_>>(text).ok();
    let field = match name {
        "sessionId" => &mut metadata.session_id,
        "startTime" => &mut metadata.start_time,
        "lastUpdated" => &mut metadata.last_updated,
        "kind" => &mut metadata.kind,
        "summary" => &mut metadata.summary,
        _ => {
            let directories = serde_json::from_str::<MaybeList<MaybeStr<'_>>>(text);
            metadata.directories = directories.unwrap_or_default();
            add_facts(index, &metadata);
            return true;
        }
    };
    let Some(word) = word() else { return false };
    *field = word;
    add_facts(index, &metadata);
    true
}

fn add_line(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, mut line: LogRecord<'_>) -> bool {
    if let Some(message) = &line.rewind_to.0 {
        let results = results_id(message);
        let message = if index.has_message(0, message) { message } else { results.as_str() };
        index.rewind_to(0, message);
    } else if line.id.0.is_some() {
        add_message(index, record.span, &line, Order::Next);
    } else if let Some(changes) = &line.changes.0 {
        if let Some(messages) = changes.messages {
            let Some(messages) = messages_in(record, messages) else { return false };
            let ids: Vec<&str> = messages.iter().map(|(_, message)| message.id.as_str()).collect();
            index.replace_messages(0, &ids);
            for (span, message) in &messages {
                add_message(index, *span, message, Order::Again);
            }
        }
        add_facts(index, changes);
    } else if let Some(metadata) = line.take_metadata() {
        let known = index.index.facts.id.as_deref();
        if known.is_some_and(|known| known != metadata.session_id.as_str()) {
            index.begin_session();
        }
        let messages = metadata.messages.map(|messages| messages_in(record, messages));
        let Some(messages) = messages.unwrap_or_else(|| Some(Vec::new())) else { return false };
        for (span, message) in &messages {
            add_message(index, *span, message, Order::Next);
        }
        add_facts(index, &metadata);
    } else if index.index.documents > 0 {
        add_message(index, record.span, &line, Order::Next);
    } else {
        index.count_unknown_type("(none)");
    }
    true
}

/// Returns the messages in a list inside a record, each with its own place. Returns `None` if it is
/// no list, or if the places are unknown because the record is no valid UTF-8.
fn messages_in<'a>(
    record: RawRecord<'a>,
    list: &'a RawValue,
) -> Option<Vec<(Span, LogRecord<'a>)>> {
    if record.text.len() != record.span.len {
        return None;
    }
    let list: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let begin = record.text.as_ptr().addr();
    let messages = list.into_iter().filter_map(|json| {
        let message = decode(json.get()).filter(|message| message.id.0.is_some())?;
        let offset = json.get().as_ptr().addr().checked_sub(begin)?;
        let offset = record.span.offset + offset as u64;
        Some((Span { offset, len: json.get().len(), part: 0 }, message))
    });
    Some(messages.collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// After all messages before it.
    Next,
    /// In a list of all messages.
    Again,
}

fn add_message(index: &mut IndexBuilder<'_>, span: Span, message: &LogRecord<'_>, order: Order) {
    match message.message_type.as_str() {
        "user" | "gemini" | "info" | "warning" | "error" => {}
        "" => index.count_unknown_type("(none)"),
        other => index.count_unknown_type(other),
    }
    let before = index.index.main.last_ms;
    let turns = message_turns(message);
    if order == Order::Again {
        index.add_turns_again(0, span, &turns);
    } else {
        index.add_turns(0, span, &turns);
    }
    let main = &mut index.index.main;
    // An earlier message can be repeated.
    main.last_ms = main.last_ms.max(before);
    if let Some(tokens) = message.tokens.0.filter(|_| message.message_type.as_str() == "gemini") {
        let (id, model) = (message.id.as_str(), message.model.as_str());
        index.set_message_tokens(0, id, model, token_counts(tokens));
    }
    if message.message_type.as_str() == "user"
        && let Some(cwd) = turns.first().and_then(|turn| workspace(&turn.text))
    {
        IndexBuilder::set_fact(&mut index.index.facts.cwd, cwd);
    }
}

/// Returns the first directory of the workspace that the first message of a session names.
fn workspace(text: &str) -> Option<&str> {
    let context = text.trim_start().strip_prefix(CONTEXT_PREFIXES.first()?)?;
    context.split_once(WORKSPACE_HEADING)?.1.lines().next()
}

fn token_counts(counts: MessageTokenCounts) -> Tokens {
    let output = counts.output.or_zero().saturating_add(counts.thoughts.or_zero());
    Tokens::of_prompt(counts.input.or_zero(), output, [counts.cached.or_zero(), 0])
}

fn add_facts(index: &mut IndexBuilder<'_>, metadata: &LogMetadata<'_>) {
    let facts = &mut index.index.facts;
    if let Some(id) = metadata.session_id.non_empty() {
        facts.id = None;
        IndexBuilder::set_fact(&mut facts.id, &id);
    }
    if metadata.kind.as_str() == SUBAGENT {
        IndexBuilder::set_fact(&mut facts.agent_type, SUBAGENT);
    }
    if let Some(directory) = metadata.directories.0.first() {
        IndexBuilder::set_fact(&mut facts.cwd, directory.as_str());
    }
    let title = metadata.summary.non_empty().map(|summary| truncate(summary, TITLE_MAX));
    index.set_title(TitleSource::Generated, title);
    let main = &mut index.index.main;
    let start = parse_millis(metadata.start_time.as_str());
    main.first_ms = main.first_ms.into_iter().chain(start).min();
    main.last_ms = main.last_ms.max(parse_millis(metadata.last_updated.as_str()));
}

/// Returns the turns of a message: the message with its calls, their results, and the answer of a
/// subagent.
fn message_turns<'a>(message: &'a LogRecord<'_>) -> Vec<Turn<'a>> {
    let at_ms = parse_millis(message.timestamp.as_str());
    let text = message.content.text();
    let id = Cow::Borrowed(message.id.as_str());
    let turn = Turn { id, at_ms, ..Turn::default() };
    match message.message_type.as_str() {
        "gemini" => model_turns(message, turn),
        "user" => vec![user_turn(message, turn)],
        "info" if text.trim() == INTERRUPTED => {
            vec![Turn { role: Role::System, text, event: TurnEvent::Interruption, ..turn }]
        }
        "info" | "warning" => {
            vec![Turn { role: Role::System, text, event: TurnEvent::ProgramText, ..turn }]
        }
        "error" => vec![Turn {
            role: Role::Assistant,
            is_synthetic: true,
            text,
            event: TurnEvent::ApiError,
            ..turn
        }],
        _ => vec![Turn { role: Role::System, event: TurnEvent::ProgramText, ..turn }],
    }
}

fn user_turn<'a>(message: &'a LogRecord<'_>, turn: Turn<'a>) -> Turn<'a> {
    let mut turn = Turn { role: Role::User, text: message.content.text(), ..turn };
    let begins = |prefixes: &[&str]| {
        prefixes.iter().any(|prefix| turn.text.trim_start().starts_with(prefix))
    };
    // The results are in the message that made the calls, too.
    if message.content.has_response() {
        let id = results_id(&turn.id).into();
        return Turn { id, event: TurnEvent::Report, ..turn };
    }
    if begins(&CONTEXT_PREFIXES) {
        turn.event = TurnEvent::ProgramText;
        return turn;
    }
    if begins(&REPORT_PREFIXES) {
        turn.event = TurnEvent::Report;
        return turn;
    }
    let typed = message.display_content.text();
    let request = if typed.trim().is_empty() { turn.text.clone() } else { typed };
    if is_command(&request) {
        turn.left_out.commands = 1;
    } else {
        turn.request = Some(request);
    }
    turn
}

/// Returns the ID of a message with results. The program may give it the ID of the message that
/// made the calls.
fn results_id(id: &str) -> String {
    format!("{id} results")
}

/// Returns true if a message is a command of the program, such as `/help`.
fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    word.is_some_and(|word| !word.is_empty() && !word.contains(['/', '.']))
}

fn model_turns<'a>(message: &'a LogRecord<'_>, turn: Turn<'a>) -> Vec<Turn<'a>> {
    let calls = || message.tool_calls.0.iter().filter_map(|call| call.0.as_ref());
    let mut turns = vec![Turn {
        role: Role::Assistant,
        model: message.model.as_str().into(),
        text: message.content.text(),
        thinking: thinking(message).into(),
        calls: calls().map(call_part).collect(),
        ..turn
    }];
    turns.extend(calls().filter_map(|call| {
        let results = vec![result_part(call)?];
        let at_ms = parse_millis(call.timestamp.as_str());
        Some(Turn { at_ms, results, ..Turn::default() })
    }));
    turns.extend(calls().filter_map(|call| answer(message, call)));
    turns
}

/// Returns the thoughts of a message, a line or more for each.
fn thinking(message: &LogRecord<'_>) -> String {
    let thoughts = message.thoughts.0.iter().filter_map(|thought| thought.0.as_ref());
    let thoughts = thoughts.map(|thought| {
        let parts = [thought.subject.as_str(), thought.description.as_str()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
    });
    thoughts.collect::<Vec<_>>().join("\n")
}

fn call_part<'a>(call: &'a ToolCallRecord<'_>) -> CallPart<'a> {
    CallPart {
        id: call.id.as_str().into(),
        name: call.name.as_str().into(),
        arguments: call.args.map_or(Arguments::None, Arguments::Json),
    }
}

/// Returns the result of a call, unless it is still under way.
fn result_part<'a>(call: &'a ToolCallRecord<'_>) -> Option<ResultPart<'a>> {
    if call.result.0.is_empty() {
        return None;
    }
    let text = call.result.result_text(call.id.as_str());
    let is_receipt = text.starts_with(BACKGROUND_PREFIX);
    let outcome = match call.status.as_str() {
        "success" if is_receipt => Outcome::Unknown,
        "success" => Outcome::Ok,
        "error" => Outcome::Failed,
        // A call that wrote something was stopped while it ran.
        "cancelled" if call.result.has_output() => Outcome::Failed,
        "cancelled" if text.contains(REFUSED) => Outcome::NotRun,
        "executing" | "scheduled" | "validating" | "awaiting_approval" => return None,
        _ => Outcome::Unknown,
    };
    let hint = if call.name.as_str() == SHELL { exit_code_line(&text) } else { None };
    Some(ResultPart {
        stage: match call.status.as_str() {
            "cancelled" if outcome == Outcome::Unknown => Stage::CutOff,
            "success" if is_receipt => Stage::Started(Cow::Borrowed("")),
            _ => Stage::Done,
        },
        call: call.id.as_str().into(),
        tool: "",
        verdict: Verdict::from_outcome(outcome),
        spilled: text.starts_with(SPILLED_PREFIX).then(|| "".into()),
        truncated: text.starts_with(TRUNCATED_PREFIX),
        hint: hint.map(|line| Cow::Owned(line.to_owned())),
        refusal: None,
        files: call.display.0.as_ref().and_then(changed_file).into_iter().collect(),
        text,
    })
}

/// Returns the last line with an exit code in the output of a command, if the code is not 0.
fn exit_code_line(text: &str) -> Option<&str> {
    let line = text.lines().rfind(|line| line.starts_with(EXIT_CODE_PREFIX))?.trim_end();
    let code: i64 = line.strip_prefix(EXIT_CODE_PREFIX)?.parse().ok()?;
    (code != 0).then_some(line)
}

/// Returns the file that the display of a result names, if it tells how it was changed.
fn changed_file(file: &DisplayedFile<'_>) -> Option<FileAccess> {
    let (path, stat) = (file.path.non_empty()?, file.stat.0?);
    let sum = |numbers: [MaybeU64; 2]| {
        numbers.into_iter().fold(0_u64, |sum, n| sum.saturating_add(n.0.unwrap_or_default()))
    };
    let DiffStat { model_added_lines, model_removed_lines, .. } = stat;
    Some(FileAccess {
        path,
        kind: if file.is_new.is_set() { AccessKind::Created } else { AccessKind::Edited },
        added: sum([model_added_lines, stat.user_added_lines]),
        removed: sum([model_removed_lines, stat.user_removed_lines]),
    })
}

fn answer<'a>(message: &'a LogRecord<'_>, call: &'a ToolCallRecord<'_>) -> Option<Turn<'a>> {
    if call.name.as_str() != COMPLETE_TASK || call.status.as_str() != "success" {
        return None;
    }
    let arguments: Value = serde_json::from_str(call.args?.get()).ok()?;
    // A subagent has one result, a text or an object.
    let text = match arguments.as_object()?.values().next()? {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(Turn {
        id: format!("{} answer", message.id.as_str()).into(),
        role: Role::Assistant,
        at_ms: parse_millis(call.timestamp.as_str()),
        text: text.into(),
        ..Turn::default()
    })
}

pub(super) fn accessed_files(tool: &str, arguments: &Value) -> Vec<FileAccess> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let lines = |name: &str| text(name).map_or(0, |text| text.lines().count() as u64);
    let Some(path) = text("file_path").or_else(|| text("absolute_path")) else {
        return Vec::new();
    };
    let (kind, added, removed) = match tool {
        "read_file" => (AccessKind::Read, 0, 0),
        "write_file" => (AccessKind::Edited, lines("content"), 0),
        "replace" if text("old_string") == Some("") => {
            (AccessKind::Created, lines("new_string"), 0)
        }
        "replace" => (AccessKind::Edited, lines("new_string"), lines("old_string")),
        _ => return Vec::new(),
    };
    vec![FileAccess { path: path.to_owned(), kind, added, removed }]
}
