//! Chooses and opens the stores of a command, with the cache and the search index that later runs
//! reuse.
//!
//! The cache and the index are stored in `$XDG_CACHE_HOME/swarmletfs` or `~/.cache/swarmletfs`,
//! readable only by this user. Without them everything works, but more slowly.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::mountinfo::FolderIdentity;
use super::terminal::{QuietArg, display_path};
use super::view_args::ViewArgs;
use super::{discover, mountpoint};
use crate::cache::DiskCache;
use crate::catalog::{Freshness, STALE_AFTER, Source, SourceError};
use crate::path_bytes;
use crate::trace::KnownFormat;
use crate::view::{Filter, View};

const NO_CURRENT: &str = "the current folder does not exist any more: change to another one";

#[derive(Debug)]
pub(super) struct StoreSelection {
    /// Absolute paths; at least one.
    pub(super) stores: Vec<PathBuf>,
    /// Format of the stores; `None` to detect it.
    pub(super) format: Option<&'static KnownFormat>,
    /// Show an owner's files even if they have several hard links.
    pub(super) hard_links: bool,
    /// Time without a write after which an unfinished worker counts as abandoned.
    pub(super) stale_after: Duration,
    pub(super) cache: CacheArgs,
    pub(super) filter: Filter,
    pub(super) quiet: QuietArg,
}

impl StoreSelection {
    /// Chooses the stores for `arguments` and prints which ones they are.
    pub(super) fn from_args(arguments: &ViewArgs) -> anyhow::Result<StoreSelection> {
        let mut stores = arguments.stores.clone();
        let format = arguments.store_format.as_deref().and_then(KnownFormat::by_name);
        choose(&mut stores, &[], format, arguments.quiet)?;
        let filter = Filter { owner: arguments.owner.clone(), run: arguments.run.clone() };
        Ok(StoreSelection {
            stores,
            format,
            hard_links: arguments.hard_links,
            stale_after: arguments.stale.unwrap_or(STALE_AFTER),
            cache: arguments.cache.clone(),
            filter,
            quiet: arguments.quiet,
        })
    }

    /// Chooses the stores as a command with these options does, without a message.
    ///
    /// This process may run another program than this one, so no other process probes whether a
    /// store answers.
    pub(super) fn in_process(stores: &[PathBuf], filter: Filter) -> anyhow::Result<StoreSelection> {
        let selection = StoreSelection::without_probes(stores, None, filter)?;
        Ok(StoreSelection { cache: CacheArgs::default(), ..selection })
    }

    /// Chooses the stores as a command with these options does, without a message and without any
    /// cache. No other process probes whether a store answers, so opening one may take forever.
    pub(super) fn without_probes(
        stores: &[PathBuf],
        format: Option<&'static KnownFormat>,
        filter: Filter,
    ) -> anyhow::Result<StoreSelection> {
        let current = std::env::current_dir().context(NO_CURRENT)?;
        let chosen = discover::choose(stores, &[], &discover::Environment::new(&current, format))?;
        let mut distinct = Vec::new();
        for store in chosen.stores {
            // Opening a store that cannot be resolved reports the reason.
            let path = std::fs::canonicalize(&store.path).unwrap_or(store.path);
            if !distinct.contains(&path) {
                distinct.push(path);
            }
        }
        Ok(StoreSelection { format, filter, ..StoreSelection::of_stores(distinct) })
    }

    /// Selects all of one store, which was chosen before, without any cache.
    pub(super) fn only(store: PathBuf) -> StoreSelection {
        StoreSelection::of_stores(vec![store])
    }

    /// Selects all of `stores`, without any cache.
    fn of_stores(stores: Vec<PathBuf>) -> StoreSelection {
        StoreSelection {
            stores,
            format: None,
            hard_links: false,
            stale_after: STALE_AFTER,
            cache: CacheArgs { no_cache: true, ..CacheArgs::default() },
            filter: Filter::default(),
            quiet: QuietArg::default(),
        }
    }

    pub(super) fn open(&self, freshness: Freshness) -> anyhow::Result<View> {
        View::new(self.sources()?, freshness, self.filter.clone()).context("cannot read the store")
    }

