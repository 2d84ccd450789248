//! Checks metrics.jsonl and thread.jsonl, line by line.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

use super::super::super::bounded;
use super::super::super::check::{is_message, quote};
use super::super::super::input::tool_key;
use super::super::super::jsonl::{self, LineStats, RawLine};
use super::super::super::value::parse_time;
use super::super::layout::path;
use super::super::metrics::{
    self, CALL_EVENT, MEASURE_KEYS, NUMBER_KEY, START_EVENT, SUCCESS_KEYS, TOOL_KEYS,
};
use super::super::thread;
use super::document::{ANY, FileRemarks, JsonType, KnownKeys, ObjectFields};
use super::metadata::CALL_FIELDS;
use super::names::most_similar;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Record, RemarkSubject, TraceTime, WorkerCheck};
use swarmletfs_base::store::Store;

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
const THREAD_CALL_FIELDS: KnownKeys = KnownKeys {
    keys: &[("name", &[JsonType::Text]), ("args", ANY)],
    aliases: &[("arguments", "args")],
    ignored: &["id"],
    is_open: false,
};
const ROLES: [&str; 4] = ["user", "assistant", "system", "tool"];
/// The event of a line that records a call of the language model; nothing reads it.
const MODEL_EVENT: &str = "llm_call";
/// The role of a message whose text and calls are read.
const ASSISTANT: &str = "assistant";

pub(super) fn check_metrics(
    folder: &dyn Store,
    record: &Record,
    check: &mut WorkerCheck,
    deadline: Deadline<'_>,
) {
    let path = path(metrics::FILE);
    let Ok(file) = folder.open(&path) else { return };
    let mut matches = RecordMatches::new(record);
    let mut remarks = FileRemarks::new(&path, &mut check.remarks);
    let stats = jsonl::for_each_from(&*file, 0, deadline, |line| {
        let Some(fields) = parse(&line, &mut remarks) else { return false };
        check_metric(&fields, &mut matches, &mut remarks, line.number);
        true
    });
    matches.check_order(&mut remarks);
    check.is_complete &= stats.is_ok_and(|(stats, ..)| check_stats(&stats, &mut remarks));
    remarks.finish();
}

