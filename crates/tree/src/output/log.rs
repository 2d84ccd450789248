//! The log of a worker: its messages and calls in their order, as text for people.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::Timestamp;
use serde_json::Value;

use super::summary::call_row;
use swarmletfs_base::model::{Record, Status, ToolCall};
use swarmletfs_base::text::clean::{cleaned, one_line};
use swarmletfs_base::text::utc;

const INDENT: &str = "    ";
/// Maximum length of a role or the name of a tool, in bytes.
const WORD_MAX: usize = 100;

/// A message, with the calls that it makes.
struct LoggedMessage {
    at: Option<Timestamp>,
    role: String,
    text: String,
    /// One row per call.
    calls: String,
}

/// Renders the messages in `thread`, the content of thread.jsonl, and the calls of a worker. A call
/// is below the message that makes it, or else before the first message that is later.
pub fn log(record: &Record, thread: &[u8]) -> String {
    let Record { worker, trace, .. } = record;
    let mut calls = ThreadCalls::new(&trace.calls);
    let lines = thread.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice(line).ok());
    let messages: Vec<LoggedMessage> =
        messages.filter_map(|line| message(&line, &mut calls, worker.status)).collect();
    let has = |role: &str| messages.iter().any(|message| message.role == role);
    let mut out = String::new();
    let task = trace.task.as_deref().unwrap_or(&worker.task);
    if !has("user") && !task.is_empty() {
        push(&mut out, None, "task", &indented(task));
    }
    let mut others = calls.unused.into_values().peekable();
    for message in &messages {
        while let Some(call) =
            others.next_if(|call| call.at.zip(message.at).is_some_and(|(call, next)| call < next))
        {
            push(&mut out, call.at, "call", &call_row(call, worker.status));
        }
        let body = indented(&message.text) + &message.calls;
        push(&mut out, message.at, &message.role, &body);
    }
    for call in others {
        push(&mut out, call.at, "call", &call_row(call, worker.status));
    }
    if let Some(words) = trace.final_words.as_deref().filter(|_| !has("assistant")) {
        push(&mut out, None, "final words", &indented(words));
    }
    out
}

/// Cleans and indents a text; heads of messages are not indented.
fn indented(text: &str) -> String {
    let text = cleaned(text.trim().as_bytes()).text;
    text.lines().map(|line| format!("{INDENT}{line}").trim_end().to_owned() + "\n").collect()
}

fn push(out: &mut String, at: Option<Timestamp>, title: &str, body: &str) {
    let time = at.map(|at| format!("[{}] ", utc(at.into()))).unwrap_or_default();
    let gap = if out.is_empty() { "" } else { "\n" };
    out.push_str(&format!("{gap}{time}{}\n{body}", one_line(title, WORD_MAX)));
}

/// Returns the message of a line; `None` for a result, which is in the row of its call, and for a
/// line without words and calls.
fn message(line: &Value, calls: &mut ThreadCalls<'_>, status: Status) -> Option<LoggedMessage> {
    let role = line.get("role")?.as_str()?.to_owned();
    let made = line.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let rows: String = made.map(|made| calls.row(made, status)).collect();
    let text = line.get("content").map(words).unwrap_or_default();
    let at = line.get("time").or_else(|| line.get("timestamp"));
    let at = at.and_then(|time| time.as_str()?.parse().ok());
    let is_shown = role != "tool" && !(text.trim().is_empty() && rows.is_empty());
    is_shown.then_some(LoggedMessage { at, role, text, calls: rows })
}

/// Returns the text of a message: a string, or the strings of its blocks.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The calls of a record that no message has named yet.
struct ThreadCalls<'a> {
    unused: BTreeMap<usize, &'a ToolCall>,
    /// Positions of the calls of each file and, in order, of each tool.
    places: HashMap<Cow<'a, str>, VecDeque<usize>>,
}

impl<'a> ThreadCalls<'a> {
    fn new(calls: &'a [ToolCall]) -> ThreadCalls<'a> {
        let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (at, call) in calls.iter().enumerate() {
            for key in [call.path.to_text(), Cow::Borrowed(&*call.tool)] {
                places.entry(key).or_default().push_back(at);
            }
        }
        ThreadCalls { unused: calls.iter().enumerate().collect(), places }
    }

    /// Returns the row of a call in a message: of the call of its file, or else of the next one of
    /// its tool.
    fn row(&mut self, made: &Value, status: Status) -> String {
        let text = |key: &str| made.get(key).and_then(Value::as_str);
        let name = text("name").or_else(|| made.get("function")?.get("name")?.as_str());
        let name = name.unwrap_or("-");
        let place = self.places.get_mut(text("file").unwrap_or(name));
        match place.and_then(|place| self.unused.remove(&place.pop_front()?)) {
            Some(call) => call_row(call, status),
            None => format!("  unknown {}, no result is recorded\n", one_line(name, WORD_MAX)),
        }
    }
}
