//! The files that a worker read or changed according to its record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use swarmletfs_base::model::{AccessKind, ChangeKind, Outcome, Record, ToolCall};

const FILES_MAX: usize = 2_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUse {
    /// The path, relative to the worker's directory if it lies in it.
    pub path: String,
    pub reads: u64,
    pub edits: u64,
    pub created: bool,
    pub added: u64,
    pub removed: u64,
    /// Times of the first and the last change, in milliseconds since 1970.
    pub edited_at: Option<(i64, i64)>,
}

impl FileUse {
    fn new(path: &str) -> FileUse {
        FileUse { path: path.to_owned(), ..FileUse::default() }
    }
}

/// Returns the files of a record, sorted by path. Beyond `FILES_MAX`, files that were only read
/// are dropped first.
pub fn file_uses(record: &Record) -> Vec<FileUse> {
    let cwd = record.worker.cwd.as_deref().map(|cwd| absolute(cwd, None));
    let mut uses: BTreeMap<String, FileUse> = BTreeMap::new();
    // A call that failed or never ran used no file.
    let took_place = |call: &&ToolCall| !matches!(call.outcome, Outcome::Failed | Outcome::NotRun);
    let calls = record.trace.calls.iter().filter(took_place);
    for (call, file) in calls.flat_map(|call| call.files.iter().map(move |file| (call, file))) {
        let path = absolute(&file.path, cwd.as_deref());
        let path = relative(&path, cwd.as_deref()).to_owned();
        let found = uses.entry(path).or_insert_with_key(|path| FileUse::new(path));
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
    for file in &record.trace.workspace_files {
        let found = uses.entry(file.path.clone()).or_insert_with_key(|path| FileUse::new(path));
        found.edits += 1;
        found.created |= file.kind == ChangeKind::Added;
        found.added = found.added.saturating_add(file.added);
        found.removed = found.removed.saturating_add(file.removed);
    }
    let mut uses: Vec<FileUse> = uses.into_values().collect();
    if uses.len() > FILES_MAX {
        uses.sort_by_key(|file| file.edits == 0);
        uses.truncate(FILES_MAX);
        uses.sort_by(|a, b| a.path.cmp(&b.path));
    }
    uses
}

/// Resolves `.` and `..` in `path`, which is relative to `cwd` unless it begins at a root. The
/// result is relative if `cwd` is unknown.
pub(super) fn absolute(path: &str, cwd: Option<&str>) -> String {
    // Paths of Windows begin with the letter of a drive.
    let drive = |path: &str| path.get(1..).is_some_and(|rest| rest.starts_with(":\\"));
    let path = if drive(path) { path.replace('\\', "/") } else { path.to_owned() };
    let is_rooted =
        path.starts_with('/') || path.get(1..).is_some_and(|rest| rest.starts_with(":/"));
    let whole = match cwd.filter(|_| !is_rooted) {
        Some(cwd) => format!("{}/{path}", absolute(cwd, None)),
        None => path,
    };
    let mut names: Vec<&str> = Vec::new();
    for name in whole.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let root = if whole.starts_with('/') { "/" } else { "" };
    root.to_owned() + &names.join("/")
}

pub(super) fn relative<'a>(path: &'a str, cwd: Option<&str>) -> &'a str {
    let inside =
        cwd.and_then(|cwd| path.strip_prefix(cwd.trim_end_matches('/'))?.strip_prefix('/'));
    inside.filter(|rest| !rest.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::model::{FileAccess, Trace, Worker};
    use swarmletfs_base::name::{Name, RelPath};

    #[test]
    fn all_spellings_of_a_path_are_one_file() {
        let call = |path: &str| ToolCall {
            outcome: Outcome::Ok,
            files: vec![FileAccess {
                path: path.into(),
                kind: AccessKind::Edited,
                added: 1,
                removed: 0,
            }],
            ..ToolCall::new(1, "edit", RelPath::root())
        };
        let worker = Worker {
            cwd: Some("/app/".into()),
            ..Worker::new(Name::new("w").unwrap(), RelPath::root())
        };
        let calls = ["/app/a", "a", "./a", "b/../a", "/app/./a"].map(call).into();
        let record = Record { worker, trace: Trace { calls, ..Trace::default() }, unread: 0 };
        let uses: Vec<(String, u64)> =
            file_uses(&record).into_iter().map(|file| (file.path, file.edits)).collect();
        assert_eq!(uses, [("a".to_owned(), 5)]);
    }
}
