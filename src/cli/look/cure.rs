//! What helps who types a path of the disk where one of the tree is meant.
//!
//! What is told follows from the words that were typed, from mounts and stores, and from what is in the view: of what is
//! another's it is the same as of what is nowhere.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Look, join};
use crate::cli::mountinfo::Mounts;
use crate::cli::say::typed;
use crate::tree::Symlinks;

/// The folders of the root that a path of the tree begins with.
const BEGINNINGS: [&[u8]; 8] = [b"workers", b"runs", b"by", b"grep", b"search", b"compare", b"supervisor", b"since"];

/// How `path` is written in the tree, if it looks as if a path of the disk was meant.
pub(super) fn of(look: &Look, path: &[u8]) -> Option<String> {
    if !path.starts_with(b"/") {
        return None;
    }
    // With a `/` alone in front of it, it was a path of the tree.
    let elsewhere = || end(path).filter(|end| end.len() + 1 < path.len());
    let meant = in_mount(path).or_else(|| in_store(look, path)).or_else(elsewhere)?;
    let shown = typed(Path::new(OsStr::from_bytes(&meant)));
    Some(format!("paths begin at the root of the tree, as in `{shown}`"))
}

/// A path of a mount of ours, which has the names of the tree.
fn in_mount(path: &[u8]) -> Option<Vec<u8>> {
    let mounts = Mounts::read().ok()?;
    mounts.ours().find_map(|mount| behind(path, &mount.point))
}

/// A path of a store, which has `workers/` or is one.
fn in_store(look: &Look, path: &[u8]) -> Option<Vec<u8>> {
    let inner = look.stores.iter().find_map(|store| behind(path, store))?;
    let is_there = |path: &Vec<u8>| look.tree.with_path(path, Symlinks::Follow, |_| Ok(())).is_ok();
    let found = [inner.clone(), join(b"workers", &inner)].into_iter().find(is_there);
    found.or_else(|| end(&inner))
}

/// What of a path could be of the tree: from the first name on that such a path begins with.
fn end(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let at = parts.iter().position(|part| BEGINNINGS.contains(part))?;
    parts.get(at..).map(|parts| parts.join(&b'/'))
}

/// What of `path` is in `folder`; `.` if it is the folder itself.
fn behind(path: &[u8], folder: &Path) -> Option<Vec<u8>> {
    let inner = Path::new(OsStr::from_bytes(path)).strip_prefix(folder).ok()?.as_os_str().as_bytes();
    Some(if inner.is_empty() { b".".to_vec() } else { inner.to_vec() })
}
