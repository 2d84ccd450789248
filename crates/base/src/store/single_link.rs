//! Store wrapper that treats a regular file with several hard links as a symlink.
//!
//! Such a file may also be in another owner's directory, and the file system does not record which
//! owner wrote it. A view of one owner therefore reads through this wrapper. It relies only on the
//! link count from stat. Directories are unaffected: their link count reflects their
//! subdirectories.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{DirEntry, File, Identity, Kind, Meta, Store};
use crate::error::{Error, Result};
use crate::name::RelPath;

pub struct SingleLinkStore(Arc<dyn Store>);

impl SingleLinkStore {
    pub fn new(store: Arc<dyn Store>) -> SingleLinkStore {
        SingleLinkStore(store)
    }
}

fn hide_hard_link(meta: Meta) -> Meta {
    let shared = meta.kind == Kind::File && meta.nlink > 1;
    Meta { kind: if shared { Kind::Link } else { meta.kind }, ..meta }
}

impl Store for SingleLinkStore {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.0.root()
    }

    fn is_replaced(&self) -> bool {
        self.0.is_replaced()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.0.stat(path).map(hide_hard_link)
    }

    fn stat_without_acl(&self, path: &RelPath) -> Result<Meta> {
        self.0.stat_without_acl(path).map(hide_hard_link)
    }

    fn identity(&self) -> Result<Identity> {
        self.0.identity()
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        // Entered once, so that the listing and the stats are of one directory.
        let folder = self.0.enter(path)?;
        let entries = folder.list(&RelPath::root())?.into_iter().filter_map(|entry| {
            if entry.kind != Kind::File {
                return Some(entry);
            }
            match folder.stat_without_acl(&entry.name.clone().into()).map(hide_hard_link) {
                Ok(meta) => Some(DirEntry { kind: meta.kind, ..entry }),
                Err(Error::NotFound) => None,
                // A later stat or open returns this error.
                Err(_) => Some(entry),
            }
        });
        Ok(entries.collect())
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.stat(path)?.kind.must_be(Kind::File)?;
        let file = self.0.open(path)?;
        // Checked on the open file: it may have been replaced or linked since the stat.
        hide_hard_link(file.stat_without_acl()?).kind.must_be(Kind::File)?;
        Ok(file)
    }

    fn listing_depends_on_dir_only(&self) -> bool {
        false
    }

    fn path_fd(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.path_fd(path)
    }

    fn pass_through(&self) -> Result<()> {
        self.0.pass_through()
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.backing(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(SingleLinkStore(self.0.enter(path)?.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    /// Returns a store with two files, one of which has a second link in another directory.
    fn linked() -> (Arc<Memory>, SingleLinkStore) {
        let inner = Arc::new(Memory::new());
        inner.write(&path("a/alone"), "1");
        inner.write(&path("a/shared"), "2");
        inner.link(&path("a/shared"), &path("b/inner/again"));
        (inner.clone(), SingleLinkStore::new(inner))
    }

    fn kinds(store: &dyn Store, folder: &str) -> Vec<(String, Kind)> {
        store
            .list(&path(folder))
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name.display(), entry.kind))
            .collect()
    }

    #[test]
    fn file_with_two_links_is_hidden_under_both_names() {
        let (_, store) = linked();
        assert_eq!(
            kinds(&store, "a"),
            [("alone".into(), Kind::File), ("shared".into(), Kind::Link)]
        );
        assert_eq!(kinds(&store, "b"), [("inner".into(), Kind::Folder)]);
        for shared in ["a/shared", "b/inner/again"] {
            assert_eq!(store.stat(&path(shared)).unwrap().kind, Kind::Link);
            assert_eq!(store.open(&path(shared)).err(), Some(Error::Escape));
        }
        assert!(store.open(&path("a/alone")).is_ok());
    }

    #[test]
    fn entered_directory_hides_hard_links_too() {
        let (_, store) = linked();
        let inner = store.enter(&path("b")).unwrap().enter(&path("inner")).unwrap();
        assert_eq!(kinds(&*inner, ""), [("again".into(), Kind::Link)]);
        assert_eq!(inner.open(&path("again")).err(), Some(Error::Escape));
    }

    #[test]
    fn file_is_shown_again_after_its_other_link_is_removed() {
        let (inner, store) = linked();
        inner.remove(&path("b"));
        assert_eq!(
            kinds(&store, "a"),
            [("alone".into(), Kind::File), ("shared".into(), Kind::File)]
        );
        assert!(store.open(&path("a/shared")).is_ok());
    }

    /// Adds a hard link just before each open.
    struct LinksBeforeOpen(Arc<Memory>);

    impl Store for LinksBeforeOpen {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn root(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn is_replaced(&self) -> bool {
            false
        }

        fn stat(&self, path: &RelPath) -> Result<Meta> {
            self.0.stat(path)
        }

        fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
            self.0.list(path)
        }

        fn open(&self, at: &RelPath) -> Result<Box<dyn File>> {
            self.0.link(at, &path("late"));
            self.0.open(at)
        }

        fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
            self.0.enter(path)
        }
    }

    #[test]
    fn link_added_between_stat_and_open_is_detected() {
        let (inner, _) = linked();
        let store = SingleLinkStore::new(Arc::new(LinksBeforeOpen(inner)));
        assert_eq!(store.stat(&path("a/alone")).unwrap().kind, Kind::File);
        assert_eq!(store.open(&path("a/alone")).err(), Some(Error::Escape));
    }
}
