//! The outcome of a call as the text of its output states it.
//!
//! The program writes it into lines before the output of a command, or around the output as JSON.
//! Lines of the output itself count for nothing.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem;
use regex::Regex;
use serde::Deserialize;

use super::super::lenient::{MaybeI64, MaybeNumber, MaybeObject, MaybeStr, object};
use super::super::transcript::Verdict;
use swarmletfs_base::model::Outcome;

const HEADER_LINES_MAX: usize = 8;
/// Maximum length of a line before an output, in bytes. A longer line, such as a command, ends the
/// header.
const HEADER_LINE_MAX: usize = 64 << 10;
/// Beginnings of lines in a header that name work that goes on.
const RUNNING: [&str; 2] = ["Process running with session ID ", "Script running with cell ID "];
/// The line that ends the header of an output.
const OUTPUT: &str = "Output:";
/// Beginnings of outputs of calls that were not carried out.
const NOT_DONE_PREFIXES: [&str; 8] = [
    "apply_patch verification failed",
    "patch rejected",
    "aborted by user",
    "unsupported call",
    "unsupported custom tool call",
    "failed to parse function arguments",
    "unable to locate image",
    "exec_command failed",
];
/// The beginning of an output that states that it was truncated.
const TRUNCATION_PREFIX: &str = "Warning: truncated output (original token count:";
/// Notes inside an output that a part of it was omitted.
const TRUNCATION_NOTES: [&str; 3] =
    [" tokens truncated\u{2026}", " chars truncated\u{2026}", "[... omitted "];
/// Number of bytes that the program counts as a token.
const TOKEN_BYTES: usize = 4;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JsonOutput<'a> {
    #[serde(borrow)]
    output: MaybeStr<'a>,
    metadata: MaybeObject<JsonMetadata>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JsonMetadata {
    exit_code: MaybeI64,
    duration_seconds: MaybeNumber,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct ReadOutput<'a> {
    /// The text, without JSON around it.
    pub(super) text: Cow<'a, str>,
    pub(super) verdict: Verdict,
    pub(super) truncated: bool,
    /// A line that states that the call was not carried out.
    pub(super) hint: Option<String>,
}

/// Reads the output of a call. `of_script` is true if the call ran a script, which has a header of
/// its own.
pub(super) fn read_output(text: Cow<'_, str>, of_script: bool) -> ReadOutput<'_> {
    if let Some((text, verdict)) = json_output(&text) {
        let truncated = is_truncated(&text);
        return ReadOutput { text: text.into(), verdict, truncated, hint: None };
    }
    if of_script && let Some(outcome) = script_outcome(&text) {
        let truncated = is_truncated(&text);
        let verdict = Verdict::from_outcome(outcome);
        let hint = failed_operation(&text).filter(|_| outcome == Outcome::Ok);
        return ReadOutput { text, verdict, truncated, hint };
    }
    let header = Header::read(&text);
    let verdict = Verdict { duration_ms: header.duration_ms, ..header.verdict() };
    let body = header.body;
    let has_fewer_tokens =
        header.tokens.is_some_and(|tokens| tokens > body.len().div_ceil(TOKEN_BYTES) + 1);
    let truncated = has_fewer_tokens || body.starts_with(TRUNCATION_PREFIX) || is_truncated(&text);
    let is_not_done = NOT_DONE_PREFIXES.iter().any(|prefix| body.starts_with(prefix));
    let is_unknown = verdict.outcome == Outcome::Unknown && is_not_done;
    let hint = body.lines().next().filter(|_| is_unknown).map(str::to_owned);
    ReadOutput { verdict, truncated, hint, text }
}

fn json_output(text: &str) -> Option<(String, Verdict)> {
    if !text.starts_with('{') {
        return None;
    }
    let whole = object::<JsonOutput<'_>>(text)?;
    let (output, metadata) = (whole.output.0?, whole.metadata.0?);
    let duration_ms = metadata.duration_seconds.0.and_then(|seconds| millis(seconds.as_f64()?));
    let verdict = match metadata.exit_code.0 {
        Some(exit_code) => Verdict { duration_ms, ..Verdict::from_exit_code(exit_code) },
        None => Verdict { duration_ms, ..Verdict::default() },
    };
    Some((output.into_owned(), verdict))
}

/// Returns the ID of the work that goes on after an output, if there is any.
pub(super) fn started_work(text: &str) -> Option<&str> {
    Header::read(text).running.map(str::trim).filter(|id| !id.is_empty())
}

/// Returns the outcome of a script: of the script itself, not of the commands in it.
fn script_outcome(text: &str) -> Option<Outcome> {
    match text.lines().next()? {
        "Script completed" => Some(Outcome::Ok),
        "Script failed" => Some(Outcome::Failed),
        _ => None,
    }
}

/// Returns the first nonzero exit code that a script printed, with its JSON key.
fn failed_operation(text: &str) -> Option<String> {
    static EXIT_CODE: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#""exit_code"\s*:\s*-?[1-9][0-9]*"#).ok());
    Some(EXIT_CODE.as_ref()?.find(text)?.as_str().to_owned())
}

pub(super) fn is_truncated(text: &str) -> bool {
    TRUNCATION_NOTES.iter().any(|note| memmem::find(text.as_bytes(), note.as_bytes()).is_some())
}

/// Converts seconds to milliseconds. Returns `None` for an implausible value.
fn millis(seconds: f64) -> Option<u64> {
    let is_plausible = seconds.is_finite() && (0.0..1e12).contains(&seconds);
    is_plausible.then_some((seconds * 1_000.0).round() as u64)
}

#[derive(Debug, Default)]
struct Header<'a> {
    exit_code: Option<i64>,
    duration_ms: Option<u64>,
    /// The ID of the work that goes on.
    running: Option<&'a str>,
    /// Number of tokens of the whole output.
    tokens: Option<usize>,
    body: &'a str,
}

