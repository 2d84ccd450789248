//! Open files generated from a transcript: fixed texts, and lines that grow with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::index::{Conversation, LineEntry, Span, TranscriptIndex};
use super::layout::TranscriptLocation;
use super::parser::{read_on, shorten_id};
use super::schema::{Turn, decode};
use super::thread;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{File, Meta, read_range};

/// Parses the line at `span` and calls `on_turn` with its message.
pub(super) fn with_turn_at<T>(
    file: &dyn File,
    span: Span,
    on_turn: impl FnOnce(&Turn<'_>) -> T,
) -> Result<T> {
    let bytes = read_range(file, span.offset, span.len)?;
    let mut result = None;
    decode(&bytes, |line| result = line.turn().map(|turn| on_turn(&turn)));
    // The line held a message when it was indexed, so the file was overwritten.
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
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let (_, rest) = self.bytes.split_at(offset.min(self.bytes.len()));
        Ok(copy(rest, buffer))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    length
}

/// The two files that are generated line by line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFile {
    /// The transcript's own lines.
    Source,
    /// The lines in the format of the thread.
    Thread,
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

/// An index with the numbers of the conversation's calls, by ID.
struct FileIndex {
    index: Arc<TranscriptIndex>,
    call_numbers: HashMap<String, usize>,
}

impl FileIndex {
    fn new(index: Arc<TranscriptIndex>, agent: Option<&Name>, kind: LineFile) -> FileIndex {
        let conversation = index.conversation(agent).filter(|_| kind == LineFile::Thread);
        let calls = conversation
            .map(|conversation| conversation.calls.iter().enumerate())
            .into_iter()
            .flatten();
        let call_numbers = calls.map(|(at, call)| (call.id.clone(), at)).collect();
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

    /// Returns the current index, extended if the transcript has grown.
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

    fn end(&self, entry: &LineEntry) -> u64 {
        if self.kind == LineFile::Source { entry.source_end } else { entry.thread_end }
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
            let find = |id: &str| {
                let at = *current.call_numbers.get(&shorten_id(id))?;
                let call = conversation
                    .calls
                    .get(at)
                    .filter(|call| call.line_offset <= entry.span.offset)?;
                Some((at, call))
            };
            let mut out = Vec::new();
            // Writing into memory cannot fail.
            let _ = thread::write_turn(&mut out, turn, &find);
            out
        })
    }
}

impl File for GrowingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (current, transcript) = self.current_index()?;
        let conversation =
            current.index.conversation(self.location.agent.as_ref()).ok_or(Error::Stale)?;
        let first = conversation.lines.partition_point(|entry| self.end(entry) <= offset);
        let mut begin = first
            .checked_sub(1)
            .and_then(|at| conversation.lines.get(at))
            .map_or(0, |entry| self.end(entry));
        let mut filled = 0;
        for entry in conversation.lines.iter().skip(first) {
            let end = self.end(entry);
            if end > begin {
                let bytes = self.rendered_line(&current, conversation, entry, &transcript)?;
                if bytes.len() as u64 != end - begin {
                    return Err(Error::Stale);
                }
                let skip = offset.saturating_sub(begin) as usize;
                let (_, wanted) = bytes.split_at_checked(skip).ok_or(Error::Stale)?;
                filled += copy(wanted, buffer.split_at_mut(filled).1);
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
        let size = if self.kind == LineFile::Source {
            conversation.source_bytes()
        } else {
            conversation.thread_bytes()
        };
        Ok(Meta { size, mtime: transcript.mtime, ctime: transcript.ctime, ..self.meta })
    }
}
