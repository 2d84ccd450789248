//! Inserts workers' evidence after the markers in a text.
//!
//! The input is copied byte for byte; evidence is only inserted. One budget covers all inserted
//! text. It is allocated by need, failed workers first, so text after the first marker is held back
//! until the end of the input. A long text is processed in sections, each with at most half of the
//! remaining budget. Memory use is therefore bounded, and later markers still get evidence.
//!
//! A marker whose run or job differs from its worker's record is copied unchanged. A marker whose
//! worker is not in the view is followed by a line that says so, regardless of the reason.

mod expander;
mod messages;

use std::io::{self, Read, Write};

use super::Renderer;
use crate::output::marker::{self, Marker};
use expander::MarkerExpander;
use swarmletfs_base::name::Name;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::count;

const CHUNK: usize = 256 << 10;

/// The format of the input. In a JSON list of messages, only markers in tool results count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    Text,
    OpenAi,
    Anthropic,
    LangChain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpandStats {
    pub expanded: u64,
    /// Markers that refer to evidence further up.
    pub repeated: u64,
    /// Markers whose worker is not in the view or cannot be read.
    pub unavailable: u64,
    /// Markers whose run or job differs from the worker's record; copied unchanged.
    pub disagreeing: u64,
    pub without_room: u64,
    /// Markers in a list of messages but outside of tool results; copied unchanged.
    pub outside: u64,
}

impl ExpandStats {
    /// Returns a clause about the markers that were not expanded, or `None` if all were.
    pub fn not_expanded(&self) -> Option<String> {
        let reasons = [
            (self.unavailable, "whose worker is not here or cannot be read"),
            (self.disagreeing, "whose run or job differs from the record, left unchanged"),
            (self.without_room, "beyond the budget"),
            // Markers outside of tool results are normal. They matter only if nothing was expanded,
            // since the format may then be wrong.
            (
                if self.expanded == 0 { self.outside } else { 0 },
                "outside of tool results in this format",
            ),
        ];
        let all: u64 = reasons.iter().map(|(n, _)| n).sum();
        let clauses: Vec<String> =
            reasons.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
        (all > 0).then(|| format!("not expanded: {}: {}", count(all, "marker"), clauses.join(", ")))
    }
}

/// The reason why a text was not expanded to its end. The output still has all input that was read.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    #[error("cannot read the text")]
    Read(#[source] io::Error),
    #[error("cannot write the text")]
    Write(#[source] io::Error),
    /// The input is not JSON, or has no messages.
    #[error("cannot read the text as a JSON list of messages: {0}; the rest was copied unchanged")]
    Messages(String),
}

impl Renderer {
    /// Copies `input` to `output` and inserts evidence after every marker.
    ///
    /// All evidence together takes at most `budget`. Without a budget the limit is 28,000 bytes,
    /// and 16,000 bytes per worker.
    ///
    /// # Errors
    /// The input cannot be read or parsed in this format, or the output cannot be written.
    pub fn expand(
        &self,
        format: InputFormat,
        budget: Option<Budget>,
        mut input: impl Read,
        output: impl Write,
    ) -> Result<ExpandStats, ExpandError> {
        let in_json = format != InputFormat::Text;
        let mut expander =
            MarkerExpander::new(self, budget.or(self.analyzer.settings.budget), in_json, output);
        let read = match format {
            InputFormat::Text => expand_text(&mut input, &mut expander),
            _ => messages::expand_messages(format, &mut input, &mut expander),
        };
        // After an error, still write the text that was read and copy the rest.
        expander.flush_held(true)?;
        if let Err(ExpandError::Messages(_)) = &read {
            expander.copy(&mut input)?;
        }
        let stats = expander.finish()?;
        read.map(|()| stats)
    }
    /// Writes the markers of `workers`, one per line, each followed by the worker's evidence. The
    /// budget works as in [`Renderer::expand`].
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn expand_workers<'a>(
        &self,
        workers: impl Iterator<Item = &'a Name>,
        budget: Option<Budget>,
        output: impl Write,
    ) -> Result<ExpandStats, ExpandError> {
        let mut expander =
            MarkerExpander::new(self, budget.or(self.settings().budget), false, output);
        for marker in workers.map(Marker::from_name) {
            expander.text(marker.to_string().as_bytes())?;
            expander.marker(marker);
            expander.text(b"\n")?;
        }
        expander.flush_held(true)?;
        expander.finish()
    }
}

fn expand_text<W: Write>(
    input: &mut impl Read,
    expander: &mut MarkerExpander<'_, W>,
) -> Result<(), ExpandError> {
    let mut held = Vec::with_capacity(2 * CHUNK);
    loop {
        let read =
            input.by_ref().take(CHUNK as u64).read_to_end(&mut held).map_err(ExpandError::Read)?;
        let is_end = read < CHUNK;
        let done = scan(&held, is_end, expander)?;
        held.drain(..done);
        if is_end {
            return Ok(());
        }
    }
}

/// Passes `text` and its markers to `expander`. Unless `is_end`, holds back a tail that may be the
/// beginning of a marker. Returns the number of bytes passed.
fn scan<W: Write>(
    text: &[u8],
    is_end: bool,
    expander: &mut MarkerExpander<'_, W>,
) -> Result<usize, ExpandError> {
    let (mut done, mut rest) = (0, text);
    for (end, marker) in Marker::all(text) {
        let (before, after) = rest.split_at_known(end - done);
        expander.text(before)?;
        expander.marker(marker);
        (done, rest) = (end, after);
    }
    let safe = if is_end { rest.len() } else { rest.len().saturating_sub(marker::MAX) };
    expander.text(rest.split_at_known(safe).0)?;
    Ok(done + safe)
}
