//! One line that says why a worker failed.

use std::cmp::Reverse;

use super::lines::{Piece, once, pieces};
use super::weigh::weigh;
use super::{decisive, open_call, signs};
use crate::model::{Output, Record, ToolCall};
use crate::render::clean::one_line;
use crate::store::read_range;
use crate::view::{Member, View};

/// The longest line of cause, in bytes.
const CAUSE_MAX: usize = 320;
/// How much of an output is looked at, from its end, in bytes.
const TAIL: usize = 256 << 10;
/// How many lines of it are quoted, and how much of each, in bytes.
const QUOTED: usize = 3;
const QUOTE_MAX: usize = 160;
/// A line of fewer bytes announces more than it tells.
const SHORT: usize = 20;
/// So many equal signs of punctuation in a row make a line a heading.
const RULER: usize = 5;

/// Why a worker failed: the strongest lines of its decisive call, the heaviest first; where none
/// bears a sign of failure, its own error, else the last line of that output. The second value says whether that
/// output could be read.
pub(in crate::render) fn cause(view: &View, member: &Member, record: &Record) -> (String, bool) {
    let Record { worker, trace, .. } = record;
    let call = decisive(trace);
    let found = call.map(|call| lines_of(view, member, call));
    let whole = !matches!(found, Some(Lines::Unreadable));
    let found = found.unwrap_or_default();
    let line = match (found, &worker.error) {
        (Lines::Telling(lines), _) => lines.join(" | "),
        (_, Some(error)) => error.clone(),
        (Lines::Last(line), None) => format!("no line says why; last output: {line}"),
        (Lines::None | Lines::Unreadable, None) => "nothing recorded says why".into(),
    };
    let code = call.and_then(|call| call.exit_code).map(|code| format!("exit={code}: ")).unwrap_or_default();
    (one_line(&format!("{code}{line}"), CAUSE_MAX), whole)
}

#[derive(Default)]
enum Lines {
    /// Lines that bear a sign of failure.
    Telling(Vec<String>),
    /// Only a last line.
    Last(String),
    #[default]
    None,
    /// The output should be readable and was not.
    Unreadable,
}

fn lines_of(view: &View, member: &Member, call: &ToolCall) -> Lines {
    if matches!(call.output, Output::Pending | Output::Unreadable(_)) {
        return Lines::None;
    }
    let Ok(file) = open_call(view, member, call) else { return Lines::Unreadable };
    let Ok(raw) = read_range(&*file, call.bytes.saturating_sub(TAIL as u64), TAIL) else { return Lines::Unreadable };
    if memchr::memchr(0, &raw).is_some() {
        return Lines::None;
    }
    let (pieces, _) = pieces(&raw, 0);
    let pieces = once(pieces);
    let weights = weigh(&pieces, raw.len() as u64).weights;
    let says = |text: &&str| text.chars().any(char::is_alphanumeric);
    let texts: Vec<(&str, f64)> = pieces
        .iter()
        .zip(weights)
        .flat_map(|(piece, weight)| parts(piece).filter(says).map(move |text| (text, weight)))
        .collect();
    let mut telling: Vec<_> = texts
        .iter()
        .enumerate()
        .filter_map(|(at, (text, weight))| {
            signs::of_line(text).map(|sign| (Reverse(sign), is_heading(text), *weight, at, *text))
        })
        .collect();
    // Of lines of equal weight the latest first.
    telling.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(b.2.total_cmp(&a.2)).then(b.3.cmp(&a.3)));
    let strongest = telling.first().map(|(sign, heading, ..)| (*sign, *heading));
    telling.retain(|(sign, heading, ..)| Some((*sign, *heading)) == strongest);
    // The latest of them second: often it sums up.
    if let Some(latest) = (1..telling.len()).max_by_key(|at| telling.get(*at).map(|(.., at, _)| *at)) {
        telling.get_mut(1..=latest).unwrap_or_default().rotate_right(1);
    }
    let mut told: Vec<&str> = telling.iter().map(|(.., text)| *text).collect();
    // A short line that gives no reason announces the next one.
    let next = telling
        .first()
        .and_then(|(.., at, text)| texts.get(at + 1).filter(|_| text.len() < SHORT && !text.contains(": ")));
    if let Some((next, _)) = next {
        told.insert(1, next);
    }
    let mut quoted: Vec<String> = Vec::new();
    for text in told.into_iter().map(|text| one_line(text, QUOTE_MAX)) {
        if quoted.len() < QUOTED && !quoted.contains(&text) {
            quoted.push(text);
        }
    }
    match texts.last() {
        _ if !quoted.is_empty() => Lines::Telling(quoted),
        Some((last, _)) => Lines::Last((*last).to_owned()),
        None => Lines::None,
    }
}

/// Output wrapped in JSON has its own line ends written out, and its parts stand between quotes.
fn parts<'a>(piece: &'a Piece<'_>) -> impl Iterator<Item = &'a str> {
    piece.text.split("\\n").flat_map(|line| line.split("\": \"")).map(str::trim)
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