fn check_metric(
    fields: &ObjectFields<'_>,
    matches: &mut RecordMatches,
    remarks: &mut FileRemarks<'_>,
    line: u64,
) {
    let subject = RemarkSubject::Line(line);
    let has_tool = fields.has_any(&TOOL_KEYS);
    let event = fields.get("event").map(|event| text(event).unwrap_or_default());
    match event.as_deref() {
        Some(CALL_EVENT | START_EVENT) => {}
        Some(MODEL_EVENT) => return,
        Some(event) => {
            return match most_similar(event, [CALL_EVENT, START_EVENT]) {
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
    let is_start = event.as_deref() == Some(START_EVENT);
    let mut missing = Vec::new();
    if !has_tool {
        missing.push("tool");
    }
    if is_start && fields.get(NUMBER_KEY).is_none() {
        missing.push(NUMBER_KEY);
    }
    if !is_start && !fields.has_any(&SUCCESS_KEYS) && !fields.has_any(&["exit_code"]) && !has_tool {
        missing.push("success");
    }
    remarks.check_fields(fields, &CALL_FIELDS, &missing, "", &|_| subject, subject);
    if let Some(start) = fields.get("start_ts").and_then(text)
        && let TraceTime::Unparsed(start) = parse_time(Some(start))
    {
        remarks.problem("time", subject, || {
            format!(
                "start_ts {} is not a time; expected a form of 2026-01-20T10:00:00Z",
                quote(&start)
            )
        });
    }
    let tool = TOOL_KEYS.iter().find_map(|key| fields.get(key)).and_then(text);
    let Some(tool) = tool else { return };
    match fields.get(NUMBER_KEY) {
        Some(seq) => matches.check_number(seq, &tool, is_start, remarks, subject),
        // It is among the missing keys.
        None if is_start => {}
        None => matches.check_unnumbered(&tool, remarks, line),
    }
}

/// The files of a worker's calls, matched with the records in its metrics.
#[derive(Default)]
struct RecordMatches {
    /// The tools of the files of each number.
    numbers: HashMap<u64, Vec<String>>,
    /// The files of each tool's key.
    tools: HashMap<String, ToolMatches>,
    /// The numbers and tools of the calls whose end is recorded.
    ended: HashSet<(u64, String)>,
}

#[derive(Default)]
struct ToolMatches {
    files: usize,
    /// Numbers of the files that a record names.
    named: HashSet<u64>,
    /// Lines of the records without a number, at most one for each file.
    unnumbered: Vec<u64>,
}

impl RecordMatches {
    fn new(record: &Record) -> RecordMatches {
        let mut matches = RecordMatches::default();
        for call in &record.trace.calls {
            let key = tool_key(&call.tool);
            matches.numbers.entry(call.seq).or_default().push(key.clone());
            matches.tools.entry(key).or_default().files += 1;
        }
        matches
    }

    fn check_number(
        &mut self,
        number: &RawValue,
        tool: &str,
        is_start: bool,
        remarks: &mut FileRemarks<'_>,
        subject: RemarkSubject,
    ) {
        let Ok(seq) = serde_json::from_str::<u64>(number.get()) else {
            // Another type has a remark already.
            if JsonType::from_value(number) == JsonType::Number {
                remarks.problem("wrong_type", subject, || {
                    format!("{NUMBER_KEY} {} is not a whole number", number.get())
                });
            }
            return;
        };
        let key = tool_key(tool);
        match self.numbers.get(&seq).map(Vec::as_slice) {
            Some(tools) if tools.contains(&key) => {
                self.tools.entry(key.clone()).or_default().named.insert(seq);
                if !is_start && !self.ended.insert((seq, key)) {
                    remarks.problem("second_record", subject, || {
                        format!("call {seq} has an earlier record, which is used")
                    });
                }
            }
            Some([other, ..]) => remarks.problem("other_tool", subject, || {
                let (tool, other) = (quote(tool), quote(other));
                format!("call {seq} is of tool {other} in tool_calls/, not of {tool}")
            }),
            Some([]) | None => remarks.problem("no_file", subject, || {
                format!("call {seq} of tool {} has no file in tool_calls/", quote(tool))
            }),
        }
    }

    /// Checks a record that belongs to one of its tool's files by its order.
    fn check_unnumbered(&mut self, tool: &str, remarks: &mut FileRemarks<'_>, line: u64) {
        let subject = RemarkSubject::Line(line);
        match self.tools.get_mut(&tool_key(tool)) {
            Some(found) if found.unnumbered.len() < found.files => found.unnumbered.push(line),
            Some(_) => too_many_records(tool, remarks, subject),
            None => {
                let tools = self.tools.keys().map(String::as_str);
                remarks.problem("no_file", subject, || {
                    let meant = most_similar(tool, tools);
                    let meant = meant.map(|meant| format!("; {} has one", quote(meant)));
                    let meant = meant.unwrap_or_default();
                    format!("tool {} has no file in tool_calls/{meant}", quote(tool))
                });
            }
        }
    }

    /// Checks the records without a number against the files that no record names. All records
    /// must have been seen, as a later one may name a file.
    fn check_order(self, remarks: &mut FileRemarks<'_>) {
        let mut excess: Vec<(u64, String)> = Vec::new();
        for (tool, found) in self.tools {
            let free = found.files.saturating_sub(found.named.len());
            let lines = found.unnumbered.into_iter().skip(free);
            excess.extend(lines.map(|line| (line, tool.clone())));
        }
        excess.sort_unstable();
        for (line, tool) in excess {
            too_many_records(&tool, remarks, RemarkSubject::Line(line));
        }
    }
}

fn too_many_records(tool: &str, remarks: &mut FileRemarks<'_>, subject: RemarkSubject) {
    remarks.problem("no_file", subject, || {
        format!("there are fewer files of tool {} in tool_calls/ than records", quote(tool))
    });
}

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
            swarmletfs_base::text::count(stats.too_long, "line") + " longer than 16 MiB, not read"
        });
    }
    !stats.partial.is_some_and(|partial| partial.timed_out)
}

fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}
