//! Opens stores that are named by the URL of an object store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::warn;

use super::mount_options::default_cache_dir;
use super::object_args::ObjectArgs;
use super::object_facts::{CatalogOutcome, ListingFacts, ShownCatalog};
use super::sync_ends::{CopyError, FoundCopy, SyncTarget, have_same_bytes};
use super::terminal::{ProgressLine, QuietArg, display_path};
use crate::analysis::settings::Control;
use crate::cache::DiskCache;
use crate::catalog::{Freshness, Source};
use crate::name::{Name, RelPath};
use crate::objects::{
    self, Bucket, BucketWriter, CatalogError, Compaction, CompactionTurn, ConditionSupport,
    ObjectSettings, OpenError, PutError, RequestCounts, RequestFailure, WholeSearch, WorkerNews,
    find_conditions, have_many_announced,
};
use crate::render::list::WorkerQuery;
use crate::store::{Store, Time, is_object_url};
use crate::trace::KnownFormat;
use crate::tree::{Settings, Tree};
use crate::view::{Filter, View};

/// Directory of the cached parts of objects, in the cache directory.
const FOLDER: &str = "objects";
/// Maximum size of the cached parts of objects, in bytes.
const LIMIT: u64 = 1 << 30;
/// Maximum size of an object that is compared with a file, in bytes.
const COMPARED_MAX: u64 = 64 << 20;
/// Number of digits of an ETag that is a hash of the content.
const CONTENT_ETAG: usize = 32;
/// Number of announcements that wait until they are moved into the catalog.
const WAITING_MAX: usize = 1_000;
/// Age of a listing of all workers that is read again, to find changes that nobody announced.
const WHOLE_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// The entry of a worker in index.json.
type WorkerEntry = Map<String, Value>;

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
    listing: &ObjectArgs,
    cache: Option<Arc<DiskCache>>,
) -> anyhow::Result<Source> {
    open_bucket(url, format, settings(listing, cache)).map(|(source, _)| source)
}

fn settings(listing: &ObjectArgs, cache: Option<Arc<DiskCache>>) -> ObjectSettings {
    let defaults = ObjectSettings::default();
    let refresh = listing.poll.unwrap_or(defaults.refresh);
    ObjectSettings { cache, refresh, catalog: !listing.no_catalog, ..defaults }
}

fn open_bucket(
    url: &Path,
    format: Option<&'static KnownFormat>,
    settings: ObjectSettings,
) -> anyhow::Result<(Source, Bucket)> {
    let bucket = objects::open(url, &settings)?;
    let beside = open_outputs(url, settings)?;
    Ok((Source::open_store(Arc::new(bucket.clone()), url, beside, format)?, bucket))
}

/// Opens the part of an object store that `url` names without any cache, and finds out how it is
/// listed and whether it can have a catalog. That writes an object for a moment.
///
/// # Errors
///
/// It cannot be read, or has no known format.
pub(super) fn inspect(
    url: &Path,
    format: Option<&'static KnownFormat>,
) -> anyhow::Result<(Source, ListingFacts)> {
    let settings = ObjectSettings::default();
    let (source, bucket) = open_bucket(url, format, settings.clone())?;
    let (requests, interval) = bucket.listing_cost();
    let writer = BucketWriter::open(url, &settings)?;
    let conditions = match find_conditions(&writer) {
        Ok(ConditionSupport::Honored) => Ok(true),
        Ok(ConditionSupport::Ignored) => Ok(false),
        Err(failure) => Err(failure.to_string()),
    };
    let catalog = bucket.catalog().map(|facts| ShownCatalog {
        workers: facts.workers,
        files: facts.files,
        news: facts.news,
        listed_at: facts.listed_at,
    });
    Ok((source, ListingFacts { requests, interval, catalog, conditions }))
}

/// Brings the catalog of the object store `url` up to date. With `announced`, looks only at
/// announced workers, unless all were listed more than [`WHOLE_EVERY`] ago.
///
/// # Errors
///
/// It cannot be read or written, or cannot have a catalog.
pub(super) fn catalog(
    url: &Path,
    announced: bool,
    quiet: QuietArg,
) -> anyhow::Result<CatalogOutcome> {
    if !is_object_url(url) {
        bail!(
            "cannot make a catalog of {}: it is no object store; try s3://BUCKET/PREFIX",
            display_path(url)
        );
    }
    let settings = ObjectSettings::default();
    let writer = BucketWriter::open(url, &settings)?;
    let whole = if announced { WholeSearch::IfOlder(WHOLE_EVERY) } else { WholeSearch::Always };
    let progress = ProgressLine::without_counts("reading workers", quiet);
    let described = describe_workers(url, &settings)?;
    let made = Compaction::new(&writer, &settings, &described).run(whole);
    drop(progress);
    let made = made.with_context(|| format!("cannot make the catalog of {}", display_path(url)))?;
    let RequestCounts { lists, reads, .. } = objects::all_requests();
    Ok(CatalogOutcome {
        workers: made.workers,
        files: made.files,
        changed: made.rows,
        removed: made.removed,
        announcements: made.news,
        listings: lists,
        others: reads,
    })
}

