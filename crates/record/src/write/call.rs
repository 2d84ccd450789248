//! Calls of a worker: numbers, outputs that readers can follow, and lines of metrics.jsonl; and the
//! output of the command that is a worker itself.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::dir::{Dir, File, from_io, is_locked, lock_file};
use super::error::{During, Error, Result};
use super::folder::WorkerFolder;
use super::lines::{self, to_line};
use crate::audit::AuditPath;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_trace::swarmlet::{
    CALL_EVENT, CALLS, EXECUTION_LOG, LOGS, METRICS, START_EVENT, split_call_name,
};

/// Longest name of a tool in the name of a file, in bytes.
const TOOL_MAX: usize = 100;
/// Largest input of a call, as JSON, in bytes.
const INPUT_MAX: usize = 1 << 20;
/// Longest error of a call, in bytes.
const ERROR_MAX: usize = 64 << 10;
/// Outputs up to this size are hashed for the log of changes, in bytes. Hashing takes longer than
/// writing.
const HASHED_MAX: u64 = 16 << 20;
/// Maximum number of bytes that are read of the record of calls.
const METRICS_MAX: u64 = 256 << 20;
/// Longest line of metrics.jsonl that is searched for open calls, in bytes.
const LINE_MAX: u64 = 4 << 20;
const COPY_SIZE: usize = 64 << 10;
const NUMBER_MAX: u64 = 999_999_999_999_999_000;
/// Attempts to find a number that is not taken, against programs that do not lock.
const NUMBER_ATTEMPTS: u64 = 100;

/// A call that is being recorded.
///
/// The bytes that are written to it become the output, which readers see at once. A call that is
/// dropped without [`Call::end`] stays without an end: its outcome is unknown.
#[derive(Debug)]
#[must_use = "a call without `Call::end` has no outcome"]
pub struct Call {
    worker: Arc<WorkerFolder>,
    seq: u64,
    tool: String,
    name: Name,
    file: File,
    input: Option<Value>,
    began: Timestamp,
    clock: Instant,
    bytes: u64,
    /// `None` once the output is too large to be hashed.
    hash: Option<Sha256>,
}

#[derive(Debug, Clone, Default)]
#[must_use = "`Call::end` records it"]
pub struct CallEnd {
    success: Option<bool>,
    exit_code: Option<i64>,
    error: Option<String>,
    duration: Option<Duration>,
    truncated: bool,
}

impl CallEnd {
    /// Returns the end of a call whose success is not known: readers judge its output.
    pub fn unknown() -> CallEnd {
        CallEnd::default()
    }

    pub fn success(success: bool) -> CallEnd {
        CallEnd { success: Some(success), ..CallEnd::default() }
    }

    /// Returns the end of a command with its exit code; 0 means success.
    pub fn exit_code(code: i64) -> CallEnd {
        CallEnd { success: Some(code == 0), exit_code: Some(code), ..CallEnd::default() }
    }

    /// Adds the reason of a failure; an empty one is none. With one, the call is no success, also
    /// if a command that was ended exited with 0.
    pub fn error(mut self, error: impl Into<String>) -> CallEnd {
        self.error = Some(error.into()).filter(|error| !error.is_empty());
        if self.error.is_some() {
            self.success = Some(false);
        }
        self
    }

    /// Marks the output as incomplete.
    pub fn truncated(mut self) -> CallEnd {
        self.truncated = true;
        self
    }

