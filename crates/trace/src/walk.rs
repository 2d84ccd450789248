//! A bounded walk over the files beneath a directory of a store, shared by detection and by formats
//! whose workers are files.
//!
//! The order is fixed: the files of a directory by name, then its directories by name. Symlinks are
//! not followed, and hidden directories are not entered.

use rustix::io::Errno;

use super::Candidates;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{SkipReason, SkipReport};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

/// Maximum depth of a listed directory, counted from the directory where the walk begins.
const DEPTH_MAX: usize = 8;
/// Maximum number of entries that a walk visits, unless it has another limit.
const ENTRIES_MAX: usize = 1_000_000;
const EXCESS: Error =
    Error::Malformed("it holds more than 1,000,000 entries, and the last ones are not shown");

/// An entry that the walk does not enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    pub path: RelPath,
    /// Type of the entry: a file, a symlink, a special file, or a directory named as such.
    pub kind: Kind,
}

/// An iterator over the entries beneath a directory that are not directories themselves.
///
/// An error belongs to a directory that could not be listed for a moment. The walk continues after
/// it.
pub struct Walk<'a> {
    store: &'a dyn Store,
    start: RelPath,
    /// Names of directories that are entries themselves.
    leaves: Vec<&'static str>,
    /// Names in the first directory that are listed before its other directories.
    preferred: Vec<&'static str>,
    deadline: Deadline<'a>,
    entries_left: usize,
    is_complete: bool,
    /// Directories to list; the next one is the last.
    folders: Vec<RelPath>,
    /// Entries of the directory that was listed last; the next one is the last.
    entries: Vec<WalkEntry>,
    skipped: SkipReport,
}

