//! The lines of a sample of inspect_ai.
//!
//! A sample has the messages at its end, without times, and the events on the way, with the calls
//! of tools among them. A line holds a message with the event that belongs to it, or a call that
//! no message shows. Texts that stand elsewhere in the sample are put in their places.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::lenient::{MaybeBool, MaybeList, MaybeObject, MaybeStr, object};
use super::turn::parse_millis;

/// Maximum size of the lines of a sample, in bytes. Those beyond it are counted.
const LINES_MAX: usize = 64 << 20;
/// Maximum size of the texts that are put into a value, in bytes. Further ones stay references.
const ATTACHED_MAX: usize = 16 << 20;
/// The type of a line that stands for one beyond [`LINES_MAX`].
const LEFT_OUT: &str = "message or call beyond 64 MiB";
const REFERENCE: &str = "attachment://";
/// Maximum number of events in events.
const DEPTH_MAX: usize = 8;

/// The facts about the run in a log.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct EvalHeader {
    run_id: Value,
    task: Value,
    model: Value,
}

/// A sample. Fields of an unexpected type count as absent.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleDocument<'a> {
    #[serde(borrow)]
    messages: MaybeList<&'a RawValue>,
    #[serde(borrow)]
    events: MaybeList<&'a RawValue>,
    attachments: MaybeObject<BTreeMap<String, MaybeStr<'a>>>,
    output: MaybeObject<SampleOutput<'a>>,
    error: Option<&'a RawValue>,
    limit: Option<&'a RawValue>,
    scores: Option<&'a RawValue>,
    model_usage: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleOutput<'a> {
    completion: MaybeStr<'a>,
    choices: MaybeList<MaybeObject<OutputChoice<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OutputChoice<'a> {
    message: MaybeObject<MessageHead<'a>>,
}

/// The part of a message that tells its place.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct MessageHead<'a> {
    id: MaybeStr<'a>,
    role: MaybeStr<'a>,
    source: MaybeStr<'a>,
    tool_call_id: MaybeStr<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleEvent<'a> {
    event: MaybeStr<'a>,
    timestamp: MaybeStr<'a>,
    completed: MaybeStr<'a>,
    /// The ID of a call.
    id: MaybeStr<'a>,
    function: MaybeStr<'a>,
    arguments: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    failed: MaybeBool,
    pending: MaybeBool,
    truncated: Option<&'a RawValue>,
    output: MaybeObject<SampleOutput<'a>>,
    #[serde(borrow)]
    events: MaybeList<&'a RawValue>,
}

/// A line, and its time if it is known.
struct TimedLine {
    at: Option<i64>,
    value: Value,
}

/// Returns the lines of a sample, and the time of its end in milliseconds.
pub(super) fn sample_lines(header: &EvalHeader, text: &str) -> (Vec<u8>, Option<i64>) {
    let sample: SampleDocument<'_> = object(text).unwrap_or_default();
    let mut events = Vec::new();
    collect_events(&sample.events.0, 0, &mut events);
    let times = || events.iter().flat_map(|event| [&event.timestamp, &event.completed]);
    let begun = times().find_map(|time| time.non_empty());
    let ended = times().filter_map(|time| Some((parse_millis(time.as_str())?, time.as_str())));
    let ended = ended.max();
    let texts = sample.attachments.0.as_ref();
    let attached = &Attachments { texts, left: Cell::new(LINES_MAX), is_over: Cell::new(false) };
    let first = json!({"type": "sample", "at": begun, "run": header.run_id, "task": header.task,
        "model": header.model});
    let end = json!({"type": "end", "at": ended.map(|(_, time)| time), "error": sample.error,
        "limit": sample.limit, "scores": sample.scores, "usage": sample.model_usage,
        "completion": sample.output.0.as_ref().map(|output| output.completion.as_str())});
    let mut lines = Vec::new();
    add(&mut lines, &first);
    let mut left_out = 0;
    for line in body(&sample, &events, attached) {
        let before = lines.len();
        add(&mut lines, &line.value);
        if lines.len() > LINES_MAX {
            lines.truncate(before);
            left_out += 1;
        }
    }
    for _ in 0..left_out {
        add(&mut lines, &json!({"type": LEFT_OUT}));
    }
    add(&mut lines, &end);
    (lines, ended.map(|(at, _)| at))
}

fn add(lines: &mut Vec<u8>, line: &Value) {
    lines.extend(format!("{line}\n").into_bytes());
}

fn collect_events<'a>(raws: &[&'a RawValue], depth: usize, found: &mut Vec<SampleEvent<'a>>) {
    for raw in raws {
        let Some(mut event) = object::<SampleEvent<'a>>(raw.get()) else { continue };
        let inner = std::mem::take(&mut event.events.0);
        found.push(event);
        if depth < DEPTH_MAX {
            collect_events(&inner, depth + 1, found);
        }
    }
}

