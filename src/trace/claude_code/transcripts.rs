//! What is known of the transcripts of a store, kept as far as memory goes and brought up to date when asked for.
//!
//! Locks: one of `reading` is held while a transcript is read, so that who asks for the same one at the same time waits
//! for that instead of reading it too; `agents` for a moment. No other lock is taken meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::facts::Facts;
use super::kept::Kept;
use super::read::{Whose, read_on};
use crate::cache::single_shard;
use crate::error::Result;
use crate::name::{Name, RelPath};
use crate::store::{File, Meta, read_range};

/// How much is kept in memory, in bytes.
const KEPT: u64 = 64 << 20;
/// About how many transcripts that is.
const ABOUT: usize = 10_000;
/// How much of both ends of what was read is looked at to see whether it still is the same, in bytes.
const ENDS: u64 = 4_096;
/// How many transcripts are read at the same time.
const AT_ONCE: usize = 16;

pub(super) struct Transcripts {
    known: Cache<RelPath, Arc<Known>, ByMemory>,
    reading: [Mutex<()>; AT_ONCE],
    hasher: RandomState,
    agents: Mutex<HashMap<RelPath, Told>>,
    /// Where it is kept beyond the end of the process, if anywhere.
    kept: Option<Kept>,
}

/// The subagents that are told inside of a transcript, as far as it was read.
struct Told {
    /// What the transcript was when all of it was read.
    mark: Option<Mark>,
    agents: Arc<[Name]>,
}

/// A transcript as it was when it was read.
pub(super) struct Known {
    pub(super) mark: Mark,
    /// A hash of both ends of what was read.
    pub(super) ends: [u8; 32],
    pub(super) facts: Arc<Facts>,
    /// Whether all of it was read that was there.
    pub(super) whole: bool,
    /// How much of it is kept on disk, in bytes.
    pub(super) kept: u64,
}

/// What stat tells of a transcript.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(Meta);

impl Mark {
    /// The same for every meta of a file that did not change.
    pub(super) fn of(meta: Meta) -> Mark {
        // Who may read it, and under how many names it stands, changes nothing in it.
        Mark(Meta { mode: 0, uid: 0, gid: 0, nlink: 0, ..meta })
    }

    /// As it was taken, but for what changes nothing.
    pub(super) fn meta(self) -> Meta {
        self.0
    }
}

#[derive(Clone)]
struct ByMemory;

impl Weighter<RelPath, Arc<Known>> for ByMemory {
    fn weight(&self, _: &RelPath, known: &Arc<Known>) -> u64 {
        known.facts.weight()
    }
}

impl Transcripts {
    pub(super) fn new(kept: Option<Kept>) -> Transcripts {
        Transcripts {
            known: single_shard(ABOUT, KEPT, ByMemory),
            reading: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            agents: Mutex::new(HashMap::new()),
            kept,
        }
    }

    /// What `file` tells, which lies at `path` in the store. What was read before is gone on from, until `go_on` says
    /// no; the rest is then read another time. Whether that was all.
    pub(super) fn facts(
        &self,
        path: &RelPath,
        file: &dyn File,
        whose: Whose,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(Arc<Facts>, bool)> {
        let fresh = |mark: Mark| self.known.get(path).filter(|known| known.whole && known.mark == mark);
        let mark = Mark::of(file.meta()?);
        if let Some(known) = fresh(mark) {
            return Ok((known.facts.clone(), true));
        }
        let slot = self.hasher.hash_one(path) as usize % AT_ONCE;
        let _alone = self.reading.get(slot).map(Mutex::lock);
        // Before it is read: what comes meanwhile changes it again.
        let mark = Mark::of(file.meta()?);
        if let Some(known) = fresh(mark) {
            return Ok((known.facts.clone(), true));
        }
        let known = self.known.get(path).filter(|known| known.goes_on_in(mark));
        let known = known.or_else(|| self.kept.as_ref()?.get(path, mark).map(Arc::new));
        let (before, kept) = match known {
            Some(known) if ends(file, known.facts.read)? == known.ends => ((*known.facts).clone(), known.kept),
            _ => (Facts::default(), 0),
        };
        let (facts, whole) = read_on(file, whose, before, go_on)?;
        let facts = Arc::new(facts);
        let agents = facts.agents.iter().map(super::facts::Chain::name).collect();
        // What was read in part may hold more of them.
        self.remember(path, Told { mark: whole.then_some(mark), agents });
        let mut known = Known { mark, ends: ends(file, facts.read)?, facts: facts.clone(), whole, kept };
        if let Some(kept) = self.kept.as_ref().filter(|_| whole) {
            known.kept = kept.put(path, &known);
        }
        self.known.insert(path.clone(), Arc::new(known));
        Ok((facts, whole))
    }

    fn remember(&self, path: &RelPath, told: Told) {
        self.agents.lock().insert(path.clone(), told);
    }

    /// The subagents that are known to be told inside of a transcript.
    pub(super) fn agents(&self, path: &RelPath) -> Arc<[Name]> {
        self.agents.lock().get(path).map(|told| told.agents.clone()).unwrap_or_default()
    }

    /// Whether the transcript was read as it is now, by this process or before it.
    pub(super) fn was_read(&self, path: &RelPath, now: Mark) -> bool {
        if self.agents.lock().get(path).is_some_and(|told| told.mark == Some(now)) {
            return true;
        }
        let agents = self.kept.as_ref().and_then(|kept| kept.agents(path, now));
        agents.map(|agents| self.remember(path, Told { mark: Some(now), agents: agents.into() })).is_some()
    }

    /// How much of the transcript was read, in bytes, and need not be read again to go on.
    pub(super) fn read_of(&self, path: &RelPath) -> u64 {
        self.known.get(path).map_or(0, |known| known.facts.read)
    }

    /// Forgets transcripts that are not in the store any more.
    pub(super) fn keep(&self, there: &dyn Fn(&RelPath) -> bool) {
        self.agents.lock().retain(|path, _| there(path));
    }
}

impl Known {
    /// Whether what was read may still stand at the beginning of the file as it is `now`.
    pub(super) fn goes_on_in(&self, now: Mark) -> bool {
        let same = now == self.mark && self.whole;
        let (before, now) = (self.mark.0, now.0);
        let grown = now.size > before.size || self.mark == Mark(now);
        same || now.identity == before.identity && grown && !self.facts.has_side_chains
    }
}

/// A hash of both ends of the first `length` bytes.
fn ends(file: &dyn File, length: u64) -> Result<[u8; 32]> {
    let most = ENDS.min(length);
    let mut hash = blake3::Hasher::new();
    for from in [0, length - most] {
        hash.update(&read_range(file, from, usize::try_from(most).unwrap_or_default())?);
    }
    Ok(hash.finalize().into())
}
