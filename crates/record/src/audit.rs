//! The log of changes to a store: one line of JSON per change, in a file per day.
//!
//! The log is in `audit/` of the store. This module defines its entries and reads them;
//! [`crate::write`] appends. Any writer of a store may also change its log, so the log records
//! events but proves nothing against its writers.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use jiff::civil::Date;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Store};
use swarmletfs_trace::jsonl;
use swarmletfs_trace::swarmlet::AUDIT;

pub const FOLDER: &str = AUDIT;
const SUFFIX: &str = ".jsonl";

/// One change of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub time: Timestamp,
    pub uid: u32,
    pub pid: u32,
    pub program: String,
    /// Role of the process, such as `worker:w1` for a command that runs as that worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The change: `init`, `create`, `record`, `message`, `put`, `finish`, `annotate`, `note`,
    /// `repair`, `apply`, `undo`, `discard`, `gc` or `archive`.
    pub action: String,
    /// Id of the worker, if the change belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<AuditPath>,
    /// `ok`, or the error.
    pub result: String,
}

/// A file that a change wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPath {
    /// Path from the root of the store; bytes that are not UTF-8 are replaced.
    pub path: String,
    pub bytes: u64,
    /// SHA-256 of the written bytes; absent for large outputs of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only changes at this time or later.
    pub since: Option<Timestamp>,
    pub worker: Option<String>,
}

impl AuditFilter {
    fn matches(&self, entry: &AuditEntry) -> bool {
        self.since.is_none_or(|since| entry.time >= since)
            && self.worker.as_ref().is_none_or(|worker| entry.worker.as_ref() == Some(worker))
    }
}

/// The parts of the log that could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditSkips {
    pub files: u64,
    /// Lines that are not entries.
    pub lines: u64,
    /// Files that were not read to the end: they are too large, or the deadline passed.
    pub partial: u64,
}

/// Returns the start of the name of a day's files: `2026-01-20`.
pub fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// The name of a file of the log: `2026-01-20.jsonl`, `2026-01-20.2.jsonl`, and for the entries of
/// one user or process `2026-01-20.uid1000.jsonl` or `2026-01-20.uid1000.pid77.jsonl`. Names sort
/// by day, part, user and process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogName {
    pub day: String,
    /// The number among the files of a day and a group, from 1.
    pub part: u32,
    pub group: LogGroup,
}

/// The entries of a log that share files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogGroup {
    /// The user, or `None` for all.
    pub uid: Option<u32>,
    /// The process, or `None` for all of the user.
    pub pid: Option<u32>,
}

const UID: &str = "uid";
const PID: &str = "pid";

impl LogName {
    /// Returns the name on disk.
    ///
    /// # Errors
    ///
    /// The day is not a part of a name.
    pub fn to_name(&self) -> Result<Name> {
        let uid = self.group.uid.map(|uid| format!(".{UID}{uid}")).unwrap_or_default();
        let pid = self.group.pid.map(|pid| format!(".{PID}{pid}")).unwrap_or_default();
        let part = if self.part == 1 { String::new() } else { format!(".{}", self.part) };
        Name::new(format!("{}{uid}{pid}{part}{SUFFIX}", self.day))
    }

    /// Parses a name on disk. Returns `None` if no file of the log has such a name.
    pub fn parse(name: &Name) -> Option<LogName> {
        let text = name.to_text();
        let mut words = text.strip_suffix(SUFFIX)?.split('.').peekable();
        let day = words.next().filter(|day| day.parse::<Date>().is_ok())?.to_owned();
        let mut id = |prefix: &str| {
            let id = words.peek().and_then(|word| word.strip_prefix(prefix)?.parse().ok());
            if id.is_some() {
                words.next();
            }
            id
        };
        let group = LogGroup { uid: id(UID), pid: id(PID) };
        let part = words.next().map_or(Some(1), |part| part.parse().ok())?;
        words.next().is_none().then_some(LogName { day, part, group })
    }
}

/// Calls `each` with the entries that match `filter`, until it returns false.
///
/// Days are in order. The entries of a day are in the order in which they were written if it has
/// one file, and otherwise sorted by time.
///
/// # Errors
///
/// The directory of the log cannot be listed. A store without a log has no entries.
pub fn read(
    store: &dyn Store,
    filter: &AuditFilter,
    deadline: Deadline<'_>,
    each: impl FnMut(AuditEntry) -> bool,
) -> Result<AuditSkips> {
    let folder = RelPath::constant(FOLDER);
    let is_wanted = |entry: &AuditEntry| filter.matches(entry);
    read_folder(store, &folder, filter.since, is_wanted, deadline, each)
}

