//! A store in which a regular file with more than one hard link is a link, like a symbolic one.
//!
//! Such a file may stand in another owner's folder too, and nothing in a file system tells whose it is; who reads for
//! one owner reads through this. It wraps any store and asks it for nothing but what stat tells. It knows no owners
//! and has no opinion on folders, whose links are those of their own making.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Entry, File, Identity, Kind, Meta, Store};
use crate::error::{Error, Result};
use crate::name::RelPath;

/// The wrapped store.
pub struct Unshared(Arc<dyn Store>);

impl Unshared {
    /// `store`, less its hard links.
    pub fn new(store: Arc<dyn Store>) -> Unshared {
        Unshared(store)
    }
}

fn judged(meta: Meta) -> Meta {
    let shared = meta.kind == Kind::File && meta.nlink > 1;
    Meta { kind: if shared { Kind::Link } else { meta.kind }, ..meta }
}

impl Store for Unshared {
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
        self.0.stat(path).map(judged)
    }

    fn glimpse(&self, path: &RelPath) -> Result<Meta> {
        self.0.glimpse(path).map(judged)
    }

    fn identity(&self) -> Result<Identity> {
        self.0.identity()
    }

    fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
        // Entered once: the files that are looked at are those of the folder that is listed.
        let folder = self.0.enter(path)?;
        let entries = folder.list(&RelPath::root())?.into_iter().filter_map(|entry| {
            if entry.kind != Kind::File {
                return Some(entry);
            }
            match folder.glimpse(&entry.name.clone().into()).map(judged) {
                Ok(meta) => Some(Entry { kind: meta.kind, ..entry }),
                Err(Error::NotFound) => None,
                // Who looks closer is given this error.
                Err(_) => Some(entry),
            }
        });
        Ok(entries.collect())
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.stat(path)?.kind.must_be(Kind::File)?;
        let file = self.0.open(path)?;
        // What counts is the file that is open: another one, or a further link, may have come since the look.
        judged(file.glimpse()?).kind.must_be(Kind::File)?;
        Ok(file)
    }

    fn lists_by_folder(&self) -> bool {
        false
    }

    fn place(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.place(path)
    }

    fn pass_through(&self) -> Result<()> {
        self.0.pass_through()
    }

    fn backing(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        self.0.backing(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(Unshared(self.0.enter(path)?.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    /// Two files of one folder, and one of them again in another.
    fn linked() -> (Arc<Memory>, Unshared) {
        let inner = Arc::new(Memory::new());
        inner.write(&path("a/alone"), "1");
        inner.write(&path("a/shared"), "2");
        inner.link(&path("a/shared"), &path("b/inner/again"));
        (inner.clone(), Unshared::new(inner))
    }

    fn kinds(store: &dyn Store, folder: &str) -> Vec<(String, Kind)> {
        store.list(&path(folder)).unwrap().into_iter().map(|entry| (entry.name.display(), entry.kind)).collect()
    }

    #[test]
    fn a_file_with_two_links_is_a_link_under_both_names() {
        let (_, store) = linked();
        assert_eq!(kinds(&store, "a"), [("alone".into(), Kind::File), ("shared".into(), Kind::Link)]);
        assert_eq!(kinds(&store, "b"), [("inner".into(), Kind::Folder)]);
        for shared in ["a/shared", "b/inner/again"] {
            assert_eq!(store.stat(&path(shared)).unwrap().kind, Kind::Link);
            assert_eq!(store.open(&path(shared)).err(), Some(Error::Escape));
        }
        assert!(store.open(&path("a/alone")).is_ok());
    }

    #[test]
    fn what_is_entered_refuses_the_same() {
        let (_, store) = linked();
        let inner = store.enter(&path("b")).unwrap().enter(&path("inner")).unwrap();
        assert_eq!(kinds(&*inner, ""), [("again".into(), Kind::Link)]);
        assert_eq!(inner.open(&path("again")).err(), Some(Error::Escape));
    }

    #[test]
    fn a_file_whose_other_link_is_gone_is_a_file_again() {
        let (inner, store) = linked();
        inner.remove(&path("b"));
        assert_eq!(kinds(&store, "a"), [("alone".into(), Kind::File), ("shared".into(), Kind::File)]);
        assert!(store.open(&path("a/shared")).is_ok());
    }

    /// Grows a link between the look and the open.
    struct Racing(Arc<Memory>);

    impl Store for Racing {
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

        fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
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
    fn a_link_made_between_the_look_and_the_open_is_noticed() {
        let (inner, _) = linked();
        let store = Unshared::new(Arc::new(Racing(inner)));
        assert_eq!(store.stat(&path("a/alone")).unwrap().kind, Kind::File);
        assert_eq!(store.open(&path("a/alone")).err(), Some(Error::Escape));
    }
}
