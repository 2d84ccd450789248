//! Text primitives of generated files and messages: budgets, shares of a budget, cleaning, and the
//! format of times and counts. They do not depend on workers.

pub mod budget;
pub mod clean;
pub mod json;
pub mod unified;

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::LazyLock;
use std::time::SystemTime;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{RoundMode, SignedDuration, SpanRound, Timestamp, Unit};
use regex::Regex;

pub use clean::{cleaned, one_line};

use crate::model::TraceTime;
use crate::store::Time;

/// Formats a file's time as UTC in RFC 3339, to the second. Returns `-` if it is out of range.
pub fn utc(time: Time) -> String {
    Timestamp::new(time.secs, 0).map_or_else(|_| "-".into(), |time| time.to_string())
}

/// Formats the time between `time` and `now` for people: `2h ago`, or `just now` within a second.
/// Returns `None` for a later time.
pub fn age(time: Time, now: SystemTime) -> Option<String> {
    let (time, now) = (Timestamp::new(time.secs, 0).ok()?, Timestamp::try_from(now).ok()?);
    let unit = match now.duration_since(time).as_secs() {
        ..0 => return None,
        0 => return Some("just now".into()),
        1..60 => Unit::Second,
        60..3_600 => Unit::Minute,
        3_600..172_800 => Unit::Hour,
        172_800.. => Unit::Day,
    };
    let round = SpanRound::new().largest(unit).smallest(unit).mode(RoundMode::Trunc);
    let span = time.since(now).ok()?.round(round.days_are_24_hours()).ok()?;
    Some(format!("{span:#}"))
}

/// Formats a trace's time as UTC in RFC 3339. A time that cannot be parsed is quoted.
pub fn when(when: &TraceTime) -> Option<String> {
    match when {
        TraceTime::Absent => None,
        TraceTime::At(time) => Some(time.to_string()),
        TraceTime::Unparsed(words) => Some(one_line(words, 64)),
    }
}

/// Formats milliseconds for people: `5m 3s`, `120ms`.
pub fn duration(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let exact = SignedDuration::from_millis(ms);
    let shown = if ms >= 10_000 { SignedDuration::from_secs(exact.as_secs()) } else { exact };
    format!("{shown:#}")
}

/// Parses a time, or a day or local time as UTC.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| Some(local()?.timestamp()))
}

/// Formats a time as UTC to the minute, for a column: `2026-02-03 10:12`.
pub fn minute(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M").to_string()
}

/// Formats a number with two or three digits and a unit: `950`, `1.2k`, `45k`, `3.4M`.
pub fn rounded(n: u64) -> String {
    if n < 1_000 {
        return n.to_string();
    }
    let mut value = n as f64;
    for unit in ["k", "M", "G", "T", "P", "E"] {
        value /= 1_000.0;
        if value < 9.95 {
            return format!("{}{unit}", format!("{value:.1}").trim_end_matches(".0"));
        }
        if value < 999.5 {
            return format!("{value:.0}{unit}");
        }
    }
    n.to_string()
}

