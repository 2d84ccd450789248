//! A store whose clock ticks rarely: many changes are of one time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use swarmletfs::error::Result;
use swarmletfs::name::RelPath;
use swarmletfs::store::{Entry, File, Meta, Store, Time};

pub(super) struct Coarse {
    pub(super) store: Arc<dyn Store>,
    /// How long a tick is.
    pub(super) seconds: i64,
}

impl Store for Coarse {
    fn describe(&self) -> String {
        "a store without fine times".into()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.store.root()
    }

    fn is_replaced(&self) -> bool {
        self.store.is_replaced()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        let tick = |time: Time| Time { secs: time.secs - time.secs % self.seconds, nanos: 0 };
        let meta = self.store.stat(path)?;
        Ok(Meta { ctime: tick(meta.ctime), ..meta })
    }

    fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
        self.store.list(path)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.store.open(path)
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(Coarse { store: self.store.enter(path)?.into(), seconds: self.seconds }))
    }
}
