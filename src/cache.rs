//! Caches that are bounded by what they hold.

mod disk;

use std::hash::Hash;
use std::sync::OnceLock;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use rustix::process::{getegid, geteuid, getgroups};

pub use disk::{DiskCache, Key};

use crate::digest::digest;

/// What is kept was made by this source: another version may have made something else of the same.
const MADE_BY: &str = env!("SWARMLETFS_SOURCE");

/// Returns the key under which `parts` are cached; `what` tells kinds of entries apart. Another version of this program
/// and a process with other rights to read get other keys.
pub fn key(what: &str, parts: &[&[u8]]) -> Key {
    let mut hash = blake3::Hasher::new();
    for part in [MADE_BY.as_bytes(), reader(), what.as_bytes()].iter().chain(parts) {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    digest(&hash)
}

/// Returns the user and the groups that this process reads files as.
fn reader() -> &'static [u8] {
    static READER: OnceLock<Vec<u8>> = OnceLock::new();
    READER.get_or_init(|| {
        let mut groups: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        let ids = [geteuid().as_raw(), getegid().as_raw()].into_iter().chain(groups);
        ids.flat_map(u32::to_le_bytes).collect()
    })
}

/// A cache of at most `weight`, of about `items`, that is not divided: in one that is, what is heavier than a part would
/// never be kept, and parts are the more and the smaller the more processors there are.
pub fn single_shard<K, V, W>(items: usize, weight: u64, weighter: W) -> Cache<K, V, W>
where
    K: Eq + Hash,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    match OptionsBuilder::new().shards(1).weight_capacity(weight).estimated_items_capacity(items).build() {
        Ok(options) => {
            Cache::with_options(options, weighter, DefaultHashBuilder::default(), DefaultLifecycle::default())
        }
        // Only what is left out can make it fail.
        Err(_) => Cache::with_weighter(items, weight, weighter),
    }
}
