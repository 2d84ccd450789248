//! Durations in options, such as `--timeout` and `--max-time`.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;

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
}
