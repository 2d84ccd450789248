//! Finds the paths that may differ between the upper layer of an overlay and the workspace below.
//!
//! The upper layer holds the worker's writes: a deleted name is the device 0:0, a directory that
//! replaced one has the attribute "opaque", and everything in an opaque directory hides the entries
//! below. The workspace is live: others may change it at any time.

use std::path::Path;

use super::candidate::{
    LiveEntry, OldEntry, PossibleChange, SearchResult, SearchStop, Visitor, is_gone, unreadable,
};
use super::ignore_rules::{IgnoreRules, RULES_FILE};
use super::limits::{DEPTH_MAX, HIDDEN};
use super::opened::OpenedFolder;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFolder};
use swarmletfs_record::write::During;

/// Mark of a directory that hides the directory below.
const OPAQUE: &str = "user.overlay.opaque";

pub(super) struct OverlayWalk<'a> {
    pub(super) workspace: &'a Path,
    pub(super) hidden: &'a [RelPath],
    pub(super) deadline: Deadline<'a>,
    /// True if the worker has ended, so that permissions may be changed to read its files.
    pub(super) may_change_modes: bool,
    pub(super) rules: IgnoreRules,
    /// Number of ignored paths; an ignored directory counts once.
    pub(super) ignored: u64,
    pub(super) visitor: &'a mut dyn Visitor,
}

struct MergedFolder<'a> {
    path: RelPath,
    upper: &'a OpenFolder,
    names: &'a [Name],
    lower: Option<&'a OpenFolder>,
    is_opaque: bool,
}

