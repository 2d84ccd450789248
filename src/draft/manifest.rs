//! The entries of a copied workspace, as they were when the worker began.

use serde::{Deserialize, Serialize};

use crate::model::EntryKind;
use crate::store::Time;

/// An entry as it was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopiedEntry {
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) size: u64,
    /// SHA-256 of a file, as hexadecimal digits.
    pub(super) sha256: String,
    /// Target of a link.
    pub(super) target: Vec<u8>,
    /// Time of the last write of the copy.
    pub(super) mtime: Time,
    /// Time of the last change of the copy.
    pub(super) ctime: Time,
    /// True if the entry is on another mount than the workspace.
    pub(super) is_foreign: bool,
}
