//! What helps who types a path of the disk where one of the tree is meant.
//!
//! What is told follows from the words that were typed, from mounts and stores, and from what is in the view: of what is
//! another's it is the same as of what is nowhere.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{TreeReader, join};
use crate::cli::mountinfo::MountTable;
use crate::cli::terminal::shell_quote;
use crate::tree::Links;

/// The folders of the root that a path of the tree begins with.
const ROOT_FOLDERS: [&[u8]; 8] = [b"workers", b"runs", b"by", b"grep", b"search", b"compare", b"supervisor", b"since"];

/// How `path` is written in the tree, if it looks as if a path of the disk was meant.
pub(super) fn suggest(reader: &TreeReader, path: &[u8]) -> Option<String> {
    if !path.starts_with(b"/") {
        return None;
    }
    // With a `/` alone in front of it, it was a path of the tree.
    let elsewhere = || tree_suffix(path).filter(|end| end.len() + 1 < path.len());
    let meant = path_in_mount(path).or_else(|| path_in_store(reader, path)).or_else(elsewhere)?;
    let shown = shell_quote(Path::new(OsStr::from_bytes(&meant)));
    Some(format!("paths begin at the root of the tree, as in `{shown}`"))
}

/// A path of a mount of ours, which has the names of the tree.
fn path_in_mount(path: &[u8]) -> Option<Vec<u8>> {
    let mounts = MountTable::read().ok()?;
    mounts.ours().find_map(|mount| relative_to(path, &mount.point))
}

/// A path of a store, which has `workers/` or is one.
fn path_in_store(reader: &TreeReader, path: &[u8]) -> Option<Vec<u8>> {
    let inner = reader.stores.iter().find_map(|store| relative_to(path, store))?;
    let is_there = |path: &Vec<u8>| reader.tree.at(path, Links::Followed, |_| Ok(())).is_ok();
    let found = [inner.clone(), join(b"workers", &inner)].into_iter().find(is_there);
    found.or_else(|| tree_suffix(&inner))
}

/// What of a path could be of the tree: from the first name on that such a path begins with.
fn tree_suffix(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let at = parts.iter().position(|part| ROOT_FOLDERS.contains(part))?;
    parts.get(at..).map(|parts| parts.join(&b'/'))
}

/// What of `path` is in `folder`; `.` if it is the folder itself.
fn relative_to(path: &[u8], folder: &Path) -> Option<Vec<u8>> {
    let inner = Path::new(OsStr::from_bytes(path)).strip_prefix(folder).ok()?.as_os_str().as_bytes();
    Some(if inner.is_empty() { b".".to_vec() } else { inner.to_vec() })
}
