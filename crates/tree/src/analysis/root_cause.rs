//! The cause of a failure as one line, taken from the outputs of a worker.

use std::cmp::Reverse;

use super::line_scores::score_lines;
use super::lines::{LineChunk, merge_repeats, split_chunks};
use super::strings::{decoded_text, is_structured, json_text, unescaped};
use crate::view::WorkerFiles;
use swarmletfs_base::error::Result;
use swarmletfs_base::failure_signs::{self, LineSigns, SignStrength};
use swarmletfs_base::model::{Outcome, Output, Record, ToolCall, Trace};
use swarmletfs_base::store::{File, read_range};
use swarmletfs_base::text::clean::one_line;

pub const NO_MESSAGE: &str = "no error message found";
/// Maximum length of a cause, in bytes.
const CAUSE_MAX: usize = 320;
/// Length of the end of an output that is searched, in bytes.
const TAIL: usize = 256 << 10;
/// Length of the start of an output that is tested for JSON, in bytes.
const PROBE: usize = 64;
const QUOTES_MAX: usize = 3;
/// Maximum length of a quoted line, in bytes.
const QUOTE_MAX: usize = 160;
/// Length below which a line may only announce the next one, in bytes.
const SHORT: usize = 20;
/// Number of equal punctuation characters in a row that mark a line as a heading.
const RULER: usize = 5;
/// Maximum number of calls or files that are searched for a message or a last line.
const SEARCHED_MAX: usize = 4;
/// Directory with the logs of a worker that records no calls.
const LOGS: &[u8] = b"logs";

/// Returns the cause of a worker's failure as one line, and true if the outputs it depends on could
/// be read.
///
/// The line quotes the highest-scoring lines of the latest failed call, else the worker's own
/// error, else the logs of a worker without calls. The reason why the command of a worker failed
/// tells little, so the logs follow it. A call that did not fail is never a cause: without any of
/// these, the line states that no error message was found and quotes the last output.
pub fn cause(files: &WorkerFiles<'_>, record: &Record) -> (String, bool) {
    let Record { worker, trace, .. } = record;
    let failed = latest_failed(trace);
    let mut found = failed.map(|call| search_call(files, call)).unwrap_or_default();
    let mut whole = !matches!(found, FailureSearch::Unreadable);
    let is_silent = matches!(found, FailureSearch::Nothing | FailureSearch::Unreadable);
    // A failed call explains more than the end of the worker's command.
    let ended = trace.command.as_ref().filter(|_| failed.is_none());
    let ended = ended.and_then(|command| command.error.as_deref());
    let own = worker.error.as_deref().filter(|error| ended != Some(error));
    let ended = ended.filter(|_| own.is_none());
    if is_silent && own.is_none() {
        let (rest, rest_is_whole) = search_rest(files, trace);
        (found, whole) = (rest, whole && rest_is_whole);
    }
    let line = match (found, ended) {
        (FailureSearch::Message(lines), None) => lines.join(" | "),
        (FailureSearch::Message(lines), Some(ended)) => format!("{ended}: {}", lines.join(" | ")),
        (FailureSearch::LastLine(line), Some(ended)) => format!("{ended}; last output: {line}"),
        (_, Some(ended)) => ended.to_owned(),
        (found, None) => match (found, own) {
            (_, Some(error)) => error.to_owned(),
            (FailureSearch::LastLine(line), None) => format!("{NO_MESSAGE}; last output: {line}"),
            _ => NO_MESSAGE.into(),
        },
    };
    let code = failed.map(exit_prefix).unwrap_or_default();
    (one_line(&format!("{code}{line}"), CAUSE_MAX), whole)
}

/// Returns the exit code of a failed call with its most relevant lines, else with its last line;
/// `None` if it has no output.
pub fn message(files: &WorkerFiles<'_>, call: &ToolCall) -> Option<String> {
    let line = match search_call(files, call) {
        FailureSearch::Message(lines) => lines.join(" | "),
        FailureSearch::LastLine(line) => line,
        FailureSearch::Nothing | FailureSearch::Unreadable => return None,
    };
    Some(exit_prefix(call) + &line)
}

