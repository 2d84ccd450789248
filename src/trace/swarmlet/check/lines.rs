//! Checks metrics.jsonl and thread.jsonl, line by line.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::super::super::bounded;
use super::super::super::check::{is_message, quote};
use super::super::super::input::tool_key;
use super::super::super::jsonl::{self, LineStats, RawLine};
use super::super::layout::path;
use super::super::metrics::{self, CALL_EVENT, MEASURE_KEYS, SUCCESS_KEYS, TOOL_KEYS};
use super::super::thread;
use super::document::{FileRemarks, JsonType, KnownKeys, ObjectFields};
use super::metadata::CALL_FIELDS;
use super::similar::most_similar;
use crate::deadline::Deadline;
use crate::model::{Record, RemarkSubject, WorkerCheck};
use crate::store::Store;

/// A message of a thread.
const MESSAGE_FIELDS: KnownKeys = KnownKeys {
    keys: &[
        ("role", &[JsonType::Text]),
        ("content", &[JsonType::Text]),
        ("tool_calls", &[JsonType::List]),
    ],
    aliases: &[],
    ignored: &["timestamp"],
    is_open: false,
};
/// A call in a message.
const THREAD_CALL_FIELDS: KnownKeys = KnownKeys {
    keys: &[("name", &[JsonType::Text]), ("args", ANY)],
    aliases: &[("arguments", "args")],
    ignored: &["id"],
    is_open: false,
};
/// The types of a value of any type.
const ANY: &[JsonType] =
    &[JsonType::Object, JsonType::Text, JsonType::Number, JsonType::Bool, JsonType::List];
/// The roles of a message.
const ROLES: [&str; 4] = ["user", "assistant", "system", "tool"];
/// The event of a line that records a call of the language model; nothing reads it.
const MODEL_EVENT: &str = "llm_call";
/// The role of a message whose text and calls are read.
const ASSISTANT: &str = "assistant";

/// Checks the records of calls.
pub(super) fn check_metrics(
    folder: &dyn Store,
    record: &Record,
    check: &mut WorkerCheck,
    deadline: Deadline<'_>,
) {
    let path = path(metrics::FILE);
    let Ok(file) = folder.open(&path) else { return };
    let mut files: HashMap<String, usize> = HashMap::new();
    for call in &record.trace.calls {
        *files.entry(tool_key(&call.tool)).or_default() += 1;
    }
    let mut remarks = FileRemarks::new(&path, &mut check.remarks);
    let stats = jsonl::for_each_from(&*file, 0, deadline, |line| {
        let subject = RemarkSubject::Line(line.number);
        let Some(fields) = parse(&line, &mut remarks) else { return false };
        check_metric(&fields, &mut files, &mut remarks, subject);
        true
    });
    check.is_complete &= stats.is_ok_and(|(stats, ..)| check_stats(&stats, &mut remarks));
    remarks.finish();
}

/// Checks a line of the metrics. `files` is the number of files of each tool without a record.
fn check_metric(
    fields: &ObjectFields<'_>,
    files: &mut HashMap<String, usize>,
    remarks: &mut FileRemarks<'_>,
    subject: RemarkSubject,
) {
    let has_tool = fields.has_any(&TOOL_KEYS);
    let event = fields.get("event").map(|event| text(event).unwrap_or_default());
    match event.as_deref() {
        Some(CALL_EVENT) => {}
        Some(MODEL_EVENT) => return,
        Some(event) => {
            return match most_similar(event, [CALL_EVENT]) {
                Some(meant) => remarks.problem("event", subject, || {
                    format!("event {} is not known; {meant} is", quote(event))
                }),
                None => remarks.add_unread(format!("event {}", quote(event))),
            };
        }
        None if has_tool && fields.has_any(&MEASURE_KEYS) => {
            remarks.note("accepted_event", subject, || "read as event tool_call".into());
        }
        None => {}
    }
    let mut missing = Vec::new();
    if !has_tool {
        missing.push("tool");
    }
    if !fields.has_any(&SUCCESS_KEYS) && !fields.has_any(&["exit_code"]) && !has_tool {
        missing.push("success");
    }
    remarks.check_fields(fields, &CALL_FIELDS, &missing, "", &|_| subject, subject);
    let tool = TOOL_KEYS.iter().find_map(|key| fields.get(key)).and_then(text);
    let Some(tool) = tool else { return };
    match files.get_mut(&tool_key(&tool)) {
        Some(0) => remarks.problem("no_file", subject, || {
            format!("there are fewer files of tool {} in tool_calls/ than records", quote(&tool))
        }),
        Some(left) => *left -= 1,
        None => {
            let meant = most_similar(&tool, files.keys().map(String::as_str));
            let meant = meant.map(|meant| format!("; {} has one", quote(meant)));
            let meant = meant.unwrap_or_default();
            remarks.problem("no_file", subject, || {
                format!("tool {} has no file in tool_calls/{meant}", quote(&tool))
            });
        }
    }
}

