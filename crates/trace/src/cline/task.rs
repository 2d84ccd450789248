//! The messages of a task before version 4, and in Roo Code. The assistant calls a tool by XML in
//! its text, and the result is a text in the next message.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::blocks::{MessageBlock, MessageBlocks, between, join_lines, number_after};
use super::super::lenient::{
    MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object,
};
use super::super::transcript::{
    Arguments, CallPart, IndexBuilder, RawRecord, ResultPart, Role, SessionMetadata, Span,
    StatedStatus, Turn, TurnEvent, Verdict,
};
use super::super::value::truncate;
use swarmletfs_base::model::{Outcome, StatedCost, Status, TASK_MAX, Tokens};

/// The tools, by whose names calls and results are recognized.
const TOOLS: [&str; 29] = [
    "execute_command",
    "read_file",
    "write_to_file",
    "replace_in_file",
    "apply_diff",
    "apply_patch",
    "insert_content",
    "search_and_replace",
    "edit_file",
    "search_files",
    "list_files",
    "list_code_definition_names",
    "codebase_search",
    "browser_action",
    "web_fetch",
    "web_search",
    "use_mcp_tool",
    "access_mcp_resource",
    "load_mcp_documentation",
    "ask_followup_question",
    "plan_mode_respond",
    "attempt_completion",
    "new_task",
    "switch_mode",
    "fetch_instructions",
    "update_todo_list",
    "condense",
    "new_rule",
    "use_skill",
];
/// The tool that gives the answer and ends the task. It has no result.
const COMPLETION: &str = "attempt_completion";
/// Parameters that may hold anything, their own end included.
const LONG_PARAMETERS: [&str; 3] = ["content", "diff", "args"];
/// Maximum number of calls read from a message.
const CALLS_MAX: usize = 20;
/// Maximum number of tags read from a call.
const TAGS_MAX: usize = 50;
static CALL_BEGIN: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!("<({})>", TOOLS.join("|"))).ok());
const RESULT_MARK: &str = "] Result:";
/// The part of a span that marks a message of a task. The other bits tell which of its results
/// belong to a call.
const TASK_PART: u8 = 1 << 7;
const RESULTS_MAX: usize = 7;
/// Tags around the words of the user.
const REQUEST_TAGS: [&str; 4] = ["task", "feedback", "answer", "user_message"];
/// The beginnings of the texts that the program adds for the model.
const PROGRAM_TEXTS: [&str; 3] = ["<", "[", "#"];
const CWD_MARK: &str = "# Current Working Directory (";
/// The beginnings of results that state an outcome.
const SUCCESSES: [&str; 2] =
    ["Command executed successfully (exit code 0)", "The content was successfully saved to"];
const FAILED_COMMAND: &str = "Command failed with exit code ";
const FAILURE: &str = "The tool execution failed with the following error:";
const REFUSAL: &str = "The user denied this operation";

/// A message. Fields of an unexpected type count as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ClineTaskMessage<'a> {
    role: MaybeStr<'a>,
    content: MessageBlocks<'a>,
    /// Time in milliseconds since 1970.
    ts: MaybeI64,
    model_info: MaybeObject<ClineTaskModelInfo<'a>>,
    metrics: MaybeObject<ClineTaskMetrics>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct ClineTaskModelInfo<'a> {
    model_id: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClineTaskMetrics {
    tokens: MaybeObject<ClineTaskTokenCounts>,
}

/// The tokens of an answer. The cached ones are part of the prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClineTaskTokenCounts {
    prompt: MaybeU64,
    completion: MaybeU64,
    cached: MaybeU64,
}

/// A message that the user sees.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct DisplayedMessage<'a> {
    say: MaybeStr<'a>,
    ask: MaybeStr<'a>,
    text: MaybeStr<'a>,
    partial: MaybeBool,
    model_info: MaybeObject<ClineTaskModelInfo<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ApiRequest {
    tokens_in: MaybeU64,
    tokens_out: MaybeU64,
    cache_reads: MaybeU64,
    cache_writes: MaybeU64,
    cost: MaybeNumber,
}

