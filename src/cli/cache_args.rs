//! Where it is kept for the next start what takes long to read: `$XDG_CACHE_HOME/swarmletfs` or `~/.cache/swarmletfs`,
//! for this user alone. Everything works without it, only slower.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use anyhow::Context;
use clap::Args;

use super::terminal::display_path;
use crate::cache::DiskCache;

/// How much is kept at most, in bytes; and of the words of workers, which are an index to search in.
pub(super) const CACHE_LIMIT: u64 = 512 << 20;
pub(super) const INDEX_LIMIT: u64 = 4 << 30;
/// The folder of the index in that of all else.
pub(super) const INDEX: &str = "index";

/// What is kept for the next start, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(super) struct CacheArgs {
    /// Keep nothing for the next start of what took long to find out
    #[arg(long)]
    pub(super) no_cache: bool,

    /// Keep the index of search/ in this folder, which is made if it is not there [default: in the cache folder]
    #[arg(long, value_name = "DIR", conflicts_with = "no_index")]
    pub(super) index: Option<PathBuf>,

    /// Keep no index: each process that searches reads everything
    #[arg(long)]
    pub(super) no_index: bool,
}

/// The folder's name in that of the user's caches.
const FOLDER: &str = "swarmletfs";

/// Opens the folder, and makes it if it is not there. None where that is not possible, which the log tells, or where it
/// would lie in one of `stores`: nothing is written there.
pub(super) fn open(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let place = default_dir()?;
    usable(&place, stores, CACHE_LIMIT)
        .inspect_err(|why| {
            warn!("what was read is not kept for the next start: {} cannot be used: {why}", display_path(&place))
        })
        .ok()
        .map(Arc::new)
}

/// Opens the folder of the index: the one that was named, or one in `cache`, the folder of all else. Errors: the one that
/// was named cannot be used; any other is done without.
pub(super) fn open_index(
    stores: &[PathBuf],
    keep: &CacheArgs,
    cache: Option<&DiskCache>,
) -> anyhow::Result<Option<Arc<DiskCache>>> {
    let named = keep.index.is_some();
    let inside = || cache.and_then(|_| Some(default_dir()?.join(INDEX)));
    let Some(place) = keep.index.clone().or_else(inside).filter(|_| !keep.no_index) else { return Ok(None) };
    let opened = usable(&place, stores, INDEX_LIMIT);
    let why = || format!("the index cannot be kept in {}", display_path(&place));
    match opened {
        Ok(index) => Ok(Some(Arc::new(index))),
        Err(error) if named => Err(error).with_context(why),
        Err(error) => {
            warn!("{}: {error}", why());
            Ok(None)
        }
    }
}

/// Opens the folder `place`. Errors: it cannot be used, or lies in one of `stores`: nothing is written there.
fn usable(place: &Path, stores: &[PathBuf], most: u64) -> anyhow::Result<DiskCache> {
    match stores.iter().find(|store| is_within(place, store)) {
        Some(store) => anyhow::bail!("it lies inside the store {}", display_path(store)),
        None => Ok(DiskCache::open(place, most)?),
    }
}

/// Where it is, there or not; none for who has no home.
pub(super) fn default_dir() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join(FOLDER))
}

/// Whether `place`, which need not be there, is in `store`, which is without links.
fn is_within(place: &Path, store: &Path) -> bool {
    let there = place.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
    there.is_some_and(|there| there.starts_with(store))
}
