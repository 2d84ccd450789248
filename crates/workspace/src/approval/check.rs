//! Checks each change against the entries of the workspace as they are now, before anything is
//! written.
//!
//! A file that both the worker and others changed is merged with `git merge-file`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::selection::{Change, ChangeSelection};
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::{EntryKind, EntryState, encode};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Kind;
use swarmletfs_record::write::{
    Dir, During, EntryMeta, Error, File, HashingReader, Result, from_io, hash_bytes,
};

#[derive(Debug, Clone)]
pub(super) struct ChangeStep {
    pub(super) path: RelPath,
    /// The entry now; `None` if there is none.
    pub(super) before: Option<WorkspaceEntry>,
    /// The state afterwards, with the exact permissions; `None` if there is no entry.
    pub(super) after: Option<EntryState>,
    /// The content of a file that was merged, or that is a part of the worker's. Other contents are
    /// stored.
    pub(super) merged: Option<MergedContent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MergedContent {
    pub(super) bytes: Arc<[u8]>,
    /// Number of places in which both sides are shown, between markers.
    pub(super) conflicts: u64,
    /// True if it has only a part of the worker's change.
    pub(super) is_part: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Make,
    Replace,
    SetMode,
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: RelPath,
    pub reason: String,
}

#[derive(Debug, Default)]
pub(super) struct ApplyPlan {
    pub(super) steps: BTreeMap<RelPath, ChangeStep>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) done: usize,
    pub(super) kept: Vec<RelPath>,
}

pub(super) struct MergeSource<'a> {
    pub(super) base: StoredContents<'a>,
    pub(super) new: StoredContents<'a>,
    pub(super) action: &'a str,
    /// True if both sides of a conflict are kept, between markers.
    pub(super) marks_conflicts: bool,
}

enum ChangeVerdict {
    Done,
    Step(Box<ChangeStep>),
    Conflict(&'static str),
}

impl ChangeStep {
    pub(super) fn action(&self) -> Action {
        match (&self.before, &self.after) {
            (None, _) => Action::Make,
            (Some(_), None) => Action::Remove,
            (Some(before), Some(after)) if self.merged.is_none() && before.is_content_of(after) => {
                Action::SetMode
            }
            _ => Action::Replace,
        }
    }

    /// Returns true if the permissions of the entry are set where it is. A file with other names
    /// is replaced by a copy, since it would get the permissions under all of them.
    pub(super) fn is_in_place(&self) -> bool {
        let is_linked = |now: &WorkspaceEntry| now.kind() == EntryKind::File && now.meta.links > 1;
        self.action() == Action::SetMode && !self.before.as_ref().is_some_and(is_linked)
    }

    fn ends_folder(&self) -> bool {
        let is_folder = self.before.as_ref().is_some_and(|now| now.kind() == EntryKind::Folder);
        is_folder && self.after.as_ref().is_none_or(|after| after.kind != EntryKind::Folder)
    }
}

/// Compares `selection` with the workspace. With `merging`, a file that both sides changed is
/// merged; the first one that cannot be merged ends the check.
///
/// # Errors
///
/// The workspace cannot be read, or a merge fails.
pub(super) fn check(
    workspace: &Dir,
    selection: &ChangeSelection,
    merging: Option<&MergeSource<'_>>,
) -> Result<ApplyPlan> {
    let mut plan = ApplyPlan::default();
    let renames = merging.map(|_| selection.renames()).unwrap_or_default();
    let mut moved: Vec<ChangeStep> = Vec::new();
    for change in selection.changes.values() {
        let path = &change.path;
        let current = current(workspace, selection, change);
        let verdict = match current.during("read", workspace.path(), path.as_bytes())? {
            Ok(current) => match compare(change, current.clone()) {
                ChangeVerdict::Conflict(reason) => {
                    let merged = match (merging, current) {
                        (Some(source), Some(current)) => match renames.get(path) {
                            Some(added) => {
                                let step = (workspace, change, current);
                                let merged = merge_renamed(step, added, source)?;
                                merged.map(|(removal, addition)| {
                                    moved.push(addition);
                                    removal
                                })
                            }
                            None => try_merge(workspace, change, current, source)?,
                        },
                        _ => None,
                    };
                    merged.map_or(ChangeVerdict::Conflict(reason), |step| {
                        ChangeVerdict::Step(Box::new(step))
                    })
                }
                verdict => verdict,
            },
            Err(reason) => ChangeVerdict::Conflict(reason),
        };
        match verdict {
            ChangeVerdict::Done => plan.done += 1,
            ChangeVerdict::Step(step) => drop(plan.steps.insert(path.clone(), *step)),
            ChangeVerdict::Conflict(reason) => {
                plan.conflicts.push(Conflict { path: path.clone(), reason: reason.to_owned() });
                if merging.is_some() {
                    return Ok(plan);
                }
            }
        }
    }
    for step in moved {
        match plan.steps.get_mut(&step.path).filter(|planned| planned.before.is_none()) {
            Some(planned) => *planned = step,
            None => {
                let reason = "it was made meanwhile".to_owned();
                plan.conflicts.push(Conflict { path: step.path, reason });
            }
        }
    }
    check_folders(workspace, &mut plan)?;
    Ok(plan)
}

/// Returns the entry of a change now, or the reason why it cannot be compared.
fn current(
    workspace: &Dir,
    selection: &ChangeSelection,
    change: &Change,
) -> Result<Result<Option<WorkspaceEntry>, &'static str>, PathError> {
    let expected: Vec<&EntryState> = [&change.from, &change.to].into_iter().flatten().collect();
    match WorkspaceEntry::read(workspace, &change.path, &expected) {
        Ok(entry) => Ok(Ok(entry)),
        // Nothing is beneath a link. That is expected if the change made or replaces the link.
        Err(PathError::Escape) => {
            let mut folder = change.path.parent();
            while !folder.is_root() {
                let is_link = matches!(
                    WorkspaceEntry::read(workspace, &folder, &[]),
                    Ok(Some(entry)) if entry.kind() == EntryKind::Link
                );
                if is_link && selection.changes.contains_key(&folder) {
                    return Ok(Ok(None));
                }
                folder = folder.parent();
            }
            Ok(Err("a folder of its path is a link or a mount point now"))
        }
        Err(error) => Err(error),
    }
}

