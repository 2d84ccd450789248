//! Open files generated from a transcript: fixed texts, and lines that grow with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::json_text::json_text;
use super::cached_transcript::TranscriptVersion;
use super::calls::shorten_id;
use super::format::TranscriptFormat;
use super::index::{CallEntry, Conversation, CopiedHistory, LineEntry, LineFile, TranscriptIndex};
use super::location::{Shape, TranscriptLocation};
use super::reader::read_on;
use super::thread::{self, Links};
use super::turn::{RawRecord, Span, Stage, Turn};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::{File, Meta, copy_from, read_range};

/// Decodes the record at `span` again and calls `use_turns` with its turns.
///
/// # Errors
///
/// Fails if the file cannot be read, or with [`Error::Stale`] if it was overwritten.
pub(super) fn with_turns_at<T>(
    file: &dyn File,
    format: &dyn TranscriptFormat,
    span: Span,
    use_turns: impl FnOnce(&[Turn<'_>]) -> T,
) -> Result<T> {
    let bytes = read_range(file, span.offset, span.len)?;
    let (mut use_turns, mut result) = (Some(use_turns), None);
    format.with_turns(RawRecord { span, text: &json_text(&bytes) }, &mut |turns| {
        result = use_turns.take().map(|use_turns| use_turns(turns));
    });
    result.ok_or(Error::Stale)
}

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

/// A transcript without its beginning, which repeats another one.
pub(super) struct OwnPart {
    pub(super) file: Box<dyn File>,
    /// Size of the beginning, in bytes.
    pub(super) copied: u64,
}

impl OwnPart {
    fn own(&self, meta: Meta) -> Meta {
        Meta { size: meta.size.saturating_sub(self.copied), ..meta }
    }
}

impl File for OwnPart {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset.saturating_add(self.copied))
    }

    fn meta(&self) -> Result<Meta> {
        self.file.meta().map(|meta| self.own(meta))
    }

    fn stat_without_acl(&self) -> Result<Meta> {
        self.file.stat_without_acl().map(|meta| self.own(meta))
    }
}

pub(super) struct GrowingFile {
    file: Box<dyn File>,
    format: &'static dyn TranscriptFormat,
    location: TranscriptLocation,
    kind: LineFile,
    meta: Meta,
    /// The records that the transcript may repeat.
    history: Option<Arc<CopiedHistory>>,
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

/// An index with the numbers of the conversation's calls. Only a thread needs the numbers.
struct FileIndex {
    version: TranscriptVersion,
    index: Arc<TranscriptIndex>,
    /// Numbers of the calls with an ID, in order: several can have the same.
    by_id: HashMap<String, Vec<usize>>,
    /// Numbers of the calls that have results, by the offset of the result's record and the number
    /// of the result in it.
    by_result: HashMap<(u64, usize), usize>,
}

impl FileIndex {
    fn new(
        version: TranscriptVersion,
        index: Arc<TranscriptIndex>,
        agent: Option<&Name>,
        kind: LineFile,
    ) -> FileIndex {
        let conversation = index.conversation(agent).filter(|_| kind == LineFile::Thread);
        let calls = conversation.map(|conversation| &*conversation.calls).unwrap_or_default();
        let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, call) in calls.iter().enumerate().filter(|(_, call)| !call.id.is_empty()) {
            by_id.entry(call.id.clone()).or_default().push(at);
        }
        let results = calls.iter().enumerate().filter_map(|(at, call)| {
            let result = call.result.as_ref()?;
            let places = [Some((result.span.offset, result.part)), call.receipt];
            Some(places.into_iter().flatten().map(move |place| (place, at)))
        });
        let by_result = results.flatten().collect();
        FileIndex { version, by_id, by_result, index: index.clone() }
    }

    fn links(&self, calls: &[CallEntry], span: Span, turns: &[Turn<'_>]) -> Links {
        // A later call may have the ID.
        let by_id = |id: &str| {
            let known = self.by_id.get(&shorten_id(id))?;
            let is_before =
                |at: &usize| calls.get(*at).is_some_and(|call| call.span.offset <= span.offset);
            known.iter().rev().copied().find(is_before)
        };
        let first = calls.partition_point(|call| call.span.offset < span.offset);
        let own_calls = calls.iter().enumerate().skip(first).take_while(|(_, c)| c.span == span);
        let mut unnamed = own_calls.filter(|(_, call)| call.id.is_empty()).map(|(at, _)| at);
        let mut links = Links::default();
        for turn in turns {
            for result in &turn.results {
                let part = links.results.len();
                let by_place = || self.by_result.get(&(span.offset, part)).copied();
                links.results.push(match &*result.call {
                    "" if matches!(result.stage, Stage::Reported(_)) => None,
                    "" => by_place(),
                    id => by_place().or_else(|| by_id(id)),
                });
            }
            for call in &turn.calls {
                links.calls.push(match &*call.id {
                    "" => unnamed.next(),
                    id => by_id(id),
                });
            }
        }
        links
    }
}

impl GrowingFile {
    /// Creates the file `kind` from the transcript `file`, with its index and with the metadata
    /// `meta`. The transcript had the metadata `transcript` before it was indexed.
    pub(super) fn new(
        file: Box<dyn File>,
        format: &'static dyn TranscriptFormat,
        location: TranscriptLocation,
        kind: LineFile,
        meta: Meta,
        transcript: Meta,
        (index, history): (Arc<TranscriptIndex>, Option<Arc<CopiedHistory>>),
    ) -> GrowingFile {
        let version = TranscriptVersion::new(transcript);
        let index = Arc::new(FileIndex::new(version, index, location.agent.as_ref(), kind));
        let index = Mutex::new(index);
        GrowingFile { file, format, location, kind, meta, history, index, line: Mutex::default() }
    }

    /// Returns the current index, extended if the transcript has grown, and the transcript's
    /// metadata.
    fn current_index(&self) -> Result<(Arc<FileIndex>, Meta)> {
        let transcript = self.file.meta()?;
        let version = TranscriptVersion::new(transcript);
        let held = self.index.lock().clone();
        if version == held.version || held.index.too_long {
            return Ok((held, transcript));
        }
        let before =
            if held.index.restarts { held.index.before_rewrite() } else { (*held.index).clone() };
        let before = TranscriptIndex { history: self.history.clone(), ..before };
        let (format, location) = (self.format, &self.location);
        let (index, _) = read_on(&*self.file, format, location, before, Deadline::never())?;
        let agent = self.location.agent.as_ref();
        let current = Arc::new(FileIndex::new(version, Arc::new(index), agent, self.kind));
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

    fn render_line(
        &self,
        current: &FileIndex,
        conversation: &Conversation,
        entry: &LineEntry,
    ) -> Result<Vec<u8>> {
        if self.kind == LineFile::Source {
            let mut bytes = read_range(&*self.file, entry.span.offset, entry.span.len)?;
            if self.location.shape != Shape::Lines {
                // Line feeds in a document are white space.
                bytes.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
                bytes.push(b'\n');
            }
            return Ok(bytes);
        }
        let calls = &conversation.calls;
        with_turns_at(&*self.file, self.format, entry.span, |turns| {
            let links = current.links(calls, entry.span, turns);
            let mut out = Vec::new();
            // Writing into memory cannot fail.
            let _ = thread::write_turns(&mut out, turns, entry, calls, &links);
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
                let Some(rest) = buffer.get_mut(filled..) else { break };
                filled += copy_from(&bytes, skip, rest);
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
