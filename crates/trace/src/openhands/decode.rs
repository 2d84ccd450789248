//! Decodes records: events, and the members of an evaluation's instance.

use std::borrow::Cow;

use super::super::lenient::{MaybeStr, object};
use super::super::transcript::{IndexBuilder, RawRecord, Turn};
use super::super::value::truncate;
use super::metadata::add_metrics;
use super::schema::{Event, InstanceMetadata, SHELL, decode};
use super::{version_0, version_1};
use swarmletfs_base::model::Status;

/// Maximum length of the words of an error, in bytes.
const ERROR_MAX: usize = 300;
/// The tag of a record that is an event, or a list of events.
const EVENT: u8 = 0;
/// The tag of a record that is the instruction of an instance.
const INSTRUCTION: u8 = 1;
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

/// Returns the value of a JSON string; empty for any other type.
fn text(json: &str) -> Cow<'_, str> {
    serde_json::from_str::<MaybeStr<'_>>(json).ok().and_then(|text| text.0).unwrap_or_default()
}

fn add_events(index: &mut IndexBuilder<'_>, number: usize, record: RawRecord<'_>) -> bool {
    let added = decode(record.text, |events| {
        for event in events {
            match version(event) {
                Some(FormatVersion::Zero) => {}
                Some(FormatVersion::One) => version_1::rewind_to_parent(index, number, event),
                None if event.kind.as_str().is_empty() => index.count_unknown_type("(none)"),
                None => index.count_unknown_type(event.kind.as_str()),
            }
        }
        let turns = turns(events);
        index.add_turns(number, record.span, &turns);
        let mut results = turns.iter().flat_map(|turn| &turn.results);
        if results.any(|result| result.verdict.exit_code.is_some()) {
            // There is one shell, so the command before has ended.
            index.stop_task(number, SHELL);
        }
        for event in events {
            match version(event) {
                Some(FormatVersion::Zero) => version_0::add_facts(index, number, event),
                Some(FormatVersion::One) => version_1::add_facts(index, number, event),
                None => {}
            }
        }
    });
    added.is_some()
}

enum FormatVersion {
    Zero,
    One,
}

/// Returns the version of an event, or `None` if its type is unknown.
fn version(event: &Event<'_>) -> Option<FormatVersion> {
    if version_1::is_known_kind(event.kind.as_str()) {
        return Some(FormatVersion::One);
    }
    let has_word = !event.action.word().is_empty() || !event.observation.word().is_empty();
    (has_word && event.kind.as_str().is_empty()).then_some(FormatVersion::Zero)
}

fn turns<'a>(events: &'a [Event<'_>]) -> Vec<Turn<'a>> {
    let turns = events.iter().map(|event| match version(event) {
        Some(FormatVersion::Zero) => vec![version_0::turn(event)],
        Some(FormatVersion::One) => version_1::turns(event),
        None => vec![event.silent_turn()],
    });
    turns.flatten().collect()
}
