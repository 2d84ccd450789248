//! Store interceptor that counts opened files and can refuse files of one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Store};

use super::intercept::Interceptor;

/// Counts of opened files, and the refused name. Shared by a store and its entered directories.
#[derive(Default)]
pub struct OpenLog {
    opened: Mutex<BTreeMap<Vec<u8>, u64>>,
    refused: Mutex<Option<(&'static str, Errno)>>,
}

impl OpenLog {
    /// Returns the number of attempts to open files of this name.
    pub fn opened(&self, name: &str) -> u64 {
        self.opened.lock().get(name.as_bytes()).copied().unwrap_or_default()
    }

    /// Makes opening files of this name fail.
    pub fn refuse(&self, name: &'static str, errno: Errno) {
        *self.refused.lock() = Some((name, errno));
    }

    /// Stops refusing files.
    pub fn heal(&self) {
        *self.refused.lock() = None;
    }
}

/// Counts files opened in a store.
#[derive(Clone)]
pub struct OpenCounter(pub Arc<OpenLog>);

impl Interceptor for OpenCounter {
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
