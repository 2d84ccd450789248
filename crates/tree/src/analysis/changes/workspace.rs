//! The changes of a workspace: exact diffs of the contents that a worker's directory holds.
//!
//! While a worker runs, it can write everything in its directory. So a content counts only if it
//! has the size and the hash of changes.json.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::{
    BlobName, ChangeSource, DiffBody, EntryDiff, FileChange, FileChanges, HELD_MAX, Part, WORK_MAX,
    WorkBudget, WorkspaceFacts, is_git_path, skip_duplicates,
};
use crate::view::Folder;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{CONTENT_MAX, ChangedFile, EntryKind, EntryState, WorkspaceChanges};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::read_range;
use swarmletfs_base::text::unified::{binary_patch, blob_id, hunks, quoted_path};
use swarmletfs_trace::swarmlet::{BASE, CHANGES};

/// Maximum size of a content that is written as a binary patch, in bytes.
const BINARY_MAX: usize = 1 << 20;
/// Bit of a mode that lets the owner execute a file.
const EXECUTABLE: u32 = 0o100;
/// Names that git gives to the modes of files and links.
const PLAIN_MODE: &str = "100644";
const EXECUTABLE_MODE: &str = "100755";
const LINK_MODE: &str = "120000";
/// Reason why a change that depends on another one is not in the diff.
const NEEDS_DELETION: &str = "what it replaces is not deleted in this diff";

/// Compares the contents before and after each change. `folder` is the worker's directory. Counts
/// the changes for which there was no time before `deadline`.
pub(super) fn changes(
    read: Result<WorkspaceChanges, String>,
    folder: &Folder,
    deadline: Deadline<'_>,
) -> FileChanges {
    let changes = match read {
        Ok(changes) => changes,
        Err(reason) => {
            let notes = vec![format!("its changes.json is not understood: {reason}")];
            let facts = WorkspaceFacts { notes, ..WorkspaceFacts::default() };
            return FileChanges {
                source: ChangeSource::Workspace(facts),
                ..FileChanges::default()
            };
        }
    };
    let mut all = FileChanges::default();
    let work = WorkBudget { room: WORK_MAX, deadline };
    let mut reader = ContentReader { folder, work };
    let mut held = 0;
    for file in &changes.files {
        if !deadline.has_time() {
            all.unread += 1;
            continue;
        }
        if held > HELD_MAX {
            all.excess += 1;
            continue;
        }
        let change = file_change(file, &mut reader);
        held += change.parts.iter().map(Part::held).sum::<usize>();
        all.files.push(change);
        all.edits += 1;
    }
    skip_duplicates(&mut all.files);
    link_deletions(&mut all.files);
    all.source = ChangeSource::Workspace(facts(changes));
    all
}

fn facts(changes: WorkspaceChanges) -> WorkspaceFacts {
    WorkspaceFacts {
        workspace: Some(changes.workspace),
        is_final: changes.is_final,
        ignored: changes.ignored,
        notes: changes.notes,
    }
}

fn file_change(file: &ChangedFile, reader: &mut ContentReader<'_>) -> FileChange {
    let Ok(path) = file.path.parse() else {
        let change = FileChange { path: file.path.as_text().into(), ..FileChange::default() };
        return with_note(change, "leads out of the workspace, so it is not shown".into());
    };
    let states = [&file.old, &file.new].into_iter().flatten();
    let skipped_because = (!is_git_path(path.as_bytes())
        || states.clone().any(|state| state.kind == EntryKind::Link) && is_git_link(&path))
    .then_some("git accepts no such path");
    let mut change = FileChange {
        path: path.as_bytes().to_vec(),
        is_folder: file.is_folder(),
        is_gone: file.old.as_ref().is_some_and(|state| state.kind != EntryKind::Folder)
            && file.new.as_ref().is_none_or(|state| state.kind == EntryKind::Folder),
        skipped_because,
        ..FileChange::default()
    };
    if let Some(reason) = &file.refused {
        return with_note(change, format!("changed, but cannot be applied: {reason}"));
    }
    change.parts.extend(mode_note(file).map(Part::Note));
    match diffs(file, &path, reader) {
        Ok(diffs) if diffs.is_empty() => {}
        Ok(diffs) => change.parts.push(Part::Entry(diffs)),
        Err(reason) => change.parts.push(Part::Note(reason)),
    }
    change
}

fn with_note(change: FileChange, note: String) -> FileChange {
    FileChange { parts: vec![Part::Note(note)], ..change }
}

