//! Generates thread.jsonl: the conversation in the common format of all traces, with one line per
//! message and per result.

use std::borrow::Cow;
use std::io;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::index::CallEntry;
use super::layout::CALLS;
use super::schema::Turn;
use crate::model::Outcome;

/// Maximum nesting depth of arguments; deeper ones are omitted.
const DEPTH_MAX: usize = 100;

/// A message.
#[derive(Serialize)]
struct MessageLine<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    model: &'a str,
    content: Cow<'a, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ThreadCall<'a>>,
}

/// A tool call in a message.
#[derive(Serialize)]
struct ThreadCall<'a> {
    id: &'a str,
    name: &'a str,
    args: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// A result. Its text is in the call's own file.
#[derive(Serialize)]
struct ResultLine<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    tool_call_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Writes the thread lines of one message: none, one or several. `find` returns an earlier call,
/// with its index, by its ID.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub(super) fn write_turn<'c>(
    out: &mut dyn io::Write,
    turn: &Turn<'_>,
    find: &dyn Fn(&str) -> Option<(usize, &'c CallEntry)>,
) -> io::Result<()> {
    let (role, message) = (turn.kind, turn.message);
    let time = || Some(Timestamp::from_millisecond(turn.at_ms?).ok()?.to_string());
    let blocks = || message.content.blocks().iter();
    let file = |found: Option<(usize, &CallEntry)>| {
        found.map(|(at, call)| format!("{CALLS}/{}", call.file_name(at).to_text()))
    };
    for block in blocks().filter(|block| role == "user" && block.kind.as_str() == "tool_result") {
        let id = block.tool_use_id.as_str();
        let found = find(id);
        let name = found.map(|(_, call)| call.tool.as_str()).unwrap_or_default();
        let never_ran =
            found.and_then(|(_, call)| call.result.as_ref()).is_some_and(|result| result.not_run);
        let outcome = match block.is_error.is_set() {
            true if never_ran => Outcome::NotRun,
            true => Outcome::Failed,
            false => Outcome::Ok,
        };
        let line = ResultLine {
            role: "tool",
            time: time(),
            tool_call_id: id,
            name,
            outcome: outcome.as_str(),
            file: file(found),
        };
        write_line(out, &line)?;
    }
    let content = message.content.text();
    let thinking: Vec<&str> = blocks().filter_map(|block| block.thinking.0.as_deref()).collect();
    let tool_calls: Vec<ThreadCall<'_>> = blocks()
        .filter(|block| block.kind.as_str() == "tool_use")
        .map(|block| ThreadCall {
            id: block.id.as_str(),
            name: block.name.as_str(),
            args: block.input.filter(|args| !is_deep(args)),
            file: file(find(block.id.as_str())),
        })
        .collect();
    if content.is_empty() && thinking.is_empty() && tool_calls.is_empty() {
        return Ok(());
    }
    let (model, thinking) = (message.model.as_str(), thinking.join("\n"));
    write_line(out, &MessageLine { role, time: time(), model, content, thinking, tool_calls })
}

/// Returns true if the JSON is nested too deeply for some parsers.
fn is_deep(json: &RawValue) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    json.get().bytes().any(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEPTH_MAX
    })
}

fn write_line(out: &mut dyn io::Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}
