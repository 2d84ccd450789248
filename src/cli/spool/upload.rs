//! Copies the new parts of a spool to the object store.
//!
//! Files that are small or were replaced are put as a whole. A file that the recorder appends to is
//! continued by parts, and put as a whole when its worker has ended. The metadata comes last, so
//! whoever sees the end of a worker sees all of it. Several workers, and small files of a worker,
//! are uploaded at the same time. Each step can be repeated, so a crash between
//! any two requests loses nothing and shows nothing wrong:
//!
//! - The first object of a worker is its metadata, as of a worker that runs. It is put only if
//!   there is none, with the mark of the worker.
//! - Parts are deleted before a file is replaced by another one, and after it is put as a whole.
//! - The progress is written down after a request, except that a file may have parts from now on,
//!   which is written down before the first one.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::gate::{RequestGate, RequestTurn};
use crate::approval::Approval;
use crate::cli::object_facts::Waiting;
use crate::cli::object_stores::announce;
use crate::cli::spools::progress::{
    FileVersion, METADATA, SpoolFile, UploadProgress, UploadedFile, WorkerProgress, hash,
};
use crate::cli::spools::{Spool, WORKERS, walk};
use crate::cli::terminal::{display_path, human_size};
use crate::draft::Draft;
use crate::error::Error as PathError;
use crate::model::{ReviewState, Status};
use crate::name::Name;
use crate::objects::{
    BucketWriter, Bytes, KeyEntry, ObjectSettings, PutCondition, PutError, RequestFailure,
    UPLOAD_PART, WorkerNews, part_key, parts_prefix,
};
use crate::parallel::parallel_waits;
use crate::store::{Disk, File, Store as _, Stream, Time};
use crate::text::count;
use swarmletfs_record::write::{EntryIdentity, Error as WriteError, Store, Worker, to_document};

/// Maximum size of a file that is put as a whole each time, in bytes. A part that is smaller is put
/// again when the file has grown.
const SMALL: u64 = 256 << 10;
/// Time without a change after which a large file that is no log is put before its worker ends.
const REST: Duration = Duration::from_secs(10);
/// Time for which a worker stays after its changes were applied, so that they can be taken back.
const UNDO_TIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Size of the end of an uploaded file that is compared before a part follows, in bytes.
const TAIL: u64 = 4 << 10;
/// Files that the recorder appends to, and directories of such files.
const APPENDED: [&str; 4] = ["thread.jsonl", "metrics.jsonl", "tool_calls/", "logs/execution.log"];
/// Longest name of a file that gets parts, in bytes: the directory of the parts has a longer one.
const NAME_MAX: usize = 240;
/// Fields of metadata.json about the end of a worker.
const END_FIELDS: [&str; 6] =
    ["finished_at", "duration_ms", "exit_code", "error", "summary", "failure_cause"];
/// Longest tick of the clock for the times of files.
const TICK: Duration = Duration::from_millis(20);

/// A worker in the object store, with its objects.
pub(crate) struct UploadedWorker<'a> {
    pub(crate) id: &'a Name,
    /// Its objects, with their keys from the prefix of the URL.
    pub(crate) objects: Vec<KeyEntry>,
}

/// Is called when a worker appears in an object store, and when all of an ended one is there. After
/// a crash, it may be called again for the same worker.
pub(crate) trait UploadObserver: Send {
    fn opened(
        &mut self,
        bucket: &BucketWriter,
        worker: &UploadedWorker<'_>,
    ) -> Result<(), RequestFailure>;
    fn closed(
        &mut self,
        bucket: &BucketWriter,
        worker: &UploadedWorker<'_>,
    ) -> Result<(), RequestFailure>;
}

/// The work of an upload.
#[derive(Debug, Default)]
pub(crate) struct UploadReport {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Workers that appeared in the object store.
    pub(crate) opened: Vec<String>,
    /// Workers that have ended and are there as a whole.
    pub(crate) closed: Vec<String>,
    /// Size of these, in bytes.
    pub(crate) closed_bytes: u64,
    /// Workers whose ids belong to other workers there.
    pub(crate) clashes: BTreeSet<String>,
    /// Problems of single workers.
    pub(crate) problems: Vec<String>,
    /// Why the object store could not be written.
    pub(crate) failure: Option<RequestFailure>,
    /// True if another process uploads.
    pub(crate) is_locked: bool,
}

