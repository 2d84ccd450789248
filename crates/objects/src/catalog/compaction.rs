//! Brings the catalog up to date: rows for workers that changed, and a manifest that names them.
//!
//! Any process may do so at any time. New files are written first. Then the manifest is replaced
//! if it is still the one that was read. A compaction that finds another one starts over, and one
//! that dies leaves files that no manifest names, which a later one removes by their age. Each
//! worker has a row in one file only: a file with an outdated row is written again without it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};
use swarmletfs_base::model::Status;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Time, read_whole};
use tracing::{debug, warn};

use super::layout::{
    Announcement, FILES, MANIFEST, NEWS, ObjectsByWorker, PARQUET, PROBES, ROOT, WorkerNews,
    is_announced_open, looks_max, new_id, news_by_worker, split_by_worker,
};
use super::manifest::{self, CatalogManifest, FILE_MAX, ReplacedFile, RowFile};
use super::problem::CatalogProblem;
use super::reading::CatalogReader;
use super::rows::{self, CONTENTS_MAX, CatalogRow, CatalogedWorker, LISTED_FILES};
use super::{ConditionSupport, find_conditions};
use crate::ObjectSettings;
use crate::bucket::Bucket;
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::ListedObject;
use crate::parts::WORKERS;
use crate::writer::{BucketWriter, PutCondition, PutError, StoredVersion};

/// Maximum number of rows in a file.
const FILE_ROWS: usize = 10_000;
/// Size of the rows after which a file ends, in bytes.
const FILE_BYTES: usize = 48 << 20;
/// Number of files with fewer than half of [`FILE_ROWS`] rows from which on they are merged.
const SMALL_FILES_MAX: usize = 8;
/// Number of workers whose rows are computed at once, at most, and at first if the time is short.
const BATCH: usize = 1_000;
const FIRST_BATCH: usize = 8;
/// Maximum number of announced workers that a compaction takes if its time is short.
const SHORT_NEWS: usize = 200;
/// Number of times that another compaction may win.
const RESTARTS_MAX: u32 = 20;
/// Pause before a restart, for each one so far.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for which a reader with an older manifest finds its files.
const GRACE: Duration = Duration::from_secs(10 * 60);
/// Age of a file that no manifest names.
const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest duration of a compaction: its files must not count as orphans.
const DURATION_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// Time without a write after which an unfinished worker is listed only when it is announced.
const QUIET_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time to read the files of the catalog or to list workers.
const READ_MAX: Duration = Duration::from_secs(60 * 60);

/// When all workers are listed, to find changes that nobody announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeSearch {
    Always,
    /// If the last one is older.
    IfOlder(Duration),
}

/// The effect of a compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CatalogReport {
    /// Number of workers in the catalog.
    pub workers: usize,
    /// Number of rows that were new or changed.
    pub rows: usize,
    pub removed: usize,
    /// Number of announcements that were taken.
    pub news: usize,
    /// Number of files in the catalog, and how many of them were written.
    pub files: usize,
    pub written: usize,
    /// Number of times that another compaction won.
    pub restarts: u32,
    /// True if all workers were listed.
    pub is_whole: bool,
}

/// Why a catalog was not brought up to date. Readers are not affected.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(
        "the store ignores the conditions of writes, so two machines could not share a catalog; \
         readers list it"
    )]
    Unconditional,
    #[error("there are no workers; try the prefix that has a folder workers")]
    Empty,
    #[error("it has version {0}; try a newer version of this program")]
    Version(u32),
    #[error("other processes changed it {0} times meanwhile; try again later")]
    Contended(u32),
    #[error("there is none, or a damaged one; `swarmletfs catalog` makes it")]
    Missing,
    #[error("it took too long; try again, beginning with a shorter prefix")]
    TooLong,
    #[error("the workers could not be read: {0}")]
    Workers(String),
    #[error("a file could not be encoded: {0}")]
    Encode(std::io::Error),
    #[error("{0}; {cure}", cure = .0.cure())]
    Failed(#[from] RequestFailure),
}

/// Returns the entries of all workers of a store in the swarm's index.json.
pub type DescribeWorkers<'a> = dyn Fn(Bucket) -> Result<Vec<Map<String, Value>>, String> + 'a;

