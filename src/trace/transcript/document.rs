//! Finds the records in JSON documents, without holding a document in memory.

use std::io::BufReader;
use std::ops::Range;

use struson::reader::{JsonReader, JsonStreamReader, ReaderError, ReaderSettings, ValueType};

use super::super::json_text::{JsonTextReader, json_text};
use super::location::Member;
use super::turn::{RawRecord, Span};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::model::PartialRead;
use crate::store::{File, read_range};

/// Maximum length of a record, in bytes. A longer one is skipped and counted.
const RECORD_MAX: u64 = 16 << 20;
/// Maximum number of bytes read from a file.
pub(super) const FILE_MAX: u64 = 256 << 20;
/// Number of bytes in which the end of a line is searched at once.
const LINE_CHUNK: usize = 1 << 20;
/// Maximum nesting depth; a deeper document is read up to that place.
const DEPTH_MAX: u32 = 10_000;

/// Statistics of reading a file of documents.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DocumentStats {
    /// Offset at which the reading ended.
    pub(super) end: u64,
    /// Number of records.
    pub(super) records: u64,
    /// Number of records that could not be decoded or were too long.
    pub(super) bad: u64,
    /// True if the file ends inside a document, or holds something that is no JSON.
    pub(super) is_torn: bool,
    /// The extent of the read, if the file was not read to the end.
    pub(super) partial: Option<PartialRead>,
}

/// What [`for_each`] calls back for.
pub(super) enum DocumentEvent<'a> {
    /// A document begins.
    Begin,
    /// A record of the document.
    Record(RawRecord<'a>),
}

/// Returns the range of the line of `file` that begins at `start`, without its line feed, and true
/// if it has one. A line ends at [`FILE_MAX`] at the latest.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn line_at(file: &dyn File, start: u64) -> Result<(Range<u64>, bool)> {
    let mut end = start;
    while end < FILE_MAX {
        let chunk = read_range(file, end, LINE_CHUNK)?;
        if let Some(len) = memchr::memchr(b'\n', &chunk) {
            return Ok((start..end + len as u64, true));
        }
        end += chunk.len() as u64;
        if chunk.len() < LINE_CHUNK {
            break;
        }
    }
    Ok((start..end, false))
}

/// Calls `on_event` with every document and record in the bytes `range` of `file`, until `deadline`
/// passes. `on_event` returns false if it cannot decode the record. Records are values in
/// `members`; everything else is skipped.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn for_each(
    file: &dyn File,
    range: Range<u64>,
    members: &[Member],
    deadline: Deadline<'_>,
    mut on_event: impl FnMut(DocumentEvent<'_>) -> bool,
) -> Result<DocumentStats> {
    let start = range.start;
    let text = BufReader::new(JsonTextReader::new(file, range));
    let settings = ReaderSettings {
        allow_multiple_top_level: true,
        track_path: false,
        max_nesting_depth: Some(DEPTH_MAX),
        restrict_number_values: false,
        ..ReaderSettings::default()
    };
    let mut reader = DocumentReader {
        file,
        start,
        members,
        deadline,
        json: JsonStreamReader::new_custom(text, settings),
        stats: DocumentStats::default(),
        on_event: &mut on_event,
    };
    let stopped = reader.read();
    let offset = reader.offset();
    let mut stats = DocumentStats { end: offset, ..reader.stats };
    match stopped {
        Ok(()) => {}
        Err(Stop::NoTime) => stats.partial = Some(PartialRead { bytes: offset, timed_out: true }),
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Syntax) if offset >= FILE_MAX => {
            stats.partial = Some(PartialRead { bytes: offset, timed_out: false });
        }
        Err(Stop::Syntax) => stats.is_torn = true,
    }
    Ok(stats)
}

/// Reason why the reading stops before the end.
enum Stop {
    NoTime,
    Syntax,
    Failed(crate::error::Error),
}

impl From<ReaderError> for Stop {
    fn from(error: ReaderError) -> Stop {
        match error {
            ReaderError::IoError { error, .. } => {
                match error.into_inner().and_then(|inner| inner.downcast().ok()) {
                    Some(error) => Stop::Failed(*error),
                    // The end of the file inside a document.
                    None => Stop::Syntax,
                }
            }
            _ => Stop::Syntax,
        }
    }
}

struct DocumentReader<'a, 'd, F> {
    file: &'a dyn File,
    /// Offset in the file at which the text begins.
    start: u64,
    members: &'a [Member],
    deadline: Deadline<'d>,
    json: JsonStreamReader<BufReader<JsonTextReader<'a>>>,
    stats: DocumentStats,
    on_event: &'a mut F,
}

impl<F: FnMut(DocumentEvent<'_>) -> bool> DocumentReader<'_, '_, F> {
    fn offset(&self) -> u64 {
        let inside = self.json.current_position(false).data_pos.unwrap_or_default();
        self.start.saturating_add(inside)
    }

    fn read(&mut self) -> Result<(), Stop> {
        let mut is_first = true;
        while is_first || self.json.has_next()? {
            is_first = false;
            match self.json.peek()? {
                ValueType::Object => {
                    (self.on_event)(DocumentEvent::Begin);
                    self.read_object()?;
                }
                ValueType::Array => {
                    (self.on_event)(DocumentEvent::Begin);
                    match self.find_member(&Member::List("")) {
                        Some(part) => self.read_list(part)?,
                        None => self.json.skip_value()?,
                    }
                }
                _ => {
                    self.stats.bad += 1;
                    self.json.skip_value()?;
                }
            }
        }
        Ok(())
    }

    fn find_member(&self, wanted: &Member) -> Option<u8> {
        let at = self.members.iter().position(|member| member == wanted)?;
        u8::try_from(at).ok()
    }

    fn read_object(&mut self) -> Result<(), Stop> {
        self.json.begin_object()?;
        while self.json.has_next()? {
            let name = self.json.next_name()?;
            let at = self.members.iter().position(|member| match member {
                Member::List(list) => *list == name,
                Member::Value(value) => *value == name,
            });
            let member = at.and_then(|at| Some((u8::try_from(at).ok()?, self.members.get(at)?)));
            match (member, self.json.peek()?) {
                (Some((part, Member::List(_))), ValueType::Array) => self.read_list(part)?,
                (Some((part, Member::Value(_))), _) => self.read_record(part)?,
                _ => self.json.skip_value()?,
            }
        }
        Ok(self.json.end_object()?)
    }

    fn read_list(&mut self, part: u8) -> Result<(), Stop> {
        self.json.begin_array()?;
        while self.json.has_next()? {
            self.read_record(part)?;
        }
        Ok(self.json.end_array()?)
    }

    fn read_record(&mut self, part: u8) -> Result<(), Stop> {
        if !self.deadline.has_time() {
            return Err(Stop::NoTime);
        }
        // Moves to the first byte of the value.
        self.json.peek()?;
        let offset = self.offset();
        self.json.skip_value()?;
        let length = self.offset() - offset;
        self.stats.records += 1;
        if length > RECORD_MAX {
            self.stats.bad += 1;
            return Ok(());
        }
        let len = length as usize;
        let bytes = read_range(self.file, offset, len).map_err(Stop::Failed)?;
        let record = RawRecord { span: Span { offset, len, part }, text: &json_text(&bytes) };
        self.stats.bad += u64::from(!(self.on_event)(DocumentEvent::Record(record)));
        Ok(())
    }
}