impl UploadReport {
    /// Adds the upload of one worker.
    fn add(&mut self, other: UploadReport) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.opened.extend(other.opened);
        self.closed.extend(other.closed);
        self.closed_bytes += other.closed_bytes;
        self.clashes.extend(other.clashes);
        self.problems.extend(other.problems);
        self.failure = self.failure.take().or(other.failure);
    }

    /// Returns true if a worker has ended, and everything was uploaded that could be.
    pub(crate) fn has_closed_all(&self) -> bool {
        !self.closed.is_empty() && self.failure.is_none()
    }
}

impl UploadObserver for UploadReport {
    fn opened(
        &mut self,
        bucket: &BucketWriter,
        worker: &UploadedWorker<'_>,
    ) -> Result<(), RequestFailure> {
        announce(bucket, WorkerNews::Opened, worker.id)?;
        self.opened.push(worker.id.display());
        Ok(())
    }

    fn closed(
        &mut self,
        bucket: &BucketWriter,
        worker: &UploadedWorker<'_>,
    ) -> Result<(), RequestFailure> {
        announce(bucket, WorkerNews::Closed, worker.id)?;
        self.closed.push(worker.id.display());
        self.closed_bytes += worker.objects.iter().map(|object| object.size).sum::<u64>();
        Ok(())
    }
}

/// Why a worker was not uploaded.
enum UploadStop {
    /// No time is left.
    Late,
    /// The object store cannot be written now.
    Request(RequestFailure),
    /// Its id belongs to another worker.
    Clash,
    /// The spool cannot be read or written.
    Local(anyhow::Error),
}

impl From<RequestFailure> for UploadStop {
    fn from(failure: RequestFailure) -> UploadStop {
        UploadStop::Request(failure)
    }
}

impl From<anyhow::Error> for UploadStop {
    fn from(error: anyhow::Error) -> UploadStop {
        UploadStop::Local(error)
    }
}

impl From<PutError> for UploadStop {
    fn from(error: PutError) -> UploadStop {
        match error {
            PutError::Failed(failure) => UploadStop::Request(failure),
            error => UploadStop::Local(error.into()),
        }
    }
}

/// Opens the object store of `url` for uploads whose requests have the `deadline`.
///
/// # Errors
///
/// The URL is wrong.
pub(crate) fn writer(url: &str, deadline: Duration) -> anyhow::Result<BucketWriter> {
    let settings = ObjectSettings { deadline, ..ObjectSettings::default() };
    Ok(BucketWriter::open(Path::new(url), &settings)?)
}

pub(crate) struct Uploader {
    spool: Spool,
    bucket: BucketWriter,
    store: Store,
    progress: UploadProgress,
    gate: RequestGate,
}