/// Reads the messages that the user sees: they state the end of the task, which may be missing in
/// the messages of the model, and in older versions the tokens.
pub(super) fn read_display(messages: &[u8]) -> SessionMetadata {
    let list = serde_json::from_slice::<MaybeList<MaybeObject<DisplayedMessage<'_>>>>(messages);
    let mut metadata = SessionMetadata::default();
    let (mut tokens, mut cost) = (Tokens::default(), StatedCost::default());
    let mut set = |status: Option<Status>, words: Option<String>| {
        metadata.status = status.map(|status| StatedStatus { status, word: None });
        metadata.final_words = words.map(|words| truncate(words, TASK_MAX));
    };
    let mut model = None;
    for message in list.unwrap_or_default().0.into_iter().filter_map(|message| message.0) {
        if message.partial.is_set() {
            continue;
        }
        model = message.model_info.0.and_then(|model| model.model_id.non_empty()).or(model);
        match (message.say.as_str(), message.ask.as_str()) {
            ("completion_result", _) => set(Some(Status::Completed), message.text.non_empty()),
            (_, "api_req_failed") => set(Some(Status::Failed), None),
            ("user_feedback" | "api_req_retried", _) => set(None, None),
            ("api_req_started", _) => {
                let request =
                    serde_json::from_str::<MaybeObject<ApiRequest>>(message.text.as_str());
                let request = request.ok().and_then(|request| request.0).unwrap_or_default();
                let (prompt, cached) = (request.tokens_in.or_zero(), request.cache_reads.or_zero());
                let written = request.cache_writes.or_zero();
                tokens += Tokens {
                    // Some providers leave the cached ones out.
                    input: prompt.checked_sub(cached.saturating_add(written)).unwrap_or(prompt),
                    output: request.tokens_out.or_zero(),
                    cache_read: cached,
                    cache_creation: written,
                    ..Tokens::default()
                };
                request.cost.as_stated_cost().iter().for_each(|one| cost += one);
            }
            _ => {}
        }
    }
    if tokens != Tokens::default() {
        metadata.tokens_by_model.insert(model.clone().unwrap_or_default(), tokens);
    }
    metadata.cost = Some(cost).filter(|cost| *cost != StatedCost::default());
    metadata.model = model;
    metadata
}

pub(super) fn add_message(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let Some(message) = object::<ClineTaskMessage<'_>>(record.text) else { return false };
    let span = Span { part: TASK_PART | answered(index, &message), ..record.span };
    index.add_turns(0, span, &turns(&message, span));
    let texts = message.content.texts().filter(|text| text.starts_with("<environment_details>"));
    for cwd in texts.filter_map(|text| between(text, CWD_MARK, ")")) {
        IndexBuilder::set_fact(&mut index.index.facts.cwd, cwd.1);
    }
    if let Some(counts) = message.metrics.0.as_ref().and_then(|metrics| metrics.tokens.0.as_ref()) {
        let cached = counts.cached.or_zero();
        let tokens = Tokens {
            input: counts.prompt.or_zero().saturating_sub(cached),
            output: counts.completion.or_zero(),
            cache_read: cached,
            ..Tokens::default()
        };
        index.count_tokens(0, "", message.model(), tokens);
    }
    true
}

pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    if let Some(message) = object::<ClineTaskMessage<'_>>(record.text) {
        use_turns(&turns(&message, record.span));
    }
}

impl ClineTaskMessage<'_> {
    fn model(&self) -> &str {
        self.model_info.0.as_ref().map(|model| model.model_id.as_str()).unwrap_or_default()
    }
}

/// Returns a bit for each result in the message that belongs to a call of the last answer: results
/// name only the tool, and a program repeats some.
fn answered(index: &IndexBuilder<'_>, message: &ClineTaskMessage<'_>) -> u8 {
    let mut open: Vec<&str> = index.index.main.open_calls_of_last_answer().collect();
    let mut bits = 0;
    for (at, (tool, _)) in text_results(message).into_iter().enumerate().take(RESULTS_MAX) {
        if let Some(found) = open.iter().position(|open| *open == tool) {
            bits |= 1 << at;
            open.remove(found);
        }
    }
    bits
}

/// Returns the tools and the texts of the results in a message.
fn text_results<'a>(message: &'a ClineTaskMessage<'_>) -> Vec<(&'a str, &'a str)> {
    let mut texts = message.content.texts().peekable();
    let mut results = Vec::new();
    while let Some(text) = texts.next() {
        let Some(tool) = result_tool(text) else { continue };
        let Some((_, output)) = text.split_once(RESULT_MARK) else { continue };
        // In some versions, the output is a text of its own.
        let next = texts.next_if(|next| output.trim().is_empty() && result_tool(next).is_none());
        results.push((tool, next.unwrap_or(output).trim_start_matches('\n')));
    }
    results
}

