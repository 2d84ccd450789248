//! The transcripts of Claude Code: a file of JSON lines for each session, and for each subagent one of its own or lines
//! in its session's.
//!
//! Every conversation is a worker, and its folder is made out of its transcript when it is looked into: nothing is
//! written anywhere. What is known of a transcript is kept, and gone on from when it grows.

mod cache;
mod index;
mod layout;
mod open_file;
mod parser;
mod persist;
mod schema;
mod thread;
mod virtual_dir;
mod worker;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::cache::{TranscriptCache, TranscriptVersion};
use self::layout::WorkerLocation;
use self::persist::IndexStore;
use self::virtual_dir::VirtualDir;
use super::meta::hash_meta;
use super::{Candidates, Detection, FolderState, Format};
use crate::cache::DiskCache;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::{Record, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Meta, Store};

/// How much of the transcripts is read to find the subagents that are told inside of them, in bytes: when a store is
/// listed for the first time, and each time after that.
const FIRST_SCAN_BYTES: u64 = 32 << 20;
const LATER_SCAN_BYTES: u64 = 16 << 20;
/// Of transcripts that are smaller than this nothing is kept on disk: in bytes.
const CACHED_SIZE_MIN: u64 = 64 << 10;
/// So many folders of projects are held open.
const PROJECTS_MAX: usize = 256;

/// The format of Claude Code's transcripts, for one store.
pub struct ClaudeCode {
    transcripts: Arc<TranscriptCache>,
    projects: ProjectFolders,
    background: Arc<Background>,
    listed: AtomicBool,
}

impl Default for ClaudeCode {
    fn default() -> ClaudeCode {
        ClaudeCode::with(None)
    }
}

impl ClaudeCode {
    /// The same, which keeps in `cache` what it read of transcripts of at least `min_size` bytes.
    pub fn with_cache(cache: Arc<DiskCache>, min_size: u64) -> ClaudeCode {
        ClaudeCode::with(Some(IndexStore { cache, min_size }))
    }

