//! Decodes transcript lines into turns, and the facts that they state about their session.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::Value;

use super::super::transcript::{
    Arguments, CallPart, IndexBuilder, ProgramTexts, RawRecord, RecordOrigin, ReportedEnd,
    ResultPart, Role, Span, Stage, TitleSource, Turn, TurnEvent, Verdict, parse_millis,
    queued_text, shorten_id,
};
use super::super::value::truncate;
use super::schema::{
    ContentBlock, LineMessage, MessageContent, Permission, ToolUseResult, TranscriptLine, decode,
};
use super::texts::{self, Notification, TypedCommand, Writer};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome, Status};

/// Number of the conversation of the file itself.
const MAIN: usize = 0;
const TITLE_MAX: usize = 300;
/// The arguments that hold the path of a file that a call reads or changes.
const FILE_ARGUMENTS: [&str; 2] = ["file_path", "notebook_path"];
/// The arguments that hold new content of a file.
const CONTENT_ARGUMENTS: [&str; 4] = ["new_string", "content", "new_source", "edits"];
/// Number of bytes in which an exit code is searched.
const EXIT_CODE_MAX: usize = 40;

/// Type of the line with the metadata of a subagent, where it has no file of its own.
pub(super) const AGENT_METADATA: &str = "agent_metadata";
/// Line types that hold no message.
const IGNORED_TYPES: [&str; 18] = [
    "system",
    "file-history-snapshot",
    "file-history-delta",
    "pr-link",
    "last-prompt",
    "permission-mode",
    "agent-name",
    "agent-setting",
    AGENT_METADATA,
    "tag",
    "mode",
    "tools-used",
    "api-request",
    "api-request-blob",
    "api-request-shape",
    "atis-latch",
    "worktree-state",
    "relocated",
];
/// The prefix of a result that is stored in a file of its own.
const SPILLED_PREFIX: &str = "<persisted-output>";
/// The note of a tool that omitted a part of its output.
const TRUNCATION_NOTE: &str = " truncated]";

/// Adds a line to the index. Returns false if it is not a JSON object.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    decode(record.text, |line| add_line(index, record, line))
}

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
    let results = line.queued_report().map(reports).unwrap_or_default();
    let request = Some(queued_text(line.content.as_str()).into());
    let at_ms = parse_millis(line.timestamp.as_str());
    match line.kind.as_str() {
        "queue-operation" => Some(Turn { request, results, at_ms, ..Turn::default() }),
        "attachment" => Some(Turn { results, at_ms, ..Turn::default() }),
        "result" => {
            let text = line.returned_text()?;
            Some(Turn { role: Role::Assistant, text, ..Turn::default() })
        }
        _ => None,
    }
}

