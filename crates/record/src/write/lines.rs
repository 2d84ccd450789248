//! Lines of JSON, encoded and appended to a file as a whole, and the sizes and hashes of written
//! files.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::dir::{File, from_io};
use super::error::{Error, Result};
use crate::audit::AuditPath;
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};

/// Longest last line without an end that is read, in bytes.
const TORN_MAX: u64 = 32 << 20;

/// Returns `value` as a line.
///
/// # Errors
///
/// `EINVAL` if JSON cannot express it.
pub fn to_line(value: &impl Serialize) -> PathResult<Vec<u8>> {
    with_end(serde_json::to_vec(value))
}

/// Returns `value` as indented JSON that ends a line.
///
/// # Errors
///
/// `EINVAL` if JSON cannot express it.
pub(super) fn to_document(value: &impl Serialize) -> PathResult<Vec<u8>> {
    with_end(serde_json::to_vec_pretty(value))
}

fn with_end(json: serde_json::Result<Vec<u8>>) -> PathResult<Vec<u8>> {
    let mut json = json.map_err(|_| PathError::Io(Errno::INVAL))?;
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
    sync: impl FnOnce(&File) -> PathResult<()>,
) -> PathResult<u64> {
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
fn last_line(file: &File, length: u64) -> PathResult<Vec<u8>> {
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
        None => Err(PathError::Io(Errno::FBIG)),
    }
}

/// Counts and hashes the bytes that it reads from another reader.
pub struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
    /// The error of the reader, as opposed to one of the store.
    error: Option<String>,
}

impl<R: Read> HashingReader<R> {
    pub fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0, error: None }
    }

    /// Returns `written`, or the error of the reader if the reader failed.
    pub(super) fn or_input_error<T>(&self, written: Result<T>, role: &'static str) -> Result<T> {
        match &self.error {
            Some(message) => Err(Error::Input { role, message: message.clone() }),
            None => written,
        }
    }

    pub(super) fn into_entry(self, path: &str) -> AuditPath {
        let (bytes, sha256) = self.into_hash();
        AuditPath { path: path.to_owned(), bytes, sha256: Some(sha256) }
    }

    /// Returns the number of bytes that were read, and their SHA-256 as hexadecimal digits.
    pub fn into_hash(self) -> (u64, String) {
        (self.bytes, hash_to_hex(self.hash))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.error = Some(error.to_string());
            }
        })?;
        self.hash.update(buffer.get(..n).ok_or(io::ErrorKind::InvalidData)?);
        self.bytes += n as u64;
        Ok(n)
    }
}

pub(super) fn hash_to_hex(hash: Sha256) -> String {
    to_hex(&hash.finalize())
}

pub(super) fn entry_of(path: &str, bytes: &[u8]) -> AuditPath {
    AuditPath { path: path.to_owned(), bytes: bytes.len() as u64, sha256: Some(hash_bytes(bytes)) }
}

/// Returns the SHA-256 of bytes as hexadecimal digits.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hash_to_hex(Sha256::new_with_prefix(bytes))
}
