//! Formats modes, sizes and times for people.

use std::time::SystemTime;

use jiff::Timestamp;

pub(crate) use crate::cli::terminal::human_size;
use crate::store::Time;
use crate::text::age;
use crate::tree::NodeKind;

/// Minimum width of an age in parentheses, in characters.
const AGE_WIDTH: usize = "(just now)".len();

/// Renders kind and permissions in ten characters: `-r--r--r--`.
pub(super) fn mode_string(kind: NodeKind, mode: u32) -> String {
    let first = match kind {
        NodeKind::File => '-',
        NodeKind::Folder => 'd',
        NodeKind::Link => 'l',
    };
    let letters = "rwxrwxrwx".chars().enumerate();
    let bits = letters.map(|(at, letter)| if mode & (0o400 >> at) == 0 { '-' } else { letter });
    std::iter::once(first).chain(bits).collect()
}

pub(crate) fn utc_seconds(time: Time) -> String {
    Timestamp::new(time.secs, 0).map_or_else(|_| unix_seconds(time), |time| time.to_string())
}

/// Renders a time in UTC, in seconds, and its age at `now`.
pub(super) fn utc_with_age(time: Time, now: SystemTime) -> String {
    let age = age(time, now).map(|age| format!("({age})")).unwrap_or_default();
    format!("{} {age:<AGE_WIDTH$}", utc_seconds(time))
}

pub(super) fn utc_nanoseconds(time: Time) -> String {
    timestamp(time).map_or_else(|| unix_seconds(time), |time| format!("{time:.9}"))
}

/// Renders a time in UTC with as many digits as needed.
pub(super) fn utc_shortest(time: Time) -> String {
    timestamp(time).map_or_else(|| unix_seconds(time), |time| time.to_string())
}

/// Converts a time. The nanoseconds of `stat` always count forward; the nanoseconds of `Timestamp`
/// count away from 1970.
fn timestamp(time: Time) -> Option<Timestamp> {
    let nanos = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    Timestamp::from_nanosecond(nanos).ok()
}

/// Renders a time outside the years with four digits: seconds since 1970, as date(1) reads them.
fn unix_seconds(time: Time) -> String {
    format!("@{}.{:09}", time.secs, time.nanos)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mode_string_has_ten_characters() {
        assert_eq!(mode_string(NodeKind::File, 0o444), "-r--r--r--");
        assert_eq!(mode_string(NodeKind::Folder, 0o550), "dr-xr-x---");
        assert_eq!(mode_string(NodeKind::Link, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn sizes_are_rounded_up() {
        let sizes = [
            (0, "0"),
            (1_023, "1023"),
            (1_024, "1.0K"),
            (1_025, "1.1K"),
            (4_096, "4.0K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (10_240, "10K"),
            (67_001, "66K"),
            (1_023 << 10, "1023K"),
            ((1_023 << 10) + 1, "1.0M"),
            (1 << 20, "1.0M"),
            (u64::MAX, "16E"),
        ];
        for (bytes, shown) in sizes {
            assert_eq!(human_size(bytes), shown, "{bytes}");
        }
    }

    #[test]
    fn ages_follow_the_time() {
        let time = Time { secs: 1_768_903_200, nanos: 0 };
        let at = |later: u64| utc_with_age(time, time.to_system() + Duration::from_secs(later));
        assert_eq!(at(0), "2026-01-20T10:00:00Z (just now)");
        assert_eq!(at(7_300), "2026-01-20T10:00:00Z (2h ago)  ");
    }

    #[test]
    fn times_outside_four_digit_years_are_unix_seconds() {
        let time = |secs, nanos| Time { secs, nanos };
        for (time, second, nanosecond, short) in [
            (
                time(1_768_903_200, 0),
                "2026-01-20T10:00:00Z",
                "2026-01-20T10:00:00.000000000Z",
                "2026-01-20T10:00:00Z",
            ),
            (
                time(-1, 999_999_999),
                "1969-12-31T23:59:59Z",
                "1969-12-31T23:59:59.999999999Z",
                "1969-12-31T23:59:59.999999999Z",
            ),
            (
                time(1, 500_000_000),
                "1970-01-01T00:00:01Z",
                "1970-01-01T00:00:01.500000000Z",
                "1970-01-01T00:00:01.5Z",
            ),
            (
                time(1 << 50, 7),
                "@1125899906842624.000000007",
                "@1125899906842624.000000007",
                "@1125899906842624.000000007",
            ),
        ] {
            assert_eq!(
                (utc_seconds(time), utc_nanoseconds(time), utc_shortest(time)),
                (second.into(), nanosecond.into(), short.into())
            );
        }
    }
}