impl<'a> Header<'a> {
    fn read(text: &'a str) -> Header<'a> {
        let mut header = Header { body: text, ..Header::default() };
        for _ in 0..HEADER_LINES_MAX {
            let Some((line, rest)) = header.body.split_once('\n') else {
                if header.body == OUTPUT {
                    header.body = "";
                }
                break;
            };
            if line == OUTPUT {
                header.body = rest;
                break;
            }
            if line.len() > HEADER_LINE_MAX || !header.add(line) {
                break;
            }
            header.body = rest;
        }
        header
    }

    /// Reads a line. Returns false if it does not belong to the header.
    fn add(&mut self, line: &'a str) -> bool {
        let seconds = |text: &str| text.strip_suffix(" seconds")?.parse().ok().and_then(millis);
        if let Some(code) = line.strip_prefix("Exit code: ") {
            self.exit_code = code.parse().ok();
        } else if let Some(code) = line.strip_prefix("Process exited with code ") {
            self.exit_code = code.parse().ok();
        } else if let Some(time) = line.strip_prefix("Wall time: ") {
            self.duration_ms = seconds(time);
        } else if let Some(tokens) = line.strip_prefix("Original token count: ") {
            self.tokens = tokens.parse().ok();
        } else if let Some(id) = RUNNING.iter().find_map(|prefix| line.strip_prefix(prefix)) {
            self.running = Some(id);
        } else {
            let others = ["Command: ", "Chunk ID: ", "Total output lines: "];
            return others.iter().any(|prefix| line.starts_with(prefix));
        }
        true
    }

    /// Returns the outcome. A process that is still running has none.
    fn verdict(&self) -> Verdict {
        match self.exit_code.filter(|_| self.running.is_none()) {
            Some(exit_code) => Verdict::from_exit_code(exit_code),
            None => Verdict::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_code(text: &str) -> Option<i64> {
        read_output(text.into(), false).verdict.exit_code
    }

    #[test]
    fn only_the_lines_before_an_output_state_its_outcome() {
        for (text, expected) in [
            ("Exit code: 3\nWall time: 1.5 seconds\nOutput:\nx", Some(3)),
            ("Exit code: 0\nWall time: 0 seconds\nTotal output lines: 9\nOutput:\nx", Some(0)),
            ("Wall time: 0 seconds\nProcess exited with code -1\nOutput:\n", Some(-1)),
            (
                "Command: ls\nChunk ID: a\nWall time: 0 seconds\nProcess exited with code 2\nOutput:\n",
                Some(2),
            ),
            ("Exit code: 0\nSuccess.", Some(0)),
            ("Wall time: 0 seconds\nOutput:\nExit code: 7\n", None),
            ("x\nExit code: 7\nOutput:\n", None),
            ("Wall time: 0 seconds\nProcess running with session ID 7\nOutput:\n", None),
            ("Exit code: many\nOutput:\n", None),
            ("{\"output\":\"x\",\"metadata\":{\"exit_code\":4,\"duration_seconds\":0.1}}", Some(4)),
            ("{\"output\":\"x\"}", None),
            ("", None),
        ] {
            assert_eq!(exit_code(text), expected, "{text}");
        }
    }

    #[test]
    fn a_script_s_first_line_is_its_outcome() {
        let outcome = |text: &str, of_script| read_output(text.into(), of_script).verdict.outcome;
        assert_eq!(outcome("Script completed\nWall time 1 seconds\nOutput:\n", true), Outcome::Ok);
        assert_eq!(outcome("Script failed\nOutput:\n", true), Outcome::Failed);
        assert_eq!(outcome("Script running with cell ID 5\n", true), Outcome::Unknown);
        assert_eq!(outcome("Script failed\nOutput:\n", false), Outcome::Unknown);
    }

    #[test]
    fn only_the_lines_before_an_output_name_work_that_goes_on() {
        let running = "Process running with session ID 7\nOutput:\n";
        assert_eq!(started_work(&format!("Wall time: 0 seconds\n{running}")), Some("7"));
        assert_eq!(started_work("Script running with cell ID 5\n"), Some("5"));
        for text in ["x\n", "Output:\n"].map(|before| format!("{before}{running}")) {
            assert_eq!(started_work(&text), None, "{text}");
        }
    }

    #[test]
    fn what_was_not_carried_out_is_a_hint() {
        let read = read_output("Wall time: 0.3 seconds\naborted by user".into(), false);
        assert_eq!(
            (read.verdict.outcome, read.hint.as_deref()),
            (Outcome::Unknown, Some("aborted by user"))
        );
        assert_eq!(read.verdict.duration_ms, Some(300));
        assert_eq!(read_output("Exit code: 0\nOutput:\naborted by user".into(), false).hint, None);
    }

    #[test]
    fn an_output_that_states_more_tokens_than_it_has_is_truncated() {
        let truncated = |text: &str| read_output(text.into(), false).truncated;
        assert!(truncated("Wall time: 0 seconds\nOriginal token count: 90\nOutput:\nshort"));
        assert!(!truncated("Wall time: 0 seconds\nOriginal token count: 2\nOutput:\nshort"));
        assert!(truncated("a\u{2026}12 tokens truncated\u{2026}b"));
        assert!(truncated(
            "Exit code: 0\nOutput:\nWarning: truncated output (original token count: 5)\nx"
        ));
    }
}
