//! Finds the matching lines of one file.

use std::io::{self, Read};
use std::ops::Range;

use grep_matcher::Matcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};

use super::pattern::Pattern;
use crate::search::is_binary;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::store::{File, read_beginning, read_into};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Late,
    LongLine,
    Unreadable,
    /// The file is binary: it has a NUL near its start and no byte order mark of UTF-16.
    Binary,
}

const UTF16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// The role of a line in the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineKind {
    /// The line matches in this byte range.
    Match(Range<usize>),
    Context,
    /// A gap between lines that are not consecutive.
    Break,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLine<'a> {
    pub kind: LineKind,
    /// Line number, from 1; 0 for a gap, or if lines are not numbered.
    pub number: u64,
    /// Content without the line terminator.
    pub bytes: &'a [u8],
}

impl FoundLine<'_> {
    pub fn is_match(&self) -> bool {
        matches!(self.kind, LineKind::Match(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchEnd {
    pub bytes: u64,
    /// Reason for an early stop; `None` at the end of the file or if the caller needed no more.
    pub stopped: Option<StopReason>,
}

pub(super) struct FileSearcher<'a> {
    pattern: &'a Pattern,
    searcher: Searcher,
    buffer: Vec<u8>,
}

impl<'a> FileSearcher<'a> {
    /// Creates a searcher that reports matching lines without numbers or positions.
    pub(super) fn without_line_numbers(pattern: &'a Pattern) -> FileSearcher<'a> {
        FileSearcher::new(pattern, 0, false)
    }

    /// Creates a searcher that reports line numbers, positions and lines of context.
    pub(super) fn with_context(pattern: &'a Pattern, context: usize) -> FileSearcher<'a> {
        FileSearcher::new(pattern, context, true)
    }

    fn new(pattern: &'a Pattern, context: usize, numbers: bool) -> FileSearcher<'a> {
        let searcher = SearcherBuilder::new()
            .line_number(numbers)
            .before_context(context)
            .after_context(context)
            .invert_match(pattern.inverted)
            // `each_line` detects binary files itself.
            .binary_detection(BinaryDetection::none())
            .heap_limit(Some(pattern.line_max.saturating_mul(2)))
            .build();
        FileSearcher { pattern, searcher, buffer: pattern.take_buffer() }
    }

    /// Calls `take` with the lines of the result, until it returns false.
    pub(super) fn each_line(
        &mut self,
        file: &dyn File,
        deadline: Deadline<'_>,
        take: impl FnMut(FoundLine<'_>) -> bool,
    ) -> SearchEnd {
        let FileSearcher { pattern, searcher, buffer } = self;
        // Most files fit into one chunk, so one read is enough.
        let read = read_beginning(file, buffer);
        let Some(chunk) = read.ok().and_then(|read| buffer.get(..read)) else {
            return SearchEnd { bytes: 0, stopped: Some(StopReason::Unreadable) };
        };
        let read = chunk.len();
        let is_utf16 = UTF16.iter().any(|mark| chunk.starts_with(mark));
        if !is_utf16 && is_binary(chunk) {
            return SearchEnd { bytes: read as u64, stopped: Some(StopReason::Binary) };
        }
        let sink = LineSink { pattern, with_positions: searcher.line_number(), take };
        if read < pattern.chunk {
            // A search in memory cannot fail.
            let _ = searcher.search_slice(&pattern.matcher, chunk, sink);
            return SearchEnd { bytes: read as u64, stopped: None };
        }
        let mut end = SearchEnd { bytes: 0, stopped: None };
        let reader = ChunkReader { first: chunk, file, pattern, deadline, end: &mut end, line: 0 };
        let found = searcher.search_reader(&pattern.matcher, reader, sink);
        if found.is_err() && end.stopped.is_none() {
            // The only other error is a line that exceeds the searcher's heap limit.
            end.stopped = Some(StopReason::LongLine);
        }
        end
    }
}

impl Drop for FileSearcher<'_> {
    fn drop(&mut self) {
        self.pattern.return_buffer(std::mem::take(&mut self.buffer));
    }
}

/// Reads a file in chunks; the searcher searches each chunk before it requests the next.
struct ChunkReader<'a> {
    /// The rest of the chunk that was already read.
    first: &'a [u8],
    file: &'a dyn File,
    pattern: &'a Pattern,
    deadline: Deadline<'a>,
    end: &'a mut SearchEnd,
    /// Number of bytes read of a line whose end was not read yet.
    line: usize,
}

impl ChunkReader<'_> {
    fn stop(&mut self, why: StopReason) -> io::Error {
        self.end.stopped = Some(why);
        io::Error::other("stopped")
    }
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.deadline.has_time() {
            return Err(self.stop(StopReason::Late));
        }
        let most = buffer.len().min(self.pattern.chunk);
        let Some(chunk) = buffer.get_mut(..most) else { return Ok(0) };
        let read = match self.first.read(chunk)? {
            0 => match read_into(self.file, self.end.bytes, chunk) {
                Ok(read) => read,
                Err(_) => return Err(self.stop(StopReason::Unreadable)),
            },
            read => read,
        };
        self.end.bytes += read as u64;
        let end = chunk.get(..read).and_then(|read| memchr::memrchr(b'\n', read));
        self.line = end.map_or(self.line.saturating_add(read), |end| read - end);
        if self.line > self.pattern.line_max {
            return Err(self.stop(StopReason::LongLine));
        }
        Ok(read)
    }
}

/// Passes lines from the searcher to `take`.
struct LineSink<'a, T> {
    pattern: &'a Pattern,
    with_positions: bool,
    take: T,
}

impl<T: FnMut(FoundLine<'_>) -> bool> Sink for LineSink<'_, T> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let bytes = without_terminator(found.bytes());
        let range = if self.with_positions {
            self.pattern.matcher.find(bytes).ok().flatten()
        } else {
            None
        };
        let range = range.map_or(0..bytes.len(), |range| range.start()..range.end());
        let number = found.line_number().unwrap_or(0);
        Ok((self.take)(FoundLine { kind: LineKind::Match(range), number, bytes }))
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> io::Result<bool> {
        let kind = if *found.kind() == SinkContextKind::Other {
            LineKind::Break
        } else {
            LineKind::Context
        };
        let number = found.line_number().unwrap_or(0);
        Ok((self.take)(FoundLine { kind, number, bytes: without_terminator(found.bytes()) }))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        Ok((self.take)(FoundLine { kind: LineKind::Break, number: 0, bytes: &[] }))
    }
}

fn without_terminator(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
