//! The JSON that this program writes: lines that are encoded and appended to a file as a whole, the
//! messages of thread.jsonl, and metadata.json, in which fields of other writers are kept. Also
//! sizes and hashes of written files.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use jiff::Timestamp;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::dir::{Dir, File, from_io};
use super::error::{During, Error, Result, bad_content};
use crate::audit::AuditPath;
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::Status;
use swarmletfs_base::name::Name;
use swarmletfs_trace::swarmlet::{METADATA, METADATA_MAX, own_status};

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
pub fn to_document(value: &impl Serialize) -> PathResult<Vec<u8>> {
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

/// The fields of a worker's metadata, in the order of the file.
pub(super) type MetadataMap = Map<String, Value>;

/// Maximum length of a text, in bytes. Readers read files of up to 2 MiB.
pub(super) const TEXT_MAX: usize = 1 << 20;

/// Reads the metadata of the worker in `folder`. A worker without the file has no fields.
///
/// # Errors
///
/// The file cannot be read or is no JSON object; it is not replaced then.
pub(super) fn read(folder: &Dir) -> Result<MetadataMap> {
    let read = || folder.read(&Name::new(METADATA)?, METADATA_MAX);
    let Some(bytes) = read().during("read", folder.path(), METADATA.as_bytes())? else {
        return Ok(Map::new());
    };
    // A torn file is not replaced: the new one would lack its other fields.
    serde_json::from_slice(&bytes)
        .map_err(|_| bad_content(folder.path(), METADATA, "it is no JSON object"))
}

pub(super) fn must_be_unfinished(fields: &MetadataMap, id: &Name) -> Result<()> {
    let status = own_status(fields);
    if status.is_finished() {
        return Err(Error::Finished { worker: id.display(), status: status.to_string() });
    }
    Ok(())
}

/// Replaces the metadata of a worker by `bytes`, which [`to_bytes`] returned.
pub(super) fn write(folder: &Dir, bytes: &[u8]) -> Result<()> {
    let write = || {
        let temporary = folder.write_temporary(&mut &*bytes)?;
        temporary.replace(folder, &Name::new(METADATA)?)
    };
    write().during("write", folder.path(), METADATA.as_bytes())
}

/// Returns metadata as the bytes of its file.
///
/// # Errors
///
/// [`Error::Invalid`] if no reader would read the file.
pub(super) fn to_bytes(fields: &MetadataMap) -> Result<Vec<u8>> {
    let too_long = |reason: String| {
        let id = fields.get("worker_id").and_then(Value::as_str).unwrap_or_default();
        Error::invalid(id.as_bytes(), "a worker with these texts", reason)
    };
    let mut bytes =
        serde_json::to_vec_pretty(fields).map_err(|error| too_long(error.to_string()))?;
    bytes.push(b'\n');
    if bytes.len() as u64 > METADATA_MAX {
        let reason = "its task, error and summary need more than 2 MiB as JSON".to_owned();
        return Err(too_long(reason));
    }
    Ok(bytes)
}

/// Returns a time as the files of a store have it: UTC, in milliseconds.
pub(super) fn time(time: Timestamp) -> String {
    format!("{time:.3}")
}

pub(super) fn running() -> Value {
    Status::Running.as_str().into()
}

/// Longest line that readers read, in bytes.
const LINE_MAX: usize = 16 << 20;
/// The roles of messages that readers know.
const ROLES: [&str; 4] = ["user", "assistant", "system", "tool"];

/// Checks messages, one JSON object per line, and returns their lines as they are written: with a
/// `timestamp`, if they have none.
///
/// # Errors
///
/// [`Error::Message`] names the first line that is no message.
pub(super) fn parse_messages(text: &[u8], now: Timestamp) -> Result<Vec<u8>> {
    let mut lines = Vec::with_capacity(text.len());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let fail = |reason: String| Error::Message { line: at + 1, reason };
        let message = serde_json::from_slice(line)
            .map_err(|error| fail(format!("not a JSON object on one line ({error})")))?;
        lines.extend(check_line(line.trim_ascii(), &message, now).map_err(fail)?);
    }
    if lines.is_empty() {
        return Err(Error::Message { line: 1, reason: "there is no message".into() });
    }
    Ok(lines)
}

/// Returns a message as a line.
///
/// # Errors
///
/// The reason why readers would not read it.
pub(super) fn message_line(
    message: &Map<String, Value>,
    now: Timestamp,
) -> Result<Vec<u8>, String> {
    let text = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    check_line(&text, message, now)
}

/// Checks a message and returns its line: `text`, which is the object `message`, as it is, with a
/// time added to its end.
fn check_line(
    text: &[u8],
    message: &Map<String, Value>,
    now: Timestamp,
) -> Result<Vec<u8>, String> {
    let role = message.get("role").and_then(Value::as_str);
    if !role.is_some_and(|role| ROLES.contains(&role)) {
        return Err(format!("`role` is one of {}", ROLES.join(", ")));
    }
    if !matches!(message.get("content"), None | Some(Value::String(_) | Value::Null)) {
        return Err("`content` is a text".into());
    }
    if !matches!(message.get("tool_calls"), None | Some(Value::Array(_) | Value::Null)) {
        return Err("`tool_calls` is a list".into());
    }
    let mut line = text.to_vec();
    // Encoding the object again would change long numbers.
    if !message.contains_key("timestamp") && line.pop() == Some(b'}') {
        line.extend(format!(", \"timestamp\": \"{}\"}}", time(now)).into_bytes());
    }
    line.push(b'\n');
    if line.len() > LINE_MAX {
        return Err(format!("the message has {} bytes; at most {LINE_MAX} are read", line.len()));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String> {
        let now = "2026-01-20T10:00:00Z".parse().unwrap();
        parse_messages(text.as_bytes(), now).map(|lines| String::from_utf8(lines).unwrap())
    }

    #[test]
    fn messages_get_a_time_and_keep_everything_else() {
        let lines = parse(concat!(
            "{\"role\": \"user\", \"content\": \"hi\\n\", \"x\": [1.50]}\n\n",
            "{\"role\": \"assistant\", \"tool_calls\": [], \"timestamp\": \"then\"}",
        ));
        assert_eq!(
            lines.unwrap(),
            concat!(
                "{\"role\": \"user\", \"content\": \"hi\\n\", \"x\": [1.50], ",
                "\"timestamp\": \"2026-01-20T10:00:00.000Z\"}\n",
                "{\"role\": \"assistant\", \"tool_calls\": [], \"timestamp\": \"then\"}\n",
            )
        );
    }

    #[test]
    fn error_names_the_first_line_that_is_no_message() {
        let good = r#"{"role": "user", "content": "hi"}"#;
        for (bad, line) in [
            ("", 1),
            ("\n\n", 1),
            ("{", 1),
            ("[]", 1),
            (r#"{"role": "judge"}"#, 1),
            (r#"{"content": "hi"}"#, 1),
            (r#"{"role": "user", "content": [1]}"#, 1),
            (r#"{"role": "user", "tool_calls": {}}"#, 1),
            (&format!("{good}\n\n{{}}\n"), 3),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(matches!(error, Error::Message { line: found, .. } if found == line), "{bad}");
        }
    }
}
