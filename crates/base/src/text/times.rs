//! Removes times from a line of text: dates, times of day and durations, which differ between two
//! runs of one failure.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

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
