//! JSON that anybody may have written, decoded within bounds: of an object only the fields that this format reads, of a
//! long text only its beginning, and no more values than an honest record has.
//!
//! What is passed over is not built, so that a hostile document costs no more memory than an honest one of its size.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::value::{shortened, string};

/// Number of values that are kept of one document.
const VALUES_MAX: usize = 20_000;
/// The longest text that is kept whole, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// The fields that are read, in whatever document and at whatever depth.
#[rustfmt::skip]
const FIELDS: [&str; 32] = [
    "args", "arguments", "completion_time_ms", "config", "content", "created_at", "duration_ms", "error", "event",
    "exit_code", "finished_at", "function", "id", "job_id", "model", "name", "owner_id", "parent_id",
    "parent_thread_id", "role", "run_id", "started_at", "status", "success", "summary", "tags", "task", "task_type",
    "tool", "tool_calls", "tools", "worker_id",
];
/// Fields that are ids: a number stays as it is written, however large it is.
const IDS: [&str; 7] = ["id", "job_id", "owner_id", "parent_id", "parent_thread_id", "run_id", "worker_id"];
/// Where it stands whose a document is: at the top, or within the second.
const OWNER: &str = "owner_id";
const CONFIG: &str = "config";
/// Fields in which anything is read.
const ANYTHING: [&str; 2] = ["args", "arguments"];

/// A document of which only so much is kept.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) value: Value,
    /// True if it held no more values than are kept.
    whole: bool,
    /// True if it says twice whose it is, in the same place, and not the same.
    pub(super) has_two_owners: bool,
}

/// An object, and whether it says twice whose it is.
pub(super) struct Owned {
    pub(super) object: Map<String, Value>,
    pub(super) has_two_owners: bool,
}

/// Why a document is not taken, as a part of a sentence.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("not a JSON object")]
    NotAnObject,
    #[error("larger than {VALUES_MAX} values")]
    TooLarge,
}

/// The object that `bytes` are.
pub(super) fn object(bytes: &[u8]) -> Result<Map<String, Value>, Fault> {
    owned(bytes).map(|owned| owned.object)
}

/// Reads the object that `bytes` are. What says twice whose it is says it not at all.
pub(super) fn owned(bytes: &[u8]) -> Result<Owned, Fault> {
    let (mut object, has_two_owners) = match serde_json::from_slice(bytes)? {
        Known { whole: false, .. } => return Err(Fault::TooLarge),
        Known { value: Value::Object(object), has_two_owners, .. } => (object, has_two_owners),
        Known { .. } => return Err(Fault::NotAnObject),
    };
    if has_two_owners {
        object.shift_remove(OWNER);
        if let Some(Value::Object(config)) = object.get_mut(CONFIG) {
            config.shift_remove(OWNER);
        }
    }
    Ok(Owned { object, has_two_owners })
}

/// Reads JSON of any shape: no more values of it than are kept of a document. Returns `None` if it is no JSON.
pub(super) fn anything(text: &str) -> Option<Value> {
    let (room, differ) = (Cell::new(Some(VALUES_MAX)), Cell::new(false));
    let keep = Keep { room: &room, differ: &differ, level: Level::Inner, anything: true };
    let mut json = serde_json::Deserializer::from_str(text);
    let value = keep.deserialize(&mut json).ok()?;
    json.end().ok().map(|()| value)
}

/// Returns an id as it is written, or a string; of anything else, that there is none.
fn id(raw: &RawValue) -> serde_json::Result<Value> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(|id: String| shortened(&id, TEXT_MAX).into()),
        Some(b'-' | b'0'..=b'9') => {
            let is_whole = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            if is_whole { Ok(shortened(text, TEXT_MAX).into()) } else { serde_json::from_str(text) }
        }
        _ => Ok(Value::Null),
    }
}

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Known, D::Error> {
        let (room, differ) = (Cell::new(Some(VALUES_MAX)), Cell::new(false));
        let keep = Keep { room: &room, differ: &differ, level: Level::Top, anything: false };
        let value = keep.deserialize(deserializer)?;
        Ok(Known { value, whole: room.get().is_some(), has_two_owners: differ.get() })
    }
}

