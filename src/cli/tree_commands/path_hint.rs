//! Hints for users who mistype a path of the tree, or type one of the disk instead.
//!
//! A hint depends only on the path, the mounts, the stores, and the view. So a path of another
//! owner gives the same hint as one that does not exist.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{TreeReader, join};
use crate::cli::mountinfo::MountTable;
use crate::cli::terminal::shell_quote;
use crate::tree::Symlinks;

const ROOT_FOLDERS: [&[u8]; 8] =
    [b"workers", b"runs", b"by", b"grep", b"search", b"compare", b"supervisor", b"since"];

/// Most names of a directory that are compared with a mistyped one.
const COMPARED_MAX: usize = 100_000;

/// Longest name that is compared, in bytes.
const NAME_MAX: usize = 255;

/// Most characters in which a name may differ from a mistyped one.
const DISTANCE_MAX: usize = 3;

/// Returns a hint with the path that was probably meant: the path in the tree if `path` looks like
/// one of the disk, or the nearest one that exists.
pub(super) fn suggest(reader: &TreeReader, path: &[u8]) -> Option<String> {
    let on_disk = if path.starts_with(b"/") { suggest_for_disk_path(reader, path) } else { None };
    on_disk.or_else(|| {
        let shown = nearest_path(reader, path)?;
        Some(format!("did you mean `{}`?", shell_quote(Path::new(OsStr::from_bytes(&shown)))))
    })
}

/// Returns a hint with the path in the tree, if the absolute `path` looks like one of the disk.
fn suggest_for_disk_path(reader: &TreeReader, path: &[u8]) -> Option<String> {
    // A path that only lacks its leading `/` was a path of the tree.
    let meant = path_in_mount(path)
        .or_else(|| path_in_store(reader, path))
        .or_else(|| tree_suffix(path).filter(|end| end.len() + 1 < path.len()))?;
    let shown = shell_quote(Path::new(OsStr::from_bytes(&meant)));
    Some(format!("paths start at the root of the tree, as in `{shown}`"))
}

/// Returns `path` with each name that does not exist replaced by the nearest one in its directory.
/// Returns `None` if one of the names has none, or if all exist.
fn nearest_path(reader: &TreeReader, path: &[u8]) -> Option<Vec<u8>> {
    let (mut nearest, mut is_replaced) = (b".".to_vec(), false);
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        let next = join(&nearest, name);
        if reader.tree.with_path(&next, Symlinks::Follow, |_| Ok(())).is_ok() {
            nearest = next;
            continue;
        }
        let names = reader.tree.with_path(&nearest, Symlinks::Follow, |place| {
            reader.tree.list_folder(place.leaf().ino)
        });
        let names = names.ok()?;
        let listed = names.iter().take(COMPARED_MAX).map(|entry| entry.name.as_bytes());
        // The directories of queries are in no listing.
        let hidden = if nearest == b"." { &ROOT_FOLDERS[..] } else { &[] };
        nearest = join(&nearest, nearest_name(name, listed.chain(hidden.iter().copied()))?);
        is_replaced = true;
    }
    is_replaced.then_some(nearest)
}

/// Returns the name with the fewest differences to `typed`; of several, the first in byte order. At
/// most a third of the characters may differ.
fn nearest_name<'a>(typed: &[u8], names: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let typed = std::str::from_utf8(typed).ok().filter(|typed| typed.len() <= NAME_MAX)?;
    let limit = (typed.chars().count() / 3).min(DISTANCE_MAX);
    let distances = names.filter_map(|name| {
        // No name of another length can be near.
        if name.len().abs_diff(typed.len()) > limit * char::MAX.len_utf8() {
            return None;
        }
        let distance = strsim::osa_distance(typed, std::str::from_utf8(name).ok()?);
        // A listed name that cannot be found is no remedy for itself.
        (1..=limit).contains(&distance).then_some((distance, name))
    });
    distances.min().map(|(_, name)| name)
}

/// Returns the path inside a swarmletfs mount, which has the same names as the tree.
fn path_in_mount(path: &[u8]) -> Option<Vec<u8>> {
    let mounts = MountTable::read().ok()?;
    mounts.ours().find_map(|mount| relative_to(path, &mount.point))
}

/// Returns the path inside a store, which contains `workers/` or is such a directory.
fn path_in_store(reader: &TreeReader, path: &[u8]) -> Option<Vec<u8>> {
    let inner = reader.stores.iter().find_map(|store| relative_to(path, store))?;
    let mut candidates = [inner.clone(), join(b"workers", &inner)].into_iter();
    let found =
        candidates.find(|path| reader.tree.with_path(path, Symlinks::Follow, |_| Ok(())).is_ok());
    found.or_else(|| tree_suffix(&inner))
}

/// Returns the end of `path` from the first directory in the root of the tree.
fn tree_suffix(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let start = parts.iter().position(|part| ROOT_FOLDERS.contains(part))?;
    parts.get(start..).map(|parts| parts.join(&b'/'))
}

/// Returns `path` relative to `folder`; `.` for the directory itself.
fn relative_to(path: &[u8], folder: &Path) -> Option<Vec<u8>> {
    let inner =
        Path::new(OsStr::from_bytes(path)).strip_prefix(folder).ok()?.as_os_str().as_bytes();
    Some(if inner.is_empty() { b".".to_vec() } else { inner.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_differs_in_at_most_a_third() {
        let names: [&[u8]; 5] = [b"summary", b"evidence.txt", b"workers", b"m1", b"\xff"];
        for (typed, nearest) in [
            ("sumary", Some("summary")),
            ("summayr", Some("summary")),
            ("Summary", Some("summary")),
            ("evidence.tx", Some("evidence.txt")),
            ("worers", Some("workers")),
            ("m2", None),
            ("other", None),
            ("", None),
        ] {
            let found = nearest_name(typed.as_bytes(), names.into_iter());
            assert_eq!(found, nearest.map(str::as_bytes), "{typed}");
        }
    }
}
