//! The layout of a worker artifact store, and its detection.

use super::super::meta::{hash_meta, if_exists, if_file_or_folder};
use super::super::{Candidates, Detection};

use swarmletfs_base::digest::{Key, digest};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::SkipReason;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

pub const WORKERS: &str = "workers";
pub const SUPERVISOR: &str = "supervisor";
pub const METADATA: &str = "metadata.json";
/// The task file, in the layout whose metadata has no task.
pub const TASK: &str = "task.txt";
pub const CALLS: &str = "tool_calls";
const TOOL_OUTPUTS: &str = "tool_outputs";
pub const AUDIT: &str = "audit";
/// The directory of the drafts of workers that run in a view of a workspace, beside the workers.
pub const DRAFTS: &str = "drafts";
pub const TOMBSTONES: &str = "tombstones";
/// The directory of the records of workers in a sandbox, beside the workers.
pub const REGISTRY: &str = "registry";
pub const CHANGES_FILE: &str = "changes.json";
/// The directory of the changed files of a workspace, as the worker left them.
pub const CHANGES: &str = "changes";
/// The directory of the changed files of a workspace, as the worker found them.
pub const BASE: &str = "base";
/// The bundle of git with the commits that a worker made in its view of a workspace.
pub const COMMITS: &str = "commits.bundle";
/// The comments of a person on the changes of a worker, which wait for it.
pub const COMMENTS: &str = "comments.txt";
/// The directory of the files that were replaced when changes were applied.
pub const APPLIED: &str = "applied";
/// Directories in a store's root that are not workers, unless they look like one.
const BESIDE_WORKERS: [&str; 4] = [AUDIT, DRAFTS, TOMBSTONES, REGISTRY];
/// Maximum number of directories that are probed to detect a store.
const PROBED_FOLDERS_MAX: usize = 1_000;

/// Returns one of this format's own paths, such as `logs/errors.log`.
pub(super) fn path(text: &str) -> RelPath {
    RelPath::constant(text)
}

/// Lists the directories that may be workers, in both layouts.
///
/// # Errors
///
/// Fails if the root cannot be listed. A missing `workers` is not an error.
pub(super) fn find_workers(store: &dyn Store) -> Result<Candidates> {
    let mut found = Candidates::default();
    let root = RelPath::root();
    let entries = store.list(&root)?;
    let has_workers = entries
        .iter()
        .any(|entry| entry.kind == Kind::Folder && entry.name.as_bytes() == WORKERS.as_bytes());
    let mut excluded = vec![WORKERS, SUPERVISOR, TOOL_OUTPUTS];
    // Workers may be directly in the root, and one may be called so. An unreadable directory stays
    // a candidate, so that it is reported.
    excluded.extend(BESIDE_WORKERS.into_iter().filter(|name| is_no_worker(store, name)));
    add_entries(&mut found, &root, entries, &excluded);
    let workers = path(WORKERS);
    match store.list(&workers) {
        Ok(entries) => add_entries(&mut found, &workers, entries, &[SUPERVISOR, TOOL_OUTPUTS]),
        // A directory that leads out of the store is a foreign mount.
        Err(Error::Escape) if has_workers => {
            found.skipped.add(workers, SkipReason::ForeignMount, None)
        }
        Err(Error::NotFound | Error::NotADirectory | Error::Escape | Error::Special) => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

pub(super) struct CachedCandidates {
    state: [Key; 6],
    found: Candidates,
}

/// Returns the cached result if the directories are unchanged, else the result of [`find_workers`].
/// Also returns the value to cache.
///
/// # Errors
///
/// Fails if [`find_workers`] fails.
pub(super) fn find_cached(
    store: &dyn Store,
    cached: Option<CachedCandidates>,
) -> Result<(Candidates, Option<CachedCandidates>)> {
    let state = folder_keys(store);
    if let Some(cached) = cached.filter(|cached| state == Some(cached.state)) {
        return Ok((cached.found.clone(), Some(cached)));
    }
    let mut found = find_workers(store)?;
    found.folders.shrink_to_fit();
    Ok((found.clone(), state.map(|state| CachedCandidates { state, found })))
}

/// Returns the fingerprints of the directories that [`find_workers`] reads. Returns `None` if a
/// later change could leave them equal.
fn folder_keys(store: &dyn Store) -> Option<[Key; 6]> {
    let state = |path: &RelPath| {
        let meta = if_exists(store.stat_without_acl(path)).ok()?;
        let at_rest = meta.is_none_or(|meta| meta.ctime.is_past_tick());
        let mut hash = blake3::Hasher::new();
        hash_meta(&mut hash, meta.as_ref());
        at_rest.then(|| digest(&hash))
    };
    Some([
        state(&RelPath::root())?,
        state(&path(WORKERS))?,
        state(&path(AUDIT))?,
        state(&path(DRAFTS))?,
        state(&path(TOMBSTONES))?,
        state(&path(REGISTRY))?,
    ])
}

fn add_entries(
    found: &mut Candidates,
    folder: &RelPath,
    entries: Vec<DirEntry>,
    excluded: &[&str],
) {
    for DirEntry { name, kind } in entries {
        let path = folder.join(&name);
        match kind {
            Kind::Folder if excluded.iter().any(|other| other.as_bytes() == name.as_bytes()) => {
                // A directory of this name is misplaced in `workers/` and so is reported.
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

/// Detects whether `store` has this format.
///
/// # Errors
///
/// Fails if the store cannot be listed.
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
    // A link of this name leads to workers that are not read, so the store will not fill.
    let prepared = [(WORKERS, Kind::Folder), ("index.json", Kind::File)]
        .iter()
        .any(|(name, kind)| store.stat(&path(name)).is_ok_and(|meta| meta.kind == *kind));
    let empty =
        found.skipped.is_empty() && store.list(&root)?.iter().all(|entry| is_hidden(&entry.name));
    Ok(if prepared || empty { Detection::Empty } else { Detection::Other })
}

/// Returns true if `store` was prepared for recording and has no worker yet: it has an empty
/// directory of workers and a log of changes.
pub(super) fn is_new(store: &dyn Store) -> bool {
    let is_log = |entry: &DirEntry| entry.name.as_bytes().ends_with(b".jsonl");
    store.list(&path(WORKERS)).is_ok_and(|workers| workers.is_empty())
        && store.list(&path(AUDIT)).is_ok_and(|audit| !audit.is_empty() && audit.iter().all(is_log))
}

/// Returns true if the directory `name` is certainly no worker.
fn is_no_worker(store: &dyn Store, name: &str) -> bool {
    matches!(is_worker(store, &path(name)), Ok(false))
}

fn is_worker(store: &dyn Store, folder: &RelPath) -> Result<bool> {
    let metadata = if_exists(store.stat_without_acl(&folder.join_path(&path(METADATA))))?;
    let calls = if_file_or_folder(store.stat_without_acl(&folder.join_path(&path(CALLS))))?;
    Ok(metadata.is_some() || calls.is_some_and(|meta| meta.kind == Kind::Folder))
}

fn is_hidden(name: &Name) -> bool {
    name.as_bytes().starts_with(b".") || name.as_bytes() == b"lost+found"
}
