//! Which lines of an output matter, by general signs of failure: words, exit markers, severity colours. Nothing here
//! knows a command, a tool or a test runner.

use std::sync::LazyLock;

use regex::bytes::Regex;

/// Signs that something went wrong.
static STRONG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?xi-u)
        \b(?:fatal|panic(?:ked)?|exception|traceback|segfault|segmentation\ fault|core\ dumped|stack\ trace)\b
        | \b(?:error|err|failed|failure|fail|failures)\b\ ?[:!\]\)=]
        | [a-z](?:Error|Exception)\b
        | \b(?:failed|failing|failure|aborted|aborting|crashed|killed)\b
        | \bexit(?:ed)?\ (?:with\ )?(?:code|status)[:\ =]+-?[1-9]
        | \bnon-?zero\b
        | \x1b\[(?:0?1;)?(?:31|91)m
        ",
    )
    .ok()
});

/// Words that often stand near one.
static WEAK: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?xi-u)
        \b(?:errors?|fails?|invalid|unable\ to|cannot|can't|could\ not|couldn't|denied|refused|rejected|undefined
        |unexpected|unresolved|missing|not\ found|no\ such|timed?\ ?out|unreachable|mismatch|assert(?:ion)?|expected
        |abort|critical|severe|warning|✗|✘|×)",
    )
    .ok()
});

/// Phrases in which such words mean the contrary.
static NONE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?xi-u) \b(?:0|no|without)\ (?:\w+\ )?(?:errors?|failures?|failed|fails?|warnings?|exceptions?)\b | \b(?:errors?|failures?|failed|fail)[:=\ ]+0\b").ok()
});

/// How much a line matters; more is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Sign {
    /// A word that often stands near a failure.
    Weak,
    /// A failure.
    Strong,
}

/// Places in `raw` that bear a sign, in order, as offsets into `raw`.
pub(super) fn find(raw: &[u8]) -> Vec<(usize, Sign)> {
    let all = |regex: &LazyLock<Option<Regex>>| {
        let found = regex.as_ref().map(|regex| regex.find_iter(raw).map(|hit| (hit.start(), hit.end())));
        found.map(Iterator::collect::<Vec<_>>).unwrap_or_default()
    };
    let none = all(&NONE);
    let denied = |start: usize| {
        let before = none.partition_point(|(from, _)| *from <= start);
        before.checked_sub(1).and_then(|at| none.get(at)).is_some_and(|(_, end)| start < *end)
    };
    let signs = |hits: Vec<(usize, usize)>, sign| hits.into_iter().map(move |(start, _)| (start, sign));
    let mut found: Vec<(usize, Sign)> =
        signs(all(&STRONG), Sign::Strong).chain(signs(all(&WEAK), Sign::Weak)).collect();
    found.retain(|(start, _)| !denied(*start));
    found.sort_unstable();
    found
}

/// How much the line `text` matters, if at all.
pub(super) fn of_line(text: &str) -> Option<Sign> {
    find(text.as_bytes()).into_iter().map(|(_, sign)| sign).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_strong_and_their_denial_is_nothing() {
        for line in ["fatal: no", "error: x", "ValueError raised", "Build FAILED", "exited with code 2", "\x1b[31mx"] {
            assert_eq!(of_line(line), Some(Sign::Strong), "{line}");
        }
        for line in ["permission denied", "no such file", "warning: x"] {
            assert_eq!(of_line(line), Some(Sign::Weak), "{line}");
        }
        for line in ["0 errors", "no failures", "all fine", "failed: 0", "exit code 0"] {
            assert_eq!(of_line(line), None, "{line}");
        }
    }
}
