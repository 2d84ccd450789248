//! What a file of the tree holds, for the log of reads.

use serde::{Deserialize, Serialize};

/// What a reader opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// A summary.
    Summary,
    /// An excerpt.
    Evidence,
    /// An index.json.
    Index,
    /// A changes.diff.
    Changes,
    /// The answer to a query: grep, search, compare, since.
    Query,
    /// A README.md of the tree.
    Help,
    /// A file of a worker.
    Raw,
    /// A note of the supervisor.
    Note,
    /// A directory.
    Folder,
}

impl ContentKind {
    /// Returns the name in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            ContentKind::Summary => "summary",
            ContentKind::Evidence => "evidence",
            ContentKind::Index => "index",
            ContentKind::Changes => "changes",
            ContentKind::Query => "query",
            ContentKind::Help => "help",
            ContentKind::Raw => "raw",
            ContentKind::Note => "note",
            ContentKind::Folder => "folder",
        }
    }
}