/// Returns the start of a cause that states the exit code of `call`; empty if it is unknown.
fn exit_prefix(call: &ToolCall) -> String {
    call.exit_code.map(|code| format!("exit={code}: ")).unwrap_or_default()
}

/// Returns the latest failed call that matters: one that nothing made good, else any.
fn latest_failed(trace: &Trace) -> Option<&ToolCall> {
    let unresolved = trace.unresolved();
    let open = unresolved.failed.iter().copied().chain(unresolved.open());
    open.max_by_key(|call| call.seq).or_else(|| latest_failed_of_all(trace))
}

fn latest_failed_of_all(trace: &Trace) -> Option<&ToolCall> {
    trace
        .calls
        .iter()
        .filter(|call| call.outcome == Outcome::Failed)
        .max_by_key(|call| (call.seq, call.bytes))
}

pub fn is_unexplained(cause: &str) -> bool {
    let line = cause
        .strip_prefix("exit=")
        .and_then(|rest| Some(rest.split_once(": ")?.1))
        .unwrap_or(cause);
    line.starts_with(NO_MESSAGE)
}

#[derive(Default)]
enum FailureSearch {
    /// Lines with a sign of failure, most relevant first.
    Message(Vec<String>),
    LastLine(String),
    #[default]
    Nothing,
    /// The output could not be read although it should be readable.
    Unreadable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TextForm {
    Plain,
    Decoded,
    /// JSON that was read in part or is truncated.
    Escaped,
}

/// Searches the outputs of a worker without a failed call: its logs for a message, then its files
/// or latest calls for a last line. The second value is false if one of them could not be read.
fn search_rest(files: &WorkerFiles<'_>, trace: &Trace) -> (FailureSearch, bool) {
    let (mut last, mut whole) = (FailureSearch::Nothing, true);
    for file in trace.loose.iter().take(SEARCHED_MAX) {
        let is_log = file.path.names().next().is_some_and(|first| first.as_bytes() == LOGS);
        let found = files
            .open(&file.path)
            .map_or(FailureSearch::Unreadable, |open| search(&*open, file.bytes));
        whole &= !matches!(found, FailureSearch::Unreadable);
        match found {
            FailureSearch::Message(lines) if is_log => {
                return (FailureSearch::Message(lines), whole);
            }
            FailureSearch::LastLine(line) if matches!(last, FailureSearch::Nothing) => {
                last = FailureSearch::LastLine(line)
            }
            _ => {}
        }
    }
    let mut calls: Vec<&ToolCall> = trace.calls.iter().collect();
    calls.sort_by_key(|call| Reverse(call.seq));
    for call in calls.into_iter().take(SEARCHED_MAX) {
        match last_line(files, call) {
            Ok(Some(line)) => return (FailureSearch::LastLine(line), whole),
            Ok(None) => {}
            Err(_) => whole = false,
        }
    }
    (last, whole)
}

/// Returns the last line of a call's output, or `None` if it has none.
///
/// # Errors
///
/// Returns an error if the output should be readable and is not.
fn last_line(files: &WorkerFiles<'_>, call: &ToolCall) -> Result<Option<String>> {
    let Some(file) = files.open_output(call)? else { return Ok(None) };
    let texts = texts(&*file, call.bytes)?;
    Ok(texts.and_then(|texts| texts.last().map(|(text, _)| text.clone())))
}

fn search_call(files: &WorkerFiles<'_>, call: &ToolCall) -> FailureSearch {
    if matches!(call.output, Output::Pending | Output::Unrecorded | Output::Unreadable(_)) {
        return FailureSearch::Nothing;
    }
    let Ok(file) = open_call(files, call) else { return FailureSearch::Unreadable };
    search(&*file, call.bytes)
}

/// Reads the end of an output of `bytes` bytes as lines with their scores, with JSON strings
/// decoded. Returns `None` if the output is binary.
fn texts(file: &dyn File, bytes: u64) -> Result<Option<Vec<(String, f64)>>> {
    let raw = read_range(file, bytes.saturating_sub(TAIL as u64), TAIL)?;
    if memchr::memchr(0, &raw).is_some() {
        return Ok(None);
    }
    let decoded = if bytes <= TAIL as u64 { decoded_text(&raw) } else { None };
    let form = match decoded {
        Some(_) => TextForm::Decoded,
        None if is_structured(&read_range(file, 0, PROBE)?) => TextForm::Escaped,
        None => TextForm::Plain,
    };
    let raw = decoded.map_or(raw, String::into_bytes);
    let (chunks, _) = split_chunks(&raw, 0);
    let chunks = merge_repeats(chunks);
    let scores = score_lines(&chunks, raw.len() as u64).scores;
    let lines = chunks
        .iter()
        .zip(scores)
        .flat_map(|(chunk, score)| parts(chunk, form).map(move |text| (text, score)));
    Ok(Some(lines.filter(|(text, _)| text.chars().any(char::is_alphanumeric)).collect()))
}

fn search(file: &dyn File, bytes: u64) -> FailureSearch {
    let texts = match texts(file, bytes) {
        Ok(Some(texts)) => texts,
        Ok(None) => return FailureSearch::Nothing,
        Err(_) => return FailureSearch::Unreadable,
    };
    let quotes = quotes(&texts);
    match texts.last() {
        _ if !quotes.is_empty() => FailureSearch::Message(quotes),
        Some((last, _)) => FailureSearch::LastLine(last.clone()),
        None => FailureSearch::Nothing,
    }
}

struct RankedLine<'a> {
    /// Lines with a stronger sign come first, and headings last.
    rank: (Reverse<SignStrength>, bool),
    /// True if the line reports a failure without its reason.
    is_wrapper: bool,
    score: f64,
    at: usize,
    text: &'a str,
}

