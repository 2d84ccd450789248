//! Paths of a workspace that may differ from the entries that the worker found.

use super::manifest::CopiedEntry;
use super::sparse;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, OpenFolder};
use swarmletfs_record::write::Error as WriteError;

#[derive(Clone, Copy)]
pub(super) struct LiveEntry<'a> {
    pub(super) folder: &'a OpenFolder,
    pub(super) name: &'a Name,
    pub(super) stat: EntryStat,
}

#[derive(Clone, Copy)]
pub(super) enum OldEntry<'a> {
    /// The entry of the workspace, which may have changed since the worker began.
    Live(LiveEntry<'a>),
    Copied(&'a CopiedEntry),
}

pub(super) struct PossibleChange<'a> {
    pub(super) path: &'a RelPath,
    pub(super) old: Option<OldEntry<'a>>,
    pub(super) new: Option<LiveEntry<'a>>,
    pub(super) refused: Option<String>,
}

/// Receives the paths that may differ, each once.
pub(super) trait Visitor {
    fn visit(&mut self, candidate: PossibleChange<'_>) -> SearchResult<()>;
}

pub(super) type SearchResult<T> = Result<T, SearchStop>;

#[derive(Debug)]
pub(super) enum SearchStop {
    Late,
    Failed(WriteError),
}

impl From<WriteError> for SearchStop {
    fn from(error: WriteError) -> SearchStop {
        SearchStop::Failed(error)
    }
}

/// Returns true if the entry went away or became another one while it was read, which is no error
/// in a tree that others change.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound
            | Error::Stale
            | Error::Escape
            | Error::NotADirectory
            | Error::IsADirectory
            | Error::Special
    )
}

pub(super) fn unreadable(error: &Error) -> String {
    sparse::describe_limit(error).unwrap_or_else(|| format!("it cannot be read: {error}"))
}
