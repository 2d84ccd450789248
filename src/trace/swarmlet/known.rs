//! JSON that anybody may have written, decoded within bounds: of an object only the fields that this format reads, of a
//! long text only its beginning, and no more values than an honest record has.
//!
//! What is passed over is not built, so that a hostile document costs no more memory than an honest one of its size.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::super::value::shortened;

/// How many values are kept of one document.
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
/// Fields in which anything is read.
const ANYTHING: [&str; 2] = ["args", "arguments"];

/// A document of which only so much is kept.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) value: Value,
    /// Whether it held no more values than are kept.
    whole: bool,
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
    match serde_json::from_slice(bytes)? {
        Known { whole: false, .. } => Err(Fault::TooLarge),
        Known { value: Value::Object(object), .. } => Ok(object),
        Known { .. } => Err(Fault::NotAnObject),
    }
}

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Known, D::Error> {
        let room = Cell::new(Some(VALUES_MAX));
        let value = Keep { room: &room, anything: false }.deserialize(deserializer)?;
        Ok(Known { value, whole: room.get().is_some() })
    }
}

/// Keeps a value while there is room.
#[derive(Clone, Copy)]
struct Keep<'a> {
    /// For how many values there is room; none if there were more.
    room: &'a Cell<Option<usize>>,
    /// Whether fields of any name are kept.
    anything: bool,
}

impl<'de> DeserializeSeed<'de> for Keep<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.room.set(self.room.get().and_then(|room| room.checked_sub(1)));
        match self.room.get() {
            Some(_) => deserializer.deserialize_any(self),
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
            match list.next_element_seed(self)? {
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
            if self.anything || FIELDS.contains(&name.as_str()) {
                let anything = self.anything || ANYTHING.contains(&name.as_str());
                let value = map.next_value_seed(Keep { anything, ..self })?;
                fields.insert(name, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
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
        let wanted = json!({"status": "ok", "config": {"owner_id": 7}, "args": {"z": [null]}});
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
    fn long_texts_are_cut_and_stay_different() {
        let text = |last: char| json!({"task": "é".repeat(TEXT_MAX) + &last.to_string()}).to_string();
        let task = |text: String| object(text.as_bytes()).unwrap()["task"].as_str().unwrap().to_owned();
        let (one, other) = (task(text('a')), task(text('b')));
        assert!(one.len() <= TEXT_MAX && one.starts_with("éé") && one != other);
    }
}
