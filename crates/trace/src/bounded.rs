//! Decodes untrusted JSON within bounds. Of an object only the fields that a format reads are kept,
//! of a long text only its beginning, and of a document only a limited number of values.
//!
//! Skipped values are not built, so a hostile document costs no more memory than an honest one of
//! the same size.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::value::{scalar_text, shorten};

/// Maximum number of values kept from one document.
const VALUES_MAX: usize = 20_000;
/// Maximum length of a text that is kept whole, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// The fields that are read, in any document and at any depth.
#[rustfmt::skip]
const FIELDS: [&str; 41] = [
    "args", "arguments", "completion_time_ms", "config", "content", "created_at", "cwd", "duration_ms", "error", "event",
    "exit_code", "finished_at", "function", "id", "input", "job_id", "model", "name", "not_run", "ok", "owner_id", "parent_id",
    "parent_thread_id", "role", "run_id", "seq", "start_ts", "started_at", "status", "success", "summary", "supervisor_notes", "tags",
    "task", "task_type", "title", "tool", "tool_calls", "tools", "truncated", "worker_id",
];
/// Fields that hold IDs. A number keeps all its digits.
const ID_FIELDS: [&str; 7] =
    ["id", "job_id", "owner_id", "parent_id", "parent_thread_id", "run_id", "worker_id"];
/// The field that names the owner, at the top level or inside [`CONFIG_FIELD`].
const OWNER_FIELD: &str = "owner_id";
/// The object that may hold fields instead of the top level.
const CONFIG_FIELD: &str = "config";
/// Fields inside which all fields are kept.
const UNFILTERED_FIELDS: [&str; 3] = ["args", "arguments", "input"];

#[derive(Debug)]
pub(super) struct BoundedValue {
    pub(super) value: Value,
    /// False if the document had more than [`VALUES_MAX`] values.
    is_complete: bool,
    pub(super) has_conflicting_owners: bool,
}

pub(super) struct MetadataObject {
    pub(super) object: Map<String, Value>,
    pub(super) has_conflicting_owners: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ParseError {
    #[error("not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("not a JSON object")]
    NotAnObject,
    #[error("larger than {VALUES_MAX} values")]
    TooLarge,
}

impl ParseError {
    /// Returns the message for a line of a file, without the line number of the parser.
    pub(super) fn without_line(&self) -> String {
        match self {
            ParseError::NotJson(error) => format!("not JSON at column {}", error.column()),
            other => other.to_string(),
        }
    }
}

/// Parses a JSON object.
///
/// # Errors
///
/// Fails if `bytes` are not JSON, not an object, or hold too many values.
pub(super) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ParseError> {
    parse_metadata(bytes).map(|metadata| metadata.object)
}

/// Parses a metadata object. Removes the owner if the object names two different ones.
///
/// # Errors
///
/// Fails if `bytes` are not JSON, not an object, or hold too many values.
pub(super) fn parse_metadata(bytes: &[u8]) -> Result<MetadataObject, ParseError> {
    let (mut object, has_conflicting_owners) = match serde_json::from_slice(bytes)? {
        BoundedValue { is_complete: false, .. } => return Err(ParseError::TooLarge),
        BoundedValue { value: Value::Object(object), has_conflicting_owners, .. } => {
            (object, has_conflicting_owners)
        }
        BoundedValue { .. } => return Err(ParseError::NotAnObject),
    };
    if has_conflicting_owners {
        object.shift_remove(OWNER_FIELD);
        if let Some(Value::Object(config)) = object.get_mut(CONFIG_FIELD) {
            config.shift_remove(OWNER_FIELD);
        }
    }
    Ok(MetadataObject { object, has_conflicting_owners })
}

/// Parses any JSON value and keeps all of its fields, but at most [`VALUES_MAX`] values. Returns
/// `None` if `text` is not JSON.
pub(super) fn parse_any(text: &str) -> Option<Value> {
    let (values_left, owners_differ) = (Cell::new(Some(VALUES_MAX)), Cell::new(false));
    let seed = BoundedSeed {
        values_left: &values_left,
        owners_differ: &owners_differ,
        level: NestingLevel::Inner,
        keep_all: true,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut json).ok()?;
    json.end().ok().map(|()| value)
}

/// Returns an ID as text, with the digits of a number as written. Returns null for other types.
fn parse_id(raw: &RawValue) -> serde_json::Result<Value> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(|id: String| shorten(&id, TEXT_MAX).into()),
        Some(b'-' | b'0'..=b'9') => {
            let is_whole = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            if is_whole { Ok(shorten(text, TEXT_MAX).into()) } else { serde_json::from_str(text) }
        }
        _ => Ok(Value::Null),
    }
}