    /// Sets the duration. Without it, the time since the beginning of the call is recorded.
    pub fn duration(mut self, duration: Duration) -> CallEnd {
        self.duration = Some(duration);
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReceipt {
    pub seq: u64,
    /// The output, from the worker's directory.
    pub path: RelPath,
    pub bytes: u64,
}

pub(super) fn begin(worker: &Arc<WorkerFolder>, tool: &str, input: Option<Value>) -> Result<Call> {
    let tool = tool_name(tool)?;
    let size = input.as_ref().map_or(0, |input| input.to_string().len());
    if size > INPUT_MAX {
        let reason = format!("it has {size} bytes as JSON; at most {INPUT_MAX} are recorded");
        return Err(Error::invalid(tool.as_bytes(), "a tool with such an input", reason));
    }
    let (lock, _) = worker.lock_unfinished()?;
    let began = Timestamp::now();
    let created = create_output(worker.folder(), &tool);
    let (seq, name, file) = created.during("create a call in", worker.folder().path(), b"")?;
    let call = Call {
        worker: Arc::clone(worker),
        seq,
        tool,
        name,
        file,
        input,
        began,
        clock: Instant::now(),
        bytes: 0,
        hash: Some(Sha256::new()),
    };
    let line = call.line(START_EVENT, Map::new())?;
    // The line helps readers while the call runs; only its end has to reach the disk.
    match call.worker.append_without_sync(&lock, METRICS, &line) {
        Ok(()) => Ok(call),
        Err(error) => {
            // A call without a start would look like one of another program.
            if let Ok(calls) = worker.folder().enter(&RelPath::constant(CALLS)) {
                let _ = calls.remove_all(&call.name);
            }
            Err(error)
        }
    }
}

impl Call {
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the path of the output, from the worker's directory.
    pub fn path(&self) -> RelPath {
        RelPath::constant(CALLS).join(&self.name)
    }

    /// Writes everything that `reader` returns to the output, while it is read.
    ///
    /// # Errors
    ///
    /// The reader fails, or the store cannot be written. Bytes that were read before are in the
    /// output.
    pub fn write_from(&mut self, reader: &mut dyn Read) -> Result<()> {
        let mut buffer = vec![0; COPY_SIZE];
        let place = self.worker.folder().path().to_path_buf();
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let message = error.to_string();
                    return Err(Error::Input { role: "the output", message });
                }
            };
            let filled = buffer.get(..count).ok_or(io::ErrorKind::InvalidData.into());
            let written = filled.and_then(|filled| self.write_all(filled)).map_err(from_io);
            written.during("write", &place, self.path().as_bytes())?;
        }
    }

    /// Ends the call: waits until its output is on disk, and then records how it ended.
    ///
    /// # Errors
    ///
    /// The store cannot be written. The call stays without an end then.
    pub fn end(mut self, end: CallEnd) -> Result<CallReceipt> {
        let result = self.record_end(end);
        let path = self.path();
        let sha256 = self.hash.take().map(lines::hash_to_hex);
        let written = AuditPath { path: path.to_text().into(), bytes: self.bytes, sha256 };
        let worker = self.worker.id().to_text();
        self.worker.store().log("record", &worker, vec![written], &result);
        result.map(|()| CallReceipt { seq: self.seq, path, bytes: self.bytes })
    }

    fn record_end(&self, end: CallEnd) -> Result<()> {
        let folder = self.worker.folder();
        let sync = || {
            folder.sync_file(&self.file)?;
            folder.enter(&RelPath::constant(CALLS))?.sync()
        };
        sync().during("write", folder.path(), self.path().as_bytes())?;
        let mut fields = Map::new();
        fields.extend(end.success.map(|success| ("success".to_owned(), success.into())));
        fields.extend(end.exit_code.map(|code| ("exit_code".to_owned(), code.into())));
        let took = end.duration.unwrap_or_else(|| self.clock.elapsed());
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        fields.insert("duration_ms".into(), ms.into());
        fields.extend(end.truncated.then(|| ("truncated".to_owned(), true.into())));
        fields.insert("end_ts".into(), lines::time(Timestamp::now()).into());
        if let Some(mut error) = end.error {
            error.truncate(error.floor_char_boundary(ERROR_MAX));
            fields.insert("error".into(), error.into());
        }
        let line = self.line(CALL_EVENT, fields)?;
        let (lock, _) = self.worker.lock_unfinished()?;
        self.worker.append(&lock, METRICS, &line)
    }

    fn line(&self, event: &str, more: Map<String, Value>) -> Result<Vec<u8>> {
        let mut fields = Map::new();
        fields.insert("event".into(), event.into());
        fields.insert("seq".into(), self.seq.into());
        fields.insert("tool".into(), self.tool.as_str().into());
        fields.extend(self.input.clone().map(|input| ("input".to_owned(), input)));
        fields.insert("start_ts".into(), lines::time(self.began).into());
        fields.extend(more);
        to_line(&fields).during("write", self.worker.folder().path(), METRICS.as_bytes())
    }
}

