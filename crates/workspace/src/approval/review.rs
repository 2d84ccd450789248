//! The review of changes by a person: the relevant part of the diff, and lines about changes that
//! it does not show.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;

use super::check::{Action, StoredContents};
use super::selection::{ChangeSelection, UnappliedChange, has_changed};
use super::session::{Approval, Checked, CheckedFile, applied_parts};
use super::unasked::PathRules;
use swarmletfs_base::model::{ChangedFile, EntryKind, WorkspaceChanges};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::text::count;
use swarmletfs_base::text::unified::{self, Section};
use swarmletfs_record::write::{Dir, Durability, Error, Result};
use swarmletfs_trace::swarmlet::{BASE, CHANGES};

impl Approval<'_> {
    /// Parses a path of the workspace: relative to it, or an absolute one within it.
    ///
    /// # Errors
    ///
    /// The path leads elsewhere.
    pub fn parse_path(&self, typed: &[u8]) -> Result<RelPath> {
        let is_absolute = typed.starts_with(b"/");
        let workspace = if is_absolute { Some(self.workspace()?) } else { None };
        let relative = match &workspace {
            Some(workspace) => {
                let rest = typed.strip_prefix(workspace.as_os_str().as_bytes());
                rest.filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            None => Some(typed),
        };
        let parts = relative.unwrap_or(b"..").split(|byte| *byte == b'/');
        let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
        RelPath::parse(parts.join(&b'/')).map_err(|_| {
            let reason = "it is not in the workspace; try a path from the root of the workspace";
            Error::invalid(typed, "a path", reason)
        })
    }

    /// Selects the changes of `paths`, or all if `paths` is empty, without the refused ones.
    ///
    /// # Errors
    ///
    /// The changes are invalid, or one of the paths has none.
    pub fn select(
        &self,
        changes: WorkspaceChanges,
        paths: &[RelPath],
        rules: PathRules,
    ) -> Result<ChangeSelection> {
        // Changes are shown without a workspace, too. Before any is applied, it is opened again.
        let workspace = self.workspace().ok();
        let workspace = workspace.and_then(|path| Dir::open(&path, Durability::None).ok());
        let workspace = workspace.as_ref();
        let selection = ChangeSelection::new(changes, paths, rules, workspace, self.store_path());
        let mut selection = selection?;
        for (path, state) in applied_parts(&self.applications()?) {
            selection.expect(&path, state);
        }
        Ok(selection)
    }

    /// Returns the text of the file `path` before and after, if the worker changed the content of a
    /// text file. The part that was applied is not shown again.
    pub fn texts(&self, selection: &ChangeSelection, path: &RelPath) -> Option<(String, String)> {
        let files = &selection.source()?.files;
        let file = files.iter().find(|file| file.path.parse().as_ref() == Ok(path))?;
        let (old, new) = (file.old.as_ref()?, file.new.as_ref()?);
        if !file.base.is_stored() || file.is_binary || old.mode != new.mode {
            return None;
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        let stored = |folder| StoredContents::new(self.worker().folder(), folder);
        let expected = selection.expected(path)?;
        let before = if expected == old {
            stored(BASE).read(path, old)
        } else {
            let workspace = Dir::open(&self.workspace().ok()?, Durability::None).ok()?;
            StoredContents::root(&workspace).read(path, expected)
        };
        let after = stored(CHANGES).read(path, new);
        text(before.ok()??).zip(text(after.ok()??))
    }

    /// Returns the first of `paths` that has no changes because it is ignored in the workspace.
    pub fn first_ignored<'p>(
        &self,
        changes: &WorkspaceChanges,
        paths: &'p [RelPath],
    ) -> Option<&'p RelPath> {
        paths.iter().find(|path| !has_changed(changes, path) && self.is_ignored(path))
    }
}

/// Most paths listed for one reason to leave them out; more are counted.
const LEFT_OUT_LISTED: usize = 5;

