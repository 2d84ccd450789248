//! Appends to the log of changes, and keeps its size within a limit.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::Timestamp;
use rustix::io::Errno;
use serde::de::IgnoredAny;

use super::dir::{Dir, Metadata, from_io};
use super::error::{During, Result};
use super::lines::{append_lines, to_line};
use super::lock::lock_file;
use crate::audit::{self, AuditEntry, LogName};
use crate::error::Error as PathError;
use crate::name::Name;

/// Share of the limit that one file may have. The oldest file is removed as a whole, so a limit
/// needs several.
const FILES: u64 = 4;
/// Limit of one file, in bytes, however large the log may be. Readers read as much.
const FILE_MAX: u64 = 64 << 20;
/// Attempts to find a file with room, against other processes that fill or remove it.
const ATTEMPTS: u32 = 100;

/// Appends `entry` to the log beneath `root`. Old files are removed until all have at most `limit`
/// bytes.
///
/// # Errors
///
/// The log cannot be written.
pub(super) fn append(root: &Dir, entry: &AuditEntry, limit: u64) -> Result<()> {
    let folder = Path::new(audit::FOLDER);
    append_to(root, entry, limit).during("write the log of changes", &root.path().join(folder), b"")
}

fn append_to(root: &Dir, entry: &AuditEntry, limit: u64) -> Result<(), PathError> {
    let folder = root.enter_or_create(&Name::new(audit::FOLDER)?)?;
    append_line(&folder, &to_line(entry)?, (entry.time, entry.uid), limit)
}

/// Appends whole lines to the log in `folder`, whose files have the names of [`LogName`]. `time`
/// and `uid` are those of the first entry. Old files are removed until all have at most `limit`
/// bytes.
///
/// # Errors
///
/// The log cannot be written.
pub(crate) fn append_line(
    folder: &Dir,
    line: &[u8],
    (time, uid): (Timestamp, u32),
    limit: u64,
) -> Result<(), PathError> {
    let mut log = latest(folder, audit::day(time), None)?;
    for _ in 0..ATTEMPTS {
        let name = log.to_name()?;
        let mut file = match folder.open_append(&name) {
            // A file of another user may be closed to this one, or no file at all. This user then
            // writes a file of its own.
            Err(error) if log.uid.is_none() && is_closed(&error) => {
                log = latest(folder, log.day, Some(uid))?;
                continue;
            }
            opened => opened?,
        };
        lock_file(&file)?;
        let meta = file.metadata().map_err(from_io)?;
        // Another process removed it between the open and the lock.
        if meta.nlink() == 0 {
            continue;
        }
        let size = meta.len();
        if size > 0 && size.saturating_add(line.len() as u64) > file_max(limit) {
            log.part += 1;
            continue;
        }
        let is_complete = |line: &[u8]| serde_json::from_slice::<IgnoredAny>(line).is_ok();
        append_lines(&mut file, line, is_complete, |_| Ok(()))?;
        return if size == 0 { remove_oldest(folder, &log, limit) } else { Ok(()) };
    }
    Err(PathError::Io(Errno::BUSY))
}

/// Returns the limit of one file, in bytes.
fn file_max(limit: u64) -> u64 {
    (limit / FILES).min(FILE_MAX)
}

/// Returns the name of the latest file of a day: of a user, or for all. Earlier ones are full, or
/// were removed.
fn latest(folder: &Dir, day: String, uid: Option<u32>) -> Result<LogName, PathError> {
    let names = folder.list()?;
    let logs = names.iter().filter_map(LogName::parse);
    let latest = logs.filter(|log| log.day == day && log.uid == uid).max();
    Ok(latest.unwrap_or(LogName { day, part: 1, uid }))
}

/// Returns true if a file cannot be opened for writing by this user.
fn is_closed(error: &PathError) -> bool {
    let is_denied = matches!(error, PathError::Io(Errno::ACCESS | Errno::PERM));
    is_denied || error.is_not_a_file()
}

/// Removes the oldest files of the log until the others, and room for `current`, are within
/// `limit`.
fn remove_oldest(folder: &Dir, current: &LogName, limit: u64) -> Result<(), PathError> {
    let mut files = Vec::new();
    for name in folder.list()? {
        if let Some(log) = LogName::parse(&name).filter(|log| log != current)
            && let Some(meta) = folder.meta(&name)?.filter(Metadata::is_file)
        {
            files.push((log, name, meta.len()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(.., size)| size).sum::<u64>() + file_max(limit);
    for (_, name, size) in files {
        if total <= limit {
            break;
        }
        match folder.remove_tree(&name) {
            Ok(()) => total -= size,
            // A file of another user in a directory with the sticky bit.
            Err(error) if is_closed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the entry of a change that happens now.
pub(super) fn entry(action: &str, role: Option<String>) -> AuditEntry {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    AuditEntry {
        time: Timestamp::now(),
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id(),
        program: program.to_string_lossy().into_owned(),
        role,
        action: action.to_owned(),
        worker: None,
        paths: Vec::new(),
        result: "ok".to_owned(),
    }
}
