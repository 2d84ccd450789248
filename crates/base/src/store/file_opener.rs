//! Opens the files of a directory through the subdirectory that was entered last.
//!
//! A path of several names takes a system call more for each check than a single name, and the same
//! directories are resolved for each file. So the subdirectory of the latest file stays open. It
//! stays the same directory even if its path is replaced meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{File, Meta, Store};
use crate::error::Result;
use crate::name::{Name, RelPath};

/// Opens and stats files of one directory, each subdirectory in turn.
#[derive(Default)]
pub struct FileOpener {
    /// The subdirectory of the latest file.
    entered: Mutex<Option<(RelPath, Arc<dyn Store>)>>,
}

impl FileOpener {
    /// Opens the file `path` of `folder`, the same directory at each call.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::open`].
    pub fn open(&self, folder: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        match self.enter_parent(folder, path) {
            Some((parent, name)) => parent.open(&name.into()),
            None => folder.open(path),
        }
    }

    /// Returns the metadata of `path` in `folder` without the ACL.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::stat_without_acl`].
    pub fn stat_without_acl(&self, folder: &dyn Store, path: &RelPath) -> Result<Meta> {
        match self.enter_parent(folder, path) {
            Some((parent, name)) => parent.stat_without_acl(&name.into()),
            None => folder.stat_without_acl(path),
        }
    }

    /// Returns the subdirectory that holds `path`, and the name in it.
    ///
    /// Returns `None` if `folder` itself holds it, or if the subdirectory cannot be entered.
    /// Opening the whole path then reports the reason, or succeeds in a directory that exists only
    /// as a part of its store.
    fn enter_parent(&self, folder: &dyn Store, path: &RelPath) -> Option<(Arc<dyn Store>, Name)> {
        let (parent, name) = (path.parent(), path.file_name()?);
        if parent.is_root() {
            return None;
        }
        let mut entered = self.entered.lock();
        let found = match &*entered {
            Some((known, found)) if *known == parent => found.clone(),
            _ => {
                let found: Arc<dyn Store> = folder.enter(&parent).ok()?.into();
                entered.insert((parent, found)).1.clone()
            }
        };
        Some((found, name))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::Disk;
    use super::*;
    use crate::error::Error;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn files_have_the_bytes_and_the_errors_of_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for (file, text) in [("1", "1"), ("a/2", "22"), ("a/b/3", "333"), ("a/4", "4444")] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        symlink("a", dir.path().join("link")).unwrap();
        symlink("2", dir.path().join("a/link")).unwrap();
        let (disk, opener) = (Disk::open(dir.path()).unwrap(), FileOpener::default());
        for (file, size) in [("1", 1), ("a/2", 2), ("a/b/3", 3), ("a/4", 4), ("a/2", 2)] {
            let opened = opener.open(&disk, &path(file)).unwrap();
            assert_eq!(opened.stat_without_acl().unwrap().size, size, "{file}");
            assert_eq!(opener.stat_without_acl(&disk, &path(file)).unwrap().size, size, "{file}");
        }
        for file in ["a/none", "none/1", "1/2", "link/2", "a/link", "a/b"] {
            let error = opener.open(&disk, &path(file)).err();
            assert!(error.is_some(), "{file}");
            assert_eq!(error, disk.open(&path(file)).err(), "{file}");
        }
    }

    #[test]
    fn an_entered_directory_stays_the_same_when_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/1"), "of the worker").unwrap();
        let (disk, opener) = (Disk::open(dir.path()).unwrap(), FileOpener::default());
        opener.open(&disk, &path("a/1")).unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/2"), "of another").unwrap();
        assert!(opener.open(&disk, &path("a/1")).is_ok());
        assert_eq!(opener.open(&disk, &path("a/2")).err(), Some(Error::NotFound));
    }
}
