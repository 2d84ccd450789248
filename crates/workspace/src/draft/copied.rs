//! Finds the paths of a worker's copy that may differ from the entries that were copied.

use std::path::Path;

use super::candidate::{
    LiveEntry, OldEntry, PossibleChange, SearchResult, SearchStop, Visitor, is_gone, unreadable,
};
use super::ignore_rules::{IgnoreRules, RULES_FILE};
use super::limits::{DEPTH_MAX, FOREIGN, HIDDEN};
use super::manifest::Manifest;
use super::opened::OpenedFolder;
use super::view_rules;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Kind, OpenFolder};
use swarmletfs_record::write::During;

pub(super) struct CopyWalk<'a> {
    pub(super) workspace: &'a Path,
    pub(super) hidden: &'a [RelPath],
    pub(super) deadline: Deadline<'a>,
    /// True if the worker has ended, so that permissions may be changed to read its files.
    pub(super) may_change_modes: bool,
    pub(super) rules: IgnoreRules,
    /// Number of ignored paths that differ; an ignored directory counts once.
    pub(super) ignored: u64,
    pub(super) manifest: &'a Manifest,
    pub(super) visitor: &'a mut dyn Visitor,
}

impl CopyWalk<'_> {
    pub(super) fn run(&mut self, copy: &OpenFolder, lower: &OpenFolder) -> SearchResult<()> {
        let names = copy.list().during("read the copy of", self.workspace, b"")?;
        self.walk(&RelPath::root(), (copy, Some(lower)), &names)
    }

    /// Visits the differences in a directory of the copy. The other directory is its counterpart in
    /// the workspace.
    fn walk(
        &mut self,
        path: &RelPath,
        (folder, lower): (&OpenFolder, Option<&OpenFolder>),
        names: &[Name],
    ) -> SearchResult<()> {
        let rules = self.rules.len();
        let view = self.rules_in(Some(folder));
        let start = self.rules_in(lower);
        self.rules.push_versions(path, view.as_deref(), start.as_deref());
        let walked = self.walk_names(path, (folder, lower), names);
        self.rules.truncate(rules);
        walked
    }

    fn rules_in(&self, folder: Option<&OpenFolder>) -> Option<Vec<u8>> {
        let folder = folder.filter(|_| self.rules.reads_files())?;
        view_rules::read(folder, RULES_FILE)
    }

    fn walk_names(
        &mut self,
        path: &RelPath,
        (folder, lower): (&OpenFolder, Option<&OpenFolder>),
        names: &[Name],
    ) -> SearchResult<()> {
        for name in names {
            self.check_deadline()?;
            self.walk_entry(&path.join(name), (folder, lower), name)?;
        }
        let manifest = self.manifest;
        let missing = |name: &&Name| names.binary_search(name).is_err();
        manifest
            .children(path)
            .iter()
            .filter(missing)
            .try_for_each(|name| self.visit_deleted(&path.join(name), lower))
    }

    fn walk_entry(
        &mut self,
        path: &RelPath,
        (folder, lower): (&OpenFolder, Option<&OpenFolder>),
        name: &Name,
    ) -> SearchResult<()> {
        let stat = match folder.stat(name) {
            Err(error) if is_gone(&error) => return Ok(()),
            stat => stat.during("read", self.workspace, path.as_bytes())?,
        };
        let Some(stat) = stat else { return Ok(()) };
        let is_folder = stat.kind == Kind::Folder;
        if self.rules.is_ignored(path, is_folder) {
            self.ignored += u64::from(self.is_touched(path, folder, name, &stat));
            return Ok(());
        }
        let old = self.manifest.get(path);
        if old.is_some_and(|old| old.kind == EntryKind::Folder) && !is_folder {
            self.visit_deleted_beneath(path, lower)?;
        }
        let mut refused = self.refusal(path);
        let mut opened = None;
        if is_folder && path.depth() <= DEPTH_MAX {
            match OpenedFolder::open(folder, name, &stat, self.may_change_modes) {
                Ok(folder) => opened = Some(folder),
                Err(error) => drop(refused.get_or_insert_with(|| unreadable(&error))),
            }
        }
        let is_untouched = old.is_some_and(|old| self.manifest.is_untouched(old, &stat));
        // The entries of a directory that cannot be listed may differ.
        if !is_untouched || is_folder && opened.is_none() && path.depth() <= DEPTH_MAX {
            let new = Some(LiveEntry { folder, name, stat });
            let old = old.map(OldEntry::Copied);
            self.visitor.visit(PossibleChange { path, old, new, refused })?;
        }
        let Some(opened) = opened else { return Ok(()) };
        let lower = lower.and_then(|lower| lower.enter(name).ok());
        let walked = self.walk(path, (&opened.folder, lower.as_ref()), &opened.names);
        opened.close().during("restore the mode of", self.workspace, path.as_bytes())?;
        walked
    }

    /// Visits the entry `path` as deleted, with everything that it held. `parent` is its directory
    /// in the workspace.
    fn visit_deleted(&mut self, path: &RelPath, parent: Option<&OpenFolder>) -> SearchResult<()> {
        self.check_deadline()?;
        let Some(old) = self.manifest.get(path) else { return Ok(()) };
        let is_folder = old.kind == EntryKind::Folder;
        if self.rules.is_ignored(path, is_folder) {
            self.ignored += 1;
            return Ok(());
        }
        self.visit_deleted_beneath(path, parent)?;
        let refused = self.refusal(path);
        let old = Some(OldEntry::Copied(old));
        self.visitor.visit(PossibleChange { path, old, new: None, refused })
    }

    fn visit_deleted_beneath(
        &mut self,
        path: &RelPath,
        parent: Option<&OpenFolder>,
    ) -> SearchResult<()> {
        let names = self.manifest.children(path);
        // Entries of a directory only, so most paths need no look at the workspace.
        let name = path.file_name().filter(|_| !names.is_empty());
        let folder = parent.zip(name).and_then(|(parent, name)| parent.enter(&name).ok());
        let rules = self.rules.len();
        if let Some(content) = self.rules_in(folder.as_ref()) {
            self.rules.push(path, &content);
        }
        let walked =
            names.iter().try_for_each(|name| self.visit_deleted(&path.join(name), folder.as_ref()));
        self.rules.truncate(rules);
        walked
    }

    /// Returns why nothing at `path` can be applied, if that is so.
    fn refusal(&self, path: &RelPath) -> Option<String> {
        if self.hidden.iter().any(|hidden| path.is_within(hidden)) {
            return Some(HIDDEN.to_owned());
        }
        let is_foreign =
            |path: &RelPath| self.manifest.get(path).is_some_and(|entry| entry.is_foreign);
        (is_foreign(path) || is_foreign(&path.parent())).then(|| FOREIGN.to_owned())
    }

    /// Returns true if an ignored entry, or one that it holds, was touched.
    fn is_touched(
        &self,
        path: &RelPath,
        parent: &OpenFolder,
        name: &Name,
        stat: &EntryStat,
    ) -> bool {
        let Some(old) = self.manifest.get(path) else { return true };
        if !self.manifest.is_untouched(old, stat) {
            return true;
        }
        if stat.kind != Kind::Folder {
            return false;
        }
        let Ok(folder) = parent.enter(name) else { return true };
        let Ok(names) = folder.list() else { return true };
        names.iter().any(|name| match folder.stat(name) {
            Ok(Some(stat)) => self.is_touched(&path.join(name), &folder, name, &stat),
            _ => true,
        })
    }

    fn check_deadline(&self) -> SearchResult<()> {
        if self.deadline.has_time() { Ok(()) } else { Err(SearchStop::Late) }
    }
}
