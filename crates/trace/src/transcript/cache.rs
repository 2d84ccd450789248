//! A memory cache of transcript indexes, updated on request.
//!
//! Locks: one of `read_locks` is held while a transcript is read, so that concurrent readers of one
//! transcript wait instead of reading it again. `agents` and `history` are held briefly. No other
//! lock is taken while one of them is held.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::cached_transcript::{CachedTranscript, TranscriptVersion};
use super::container::Containers;
use super::format::TranscriptFormat;
use super::index::{Conversation, CopiedHistory, ReportedEnd, TranscriptIndex};
use super::location::TranscriptLocation;
use super::persist::IndexStore;
use super::reader::read_on;
use super::turn::Span;
use swarmletfs_base::cache::single_shard;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, read_range};

const CACHE_BYTES: u64 = 64 << 20;
/// Maximum weight of an index in the cache, in bytes. The largest indexes displace all others, but
/// are not built again for each file of their workers.
const WEIGHT_MAX: u64 = CACHE_BYTES / 16 * 15;
/// Capacity for the results of records that have several, in bytes.
const RESULT_BYTES: u64 = 64 << 20;
const EXPECTED_ENTRIES: usize = 10_000;
/// Number of bytes at each end of the read part that are hashed to detect changes.
const HASHED_END_BYTES: u64 = 4_096;
/// Interval at which a reader that waits for another one checks its deadline.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);
const PARALLEL_READS: usize = 16;

pub(super) type Texts = Arc<[Vec<u8>]>;

pub(super) struct TranscriptCache {
    entries: Cache<RelPath, Arc<CachedTranscript>, IndexWeighter>,
    read_locks: [Mutex<()>; PARALLEL_READS],
    hasher: RandomState,
    agents: Mutex<HashMap<RelPath, AgentList>>,
    pub(super) containers: Containers,
    /// The results of the record that was read last of each transcript, if they were several: they
    /// are read one after the other, and a long record is decoded once.
    results: Cache<RelPath, (TranscriptVersion, Span, Texts), ResultsWeighter>,
    /// The records of the session whose copies were read last: they are read one after the other.
    history: Mutex<Option<(Arc<TranscriptIndex>, Arc<CopiedHistory>)>>,
    /// Storage that outlives the process, if configured.
    disk: Option<IndexStore>,
}

struct AgentList {
    /// The version of the transcript at which it was read completely.
    version: Option<TranscriptVersion>,
    agents: Arc<[Name]>,
    ends: Arc<BTreeMap<String, ReportedEnd>>,
}

#[derive(Clone)]
struct IndexWeighter;

impl Weighter<RelPath, Arc<CachedTranscript>> for IndexWeighter {
    fn weight(&self, _: &RelPath, cached: &Arc<CachedTranscript>) -> u64 {
        cached.index.weight().min(WEIGHT_MAX)
    }
}

#[derive(Clone)]
struct ResultsWeighter;

impl Weighter<RelPath, (TranscriptVersion, Span, Texts)> for ResultsWeighter {
    fn weight(&self, _: &RelPath, (.., texts): &(TranscriptVersion, Span, Texts)) -> u64 {
        let bytes = texts.iter().map(|text| text.len() as u64 + 100).sum::<u64>();
        bytes.min(RESULT_BYTES / 16 * 15)
    }
}

impl TranscriptCache {
    pub(super) fn new(disk: Option<IndexStore>) -> TranscriptCache {
        TranscriptCache {
            entries: single_shard(EXPECTED_ENTRIES, CACHE_BYTES, IndexWeighter),
            read_locks: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            agents: Mutex::new(HashMap::new()),
            containers: Containers::default(),
            results: single_shard(EXPECTED_ENTRIES, RESULT_BYTES, ResultsWeighter),
            history: Mutex::default(),
            disk,
        }
    }

