//! The names under which a worker's own files, and workers, are shown: their own, but for those that we use ourselves.
//!
//! Where a file on disk bears a name that we generate or answer, ours has the name and theirs is `<name>.own`. What is
//! said of a file in a generated file says where it is found, so both the tree and what is generated go by this.

use super::Generated;
use super::ask::Ask;
use super::clean::escape_markers;
use crate::name::{Name, RelPath};

/// The file in `workers/` that is ours.
pub const INDEX: &str = "index.json";
/// The folder in which workers are.
const WORKERS: &str = "workers/";
/// The folder in a worker's that holds links to its children.
pub const CHILDREN: &str = "children";
/// Behind the name of a file whose name we use ourselves.
pub(super) const OWN: &str = ".own";

/// Whether a name is ours in a worker's folder.
pub fn is_generated(name: &Name) -> bool {
    Generated::asked(name).is_some() || name.as_bytes() == CHILDREN.as_bytes() || Ask::named(name).is_some()
}

/// Whether a name is ours in `workers/`.
pub fn is_index(name: &Name) -> bool {
    name.as_bytes() == INDEX.as_bytes()
}

/// The name under which a file called `name` on disk is shown: with `.own` behind it, if it is derived from ours.
pub fn shown(name: &Name, ours: fn(&Name) -> bool) -> Name {
    if !derived(name, ours) {
        return name.clone();
    }
    Name::new([name.as_bytes(), OWN.as_bytes()].concat()).unwrap_or_else(|_| name.clone())
}

/// The name on disk of what is shown as `name`; none if that is a name of ours.
pub fn behind(name: &Name, ours: fn(&Name) -> bool) -> Option<Name> {
    if !derived(name, ours) {
        return Some(name.clone());
    }
    Name::new(name.as_bytes().strip_suffix(OWN.as_bytes())?).ok()
}

/// Whether `name` is one of ours, or one of ours with `.own` behind it any number of times.
fn derived(name: &Name, ours: fn(&Name) -> bool) -> bool {
    let mut bytes = name.as_bytes();
    while let Some(rest) = bytes.strip_suffix(OWN.as_bytes()) {
        bytes = rest;
    }
    Name::new(bytes).is_ok_and(|name| ours(&name))
}

/// Where the file `path` of a worker is shown in the worker's folder.
pub(super) fn shown_path(path: &RelPath) -> RelPath {
    let mut names = path.names();
    let first = names.next().map_or_else(RelPath::root, |first| shown(&first, is_generated).into());
    names.fold(first, |path, name| path.join(&name))
}

/// Where a worker is shown in the tree.
pub(super) fn place(worker: &Name) -> RelPath {
    let name = shown(worker, is_index);
    RelPath::parse([WORKERS.as_bytes(), name.as_bytes()].concat()).unwrap_or_else(|_| name.into())
}

/// Where the file `path` of the worker at `place` is shown, as it is written in an answer.
pub(super) fn at_in_text(place: &RelPath, path: &RelPath) -> String {
    escape_markers(&place.join_path(&shown_path(path)).display())
}

/// Whether a file at the top of a worker's folder tells of everything once more: its metadata and its transcripts.
pub(super) fn holds_everything(path: &RelPath) -> bool {
    let name = path.as_bytes();
    !name.contains(&b'/') && (name.ends_with(b".jsonl") || name.ends_with(b".json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_come_back_as_they_were() {
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
            let shown = shown(&name, is_generated);
            assert!(!is_generated(&shown), "{text} is shown as one of ours");
            assert_eq!(behind(&shown, is_generated), Some(name), "{text}");
        }
        assert_eq!(behind(&Name::new("summary").unwrap(), is_generated), None);
    }

    #[test]
    fn what_lies_directly_in_a_workers_folder_is_renamed_and_nothing_deeper() {
        for (on_disk, at) in [
            ("summary", "summary.own"),
            ("summary/index.json", "summary.own/index.json"),
            ("outputs/summary", "outputs/summary"),
        ] {
            assert_eq!(shown_path(&RelPath::parse(on_disk).unwrap()), RelPath::parse(at).unwrap());
        }
    }
}
