//! The transcripts of Claude Code: a file of JSON lines for each session, and for each subagent one of its own or lines
//! in its session's.
//!
//! Every conversation is a worker, and its folder is made out of its transcript when it is looked into: nothing is
//! written anywhere. What is known of a transcript is kept, and gone on from when it grows.

mod facts;
mod folder;
mod kept;
mod layout;
mod line;
mod lines;
mod read;
mod thread;
mod transcripts;
mod worker;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::folder::Folder;
use self::kept::Kept;
use self::layout::Place;
use self::transcripts::{Mark, Transcripts};
use super::meta::hash_meta;
use super::{Fit, Format, Found, Glance};
use crate::cache::DiskCache;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::{Record, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Kind, Meta, Store};

/// How much of the transcripts is read to find the subagents that are told inside of them, in bytes: when a store is
/// listed for the first time, and each time after that.
const READ_FIRST: u64 = 32 << 20;
const READ_LATER: u64 = 16 << 20;
/// Of transcripts that are smaller than this nothing is kept on disk: in bytes.
const WORTH_KEEPING: u64 = 64 << 10;
/// So many folders of projects are held open.
const PROJECTS_MAX: usize = 256;

/// The format of Claude Code's transcripts, for one store.
pub struct ClaudeCode {
    transcripts: Arc<Transcripts>,
    projects: Projects,
    background: Arc<Background>,
    listed: AtomicBool,
}

impl Default for ClaudeCode {
    fn default() -> ClaudeCode {
        ClaudeCode::with(None)
    }
}

impl ClaudeCode {
    /// The same, which keeps in `cache` what it read of transcripts of at least `least` bytes.
    pub fn keeping(cache: Arc<DiskCache>, least: u64) -> ClaudeCode {
        ClaudeCode::with(Some(Kept { cache, least }))
    }

    fn with(kept: Option<Kept>) -> ClaudeCode {
        ClaudeCode {
            transcripts: Arc::new(Transcripts::new(kept)),
            projects: Projects::default(),
            background: Arc::default(),
            listed: AtomicBool::new(false),
        }
    }
}

impl Format for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude-code"
    }

    fn sign(&self) -> &'static str {
        "a transcript"
    }

    fn fit(&self, store: &dyn Store) -> Result<Fit> {
        layout::fit(store)
    }

    fn find(&self, store: &dyn Store) -> Result<Found> {
        let mut found = layout::find(store)?;
        self.projects.refresh(store, &found.folders);
        let again = self.listed.swap(true, Ordering::Relaxed);
        let left = if again { READ_LATER } else { READ_FIRST };
        found.unread = self.read_some(store, &found.folders, left, again);
        let inside = found.folders.iter().flat_map(|path| {
            let agents = self.transcripts.agents(path);
            agents.iter().map(|agent| path.join(agent)).collect::<Vec<_>>()
        });
        // Some versions told of a subagent in its session and gave it a transcript of its own besides, which is all of it.
        let own: HashSet<(RelPath, Option<Name>, Name)> = found.folders.iter().filter_map(agent).collect();
        let is_twice = |path: &RelPath| {
            let (project, session, name) = agent(path)?;
            let of = |session| own.contains(&(project.clone(), session, name.clone()));
            Some(of(session) || of(None))
        };
        let inside: Vec<RelPath> = inside.filter(|path| is_twice(path) != Some(true)).collect();
        found.folders.extend(inside);
        Ok(found)
    }

    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.folder(store, path)?))
    }

    fn glance(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<Glance>> {
        let metas = match self::folder(folder)?.sources() {
            Err(error) if error.is_nowhere() => return Ok(None),
            metas => metas?,
        };
        let Some(own) = metas.first().filter(|own| own.kind == Kind::File) else { return Ok(None) };
        let mut hash = blake3::Hasher::new();
        hash.update(path.as_bytes());
        hash.update(&[0]);
        metas.iter().for_each(|meta| hash_meta(&mut hash, Some(meta)));
        let newest = metas.iter().fold(own.last_write(), |newest, meta| newest.max(meta.last_write()));
        let newest_change = metas.iter().fold(own.ctime, |newest, meta| newest.max(meta.ctime));
        Ok(Some(Glance { identity: own.identity, key: digest(&hash), newest, newest_change }))
    }

    fn worker(&self, folder: &dyn Store, path: &RelPath, last_good: Option<&Worker>) -> Worker {
        match self::folder(folder).and_then(|folder| worker::listed(folder, path)) {
            Ok(worker) => worker,
            // Another time it perhaps can be read.
            Err(error) => match last_good {
                Some(last_good) => Worker { whole: false, ..last_good.clone() },
                None => worker::unread(path, &error),
            },
        }
    }

    fn record(&self, place: super::Place<'_>, last_good: &Worker, go_on: &dyn Fn() -> bool) -> Result<Record> {
        worker::record(folder(place.folder)?, &last_good.root, go_on)
    }

    fn read_on(&self, store: &dyn Store, path: &RelPath, go_on: &dyn Fn() -> bool) {
        // Whoever looks into it is told why it cannot be read.
        if let Ok(folder) = self.folder(store, path) {
            let _ = folder.facts(go_on);
        }
    }

    fn finishes(&self) -> bool {
        // Who sends another message goes on with a session, whenever that is.
        false
    }

    fn makes_folders(&self) -> bool {
        true
    }

    fn keep_in(&mut self, cache: Arc<DiskCache>) {
        let least = cache.threshold(WORTH_KEEPING);
        *self = ClaudeCode::keeping(cache, least);
    }
}

