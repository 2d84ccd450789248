//! The stores that a command means, chosen, said and opened: for `mount`, and for the commands that need no mount.

use std::path::PathBuf;

use anyhow::Context;

use super::kept::{self, KeepArgs};
use super::overlap::Ground;
use super::say::{say, shown};
use super::{ViewArgs, discover, mountpoint};
use crate::catalog::{Freshness, Source, SourceError, looks_like_store};
use crate::view::{Filter, View};

/// Which stores are meant, and what of them is shown.
#[derive(Debug)]
pub(super) struct Wanted {
    /// At least one, each absolute.
    pub(super) stores: Vec<PathBuf>,
    /// An owner's files are shown even if they have more than one hard link.
    pub(super) hard_links: bool,
    /// What is kept for the next start.
    pub(super) keep: KeepArgs,
    pub(super) filter: Filter,
}

impl Wanted {
    /// What `arguments` mean; says which stores were chosen.
    pub(super) fn choose(arguments: &ViewArgs) -> anyhow::Result<Wanted> {
        let mut stores = arguments.stores.clone();
        choose(&mut stores, &[])?;
        let filter = Filter { owner: arguments.owner.clone(), run: arguments.run.clone() };
        Ok(Wanted { stores, hard_links: arguments.hard_links, keep: arguments.keep.clone(), filter })
    }

    /// Opens and reads the stores.
    pub(super) fn view(&self, freshness: Freshness) -> anyhow::Result<View> {
        let cache = if self.keep.no_cache { None } else { kept::open(&self.stores) };
        let index = kept::open_index(&self.stores, &self.keep, cache.as_deref())?;
        let open = |store: &PathBuf| {
            let mut source = Source::open(store)?;
            if let Some(cache) = &cache {
                source = source.with_cache(cache.clone());
            }
            if let Some(index) = &index {
                source = source.with_index_cache(index.clone());
            }
            Ok(if self.hard_links { source.allowing_hard_links() } else { source })
        };
        let sources = self.stores.iter().map(open).collect::<Result<_, SourceError>>()?;
        View::new(sources, freshness, self.filter.clone()).context("cannot read the store")
    }
}

/// Puts the stores that are meant in the place of those that were named with `--store`, and says why these. `operands`
/// were named without it. Returns where they lie.
pub(super) fn choose(stores: &mut Vec<PathBuf>, operands: &[PathBuf]) -> anyhow::Result<Vec<Ground>> {
    let current = std::env::current_dir().context("the current folder is gone: change to another one")?;
    let chosen = discover::choose(stores, operands, &discover::Surroundings::here(&current, &looks_like_store))?;
    *stores = chosen.stores;
    let grounds = mountpoint::grounds(stores)?;
    for store in stores {
        say(&format!("the store is {} ({})", shown(store), chosen.why));
    }
    Ok(grounds)
}
