//! What was read of transcripts, kept in a folder for the next start.
//!
//! An entry is known by the transcript's path and inode number. Its head tells when it may be used: what stat told of the
//! transcript, and a hash of both ends of what was read. Who may read a transcript has opened it before anything of it is
//! looked for here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::transcripts::{Known, Mark};
use crate::cache::{DiskCache, Key, key};
use crate::name::{Name, RelPath};
use crate::store::{Identity, Kind, Meta, Time};

/// Where it is kept, and of which transcripts.
pub(super) struct Kept {
    pub(super) cache: Arc<DiskCache>,
    /// The smallest that are worth it, in bytes: others are read again as fast.
    pub(super) least: u64,
}

/// What is read without the facts themselves.
#[derive(Serialize, Deserialize)]
struct Head {
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    born: (i64, u32),
    read: u64,
    ends: [u8; 32],
    /// The names of the subagents that are told inside of it.
    agents: Vec<Vec<u8>>,
}

impl Head {
    /// The mark it had; `now` is what stat tells of the same file today, whose device may have another number.
    fn mark(&self, now: Meta) -> Mark {
        let time = |(secs, nanos)| Time { secs, nanos };
        let identity = Identity { born: time(self.born), ..now.identity };
        Mark::of(Meta { size: self.size, mtime: time(self.mtime), ctime: time(self.ctime), identity, ..now })
    }
}

impl Kept {
    /// The subagents that are told inside of a transcript, if it was read as it is `now`.
    pub(super) fn agents(&self, path: &RelPath, now: Mark) -> Option<Vec<Name>> {
        let kept = self.cache.get(self.key(path, now)?)?;
        let head: Head = postcard::from_bytes(&kept.head).ok()?;
        let names = head.agents.iter().map(Name::new);
        if head.mark(now.meta()) == now { names.collect::<Result<_, _>>().ok() } else { None }
    }

    /// A transcript as it was read, if it may still begin so.
    pub(super) fn get(&self, path: &RelPath, now: Mark) -> Option<Known> {
        let kept = self.cache.get(self.key(path, now)?)?;
        let head: Head = postcard::from_bytes(&kept.head).ok()?;
        let nothing = Arc::new(Facts::default());
        let known =
            Known { mark: head.mark(now.meta()), ends: head.ends, kept: head.read, facts: nothing, whole: true };
        if !known.goes_on_in(now) {
            return None;
        }
        let facts = Facts::decode(&kept.body()?).filter(|facts| facts.read == head.read)?;
        let known = Known { facts: Arc::new(facts), ..known };
        // By now it is known what is told inside of it, too.
        known.goes_on_in(now).then_some(known)
    }

    /// Keeps what was read, unless hardly more of it is new than what is kept already. How much of it is kept then, in
    /// bytes.
    pub(super) fn put(&self, path: &RelPath, known: &Known) -> u64 {
        let (read, meta) = (known.facts.read, known.mark.meta());
        if read.saturating_sub(known.kept) < self.least.max(known.kept / 4) {
            return known.kept;
        }
        let time = |time: Time| (time.secs, time.nanos);
        let head = Head {
            size: meta.size,
            mtime: time(meta.mtime),
            ctime: time(meta.ctime),
            born: time(meta.identity.born),
            read,
            ends: known.ends,
            agents: known.facts.agents.iter().map(|agent| agent.name().as_bytes().to_vec()).collect(),
        };
        let encoded = postcard::to_stdvec(&head).ok().zip(known.facts.encode());
        let Some(((head, body), key)) = encoded.zip(self.key(path, known.mark)) else { return known.kept };
        self.cache.put(key, head, body);
        read
    }

    /// Returns `None` for a transcript that is too small to be kept, or that this view may not open.
    fn key(&self, path: &RelPath, mark: Mark) -> Option<Key> {
        let meta = Some(mark.meta()).filter(|meta| meta.kind == Kind::File && meta.size >= self.least)?;
        let ino = meta.identity.ino.to_le_bytes();
        Some(key("transcript", &[path.as_bytes(), &ino]))
    }
}
