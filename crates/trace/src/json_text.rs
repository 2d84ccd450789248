//! Makes the bytes of a trace decodable as JSON: replaces invalid UTF-8, escapes of lone
//! surrogates, and constants that JSON does not have.
//!
//! JavaScript can truncate a text inside a surrogate pair and then writes `\ud83d`, which Rust
//! strings cannot hold. Python writes `NaN` and `Infinity`; they become empty strings, so that they
//! count as values of an unexpected type.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::Range;

use memchr::memmem;

use swarmletfs_base::error::Error;
use swarmletfs_base::store::{File, read_range};

/// Size of one read, in bytes.
const CHUNK: usize = 1 << 20;
/// Length of the longest token that is replaced as a whole, a surrogate pair, in bytes.
const TOKEN_MAX: usize = 12;
/// Constants that are not JSON. A minus sign may precede them.
const CONSTANTS: [&[u8]; 2] = [b"NaN", b"Infinity"];

pub(super) fn json_text(bytes: &[u8]) -> Cow<'_, str> {
    let text =
        std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let has = |needle: &[u8]| memmem::find(text.as_bytes(), needle).is_some();
    if !has(b"\\ud") && !has(b"\\uD") && !CONSTANTS.into_iter().any(has) {
        return text;
    }
    let mut bytes = text.into_owned().into_bytes();
    TokenReplacer::default().replace(&mut bytes, true);
    // Only ASCII was replaced, by ASCII.
    Cow::Owned(String::from_utf8(bytes).unwrap_or_default())
}

/// Replaces escapes of lone surrogates, and constants that are not JSON, keeping all offsets.
#[derive(Debug, Default)]
struct TokenReplacer {
    in_string: bool,
}

impl TokenReplacer {
    /// Replaces the tokens in the next `bytes`. Unless `is_end` is set, stops where a token may
    /// continue after them. Returns the number of bytes that are done.
    fn replace(&mut self, bytes: &mut [u8], is_end: bool) -> usize {
        let mut at = 0;
        loop {
            // An escape may be cut off.
            let Some(rest) = bytes.get(at..) else { return bytes.len() };
            let next = match self.in_string {
                true => memchr::memchr2(b'"', b'\\', rest),
                false => memchr::memchr3(b'"', b'N', b'I', rest),
            };
            let end = next.map_or(bytes.len(), |next| at + next);
            // A constant begins with its sign.
            let has_sign = !self.in_string && bytes.get(..end).is_some_and(|b| b.ends_with(b"-"));
            let begin = end - usize::from(has_sign);
            match bytes.get(end) {
                None => return if is_end { end } else { begin },
                Some(b'"') => {
                    self.in_string = !self.in_string;
                    at = end + 1;
                }
                Some(_) if !is_end && end + TOKEN_MAX > bytes.len() => return begin,
                Some(b'\\') => at = end + replace_lone_surrogate(bytes, end),
                Some(_) => at = end + replace_constant(bytes, begin, end),
            }
        }
    }
}

/// Replaces the escape at an offset if it is a lone surrogate. Returns the length of the escape.
fn replace_lone_surrogate(bytes: &mut [u8], at: usize) -> usize {
    let unit = |bytes: &[u8], at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match (unit(bytes, at), unit(bytes, at + 6)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => TOKEN_MAX,
        (Some(0xd800..0xe000), _) => {
            if let Some(digits) = bytes.get_mut(at + 2..at + 6) {
                digits.copy_from_slice(b"fffd");
            }
            6
        }
        _ => 2,
    }
}

/// Replaces the constant whose name is at an offset and whose sign is at `begin`. Returns the
/// number of bytes from the offset on that are done.
fn replace_constant(bytes: &mut [u8], begin: usize, at: usize) -> usize {
    let starts = |name: &&[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(name));
    let Some(name) = CONSTANTS.into_iter().find(starts) else { return 1 };
    if let Some(constant) = bytes.get_mut(begin..at + name.len()) {
        constant.fill(b' ');
        constant.iter_mut().take(2).for_each(|byte| *byte = b'"');
    }
    name.len()
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
    read: u64,
    limit: u64,
    tokens: TokenReplacer,
    buffer: Vec<u8>,
    /// The part of `buffer` that is done and not yet returned.
    ready: Range<usize>,
    is_end: bool,
}