impl ClaudeCode {
    fn folder(&self, store: &dyn Store, path: &RelPath) -> Result<Folder> {
        let place = Place::of(path).ok_or(Error::NotFound)?;
        let project = self.projects.enter(store, &place.project)?;
        Ok(Folder::of(project, place, self.transcripts.clone()))
    }

    /// Reads what is new in the transcripts, the newest first: about `left` bytes at once, the rest behind the reader's
    /// back. Which are left.
    fn read_some(&self, store: &dyn Store, paths: &[RelPath], mut left: u64, behind: bool) -> Vec<RelPath> {
        let of_session = |path: &&RelPath| Place::of(path).is_some_and(|place| place.whose == read::Whose::Session);
        let stat = |path: &RelPath| store.stat(path).ok().map(|meta: Meta| (path.clone(), meta));
        let mut unread: Vec<(RelPath, Meta)> = paths
            .iter()
            .filter(of_session)
            .filter_map(stat)
            .filter(|(path, meta)| !self.transcripts.was_read(path, Mark::of(*meta)))
            .collect();
        unread.sort_by(|(a, a_meta), (b, b_meta)| b_meta.mtime.cmp(&a_meta.mtime).then_with(|| a.cmp(b)));
        let (mut later, mut unread_yet) = (Vec::new(), Vec::new());
        for (path, meta) in unread {
            let new = meta.size.saturating_sub(self.transcripts.read_of(&path));
            // Whoever looks into it is told why it cannot be read.
            let Ok(folder) = self.folder(store, &path) else { continue };
            if new <= left {
                left -= new;
                let _ = folder.facts(&|| true);
            } else {
                later.push(folder);
                unread_yet.push(path);
            }
        }
        let there: HashSet<&RelPath> = paths.iter().collect();
        self.transcripts.keep(&|path| there.contains(path));
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
    queue: Mutex<Vec<Folder>>,
    running: AtomicBool,
}

impl Background {
    fn read(self: &Arc<Background>, folders: Vec<Folder>) {
        *self.queue.lock() = folders;
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(Arc::downgrade(self));
        let read = move || {
            // Whose format is gone, nobody reads for.
            let next = || running.0.upgrade().and_then(|background| background.queue.lock().pop());
            while let Some(folder) = next() {
                let _ = folder.facts(&|| true);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("transcripts".into()).spawn(read) {
            tracing::warn!("transcripts cannot be read in the background: {error}");
        }
    }
}

/// Held by the thread that reads; another may be started once it is dropped, for whatever reason that is.
struct Running(Weak<Background>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(background) = self.0.upgrade() {
            background.running.store(false, Ordering::Release);
        }
    }
}

/// The folders of projects, entered once and kept: every look at a worker goes through one.
#[derive(Default)]
struct Projects(Mutex<HashMap<RelPath, Arc<dyn Store>>>);

impl Projects {
    fn enter(&self, store: &dyn Store, project: &RelPath) -> Result<Arc<dyn Store>> {
        let held = self.0.lock().get(project).cloned();
        match held {
            Some(held) => Ok(held),
            None => store.enter(project).map(Into::into),
        }
    }

    /// Enters those anew whose place another folder has taken, and forgets those that are gone.
    fn refresh(&self, store: &dyn Store, transcripts: &[RelPath]) {
        let wanted: HashSet<RelPath> = transcripts.iter().filter_map(Place::of).map(|place| place.project).collect();
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
fn agent(path: &RelPath) -> Option<(RelPath, Option<Name>, Name)> {
    let place = Place::of(path).filter(|place| place.whose == read::Whose::Agent || place.agent.is_some())?;
    let name = place.name()?;
    Some((place.project, place.session, name))
}

/// The folder as this format made it.
fn folder(store: &dyn Store) -> Result<&Folder> {
    let any: &dyn Any = store;
    any.downcast_ref().ok_or(Error::NotFound)
}
