//! The log of the files that readers of a mount open: a line of JSON per open, in a file per day.
//!
//! The read side of a mount writes to no store, so the log is elsewhere. Entries go through a
//! bounded queue to one thread, so that no reader waits for the log. Entries that do not fit into
//! the queue are counted, and the next entry states the number.
//!
//! A reader that opens many files fills the log. Each user has files of its own, and so has each
//! process that opens many, or whose children do. The one with the most bytes loses entries
//! first, so that no reader can remove the entries of the others.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::audit::{LogEntry, LogGroup, day};
use crate::write::{Dir, Durability, append_line, to_line};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_tree::route::ContentKind;

/// Default limit of the log, in bytes.
pub const LIMIT_DEFAULT: u64 = 256 << 20;
/// Maximum number of entries that wait to be written.
const QUEUE: usize = 16 << 10;
/// Maximum number of entries that are written at once.
const BATCH: usize = 256;
/// Share of the limit from which on a process, or the children of one, have files of their own.
const OWN_FILES_PART: u64 = 64;
/// Maximum number of processes whose entries are counted.
const COUNTED_MAX: usize = 64 << 10;
/// Maximum length of a process's status, in bytes. It lists up to 65,536 groups.
const STATUS_MAX: u64 = 1 << 20;
/// Longest name of a program on Linux, in bytes; a line end follows.
const COMM_MAX: u64 = 64;
/// Longest time for which a reader waits until its name is read.
const NAME_TIME_MAX: Duration = Duration::from_millis(100);
pub const OK: &str = "ok";
pub const ABSENT: &str = "absent";
/// Result of the last entry of a log that lost entries before it.
pub const LOST: &str = "lost";

/// One open of a file or directory, or an attempt at one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadEntry {
    pub time: Timestamp,
    pub uid: u32,
    pub pid: u32,
    /// Name of the reader's program; absent if the process had ended before it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    #[serde(skip)]
    pub parent: Option<u32>,
    /// Path in the tree; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Kind of the file or directory; absent for an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ContentKind>,
    /// Size of the file when it was opened, in bytes. How much of it was read is not known: the
    /// kernel answers from its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// [`OK`], [`ABSENT`], the error, or [`LOST`] for an entry that only states a number.
    pub result: String,
    /// Number of earlier entries that were lost, because readers were faster than the disk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Number of older entries that were removed since the entry before, because the log was full.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub removed: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LogEntry for ReadEntry {
    fn time(&self) -> Timestamp {
        self.time
    }
}

