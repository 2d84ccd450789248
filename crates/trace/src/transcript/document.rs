//! Finds the records in JSON documents, without holding a document in memory.

use std::io::BufReader;
use std::ops::Range;

use struson::reader::{JsonReader, JsonStreamReader, ReaderError, ReaderSettings, ValueType};

use super::super::json_text::{JsonTextReader, json_text};
use super::location::Member;
use super::turn::{RawRecord, Span};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::PartialRead;
use swarmletfs_base::store::{File, read_range};

/// Maximum length of a record, in bytes. A longer one is skipped and counted.
const RECORD_MAX: u64 = 16 << 20;
/// Maximum number of bytes read from a file.
pub(super) const FILE_MAX: u64 = 256 << 20;
const LINE_CHUNK: usize = 1 << 20;
/// Maximum nesting depth; a deeper document is read up to that place.
const DEPTH_MAX: u32 = 10_000;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DocumentStats {
    /// Offset at which the reading ended.
    pub(super) end: u64,
    pub(super) records: u64,
    /// Number of records that could not be decoded or were too long.
    pub(super) bad: u64,
    /// True if the file ends inside a document, or holds something that is no JSON.
    pub(super) is_torn: bool,
    /// The extent of the read, if the file was not read to the end.
    pub(super) partial: Option<PartialRead>,
}

pub(super) enum DocumentEvent<'a> {
    Begin,
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