fn add_line(index: &mut IndexBuilder<'_>, record: RawRecord<'_>, line: &TranscriptLine<'_>) {
    let turn = line_turn(line);
    let origin = record_origin(index, line, turn.as_ref());
    if origin == RecordOrigin::Repeated {
        return;
    }
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, line.session_id.as_str());
    IndexBuilder::set_fact(&mut facts.cwd, line.cwd.as_str());
    IndexBuilder::set_fact(&mut facts.branch, line.git_branch.as_str());
    let summary = index.index.summaries.note_line(line.uuid.as_str());
    index.set_title(TitleSource::Summary, summary);
    if let RecordOrigin::Copied(source) = &origin {
        if let Some(request) = turn.as_ref().and_then(|turn| turn.request.as_deref()) {
            index.set_fallback_task(MAIN, record.span, request);
        }
        index.skip_copied(record.span, source);
        let copied_at = &mut index.index.facts.copied_at_ms;
        *copied_at = parse_millis(line.timestamp.as_str()).max(*copied_at);
        return;
    }
    if let Some(message) = line.line_message() {
        let conversation = match message.agent_id {
            Some(agent) => index.agent_conversation(agent),
            None => conversation_of_line(index, line),
        };
        if let (Some(conversation), Some(turn)) = (conversation, turn) {
            // Elsewhere, the text is that of a user, and hides nothing.
            let is_agent = !index.may_hold_agents() && index.index.main.task.is_none();
            if is_agent && texts::begins_fork(&turn.text) {
                let source = index.index.facts.forked_from.clone();
                let before = Span { len: 0, ..record.span };
                index.skip_copied(before, &source.unwrap_or_default());
            }
            count_tokens(index, conversation, &message);
            index.add_turns(conversation, record.span, std::slice::from_ref(&turn));
            if turn.event == TurnEvent::Report {
                note_ends(index, &turn.text);
            }
            if let Some(result) = &line.tool_use_result.0 {
                note_work(index, conversation, result);
            }
        }
        return;
    }
    if let Some(text) = line.queued_report()
        && let Some(turn) = turn
        && let Some(conversation) = conversation_of_line(index, line)
    {
        index.add_reports(conversation, record.span, &turn);
        note_ends(index, text);
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
        "fork-context-ref" => {
            let source = line.parent_session.as_str();
            IndexBuilder::set_fact(&mut index.index.facts.forked_from, source);
        }
        "cost-state" => {
            let start = line.process_start.0;
            // A copy can go on with the numbers of its original, which cannot be divided.
            let is_own = start >= index.index.facts.copied_at_ms;
            let cost = line.stated_cost().filter(|_| is_own);
            if let Some((cost, main)) = cost.zip(index.conversation(MAIN)) {
                main.cost.set(start, cost);
            }
        }
        "continued-in" => index.note_continued(MAIN, line.continued_in.as_str()),
        "" => index.count_unknown_type("(none)"),
        "user" | "assistant" | "progress" | "attachment" => {}
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

/// Finds out whether the line repeats an earlier one, or one of the session of which this one is a
/// copy. The program writes some lines twice.
fn record_origin(
    index: &mut IndexBuilder<'_>,
    line: &TranscriptLine<'_>,
    turn: Option<&Turn<'_>>,
) -> RecordOrigin {
    let mut origin = RecordOrigin::Own;
    if let Some(turn) = turn.filter(|_| !line.uuid.as_str().is_empty()) {
        let calls = turn.calls.iter().map(|call| &*call.id);
        let results = turn.results.iter().map(|result| &*result.call);
        let parts = [line.uuid.as_str(), &turn.text, &turn.thinking].into_iter();
        origin = index.note_parts(parts.chain(calls).chain(results));
    }
    let is_main = !index.may_hold_agents() || !line.is_sidechain.is_set();
    if origin != RecordOrigin::Own || !is_main {
        return origin;
    }
    // A user's record does not state that it is copied. Results of copied calls are.
    let known = index.index.facts.forked_from.as_deref();
    let known = known.filter(|_| index.index.main.calls.is_empty());
    let is_copied_result = |result: &ResultPart<'_>| {
        let is_report = matches!(result.stage, Stage::Reported(_));
        !is_report && !index.has_call(MAIN, &result.call)
    };
    let holds_copied = turn.is_some_and(|turn| turn.results.iter().any(is_copied_result));
    let source = line.copied_from().or(known.filter(|_| holds_copied));
    source.map_or(RecordOrigin::Own, |source| RecordOrigin::Copied(source.to_owned()))
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

/// Records that the result of a call started, continued or stopped work in the background.
fn note_work(index: &mut IndexBuilder<'_>, conversation: usize, result: &ToolUseResult<'_>) {
    set_reported_status(index, result.agent_id.as_str(), result.status.as_str());
    // The work of this subagent begins, or goes on.
    for agent in [&result.agent_id, &result.revived_agent_id] {
        index.note_end(agent.as_str(), None);
    }
    if let Some(task) = result.stopped_task() {
        index.stop_task(conversation, task);
    }
}

fn note_ends(index: &mut IndexBuilder<'_>, text: &str) {
    for report in Notification::parse_all(text) {
        set_reported_status(index, report.task, report.status);
        let end = reported_end(&report);
        if end.is_some() || end_outcome(report.status, None).is_some() {
            index.note_end(report.task, end);
        }
    }
}

/// Returns the end of a subagent in a report, or `None` if the subagent's own record states it.
pub(super) fn reported_end(report: &Notification<'_>) -> Option<ReportedEnd> {
    let status = match end_outcome(report.status, None)? {
        Outcome::Failed => Status::Failed,
        Outcome::Unknown => Status::Abandoned,
        Outcome::Ok | Outcome::NotRun => return None,
    };
    let [word, message] =
        [report.status, report.summary].map(|text| truncate(text.to_owned(), TITLE_MAX));
    Some(ReportedEnd { status, word, message, result: None })
}

/// Sets the final status of a subagent inside the transcript, as reported to its parent.
fn set_reported_status(index: &mut IndexBuilder<'_>, agent: &str, status: &str) {
    if agent.is_empty() || status.is_empty() {
        return;
    }
    let Some(number) = index.find_agent(agent) else { return };
    match status {
        "failed" | "error" => index.set_status(number, Status::Failed, Some(status)),
        "completed" => index.set_status(number, Status::Completed, None),
        "killed" | "stopped" => index.set_status(number, Status::Abandoned, Some(status)),
        _ => index.clear_status(number),
    }
    if let Some(conversation) = index.conversation(number) {
        conversation.is_stated_by_other = true;
    }
}

/// Counts the tokens of a message. Each line of a message repeats them.
fn count_tokens(index: &mut IndexBuilder<'_>, conversation: usize, message: &LineMessage<'_>) {
    let (kind, message) = (message.kind, message.message);
    let usage = message.usage.0.as_ref();
    let is_counted = kind == "assistant" && !message.is_synthetic();
    let Some(usage) = usage.filter(|_| is_counted) else { return };
    let (id, model) = (message.id.as_str(), message.model.as_str());
    index.count_tokens(conversation, id, model, usage.tokens());
}

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
    let permission = if is_only { line.permission_to_run() } else { Permission::Unknown };
    turn.results = results().map(|block| result_part(block, permission, details)).collect();
    if let Some(details) = details {
        turn.results.extend(looked_at_end(details));
    }
    turn.event = message_event(line, turn.text.trim());
    if line.is_sidechain.is_set() && texts::begins_fork(&turn.text) {
        // The result belongs to the call that started the fork, in the transcript of its session.
        turn.results.clear();
    }
    if turn.event == TurnEvent::Report {
        turn.results.extend(reports(&turn.text));
    }
    if turn.event == TurnEvent::Message && !turn.text.trim().is_empty() {
        let command = TypedCommand::parse(&turn.text);
        if let Some(command) = command.as_ref().filter(|command| command.is_request()) {
            turn.request = Some(command.typed().into());
            if command.arguments.is_empty() {
                turn.event = TurnEvent::Command;
            }
        } else if command.as_ref().is_some_and(TypedCommand::is_farewell) {
            turn.event = TurnEvent::Farewell;
            turn.left_out.commands += 1;
        } else {
            let request = user_text(content, &mut turn.left_out);
            turn.request = Some(request).filter(|request| !request.trim().is_empty());
        }
    }
    turn
}

