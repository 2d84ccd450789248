//! Decodes rollout lines into turns, and the facts that they state about their session.

use std::borrow::Cow;

use serde_json::Value;

use super::super::transcript::{
    Arguments, CallPart, Ending, IndexBuilder, ProgramTexts, RawRecord, ResultPart, Role, Span,
    Stage, TitleSource, Turn, TurnEvent, Verdict, parse_millis,
};
use super::super::value::truncate;
use super::operation::{Operation, PATCH_TOOL, changed_files};
use super::outcome::{read_output, started_work};
use super::patch::{self, SCRIPT_TOOL, patch_of_script};
use super::schema::{
    Content, ContentPart, Line, Payload, RecordKind, RolloutTokens, StatedChanges, decode,
};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome, Status, Tokens};

/// Maximum length of the name of a model or a status word, in bytes.
const WORD_MAX: usize = 300;
const MAIN: usize = 0;
/// Minimum time between a copied history and the first own turn after it, in milliseconds.
const COPY_GAP_MS: i64 = 10;
const SCRIPT_TOOLS: [&str; 2] = [SCRIPT_TOOL, "wait"];
/// The tools that look at work that an earlier call started, with the argument that names it.
const POLLING_TOOLS: [(&str, &str); 2] = [("wait", "cell_id="), ("write_stdin", "session_id=")];
/// The text by which a script calls a tool.
const TOOL_OF_SCRIPT: &str = "tools.";
/// The prefix of the namespaces of MCP servers. Their tools are named together with it.
const MCP_PREFIX: &str = "mcp__";

/// Tags of spans: a record has several meanings, and an earlier record decides which.
mod tag {
    /// An operation that is a call of its own.
    pub(super) const OWN_CALL: u8 = 1;
    pub(super) const SCRIPT: u8 = 2;
    /// The output of a call that looks at a script.
    pub(super) const POLLED_SCRIPT: u8 = 3;
    /// The output of a call that looks at a process.
    pub(super) const POLLED: u8 = 4;
}

/// Beginnings of texts in the user's name that the program wrote.
const PROGRAM_PREFIXES: [&str; 12] = [
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<INSTRUCTIONS>",
    "<skill>",
    "<tools>",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<model_switch>",
    "<personality_spec>",
    "<hook_prompt",
    "<realtime_conversation>",
];
/// Beginnings of reports of the program, which the assistant answers.
const REPORT_PREFIXES: [&str; 2] = ["<subagent_notification>", "<user_action>"];
/// The beginning of a command that the user ran in the program.
const COMMAND_PREFIX: &str = "<user_shell_command>";
/// The beginning of the text about an interruption by the user.
const ABORTED_PREFIX: &str = "<turn_aborted>";
/// The beginning of a message by which another agent gives a task.
const TASK_PREFIX: &str = "Message Type: NEW_TASK";
/// The line of such a message before the task.
const PAYLOAD: &str = "\nPayload:";

/// Events that repeat other records, or hold nothing to show.
const IGNORED_EVENTS: [&str; 34] = [
    "user_message",
    "agent_message",
    "agent_message_delta",
    "agent_reasoning",
    "agent_reasoning_raw_content",
    "agent_reasoning_section_break",
    "context_compacted",
    "deprecation_notice",
    "dynamic_tool_call_request",
    "dynamic_tool_call_response",
    "entered_review_mode",
    "exec_command_begin",
    "exec_command_output_delta",
    "exited_review_mode",
    "hook_completed",
    "hook_started",
    "image_generation_begin",
    "image_generation_end",
    "item_started",
    "mcp_startup_complete",
    "mcp_startup_update",
    "mcp_tool_call_begin",
    "patch_apply_begin",
    "plan_update",
    "session_configured",
    "stream_error",
    "sub_agent_activity",
    "terminal_interaction",
    "thread_settings_applied",
    "turn_diff",
    "view_image_tool_call",
    "warning",
    "web_search_begin",
    "web_search_call",
];
/// The event at the end of a search. The call is an item.
const SEARCH_END: &str = "web_search_end";
const IGNORED_ITEMS: [&str; 5] = [
    "additional_tools",
    "compaction",
    "compaction_summary",
    "context_compaction",
    "ghost_snapshot",
];

/// Adds a line to the index. Returns false if it is not a JSON object.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    decode(record.text, |line, payload| add_line(index, record.span, line, payload))
}

pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    decode(record.text, |line, payload| {
        let turns = turns(record.span, line, payload);
        if !turns.is_empty() {
            use_turns(&turns);
        }
    });
}

/// Returns the turns that a line holds. The tag of `span` decides its meaning.
fn turns<'a>(span: Span, line: &'a Line<'_>, payload: &'a Payload<'_>) -> Vec<Turn<'a>> {
    let at_ms = parse_millis(line.timestamp.as_str());
    match line.record_kind(payload) {
        RecordKind::Item => item_turns(span, at_ms, payload),
        RecordKind::Event => event_turns(span, at_ms, payload),
        RecordKind::Compacted => {
            let (text, event) = (payload.message.as_str().into(), TurnEvent::Compaction);
            vec![Turn { at_ms, text, event, ..Turn::default() }]
        }
        RecordKind::SessionMeta
        | RecordKind::TurnContext
        | RecordKind::Ignored
        | RecordKind::Unknown(_) => Vec::new(),
    }
}

fn add_line(index: &mut IndexBuilder<'_>, span: Span, line: &Line<'_>, payload: &Payload<'_>) {
    let kind = line.record_kind(payload);
    let at_ms = parse_millis(line.timestamp.as_str());
    if kind == RecordKind::SessionMeta {
        add_session(index, at_ms, payload);
    } else if is_copied(index, line, at_ms, payload) {
        if let RecordKind::TurnContext = kind {
            add_context(index, payload);
        }
        if let Some(usage) = total_tokens(payload) {
            index.index.facts.tokens_before = Some(tokens(usage));
        }
        let request = turns(span, line, payload).into_iter().find_map(|turn| turn.request);
        if let Some(request) = request {
            index.set_fallback_task(MAIN, span, &request);
        }
        let source = index.index.facts.forked_from.clone();
        index.skip_copied(span, &source.unwrap_or_default());
        return;
    }
    note_time(index, at_ms, line.payload.0.is_some());
    match kind {
        RecordKind::SessionMeta => {}
        RecordKind::TurnContext => add_context(index, payload),
        RecordKind::Event => add_event(index, span, line, payload),
        RecordKind::Item => {
            let kind = payload.kind.as_str();
            let tool = index.call_tool(MAIN, payload.call_id.as_str()).filter(|_| is_output(kind));
            let is_script = tool.is_some_and(|tool| SCRIPT_TOOLS.contains(&tool));
            let polled = POLLING_TOOLS.iter().find(|(name, _)| tool == Some(*name));
            let part = match (is_script, polled) {
                (true, None) => tag::SCRIPT,
                (true, Some(_)) => tag::POLLED_SCRIPT,
                (false, Some(_)) => tag::POLLED,
                (false, None) => span.part,
            };
            let span = Span { part, ..span };
            let turns = turns(span, line, payload);
            if turns.is_empty() && !is_known_item(kind) {
                index.count_unknown_type(kind);
            }
            // The call did not make the changes that its arguments request.
            let results = turns.iter().flat_map(|turn| &turn.results);
            results.filter(|result| result.hint.is_some()).for_each(|result| {
                index.set_files(MAIN, &result.call, Vec::new());
            });
            add_turns(index, span, &turns);
            for result in turns.iter().flat_map(|turn| &turn.results) {
                if is_script {
                    note_operations(index, span, result);
                }
                if let Some((_, argument)) = polled.filter(|_| started_work(&result.text).is_none())
                {
                    end_work(index, &result.call, argument);
                }
            }
        }
        RecordKind::Compacted => add_turns(index, span, &turns(span, line, payload)),
        RecordKind::Ignored => {}
        RecordKind::Unknown(kind) => index.count_unknown_type(kind),
    }
}

/// Updates the call of a script that ran to its end. If its operations are recorded as calls of
/// their own, they hold the changed files. Otherwise their outcome is unknown.
fn note_operations(index: &mut IndexBuilder<'_>, span: Span, result: &ResultPart<'_>) {
    let Some((script, after)) = index.call_and_later(MAIN, &result.call) else { return };
    // A further result changes nothing, and all later calls would be searched again.
    if script.result.as_ref().is_none_or(|first| first.span != span) {
        return;
    }
    if after.iter().any(|call| Operation::is_own_id(&call.id)) {
        index.set_files(MAIN, &result.call, Vec::new());
        return;
    }
    let calls_tools = script.input.as_deref().is_some_and(|input| input.contains(TOOL_OF_SCRIPT));
    if calls_tools && result.verdict.outcome == Outcome::Ok {
        let verdict = Verdict { outcome: Outcome::Unknown, ..result.verdict };
        index.set_verdict(MAIN, &result.call, verdict);
    }
}