/// Announces that a worker changed, so that readers list it until a compaction has done so.
///
/// # Errors
///
/// The request fails.
pub fn announce(
    writer: &BucketWriter,
    news: WorkerNews,
    worker: &str,
) -> Result<(), RequestFailure> {
    let body = serde_json::json!({"worker": worker, "news": news.name()});
    let key = Announcement::new_key(news, worker);
    let put = writer.put(&key, body.to_string().into(), &PutCondition::Always);
    put.map(drop).map_err(PutError::into_failure)
}

/// A process that brings a catalog up to date.
pub struct Compaction<'a> {
    writer: &'a BucketWriter,
    settings: &'a ObjectSettings,
    describe: &'a DescribeWorkers<'a>,
    started: Instant,
    /// Longest duration, if it may leave announcements to others.
    time: Option<Duration>,
    /// Rows that were computed, so that a restart does not need to.
    computed: HashMap<String, CatalogRow>,
}

/// The catalog as a compaction found it.
struct FoundCatalog {
    manifest: Option<CatalogManifest>,
    /// Version of the manifest, also of a damaged one.
    version: Option<StoredVersion>,
    files: Vec<FoundFile>,
    /// True if rows are missing.
    is_damaged: bool,
    news: Vec<Announcement>,
    /// Keys that may belong to nobody, and that are old enough.
    orphans: Vec<String>,
}

struct FoundFile {
    file: RowFile,
    bytes: Bytes,
    workers: Vec<(Arc<str>, CatalogedWorker)>,
}

impl FoundCatalog {
    /// Returns the number of objects that the rows name.
    fn object_count(&self) -> usize {
        let rows = self.files.iter().flat_map(|file| &file.workers);
        rows.map(|(_, row)| row.objects.len()).sum()
    }
}

/// The changes of a compaction.
#[derive(Default)]
struct CatalogEdit {
    rows: Vec<CatalogRow>,
    removed: BTreeSet<String>,
    /// Announcements that the rows cover.
    covered: Vec<String>,
}

