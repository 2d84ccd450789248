//! Detects that one directory lies inside another, through links and bind mounts.
//!
//! The process that serves a mount must not read a mountpoint inside its own store: it would wait
//! for itself. One directory can have several names, so three things are compared: the path, the
//! inodes of all ancestors, and the path on the underlying file system.

use std::io;
use std::path::{Path, PathBuf};

use super::mountinfo::{FsPath, MountTable};
use super::probe;

#[derive(Debug, Clone)]
pub(super) struct FolderIdentity {
    /// Absolute and resolved.
    pub(super) path: PathBuf,
    ancestor_ids: Vec<(u64, u64)>,
    fs_path: Option<FsPath>,
}

impl FolderIdentity {
    /// Identifies `path`, which must be absolute and resolved.
    ///
    /// # Errors
    ///
    /// Fails with `TimedOut` if the path does not answer, `NotFound` if it does not exist, or
    /// another I/O error.
    pub(super) fn new(path: PathBuf, mounts: &MountTable) -> io::Result<FolderIdentity> {
        let ancestor_ids = probe::ancestor_ids(&path)?;
        let fs_path = mounts.fs_path(&path);
        Ok(FolderIdentity { path, ancestor_ids, fs_path })
    }

    /// Resolves `path`, then identifies the directory that it leads to.
    ///
    /// # Errors
    ///
    /// Fails if `path` cannot be resolved, or for the reasons of [`FolderIdentity::new`].
    pub(super) fn resolve(path: &Path, mounts: &MountTable) -> io::Result<FolderIdentity> {
        FolderIdentity::new(probe::resolve(path)?, mounts)
    }

    /// Identifies the directory that `path` leads to, or the nearest one above it that exists.
    ///
    /// # Errors
    ///
    /// Fails for the reasons of [`FolderIdentity::resolve`], except that `path` may be missing.
    pub(super) fn resolve_nearest(path: &Path, mounts: &MountTable) -> io::Result<FolderIdentity> {
        let resolved = path.ancestors().find_map(|at| match FolderIdentity::resolve(at, mounts) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            resolved => Some(resolved),
        });
        resolved.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    pub(super) fn is_same_folder(&self, other: &FolderIdentity) -> bool {
        self.is_within(other) && other.is_within(self)
    }

    /// Returns true if this directory is `other` or lies inside it.
    pub(super) fn is_within(&self, other: &FolderIdentity) -> bool {
        let by_inode =
            other.ancestor_ids.first().is_some_and(|folder| self.ancestor_ids.contains(folder));
        let by_fs_path = match (&self.fs_path, &other.fs_path) {
            (Some(mine), Some(theirs)) => mine.is_within(theirs),
            _ => false,
        };
        by_inode || by_fs_path || self.path.starts_with(&other.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, ancestor_ids: &[u64], device: &str, fs_path: &str) -> FolderIdentity {
        FolderIdentity {
            path: path.into(),
            ancestor_ids: ancestor_ids.iter().map(|ino| (1, *ino)).collect(),
            fs_path: Some(FsPath { device: device.into(), path: fs_path.into() }),
        }
    }

    #[test]
    fn paths_are_compared_by_components() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        assert!(at("/store/a", &[6, 5, 2], "8:1", "/store/a").is_within(&store));
        assert!(!store.is_within(&at("/store/a", &[6, 5, 2], "8:1", "/store/a")));
        assert!(!at("/store2", &[7, 2], "8:1", "/store2").is_within(&store));
        assert!(store.is_same_folder(&store.clone()));
    }

    #[test]
    fn is_within_detects_bind_mounts() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        let beneath_a_bind_of_the_store = at("/bind/a", &[6, 5, 2], "?", "/");
        let beneath_a_bind_of_its_folder = at("/bind/b", &[8, 7, 2], "8:1", "/store/sub/b");
        assert!(beneath_a_bind_of_the_store.is_within(&store));
        assert!(beneath_a_bind_of_its_folder.is_within(&store));
        assert!(at("/bind", &[5, 2], "8:1", "/store").is_same_folder(&store.clone()));
    }
}
