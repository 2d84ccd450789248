//! The arguments of the commands that read without a mount, and the options for the cache and the
//! search index that later runs reuse.
//!
//! Cache and index are stored in `$XDG_CACHE_HOME/swarmletfs` or `~/.cache/swarmletfs`, readable only by this
//! user. Without them everything works, but more slowly.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::terminal::{self, display_path};
use super::{duration, mount_options};
use crate::cache::DiskCache;
use crate::path_bytes;

/// Selects what the commands without a mount read. The stores are found as for `mount`.
#[derive(Debug, Args)]
pub(super) struct ViewArgs {
    /// A folder of traces, or a single transcript; can be given several times [default: found as
    /// for `mount`]
    #[arg(long = "store", value_name = "PATH")]
    pub(super) stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long = "format", value_name = "NAME", value_parser = mount_options::format_names())]
    pub(super) store_format: Option<String>,

    /// Only the workers of this owner
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    pub(super) owner: Option<String>,

    /// Only the workers of this run
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    pub(super) run: Option<String>,

    /// With --owner, include files that have several hard links, for stores kept as hard-linked
    /// backups
    #[arg(long)]
    pub(super) hard_links: bool,

    /// Time without a write after which an unfinished session of Claude Code counts as abandoned:
    /// 30s, 5m, 1h30m, or whole seconds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    pub(super) stale: Option<Duration>,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    #[command(flatten)]
    pub(super) quiet: terminal::QuietArg,
}

pub(super) const CACHE_LIMIT: u64 = 512 << 20;
pub(super) const INDEX_LIMIT: u64 = 4 << 30;
pub(super) const INDEX: &str = "index";

/// Options for what is kept between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct CacheArgs {
    /// Do not cache parsed data for later runs
    #[arg(long)]
    pub(super) no_cache: bool,

    /// Store the search index in this folder, which is created if it is missing [default: inside
    /// the cache folder]
    #[serde(
        serialize_with = "path_bytes::list::serialize",
        deserialize_with = "path_bytes::list::deserialize_one"
    )]
    #[arg(long, value_name = "DIR", conflicts_with = "no_index")]
    pub(super) index: Option<PathBuf>,

    /// Store no search index: each process that searches reads every file
    #[arg(long)]
    pub(super) no_index: bool,
}

const FOLDER: &str = "swarmletfs";

/// Opens the default cache directory, creating it if needed.
///
/// Returns `None` if there is no such directory, if it cannot be used, or if it lies inside one of
/// `stores`, where nothing may be written. The log then gives the reason.
pub(super) fn open(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_dir()?;
    open_outside_stores(&folder_path, stores, CACHE_LIMIT)
        .inspect_err(|why| {
            warn!("cannot cache parsed data in {}: {why}", display_path(&folder_path))
        })
        .ok()
        .map(Arc::new)
}

/// Opens the default cache directory to read it only. Returns `None` if it does not exist, or if it
/// cannot be used.
pub(super) fn open_to_read(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_dir()?;
    let is_outside = !stores.iter().any(|store| is_within(&folder_path, store));
    is_outside.then(|| DiskCache::open_to_read(&folder_path).ok().map(Arc::new)).flatten()
}

/// Opens the index directory: the one given by `--index`, or the default one inside the directory
/// of `cache`. Returns `None` without either, and with `--no-index`.
///
/// # Errors
///
/// Fails if the directory given by `--index` cannot be used. A default one that cannot be used is
/// logged and skipped.
pub(super) fn open_index(
    stores: &[PathBuf],
    arguments: &CacheArgs,
    cache: Option<&DiskCache>,
) -> anyhow::Result<Option<Arc<DiskCache>>> {
    if arguments.no_index {
        return Ok(None);
    }
    let explicit = arguments.index.clone();
    let Some(folder_path) = explicit.or_else(|| Some(cache.and(default_dir())?.join(INDEX))) else {
        return Ok(None);
    };
    let why = || format!("cannot keep the index in {}", display_path(&folder_path));
    match open_outside_stores(&folder_path, stores, INDEX_LIMIT) {
        Ok(index) => Ok(Some(Arc::new(index))),
        Err(error) if arguments.index.is_some() => Err(error).with_context(why),
        Err(error) => {
            warn!("{}: {error}", why());
            Ok(None)
        }
    }
}

/// Opens the cache in the directory `folder_path`, with at most `limit` bytes.
///
/// # Errors
///
/// Fails if the directory cannot be used or lies inside one of `stores`, where nothing may be
/// written.
fn open_outside_stores(
    folder_path: &Path,
    stores: &[PathBuf],
    limit: u64,
) -> anyhow::Result<DiskCache> {
    match stores.iter().find(|store| is_within(folder_path, store)) {
        Some(store) => anyhow::bail!("it lies inside the store {}", display_path(store)),
        None => Ok(DiskCache::open(folder_path, limit)?),
    }
}

/// Returns the path of the cache directory, which may not exist; `None` without a home directory.
pub(crate) fn default_dir() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join(FOLDER))
}

/// Returns true if `folder_path` lies inside `store`. `folder_path` need not exist; `store` must be
/// resolved.
fn is_within(folder_path: &Path, store: &Path) -> bool {
    let existing = folder_path.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
    existing.is_some_and(|existing| existing.starts_with(store))
}