/// Returns the most relevant of `lines`, which come with their scores, cut to be quoted. Returns
/// nothing if no line has a sign of failure.
fn quotes(lines: &[(String, f64)]) -> Vec<String> {
    let ranked = lines.iter().enumerate().filter_map(|(at, (text, score))| {
        let rank = (Reverse(failure_signs::strength_of_line(text)?), is_heading(text));
        let is_wrapper = failure_signs::is_wrapper(text);
        Some(RankedLine { rank, is_wrapper, score: *score, at, text })
    });
    let mut ranked: Vec<RankedLine<'_>> = ranked.collect();
    // Lines of equal score are sorted latest first.
    ranked.sort_by(|a, b| {
        let by_rank = (a.rank, a.is_wrapper).cmp(&(b.rank, b.is_wrapper));
        by_rank.then(b.score.total_cmp(&a.score)).then(b.at.cmp(&a.at))
    });
    let Some(first) = ranked.first() else { return Vec::new() };
    let (highest, first_at) = (first.rank, first.at);
    // A short line without a reason only announces the next one.
    let is_announcement = first.text.len() < SHORT && !first.text.contains(": ");
    ranked.retain(|line| line.rank == highest);
    // The latest line that gives a reason comes second, since it is often a summary.
    let reasons = ranked.iter().filter(|line| !line.is_wrapper).count();
    let latest = (1..reasons).max_by_key(|at| ranked.get(*at).map(|line| line.at));
    if let Some(second_to_latest) = latest.and_then(|latest| ranked.get_mut(1..=latest)) {
        second_to_latest.rotate_right(1);
    }
    let mut texts: Vec<&str> = ranked.iter().map(|line| line.text).collect();
    if let Some((next, _)) = lines.get(first_at + 1)
        && is_announcement
        && !LineSigns::detect(next).denied
    {
        texts.insert(1, next);
    }
    let mut quotes: Vec<String> = Vec::new();
    for text in texts.into_iter().map(|text| one_line(text, QUOTE_MAX)) {
        if quotes.len() < QUOTES_MAX && !quotes.contains(&text) {
            quotes.push(text);
        }
    }
    quotes
}