impl Compaction<'_> {
    /// Prepares a compaction of the catalog at `writer`. `describe` computes the entries of
    /// workers.
    pub fn new<'a>(
        writer: &'a BucketWriter,
        settings: &'a ObjectSettings,
        describe: &'a DescribeWorkers<'a>,
    ) -> Compaction<'a> {
        let (started, computed) = (Instant::now(), HashMap::new());
        Compaction { writer, settings, describe, started, time: None, computed }
    }

    /// Limits the duration. Then nothing is searched that was not announced, announcements that no
    /// time is left for stay, and it gives up if another compaction wins, rather than to start
    /// over. A request that was begun may end later.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        Compaction { time: Some(time), ..self }
    }

    /// Brings the catalog up to date.
    ///
    /// # Errors
    ///
    /// The store does not support it, or a request fails. The catalog is then as it was, or up to
    /// date.
    pub fn run(mut self, whole: WholeSearch) -> Result<CatalogReport, CatalogError> {
        if find_conditions(self.writer)? == ConditionSupport::Ignored {
            return Err(CatalogError::Unconditional);
        }
        let attempts = if self.time.is_some() { 1 } else { RESTARTS_MAX };
        for restarts in 0..attempts {
            thread::sleep(PAUSE * restarts);
            if let Some(report) = self.try_once(whole)? {
                return Ok(CatalogReport { restarts, ..report });
            }
        }
        Err(CatalogError::Contended(attempts))
    }

    fn time_left(&self) -> Duration {
        self.time.unwrap_or(DURATION_MAX).saturating_sub(self.started.elapsed())
    }

    /// Returns true if the rows that are there must be written now, so that time is left for that.
    fn must_end(&self) -> bool {
        self.time.is_some_and(|time| self.time_left() < time / 2)
    }

    /// Returns `None` if another compaction won.
    fn try_once(&mut self, whole: WholeSearch) -> Result<Option<CatalogReport>, CatalogError> {
        let now = Timestamp::now();
        let mut found = self.find_catalog(now)?;
        let age = found.manifest.as_ref().map(|manifest| age(manifest.listed_at, now));
        let is_whole = if self.time.is_some() {
            if found.is_damaged {
                return Err(CatalogError::Missing);
            }
            let taken = shortened(&found.news);
            found.news.retain(|announcement| taken.contains(&announcement.worker));
            false
        } else {
            found.is_damaged
                || news_by_worker(&found.news).len() > looks_max(found.object_count())
                || match whole {
                    WholeSearch::Always => true,
                    WholeSearch::IfOlder(limit) => age.is_none_or(|age| age > limit),
                }
        };
        let edit = self.find_changes(&found, is_whole, now)?;
        if found.version.is_none() && edit.rows.is_empty() {
            return Err(CatalogError::Empty);
        }
        let mut report = CatalogReport {
            rows: edit.rows.len(),
            removed: edit.removed.len(),
            news: edit.covered.len(),
            is_whole,
            ..CatalogReport::default()
        };
        let has_changes = !edit.rows.is_empty() || !edit.removed.is_empty() || is_whole;
        let Some(manifest) = found.manifest.as_ref().filter(|_| !has_changes) else {
            return self.replace(found, edit, is_whole, now, report);
        };
        (report.workers, report.files) = (manifest.rows, manifest.files.len());
        self.delete(edit.covered);
        Ok(Some(report))
    }

    fn find_catalog(&self, now: Timestamp) -> Result<FoundCatalog, CatalogError> {
        // In the order of readers: an announcement is deleted after the manifest that covers it.
        let listed = self.writer.list(ROOT)?;
        let (manifest, version, mut is_damaged) = match self
            .writer
            .get(MANIFEST, manifest::SIZE_MAX)?
        {
            None => (None, None, true),
            Some((json, found)) => match CatalogManifest::parse(&json, self.settings.keys_max) {
                Ok(manifest) => (Some(manifest), Some(found), false),
                Err(CatalogProblem::Version(version)) => {
                    return Err(CatalogError::Version(version));
                }
                Err(CatalogProblem::Request(failure)) => return Err(failure.into()),
                Err(CatalogProblem::Damaged(reason)) => {
                    warn!("the catalog of {} is made again: {reason}", self.writer.url());
                    (None, Some(found), true)
                }
            },
        };
        let mut files = Vec::new();
        for file in manifest.iter().flat_map(|manifest| &manifest.files) {
            match self.read_file(file) {
                Ok(found) => files.push(found),
                Err(CatalogProblem::Request(failure)) if failure.kind != FailureKind::Gone => {
                    return Err(failure.into());
                }
                Err(problem) => {
                    warn!("{} of {} is made again: {problem}", file.key, self.writer.url());
                    is_damaged = true;
                }
            }
        }
        let news = listed.iter().filter_map(|key| Announcement::parse(&key.key, key.modified));
        // A key among the announcements that is none belongs to nobody.
        let is_possible = |key: &str| {
            [FILES, PROBES].iter().any(|folder| key.starts_with(folder))
                || key.starts_with(NEWS) && Announcement::parse(key, Time::default()).is_none()
        };
        let orphans = listed.iter().filter(|object| {
            is_possible(&object.key)
                && Timestamp::from_second(object.modified.secs)
                    .is_ok_and(|at| age(at, now) > ORPHAN_AGE)
        });
        Ok(FoundCatalog {
            news: news.collect(),
            orphans: orphans.map(|object| object.key.clone()).collect(),
            manifest,
            version,
            files,
            is_damaged,
        })
    }

    fn read_file(&self, file: &RowFile) -> Result<FoundFile, CatalogProblem> {
        let (connection, url) = self.writer.shared_parts();
        let (rows_max, file) = (self.settings.keys_max, file.clone());
        let reader = CatalogReader {
            connection: connection.clone(),
            prefix: url.prefix.clone(),
            rows_max,
            cache: self.settings.cache.clone(),
        };
        // A damaged file is no failure of a request.
        let read = connection.wait(self.time_left().min(READ_MAX), async move {
            match reader.read_file(&file).await {
                Ok(bytes) => Ok(Ok((file, bytes))),
                Err(CatalogProblem::Request(failure)) => Err(failure),
                Err(problem) => Ok(Err(problem)),
            }
        });
        let (file, bytes) = read??;
        let parsed = rows::parse(bytes.clone(), rows_max)?;
        Ok(FoundFile { file, bytes, workers: parsed.workers })
    }

    /// Lists the workers that may have changed, and computes the rows that differ.
    fn find_changes(
        &mut self,
        found: &FoundCatalog,
        is_whole: bool,
        now: Timestamp,
    ) -> Result<CatalogEdit, CatalogError> {
        let announced = news_by_worker(&found.news);
        let announced_open: HashMap<&str, bool> = announced
            .iter()
            .filter_map(|(worker, news)| Some((*worker, is_announced_open(news)?)))
            .collect();
        let known: HashMap<&str, &CatalogedWorker> = found
            .files
            .iter()
            .flat_map(|file| &file.workers)
            .map(|(worker, row)| (&**worker, row))
            .collect();
        let listed = self.list_workers(is_whole, announced.keys().copied())?;
        let mut edit = CatalogEdit::default();
        let mut covered: Vec<&Announcement> = Vec::new();
        for announcement in &found.news {
            let is_empty = !listed.contains_key(&*announcement.worker);
            let is_expected = announced_open.get(&*announcement.worker) == Some(&true)
                && Timestamp::from_second(announcement.at.secs)
                    .is_ok_and(|at| age(at, now) < QUIET_AFTER);
            // The first object of a worker may come after its announcement.
            if !(is_empty && is_expected) {
                covered.push(announcement);
            }
        }
        let gone = known.keys().filter(|worker| {
            (is_whole || announced.contains_key(**worker)) && !listed.contains_key(**worker)
        });
        edit.removed = gone.map(|worker| (*worker).to_owned()).collect();
        // By its last announcement, or by its status if there is none.
        let is_open = |worker: &str, objects: &[ListedObject], is_finished: bool| {
            announced_open
                .get(worker)
                .copied()
                .unwrap_or_else(|| !is_finished && !is_quiet(objects, now))
        };
        let mut changed = Vec::new();
        for (worker, objects) in listed {
            let row = known.get(&*worker);
            let is_same = row.is_some_and(|row| {
                // An open one closes by an announcement, or when it is quiet for long.
                *row.objects == *objects && row.is_open == is_open(&worker, &objects, !row.is_open)
            });
            if !is_same {
                changed.push((worker, objects));
            }
        }
        changed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut batch_size = if self.time.is_some() { FIRST_BATCH } else { BATCH };
        let mut done = 0;
        while done < changed.len() && !(self.must_end() && done > 0) {
            let end = changed.len().min(done + batch_size);
            let Some(batch) = changed.get(done..end) else { break };
            batch_size = BATCH.min(batch_size * 2);
            if self.time_left().is_zero() {
                return Err(CatalogError::TooLong);
            }
            done = end;
            for mut row in self.compute(batch)? {
                let status = row.entry.get("status").and_then(Value::as_str);
                let is_finished =
                    status.and_then(Status::from_word).is_some_and(Status::is_finished);
                row.is_open = is_open(&row.worker, &row.objects, is_finished);
                edit.rows.push(row);
            }
        }
        let late: HashSet<&str> = changed.iter().skip(done).map(|(worker, _)| &**worker).collect();
        covered.retain(|announcement| !late.contains(&*announcement.worker));
        edit.covered = covered.into_iter().map(|announcement| announcement.key.clone()).collect();
        Ok(edit)
    }

    /// Lists the objects of all workers, or of the `named` ones.
    fn list_workers<'n>(
        &self,
        is_whole: bool,
        named: impl Iterator<Item = &'n str>,
    ) -> Result<ObjectsByWorker, CatalogError> {
        let (connection, url) = self.writer.shared_parts();
        let (lister, prefix, keys_max) =
            (connection.clone(), url.prefix.clone(), self.settings.keys_max);
        let folders: Vec<String> = match is_whole {
            true => vec![WORKERS.to_owned()],
            false => named.map(|worker| format!("{WORKERS}{worker}/")).collect(),
        };
        let listed = connection.wait(self.time_left().min(READ_MAX), async move {
            lister.list_folders(&prefix, folders.into_iter(), keys_max).await
        })?;
        let (workers, _) = split_by_worker(listed.into_iter().flat_map(|(_, keys)| keys.objects));
        Ok(workers)
    }

    /// Computes the rows of some workers.
    fn compute(
        &mut self,
        workers: &[(Arc<str>, Vec<ListedObject>)],
    ) -> Result<Vec<CatalogRow>, CatalogError> {
        let missing = workers.iter().filter(|(worker, objects)| {
            self.computed.get(&**worker).is_none_or(|row| row.objects != *objects)
        });
        let missing: Vec<&(Arc<str>, Vec<ListedObject>)> = missing.collect();
        if !missing.is_empty() {
            let (connection, url) = self.writer.shared_parts();
            let objects = missing.iter().flat_map(|(_, objects)| objects.iter().cloned());
            let bucket = Bucket::of_objects(
                connection.clone(),
                url.clone(),
                self.settings,
                objects.collect(),
            );
            let entries = (self.describe)(bucket.clone()).map_err(CatalogError::Workers)?;
            let mut entries: HashMap<String, Map<String, Value>> = entries
                .into_iter()
                .filter_map(|entry| Some((entry.get("id")?.as_str()?.to_owned(), entry)))
                .collect();
            for (worker, objects) in missing {
                let row = CatalogRow {
                    worker: worker.to_string(),
                    is_open: false,
                    objects: objects.clone(),
                    contents: contents(&bucket, worker, objects),
                    entry: entries.remove(&**worker).unwrap_or_default(),
                };
                self.computed.insert(row.worker.clone(), row);
            }
        }
        Ok(workers.iter().filter_map(|(worker, _)| self.computed.get(&**worker).cloned()).collect())
    }

    /// Writes the changed files and replaces the manifest. Returns `None` if another compaction
    /// won.
    fn replace(
        &self,
        found: FoundCatalog,
        edit: CatalogEdit,
        is_whole: bool,
        now: Timestamp,
        report: CatalogReport,
    ) -> Result<Option<CatalogReport>, CatalogError> {
        let outdated: HashSet<&str> = edit
            .rows
            .iter()
            .map(|row| &*row.worker)
            .chain(edit.removed.iter().map(String::as_str))
            .collect();
        let is_outdated =
            |file: &FoundFile| file.workers.iter().any(|(worker, _)| outdated.contains(&**worker));
        let (dirty, mut clean): (Vec<FoundFile>, Vec<FoundFile>) =
            found.files.into_iter().partition(is_outdated);
        let is_small = |file: &FoundFile| file.workers.len() < FILE_ROWS / 2;
        let mut merged = dirty;
        if clean.iter().filter(|file| is_small(file)).count() > SMALL_FILES_MAX {
            let (small, large) = clean.into_iter().partition(is_small);
            merged.extend::<Vec<FoundFile>>(small);
            clean = large;
        }
        let mut pool = Vec::new();
        for file in &merged {
            let rows = rows::parse_whole(file.bytes.clone(), self.settings.keys_max);
            let rows = rows.map_err(|problem| CatalogError::Workers(problem.to_string()))?;
            pool.extend(rows.into_iter().filter(|row| !outdated.contains(&*row.worker)));
        }
        pool.extend(edit.rows.iter().cloned());
        pool.sort_unstable_by(|a, b| a.worker.cmp(&b.worker));
        let written = self.write_files(pool, now)?;
        if self.time_left().is_zero() {
            return Err(CatalogError::TooLong);
        }
        let previous = found.manifest;
        let (kept, expired): (Vec<ReplacedFile>, Vec<ReplacedFile>) = previous
            .iter()
            .flat_map(|manifest| manifest.replaced.clone())
            .partition(|file| age(file.at, now) < GRACE);
        let replaced =
            merged.iter().map(|file| ReplacedFile { key: file.file.key.clone(), at: now });
        let files: Vec<RowFile> =
            clean.into_iter().map(|file| file.file).chain(written.iter().cloned()).collect();
        let listed_at = previous.map_or(now, |manifest| manifest.listed_at);
        let manifest = CatalogManifest {
            version: manifest::VERSION,
            id: new_id(),
            written_at: now,
            listed_at: if is_whole { now } else { listed_at },
            rows: files.iter().map(|file| file.rows).sum(),
            files,
            replaced: kept.into_iter().chain(replaced).collect(),
        };
        if !self.put_manifest(&manifest, found.version, &written)? {
            return Ok(None);
        }
        let named: HashSet<&str> = manifest.keys().collect();
        let orphans = found.orphans.into_iter().filter(|key| !named.contains(&**key));
        self.delete(edit.covered);
        self.delete(expired.into_iter().map(|file| file.key).chain(orphans).collect());
        let (workers, files) = (manifest.rows, manifest.files.len());
        Ok(Some(CatalogReport { workers, files, written: written.len(), ..report }))
    }

    fn write_files(
        &self,
        rows: Vec<CatalogRow>,
        now: Timestamp,
    ) -> Result<Vec<RowFile>, CatalogError> {
        let day = now.strftime("%Y-%m-%d").to_string();
        let (mut written, mut part, mut size) = (Vec::new(), Vec::new(), 0);
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            size += row.size();
            part.push(row);
            let next = rows.peek().map_or(0, CatalogRow::size);
            let is_full = part.len() >= FILE_ROWS || size + next > FILE_BYTES;
            if is_full || rows.peek().is_none() {
                let bytes = rows::encode(&part).map_err(CatalogError::Encode)?;
                if bytes.len() as u64 > FILE_MAX {
                    let reason = "the rows of its workers are too large";
                    return Err(RequestFailure::new(FailureKind::TooMany, reason).into());
                }
                let key = format!("{FILES}{day}/{}{PARQUET}", new_id());
                let stored = self.writer.put(&key, bytes.clone(), &PutCondition::IfAbsent);
                let etag = stored.map_err(PutError::into_failure)?.etag;
                written.push(RowFile {
                    key,
                    rows: part.len(),
                    bytes: bytes.len() as u64,
                    etag,
                    blake3: blake3::hash(&bytes).to_hex().to_string(),
                });
                (part, size) = (Vec::new(), 0);
            }
        }
        Ok(written)
    }

    /// Replaces the manifest if it is still the `version` that was read. Returns false if it is
    /// not; then the `written` files are removed, unless a manifest names them.
    fn put_manifest(
        &self,
        manifest: &CatalogManifest,
        version: Option<StoredVersion>,
        written: &[RowFile],
    ) -> Result<bool, CatalogError> {
        let condition = version.map_or(PutCondition::IfAbsent, PutCondition::IfMatch);
        let put = self.writer.put(MANIFEST, manifest.to_json().into(), &condition);
        let failure = match put {
            Ok(_) => return Ok(true),
            Err(PutError::Failed(failure)) => Some(failure),
            Err(PutError::Taken | PutError::Changed | PutError::Source(_)) => None,
        };
        // The answer to a put that succeeded may have been lost.
        let current = self.writer.get(MANIFEST, manifest::SIZE_MAX);
        let current = match (current, failure) {
            (Ok(Some((json, _))), failure) => {
                let current = CatalogManifest::parse(&json, self.settings.keys_max).ok();
                match (current, failure) {
                    (Some(current), _) if current.id == manifest.id => return Ok(true),
                    // The put may still arrive, so its files stay.
                    (_, Some(failure)) => return Err(failure.into()),
                    (current, None) => current,
                }
            }
            (_, Some(failure)) | (Err(failure), None) => return Err(failure.into()),
            (Ok(None), None) => None,
        };
        let mut keys: Vec<String> = written.iter().map(|file| file.key.clone()).collect();
        let named: Option<HashSet<&str>> = current.as_ref().map(|current| current.keys().collect());
        keys.retain(|key| named.as_ref().is_some_and(|named| !named.contains(&**key)));
        self.delete(keys);
        Ok(false)
    }

    /// Deletes objects. One that stays is deleted by a later compaction.
    fn delete(&self, keys: Vec<String>) {
        if let Err(failure) = self.writer.delete(keys) {
            debug!("cannot delete objects of the catalog of {}: {failure}", self.writer.url());
        }
    }
}