/// Records the end of the work that the call `id` looked at. `argument` is the name of the argument
/// that identifies the work.
fn end_work(index: &mut IndexBuilder<'_>, id: &str, argument: &str) {
    let call = index.call_and_later(MAIN, id).map(|(call, _)| call);
    let input = call.and_then(|call| call.input.as_deref()).unwrap_or_default();
    let mut words = input.split_whitespace();
    if let Some(work) = words.find_map(|word| word.strip_prefix(argument)) {
        let work = work.to_owned();
        index.stop_task(MAIN, &work);
    }
}

fn add_turns(index: &mut IndexBuilder<'_>, span: Span, turns: &[Turn<'_>]) {
    if !turns.is_empty() {
        index.add_turns(MAIN, span, turns);
    }
}

/// Updates the times of the conversation. The oldest versions state only the time of the beginning.
fn note_time(index: &mut IndexBuilder<'_>, at_ms: Option<i64>, is_last: bool) {
    if let Some(conversation) = index.conversation(MAIN) {
        conversation.first_ms = conversation.first_ms.or(at_ms);
        if is_last {
            conversation.last_ms = at_ms.or(conversation.last_ms);
        }
    }
}

/// Returns true if a line belongs to a history that the session copied. Old versions do not state
/// where it ends: it was written at once, and the first turn after it is the session's own.
fn is_copied(
    index: &mut IndexBuilder<'_>,
    line: &Line<'_>,
    at_ms: Option<i64>,
    payload: &Payload<'_>,
) -> bool {
    let facts = &mut index.index.facts;
    if let Some((number, first)) = line.ordinal.0.zip(facts.first_own_record) {
        return number < first;
    }
    let Some(before) = facts.copied_at_ms else { return false };
    let at_ms = at_ms.unwrap_or(before);
    let begins = matches!(payload.kind.as_str(), "task_started" | "turn_started");
    let is_own = begins && at_ms.saturating_sub(before) > COPY_GAP_MS;
    facts.copied_at_ms = Some(at_ms).filter(|_| !is_own);
    !is_own
}

/// Sets the facts of the session. A fork also holds the facts of its original, which come later.
fn add_session(index: &mut IndexBuilder<'_>, at_ms: Option<i64>, meta: &Payload<'_>) {
    let facts = &mut index.index.facts;
    let id = meta.id.as_str();
    if facts.id.as_deref().is_some_and(|known| known != id) {
        match facts.first_own_record {
            Some(_) => IndexBuilder::set_fact(&mut facts.forked_from, id),
            None if facts.forked_from.as_deref() == Some(id) => facts.copied_at_ms = at_ms,
            None => {}
        }
        return;
    }
    let source = meta.source.0.as_ref();
    let spawn = source.and_then(|source| source.subagent.spawn.as_ref());
    let first_of = |texts: [&str; 2]| {
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned()
    };
    let spawned_by = spawn.map_or("", |spawn| spawn.parent_thread_id.as_str());
    let role = spawn.map_or("", |spawn| spawn.agent_role.as_str());
    let role = first_of([meta.agent_role.as_str(), role]);
    let kind = source.map_or("", |source| source.subagent.kind.as_str());
    let is_subagent = spawn.is_some() || meta.thread_source.as_str() == "subagent";
    let kind = if kind.is_empty() && is_subagent { "agent" } else { kind };
    IndexBuilder::set_fact(&mut facts.id, id);
    IndexBuilder::set_fact(&mut facts.cwd, meta.cwd.as_str());
    let branch = meta.git.0.as_ref().map_or("", |git| git.branch.as_str());
    IndexBuilder::set_fact(&mut facts.branch, branch);
    let parent = first_of([meta.parent_thread_id.as_str(), spawned_by]);
    IndexBuilder::set_fact(&mut facts.parent, &parent);
    IndexBuilder::set_fact(&mut facts.root, meta.session_id.as_str());
    IndexBuilder::set_fact(&mut facts.forked_from, meta.forked_from_id.as_str());
    IndexBuilder::set_fact(&mut facts.agent_type, &first_of([&role, kind]));
    facts.first_own_record = facts.first_own_record.or(meta.subagent_history_start_ordinal.0);
    // The program also gives nicknames, which say nothing.
    let spawn_path = spawn.map_or("", |spawn| spawn.agent_path.as_str());
    let agent = first_of([meta.agent_path.as_str(), spawn_path]);
    let agent = agent.rsplit('/').next().unwrap_or_default();
    let agent = Some(agent.to_owned()).filter(|name| !name.is_empty());
    index.set_title(TitleSource::Summary, agent);
}

