//! The files that a worker read or changed according to its record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{AccessKind, Outcome, Record};

/// Maximum number of files kept of a worker.
const FILES_MAX: usize = 2_000;

/// A file that a worker read or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileUse {
    /// The path, relative to the worker's directory if it lies in it.
    pub(crate) path: String,
    /// Number of reads.
    pub(crate) reads: u64,
    /// Number of changes.
    pub(crate) edits: u64,
    /// True if the worker created the file.
    pub(crate) created: bool,
    /// Number of lines added by all changes.
    pub(crate) added: u64,
    /// Number of lines removed by all changes.
    pub(crate) removed: u64,
    /// Times of the first and the last change, in milliseconds since 1970.
    pub(crate) edited_at: Option<(i64, i64)>,
}

/// Returns the files of a record, sorted by path. Beyond [`FILES_MAX`], files that were only read
/// are dropped first.
pub(crate) fn file_uses(record: &Record) -> Vec<FileUse> {
    let cwd = record.worker.cwd.as_deref();
    let mut uses: BTreeMap<&str, FileUse> = BTreeMap::new();
    for call in &record.trace.calls {
        // A call that failed or never ran used no file.
        let took_place = !matches!(call.outcome, Outcome::Failed | Outcome::NotRun);
        let Some(file) = call.file.as_ref().filter(|_| took_place) else { continue };
        let path = relative(&file.path, cwd);
        let found = uses.entry(path).or_insert_with(|| FileUse {
            path: path.to_owned(),
            reads: 0,
            edits: 0,
            created: false,
            added: 0,
            removed: 0,
            edited_at: None,
        });
        if file.kind == AccessKind::Read {
            found.reads += 1;
            continue;
        }
        found.edits += 1;
        found.created |= file.kind == AccessKind::Created;
        found.added = found.added.saturating_add(file.added);
        found.removed = found.removed.saturating_add(file.removed);
        if let Some(at) = call.at.map(|at| at.as_millisecond()) {
            let (first, last) = found.edited_at.unwrap_or((at, at));
            found.edited_at = Some((first.min(at), last.max(at)));
        }
    }
    let mut uses: Vec<FileUse> = uses.into_values().collect();
    if uses.len() > FILES_MAX {
        uses.sort_by_key(|file| file.edits == 0);
        uses.truncate(FILES_MAX);
        uses.sort_by(|a, b| a.path.cmp(&b.path));
    }
    uses
}

/// Returns `path` relative to the directory `cwd` if it lies in it.
pub(crate) fn relative<'a>(path: &'a str, cwd: Option<&str>) -> &'a str {
    let inside =
        cwd.and_then(|cwd| path.strip_prefix(cwd.trim_end_matches('/'))?.strip_prefix('/'));
    inside.filter(|rest| !rest.is_empty()).unwrap_or(path)
}
