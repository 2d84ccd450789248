//! Entries of a listing, with attributes if they are needed.

use std::cmp::Ordering;

use super::join;
use crate::error::Result;
use crate::tree::{Attr, LookupGuard, NodeKind, ResolvedPath};

#[derive(Debug, Clone)]
pub(super) struct TreeEntry {
    /// Path from the root, which is `.`, with links resolved.
    pub(super) path: Vec<u8>,
    /// Name in the listing: the entry's own name, or the path that was typed.
    pub(super) label: Vec<u8>,
    pub(super) kind: NodeKind,
    /// `None` if the listing does not need them.
    pub(super) details: Option<EntryDetails>,
    /// The worker that the entry stands for, if the listing needs that.
    pub(super) worker: Option<EntryWorker>,
}

#[derive(Debug, Clone)]
pub(super) struct EntryWorker {
    /// `None` if it was not read in time.
    pub(super) outcome: Option<&'static str>,
    pub(super) title: String,
}

#[derive(Debug, Clone)]
pub(super) struct EntryDetails {
    pub(super) attr: Attr,
    pub(super) target: Option<Vec<u8>>,
}

impl TreeEntry {
    pub(super) fn from_path(place: &ResolvedPath<'_>, typed: &[u8]) -> Result<TreeEntry> {
        let details = details(place.leaf())?;
        Ok(TreeEntry {
            path: place.path(),
            label: typed.to_vec(),
            kind: details.attr.kind,
            details: Some(details),
            worker: None,
        })
    }

    pub(super) fn from_node(
        held: &LookupGuard<'_>,
        folder: &[u8],
        name: &[u8],
    ) -> Result<TreeEntry> {
        Ok(TreeEntry {
            details: Some(details(held)?),
            ..TreeEntry::without_details(folder, name, held.attr.kind)
        })
    }

    pub(super) fn without_details(folder: &[u8], name: &[u8], kind: NodeKind) -> TreeEntry {
        let (path, label) = (join(folder, name), name.to_vec());
        TreeEntry { path, label, kind, details: None, worker: None }
    }

    /// Returns the last component of the path, regardless of the label.
    pub(super) fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or(&self.path)
    }

    /// Orders by time of the last change, newest first.
    pub(super) fn by_time(&self, other: &TreeEntry) -> Ordering {
        let time = |entry: &TreeEntry| entry.details.as_ref().map(|details| details.attr.mtime);
        time(other).cmp(&time(self))
    }

    /// Orders by size, largest first.
    pub(super) fn by_size(&self, other: &TreeEntry) -> Ordering {
        let size = |entry: &TreeEntry| entry.details.as_ref().map(|details| details.attr.size);
        size(other).cmp(&size(self))
    }
}

fn details(held: &LookupGuard<'_>) -> Result<EntryDetails> {
    Ok(EntryDetails { attr: held.attr, target: held.link_target()? })
}
