//! Decodes transcript lines into turns, and the facts that they state about their session.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::Value;

use super::super::lenient::MaybeU64;
use super::super::transcript::{
    Arguments, CallPart, IndexBuilder, ProgramTexts, RawRecord, ResultPart, Role, TitleSource,
    Turn, TurnEvent, Verdict, parse_millis, queued_text, shorten_id,
};
use super::super::value::truncate;
use super::schema::{
    ContentBlock, LineMessage, MessageContent, TokenUsage, ToolUseResult, TranscriptLine, decode,
};
use crate::model::{AccessKind, FileAccess, Outcome, Status, Tokens};

/// Maximum length of a title, in bytes.
const TITLE_MAX: usize = 300;
/// The arguments that hold the path of a file that a call reads or changes.
const FILE_ARGUMENTS: [&str; 2] = ["file_path", "notebook_path"];
/// The arguments that hold new content of a file.
const CONTENT_ARGUMENTS: [&str; 4] = ["new_string", "content", "new_source", "edits"];
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

/// Prefixes of commands that run in the program or its shell.
const COMMAND_PREFIXES: [&str; 2] = ["<command-", "<bash-input>"];
/// Prefixes of the output of commands and hooks.
const OUTPUT_PREFIXES: [&str; 4] =
    ["<local-command-std", "<bash-stdout>", "<bash-stderr>", "<user-prompt-submit-hook>"];
/// Prefixes of other texts that the program writes.
const REMINDER_PREFIXES: [&str; 6] = [
    "<system-reminder>",
    "<ide_opened_file>",
    "<ide_selection>",
    "<local-command-caveat>",
    "<task-notification>",
    "Caveat: The messages below",
];

/// The prefix of the result of a call that the user refused.
const REFUSED_PREFIX: &str = "The user doesn't want to";
/// The text between the program's part of such a result and what the user said.
const REFUSAL_WORDS_START: &str = "the user said:\n";

/// Adds a line to the index. Returns false if it is not a JSON object.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    decode(record.text, |line| add_line(index, record, line))
}

/// Decodes the turns of a line.
pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    decode(record.text, |line| {
        if let Some(turn) = line_turn(line) {
            use_turns(&[turn]);
        }
    });
}

/// Returns the turn that a line holds. A message that was written while the assistant worked is a
/// turn without a text: the program writes it again when the assistant receives it.
fn line_turn<'a>(line: &'a TranscriptLine<'_>) -> Option<Turn<'a>> {
    if let Some(message) = line.line_message() {
        return Some(turn(line, &message));
    }
    let request = Some(queued_text(line.content.as_str()).into());
    (line.kind.as_str() == "queue-operation").then(|| Turn { request, ..Turn::default() })
}

fn add_line(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, line: &TranscriptLine<'_>) {
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, line.session_id.as_str());
    IndexBuilder::set_fact(&mut facts.cwd, line.cwd.as_str());
    IndexBuilder::set_fact(&mut facts.branch, line.git_branch.as_str());
    let summary = index.index.summaries.note_line(line.uuid.as_str());
    index.set_title(TitleSource::Summary, summary);
    if let Some(message) = line.line_message() {
        let conversation = match message.agent_id {
            Some(agent) => index.agent_conversation(agent),
            None => conversation_of_line(index, line),
        };
        if let Some(conversation) = conversation {
            count_tokens(index, conversation, &message);
            index.add_turns(conversation, record.span, &[turn(line, &message)]);
        }
        if let Some(result) = &line.tool_use_result.0 {
            set_reported_status(index, result.agent_id.as_str(), result.status.as_str());
        }
        return;
    }
    match line.kind.as_str() {
        "summary" => {
            let summary = line.summary.non_empty().map(|text| truncate(text, TITLE_MAX));
            let summaries = &mut index.index.summaries;
            let own = summary.and_then(|text| summaries.add(line.leaf.as_str(), text));
            index.set_title(TitleSource::Summary, own);
        }
        "ai-title" => index.set_title(TitleSource::Generated, line.ai_title.non_empty()),
        "custom-title" => index.set_title(TitleSource::User, line.custom_title.non_empty()),
        "" => index.count_unknown_type("(none)"),
        "user" | "assistant" | "progress" => {}
        "queue-operation" => {
            let at_ms = parse_millis(line.timestamp.as_str());
            let (operation, message) = (line.operation.as_str(), line.content.as_str());
            let requests = &mut index.index.main.requests;
            requests.change_queue(operation, message, record.span, at_ms, program_text);
        }
        kind if IGNORED_TYPES.contains(&kind) => {}
        kind => index.count_unknown_type(kind),
    }
}