fn add_context(index: &mut IndexBuilder<'_>, context: &Payload<'_>) {
    IndexBuilder::set_fact(&mut index.index.facts.cwd, context.cwd.as_str());
    if let (Some(model), Some(conversation)) = (context.model.non_empty(), index.conversation(MAIN))
    {
        conversation.model = Some(truncate(model, WORD_MAX));
    }
}

fn add_event(index: &mut IndexBuilder<'_>, span: Span, line: &Line<'_>, event: &Payload<'_>) {
    match event.kind.as_str() {
        "task_started" | "turn_started" => index.set_status(MAIN, Status::Running, None),
        "task_complete" | "turn_complete" => end_turn(index, span, line, event),
        "turn_aborted" => {
            let reason = event.reason.non_empty().unwrap_or_else(|| "interrupted".into());
            index.set_status(MAIN, Status::Unknown, Some(&reason));
        }
        "thread_rolled_back" => {
            let count = event.num_turns.0.and_then(|count| usize::try_from(count).ok());
            index.roll_back(MAIN, count.unwrap_or_default());
        }
        "thread_name_updated" => index.set_title(TitleSource::User, event.thread_name.non_empty()),
        "token_count" => {
            if let Some(usage) = total_tokens(event) {
                set_own_tokens(index, tokens(usage), event);
            }
        }
        "error" => add_turns(index, span, &turns(span, line, event)),
        SEARCH_END => {}
        kind if IGNORED_EVENTS.contains(&kind) => {}
        kind => match Operation::new(event) {
            Some(operation) => add_operation(index, span, line, event, &operation),
            None if kind == "item_completed" => {}
            None => index.count_unknown_type(kind),
        },
    }
}

fn total_tokens(event: &Payload<'_>) -> Option<RolloutTokens> {
    event.info.0.as_ref().and_then(|info| info.total_token_usage.0)
}

/// Sets the tokens of the session from a total. The total of a fork begins with the tokens of its
/// original, or anew: then the first one equals the tokens of the last request. A total of
/// the original that is repeated before the fork has written anything looks the same.
fn set_own_tokens(index: &mut IndexBuilder<'_>, total: Tokens, event: &Payload<'_>) {
    let last = event.info.0.as_ref().and_then(|info| info.last_token_usage.0).map(tokens);
    if let Some((last, main)) = last.zip(index.conversation(MAIN)) {
        main.context.add_request(main.last_ms, last.context());
    }
    let main = &index.index.main;
    let is_first = main.recent_messages.is_empty();
    let has_output = main.written_bytes > 0 || !main.calls.is_empty();
    let facts = &mut index.index.facts;
    if facts.forked_from.is_some() {
        let is_repeated = facts.tokens_before == last && !has_output;
        let is_anew = is_first && last == Some(total) && !is_repeated;
        if is_anew || facts.tokens_before.is_none() {
            facts.tokens_before = last.map(|last| difference(total, last));
        }
    }
    let before = facts.tokens_before.unwrap_or_default();
    index.set_total_tokens(MAIN, difference(total, before));
}

fn end_turn(index: &mut IndexBuilder<'_>, span: Span, line: &Line<'_>, event: &Payload<'_>) {
    let Some(conversation) = index.conversation(MAIN) else { return };
    let has_failed = matches!(conversation.ending, Ending::ApiError(_));
    if event.error.0.is_some() || has_failed {
        index.set_status(MAIN, Status::Failed, Some("turn failed"));
        if !has_failed {
            add_turns(index, span, &turns(span, line, event));
        }
        return;
    }
    index.set_status(MAIN, Status::Completed, None);
    let message = event.last_agent_message.as_str();
    if message.trim().is_empty() {
        return;
    }
    let is_last = |head: &str| message.starts_with(head);
    let Some(conversation) = index.conversation(MAIN) else { return };
    match conversation.last_text.as_ref().map(|text| is_last(&text.head)) {
        Some(true) => conversation.ending = Ending::Answered,
        Some(false) | None => add_turns(index, span, &turns(span, line, event)),
    }
}

