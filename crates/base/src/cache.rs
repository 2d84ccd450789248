//! Size-bounded caches, in memory and on disk.

mod disk;

use std::hash::Hash;
use std::sync::OnceLock;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use rustix::process::{getegid, geteuid, getgroups};

pub use disk::{CachedEntry, DiskCache, Key};

use crate::digest::digest;

/// Version of all data in the disk caches, part of every key.
///
/// Raise it when the encoding of a cached type changes, and when the program derives another result
/// from the same files. Entries of other versions are then never read again, and are evicted in
/// time.
pub const CACHE_FORMAT: u32 = 16;

/// Returns the cache key of `parts`; `kind` separates the kinds of entries.
///
/// The key also covers [`CACHE_FORMAT`], the variant of [`vary`], and the user and groups of the
/// process, so that processes with different read permissions share nothing.
pub fn key(kind: &str, parts: &[&[u8]]) -> Key {
    let mut hash = blake3::Hasher::new();
    let variant = VARIANT.get().map(Vec::as_slice);
    let common = [&CACHE_FORMAT.to_le_bytes()[..], reader(), kind.as_bytes()];
    for part in common.iter().chain(parts).chain(&variant) {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    digest(&hash)
}

/// A further input of all results of this process.
static VARIANT: OnceLock<Vec<u8>> = OnceLock::new();

/// Makes `variant` a part of all keys from now on. Only the first call has an effect.
pub fn vary(variant: &[u8]) {
    VARIANT.get_or_init(|| variant.to_vec());
}

/// Returns the encoded user and groups of this process.
fn reader() -> &'static [u8] {
    static READER: OnceLock<Vec<u8>> = OnceLock::new();
    READER.get_or_init(|| {
        let mut groups: Vec<u32> =
            getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        let ids = [geteuid().as_raw(), getegid().as_raw()].into_iter().chain(groups);
        ids.flat_map(u32::to_le_bytes).collect()
    })
}

/// Smallest share of the memory for caches, in bytes.
const SHARE_MIN: u64 = 1 << 20;

pub fn share_of_memory(bytes: u64, users: usize) -> u64 {
    (bytes / users.max(1) as u64).max(SHARE_MIN)
}

/// Creates a cache of at most `weight` for about `items` entries, with a single shard.
///
/// With several shards, an entry heavier than a shard would never be cached. The default number of
/// shards grows with the number of processors, and the shards shrink.
pub fn single_shard<K, V, W>(items: usize, weight: u64, weighter: W) -> Cache<K, V, W>
where
    K: Eq + Hash,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    match OptionsBuilder::new()
        .shards(1)
        .weight_capacity(weight)
        .estimated_items_capacity(items)
        .build()
    {
        Ok(options) => Cache::with_options(
            options,
            weighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ),
        // Building fails only without a capacity, and both are set.
        Err(_) => Cache::with_weighter(items, weight, weighter),
    }
}