/// Returns lines about the omitted changes. Each path in `named` is listed.
pub fn describe_left_out(selection: &ChangeSelection, named: &[RelPath]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&RelPath>> = BTreeMap::new();
    for UnappliedChange { path, reason } in selection.left_out() {
        by_reason.entry(reason).or_default().push(path);
    }
    let mut lines = Vec::new();
    for (reason, mut paths) in by_reason {
        paths.sort_by_key(|path| !named.contains(path));
        let is_shown = |path: &RelPath, at: usize| at < LEFT_OUT_LISTED || named.contains(path);
        let shown = paths.iter().enumerate().take_while(|(at, path)| is_shown(path, *at));
        let shown: Vec<_> = shown.map(|(_, path)| path).collect();
        lines.extend(shown.iter().map(|path| format!("left out: {}: {reason}", path.display())));
        let more = paths.len() - shown.len();
        if more > 0 {
            lines.push(format!("left out: {}: {reason}", count(more as u64, "more path")));
        }
    }
    lines
}

pub fn describe_change(file: &CheckedFile) -> String {
    let action = match file.action {
        Action::Make => "add",
        Action::Replace if file.conflicts > 0 => "merge, with conflict markers,",
        Action::Replace if file.is_merged => "merge",
        Action::Replace => "replace",
        Action::SetMode => "set the permissions of",
        Action::Remove => "remove",
    };
    format!("{action} {}", file.path.display())
}

pub fn relevant_diff(checked: &Checked, sections: &[Section<'_>]) -> Vec<u8> {
    let changes: BTreeSet<&RelPath> = checked.files.iter().map(|file| &file.path).collect();
    let is_relevant =
        |section: &&Section<'_>| section.path.as_ref().is_some_and(|path| changes.contains(path));
    sections.iter().filter(is_relevant).flat_map(|section| section.text).copied().collect()
}

/// Returns lines about changes that the diff shows in part or not at all: folders, merged files,
/// binary files, files that are too large for it, and permissions.
pub fn unseen_changes(
    checked: &Checked,
    selection: &ChangeSelection,
    sections: &[Section<'_>],
) -> Vec<String> {
    let mut shown: BTreeMap<&RelPath, (u64, u64)> = BTreeMap::new();
    for section in sections {
        let Some(path) = &section.path else { continue };
        let (added, removed) = unified::line_counts(section.text);
        let counts = shown.entry(path).or_default();
        *counts = (counts.0 + added, counts.1 + removed);
    }
    let files = selection.source().map_or(&[][..], |changes| &changes.files);
    let changes: BTreeMap<RelPath, &ChangedFile> =
        files.iter().filter_map(|file| Some((file.path.parse().ok()?, file))).collect();
    let mut lines = Vec::new();
    for file in &checked.files {
        let change = changes.get(&file.path).copied();
        lines.extend(unseen_content(file, change, shown.get(&file.path)));
        lines.extend(change.and_then(|change| unusual_mode(&file.path, change)));
    }
    lines
}

/// Returns a line if the diff does not show the whole of a content. `shown` holds the numbers of
/// its added and removed lines in the diff.
fn unseen_content(
    file: &CheckedFile,
    change: Option<&ChangedFile>,
    shown: Option<&(u64, u64)>,
) -> Option<String> {
    let what = describe_change(file);
    match (shown, change) {
        _ if file.is_merged => Some(format!("not in the diff: {what}")),
        (None, _) => Some(format!("not in the diff: {what}")),
        (Some(_), Some(change)) if change.is_binary => Some(format!("shown as binary: {what}")),
        (Some((added, removed)), Some(change)) => {
            let is_whole = (*added, *removed) == (change.added, change.removed);
            (!is_whole).then(|| {
                let all = format!("+{} -{}", change.added, change.removed);
                format!("not shown whole: {what}: +{added} -{removed} of {all}")
            })
        }
        (Some(_), None) => None,
    }
}

/// Permissions of most files and folders. Others get a line in the review.
const USUAL_MODES: [u32; 6] = [0o600, 0o644, 0o664, 0o700, 0o755, 0o775];

/// Returns a line if permissions change, or if a new entry has unusual ones.
fn unusual_mode(path: &RelPath, change: &ChangedFile) -> Option<String> {
    let new = change.new.as_ref().filter(|new| new.kind != EntryKind::Link)?;
    let path = path.display();
    match &change.old {
        Some(old) if old.mode != new.mode => {
            Some(format!("permissions of {path}: {:04o} -> {:04o}", old.mode, new.mode))
        }
        Some(_) => None,
        None => (!USUAL_MODES.contains(&new.mode))
            .then(|| format!("permissions of {path}: {:04o}", new.mode)),
    }
}
