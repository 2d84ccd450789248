//! What is known of the transcripts of a store, kept as far as memory goes and brought up to date when asked for.
//!
//! Locks: one of `read_locks` is held while a transcript is read, so that who asks for the same one at the same time waits
//! for that instead of reading it too; `agents` for a moment. No other lock is taken meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::index::TranscriptIndex;
use super::parser::{TranscriptKind, read_on};
use super::persist::IndexStore;
use crate::cache::undivided;
use crate::error::Result;
use crate::name::{Name, RelPath};
use crate::store::{File, Meta, read_range};

/// How much is kept in memory, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// About how many transcripts that is.
const EXPECTED_ENTRIES: usize = 10_000;
/// How much of both ends of what was read is looked at to see whether it still is the same, in bytes.
const HASHED_END_BYTES: u64 = 4_096;
/// How many transcripts are read at the same time.
const PARALLEL_READS: usize = 16;

pub(super) struct TranscriptCache {
    entries: Cache<RelPath, Arc<CachedTranscript>, IndexWeighter>,
    read_locks: [Mutex<()>; PARALLEL_READS],
    hasher: RandomState,
    agents: Mutex<HashMap<RelPath, AgentList>>,
    /// Where it is kept beyond the end of the process, if anywhere.
    disk: Option<IndexStore>,
}

/// The subagents that are told inside of a transcript, as far as it was read.
struct AgentList {
    /// What the transcript was when all of it was read.
    version: Option<TranscriptVersion>,
    agents: Arc<[Name]>,
}

/// A transcript as it was when it was read.
pub(super) struct CachedTranscript {
    pub(super) version: TranscriptVersion,
    /// A hash of both ends of what was read.
    pub(super) ends_hash: [u8; 32],
    pub(super) index: Arc<TranscriptIndex>,
    /// Whether all of it was read that was there.
    pub(super) is_complete: bool,
    /// How much of it is kept on disk, in bytes.
    pub(super) bytes_on_disk: u64,
}

/// What stat tells of a transcript.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TranscriptVersion(Meta);

impl TranscriptVersion {
    /// The same for every meta of a file that did not change.
    pub(super) fn new(meta: Meta) -> TranscriptVersion {
        // Who may read it, and under how many names it stands, changes nothing in it.
        TranscriptVersion(Meta { mode: 0, uid: 0, gid: 0, nlink: 0, ..meta })
    }

    /// As it was taken, but for what changes nothing.
    pub(super) fn meta(self) -> Meta {
        self.0
    }
}

#[derive(Clone)]
struct IndexWeighter;

impl Weighter<RelPath, Arc<CachedTranscript>> for IndexWeighter {
    fn weight(&self, _: &RelPath, known: &Arc<CachedTranscript>) -> u64 {
        known.index.weight()
    }
}

impl TranscriptCache {
    pub(super) fn new(disk: Option<IndexStore>) -> TranscriptCache {
        TranscriptCache {
            entries: undivided(EXPECTED_ENTRIES, CACHE_BYTES, IndexWeighter),
            read_locks: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            agents: Mutex::new(HashMap::new()),
            disk,
        }
    }

    /// What `file` tells, which lies at `path` in the store. What was read before is gone on from, until `go_on` says
    /// no; the rest is then read another time. Whether that was all.
    pub(super) fn index(
        &self,
        path: &RelPath,
        file: &dyn File,
        kind: TranscriptKind,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(Arc<TranscriptIndex>, bool)> {
        let fresh = |version: TranscriptVersion| {
            self.entries.get(path).filter(|known| known.is_complete && known.version == version)
        };
        let version = TranscriptVersion::new(file.meta()?);
        if let Some(known) = fresh(version) {
            return Ok((known.index.clone(), true));
        }
        let slot = self.hasher.hash_one(path) as usize % PARALLEL_READS;
        let _alone = self.read_locks.get(slot).map(Mutex::lock);
        // Before it is read: what comes meanwhile changes it again.
        let version = TranscriptVersion::new(file.meta()?);
        if let Some(known) = fresh(version) {
            return Ok((known.index.clone(), true));
        }
        let known = self.entries.get(path).filter(|known| known.may_be_prefix_of(version));
        let known = known.or_else(|| self.disk.as_ref()?.get(path, version).map(Arc::new));
        let (before, bytes_on_disk) = match known {
            Some(known) if hash_ends(file, known.index.bytes_read)? == known.ends_hash => {
                ((*known.index).clone(), known.bytes_on_disk)
            }
            _ => (TranscriptIndex::default(), 0),
        };
        let (index, is_complete) = read_on(file, kind, before, go_on)?;
        let index = Arc::new(index);
        let agents = index.agents.iter().map(super::index::Conversation::worker_name).collect();
        // What was read in part may hold more of them.
        self.set_agents(path, AgentList { version: is_complete.then_some(version), agents });
        let mut known = CachedTranscript {
            version,
            ends_hash: hash_ends(file, index.bytes_read)?,
            index: index.clone(),
            is_complete,
            bytes_on_disk,
        };
        if let Some(disk) = self.disk.as_ref().filter(|_| is_complete) {
            known.bytes_on_disk = disk.put(path, &known);
        }
        self.entries.insert(path.clone(), Arc::new(known));
        Ok((index, is_complete))
    }

    fn set_agents(&self, path: &RelPath, list: AgentList) {
        self.agents.lock().insert(path.clone(), list);
    }

    /// The subagents that are known to be told inside of a transcript.
    pub(super) fn agents(&self, path: &RelPath) -> Arc<[Name]> {
        self.agents.lock().get(path).map(|list| list.agents.clone()).unwrap_or_default()
    }

    /// Whether the transcript was read as it is now, by this process or before it.
    pub(super) fn is_indexed(&self, path: &RelPath, now: TranscriptVersion) -> bool {
        if self.agents.lock().get(path).is_some_and(|list| list.version == Some(now)) {
            return true;
        }
        let agents = self.disk.as_ref().and_then(|disk| disk.agents(path, now));
        agents.map(|agents| self.set_agents(path, AgentList { version: Some(now), agents: agents.into() })).is_some()
    }

    /// How much of the transcript was read, in bytes, and need not be read again to go on.
    pub(super) fn bytes_read(&self, path: &RelPath) -> u64 {
        self.entries.get(path).map_or(0, |known| known.index.bytes_read)
    }

    /// Forgets transcripts that are not in the store any more.
    pub(super) fn retain(&self, there: &dyn Fn(&RelPath) -> bool) {
        self.agents.lock().retain(|path, _| there(path));
    }
}

impl CachedTranscript {
    /// Whether what was read may still stand at the beginning of the file as it is `now`.
    pub(super) fn may_be_prefix_of(&self, now: TranscriptVersion) -> bool {
        let same = now == self.version && self.is_complete;
        let (before, now) = (self.version.0, now.0);
        let grown = now.size > before.size || self.version == TranscriptVersion(now);
        same || now.identity == before.identity && grown && !self.index.has_side_chains
    }
}

/// A hash of both ends of the first `length` bytes.
fn hash_ends(file: &dyn File, length: u64) -> Result<[u8; 32]> {
    let most = HASHED_END_BYTES.min(length);
    let mut hash = blake3::Hasher::new();
    for from in [0, length - most] {
        hash.update(&read_range(file, from, usize::try_from(most).unwrap_or_default())?);
    }
    Ok(hash.finalize().into())
}
