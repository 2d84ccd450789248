//! The line about the files that a worker changed, with the numbers of its changes.diff.

use std::cmp::Reverse;

use crate::analysis::changes::{FileChange, FileChanges, read_changes};
use crate::analysis::worker_digest::WorkerDigest;
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::count;

const FILES_MAX: usize = 5;

/// Describes the changed files: their number, the lines that changed in all, and the largest files.
/// Also returns true if the edits were read; otherwise the numbers of lines are left out.
pub(super) fn line(
    view: &View,
    member: &Member,
    digest: &WorkerDigest,
    deadline: Deadline<'_>,
) -> (String, bool) {
    // A render that is out of time must not wait for the worker's files.
    if digest.files_changed() == 0 || !deadline.has_time() {
        return (without_numbers(digest), digest.files_changed() == 0);
    }
    match read_changes(view, member, deadline) {
        Ok(Some(changes)) if deadline.has_time() => (with_numbers(&changes), true),
        Ok(None) if deadline.has_time() => (without_numbers(digest), true),
        _ => (without_numbers(digest), false),
    }
}

fn with_numbers(changes: &FileChanges) -> String {
    let (added, removed) = changes.counts();
    let head = format!("{}, +{added} -{removed}", count(changes.file_count(), "file"));
    let mut files: Vec<(usize, &FileChange)> = changes
        .files
        .iter()
        .filter(|file| !file.is_folder)
        .map(|file| (file.counts().0 + file.counts().1, file))
        .collect();
    files.sort_by_key(|(lines, _)| Reverse(*lines));
    with_names(head, files.into_iter().map(|(_, file)| file.full_path()).collect())
}

/// Describes the changed files in the order of the lines of all edits. These numbers differ from
/// the numbers in changes.diff, so they are not shown.
fn without_numbers(digest: &WorkerDigest) -> String {
    let mut files: Vec<_> = digest.files.iter().filter(|file| file.edits > 0).collect();
    if files.is_empty() {
        return String::new();
    }
    files.sort_by_key(|file| Reverse(file.added.saturating_add(file.removed)));
    let head = count(files.len(), "file");
    with_names(head, files.into_iter().map(|file| file.path.clone()).collect())
}

fn with_names(head: String, files: Vec<String>) -> String {
    if files.is_empty() {
        return head;
    }
    let names: Vec<String> =
        files.iter().take(FILES_MAX).map(|path| one_line(path, super::PATH_MAX)).collect();
    let more = if files.len() > FILES_MAX { ", …" } else { "" };
    format!("{head}: {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::file_uses::FileUse;
    use swarmletfs_base::error::Error;

    #[test]
    fn without_the_edits_files_are_named_without_numbers_largest_first() {
        let mut digest = WorkerDigest::unreadable(&Error::NotFound);
        assert_eq!(without_numbers(&digest), "");
        let file = |path: &str, edits, added| FileUse {
            path: path.into(),
            reads: 1,
            edits,
            created: false,
            added,
            removed: 2,
            edited_at: None,
        };
        digest.files = vec![file("a", 1, 3), file("b", 0, 0), file("c", 2, 9)];
        assert_eq!(without_numbers(&digest), "2 files: c, a");
    }
}
