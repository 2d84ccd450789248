//! Lines of JSON: encoded, and appended to a file as a whole.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use serde::Serialize;

use super::dir::{File, from_io};
use swarmletfs_base::error::{Error, Result};

/// Longest last line without an end that is read, in bytes.
const TORN_MAX: u64 = 32 << 20;

/// Returns `value` as a line.
///
/// # Errors
///
/// `EINVAL` if JSON cannot express it.
pub fn to_line(value: &impl Serialize) -> Result<Vec<u8>> {
    with_end(serde_json::to_vec(value))
}

/// Returns `value` as indented JSON that ends a line.
///
/// # Errors
///
/// `EINVAL` if JSON cannot express it.
pub(super) fn to_document(value: &impl Serialize) -> Result<Vec<u8>> {
    with_end(serde_json::to_vec_pretty(value))
}

fn with_end(json: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>> {
    let mut json = json.map_err(|_| Error::Io(Errno::INVAL))?;
    json.push(b'\n');
    Ok(json)
}

/// Appends whole lines to the end of an open file.
///
/// `sync` waits for the disk, if necessary. A failure, such as a full disk, leaves the file as it
/// was. If a crash left a last line without an end, the line gets one if it is complete, and is
/// removed if not: it was never reported as written. Returns the number of removed bytes.
///
/// The caller holds the lock that all writers of the file take.
pub(super) fn append_lines(
    file: &mut File,
    lines: &[u8],
    is_complete: impl Fn(&[u8]) -> bool,
    sync: impl FnOnce(&File) -> Result<()>,
) -> Result<u64> {
    let mut length = file.seek(SeekFrom::End(0)).map_err(from_io)?;
    let (mut removed, mut end) = (0, &b""[..]);
    let torn = last_line(file, length)?;
    if !torn.is_empty() {
        if is_complete(&torn) {
            end = b"\n";
        } else {
            removed = torn.len() as u64;
            length -= removed;
            file.set_len(length).map_err(from_io)?;
        }
    }
    // One write, so that a reader meets whole lines.
    let written = file.write_all(&[end, lines].concat()).map_err(from_io);
    if let Err(error) = written.and_then(|()| sync(file)) {
        // The first error counts.
        let _ = file.set_len(length);
        return Err(error);
    }
    Ok(removed)
}

/// Returns the last line of a file if it has no end; empty if it has one.
///
/// # Errors
///
/// `EFBIG` if the line is longer than any that readers read.
fn last_line(file: &File, length: u64) -> Result<Vec<u8>> {
    let mut last = [0];
    if length == 0 || file.read_at(&mut last, length - 1).map_err(from_io)? == 0 || last == *b"\n" {
        return Ok(Vec::new());
    }
    let start = length.saturating_sub(TORN_MAX);
    let mut tail = vec![0; usize::try_from(length - start).unwrap_or_default()];
    file.read_exact_at(&mut tail, start).map_err(from_io)?;
    match memchr::memrchr(b'\n', &tail) {
        Some(end) => Ok(tail.split_off(end + 1)),
        None if start == 0 => Ok(tail),
        None => Err(Error::Io(Errno::FBIG)),
    }
}
