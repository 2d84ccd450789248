//! Decodes the strings in an output that is JSON or a Python dictionary.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use swarmletfs_base::failure_signs::{self, SignStrength};
use swarmletfs_base::text::json::decode_literal;
use swarmletfs_trace::python_to_json;

/// Maximum length of a key that is put before its text, in bytes.
const KEY_MAX: usize = 40;

/// Returns the strings in `raw`, each on its own lines, if `raw` consists of JSON values or a
/// Python dictionary.
///
/// Time and memory are linear in the size of `raw`; values other than strings are skipped.
pub(super) fn decoded_text(raw: &[u8]) -> Option<String> {
    let text = json_text(raw).or_else(|| json_text(&python_to_json(raw.trim_ascii())?));
    text.filter(|text| !text.is_empty())
}

/// Returns true if `raw` starts like JSON or a Python dictionary.
pub(super) fn is_structured(raw: &[u8]) -> bool {
    matches!(raw.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'))
}

/// Decodes a part of a string literal up to the end of the literal. Returns `part` unchanged if it
/// is not part of a literal.
pub(super) fn unescaped(part: &str) -> String {
    // A quote before the first escape opens a string.
    decode_literal(part)
        .filter(|text| part.find('\\').is_some_and(|escape| text.len() > escape))
        .unwrap_or_else(|| part.to_owned())
}

/// Returns the strings in `raw` if it consists of JSON values and starts like an object, a list or
/// a string.
pub(super) fn json_text(raw: &[u8]) -> Option<String> {
    if !is_structured(raw) {
        return None;
    }
    let mut text = String::new();
    let mut values = serde_json::Deserializer::from_slice(raw);
    while values.end().is_err() {
        StringCollector { text: &mut text, key: "" }.deserialize(&mut values).ok()?;
    }
    Some(text)
}

/// Appends `value` to `text`. `key` is put before a value whose first line has no strong sign of
/// failure.
fn add(text: &mut String, key: &str, value: &str) {
    let value = value.trim_matches(['\n', '\r']);
    if value.trim().is_empty() {
        return;
    }
    let first = value.lines().next().unwrap_or_default();
    if !key.is_empty() && failure_signs::strength_of_line(first) != Some(SignStrength::Strong) {
        text.push_str(key);
        text.push_str(": ");
    }
    text.push_str(value);
    text.push('\n');
}

/// Returns `key` if it names a failure, else the enclosing key `above`.
fn failure_key<'a>(key: &'a str, above: &'a str) -> &'a str {
    if names_failure(key) { key } else { above }
}

fn names_failure(key: &str) -> bool {
    key.len() <= KEY_MAX
        && failure_signs::strength_of_line(&format!("{key}:")) == Some(SignStrength::Strong)
}

struct StringCollector<'a> {
    text: &'a mut String,
    key: &'a str,
}

impl<'de> DeserializeSeed<'de> for StringCollector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringCollector<'_> {
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
        while list
            .next_element_seed(StringCollector { text: &mut *self.text, key: self.key })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(StringCollector {
                text: &mut *self.text,
                key: failure_key(&key, self.key),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(raw: &str) -> Option<String> {
        decoded_text(raw.as_bytes())
    }

    #[test]
    fn strings_of_json_are_decoded() {
        let raw = r#"{"ok": true, "data": {"exit_code": 1, "stdout": "", "stderr": "no \"x\"\n\tat y\n"}, "n": [1, "z"]}"#;
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
        assert_eq!(
            text(r#"{"error": {"code": 5, "message": "gone"}}"#).as_deref(),
            Some("error: gone\n")
        );
        assert_eq!(text(r#"{"error": "KeyError: gone"}"#).as_deref(), Some("KeyError: gone\n"));
        assert_eq!(text("{'ok': False, 'error': 'gone'}").as_deref(), Some("error: gone\n"));
    }

    #[test]
    fn text_that_is_not_json_is_left_alone() {
        let deep = "[".repeat(100_000);
        for raw in [
            "",
            "plain",
            "[INFO] x",
            "{",
            "{\"a\": \"x",
            "{\"a\": 1}",
            "{\"a\": \"x\"} and more",
            &deep,
        ] {
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
