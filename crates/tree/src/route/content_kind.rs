//! Kinds of content in files of the tree, for the log of reads.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    Summary,
    Evidence,
    Index,
    Changes,
    /// The answer to a query: grep, search, compare, since.
    Query,
    Help,
    /// A file of a worker.
    Raw,
    /// A note of the supervisor.
    Note,
    Folder,
}

impl ContentKind {
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
