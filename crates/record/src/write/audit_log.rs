//! Appends to the log of changes, and keeps its size within a limit.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::Timestamp;
use rustix::io::Errno;
use serde::de::IgnoredAny;

use super::dir::{Dir, Metadata, from_io, lock_file};
use super::error::{During, Result};
use super::lines::{append_lines, to_line};
use crate::audit::{self, AuditEntry, LogGroup, LogName};
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::Name;

/// Share of the limit that one file may have. The oldest file is removed as a whole, so a limit
/// needs several.
const FILES: u64 = 16;
/// Share of a file's limit that is written between two checks of the limit of the log.
const CHECKS: u64 = 8;
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
    let (line, day) = (to_line(entry)?, audit::day(entry.time));
    match append_line(&folder, &line, day.clone(), LogGroup::default(), limit) {
        // A file of another user may be closed to this one, or no file at all. This user then
        // writes a file of its own.
        Err(error) if is_closed(&error) => {
            let group = LogGroup { uid: Some(entry.uid), pid: None };
            append_line(&folder, &line, day, group, limit).map(drop)
        }
        appended => appended.map(drop),
    }
}

/// Appends whole lines of `group` to the log in `folder`, whose files have the names of
/// [`LogName`]. `day` is the day of the first entry. Files are removed until all have at most about
/// `limit` bytes. Returns the number of entries in them.
///
/// # Errors
///
/// The log cannot be written.
pub fn append_line(
    folder: &Dir,
    line: &[u8],
    day: String,
    group: LogGroup,
    limit: u64,
) -> Result<u64, PathError> {
    let mut log = latest(folder, day, group)?;
    for _ in 0..ATTEMPTS {
        let name = log.to_name()?;
        let mut file = folder.open_append(&name)?;
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
        let step = (file_max(limit) / CHECKS).max(1);
        let size_after = size + line.len() as u64;
        let is_due = size == 0 || size / step != size_after / step;
        let room = file_max(limit).max(size_after);
        return if is_due { remove_oldest(folder, &log, room, limit) } else { Ok(0) };
    }
    Err(PathError::Io(Errno::BUSY))
}

fn file_max(limit: u64) -> u64 {
    (limit / FILES).min(FILE_MAX)
}

/// Returns the name of the latest file of a day and a group. Earlier ones are full, or were
/// removed.
fn latest(folder: &Dir, day: String, group: LogGroup) -> Result<LogName, PathError> {
    let names = folder.list()?;
    let logs = names.iter().filter_map(LogName::parse);
    let latest = logs.filter(|log| log.day == day && log.group == group).max();
    Ok(latest.unwrap_or(LogName { day, part: 1, group }))
}

/// Returns true if a file cannot be opened for writing by this user.
fn is_closed(error: &PathError) -> bool {
    let is_denied = matches!(error, PathError::Io(Errno::ACCESS | Errno::PERM));
    is_denied || error.is_not_a_file()
}

/// Removes files of the log until the others, and `room` for `current`, are within `limit`. Returns
/// the number of entries in them.
fn remove_oldest(folder: &Dir, current: &LogName, room: u64, limit: u64) -> Result<u64, PathError> {
    let mut files = Vec::new();
    for name in folder.list()? {
        if let Some(log) = LogName::parse(&name).filter(|log| log != current)
            && let Some(meta) = folder.meta(&name)?.filter(Metadata::is_file)
        {
            files.push((log, name, meta.len()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(.., size)| size).sum::<u64>() + room;
    let mut removed = 0;
    while total > limit {
        let group = heaviest_group(&files);
        let Some(at) = files.iter().position(|(log, ..)| group == Some(log.group)) else { break };
        let (_, name, size) = files.remove(at);
        // A file that cannot be read is removed uncounted.
        let contents = folder.read(&name, FILE_MAX).ok().flatten().unwrap_or_default();
        match folder.remove_tree(&name) {
            Ok(()) => {
                total -= size;
                removed += memchr::memchr_iter(b'\n', &contents).count() as u64;
            }
            // A file of another user in a directory with the sticky bit.
            Err(error) if is_closed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

/// Returns the group that loses entries next: the user with the most bytes, and the process with
/// the most of that user. The processes with files of their own are compared together with all
/// others of their user first, so that many of them remove no more than one.
fn heaviest_group(files: &[(LogName, Name, u64)]) -> Option<LogGroup> {
    let groups = files.iter().map(|(log, _, size)| (log.group, *size));
    let uid = heaviest(groups.clone().map(|(group, size)| (group.uid, size)))?;
    let of_user = groups.filter(|(group, _)| group.uid == uid);
    let has_pid = heaviest(of_user.clone().map(|(group, size)| (group.pid.is_some(), size)))?;
    heaviest(of_user.filter(|(group, _)| group.pid.is_some() == has_pid))
}

/// Returns the key with the largest sum of sizes.
fn heaviest<K: Ord>(sizes: impl Iterator<Item = (K, u64)>) -> Option<K> {
    let mut sums: BTreeMap<K, u64> = BTreeMap::new();
    sizes.for_each(|(key, size)| *sums.entry(key).or_default() += size);
    sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(key, _)| key)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_the_most_entries_lose_the_next_ones() {
        let next = |files: &[(u32, Option<u32>, u64)]| {
            let file = |(uid, pid, size): &(u32, Option<u32>, u64)| {
                let group = LogGroup { uid: Some(*uid), pid: *pid };
                let log = LogName { day: "2026-01-20".to_owned(), part: 1, group };
                let name = log.to_name().unwrap();
                (log, name, *size)
            };
            let files: Vec<_> = files.iter().map(file).collect();
            heaviest_group(&files).map(|group| (group.uid.unwrap(), group.pid))
        };
        assert_eq!(next(&[]), None);
        // Users first, then the processes of one.
        assert_eq!(next(&[(1, None, 5), (2, None, 3), (2, Some(7), 3)]), Some((2, Some(7))));
        assert_eq!(next(&[(1, None, 5), (1, Some(7), 3), (1, Some(8), 1)]), Some((1, None)));
        assert_eq!(next(&[(1, None, 5), (1, Some(7), 2), (1, Some(8), 4)]), Some((1, Some(8))));
    }
}
