//! Open files generated from a transcript: fixed texts, and lines that grow with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::index::{Conversation, LineEntry, LineFile, TranscriptIndex};
use super::layout::TranscriptLocation;
use super::parser::{call_numbers, read_on, shorten_id};
use super::schema::{Span, TranscriptLine, Turn, decode};
use super::thread;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{File, Meta, copy_from, read_range};

/// Parses the line at `span` and calls `on_turn` with its message.
pub(super) fn with_turn_at<T>(
    file: &dyn File,
    span: Span,
    on_turn: impl FnOnce(&Turn<'_>) -> T,
) -> Result<T> {
    // The line held a message when it was indexed, so the file was overwritten.
    with_line_at(file, span, |line| line.turn().map(|turn| on_turn(&turn)))?.ok_or(Error::Stale)
}

/// Parses the line at `span` and calls `on_line` with it.
pub(super) fn with_line_at<T>(
    file: &dyn File,
    span: Span,
    on_line: impl FnOnce(&TranscriptLine<'_>) -> T,
) -> Result<T> {
    let bytes = read_range(file, span.offset, span.len)?;
    let mut result = None;
    decode(&bytes, |line| result = Some(on_line(&line)));
    result.ok_or(Error::Stale)
}

/// A generated file with fixed contents.
pub(super) struct StaticFile {
    meta: Meta,
    bytes: Vec<u8>,
}

impl StaticFile {
    pub(super) fn new(meta: Meta, bytes: Vec<u8>) -> StaticFile {
        StaticFile { meta, bytes }
    }
}

impl File for StaticFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(copy_from(&self.bytes, offset, buffer))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

/// A file that is generated line by line and grows with its transcript.
pub(super) struct GrowingFile {
    file: Box<dyn File>,
    location: TranscriptLocation,
    kind: LineFile,
    meta: Meta,
    index: Mutex<Arc<FileIndex>>,
    /// The line generated last, because a long one is read in several calls.
    line: Mutex<Option<RenderedLine>>,
}

/// A generated line, valid for one version of the transcript.
#[derive(Clone)]
struct RenderedLine {
    span: Span,
    transcript: Meta,
    bytes: Arc<[u8]>,
}

/// An index with the numbers of the conversation's calls, by ID. Only a thread needs the numbers.
struct FileIndex {
    index: Arc<TranscriptIndex>,
    call_numbers: HashMap<String, usize>,
}

impl FileIndex {
    fn new(index: Arc<TranscriptIndex>, agent: Option<&Name>, kind: LineFile) -> FileIndex {
        let conversation = index.conversation(agent).filter(|_| kind == LineFile::Thread);
        let call_numbers = conversation.map(call_numbers).unwrap_or_default();
        FileIndex { index, call_numbers }
    }
}

impl GrowingFile {
    /// Creates the file `kind` from the transcript `file`, with its index and with the metadata
    /// `meta`.
    pub(super) fn new(
        file: Box<dyn File>,
        location: TranscriptLocation,
        kind: LineFile,
        meta: Meta,
        index: Arc<TranscriptIndex>,
    ) -> GrowingFile {
        let index = Arc::new(FileIndex::new(index, location.agent.as_ref(), kind));
        GrowingFile { file, location, kind, meta, index: Mutex::new(index), line: Mutex::new(None) }
    }

    /// Returns the current index, extended if the transcript has grown, and the transcript's
    /// metadata.
    fn current_index(&self) -> Result<(Arc<FileIndex>, Meta)> {
        let transcript = self.file.meta()?;
        let held = self.index.lock().clone();
        if transcript.size <= held.index.bytes_read || held.index.too_long {
            return Ok((held, transcript));
        }
        // Side chains depend on lines before them, so the file is read from its start.
        let before = if held.index.has_side_chains {
            TranscriptIndex::default()
        } else {
            (*held.index).clone()
        };
        let (index, _) = read_on(&*self.file, self.location.kind, before, Deadline::never())?;
        let current =
            Arc::new(FileIndex::new(Arc::new(index), self.location.agent.as_ref(), self.kind));
        *self.index.lock() = current.clone();
        Ok((current, transcript))
    }

    /// Returns a generated line. Generates it again if the transcript has changed in any way.
    fn rendered_line(
        &self,
        current: &FileIndex,
        conversation: &Conversation,
        entry: &LineEntry,
        transcript: &Meta,
    ) -> Result<Arc<[u8]>> {
        let held = self.line.lock().clone();
        if let Some(held) =
            held.filter(|held| held.span == entry.span && held.transcript == *transcript)
        {
            return Ok(held.bytes);
        }
        let bytes: Arc<[u8]> = self.render_line(current, conversation, entry)?.into();
        *self.line.lock() =
            Some(RenderedLine { span: entry.span, transcript: *transcript, bytes: bytes.clone() });
        Ok(bytes)
    }

    /// Generates a line.
    fn render_line(
        &self,
        current: &FileIndex,
        conversation: &Conversation,
        entry: &LineEntry,
    ) -> Result<Vec<u8>> {
        if self.kind == LineFile::Source {
            return read_range(&*self.file, entry.span.offset, entry.span.len);
        }
        with_turn_at(&*self.file, entry.span, |turn| {
            let mut out = Vec::new();
            // Writing into memory cannot fail.
            let _ = thread::write_turn(&mut out, turn, &|id| {
                let at = *current.call_numbers.get(&shorten_id(id))?;
                let call = conversation.calls.get(at)?;
                (call.line_offset <= entry.span.offset).then_some((at, call))
            });
            out
        })
    }
}

impl File for GrowingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (current, transcript) = self.current_index()?;
        let conversation =
            current.index.conversation(self.location.agent.as_ref()).ok_or(Error::Stale)?;
        let first = conversation.lines.partition_point(|entry| entry.end(self.kind) <= offset);
        let mut begin = first
            .checked_sub(1)
            .and_then(|at| conversation.lines.get(at))
            .map_or(0, |entry| entry.end(self.kind));
        let mut filled = 0;
        for entry in conversation.lines.iter().skip(first) {
            let end = entry.end(self.kind);
            if end > begin {
                let bytes = self.rendered_line(&current, conversation, entry, &transcript)?;
                if bytes.len() as u64 != end - begin {
                    return Err(Error::Stale);
                }
                let skip = offset.saturating_sub(begin);
                if skip > bytes.len() as u64 {
                    return Err(Error::Stale);
                }
                filled += copy_from(&bytes, skip, buffer.split_at_mut(filled).1);
            }
            begin = end;
            if filled == buffer.len() {
                break;
            }
        }
        Ok(filled)
    }

    fn meta(&self) -> Result<Meta> {
        let (current, transcript) = self.current_index()?;
        let conversation =
            current.index.conversation(self.location.agent.as_ref()).ok_or(Error::Stale)?;
        let size = conversation.file_bytes(self.kind);
        Ok(Meta { size, mtime: transcript.mtime, ctime: transcript.ctime, ..self.meta })
    }
}