/// Adds an operation: to the call that it is about, or as a call of its own. Operations of other
/// sessions and of unknown calls are ignored.
fn add_operation(
    index: &mut IndexBuilder<'_>,
    span: Span,
    line: &Line<'_>,
    event: &Payload<'_>,
    operation: &Operation<'_>,
) {
    let own_id = index.index.facts.id.as_deref();
    let is_foreign =
        own_id.is_some_and(|id| !operation.session.is_empty() && operation.session != id);
    if is_foreign {
        return;
    }
    if !index.has_call(MAIN, operation.id) {
        if Operation::is_own_id(operation.id) {
            let span = Span { part: tag::OWN_CALL, ..span };
            add_turns(index, span, &turns(span, line, event));
        }
        return;
    }
    if let Some(verdict) = operation.verdict() {
        index.set_verdict(MAIN, operation.id, verdict);
    }
    if let Some(changes) = operation.changes().filter(|changes| !changes.0.is_empty()) {
        index.set_files(MAIN, operation.id, changed_files(&changes));
        index.set_change_record(MAIN, operation.id, span);
    }
    let at_ms = parse_millis(line.timestamp.as_str());
    let result = operation.result();
    if !result.text.is_empty() {
        index.add_reported_result(MAIN, span, at_ms, &result);
    }
}

/// Converts the counts of tokens. The source also counts cached tokens as input.
fn tokens(usage: RolloutTokens) -> Tokens {
    let cached = [usage.cached_input_tokens.or_zero(), usage.cache_write_input_tokens.or_zero()];
    Tokens::of_prompt(usage.input_tokens.or_zero(), usage.output_tokens.or_zero(), cached)
}

fn difference(mut total: Tokens, less: Tokens) -> Tokens {
    total -= less;
    total
}

fn is_output(kind: &str) -> bool {
    matches!(kind, "function_call_output" | "custom_tool_call_output")
}

fn is_known_item(kind: &str) -> bool {
    IGNORED_ITEMS.contains(&kind) || kind == "reasoning" || kind == "message"
}

fn event_turns<'a>(span: Span, at_ms: Option<i64>, event: &'a Payload<'_>) -> Vec<Turn<'a>> {
    let answer = |text: &'a str, event| {
        let (role, is_synthetic) = (Role::Assistant, event == TurnEvent::ApiError);
        vec![Turn { role, at_ms, text: text.into(), event, is_synthetic, ..Turn::default() }]
    };
    match event.kind.as_str() {
        "error" => answer(event.message.as_str(), TurnEvent::ApiError),
        "task_complete" | "turn_complete" => match event.error.0.as_deref() {
            Some(message) => answer(message, TurnEvent::ApiError),
            None => answer(event.last_agent_message.as_str(), TurnEvent::Message),
        },
        _ => match Operation::new(event) {
            Some(operation) if span.part == tag::OWN_CALL => operation.turns(at_ms),
            // The result of another call, where its output is missing.
            Some(operation) => {
                vec![Turn { at_ms, results: vec![operation.result()], ..Turn::default() }]
            }
            None => Vec::new(),
        },
    }
}