fn compare(change: &Change, current: Option<WorkspaceEntry>) -> ChangeVerdict {
    let Some(to) = &change.to else { return compare_removal(change, current) };
    let Some(current) = current else {
        return match &change.from {
            None => step(change, None, permissions(to)),
            Some(_) => ChangeVerdict::Conflict("it was removed meanwhile"),
        };
    };
    let same_kind = change.from.as_ref().filter(|from| from.kind == to.kind);
    let (is_new, mode) = (current.is_content_of(to), current.meta.mode);
    let is_old = change.from.as_ref().is_some_and(|from| current.is_content_of(from));
    if !is_new && !is_old {
        return ChangeVerdict::Conflict(describe_difference(change, &current));
    }
    if !is_new && !change.is_from_known {
        return ChangeVerdict::Conflict("nobody knows whether it is what the worker saw");
    }
    let final_mode = match same_kind {
        _ if to.kind == EntryKind::Link => mode,
        // Folders that others made have the permissions that they chose.
        None if is_new && to.kind == EntryKind::Folder => mode,
        Some(from) if permissions(from) == permissions(to) => mode,
        Some(from) if mode == permissions(from) || mode == permissions(to) => permissions(to),
        None if !is_new || mode == permissions(to) => permissions(to),
        _ => return ChangeVerdict::Conflict("its permissions were changed meanwhile"),
    };
    if is_new && mode == final_mode {
        return ChangeVerdict::Done;
    }
    step(change, Some(current), final_mode)
}

fn compare_removal(change: &Change, current: Option<WorkspaceEntry>) -> ChangeVerdict {
    match (&change.from, current) {
        (_, None) => ChangeVerdict::Done,
        (None, Some(_)) => ChangeVerdict::Conflict("it was made meanwhile"),
        (Some(from), Some(current)) if !current.is_content_of(from) => {
            ChangeVerdict::Conflict(describe_difference(change, &current))
        }
        (Some(_), Some(_)) if !change.is_from_known => {
            ChangeVerdict::Conflict("nobody knows whether it is what the worker saw")
        }
        (Some(_), Some(current)) => step(change, Some(current), 0),
    }
}

fn step(change: &Change, before: Option<WorkspaceEntry>, mode: u32) -> ChangeVerdict {
    let after = change.to.clone().map(|to| EntryState { mode, ..to });
    let part = |bytes| MergedContent { bytes, conflicts: 0, is_part: true };
    let merged = change.part.clone().map(part);
    ChangeVerdict::Step(Box::new(ChangeStep { path: change.path.clone(), before, after, merged }))
}

