//! Reads a transcript into an index. Resumes where the last read ended.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use memchr::memrchr_iter;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::super::json_text::json_text;
use super::super::jsonl::{self, LastLine};
use super::builder::IndexBuilder;
use super::document::{self, DocumentEvent};
use super::format::TranscriptFormat;
use super::index::TranscriptIndex;
use super::location::{Member, Shape, TranscriptLocation};
use super::turn::{RawRecord, Span};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::store::{File, read_range};

/// Maximum number of attempts to read a document that was whole before.
const ATTEMPTS_MAX: usize = 10;
/// Maximum number of bytes, beyond the length of a line, that are parsed to find its whole records.
const PARSED_AGAIN_MAX: usize = 16 << 20;
const ATTEMPT_DELAY: Duration = Duration::from_millis(30);

/// Extends `index` with the new records of `file`, until `deadline` passes. Returns the index, and
/// true if it is complete. Documents are always read whole; `index` may be of any earlier version.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read_on(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    index: TranscriptIndex,
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    match location.shape {
        Shape::Lines => read_lines(file, format, location, index, deadline),
        Shape::Documents(members) => {
            read_documents(file, format, location, members, &index, deadline)
        }
        Shape::DocumentLines(members) => {
            read_document_lines(file, format, location, members, index, deadline)
        }
    }
}

fn read_lines(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    index: TranscriptIndex,
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    if index.too_long {
        return Ok((index, true));
    }
    let index = without_last_line(file, index)?;
    let (start, before) = (index.bytes_read, index.last_line);
    let (mut index, read) = extend(index, format, location, |builder| {
        jsonl::for_each_from(file, start, deadline, |line| {
            let span = Span { offset: line.offset, len: line.bytes.len(), part: 0 };
            add_line(builder, format, span, line.bytes)
        })
    });
    let (lines, end, last) = read?;
    index.bytes_read = end;
    index.last_line = if end == start && last == LastLine::Complete { before } else { last };
    index.bad_lines += lines.bad;
    index.line_count += lines.too_long;
    index.too_long = lines.partial.is_some_and(|partial| !partial.timed_out);
    Ok((index, !lines.partial.is_some_and(|partial| partial.timed_out)))
}