/// Returns the lines of messages and calls, in the order of time.
fn body(
    sample: &SampleDocument<'_>,
    events: &[SampleEvent<'_>],
    attached: &Attachments<'_>,
) -> Vec<TimedLine> {
    let mut calls: HashMap<&str, VecDeque<usize>> = HashMap::new();
    let mut answers: HashMap<&str, &SampleEvent<'_>> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        match event.event.as_str() {
            "tool" => calls.entry(event.id.as_str()).or_default().push_back(at),
            "model" => {
                let choices = event.output.0.iter().flat_map(|output| &output.choices.0);
                let messages = choices.filter_map(|choice| choice.0.as_ref()?.message.0.as_ref());
                answers.extend(messages.map(|message| (message.id.as_str(), event)));
            }
            _ => {}
        }
    }
    let messages = sample.messages.0.iter();
    let heads: Vec<(MessageHead<'_>, &RawValue)> =
        messages.filter_map(|raw| Some((object(raw.get())?, *raw))).collect();
    let states_source = heads.iter().any(|(head, _)| head.source.as_str() == "input");
    let is_user = |head: &MessageHead<'_>| head.role.as_str() == "user";
    let first_user = heads.iter().position(|(head, _)| is_user(head));
    let mut shown = HashSet::new();
    let mut lines = Vec::new();
    let mut latest = None;
    for (number, (head, raw)) in heads.iter().enumerate() {
        let call = calls.get_mut(head.tool_call_id.as_str()).and_then(VecDeque::pop_front);
        let call = call.filter(|_| head.role.as_str() == "tool");
        shown.extend(call);
        let event = call.and_then(|at| events.get(at));
        let answer = answers.get(head.id.as_str()).filter(|_| !head.id.as_str().is_empty());
        let time = event.or(answer.copied()).and_then(SampleEvent::end);
        latest = latest.max(time.and_then(parse_millis));
        let is_request = match states_source {
            true => is_user(head) && head.source.as_str() == "input",
            false => first_user == Some(number),
        };
        let mut value = json!({"type": "message", "at": time, "request": is_request,
            "message": attached.put_in(raw)});
        if let (Some(event), Some(fields)) = (event, value.as_object_mut()) {
            fields.insert("call".into(), call_value(event, attached));
        }
        lines.push(attached.line(latest, value));
    }
    let others = events
        .iter()
        .enumerate()
        .filter(|(at, event)| event.event.as_str() == "tool" && !shown.contains(at));
    lines.extend(others.map(|(_, event)| {
        let call = call_value(event, attached);
        let value = json!({"type": "call", "at": event.end(), "call": call});
        attached.line(event.end().and_then(parse_millis), value)
    }));
    lines.sort_by_key(|line| line.at);
    lines
}

impl SampleEvent<'_> {
    fn end(&self) -> Option<&str> {
        let times = [&self.completed, &self.timestamp];
        times.into_iter().map(MaybeStr::as_str).find(|time| !time.is_empty())
    }
}

fn call_value(event: &SampleEvent<'_>, attached: &Attachments<'_>) -> Value {
    let put_in = |raw: Option<&RawValue>| raw.map(|raw| attached.put_in(raw));
    json!({
        "id": event.id.as_str(),
        "function": event.function.as_str(),
        "arguments": put_in(event.arguments),
        "result": put_in(event.result),
        "error": put_in(event.error),
        "failed": event.failed.is_set(),
        "pending": event.pending.is_set(),
        "truncated": event.truncated,
        "timestamp": event.timestamp.as_str(),
        "completed": event.completed.as_str(),
    })
}

/// The long texts of a sample, which its messages and events refer to.
struct Attachments<'a> {
    texts: Option<&'a BTreeMap<String, MaybeStr<'a>>>,
    /// Number of bytes that may still be put into lines.
    left: Cell<usize>,
    /// True if there was no room for a text of the next line.
    is_over: Cell<bool>,
}

impl Attachments<'_> {
    /// Creates a line from `value`, unless its texts are too many.
    fn line(&self, at: Option<i64>, value: Value) -> TimedLine {
        TimedLine { at, value: if self.is_over.take() { json!({"type": LEFT_OUT}) } else { value } }
    }

    fn put_in(&self, raw: &RawValue) -> Value {
        let mut value = serde_json::from_str(raw.get()).unwrap_or_default();
        if raw.get().contains(REFERENCE) {
            self.replace(&mut value, &mut { ATTACHED_MAX });
        }
        value
    }

    fn replace(&self, value: &mut Value, left: &mut usize) {
        match value {
            Value::String(text) => {
                let name = text.strip_prefix(REFERENCE);
                let found = name.and_then(|name| self.texts?.get(name)).map(MaybeStr::as_str);
                if let Some(found) = found.filter(|found| found.len() <= *left) {
                    match self.left.get().checked_sub(found.len()) {
                        Some(room) => {
                            self.left.set(room);
                            *left -= found.len();
                            found.clone_into(text);
                        }
                        None => self.is_over.set(true),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item, left)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|value| self.replace(value, left));
            }
            _ => {}
        }
    }
}