/// Returns how an entry differs from the one that the change expects.
fn describe_difference(change: &Change, current: &WorkspaceEntry) -> &'static str {
    let Some(from) = &change.from else { return "it was made meanwhile, with another content" };
    match (current.kind(), from.kind) {
        (now, before) if now == before => "it was changed meanwhile",
        (EntryKind::File, _) => "it is a file now",
        (EntryKind::Folder, _) => "it is a folder now",
        (EntryKind::Link, _) => "it is a link now",
        (EntryKind::Special, _) => "it is a device, FIFO or socket now",
    }
}

/// Merges a file that both sides changed. Returns `None` if that is impossible.
fn try_merge(
    workspace: &Dir,
    change: &Change,
    current: WorkspaceEntry,
    source: &MergeSource<'_>,
) -> Result<Option<ChangeStep>> {
    let is_file = |state: &&EntryState| state.kind == EntryKind::File;
    let (from, to) = (change.from.as_ref().filter(is_file), change.to.as_ref().filter(is_file));
    let (Some(from), Some(to)) = (from, to) else { return Ok(None) };
    let is_mode_known = [from, to].iter().any(|state| permissions(state) == current.meta.mode);
    let changes_mode = permissions(from) != permissions(to);
    if current.kind() != EntryKind::File
        || !change.is_from_known
        || from.sha256 == to.sha256
        || (changes_mode && !is_mode_known)
    {
        return Ok(None);
    }
    let new = || match &change.part {
        Some(part) => Ok(Some(part.to_vec())),
        None => source.new.read(&change.path, to),
    };
    let merged = merge_with_current(workspace, (&change.path, from), new, source)?;
    let Some((hash, merged)) = merged else { return Ok(None) };
    let merged = MergedContent { is_part: change.part.is_some(), ..merged };
    let before = current.with_hash(hash);
    // A write between the two reads is found before the file is replaced.
    let mode = if changes_mode { permissions(to) } else { before.meta.mode };
    let (size, sha256) = (merged.bytes.len() as u64, hash_bytes(&merged.bytes));
    let after = EntryState { mode, size, sha256, ..to.clone() };
    let (path, merged) = (change.path.clone(), Some(merged));
    Ok(Some(ChangeStep { path, before: Some(before), after: Some(after), merged }))
}

/// Merges the file `path` of the workspace with a content of the worker. Returns the hash of the
/// file now, and the merged content.
fn merge_with_current(
    workspace: &Dir,
    (path, from): (&RelPath, &EntryState),
    new: impl FnOnce() -> PathResult<Option<Vec<u8>>>,
    source: &MergeSource<'_>,
) -> Result<Option<(String, MergedContent)>> {
    let read = || {
        let now = read_limited(workspace.open_workspace_file(path)?)?;
        Ok(source.base.read(path, from)?.zip(new()?).zip(now))
    };
    let contents = read().during("merge", workspace.path(), path.as_bytes())?;
    let Some(((base, new), now)) = contents else { return Ok(None) };
    let merged = merge([&base, &now, &new], source.action)?;
    let merged = merged.filter(|merged| merged.conflicts == 0 || source.marks_conflicts);
    Ok(merged.map(|merged| (hash_bytes(&now), merged)))
}

/// Merges a file that others changed and the worker moved. Returns the removal of the old path, and
/// the file at the new one.
fn merge_renamed(
    (workspace, change, current): (&Dir, &Change, WorkspaceEntry),
    added: &Change,
    source: &MergeSource<'_>,
) -> Result<Option<(ChangeStep, ChangeStep)>> {
    let (Some(from), Some(to)) = (&change.from, &added.to) else { return Ok(None) };
    if current.kind() != EntryKind::File || !change.is_from_known {
        return Ok(None);
    }
    let new = || source.new.read(&added.path, to);
    let merged = merge_with_current(workspace, (&change.path, from), new, source)?;
    let Some((hash, merged)) = merged else { return Ok(None) };
    let before = Some(current.with_hash(hash));
    let (size, sha256) = (merged.bytes.len() as u64, hash_bytes(&merged.bytes));
    let after = Some(EntryState { mode: permissions(to), size, sha256, ..to.clone() });
    Ok(Some((
        ChangeStep { path: change.path.clone(), before, after: None, merged: None },
        ChangeStep { path: added.path.clone(), before: None, after, merged: Some(merged) },
    )))
}