/// Writes entries. Dropping it writes all entries that wait.
pub struct ReadLog {
    /// `None` while the log is dropped.
    entries: Option<SyncSender<ReadEntry>>,
    /// Number of entries that were lost and are in no entry yet.
    lost: Arc<AtomicU64>,
    names: SyncSender<NameRequest>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Facts about a reader's process, absent if it had ended before they were read.
#[derive(Debug, Clone, Default)]
pub struct Process {
    pub program: Option<String>,
    pub parent: Option<u32>,
}

/// The id of a process, and the sender of the reply.
type NameRequest = (u32, SyncSender<Process>);

impl ReadLog {
    /// Starts to write into the directory `folder`, which only this user can read, at most `limit`
    /// bytes.
    ///
    /// # Errors
    ///
    /// The directory cannot be made, or there are no threads.
    pub fn start(folder: &Path, limit: u64) -> Result<ReadLog> {
        let top = Dir::create(folder, Durability::None)?;
        top.set_own_mode(0o700)?;
        let proc = Dir::open(Path::new("/proc"), Durability::None)?;
        let (sender, entries) = sync_channel(QUEUE);
        let (names, requests) = sync_channel::<NameRequest>(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let lost_by_writer = lost.clone();
        let start = |name: &str| thread::Builder::new().name(name.into());
        let from_io = crate::write::from_io;
        start("read-names").spawn(move || answer_names(&proc, &requests)).map_err(from_io)?;
        let writer = start("read-log");
        let writer = writer.spawn(move || write(&top, &entries, limit, &lost_by_writer));
        let writer = Mutex::new(Some(writer.map_err(from_io)?));
        Ok(ReadLog { entries: Some(sender), lost, names, writer })
    }

    /// Returns the program and the parent of a process. The threads that serve a mount cannot read
    /// them themselves, and later the process may have ended.
    pub fn process(&self, pid: u32) -> Process {
        let (sender, process) = sync_channel(1);
        if self.names.try_send((pid, sender)).is_err() {
            return Process::default();
        }
        process.recv_timeout(NAME_TIME_MAX).unwrap_or_default()
    }

    /// Adds an entry, and fills in its number of lost entries.
    pub fn add(&self, mut entry: ReadEntry) {
        let Some(entries) = &self.entries else { return };
        entry.lost = self.lost.swap(0, Ordering::Relaxed);
        match entries.try_send(entry) {
            Ok(()) => {}
            Err(TrySendError::Full(entry) | TrySendError::Disconnected(entry)) => {
                self.lost.fetch_add(entry.lost + 1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for ReadLog {
    fn drop(&mut self) {
        self.entries = None;
        let writer = self.writer.lock().ok().and_then(|mut writer| writer.take());
        if let Some(writer) = writer {
            // It has logged its own problems.
            let _ = writer.join();
        }
    }
}

fn answer_names(proc: &Dir, requests: &Receiver<NameRequest>) {
    while let Ok((pid, sender)) = requests.recv() {
        // The reader may not wait any more.
        let _ = sender.try_send(process(proc, pid));
    }
}

/// Decides which entries share files, by the number of bytes that each process and the children of
/// each wrote.
struct Groups {
    /// Number of bytes from which on a process has files of its own, and a batch is written.
    quiet_max: u64,
    by_process: HashMap<u32, u64>,
    by_parent: HashMap<u32, u64>,
}

impl Groups {
    fn new(limit: u64) -> Groups {
        let (by_process, by_parent) = Default::default();
        Groups { quiet_max: limit / OWN_FILES_PART, by_process, by_parent }
    }

    fn group(&mut self, entry: &ReadEntry, length: usize) -> LogGroup {
        let is_loud = |counts: &mut HashMap<u32, u64>, pid: u32| {
            if counts.len() >= COUNTED_MAX && !counts.contains_key(&pid) {
                counts.clear();
            }
            let bytes = counts.entry(pid).or_default();
            *bytes = bytes.saturating_add(length as u64);
            *bytes > self.quiet_max
        };
        let own = is_loud(&mut self.by_process, entry.pid).then_some(entry.pid);
        let of_parent = entry.parent.filter(|parent| is_loud(&mut self.by_parent, *parent));
        LogGroup { uid: Some(entry.uid), pid: own.or(of_parent) }
    }
}

/// Writes entries until all senders are gone, and then the number of lost ones.
fn write(folder: &Dir, entries: &Receiver<ReadEntry>, limit: u64, lost: &AtomicU64) {
    let (mut is_failing, mut removed, mut groups) = (false, 0, Groups::new(limit));
    while let Ok(mut first) = entries.recv() {
        let day_of_first = day(first.time);
        first.removed = std::mem::take(&mut removed);
        let mut by_group: BTreeMap<LogGroup, (Vec<u8>, u64)> = BTreeMap::new();
        let mut length = 0;
        let more = entries.try_iter().take(BATCH - 1);
        for entry in std::iter::once(first).chain(more) {
            let line = to_line(&entry).unwrap_or_default();
            let (lines, number) = by_group.entry(groups.group(&entry, line.len())).or_default();
            length += line.len() as u64;
            lines.extend(line);
            *number += entry.lost + 1;
            if length > groups.quiet_max {
                break;
            }
        }
        for (group, (lines, number)) in by_group {
            match append_line(folder, &lines, day_of_first.clone(), group, limit) {
                Ok(more) => {
                    removed += more;
                    is_failing = false;
                }
                Err(error) => {
                    lost.fetch_add(number, Ordering::Relaxed);
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!("cannot write the log of reads: {error}");
                    }
                }
            }
        }
    }
    let lost = lost.swap(0, Ordering::Relaxed);
    if lost > 0 || removed > 0 {
        let (time, uid) = (Timestamp::now(), rustix::process::geteuid().as_raw());
        let last = ReadEntry {
            time,
            uid,
            pid: std::process::id(),
            program: None,
            parent: None,
            path: String::new(),
            kind: None,
            bytes: None,
            result: LOST.to_owned(),
            lost,
            removed,
        };
        let line = to_line(&last).unwrap_or_default();
        let group = LogGroup { uid: Some(uid), pid: None };
        if let Err(error) = append_line(folder, &line, day(time), group, limit) {
            warn!("cannot write that {lost} entries of the log of reads were lost: {error}");
        }
    }
}

fn process(proc: &Dir, pid: u32) -> Process {
    let path = RelPath::parse(pid.to_string()).ok();
    let Some(folder) = path.and_then(|path| proc.enter(&path).ok()) else {
        return Process::default();
    };
    let read = |name: &str, max| {
        let bytes = folder.read(&Name::new(name).ok()?, max).ok()??;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let status = read("status", STATUS_MAX).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    let program = read("comm", COMM_MAX).map(|name| name.trim_end().to_owned());
    Process { program, parent }
}
