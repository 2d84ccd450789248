//! Directories that lie inside another, through links and bind mounts.
//!
//! The process that serves a mount must not read a mountpoint inside its own store: it would wait
//! for itself. One directory can have several names, so three things are compared: the path, the
//! inodes of all ancestors, and the path on the underlying file system.

use std::io;
use std::path::{Path, PathBuf};

use super::probe;
pub(super) use crate::sandbox::{AttachedMount as Mount, AttachedMounts as MountTable};

/// A directory's path on its underlying file system, equal through every bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FsPath {
    pub(super) device: String,
    pub(super) path: PathBuf,
}

impl FsPath {
    /// Returns true if this directory is `other` or lies inside it.
    pub(super) fn is_within(&self, other: &FsPath) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// Returns the path on its file system of `path`, which must be absolute and resolved.
fn fs_path(mounts: &MountTable, path: &Path) -> Option<FsPath> {
    let mount = mounts.holder(path)?;
    let rest = path.strip_prefix(&mount.point).ok()?;
    Some(FsPath { device: mount.device.clone(), path: mount.root.join(rest) })
}

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
        let fs_path = fs_path(mounts, &path);
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

    const TABLE: &str = r"
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 /sub /mnt rw shared:2 master:3 - ext4 /dev/sdb rw
31 22 0:50 / /mnt/a\040b\011\012\134,c ro,nosuid,nodev - fuse.swarmletfs swarmletfs ro,user_id=0
32 22 0:51 / /twice ro - fuse.sshfs host:/x\040y rw
33 32 0:52 / /twice ro - fuse.swarmletfs swarmletfs ro
not a line
";

    #[test]
    fn octal_escapes_are_decoded() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        let mount = mounts.at(Path::new("/mnt/a b\t\n\\,c")).unwrap();
        assert!(mount.is_ours());
    }

    #[test]
    fn at_returns_the_latest_mount() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        assert_eq!(mounts.at(Path::new("/twice")).unwrap().device, "0:52");
        assert_eq!(mounts.with_device("0:51").next().unwrap().source, Path::new("host:/x y"));
        assert_eq!(mounts.at(Path::new("/mnt/a")), None);
    }

    #[test]
    fn fs_path_resolves_bind_mounts() {
        let mounts = MountTable::parse(TABLE.as_bytes());
        let place = fs_path(&mounts, Path::new("/mnt/x/y")).unwrap();
        assert_eq!(place, FsPath { device: "8:2".into(), path: "/sub/x/y".into() });
        assert!(place.is_within(&FsPath { device: "8:2".into(), path: "/sub".into() }));
        assert!(!place.is_within(&FsPath { device: "8:1".into(), path: "/sub".into() }));
        assert_eq!(fs_path(&mounts, Path::new("/mntx")).unwrap().device, "8:1");
    }

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
