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

use super::files::{FILE_ROWS, READ_MAX, RowWriter, SMALL_FILES_MAX, reader};
use super::layout::{
    Announcement, FILES, MANIFEST, NEWS, ObjectsByWorker, PROBES, ROOT, TRANSCRIPTS, WorkerNews,
    is_announced_open, looks_max, new_id, news_by_worker, split_by_worker,
};
use super::manifest::{self, CatalogManifest, ReplacedFile, RowFile};
use super::packing::{PackedTranscripts, pack_transcripts};
use super::problem::{CatalogError, CatalogProblem};
use super::rows::{self, CONTENTS_MAX, CatalogRow, CatalogedWorker, LISTED_FILES};
use super::{ConditionSupport, find_conditions};
use crate::ObjectSettings;
use crate::bucket::Bucket;
use crate::failure::{FailureKind, RequestFailure};
use crate::key_tree::ListedObject;
use crate::parts::WORKERS;
use crate::writer::{BucketWriter, PutCondition, PutError, StoredVersion};

/// Number of workers whose rows are computed at once, also if the time is short.
const BATCH: usize = 1_000;
const SHORT_BATCH: usize = 100;
/// Maximum number of announced workers that a compaction takes if its time is short.
const SHORT_NEWS: usize = 1_000;
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
    /// Number of workers in the catalog, and of transcripts of which it has the content.
    pub workers: usize,
    pub transcripts: usize,
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
    /// The files with contents of transcripts that were found, and what was made of them.
    packed: Option<(Vec<RowFile>, PackedTranscripts)>,
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
    /// The objects beside the workers, if all were listed.
    beside: Option<Vec<ListedObject>>,
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
        Compaction { writer, settings, describe, started, time: None, computed, packed: None }
    }

    /// Limits the duration. Announcements that no time is left for stay, and it gives up if another
    /// compaction wins, rather than to start over. A request that was begun may end later.
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
        let looks = looks_max(found.object_count());
        if self.time.is_some() {
            // The oldest announcements come first.
            let mut taken: HashSet<String> = HashSet::new();
            for announcement in &found.news {
                if taken.len() < looks.min(SHORT_NEWS) {
                    taken.insert(announcement.worker.clone());
                }
            }
            found.news.retain(|announcement| taken.contains(&announcement.worker));
        }
        let is_whole = found.is_damaged
            || news_by_worker(&found.news).len() > looks
            || match whole {
                WholeSearch::Always => true,
                WholeSearch::IfOlder(limit) => age.is_none_or(|age| age > limit),
            };
        let mut edit = self.find_changes(&found, is_whole, now)?;
        let known = found.manifest.iter().flat_map(|manifest| manifest.transcripts.clone());
        let known: Vec<RowFile> = known.collect();
        let packed = match edit.beside.take().filter(|_| self.time.is_none()) {
            Some(objects) => self.pack(known, objects, now)?,
            None => PackedTranscripts { files: known, ..Default::default() },
        };
        if found.version.is_none() && edit.rows.is_empty() && packed.files.is_empty() {
            return Err(CatalogError::Empty);
        }
        let mut report = CatalogReport {
            rows: edit.rows.len() + packed.added,
            transcripts: manifest::count(&packed.files),
            written: packed.written,
            removed: edit.removed.len(),
            news: edit.covered.len(),
            is_whole,
            ..CatalogReport::default()
        };
        let has_changes = !edit.rows.is_empty() || !edit.removed.is_empty() || is_whole;
        let Some(manifest) = found.manifest.as_ref().filter(|_| !has_changes) else {
            return self.replace(found, edit, packed, now, report);
        };
        (report.workers, report.files) = (manifest.rows, manifest.files.len() + packed.files.len());
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
            [FILES, TRANSCRIPTS, PROBES].iter().any(|folder| key.starts_with(folder))
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
        let (reader, file) = (reader(self.writer, self.settings), file.clone());
        let (connection, rows_max) = (reader.connection.clone(), reader.rows_max);
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
        let (listed, beside) = self.list_workers(is_whole, announced.keys().copied())?;
        let mut edit = CatalogEdit { beside: is_whole.then_some(beside), ..Default::default() };
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
        let batch_size = if self.time.is_some() { SHORT_BATCH } else { BATCH };
        let mut done = 0;
        for batch in changed.chunks(batch_size) {
            if self.must_end() && !is_whole && done > 0 {
                break;
            }
            if self.time_left().is_zero() {
                return Err(CatalogError::TooLong);
            }
            done += batch.len();
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

    /// Lists the objects of all workers and those beside them, or of the `named` workers.
    fn list_workers<'n>(
        &self,
        is_whole: bool,
        named: impl Iterator<Item = &'n str>,
    ) -> Result<(ObjectsByWorker, Vec<ListedObject>), CatalogError> {
        let (connection, url) = self.writer.shared_parts();
        let (lister, prefix, keys_max) =
            (connection.clone(), url.prefix.clone(), self.settings.keys_max);
        let folders: Vec<String> = match is_whole {
            true => vec![String::new()],
            false => named.map(|worker| format!("{WORKERS}{worker}/")).collect(),
        };
        let listed = connection.wait(self.time_left().min(READ_MAX), async move {
            lister.list_folders(&prefix, folders.into_iter(), keys_max).await
        })?;
        Ok(split_by_worker(listed.into_iter().flat_map(|(_, keys)| keys.objects)))
    }

    /// Brings the files `known` with contents of transcripts up to date with the listed `objects`,
    /// unless a restart finds the same files again.
    fn pack(
        &mut self,
        known: Vec<RowFile>,
        objects: Vec<ListedObject>,
        now: Timestamp,
    ) -> Result<PackedTranscripts, CatalogError> {
        if let Some((found, packed)) = &self.packed
            && *found == known
        {
            return Ok(packed.clone());
        }
        let packed = pack_transcripts(self.writer, self.settings, &known, objects, now)?;
        self.packed = Some((known, packed.clone()));
        Ok(packed)
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
        packed: PackedTranscripts,
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
        let mut rows = RowWriter::new(self.writer, FILES, now, rows::encode);
        for row in pool {
            let size = row.size();
            rows.add(row, size)?;
        }
        let written = rows.finish()?;
        if self.time_left().is_zero() {
            return Err(CatalogError::TooLong);
        }
        let previous = found.manifest;
        let (kept, expired): (Vec<ReplacedFile>, Vec<ReplacedFile>) = previous
            .iter()
            .flat_map(|manifest| manifest.replaced.clone())
            .partition(|file| age(file.at, now) < GRACE);
        let replaced = merged.into_iter().map(|file| file.file.key).chain(packed.replaced);
        let replaced = replaced.map(|key| ReplacedFile { key, at: now });
        let files: Vec<RowFile> =
            clean.into_iter().map(|file| file.file).chain(written.iter().cloned()).collect();
        let listed_at = previous.map_or(now, |manifest| manifest.listed_at);
        let manifest = CatalogManifest {
            version: manifest::VERSION,
            id: new_id(),
            written_at: now,
            listed_at: if report.is_whole { now } else { listed_at },
            rows: manifest::count(&files),
            files,
            transcripts: packed.files,
            replaced: kept.into_iter().chain(replaced).collect(),
        };
        if !self.put_manifest(&manifest, found.version, &written)? {
            return Ok(None);
        }
        let named: HashSet<&str> = manifest.keys().collect();
        let orphans = found.orphans.into_iter().filter(|key| !named.contains(&**key));
        self.delete(edit.covered);
        self.delete(expired.into_iter().map(|file| file.key).chain(orphans).collect());
        let files = manifest.files.len() + manifest.transcripts.len();
        let workers = manifest.rows;
        let written = written.len() + report.written;
        Ok(Some(CatalogReport { workers, files, written, ..report }))
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