fn item_turns<'a>(span: Span, at_ms: Option<i64>, item: &'a Payload<'_>) -> Vec<Turn<'a>> {
    let by_assistant = Turn { role: Role::Assistant, at_ms, ..Turn::default() };
    match item.kind.as_str() {
        "message" => vec![message_turn(at_ms, item)],
        "agent_message" => {
            let text = item.content.text("\n");
            let task = text.strip_prefix(TASK_PREFIX).map(|rest| {
                let (_, task) = rest.split_once(PAYLOAD).unwrap_or_default();
                Cow::<str>::Owned(task.trim().to_owned())
            });
            let event = match &task {
                None => TurnEvent::Report,
                // The task is encrypted.
                Some(task) if task.is_empty() => TurnEvent::ProgramText,
                Some(_) => TurnEvent::Message,
            };
            let request = task.filter(|task| !task.is_empty());
            vec![Turn { at_ms, text, request, event, ..Turn::default() }]
        }
        "reasoning" => {
            let parts = [item.summary.text("\n"), item.content.text("\n")];
            let thinking: Vec<&str> =
                parts.iter().map(|part| &**part).filter(|part| !part.is_empty()).collect();
            match thinking.is_empty() {
                true => Vec::new(),
                false => vec![Turn { thinking: thinking.join("\n").into(), ..by_assistant }],
            }
        }
        "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
            vec![Turn { calls: vec![call_part(span, item)], ..by_assistant }]
        }
        // A call without an output: its status is its outcome.
        "web_search_call" | "image_generation_call" => {
            let call = call_part(span, item);
            let outcome = match item.status.as_str() {
                "completed" => Some(Outcome::Ok),
                "failed" => Some(Outcome::Failed),
                _ => None,
            };
            let result = outcome.map(|outcome| ResultPart {
                call: call.id.clone(),
                verdict: Verdict::from_outcome(outcome),
                ..ResultPart::default()
            });
            let result =
                result.map(|result| Turn { at_ms, results: vec![result], ..Turn::default() });
            let call = Turn { calls: vec![call], ..by_assistant };
            [Some(call), result].into_iter().flatten().collect()
        }
        "tool_search_output" => {
            let call = call_id(span, [item.call_id.as_str(), ""]);
            let result = ResultPart { call, ..ResultPart::default() };
            vec![Turn { at_ms, results: vec![result], ..Turn::default() }]
        }
        kind if is_output(kind) => {
            vec![Turn { at_ms, results: vec![output_part(span, item)], ..Turn::default() }]
        }
        _ => Vec::new(),
    }
}

fn message_turn<'a>(at_ms: Option<i64>, item: &'a Payload<'_>) -> Turn<'a> {
    let text = message_text(&item.content);
    match item.role.as_str() {
        "assistant" => Turn { role: Role::Assistant, at_ms, text, ..Turn::default() },
        "user" => user_turn(at_ms, &item.content, text),
        _ => {
            let event = TurnEvent::ProgramText;
            Turn { role: Role::System, at_ms, text, event, ..Turn::default() }
        }
    }
}

fn user_turn<'a>(at_ms: Option<i64>, content: &'a Content<'_>, text: Cow<'a, str>) -> Turn<'a> {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
    let mut turn = Turn { at_ms, ..Turn::default() };
    turn.event = if starts(&[ABORTED_PREFIX]) {
        TurnEvent::Interruption
    } else if starts(&REPORT_PREFIXES) {
        TurnEvent::Report
    } else if starts(&[COMMAND_PREFIX]) {
        turn.left_out = ProgramTexts { commands: 1, ..ProgramTexts::default() };
        TurnEvent::Message
    } else {
        let request = request_text(content, &mut turn.left_out);
        turn.request = (!request.trim().is_empty()).then_some(request);
        let is_program_text = turn.request.is_none() && starts(&PROGRAM_PREFIXES);
        if is_program_text { TurnEvent::ProgramText } else { TurnEvent::Message }
    };
    if turn.event == TurnEvent::ProgramText {
        // The message as a whole is counted.
        turn.left_out = ProgramTexts::default();
    }
    Turn { text, ..turn }
}

/// Returns the texts of a message, one per line. Media are named in brackets.
fn message_text<'a>(content: &'a Content<'_>) -> Cow<'a, str> {
    let media =
        |part: &ContentPart<'_>| part.text.0.is_none() && part.kind.as_str() == "input_image";
    if !content.parts().iter().any(media) {
        return content.text("\n");
    }
    let texts = content.parts().iter().filter_map(|part| match media(part) {
        true => Some("[image]"),
        false => part.text.0.as_deref(),
    });
    Cow::Owned(texts.collect::<Vec<_>>().join("\n"))
}

