//! Files that several workers edited at overlapping times.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::file_uses::FileUse;
use super::worker_digest::WorkerRow;
use crate::view::Member;

pub struct Overlap<'a> {
    /// The path, relative to the first worker's directory if it lies in it.
    pub path: &'a str,
    /// The workers, each of which overlaps another one, in the order of their first edits.
    pub members: Vec<&'a Member>,
    pub edits: u64,
}

struct FileEdits<'a> {
    /// Times of the first and the last edit, in milliseconds since 1970.
    edited_at: (i64, i64),
    member: &'a Member,
    file: &'a FileUse,
}

/// Returns the files that several of the workers edited at overlapping times, the most edited
/// first. A worker edits a file from its first edit to its last one. Workers joined by a chain of
/// overlaps are one entry. A relative path of a worker without a working directory is no file in
/// particular, so it overlaps nothing.
pub fn overlaps(rows: &[WorkerRow]) -> Vec<Overlap<'_>> {
    let mut by_path: BTreeMap<Cow<'_, str>, Vec<FileEdits<'_>>> = BTreeMap::new();
    for row in rows {
        let Some(digest) = row.digest.as_deref() else { continue };
        let mut edited = digest.files.iter().filter(|file| file.edits > 0).peekable();
        if edited.peek().is_none() {
            continue;
        }
        let worker = row.worker();
        for file in edited {
            let (Some(path), Some(edited_at)) =
                (full_path(&file.path, worker.cwd.as_deref()), file.edited_at)
            else {
                continue;
            };
            let edits = FileEdits { edited_at, member: &row.member, file };
            by_path.entry(path).or_default().push(edits);
        }
    }
    let mut found: Vec<Overlap<'_>> = by_path.into_values().flat_map(overlapping).collect();
    // The sort is stable, so files with equally many edits stay in the order of their full paths.
    found.sort_by_key(|overlap| Reverse(overlap.edits));
    found
}

fn full_path<'a>(path: &'a str, cwd: Option<&str>) -> Option<Cow<'a, str>> {
    if path.starts_with('/') {
        return Some(Cow::Borrowed(path));
    }
    Some(Cow::Owned(format!("{}/{path}", cwd?.trim_end_matches('/'))))
}

/// Returns the groups of workers that edited one file at overlapping times, in order of time.
fn overlapping(mut edits: Vec<FileEdits<'_>>) -> Vec<Overlap<'_>> {
    edits.sort_by(|a, b| (a.edited_at, &a.member.name).cmp(&(b.edited_at, &b.member.name)));
    let mut groups: Vec<(i64, Overlap<'_>)> = Vec::new();
    for FileEdits { edited_at: (first, last), member, file } in edits {
        match groups.last_mut() {
            Some((end, group)) if first <= *end => {
                *end = last.max(*end);
                group.members.push(member);
                group.edits = group.edits.saturating_add(file.edits);
            }
            _ => {
                let group = Overlap { path: &file.path, members: vec![member], edits: file.edits };
                groups.push((last, group));
            }
        }
    }
    groups.into_iter().map(|(_, group)| group).filter(|group| group.members.len() > 1).collect()
}
