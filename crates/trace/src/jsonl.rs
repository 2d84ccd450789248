//! Reads files of JSON lines in chunks. The last line may be torn, a line may be huge or invalid,
//! and there may be more lines than time.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::PartialRead;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{File, capacity_for, read_range};

/// Size of one read, in bytes.
const CHUNK: usize = 1 << 20;
/// Maximum length of a line, in bytes. A longer line is skipped and counted.
const LINE_MAX: usize = 16 << 20;
/// Maximum number of bytes read from a file.
const FILE_MAX: u64 = 256 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct LineStats {
    /// Number of lines that could not be decoded.
    pub bad: u64,
    /// Number of those lines that were skipped because of their length.
    pub(super) too_long: u64,
    /// The extent of the read, if the file was not read to the end.
    pub partial: Option<PartialRead>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum LastLine {
    /// The file is empty or ends with a newline.
    #[default]
    Complete,
    /// The line has no newline but was decoded; more bytes may follow.
    Unterminated,
    /// The line has no newline and could not be decoded.
    Torn,
    /// The line has no newline and already exceeds the limit.
    TooLong,
}

pub(super) struct RawLine<'a> {
    /// Offset of the line in its file, in bytes.
    pub(super) offset: u64,
    /// Number of the line, counted from 1 at the start of the read.
    pub(super) number: u64,
    /// The whole line, with its newline if there is one.
    pub(super) bytes: &'a [u8],
}

/// Calls `decode` with every line of `file` until `deadline` passes. Counts the lines for which
/// `decode` returns false. Empty lines are skipped. A last line without a newline is decoded; if
/// that fails, it is not counted.
///
/// # Errors
///
/// Fails if the file cannot be read or memory runs out.
pub fn for_each(
    file: &dyn File,
    deadline: Deadline<'_>,
    mut decode: impl FnMut(&[u8]) -> bool,
) -> Result<LineStats> {
    for_each_from(file, 0, deadline, |line| decode(line.bytes)).map(|(stats, ..)| stats)
}

/// Reads lines from offset `start`, which must be the beginning of a line; see [`for_each`]. Also
/// returns the offset at which to resume, and the state of the last line. A torn last line is read
/// again after resuming.
///
/// # Errors
///
/// Fails if the file cannot be read or memory runs out.
pub(super) fn for_each_from(
    file: &dyn File,
    start: u64,
    deadline: Deadline<'_>,
    mut decode: impl FnMut(RawLine<'_>) -> bool,
) -> Result<(LineStats, u64, LastLine)> {
    let mut stats = LineStats::default();
    let mut line: Vec<u8> = Vec::new();
    let mut too_long = false;
    let (mut offset, mut line_start, mut number) = (start, start, 1);
    loop {
        let at_limit = offset >= FILE_MAX;
        if at_limit || !deadline.has_time() {
            let more = !read_range(file, offset, 1)?.is_empty();
            stats.partial = more.then_some(PartialRead { bytes: offset, timed_out: !at_limit });
            break;
        }
        let chunk = read_range(file, offset, CHUNK)?;
        let is_last = chunk.len() < CHUNK;
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let (part, after) =
                rest.split_at_known(memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1));
            rest = after;
            offset += part.len() as u64;
            too_long |= line.len() + part.len() > LINE_MAX;
            // A line inside one chunk is decoded without a copy.
            if part.ends_with(b"\n") && line.is_empty() && !too_long {
                stats.bad += u64::from(
                    !(part.trim_ascii().is_empty()
                        || decode(RawLine { offset: line_start, number, bytes: part })),
                );
                (line_start, number) = (offset, number + 1);
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
                let is_empty = line.trim_ascii().is_empty();
                stats.bad += u64::from(
                    too_long
                        || !(is_empty
                            || decode(RawLine { offset: line_start, number, bytes: &line })),
                );
                stats.too_long += u64::from(too_long);
                (line_start, number) = (offset, number + 1);
                line.clear();
                too_long = false;
            }
        }
        if is_last {
            break;
        }
    }
    if stats.partial.is_some() {
        return Ok((stats, line_start, LastLine::Complete));
    }
    let last = match too_long {
        true => {
            stats.bad += 1;
            stats.too_long += 1;
            LastLine::TooLong
        }
        false if line.trim_ascii().is_empty() => LastLine::Complete,
        false if decode(RawLine { offset: line_start, number, bytes: &line }) => {
            LastLine::Unterminated
        }
        false => LastLine::Torn,
    };
    Ok((stats, if last == LastLine::Unterminated { offset } else { line_start }, last))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
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

    fn numbers(text: &[u8]) -> (Vec<u64>, u64) {
        let mut seen = Vec::new();
        let decode = |line: &[u8]| serde_json::from_slice(line).map(|n: u64| seen.push(n)).is_ok();
        let lines = for_each(&Bytes(text.to_vec()), Deadline::never(), decode).unwrap();
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
    fn empty_and_excessive_lines_are_numbered() {
        let text = [b"1\n\n2\n".as_slice(), &vec![b'7'; LINE_MAX + CHUNK], b"\n5"].concat();
        let mut seen = Vec::new();
        let mut decode = |line: RawLine<'_>| {
            seen.push((line.number, line.offset));
            true
        };
        for_each_from(&Bytes(text.clone()), 0, Deadline::never(), &mut decode).unwrap();
        assert_eq!(seen, [(1, 0), (3, 3), (5, text.len() as u64 - 1)]);
    }

    #[test]
    fn lines_longer_than_a_chunk_are_read_and_excessive_ones_are_counted() {
        let mut text = vec![b' '; CHUNK + 7];
        text.extend_from_slice(b"5\n6\n");
        assert_eq!(numbers(&text), (vec![5, 6], 0));
        let mut text = vec![b'7'; LINE_MAX + CHUNK];
        text.extend_from_slice(b"\n8\n");
        assert_eq!(numbers(&text), (vec![8], 1));
    }

    #[test]
    fn a_read_that_times_out_reports_its_extent_and_skips_the_cut_line() {
        let text = [b"1\n".repeat(CHUNK), b"\n".to_vec()].concat();
        let looks = AtomicUsize::new(0);
        let few = |most: usize| {
            looks.store(0, Ordering::Relaxed);
            let has_time = || looks.fetch_add(1, Ordering::Relaxed) < most;
            let mut seen = 0;
            let lines = for_each(&Bytes(text.clone()), Deadline::new(&has_time), |_| {
                seen += 1;
                true
            });
            (seen, lines.unwrap())
        };
        for most in 0..3 {
            let partial = Some(PartialRead { bytes: (most * CHUNK) as u64, timed_out: true });
            assert_eq!(
                few(most),
                (most * CHUNK / 2, LineStats { partial, ..LineStats::default() })
            );
        }
        // All of the file; the trailing empty line is not a line.
        assert_eq!(few(3), (CHUNK, LineStats::default()));
    }
}
