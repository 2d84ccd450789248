//! Finds the matching lines of one file, and recognizes matching lines of a worker's records that
//! only repeat lines of its other files.
//!
//! A record holds texts of other files again: as strings of JSON, or indented. A matching line of a
//! record is a copy if each matching line of its strings was already counted in another file, and
//! nothing else in it matches. Each counted line stands for one line in each record, so a record
//! that states a text more often than the other files has hits of its own. Only a transcript may
//! repeat a line any number of times, its own lines too, because the other files are made from it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::LazyLock;

use grep_matcher::Matcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use regex::bytes::Regex;
use serde::Deserialize;

use super::Pattern;
use crate::search::is_binary;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::{Key, digest};
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

/// Maximum number of lines that are remembered for a worker. Further lines count in every file that
/// holds them.
const LINES_MAX: usize = 1 << 17;
/// Maximum number of runs of copies that are remembered for a file. The lines after them count.
const RUNS_MAX: usize = 1_000;
/// Maximum number of pairs of a file and a record that are remembered.
const PAIRS_MAX: usize = 1 << 16;
/// Types of the transcript lines whose texts are also in other files.
const MESSAGE_TYPES: [&str; 3] = ["user", "assistant", "progress"];

/// Matches the string literals of valid JSON.
static LITERAL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(?s-u)"(?:[^"\\]|\\.)*""#).ok());

/// The format of a record, whose lines can repeat lines of other files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordFormat {
    Text,
    Json,
    /// A transcript. Its lines can be copies only if they are messages.
    Transcript,
}

