//! The transcripts of Claude Code: a file of JSON lines for each session, and for each subagent one of its own or lines
//! in its session's.
//!
//! Every conversation is a worker, and its folder is made out of its transcript when it is looked into: nothing is
//! written anywhere. What is known of a transcript is kept, and gone on from when it grows.

mod facts;
mod folder;
mod layout;
mod line;
mod read;
mod thread;
mod transcripts;
mod worker;

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::folder::Folder;
use self::layout::Place;
use self::transcripts::{Mark, Transcripts};
use super::{Fit, Format, Found, Glance};
use crate::error::{Error, Result};
use crate::model::{Record, Worker};
use crate::name::{Name, RelPath};
use crate::store::{Meta, Store};

/// How much of the transcripts is read to find the subagents that are told inside of them, in bytes: when a store is
/// listed for the first time, and each time after that.
const READ_FIRST: u64 = 64 << 20;
const READ_LATER: u64 = 16 << 20;

/// The format of Claude Code's transcripts, for one store.
pub struct ClaudeCode {
    transcripts: Arc<Transcripts>,
    listed: AtomicBool,
}

impl Default for ClaudeCode {
    fn default() -> ClaudeCode {
        ClaudeCode { transcripts: Arc::new(Transcripts::new()), listed: AtomicBool::new(false) }
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
        let left = if self.listed.swap(true, Ordering::Relaxed) { READ_LATER } else { READ_FIRST };
        found.unread = self.read_some(store, &found.folders, left)?;
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
        Ok(Box::new(Folder::enter(store, path, self.transcripts.clone())?))
    }

    fn glance(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<Glance>> {
        let own = match folder.stat(&RelPath::root()) {
            Err(error) if error.is_nowhere() => return Ok(None),
            own => own?,
        };
        let metas = self::folder(folder)?.sources()?;
        let mut hash = blake3::Hasher::new();
        hash.update(path.as_bytes());
        for meta in &metas {
            hash.update(format!("{:?}", (meta.identity, meta.size, meta.mtime, meta.ctime)).as_bytes());
        }
        let mut key = [0; 16];
        hash.finalize_xof().fill(&mut key);
        let newest = metas.iter().map(|meta| meta.mtime).max().unwrap_or(own.mtime);
        Ok(Some(Glance { identity: own.identity, key, newest }))
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

    fn finishes(&self) -> bool {
        // Who sends another message goes on with a session, whenever that is.
        false
    }

    fn makes_folders(&self) -> bool {
        true
    }
}

impl ClaudeCode {
    /// Reads what is new in some of the transcripts, the newest first, at most about `left` bytes. How many are left.
    fn read_some(&self, store: &dyn Store, paths: &[RelPath], mut left: u64) -> Result<u64> {
        let of_session = |path: &&RelPath| Place::of(path).is_some_and(|place| place.whose == read::Whose::Session);
        let stat = |path: &RelPath| store.stat(path).ok().map(|meta: Meta| (path.clone(), meta));
        let mut unread: Vec<(RelPath, Meta)> = paths
            .iter()
            .filter(of_session)
            .filter_map(stat)
            .filter(|(path, meta)| !self.transcripts.was_read(path, Mark::of(*meta)))
            .collect();
        unread.sort_by(|(a, a_meta), (b, b_meta)| b_meta.mtime.cmp(&a_meta.mtime).then_with(|| a.cmp(b)));
        let mut later = 0;
        for (path, meta) in unread {
            if meta.size > left {
                later += 1;
                continue;
            }
            left -= meta.size;
            // Whoever looks into it is told why it cannot be read.
            if let Ok(folder) = Folder::enter(store, &path, self.transcripts.clone()) {
                let _ = folder.facts(&|| true);
            }
        }
        let there: HashSet<&RelPath> = paths.iter().collect();
        self.transcripts.keep(&|path| there.contains(path));
        Ok(later)
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
