//! Refuses stores that are named by the URL of an object store, in a build without them.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;

use super::object_args::ObjectArgs;
use super::object_facts::{CatalogOutcome, ListingFacts};
use super::sync_ends::SyncTarget;
use super::terminal::{QuietArg, display_path};
use crate::cache::DiskCache;
use crate::catalog::Source;
use crate::store::Store;
use crate::trace::KnownFormat;

/// Refuses to open `url`.
///
/// # Errors
///
/// Always.
pub(super) fn open(
    url: &Path,
    _format: Option<&'static KnownFormat>,
    _listing: &ObjectArgs,
    _cache: Option<Arc<DiskCache>>,
) -> anyhow::Result<Source> {
    refuse(url)
}

pub(super) fn open_source(url: &Path) -> anyhow::Result<Arc<dyn Store>> {
    refuse(url)
}

pub(super) fn open_target(url: &Path) -> anyhow::Result<Box<dyn SyncTarget>> {
    refuse(url)
}

pub(super) fn refuse<T>(url: &Path) -> anyhow::Result<T> {
    bail!(
        "cannot open {}: this build has no object stores; try a build with --features object-store",
        display_path(url)
    )
}

/// Refuses to inspect `url`.
///
/// # Errors
///
/// Always.
pub(super) fn inspect(
    url: &Path,
    format: Option<&'static KnownFormat>,
) -> anyhow::Result<(Source, ListingFacts)> {
    let source = open(url, format, &ObjectArgs::default(), None)?;
    let (interval, conditions) = (std::time::Duration::ZERO, Ok(false));
    Ok((source, ListingFacts { requests: 0, interval, catalog: None, conditions }))
}

/// Refuses to make a catalog of `url`.
///
/// # Errors
///
/// Always.
pub(super) fn catalog(
    url: &Path,
    _announced: bool,
    _quiet: QuietArg,
) -> anyhow::Result<CatalogOutcome> {
    open(url, None, &ObjectArgs::default(), None).map(|_| CatalogOutcome::default())
}

pub(super) fn requests() -> [u64; 3] {
    [0; 3]
}

pub(super) fn open_cache() -> Option<Arc<DiskCache>> {
    None
}

pub(super) fn open_cache_to_read() -> Option<Arc<DiskCache>> {
    None
}