/// Returns the texts of the small files that a list of workers needs of `worker`.
fn contents(bucket: &Bucket, worker: &str, objects: &[ListedObject]) -> BTreeMap<String, String> {
    let (mut contents, mut left) = (BTreeMap::new(), CONTENTS_MAX);
    for name in LISTED_FILES {
        let path = format!("{WORKERS}{worker}/{name}");
        let Some(object) = objects.iter().find(|object| *object.path == *path) else { continue };
        let Some(rest) = left.checked_sub(object.size) else { continue };
        let text = RelPath::parse(&path)
            .and_then(|path| read_whole(bucket, &path, CONTENTS_MAX))
            .ok()
            .flatten()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(text) = text {
            contents.insert(name.to_owned(), text);
            left = rest;
        }
    }
    contents
}

/// Returns the workers that a compaction with a short time takes: those announced first, without
/// those that only began. Readers look at open ones in any case.
fn shortened(news: &[Announcement]) -> HashSet<String> {
    let went_on = news.iter().filter(|it| it.news != WorkerNews::Opened);
    let mut taken = HashSet::new();
    // The oldest announcements come first.
    for announcement in went_on {
        if taken.len() < SHORT_NEWS {
            taken.insert(announcement.worker.clone());
        }
    }
    taken
}

/// Returns true if nothing of a worker was written for long.
fn is_quiet(objects: &[ListedObject], now: Timestamp) -> bool {
    let newest = objects.iter().map(|object| object.modified.secs).max();
    let newest = newest.and_then(|secs| Timestamp::from_second(secs).ok());
    newest.is_none_or(|newest| age(newest, now) > QUIET_AFTER)
}

/// Returns the time since `then`; zero if it lies in the future.
fn age(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}