/// Checks the messages, and counts them.
pub(super) fn check_thread(folder: &dyn Store, check: &mut WorkerCheck, deadline: Deadline<'_>) {
    let path = path(thread::FILE);
    let Ok(file) = folder.open(&path) else { return };
    let mut remarks = FileRemarks::new(&path, &mut check.remarks);
    let mut messages = 0;
    let stats = jsonl::for_each_from(&*file, 0, deadline, |line| {
        let subject = RemarkSubject::Line(line.number);
        let Some(fields) = parse(&line, &mut remarks) else { return false };
        let role = fields.get("role").and_then(text).unwrap_or_default();
        messages += u64::from(is_message(&role));
        check_message(&fields, &role, &mut remarks, subject);
        true
    });
    check.is_complete &= stats.is_ok_and(|(stats, ..)| check_stats(&stats, &mut remarks));
    remarks.finish();
    check.messages = Some(messages);
}

fn check_message(
    fields: &ObjectFields<'_>,
    role: &str,
    remarks: &mut FileRemarks<'_>,
    subject: RemarkSubject,
) {
    if role.is_empty() {
        remarks.check_fields(fields, &MESSAGE_FIELDS, &["role"], "", &|_| subject, subject);
        return;
    }
    if !ROLES.contains(&role) {
        let known = most_similar(role, ROLES)
            .map_or_else(|| format!("{} are", ROLES.join(", ")), |meant| format!("{meant} is"));
        remarks.problem("role", subject, || format!("role {} is not known; {known}", quote(role)));
    }
    // Nothing else is read of the other roles.
    if role != ASSISTANT {
        return;
    }
    remarks.check_fields(fields, &MESSAGE_FIELDS, &[], "", &|_| subject, subject);
    let calls = fields
        .get("tool_calls")
        .and_then(|calls| serde_json::from_str::<Vec<&RawValue>>(calls.get()).ok());
    for call in calls.unwrap_or_default() {
        let Some(call) = ObjectFields::parse(call.get().as_bytes()) else {
            remarks
                .problem("wrong_type", subject, || "an item of tool_calls is not an object".into());
            continue;
        };
        let function =
            call.get("function").and_then(|body| ObjectFields::parse(body.get().as_bytes()));
        let body = function.as_ref().unwrap_or(&call);
        let mut missing = Vec::new();
        if !body.has_any(&["name"]) {
            missing.push("name");
        }
        let is_input = |key: &str| most_similar(key, ["input", "parameters", "params"]).is_some();
        if !body.has_any(&["args", "arguments"]) && body.keys().any(is_input) {
            missing.push("args");
        }
        let place = if function.is_some() { "tool_calls.function." } else { "tool_calls." };
        remarks.check_fields(body, &THREAD_CALL_FIELDS, &missing, place, &|_| subject, subject);
    }
}

/// Parses a line as the readers do. Adds a remark if it is not understood, unless it is a last line
/// that may still be written.
fn parse<'a>(line: &RawLine<'a>, remarks: &mut FileRemarks<'_>) -> Option<ObjectFields<'a>> {
    let subject = RemarkSubject::Line(line.number);
    match bounded::parse_object(line.bytes) {
        Ok(_) => ObjectFields::parse(line.bytes),
        Err(_) if !line.bytes.ends_with(b"\n") => {
            remarks.note("torn_line", subject, || "the last line is incomplete".into());
            None
        }
        Err(error) => {
            remarks.problem("bad_lines", subject, || error.without_line());
            None
        }
    }
}

/// Adds a remark on lines that are too long. Returns false if time ran out.
fn check_stats(stats: &LineStats, remarks: &mut FileRemarks<'_>) -> bool {
    if stats.too_long > 0 {
        remarks.problem("bad_lines", RemarkSubject::Content, || {
            crate::text::count(stats.too_long, "line") + " longer than 16 MiB, not read"
        });
    }
    !stats.partial.is_some_and(|partial| partial.timed_out)
}

fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}
