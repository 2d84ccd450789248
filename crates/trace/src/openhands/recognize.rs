//! Recognizes conversations by the beginning of a file.

use std::io::Read;

use struson::reader::{JsonReader, JsonStreamReader, ReaderSettings, ValueType};

use super::super::json_text::json_text;
use super::super::probe::Probe;
use super::super::transcript::record_number;
use super::layout::{EVENTS, is_instances};
use super::version_1::is_known_kind;
use swarmletfs_base::name::Name;

/// Number of elements of a list, or lines, among which an event is searched.
const ELEMENTS_MAX: usize = 5;
/// Maximum nesting depth of a value that is read to recognize a file.
const DEPTH_MAX: u32 = 1_000;
const ITEMS: &str = "items";
const SOURCES: [&str; 4] = ["agent", "user", "environment", "hook"];
/// Fields that only events of version 1 have.
const VERSION_1_FIELDS: [&str; 3] = ["system_prompt", "llm_message", "llm_response_id"];

#[derive(Debug, Default)]
struct Clues {
    has_number: bool,
    has_id: bool,
    has_time: bool,
    has_source: bool,
    has_kind: bool,
    has_version_1_field: bool,
    /// True if an action or observation is a word.
    has_word: bool,
    has_instance: bool,
    has_history: bool,
    has_instruction: bool,
    has_metadata: bool,
}

impl Clues {
    fn is_event(&self) -> bool {
        let is_version_0 = self.has_number && self.has_source && self.has_word;
        let is_version_1 =
            self.has_id && self.has_time && self.has_source && self.has_version_1_field;
        self.has_kind || is_version_0 || is_version_1
    }

    fn is_instance(&self) -> bool {
        self.has_instance && (self.has_history || self.has_instruction && self.has_metadata)
    }

    /// Returns true if the rest of the object may decide.
    fn is_promising(&self) -> bool {
        self.has_instance || (self.has_id || self.has_number) && (self.has_time || self.has_source)
    }
}

pub(super) fn recognizes(probe: &Probe<'_>) -> bool {
    if probe.name() == EVENTS.as_bytes() {
        return is_events_folder(probe);
    }
    let is_lines = probe.name().ends_with(b".jsonl");
    if !is_lines && !probe.name().ends_with(b".json") {
        return false;
    }
    let is_wanted = match probe.path().file_name().is_some_and(|name| is_instances(&name)) {
        true => Clues::is_instance,
        false => Clues::is_event,
    };
    let first = clues(probe.head(), is_lines);
    first.iter().any(is_wanted)
        || first.iter().any(Clues::is_promising)
            && clues(probe.long_head(), is_lines).iter().any(is_wanted)
}

fn is_events_folder(probe: &Probe<'_>) -> bool {
    let names = probe.names();
    if names.iter().any(is_version_1_name) {
        return true;
    }
    let first = names.iter().filter_map(|name| Some((record_number(name)?, name))).min();
    first.is_some_and(|(_, name)| {
        clues(&probe.long_head_inside(name), false).iter().any(Clues::is_event)
    })
}

/// Returns true for names such as `event-00012-<ID>.json`.
fn is_version_1_name(name: &Name) -> bool {
    let inner =
        name.as_bytes().strip_prefix(b"event-").and_then(|name| name.strip_suffix(b".json"));
    let mut parts = inner.unwrap_or_default().splitn(2, |byte| *byte == b'-');
    let (number, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    number.len() >= 5
        && number.iter().all(u8::is_ascii_digit)
        && id.len() >= 8
        && id.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
}

fn clues(head: &[u8], is_lines: bool) -> Vec<Clues> {
    if is_lines {
        let lines = head.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        return lines.take(ELEMENTS_MAX).flat_map(clues_of_document).collect();
    }
    clues_of_document(head)
}

/// Returns the clues of a document: of the object itself, or of the first elements of its list of
/// events.
fn clues_of_document(head: &[u8]) -> Vec<Clues> {
    let text = json_text(head);
    let settings = ReaderSettings {
        track_path: false,
        max_nesting_depth: Some(DEPTH_MAX),
        restrict_number_values: false,
        ..ReaderSettings::default()
    };
    let mut json = JsonStreamReader::new_custom(text.as_bytes(), settings);
    let mut found = Vec::new();
    // The beginning ends anywhere, so an error is no surprise.
    let _ = read_document(&mut json, &mut found);
    found
}

type ReadResult = Result<(), struson::reader::ReaderError>;

fn read_document<R: Read>(json: &mut JsonStreamReader<R>, found: &mut Vec<Clues>) -> ReadResult {
    match json.peek()? {
        ValueType::Array => read_list(json, found),
        ValueType::Object => {
            json.begin_object()?;
            found.push(Clues::default());
            while json.has_next()? {
                let name = json.next_name_owned()?;
                if name == ITEMS && json.peek()? == ValueType::Array {
                    return read_list(json, found);
                }
                read_member(json, &name, found)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn read_list<R: Read>(json: &mut JsonStreamReader<R>, found: &mut Vec<Clues>) -> ReadResult {
    json.begin_array()?;
    for _ in 0..ELEMENTS_MAX {
        if !json.has_next()? {
            break;
        }
        if json.peek()? != ValueType::Object {
            json.skip_value()?;
            continue;
        }
        json.begin_object()?;
        found.push(Clues::default());
        while json.has_next()? {
            let name = json.next_name_owned()?;
            read_member(json, &name, found)?;
        }
        json.end_object()?;
    }
    Ok(())
}

/// Reads a member of the object that was found last.
fn read_member<R: Read>(
    json: &mut JsonStreamReader<R>,
    name: &str,
    found: &mut [Clues],
) -> ReadResult {
    let Some(clues) = found.last_mut() else { return Ok(()) };
    let kind = json.peek()?;
    match (name, kind) {
        ("id", ValueType::Number) => clues.has_number = true,
        ("id", ValueType::String) => clues.has_id = true,
        ("timestamp", ValueType::String) => clues.has_time = true,
        ("action" | "observation", ValueType::String) => clues.has_word = true,
        ("source", ValueType::String) => {
            clues.has_source = SOURCES.contains(&json.next_str()?);
            return Ok(());
        }
        ("kind", ValueType::String) => {
            clues.has_kind = is_known_kind(json.next_str()?);
            return Ok(());
        }
        ("instance_id", ValueType::String) => clues.has_instance = true,
        ("instruction", ValueType::String) => clues.has_instruction = true,
        ("history", ValueType::Array) => clues.has_history = true,
        ("metadata", ValueType::Object) => clues.has_metadata = true,
        _ if VERSION_1_FIELDS.contains(&name) => clues.has_version_1_field = true,
        _ => {}
    }
    json.skip_value()
}
