//! Finds the paths of a workspace that may differ from the entries that the worker found.
//!
//! The upper layer of an overlay holds the worker's writes: a deleted name is the device 0:0, a
//! directory that replaced one has the attribute "opaque", and everything in an opaque directory
//! hides the entries below. The workspace is live: others may change it at any time.
//!
//! A copy of a workspace has a manifest instead: the entries that were copied, as they were when
//! the worker began.
//!
//! Directories that a worker left are opened in spite of their permissions. A path that cannot be
//! stored in a worker's directory is refused.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::content;
use super::ignore_rules::{self, IgnoreRules, RULES_FILE};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Kind, OpenFolder, Time, is_temporary};
use swarmletfs_record::write::{Dir, During, Error as WriteError, set_mode};

#[derive(Clone, Copy)]
pub(super) struct LiveEntry<'a> {
    pub(super) folder: &'a OpenFolder,
    pub(super) name: &'a Name,
    pub(super) stat: EntryStat,
}

#[derive(Clone, Copy)]
pub(super) enum OldEntry<'a> {
    /// The entry of the workspace, which may have changed since the worker began.
    Live(LiveEntry<'a>),
    Copied(&'a CopiedEntry),
}

pub(super) struct PossibleChange<'a> {
    pub(super) path: &'a RelPath,
    pub(super) old: Option<OldEntry<'a>>,
    pub(super) new: Option<LiveEntry<'a>>,
    pub(super) refused: Option<String>,
}

/// Receives the paths that may differ, each once.
pub(super) trait Visitor {
    fn visit(&mut self, candidate: PossibleChange<'_>) -> SearchResult<()>;
}

pub(super) type SearchResult<T> = Result<T, SearchStop>;

#[derive(Debug)]
pub(super) enum SearchStop {
    Late,
    Failed(WriteError),
}

impl From<WriteError> for SearchStop {
    fn from(error: WriteError) -> SearchStop {
        SearchStop::Failed(error)
    }
}

/// Returns true if the entry went away or became another one while it was read, which is no error
/// in a tree that others change.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound
            | Error::Stale
            | Error::Escape
            | Error::NotADirectory
            | Error::IsADirectory
            | Error::Special
    )
}

pub(super) fn unreadable(error: &Error) -> String {
    content::describe_limit(error).unwrap_or_else(|| format!("it cannot be read: {error}"))
}

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
    /// Entries of the upper layer that did not change since this time are copies of other users'.
    pub(super) copied_at: Option<Time>,
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
        let is_copy = self.copied_at.is_some_and(|copied_at| stat.ctime < copied_at);
        if is_copy && !is_folder {
            return Ok(());
        }
        if self.rules.is_ignored(&path, is_folder) {
            self.ignored += u64::from(!is_copy);
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
        self.rules
            .reads_files()
            .then(|| super::ignore_rules::read_rules(folder, RULES_FILE))
            .flatten()
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
        ignore_rules::read_rules(folder, RULES_FILE)
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

pub(super) const MANIFEST_FILE: &str = "manifest";
const SIZE_MAX: u64 = 4 << 30;

#[derive(Debug, Default)]
pub(super) struct Manifest {
    entries: BTreeMap<RelPath, CopiedEntry>,
    children: BTreeMap<RelPath, Vec<Name>>,
    facts: CopyFacts,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopyFacts {
    /// Time at which everything was copied.
    pub(super) copied_at: Time,
    /// Number of devices, FIFOs and sockets that were left out.
    pub(super) special: u64,
    pub(super) unreadable: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopiedEntry {
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) target: Vec<u8>,
    /// Time of the last write of the copy.
    pub(super) mtime: Time,
    /// Time of the last change of the copy.
    pub(super) ctime: Time,
    /// True if the entry is on another mount than the workspace.
    pub(super) is_foreign: bool,
}

type SavedManifest<'a> = (CopyFacts, Vec<(&'a [u8], CopiedEntry)>);

impl Manifest {
    pub(super) fn insert(&mut self, path: &RelPath, entry: CopiedEntry) {
        if let Some(name) = path.file_name() {
            self.children.entry(path.parent()).or_default().push(name);
        }
        self.entries.insert(path.clone(), entry);
    }

    pub(super) fn set_facts(&mut self, facts: CopyFacts) {
        self.facts = facts;
    }

    pub(super) fn get(&self, path: &RelPath) -> Option<&CopiedEntry> {
        self.entries.get(path)
    }

