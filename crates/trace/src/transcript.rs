//! Formats of transcripts: a program records each session of an agent in a file of JSON.
//!
//! Every conversation is a worker. Its directory is generated from its transcript when it is read,
//! and nothing is written. The index of a transcript is cached and extended when the transcript
//! grows. A [`TranscriptFormat`] locates the transcripts and decodes their records; the rest is
//! common to all formats.

mod archive;
mod background;
mod builder;
mod cache;
mod cached_transcript;
mod calls;
mod commands;
mod container;
mod continued_file;
mod database;
mod document;
mod edits;
mod folder_file;
mod folders;
mod format;
mod index;
mod location;
mod messages;
mod open_file;
mod persist;
mod reader;
mod recognized;
mod requests;
mod sample_lines;
mod samples;
mod spans;
mod summaries;
mod thread;
mod turn;
mod virtual_dir;
mod worker;
mod zstd;

pub(super) use self::builder::{IndexBuilder, RecordOrigin};
pub(super) use self::calls::{parse_arguments, shorten_id};
pub(super) use self::continued_file::continues;
pub(super) use self::database::has_tables;
pub(super) use self::folder_file::record_number;
pub(super) use self::format::{CallRecord, Session, SessionMetadata, TranscriptFormat};
pub use self::index::ReportedEnd;
pub(super) use self::index::{Ending, StatedStatus, TitleSource};
pub(super) use self::location::{
    Container, DatabaseLayout, Holds, Member, RowLayout, Shape, TableLayout, TranscriptLocation,
};
pub(super) use self::requests::queued_text;
pub(super) use self::samples::ZIP_MAGIC;
pub(super) use self::turn::{
    Arguments, CallPart, ProgramTexts, RawRecord, ResultPart, Role, Span, Stage, Turn, TurnEvent,
    Verdict, parse_millis,
};
pub(super) use self::zstd::beginning as zstd_beginning;

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::background::Background;
use self::cache::TranscriptCache;
use self::cached_transcript::TranscriptVersion;
use self::folders::Folders;
use self::persist::IndexStore;
use self::recognized::RecognizedFiles;
use self::virtual_dir::VirtualDir;
use super::meta::hash_meta;
use super::probe::{Probe, ProbeBudget};
use super::{Candidates, Detection, FolderState, Format};
use swarmletfs_base::cache::DiskCache;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Record, RecordedChanges, SkipReason, Worker};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Meta, Store};

/// Number of bytes of transcripts read to find subagents when a store is first listed.
const FIRST_SCAN_BYTES: u64 = 32 << 20;
/// Number of bytes of transcripts read to find subagents each time a store is listed again.
const LATER_SCAN_BYTES: u64 = 16 << 20;
/// Minimum size of a transcript whose index is cached on disk, in bytes.
const CACHED_SIZE_MIN: u64 = 64 << 10;
/// Maximum number of files that are read to detect a store.
const PROBED_MAX: usize = 1_000;

/// The format of the transcripts in one store, with its caches.
pub struct Transcripts {
    format: &'static dyn TranscriptFormat,
    transcripts: Arc<TranscriptCache>,
    folders: Folders,
    recognized: RecognizedFiles,
    background: Arc<Background>,
    listed: AtomicBool,
    /// The only transcript to read, or `None` for all.
    only: Option<RelPath>,
}

impl Transcripts {
    pub(super) fn new(format: &'static dyn TranscriptFormat) -> Transcripts {
        Transcripts {
            format,
            transcripts: Arc::new(TranscriptCache::new(None)),
            folders: Folders::default(),
            recognized: RecognizedFiles::default(),
            background: Arc::default(),
            listed: AtomicBool::new(false),
            only: None,
        }
    }

    /// Stores the indexes of transcripts of at least `min_size` bytes in `cache`.
    #[must_use]
    pub fn with_cache(self, cache: Arc<DiskCache>, min_size: u64) -> Transcripts {
        let disk = IndexStore { cache, min_size };
        Transcripts { transcripts: Arc::new(TranscriptCache::new(Some(disk))), ..self }
    }

    /// Restricts the store to the transcript at `path`. Nothing else is listed.
    #[must_use]
    pub fn only(self, path: RelPath) -> Transcripts {
        Transcripts { only: Some(path), ..self }
    }
}

