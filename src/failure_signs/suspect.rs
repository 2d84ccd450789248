//! Finds the line that shows a failure in the output of a command whose exit code says success.

use std::sync::LazyLock;

use regex::Regex;

use crate::text::clean::cleaned;

/// Number of bytes at the end of an output in which a failure is searched.
const TAIL_BYTES: usize = 16 << 10;
/// Maximum length of the returned line, in bytes.
const LINE_MAX: usize = 300;

/// Matches the summary of a run that counts failures, and the verdict of a step.
const VERDICT: &str = r"(?x)
    \b[1-9]\d*\ (?:\w+\ ){0,2}(?:failed|failures?|errors?)\b
    | \b(?i:failed|failures|errors)[:=]\ *[1-9]
    | ^\W*(?:FAIL|FAILED|FAILURE)\b
    | ^\W*(?i:error)(?:\[\w+\])?:
    | ^(?i:fatal):
    | ^Traceback\ 
    | \b(?i:exit(?:ed)?(?:\ with)?\ (?:code|status))[:\ =]+[1-9]
    ";

static VERDICTS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(VERDICT).ok());

/// Returns the last line of `output` that says that something failed, or `None` without one.
pub(crate) fn suspect_line(output: &str) -> Option<String> {
    let (_, tail) =
        output.split_at(output.ceil_char_boundary(output.len().saturating_sub(TAIL_BYTES)));
    let cleaned = cleaned(tail.as_bytes());
    let verdict = VERDICTS.as_ref()?;
    let line = cleaned.text.lines().rev().find(|line| verdict.is_match(line))?.trim();
    Some(line.split_at(line.floor_char_boundary(LINE_MAX)).0.to_owned())
}