/// Keeps each folder in which others have entries, and finds entries whose folder is missing.
fn check_folders(workspace: &Dir, plan: &mut ApplyPlan) -> Result<()> {
    let ends: Vec<RelPath> = plan
        .steps
        .values()
        .filter(|step| step.ends_folder())
        .map(|step| step.path.clone())
        .collect();
    // Deepest first: a folder that stays keeps its parent.
    for folder in ends.into_iter().rev() {
        let list = || workspace.enter(&folder)?.list();
        let names = list().during("list", workspace.path(), folder.as_bytes())?;
        let is_removed =
            |path: &RelPath| plan.steps.get(path).is_some_and(|step| step.after.is_none());
        if names.iter().all(|name| is_removed(&folder.join(name))) {
            continue;
        }
        let step = plan.steps.remove(&folder);
        if step.is_some_and(|step| step.after.is_none()) {
            plan.kept.push(folder);
        } else {
            let reason = "it is a folder with entries that the worker has not removed".to_owned();
            plan.conflicts.push(Conflict { path: folder, reason });
        }
    }
    for step in plan.steps.values().filter(|step| step.after.is_some()) {
        let folder = step.path.parent();
        let is_folder = match plan.steps.get(&folder) {
            Some(step) => step.after.as_ref().is_some_and(|after| after.kind == EntryKind::Folder),
            None => {
                let kind = workspace.entry(&folder).map(|entry| entry.map(|entry| entry.kind));
                matches!(kind, Ok(Some(Kind::Folder)))
            }
        };
        if !is_folder {
            let reason = "its folder does not exist".to_owned();
            plan.conflicts.push(Conflict { path: step.path.clone(), reason });
        }
    }
    plan.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(())
}

/// Merges the changes from `base` to `current` and from `base` to `new`. Returns `None` if the
/// files are not text.
///
/// # Errors
///
/// Git cannot be run, or temporary files cannot be written.
fn merge([base, current, new]: [&[u8]; 3], action: &str) -> Result<Option<MergedContent>> {
    let folder = tempfile::tempdir().map_err(|error| failed(action, "write", &error))?;
    let mut git = Command::new("git");
    git.args(["merge-file", "-p", "-q"]).stdin(Stdio::null()).stderr(Stdio::null());
    let sides = [("workspace", current), ("base", base), ("worker", new)];
    for (label, _) in sides {
        git.args(["-L", label]);
    }
    for (name, bytes) in sides {
        let write = || {
            let mut file = tempfile::Builder::new().prefix(name).tempfile_in(folder.path())?;
            file.write_all(bytes)?;
            // The directory removes it.
            file.into_temp_path().keep().map_err(|error| error.error)
        };
        git.arg(write().map_err(|error| failed(action, "write", &error))?);
    }
    match git.output() {
        Ok(output) => Ok(match output.status.code() {
            // The code is the number of conflicts, at most 127.
            Some(code @ 0..=127) => {
                let conflicts = u64::try_from(code).unwrap_or_default();
                Some(MergedContent { bytes: output.stdout.into(), conflicts, is_part: false })
            }
            // Git refuses a binary file.
            _ => None,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Approval {
            action: action.to_owned(),
            reason: "git is not installed, and merges".to_owned(),
            cure: "try again with git, or without --merge".to_owned(),
        }),
        Err(error) => Err(failed(action, "run git on", &error)),
    }
}

fn failed(action: &str, verb: &str, error: &io::Error) -> Error {
    Error::Approval {
        action: action.to_owned(),
        reason: format!("cannot {verb} temporary files: {error}"),
        cure: "try another $TMPDIR, or without --merge".to_owned(),
    }
}

/// Maximum size of a file that is merged, in bytes.
const MERGED_MAX: u64 = 64 << 20;

/// A directory of contents by the paths of a workspace, which may be missing.
#[derive(Debug)]
pub(super) struct StoredContents<'a> {
    parent: &'a Dir,
    folder: RelPath,
}

