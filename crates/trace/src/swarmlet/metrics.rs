//! Call records in metrics.jsonl, and in `tool_calls` of metadata.json.
//!
//! A record with a number belongs to the file of that number. The others belong, in their order, to
//! the files of their tool that no numbered record names.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::bounded;
use super::super::input::{InputBudget, InputLine, tool_key};
use super::super::jsonl::{self, LineStats};
use super::super::value::{parse_time, scalar_text};
use super::layout::path;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::store::Store;

pub const FILE: &str = "metrics.jsonl";
pub const CALL_EVENT: &str = "tool_call";
pub const START_EVENT: &str = "call_start";
pub(super) const NUMBER_KEY: &str = "seq";
/// Keys that name the tool, in the order of preference; the first is the documented one.
pub(super) const TOOL_KEYS: [&str; 2] = ["tool", "name"];
/// Keys that state success, in the order of preference; the first is the documented one.
pub(super) const SUCCESS_KEYS: [&str; 2] = ["success", "ok"];
/// Keys of which at least one is in the record of a call.
pub(super) const MEASURE_KEYS: [&str; 4] = ["success", "ok", "exit_code", "duration_ms"];

#[derive(Debug, Default)]
pub(super) struct RecordedCall {
    pub(super) success: Option<bool>,
    pub(super) exit_code: Option<i64>,
    pub(super) duration_ms: Option<u64>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) input: Option<InputLine>,
    /// True if the call never ran.
    not_run: bool,
    /// True if the file lacks a part of the output.
    pub(super) truncated: bool,
    has_start: bool,
    /// True if a record states how the call ended.
    has_end: bool,
}

impl RecordedCall {
    /// Returns true if the record states that the call began, and not that it ended.
    pub(super) fn is_open(&self) -> bool {
        self.has_start && !self.has_end
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match (self.success, self.exit_code) {
            _ if self.not_run => Some(Outcome::NotRun),
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
            started_at: self.started_at.or(other.started_at),
            input: self.input.or(other.input),
            not_run: self.not_run || other.not_run,
            truncated: self.truncated || other.truncated,
            has_start: self.has_start || other.has_start,
            has_end: self.has_end || other.has_end,
        }
    }

    /// Parses a record. The start of a call states neither an outcome nor a duration.
    fn parse(fields: &Map<String, Value>, inputs: &mut InputBudget) -> RecordedCall {
        let input = fields.get("input").and_then(InputLine::new);
        let record = RecordedCall {
            started_at: parse_start(fields),
            input: input.map(|input| inputs.truncate_line(input)),
            ..RecordedCall::default()
        };
        if fields.get("event").is_some_and(|event| event == START_EVENT) {
            return RecordedCall { has_start: true, ..record };
        }
        RecordedCall {
            success: first(fields, &SUCCESS_KEYS).and_then(Value::as_bool),
            exit_code: fields.get("exit_code").and_then(Value::as_i64),
            duration_ms: fields
                .get("duration_ms")
                .and_then(Value::as_f64)
                .filter(|ms| *ms >= 0.0)
                .map(|ms| ms as u64),
            not_run: fields.get("not_run").is_some_and(|not_run| not_run == true),
            truncated: fields.get("truncated").is_some_and(|truncated| truncated == true),
            has_end: true,
            ..record
        }
    }
}

/// Returns the time when a call began. A number is not read: it may count from any point in time.
fn parse_start(fields: &Map<String, Value>) -> Option<Timestamp> {
    let start = fields.get("start_ts").filter(|start| start.is_string());
    parse_time(scalar_text(start)).timestamp()
}

fn first<'a>(fields: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().find_map(|key| fields.get(*key))
}

/// The files of a worker's calls, as records refer to them.
#[derive(Debug, Default)]
pub(super) struct CallFiles {
    /// The tool's key of each file, in the order of the calls.
    keys: Vec<String>,
    pub(super) counts: HashMap<String, usize>,
    /// Position of each file by its number and its tool's key. The first of several files counts.
    positions: HashMap<(u64, String), usize>,
}

impl CallFiles {
    pub(super) fn add(&mut self, seq: u64, tool: &str) {
        let key = tool_key(tool);
        *self.counts.entry(key.clone()).or_default() += 1;
        self.positions.entry((seq, key.clone())).or_insert(self.keys.len());
        self.keys.push(key);
    }

