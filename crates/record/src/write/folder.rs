//! An opened store, shared by its workers and calls.

use parking_lot::Mutex;
use rustix::io::Errno;

use super::audit_log;
use super::dir::{Dir, Durability};
use super::error::Result;
use super::index::{self, IfMissing};
use super::registry;
use crate::audit::{AuditEntry, AuditPath};
use swarmletfs_base::name::{Name, RelPath};

/// Default limit of the log of changes, in bytes.
const AUDIT_MAX: u64 = 256 << 20;

#[derive(Debug, Clone)]
pub(super) struct WriteOptions {
    pub(super) durability: Durability,
    pub(super) audit_max: u64,
    pub(super) role: Option<String>,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions { durability: Durability::Full, audit_max: AUDIT_MAX, role: None }
    }
}

#[derive(Debug)]
pub(super) struct StoreFolder {
    pub(super) root: Dir,
    /// The directory of the workers: `workers/`, or the root itself in the flat layout.
    pub(super) workers: Dir,
    /// Path of the directory of the workers from the root.
    pub(super) workers_path: RelPath,
    pub(super) options: WriteOptions,
    pub(super) warnings: Mutex<Vec<String>>,
}

impl StoreFolder {
    /// Returns the path of the worker `id` from the root.
    pub(super) fn worker_path(&self, id: &Name) -> RelPath {
        self.workers_path.join(id)
    }

    /// Adds a change, or an attempt at one, to the log of changes. `paths` are relative to the
    /// worker's directory.
    ///
    /// The change has already happened, so an error of the log becomes a warning.
    pub(super) fn log<T>(
        &self,
        action: &str,
        worker: &str,
        paths: Vec<AuditPath>,
        result: &Result<T>,
    ) {
        let mut paths = paths;
        // The name may be one that was refused, so it is text.
        let folder = self.workers_path.to_text();
        let slash = if folder.is_empty() { "" } else { "/" };
        for file in &mut paths {
            file.path = format!("{folder}{slash}{worker}/{}", file.path);
        }
        self.log_in_store(action, Some(worker).filter(|worker| !worker.is_empty()), paths, result);
    }

    /// Adds a change, or an attempt at one, to the log of changes. `paths` are relative to the
    /// store.
    pub(super) fn log_in_store<T>(
        &self,
        action: &str,
        worker: Option<&str>,
        paths: Vec<AuditPath>,
        result: &Result<T>,
    ) {
        let mut entry = audit_log::entry(action, self.options.role.clone());
        entry.worker = worker.map(str::to_owned);
        entry.paths = paths;
        if let Err(error) = result {
            entry.result = error.to_string();
        }
        self.append_log(&entry);
    }

    /// Appends an entry to the log of changes. An error becomes a warning, except in a sandbox,
    /// where nobody can write the log.
    pub(super) fn append_log(&self, entry: &AuditEntry) {
        match audit_log::append(&self.root, entry, self.options.audit_max) {
            Err(error) if error.errno() != Some(Errno::ROFS) => self.warn(error.to_string()),
            _ => {}
        }
    }

    /// Writes the entry of the worker `id` into the index of the store. The worker's own files
    /// count, so an error becomes a warning.
    pub(super) fn update_index(&self, id: &Name, if_missing: IfMissing) {
        let path = self.worker_path(id);
        let read = |folder: &Dir| registry::metadata(&self.root, id, folder);
        if let Err(error) = index::update(&self.workers, &path, id, if_missing, read) {
            self.warn(error.to_string());
        }
    }

    pub(super) fn warn(&self, problem: String) {
        self.warnings.lock().push(problem);
    }
}
