//! Counts the matching lines in the files of one worker.

use super::Pattern;
use super::lines::{
    CopiedLines, CountedLines, FileSearcher, FoundLine, RecordFormat, SearchEnd, SearchedRecord,
    StopReason,
};
use crate::view::{Folder, Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;

/// Maximum number of records that are named for a file.
const NAMED_MAX: usize = 8;

#[derive(Debug, Clone, Default)]
pub struct WorkerMatchCounts {
    /// Number of files that were searched to their end.
    pub files: u64,
    pub bytes: u64,
    /// The files with matching lines, ordered by path.
    pub hits: Vec<FileMatchCount>,
    /// The files that were searched to their end and have no matching line, ordered by path. They
    /// are listed only on request.
    pub others: Vec<RelPath>,
    pub unsearched: Unsearched,
}

#[derive(Debug, Clone)]
pub struct FileMatchCount {
    pub path: RelPath,
    /// Number of matching lines without copies.
    pub lines: u64,
    /// Total length of these lines in bytes; each line counts up to the length that is shown.
    pub text: u64,
    pub copies: CopiedLines,
    /// Records that repeat some of these lines; a few if there are many.
    pub also_in: Vec<RelPath>,
}

/// Properties of a worker's files, by their paths in its directory.
pub struct FileTraits<'a> {
    /// Returns the path in the tree.
    pub shown: &'a dyn Fn(&RelPath) -> RelPath,
    /// Returns the format of a record, and `None` for any other file.
    pub record: &'a dyn Fn(&RelPath) -> Option<RecordFormat>,
}

/// Files that were not searched, or not to their end, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsearched {
    pub binary: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// Files that were searched up to a line that is too long.
    pub long_line: u64,
    /// Files that were not searched in time.
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
/// searched to their end when `deadline` passes count as unsearched. Records are searched last, the
/// shortest first, and their lines do not count if they only repeat counted lines.
///
/// Each line counts with at most `line_max` bytes. The files without a match are listed if
/// `lists_others`.
///
/// # Errors
/// The worker's directory cannot be read.
pub fn search(
    view: &View,
    member: &Member,
    traits: &FileTraits<'_>,
    pattern: &Pattern,
    (line_max, lists_others): (usize, bool),
    deadline: Deadline<'_>,
) -> Result<WorkerMatchCounts> {
    let folder = view.folder(member)?;
    folder.prepare(deadline)?;
    let (files, unreadable) = folder.files()?;
    let mut search = FileSearcher::without_line_numbers(pattern);
    let mut found = WorkerMatchCounts::default();
    found.unsearched.unreadable = unreadable;
    let files = in_search_order(&folder, files, traits, pattern);
    // The lines without a match are no texts that a record would repeat.
    let format_of = |format: Option<RecordFormat>| format.filter(|_| !pattern.inverted);
    let has_records = files.last().is_some_and(|(_, format)| format_of(*format).is_some());
    let mut counted = CountedLines::new(pattern);
    let mut hits: Vec<(u32, FileMatchCount)> = Vec::new();
    for (number, (path, format)) in (0..).zip(&files) {
        let mut record = format_of(*format).map(|format| SearchedRecord::new(number, format));
        let (mut lines, mut text, mut has_match) = (0, 0, false);
        let end = search_file(&folder, path, &mut search, deadline, |line| {
            has_match = true;
            if let Some(record) = &mut record {
                if counted.add_record_line(record, line.bytes) {
                    return true;
                }
            } else if has_records {
                counted.add(number, line.bytes);
            }
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
        let is_searched = end.is_ok_and(|end| end.stopped.is_none());
        if lists_others && is_searched && !has_match {
            found.others.push(path.clone());
        }
        if lines > 0 {
            let copies = record.map(|record| record.copies).unwrap_or_default();
            let path = path.clone();
            hits.push((number, FileMatchCount { path, lines, text, copies, also_in: Vec::new() }));
        }
    }
    for (number, hit) in &mut hits {
        let records = counted.records_with(*number);
        let paths = records.filter_map(|record| Some(files.get(record as usize)?.0.clone()));
        hit.also_in = paths.take(NAMED_MAX).collect();
    }
    found.hits = hits.into_iter().map(|(_, hit)| hit).collect();
    found.hits.sort_by(|a, b| a.path.cmp(&b.path));
    found.others.sort();
    Ok(found)
}

/// Returns the files that `pattern` applies to, with the formats of records. Records come last, the
/// shortest first, so that a text counts in the shortest file that holds it.
fn in_search_order(
    folder: &Folder,
    files: Vec<RelPath>,
    traits: &FileTraits<'_>,
    pattern: &Pattern,
) -> Vec<(RelPath, Option<RecordFormat>)> {
    let applied = files.into_iter().filter(|path| pattern.applies_to(traits.shown, path));
    let (mut records, mut files) = (Vec::new(), Vec::new());
    for path in applied {
        match (traits.record)(&path) {
            Some(format) => {
                let size = folder.size(&path).unwrap_or(u64::MAX);
                records.push((format != RecordFormat::Text, size, path, format));
            }
            None => files.push((path, None)),
        }
    }
    records.sort();
    files.extend(records.into_iter().map(|(_, _, path, format)| (path, Some(format))));
    files
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
