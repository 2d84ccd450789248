//! Hints for users who type a path of the disk instead of one of the tree.
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

/// Directories in the root of the tree.
const ROOT_FOLDERS: [&[u8]; 8] =
    [b"workers", b"runs", b"by", b"grep", b"search", b"compare", b"supervisor", b"since"];

/// Returns a hint with the path in the tree, if `path` looks like one of the disk.
pub(super) fn suggest(reader: &TreeReader, path: &[u8]) -> Option<String> {
    if !path.starts_with(b"/") {
        return None;
    }
    // A path that only lacks its leading `/` was a path of the tree.
    let meant = path_in_mount(path)
        .or_else(|| path_in_store(reader, path))
        .or_else(|| tree_suffix(path).filter(|end| end.len() + 1 < path.len()))?;
    let shown = shell_quote(Path::new(OsStr::from_bytes(&meant)));
    Some(format!("paths start at the root of the tree, as in `{shown}`"))
}

/// Returns the path inside a swarmletfs mount, where the names are those of the tree.
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
