//! Disk storage for transcript indexes, so that the next process need not read them again.
//!
//! An entry is found by the transcript's path and inode number. Its header decides whether it is
//! valid: it holds the metadata of the transcript and a hash of both ends of the part that was
//! read. A reader must have opened the transcript before its entry is looked up here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cached_transcript::{CachedTranscript, TranscriptVersion};
use super::index::{ReportedEnd, TranscriptIndex};
use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Identity, Kind, Meta, Time};

pub(super) struct IndexStore {
    pub(super) cache: Arc<DiskCache>,
    /// Minimum size of a cached transcript, in bytes; smaller ones are read again as quickly.
    pub(super) min_size: u64,
}

/// The part of an entry that is read without the index.
#[derive(Serialize, Deserialize)]
struct EntryHeader {
    size: u64,
    mtime: Time,
    ctime: Time,
    born: Time,
    bytes_read: u64,
    ends_hash: [u8; 32],
    agents: Vec<Vec<u8>>,
    ends: BTreeMap<String, ReportedEnd>,
}

impl EntryHeader {
    /// Returns the stored version. The device number comes from `now`, because it can differ after
    /// a restart.
    fn version(&self, now: Meta) -> TranscriptVersion {
        let identity = Identity { born: self.born, ..now.identity };
        let (size, mtime, ctime) = (self.size, self.mtime, self.ctime);
        TranscriptVersion::new(Meta { size, mtime, ctime, identity, ..now })
    }
}

impl IndexStore {
    /// Returns the subagents inside a transcript and the ends of other workers that it reports, if
    /// the stored version equals `now`.
    pub(super) fn agents(
        &self,
        path: &RelPath,
        now: TranscriptVersion,
    ) -> Option<(Vec<Name>, BTreeMap<String, ReportedEnd>)> {
        let entry = self.cache.get(self.key(path, now)?)?;
        let header: EntryHeader = postcard::from_bytes(&entry.head).ok()?;
        let names = header.agents.iter().map(Name::new);
        let names = names.collect::<Result<_, _>>().ok()?;
        (header.version(now.meta()) == now).then_some((names, header.ends))
    }

    /// Returns the cached transcript, if it may be a prefix of the current version.
    pub(super) fn get(&self, path: &RelPath, now: TranscriptVersion) -> Option<CachedTranscript> {
        let entry = self.cache.get(self.key(path, now)?)?;
        let header: EntryHeader = postcard::from_bytes(&entry.head).ok()?;
        let cached = CachedTranscript {
            version: header.version(now.meta()),
            ends_hash: header.ends_hash,
            bytes_on_disk: header.bytes_read,
            index: Arc::new(TranscriptIndex::default()),
            is_complete: true,
        };
        if !cached.may_be_prefix_of(now) {
            return None;
        }
        let index = TranscriptIndex::decode(&entry.body()?)
            .filter(|index| index.bytes_read == header.bytes_read)?;
        let cached = CachedTranscript { index: Arc::new(index), ..cached };
        // Only the decoded index shows if the transcript has side chains.
        cached.may_be_prefix_of(now).then_some(cached)
    }

    /// Stores an index unless it is hardly larger than the stored one. Returns the number of
    /// transcript bytes that the stored index covers.
    pub(super) fn put(&self, path: &RelPath, cached: &CachedTranscript) -> u64 {
        let (bytes_read, meta) = (cached.index.bytes_read, cached.version.meta());
        if bytes_read.saturating_sub(cached.bytes_on_disk)
            < self.min_size.max(cached.bytes_on_disk / 4)
        {
            return cached.bytes_on_disk;
        }
        let header = EntryHeader {
            size: meta.size,
            mtime: meta.mtime,
            ctime: meta.ctime,
            born: meta.identity.born,
            bytes_read,
            ends_hash: cached.ends_hash,
            agents: cached
                .index
                .agents
                .iter()
                .map(|agent| agent.worker_name().as_bytes().to_vec())
                .collect(),
            ends: cached.index.ends.clone(),
        };
        let encoded = postcard::to_stdvec(&header).ok().zip(cached.index.encode());
        let Some(((header, body), key)) = encoded.zip(self.key(path, cached.version)) else {
            return cached.bytes_on_disk;
        };
        self.cache.put(key, header, body);
        bytes_read
    }

    /// Returns the key of an entry. Returns `None` if the transcript is too small, or not a regular
    /// file in this view.
    fn key(&self, path: &RelPath, version: TranscriptVersion) -> Option<Key> {
        let meta = Some(version.meta())
            .filter(|meta| meta.kind == Kind::File && meta.size >= self.min_size)?;
        let ino = meta.identity.ino.to_le_bytes();
        Some(key("transcript", &[path.as_bytes(), &ino]))
    }
}