/// The fields of a record's line that decide if it can be a copy.
#[derive(Deserialize)]
struct RecordLine {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Indexes of a file's matching lines that are copies, as ascending ranges from 0.
#[derive(Debug, Clone, Default)]
pub struct CopiedLines(Vec<Range<u64>>);

impl CopiedLines {
    /// Adds the matching line with the index `line`. Returns false if there is no room.
    fn add(&mut self, line: u64) -> bool {
        let runs = self.0.len();
        match self.0.last_mut() {
            Some(last) if last.end == line => last.end += 1,
            _ if runs >= RUNS_MAX => return false,
            _ => self.0.push(line..line + 1),
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, line: u64) -> bool {
        let after = self.0.partition_point(|run| run.start <= line);
        let run = after.checked_sub(1).and_then(|at| self.0.get(at));
        run.is_some_and(|run| run.contains(&line))
    }
}

/// The matching lines that were counted in the files of a worker. Files have numbers, from 0.
pub(super) struct CountedLines<'a> {
    pattern: &'a Pattern,
    /// The files that have a line with each text.
    files: HashMap<Key, Vec<u32>>,
    /// Number of lines that can still be added.
    room: usize,
    /// Pairs of a file and a record that repeats one of its lines.
    repeated: BTreeSet<(u32, u32)>,
}

pub(super) struct SearchedRecord {
    file: u32,
    format: RecordFormat,
    /// Number of the record's lines with each text.
    used: HashMap<Key, usize>,
    matches: u64,
    pub(super) copies: CopiedLines,
}

impl SearchedRecord {
    pub(super) fn new(file: u32, format: RecordFormat) -> SearchedRecord {
        let copies = CopiedLines::default();
        SearchedRecord { file, format, used: HashMap::new(), matches: 0, copies }
    }
}

/// The matching texts of a record's line.
#[derive(Default)]
struct MatchingTexts {
    /// Number of lines with each text.
    counts: BTreeMap<Key, usize>,
    /// True if something beside these texts matches.
    has_more: bool,
}

impl<'a> CountedLines<'a> {
    pub(super) fn new(pattern: &'a Pattern) -> CountedLines<'a> {
        let (files, repeated) = (HashMap::new(), BTreeSet::new());
        CountedLines { pattern, files, room: LINES_MAX, repeated }
    }

    pub(super) fn add(&mut self, file: u32, line: &[u8]) {
        if let Some(room) = self.room.checked_sub(1) {
            self.room = room;
            self.files.entry(text_key(line)).or_default().push(file);
        }
    }

    /// Adds the next matching line of a record. Returns true if it is a copy.
    pub(super) fn add_record_line(&mut self, record: &mut SearchedRecord, line: &[u8]) -> bool {
        let texts = self.matching_texts(record.format, line);
        let mut is_copy = !texts.has_more && !texts.counts.is_empty();
        for (text, count) in texts.counts {
            if self.room == 0 && !self.files.contains_key(&text) {
                is_copy = false;
                continue;
            }
            let used = record.used.entry(text).or_default();
            let files = self.files.entry(text).or_default();
            for _ in 0..count {
                let file = match record.format {
                    // Each event in a transcript is in the other files, but a transcript states
                    // some texts twice: in a call's arguments and in its result.
                    RecordFormat::Transcript => files.get(*used).or(files.first()),
                    RecordFormat::Text | RecordFormat::Json => files.get(*used),
                };
                // A transcript repeats in progress records what is in no other file.
                let may_repeat_itself = record.format == RecordFormat::Transcript;
                if let Some(file) = file.filter(|file| **file != record.file || may_repeat_itself) {
                    if self.repeated.len() < PAIRS_MAX {
                        self.repeated.insert((*file, record.file));
                    }
                } else {
                    is_copy = false;
                    let Some(room) = self.room.checked_sub(1) else { continue };
                    self.room = room;
                    files.push(record.file);
                }
                *used += 1;
            }
        }
        let is_copy = is_copy && record.copies.add(record.matches);
        record.matches += 1;
        is_copy
    }

    pub(super) fn records_with(&self, file: u32) -> impl Iterator<Item = u32> {
        self.repeated.range((file, 0)..=(file, u32::MAX)).map(|(_, record)| *record)
    }

    fn matching_texts(&self, format: RecordFormat, line: &[u8]) -> MatchingTexts {
        let texts = match format {
            RecordFormat::Text => None,
            RecordFormat::Json | RecordFormat::Transcript => self.matching_strings(format, line),
        };
        texts.unwrap_or_else(|| MatchingTexts {
            counts: BTreeMap::from([(text_key(line), 1)]),
            has_more: format != RecordFormat::Text,
        })
    }

    /// Returns the matching lines of the strings in a line of JSON. Returns `None` if the line is
    /// not JSON, is not a message of a transcript, or has too many of them.
    fn matching_strings(&self, format: RecordFormat, line: &[u8]) -> Option<MatchingTexts> {
        let kind = match serde_json::from_slice::<RecordLine>(line) {
            Ok(RecordLine { kind }) => kind.unwrap_or_default(),
            // In indented JSON, a line is a member of an object.
            Err(_) => {
                let member = line.trim_ascii();
                let member = member.strip_suffix(b",").unwrap_or(member);
                serde_json::from_slice::<RecordLine>(&[b"{", member, b"}"].concat()).ok()?;
                String::new()
            }
        };
        if format == RecordFormat::Transcript && !MESSAGE_TYPES.contains(&kind.as_str()) {
            return None;
        }
        let is_match = |text: &[u8]| self.pattern.matcher.is_match(text).unwrap_or(true);
        let mut texts = MatchingTexts::default();
        // The line without the strings that match.
        let (mut rest, mut end, mut room) = (Vec::new(), 0, LINES_MAX);
        for literal in LITERAL.as_ref()?.find_iter(line) {
            let text: String = serde_json::from_slice(literal.as_bytes()).ok()?;
            let mut counts: BTreeMap<Key, usize> = BTreeMap::new();
            for text in text.split('\n').filter(|text| is_match(text.as_bytes())) {
                room = room.checked_sub(1)?;
                *counts.entry(text_key(text.as_bytes())).or_default() += 1;
            }
            if counts.is_empty() {
                continue;
            }
            rest.extend(line.get(end..literal.start())?);
            rest.extend(b"\"\"");
            end = literal.end();
            // A transcript states a result twice in a line: as a text and by its parts.
            for (text, count) in counts {
                let all = texts.counts.entry(text).or_default();
                *all = count.max(*all);
            }
        }
        rest.extend(line.get(end..)?);
        texts.has_more = is_match(&rest);
        Some(texts)
    }
}

/// Returns the key of a line's text. Keys are equal if lines differ only in indentation, white
/// space at the end, or line numbers as in the output of tools that read files.
fn text_key(line: &[u8]) -> Key {
    let text = line.trim_ascii();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let numbered = text.get(digits..).filter(|_| digits > 0).and_then(|rest| {
        ["→".as_bytes(), b"\t"].iter().find_map(|separator| rest.strip_prefix(*separator))
    });
    let text = numbered.unwrap_or(text);
    let mut hash = blake3::Hasher::new();
    hash.update(text.trim_ascii());
    digest(&hash)
}
