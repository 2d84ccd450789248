//! Checks changes.json, and the contents that it names.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::super::super::check::{problem, quote};
use super::super::layout::{self, BASE, CHANGES, CHANGES_FILE};
use super::super::workspace::read_changes;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    ChangedFile, EntryKind, EntryState, RecordedChanges, RemarkSubject, Remarks, WorkerCheck,
};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{Store, read_into};

const READ_SIZE: usize = 1 << 20;

pub(super) fn check(folder: &dyn Store, check: &mut WorkerCheck, deadline: Deadline<'_>) {
    // The record says why a file cannot be read.
    let Ok(Some(RecordedChanges::Workspace(read))) = read_changes(folder) else { return };
    let file = layout::path(CHANGES_FILE);
    let changes = match *read {
        Ok(changes) => changes,
        Err(reason) => {
            let text = || format!("not understood: {reason}");
            check.remarks.add(problem("changes"), &file, RemarkSubject::Content, text);
            return;
        }
    };
    let mut paths = HashSet::new();
    for change in &changes.files {
        if !deadline.has_time() {
            check.is_complete = false;
            return;
        }
        let reason = match change.path.parse() {
            Ok(path) if paths.insert(path.clone()) => {
                check_contents(folder, change, &path, &mut check.remarks, deadline);
                continue;
            }
            Ok(_) => "is listed twice",
            Err(_) => "is no path in a workspace",
        };
        let text = || format!("{} {reason}", quote(change.path.as_text()));
        check.remarks.add(problem("change_path"), &file, RemarkSubject::Content, text);
    }
}

fn check_contents(
    folder: &dyn Store,
    change: &ChangedFile,
    path: &RelPath,
    remarks: &mut Remarks,
    deadline: Deadline<'_>,
) {
    let file = |state: &Option<EntryState>| state.clone().filter(|one| one.kind == EntryKind::File);
    let (old, new) = (file(&change.old), file(&change.new));
    let is_same = matches!((&old, &new), (Some(old), Some(new)) if old.sha256 == new.sha256);
    if change.refused.is_some() || is_same {
        return;
    }
    let old = old.filter(|_| change.base.is_stored());
    for (side, state) in [(BASE, old), (CHANGES, new)] {
        let Some(state) = state else { continue };
        let stored = layout::path(side).join_path(path);
        let text = match content_state(folder, &stored, deadline) {
            // The rest was not read.
            Ok(None) => continue,
            Ok(Some((size, hash))) if size == state.size && hash == state.sha256 => continue,
            Ok(Some((size, _))) if size != state.size => {
                format!("has {size} bytes; {CHANGES_FILE} states {}", state.size)
            }
            Ok(Some(_)) => format!("is not the content whose SHA-256 {CHANGES_FILE} states"),
            Err(error) => format!("cannot be read, so no diff shows this change: {error}"),
        };
        remarks.add(problem("change_content"), &stored, RemarkSubject::Entry, || text);
    }
}

/// Returns the size of a file and the SHA-256 of its content, or `None` if `deadline` passes.
fn content_state(
    folder: &dyn Store,
    path: &RelPath,
    deadline: Deadline<'_>,
) -> Result<Option<(u64, String)>> {
    let file = folder.open(path)?;
    let (mut hash, mut buffer, mut size) = (Sha256::new(), vec![0; READ_SIZE], 0);
    while deadline.has_time() {
        let read = read_into(&*file, size, &mut buffer)?;
        hash.update(buffer.split_at_known(read).0);
        size += read as u64;
        if read < READ_SIZE {
            let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok(Some((size, digits)));
        }
    }
    Ok(None)
}