impl<'a> Walk<'a> {
    pub fn new(store: &'a dyn Store, start: RelPath) -> Walk<'a> {
        Walk {
            store,
            leaves: Vec::new(),
            preferred: Vec::new(),
            deadline: Deadline::never(),
            entries_left: ENTRIES_MAX,
            is_complete: true,
            folders: vec![start.clone()],
            start,
            entries: Vec::new(),
            skipped: SkipReport::default(),
        }
    }

    /// Ends the walk after `entries` entries, and once `deadline` passes.
    pub fn with_limits(self, entries: usize, deadline: Deadline<'a>) -> Walk<'a> {
        Walk { entries_left: entries, deadline, ..self }
    }

    /// Lists the directories called `names` before the other directories of the first one.
    pub fn preferring(self, names: impl IntoIterator<Item = &'static str>) -> Walk<'a> {
        Walk { preferred: names.into_iter().collect(), ..self }
    }

    /// Makes the directories called `names` entries, and does not enter them.
    pub fn not_entering(self, names: impl IntoIterator<Item = &'static str>) -> Walk<'a> {
        Walk { leaves: names.into_iter().collect(), ..self }
    }

    pub fn into_skipped(self) -> SkipReport {
        self.skipped
    }

    /// Returns false if a limit ended the walk.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn list(&mut self, folder: &RelPath) -> Result<()> {
        let mut listed = match self.store.list(folder) {
            Ok(listed) => listed,
            Err(error) if *folder == self.start => return Err(error),
            Err(Error::NotFound | Error::NotADirectory) => return Ok(()),
            Err(Error::Escape | Error::Special) => {
                self.skipped.add(folder.clone(), SkipReason::ForeignMount, None);
                return Ok(());
            }
            Err(error @ Error::Io(Errno::ACCESS | Errno::PERM)) => {
                self.skipped.add(folder.clone(), SkipReason::Unreadable, Some(error));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if listed.len() > self.entries_left {
            self.is_complete = false;
        }
        // Sorted before it is cut, so that the order of the listing decides nothing.
        listed.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        listed.truncate(self.entries_left);
        self.entries_left -= listed.len();
        let (folders, entries): (Vec<DirEntry>, Vec<DirEntry>) =
            listed.into_iter().partition(|entry| {
                let is_leaf =
                    self.leaves.iter().any(|leaf| leaf.as_bytes() == entry.name.as_bytes());
                entry.kind == Kind::Folder && !is_leaf
            });
        let entry =
            |entry: DirEntry| WalkEntry { path: folder.join(&entry.name), kind: entry.kind };
        self.entries = entries.into_iter().rev().map(entry).collect();
        if folder.depth() < self.start.depth() + DEPTH_MAX {
            let (first, others) = folders
                .into_iter()
                .map(|entry| entry.name)
                .filter(|name| !name.as_bytes().starts_with(b"."))
                .partition::<Vec<Name>, _>(|name| self.is_preferred(folder, name));
            let next = others.iter().rev().chain(first.iter().rev());
            self.folders.extend(next.map(|name| folder.join(name)));
        }
        Ok(())
    }

    fn is_preferred(&self, folder: &RelPath, name: &Name) -> bool {
        *folder == self.start
            && self.preferred.iter().any(|other| other.as_bytes() == name.as_bytes())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        loop {
            if let Some(entry) = self.entries.pop() {
                return Some(Ok(entry));
            }
            let folder = self.folders.pop()?;
            if self.entries_left == 0 || !self.deadline.has_time() {
                self.is_complete = false;
                self.folders.clear();
                return None;
            }
            if let Err(error) = self.list(&folder) {
                return Some(Err(error));
            }
        }
    }
}

/// Finds the files beneath the directory `start` whose paths `accepts` admits. A symlink or special
/// file with such a path is reported as skipped.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub fn walk(
    store: &dyn Store,
    start: RelPath,
    accepts: impl Fn(&RelPath) -> bool,
) -> Result<Candidates> {
    let (mut walk, mut folders) = (Walk::new(store, start.clone()), Vec::new());
    while let Some(entry) = walk.next() {
        let WalkEntry { path, kind } = entry?;
        if !accepts(&path) {
            continue;
        }
        match kind {
            Kind::File => folders.push(path),
            Kind::Link => walk.skipped.add(path, SkipReason::Link, None),
            Kind::Special | Kind::Folder => walk.skipped.add(path, SkipReason::Special, None),
        }
    }
    if !walk.is_complete {
        walk.skipped.add(start, SkipReason::Unreadable, Some(EXCESS));
    }
    Ok(Candidates { folders, skipped: walk.skipped, ..Candidates::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::store::Memory;

    fn store(files: &[&str]) -> Memory {
        let store = Memory::new();
        files.iter().for_each(|file| store.write(&RelPath::constant(file), ""));
        store
    }

    fn paths(walk: Walk<'_>) -> Vec<String> {
        walk.map(|entry| entry.unwrap().path.display()).collect()
    }

    #[test]
    fn walk_lists_files_before_folders_and_skips_hidden_ones() {
        let store = store(&["z", "b/y", "b/a/x", "a/w", ".hidden/v", ".dot", "c/u"]);
        let all = paths(Walk::new(&store, RelPath::root()));
        assert_eq!(all, [".dot", "z", "a/w", "b/y", "b/a/x", "c/u"]);
        let preferred = paths(Walk::new(&store, RelPath::root()).preferring(["c"]));
        assert_eq!(preferred, [".dot", "z", "c/u", "a/w", "b/y", "b/a/x"]);
        assert_eq!(paths(Walk::new(&store, RelPath::constant("b"))), ["b/y", "b/a/x"]);
    }

    #[test]
    fn walk_ends_at_its_limits() {
        let store = store(&["a", "b", "c/d", "c/e", "1/2/3/4/5/6/7/8/in", "1/2/3/4/5/6/7/8/9/out"]);
        let mut walk = Walk::new(&store, RelPath::root());
        let all: Vec<String> = walk.by_ref().map(|entry| entry.unwrap().path.display()).collect();
        assert_eq!(all, ["a", "b", "1/2/3/4/5/6/7/8/in", "c/d", "c/e"]);
        assert!(walk.is_complete());
        let mut short = Walk::new(&store, RelPath::root()).with_limits(3, Deadline::never());
        assert_eq!(short.by_ref().count(), 2, "the limit counts directories, too");
        assert!(!short.is_complete());
        let mut late = Walk::new(&store, RelPath::root()).with_limits(9, Deadline::passed());
        assert_eq!((late.next(), late.is_complete()), (None, false));
    }

    #[test]
    fn walk_reports_links_with_accepted_names() {
        let store = store(&["a/x.json", "a/y.txt"]);
        store.put(&RelPath::constant("b/z.json"), Kind::Link);
        store.put(&RelPath::constant("b/other"), Kind::Link);
        let accepts = |path: &RelPath| path.as_bytes().ends_with(b".json");
        let found = walk(&store, RelPath::root(), accepts).unwrap();
        assert_eq!(found.folders, [RelPath::constant("a/x.json")]);
        let links = found.skipped.entries(SkipReason::Link);
        assert!(links.examples.into_keys().eq([RelPath::constant("b/z.json")]));
        assert_eq!(
            walk(&store, RelPath::constant("none"), accepts).map(|found| found.folders),
            Err(Error::NotFound)
        );
    }
}
