//! Whether one folder lies inside another, however it is reached.
//!
//! A mountpoint inside the store that it shows would be read by the process that serves it, which then waits for
//! itself. The same folder can be named in several ways (links, bind mounts), so three things are compared: the path,
//! device and inode number of every folder above, and the place on the file system beneath.

use std::io;
use std::path::{Path, PathBuf};

use super::mountinfo::{FsPath, MountTable};
use super::probe;

/// A folder and what lies above it.
#[derive(Debug, Clone)]
pub(super) struct FolderIdentity {
    /// Absolute and without links.
    pub(super) path: PathBuf,
    /// Device and inode number of it and of every folder above it.
    ancestor_ids: Vec<(u64, u64)>,
    fs_path: Option<FsPath>,
}

impl FolderIdentity {
    /// Looks at `path`, which is absolute and without links. Errors: TimedOut, NotFound and others.
    pub(super) fn new(path: PathBuf, mounts: &MountTable) -> io::Result<FolderIdentity> {
        let ancestor_ids = probe::ancestor_ids(&path)?;
        let fs_path = mounts.fs_path(&path);
        Ok(FolderIdentity { path, ancestor_ids, fs_path })
    }

    /// Resolves `path`, then identifies the folder that it leads to.
    ///
    /// # Errors
    ///
    /// Fails if `path` cannot be resolved, or for the reasons of [`FolderIdentity::new`].
    pub(super) fn resolve(path: &Path, mounts: &MountTable) -> io::Result<FolderIdentity> {
        FolderIdentity::new(probe::resolve(path)?, mounts)
    }

    /// Whether both are the same folder.
    pub(super) fn is_same_folder(&self, other: &FolderIdentity) -> bool {
        self.is_within(other) && other.is_within(self)
    }

    /// Whether this is `other` or lies inside of it.
    pub(super) fn is_within(&self, other: &FolderIdentity) -> bool {
        let by_inode = other.ancestor_ids.first().is_some_and(|folder| self.ancestor_ids.contains(folder));
        let by_fs_path =
            matches!((&self.fs_path, &other.fs_path), (Some(mine), Some(theirs)) if mine.is_within(theirs));
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
    fn plain_paths_are_compared_by_whole_names() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        assert!(at("/store/a", &[6, 5, 2], "8:1", "/store/a").is_within(&store));
        assert!(!store.is_within(&at("/store/a", &[6, 5, 2], "8:1", "/store/a")));
        assert!(!at("/store2", &[7, 2], "8:1", "/store2").is_within(&store));
        assert!(store.is_same_folder(&store.clone()));
    }

    #[test]
    fn bind_mounts_of_the_store_and_of_its_folders_are_noticed() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        let beneath_a_bind_of_the_store = at("/bind/a", &[6, 5, 2], "?", "/");
        let beneath_a_bind_of_its_folder = at("/bind/b", &[8, 7, 2], "8:1", "/store/sub/b");
        assert!(beneath_a_bind_of_the_store.is_within(&store));
        assert!(beneath_a_bind_of_its_folder.is_within(&store));
        assert!(at("/bind", &[5, 2], "8:1", "/store").is_same_folder(&store.clone()));
    }
}