impl<'de> Deserialize<'de> for BoundedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundedValue, D::Error> {
        let (values_left, owners_differ) = (Cell::new(Some(VALUES_MAX)), Cell::new(false));
        let seed = BoundedSeed {
            values_left: &values_left,
            owners_differ: &owners_differ,
            level: NestingLevel::Top,
            keep_all: false,
        };
        let value = seed.deserialize(deserializer)?;
        Ok(BoundedValue {
            value,
            is_complete: values_left.get().is_some(),
            has_conflicting_owners: owners_differ.get(),
        })
    }
}

#[derive(Clone, Copy)]
struct BoundedSeed<'a> {
    /// Number of values that may still be kept; `None` once the document has more.
    values_left: &'a Cell<Option<usize>>,
    owners_differ: &'a Cell<bool>,
    level: NestingLevel,
    keep_all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NestingLevel {
    Top,
    Config,
    Inner,
}

impl BoundedSeed<'_> {
    /// Counts one value. Returns false if the limit is exceeded.
    fn take_value(&self) -> bool {
        self.values_left
            .set(self.values_left.get().and_then(|values_left| values_left.checked_sub(1)));
        self.values_left.get().is_some()
    }

    fn for_field(self, name: &str) -> Self {
        let level = if self.level == NestingLevel::Top && name == CONFIG_FIELD {
            NestingLevel::Config
        } else {
            NestingLevel::Inner
        };
        BoundedSeed { level, keep_all: self.keep_all || UNFILTERED_FIELDS.contains(&name), ..self }
    }

    /// Notes a conflict if a repeated field names a different owner than before.
    fn note_owner_conflict(&self, name: &str, before: &Value, value: &Value) {
        let owners_differ = match (self.level, name) {
            (NestingLevel::Top | NestingLevel::Config, OWNER_FIELD) => {
                scalar_text(Some(before)) != scalar_text(Some(value))
            }
            (NestingLevel::Top, CONFIG_FIELD) => {
                scalar_text(before.get(OWNER_FIELD)) != scalar_text(value.get(OWNER_FIELD))
            }
            _ => false,
        };
        self.owners_differ.set(self.owners_differ.get() || owners_differ);
    }
}

impl<'de> DeserializeSeed<'de> for BoundedSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.take_value() {
            deserializer.deserialize_any(self)
        } else {
            deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null)
        }
    }
}