fn message_event(line: &TranscriptLine<'_>, text: &str) -> TurnEvent {
    if line.is_meta.is_set() {
        TurnEvent::ProgramText
    } else if line.is_of_program() || Notification::parse_all(text).next().is_some() {
        TurnEvent::Report
    } else if texts::is_interruption(text) {
        TurnEvent::Interruption
    } else if line.is_compact_summary.is_set() {
        TurnEvent::Compaction
    } else {
        TurnEvent::Message
    }
}

fn result_part<'a>(
    block: &'a ContentBlock<'_>,
    permission: Permission,
    details: Option<&'a ToolUseResult<'_>>,
) -> ResultPart<'a> {
    let text = block.content.text();
    let failed = block.is_error.is_set();
    let started = match details {
        _ if failed => None,
        Some(details) => details.started_work().map(Cow::Borrowed),
        None => texts::started_work(&text).map(|id| id.to_owned().into()),
    };
    let exit_code = exit_code(&text).or_else(|| details.and_then(ToolUseResult::own_exit_code));
    let is_refusal = match permission {
        Permission::Refused => failed,
        Permission::Given => false,
        Permission::Unclear | Permission::Unknown => failed && texts::is_refusal(&text),
    };
    // A stopped call has the same text as a refused call, and may have done its work.
    let is_unclear = permission == Permission::Unclear || texts::is_cut_off(&text);
    let is_cut_off = failed && !is_refusal && is_unclear;
    let outcome = match failed {
        _ if is_refusal => Outcome::NotRun,
        _ if is_cut_off => Outcome::Unknown,
        true => Outcome::Failed,
        false if started.is_some() => Outcome::Unknown,
        false => details.map_or(Outcome::Ok, ToolUseResult::outcome),
    };
    let file = details.map_or("", ToolUseResult::spilled_file);
    let is_spilled = !file.is_empty() || text.trim_start().starts_with(SPILLED_PREFIX);
    let words = texts::refusal_words(&text).filter(|_| outcome == Outcome::NotRun);
    let refusal = words.map(|words| words.to_owned().into());
    ResultPart {
        call: block.tool_use_id.as_str().into(),
        tool: "",
        verdict: Verdict { exit_code, ..Verdict::from_outcome(outcome) },
        stage: match started {
            Some(work) => Stage::Started(work),
            None if is_cut_off => Stage::CutOff,
            None => Stage::Done,
        },
        truncated: !is_spilled
            && memmem::find(text.as_bytes(), TRUNCATION_NOTE.as_bytes()).is_some(),
        spilled: is_spilled.then(|| file.into()),
        refusal,
        files: details.and_then(changed_file).into_iter().collect(),
        hint: None,
        text,
    }
}

