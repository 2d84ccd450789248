//! Where things lie in a store, and whether a folder is such a store at all.

use super::super::meta::{found, hash_meta, present};
use super::super::{Fit, Found};

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::Reason;
use crate::name::{Name, RelPath};
use crate::store::{DirEntry, Kind, Store};

/// The folder of the workers, where they have one of their own.
const WORKERS: &str = "workers";
/// The supervisor's notes.
pub(super) const SUPERVISOR: &str = "supervisor";
/// Who a worker is and how far it is.
pub(super) const METADATA: &str = "metadata.json";
/// Its task, in the layout whose metadata has none.
pub(super) const TASK: &str = "task.txt";
/// The folder of its tool calls' outputs.
pub(super) const CALLS: &str = "tool_calls";
/// Outputs stored out of band; beside the workers.
const TOOL_OUTPUTS: &str = "tool_outputs";
/// How many folders are looked into before a store is said to hold no worker.
const LOOKED_AT: usize = 1_000;

/// One of this format's own paths, such as `logs/errors.log`.
pub(super) fn path(text: &str) -> RelPath {
    // Constants of this format; one that is no path would name the folder itself, which is no file.
    RelPath::parse(text).unwrap_or_default()
}

/// Lists the folders that may be workers, in both layouts. A store whose root cannot be listed is an error; a
/// `workers` that is not there is none.
pub(super) fn find(store: &dyn Store) -> Result<Found> {
    let mut found = Found::default();
    let root = RelPath::root();
    let entries = store.list(&root)?;
    let is_workers = |entry: &DirEntry| entry.kind == Kind::Folder && entry.name.as_bytes() == WORKERS.as_bytes();
    let has_workers = entries.iter().any(is_workers);
    add(&mut found, &root, entries, &[WORKERS, SUPERVISOR, TOOL_OUTPUTS]);
    let workers = path(WORKERS);
    match store.list(&workers) {
        Ok(entries) => add(&mut found, &workers, entries, &[SUPERVISOR, TOOL_OUTPUTS]),
        // A folder that leads out of the store is a foreign mount.
        Err(Error::Escape) if has_workers => found.passed.add(workers, Reason::ForeignMount, None),
        Err(Error::NotFound | Error::NotADirectory | Error::Escape | Error::Special) => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// What was found, and the state of the folders in which it was.
pub(super) struct Listing {
    state: [Key; 2],
    found: Found,
}

/// What tells one state of a folder from another.
type Key = [u8; 16];

/// The same as [`find`] without listing anything, where the folders are as they were then. Also what is to be kept for the
/// next time.
pub(super) fn find_again(store: &dyn Store, held: Option<Listing>) -> Result<(Found, Option<Listing>)> {
    let state = state(store);
    if let Some(held) = held.filter(|held| state == Some(held.state)) {
        return Ok((held.found.clone(), Some(held)));
    }
    let mut found = find(store)?;
    found.folders.shrink_to_fit();
    Ok((found.clone(), state.map(|state| Listing { state, found })))
}

/// The state of the folders that are listed; `None` while it cannot be told from the next one.
fn state(store: &dyn Store) -> Option<[Key; 2]> {
    let state = |path: &RelPath| {
        let meta = found(store.stat_without_acl(path)).ok()?;
        let at_rest = meta.is_none_or(|meta| meta.ctime.is_past_tick());
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        at_rest.then(|| digest(&hash))
    };
    Some([state(&RelPath::root())?, state(&path(WORKERS))?])
}

fn add(found: &mut Found, folder: &RelPath, entries: Vec<DirEntry>, not: &[&str]) {
    for DirEntry { name, kind } in entries {
        let path = folder.join(&name);
        match kind {
            Kind::Folder if not.iter().any(|other| other.as_bytes() == name.as_bytes()) => {
                // In `workers/` such a folder is out of its place, and told.
                if !folder.is_root() {
                    found.passed.add(path, Reason::NotAWorker, None);
                }
            }
            Kind::Folder => found.folders.push(path),
            Kind::Link => found.passed.add(path, Reason::Link, None),
            Kind::Special => found.passed.add(path, Reason::Special, None),
            Kind::File => {}
        }
    }
}

/// Looks whether `store` is one of this format.
pub(super) fn fit(store: &dyn Store) -> Result<Fit> {
    let root = RelPath::root();
    let found = find(store)?;
    for folder in found.folders.iter().take(LOOKED_AT) {
        if is_worker(store, folder).unwrap_or(false) {
            return Ok(Fit::Workers);
        }
    }
    if is_worker(store, &root)? {
        return Ok(Fit::OneWorker);
    }
    // A link in the place leads to workers that are not read: that is no store that could fill.
    let prepared = [(WORKERS, Kind::Folder), ("index.json", Kind::File)]
        .iter()
        .any(|(name, kind)| store.stat(&path(name)).is_ok_and(|meta| meta.kind == *kind));
    let empty = found.passed.is_empty() && store.list(&root)?.iter().all(|entry| is_hidden(&entry.name));
    Ok(if prepared || empty { Fit::Empty } else { Fit::No })
}

fn is_worker(store: &dyn Store, folder: &RelPath) -> Result<bool> {
    let metadata = found(store.stat_without_acl(&folder.join_path(&path(METADATA))))?;
    let calls = present(store.stat_without_acl(&folder.join_path(&path(CALLS))))?;
    Ok(metadata.is_some() || calls.is_some_and(|meta| meta.kind == Kind::Folder))
}

fn is_hidden(name: &Name) -> bool {
    name.as_bytes().starts_with(b".") || name.as_bytes() == b"lost+found"
}
