//! Opens stores that are named by the URL of an object store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::mount_options::default_cache_dir;
use super::terminal::display_path;
use crate::cache::DiskCache;
use crate::catalog::Source;
use crate::objects::{self, ObjectSettings, OpenError, RequestCounts};
use crate::store::Store;
use crate::trace::KnownFormat;

/// Directory of the cached parts of objects, in the cache directory.
const FOLDER: &str = "objects";
/// Maximum size of the cached parts of objects, in bytes.
const LIMIT: u64 = 1 << 30;
/// Directory of workers, and the directory of outputs beside it.
const WORKERS: &str = "/workers";
const OUTPUTS: &str = "/tool_outputs";

/// Opens the part of an object store that `url` names. `cache` keeps parts of objects.
///
/// # Errors
///
/// It cannot be read, or has no known format.
pub(super) fn open(
    url: &Path,
    format: Option<&'static KnownFormat>,
    cache: Option<Arc<DiskCache>>,
) -> anyhow::Result<Source> {
    let settings = ObjectSettings { cache, ..ObjectSettings::default() };
    let bucket = objects::open(url, &settings)?;
    let beside = open_outputs(url, &settings)?;
    Ok(Source::open_store(Arc::new(bucket), url, beside, format)?)
}

/// Opens the outputs that are stored beside the workers at `url`, if there are any.
fn open_outputs(
    url: &Path,
    settings: &ObjectSettings,
) -> Result<Option<Arc<dyn Store>>, OpenError> {
    let text = url.to_string_lossy();
    let Some(parent) = text.trim_end_matches('/').strip_suffix(WORKERS) else { return Ok(None) };
    let opened = objects::open_if_any(Path::new(&[parent, OUTPUTS].concat()), settings)?;
    Ok(opened.map(|outputs| Arc::new(outputs) as Arc<dyn Store>))
}

/// Returns the numbers of listings, reads and bytes that this process has got from object stores.
pub(super) fn requests() -> [u64; 3] {
    let RequestCounts { lists, reads, bytes } = objects::all_requests();
    [lists, reads, bytes]
}

fn cache_folder() -> Option<PathBuf> {
    Some(default_cache_dir()?.join(FOLDER))
}

/// Opens the cache of parts of objects, and makes its directory if it is missing. The log gives the
/// reason if it cannot be used.
pub(super) fn open_cache() -> Option<Arc<DiskCache>> {
    let folder = cache_folder()?;
    DiskCache::open(&folder, LIMIT)
        .inspect_err(|why| warn!("cannot cache objects in {}: {why}", display_path(&folder)))
        .ok()
        .map(Arc::new)
}

/// Opens the cache of parts of objects to read it only, if it exists.
pub(super) fn open_cache_to_read() -> Option<Arc<DiskCache>> {
    DiskCache::open_to_read(&cache_folder()?).ok().map(Arc::new)
}