impl Format for Transcripts {
    fn name(&self) -> &'static str {
        self.format.name()
    }

    fn worker_description(&self) -> &'static str {
        "a transcript"
    }

    fn detect(&self, store: &dyn Store) -> Result<Detection> {
        let found = self.format.find_transcripts(store)?;
        let budget = ProbeBudget::default();
        let is_transcript = |path| self.format.recognizes(&Probe::new(store, path, &budget));
        if found.folders.iter().take(PROBED_MAX).any(is_transcript) {
            return Ok(Detection::Workers);
        }
        let is_prepared = self.format.is_prepared(store);
        Ok(if is_prepared { Detection::Empty } else { Detection::Other })
    }

    fn find_workers(&self, store: &dyn Store) -> Result<Candidates> {
        let mut found = match &self.only {
            Some(path) => Candidates { folders: vec![path.clone()], ..Candidates::default() },
            None => {
                self.recognized.filter(store, self.format, self.format.find_transcripts(store)?)
            }
        };
        self.open_databases(store, &mut found);
        self.folders.refresh(store, self.format, &found.folders);
        let again = self.listed.swap(true, Ordering::Relaxed);
        let budget = if again { LATER_SCAN_BYTES } else { FIRST_SCAN_BYTES };
        found.incomplete = self.index_newest(store, &found.folders, budget, again);
        let nested = found.folders.iter().flat_map(|path| {
            let agents = self.transcripts.agents(path);
            agents.iter().map(|agent| path.join(agent)).collect::<Vec<_>>()
        });
        // Some programs record a worker inside a transcript and also in one of its own. The latter
        // is complete, so it wins.
        let separate: HashSet<WorkerIdentity> =
            found.folders.iter().filter_map(|path| self.identity(path)).collect();
        let nested: Vec<RelPath> = nested.filter(|path| !self.contains(&separate, path)).collect();
        found.folders.retain(|path| self.holds(path) != Some(Holds::Nested));
        found.folders.extend(nested);
        Ok(found)
    }

    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.virtual_dir(store, path)?))
    }

    fn folder_state(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<FolderState>> {
        let metas = match as_virtual_dir(folder)?.source_metas() {
            Err(error) if error.is_not_found() => return Ok(None),
            metas => metas?,
        };
        let Some(own) = metas.first().filter(|own| own.kind == Kind::File) else { return Ok(None) };
        let mut hash = blake3::Hasher::new();
        hash.update(path.as_bytes());
        hash.update(&[0]);
        metas.iter().for_each(|meta| hash_meta(&mut hash, Some(meta)));
        let folder = as_virtual_dir(folder)?;
        for end in [folder.reported_end(None), folder.job_end()].into_iter().flatten() {
            let ReportedEnd { status, word, message, result } = &end;
            hash.update(&result.as_ref().map_or(0, |text| text.hash).to_le_bytes());
            for part in [status.as_str(), word, message] {
                hash.update(&[0]).update(part.as_bytes());
            }
        }
        let newest_write =
            metas.iter().fold(own.last_write(), |newest, meta| newest.max(meta.last_write()));
        let newest_change = metas.iter().fold(own.ctime, |newest, meta| newest.max(meta.ctime));
        Ok(Some(FolderState {
            identity: own.identity,
            key: digest(&hash),
            newest_write,
            newest_change,
        }))
    }

    fn read_worker(
        &self,
        folder: &dyn Store,
        path: &RelPath,
        last_good: Option<&Worker>,
    ) -> Worker {
        match as_virtual_dir(folder).and_then(|folder| worker::read_listing(folder, path)) {
            Ok(worker) => worker,
            // A later attempt may succeed.
            Err(error) => match last_good {
                Some(last_good) => Worker { is_complete: false, ..last_good.clone() },
                None => {
                    let name = self.format.locate(path).map(|location| location.name);
                    worker::unreadable_worker(name, path, &error)
                }
            },
        }
    }

    fn read_record(
        &self,
        source: super::RecordSource<'_>,
        last_good: &Worker,
        deadline: Deadline<'_>,
    ) -> Result<Record> {
        worker::read_record(as_virtual_dir(source.folder)?, &last_good.root, deadline)
    }

    fn records_edits(&self) -> bool {
        true
    }

    fn has_edits(&self, folder: &dyn Store, deadline: Deadline<'_>) -> Result<bool> {
        edits::has_edits(as_virtual_dir(folder)?, deadline)
    }

    fn read_changes(
        &self,
        source: super::RecordSource<'_>,
        deadline: Deadline<'_>,
    ) -> Result<RecordedChanges> {
        let edits = edits::read_edits(as_virtual_dir(source.folder)?, deadline)?;
        Ok(RecordedChanges::Edits(edits))
    }

    fn find_nested_workers(&self, store: &dyn Store, path: &RelPath, deadline: Deadline<'_>) {
        // A reader of the directory gets the error.
        if let Ok(folder) = self.virtual_dir(store, path) {
            let _ = folder.index(deadline);
        }
    }

    fn finished_is_final(&self) -> bool {
        // A user can resume a session at any time.
        false
    }

    fn has_virtual_folders(&self) -> bool {
        true
    }

    fn set_disk_cache(&mut self, cache: Arc<DiskCache>) {
        let min_size = cache.threshold(CACHED_SIZE_MIN);
        self.transcripts = Arc::new(TranscriptCache::new(Some(IndexStore { cache, min_size })));
    }
}

