//! Call records in metrics.jsonl, and in `tool_calls` of metadata.json.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::super::bounded;
use super::super::input::tool_key;
use super::super::jsonl::{self, LineStats};
use super::layout::path;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::model::Outcome;
use crate::store::Store;

pub(crate) const FILE: &str = "metrics.jsonl";
/// The event of a line that records a call.
pub(crate) const CALL_EVENT: &str = "tool_call";
/// The event of a line that states the beginning of a call.
pub(crate) const CALL_START_EVENT: &str = "call_start";
/// Keys that name the tool, in the order of preference; the first is the documented one.
pub(super) const TOOL_KEYS: [&str; 2] = ["tool", "name"];
/// Keys that state success, in the order of preference; the first is the documented one.
pub(super) const SUCCESS_KEYS: [&str; 2] = ["success", "ok"];
/// Keys of which at least one is in the record of a call.
pub(super) const MEASURE_KEYS: [&str; 4] = ["success", "ok", "exit_code", "duration_ms"];

/// The record of one call.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordedCall {
    pub(super) success: Option<bool>,
    pub(super) exit_code: Option<i64>,
    pub(super) duration_ms: Option<u64>,
}

impl RecordedCall {
    /// Returns the recorded outcome, if there is one.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match (self.success, self.exit_code) {
            (Some(false), _) => Some(Outcome::Failed),
            (_, Some(code)) if code != 0 => Some(Outcome::Failed),
            (Some(true), _) | (None, Some(_)) => Some(Outcome::Ok),
            (None, None) => None,
        }
    }

    fn or(self, other: RecordedCall) -> RecordedCall {
        RecordedCall {
            success: self.success.or(other.success),
            exit_code: self.exit_code.or(other.exit_code),
            duration_ms: self.duration_ms.or(other.duration_ms),
        }
    }
}

/// The records of each tool, in order: the n-th belongs to the tool's n-th file. There are at most
/// as many records as files.
pub(super) type CallRecords = HashMap<String, Vec<RecordedCall>>;

/// Reads metrics.jsonl until `deadline` passes. `files` is the number of files of each tool. Also
/// returns statistics of the lines.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read(
    folder: &dyn Store,
    files: &HashMap<String, usize>,
    deadline: Deadline<'_>,
) -> Result<(CallRecords, LineStats)> {
    let file = folder.open(&path(FILE))?;
    let mut records_by_tool = CallRecords::new();
    let lines = jsonl::for_each(&*file, deadline, |line| {
        let Ok(line) = bounded::parse_object(line) else { return false };
        if is_call(&line) {
            add_record(&mut records_by_tool, &line, files);
        }
        true
    })?;
    Ok((records_by_tool, lines))
}

/// Returns true if a line records a call: an event of that name or, without any event, a tool with
/// an outcome or a duration.
fn is_call(line: &Map<String, Value>) -> bool {
    match line.get("event") {
        Some(event) => event == CALL_EVENT,
        None => {
            TOOL_KEYS.iter().any(|key| line.get(*key).is_some_and(Value::is_string))
                && MEASURE_KEYS.iter().any(|key| line.contains_key(*key))
        }
    }
}

/// Fills gaps from the calls in the metadata. `files` is the number of files of each tool.
pub(super) fn with_metadata(
    mut records_by_tool: CallRecords,
    metadata: &Map<String, Value>,
    files: &HashMap<String, usize>,
) -> CallRecords {
    let mut listed = CallRecords::new();
    let calls =
        metadata.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    calls.iter().filter_map(Value::as_object).for_each(|call| add_record(&mut listed, call, files));
    for (tool, records) in listed {
        let existing = records_by_tool.entry(tool).or_default();
        for (at, record) in records.into_iter().enumerate() {
            match existing.get_mut(at) {
                Some(first) => *first = first.clone().or(record),
                None => existing.push(record),
            }
        }
    }
    records_by_tool
}

fn add_record(
    records_by_tool: &mut CallRecords,
    fields: &Map<String, Value>,
    files: &HashMap<String, usize>,
) {
    let first = |keys: &[&str]| keys.iter().find_map(|key| fields.get(*key));
    let Some(tool) = first(&TOOL_KEYS).and_then(Value::as_str) else { return };
    let key = tool_key(tool);
    let Some(files) = files.get(&key) else { return };
    let records = records_by_tool.entry(key).or_default();
    if records.len() < *files {
        records.push(RecordedCall {
            success: first(&SUCCESS_KEYS).and_then(Value::as_bool),
            exit_code: fields.get("exit_code").and_then(Value::as_i64),
            duration_ms: fields
                .get("duration_ms")
                .and_then(Value::as_f64)
                .filter(|ms| *ms >= 0.0)
                .map(|ms| ms as u64),
        });
    }
}