/// Brings the catalog at `writer` up to date if [`WAITING_MAX`] announcements wait. Within `time`,
/// if it is given, as many announcements are taken as there is time for, unless another process
/// does so or did not succeed a moment ago.
///
/// # Errors
///
/// It cannot be read or written, or cannot have a catalog.
pub(super) fn catalog_if_many_wait(
    writer: &BucketWriter,
    time: Option<Duration>,
) -> anyhow::Result<()> {
    let url = Path::new(writer.url());
    let cannot = || format!("cannot bring the catalog of {} up to date", display_path(url));
    if !have_many_announced(writer, WAITING_MAX).with_context(cannot)? {
        return Ok(());
    }
    // One with enough time need not wait for one with a short time.
    let turn = match time {
        Some(_) => CompactionTurn::take(writer).with_context(cannot)?,
        None => None,
    };
    if time.is_some() && turn.is_none() {
        return Ok(());
    }
    let settings = ObjectSettings { cache: open_cache(), ..ObjectSettings::default() };
    let described = describe_workers(url, &settings)?;
    let compaction = Compaction::new(writer, &settings, &described);
    let made = match time {
        Some(time) => compaction.within(time).run(WholeSearch::IfOlder(Duration::MAX)),
        None => compaction.run(WholeSearch::IfOlder(WHOLE_EVERY)),
    };
    match made {
        // Others brought it up to date.
        Err(CatalogError::Contended(_)) => {}
        made => drop(made.with_context(cannot)?),
    }
    if let Some(turn) = turn {
        turn.end();
    }
    Ok(())
}

/// Announces a change of a worker to readers with a catalog.
///
/// # Errors
///
/// The request fails.
pub(super) fn announce(
    writer: &BucketWriter,
    news: WorkerNews,
    worker: &Name,
) -> Result<(), RequestFailure> {
    objects::announce(writer, news, &worker.to_text())
}

/// Returns a function that computes the entries of workers in index.json.
fn describe_workers(
    url: &Path,
    settings: &ObjectSettings,
) -> anyhow::Result<impl Fn(Bucket) -> Result<Vec<WorkerEntry>, String> + use<>> {
    let text = url.to_string_lossy();
    let outputs = [text.trim_end_matches('/'), OUTPUTS].concat();
    let settings = ObjectSettings { catalog: false, ..settings.clone() };
    let outputs: Option<Arc<dyn Store>> = objects::open_if_any(Path::new(&outputs), &settings)?
        .map(|outputs| Arc::new(outputs) as Arc<dyn Store>);
    Ok(move |bucket| {
        let source = Source::from_store(Arc::new(bucket), outputs.clone());
        let fresh = Freshness { unfinished: Duration::MAX, finished: Duration::MAX };
        let view = View::new(vec![source], fresh, Filter::default());
        // Rows that are not whole would stay as they are.
        let settings = Settings::without_deadline(Arc::new(Control::until(None)));
        let tree = Tree::new(view.map_err(|error| error.to_string())?, settings);
        let (board, missing) =
            tree.renderer().board(&WorkerQuery::default()).map_err(|error| error.to_string())?;
        if let Some(missing) = missing {
            return Err(missing.to_string());
        }
        let entries = board.iter().map(|row| match serde_json::to_value(row) {
            Ok(Value::Object(entry)) => Ok(entry),
            Ok(_) => Err("an entry is no object".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        entries.collect()
    })
}

/// Opens the outputs that are stored beside the workers at `url`, if there are any.
fn open_outputs(url: &Path, settings: ObjectSettings) -> Result<Option<Arc<dyn Store>>, OpenError> {
    let text = url.to_string_lossy();
    let Some(parent) = text.trim_end_matches('/').strip_suffix(WORKERS) else { return Ok(None) };
    let settings = ObjectSettings { catalog: false, ..settings };
    let opened = objects::open_if_any(Path::new(&[parent, OUTPUTS].concat()), &settings)?;
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
    // A copy has all objects, also those that nobody announced.
    let settings = ObjectSettings { catalog: false, ..ObjectSettings::default() };
    Ok(Arc::new(objects::open(url, &settings)?))
}

/// Opens the part of an object store that `url` names, to copy to it. It may be empty.
///
/// # Errors
///
/// The URL is wrong.
pub(super) fn open_target(url: &Path) -> anyhow::Result<Box<dyn SyncTarget>> {
    let settings = ObjectSettings { deadline: COPY_DEADLINE, ..ObjectSettings::default() };
    let bucket = BucketWriter::open(url, &settings)?;
    Ok(Box::new(BucketTarget { bucket, in_parts: Mutex::default(), has_catalog: false.into() }))
}

/// A part of an object store that files are copied to.
struct BucketTarget {
    bucket: BucketWriter,
    /// Files that have parts.
    in_parts: Mutex<BTreeSet<String>>,
    has_catalog: AtomicBool,
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
        let has_catalog = listed.iter().any(|object| object.key == objects::CATALOG_MANIFEST);
        self.has_catalog.store(has_catalog, Ordering::Relaxed);
        for object in listed {
            if let Some((file, _)) = objects::file_of_part(&object.key) {
                in_parts.push(file.to_owned());
            }
            let copy = FoundCopy {
                size: object.size,
                modified: object.modified,
                copied: None,
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

    fn announce(&self, id: &Name) -> Result<(), CopyError> {
        if !self.has_catalog.load(Ordering::Relaxed) {
            return Ok(());
        }
        announce(&self.bucket, WorkerNews::Closed, id)
            .map_err(|failure| CopyError::Fatal(self.cannot("write", &failure)))
    }
}

/// Returns true if an ETag is a hash of the content.
fn is_content_etag(etag: &str) -> bool {
    let digits = etag.trim_matches('"');
    digits.len() == CONTENT_ETAG && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}