    /// Returns the index of `file`, which lies at `path` in the store, and true if it is complete.
    /// Extends the cached index until `deadline` passes; a later call reads the rest.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read.
    pub(super) fn index(
        &self,
        path: &RelPath,
        file: &dyn File,
        format: &dyn TranscriptFormat,
        location: &TranscriptLocation,
        history: Option<Arc<CopiedHistory>>,
        deadline: Deadline<'_>,
    ) -> Result<(Arc<TranscriptIndex>, bool)> {
        let cached_at = |version: TranscriptVersion| {
            self.entries.get(path).filter(|known| known.is_complete && known.version == version)
        };
        let version = TranscriptVersion::new(file.meta()?);
        if let Some(known) = cached_at(version) {
            return Ok((known.index.clone(), true));
        }
        let Some(_lock) = self.read_lock(path, deadline) else {
            let known = self.entries.get(path).map(|known| known.index.clone());
            return Ok((known.unwrap_or_default(), false));
        };
        // Taken before the read: later writes change it again.
        let version = TranscriptVersion::new(file.meta()?);
        if let Some(known) = cached_at(version) {
            return Ok((known.index.clone(), true));
        }
        let earlier = self.entries.get(path);
        let known = earlier.clone().filter(|known| known.may_be_prefix_of(version));
        let known = known.or_else(|| self.disk.as_ref()?.get(path, version).map(Arc::new));
        let (before, bytes_on_disk) = match known {
            Some(known) if hash_ends(file, known.index.bytes_read)? == known.ends_hash => {
                ((*known.index).clone(), known.bytes_on_disk)
            }
            _ => (earlier.map(|known| known.index.before_rewrite()).unwrap_or_default(), 0),
        };
        let before = TranscriptIndex { history, ..before };
        let (mut index, is_complete) = read_on(file, format, location, before, deadline)?;
        index.history = None;
        let index = Arc::new(index);
        // An incomplete index may miss some agents.
        let version_of_all = is_complete.then_some(version);
        self.set_agents(
            path,
            AgentList {
                version: version_of_all,
                agents: index.agents.iter().map(Conversation::worker_name).collect(),
                ends: index.ends.clone().into(),
            },
        );
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

    /// Returns the records in the index of `session`.
    pub(super) fn history(
        &self,
        session: &Name,
        index: Arc<TranscriptIndex>,
    ) -> Arc<CopiedHistory> {
        let mut last = self.history.lock();
        let known = last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &index));
        if let Some((_, history)) = known {
            return history.clone();
        }
        let session = session.to_text().into_owned();
        let seen = index.seen.iter().copied().collect();
        let history = Arc::new(CopiedHistory { session, seen });
        *last = Some((index, history.clone()));
        history
    }

    pub(super) fn is_cached(&self, path: &RelPath, version: TranscriptVersion) -> bool {
        let known = self.entries.get(path);
        known.is_some_and(|known| known.is_complete && known.version == version)
    }

    /// Waits until no other thread reads the transcript at `path`. Returns `None` once `deadline`
    /// passes.
    fn read_lock(&self, path: &RelPath, deadline: Deadline<'_>) -> Option<MutexGuard<'_, ()>> {
        let slot = self.hasher.hash_one(path) as usize % PARALLEL_READS;
        let lock = self.read_locks.get(slot)?;
        loop {
            let guard = lock.try_lock_for(LOCK_INTERVAL);
            if guard.is_some() || !deadline.has_time() {
                return guard;
            }
        }
    }

    pub(super) fn results(
        &self,
        path: &RelPath,
        version: TranscriptVersion,
        span: Span,
    ) -> Option<Texts> {
        let (of, at, texts) = self.results.get(path)?;
        ((of, at) == (version, span)).then_some(texts)
    }

    /// Caches the results in the record at `span`. They replace the results of another record.
    pub(super) fn set_results(
        &self,
        path: &RelPath,
        version: TranscriptVersion,
        span: Span,
        texts: Texts,
    ) {
        self.results.insert(path.clone(), (version, span, texts));
    }

    fn set_agents(&self, path: &RelPath, list: AgentList) {
        self.agents.lock().insert(path.clone(), list);
    }

    pub(super) fn agents(&self, path: &RelPath) -> Arc<[Name]> {
        self.agents.lock().get(path).map(|list| list.agents.clone()).unwrap_or_default()
    }

    /// Returns the end of `worker` if the transcript at `path`, as far as it was read, reports it.
    pub(super) fn end(&self, path: &RelPath, worker: &str) -> Option<ReportedEnd> {
        self.agents.lock().get(path)?.ends.get(worker).cloned()
    }

    /// Returns true if this process or an earlier one indexed the current version of the
    /// transcript.
    pub(super) fn is_indexed(&self, path: &RelPath, now: TranscriptVersion) -> bool {
        if self.agents.lock().get(path).is_some_and(|list| list.version == Some(now)) {
            return true;
        }
        let Some((agents, ends)) = self.disk.as_ref().and_then(|disk| disk.agents(path, now))
        else {
            return false;
        };
        let (agents, ends) = (agents.into(), ends.into());
        self.set_agents(path, AgentList { version: Some(now), agents, ends });
        true
    }

    pub(super) fn bytes_read(&self, path: &RelPath) -> u64 {
        self.entries.get(path).map_or(0, |known| known.index.bytes_read)
    }

    pub(super) fn retain(&self, is_present: &dyn Fn(&RelPath) -> bool) {
        self.agents.lock().retain(|path, _| is_present(path));
    }
}

fn hash_ends(file: &dyn File, length: u64) -> Result<[u8; 32]> {
    let length_hashed = HASHED_END_BYTES.min(length);
    let mut hash = blake3::Hasher::new();
    for from in [0, length - length_hashed] {
        hash.update(&read_range(file, from, length_hashed as usize)?);
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::index::LineEntry;
    use swarmletfs_base::store::{Memory, Store};

    #[test]
    fn largest_index_is_kept() {
        let cache = TranscriptCache::new(None);
        let mut index = TranscriptIndex::default();
        let lines = CACHE_BYTES as usize / size_of::<LineEntry>() + 1;
        index.main.lines = vec![LineEntry::default(); lines];
        let path = RelPath::parse(b"a").unwrap();
        let store = Memory::new();
        store.write(&path, b"");
        let cached = CachedTranscript {
            version: TranscriptVersion::new(store.open(&path).unwrap().meta().unwrap()),
            ends_hash: [0; 32],
            index: Arc::new(index),
            is_complete: true,
            bytes_on_disk: 0,
        };
        cache.entries.insert(path.clone(), Arc::new(cached));
        assert!(cache.entries.get(&path).is_some());
    }
}