impl<'a> JsonTextReader<'a> {
    pub(super) fn new(file: &'a dyn File, range: Range<u64>) -> JsonTextReader<'a> {
        JsonTextReader {
            file,
            read: range.start,
            limit: range.end,
            tokens: TokenReplacer::default(),
            buffer: Vec::new(),
            ready: 0..0,
            is_end: false,
        }
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
        let valid = self.buffer.get_mut(..valid).ok_or(Error::Io(rustix::io::Errno::INVAL))?;
        self.ready = 0..self.tokens.replace(valid, self.is_end);
        Ok(())
    }
}

impl Read for JsonTextReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() && !self.is_end {
            self.fill().map_err(io::Error::other)?;
        }
        let mut ready = self.buffer.get(self.ready.clone()).unwrap_or_default();
        let len = ready.read(out)?;
        self.ready.start += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::error::Result;
    use swarmletfs_base::store::Meta;

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

    /// Reads `bytes` as a file, and checks that no offset moved.
    fn read(bytes: &[u8]) -> String {
        let mut text = String::new();
        JsonTextReader::new(&Bytes(bytes.to_vec()), 0..u64::MAX).read_to_string(&mut text).unwrap();
        assert_eq!(text.len(), bytes.len());
        text
    }

    #[test]
    fn only_lone_surrogates_and_invalid_bytes_are_replaced() {
        for (text, expected) in [
            (&br#""\ud83d""#[..], r#""\ufffd""#),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\\ud83d""#, r#""\\ud83d""#),
            (br#""\ude00\ud83dx""#, r#""\ufffd\ufffdx""#),
            (br#""\uD83D\u""#, r#""\ufffd\u""#),
            (br#"["\"\ud83d", 1]"#, r#"["\"\ufffd", 1]"#),
        ] {
            assert_eq!(json_text(text), expected);
            assert_eq!(read(text), expected);
        }
        assert_eq!(json_text(b"\"a\xff\""), "\"a\u{fffd}\"");
        assert_eq!(read(b"\"a\xff\""), "\"a?\"");
    }

    #[test]
    fn constants_of_python_become_empty_strings() {
        for (text, expected) in [
            ("[NaN,1]", r#"["" ,1]"#),
            (r#"{"a":-Infinity}"#, r#"{"a":""       }"#),
            ("Infinity", r#"""      "#),
            ("[-NaN, -1, Nul, I]", r#"[""  , -1, Nul, I]"#),
            (r#"["NaN \" -Infinity", "\\", NaN]"#, r#"["NaN \" -Infinity", "\\", "" ]"#),
        ] {
            assert_eq!(json_text(text.as_bytes()), expected);
            assert_eq!(read(text.as_bytes()), expected);
        }
    }

    #[test]
    fn replacements_do_not_depend_on_the_ends_of_chunks() {
        let part = [&br#"-Infinity"\\\ud83d\ude00\ud83d"#[..], b"\xf0\x9f\x98\x80\xff\xc3\"-NaN"];
        let part = part.concat();
        for pad in CHUNK - 60..CHUNK {
            let text = read(&[vec![b' '; pad], part.clone(), b"end".to_vec()].concat());
            let expected = r#"""       "\\\ud83d\ude00\ufffd😀??"""  end"#;
            assert_eq!(text.trim_start(), expected, "{pad}");
        }
    }

    #[test]
    fn a_reader_stops_at_its_limit() {
        let bytes = vec![b'1'; 3 * CHUNK / 2];
        for limit in [0, 1, CHUNK, CHUNK + 1, bytes.len(), 2 * CHUNK] {
            let mut text = String::new();
            let file = Bytes(bytes.clone());
            JsonTextReader::new(&file, 0..limit as u64).read_to_string(&mut text).unwrap();
            assert_eq!(text.len(), limit.min(bytes.len()));
        }
    }
}