impl Write for Call {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.worker.store().take_space(bytes.len())?;
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        let written_bytes = bytes.get(..written).ok_or(io::ErrorKind::InvalidData)?;
        match &mut self.hash {
            Some(hash) if self.bytes <= HASHED_MAX => hash.update(written_bytes),
            hash => *hash = None,
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the name of a tool as its calls have it: other characters than letters, digits and
/// `._-` become `_`.
fn tool_name(tool: &str) -> Result<String> {
    if tool.trim().is_empty() {
        return Err(Error::invalid(tool.as_bytes(), "the name of a tool", "it is empty"));
    }
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
    Ok(tool.chars().map(|c| if is_plain(&c) { c } else { '_' }).take(TOOL_MAX).collect())
}

/// Creates the output of the next call, and locks it: the lock tells a call that is being recorded
/// from one whose recorder is gone.
fn create_output(folder: &Dir, tool: &str) -> Result<(u64, Name, File), PathError> {
    let calls = folder.enter_or_create(&Name::new(CALLS)?)?;
    let numbers = calls.list()?;
    let numbers = numbers.iter().filter_map(number);
    let first = numbers.max().unwrap_or(0) + 1;
    // Readers accept no longer numbers.
    if first > NUMBER_MAX {
        return Err(PathError::Io(Errno::OVERFLOW));
    }
    for seq in first..first.saturating_add(NUMBER_ATTEMPTS) {
        let name = Name::new(format!("{seq:03}_{tool}.txt"))?;
        match calls.create_file(&name) {
            Err(PathError::Io(Errno::EXIST)) => {}
            file => {
                let file = file?;
                if let Err(error) = lock_file(&file) {
                    // An output without a record would look like a call of another program.
                    let _ = calls.remove_all(&name);
                    return Err(error);
                }
                return Ok((seq, name, file));
            }
        }
    }
    Err(PathError::Io(Errno::EXIST))
}

fn number(name: &Name) -> Option<u64> {
    split_call_name(&name.to_text()).and_then(|(number, _)| number.parse().ok())
}

/// The fields of a line of metrics.jsonl that identify open calls.
#[derive(Deserialize)]
struct CallLine {
    event: String,
    seq: u64,
    tool: String,
}

/// A call whose record states a beginning and no end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OpenCall {
    seq: u64,
    pub(super) tool: String,
}

impl OpenCall {
    pub(super) fn file_name(&self) -> Result<Name, PathError> {
        Name::new(format!("{:03}_{}.txt", self.seq, self.tool))
    }
}

pub(super) fn find_open(folder: &Dir) -> Result<Vec<OpenCall>, PathError> {
    let Some(file) = folder.open_to_read(&Name::new(METRICS)?)? else { return Ok(Vec::new()) };
    // One line at a time: a worker with many calls has a large file. Readers read no more of it.
    let mut reader = BufReader::new(file.take(METRICS_MAX));
    let (mut line, mut open) = (Vec::new(), HashSet::new());
    while next_line(&mut reader, &mut line).map_err(from_io)? {
        let Ok(CallLine { event, seq, tool }) = serde_json::from_slice(&line) else { continue };
        match event.as_str() {
            START_EVENT => drop(open.insert(OpenCall { seq, tool })),
            CALL_EVENT => drop(open.remove(&OpenCall { seq, tool })),
            _ => {}
        }
    }
    let mut open: Vec<OpenCall> = open.into_iter().collect();
    open.sort();
    Ok(open)
}

/// Reads the next line into `line`. The rest of a line that is longer than `LINE_MAX` is skipped.
/// Returns false at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if reader.take(LINE_MAX).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    while line.last() != Some(&b'\n') {
        let before = line.len();
        if reader.take(LINE_MAX).read_until(b'\n', line)? == 0 {
            break;
        }
        let last = line.last().copied();
        line.truncate(before);
        if last == Some(b'\n') {
            break;
        }
    }
    Ok(true)
}

