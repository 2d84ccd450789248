//! Adds calls and their results to a conversation.

use std::collections::HashMap;

use serde_json::Value;

use super::super::bounded;
use super::super::input::{COMMAND_ARGUMENTS, INPUT_MAX, InputBudget, one_line};
use super::super::value::{shorten, truncate};
use super::index::{CallEntry, CallResult, Conversation, Ending};
use super::messages::text_hash;
use super::requests::RequestPart;
use super::turn::{Arguments, CallPart, ResultPart, Span, Stage};
use swarmletfs_base::failure_signs::{denial_line, is_misuse, suspect_line};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome};

/// Maximum length of a tool name, ID or other short value, in bytes.
pub(super) const WORD_MAX: usize = 300;
/// Maximum number of calls in a conversation; further ones are counted.
pub(crate) const CALLS_MAX: usize = 100_000;
pub(super) const FILES_MAX: usize = 200;
/// Maximum length of a call's text that is no JSON, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// The most informative arguments of a call, best first.
const KEY_ARGUMENTS: [&str; 14] = [
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
    "questions",
    "plan",
    "description",
    "prompt",
];

/// A function that returns the files that a call reads or changes, from its tool and arguments.
pub(crate) type AccessedFiles<'f> = &'f dyn Fn(&str, &Value) -> Vec<FileAccess>;

/// Forgets the ID of a call with a result if another record makes a call with that ID.
pub(super) fn release_id(
    conversation: &Conversation,
    ids: &mut CallNumbers,
    span: Span,
    call: &CallPart<'_>,
) {
    let id = shorten_id(&call.id);
    let known = ids.by_id.get(&id).and_then(|at| conversation.calls.get(*at));
    if known.is_some_and(|known| known.result.is_some() && known.span.offset != span.offset) {
        ids.by_id.remove(&id);
    }
}

/// Adds a call. Returns its index, or the index of the call that it repeats.
pub(super) fn add_call(
    conversation: &mut Conversation,
    ids: &mut CallNumbers,
    inputs: &mut InputBudget,
    accessed_files: AccessedFiles<'_>,
    span: Span,
    at_ms: Option<i64>,
    call: &CallPart<'_>,
) -> Option<usize> {
    let at = conversation.calls.len();
    let id = shorten_id(&call.id);
    if let Some(known) = ids.by_id.get(&id).filter(|_| !id.is_empty()) {
        return Some(*known);
    }
    if at >= CALLS_MAX {
        conversation.excess_calls += 1;
        return None;
    }
    let arguments = parse_arguments(&call.arguments);
    let command = arguments.as_ref().and_then(main_text);
    let command_bytes = conversation.add_command(command.as_deref());
    let tool = match shorten(&call.name, WORD_MAX) {
        name if name.is_empty() => "tool".into(),
        name => name,
    };
    let is_command = arguments
        .as_ref()
        .is_some_and(|fields| COMMAND_ARGUMENTS.iter().any(|name| fields.get(name).is_some()));
    let files = arguments.as_ref().map(|arguments| accessed_files(&tool, arguments));
    let (input, subject_len) = arguments.and_then(input_line).unzip();
    let input = input.map(|line| inputs.truncate_input(line));
    if !id.is_empty() {
        ids.by_id.insert(id.clone(), at);
    }
    conversation.calls.push(CallEntry {
        id,
        tool,
        span,
        at_ms,
        subject_len: subject_len.unwrap_or(0).min(input.as_ref().map_or(0, String::len)),
        input,
        is_command,
        command_bytes,
        files: files.into_iter().flatten().take(FILES_MAX).map(shorten_path).collect(),
        result: None,
        receipt: None,
        task: None,
        stated: None,
        change_record: None,
    });
    Some(at)
}

pub(crate) fn parse_arguments(arguments: &Arguments<'_>) -> Option<Value> {
    let parsed = arguments.as_text().and_then(bounded::parse_any);
    parsed.or_else(|| match arguments {
        Arguments::Text(text) => Some(Value::String(truncate(text.clone().into_owned(), TEXT_MAX))),
        Arguments::None | Arguments::Json(_) => None,
    })
}

/// Returns the main argument of a call, with all of its lines.
pub(super) fn main_argument(arguments: &Arguments<'_>) -> Option<String> {
    main_text(&parse_arguments(arguments)?)
}

fn main_text(arguments: &Value) -> Option<String> {
    let main = match arguments.as_object() {
        Some(fields) => KEY_ARGUMENTS.iter().find_map(|name| fields.get(*name))?.clone(),
        None => arguments.clone(),
    };
    match joined_words(main) {
        Value::String(text) => Some(text),
        other => one_line(&other),
    }
}