/// An entry of a log with a file per day.
pub trait LogEntry: DeserializeOwned + Send {
    fn time(&self) -> Timestamp;
}

impl LogEntry for AuditEntry {
    fn time(&self) -> Timestamp {
        self.time
    }
}

/// Calls `each` with the entries of the log in `folder` that are wanted, as [`read`] does.
///
/// # Errors
///
/// The directory cannot be listed. A missing one has no entries.
pub fn read_folder<E: LogEntry>(
    store: &dyn Store,
    folder: &RelPath,
    since: Option<Timestamp>,
    is_wanted: impl Fn(&E) -> bool,
    deadline: Deadline<'_>,
    mut each: impl FnMut(E) -> bool,
) -> Result<AuditSkips> {
    let listed = match store.list(folder) {
        Err(Error::NotFound) => return Ok(AuditSkips::default()),
        listed => listed?,
    };
    // A file holds the changes of the day in its name, so older files need not be read.
    let first = since.map(day).unwrap_or_default();
    let files = listed.into_iter().filter(|entry| entry.kind == Kind::File);
    let names = files.filter_map(|entry| LogName::parse(&entry.name));
    let mut names: Vec<LogName> = names.filter(|name| name.day >= first).collect();
    names.sort();
    let mut skipped = AuditSkips::default();
    for of_day in names.chunk_by(|a, b| a.day == b.day) {
        // The entries of several files are in memory until they are sorted: as many as the limit
        // of the writers (256 MiB by default) lets the log of a day have.
        let mut entries = Vec::new();
        let goes_on = AtomicBool::new(true);
        for name in of_day {
            let path = folder.join(&name.to_name()?);
            let read = read_file(store, &path, deadline, &goes_on, |entry: E| {
                if is_wanted(&entry) {
                    match of_day {
                        [_] => goes_on.store(each(entry), Ordering::Relaxed),
                        _ => entries.push(entry),
                    }
                }
            });
            match read {
                Ok((bad_lines, is_whole)) => {
                    skipped.lines += bad_lines;
                    // A read that `each` ended left out nothing that was wanted.
                    skipped.partial += u64::from(!is_whole && goes_on.load(Ordering::Relaxed));
                }
                Err(_) => skipped.files += 1,
            }
        }
        entries.sort_by_key(LogEntry::time);
        if !goes_on.load(Ordering::Relaxed) || !entries.into_iter().all(&mut each) {
            break;
        }
    }
    Ok(skipped)
}

/// Calls `each` with the entries in a file of the log until `goes_on` is false. Returns the number
/// of other lines, and true if the file was read to its end.
///
/// # Errors
///
/// The file cannot be read.
fn read_file<E: LogEntry>(
    store: &dyn Store,
    path: &RelPath,
    deadline: Deadline<'_>,
    goes_on: &AtomicBool,
    mut each: impl FnMut(E),
) -> Result<(u64, bool)> {
    let file = store.open(path)?;
    let has_time = || goes_on.load(Ordering::Relaxed) && deadline.has_time();
    let lines = jsonl::for_each(&*file, Deadline::new(&has_time), |line| {
        // The deadline is polled between chunks; the rest of one is not parsed.
        !goes_on.load(Ordering::Relaxed) || serde_json::from_slice::<E>(line).map(&mut each).is_ok()
    })?;
    Ok((lines.bad, lines.partial.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_log_are_in_the_order_of_their_changes() {
        let names = [
            "2026-01-19.jsonl",
            "2026-01-20.jsonl",
            "2026-01-20.uid7.jsonl",
            "2026-01-20.uid7.pid9.jsonl",
            "2026-01-20.2.jsonl",
            "2026-01-20.uid7.2.jsonl",
            "2026-01-20.10.jsonl",
        ];
        let parsed = names.map(|name| LogName::parse(&Name::new(name).unwrap()).unwrap());
        assert!(parsed.is_sorted(), "{parsed:?}");
        assert_eq!(parsed.map(|name| name.to_name().unwrap().to_text().into_owned()), names);
        for other in [
            "x.jsonl",
            "2026-01-20",
            "2026-01-20.x.jsonl",
            "2026-01-20.2.3.jsonl",
            "2026-01-20.pid9.uid7.jsonl",
        ] {
            assert_eq!(LogName::parse(&Name::new(other).unwrap()), None, "{other}");
        }
    }
}
