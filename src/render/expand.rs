//! Markers in a text, each followed by its worker's evidence.
//!
//! What is read is given on as it is, byte for byte; evidence is only put in. One budget is over all that is put in. It is
//! dealt by need over all markers, those of workers that failed before others, so the text behind the first marker is
//! held back until the end; of a long text so much at a time, and each time at most half of what is left is dealt: the
//! memory that it takes does not grow with the text, and what comes late is not left without.
//!
//! A marker whose run or job is not its worker's is given on as it is. One whose worker is not in the view is followed by
//! a line that says so, whether that is gone, another's, or never was.

mod messages;
mod weave;

use std::io::{self, Read, Write};

use super::marker::{self, Marker};
use super::{Budget, Renderer, count};
use weave::Weaver;

/// So much is read at once, in bytes.
const PIECE: usize = 256 << 10;

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Any text: every marker counts.
    Text,
    /// A JSON list of messages as OpenAI's interfaces take it; markers count in results of tools.
    OpenAi,
    /// The same as Anthropic's takes it.
    Anthropic,
    /// The same as LangChain writes it.
    LangChain,
}

/// What came of the markers of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expanded {
    /// Markers that are followed by evidence.
    pub expanded: u64,
    /// Those of a worker whose evidence stands further up.
    pub repeated: u64,
    /// Those of no worker in the view, or of one that cannot be read.
    pub unavailable: u64,
    /// Those whose run or job is not their worker's: given on as they are.
    pub disagreeing: u64,
    /// Those for which the budget had no room.
    pub without_room: u64,
    /// In a list of messages, those that are in no result of a tool: given on as they are.
    pub outside: u64,
}

impl Expanded {
    /// What was not expanded, as a part of a sentence; none if all was.
    pub fn left(&self) -> Option<String> {
        let reasons = [
            (self.unavailable, "of no worker that is here and can be read"),
            (self.disagreeing, "of another run or job than is recorded, left as they are"),
            (self.without_room, "without room in the budget"),
            // Most often they belong there: only where nothing else was found they are worth a word.
            (if self.expanded == 0 { self.outside } else { 0 }, "outside of results of tools in that format"),
        ];
        let all: u64 = reasons.iter().map(|(n, _)| n).sum();
        let said = reasons.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}"));
        let said: Vec<String> = said.collect();
        (all > 0).then(|| format!("not expanded: {}: {}", count(all, "marker"), said.join(", ")))
    }
}

/// Why a text was not expanded to its end. All of it was given on.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    /// It cannot be read.
    #[error("the text cannot be read")]
    Read(#[source] io::Error),
    /// What it became cannot be written.
    #[error("the text cannot be written")]
    Write(#[source] io::Error),
    /// It is no JSON, or holds no messages.
    #[error("this is no JSON list of messages: {0}; what follows was given on as it is")]
    Messages(String),
}

impl Renderer {
    /// Copies `input` to `output` with evidence behind every marker, all of it within `budget`; without one, within
    /// 28,000 bytes, and 16,000 of each worker.
    pub fn expand(
        &self,
        form: Form,
        budget: Option<Budget>,
        mut input: impl Read,
        output: impl Write,
    ) -> Result<Expanded, ExpandError> {
        let mut weaver = Weaver::new(self, budget.or(self.settings.budget), form != Form::Text, output);
        let read = match form {
            Form::Text => text(&mut input, &mut weaver),
            _ => messages::all(form, &mut input, &mut weaver),
        };
        // What was read before an error is not lost, nor is what is behind it.
        weaver.settle(true)?;
        if let Err(ExpandError::Messages(_)) = &read {
            weaver.copy(&mut input)?;
        }
        let expanded = weaver.end()?;
        read.map(|()| expanded)
    }
}

fn text<W: Write>(input: &mut impl Read, weaver: &mut Weaver<'_, W>) -> Result<(), ExpandError> {
    let mut held = Vec::with_capacity(2 * PIECE);
    loop {
        let read = input.by_ref().take(PIECE as u64).read_to_end(&mut held).map_err(ExpandError::Read)?;
        let is_end = read < PIECE;
        let done = scan(&held, is_end, weaver)?;
        held.drain(..done);
        if is_end {
            return Ok(());
        }
    }
}

/// Gives on `text` and its markers, unless `is_end` without an end that may be the beginning of one. How much was given.
fn scan<W: Write>(text: &[u8], is_end: bool, weaver: &mut Weaver<'_, W>) -> Result<usize, ExpandError> {
    let mut done = 0;
    for (end, marker) in Marker::all(text) {
        weaver.text(text.get(done..end).unwrap_or_default())?;
        weaver.marker(marker);
        done = end;
    }
    let safe = if is_end { text.len() } else { text.len().saturating_sub(marker::MAX).max(done) };
    weaver.text(text.get(done..safe).unwrap_or_default())?;
    Ok(safe)
}
