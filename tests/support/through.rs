//! A store that is read through something: each call goes on to the store but for those that this is about.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use swarmletfs::error::Result;
use swarmletfs::name::RelPath;
use swarmletfs::store::{DirEntry, File, Meta, Store};

/// What a store is read through.
pub trait Between: Clone + Send + Sync + 'static {
    /// Asked for in place of the store's own.
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        store.stat(path)
    }

    /// Likewise.
    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>> {
        store.list(path)
    }

    /// Likewise.
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        store.open(path)
    }

    /// What a folder is read through that is about to be entered.
    fn enter(&self, _path: &RelPath) -> Result<Self> {
        Ok(self.clone())
    }
}

/// The store, and what is between.
pub struct Through<T> {
    store: Arc<dyn Store>,
    between: T,
}

impl<T: Between> Through<T> {
    /// `store` as it is read through `between`.
    pub fn new(between: T, store: Arc<dyn Store>) -> Through<T> {
        Through { store, between }
    }
}

impl<T: Between> Store for Through<T> {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.store.root()
    }

    fn is_replaced(&self) -> bool {
        self.store.is_replaced()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.between.stat(&*self.store, path)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.between.list(&*self.store, path)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.between.open(&*self.store, path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        let between = self.between.enter(path)?;
        Ok(Box::new(Through { store: self.store.enter(path)?.into(), between }))
    }
}
