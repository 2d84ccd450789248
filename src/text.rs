//! Text primitives of generated files and messages: budgets, shares of a budget, cleaning, and the
//! format of times and counts. They know nothing about workers.

pub mod budget;
pub(crate) mod clean;
pub(crate) mod clip;
pub(crate) mod json;
pub(crate) mod shares;
pub(crate) mod times;
mod tokens;
pub(crate) mod unified;

use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};

use crate::model::TraceTime;
use crate::store::Time;

pub(crate) use clean::{cleaned, one_line};

/// Formats a file's time as UTC in RFC 3339, to the second. Returns `-` if it is out of range.
pub fn utc(time: Time) -> String {
    Timestamp::new(time.secs, 0).map_or_else(|_| "-".into(), |time| time.to_string())
}

/// Formats a trace's time as UTC in RFC 3339. A time that cannot be parsed is quoted.
pub(crate) fn when(when: &TraceTime) -> Option<String> {
    match when {
        TraceTime::Absent => None,
        TraceTime::At(time) => Some(time.to_string()),
        TraceTime::Unparsed(words) => Some(one_line(words, 64)),
    }
}

/// Formats milliseconds for people: `5m 3s`, `120ms`.
pub(crate) fn duration(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let exact = SignedDuration::from_millis(ms);
    let shown = if ms >= 10_000 { SignedDuration::from_secs(exact.as_secs()) } else { exact };
    format!("{shown:#}")
}

/// Cleans and indents worker text of several lines, and cuts it after `max` characters.
pub(crate) fn block(text: &str, max: usize, indent: &str) -> String {
    let all: String =
        text.split_inclusive('\n').map(|line| cleaned(line.as_bytes()).text).collect();
    let end = all.char_indices().nth(max).map(|(at, _)| at);
    let shown = end.and_then(|end| all.get(..end)).unwrap_or(&all);
    let mut out = String::new();
    for line in shown.lines() {
        out.push_str(indent);
        out.push_str(&one_line(line, usize::MAX));
        out.push('\n');
    }
    if end.is_some() {
        out.push_str(&format!("{indent}[cut: {} B in all]\n", text.len()));
    }
    out
}

/// Formats a number with a regular noun: `1 worker`, `2 workers`.
pub(crate) fn count<N: Display + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    let one = n == N::from(1);
    format!("{n} {noun}{}", if one { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_are_formatted_for_people() {
        assert_eq!(utc(Time { secs: 0, nanos: 5 }), "1970-01-01T00:00:00Z");
        assert_eq!(utc(Time { secs: i64::MAX, nanos: 0 }), "-");
        assert_eq!(duration(303_000), "5m 3s");
        assert_eq!(duration(120), "120ms");
    }

    #[test]
    fn long_blocks_are_cut_by_characters_with_a_note() {
        assert_eq!(block("ä\nb", 10, "  "), "  ä\n  b\n");
        assert_eq!(block("äbc", 2, "> "), "> äb\n> [cut: 4 B in all]\n");
    }
}