impl OverlayWalk<'_> {
    pub(super) fn run(&mut self, upper: &OpenFolder, lower: &OpenFolder) -> SearchResult<()> {
        let path = RelPath::root();
        let names = &upper.list().during("read the changes of", self.workspace, b"")?;
        self.walk(&MergedFolder { path, upper, names, lower: Some(lower), is_opaque: false })
    }

    fn walk(&mut self, level: &MergedFolder<'_>) -> SearchResult<()> {
        let rules = self.rules.len();
        self.push_rules(level);
        let walked = self.walk_names(level);
        self.rules.truncate(rules);
        walked
    }

    fn walk_names(&mut self, level: &MergedFolder<'_>) -> SearchResult<()> {
        for name in level.names {
            self.check_deadline()?;
            self.walk_entry(level, name)?;
        }
        let Some(lower) = level.lower.filter(|_| level.is_opaque) else { return Ok(()) };
        let missing = |name: &Name| level.names.binary_search(name).is_err();
        for name in lower.list().unwrap_or_default().iter().filter(|name| missing(name)) {
            self.visit_deleted(&level.path, lower, name)?;
        }
        Ok(())
    }

    fn walk_entry(&mut self, level: &MergedFolder<'_>, name: &Name) -> SearchResult<()> {
        let path = level.path.join(name);
        let stat = level.upper.stat(name);
        let Some(stat) = self.unless_gone(stat, &path)?.flatten() else { return Ok(()) };
        if stat.is_whiteout {
            return match level.lower {
                Some(lower) => self.visit_deleted(&level.path, lower, name),
                None => Ok(()),
            };
        }
        let is_folder = stat.kind == Kind::Folder;
        if self.rules.is_ignored(&path, is_folder) {
            self.ignored += 1;
            return Ok(());
        }
        let is_hidden = self.is_hidden(&path);
        let lower = level.lower.filter(|_| !is_hidden);
        let old = lower.and_then(|folder| {
            let stat = folder.stat(name).ok().flatten()?;
            Some(LiveEntry { folder, name, stat })
        });
        let old_is_folder = old.is_some_and(|old| old.stat.kind == Kind::Folder);
        if let Some(lower) = lower.filter(|_| old_is_folder && !is_folder) {
            self.visit_deleted_beneath(&path, lower, name)?;
        }
        let mut refused = is_hidden.then(|| HIDDEN.to_owned());
        let mut opened = None;
        if is_folder && path.depth() <= DEPTH_MAX {
            match OpenedFolder::open(level.upper, name, &stat, self.may_change_modes) {
                Ok(folder) => opened = Some(folder),
                Err(error) => drop(refused.get_or_insert_with(|| unreadable(&error))),
            }
        }
        let new = Some(LiveEntry { folder: level.upper, name, stat });
        let old = old.map(OldEntry::Live);
        self.visitor.visit(PossibleChange { path: &path, old, new, refused })?;
        let Some(opened) = opened else { return Ok(()) };
        let lower = lower.filter(|_| old_is_folder).and_then(|lower| lower.enter(name).ok());
        let upper = &opened.folder;
        let is_opaque = level.is_opaque
            || lower.is_some() && upper.has_attribute(OPAQUE, b"y").unwrap_or_default();
        let (names, lower) = (&opened.names, lower.as_ref());
        let walked =
            self.walk(&MergedFolder { path: path.clone(), upper, names, lower, is_opaque });
        opened.close().during("restore the mode of", self.workspace, path.as_bytes())?;
        walked
    }

    /// Visits the entry `name` of the workspace as deleted, with everything in it.
    fn visit_deleted(
        &mut self,
        parent: &RelPath,
        lower: &OpenFolder,
        name: &Name,
    ) -> SearchResult<()> {
        self.check_deadline()?;
        let path = parent.join(name);
        let Ok(Some(stat)) = lower.stat(name) else { return Ok(()) };
        let is_folder = stat.kind == Kind::Folder;
        if self.is_hidden(&path) {
            return Ok(());
        }
        if self.rules.is_ignored(&path, is_folder) {
            self.ignored += 1;
            return Ok(());
        }
        if is_folder {
            self.visit_deleted_beneath(&path, lower, name)?;
        }
        let old = Some(OldEntry::Live(LiveEntry { folder: lower, name, stat }));
        self.visitor.visit(PossibleChange { path: &path, old, new: None, refused: None })
    }

    /// Visits everything in the directory `name` of the workspace as deleted.
    fn visit_deleted_beneath(
        &mut self,
        path: &RelPath,
        lower: &OpenFolder,
        name: &Name,
    ) -> SearchResult<()> {
        if path.depth() > DEPTH_MAX {
            return Ok(());
        }
        // A directory that cannot be listed keeps its entries, so it cannot be removed.
        let Ok(folder) = lower.enter(name) else { return Ok(()) };
        let Ok(names) = folder.list() else { return Ok(()) };
        let rules = self.rules.len();
        if let Some(content) = self.rules_in(&folder) {
            self.rules.push(path, &content);
        }
        let walked = names.iter().try_for_each(|name| self.visit_deleted(path, &folder, name));
        self.rules.truncate(rules);
        walked
    }

    /// Adds the rules of the directory, as the worker sees them and as they are below.
    fn push_rules(&mut self, level: &MergedFolder<'_>) {
        let Ok(name) = Name::new(RULES_FILE) else { return };
        let folder = match level.upper.stat(&name) {
            Ok(Some(stat)) => (!stat.is_whiteout).then_some(level.upper),
            _ => level.lower.filter(|_| !level.is_opaque),
        };
        let view = folder.and_then(|folder| self.rules_in(folder));
        let start = level.lower.and_then(|folder| self.rules_in(folder));
        self.rules.push_versions(&level.path, view.as_deref(), start.as_deref());
    }

    fn rules_in(&self, folder: &OpenFolder) -> Option<Vec<u8>> {
        self.rules.reads_files().then(|| super::view_rules::read(folder, RULES_FILE)).flatten()
    }

    fn is_hidden(&self, path: &RelPath) -> bool {
        self.hidden.iter().any(|hidden| path.is_within(hidden))
    }

    fn check_deadline(&self) -> SearchResult<()> {
        if self.deadline.has_time() { Ok(()) } else { Err(SearchStop::Late) }
    }

    /// Returns `None` if the entry went away.
    fn unless_gone<T>(&self, read: Result<T, Error>, path: &RelPath) -> SearchResult<Option<T>> {
        match read {
            Err(error) if is_gone(&error) => Ok(None),
            read => Ok(Some(read.during("read", self.workspace, path.as_bytes())?)),
        }
    }
}
