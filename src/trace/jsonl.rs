//! Lines of JSON, read in pieces: the last line may be torn, a line may be huge, a line may be junk, and there may be
//! more of them than there is time for.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::PartialRead;
use crate::store::{File, capacity_for, read_range};

/// Read at once, in bytes.
const CHUNK: usize = 1 << 20;
/// A longer line is skipped and counted, in bytes.
const LINE_MAX: usize = 16 << 20;
/// What lies behind this is not read, in bytes.
const FILE_MAX: u64 = 256 << 20;

/// What came of reading a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LineStats {
    /// How many lines could not be decoded.
    pub(super) bad: u64,
    /// How many of them were not tried, since they are too long.
    pub(super) too_long: u64,
    /// How much was read, if that is not all.
    pub(super) partial: Option<PartialRead>,
}

/// The last line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum LastLine {
    /// Its end is there, or nothing is.
    #[default]
    Complete,
    /// Its end is missing, but it was decoded: more may still be written to it.
    Unterminated,
    /// Its end is missing, and it could not be decoded.
    Torn,
    /// Its end is missing, and it is too long already.
    TooLong,
}

/// One line of a file.
pub(super) struct RawLine<'a> {
    /// Where it begins, in bytes.
    pub(super) offset: u64,
    /// All of it, with its newline if it has one.
    pub(super) bytes: &'a [u8],
}

/// Calls `decode` with every line of `file` until `go_on` says no, and counts those of which it says that they could
/// not be decoded. Empty lines do not count, and a last line without its newline is tried and, if torn, not counted.
pub(super) fn for_each(
    file: &dyn File,
    go_on: &dyn Fn() -> bool,
    mut decode: impl FnMut(&[u8]) -> bool,
) -> Result<LineStats> {
    for_each_from(file, 0, go_on, |line| decode(line.bytes)).map(|(lines, ..)| lines)
}

/// The same from byte `start` on, where a line begins. Also where to go on another time, at the end of what was read,
/// less a last line that is torn; and what became of that.
pub(super) fn for_each_from(
    file: &dyn File,
    start: u64,
    go_on: &dyn Fn() -> bool,
    mut decode: impl FnMut(RawLine<'_>) -> bool,
) -> Result<(LineStats, u64, LastLine)> {
    let mut lines = LineStats::default();
    let mut line: Vec<u8> = Vec::new();
    let mut too_long = false;
    let (mut offset, mut line_start) = (start, start);
    loop {
        let at_limit = offset >= FILE_MAX;
        if at_limit || !go_on() {
            let more = !read_range(file, offset, 1)?.is_empty();
            lines.partial = more.then_some(PartialRead { bytes: offset, timed_out: !at_limit });
            break;
        }
        let chunk = read_range(file, offset, CHUNK)?;
        let is_last = chunk.len() < CHUNK;
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1));
            rest = after;
            offset += part.len() as u64;
            too_long |= line.len() + part.len() > LINE_MAX;
            // A line that lies in one piece is decoded where it is.
            if part.ends_with(b"\n") && line.is_empty() && !too_long {
                lines.bad +=
                    u64::from(!(part.trim_ascii().is_empty() || decode(RawLine { offset: line_start, bytes: part })));
                line_start = offset;
                continue;
            }
            if !too_long {
                if line.capacity() - line.len() < part.len() {
                    let more = capacity_for(line.len() + part.len()) - line.len();
                    line.try_reserve_exact(more).map_err(|_| Error::Io(Errno::NOMEM))?;
                }
                line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                let empty = line.trim_ascii().is_empty();
                lines.bad += u64::from(too_long || !(empty || decode(RawLine { offset: line_start, bytes: &line })));
                lines.too_long += u64::from(too_long);
                line_start = offset;
                line.clear();
                too_long = false;
            }
        }
        if is_last {
            break;
        }
    }
    if lines.partial.is_some() {
        return Ok((lines, line_start, LastLine::Complete));
    }
    let last = match too_long {
        true => {
            lines.bad += 1;
            lines.too_long += 1;
            LastLine::TooLong
        }
        false if line.trim_ascii().is_empty() => LastLine::Complete,
        false if decode(RawLine { offset: line_start, bytes: &line }) => LastLine::Unterminated,
        false => LastLine::Torn,
    };
    Ok((lines, if last == LastLine::Unterminated { offset } else { line_start }, last))
}

#[cfg(test)]
mod tests {
    use super::*;
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
            unreachable!("only bytes are asked for")
        }
    }

    fn numbers(text: &[u8]) -> (Vec<u64>, u64) {
        let mut seen = Vec::new();
        let decode = |line: &[u8]| serde_json::from_slice(line).map(|n: u64| seen.push(n)).is_ok();
        let lines = for_each(&Bytes(text.to_vec()), &|| true, decode).unwrap();
        assert_eq!(lines.partial, None);
        (seen, lines.bad)
    }

    #[test]
    fn bad_lines_are_counted_and_torn_ends_are_not() {
        assert_eq!(numbers(b"1\n\nx\n2\r\n3"), (vec![1, 2, 3], 1));
        assert_eq!(numbers(b"1\n{\"a"), (vec![1], 0));
        assert_eq!(numbers(b""), (vec![], 0));
    }

    #[test]
    fn lines_longer_than_a_piece_are_read_and_endless_ones_are_counted() {
        let mut text = vec![b' '; CHUNK + 7];
        text.extend_from_slice(b"5\n6\n");
        assert_eq!(numbers(&text), (vec![5, 6], 0));
        let mut text = vec![b'7'; LINE_MAX + CHUNK];
        text.extend_from_slice(b"\n8\n");
        assert_eq!(numbers(&text), (vec![8], 1));
    }

    #[test]
    fn how_much_was_read_in_time_is_told_and_a_line_that_it_tears_is_none() {
        let text = [b"1\n".repeat(CHUNK), b"\n".to_vec()].concat();
        let looks = std::cell::Cell::new(0);
        let few = |most: usize| {
            looks.set(0);
            let go_on = || looks.replace(looks.get() + 1) < most;
            let mut seen = 0;
            let lines = for_each(&Bytes(text.clone()), &go_on, |_| {
                seen += 1;
                true
            });
            (seen, lines.unwrap())
        };
        for most in 0..3 {
            let partial = Some(PartialRead { bytes: (most * CHUNK) as u64, timed_out: true });
            assert_eq!(few(most), (most * CHUNK / 2, LineStats { partial, ..LineStats::default() }));
        }
        // All of it; the empty rest is no line.
        assert_eq!(few(3), (CHUNK, LineStats::default()));
    }
}
