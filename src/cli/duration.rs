//! Durations and times in options, such as `--timeout`, `--older-than` and `--since`.

use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::text::parse_time;

/// Parses a duration: `30s`, `5m`, `1h 30m`, or whole seconds.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| "too many seconds".into());
    }
    let parsed =
        SignedDuration::from_str(text).ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| {
        "give a time such as 30s, 5m, 1h or 1h30m, or a whole number of seconds".into()
    })
}

/// Parses an age: whole days or weeks as in `3d` and `2w`, or a duration.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    let unit = |suffix: char, seconds: u64| {
        let number: u64 = text.strip_suffix(suffix)?.parse().ok()?;
        number.checked_mul(seconds).map(Duration::from_secs)
    };
    let days = unit('d', 86_400).or_else(|| unit('w', 604_800));
    days.map_or_else(|| parse_duration(text), Ok)
        .map_err(|_| "give a time such as 30d, 2w, 12h or 1h30m, or whole seconds".into())
}

/// Parses a time, a day or time in UTC, or an age.
pub(super) fn parse_since(text: &str) -> Result<Timestamp, String> {
    if let Some(time) = parse_time(text) {
        return Ok(time);
    }
    let age = parse_age(text).map_err(|_| {
        "give a day as 2026-01-20, a time as 2026-01-20T10:00:00Z, or an age such as 3d or 1h30m"
    })?;
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    Timestamp::now().checked_sub(age).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_duration_accepts_units_or_seconds() {
        for (text, seconds) in [
            ("30s", 30),
            ("5m", 300),
            ("1h", 3_600),
            ("1h30m", 5_400),
            ("1h 30m", 5_400),
            ("7", 7),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "soon", "-1", "-5s", "5x", "1.5", "99999999999999999999"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_may_be_in_days_and_weeks() {
        for (text, seconds) in [("30d", 2_592_000), ("2w", 1_209_600), ("12h", 43_200), ("7", 7)] {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "d", "-1d", "1.5d", "99999999999999999d", "soon"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn since_is_a_time_or_a_day_or_an_age() {
        let midnight = "2026-02-15T00:00:00Z".parse::<Timestamp>().unwrap();
        assert_eq!(parse_since("2026-02-15"), Ok(midnight));
        assert_eq!(parse_since("2026-02-15T01:00:00+01:00"), Ok(midnight));
        let since = parse_since("3d").unwrap();
        let age = Timestamp::now().duration_since(since);
        assert_eq!(age.as_hours(), 72);
        for text in ["", "2026-02-30", "yesterday", "99999999w"] {
            assert!(parse_since(text).is_err(), "{text}");
        }
    }
}
