//! The format of Claude Code transcripts. Each session is a file of JSON lines. A subagent has a
//! file of its own, or lines in its session's file.
//!
//! Every conversation is a worker. Its directory is generated from its transcript when it is read,
//! and nothing is written. The index of a transcript is cached and extended when the transcript
//! grows.

mod cache;
mod cached_transcript;
mod edits;
mod index;
mod layout;
mod open_file;
mod parser;
mod persist;
mod requests;
mod schema;
mod summaries;
mod thread;
mod virtual_dir;
mod worker;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::cache::TranscriptCache;
use self::cached_transcript::TranscriptVersion;
use self::layout::{TranscriptKind, TranscriptLocation};
use self::persist::IndexStore;
use self::virtual_dir::VirtualDir;
use super::meta::hash_meta;
use super::{Candidates, Detection, FolderState, Format};
use crate::cache::DiskCache;
use crate::deadline::Deadline;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::{Record, RecordedEdits, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Meta, Store};

/// Number of bytes of transcripts read to find subagents when a store is first listed.
const FIRST_SCAN_BYTES: u64 = 32 << 20;
/// Number of bytes of transcripts read to find subagents each time a store is listed again.
const LATER_SCAN_BYTES: u64 = 16 << 20;
/// Minimum size of a transcript whose index is cached on disk, in bytes.
const CACHED_SIZE_MIN: u64 = 64 << 10;
/// Maximum number of project directories held open.
const PROJECTS_MAX: usize = 256;

/// The format of Claude Code transcripts, for one store.
pub struct ClaudeCode {
    transcripts: Arc<TranscriptCache>,
    projects: ProjectFolders,
    background: Arc<Background>,
    listed: AtomicBool,
    /// The only transcript to read, or `None` for all.
    only: Option<RelPath>,
}

impl Default for ClaudeCode {
    fn default() -> ClaudeCode {
        ClaudeCode::new(None)
    }
}

impl ClaudeCode {
    /// Creates a format that stores the indexes of transcripts of at least `min_size` bytes in
    /// `cache`.
    pub fn with_cache(cache: Arc<DiskCache>, min_size: u64) -> ClaudeCode {
        ClaudeCode::new(Some(IndexStore { cache, min_size }))
    }

    /// Creates a format whose store holds only the worker of the transcript at `path`. Nothing else
    /// is listed.
    pub fn only(path: RelPath) -> ClaudeCode {
        ClaudeCode { only: Some(path), ..ClaudeCode::default() }
    }

    /// Splits the path of a transcript into the directory of its project and its path from there.
    /// Returns `None` if the name is not that of a transcript.
    pub fn locate(path: &Path) -> Option<(&Path, RelPath)> {
        layout::locate(path)
    }

    fn new(disk: Option<IndexStore>) -> ClaudeCode {
        ClaudeCode {
            transcripts: Arc::new(TranscriptCache::new(disk)),
            projects: ProjectFolders::default(),
            background: Arc::default(),
            listed: AtomicBool::new(false),
            only: None,
        }
    }
}

impl Format for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude-code"
    }

    fn worker_description(&self) -> &'static str {
        "a transcript"
    }

    fn detect(&self, store: &dyn Store) -> Result<Detection> {
        match &self.only {
            Some(path) => layout::detect_transcript(store, path),
            None => layout::detect(store),
        }
    }

    fn find_workers(&self, store: &dyn Store) -> Result<Candidates> {
        let mut found = match &self.only {
            Some(path) => Candidates { folders: vec![path.clone()], ..Candidates::default() },
            None => layout::find_workers(store)?,
        };
        self.projects.refresh(store, &found.folders);
        let again = self.listed.swap(true, Ordering::Relaxed);
        let budget = if again { LATER_SCAN_BYTES } else { FIRST_SCAN_BYTES };
        found.incomplete = self.index_newest(store, &found.folders, budget, again);
        let nested = found.folders.iter().flat_map(|path| {
            let agents = self.transcripts.agents(path);
            agents.iter().map(|agent| path.join(agent)).collect::<Vec<_>>()
        });
        // Some versions record a subagent in its session and also in a transcript of its own. The
        // transcript is complete, so it wins.
        let separate: HashSet<AgentIdentity> =
            found.folders.iter().filter_map(agent_identity).collect();
        let nested: Vec<RelPath> = nested.filter(|path| !contains_agent(&separate, path)).collect();
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
                None => worker::unreadable_worker(path, &error),
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

    fn read_edits(
        &self,
        source: super::RecordSource<'_>,
        deadline: Deadline<'_>,
    ) -> Result<RecordedEdits> {
        edits::read_edits(as_virtual_dir(source.folder)?, deadline)
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
        let only = self.only.take();
        *self = ClaudeCode { only, ..ClaudeCode::with_cache(cache, min_size) };
    }
}