impl Transcripts {
    fn virtual_dir(&self, store: &dyn Store, path: &RelPath) -> Result<VirtualDir> {
        let location = self.format.locate(path).ok_or(Error::NotFound)?;
        let folder = self.folders.enter(store, &location.folder)?;
        let (format, transcripts) = (self.format, self.transcripts.clone());
        let job = self.format.job_folder(&location).and_then(|path| store.enter(&path).ok());
        let own = VirtualDir::new(folder, location, format, transcripts, self.only.is_none());
        Ok(own.with_job(job.map(Arc::from)))
    }

    fn holds(&self, path: &RelPath) -> Option<Holds> {
        self.format.locate(path).map(|location| location.holds)
    }

    /// Replaces each database and each log by the conversations in it. One that cannot be read is
    /// skipped.
    fn open_databases(&self, store: &dyn Store, found: &mut Candidates) {
        let containers = &self.transcripts.containers;
        for path in std::mem::take(&mut found.folders) {
            let location = self.format.locate(&path);
            let location = location.filter(|location| location.holds == Holds::Nested);
            let (ids, error) = match location.map(|location| location.container) {
                Some(Container::Database(layout)) => {
                    containers.databases.conversations(store, &path, layout)
                }
                Some(Container::Samples) => containers.logs.samples(store, &path),
                _ => {
                    found.folders.push(path);
                    continue;
                }
            };
            found.folders.extend(ids.iter().map(|id| path.join(id)));
            if error.is_some() {
                found.skipped.add(path, SkipReason::Unreadable, error);
            }
        }
    }

    /// Returns the identity of the subagent at `path`, or of another worker inside a transcript.
    fn identity(&self, path: &RelPath) -> Option<WorkerIdentity> {
        let location = self.format.locate(path)?;
        let is_nested = location.agent.is_some() || location.holds == Holds::One;
        is_nested.then_some((location.folder, location.session, location.name))
    }

    /// Returns true if `separate` has the worker at `path`, with its session or without one.
    fn contains(&self, separate: &HashSet<WorkerIdentity>, path: &RelPath) -> bool {
        self.identity(path).is_some_and(|(folder, session, name)| {
            [session, None]
                .into_iter()
                .any(|session| separate.contains(&(folder.clone(), session, name.clone())))
        })
    }

    /// Indexes new contents of those transcripts in `paths` that may hold further workers, newest
    /// first, within a budget in bytes. Reads the rest on a background thread if `in_background` is
    /// set. Returns the transcripts that exceeded the budget.
    fn index_newest(
        &self,
        store: &dyn Store,
        paths: &[RelPath],
        mut budget: u64,
        in_background: bool,
    ) -> Vec<RelPath> {
        let mut unread: Vec<(RelPath, Meta)> = paths
            .iter()
            .filter(|path| self.holds(path) != Some(Holds::One))
            .filter_map(|path| Some((path.clone(), store.stat(path).ok()?)))
            .filter(|(path, meta)| {
                !self.transcripts.is_indexed(path, TranscriptVersion::new(*meta))
            })
            .collect();
        unread.sort_by(|(a, a_meta), (b, b_meta)| {
            b_meta.mtime.cmp(&a_meta.mtime).then_with(|| a.cmp(b))
        });
        let (mut queue, mut incomplete) = (Vec::new(), Vec::new());
        for (path, meta) in unread {
            let new = meta.size.saturating_sub(self.transcripts.bytes_read(&path));
            // A reader of the directory gets the error.
            let Ok(folder) = self.virtual_dir(store, &path) else { continue };
            if new <= budget {
                budget -= new;
                let _ = folder.index(Deadline::never());
            } else {
                queue.push(folder);
                incomplete.push(path);
            }
        }
        let present: HashSet<&RelPath> = paths.iter().collect();
        self.transcripts.retain(&|path| present.contains(path));
        if in_background && !queue.is_empty() {
            queue.reverse();
            self.background.read(queue);
        }
        incomplete
    }
}

/// The directory of a worker's transcript, its session if its path names one, and its name.
type WorkerIdentity = (RelPath, Option<Name>, Name);

fn as_virtual_dir(store: &dyn Store) -> Result<&VirtualDir> {
    let any: &dyn Any = store;
    any.downcast_ref().ok_or(Error::NotFound)
}