impl<'de> Visitor<'de> for BoundedSeed<'_> {
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
        Ok(shorten(value, TEXT_MAX).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while self.values_left.get().is_some() {
            match list.next_element_seed(BoundedSeed { level: NestingLevel::Inner, ..self })? {
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
            if !self.keep_all && !FIELDS.contains(&name.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = if !self.keep_all && ID_FIELDS.contains(&name.as_str()) {
                let raw: Box<RawValue> = map.next_value()?;
                if self.take_value() {
                    parse_id(&raw).map_err(A::Error::custom)?
                } else {
                    Value::Null
                }
            } else {
                map.next_value_seed(self.for_field(&name))?
            };
            if let Some(before) = fields.get(&name) {
                self.note_owner_conflict(&name, before, &value);
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
    fn known_fields_are_kept_and_others_are_skipped() {
        let text = r#"{"status": "ok", "x": [1, {"y": 2}], "config": {"owner_id": 7, "z": 1}, "args": {"z": [null]}}"#;
        let wanted = json!({"status": "ok", "config": {"owner_id": "7"}, "args": {"z": [null]}});
        assert_eq!(Value::Object(parse_object(text.as_bytes()).unwrap()), wanted);
    }

    #[test]
    fn non_objects_and_non_json_give_different_errors() {
        for text in ["4", "[]", "null", "true", "\"x\"", "1e300", "-1"] {
            assert!(
                matches!(parse_object(text.as_bytes()), Err(ParseError::NotAnObject)),
                "{text}"
            );
        }
        for text in ["", "{", "{\"a\": 1", "{} {}", "{'a': 1}"] {
            assert!(matches!(parse_object(text.as_bytes()), Err(ParseError::NotJson(_))), "{text}");
        }
    }

    #[test]
    fn documents_with_too_many_values_are_rejected() {
        let many = |n: usize| format!("{{\"tags\": [{}0], \"status\": \"ok\"}}", "0,".repeat(n));
        assert_eq!(parse_object(many(VALUES_MAX - 5).as_bytes()).unwrap()["status"], "ok");
        assert!(matches!(parse_object(many(VALUES_MAX).as_bytes()), Err(ParseError::TooLarge)));
        let bounded: BoundedValue = serde_json::from_str(&many(3 * VALUES_MAX)).unwrap();
        assert_eq!(bounded.value["tags"].as_array().unwrap().len(), VALUES_MAX - 1);
        let torn = many(3 * VALUES_MAX).replace('}', "");
        assert!(matches!(parse_object(torn.as_bytes()), Err(ParseError::NotJson(_))));
    }

    #[test]
    fn ids_keep_their_digits_and_other_types_are_null() {
        for digits in [
            "18446744073709551616",
            "-9223372036854775809",
            "123456789012345678901234567890",
            "7",
            "-1",
        ] {
            for text in [
                format!("{{\"id\": {digits}}}"),
                format!("{{\"config\": {{\"id\": \"{digits}\"}}}}"),
            ] {
                let object = parse_object(text.as_bytes()).unwrap();
                let id = object.get("id").or_else(|| object["config"].get("id"));
                assert_eq!(scalar_text(id).as_deref(), Some(digits), "{text}");
            }
        }
        for other in ["null", "true", "[1]", "{\"id\": 1}"] {
            assert_eq!(
                parse_object(format!("{{\"id\": {other}}}").as_bytes()).unwrap()["id"],
                Value::Null,
                "{other}"
            );
        }
        assert_eq!(
            scalar_text(parse_object(b"{\"id\": 1.5}").unwrap().get("id")).as_deref(),
            Some("1.5")
        );
        assert!(matches!(parse_object(b"{\"id\": \"\\ud800\"}"), Err(ParseError::NotJson(_))));
    }

    #[test]
    fn conflicting_owners_leave_no_owner() {
        let owner = |text: &str| {
            let MetadataObject { object, has_conflicting_owners } =
                parse_metadata(text.as_bytes()).unwrap();
            let inner = object.get("config").and_then(|config| config.get("owner_id"));
            (
                scalar_text(object.get("owner_id")).or_else(|| scalar_text(inner)),
                has_conflicting_owners,
            )
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
    fn parse_any_limits_the_number_of_values() {
        let many = format!("[{}0]", "[0],".repeat(5 * VALUES_MAX));
        let kept = parse_any(&many).unwrap();
        assert!(kept.as_array().unwrap().len() <= VALUES_MAX);
        assert_eq!(
            parse_any(r#"{"x": {"owner_id": [1, {"y": "z"}]}}"#),
            Some(json!({"x": {"owner_id": [1, {"y": "z"}]}}))
        );
        assert_eq!(parse_any("{} {}"), None);
    }

    #[test]
    fn long_texts_are_shortened_and_stay_different() {
        let text =
            |last: char| json!({"task": "é".repeat(TEXT_MAX) + &last.to_string()}).to_string();
        let task = |text: String| {
            parse_object(text.as_bytes()).unwrap()["task"].as_str().unwrap().to_owned()
        };
        let (one, other) = (task(text('a')), task(text('b')));
        assert!(one.len() <= TEXT_MAX && one.starts_with("éé") && one != other);
    }
}