/// Calls `add` with a builder for `index`. Returns the extended index and the result of `add`.
pub(super) fn extend<T>(
    index: TranscriptIndex,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    add: impl FnOnce(&mut IndexBuilder<'_>) -> T,
) -> (TranscriptIndex, T) {
    let accessed_files = |tool: &str, arguments: &Value| format.accessed_files(tool, arguments);
    let mut builder = IndexBuilder::new(index, &accessed_files, location);
    builder.calls_are_stated_once = format.states_calls_once();
    let result = add(&mut builder);
    (builder.index, result)
}

/// Adds the line at `span` to an index. Returns false if it cannot be decoded, or not all of it.
///
/// A program that is killed leaves a torn record or NUL bytes, and the next record follows on the
/// same line. Whole records in such a line are added, once the line is complete.
pub(super) fn add_line(
    builder: &mut IndexBuilder<'_>,
    format: &dyn TranscriptFormat,
    span: Span,
    bytes: &[u8],
) -> bool {
    builder.index.line_count += 1;
    if format.add_record(builder, RawRecord { span, text: &json_text(bytes) }) {
        return true;
    }
    let Some(line) = bytes.strip_suffix(b"\n") else { return false };
    let whole = whole_records(line);
    let mut are_records = true;
    for range in &whole {
        let Some(bytes) = line.get(range.clone()) else { continue };
        let span = Span { offset: span.offset + range.start as u64, len: bytes.len(), ..span };
        are_records &= format.add_record(builder, RawRecord { span, text: &json_text(bytes) });
    }
    builder.index.line_count += (whole.len() as u64).saturating_sub(1);
    let lost = whole.first().and_then(|first| line.get(..first.start));
    are_records && lost.is_some_and(|lost| lost.trim_ascii().is_empty())
}

/// Returns the ranges of the JSON objects that make up a line. If something else is among them,
/// returns only the object at the end: objects before it may be parts of a torn one.
fn whole_records(line: &[u8]) -> Vec<Range<usize>> {
    let line = line.trim_ascii_end();
    let mut found = Vec::new();
    let mut end = line.len();
    // Invalid JSON costs the bytes that are parsed before the error.
    let mut bytes_left = PARSED_AGAIN_MAX + line.len();
    for start in memrchr_iter(b'{', line) {
        let Some(bytes) = line.get(start..end) else { continue };
        let parsed = serde_json::from_slice::<IgnoredAny>(bytes).err().map(|error| error.column());
        if parsed.is_none() {
            found.push(start..end);
            end = line.get(..start).map_or(0, |before| before.trim_ascii_end().len());
        }
        match bytes_left.checked_sub(parsed.unwrap_or(bytes.len())) {
            Some(left) => bytes_left = left,
            None => break,
        }
    }
    let is_all = line.get(..end).is_some_and(|before| before.trim_ascii().is_empty());
    if !is_all {
        found.truncate(1);
    }
    found.reverse();
    found
}

/// Removes the last line from the counts if it will be read again. An unterminated line that was
/// decoded is complete in nearly every case. If more bytes follow it, it was misread, and indexing
/// starts over.
fn without_last_line(file: &dyn File, index: TranscriptIndex) -> Result<TranscriptIndex> {
    let (lines, bad) = match index.last_line {
        LastLine::Complete => return Ok(index),
        LastLine::Unterminated => {
            let next = read_range(file, index.bytes_read, 1)?;
            return Ok(match next.is_empty() {
                true => index,
                false => TranscriptIndex { history: index.history, ..TranscriptIndex::default() },
            });
        }
        LastLine::Torn => (1, 0),
        LastLine::TooLong => (1, 1),
    };
    let (line_count, bad_lines) =
        (index.line_count.saturating_sub(lines), index.bad_lines.saturating_sub(bad));
    Ok(TranscriptIndex { line_count, bad_lines, last_line: LastLine::Complete, ..index })
}

/// Reads documents from their beginning: programs rewrite them whole. `before` is the index of an
/// earlier version.
///
/// Many programs rewrite a document in place, so that it is empty or torn for a moment. If it was
/// whole before, it is read again until it is whole, but not for long.
fn read_documents(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    members: &'static [Member],
    before: &TranscriptIndex,
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    let was_whole = before.documents > 0 && !before.is_torn;
    let mut attempts = if was_whole { ATTEMPTS_MAX } else { 1 };
    loop {
        attempts -= 1;
        let (index, is_complete) = read_documents_once(file, format, location, members, deadline)?;
        if !index.is_torn || attempts == 0 || !deadline.has_time() {
            return Ok((index, is_complete));
        }
        thread::sleep(ATTEMPT_DELAY);
    }
}

fn read_documents_once(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    members: &'static [Member],
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    let range = 0..document::FILE_MAX;
    let (mut index, read) = extend(TranscriptIndex::default(), format, location, |builder| {
        document::for_each(file, range, members, deadline, |event| match event {
            DocumentEvent::Begin => {
                builder.begin_document();
                true
            }
            DocumentEvent::Record(record) => format.add_record(builder, record),
        })
    });
    let stats = read?;
    index.restarts = true;
    index.bytes_read = stats.end;
    index.line_count = stats.records;
    index.bad_lines = stats.bad;
    index.is_torn = stats.is_torn;
    index.too_long = stats.partial.is_some_and(|partial| !partial.timed_out);
    Ok((index, !stats.partial.is_some_and(|partial| partial.timed_out)))
}

/// Reads a document per line. Resumes at the first new line.
fn read_document_lines(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    location: &TranscriptLocation,
    members: &'static [Member],
    index: TranscriptIndex,
    deadline: Deadline<'_>,
) -> Result<(TranscriptIndex, bool)> {
    let (index, is_complete) = extend(index, format, location, |builder| {
        add_document_lines(builder, file, format, members, deadline)
    });
    Ok((index, is_complete?))
}

/// Adds the lines after the indexed ones, each of them a document. Returns true if they were read
/// to the end.
fn add_document_lines(
    builder: &mut IndexBuilder<'_>,
    file: &dyn File,
    format: &dyn TranscriptFormat,
    members: &'static [Member],
    deadline: Deadline<'_>,
) -> Result<bool> {
    loop {
        let start = builder.index.bytes_read;
        if start >= document::FILE_MAX {
            builder.index.too_long = !read_range(file, start, 1)?.is_empty();
            return Ok(true);
        }
        let (line, has_end) = document::line_at(file, start)?;
        if !has_end && line.is_empty() {
            return Ok(true);
        }
        if !deadline.has_time() {
            return Ok(false);
        }
        let end = line.end + u64::from(has_end);
        let (records, documents) = (builder.index.line_count, builder.index.documents);
        let stats = document::for_each(file, line, members, deadline, |event| match event {
            DocumentEvent::Begin => {
                builder.begin_document();
                true
            }
            DocumentEvent::Record(record) => format.add_record(builder, record),
        })?;
        let index = &mut builder.index;
        index.line_count = records + stats.records;
        index.bad_lines += stats.bad;
        index.bytes_read = end;
        if stats.partial.is_some_and(|partial| partial.timed_out) {
            index.restarts = true;
            return Ok(false);
        }
        if builder.index.documents > documents {
            builder.end_document(stats.bad, stats.is_torn.then_some(has_end));
        }
        let index = &mut builder.index;
        if stats.is_torn && has_end {
            // A line that was cut off and never completed.
            index.line_count += 1;
            index.bad_lines += 1;
        } else if stats.is_torn {
            index.is_torn = true;
            index.restarts = true;
            return Ok(true);
        }
    }
}
