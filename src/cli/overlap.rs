//! Whether one folder lies inside another, however it is reached.
//!
//! A mountpoint inside the store that it shows would be read by the process that serves it, which then waits for
//! itself. The same folder can be named in several ways (links, bind mounts), so three things are compared: the path,
//! device and inode number of every folder above, and the place on the file system beneath.

use std::io;
use std::path::{Path, PathBuf};

use super::mountinfo::{Mounts, Place};
use super::probe;

/// A folder and what lies above it.
#[derive(Debug, Clone)]
pub(super) struct Ground {
    /// Absolute and without links.
    pub(super) path: PathBuf,
    /// Device and inode number of it and of every folder above it.
    chain: Vec<(u64, u64)>,
    place: Option<Place>,
}

impl Ground {
    /// Looks at `path`, which is absolute and without links. Errors: TimedOut, NotFound and others.
    pub(super) fn of(path: PathBuf, mounts: &Mounts) -> io::Result<Ground> {
        let chain = probe::chain(&path)?;
        let place = mounts.place(&path);
        Ok(Ground { path, chain, place })
    }

    /// Whether both are the same folder.
    pub(super) fn is(&self, other: &Ground) -> bool {
        self.is_within(other) && other.is_within(self)
    }

    /// Whether this is `other` or lies inside of it.
    pub(super) fn is_within(&self, other: &Ground) -> bool {
        let by_number = other.chain.first().is_some_and(|folder| self.chain.contains(folder));
        let by_place = matches!((&self.place, &other.place), (Some(mine), Some(theirs)) if mine.is_within(theirs));
        by_number || by_place || self.path.starts_with(&other.path)
    }
}

/// Resolves and looks at `path` if it is there.
pub(super) fn ground(path: &Path, mounts: &Mounts) -> io::Result<Ground> {
    Ground::of(probe::resolve(path)?, mounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, chain: &[u64], device: &str, place: &str) -> Ground {
        Ground {
            path: path.into(),
            chain: chain.iter().map(|ino| (1, *ino)).collect(),
            place: Some(Place { device: device.into(), path: place.into() }),
        }
    }

    #[test]
    fn plain_paths_are_compared_by_whole_names() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        assert!(at("/store/a", &[6, 5, 2], "8:1", "/store/a").is_within(&store));
        assert!(!store.is_within(&at("/store/a", &[6, 5, 2], "8:1", "/store/a")));
        assert!(!at("/store2", &[7, 2], "8:1", "/store2").is_within(&store));
        assert!(store.is(&store.clone()));
    }

    #[test]
    fn bind_mounts_of_the_store_and_of_its_folders_are_noticed() {
        let store = at("/store", &[5, 2], "8:1", "/store");
        let beneath_a_bind_of_the_store = at("/bind/a", &[6, 5, 2], "?", "/");
        let beneath_a_bind_of_its_folder = at("/bind/b", &[8, 7, 2], "8:1", "/store/sub/b");
        assert!(beneath_a_bind_of_the_store.is_within(&store));
        assert!(beneath_a_bind_of_its_folder.is_within(&store));
        assert!(at("/bind", &[5, 2], "8:1", "/store").is(&store));
    }
}