impl<'a> StoredContents<'a> {
    pub(super) fn new(parent: &'a Dir, name: &str) -> StoredContents<'a> {
        StoredContents { parent, folder: RelPath::constant(name) }
    }

    /// Returns the files of `parent` itself.
    pub(super) fn root(parent: &'a Dir) -> StoredContents<'a> {
        StoredContents { parent, folder: RelPath::root() }
    }

    /// Opens the content of `path`.
    ///
    /// # Errors
    ///
    /// There is none, or a link is in its place.
    pub(super) fn open(&self, path: &RelPath) -> PathResult<File> {
        let path = self.folder.join_path(path);
        let name = path.file_name().ok_or(PathError::InvalidName)?;
        self.parent.enter(&path.parent())?.open_to_read(&name)?.ok_or(PathError::NotFound)
    }

    /// Reads the content of `path`. Returns `None` if it does not match `state`, or is too large to
    /// be merged.
    pub(super) fn read(&self, path: &RelPath, state: &EntryState) -> PathResult<Option<Vec<u8>>> {
        let bytes = read_limited(self.open(path)?)?;
        Ok(bytes.filter(|bytes| hash_bytes(bytes) == state.sha256))
    }
}

/// Reads a file. Returns `None` if it is too large to be merged.
fn read_limited(file: File) -> PathResult<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(MERGED_MAX + 1).read_to_end(&mut bytes).map_err(from_io)?;
    Ok((bytes.len() as u64 <= MERGED_MAX).then_some(bytes))
}

/// Returns true if the bytes that were read are the content of `state`.
pub(super) fn is_content_of<R: Read>(read: HashingReader<R>, state: &EntryState) -> bool {
    read.into_hash() == (state.size, state.sha256.clone())
}

fn hash_file(file: File) -> PathResult<String> {
    let mut reader = HashingReader::new(file);
    io::copy(&mut reader, &mut io::sink()).map_err(from_io)?;
    Ok(reader.into_hash().1)
}

/// Bits of a mode that are compared and set.
const PERMISSIONS: u32 = 0o777;

#[derive(Debug, Clone)]
pub(super) struct WorkspaceEntry {
    pub(super) meta: EntryMeta,
    /// SHA-256 of a file whose size is one of the expected sizes; empty otherwise.
    sha256: String,
    target: Option<Vec<u8>>,
}

impl WorkspaceEntry {
    /// Reads the entry `path`; `None` if there is none. A file is read only if its size matches one
    /// of `expected`.
    ///
    /// # Errors
    ///
    /// [`swarmletfs_base::error::Error::Escape`] if a folder of the path is a link.
    pub(super) fn read(
        workspace: &Dir,
        path: &RelPath,
        expected: &[&EntryState],
    ) -> PathResult<Option<WorkspaceEntry>> {
        let Some(meta) = workspace.entry(path)? else { return Ok(None) };
        let is_expected = |state: &&EntryState| {
            state.kind == EntryKind::File && meta.kind == Kind::File && state.size == meta.size
        };
        let sha256 = if expected.iter().any(is_expected) {
            hash_file(workspace.open_workspace_file(path)?)?
        } else {
            String::new()
        };
        let target =
            if meta.kind == Kind::Link { Some(workspace.link_target(path)?) } else { None };
        Ok(Some(WorkspaceEntry { meta, sha256, target }))
    }

    fn with_hash(self, sha256: String) -> WorkspaceEntry {
        WorkspaceEntry { sha256, ..self }
    }

    pub(super) fn kind(&self) -> EntryKind {
        self.meta.kind.into()
    }

    /// Returns true if the kind and the content match `state`, regardless of the permissions.
    pub(super) fn is_content_of(&self, state: &EntryState) -> bool {
        self.kind() == state.kind
            && match state.kind {
                EntryKind::File => self.meta.size == state.size && self.sha256 == state.sha256,
                EntryKind::Link => self.target == state.target_bytes(),
                EntryKind::Folder => true,
                EntryKind::Special => false,
            }
    }

    pub(super) fn state(&self) -> EntryState {
        EntryState {
            kind: self.kind(),
            mode: self.meta.mode,
            size: self.meta.size,
            sha256: self.sha256.clone(),
            target: self.target.as_deref().map(encode),
        }
    }
}

/// Returns the permissions of `state` that can be applied: never setuid, setgid or sticky.
pub(super) fn permissions(state: &EntryState) -> u32 {
    state.mode & PERMISSIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(base: &str, current: &str, new: &str) -> Option<MergedContent> {
        merge([base, current, new].map(str::as_bytes), "x").unwrap()
    }

    #[test]
    fn changes_of_other_lines_are_merged() {
        let base = "1\n2\n3\n4\n5\n6\n7\n";
        let merged = merged(base, "one\n2\n3\n4\n5\n6\n7\n", "1\n2\n3\n4\n5\n6\nseven\n").unwrap();
        assert_eq!(*merged.bytes, *b"one\n2\n3\n4\n5\n6\nseven\n");
        assert_eq!(merged.conflicts, 0);
    }

    #[test]
    fn changes_of_one_line_are_marked_and_binary_files_are_not_merged() {
        let both = merged("1\n", "2\n", "3\n").unwrap();
        assert_eq!(*both.bytes, *b"<<<<<<< workspace\n2\n=======\n3\n>>>>>>> worker\n");
        assert_eq!(both.conflicts, 1);
        assert_eq!(merged("\0\n1\n", "\0\n2\n", "\x003\n1\n"), None);
    }
}
