//! Store wrapper whose calls a test can intercept.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{DirEntry, File, Meta, Store};

/// Intercepts calls of a store; the default methods forward to it.
pub trait Interceptor: Clone + Send + Sync + 'static {
    /// Called instead of [`Store::stat`].
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        store.stat(path)
    }

    /// Called instead of [`Store::list`].
    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>> {
        store.list(path)
    }

    /// Called instead of [`Store::open`].
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        store.open(path)
    }

    /// Returns the interceptor for the directory `path`, which is about to be entered.
    fn enter(&self, _path: &RelPath) -> Result<Self> {
        Ok(self.clone())
    }
}

/// A store whose calls go through an interceptor.
pub struct InterceptedStore<T> {
    store: Arc<dyn Store>,
    interceptor: T,
}

impl<T: Interceptor> InterceptedStore<T> {
    /// Wraps `store`.
    pub fn new(interceptor: T, store: Arc<dyn Store>) -> InterceptedStore<T> {
        InterceptedStore { store, interceptor }
    }
}

impl<T: Interceptor> Store for InterceptedStore<T> {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.store.root()
    }

    fn is_replaced(&self) -> bool {
        self.store.is_replaced()
    }

    fn outage(&self) -> Option<String> {
        self.store.outage()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.interceptor.stat(&*self.store, path)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.interceptor.list(&*self.store, path)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.interceptor.open(&*self.store, path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        let interceptor = self.interceptor.enter(path)?;
        Ok(Box::new(InterceptedStore { store: self.store.enter(path)?.into(), interceptor }))
    }
}
