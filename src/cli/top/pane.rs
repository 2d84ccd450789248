//! A text on the whole screen: a file of a worker, a comparison, or the answer of a search. It is
//! wrapped, scrolled and searched here, without a terminal.

use ratatui_core::style::Style;
use ratatui_core::text::Span;

use crate::name::{Name, printable};

const TAB: &str = "    ";

/// A file of a worker that a pane shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerPart {
    Summary,
    Evidence,
    Calls,
    Diff,
}

impl WorkerPart {
    pub(super) const ALL: [WorkerPart; 4] =
        [WorkerPart::Summary, WorkerPart::Evidence, WorkerPart::Calls, WorkerPart::Diff];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            WorkerPart::Summary => "summary",
            WorkerPart::Evidence => "evidence",
            WorkerPart::Calls => "calls",
            WorkerPart::Diff => "diff",
        }
    }

    /// Returns the path of the file, or of the directory of the calls, in the worker's directory.
    pub(super) fn path(self) -> &'static str {
        match self {
            WorkerPart::Summary => "summary",
            WorkerPart::Evidence => "evidence.txt",
            WorkerPart::Calls => "tool_calls",
            WorkerPart::Diff => "changes.diff",
        }
    }
}

/// A text to read in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DetailRequest {
    Worker(Name, WorkerPart),
    Compare(Name, Name),
    Search(String),
}

/// A text that was read.
#[derive(Debug, Default)]
pub(super) struct Detail {
    pub(super) bytes: Vec<u8>,
    /// The workers of the answer of a search, best first.
    pub(super) found: Vec<Name>,
}

/// A piece of a line that fits the width.
#[derive(Debug)]
pub(super) struct PaneRow {
    /// Number of the line.
    pub(super) line: usize,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct Pane {
    pub(super) request: DetailRequest,
    pub(super) title: String,
    /// `None` until the text was read.
    lines: Option<Vec<String>>,
    pub(super) found: Vec<Name>,
    rows: Vec<PaneRow>,
    /// Size for which `rows` are: columns, and rows of the screen.
    size: (usize, usize),
    /// The first row on the screen.
    pub(super) top: usize,
    /// The searched text, in lower case; empty without a search.
    pub(super) searched: String,
    /// Line of the current match.
    pub(super) matched: Option<usize>,
}

impl Pane {
    pub(super) fn new(request: DetailRequest, title: String) -> Pane {
        Pane {
            request,
            title,
            lines: None,
            found: Vec::new(),
            rows: Vec::new(),
            size: (0, 0),
            top: 0,
            searched: String::new(),
            matched: None,
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.lines.is_some()
    }

    pub(super) fn is_diff(&self) -> bool {
        matches!(
            self.request,
            DetailRequest::Worker(_, WorkerPart::Diff) | DetailRequest::Compare(..)
        )
    }

    /// Sets the text, and keeps the place in it.
    pub(super) fn set(&mut self, detail: Detail) {
        let text = detail.bytes.split(|byte| *byte == b'\n');
        // A tab has no fixed width; other control characters are shown as escapes.
        let line = |line: &[u8]| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            line.split(|byte| *byte == b'\t').map(printable).collect::<Vec<_>>().join(TAB)
        };
        let mut lines: Vec<String> = text.map(line).collect();
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        self.lines = Some(lines);
        self.found = detail.found;
        self.size.0 = 0;
    }

    /// Wraps the text for a screen.
    pub(super) fn fit(&mut self, width: usize, height: usize) {
        if self.size.0 != width {
            let at = self.rows.get(self.top).map_or(0, |row| row.line);
            let lines = self.lines.iter().flatten().enumerate();
            self.rows = lines
                .flat_map(|(number, line)| {
                    let pieces = wrapped(line, width.max(1)).into_iter();
                    pieces.map(move |text| PaneRow { line: number, text })
                })
                .collect();
            self.top = self.first_row(at);
        }
        self.size = (width, height);
        self.scroll(0);
    }

    /// Returns the rows on the screen.
    pub(super) fn rows(&self) -> impl Iterator<Item = &PaneRow> {
        self.rows.iter().skip(self.top).take(self.size.1)
    }

    fn first_row(&self, line: usize) -> usize {
        self.rows.partition_point(|row| row.line < line)
    }

    pub(super) fn scroll(&mut self, rows: isize) {
        let last = self.rows.len().saturating_sub(self.size.1);
        self.top = self.top.saturating_add_signed(rows).min(last);
    }

    /// Returns the number of rows of a page.
    pub(super) fn page(&self) -> isize {
        isize::try_from(self.size.1).unwrap_or(isize::MAX).saturating_sub(1).max(1)
    }

    pub(super) fn place(&self) -> String {
        let (last, all) = (self.top.saturating_add(self.size.1), self.rows.len());
        match self.lines {
            None => "reading…".into(),
            Some(_) => format!("{}-{} of {all}", (self.top + 1).min(all), last.min(all)),
        }
    }

    /// Moves to the next match, or the previous one; at the end from the beginning. Returns false
    /// if there is none.
    pub(super) fn find(&mut self, is_backwards: bool) -> bool {
        let Some(lines) = self.lines.as_deref() else { return false };
        let start = self.rows.get(self.top).map_or(0, |row| row.line);
        let found = lines.iter().enumerate();
        let found = found.filter(|(_, line)| line.to_lowercase().contains(&self.searched));
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        let next = match (self.matched, is_backwards) {
            (None, _) => found.iter().find(|line| **line >= start).or(found.first()),
            (Some(at), false) => found.iter().find(|line| **line > at).or(found.first()),
            (Some(at), true) => found.iter().rev().find(|line| **line < at).or(found.last()),
        };
        self.matched = next.copied();
        if let Some(line) = self.matched {
            self.top = self.first_row(line);
            self.scroll(0);
        }
        self.matched.is_some()
    }
}

/// Returns the width of a text on a terminal, in columns.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to `max` columns; a cut one ends in `…`.
pub(super) fn clipped(text: &str, max: usize) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let mut pieces = wrapped(text, max.saturating_sub(1)).into_iter();
    if max == 0 { String::new() } else { pieces.next().unwrap_or_default() + "…" }
}

/// Splits a line into pieces of at most `max` columns. A character that is wider is left out.
fn wrapped(line: &str, max: usize) -> Vec<String> {
    // Bytes of ASCII are columns.
    if line.len() <= max {
        return vec![line.to_owned()];
    }
    let (mut pieces, mut piece, mut used) = (Vec::new(), String::new(), 0);
    let span = Span::raw(line);
    for grapheme in span.styled_graphemes(Style::default()) {
        let width = width(grapheme.symbol);
        if width > max {
            continue;
        }
        if used + width > max {
            pieces.push(std::mem::take(&mut piece));
            used = 0;
        }
        piece.push_str(grapheme.symbol);
        used += width;
    }
    pieces.push(piece);
    pieces
}