    pub(super) fn position(&self, seq: u64, tool: &str) -> Option<usize> {
        self.positions.get(&(seq, tool_key(tool))).copied()
    }

    /// Returns each file's tool key, with the number of earlier files of the tool.
    pub(super) fn places(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut earlier: HashMap<&str, usize> = HashMap::new();
        self.keys.iter().map(move |key| {
            let count = earlier.entry(key).or_default();
            *count += 1;
            (key.as_str(), *count - 1)
        })
    }
}

/// The records of a worker's calls from one source, at most one for each file.
#[derive(Debug, Default)]
pub(super) struct CallRecords {
    /// Records that state the number of their call, by the position of its file.
    numbered: HashMap<usize, RecordedCall>,
    in_order: HashMap<String, Vec<RecordedCall>>,
    inputs: InputBudget,
}

impl CallRecords {
    /// Adds a record. A record without a file has no effect.
    fn add(&mut self, fields: &Map<String, Value>, files: &CallFiles) {
        let Some(tool) = first(fields, &TOOL_KEYS).and_then(Value::as_str) else { return };
        let Some(seq) = fields.get(NUMBER_KEY).filter(|seq| !seq.is_null()) else {
            return self.add_in_order(tool, fields, files);
        };
        let Some(at) = seq.as_u64().and_then(|seq| files.position(seq, tool)) else { return };
        let earlier = self.numbered.remove(&at).unwrap_or_default();
        // The first end counts: a later one would mix two accounts of the call.
        let record = if earlier.has_end {
            earlier
        } else {
            earlier.or(RecordedCall::parse(fields, &mut self.inputs))
        };
        self.numbered.insert(at, record);
    }

    fn add_in_order(&mut self, tool: &str, fields: &Map<String, Value>, files: &CallFiles) {
        let key = tool_key(tool);
        // A start without a number cannot be matched with its end.
        let is_start = fields.get("event").is_some_and(|event| event == START_EVENT);
        let Some(count) = files.counts.get(&key).filter(|_| !is_start) else { return };
        let records = self.in_order.entry(key).or_default();
        if records.len() < *count {
            records.push(RecordedCall::parse(fields, &mut self.inputs));
        }
    }

    /// Returns the record of each file, in the order of the calls; empty for a file without one.
    fn into_list(mut self, files: &CallFiles) -> Vec<RecordedCall> {
        let mut in_order: HashMap<String, _> =
            self.in_order.into_iter().map(|(key, records)| (key, records.into_iter())).collect();
        let records = files.keys.iter().enumerate().map(|(at, key)| {
            let numbered = self.numbered.remove(&at);
            numbered.or_else(|| in_order.get_mut(key)?.next()).unwrap_or_default()
        });
        records.collect()
    }
}

/// Reads metrics.jsonl until `deadline` passes. Also returns statistics of the lines.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read(
    folder: &dyn Store,
    files: &CallFiles,
    deadline: Deadline<'_>,
) -> Result<(CallRecords, LineStats)> {
    let file = folder.open(&path(FILE))?;
    let mut records = CallRecords::default();
    let lines = jsonl::for_each(&*file, deadline, |line| {
        let Ok(line) = bounded::parse_object(line) else { return false };
        if is_call(&line) {
            records.add(&line, files);
        }
        true
    })?;
    Ok((records, lines))
}

/// Returns true if a line records a call or its start: an event of that name or, without any event,
/// a tool with an outcome or a duration.
fn is_call(line: &Map<String, Value>) -> bool {
    match line.get("event") {
        Some(event) => event == CALL_EVENT || event == START_EVENT,
        None => {
            TOOL_KEYS.iter().any(|key| line.get(*key).is_some_and(Value::is_string))
                && MEASURE_KEYS.iter().any(|key| line.contains_key(*key))
        }
    }
}

/// Returns the record of each file, in the order of the calls. Fills gaps from the calls in the
/// metadata.
pub(super) fn with_metadata(
    records: CallRecords,
    metadata: &Map<String, Value>,
    files: &CallFiles,
) -> Vec<RecordedCall> {
    let mut listed = CallRecords::default();
    let calls =
        metadata.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    calls.iter().filter_map(Value::as_object).for_each(|call| listed.add(call, files));
    let listed = listed.into_list(files);
    let records = records.into_list(files).into_iter().zip(listed);
    records.map(|(record, listed)| record.or(listed)).collect()
}
