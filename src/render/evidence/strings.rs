//! The text inside an output that is JSON or a Python literal: its strings, decoded.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::signs::{self, Sign};
use crate::trace::python_strings;

/// The longest key that is put before its text, in bytes.
const KEY_MAX: usize = 40;

/// Number of keys above a text that are looked at, the innermost first.
const KEYS_MAX: usize = 8;

/// Returns the strings in `raw`, each on lines of its own, if `raw` is nothing but JSON values or a Python dictionary.
///
/// Costs time and memory in proportion to `raw`: values other than strings are skipped, not kept.
pub(super) fn text_of(raw: &[u8]) -> Option<String> {
    let text = json_text(raw).or_else(|| {
        let mut text = String::new();
        let raw = Some(raw.trim_ascii()).filter(|raw| raw.starts_with(b"{"))?;
        python_strings(raw, &mut |keys, value| {
            let key = keys.iter().rev().take(KEYS_MAX).find(|key| tells(key));
            add(&mut text, key.unwrap_or(&""), value);
        })?;
        Some(text)
    });
    text.filter(|text| !text.is_empty())
}

/// Returns true if `raw` begins like JSON or a Python literal.
pub(super) fn is_structured(raw: &[u8]) -> bool {
    matches!(raw.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'))
}

/// Returns a part of a string literal without its escapes and what follows its end, or as it is if it is no such part.
pub(super) fn unescaped(part: &str) -> String {
    let literal = format!("\"{part}\"");
    let decoded = serde_json::Deserializer::from_str(&literal).into_iter::<String>().next().and_then(Result::ok);
    // A quote before the first escape begins a string rather than ends one.
    let is_inside = |text: &String| part.find('\\').is_some_and(|escape| text.len() > escape);
    decoded.filter(is_inside).unwrap_or_else(|| part.to_owned())
}

/// Returns the strings in `raw` if it is nothing but JSON values and begins like an object, a list or a string.
pub(super) fn json_text(raw: &[u8]) -> Option<String> {
    if !is_structured(raw) {
        return None;
    }
    let mut text = String::new();
    let mut values = serde_json::Deserializer::from_slice(raw);
    while values.end().is_err() {
        Strings { text: &mut text, key: "" }.deserialize(&mut values).ok()?;
    }
    Some(text)
}

/// Adds a string. A key that tells of a failure stands before a text that does not.
fn add(text: &mut String, key: &str, value: &str) {
    let value = value.trim_matches(['\n', '\r']);
    if value.trim().is_empty() {
        return;
    }
    let first = value.lines().next().unwrap_or_default();
    if !key.is_empty() && signs::of_line(first) != Some(Sign::Strong) {
        text.push_str(key);
        text.push_str(": ");
    }
    text.push_str(value);
    text.push('\n');
}

/// Returns the key under which a value stands: its own if that tells of a failure, else the one above.
fn telling<'a>(key: &'a str, above: &'a str) -> &'a str {
    if tells(key) { key } else { above }
}

/// Returns true if a key tells of a failure.
fn tells(key: &str) -> bool {
    key.len() <= KEY_MAX && signs::of_line(&format!("{key}:")) == Some(Sign::Strong)
}

/// Adds all strings of a JSON value to `text`.
struct Strings<'a> {
    text: &'a mut String,
    key: &'a str,
}

impl<'de> DeserializeSeed<'de> for Strings<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strings<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        add(self.text, self.key, value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Strings { text: &mut *self.text, key: self.key })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Strings { text: &mut *self.text, key: telling(&key, self.key) })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(raw: &str) -> Option<String> {
        text_of(raw.as_bytes())
    }

    #[test]
    fn strings_of_json_are_decoded() {
        let raw =
            r#"{"ok": true, "data": {"exit_code": 1, "stdout": "", "stderr": "no \"x\"\n\tat y\n"}, "n": [1, "z"]}"#;
        assert_eq!(text(raw).as_deref(), Some("no \"x\"\n\tat y\nz\n"));
        assert_eq!(text("{\"a\": \"x\"}\n{\"a\": \"y\"}\n").as_deref(), Some("x\ny\n"));
    }

    #[test]
    fn strings_of_a_python_dictionary_are_decoded() {
        let raw = r"{'ok': False, 'data': None, 'stderr': 'it\'s gone\nfor good'}";
        assert_eq!(text(raw).as_deref(), Some("it's gone\nfor good\n"));
    }

    #[test]
    fn a_key_that_tells_of_a_failure_stands_before_its_text() {
        assert_eq!(text(r#"{"ok": false, "error": "gone"}"#).as_deref(), Some("error: gone\n"));
        assert_eq!(text(r#"{"error": {"code": 5, "message": "gone"}}"#).as_deref(), Some("error: gone\n"));
        assert_eq!(text(r#"{"error": "KeyError: gone"}"#).as_deref(), Some("KeyError: gone\n"));
        assert_eq!(text("{'ok': False, 'error': 'gone'}").as_deref(), Some("error: gone\n"));
    }

    #[test]
    fn text_that_is_not_json_is_left_alone() {
        let deep = "[".repeat(100_000);
        for raw in ["", "plain", "[INFO] x", "{", "{\"a\": \"x", "{\"a\": 1}", "{\"a\": \"x\"} and more", &deep] {
            assert_eq!(text(raw), None, "{raw:.40}");
        }
    }

    #[test]
    fn a_part_of_a_string_is_shown_without_escapes_if_it_can_be() {
        assert_eq!(unescaped(r#"open \"a\\b\": \u00e9"#), "open \"a\\b\": é");
        assert_eq!(unescaped(r#"no \"x\" here"}, {"a": 1"#), "no \"x\" here");
        for odd in ["plain", r"\x", r"\ud800", "\\", "\"\\n", r#"{"a": "no \"x\""}"#] {
            assert_eq!(unescaped(odd), odd);
        }
    }
}
