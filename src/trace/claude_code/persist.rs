//! What was read of transcripts, kept in a folder for the next start.
//!
//! An entry is known by the transcript's path and inode number. Its head tells when it may be used: what stat told of the
//! transcript, and a hash of both ends of what was read. Who may read a transcript has opened it before anything of it is
//! looked for here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cache::{CachedTranscript, TranscriptVersion};
use super::index::TranscriptIndex;
use crate::cache::{DiskCache, Key, key};
use crate::name::{Name, RelPath};
use crate::store::{Identity, Kind, Meta, Time};

/// Where it is kept, and of which transcripts.
pub(super) struct IndexStore {
    pub(super) cache: Arc<DiskCache>,
    /// The smallest that are worth it, in bytes: others are read again as fast.
    pub(super) min_size: u64,
}

/// What is read without the facts themselves.
#[derive(Serialize, Deserialize)]
struct EntryHeader {
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    born: (i64, u32),
    bytes_read: u64,
    ends_hash: [u8; 32],
    /// The names of the subagents that are told inside of it.
    agents: Vec<Vec<u8>>,
}

impl EntryHeader {
    /// The mark it had; `now` is what stat tells of the same file today, whose device may have another number.
    fn version(&self, now: Meta) -> TranscriptVersion {
        let time = |(secs, nanos)| Time { secs, nanos };
        let identity = Identity { born: time(self.born), ..now.identity };
        TranscriptVersion::new(Meta {
            size: self.size,
            mtime: time(self.mtime),
            ctime: time(self.ctime),
            identity,
            ..now
        })
    }
}

impl IndexStore {
    /// The subagents that are told inside of a transcript, if it was read as it is `now`.
    pub(super) fn agents(&self, path: &RelPath, now: TranscriptVersion) -> Option<Vec<Name>> {
        let kept = self.cache.get(self.key(path, now)?)?;
        let head: EntryHeader = postcard::from_bytes(&kept.head).ok()?;
        let names = head.agents.iter().map(Name::new);
        if head.version(now.meta()) == now { names.collect::<Result<_, _>>().ok() } else { None }
    }

    /// A transcript as it was read, if it may still begin so.
    pub(super) fn get(&self, path: &RelPath, now: TranscriptVersion) -> Option<CachedTranscript> {
        let kept = self.cache.get(self.key(path, now)?)?;
        let head: EntryHeader = postcard::from_bytes(&kept.head).ok()?;
        let empty = Arc::new(TranscriptIndex::default());
        let known = CachedTranscript {
            version: head.version(now.meta()),
            ends_hash: head.ends_hash,
            bytes_on_disk: head.bytes_read,
            index: empty,
            is_complete: true,
        };
        if !known.may_be_prefix_of(now) {
            return None;
        }
        let index = TranscriptIndex::decode(&kept.body()?).filter(|index| index.bytes_read == head.bytes_read)?;
        let known = CachedTranscript { index: Arc::new(index), ..known };
        // By now it is known what is told inside of it, too.
        known.may_be_prefix_of(now).then_some(known)
    }

    /// Keeps what was read, unless hardly more of it is new than what is kept already. How much of it is kept then, in
    /// bytes.
    pub(super) fn put(&self, path: &RelPath, known: &CachedTranscript) -> u64 {
        let (bytes_read, meta) = (known.index.bytes_read, known.version.meta());
        if bytes_read.saturating_sub(known.bytes_on_disk) < self.min_size.max(known.bytes_on_disk / 4) {
            return known.bytes_on_disk;
        }
        let time = |time: Time| (time.secs, time.nanos);
        let head = EntryHeader {
            size: meta.size,
            mtime: time(meta.mtime),
            ctime: time(meta.ctime),
            born: time(meta.identity.born),
            bytes_read,
            ends_hash: known.ends_hash,
            agents: known.index.agents.iter().map(|agent| agent.worker_name().as_bytes().to_vec()).collect(),
        };
        let encoded = postcard::to_stdvec(&head).ok().zip(known.index.encode());
        let Some(((head, body), key)) = encoded.zip(self.key(path, known.version)) else { return known.bytes_on_disk };
        self.cache.put(key, head, body);
        bytes_read
    }

    /// Returns `None` for a transcript that is too small to be kept, or that this view may not open.
    fn key(&self, path: &RelPath, version: TranscriptVersion) -> Option<Key> {
        let meta = Some(version.meta()).filter(|meta| meta.kind == Kind::File && meta.size >= self.min_size)?;
        let ino = meta.identity.ino.to_le_bytes();
        Some(key("transcript", &[path.as_bytes(), &ino]))
    }
}
