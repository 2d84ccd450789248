//! Paths of a workspace that may differ from what the worker found.

use super::manifest::CopiedEntry;
use super::sparse;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, OpenFolder};
use swarmletfs_record::write::Error as WriteError;

/// An entry in an open directory.
#[derive(Clone, Copy)]
pub(super) struct LiveEntry<'a> {
    pub(super) folder: &'a OpenFolder,
    pub(super) name: &'a Name,
    pub(super) stat: EntryStat,
}

/// The entry that a path had before.
#[derive(Clone, Copy)]
pub(super) enum OldEntry<'a> {
    /// The entry of the workspace, which may have changed since the worker began.
    Live(LiveEntry<'a>),
    /// The entry as it was copied.
    Copied(&'a CopiedEntry),
}

/// A path that may differ.
pub(super) struct PossibleChange<'a> {
    pub(super) path: &'a RelPath,
    pub(super) old: Option<OldEntry<'a>>,
    pub(super) new: Option<LiveEntry<'a>>,
    /// Why the change cannot be applied.
    pub(super) refused: Option<String>,
}

/// Receives the paths that may differ, each once.
pub(super) trait Visitor {
    /// Handles a path.
    fn visit(&mut self, candidate: PossibleChange<'_>) -> SearchResult<()>;
}

/// The result of a part of a search.
pub(super) type SearchResult<T> = Result<T, SearchStop>;

/// The reason why a search stopped.
#[derive(Debug)]
pub(super) enum SearchStop {
    /// The deadline passed.
    Late,
    /// A file of the store or of the workspace failed.
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

/// Returns why an entry whose reading failed is refused.
pub(super) fn unreadable(error: &Error) -> String {
    sparse::describe_limit(error).unwrap_or_else(|| format!("it cannot be read: {error}"))
}
