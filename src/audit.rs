//! The log of changes to a store: one line of JSON per change, in a file per day.
//!
//! The log is in `audit/` of the store. This module defines its entries and reads them;
//! [`crate::write`] appends. Whoever may write to a store may also change its log: it says what
//! happened, and proves nothing against its writers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Store};
use crate::trace::jsonl;

/// The directory of the log, in the root of a store.
pub const FOLDER: &str = "audit";
/// Suffix of the files of the log. The name before it begins with the day.
const SUFFIX: &str = ".jsonl";

/// One change of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Time of the change, UTC.
    pub time: Timestamp,
    /// User id of the process that made it.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Role of the process, such as `worker:w1` for a command that runs as that worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What was done: `init`, `create`, `record`, `message`, `put`, `finish` or `repair`.
    pub action: String,
    /// Id of the worker, if the change belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The written files, from the root of the store.
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
    /// Number of written bytes.
    pub bytes: u64,
    /// SHA-256 of the written bytes; absent for large outputs of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Selects entries of the log.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only changes at this time or later.
    pub since: Option<Timestamp>,
    /// Only changes of this worker.
    pub worker: Option<String>,
}

impl AuditFilter {
    fn matches(&self, entry: &AuditEntry) -> bool {
        self.since.is_none_or(|since| entry.time >= since)
            && self.worker.as_ref().is_none_or(|worker| entry.worker.as_ref() == Some(worker))
    }
}

/// What reading the log left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditSkips {
    /// Files that could not be read.
    pub files: u64,
    /// Lines that are no entries.
    pub lines: u64,
}

/// Returns the start of the name of a day's files: `2026-01-20`.
pub(crate) fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// Returns the name of a file of the log. `part` tells the files of one day apart; it is empty for
/// the first one.
pub(crate) fn file_name(day: &str, part: &str) -> Result<Name> {
    let dot = if part.is_empty() { "" } else { "." };
    Name::new(format!("{day}{dot}{part}{SUFFIX}"))
}

/// Returns true if `name` is that of a file of the log.
pub(crate) fn is_log(name: &Name) -> bool {
    name.to_text().ends_with(SUFFIX)
}

/// Calls `each` with the entries that match `filter`, file by file in the order of their names. The
/// entries of a file are in the order in which they were written. `each` returns false to stop.
///
/// # Errors
///
/// The directory of the log cannot be listed. A store without a log has no entries.
pub fn read(
    store: &dyn Store,
    filter: &AuditFilter,
    deadline: Deadline<'_>,
    mut each: impl FnMut(AuditEntry) -> bool,
) -> Result<AuditSkips> {
    let folder = RelPath::constant(FOLDER);
    let listed = match store.list(&folder) {
        Err(Error::NotFound) => return Ok(AuditSkips::default()),
        listed => listed?,
    };
    // A file holds the changes of the day in its name, so older files need not be read.
    let first = filter.since.map(day).unwrap_or_default();
    let mut names: Vec<Name> = listed
        .into_iter()
        .filter(|entry| entry.kind == Kind::File && is_log(&entry.name))
        .map(|entry| entry.name)
        .filter(|name| *name.to_text() >= *first)
        .collect();
    names.sort();
    let (mut skipped, mut goes_on) = (AuditSkips::default(), true);
    for name in names {
        let Ok(file) = store.open(&folder.join(&name)) else {
            skipped.files += 1;
            continue;
        };
        let lines = jsonl::for_each(&*file, deadline, |line| {
            let Ok(entry) = serde_json::from_slice::<AuditEntry>(line) else { return false };
            if goes_on && filter.matches(&entry) {
                goes_on = each(entry);
            }
            true
        });
        match lines {
            Ok(lines) => skipped.lines += lines.bad,
            Err(_) => skipped.files += 1,
        }
        if !goes_on {
            break;
        }
    }
    Ok(skipped)
}