/// Returns the number of the conversation that a line belongs to; the file's own is 0.
fn conversation_of_line(index: &mut IndexBuilder<'_>, line: &TranscriptLine<'_>) -> Option<usize> {
    if !index.may_hold_agents() || !line.is_sidechain.is_set() {
        return Some(0);
    }
    if let Some(agent) = line.agent_id.0.as_deref().filter(|agent| !agent.is_empty()) {
        return index.agent_conversation(agent);
    }
    // The oldest form: only the first line identifies a side chain. Lines can only be assigned by
    // reading all lines before them.
    index.index.restarts = true;
    let uuid = shorten_id(line.uuid.as_str());
    let conversation = match index.conversation_of_record(line.parent_uuid.as_str()) {
        Some(conversation) => conversation,
        None if uuid.is_empty() => return None,
        None => index.agent_conversation(&uuid)?,
    };
    index.note_record(&uuid, conversation);
    Some(conversation)
}

/// Sets the final status of a subagent, as reported to its parent.
fn set_reported_status(index: &mut IndexBuilder<'_>, agent: &str, status: &str) {
    if agent.is_empty() || status.is_empty() {
        return;
    }
    let Some(number) = index.find_agent(agent) else { return };
    match status {
        "failed" | "error" => index.set_status(number, Status::Failed, Some(status)),
        "completed" => index.set_status(number, Status::Completed, None),
        _ => index.clear_status(number),
    }
    if let Some(conversation) = index.conversation(number) {
        conversation.is_stated_by_parent = true;
    }
}

/// Counts the tokens of a message. Each line of a message repeats them.
fn count_tokens(index: &mut IndexBuilder<'_>, conversation: usize, message: &LineMessage<'_>) {
    let (kind, message) = (message.kind, message.message);
    let usage = message.usage.0.as_ref();
    let is_counted = kind == "assistant" && !message.is_synthetic();
    let Some(usage) = usage.filter(|_| is_counted) else { return };
    let number = |number: MaybeU64| number.0.unwrap_or_default();
    let TokenUsage { input_tokens, output_tokens, .. } = *usage;
    let tokens = Tokens {
        input: number(input_tokens),
        output: number(output_tokens),
        cache_read: number(usage.cache_read_input_tokens),
        cache_creation: number(usage.cache_creation_input_tokens),
    };
    index.count_tokens(conversation, message.id.as_str(), message.model.as_str(), tokens);
}

/// Returns the turn of a line's message.
fn turn<'a>(line: &'a TranscriptLine<'_>, message: &LineMessage<'a>) -> Turn<'a> {
    let (content, blocks) = (&message.message.content, message.message.content.blocks());
    let thinking: Vec<&str> =
        blocks.iter().filter_map(|block| block.thinking.0.as_deref()).collect();
    let mut turn = Turn {
        at_ms: message.at_ms,
        text: content.text(),
        thinking: thinking.join("\n").into(),
        model: message.message.model.as_str().into(),
        is_synthetic: message.message.is_synthetic(),
        ..Turn::default()
    };
    if message.kind == "assistant" {
        turn.role = Role::Assistant;
        let calls = blocks.iter().filter(|block| block.kind.as_str() == "tool_use");
        turn.calls = calls
            .map(|block| CallPart {
                id: block.id.as_str().into(),
                name: block.name.as_str().into(),
                arguments: block.input.map_or(Arguments::None, Arguments::Json),
            })
            .collect();
        if line.is_api_error.is_set() {
            turn.event = TurnEvent::ApiError;
        }
        return turn;
    }
    let results = || blocks.iter().filter(|block| block.kind.as_str() == "tool_result");
    // The fields of a line belong to its only result.
    let is_only = results().count() == 1;
    let details = line.tool_use_result.0.as_ref().filter(|_| is_only);
    let ran = line.call_ran().filter(|_| is_only);
    turn.results = results().map(|block| result_part(block, ran, details)).collect();
    turn.event = message_event(line, turn.text.trim());
    if turn.event == TurnEvent::Message && !turn.text.trim().is_empty() {
        let request = user_text(content, &mut turn.left_out);
        if request.trim().is_empty() {
            let text = turn.text.trim();
            if text.starts_with(PROMPT_PREFIX) {
                turn.event = TurnEvent::Prompt;
            } else if FAREWELL_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
                turn.event = TurnEvent::Farewell;
            }
        } else {
            turn.request = Some(request);
        }
    }
    turn
}

/// Returns the meaning of a user's message with the given text.
fn message_event(line: &TranscriptLine<'_>, text: &str) -> TurnEvent {
    if line.is_meta.is_set() {
        TurnEvent::ProgramText
    } else if line.is_notification() {
        TurnEvent::Report
    } else if text.starts_with(INTERRUPTED_PREFIX) {
        TurnEvent::Interruption
    } else if line.is_compact_summary.is_set() {
        TurnEvent::Compaction
    } else {
        TurnEvent::Message
    }
}