pub(super) fn shorten_path(file: FileAccess) -> FileAccess {
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

/// Joins the words of a command that is a list, or the texts of questions. Of a command for a
/// shell, only the script is kept.
fn joined_words(value: Value) -> Value {
    let questions =
        value.as_array().map(|parts| parts.iter().filter_map(|part| part.get("question")));
    let questions: Vec<&str> = questions.into_iter().flatten().filter_map(Value::as_str).collect();
    if !questions.is_empty() {
        return Value::String(questions.join(" "));
    }
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
pub(super) fn add_result(
    conversation: &mut Conversation,
    ids: &mut CallNumbers,
    span: Span,
    part: usize,
    at_ms: Option<i64>,
    result: &ResultPart<'_>,
) -> Option<usize> {
    if let Stage::Reported(task) = &result.stage {
        return add_report(conversation, ids, span, part, at_ms, result, task);
    }
    let at = if !result.tool.is_empty() {
        let (from, own) = conversation.last_answer();
        let found = own.iter().position(|call| call.result.is_none() && call.tool == result.tool);
        found.map(|at| from + at)
    } else if result.call.is_empty() {
        while conversation.calls.get(conversation.first_open).is_some_and(|c| c.result.is_some()) {
            conversation.first_open += 1;
        }
        Some(conversation.first_open).filter(|at| *at < conversation.calls.len())
    } else {
        ids.by_id.get(&shorten_id(&result.call)).copied()
    };
    let Some(call) = at.and_then(|at| conversation.calls.get_mut(at)) else {
        conversation.orphan_results += 1;
        return None;
    };
    conversation.ending = Ending::AwaitingReply;
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
    if let Stage::Started(task) = &result.stage {
        call.task = Some(shorten_id(task));
    }
    refine_files(&mut call.files, &result.files);
    if result.stage == Stage::CutOff && result.files.is_empty() {
        call.files.retain(|file| file.kind == AccessKind::Read);
    }
    if let (Stage::Started(task), Some(at)) = (&result.stage, at)
        && !task.is_empty()
    {
        // Work that is started again has ended before.
        let before = ids.by_task.insert(shorten_id(task), at).filter(|before| *before != at);
        let before = before.and_then(|before| conversation.calls.get_mut(before));
        if let Some(result) = before.and_then(|call| call.result.as_mut()) {
            result.is_open = false;
        }
    }
    at
}

/// Adds a report on the work that a call started. It is the result of the call if the record does
/// not show the end of the work yet. Returns the index of the call that the report names.
fn add_report(
    conversation: &mut Conversation,
    ids: &CallNumbers,
    span: Span,
    part: usize,
    at_ms: Option<i64>,
    result: &ResultPart<'_>,
    task: &str,
) -> Option<usize> {
    let named = ids.by_id.get(&*shorten_id(&result.call)).copied();
    let call = named.or_else(|| ids.starter(task));
    let call = call.and_then(|at| conversation.calls.get_mut(at));
    let is_awaited = |call: &CallEntry| call.verdict().is_none() || call.is_open();
    if let Some(call) = call.filter(|call| is_awaited(call)) {
        let is_open = result.verdict.outcome == Outcome::Unknown;
        let took = call.at_ms.zip(at_ms).and_then(|(from, to)| to.checked_sub(from));
        let duration_ms = took.and_then(|took| u64::try_from(took).ok()).filter(|_| !is_open);
        let mut new = call_result(call, span, part, at_ms, result);
        new.verdict.duration_ms = new.verdict.duration_ms.or(duration_ms);
        let before = call.result.as_ref().map(|before| (before.span.offset, before.part));
        call.receipt = call.receipt.or(before);
        call.result = Some(CallResult { is_open, ..new });
    }
    named
}

pub(super) fn call_result(
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
        is_misuse: (result.verdict.outcome == Outcome::Failed || suspect.is_some())
            && is_misuse(result.verdict.exit_code, &result.text),
        suspect: hint.or(suspect),
        denial: match (result.verdict.outcome, &result.stage) {
            (Outcome::NotRun, _) | (_, Stage::CutOff) => denial_line(&result.text),
            _ => None,
        },
        spilled: result.spilled.as_deref().map(|name| shorten(name, WORD_MAX)),
        truncated: result.truncated,
        is_report: false,
        is_open: matches!(result.stage, Stage::Started(_)),
    }
}

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

#[derive(Debug, Default)]
pub(super) struct CallNumbers {
    pub(super) by_id: HashMap<String, usize>,
    /// The last call that started work with an ID, by the ID of the work.
    by_task: HashMap<String, usize>,
}

impl CallNumbers {
    pub(super) fn new(conversation: &Conversation) -> CallNumbers {
        let calls = || conversation.calls.iter().enumerate();
        let ids = calls().filter(|(_, call)| !call.id.is_empty());
        let tasks = calls().filter_map(|(at, call)| Some((call.task.clone()?, at)));
        let tasks = tasks.filter(|(task, _)| !task.is_empty());
        CallNumbers {
            by_id: ids.map(|(at, call)| (call.id.clone(), at)).collect(),
            by_task: tasks.collect(),
        }
    }

    pub(super) fn starter(&self, task: &str) -> Option<usize> {
        self.by_task.get(&shorten_id(task)).copied()
    }
}

/// Shortens an ID of excessive length. Different IDs stay different.
pub(crate) fn shorten_id(id: &str) -> String {
    shorten(id, WORD_MAX)
}
