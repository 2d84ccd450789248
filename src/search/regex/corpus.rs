//! Counts the matching lines in the files of one worker.

use super::lines::{FileSearcher, FoundLine, SearchEnd, StopReason};
use super::pattern::Pattern;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::name::RelPath;
use crate::view::{Folder, Member, View};

/// The matches in the files of a worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerMatchCounts {
    /// Number of files that were searched to their end.
    pub files: u64,
    /// Amount of data read, in bytes.
    pub bytes: u64,
    /// The files with matching lines, ordered by path.
    pub hits: Vec<FileMatchCount>,
    /// Files that were not searched.
    pub unsearched: Unsearched,
}

/// The number of matching lines in a file.
#[derive(Debug, Clone)]
pub struct FileMatchCount {
    /// Path of the file, relative to the worker's directory.
    pub path: RelPath,
    /// Number of matching lines.
    pub lines: u64,
    /// Total length of these lines in bytes; each line counts up to the length that is shown.
    pub text: u64,
}

/// Files that were not searched, or not to their end, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsearched {
    /// Binary files.
    pub binary: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// Files that were searched up to a line that is too long.
    pub long_line: u64,
    /// Files that there was no time to search.
    pub late: u64,
}

impl std::ops::AddAssign for Unsearched {
    fn add_assign(&mut self, more: Unsearched) {
        self.binary += more.binary;
        self.unreadable += more.unreadable;
        self.long_line += more.long_line;
        self.late += more.late;
    }
}

/// Counts the matching lines in each file of a worker that `pattern` applies to. Files that are not
/// searched to their end when `deadline` passes count as unsearched.
///
/// `shown` maps a path in the worker's directory to its path in the tree. Each line counts with at
/// most `line_max` bytes.
///
/// # Errors
/// The worker's directory cannot be read.
pub fn search(
    view: &View,
    member: &Member,
    shown: &dyn Fn(&RelPath) -> RelPath,
    pattern: &Pattern,
    line_max: usize,
    deadline: Deadline<'_>,
) -> Result<WorkerMatchCounts> {
    let folder = view.folder(member)?;
    let (files, unreadable) = folder.files()?;
    let mut search = FileSearcher::without_line_numbers(pattern);
    let mut found = WorkerMatchCounts::default();
    found.unsearched.unreadable = unreadable;
    for path in files {
        if !pattern.applies_to(&shown, &path) {
            continue;
        }
        let (mut lines, mut text) = (0, 0);
        let end = search_file(&folder, &path, &mut search, deadline, |line| {
            lines += 1;
            text += line.bytes.len().min(line_max) as u64;
            true
        });
        match end {
            // The file was removed meanwhile.
            Err(Error::NotFound) => continue,
            Err(_) => found.unsearched.unreadable += 1,
            Ok(end) => {
                found.bytes = found.bytes.saturating_add(end.bytes);
                match end.stopped {
                    None => found.files += 1,
                    Some(StopReason::Unreadable) => found.unsearched.unreadable += 1,
                    Some(StopReason::Binary) => found.unsearched.binary += 1,
                    Some(StopReason::Late) => found.unsearched.late += 1,
                    Some(StopReason::LongLine) => found.unsearched.long_line += 1,
                }
            }
        }
        if lines > 0 {
            found.hits.push(FileMatchCount { path, lines, text });
        }
    }
    Ok(found)
}

fn search_file(
    folder: &Folder,
    path: &RelPath,
    search: &mut FileSearcher<'_>,
    deadline: Deadline<'_>,
    take: impl FnMut(FoundLine<'_>) -> bool,
) -> Result<SearchEnd> {
    if !deadline.has_time() {
        return Ok(SearchEnd { bytes: 0, stopped: Some(StopReason::Late) });
    }
    let file = folder.open(path)?;
    Ok(search.each_line(&*file, deadline, take))
}

/// Calls `take` with the matching lines of a file and `context` lines around each, until `take`
/// returns false.
///
/// # Errors
/// The worker's directory or the file cannot be opened.
pub fn lines(
    view: &View,
    member: &Member,
    path: &RelPath,
    (pattern, context): (&Pattern, usize),
    deadline: Deadline<'_>,
    take: impl FnMut(FoundLine<'_>) -> bool,
) -> Result<SearchEnd> {
    search_file(
        &view.folder(member)?,
        path,
        &mut FileSearcher::with_context(pattern, context),
        deadline,
        take,
    )
}
