//! Makes the bytes of a trace decodable as JSON: replaces invalid UTF-8, and escapes of lone
//! surrogates.
//!
//! JavaScript can truncate a text inside a surrogate pair and then writes `\ud83d`, which Rust
//! strings cannot hold.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::Range;

use memchr::memmem;

use crate::error::Error;
use crate::store::{File, read_range};

/// Size of one read, in bytes.
const CHUNK: usize = 1 << 20;
/// Length of the longest escape that is read as a whole, a surrogate pair, in bytes.
const ESCAPE_MAX: usize = 12;

/// Returns `bytes` as text that can be decoded.
pub(super) fn json_text(bytes: &[u8]) -> Cow<'_, str> {
    let text =
        std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let has = |needle: &[u8]| memmem::find(text.as_bytes(), needle).is_some();
    if !has(b"\\ud") && !has(b"\\uD") {
        return text;
    }
    let mut bytes = text.into_owned().into_bytes();
    replace_lone_surrogates(&mut bytes, true);
    // Only ASCII was replaced, by ASCII.
    Cow::Owned(String::from_utf8(bytes).unwrap_or_default())
}

/// Replaces escapes of lone surrogates, keeping all offsets. Unless `is_end` is set, stops where an
/// escape may continue after `bytes`. Returns the number of bytes that are done.
fn replace_lone_surrogates(bytes: &mut [u8], is_end: bool) -> usize {
    let unit = |bytes: &[u8], at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while let Some(escape) = bytes.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += escape;
        if !is_end && at + ESCAPE_MAX > bytes.len() {
            return at;
        }
        at += match (unit(bytes, at), unit(bytes, at + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => ESCAPE_MAX,
            (Some(0xd800..0xe000), _) => {
                if let Some(digits) = bytes.get_mut(at + 2..at + 6) {
                    digits.copy_from_slice(b"fffd");
                }
                6
            }
            _ => 2,
        };
    }
    bytes.len()
}

/// Replaces each byte of invalid UTF-8 by a question mark, keeping all offsets. Unless `is_end` is
/// set, stops where a character may continue after `bytes`. Returns the number of bytes that are
/// done.
fn replace_invalid_utf8(bytes: &mut [u8], is_end: bool) -> usize {
    let mut at = 0;
    while let Some(Err(error)) = bytes.get(at..).map(std::str::from_utf8) {
        let invalid = at + error.valid_up_to();
        let len = match error.error_len() {
            Some(len) => len,
            None if is_end => bytes.len() - invalid,
            None => return invalid,
        };
        if let Some(invalid) = bytes.get_mut(invalid..invalid + len) {
            invalid.fill(b'?');
        }
        at = invalid + len;
    }
    bytes.len()
}

/// Reads a range of a file as text that can be decoded. Every byte keeps its offset.
pub(super) struct JsonTextReader<'a> {
    file: &'a dyn File,
    /// Offset of the next byte to read.
    read: u64,
    /// Offset at which the reading ends.
    limit: u64,
    buffer: Vec<u8>,
    /// The part of `buffer` that is done and not yet returned.
    ready: Range<usize>,
    is_end: bool,
}

impl<'a> JsonTextReader<'a> {
    /// Creates a reader of the bytes of `file` in `range`.
    pub(super) fn new(file: &'a dyn File, range: Range<u64>) -> JsonTextReader<'a> {
        let (read, limit) = (range.start, range.end);
        JsonTextReader { file, read, limit, buffer: Vec::new(), ready: 0..0, is_end: false }
    }

    fn fill(&mut self) -> Result<(), Error> {
        self.buffer.drain(..self.ready.end);
        let want =
            CHUNK.min(usize::try_from(self.limit.saturating_sub(self.read)).unwrap_or(CHUNK));
        let chunk = read_range(self.file, self.read, want)?;
        self.read += chunk.len() as u64;
        self.is_end = chunk.len() < CHUNK;
        self.buffer.extend_from_slice(&chunk);
        let valid = replace_invalid_utf8(&mut self.buffer, self.is_end);
        let (valid, _) = self.buffer.split_at_mut(valid);
        self.ready = 0..replace_lone_surrogates(valid, self.is_end);
        Ok(())
    }
}

impl Read for JsonTextReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() && !self.is_end {
            self.fill().map_err(io::Error::other)?;
        }
        let ready = self.buffer.get(self.ready.clone()).unwrap_or_default();
        let len = ready.len().min(out.len());
        let (out, (ready, _)) = (out.split_at_mut(len).0, ready.split_at(len));
        out.copy_from_slice(ready);
        self.ready.start += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::store::Meta;

    struct Bytes(Vec<u8>);

    impl File for Bytes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }

        fn meta(&self) -> Result<Meta> {
            unreachable!("tests read only bytes")
        }
    }

    #[test]
    fn only_lone_surrogates_and_invalid_bytes_are_replaced() {
        for (text, expected) in [
            (&br#""\ud83d""#[..], r#""\ufffd""#),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\\ud83d""#, r#""\\ud83d""#),
            (br#""\ude00\ud83dx""#, r#""\ufffd\ufffdx""#),
        ] {
            assert_eq!(json_text(text), expected);
        }
        assert_eq!(json_text(b"\"a\xff\""), "\"a\u{fffd}\"");
    }

    #[test]
    fn replacements_do_not_depend_on_the_ends_of_chunks() {
        let part = [&br#"\\\ud83d\ude00\ud83d""#[..], b"\xf0\x9f\x98\x80\xff\xc3"].concat();
        for pad in CHUNK - 40..CHUNK {
            let bytes = [vec![b' '; pad], part.clone(), b"end".to_vec()].concat();
            let mut text = String::new();
            JsonTextReader::new(&Bytes(bytes), 0..u64::MAX).read_to_string(&mut text).unwrap();
            assert_eq!(text.trim_start(), r#"\\\ud83d\ude00\ufffd"😀??end"#, "{pad}");
        }
    }
}
