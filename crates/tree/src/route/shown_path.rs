//! Paths in the tree of the files of workers.

use super::document::{changes_budget, is_prose};
use super::name_collision::{is_index, shown_name};
use super::query_dir::QueryDir;
use super::{Report, focus};
use crate::search::is_raw_record;
use crate::search::regex::RecordFormat;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::text::clean::escape_markers;

const WORKERS: &str = "workers/";
/// The transcript of a session, which repeats all texts.
const TRANSCRIPT: &[u8] = b"source.jsonl";
/// The messages of a session's user, which repeat the task.
const REQUESTS: &[u8] = b"requests.txt";
/// Name of the directory in a worker's directory that holds links to its children.
pub const CHILDREN: &str = "children";
/// Name of the link to the worker whose history a worker's record begins with.
pub const CONTINUES: &str = "continues";

/// Returns true if `name` is generated or answered in a worker's directory.
pub fn is_generated(name: &Name) -> bool {
    Report::from_name(name).is_some()
        || changes_budget(name).is_some()
        || is_prose(name)
        || focus::parse_name(name).is_some()
        || [CHILDREN, CONTINUES].iter().any(|link| name.as_bytes() == link.as_bytes())
        || QueryDir::parse(name).is_some()
}

/// Returns the path at which the file `path` is shown, relative to the worker's directory.
pub fn shown_path(path: &RelPath) -> RelPath {
    let mut names = path.names();
    let first =
        names.next().map_or_else(RelPath::root, |first| shown_name(&first, is_generated).into());
    names.fold(first, |path, name| path.join(&name))
}

pub fn worker_path(worker: &Name) -> RelPath {
    let name = shown_name(worker, is_index);
    RelPath::parse([WORKERS.as_bytes(), name.as_bytes()].concat()).unwrap_or_else(|_| name.into())
}

/// Returns the path of the file `path` of the worker at `worker_path`, escaped for an answer.
pub fn display_path(worker_path: &RelPath, path: &RelPath) -> String {
    escape_markers(&worker_path.join_path(&shown_path(path)).display())
}

/// Returns the format of a file whose lines can repeat lines of other files, and `None` for any
/// other file.
pub fn record_format(path: &RelPath) -> Option<RecordFormat> {
    match path.as_bytes() {
        TRANSCRIPT => Some(RecordFormat::Transcript),
        REQUESTS => Some(RecordFormat::Text),
        _ => is_raw_record(path).then_some(RecordFormat::Json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_component_of_a_path_is_renamed() {
        for (on_disk, at) in [
            ("summary", "summary.own"),
            ("summary/index.json", "summary.own/index.json"),
            ("outputs/summary", "outputs/summary"),
        ] {
            assert_eq!(shown_path(&RelPath::parse(on_disk).unwrap()), RelPath::parse(at).unwrap());
        }
    }
}