/// Returns the end of background work, if the result of a call that looked at the work states it.
fn looked_at_end<'a>(details: &'a ToolUseResult<'_>) -> Option<ResultPart<'a>> {
    let (id, status, exit_code, output) = details.watched_work()?;
    Some(ResultPart {
        verdict: Verdict { exit_code, ..Verdict::from_outcome(end_outcome(status, exit_code)?) },
        stage: Stage::Reported(id.into()),
        text: output.into(),
        ..ResultPart::default()
    })
}

fn reports(text: &str) -> Vec<ResultPart<'static>> {
    let report = |report: Notification<'_>| {
        let exit_code = report.exit_code();
        let outcome = end_outcome(report.status, exit_code)?;
        let hint = report.failures.lines().next().filter(|_| outcome == Outcome::Ok);
        Some(ResultPart {
            call: report.call.to_owned().into(),
            verdict: Verdict { exit_code, ..Verdict::from_outcome(outcome) },
            stage: Stage::Reported(report.task.to_owned().into()),
            hint: hint.map(|line| line.to_owned().into()),
            text: report.text().into(),
            ..ResultPart::default()
        })
    };
    Notification::parse_all(text).filter_map(report).collect()
}

/// Returns the outcome of work in the background, or `None` if it has not ended.
fn end_outcome(status: &str, exit_code: Option<i64>) -> Option<Outcome> {
    match status {
        "" | "running" | "pending" => None,
        "failed" | "error" => Some(Outcome::Failed),
        _ if exit_code.is_some_and(|code| code != 0) => Some(Outcome::Failed),
        "completed" => Some(Outcome::Ok),
        _ => Some(Outcome::Unknown),
    }
}

/// Parses `Exit code N` at the beginning of a result.
fn exit_code(text: &str) -> Option<i64> {
    let rest = text.strip_prefix("Exit code ")?;
    let head = rest.get(..rest.floor_char_boundary(EXIT_CODE_MAX))?;
    texts::leading_number(head)
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

/// Returns the file that the details of a result name, if they state how it was changed.
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

/// Returns the counts for a queued text if the program wrote it.
fn program_text(text: &str) -> Option<ProgramTexts> {
    let mut counts = ProgramTexts::default();
    if is_command(text) {
        counts.commands = 1;
        return Some(counts);
    }
    let is_empty = own_text(text, &mut counts).is_empty();
    is_empty.then_some(counts)
}

/// Returns the part of `text` that the user wrote. Counts the parts of the program in `left_out`.
fn own_text<'a>(text: &'a str, left_out: &mut ProgramTexts) -> &'a str {
    let mut writers = Vec::new();
    let own = texts::user_part(text, |writer| writers.push(writer));
    // The parts of a command, or its two streams, are one text.
    writers.dedup();
    for writer in writers {
        *match writer {
            Writer::Command => &mut left_out.commands,
            Writer::Output => &mut left_out.outputs,
            Writer::Reminder => &mut left_out.reminders,
        } += 1;
    }
    own
}

/// Returns true if a queued message is a command of the program, such as `/help`.
fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    word.is_some_and(|word| !word.is_empty() && !word.contains(['/', '.']))
}

/// Returns the text that the user wrote in a message. Counts the program's texts in `left_out`.
fn user_text<'a>(content: &'a MessageContent<'_>, left_out: &mut ProgramTexts) -> Cow<'a, str> {
    let mut own = |text: Cow<'a, str>| match text {
        Cow::Borrowed(text) => Cow::Borrowed(own_text(text, left_out)),
        Cow::Owned(text) => Cow::Owned(own_text(&text, left_out).to_owned()),
    };
    match content {
        MessageContent::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(ContentBlock::visible_text).map(own);
            let texts: Vec<Cow<'_, str>> = texts.filter(|text| !text.is_empty()).collect();
            Cow::Owned(texts.join("\n"))
        }
        content => own(content.text()),
    }
}
