//! Chooses and opens the stores of a command.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::mount_options::{CacheArgs, open_cache_to_read, open_index};
use super::mountinfo::FolderIdentity;
use super::object_args::ObjectArgs;
use super::terminal::QuietArg;
use super::view_args::ViewArgs;
use super::{discover, mountpoint, object_stores};
use crate::cache::DiskCache;
use crate::catalog::{Freshness, STALE_AFTER, Source};
use crate::store::is_object_url;
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
    pub(super) objects: ObjectArgs,
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
            objects: arguments.objects.clone(),
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
            let path = canonical(&store.path).unwrap_or(store.path);
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
            objects: ObjectArgs::default(),
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
        let caches_objects = !self.cache.no_cache && self.has_urls();
        let blocks = caches_objects.then(object_stores::open_cache_to_read).flatten();
        let sources = self.sources_with(cache, None, blocks)?.into_iter();
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
        let cache = self.cache.open(&self.stores);
        let index = open_index(&self.stores, &self.cache, cache.as_deref())?;
        let caches_objects = cache.is_some() && self.has_urls();
        let blocks = caches_objects.then(object_stores::open_cache).flatten();
        self.sources_with(cache, index, blocks)
    }

    fn has_urls(&self) -> bool {
        self.stores.iter().any(|store| is_object_url(store))
    }

    fn sources_with(
        &self,
        cache: Option<Arc<DiskCache>>,
        index: Option<Arc<DiskCache>>,
        blocks: Option<Arc<DiskCache>>,
    ) -> anyhow::Result<Vec<Source>> {
        let open = |store: &PathBuf| {
            let source = match is_object_url(store) {
                true => object_stores::open(store, self.format, &self.objects, blocks.clone())?,
                false => Source::open_as(store, self.format)?,
            };
            let mut source = source.with_stale_after(self.stale_after);
            if let Some(cache) = &cache {
                source = source.with_cache(cache.clone());
            }
            if let Some(index) = &index {
                source = source.with_index_cache(index.clone());
            }
            Ok(if self.hard_links { source.allowing_hard_links() } else { source })
        };
        self.stores.iter().map(open).collect()
    }
}

/// Returns the path of a store without links; a URL stays as it is.
///
/// # Errors
///
/// There is no such path.
pub(super) fn canonical(store: &Path) -> io::Result<PathBuf> {
    if is_object_url(store) { Ok(store.to_path_buf()) } else { std::fs::canonicalize(store) }
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
            if !distinct.contains(&store) {
                distinct.push(store);
            }
        }
    }
    chosen.stores = distinct;
    chosen.messages().iter().for_each(|message| quiet.inform(message));
    *stores = chosen.stores.into_iter().map(|store| store.path).collect();
    Ok(identities)
}
