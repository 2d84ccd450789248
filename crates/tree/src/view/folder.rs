//! The files of a worker, in a directory that is opened once.

use std::sync::OnceLock;

use super::{Member, View};
use crate::catalog;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{Output, ToolCall};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, FileOpener, Store};

/// An open directory of a worker. It stays the same directory even if its path is replaced.
pub struct Folder {
    store: Box<dyn Store>,
    opener: FileOpener,
    /// Directories that only hold copies of files from before the worker changed them.
    originals: &'static [&'static str],
}

impl Folder {
    pub(super) fn new(store: Box<dyn Store>, originals: &'static [&'static str]) -> Folder {
        Folder { store, opener: FileOpener::default(), originals }
    }

    /// Reads the data that all files need, until `deadline` passes.
    ///
    /// # Errors
    ///
    /// [`Error::Late`](swarmletfs_base::error::Error::Late) if the deadline passes first.
    pub fn prepare(&self, deadline: Deadline<'_>) -> Result<()> {
        self.store.prepare(deadline)
    }

    /// Returns the visible files, sorted by path, and the number of directories that could not be
    /// listed. Leaves out copies of files from before the worker changed them.
    pub fn files(&self) -> Result<(Vec<RelPath>, u64)> {
        let (mut files, unlisted) = catalog::list_files(&*self.store)?;
        if !self.originals.is_empty() {
            files.retain(|path| !self.is_original(path));
        }
        Ok((files, unlisted))
    }

    fn is_original(&self, path: &RelPath) -> bool {
        let first = path.names().next().filter(|_| path.depth() > 1);
        let is_one =
            |name: &Name| self.originals.iter().any(|one| one.as_bytes() == name.as_bytes());
        first.as_ref().is_some_and(is_one)
    }

    pub fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.opener.open(&*self.store, path)
    }

    pub fn size(&self, path: &RelPath) -> Result<u64> {
        self.opener.stat_without_acl(&*self.store, path).map(|meta| meta.size)
    }
}

/// The files of a worker of a view. The worker's directory is opened with the first of them.
pub struct WorkerFiles<'a> {
    pub view: &'a View,
    pub member: &'a Member,
    folder: OnceLock<Result<Box<dyn Store>>>,
    opener: FileOpener,
}

impl<'a> WorkerFiles<'a> {
    /// Refers to the files of `member` and opens nothing yet.
    pub fn new(view: &'a View, member: &'a Member) -> WorkerFiles<'a> {
        WorkerFiles { view, member, folder: OnceLock::new(), opener: FileOpener::default() }
    }

    pub fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        let folder = self.folder.get_or_init(|| self.view.catalog.folder(&self.member.entry));
        self.opener.open(&**folder.as_ref().map_err(Clone::clone)?, path)
    }

    /// Opens the output of a call, in the worker's directory or outside of it. Returns `None` if
    /// the output cannot be read; [`ToolCall::output`] holds the reason.
    pub fn open_output(&self, call: &ToolCall) -> Result<Option<Box<dyn File>>> {
        match &call.output {
            Output::InPlace => self.open(&call.path).map(Some),
            Output::OutOfBand(path) => match self.view.catalog.outputs(&self.member.entry) {
                Some(outputs) => outputs.open(path).map(Some),
                None => Ok(None),
            },
            Output::Pending | Output::Unreadable(_) => Ok(None),
        }
    }
}