pub(super) fn is_recorded_now(folder: &Dir, call: &OpenCall) -> Result<bool, PathError> {
    // The tool's name comes from a file that any program may have written.
    let Ok(name) = call.file_name() else { return Ok(false) };
    let opened =
        folder.enter(&RelPath::constant(CALLS)).and_then(|calls| calls.open_to_lock(&name));
    match opened {
        Ok(file) => is_locked(file.as_fd()),
        Err(error) if error.is_not_a_file() => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn find_recorded_now(folder: &Dir) -> Result<Option<RelPath>> {
    let find = || {
        for call in find_open(folder)? {
            if is_recorded_now(folder, &call)? {
                return Ok(Some(RelPath::constant(CALLS).join(&call.file_name()?)));
            }
        }
        Ok(None)
    };
    find().during("read", folder.path(), METRICS.as_bytes())
}

/// Returns the line that ends `call`, whose recorder is gone.
pub(super) fn line_of_lost_recorder(call: &OpenCall) -> Result<Vec<u8>, PathError> {
    let mut fields = Map::new();
    fields.insert("event".into(), CALL_EVENT.into());
    fields.insert("seq".into(), call.seq.into());
    fields.insert("tool".into(), call.tool.as_str().into());
    fields.insert("end_ts".into(), lines::time(Timestamp::now()).into());
    fields.insert("error".into(), "its recorder ended before it did".into());
    to_line(&fields)
}

/// Output of the command that a worker consists of, appended to `logs/execution.log` while the
/// command runs, so that readers can follow it.
///
/// The command may write its own directory, too. It can replace the file by another one; the output
/// then continues in a file without a name.
#[derive(Debug)]
pub struct ExecutionLog {
    worker: Arc<WorkerFolder>,
    file: File,
    start: u64,
    written: blake3::Hasher,
    length: u64,
}

/// State of the log, which its command can write, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It holds exactly the recorded output.
    Whole,
    Changed,
    /// It is no regular file any more.
    Missing,
}

impl ExecutionLog {
    pub(super) fn open(worker: &Arc<WorkerFolder>) -> Result<ExecutionLog> {
        let open = || -> Result<_, PathError> {
            let logs = worker.folder().enter_or_create(&Name::new(LOGS)?)?;
            let file = logs.open_append(&Name::new(EXECUTION_LOG)?)?;
            let start = file.metadata().map_err(from_io)?.len();
            Ok((file, start))
        };
        let (file, start) = open().during("write", worker.folder().path(), LOGS.as_bytes())?;
        let written = blake3::Hasher::new();
        Ok(ExecutionLog { worker: Arc::clone(worker), file, start, written, length: 0 })
    }

    /// Returns the state of the log. The command must have ended.
    pub fn state(&self) -> LogState {
        let read = || -> Result<_, PathError> {
            let logs = self.worker.folder().enter(&RelPath::constant(LOGS))?;
            let mut file =
                logs.open_to_read(&Name::new(EXECUTION_LOG)?)?.ok_or(PathError::NotFound)?;
            // The command may have made the file too large to read.
            let size = file.metadata().map_err(from_io)?.len();
            if Some(size) != self.start.checked_add(self.length) {
                return Ok(false);
            }
            file.seek(SeekFrom::Start(self.start)).map_err(from_io)?;
            let mut file = file.take(self.length);
            let mut found = blake3::Hasher::new();
            io::copy(&mut file, &mut found).map_err(from_io)?;
            Ok(found.finalize() == self.written.finalize())
        };
        match read() {
            Ok(true) => LogState::Whole,
            Err(error) if error.is_not_a_file() => LogState::Missing,
            Ok(false) | Err(_) => LogState::Changed,
        }
    }

    /// Waits until the log is on disk.
    pub fn end(self) -> Result<()> {
        let synced = self.worker.folder().sync_file(&self.file);
        synced.during("write", self.worker.folder().path(), LOGS.as_bytes())
    }
}

impl Write for ExecutionLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.worker.store().take_space(bytes.len())?;
        let count = self.file.write(bytes)?;
        self.length += count as u64;
        self.written.update(bytes.split_at_checked(count).map_or(bytes, |(written, _)| written));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