/// Returns the lines of a chunk. JSON that is not decoded is split at escaped line ends and at
/// quotes.
fn parts<'a>(chunk: &'a LineChunk<'_>, form: TextForm) -> impl Iterator<Item = String> + 'a {
    let object = (form == TextForm::Plain).then(|| json_text(chunk.text.as_bytes())).flatten();
    let object: Vec<String> =
        object.iter().flat_map(|text| text.lines()).map(|line| line.trim().to_owned()).collect();
    let is_object = !object.is_empty();
    let [line_end, quote, close_quote] = match form {
        TextForm::Decoded => ["\n"; 3],
        TextForm::Plain => ["\\n", "\": \"", "\n"],
        TextForm::Escaped => ["\\n", "\": \"", "\":\""],
    };
    let text = if is_object { "" } else { &chunk.text };
    let lines = text.split(line_end).flat_map(move |line| line.split(quote));
    let parts =
        lines.flat_map(move |line| line.split(close_quote)).map(str::trim).map(move |part| {
            let is_escaped =
                part.contains("\\\"") || form == TextForm::Escaped && part.contains('\\');
            if is_escaped && form != TextForm::Decoded { unescaped(part) } else { part.to_owned() }
        });
    object.into_iter().chain(parts)
}

/// Returns true if `text` is a ruler, with or without a title, or a command echoed by a shell.
fn is_heading(text: &str) -> bool {
    if text.starts_with("$ ") || text.starts_with("+ ") {
        return true;
    }
    let mut run = (None, 0);
    text.chars().any(|c| {
        run = if run.0 == Some(c) && c.is_ascii_punctuation() {
            (Some(c), run.1 + 1)
        } else {
            (Some(c), 1)
        };
        run.1 >= RULER
    })
}

/// Returns the calls in display order: failed, suspect, unknown, ok, not run.
///
/// Failed and successful calls are sorted latest first, since the latest shows the current state of
/// the work. Calls of unknown outcome are the steps of a transcript and stay in chronological
/// order.
pub fn display_order(trace: &Trace) -> Vec<&ToolCall> {
    let mut calls: Vec<&ToolCall> = trace.calls.iter().collect();
    calls.sort_by_cached_key(|call| {
        let (group, seq) = match call.outcome {
            Outcome::Failed => (0, u64::MAX - call.seq),
            Outcome::Ok if call.suspect.is_some() => (1, u64::MAX - call.seq),
            Outcome::Unknown => (2, call.seq),
            Outcome::Ok => (3, u64::MAX - call.seq),
            Outcome::NotRun => (4, u64::MAX - call.seq),
        };
        (group, seq, Reverse(call.bytes), call.path.clone())
    });
    calls
}

/// Returns the call most likely to explain a failure: the latest failed call, else the latest of
/// unknown outcome, else `None`.
pub fn root_cause_call(trace: &Trace) -> Option<&ToolCall> {
    let order = display_order(trace);
    let first = order.first().filter(|call| call.outcome == Outcome::Failed);
    first.or_else(|| order.iter().rfind(|call| call.outcome == Outcome::Unknown)).copied()
}

/// Opens the output of a call.
///
/// # Errors
/// The reason why the output cannot be read, as a part of a sentence.
pub fn open_call(files: &WorkerFiles<'_>, call: &ToolCall) -> Result<Box<dyn File>, String> {
    match files.open_output(call) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err("stored out of band".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_told_from_lines() {
        assert!(is_heading("===== 1 failed ====="));
        assert!(is_heading("-----"));
        assert!(!is_heading("FAILED a::b - x == y"));
        assert!(!is_heading("aaaaaaaa"));
    }

    #[test]
    fn line_that_denies_a_failure_is_not_quoted() {
        let found = |text: &str| {
            let lines: Vec<_> = text.lines().map(|line| (line.to_owned(), 1.0)).collect();
            quotes(&lines)
        };
        assert_eq!(found("1 test failed\ngot 3\n"), ["1 test failed", "got 3"]);
        assert_eq!(found("1 test failed\nError: (none)\n"), ["1 test failed"]);
    }
}
