//! Where it is kept for the next start what takes long to read: `$XDG_CACHE_HOME/swarmletfs` or `~/.cache/swarmletfs`,
//! for this user alone. Everything works without it, only slower.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::say::shown;
use crate::cache::DiskCache;

/// How much is kept at most, in bytes.
pub(super) const MOST: u64 = 512 << 20;
/// The folder's name in that of the user's caches.
const FOLDER: &str = "swarmletfs";

/// Opens the folder, and makes it if it is not there. None where that is not possible, which the log tells, or where it
/// would lie in one of `stores`: nothing is written there.
pub(super) fn open(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let place = place()?;
    let opened = match stores.iter().find(|store| lies_in(&place, store)) {
        Some(store) => Err(format!("it lies inside the store {}", shown(store))),
        None => DiskCache::open(&place, MOST).map_err(|error| error.to_string()),
    };
    opened
        .inspect_err(|why| {
            warn!("what was read is not kept for the next start: {} cannot be used: {why}", shown(&place))
        })
        .ok()
        .map(Arc::new)
}

/// Where it is, there or not; none for who has no home.
pub(super) fn place() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join(FOLDER))
}

/// Whether `place`, which need not be there, is in `store`, which is without links.
fn lies_in(place: &Path, store: &Path) -> bool {
    let there = place.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
    there.is_some_and(|there| there.starts_with(store))
}
