//! The parts of commands that another program runs in its own process, as the Python package does.
//!
//! Nothing here prints or starts a process. Errors are the messages that the commands print.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

pub use super::tree_commands::cat::read_file;
pub use super::tree_commands::compare::compare_json;
pub use super::tree_commands::grep::grep_json;
pub use super::tree_commands::search::search_json;
pub use super::wait::{WaitEnd, WaitRequest};

use super::mount_options::parse_id;
use super::store_selection::StoreSelection;
use super::write_args::{current_worker, find_store};
use super::{tree_commands, wait};
use crate::analysis::settings::{Control, Settings};
use crate::catalog::Freshness;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::name::printable;
use crate::tree::Tree;
use crate::view::{Filter, View};
use swarmletfs_record::write::{Durability, Error as WriteError, Store, StoreOptions};

/// The stores of a command, with the filter of its view.
pub struct Stores(StoreSelection);

impl Stores {
    /// Chooses the stores at `paths`, or the stores that a command without `--store` uses. `owner`
    /// and `run` restrict the view.
    ///
    /// # Errors
    ///
    /// There is no store, several were found, or an id is empty.
    pub fn find(
        paths: Vec<PathBuf>,
        owner: Option<&str>,
        run: Option<&str>,
    ) -> anyhow::Result<Stores> {
        let parse = |id: Option<&str>| id.map(parse_id).transpose().map_err(anyhow::Error::msg);
        let filter = Filter { owner: parse(owner)?, run: parse(run)? };
        Ok(Stores(StoreSelection::in_process(&paths, filter)?))
    }

    /// Returns the paths of the stores, which are absolute.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0.stores
    }

    /// Opens the stores. A read of the tree takes at most `limit`, as in a mount, or as long as it
    /// needs, as in a command; each one sees all writes before it.
    ///
    /// # Errors
    ///
    /// A store cannot be read.
    pub fn open(&self, limit: Option<Duration>) -> anyhow::Result<Tree> {
        let control = Arc::new(Control::until(None));
        let settings = match limit {
            Some(deadline) => Settings { deadline, ..Settings::default() },
            None => Settings::without_deadline(control.clone()),
        };
        let freshness = Freshness { unfinished: Duration::ZERO, ..Freshness::default() };
        let view: View = self.0.open(freshness)?;
        if limit.is_none() {
            view.read_sessions(Deadline::new(&|| control.may_continue()), &|_| {}, &|| {});
        }
        Ok(Tree::new(view, settings))
    }

    /// Waits for an event. `sleep` is called between polls, and stops the wait by returning false.
    ///
    /// # Errors
    ///
    /// A store cannot be read.
    pub fn wait(
        &self,
        request: WaitRequest,
        sleep: impl Fn(Duration) -> bool,
    ) -> anyhow::Result<WaitEnd> {
        wait::wait(&self.0, request, |_| {}, sleep)
    }
}

/// Returns the message for a path of the tree that cannot be read.
pub fn path_message(path: &[u8], error: &Error) -> String {
    let shown = if path.is_empty() { "''".to_owned() } else { printable(path) };
    format!("{shown}: {}", tree_commands::sentence(error))
}

/// Returns the message for a path without files of workers.
pub fn not_searchable(path: &[u8]) -> String {
    format!("{}: {}", printable(path), tree_commands::NOT_SEARCHABLE)
}

/// Opens the store at `path` for writing, or the one that a command without `--store` writes to.
/// `$SWARMLET_WORKER` gives the role in the log of changes.
///
/// # Errors
///
/// There is no store, or it cannot be opened.
pub fn open_to_write(path: Option<PathBuf>, durability: Durability) -> Result<Store, WriteFailure> {
    let path = match path {
        Some(path) => path,
        None => find_store(&mut |_| {}).map_err(WriteFailure::NoStore)?,
    };
    let mut options = StoreOptions::default().durability(durability);
    if let Some(worker) = current_worker() {
        options = options.role(format!("worker:{}", worker.to_string_lossy()));
    }
    options.open(path).map_err(WriteFailure::Store)
}

/// Reason why no store was opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum WriteFailure {
    /// No store was found.
    #[error("{0:#}")]
    NoStore(anyhow::Error),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(WriteError),
}

/// Returns the id in `$SWARMLET_WORKER`.
///
/// # Errors
///
/// The variable is empty, not set, or not UTF-8.
pub fn worker_of_environment() -> anyhow::Result<String> {
    let id = super::write_args::named_worker(None)?;
    id.into_string().ok().context("cannot use $SWARMLET_WORKER: it is not UTF-8")
}