/// Reads the result of a call. `ran` is true if the record states that the call ran, and `None` if
/// it does not say.
fn result_part<'a>(
    block: &'a ContentBlock<'_>,
    ran: Option<bool>,
    details: Option<&ToolUseResult<'_>>,
) -> ResultPart<'a> {
    let text = block.content.text();
    let failed = block.is_error.is_set();
    let not_run = failed && !ran.unwrap_or_else(|| !is_refusal(&text));
    let outcome = match (failed, not_run) {
        (_, true) => Outcome::NotRun,
        (true, false) => Outcome::Failed,
        (false, false) => Outcome::Ok,
    };
    let spilled = text.trim_start().starts_with(SPILLED_PREFIX);
    let refusal = refusal_words(&text).filter(|_| not_run).map(|words| words.to_owned().into());
    ResultPart {
        call: block.tool_use_id.as_str().into(),
        verdict: Verdict { exit_code: exit_code(&text), ..Verdict::from_outcome(outcome) },
        truncated: !spilled && memmem::find(text.as_bytes(), TRUNCATION_NOTE.as_bytes()).is_some(),
        spilled,
        refusal,
        files: details.and_then(changed_file).into_iter().collect(),
        hint: None,
        text,
    }
}

/// Returns true if the result `text` states that the call never ran.
fn is_refusal(text: &str) -> bool {
    let text = text.strip_prefix(TOOL_USE_ERROR_TAG).unwrap_or(text);
    NOT_RUN_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// Returns what the user said while refusing a call, in the text of its result.
fn refusal_words(result: &str) -> Option<&str> {
    let (_, words) = result.strip_prefix(REFUSED_PREFIX)?.split_once(REFUSAL_WORDS_START)?;
    Some(words).filter(|words| !words.trim().is_empty())
}

/// Parses `Exit code N` at the beginning of a result.
fn exit_code(text: &str) -> Option<i64> {
    let rest = text.strip_prefix("Exit code ")?;
    let (head, _) = rest.split_at(rest.floor_char_boundary(EXIT_CODE_MAX));
    head.split(|c: char| !(c.is_ascii_digit() || c == '-')).next()?.parse().ok()
}

/// Returns the file that the arguments of a call name, with the lines that they add and remove.
pub(super) fn accessed_file(arguments: &Value) -> Option<FileAccess> {
    let path = FILE_ARGUMENTS.iter().find_map(|name| arguments.get(name)?.as_str())?;
    let changes = CONTENT_ARGUMENTS.iter().any(|name| arguments.get(name).is_some());
    let lines = |name: &str| {
        arguments.get(name).and_then(Value::as_str).map_or(0, |text| text.lines().count() as u64)
    };
    Some(FileAccess {
        path: path.to_owned(),
        kind: if changes { AccessKind::Edited } else { AccessKind::Read },
        added: CONTENT_ARGUMENTS.iter().map(|name| lines(name)).sum(),
        removed: lines("old_string"),
    })
}

/// Returns the file that the details of a result name, if they tell how it was changed.
fn changed_file(result: &ToolUseResult<'_>) -> Option<FileAccess> {
    let path = result.file_path.non_empty()?;
    if result.kind.as_str() == "create" {
        let added = result.content.as_str().lines().count() as u64;
        return Some(FileAccess { path, kind: AccessKind::Created, added, removed: 0 });
    }
    let hunks = result.patch.0.iter().filter_map(|hunk| hunk.0.as_ref());
    let lines: Vec<&str> =
        hunks.flat_map(|hunk| hunk.lines.0.iter().map(|line| line.as_str())).collect();
    let count = |sign: char| lines.iter().filter(|line| line.starts_with(sign)).count() as u64;
    let (added, removed) = (count('+'), count('-'));
    (!lines.is_empty()).then_some(FileAccess { path, kind: AccessKind::Edited, added, removed })
}

/// Counts a text if the program wrote it.
fn program_text(text: &str) -> Option<ProgramTexts> {
    let mut counts = ProgramTexts::default();
    if is_command(text) {
        counts.commands = 1;
        return Some(counts);
    }
    is_program_text(text, &mut counts).then_some(counts)
}

/// Returns true if the program wrote `text`, and counts it.
fn is_program_text(text: &str, counts: &mut ProgramTexts) -> bool {
    let text = text.trim_start();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
    let counter = if starts(&COMMAND_PREFIXES) {
        &mut counts.commands
    } else if starts(&OUTPUT_PREFIXES) {
        &mut counts.outputs
    } else if starts(&REMINDER_PREFIXES) {
        &mut counts.reminders
    } else {
        return false;
    };
    *counter += 1;
    true
}

/// Returns true if a queued message is a command of the program, such as `/help`.
fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    word.is_some_and(|word| !word.is_empty() && !word.contains(['/', '.']))
}

/// Returns the text that the user wrote in a message. Counts the program's texts in `left_out`.
fn user_text<'a>(content: &'a MessageContent<'_>, left_out: &mut ProgramTexts) -> Cow<'a, str> {
    match content {
        MessageContent::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(ContentBlock::visible_text);
            let own: Vec<Cow<'_, str>> =
                texts.filter(|text| !is_program_text(text, left_out)).collect();
            Cow::Owned(own.join("\n"))
        }
        content if is_program_text(&content.text(), left_out) => Cow::Borrowed(""),
        content => content.text(),
    }
}