    fn children(&self, path: &RelPath) -> &[Name] {
        self.children.get(path).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn facts(&self) -> CopyFacts {
        self.facts
    }

    /// Returns true if nobody has touched a copy since it was made.
    fn is_untouched(&self, copied: &CopiedEntry, now: &EntryStat) -> bool {
        let is_kind = matches!(
            (copied.kind, now.kind),
            (EntryKind::File, Kind::File)
                | (EntryKind::Folder, Kind::Folder)
                | (EntryKind::Link, Kind::Link)
        );
        is_kind
            && (copied.kind != EntryKind::File || copied.size == now.size)
            && (copied.mode, copied.mtime, copied.ctime) == (now.mode, now.mtime, now.ctime)
            // A later stamp may stand for two changes.
            && now.ctime < self.facts.copied_at
    }

    pub(super) fn save(&self, draft: &Dir) -> Result<()> {
        let entries = self.entries.iter().map(|(path, entry)| (path.as_bytes(), entry.clone()));
        let stored: SavedManifest<'_> = (self.facts, entries.collect());
        let invalid = |_| Error::Io(rustix::io::Errno::INVAL);
        let bytes = postcard::to_stdvec(&stored).map_err(invalid)?;
        draft.write_temporary(&mut bytes.as_slice())?.replace(draft, &Name::new(MANIFEST_FILE)?)
    }

    pub(super) fn load(draft: &Dir) -> Result<Manifest> {
        let bytes = draft.read(&Name::new(MANIFEST_FILE)?, SIZE_MAX)?.ok_or(Error::NotFound)?;
        let invalid = |_| Error::Io(rustix::io::Errno::INVAL);
        let (facts, entries): SavedManifest<'_> = postcard::from_bytes(&bytes).map_err(invalid)?;
        let mut manifest = Manifest { facts, ..Manifest::default() };
        for (path, entry) in entries {
            manifest.insert(&RelPath::parse(path)?, entry);
        }
        Ok(manifest)
    }
}

/// Permissions that the owner of a directory needs to read all that it holds.
const READABLE: u32 = 0o500;

pub(super) struct OpenedFolder {
    pub(super) folder: OpenFolder,
    pub(super) names: Vec<Name>,
    /// The permissions, if they were changed.
    mode: Option<u32>,
}

impl OpenedFolder {
    /// Opens the directory `name`, and lists it. `may_change_modes` lets its owner read it.
    pub(super) fn open(
        parent: &OpenFolder,
        name: &Name,
        stat: &EntryStat,
        may_change_modes: bool,
    ) -> Result<OpenedFolder> {
        let folder = parent.enter(name)?;
        let is_closed = stat.mode & READABLE != READABLE;
        let mode = (is_closed && may_change_modes).then_some(stat.mode);
        if let Some(mode) = mode {
            set_mode(&folder, mode | READABLE)?;
        }
        let names = folder.list()?;
        Ok(OpenedFolder { folder, names, mode })
    }

    /// Restores the permissions. Otherwise another search would find other ones.
    fn close(self) -> Result<()> {
        self.mode.map_or(Ok(()), |mode| set_mode(&self.folder, mode))
    }
}

pub(super) const DEPTH_MAX: usize = 60;
const HIDDEN: &str = "the worker could not see what is there";
const FOREIGN: &str = "it is on another file system than the workspace";
/// Maximum length of a path, in bytes. With the directory in front, the system accepts it.
const LENGTH_MAX: usize = 4_000;

/// Largest file that is recorded, in bytes, before and after a change.
const FILE_MAX: u64 = 8 << 30;

/// Returns why a file of `size` bytes is not recorded, or `None` if it is.
pub(super) fn size_refusal(size: u64) -> Option<String> {
    let is_too_large = size > FILE_MAX;
    is_too_large.then(|| format!("it has more than {} GiB", FILE_MAX >> 30))
}

/// Returns why the change of `path` cannot be stored, or `None` if it can.
pub(super) fn path_refusal(path: &RelPath) -> Option<String> {
    if path.depth() > DEPTH_MAX {
        return Some(format!("the path has more than {DEPTH_MAX} names"));
    }
    if path.as_bytes().len() > LENGTH_MAX {
        return Some(format!("the path has more than {LENGTH_MAX} bytes"));
    }
    let is_reserved = path.names().any(|name| is_temporary(&name));
    is_reserved.then(|| "a name begins like those of files that are being written".to_owned())
}
