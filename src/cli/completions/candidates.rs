//! The values that a store has for an argument.
//!
//! The view decides which workers there are, as for every reader. Nothing is written: neither a
//! cache nor an index. No other process is started.

use std::sync::Arc;

use super::cursor::{StoreValueKind, TypedArgument};
use crate::analysis::settings::{Control, Settings};
use crate::cli::mountinfo::MountTable;
use crate::cli::store_selection::StoreSelection;
use crate::name::is_unprintable;
use crate::tree::{ListedEntry, NodeKind, Symlinks, Tree};
use crate::view::View;

/// Maximum number of candidates.
const CANDIDATES_MAX: usize = 1_000;

/// Directory of the workers in the tree.
const WORKERS: &str = "workers/";

/// Directory of the notes in the tree.
const NOTES: &str = "supervisor/";

/// A value, or the beginning of several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreValue {
    pub(super) value: String,
    /// True if the value ends here, so that a space may follow.
    pub(super) is_whole: bool,
}

/// Returns the candidates for the value at the cursor, sorted. `control` stops renders.
///
/// # Errors
///
/// There is no store, or it cannot be read.
pub(super) fn find(
    cursor: &TypedArgument,
    control: Arc<Control>,
) -> anyhow::Result<Vec<StoreValue>> {
    let found = match cursor.kind {
        StoreValueKind::Mount => mountpoints()?,
        StoreValueKind::Worker => {
            let visible = open(cursor, &cursor.typed)?.visible();
            let names = visible.members.iter().filter_map(|member| text(member.name.as_bytes()));
            starting_with(&cursor.typed, names)
        }
        StoreValueKind::Run => {
            let visible = open(cursor, "")?.visible();
            starting_with(&cursor.typed, visible.runs.values().map(|run| run.id.as_str()))
        }
        StoreValueKind::Path => paths(cursor, "", control)?,
        StoreValueKind::Note => paths(cursor, NOTES, control)?,
    };
    Ok(limited(found))
}

/// Opens the view of the command at the cursor: at least the workers whose names begin with
/// `name`. In a large store, reading all of them would take too long.
fn open(cursor: &TypedArgument, name: &str) -> anyhow::Result<View> {
    let mut selection =
        StoreSelection::without_probes(&cursor.stores, cursor.format, cursor.filter.clone())?;
    selection.hard_links = cursor.hard_links;
    selection.cache.no_cache = cursor.no_cache;
    // The number of a name that another store has, too, is no part of the id.
    let id_prefix = name.split_once('~').map_or(name, |(id, _)| id);
    selection.open_without_writing(id_prefix.as_bytes())
}

fn mountpoints() -> anyhow::Result<Vec<StoreValue>> {
    let mounts = MountTable::read()?;
    let points = mounts.ours().filter_map(|mount| mount.point.to_str().map(str::to_owned));
    Ok(points.map(|value| StoreValue { value, is_whole: true }).collect())
}

/// Returns the entries of the directory at the cursor below `base`. Directories end with `/`.
fn paths(
    cursor: &TypedArgument,
    base: &str,
    control: Arc<Control>,
) -> anyhow::Result<Vec<StoreValue>> {
    let split = cursor.typed.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, prefix) = cursor.typed.split_at(split);
    let below = cursor.typed.strip_prefix(WORKERS).filter(|_| base.is_empty());
    let worker = below.and_then(|below| below.split('/').next()).unwrap_or_default();
    let tree = Tree::new(open(cursor, worker)?, Settings::without_deadline(control));
    let path = format!("{base}{folder}");
    let path = if path.is_empty() { "." } else { &path };
    let entries = tree
        .with_path(path.as_bytes(), Symlinks::Follow, |place| tree.list_folder(place.leaf().ino))?;
    let is_folder = |entry: &ListedEntry| match entry.kind {
        NodeKind::Folder => true,
        NodeKind::File => false,
        NodeKind::Link => {
            let target = [path.as_bytes(), b"/", entry.name.as_bytes()].concat();
            let found = tree.with_path(&target, Symlinks::Follow, |place| Ok(place.leaf().attr));
            found.is_ok_and(|attr| attr.kind == NodeKind::Folder)
        }
    };
    let named = entries.iter().filter_map(|entry| {
        let name = text(entry.name.as_bytes()).filter(|name| name.starts_with(prefix))?;
        let is_folder = is_folder(entry);
        let value = format!("{folder}{name}{}", if is_folder { "/" } else { "" });
        Some(StoreValue { value, is_whole: !is_folder })
    });
    Ok(named.collect())
}

fn text(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(name).ok()
}

fn starting_with<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Vec<StoreValue> {
    names
        .filter(|name| name.starts_with(typed))
        .map(|name| StoreValue { value: name.to_owned(), is_whole: true })
        .collect()
}

/// Sorts the candidates. Leaves out those that a terminal cannot show as they are. Of too many,
/// only the different beginnings are kept.
fn limited(mut found: Vec<StoreValue>) -> Vec<StoreValue> {
    found.retain(|candidate| !candidate.value.contains(is_unprintable));
    found.sort_unstable();
    found.dedup();
    if found.len() <= CANDIDATES_MAX {
        return found;
    }
    let [Some(first), Some(last)] = [found.first(), found.last()] else { return found };
    let pairs = first.value.chars().zip(last.value.chars());
    let shared = pairs.take_while(|(a, b)| a == b).count();
    let beginnings = found.iter().map(|candidate| StoreValue {
        value: candidate.value.chars().take(shared + 1).collect(),
        is_whole: false,
    });
    let mut beginnings: Vec<StoreValue> = beginnings.collect();
    beginnings.dedup();
    beginnings.truncate(CANDIDATES_MAX);
    beginnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(value: impl Into<String>) -> StoreValue {
        StoreValue { value: value.into(), is_whole: true }
    }

    #[test]
    fn candidates_are_sorted_and_printable() {
        let found = ["b", "a", "b", "c\u{1b}[31m", "d\n", "e\u{202e}", "f $(x) 'é"].map(whole);
        assert_eq!(limited(found.to_vec()), ["a", "b", "f $(x) 'é"].map(whole));
    }

    #[test]
    fn too_many_candidates_become_their_beginnings() {
        let names = |count: usize| (0..count).map(|at| whole(format!("w{at:05}"))).collect();
        assert_eq!(limited(names(CANDIDATES_MAX)).len(), CANDIDATES_MAX);
        let beginnings: Vec<StoreValue> = (0..3)
            .map(|digit| StoreValue { value: format!("w{digit}"), is_whole: false })
            .collect();
        assert_eq!(limited(names(20_001)), beginnings);
    }
}
