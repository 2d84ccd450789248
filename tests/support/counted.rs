//! A store that counts what is opened, and refuses files of one name as long as it is told to.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use swarmletfs::error::{Error, Result};
use swarmletfs::name::RelPath;
use swarmletfs::store::{Entry, File, Meta, Store};

/// What was opened, and what is refused; shared by a store and all that are entered through it.
#[derive(Default)]
pub struct Log {
    opened: Mutex<BTreeMap<Vec<u8>, u64>>,
    refused: Mutex<Option<(&'static str, Errno)>>,
}

impl Log {
    /// How often files of this name were opened, or would have been.
    pub fn opened(&self, name: &str) -> u64 {
        self.opened.lock().get(name.as_bytes()).copied().unwrap_or_default()
    }

    /// From now on files of this name cannot be opened.
    pub fn refuse(&self, name: &'static str, errno: Errno) {
        *self.refused.lock() = Some((name, errno));
    }

    /// From now on nothing is refused.
    pub fn heal(&self) {
        *self.refused.lock() = None;
    }
}

/// A store whose opens are counted.
pub struct Counted {
    pub store: Arc<dyn Store>,
    pub log: Arc<Log>,
}

impl Store for Counted {
    fn describe(&self) -> String {
        "a counted store".into()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.store.root()
    }

    fn is_replaced(&self) -> bool {
        self.store.is_replaced()
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        self.store.stat(path)
    }

    fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
        self.store.list(path)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let refused = self.log.refused.lock().filter(|(refused, _)| refused.as_bytes() == name);
        *self.log.opened.lock().entry(name).or_default() += 1;
        match refused {
            Some((_, errno)) => Err(Error::from(errno)),
            None => self.store.open(path),
        }
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(Counted { store: self.store.enter(path)?.into(), log: self.log.clone() }))
    }
}