fn result_tool(text: &str) -> Option<&str> {
    let tool = text.strip_prefix('[')?.split([' ', ']']).next()?;
    (TOOLS.contains(&tool) && text.contains(RESULT_MARK)).then_some(tool)
}

/// Returns the turns of a message: the message itself, and the answer that ends the task.
fn turns<'a>(message: &'a ClineTaskMessage<'_>, span: Span) -> Vec<Turn<'a>> {
    match message.role.as_str() {
        "assistant" => assistant_turns(message, span),
        "user" => vec![user_turn(message, span)],
        _ => Vec::new(),
    }
}

fn assistant_turns<'a>(message: &'a ClineTaskMessage<'_>, span: Span) -> Vec<Turn<'a>> {
    let mut turn = Turn {
        role: Role::Assistant,
        at_ms: message.ts.0,
        model: message.model().into(),
        thinking: message.content.thinking(),
        ..Turn::default()
    };
    let (mut texts, mut answer) = (Vec::new(), None);
    for text in message.content.texts() {
        let (before, calls) = xml_calls(text);
        texts.push(before);
        for (tool, arguments) in calls {
            let id = format!("{}-{}", span.offset, turn.calls.len() + 1);
            if tool == COMPLETION {
                let words = arguments.get("result").and_then(Value::as_str).unwrap_or_default();
                answer = Some((id.clone(), words.to_owned()));
            }
            turn.calls.push(CallPart {
                id: id.into(),
                name: tool.into(),
                arguments: Arguments::Text(Value::Object(arguments).to_string().into()),
            });
        }
    }
    turn.calls.extend(message.content.calls().map(MessageBlock::call_part));
    turn.text = join_lines(texts.into_iter());
    let Some((id, words)) = answer else { return vec![turn] };
    let ended = Turn {
        role: Role::Assistant,
        at_ms: message.ts.0,
        results: vec![ResultPart { call: id.into(), ..ResultPart::default() }],
        text: words.into(),
        ..Turn::default()
    };
    vec![turn, ended]
}

fn user_turn<'a>(message: &'a ClineTaskMessage<'_>, span: Span) -> Turn<'a> {
    let results = text_results(message).into_iter().enumerate().take(RESULTS_MAX);
    let accepted = results.filter(|(at, _)| span.part & (1 << at) != 0);
    let accepted = accepted.map(|(_, (tool, text))| ResultPart { tool, ..text_result(text) });
    let mut results: Vec<ResultPart<'_>> = accepted.collect();
    results.extend(message.content.results().map(block_result));
    let request = message.content.texts().find_map(request);
    Turn {
        role: if request.is_some() { Role::User } else { Role::System },
        at_ms: message.ts.0,
        event: if request.is_some() { TurnEvent::Message } else { TurnEvent::Report },
        text: match request {
            Some(request) => request.into(),
            None if results.is_empty() => message.content.text(),
            None => "".into(),
        },
        request: request.map(Into::into),
        results,
        ..Turn::default()
    }
}

/// Returns the words of the user in a text.
fn request(text: &str) -> Option<&str> {
    for tag in REQUEST_TAGS {
        let inside = between(text, &format!("<{tag}>"), &format!("</{tag}>"));
        if let Some((_, words, _)) = inside.filter(|_| result_tool(text).is_none()) {
            return Some(words.trim());
        }
    }
    let text = text.trim();
    let is_program = PROGRAM_TEXTS.iter().any(|prefix| text.starts_with(prefix));
    (!is_program && !text.is_empty()).then_some(text)
}

fn text_result(text: &str) -> ResultPart<'_> {
    let code = text
        .strip_prefix(FAILED_COMMAND)
        .and_then(|_| number_after(text.lines().next()?, FAILED_COMMAND));
    let outcome = match text {
        _ if code.is_some() || text.starts_with(FAILURE) => Outcome::Failed,
        _ if text.starts_with(REFUSAL) => Outcome::NotRun,
        _ if SUCCESSES.iter().any(|prefix| text.starts_with(prefix)) => Outcome::Ok,
        _ => Outcome::Unknown,
    };
    let words = between(text, "<feedback>", "</feedback>").map(|(_, words, _)| words.trim());
    ResultPart {
        text: text.into(),
        verdict: Verdict { exit_code: code, ..Verdict::from_outcome(outcome) },
        refusal: words.filter(|_| outcome == Outcome::NotRun).map(Into::into),
        ..ResultPart::default()
    }
}