/// Keeps a value while there is room.
#[derive(Clone, Copy)]
struct Keep<'a> {
    /// For how many values there is room; none if there were more.
    room: &'a Cell<Option<usize>>,
    /// True if two owners were met in one place.
    differ: &'a Cell<bool>,
    level: Level,
    /// True if fields of any name are kept.
    anything: bool,
}

/// Where in a document a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// It is the document.
    Top,
    /// It is the document's `config`.
    Config,
    /// Somewhere else.
    Inner,
}

impl Keep<'_> {
    /// Takes the room of a value. Returns false if there is none.
    fn take_room(&self) -> bool {
        self.room.set(self.room.get().and_then(|room| room.checked_sub(1)));
        self.room.get().is_some()
    }

    /// Returns how values of the field `name` are kept.
    fn of_field(self, name: &str) -> Self {
        let level = if self.level == Level::Top && name == CONFIG { Level::Config } else { Level::Inner };
        Keep { level, anything: self.anything || ANYTHING.contains(&name), ..self }
    }

    /// Notes whether a field that stands twice in an object says two times whose it is, and not the same.
    fn compare(&self, name: &str, before: &Value, value: &Value) {
        let differ = match (self.level, name) {
            (Level::Top | Level::Config, OWNER) => string(Some(before)) != string(Some(value)),
            (Level::Top, CONFIG) => string(before.get(OWNER)) != string(value.get(OWNER)),
            _ => false,
        };
        self.differ.set(self.differ.get() || differ);
    }
}

impl<'de> DeserializeSeed<'de> for Keep<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.take_room().then_some(()) {
            Some(()) => deserializer.deserialize_any(self),
            None => deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null),
        }
    }
}

