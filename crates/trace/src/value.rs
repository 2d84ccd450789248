//! Conversion of untrusted JSON values to text and times.

use jiff::Timestamp;
use serde_json::Value;

use swarmletfs_base::model::TraceTime;
use swarmletfs_base::split::Split;

/// Maximum length of an ID or other short value, in bytes.
const WORD_MAX: usize = 1_500;
/// Maximum length of a time, in bytes. A longer text is not parsed.
const TIME_MAX: usize = 100;
/// Times below are seconds. As milliseconds they would be before 1974.
const SECONDS_MAX: u64 = 100_000_000_000;
const TAGS_MAX: usize = 32;
/// Maximum length of a tag, in bytes.
const TAG_MAX: usize = 200;

/// Returns a non-empty string, or a number as text. Returns `None` for any other value.
pub(super) fn scalar_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Shortens a word of excessive length. Different words stay different.
pub(super) fn shorten_word(word: String) -> String {
    shorten(&word, WORD_MAX)
}

/// Shortens `text` to at most `max` bytes. A longer text is truncated and ends in a hash of the
/// whole. So does a text that looks shortened already, so that different texts stay different.
pub(super) fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max && !looks_shortened(text, max) {
        return text.to_owned();
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    text.split_at_most(max.saturating_sub(hash.len())).0.to_owned() + &hash
}

/// Returns true if `text` could be the result of shortening to `max` bytes.
fn looks_shortened(text: &str, max: usize) -> bool {
    // Truncation happens at a character boundary, and a character has at most four bytes.
    let could_be = text.len() + 3 >= max;
    could_be
        && text
            .as_bytes()
            .last_chunk::<{ 2 * blake3::OUT_LEN }>()
            .is_some_and(|end| end.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
}

/// Returns the strings and numbers of a list as text. Skips all other items.
pub(super) fn text_list(value: Option<&Value>) -> Vec<String> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|item| scalar_text(Some(item)))
        .map(|tag| shorten(&tag, TAG_MAX))
        .take(TAGS_MAX)
        .collect()
}

/// Parses a time in any RFC 3339 form. A time without an offset is UTC, as the first implementation
/// meant it.
pub(super) fn parse_time(text: Option<String>) -> TraceTime {
    let Some(text) = text else { return TraceTime::Absent };
    match parse_timestamp(&text).or_else(|| parse_utc(&text)) {
        Some(time) => TraceTime::At(time),
        None => TraceTime::Unparsed(truncate(text, 64)),
    }
}

/// Parses a time with an offset, in RFC 3339 form.
pub(super) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    if text.len() <= TIME_MAX { text.parse().ok() } else { None }
}

/// Parses a time without an offset as UTC.
pub(super) fn parse_utc(text: &str) -> Option<Timestamp> {
    if text.len() > TIME_MAX {
        return None;
    }
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

/// Returns a time since 1970 in milliseconds. A program that counts seconds states numbers that are
/// too small for milliseconds.
pub(super) fn unix_millis(time: i64) -> i64 {
    if time.unsigned_abs() < SECONDS_MAX { time * 1_000 } else { time }
}

/// Truncates `text` to at most `max` bytes, at a character boundary.
pub(super) fn truncate(mut text: String, max: usize) -> String {
    text.truncate(text.floor_char_boundary(max));
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_seconds_become_milliseconds() {
        for (time, millis) in [
            (1_795_732_000, 1_795_732_000_000),
            (1_795_732_000_123, 1_795_732_000_123),
            (0, 0),
            (-1, -1_000),
            (i64::MAX, i64::MAX),
            (i64::MIN, i64::MIN),
        ] {
            assert_eq!(unix_millis(time), millis);
        }
    }

    #[test]
    fn texts_that_are_shortened_stay_different() {
        let whole =
            ["x".repeat(300), "é".repeat(150), format!("x{}", "é".repeat(150)), "x".repeat(200)];
        let (mut seen, mut texts) = (std::collections::HashMap::new(), whole.to_vec());
        for _ in 0..3 {
            let short: Vec<String> = texts.iter().map(|text| shorten(text, TAG_MAX)).collect();
            for (text, short) in texts.iter().zip(&short) {
                assert!(short.len() <= TAG_MAX);
                let other = seen.insert(short.clone(), text.clone());
                assert!(other.is_none_or(|other| other == *text), "{short} is of two texts");
            }
            // Somebody may write a text that equals a shortened one.
            texts.extend(short);
        }
        assert_eq!(shorten(&"x".repeat(200), TAG_MAX), "x".repeat(200));
    }

    #[test]
    fn all_forms_of_time_are_read() {
        let at = parse_time(Some("2026-01-20T10:00:00Z".into()));
        assert!(matches!(at, TraceTime::At(_)));
        for same in [
            "2026-01-20T10:00:00+00:00",
            "2026-01-20T10:00:00.000000+00:00",
            "2026-01-20T11:00:00+01:00",
            "2026-01-20T10:00:00",
        ] {
            assert_eq!(parse_time(Some(same.into())), at, "{same}");
        }
        assert_eq!(parse_time(Some("yesterday".into())), TraceTime::Unparsed("yesterday".into()));
        assert_eq!(parse_time(None), TraceTime::Absent);
    }

    #[test]
    fn owners_are_numbers_or_strings() {
        assert_eq!(scalar_text(Some(&Value::from(1))), Some("1".into()));
        assert_eq!(scalar_text(Some(&Value::from("1"))), Some("1".into()));
        assert_eq!(scalar_text(Some(&Value::Bool(true))), None);
        assert_eq!(scalar_text(Some(&Value::from(""))), None);
    }
}
