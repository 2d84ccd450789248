//! Parts of objects, cached in memory and on disk.
//!
//! A block belongs to one version of an object, so it is never outdated. Two threads that need the
//! same block share one request.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use swarmletfs_base::cache::{DiskCache, Key, key, single_shard};

use crate::ObjectSettings;
use crate::connection::{Connection, ObjectVersion};
use crate::failure::RequestFailure;

/// Size of a block, in bytes; the last one of an object is shorter.
pub(crate) const BLOCK: u64 = 256 << 10;
/// Estimated number of blocks in memory.
const ITEMS: usize = 4_096;
/// Memory for an entry of the cache beside its bytes.
const ENTRY: u64 = 128;

/// A version of an object, and the number of a block in it.
pub(crate) type BlockId = (Key, u64);

#[derive(Clone)]
struct BlockWeight;

impl Weighter<BlockId, Bytes> for BlockWeight {
    fn weight(&self, _: &BlockId, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY
    }
}

pub(crate) struct BlockCache {
    connection: Connection,
    memory: Cache<BlockId, Bytes, BlockWeight>,
    disk: Option<Arc<DiskCache>>,
    /// Longest time to wait for a request of another thread.
    wait_max: Duration,
    /// Blocks that are being read.
    in_flight: Mutex<HashSet<BlockId>>,
    /// Notified when a block has arrived, or could not be read.
    arrived: Condvar,
}

/// A version of an object and its name in the caches.
#[derive(Clone)]
pub(crate) struct CachedVersion {
    pub(crate) id: Key,
    pub(crate) version: Arc<ObjectVersion>,
}

impl CachedVersion {
    /// Returns the number of blocks.
    pub(crate) fn block_count(&self) -> u64 {
        self.version.size.div_ceil(BLOCK)
    }
}

impl BlockCache {
    pub(crate) fn new(connection: Connection, settings: &ObjectSettings) -> BlockCache {
        BlockCache {
            connection,
            memory: single_shard(ITEMS, settings.memory, BlockWeight),
            disk: settings.cache.clone(),
            wait_max: settings.deadline.saturating_mul(2),
            in_flight: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// Returns the directory of the disk cache.
    pub(crate) fn cache_root(&self) -> Option<BorrowedFd<'_>> {
        self.disk.as_ref().map(|disk| disk.root())
    }

    /// Returns the block `index`. If it must be read, the others of `blocks` are read with it.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub(crate) fn get_within(
        &self,
        object: &CachedVersion,
        index: u64,
        blocks: Range<u64>,
    ) -> Result<Bytes, RequestFailure> {
        if blocks.start < index && self.cached((object.id, index)).is_none() {
            self.get(object, blocks.start, blocks.end.saturating_sub(blocks.start))?;
        }
        self.get(object, index, blocks.end.saturating_sub(index))
    }

    /// Returns the block `index`. If it must be read, the blocks after it are read with it, `count`
    /// in all.
    ///
    /// # Errors
    ///
    /// The request fails.
    fn get(&self, object: &CachedVersion, index: u64, count: u64) -> Result<Bytes, RequestFailure> {
        let deadline = Instant::now() + self.wait_max;
        let ids = loop {
            if let Some(bytes) = self.cached((object.id, index)) {
                return Ok(bytes);
            }
            let mut in_flight = self.in_flight.lock();
            if !in_flight.contains(&(object.id, index)) {
                // It may have arrived since the first look.
                if let Some(bytes) = self.memory.get(&(object.id, index)) {
                    return Ok(bytes);
                }
                let end = index.saturating_add(count.max(1)).min(object.block_count());
                let is_missing =
                    |id: &BlockId| !in_flight.contains(id) && self.memory.get(id).is_none();
                let further = (index + 1..end).map(|block| (object.id, block));
                let ids: Vec<BlockId> = std::iter::once((object.id, index))
                    .chain(further.take_while(is_missing))
                    .collect();
                in_flight.extend(&ids);
                break ids;
            }
            if self.arrived.wait_until(&mut in_flight, deadline).timed_out() {
                return Err(RequestFailure::timed_out());
            }
        };
        let start = index.saturating_mul(BLOCK);
        let end = start.saturating_add(BLOCK.saturating_mul(ids.len() as u64));
        let range = start..end.min(object.version.size);
        let read = self.connection.wait_for_read(object.version.clone(), range);
        let first = read.map(|bytes| self.keep(&ids, &bytes));
        self.land(&ids);
        first
    }

    /// Caches the content of a small object in memory.
    pub(crate) fn add_whole(&self, object: &CachedVersion, content: Bytes) {
        if content.len() as u64 == object.version.size && object.version.size <= BLOCK {
            self.memory.insert((object.id, 0), content);
        }
    }

    /// Starts to read the first block of an object, unless it is cached or being read.
    pub(crate) fn prefetch(self: &Arc<Self>, object: CachedVersion) {
        let id = (object.id, 0);
        if object.version.size == 0
            || self.cached(id).is_some()
            || !self.in_flight.lock().insert(id)
        {
            return;
        }
        let blocks = self.clone();
        self.connection.start(async move {
            let range = 0..object.version.size.min(BLOCK);
            // Whoever needs the block asks again, and receives the error.
            if let Ok(bytes) = blocks.connection.read(&object.version, range).await {
                blocks.keep(&[id], &bytes);
            }
            blocks.land(&[id]);
        });
    }

    fn cached(&self, id: BlockId) -> Option<Bytes> {
        if let Some(bytes) = self.memory.get(&id) {
            return Some(bytes);
        }
        let bytes = Bytes::from(self.disk.as_ref()?.get(disk_key(id))?.body()?);
        self.memory.insert(id, bytes.clone());
        Some(bytes)
    }

    /// Caches the blocks `ids` of an object, which follow each other in `bytes`. Returns the first.
    fn keep(&self, ids: &[BlockId], bytes: &Bytes) -> Bytes {
        let mut first = None;
        let size = usize::try_from(BLOCK).unwrap_or(usize::MAX);
        for (id, block) in ids.iter().zip(bytes.chunks(size)) {
            // A copy, so that an evicted block frees its memory.
            let block = Bytes::copy_from_slice(block);
            if let Some(disk) = &self.disk {
                disk.put(disk_key(*id), Vec::new(), block.to_vec());
            }
            self.memory.insert(*id, block.clone());
            first.get_or_insert(block);
        }
        first.unwrap_or_default()
    }

    fn land(&self, ids: &[BlockId]) {
        let mut in_flight = self.in_flight.lock();
        ids.iter().for_each(|id| {
            in_flight.remove(id);
        });
        self.arrived.notify_all();
    }
}

fn disk_key((object, index): BlockId) -> Key {
    key("object", &[&object, &index.to_le_bytes(), &BLOCK.to_le_bytes()])
}