    /// Opens and reads the stores: at least the workers whose ids begin with `id_prefix`. Reads a
    /// cache that exists, unless there shall be none, and writes nothing.
    pub(super) fn open_without_writing(&self, id_prefix: &[u8]) -> anyhow::Result<View> {
        let cache = if self.cache.no_cache { None } else { open_cache_to_read(&self.stores) };
        let sources = self.sources_with(cache, None)?.into_iter();
        let sources = sources.map(|source| source.with_id_prefix(id_prefix)).collect();
        View::new(sources, Freshness::default(), self.filter.clone())
            .context("cannot read the store")
    }

    pub(super) fn open_for_owners<'a>(
        &self,
        freshness: Freshness,
        owners: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Vec<View>> {
        View::for_owners(self.sources()?, freshness, self.filter.run.as_deref(), owners)
            .context("cannot read the store")
    }

    fn sources(&self) -> anyhow::Result<Vec<Source>> {
        let cache = if self.cache.no_cache { None } else { open_cache(&self.stores) };
        let index = open_index(&self.stores, &self.cache, cache.as_deref())?;
        self.sources_with(cache, index)
    }

    fn sources_with(
        &self,
        cache: Option<Arc<DiskCache>>,
        index: Option<Arc<DiskCache>>,
    ) -> anyhow::Result<Vec<Source>> {
        let open = |store: &PathBuf| {
            let mut source =
                Source::open_as(store, self.format)?.with_stale_after(self.stale_after);
            if let Some(cache) = &cache {
                source = source.with_cache(cache.clone());
            }
            if let Some(index) = &index {
                source = source.with_index_cache(index.clone());
            }
            Ok(if self.hard_links { source.allowing_hard_links() } else { source })
        };
        let sources = self.stores.iter().map(open).collect::<Result<_, SourceError>>()?;
        Ok(sources)
    }
}

/// Replaces `stores`, the values of `--store`, by the stores to use, and prints the reason
/// unless `quiet`. `operands` are stores named without the option, and `format` is the value of
/// `--format`. Returns the identities of the chosen stores.
pub(super) fn choose(
    stores: &mut Vec<PathBuf>,
    operands: &[PathBuf],
    format: Option<&'static KnownFormat>,
    quiet: QuietArg,
) -> anyhow::Result<Vec<FolderIdentity>> {
    let current = std::env::current_dir().context(NO_CURRENT)?;
    let environment = discover::Environment::new(&current, format);
    let mut chosen = discover::choose(stores, operands, &environment)?;
    let mounts = mountpoint::read_mount_table()?;
    let (mut identities, mut distinct) = (Vec::new(), Vec::new());
    for mut store in chosen.stores {
        if let Some(path) = mountpoint::identify_store(store.path, &mut identities, &mounts)? {
            store.path = path;
            distinct.push(store);
        }
    }
    chosen.stores = distinct;
    chosen.messages().iter().for_each(|message| quiet.inform(message));
    *stores = chosen.stores.into_iter().map(|store| store.path).collect();
    Ok(identities)
}

pub(super) const CACHE_LIMIT: u64 = 512 << 20;
pub(super) const INDEX_LIMIT: u64 = 4 << 30;
pub(super) const INDEX_FOLDER: &str = "index";

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
fn open_cache(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_cache_dir()?;
    open_outside_stores(&folder_path, stores, CACHE_LIMIT)
        .inspect_err(|why| {
            warn!("cannot cache parsed data in {}: {why}", display_path(&folder_path))
        })
        .ok()
        .map(Arc::new)
}

/// Opens the default cache directory to read it only. Returns `None` if it does not exist, or if it
/// cannot be used.
fn open_cache_to_read(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_cache_dir()?;
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
fn open_index(
    stores: &[PathBuf],
    arguments: &CacheArgs,
    cache: Option<&DiskCache>,
) -> anyhow::Result<Option<Arc<DiskCache>>> {
    if arguments.no_index {
        return Ok(None);
    }
    let explicit = arguments.index.clone();
    let Some(folder_path) =
        explicit.or_else(|| Some(cache.and(default_cache_dir())?.join(INDEX_FOLDER)))
    else {
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
pub(crate) fn default_cache_dir() -> Option<PathBuf> {
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