impl<'de> Visitor<'de> for Keep<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(shortened(value, TEXT_MAX).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while self.room.get().is_some() {
            match list.next_element_seed(Keep { level: Level::Inner, ..self })? {
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if !self.anything && !FIELDS.contains(&name.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = if !self.anything && IDS.contains(&name.as_str()) {
                let raw: Box<RawValue> = map.next_value()?;
                if self.take_room() { id(&raw).map_err(A::Error::custom)? } else { Value::Null }
            } else {
                map.next_value_seed(self.of_field(&name))?
            };
            if let Some(before) = fields.get(&name) {
                self.compare(&name, before, &value);
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_read_is_kept_and_the_rest_is_passed_over() {
        let text = r#"{"status": "ok", "x": [1, {"y": 2}], "config": {"owner_id": 7, "z": 1}, "args": {"z": [null]}}"#;
        let wanted = json!({"status": "ok", "config": {"owner_id": "7"}, "args": {"z": [null]}});
        assert_eq!(Value::Object(object(text.as_bytes()).unwrap()), wanted);
    }

    #[test]
    fn what_is_no_object_is_told_from_what_is_no_json() {
        for text in ["4", "[]", "null", "true", "\"x\"", "1e300", "-1"] {
            assert!(matches!(object(text.as_bytes()), Err(Fault::NotAnObject)), "{text}");
        }
        for text in ["", "{", "{\"a\": 1", "{} {}", "{'a': 1}"] {
            assert!(matches!(object(text.as_bytes()), Err(Fault::NotJson(_))), "{text}");
        }
    }

    #[test]
    fn more_values_than_are_kept_are_read_to_their_end_and_not_taken() {
        let many = |n: usize| format!("{{\"tags\": [{}0], \"status\": \"ok\"}}", "0,".repeat(n));
        assert_eq!(object(many(VALUES_MAX - 5).as_bytes()).unwrap()["status"], "ok");
        assert!(matches!(object(many(VALUES_MAX).as_bytes()), Err(Fault::TooLarge)));
        let known: Known = serde_json::from_str(&many(3 * VALUES_MAX)).unwrap();
        assert_eq!(known.value["tags"].as_array().unwrap().len(), VALUES_MAX - 1);
        let torn = many(3 * VALUES_MAX).replace('}', "");
        assert!(matches!(object(torn.as_bytes()), Err(Fault::NotJson(_))));
    }

    #[test]
    fn ids_keep_their_digits_and_what_is_no_id_is_none() {
        for digits in ["18446744073709551616", "-9223372036854775809", "123456789012345678901234567890", "7", "-1"] {
            for text in [format!("{{\"id\": {digits}}}"), format!("{{\"config\": {{\"id\": \"{digits}\"}}}}")] {
                let object = object(text.as_bytes()).unwrap();
                let id = object.get("id").or_else(|| object["config"].get("id"));
                assert_eq!(string(id).as_deref(), Some(digits), "{text}");
            }
        }
        for other in ["null", "true", "[1]", "{\"id\": 1}"] {
            assert_eq!(object(format!("{{\"id\": {other}}}").as_bytes()).unwrap()["id"], Value::Null, "{other}");
        }
        assert_eq!(string(object(b"{\"id\": 1.5}").unwrap().get("id")).as_deref(), Some("1.5"));
        assert!(matches!(object(b"{\"id\": \"\\ud800\"}"), Err(Fault::NotJson(_))));
    }

    #[test]
    fn what_says_twice_whose_it_is_and_not_the_same_is_nobody_s() {
        let owner = |text: &str| {
            let Owned { object, has_two_owners } = owned(text.as_bytes()).unwrap();
            let inner = object.get("config").and_then(|config| config.get("owner_id"));
            (string(object.get("owner_id")).or_else(|| string(inner)), has_two_owners)
        };
        for text in [
            r#"{"owner_id": 1, "owner_id": 2}"#,
            r#"{"owner_id": "a", "owner_id": null}"#,
            r#"{"owner_id": null, "owner_id": "a"}"#,
            r#"{"owner_id": 1, "owner_id": 2, "owner_id": 1}"#,
            r#"{"config": {"owner_id": 1, "owner_id": 2}}"#,
            r#"{"config": {"owner_id": 1}, "config": {"owner_id": 2}}"#,
            r#"{"config": {"owner_id": 1}, "config": 5}"#,
        ] {
            assert_eq!(owner(text), (None, true), "{text}");
        }
        for text in [
            r#"{"owner_id": 1, "owner_id": "1"}"#,
            r#"{"config": {"owner_id": 1}, "config": {"owner_id": 1}}"#,
            r#"{"config": {"owner_id": 1, "config": {"owner_id": 2}}}"#,
            r#"{"owner_id": 1, "args": {"owner_id": 1, "owner_id": 2}, "tools": [{"owner_id": 1, "owner_id": 2}]}"#,
        ] {
            assert_eq!(owner(text), (Some("1".into()), false), "{text}");
        }
    }

    #[test]
    fn of_anything_no_more_is_kept_than_of_a_document() {
        let many = format!("[{}0]", "[0],".repeat(5 * VALUES_MAX));
        let kept = anything(&many).unwrap();
        assert!(kept.as_array().unwrap().len() <= VALUES_MAX);
        assert_eq!(
            anything(r#"{"x": {"owner_id": [1, {"y": "z"}]}}"#),
            Some(json!({"x": {"owner_id": [1, {"y": "z"}]}}))
        );
        assert_eq!(anything("{} {}"), None);
    }

    #[test]
    fn long_texts_are_cut_and_stay_different() {
        let text = |last: char| json!({"task": "é".repeat(TEXT_MAX) + &last.to_string()}).to_string();
        let task = |text: String| object(text.as_bytes()).unwrap()["task"].as_str().unwrap().to_owned();
        let (one, other) = (task(text('a')), task(text('b')));
        assert!(one.len() <= TEXT_MAX && one.starts_with("éé") && one != other);
    }
}