impl Uploader {
    /// Prepares uploads of `spool`, which exists. No request is begun after `end`.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(crate) fn new(
        spool: &Spool,
        bucket: BucketWriter,
        end: Arc<Mutex<Option<Instant>>>,
    ) -> anyhow::Result<Uploader> {
        let store = Store::open(spool.store_path())?;
        let progress = spool.progress()?;
        let gate = RequestGate::new(end);
        Ok(Uploader { spool: spool.clone(), bucket, store, progress, gate })
    }

    /// Gives the new worker `id` its place in the object store. Returns false if the id belongs to
    /// another worker there.
    ///
    /// # Errors
    ///
    /// The object store or the spool cannot be written.
    pub(crate) fn claim(&self, id: &Name) -> anyhow::Result<bool> {
        let worker = self.store.worker(id.as_bytes())?;
        let (fields, bytes, has_ended) = worker.shown_metadata()?;
        let identity = worker.folder().identity()?;
        let first = if has_ended { unfinished(&fields)? } else { bytes };
        match self.put_first(id, identity, first) {
            Ok(_) => Ok(true),
            Err(UploadStop::Clash) => Ok(false),
            Err(UploadStop::Request(failure)) => Err(failure.into()),
            Err(UploadStop::Local(error)) => Err(error),
            Err(UploadStop::Late) => Err(RequestFailure::timed_out().into()),
        }
    }

    /// Uploads all new files. Waits for the lock of uploads until `lock_end`.
    ///
    /// # Errors
    ///
    /// The spool cannot be read or written.
    pub(crate) fn run(&self, lock_end: Instant, report: &mut UploadReport) -> anyhow::Result<()> {
        let Some(_lock) = self.spool.lock(lock_end)? else {
            report.is_locked = true;
            return Ok(());
        };
        report.is_locked = false;
        report.failure = None;
        self.store.delete_forgotten()?;
        let exists = |id: &Name| self.store.find_worker(id).map_or(true, |found| found.is_some());
        self.progress.clean(exists)?;
        let mut ids = self.store.worker_names()?;
        ids.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        self.gate.open();
        for of_worker in parallel_waits(&ids, |id| self.try_worker(id)) {
            report.add(of_worker);
        }
        Ok(())
    }

    /// Uploads the new files of the worker `id`. A request that fails ends the uploads of all.
    fn try_worker(&self, id: &Name) -> UploadReport {
        let mut report = UploadReport::default();
        if !self.gate.is_open() {
            return report;
        }
        let Ok(Some(worker)) = self.store.find_worker(id) else { return report };
        match self.upload_worker(&worker, &mut report) {
            Ok(()) | Err(UploadStop::Late) => {}
            Err(UploadStop::Clash) => drop(report.clashes.insert(id.display())),
            Err(UploadStop::Local(error)) => {
                report.problems.push(format!("worker {}: {error:#}", id.display()))
            }
            Err(UploadStop::Request(failure)) => {
                self.gate.close();
                report.failure = Some(failure);
            }
        }
        report
    }

    fn begin_request(&self) -> Result<RequestTurn<'_>, UploadStop> {
        self.gate.enter().ok_or(UploadStop::Late)
    }

    fn upload_worker(&self, worker: &Worker, report: &mut UploadReport) -> Result<(), UploadStop> {
        let id = worker.id();
        let identity = worker.folder().identity().context("cannot read its folder")?;
        let mut done = self.progress.read(id, identity)?.unwrap_or_default();
        // Read before the files: whoever writes the end has written everything else.
        let (fields, metadata, has_ended) =
            worker.shown_metadata().context("cannot read its metadata")?;
        let disk = self.spool.worker(id).context("cannot read its folder")?;
        let files = walk(&disk).context("cannot read its folder")?;
        let mut upload =
            WorkerUpload { uploader: self, id, identity, disk: &disk, done: &mut done, report };
        upload.claim(&fields, &metadata, has_ended)?;
        upload.reopen(&files, &metadata)?;
        let left_out = upload.upload_files(&files, has_ended)?;
        upload.delete_removed(&files)?;
        upload.put_metadata(&metadata)?;
        if has_ended {
            upload.close()?;
        }
        // It stays as long as nobody knows.
        if has_ended && !left_out && !self.is_needed(id, UNDO_TIME).unwrap_or(true) {
            self.forget(worker, &done)?;
        }
        Ok(())
    }

    /// Puts the first metadata of a worker, and returns its ETag. `None` if this spool put another
    /// version of it before.
    fn put_first(
        &self,
        id: &Name,
        identity: EntryIdentity,
        bytes: Vec<u8>,
    ) -> Result<Option<String>, UploadStop> {
        let key = worker_key(id, METADATA)?;
        let bucket = self.bucket.with_mark(self.progress.mark(id, identity)?);
        match bucket.put(&key, bytes.into(), &PutCondition::IfAbsent) {
            Ok(version) => Ok(Some(version.etag)),
            Err(PutError::Taken | PutError::Changed) => match bucket.is_own(&key)? {
                Some(true) => Ok(None),
                Some(false) => Err(UploadStop::Clash),
                None => Err(RequestFailure::timed_out().into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if the changes of the worker in its workspace wait for a decision, or were
    /// applied within `undo_time` and can be taken back.
    ///
    /// # Errors
    ///
    /// What became of them cannot be read.
    fn is_needed(&self, id: &Name, undo_time: Duration) -> Result<bool, WriteError> {
        if Draft::open(&self.store, id)?.is_none() {
            return Ok(false);
        }
        let approval = Approval::open(&self.store, id.as_bytes())?;
        let state = approval.review_state()?;
        let is_recent = |at: Timestamp| {
            // A clock that was set back makes it happen in the future.
            let age = Duration::try_from(at.duration_until(Timestamp::now())).unwrap_or_default();
            age < undo_time
        };
        Ok(state.is_open()
            || state == ReviewState::Running
            || approval.applied_at()?.is_some_and(is_recent))
    }

    /// Removes the workers that stay only because their changes could be taken back, unless another
    /// process uploads.
    ///
    /// # Errors
    ///
    /// The spool cannot be read or written.
    pub(crate) fn forget_applied(&self) -> anyhow::Result<()> {
        let Some(_lock) = self.spool.lock(Instant::now())? else { return Ok(()) };
        for id in self.store.worker_names()? {
            let Ok(Some(worker)) = self.store.find_worker(&id) else { continue };
            let Ok(identity) = worker.folder().identity() else { continue };
            let Ok(Some(done)) = self.progress.read(&id, identity) else { continue };
            if done.is_closed && !self.is_needed(&id, Duration::ZERO).unwrap_or(true) {
                self.forget(&worker, &done)?;
            }
        }
        Ok(())
    }

    /// Removes a worker that is in the object store as a whole from the spool, unless it changed.
    fn forget(&self, worker: &Worker, done: &WorkerProgress) -> anyhow::Result<()> {
        let id = worker.id();
        let is_unchanged = |worker: &Worker| {
            let metadata = worker.shown_metadata();
            let files = self.spool.worker(id).and_then(|disk| walk(&disk));
            metadata.is_ok_and(|(_, bytes, has_ended)| has_ended && done.has_metadata(&bytes))
                && files.is_ok_and(|files| {
                    files.iter().all(|file| file.is_metadata() || done.has(file))
                })
        };
        let draft = Draft::open(&self.store, id)?;
        let identity = worker.folder().identity()?;
        if self.store.forget_worker(id, is_unchanged)? {
            if let Some(draft) = draft {
                draft.remove_whole(&self.store)?;
            }
            self.progress.forget(id, identity)?;
        }
        Ok(())
    }
}

/// The upload of one worker.
struct WorkerUpload<'a> {
    uploader: &'a Uploader,
    id: &'a Name,
    identity: EntryIdentity,
    disk: &'a Disk,
    done: &'a mut WorkerProgress,
    report: &'a mut UploadReport,
}

impl<'a> WorkerUpload<'a> {
    fn save(&mut self) -> anyhow::Result<()> {
        self.uploader.progress.write(self.id, self.identity, self.done)
    }

    fn key(&self, path: &str) -> Result<String, UploadStop> {
        worker_key(self.id, path)
    }

    fn claim(
        &mut self,
        fields: &Map<String, Value>,
        metadata: &[u8],
        has_ended: bool,
    ) -> Result<(), UploadStop> {
        if self.done.is_claimed {
            return Ok(());
        }
        let _turn = self.uploader.begin_request()?;
        let first = if has_ended { unfinished(fields)? } else { metadata.to_vec() };
        match self.uploader.put_first(self.id, self.identity, first.clone())? {
            Some(etag) => self.done.set_metadata(&first, etag),
            // The progress was lost. Parts of files may be there.
            None => self.find_parts()?,
        }
        let worker = self.uploaded()?;
        self.report.opened(&self.uploader.bucket, &worker)?;
        self.done.is_claimed = true;
        Ok(self.save()?)
    }

    /// Lets the end of the worker be announced again if something of it changed since.
    fn reopen(&mut self, files: &[SpoolFile], metadata: &[u8]) -> Result<(), UploadStop> {
        let is_same =
            |file: &SpoolFile| file.is_metadata() || file.key().is_none() || self.done.has(file);
        if self.done.is_closed && !(self.done.has_metadata(metadata) && files.iter().all(is_same)) {
            self.done.is_closed = false;
            self.save()?;
        }
        Ok(())
    }

    fn find_parts(&mut self) -> Result<(), UploadStop> {
        let prefix = self.key("")?;
        for object in self.uploader.bucket.list(&prefix)? {
            let part = crate::objects::file_of_part(&object.key);
            let path = part.and_then(|(file, _)| file.strip_prefix(&*prefix));
            if let Some(path) = path {
                let unknown = UploadedFile { has_parts: true, ..UploadedFile::default() };
                self.done.files.entry(path.to_owned()).or_insert(unknown);
            }
        }
        Ok(())
    }

    /// Uploads the files that changed. Returns true if one cannot be uploaded.
    fn upload_files(&mut self, files: &[SpoolFile], has_ended: bool) -> Result<bool, UploadStop> {
        let mut left_out = false;
        let (mut small, mut others) = (Vec::new(), Vec::new());
        for file in files.iter().filter(|file| !file.is_metadata()) {
            let Some(path) = file.key() else {
                let path = file.path.display();
                self.report.problems.push(format!(
                    "worker {}: {path} cannot be uploaded: its name cannot be a key",
                    self.id.display()
                ));
                left_out = true;
                continue;
            };
            let uploaded = self.done.files.get(path);
            let has_parts = uploaded.is_some_and(|uploaded| uploaded.has_parts);
            if self.done.has(file) && !(has_ended && has_parts && !self.done.is_closed) {
                continue;
            }
            match file.meta.size <= SMALL && !has_parts {
                true => small.push((path, file)),
                false => others.push((path, file)),
            }
        }
        self.put_small(&small)?;
        for (path, file) in others {
            self.upload_large(path, file, has_ended)?;
        }
        Ok(left_out)
    }

    /// Puts small files as a whole, several at a time.
    fn put_small(&mut self, files: &[(&str, &SpoolFile)]) -> Result<(), UploadStop> {
        if files.is_empty() {
            return Ok(());
        }
        let put = |(path, file): &(&str, &SpoolFile)| -> Result<UploadedFile, UploadStop> {
            // Only as many files are in memory as requests are in progress.
            let _turn = self.uploader.begin_request()?;
            let (file, version) = open_at_rest(self.disk, file)?;
            let bytes = read_exactly(&*file, 0, version.size).context("cannot read a file")?;
            let tail = tail_of(&*file, version.size)?;
            let key = self.key(path)?;
            let etag = self.uploader.bucket.put(&key, bytes, &PutCondition::Always)?.etag;
            Ok(UploadedFile { version, etag, tail, ..UploadedFile::default() })
        };
        let results = parallel_waits(files, put);
        let mut stop = None;
        for ((path, _), result) in files.iter().zip(results) {
            match result {
                Ok(uploaded) => {
                    self.report.files += 1;
                    self.report.bytes += uploaded.version.size;
                    self.done.files.insert((*path).to_owned(), uploaded);
                }
                // The others stopped since this one failed.
                Err(error) if matches!(stop, None | Some(UploadStop::Late)) => stop = Some(error),
                Err(_) => {}
            }
        }
        self.save()?;
        stop.map_or(Ok(()), Err)
    }

    /// Uploads a file that is large, or has parts.
    fn upload_large(
        &mut self,
        path: &str,
        spooled: &SpoolFile,
        has_ended: bool,
    ) -> Result<(), UploadStop> {
        let (file, version) = open_at_rest(self.disk, spooled)?;
        let before = self.done.files.get(path).cloned();
        let continues = match &before {
            Some(before) => {
                version.continues(&before.version)
                    && tail_of(&*file, before.version.size)? == before.tail
            }
            None => false,
        };
        let is_appended = is_appended(path);
        if let Some(before) = before.clone().filter(|_| continues && is_appended && !has_ended) {
            if version.size > before.version.size {
                return self.append_parts(path, &*file, version, before);
            }
            let same = UploadedFile { version, ..before };
            self.done.files.insert(path.to_owned(), same);
            return Ok(self.save()?);
        }
        if !is_appended && !has_ended && !version.rests(REST) {
            return Ok(());
        }
        let mut has_parts = before.is_some_and(|before| before.has_parts);
        if has_parts && !(continues && is_appended) {
            // They would continue the new content.
            self.delete_parts(path)?;
            has_parts = false;
        }
        let mut reader = Stream::of_range(&*file, 0..version.size);
        let turn = self.uploader.begin_request()?;
        let (etag, size) = self.uploader.bucket.put_from(&self.key(path)?, &mut reader)?;
        drop(turn);
        let tail = tail_of(&*file, version.size)?;
        let uploaded = UploadedFile { version, has_parts, etag, tail, last_part: None };
        self.done.files.insert(path.to_owned(), uploaded);
        self.report.files += 1;
        self.report.bytes += size;
        Ok(self.save()?)
    }

    /// Puts the bytes after the uploaded ones as parts. A small part is put again, longer.
    fn append_parts(
        &mut self,
        path: &str,
        file: &dyn File,
        version: FileVersion,
        before: UploadedFile,
    ) -> Result<(), UploadStop> {
        let key = self.key(path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        if name.len() > NAME_MAX {
            // Its parts would have too long a name. It is put when its worker has ended.
            return Ok(());
        }
        let mut uploaded = before;
        if !uploaded.has_parts {
            uploaded.has_parts = true;
            self.done.files.insert(path.to_owned(), uploaded.clone());
            self.save()?;
        }
        let mut start = match uploaded.last_part {
            Some((offset, size)) if size < SMALL => offset,
            _ => uploaded.version.size,
        };
        while start < version.size {
            let turn = self.uploader.begin_request()?;
            let size = (UPLOAD_PART as u64).min(version.size - start);
            let bytes = read_exactly(file, start, size).context("cannot read a file")?;
            let part = part_key(&key, start);
            let etag = self.uploader.bucket.put(&part, bytes, &PutCondition::Always)?.etag;
            drop(turn);
            let end = start + size;
            uploaded = UploadedFile {
                version: version.with_size(end),
                last_part: Some((start, size)),
                has_parts: true,
                etag,
                tail: tail_of(file, end)?,
            };
            self.done.files.insert(path.to_owned(), uploaded.clone());
            self.save()?;
            self.report.files += 1;
            self.report.bytes += size;
            start = end;
        }
        Ok(())
    }

    fn delete_parts(&mut self, path: &str) -> Result<(), UploadStop> {
        let prefix = parts_prefix(&self.key(path)?);
        let turn = self.uploader.begin_request()?;
        let parts = self.uploader.bucket.list(&prefix)?;
        drop(turn);
        let delete = |part: &KeyEntry| -> Result<(), UploadStop> {
            let _turn = self.uploader.begin_request()?;
            Ok(self.uploader.bucket.delete([part.key.clone()])?)
        };
        parallel_waits(&parts, delete).into_iter().collect::<Result<(), _>>()?;
        if let Some(uploaded) = self.done.files.get_mut(path) {
            uploaded.has_parts = false;
            uploaded.last_part = None;
        }
        Ok(self.save()?)
    }

    /// Deletes the objects of files that were removed.
    fn delete_removed(&mut self, files: &[SpoolFile]) -> Result<(), UploadStop> {
        let exists: BTreeSet<&str> = files.iter().filter_map(SpoolFile::key).collect();
        let is_removed = |path: &&String| !exists.contains(path.as_str());
        let removed: Vec<String> = self.done.files.keys().filter(is_removed).cloned().collect();
        for path in removed {
            if self.done.files.get(&path).is_some_and(|uploaded| uploaded.has_parts) {
                self.delete_parts(&path)?;
            }
            let turn = self.uploader.begin_request()?;
            self.uploader.bucket.delete([self.key(&path)?])?;
            drop(turn);
            self.done.files.remove(&path);
            self.save()?;
        }
        Ok(())
    }

    fn put_metadata(&mut self, metadata: &[u8]) -> Result<(), UploadStop> {
        if self.done.has_metadata(metadata) {
            return Ok(());
        }
        let _turn = self.uploader.begin_request()?;
        let mark = self.uploader.progress.mark(self.id, self.identity)?;
        let bucket = self.uploader.bucket.with_mark(mark);
        let bytes = Bytes::copy_from_slice(metadata);
        let etag = bucket.put(&self.key(METADATA)?, bytes, &PutCondition::Always)?.etag;
        self.done.set_metadata(metadata, etag);
        self.report.files += 1;
        self.report.bytes += metadata.len() as u64;
        Ok(self.save()?)
    }

    /// Deletes the parts of a worker that has ended, of which every file is there as a whole.
    fn close(&mut self) -> Result<(), UploadStop> {
        if self.done.is_closed {
            return Ok(());
        }
        let with_parts = self.done.files.iter().filter(|(_, uploaded)| uploaded.has_parts);
        let with_parts: Vec<String> = with_parts.map(|(path, _)| path.clone()).collect();
        for path in with_parts {
            self.delete_parts(&path)?;
        }
        let worker = self.uploaded()?;
        let _turn = self.uploader.begin_request()?;
        self.report.closed(&self.uploader.bucket, &worker)?;
        self.done.is_closed = true;
        Ok(self.save()?)
    }

    fn uploaded(&self) -> Result<UploadedWorker<'a>, UploadStop> {
        let modified = Time::from(Timestamp::now());
        let entry = |path: &str, size: u64, etag: &str| -> Result<KeyEntry, UploadStop> {
            let etag = Some(etag.to_owned()).filter(|etag| !etag.is_empty());
            Ok(KeyEntry { key: self.key(path)?, size, etag, modified })
        };
        let mut objects = vec![entry(METADATA, self.done.metadata_size, &self.done.metadata_etag)?];
        for (path, uploaded) in &self.done.files {
            objects.push(entry(path, uploaded.version.size, &uploaded.etag)?);
        }
        Ok(UploadedWorker { id: self.id, objects })
    }
}

/// Returns the key of a file of the worker `id`, from the prefix of the URL.
fn worker_key(id: &Name, path: &str) -> Result<String, UploadStop> {
    let id = std::str::from_utf8(id.as_bytes());
    let id = id.context("its id cannot be a key: it is not UTF-8")?;
    Ok(format!("{WORKERS}/{id}/{path}"))
}

fn is_appended(path: &str) -> bool {
    APPENDED.iter().any(|known| match known.ends_with('/') {
        true => path.starts_with(known),
        false => path == *known,
    })
}

/// Returns the metadata of a worker that has ended as they were while it ran.
fn unfinished(fields: &Map<String, Value>) -> anyhow::Result<Vec<u8>> {
    let mut fields = fields.clone();
    fields.retain(|key, _| !END_FIELDS.contains(&&**key));
    fields.insert("status".into(), Status::Running.as_str().into());
    Ok(to_document(&fields)?)
}

/// Opens a file. If it is not one that is appended to, waits until a later change would get a later
/// time.
fn open_at_rest(disk: &Disk, file: &SpoolFile) -> Result<(Box<dyn File>, FileVersion), UploadStop> {
    let open = || -> Result<_, PathError> {
        let opened = disk.open(&file.path)?;
        let begun = Instant::now();
        loop {
            let version = FileVersion::from_meta(&opened.meta()?);
            let is_appended = file.key().is_some_and(is_appended);
            if is_appended || version.rests(TICK) || begun.elapsed() > 2 * TICK {
                return Ok((opened, version));
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    Ok(open().with_context(|| format!("cannot read {}", file.path.display()))?)
}

/// Reads `size` bytes from `offset` on.
///
/// # Errors
///
/// The file is shorter now, or cannot be read.
fn read_exactly(file: &dyn File, offset: u64, size: u64) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    Stream::of_range(file, offset..offset + size).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Returns a hash of the last bytes before `end`.
fn tail_of(file: &dyn File, end: u64) -> Result<String, UploadStop> {
    let start = end.saturating_sub(TAIL);
    let bytes = read_exactly(file, start, end - start).context("cannot read a file")?;
    Ok(hash(&bytes))
}

/// Returns a sentence about the waiting files, with the command that uploads them.
pub(crate) fn describe_waiting(spool: &Spool, waiting: &Waiting) -> String {
    format!(
        "{} ({}) of {} wait in {} to be uploaded to {}; `swarmletfs flush` uploads them",
        count(waiting.files, "file"),
        human_size(waiting.bytes),
        count(waiting.workers, "worker"),
        display_path(&spool.path),
        spool.url
    )
}
