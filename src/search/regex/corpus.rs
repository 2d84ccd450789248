//! The files of one worker, searched: how many lines of each match.

use super::lines::{End, Line, Search, Stopped};
use super::pattern::Pattern;
use crate::error::{Error, Result};
use crate::name::RelPath;
use crate::view::{Folder, Member, View};

/// What was found in the files of a worker.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// How many files were searched to their end.
    pub files: u64,
    /// What was read of all files, in bytes.
    pub bytes: u64,
    /// The files with lines that match, by path.
    pub hits: Vec<Hits>,
    /// What was not searched.
    pub unsearched: Unsearched,
}

/// The lines of a file that match.
#[derive(Debug, Clone)]
pub struct Hits {
    /// The file, from the worker's folder.
    pub path: RelPath,
    /// How many lines.
    pub lines: u64,
    /// How long these lines are together, in bytes; of one line no more than is shown of it.
    pub text: u64,
}

/// Files that were not searched, or not to their end, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsearched {
    /// No text.
    pub binary: u64,
    /// Files and folders that could not be read.
    pub unreadable: u64,
    /// Searched up to a line that is too long.
    pub long_line: u64,
    /// There was no time for them.
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

/// Counts the lines that match in each file of a worker that `pattern` is for; `shown` says where a file of it is shown in
/// the tree. Of a line at most `line_max` bytes count. Errors: the worker's folder cannot be read.
pub fn search(
    view: &View,
    member: &Member,
    shown: &dyn Fn(&RelPath) -> RelPath,
    pattern: &Pattern,
    line_max: usize,
    go_on: &dyn Fn() -> bool,
) -> Result<Found> {
    let folder = view.folder(member)?;
    let (files, unreadable) = folder.files()?;
    let mut search = Search::of_lines(pattern);
    let mut found = Found::default();
    found.unsearched.unreadable = unreadable;
    for path in files {
        if !pattern.is_for(&shown, &path) {
            continue;
        }
        let (mut lines, mut text) = (0, 0);
        let count = |line: Line<'_>| {
            lines += 1;
            text += line.bytes.len().min(line_max) as u64;
            true
        };
        match in_file(&folder, &path, &mut search, go_on, count) {
            // It went meanwhile.
            Err(Error::NotFound) => continue,
            Err(_) => found.unsearched.unreadable += 1,
            Ok(end) => {
                found.bytes = found.bytes.saturating_add(end.bytes);
                match end.stopped {
                    None => found.files += 1,
                    Some(Stopped::Unreadable) => found.unsearched.unreadable += 1,
                    Some(Stopped::Binary) => found.unsearched.binary += 1,
                    Some(Stopped::Late) => found.unsearched.late += 1,
                    Some(Stopped::LongLine) => found.unsearched.long_line += 1,
                }
            }
        }
        if lines > 0 {
            found.hits.push(Hits { path, lines, text });
        }
    }
    Ok(found)
}

fn in_file(
    folder: &Folder,
    path: &RelPath,
    search: &mut Search<'_>,
    go_on: &dyn Fn() -> bool,
    take: impl FnMut(Line<'_>) -> bool,
) -> Result<End> {
    if !go_on() {
        return Ok(End { bytes: 0, stopped: Some(Stopped::Late) });
    }
    let file = folder.open(path)?;
    Ok(search.each_line(&*file, go_on, take))
}

/// Gives the lines of the file `path` of a worker that match, and so many around them, until `take` says no.
pub fn lines(
    view: &View,
    member: &Member,
    path: &RelPath,
    (pattern, context): (&Pattern, usize),
    go_on: &dyn Fn() -> bool,
    take: impl FnMut(Line<'_>) -> bool,
) -> Result<End> {
    in_file(&view.folder(member)?, path, &mut Search::of_places(pattern, context), go_on, take)
}
