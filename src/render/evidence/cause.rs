//! One line that says why a worker failed.

use std::cmp::Reverse;

use super::lines::{Piece, once, pieces};
use super::strings::{is_structured, json_text, text_of, unescaped};
use super::weigh::weigh;
use super::{open_call, signs};
use crate::error::Result;
use crate::model::{Output, Record, ToolCall, Trace};
use crate::render::clean::one_line;
use crate::store::{File, read_range};
use crate::view::{Member, View};

/// The beginning of a cause that no error message was found for.
pub(in crate::render) const NO_MESSAGE: &str = "no error message found";
/// The longest line of cause, in bytes.
const CAUSE_MAX: usize = 320;
/// How much of an output is looked at, from its end, in bytes.
const TAIL: usize = 256 << 10;
/// Length of the beginning that tells whether an output is JSON, in bytes.
const PROBE: usize = 64;
/// How many lines of it are quoted, and how much of each, in bytes.
const QUOTED: usize = 3;
const QUOTE_MAX: usize = 160;
/// A line of fewer bytes announces more than it tells.
const SHORT: usize = 20;
/// So many equal signs of punctuation in a row make a line a heading.
const RULER: usize = 5;
/// Number of calls or files that are searched for a last line, or for a message.
const SEARCHED: usize = 4;
/// The folder of the logs of a worker that records no calls.
const LOGS: &[u8] = b"logs";

/// Returns one line that says why a worker failed, and whether the output it comes from could be read.
///
/// The line quotes the strongest lines of the latest failed call, heaviest first, else the worker's own error, else the
/// logs of a worker without calls. A call that did not fail is never a cause: where there is nothing else, the line says
/// that no error message was found, and quotes the last output.
pub(in crate::render) fn cause(view: &View, member: &Member, record: &Record) -> (String, bool) {
    let Record { worker, trace, .. } = record;
    let failed = latest_failed(trace);
    let found = failed.map(|call| search_call(view, member, call)).unwrap_or_default();
    let mut whole = !matches!(found, Found::Unreadable);
    let code = failed.and_then(|call| call.exit_code).map(|code| format!("exit={code}: ")).unwrap_or_default();
    let line = match (found, &worker.error) {
        (Found::Message(lines), _) => lines.join(" | "),
        (_, Some(error)) => error.clone(),
        (Found::Last(line), None) => unexplained(&line),
        (Found::Nothing | Found::Unreadable, None) => {
            let (found, rest_is_whole) = search_rest(view, member, trace);
            whole &= rest_is_whole;
            match found {
                Found::Message(lines) => lines.join(" | "),
                Found::Last(line) => unexplained(&line),
                Found::Nothing | Found::Unreadable => NO_MESSAGE.into(),
            }
        }
    };
    (one_line(&format!("{code}{line}"), CAUSE_MAX), whole)
}

/// Returns the most telling lines of a failed call, else its last line, behind its exit code; `None` if it has none.
pub(super) fn message(view: &View, member: &Member, call: &ToolCall) -> Option<String> {
    let line = match search_call(view, member, call) {
        Found::Message(lines) => lines.join(" | "),
        Found::Last(line) => line,
        Found::Nothing | Found::Unreadable => return None,
    };
    let code = call.exit_code.map(|code| format!("exit={code}: ")).unwrap_or_default();
    Some(format!("{code}{line}"))
}

/// Returns the latest call that was carried out and failed.
fn latest_failed(trace: &Trace) -> Option<&ToolCall> {
    trace.calls.iter().filter(|call| call.is_failure()).max_by_key(|call| (call.seq, call.bytes))
}

/// Returns true if a line of cause says that no error message was found.
pub(in crate::render) fn is_unexplained(cause: &str) -> bool {
    let line = cause.strip_prefix("exit=").and_then(|rest| Some(rest.split_once(": ")?.1)).unwrap_or(cause);
    line.starts_with(NO_MESSAGE)
}

fn unexplained(last: &str) -> String {
    format!("{NO_MESSAGE}; last output: {last}")
}

/// Result of searching an output for a failure.
#[derive(Default)]
enum Found {
    /// Lines that bear a sign of failure, the most telling first.
    Message(Vec<String>),
    /// None such; its last line.
    Last(String),
    #[default]
    Nothing,
    /// The output should be readable and was not.
    Unreadable,
}

/// Form of the text in an output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// The strings of JSON, decoded.
    Decoded,
    /// JSON of which only a part was read, or that is torn.
    Escaped,
}

/// Searches what is left where no call failed: the logs of a worker without calls for a message, then the latest calls or
/// those files for a last line. The second value is false if one of them could not be read.
fn search_rest(view: &View, member: &Member, trace: &Trace) -> (Found, bool) {
    let (mut last, mut whole) = (Found::Nothing, true);
    for file in trace.loose.iter().take(SEARCHED) {
        let is_log = file.path.names().next().is_some_and(|first| first.as_bytes() == LOGS);
        let found = view.open(member, &file.path).map_or(Found::Unreadable, |open| search(&*open, file.bytes));
        whole &= !matches!(found, Found::Unreadable);
        match found {
            Found::Message(lines) if is_log => return (Found::Message(lines), whole),
            Found::Last(line) if matches!(last, Found::Nothing) => last = Found::Last(line),
            _ => {}
        }
    }
    let mut calls: Vec<&ToolCall> = trace.calls.iter().collect();
    calls.sort_by_key(|call| Reverse(call.seq));
    for call in calls.into_iter().take(SEARCHED) {
        match last_line(view, member, call) {
            Ok(Some(line)) => return (Found::Last(line), whole),
            Ok(None) => {}
            Err(_) => whole = false,
        }
    }
    (last, whole)
}