enum Stop {
    NoTime,
    Syntax,
    Failed(swarmletfs_base::error::Error),
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
                    self.read_object(self.members, 0)?;
                }
                ValueType::Array => {
                    (self.on_event)(DocumentEvent::Begin);
                    match self.find_member(&Member::List("")) {
                        Some(part) => self.read_list(part)?,
                        None => self.json.skip_value()?,
                    }
                }
                // A number, a text or another value that holds no records.
                _ => {
                    self.json.skip_value()?;
                    self.stats.records += 1;
                    self.stats.bad += 1;
                }
            }
        }
        Ok(())
    }

    fn find_member(&self, wanted: &Member) -> Option<u8> {
        let at = self.members.iter().position(|member| member == wanted)?;
        u8::try_from(at).ok()
    }

    /// Reads an object with these `members`, of which the first one has the number `first`.
    fn read_object(&mut self, members: &[Member], first: usize) -> Result<(), Stop> {
        self.json.begin_object()?;
        while self.json.has_next()? {
            let name = self.json.next_name()?;
            let at = members.iter().position(|member| match member {
                Member::List(list) => *list == name,
                Member::Value(value) => *value == name,
                Member::Nested(list, _) => *list == name,
            });
            let part = |at: usize| u8::try_from(first + at).ok();
            let member = at.and_then(|at| Some((part(at)?, members.get(at)?)));
            match (member, self.json.peek()?) {
                (Some((part, Member::List(_))), ValueType::Array) => self.read_list(part)?,
                (Some((part, Member::Value(_))), _) => self.read_record(part)?,
                (Some((_, Member::Nested(_, inner))), ValueType::Array) => {
                    self.json.begin_array()?;
                    while self.json.has_next()? {
                        match self.json.peek()? {
                            ValueType::Object => self.read_object(inner, first + members.len())?,
                            _ => self.json.skip_value()?,
                        }
                    }
                    self.json.end_array()?;
                }
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
        let kind = self.json.peek()?;
        let offset = self.offset();
        self.json.skip_value()?;
        let length = self.offset() - offset;
        // Digits may be missing at the end of a file.
        if kind == ValueType::Number {
            self.json.has_next()?;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use swarmletfs_base::error::Error;
    use swarmletfs_base::store::{Meta, copy_from};

    const MEMBERS: [Member; 4] =
        [Member::List("list"), Member::Value("one"), Member::List(""), Member::Value("two")];
    /// Size of one read of the file, in bytes.
    const CHUNK: usize = 1 << 20;

    struct Bytes(Vec<u8>);

    impl File for Bytes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            Ok(copy_from(&self.0, offset, buffer))
        }

        fn meta(&self) -> Result<Meta> {
            unreachable!("tests read only bytes")
        }
    }

    /// The records of a file, each with its member, and the number of documents.
    #[derive(Debug, Default, PartialEq)]
    struct Found {
        records: Vec<(u8, String)>,
        documents: usize,
        stats: DocumentStats,
    }

    impl Found {
        fn texts(&self) -> Vec<(u8, &str)> {
            self.records.iter().map(|(part, text)| (*part, text.as_str())).collect()
        }
    }

    fn find(bytes: &[u8]) -> Found {
        let mut found = Found::default();
        let (file, mut records, mut documents) = (Bytes(bytes.to_vec()), Vec::new(), 0);
        found.stats = for_each(&file, 0..FILE_MAX, &MEMBERS, Deadline::never(), |event| {
            match event {
                DocumentEvent::Begin => documents += 1,
                DocumentEvent::Record(record) => {
                    let at = record.span.offset as usize;
                    let raw = &bytes[at..(at + record.span.len).min(bytes.len())];
                    assert_eq!(json_text(raw), record.text, "the record is at its place");
                    records.push((record.span.part, record.text.to_owned()));
                }
            }
            true
        })
        .unwrap();
        Found { records, documents, ..found }
    }

    #[test]
    fn records_of_a_document_are_found_in_their_members() {
        let found = find(
            br#" {"other": {"list": [0]}, "list": [{"a": [1]}, "x", 2, null], "one": "o",
                 "list": [3], "two": {"list": [4]}, "one": [5]}  "#,
        );
        let records = [
            (0, r#"{"a": [1]}"#),
            (0, r#""x""#),
            (0, "2"),
            (0, "null"),
            (1, r#""o""#),
            (0, "3"),
            (3, r#"{"list": [4]}"#),
            (1, "[5]"),
        ];
        assert_eq!(found.texts(), records);
        assert_eq!((found.documents, found.stats.records, found.stats.is_torn), (1, 8, false));
        // A member of another type holds no records.
        assert_eq!(find(br#"{"list": {"list": [1]}}"#).texts(), []);
        // A list is a document, too, and a file may hold several.
        let several = find(b"[1,[2]] {\"one\":3}\n{}");
        assert_eq!(several.texts(), [(2, "1"), (2, "[2]"), (1, "3")]);
        assert_eq!((several.documents, several.stats.is_torn), (3, false));
    }

    #[test]
    fn values_that_are_no_documents_are_counted_as_bad() {
        let found = find(br#"1 "text" true null {"one": 2}"#);
        assert_eq!((found.texts(), found.documents), (vec![(1, "2")], 1));
        assert_eq!((found.stats.records, found.stats.bad, found.stats.is_torn), (5, 4, false));
    }

    #[test]
    fn every_prefix_of_a_document_holds_its_first_records() {
        let bytes = r#"{"one": "ä\ud83d\ude00", "list": [{"a": "b\n"}, 12, NaN, "\\"], "x": [[1]],
            "two": -1.5e3} [7, {"8": []}]"#;
        let whole = find(bytes.as_bytes());
        assert_eq!((whole.records.len(), whole.documents, whole.stats.is_torn), (8, 2, false));
        for end in 0..bytes.len() {
            let part = find(&bytes.as_bytes()[..end]);
            assert!(whole.records.starts_with(&part.records), "{end}: {part:?}");
            let prefix = bytes.as_bytes()[..end].trim_ascii_end();
            assert_eq!(part.stats.is_torn, !prefix.ends_with(b"3}"), "{end}");
            assert!(part.stats.end <= end as u64);
        }
    }

    #[test]
    fn records_do_not_depend_on_the_ends_of_chunks() {
        let record = r#"{"a": "\ud83d\ude00 \ud83d ä€😀", "b": [NaN, -Infinity, 1.25e-3, true]}"#;
        for pad in (0..120).map(|n| CHUNK - n) {
            let text = format!(r#"{{"pad": "{}", "list": [{record}, 1]}}"#, "x".repeat(pad));
            let found = find(text.as_bytes());
            let replaced = json_text(record.as_bytes());
            assert_eq!(found.texts(), [(0, &*replaced), (0, "1")], "{pad}");
            assert!(serde_json::from_str::<serde_json::Value>(&replaced).is_ok());
        }
    }

    #[test]
    fn invalid_text_and_lone_surrogates_stay_inside_their_record() {
        let found = find(b"{\"list\": [\"caf\xe9\", \"\\udfff\\ud800\", \"\xff\xfe\", 1]}");
        assert_eq!((found.records.len(), found.stats.is_torn), (4, false));
        assert_eq!(found.records[1].1, r#""\ufffd\ufffd""#);
        // Outside of strings, they end the document. The records before it count.
        let torn = find(b"{\"list\": [[], \xff 2]}");
        assert_eq!((torn.texts(), torn.stats.is_torn), (vec![(0, "[]")], true));
    }

    #[test]
    fn broken_json_ends_the_reading_after_the_last_record() {
        for rest in ["]", "}", ":", "nul", "1 2", "\"\u{1}\"", "'x'", "/**/ 1", "[1,]", "01", "+1"]
        {
            let found = find(format!(r#"{{"list": ["a", {{"b": 1}}, {rest}, 3]}}"#).as_bytes());
            assert_eq!(found.texts()[..2], [(0, r#""a""#), (0, r#"{"b": 1}"#)], "{rest}");
            assert!(found.stats.is_torn && found.records.len() == 2, "{rest}: {found:?}");
        }
        let empty = find(b" \n");
        assert_eq!((empty.documents, empty.stats.is_torn), (0, true));
    }

    #[test]
    fn nesting_is_read_up_to_a_limit() {
        let nested = |depth: usize| {
            let list = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            find(format!(r#"{{"one": 1, "x": {list}, "list": [{list}], "two": 2}}"#).as_bytes())
        };
        let found = nested(9_000);
        assert_eq!((found.records.len(), found.stats.is_torn), (3, false));
        let found = nested(11_000);
        assert_eq!((found.texts(), found.stats.is_torn), (vec![(1, "1")], true));
    }

    #[test]
    fn long_records_are_read_and_longer_ones_are_counted() {
        let long = format!("\"{}\"", "x".repeat(2 << 20));
        let longer = format!("\"{}\"", "y".repeat(RECORD_MAX as usize));
        let found = find(format!(r#"{{"list": [{long}, {longer}, 3], "two": 4}}"#).as_bytes());
        assert_eq!(found.texts(), [(0, long.as_str()), (0, "3"), (3, "4")]);
        assert_eq!((found.stats.records, found.stats.bad, found.stats.is_torn), (4, 1, false));
    }

    #[test]
    fn reading_stops_in_time_and_passes_on_errors() {
        let (file, looks) = (Bytes(b"[1,2,3,4]".to_vec()), AtomicUsize::new(0));
        let has_time = || looks.fetch_add(1, Ordering::Relaxed) < 2;
        let mut count = 0;
        let stats = for_each(&file, 0..FILE_MAX, &MEMBERS, Deadline::new(&has_time), |event| {
            count += usize::from(matches!(event, DocumentEvent::Record(_)));
            true
        });
        let stats = stats.unwrap();
        assert_eq!((count, stats.is_torn), (2, false));
        assert!(stats.partial.unwrap().timed_out);

        struct Broken;
        impl File for Broken {
            fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
                Err(Error::NotFound)
            }
            fn meta(&self) -> Result<Meta> {
                Err(Error::NotFound)
            }
        }
        let failed = for_each(&Broken, 0..FILE_MAX, &MEMBERS, Deadline::never(), |_| true);
        assert_eq!(failed, Err(Error::NotFound));
    }
}