    fn with(kept: Option<IndexStore>) -> ClaudeCode {
        ClaudeCode {
            transcripts: Arc::new(TranscriptCache::new(kept)),
            projects: ProjectFolders::default(),
            background: Arc::default(),
            listed: AtomicBool::new(false),
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
        layout::detect(store)
    }

    fn find_workers(&self, store: &dyn Store) -> Result<Candidates> {
        let mut found = layout::find_workers(store)?;
        self.projects.refresh(store, &found.folders);
        let again = self.listed.swap(true, Ordering::Relaxed);
        let left = if again { LATER_SCAN_BYTES } else { FIRST_SCAN_BYTES };
        found.incomplete = self.index_newest(store, &found.folders, left, again);
        let inside = found.folders.iter().flat_map(|path| {
            let agents = self.transcripts.agents(path);
            agents.iter().map(|agent| path.join(agent)).collect::<Vec<_>>()
        });
        // Some versions told of a subagent in its session and gave it a transcript of its own besides, which is all of it.
        let own: HashSet<(RelPath, Option<Name>, Name)> = found.folders.iter().filter_map(agent_identity).collect();
        let is_twice = |path: &RelPath| {
            let (project, session, name) = agent_identity(path)?;
            let of = |session| own.contains(&(project.clone(), session, name.clone()));
            Some(of(session) || of(None))
        };
        let inside: Vec<RelPath> = inside.filter(|path| is_twice(path) != Some(true)).collect();
        found.folders.extend(inside);
        Ok(found)
    }

    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.virtual_dir(store, path)?))
    }

    fn folder_state(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<FolderState>> {
        let metas = match as_virtual_dir(folder)?.source_metas() {
            Err(error) if error.is_nowhere() => return Ok(None),
            metas => metas?,
        };
        let Some(own) = metas.first().filter(|own| own.kind == Kind::File) else { return Ok(None) };
        let mut hash = blake3::Hasher::new();
        hash.update(path.as_bytes());
        hash.update(&[0]);
        metas.iter().for_each(|meta| hash_meta(&mut hash, Some(meta)));
        let newest_write =
            metas.iter().fold(own.last_write(), |newest_write, meta| newest_write.max(meta.last_write()));
        let newest_change = metas.iter().fold(own.ctime, |newest_write, meta| newest_write.max(meta.ctime));
        Ok(Some(FolderState { identity: own.identity, key: digest(&hash), newest_write, newest_change }))
    }

    fn read_worker(&self, folder: &dyn Store, path: &RelPath, last_good: Option<&Worker>) -> Worker {
        match as_virtual_dir(folder).and_then(|folder| worker::read_listing(folder, path)) {
            Ok(worker) => worker,
            // Another time it perhaps can be read.
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
        go_on: &dyn Fn() -> bool,
    ) -> Result<Record> {
        worker::read_record(as_virtual_dir(source.folder)?, &last_good.root, go_on)
    }

    fn find_nested_workers(&self, store: &dyn Store, path: &RelPath, go_on: &dyn Fn() -> bool) {
        // Whoever looks into it is told why it cannot be read.
        if let Ok(folder) = self.virtual_dir(store, path) {
            let _ = folder.index(go_on);
        }
    }

    fn finished_is_final(&self) -> bool {
        // Who sends another message goes on with a session, whenever that is.
        false
    }

    fn has_virtual_folders(&self) -> bool {
        true
    }

    fn set_disk_cache(&mut self, cache: Arc<DiskCache>) {
        let min_size = cache.worth(CACHED_SIZE_MIN);
        *self = ClaudeCode::with_cache(cache, min_size);
    }
}

impl ClaudeCode {
    fn virtual_dir(&self, store: &dyn Store, path: &RelPath) -> Result<VirtualDir> {
        let location = WorkerLocation::from_path(path).ok_or(Error::NotFound)?;
        let project = self.projects.enter(store, &location.project)?;
        Ok(VirtualDir::new(project, location, self.transcripts.clone()))
    }

    /// Reads what is new in the transcripts, the newest first: about `left` bytes at once, the rest behind the reader's
    /// back. Which are left.
    fn index_newest(&self, store: &dyn Store, paths: &[RelPath], mut left: u64, behind: bool) -> Vec<RelPath> {
        let of_session = |path: &&RelPath| {
            WorkerLocation::from_path(path).is_some_and(|location| location.kind == parser::TranscriptKind::Session)
        };
        let stat = |path: &RelPath| store.stat(path).ok().map(|meta: Meta| (path.clone(), meta));
        let mut unread: Vec<(RelPath, Meta)> = paths
            .iter()
            .filter(of_session)
            .filter_map(stat)
            .filter(|(path, meta)| !self.transcripts.is_indexed(path, TranscriptVersion::new(*meta)))
            .collect();
        unread.sort_by(|(a, a_meta), (b, b_meta)| b_meta.mtime.cmp(&a_meta.mtime).then_with(|| a.cmp(b)));
        let (mut later, mut unread_yet) = (Vec::new(), Vec::new());
        for (path, meta) in unread {
            let new = meta.size.saturating_sub(self.transcripts.bytes_read(&path));
            // Whoever looks into it is told why it cannot be read.
            let Ok(folder) = self.virtual_dir(store, &path) else { continue };
            if new <= left {
                left -= new;
                let _ = folder.index(&|| true);
            } else {
                later.push(folder);
                unread_yet.push(path);
            }
        }
        let there: HashSet<&RelPath> = paths.iter().collect();
        self.transcripts.retain(&|path| there.contains(path));
        if behind && !later.is_empty() {
            later.reverse();
            self.background.read(later);
        }
        unread_yet
    }
}

/// Reads transcripts while nobody waits for them. The thread ends when there is nothing left to read. It is started by
/// one that serves, never by the one that opened the store, and so may do no more than those may.
#[derive(Default)]
struct Background {
    /// The next one last.
    queue: Mutex<Vec<VirtualDir>>,
    running: AtomicBool,
}

impl Background {
    fn read(self: &Arc<Background>, folders: Vec<VirtualDir>) {
        *self.queue.lock() = folders;
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = RunningGuard(Arc::downgrade(self));
        let read = move || {
            // Whose format is gone, nobody reads for.
            let next = || running.0.upgrade().and_then(|background| background.queue.lock().pop());
            while let Some(folder) = next() {
                let _ = folder.index(&|| true);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("transcripts".into()).spawn(read) {
            tracing::warn!("transcripts cannot be read in the background: {error}");
        }
    }
}

/// Held by the thread that reads; another may be started once it is dropped, for whatever reason that is.
struct RunningGuard(Weak<Background>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        if let Some(background) = self.0.upgrade() {
            background.running.store(false, Ordering::Release);
        }
    }
}

/// The folders of projects, entered once and kept: every look at a worker goes through one.
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

    /// Enters those anew whose place another folder has taken, and forgets those that are gone.
    fn refresh(&self, store: &dyn Store, transcripts: &[RelPath]) {
        let wanted: HashSet<RelPath> =
            transcripts.iter().filter_map(WorkerLocation::from_path).map(|location| location.project).collect();
        let held = self.0.lock().clone();
        let fresh = wanted.into_iter().take(PROJECTS_MAX).filter_map(|path| {
            let is = |meta: Result<Meta>| meta.ok().map(|meta| meta.identity);
            let now = is(store.stat(&path))?;
            let held = held.get(&path).filter(|held| is(held.stat(&RelPath::root())) == Some(now)).cloned();
            let entered = held.or_else(|| store.enter(&path).ok().map(Into::into))?;
            Some((path, entered))
        });
        *self.0.lock() = fresh.collect();
    }
}

/// Of the place of a subagent: its project, its session where its place tells that, and its name.
fn agent_identity(path: &RelPath) -> Option<(RelPath, Option<Name>, Name)> {
    let location = WorkerLocation::from_path(path)
        .filter(|location| location.kind == parser::TranscriptKind::Agent || location.agent.is_some())?;
    let name = location.worker_name()?;
    Some((location.project, location.session, name))
}

/// The folder as this format made it.
fn as_virtual_dir(store: &dyn Store) -> Result<&VirtualDir> {
    let any: &dyn Any = store;
    any.downcast_ref().ok_or(Error::NotFound)
}
