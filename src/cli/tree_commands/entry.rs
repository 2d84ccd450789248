//! One entry of a listing: its name, and, where they are asked for, its attributes.

use std::cmp::Ordering;

use super::join;
use crate::error::Result;
use crate::tree::{Attr, Held, NodeKind, Place};

/// Something that is listed.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Where it is, links on the way followed: from the root, which is `.`.
    pub(super) path: Vec<u8>,
    /// How it is label in the listing: by its name, or by a path that was typed.
    pub(super) label: Vec<u8>,
    pub(super) kind: NodeKind,
    /// None where nobody asks.
    pub(super) details: Option<Details>,
}

/// What a reader at it tells.
#[derive(Debug, Clone)]
pub(super) struct Details {
    pub(super) attr: Attr,
    /// Where it leads, of a link.
    pub(super) target: Option<Vec<u8>>,
}

impl Entry {
    /// What is at a path that was typed.
    pub(super) fn at(place: &Place<'_>, typed: &[u8]) -> Result<Entry> {
        let details = details(place.last())?;
        Ok(Entry { path: place.path(), label: typed.to_vec(), kind: details.attr.kind, details: Some(details) })
    }

    /// What is in the folder `folder` under `name`.
    pub(super) fn from_node(held: &Held<'_>, folder: &[u8], name: &[u8]) -> Result<Entry> {
        Ok(Entry { details: Some(details(held)?), ..Entry::without_details(folder, name, held.attr.kind) })
    }

    /// What is listed in `folder` under `name` and was not looked at.
    pub(super) fn without_details(folder: &[u8], name: &[u8], kind: NodeKind) -> Entry {
        Entry { path: join(folder, name), label: name.to_vec(), kind, details: None }
    }

    /// Its own name, however it is label.
    pub(super) fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Which has the newer change.
    pub(super) fn by_time(&self, other: &Entry) -> Ordering {
        let time = |entry: &Entry| entry.details.as_ref().map(|details| details.attr.mtime);
        time(other).cmp(&time(self))
    }

    /// Which is larger.
    pub(super) fn by_size(&self, other: &Entry) -> Ordering {
        let size = |entry: &Entry| entry.details.as_ref().map(|details| details.attr.size);
        size(other).cmp(&size(self))
    }
}

fn details(held: &Held<'_>) -> Result<Details> {
    Ok(Details { attr: held.attr, target: held.target()? })
}