/// Returns the texts that the user wrote. Counts the texts of the program in `left_out`.
fn request_text<'a>(content: &'a Content<'_>, left_out: &mut ProgramTexts) -> Cow<'a, str> {
    let is_program_text =
        |text: &str| PROGRAM_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
    let texts = || content.parts().iter().filter_map(|part| part.text.0.as_deref());
    match content.text("\n") {
        text if !texts().any(is_program_text) => match is_program_text(&text) {
            true => Cow::Borrowed(""),
            false => text,
        },
        _ => {
            left_out.reminders += texts().filter(|text| is_program_text(text)).count() as u64;
            let own = texts().filter(|text| !is_program_text(text));
            Cow::Owned(own.collect::<Vec<_>>().join("\n"))
        }
    }
}

fn call_part<'a>(span: Span, item: &'a Payload<'_>) -> CallPart<'a> {
    let id = call_id(span, [item.call_id.as_str(), item.id.as_str()]);
    let (name, namespace) = (item.name.as_str(), item.namespace.as_str());
    let name = match item.kind.as_str() {
        "local_shell_call" => "local_shell".into(),
        "tool_search_call" => "tool_search".into(),
        "web_search_call" => "web_search".into(),
        "image_generation_call" => "image_generation".into(),
        _ if namespace.starts_with(MCP_PREFIX) => format!("{namespace}__{name}").into(),
        _ => name.into(),
    };
    let arguments = match (item.input.0.as_deref(), item.action) {
        (Some(input), _) => Arguments::Text(input.into()),
        (None, Some(action)) => Arguments::Json(action),
        (None, None) => match arguments_text(item) {
            Some(text) => Arguments::Text(text),
            None => Arguments::None,
        },
    };
    CallPart { id, name, arguments }
}

/// Returns the arguments of a call as text. They are JSON, at most times inside a string.
pub(super) fn arguments_text<'a>(item: &'a Payload<'_>) -> Option<Cow<'a, str>> {
    let arguments = item.arguments?.get();
    if !arguments.starts_with('"') {
        return Some(arguments.into());
    }
    serde_json::from_str::<super::super::lenient::MaybeStr<'_>>(arguments).ok()?.0
}

/// Returns the ID by which a record names its call. Without one, a result would belong to any
/// call.
fn call_id<'a>(span: Span, ids: [&'a str; 2]) -> Cow<'a, str> {
    let id = ids.into_iter().find(|id| !id.is_empty());
    id.map_or_else(|| format!("line-{}", span.offset).into(), Cow::Borrowed)
}

fn output_part<'a>(span: Span, item: &'a Payload<'_>) -> ResultPart<'a> {
    let is_script = matches!(span.part, tag::SCRIPT | tag::POLLED_SCRIPT);
    let read = read_output(item.output.text(""), is_script);
    // A look at work that goes on starts none.
    let is_look = matches!(span.part, tag::POLLED_SCRIPT | tag::POLLED);
    let started = started_work(&read.text).filter(|_| !is_look).map(str::to_owned);
    let verdict = match item.output.success() {
        Some(success) if read.verdict.outcome == Outcome::Unknown => {
            let outcome = if success { Outcome::Ok } else { Outcome::Failed };
            Verdict { outcome, ..read.verdict }
        }
        _ => read.verdict,
    };
    ResultPart {
        call: call_id(span, [item.call_id.as_str(), ""]),
        verdict,
        stage: started.map_or(Stage::Done, |work| Stage::Started(work.into())),
        truncated: read.truncated,
        hint: read.hint.map(Cow::Owned),
        text: read.text,
        ..ResultPart::default()
    }
}

pub(super) fn accessed_files(tool: &str, arguments: &Value) -> Vec<FileAccess> {
    if let Some(changes) = arguments.get("changes").filter(|_| tool == PATCH_TOOL) {
        let changes = serde_json::to_string(changes).unwrap_or_default();
        let changes = serde_json::from_str::<StatedChanges<'_>>(&changes);
        return changes.map(|changes| changed_files(&changes)).unwrap_or_default();
    }
    if let Some(patch) = patch::patch_text(arguments) {
        return patch::accessed_files(patch);
    }
    if let Some(patch) =
        arguments.as_str().filter(|_| tool == SCRIPT_TOOL).and_then(patch_of_script)
    {
        return patch::accessed_files(&patch);
    }
    let path = arguments.get("path").and_then(Value::as_str).filter(|_| tool == "view_image");
    let read = |path: &str| FileAccess {
        path: path.to_owned(),
        kind: AccessKind::Read,
        added: 0,
        removed: 0,
    };
    path.map(read).into_iter().collect()
}
