//! Where things lie in a store, and whether a folder is such a store at all.

use super::super::meta::{hash_meta, if_exists, if_file_or_folder};
use super::super::{Candidates, Detection};

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::SkipReason;
use crate::name::{Name, RelPath};
use crate::store::{Entry, Kind, Store};

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
const PROBED_FOLDERS_MAX: usize = 1_000;

/// One of this format's own paths, such as `logs/errors.log`.
pub(super) fn path(text: &str) -> RelPath {
    // Constants of this format; one that is no path would name the folder itself, which is no file.
    RelPath::parse(text).unwrap_or_default()
}

/// Lists the folders that may be workers, in both layouts. A store whose root cannot be listed is an error; a
/// `workers` that is not there is none.
pub(super) fn find_workers(store: &dyn Store) -> Result<Candidates> {
    let mut found = Candidates::default();
    let root = RelPath::root();
    let entries = store.list(&root)?;
    let is_workers = |entry: &Entry| entry.kind == Kind::Folder && entry.name.as_bytes() == WORKERS.as_bytes();
    let has_workers = entries.iter().any(is_workers);
    add_entries(&mut found, &root, entries, &[WORKERS, SUPERVISOR, TOOL_OUTPUTS]);
    let workers = path(WORKERS);
    match store.list(&workers) {
        Ok(entries) => add_entries(&mut found, &workers, entries, &[SUPERVISOR, TOOL_OUTPUTS]),
        // A folder that leads out of the store is a foreign mount.
        Err(Error::Escape) if has_workers => found.skipped.add(workers, SkipReason::ForeignMount, None),
        Err(Error::NotFound | Error::NotADirectory | Error::Escape | Error::Special) => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// What was found, and the state of the folders in which it was.
pub(super) struct CachedCandidates {
    state: [Key; 2],
    found: Candidates,
}

/// What tells one state of a folder from another.
type Key = [u8; 16];

/// The same as [`find`] without listing anything, where the folders are as they were then. Also what is to be kept for the
/// next time.
pub(super) fn find_cached(
    store: &dyn Store,
    held: Option<CachedCandidates>,
) -> Result<(Candidates, Option<CachedCandidates>)> {
    let state = folder_keys(store);
    if let Some(held) = held.filter(|held| state == Some(held.state)) {
        return Ok((held.found.clone(), Some(held)));
    }
    let mut found = find_workers(store)?;
    found.folders.shrink_to_fit();
    Ok((found.clone(), state.map(|state| CachedCandidates { state, found })))
}

/// The state of the folders that are listed; `None` while it cannot be told from the next one.
fn folder_keys(store: &dyn Store) -> Option<[Key; 2]> {
    let state = |path: &RelPath| {
        let meta = if_exists(store.glimpse(path)).ok()?;
        let at_rest = meta.is_none_or(|meta| meta.ctime.is_at_rest());
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        at_rest.then(|| digest(&hash))
    };
    Some([state(&RelPath::root())?, state(&path(WORKERS))?])
}

fn add_entries(found: &mut Candidates, folder: &RelPath, entries: Vec<Entry>, excluded: &[&str]) {
    for Entry { name, kind } in entries {
        let path = folder.join(&name);
        match kind {
            Kind::Folder if excluded.iter().any(|other| other.as_bytes() == name.as_bytes()) => {
                // In `workers/` such a folder is out of its place, and told.
                if !folder.is_root() {
                    found.skipped.add(path, SkipReason::NotAWorker, None);
                }
            }
            Kind::Folder => found.folders.push(path),
            Kind::Link => found.skipped.add(path, SkipReason::Link, None),
            Kind::Special => found.skipped.add(path, SkipReason::Special, None),
            Kind::File => {}
        }
    }
}

/// Looks whether `store` is one of this format.
pub(super) fn detect(store: &dyn Store) -> Result<Detection> {
    let root = RelPath::root();
    let found = find_workers(store)?;
    for folder in found.folders.iter().take(PROBED_FOLDERS_MAX) {
        if is_worker(store, folder).unwrap_or(false) {
            return Ok(Detection::Workers);
        }
    }
    if is_worker(store, &root)? {
        return Ok(Detection::OneWorker);
    }
    // A link in the place leads to workers that are not read: that is no store that could fill.
    let prepared = [(WORKERS, Kind::Folder), ("index.json", Kind::File)]
        .iter()
        .any(|(name, kind)| store.stat(&path(name)).is_ok_and(|meta| meta.kind == *kind));
    let empty = found.skipped.is_empty() && store.list(&root)?.iter().all(|entry| is_hidden(&entry.name));
    Ok(if prepared || empty { Detection::Empty } else { Detection::Other })
}

fn is_worker(store: &dyn Store, folder: &RelPath) -> Result<bool> {
    let metadata = if_exists(store.glimpse(&folder.join_path(&path(METADATA))))?;
    let calls = if_file_or_folder(store.glimpse(&folder.join_path(&path(CALLS))))?;
    Ok(metadata.is_some() || calls.is_some_and(|meta| meta.kind == Kind::Folder))
}

fn is_hidden(name: &Name) -> bool {
    name.as_bytes().starts_with(b".") || name.as_bytes() == b"lost+found"
}