fn block_result<'a>(block: &'a MessageBlock<'_>) -> ResultPart<'a> {
    let text = block.result_text();
    let stated = text_result(&text).verdict;
    let verdict = match (stated.outcome, block.is_error.0) {
        (Outcome::Unknown, Some(true)) => Verdict::from_outcome(Outcome::Failed),
        (Outcome::Unknown, Some(false)) => Verdict::from_outcome(Outcome::Ok),
        _ => stated,
    };
    ResultPart { call: block.tool_use_id.as_str().into(), text, verdict, ..ResultPart::default() }
}

/// A tool and its parameters.
type XmlCall = (&'static str, Map<String, Value>);

/// Splits an answer into the text before its first call, and the calls.
fn xml_calls(text: &str) -> (&str, Vec<XmlCall>) {
    let (mut rest, mut calls, mut before) = (text, Vec::new(), None);
    while let Some((first, tool, body)) = split_tag(rest).filter(|_| calls.len() < CALLS_MAX) {
        before.get_or_insert(first);
        let end = format!("</{tool}>");
        let parts = body.split_once(&end);
        // The content of a file may hold the end of the call, unless another call follows.
        let is_last = parts.is_none_or(|(_, after)| split_tag(after).is_none());
        // A call that is cut off was not made.
        let parts = if is_last { body.rsplit_once(&end) } else { parts };
        let Some((inside, after)) = parts else { break };
        calls.push((tool, parameters(inside)));
        rest = after;
    }
    (before.unwrap_or(text).trim_end(), calls)
}

/// Splits a text at the beginning of the first call in it: the text before it, the tool, and the
/// text after it.
fn split_tag(text: &str) -> Option<(&str, &'static str, &str)> {
    let tag = CALL_BEGIN.as_ref()?.find(text)?;
    let tool = TOOLS.into_iter().find(|tool| tag.as_str().trim_matches(['<', '>']) == *tool)?;
    Some((text.get(..tag.start())?, tool, text.get(tag.end()..)?))
}

/// Returns the parameters of a call: tags with a text in them.
fn parameters(body: &str) -> Map<String, Value> {
    let (mut rest, mut fields) = (body, Map::new());
    for _ in 0..TAGS_MAX {
        let Some((_, tag)) = rest.split_once('<') else { break };
        let Some((name, inside)) = tag.split_once('>') else { break };
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let end = format!("</{name}>");
        let found = match LONG_PARAMETERS.contains(&name) {
            true => inside.rsplit_once(&end),
            false => inside.split_once(&end),
        };
        match found.filter(|_| is_name) {
            Some((value, after)) => {
                let value = value.strip_prefix('\n').unwrap_or(value);
                let value = value.strip_suffix('\n').unwrap_or(value);
                fields.insert(name.to_owned(), value.into());
                rest = after;
            }
            None => rest = inside,
        }
    }
    let files = fields.get("args").and_then(Value::as_str);
    let paths = files.into_iter().flat_map(|files| files.split("<path>").skip(1));
    let paths: Vec<Value> =
        paths.filter_map(|path| Some(path.split_once("</path>")?.0.into())).collect();
    if !paths.is_empty() {
        fields.insert("paths".into(), paths.into());
    }
    if let Some(blocks) = fields.get("diff").and_then(Value::as_str).and_then(search_blocks) {
        fields.insert("edits".into(), blocks);
    }
    fields
}

/// Returns the replacements in a diff of blocks: the text to search, and the one in its place.
fn search_blocks(diff: &str) -> Option<Value> {
    let mut edits = Vec::new();
    let (mut old, mut new, mut side) = (String::new(), String::new(), 0);
    for line in diff.lines() {
        match line.trim_end() {
            "------- SEARCH" | "<<<<<<< SEARCH" => side = 1,
            "=======" if side == 1 => side = 2,
            "+++++++ REPLACE" | ">>>>>>> REPLACE" if side == 2 => {
                let (old, new) = (std::mem::take(&mut old), std::mem::take(&mut new));
                edits.push(serde_json::json!({ "old_text": old, "new_text": new }));
                side = 0;
            }
            // The head of a block of Roo Code, with the number of its first line.
            "-------" if side == 1 => old.clear(),
            _ => match side {
                1 => old.extend([line, "\n"]),
                2 => new.extend([line, "\n"]),
                _ => {}
            },
        }
    }
    (!edits.is_empty()).then(|| edits.into())
}