/// Returns true if `path` has a name of a link that git refuses.
fn is_git_link(path: &RelPath) -> bool {
    let Some(name) = path.file_name() else { return false };
    let name = name.to_text().to_ascii_lowercase();
    let name = name.trim_end_matches([' ', '.']);
    name == ".gitmodules" || name.starts_with("gitmod~") || name.starts_with("gi7eba~")
}

/// Describes the changes that git does not record: folders, and permission bits other than the
/// executable bit.
fn mode_note(file: &ChangedFile) -> Option<String> {
    let folder = |state: &Option<EntryState>| {
        state.as_ref().filter(|state| state.kind == EntryKind::Folder).map(|state| state.mode)
    };
    let note = match (folder(&file.old), folder(&file.new)) {
        (None, Some(mode)) => format!("a new folder with mode {mode:04o}"),
        (Some(mode), None) => format!("a deleted folder with mode {mode:04o}"),
        (Some(old), Some(new)) => {
            format!("a folder whose mode changed from {old:04o} to {new:04o}")
        }
        (None, None) => match (&file.old, &file.new) {
            (Some(old), Some(new)) if old.kind == EntryKind::File && new.kind == old.kind => {
                let is_shown = is_executable(old) != is_executable(new);
                if old.mode == new.mode || is_shown && is_usual(old) && is_usual(new) {
                    return None;
                }
                format!("its mode changed from {:04o} to {:04o}", old.mode, new.mode)
            }
            (None, Some(new)) if new.kind == EntryKind::File && !is_usual(new) => {
                format!("its mode is {:04o}", new.mode)
            }
            _ => return None,
        },
    };
    Some(format!("{note}, which git does not record"))
}

fn is_executable(state: &EntryState) -> bool {
    state.mode & EXECUTABLE != 0
}

/// Returns true if git gives the mode of `state` to a file.
fn is_usual(state: &EntryState) -> bool {
    matches!(state.mode, 0o644 | 0o755)
}

/// Returns the diffs of a change: two if an entry of another kind takes the path, none if git
/// records nothing of it.
///
/// # Errors
///
/// Returns a text about the change if it cannot be shown as a diff.
fn diffs(
    file: &ChangedFile,
    path: &RelPath,
    reader: &mut ContentReader<'_>,
) -> Result<Vec<EntryDiff>, String> {
    if let (Some(old), Some(new)) = (&file.old, &file.new)
        && (old.kind, new.kind) == (EntryKind::File, EntryKind::File)
        && old.sha256 == new.sha256
    {
        let names = [old, new].map(|state| BlobName { mode: file_mode(state), id: String::new() });
        let [old, new] = names;
        let is_change = old.mode != new.mode;
        let body = DiffBody::Mode;
        return Ok(is_change
            .then_some(EntryDiff { old: Some(old), new: Some(new), body })
            .into_iter()
            .collect());
    }
    let new = match &file.new {
        Some(state) => reader.blob(state, path, CHANGES)?,
        None => None,
    };
    let is_file = file.old.as_ref().is_some_and(|state| state.kind == EntryKind::File);
    let old = match &file.old {
        Some(_) if is_file && !file.base.is_stored() => {
            return Err("changed, but no diff can be shown: the workspace changed before the \
                        content that the worker found was saved"
                .into());
        }
        Some(state) => reader.blob(state, path, BASE)?,
        None => None,
    };
    match (old, new) {
        (None, None) => Ok(Vec::new()),
        (Some(old), Some(new)) if old.is_link() != new.is_link() => {
            Ok(vec![diff(path, Some(old), None)?, diff(path, None, Some(new))?])
        }
        (old, new) => Ok(vec![diff(path, old, new)?]),
    }
}

fn file_mode(state: &EntryState) -> &'static str {
    if is_executable(state) { EXECUTABLE_MODE } else { PLAIN_MODE }
}

struct Blob {
    mode: &'static str,
    content: Vec<u8>,
}

impl Blob {
    fn is_link(&self) -> bool {
        self.mode == LINK_MODE
    }

    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.content).ok().filter(|text| !text.contains('\0'))
    }

    fn name(&self) -> BlobName {
        BlobName { mode: self.mode, id: blob_id(&self.content) }
    }
}

