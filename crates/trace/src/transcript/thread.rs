//! Generates thread.jsonl: the conversation in the common format of all traces, with one line per
//! message and per result.

use std::borrow::Cow;
use std::io;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::index::{CallEntry, LineEntry, Shown};
use super::turn::{Arguments, Stage, Turn};

/// The directory of the calls' outputs, in a worker's virtual directory.
pub(crate) const CALLS: &str = "tool_calls";
/// Maximum nesting depth of arguments; deeper ones are omitted.
const DEPTH_MAX: usize = 100;

#[derive(Serialize)]
struct MessageLine<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    model: &'a str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ThreadCall<'a>>,
}

#[derive(Serialize)]
struct ThreadCall<'a> {
    id: &'a str,
    name: &'a str,
    args: Option<Cow<'a, RawValue>>,
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

/// The calls and results of a record, each with the index of its call in the conversation. `None`
/// for a result without a call.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) calls: Vec<Option<usize>>,
    pub(super) results: Vec<Option<usize>>,
}

/// Writes the thread lines of the record `line`: none, one or several. `calls` are the calls of the
/// conversation, and `links` belong to the record.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub(super) fn write_turns(
    out: &mut dyn io::Write,
    turns: &[Turn<'_>],
    line: &LineEntry,
    calls: &[CallEntry],
    links: &Links,
) -> io::Result<()> {
    let call_at = |at: &Option<usize>| at.and_then(|at| Some((at, calls.get(at)?)));
    let file = |linked: Option<(usize, &CallEntry)>| {
        linked.map(|(at, call)| format!("{CALLS}/{}", call.file_name(at).to_text()))
    };
    let shows_all = line.shown == Shown::All;
    let mut linked_calls = links.calls.iter();
    let mut linked_results = links.results.iter();
    for turn in turns {
        let time = || Some(Timestamp::from_millisecond(turn.at_ms?).ok()?.to_string());
        for result in &turn.results {
            let linked = linked_results.next().and_then(call_at);
            if linked.is_none() && matches!(result.stage, Stage::Reported(_)) {
                continue;
            }
            let is_own = |call: &CallEntry| {
                call.result.as_ref().is_some_and(|result| result.span == line.span)
            };
            if !shows_all && linked.is_some_and(|(_, call)| !is_own(call)) {
                continue;
            }
            let line = ResultLine {
                role: "tool",
                time: time(),
                tool_call_id: &result.call,
                name: linked.map(|(_, call)| call.tool.as_str()).unwrap_or_default(),
                outcome: result.verdict.outcome.as_str(),
                file: file(linked),
            };
            write_line(out, &line)?;
        }
        let is_new = |linked: Option<(usize, &CallEntry)>| {
            shows_all || linked.is_none_or(|(_, call)| call.span == line.span)
        };
        let tool_calls: Vec<ThreadCall<'_>> = turn
            .calls
            .iter()
            .map(|call| (call, linked_calls.next().and_then(call_at)))
            .filter(|(_, linked)| is_new(*linked))
            .map(|(call, linked)| ThreadCall {
                id: &call.id,
                name: &call.name,
                args: json_arguments(&call.arguments),
                file: file(linked),
            })
            .collect();
        let shows_text = !matches!(line.shown, Shown::New { text: false });
        let content = if shows_text { &*turn.text } else { "" };
        let thinking = if shows_text { &*turn.thinking } else { "" };
        if content.is_empty() && thinking.is_empty() && tool_calls.is_empty() {
            continue;
        }
        let (role, model) = (turn.role.as_str(), &*turn.model);
        write_line(out, &MessageLine { role, time: time(), model, content, thinking, tool_calls })?;
    }
    Ok(())
}

/// Returns the arguments of a call as JSON. Omits arguments that are nested too deeply for some
/// parsers.
fn json_arguments<'a>(arguments: &'a Arguments<'_>) -> Option<Cow<'a, RawValue>> {
    let json = match arguments {
        Arguments::None => return None,
        Arguments::Json(json) => Cow::Borrowed(*json),
        Arguments::Text(text) => {
            let object = serde_json::from_str::<&RawValue>(text).ok();
            match object.filter(|json| json.get().starts_with('{')) {
                Some(object) => Cow::Borrowed(object),
                None => Cow::Owned(serde_json::value::to_raw_value(text).ok()?),
            }
        }
    };
    Some(json).filter(|json| !is_deep(json)).map(on_one_line)
}

/// Replaces the ends of lines in JSON, which are white space, by spaces.
fn on_one_line(json: Cow<'_, RawValue>) -> Cow<'_, RawValue> {
    if memchr::memchr2(b'\n', b'\r', json.get().as_bytes()).is_none() {
        return json;
    }
    match RawValue::from_string(json.get().replace(['\n', '\r'], " ")) {
        Ok(line) => Cow::Owned(line),
        Err(_) => json,
    }
}

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
