//! Resolves collisions between generated names and the names of workers and their files.
//!
//! A generated or answered name takes precedence: a file on disk with that name is shown as
//! `<name>.own`. Both the tree and the paths in generated files follow this rule.

use super::Generated;
use super::query_dir::QueryDir;
use crate::name::{Name, RelPath};
use crate::text::clean::escape_markers;

/// Name of the generated file in `workers/`.
pub const INDEX: &str = "index.json";
/// The directory of the workers.
const WORKERS: &str = "workers/";
/// Name of the directory in a worker's directory that holds links to its children.
pub const CHILDREN: &str = "children";
/// Suffix of a file whose name collides with a generated name.
pub(super) const OWN_SUFFIX: &str = ".own";

/// Returns true if `name` is generated or answered in a worker's directory.
pub fn is_generated(name: &Name) -> bool {
    Generated::from_name(name).is_some() || name.as_bytes() == CHILDREN.as_bytes() || QueryDir::parse(name).is_some()
}

/// Returns true if `name` is generated in `workers/`.
pub fn is_index(name: &Name) -> bool {
    name.as_bytes() == INDEX.as_bytes()
}

/// Returns the name under which the file `name` on disk is shown: with `.own` appended if it
/// collides with a reserved name.
pub fn shown_name(name: &Name, is_reserved: fn(&Name) -> bool) -> Name {
    if !collides(name, is_reserved) {
        return name.clone();
    }
    Name::new([name.as_bytes(), OWN_SUFFIX.as_bytes()].concat()).unwrap_or_else(|_| name.clone())
}

/// Returns the name on disk of the file shown as `name`, or `None` if `name` is reserved.
pub fn stored_name(name: &Name, is_reserved: fn(&Name) -> bool) -> Option<Name> {
    if !collides(name, is_reserved) {
        return Some(name.clone());
    }
    Name::new(name.as_bytes().strip_suffix(OWN_SUFFIX.as_bytes())?).ok()
}

/// Returns true if `name` is reserved, or reserved with `.own` appended any number of times.
fn collides(name: &Name, is_reserved: fn(&Name) -> bool) -> bool {
    let mut bytes = name.as_bytes();
    while let Some(rest) = bytes.strip_suffix(OWN_SUFFIX.as_bytes()) {
        bytes = rest;
    }
    Name::new(bytes).is_ok_and(|name| is_reserved(&name))
}

/// Returns the path at which the file `path` is shown, relative to the worker's directory.
pub(crate) fn shown_path(path: &RelPath) -> RelPath {
    let mut names = path.names();
    let first = names.next().map_or_else(RelPath::root, |first| shown_name(&first, is_generated).into());
    names.fold(first, |path, name| path.join(&name))
}

/// Returns the path at which a worker is shown in the tree.
pub(crate) fn worker_path(worker: &Name) -> RelPath {
    let name = shown_name(worker, is_index);
    RelPath::parse([WORKERS.as_bytes(), name.as_bytes()].concat()).unwrap_or_else(|_| name.into())
}

/// Returns the path of the file `path` of the worker at `worker_path`, escaped for an answer.
pub(crate) fn display_path(worker_path: &RelPath, path: &RelPath) -> String {
    escape_markers(&worker_path.join_path(&shown_path(path)).display())
}

/// Returns true for metadata and transcripts at the top of a worker's directory, which repeat the
/// text of other files.
pub(crate) fn is_raw_record(path: &RelPath) -> bool {
    let name = path.as_bytes();
    !name.contains(&b'/') && (name.ends_with(b".jsonl") || name.ends_with(b".json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_name_inverts_shown_name() {
        for text in [
            "a",
            "summary",
            "summary.own",
            "summary.own.own",
            "evidence.4k.txt",
            "x.own",
            ".own",
            "index.json",
            "children",
            "grep",
            "grep.i@*.md",
        ] {
            let name = Name::new(text).unwrap();
            let shown = shown_name(&name, is_generated);
            assert!(!is_generated(&shown), "{text} is shown under a reserved name");
            assert_eq!(stored_name(&shown, is_generated), Some(name), "{text}");
        }
        assert_eq!(stored_name(&Name::new("summary").unwrap(), is_generated), None);
    }

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