/// Returns the diff of two contents.
///
/// # Errors
///
/// Returns a text about the change if the diff would be too large.
fn diff(path: &RelPath, old: Option<Blob>, new: Option<Blob>) -> Result<EntryDiff, String> {
    let text = |blob: &Option<Blob>| blob.as_ref().is_none_or(|blob| blob.text().is_some());
    let body = match text(&old) && text(&new) {
        true => {
            let text = |blob: &Option<Blob>| Some(blob.as_ref()?.text()?.to_owned());
            DiffBody::Text(hunks(&text(&old).unwrap_or_default(), &text(&new).unwrap_or_default()))
        }
        false => {
            let before = old.as_ref().map_or(&[][..], |blob| &blob.content);
            let after = new.as_ref().map_or(&[][..], |blob| &blob.content);
            if after.len() > BINARY_MAX {
                let [a, b] = ["a/", "b/"].map(|side| quoted_path(side, path.as_bytes()));
                let size = after.len();
                return Err(format!("Binary files {a} and {b} differ, {size} bytes now"));
            }
            // A longer old content is known by its name only, so such a patch has no reverse.
            let before = Some(before).filter(|before| before.len() <= BINARY_MAX);
            DiffBody::Binary(binary_patch(before, after))
        }
    };
    let name = |blob: Option<Blob>| blob.map(|blob| blob.name());
    Ok(EntryDiff { old: name(old), new: name(new), body })
}

struct ContentReader<'a> {
    folder: &'a Folder,
    work: WorkBudget<'a>,
}

impl ContentReader<'_> {
    /// Reads the content of an entry in the directory `side`. Returns `None` for a folder.
    ///
    /// # Errors
    ///
    /// Returns a text about the change if there is no such content.
    fn blob(
        &mut self,
        state: &EntryState,
        path: &RelPath,
        side: &str,
    ) -> Result<Option<Blob>, String> {
        match state.kind {
            EntryKind::Folder => Ok(None),
            EntryKind::Special => Err("a device, FIFO or socket, which is not applied".into()),
            EntryKind::Link => match state.target_bytes() {
                Some(content) => Ok(Some(Blob { mode: LINK_MODE, content })),
                None => Err("a link whose target changes.json does not state".into()),
            },
            EntryKind::File => {
                let content = self.content(state, path, side)?;
                Ok(Some(Blob { mode: file_mode(state), content }))
            }
        }
    }

    fn content(
        &mut self,
        state: &EntryState,
        path: &RelPath,
        side: &str,
    ) -> Result<Vec<u8>, String> {
        let size = usize::try_from(state.size).unwrap_or(usize::MAX);
        if size > CONTENT_MAX {
            return Err(format!("changed, but {size} bytes are too many for a diff"));
        }
        if !self.work.take(size) {
            return Err(
                "changed, but there was no time to read it, or its changes are too many".into()
            );
        }
        let file = RelPath::constant(side).join_path(path);
        let read = self.folder.open(&file).and_then(|file| read_range(&*file, 0, size + 1));
        let content = match read {
            Ok(content) => content,
            Err(error) => return Err(format!("changed, but {side}/ does not hold it: {error}")),
        };
        let hash: String =
            Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        if content.len() != size || !hash.eq_ignore_ascii_case(&state.sha256) {
            return Err(format!(
                "changed, but its content in {side}/ is not that of changes.json, so no diff is shown"
            ));
        }
        Ok(content)
    }
}

/// Finds the deletions without which a new path does not fit into the workspace: the deletion of a
/// file or link in the place of its folder, and of everything in the folder that it replaces.
fn link_deletions(files: &mut [FileChange]) {
    let mut deleted: HashMap<&[u8], usize> = HashMap::new();
    let mut created: HashMap<&[u8], usize> = HashMap::new();
    for (at, file) in files.iter().enumerate() {
        if file.parts.iter().any(Part::creates) {
            created.insert(&file.path, at);
        }
        if file.is_gone {
            deleted.insert(&file.path, at);
        }
    }
    let mut needs: Vec<(usize, usize)> = Vec::new();
    for (path, at) in &created {
        let above = ancestors(path).filter_map(|above| deleted.get(above));
        needs.extend(above.map(|deletion| (*at, *deletion)));
    }
    for (path, deletion) in &deleted {
        let above = ancestors(path).filter_map(|above| created.get(above));
        needs.extend(above.map(|at| (*at, *deletion)));
    }
    needs.sort_unstable();
    for (at, deletion) in needs {
        let is_deleted = files.get(deletion).is_some_and(|file| {
            file.skipped_because.is_none() && file.parts.iter().any(Part::deletes)
        });
        if let Some(file) = files.get_mut(at) {
            file.needs.push(deletion);
            if !is_deleted {
                file.skipped_because.get_or_insert(NEEDS_DELETION);
            }
        }
    }
}

fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    ends.filter_map(|(end, _)| path.get(..end))
}