impl ClaudeCode {
    fn virtual_dir(&self, store: &dyn Store, path: &RelPath) -> Result<VirtualDir> {
        let location = TranscriptLocation::from_path(path).ok_or(Error::NotFound)?;
        let project = self.projects.enter(store, &location.project)?;
        Ok(VirtualDir::new(project, location, self.transcripts.clone()))
    }

    /// Indexes new contents of the sessions in `paths`, newest first, within a budget in bytes.
    /// Reads the rest on a background thread if `in_background` is set. Returns the sessions that
    /// exceeded the budget.
    fn index_newest(
        &self,
        store: &dyn Store,
        paths: &[RelPath],
        mut budget: u64,
        in_background: bool,
    ) -> Vec<RelPath> {
        let mut unread: Vec<(RelPath, Meta)> = paths
            .iter()
            .filter(|path| is_session(path))
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

/// Indexes transcripts on a background thread, which ends when the queue is empty. A serving thread
/// starts it, never the thread that opened the store, so it inherits the restrictions of the
/// former.
#[derive(Default)]
struct Background {
    /// Transcripts to read; the last one is next.
    queue: Mutex<Vec<VirtualDir>>,
    running: AtomicBool,
}

impl Background {
    fn read(self: &Arc<Background>, folders: Vec<VirtualDir>) {
        *self.queue.lock() = folders;
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = BackgroundGuard(Arc::downgrade(self));
        if let Err(error) =
            std::thread::Builder::new().name("transcripts".into()).spawn(|| index_queue(running))
        {
            tracing::warn!("cannot read transcripts in the background: {error}");
        }
    }
}

/// Indexes the queued transcripts until none is left or the format is dropped.
fn index_queue(running: BackgroundGuard) {
    while let Some(folder) =
        running.0.upgrade().and_then(|background| background.queue.lock().pop())
    {
        let _ = folder.index(Deadline::never());
    }
}

/// Clears [`Background::running`] when the thread ends for any reason, so that another can start.
struct BackgroundGuard(Weak<Background>);

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        if let Some(background) = self.0.upgrade() {
            background.running.store(false, Ordering::Release);
        }
    }
}

/// Project directories, entered once and reused by every access to a worker.
#[derive(Default)]
struct ProjectFolders(Mutex<HashMap<RelPath, Arc<dyn Store>>>);

impl ProjectFolders {
    fn enter(&self, store: &dyn Store, project: &RelPath) -> Result<Arc<dyn Store>> {
        let held = self.0.lock().get(project).cloned();
        match held {
            Some(held) => Ok(held),
            None => store.enter(project).map(Into::into),
        }
    }

    /// Reopens directories that were replaced, and drops those that are gone.
    fn refresh(&self, store: &dyn Store, transcripts: &[RelPath]) {
        let wanted: HashSet<RelPath> = transcripts
            .iter()
            .filter_map(TranscriptLocation::from_path)
            .map(|location| location.project)
            .collect();
        let held = self.0.lock().clone();
        let fresh = wanted.into_iter().take(PROJECTS_MAX).filter_map(|path| {
            let current = store.stat(&path).ok()?.identity;
            let entered = match held.get(&path) {
                Some(held)
                    if held.stat(&RelPath::root()).is_ok_and(|meta| meta.identity == current) =>
                {
                    held.clone()
                }
                _ => store.enter(&path).ok()?.into(),
            };
            Some((path, entered))
        });
        *self.0.lock() = fresh.collect();
    }
}

/// Returns true if `path` is the transcript of a session, not of a subagent.
fn is_session(path: &RelPath) -> bool {
    TranscriptLocation::from_path(path)
        .is_some_and(|location| location.kind == TranscriptKind::Session)
}

/// The project of a subagent, its session if its path names one, and its name.
type AgentIdentity = (RelPath, Option<Name>, Name);

/// Returns the identity of the subagent at `path`.
fn agent_identity(path: &RelPath) -> Option<AgentIdentity> {
    let location = TranscriptLocation::from_path(path)
        .filter(|location| location.kind == TranscriptKind::Agent || location.agent.is_some())?;
    let name = location.worker_name()?;
    Some((location.project, location.session, name))
}

/// Returns true if `separate` has the subagent at `path`, with its session or without one.
fn contains_agent(separate: &HashSet<AgentIdentity>, path: &RelPath) -> bool {
    agent_identity(path).is_some_and(|(project, session, name)| {
        [session, None]
            .into_iter()
            .any(|session| separate.contains(&(project.clone(), session, name.clone())))
    })
}

/// Returns `store` as the virtual directory that this format created.
fn as_virtual_dir(store: &dyn Store) -> Result<&VirtualDir> {
    let any: &dyn Any = store;
    any.downcast_ref().ok_or(Error::NotFound)
}
