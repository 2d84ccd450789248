//! Decodes records: events, and the members of an evaluation's instance.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use super::super::lenient::{MaybeObject, MaybeStr};
use super::super::transcript::{Arguments, IndexBuilder, RawRecord, Role, Turn, parse_millis};
use super::super::value::{parse_utc, truncate};
use super::metadata::tokens;
use super::schema::{Event, Fields, InstanceMetadata, Metrics, decode};
use super::{version_0, version_1};
use crate::model::Status;

/// Maximum length of the words of an error, in bytes.
const ERROR_MAX: usize = 300;
/// The tag of a record that is an event, or a list of events.
const EVENT: u8 = 0;
/// The tag of a record that is the instruction of an instance.
const INSTRUCTION: u8 = 1;
/// Arguments that the program adds to every call.
const ADDED_ARGUMENTS: [&str; 9] = [
    "thought",
    "blocking",
    "hidden",
    "is_static",
    "confirmation_state",
    "security_risk",
    "impl_source",
    "translated_ipython_code",
    "kind",
];
/// The tool whose argument is a thought.
pub(super) const THINK: &str = "think";
/// Arguments with values that say nothing.
const DEFAULT_ARGUMENTS: [(&str, &str); 5] =
    [("is_input", "false"), ("reset", "false"), ("start", "0"), ("start", "1"), ("end", "-1")];
/// Tools whose argument `command` is no command for a shell.
const OPERATION_TOOLS: [&str; 6] = [
    "str_replace_editor",
    "file_editor",
    "planning_file_editor",
    "edit_file",
    "edit",
    "task_tracker",
];
/// The name under which the argument `command` of these tools is shown.
pub(super) const OPERATION: &str = "operation";

/// Adds a record to the index. Returns false if it cannot be decoded.
pub(super) fn add_record(index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
    let member = record.span.part;
    if !index.may_hold_agents() {
        return add_events(index, 0, with_tag(record, EVENT));
    }
    let Some(number) = index.document_conversation() else { return true };
    // In the order of `INSTANCE_MEMBERS`.
    match member {
        0 => index.name_document(&text(record.text)),
        1 => {
            let record = with_tag(record, INSTRUCTION);
            index.set_fallback_task(number, record.span, &text(record.text));
        }
        2 => {
            let metadata = object::<InstanceMetadata<'_>>(record.text).unwrap_or_default();
            let mut configs = [&metadata.llm_config, &metadata.llm].into_iter();
            let config = configs.find_map(|config| config.0.as_ref());
            index.set_default_model(number, config.map_or("", |config| config.model.as_str()));
        }
        3 => return add_events(index, number, with_tag(record, EVENT)),
        4 => add_metrics(index, number, object(record.text).as_ref()),
        _ => {
            let error = text(record.text);
            if let Some(line) = error.lines().find(|line| !line.trim().is_empty()) {
                let word = truncate(line.trim().to_owned(), ERROR_MAX);
                index.set_status(number, Status::Failed, Some(&word));
            }
        }
    }
    true
}

/// Decodes the turns of a record.
pub(super) fn with_turns(record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
    if record.span.part == INSTRUCTION {
        use_turns(&[Turn { text: text(record.text), ..Turn::default() }]);
        return;
    }
    decode(record.text, |events| use_turns(&turns(events)));
}

fn with_tag(record: RawRecord<'_>, part: u8) -> RawRecord<'_> {
    let mut span = record.span;
    span.part = part;
    RawRecord { span, ..record }
}

/// Returns the string that a JSON text is; empty for any other type.
fn text(json: &str) -> Cow<'_, str> {
    serde_json::from_str::<MaybeStr<'_>>(json).ok().and_then(|text| text.0).unwrap_or_default()
}

/// Returns the object that a JSON text is.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    serde_json::from_str::<MaybeObject<T>>(json).ok()?.0
}

fn add_events(index: &mut IndexBuilder<'_>, number: usize, record: RawRecord<'_>) -> bool {
    let added = decode(record.text, |events| {
        for event in events {
            match version(event) {
                Some(Version::Zero) => {}
                Some(Version::One) => version_1::find_branch(index, number, event),
                None if event.kind.as_str().is_empty() => index.count_unknown_type("(none)"),
                None => index.count_unknown_type(event.kind.as_str()),
            }
        }
        index.add_turns(number, record.span, &turns(events));
        for event in events {
            match version(event) {
                Some(Version::Zero) => version_0::add_facts(index, number, event),
                Some(Version::One) => version_1::add_facts(index, number, event),
                None => {}
            }
        }
    });
    added.is_some()
}

/// The version of an event.
enum Version {
    Zero,
    One,
}

/// Returns the version of an event, or `None` if its type is unknown.
fn version(event: &Event<'_>) -> Option<Version> {
    if version_1::is_known_kind(event.kind.as_str()) {
        return Some(Version::One);
    }
    let has_word = !event.action.word().is_empty() || !event.observation.word().is_empty();
    (has_word && event.kind.as_str().is_empty()).then_some(Version::Zero)
}

fn turns<'a>(events: &'a [Event<'_>]) -> Vec<Turn<'a>> {
    let turns = events.iter().map(|event| match version(event) {
        Some(Version::Zero) => vec![version_0::turn(event)],
        Some(Version::One) => version_1::turns(event),
        None => vec![silent_turn(event)],
    });
    turns.flatten().collect()
}

/// Returns the turn of an event that nobody reads.
pub(super) fn silent_turn<'a>(event: &Event<'_>) -> Turn<'a> {
    Turn { role: Role::System, at_ms: time(event), ..Turn::default() }
}

/// Returns the time of an event in milliseconds since 1970. A time without a zone counts as UTC.
fn time(event: &Event<'_>) -> Option<i64> {
    let text = event.timestamp.as_str();
    parse_millis(text).or_else(|| parse_utc(text).map(Timestamp::as_millisecond))
}

/// Sets the tokens of a conversation to those of its costs so far.
pub(super) fn add_metrics(
    index: &mut IndexBuilder<'_>,
    number: usize,
    metrics: Option<&Metrics<'_>>,
) {
    if let Some(usage) = metrics.and_then(|metrics| metrics.accumulated_token_usage.0) {
        index.set_total_tokens(number, tokens(usage));
    }
}

/// Returns the arguments of a call of `tool` without those that the program adds.
pub(super) fn call_arguments<'a>(tool: &str, fields: &Fields<'_>) -> Arguments<'a> {
    let mut json = String::from("{");
    for (name, value) in &fields.0 {
        let value = value.get();
        let is_default = DEFAULT_ARGUMENTS.contains(&(name, value));
        let is_argument = name == "thought" && tool == THINK;
        let is_added = ADDED_ARGUMENTS.contains(&&**name) && !is_argument;
        if is_added || is_default || value == "null" {
            continue;
        }
        let is_operation = name == "command" && OPERATION_TOOLS.contains(&tool);
        let name = if is_operation { OPERATION } else { name };
        let Ok(name) = serde_json::to_string(name) else { continue };
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&name);
        json.push(':');
        json.push_str(value);
    }
    json.push('}');
    Arguments::Text(Cow::Owned(json))
}
