//! A store that counts what is opened, and refuses files of one name as long as it is told to.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use swarmletfs::error::{Error, Result};
use swarmletfs::name::RelPath;
use swarmletfs::store::{File, Store};

use super::through::Between;

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

/// Counts what is opened in a store.
#[derive(Clone)]
pub struct Counted(pub Arc<Log>);

impl Between for Counted {
    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let refused = self.0.refused.lock().filter(|(refused, _)| refused.as_bytes() == name);
        *self.0.opened.lock().entry(name).or_default() += 1;
        match refused {
            Some((_, errno)) => Err(Error::from(errno)),
            None => store.open(path),
        }
    }
}
