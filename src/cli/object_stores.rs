//! Opens stores that are named by the URL of an object store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use parking_lot::Mutex;
use tracing::warn;

use super::mount_options::default_cache_dir;
use super::sync_ends::{CopyError, FoundCopy, SyncTarget, have_same_bytes};
use super::terminal::display_path;
use crate::cache::DiskCache;
use crate::catalog::Source;
use crate::name::RelPath;
use crate::objects::{
    self, BucketWriter, ObjectSettings, OpenError, PutError, RequestCounts, RequestFailure,
};
use crate::store::{Store, Time};
use crate::trace::KnownFormat;

/// Directory of the cached parts of objects, in the cache directory.
const FOLDER: &str = "objects";
/// Maximum size of the cached parts of objects, in bytes.
const LIMIT: u64 = 1 << 30;
/// Maximum size of an object that is compared with a file, in bytes.
const COMPARED_MAX: u64 = 64 << 20;
/// Number of digits of an ETag that is a hash of the content.
const CONTENT_ETAG: usize = 32;
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

/// Longest time of a request of a copy, with all its repetitions.
const COPY_DEADLINE: Duration = Duration::from_secs(30);

/// Opens the part of an object store that `url` names, to copy from it.
///
/// # Errors
///
/// It cannot be read.
pub(super) fn open_source(url: &Path) -> anyhow::Result<Arc<dyn Store>> {
    Ok(Arc::new(objects::open(url, &ObjectSettings::default())?))
}

/// Opens the part of an object store that `url` names, to copy to it. It may be empty.
///
/// # Errors
///
/// The URL is wrong.
pub(super) fn open_target(url: &Path) -> anyhow::Result<Box<dyn SyncTarget>> {
    let settings = ObjectSettings { deadline: COPY_DEADLINE, ..ObjectSettings::default() };
    let bucket = BucketWriter::open(url, &settings)?;
    Ok(Box::new(BucketTarget { bucket, in_parts: Mutex::default() }))
}

/// A part of an object store that files are copied to.
struct BucketTarget {
    bucket: BucketWriter,
    /// Files that have parts.
    in_parts: Mutex<BTreeSet<String>>,
}

impl BucketTarget {
    fn failed(&self, error: PutError) -> CopyError {
        match error {
            PutError::Failed(failure) => CopyError::Fatal(self.cannot("write", &failure)),
            PutError::Source(error) => CopyError::File(error.to_string()),
            error => CopyError::File(error.to_string()),
        }
    }

    fn cannot(&self, action: &str, failure: &RequestFailure) -> anyhow::Error {
        anyhow!("cannot {action} {}: {failure}; {}", self.bucket.url(), failure.cure())
    }
}

impl SyncTarget for BucketTarget {
    fn list(&self) -> anyhow::Result<BTreeMap<String, FoundCopy>> {
        let listed = self.bucket.list("").map_err(|failure| self.cannot("list", &failure))?;
        let mut copies = BTreeMap::new();
        let mut in_parts = Vec::new();
        for object in listed {
            if let Some((file, _)) = objects::file_of_part(&object.key) {
                in_parts.push(file.to_owned());
            }
            let copy = FoundCopy {
                size: object.size,
                modified: object.modified,
                has_source_time: false,
                is_in_parts: false,
                etag: object.etag,
            };
            copies.insert(object.key, copy);
        }
        for file in in_parts {
            if let Some(copy) = copies.get_mut(&file) {
                copy.is_in_parts = true;
            }
            self.in_parts.lock().insert(file);
        }
        Ok(copies)
    }

    fn can_name(&self, path: &RelPath) -> bool {
        std::str::from_utf8(path.as_bytes())
            .is_ok_and(|key| !key.chars().any(|c| c.is_ascii_control()))
            && objects::file_of_part(&path.to_text()).is_none()
    }

    fn has_content(&self, copy: &FoundCopy, source: &mut dyn Read) -> Option<io::Result<bool>> {
        let etag = copy.etag.as_deref().filter(|etag| is_content_etag(etag))?;
        Some(objects::content_etag(source).map(|found| found == etag))
    }

    fn compare(&self, path: &RelPath, source: &mut dyn Read) -> Result<bool, CopyError> {
        let key = path.to_text();
        let found = self.bucket.get(&key, COMPARED_MAX);
        match found.map_err(|failure| CopyError::Fatal(self.cannot("read", &failure)))? {
            Some((bytes, _)) => have_same_bytes(source, &mut &*bytes)
                .map_err(|error| CopyError::File(error.to_string())),
            None => Ok(false),
        }
    }

    fn put(&self, path: &RelPath, source: &mut dyn Read, _modified: Time) -> Result<(), CopyError> {
        let key = path.to_text();
        if self.in_parts.lock().contains(&*key) {
            // Parts of another content would continue the new one.
            let parts = self
                .bucket
                .list(&objects::parts_prefix(&key))
                .and_then(|parts| self.bucket.delete(parts.into_iter().map(|part| part.key)));
            parts.map_err(|failure| CopyError::Fatal(self.cannot("write", &failure)))?;
        }
        self.bucket.put_from(&key, source).map(drop).map_err(|error| self.failed(error))
    }
}

/// Returns true if an ETag is a hash of the content.
fn is_content_etag(etag: &str) -> bool {
    let digits = etag.trim_matches('"');
    digits.len() == CONTENT_ETAG && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}
