//! The lines of one file that match.

use std::io::{self, Read};
use std::ops::Range;

use grep_matcher::Matcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch};

use super::pattern::Pattern;
use crate::search::is_binary;
use crate::store::{File, read_into};

/// Why a file was not searched to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// There was no time for it.
    Late,
    /// It has a line that is too long.
    LongLine,
    /// It could not be read.
    Unreadable,
    /// It is no text: git's rule, a NUL among its first bytes, unless these say that it is UTF-16.
    Binary,
}

/// How UTF-16 begins.
const UTF16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// What a line is there for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineKind {
    /// It matches, there.
    Match(Range<usize>),
    /// It stands beside one that does.
    Context,
    /// None: what follows does not follow directly.
    Break,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// What it is there for.
    pub kind: LineKind,
    /// Its number, from 1.
    pub number: u64,
    /// Its bytes, without the end of the line.
    pub bytes: &'a [u8],
}

impl Line<'_> {
    /// Whether it matches.
    pub fn is_match(&self) -> bool {
        matches!(self.kind, LineKind::Match(_))
    }
}

/// How the search of a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// How much of it was read, in bytes.
    pub bytes: u64,
    /// Why it was not searched to its end; `None` if it was, or if nobody wanted more of it.
    pub stopped: Option<Stopped>,
}

/// What searches one file after the other.
pub(super) struct Search<'a> {
    pattern: &'a Pattern,
    searcher: Searcher,
    /// The first piece of a file.
    first: Vec<u8>,
}

impl<'a> Search<'a> {
    /// For the lines alone, without their numbers.
    pub(super) fn of_lines(pattern: &'a Pattern) -> Search<'a> {
        Search::new(pattern, 0, false)
    }

    /// For the lines with their numbers, and so many before and behind each.
    pub(super) fn of_places(pattern: &'a Pattern, context: usize) -> Search<'a> {
        Search::new(pattern, context, true)
    }

    fn new(pattern: &'a Pattern, context: usize, numbers: bool) -> Search<'a> {
        let searcher = SearcherBuilder::new()
            .line_number(numbers)
            .before_context(context)
            .after_context(context)
            // What is text is decided by its beginning, before.
            .binary_detection(BinaryDetection::none())
            .heap_limit(Some(pattern.line_max.saturating_mul(2)))
            .build();
        Search { pattern, searcher, first: pattern.room() }
    }

    /// Gives the lines of `file` that match, until `take` says no.
    pub(super) fn each_line(
        &mut self,
        file: &dyn File,
        go_on: &dyn Fn() -> bool,
        take: impl FnMut(Line<'_>) -> bool,
    ) -> End {
        let Search { pattern, searcher, first } = self;
        // Most files are as small as one piece: they are read in one step.
        let read = match read_into(file, 0, first) {
            Ok(read) => read,
            Err(_) => return End { bytes: 0, stopped: Some(Stopped::Unreadable) },
        };
        let piece = first.get(..read).unwrap_or_default();
        let is_utf16 = UTF16.iter().any(|mark| piece.starts_with(mark));
        if !is_utf16 && is_binary(piece) {
            return End { bytes: read as u64, stopped: Some(Stopped::Binary) };
        }
        let taker = Taker { pattern, places: searcher.line_number(), take };
        if read < pattern.piece {
            // Nothing can go wrong with what is in memory.
            let _ = searcher.search_slice(&pattern.matcher, piece, taker);
            return End { bytes: read as u64, stopped: None };
        }
        let mut end = End { bytes: 0, stopped: None };
        let reader = Pieces { first: piece, file, pattern, go_on, end: &mut end, line: 0 };
        let found = searcher.search_reader(&pattern.matcher, reader, taker);
        if found.is_err() && end.stopped.is_none() {
            // What else goes wrong is a line that does not fit into the searcher's memory.
            end.stopped = Some(Stopped::LongLine);
        }
        end
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        self.pattern.give_back(std::mem::take(&mut self.first));
    }
}

/// A file in pieces that are each searched before the next one is read.
struct Pieces<'a> {
    /// What was read already.
    first: &'a [u8],
    file: &'a dyn File,
    pattern: &'a Pattern,
    go_on: &'a dyn Fn() -> bool,
    end: &'a mut End,
    /// How much of a line was read that has no end yet.
    line: usize,
}

impl Pieces<'_> {
    fn stop(&mut self, why: Stopped) -> io::Error {
        self.end.stopped = Some(why);
        io::Error::other("stopped")
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !(self.go_on)() {
            return Err(self.stop(Stopped::Late));
        }
        let most = buffer.len().min(self.pattern.piece);
        let Some(piece) = buffer.get_mut(..most) else { return Ok(0) };
        let read = match self.first.read(piece)? {
            0 => match read_into(self.file, self.end.bytes, piece) {
                Ok(read) => read,
                Err(_) => return Err(self.stop(Stopped::Unreadable)),
            },
            read => read,
        };
        self.end.bytes += read as u64;
        let end = piece.get(..read).and_then(|read| memchr::memrchr(b'\n', read));
        self.line = end.map_or(self.line.saturating_add(read), |end| read - end);
        if self.line > self.pattern.line_max {
            return Err(self.stop(Stopped::LongLine));
        }
        Ok(read)
    }
}

struct Taker<'a, T> {
    pattern: &'a Pattern,
    /// Whether it matters where in its line a match is.
    places: bool,
    take: T,
}

impl<T: FnMut(Line<'_>) -> bool> Sink for Taker<'_, T> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let bytes = without_end(found.bytes());
        let place = if self.places { self.pattern.matcher.find(bytes).ok().flatten() } else { None };
        let place = place.map_or(0..bytes.len(), |place| place.start()..place.end());
        let number = found.line_number().unwrap_or(0);
        Ok((self.take)(Line { kind: LineKind::Match(place), number, bytes }))
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> io::Result<bool> {
        let kind = if *found.kind() == SinkContextKind::Other { LineKind::Break } else { LineKind::Context };
        let number = found.line_number().unwrap_or(0);
        Ok((self.take)(Line { kind, number, bytes: without_end(found.bytes()) }))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        Ok((self.take)(Line { kind: LineKind::Break, number: 0, bytes: &[] }))
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
