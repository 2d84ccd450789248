//! One entry of a listing: its name, and, where they are asked for, its attributes.

use std::cmp::Ordering;

use super::join;
use crate::error::Result;
use crate::tree::{Attr, LookupGuard, NodeKind, ResolvedPath};

/// Something that is listed.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Where it is, links on the way followed: from the root, which is `.`.
    pub(super) path: Vec<u8>,
    /// How it is called in the listing: by its name, or by a path that was typed.
    pub(super) called: Vec<u8>,
    pub(super) kind: NodeKind,
    /// None where nobody asks.
    pub(super) known: Option<Known>,
}

/// What a look at it tells.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) attr: Attr,
    /// Where it leads, of a link.
    pub(super) target: Option<Vec<u8>>,
}

impl Entry {
    /// What is at a path that was typed.
    pub(super) fn at(place: &ResolvedPath<'_>, typed: &[u8]) -> Result<Entry> {
        let known = known(place.leaf())?;
        Ok(Entry { path: place.path(), called: typed.to_vec(), kind: known.attr.kind, known: Some(known) })
    }

    /// What is in the folder `folder` under `name`.
    pub(super) fn of(held: &LookupGuard<'_>, folder: &[u8], name: &[u8]) -> Result<Entry> {
        Ok(Entry { known: Some(known(held)?), ..Entry::unknown(folder, name, held.attr.kind) })
    }

    /// What is listed in `folder` under `name` and was not looked at.
    pub(super) fn unknown(folder: &[u8], name: &[u8], kind: NodeKind) -> Entry {
        Entry { path: join(folder, name), called: name.to_vec(), kind, known: None }
    }

    /// Its own name, however it is called.
    pub(super) fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Which has the newer change.
    pub(super) fn by_time(&self, other: &Entry) -> Ordering {
        let time = |entry: &Entry| entry.known.as_ref().map(|known| known.attr.mtime);
        time(other).cmp(&time(self))
    }

    /// Which is larger.
    pub(super) fn by_size(&self, other: &Entry) -> Ordering {
        let size = |entry: &Entry| entry.known.as_ref().map(|known| known.attr.size);
        size(other).cmp(&size(self))
    }
}

fn known(held: &LookupGuard<'_>) -> Result<Known> {
    Ok(Known { attr: held.attr, target: held.link_target()? })
}