/// Cuts a line after `max` characters; a cut line ends in `…`.
pub fn clip_chars(line: &str, max: usize) -> String {
    match line.char_indices().nth(max) {
        None => line.to_owned(),
        Some(_) => line.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Cleans and indents worker text of several lines, and cuts it after `max` characters.
pub fn block(text: &str, max: usize, indent: &str) -> String {
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

/// Formats a number with a regular noun: `1 worker`, `2 workers`, `2 entries`.
pub fn count<N: Display + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    if n == N::from(1) {
        return format!("{n} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{n} {stem}ies"),
        _ => format!("{n} {noun}s"),
    }
}

/// Returns a note on the number of changed paths that are not recorded; `None` for none.
pub fn left_out_as_ignored(paths: u64) -> Option<String> {
    let paths = (paths > 0).then(|| count(paths, "changed path"))?;
    Some(format!("{paths} left out: ignored by .gitignore, or git's own"))
}

/// Matches a time and the character before it.
///
/// The pattern is deliberately narrow: a number counts as a time only by its shape or unit, so
/// ports, line numbers, exit codes and counts stay.
const TIMES: &str = r"(?x-u)
    (?P<before> ^ | (?u:[^\w.:/+-]) )
    (?:
        # 2026-01-20, 2026/01/20 10:00:00, 2026-01-20T10:00:00.123+01:00
        \d{4} (?: -\d{2}-\d{2} | /\d{2}/\d{2} )
            (?: [T\ ] \d{2}:\d{2} (?: :\d{2} (?: [.,]\d{1,9} )? )? (?: Z | \ ?[+-]\d{2}:?\d{2} )? )? \b
        # Tue, 20 Jan 2026 10:00:00 GMT and 20/Jan/2026:10:00:00 +0000
      | (?: (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),\ )? \d{1,2} [\ /]
            (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [\ /] \d{4} [\ :] \d{2}:\d{2}:\d{2}
            (?: \ (?: [+-]\d{4} | GMT | UTC ) )? \b
        # Tue Jan 20 10:00:00 2026 and Jan 20 10:00:00
      | (?: (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\ )?
            (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \ {1,2} \d{1,2} \ \d{2}:\d{2}:\d{2}
            (?: \ (?: UTC\ | GMT\ )? \d{4} )? \b
        # 10:00:00,123
      | \d{1,2}:\d{2}:\d{2} (?: [.,]\d{1,9} )? Z? \b
        # 120ms, 1m3.5s, 300 s, 10 minutes
      | (?: \d{1,9} (?:\.\d{1,9})? (?: h | m | s | ms | us | µs | ns ) ){1,4} \b
      | \d{1,9} (?:\.\d{1,9})? \ (?: ms | s | secs? | seconds? | mins? | minutes? | hours? ) \b
    )";

static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(TIMES).ok());

/// Removes dates, times of day and durations from a line. They differ between two runs of one
/// failure.
pub fn without_times(line: &str) -> Cow<'_, str> {
    match PATTERN.as_ref() {
        Some(pattern) => pattern.replace_all(line, "${before}<time>"),
        None => Cow::Borrowed(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_are_in_the_plural_but_for_one() {
        assert_eq!(count(1, "entry"), "1 entry");
        assert_eq!(count(0, "entry"), "0 entries");
        assert_eq!(count(2_u64, "key"), "2 keys");
        assert_eq!(count(2_u64, "worker"), "2 workers");
    }

    #[test]
    fn times_and_durations_are_formatted_for_people() {
        assert_eq!(utc(Time { secs: 0, nanos: 5 }), "1970-01-01T00:00:00Z");
        assert_eq!(utc(Time { secs: i64::MAX, nanos: 0 }), "-");
        assert_eq!(duration(303_000), "5m 3s");
        assert_eq!(duration(120), "120ms");
    }

    #[test]
    fn ages_have_one_unit() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(2_000_000_500);
        for (seconds, shown) in [
            (-2, None),
            (0, Some("just now")),
            (1, Some("1s ago")),
            (59, Some("59s ago")),
            (60, Some("1m ago")),
            (3_599, Some("59m ago")),
            (7_300, Some("2h ago")),
            (172_799, Some("47h ago")),
            (172_800, Some("2d ago")),
            (1_900_000, Some("21d ago")),
        ] {
            let time = Time { secs: 2_000_000 - seconds, nanos: 0 };
            assert_eq!(age(time, now).as_deref(), shown, "{seconds}");
        }
        assert_eq!(age(Time { secs: i64::MIN, nanos: 0 }, now), None);
    }

    #[test]
    fn numbers_are_rounded_with_a_unit() {
        for (n, text) in [
            (0, "0"),
            (950, "950"),
            (999, "999"),
            (1_000, "1k"),
            (1_240, "1.2k"),
            (9_949, "9.9k"),
            (9_960, "10k"),
            (45_400, "45k"),
            (45_500, "46k"),
            (999_400, "999k"),
            (999_960, "1M"),
            (1_234_567, "1.2M"),
            (154_092_166, "154M"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(rounded(n), text, "{n}");
        }
    }

    #[test]
    fn lines_are_clipped_by_characters() {
        assert_eq!(clip_chars("äöü", 3), "äöü");
        assert_eq!(clip_chars("äöüß", 3), "äö…");
    }

    #[test]
    fn long_blocks_are_cut_by_characters_with_a_note() {
        assert_eq!(block("ä\nb", 10, "  "), "  ä\n  b\n");
        assert_eq!(block("äbc", 2, "> "), "> äb\n> [cut: 4 B in all]\n");
    }

    #[test]
    fn times_are_removed() {
        for time in [
            "2026-01-20",
            "2026-01-20 10:00:00",
            "2026-01-20T10:00:00Z",
            "2026-01-20T10:00:00.123456+01:00",
            "2026-01-20 10:00:00,123",
            "2026/01/20 10:00",
            "Tue, 20 Jan 2026 10:00:00 GMT",
            "20/Jan/2026:10:00:00 +0000",
            "Tue Jan 20 10:00:00 2026",
            "Jan  2 10:00:00",
            "10:00:00",
            "10:00:00.5",
            "120ms",
            "0.45s",
            "1m3s",
            "1h2m3.5s",
            "300 s",
            "10 minutes",
            "2 hours",
        ] {
            assert_eq!(without_times(time), "<time>", "{time}");
            assert_eq!(
                without_times(&format!("it broke ({time}) at last")),
                "it broke (<time>) at last",
                "{time}"
            );
            assert_eq!(
                without_times(&format!("[{time}] x, {time}: y")),
                "[<time>] x, <time>: y",
                "{time}"
            );
        }
    }

    #[test]
    fn other_numbers_stay() {
        for line in [
            "host 17 does not answer",
            "exit=1: port 8080",
            "src/a.rs:10:30: error 2",
            "a.rs:10:20:30",
            "42 failed, 3 passed",
            "FINAL ANSWER: 12,45,67",
            "version 1.2.3-4",
            "pid 300",
            "192.168.10.12",
            "0x1f5s",
            "backup-2026-01-20.tar",
            "5 metres",
            "tests/test_5s.py",
            "error 0.1777",
        ] {
            assert_eq!(without_times(line), line);
        }
    }
}