/// Returns the last line of a call's output, or `None` if it has none.
///
/// # Errors
/// The output should be readable and is not.
fn last_line(view: &View, member: &Member, call: &ToolCall) -> Result<Option<String>> {
    let Some(file) = view.open_output(member, call)? else { return Ok(None) };
    let texts = texts(&*file, call.bytes)?;
    Ok(texts.and_then(|texts| texts.last().map(|(text, _)| text.clone())))
}

fn search_call(view: &View, member: &Member, call: &ToolCall) -> Found {
    if matches!(call.output, Output::Pending | Output::Unreadable(_)) {
        return Found::Nothing;
    }
    let Ok(file) = open_call(view, member, call) else { return Found::Unreadable };
    search(&*file, call.bytes)
}

/// Reads the end of an output as lines with their weights, the strings of JSON decoded; `None` if it is binary.
fn texts(file: &dyn File, bytes: u64) -> Result<Option<Vec<(String, f64)>>> {
    let raw = read_range(file, bytes.saturating_sub(TAIL as u64), TAIL)?;
    if memchr::memchr(0, &raw).is_some() {
        return Ok(None);
    }
    let decoded = if bytes <= TAIL as u64 { text_of(&raw) } else { None };
    let form = match decoded {
        Some(_) => Form::Decoded,
        None if is_structured(&read_range(file, 0, PROBE)?) => Form::Escaped,
        None => Form::Plain,
    };
    let raw = decoded.map_or(raw, String::into_bytes);
    let (pieces, _) = pieces(&raw, 0);
    let pieces = once(pieces);
    let weights = weigh(&pieces, raw.len() as u64).weights;
    let says = |text: &String| text.chars().any(char::is_alphanumeric);
    let lines = pieces
        .iter()
        .zip(weights)
        .flat_map(|(piece, weight)| parts(piece, form).filter(says).map(move |text| (text, weight)));
    Ok(Some(lines.collect()))
}

fn search(file: &dyn File, bytes: u64) -> Found {
    let texts = match texts(file, bytes) {
        Ok(Some(texts)) => texts,
        Ok(None) => return Found::Nothing,
        Err(_) => return Found::Unreadable,
    };
    let mut telling: Vec<_> = texts
        .iter()
        .enumerate()
        .filter_map(|(at, (text, weight))| {
            let rank = (Reverse(signs::of_line(text)?), is_heading(text));
            Some((rank, signs::is_wrapper(text), *weight, at, text.as_str()))
        })
        .collect();
    // Of lines of equal weight the latest first.
    telling.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(b.2.total_cmp(&a.2)).then(b.3.cmp(&a.3)));
    let strongest = telling.first().map(|(rank, ..)| *rank);
    telling.retain(|(rank, ..)| Some(*rank) == strongest);
    // The latest of those that say why second: often it sums up.
    let reasons = telling.iter().filter(|(_, is_wrapper, ..)| !is_wrapper).count();
    if let Some(latest) = (1..reasons).max_by_key(|at| telling.get(*at).map(|(.., at, _)| *at)) {
        telling.get_mut(1..=latest).unwrap_or_default().rotate_right(1);
    }
    let mut quotes: Vec<&str> = telling.iter().map(|(.., text)| *text).collect();
    // A short line that gives no reason announces the next one.
    let next = telling
        .first()
        .and_then(|(.., at, text)| texts.get(at + 1).filter(|_| text.len() < SHORT && !text.contains(": ")));
    if let Some((next, _)) = next {
        quotes.insert(1, next);
    }
    let mut quoted: Vec<String> = Vec::new();
    for text in quotes.into_iter().map(|text| one_line(text, QUOTE_MAX)) {
        if quoted.len() < QUOTED && !quoted.contains(&text) {
            quoted.push(text);
        }
    }
    match texts.last() {
        _ if !quoted.is_empty() => Found::Message(quoted),
        Some((last, _)) => Found::Last(last.clone()),
        None => Found::Nothing,
    }
}

/// Returns the lines of a piece. In JSON that is not decoded, line ends are written out and strings stand between quotes.
fn parts<'a>(piece: &'a Piece<'_>, form: Form) -> impl Iterator<Item = String> + 'a {
    let object = (form == Form::Plain).then(|| json_text(piece.text.as_bytes())).flatten();
    let object: Vec<String> = object.iter().flat_map(|text| text.lines()).map(|line| line.trim().to_owned()).collect();
    let is_object = !object.is_empty();
    let [line_end, quote, close_quote] = match form {
        Form::Decoded => ["\n"; 3],
        Form::Plain => ["\\n", "\": \"", "\n"],
        Form::Escaped => ["\\n", "\": \"", "\":\""],
    };
    let text = if is_object { "" } else { &piece.text };
    let lines = text.split(line_end).flat_map(move |line| line.split(quote));
    let parts = lines.flat_map(move |line| line.split(close_quote)).map(str::trim).map(move |part| {
        let is_escaped = part.contains("\\\"") || form == Form::Escaped && part.contains('\\');
        if is_escaped && form != Form::Decoded { unescaped(part) } else { part.to_owned() }
    });
    object.into_iter().chain(parts)
}

/// A line drawn across the screen, with or without a title in it; or a command as a shell echoes it.
fn is_heading(text: &str) -> bool {
    if text.starts_with("$ ") || text.starts_with("+ ") {
        return true;
    }
    let mut run = (None, 0);
    text.chars().any(|c| {
        run = if run.0 == Some(c) && c.is_ascii_punctuation() { (Some(c), run.1 + 1) } else { (Some(c), 1) };
        run.1 >= RULER
    })
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
}
