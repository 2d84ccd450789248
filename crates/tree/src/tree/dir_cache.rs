//! Recent directory listings, for readers that continue in one.
//!
//! A request for the rest of a listing names its version and the number of entries before, and no
//! handle: the kernel opens no directories. It also shares its cached entries of a directory among
//! all readers; one that began in them requests the rest once the kernel has dropped them.
//!
//! Listings that were not used for long are reduced to a hash of each name. With that, a reader
//! continues in the current listing, after the last entry that it received and that still exists:
//! each name that exists all the time is listed once.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::Ino;
use super::handle::{DirListing, ListedEntry};

/// Most cached listings, and most entries in all of them together. The least recently used listing
/// is evicted first.
const LISTINGS_MAX: usize = 256;
const ENTRIES_MAX: usize = 500_000;
/// Most evicted listings whose hashes are kept, and most hashes, of four bytes each.
const PAST_MAX: usize = 4_096;
const HASHES_MAX: usize = 8_000_000;

type NameHash = u32;

#[derive(Default)]
pub(super) struct DirCache {
    listings: VecDeque<(Ino, DirListing)>,
    items: usize,
    /// The names of evicted listings, by directory and version.
    past: VecDeque<(Ino, NonZeroU32, Arc<[NameHash]>)>,
    hashes: usize,
    hasher: RandomState,
}

impl DirCache {
    pub(super) fn get(&mut self, ino: Ino, version: NonZeroU32) -> Option<DirListing> {
        let at = self.position(ino, version)?;
        let used = self.listings.remove(at)?;
        let listing = used.1.clone();
        self.listings.push_front(used);
        Some(listing)
    }

    fn position(&self, ino: Ino, version: NonZeroU32) -> Option<usize> {
        self.listings
            .iter()
            .position(|(folder, listing)| *folder == ino && listing.version == version)
    }

    pub(super) fn insert(&mut self, ino: Ino, listing: DirListing) {
        if self.get(ino, listing.version).is_some() {
            return;
        }
        self.items += listing.items.len();
        self.listings.push_front((ino, listing));
        // The newest listing stays however long it is.
        while self.listings.len() > 1
            && (self.listings.len() > LISTINGS_MAX || self.items > ENTRIES_MAX)
        {
            let Some((folder, evicted)) = self.listings.pop_back() else { break };
            self.items -= evicted.items.len();
            self.keep_names(folder, &evicted);
        }
    }

    fn keep_names(&mut self, ino: Ino, evicted: &DirListing) {
        let is_same = |(folder, version, _): &(Ino, NonZeroU32, _)| {
            (*folder, *version) == (ino, evicted.version)
        };
        if self.past.iter().any(is_same) {
            return;
        }
        let names: Arc<[NameHash]> =
            evicted.items.iter().map(|item| name_hash(&self.hasher, item)).collect();
        self.hashes += names.len();
        self.past.push_front((ino, evicted.version, names));
        while self.past.len() > 1 && (self.past.len() > PAST_MAX || self.hashes > HASHES_MAX) {
            let Some((.., forgotten)) = self.past.pop_back() else { break };
            self.hashes -= forgotten.len();
        }
    }

    pub(super) fn past(&self, ino: Ino, version: NonZeroU32) -> Option<PastListing> {
        let (.., names) =
            self.past.iter().find(|(folder, known, _)| (*folder, *known) == (ino, version))?;
        Some(PastListing { names: names.clone(), hasher: self.hasher.clone() })
    }
}

pub(super) struct PastListing {
    names: Arc<[NameHash]>,
    hasher: RandomState,
}

impl PastListing {
    /// Returns the number of entries of `listing` up to the last one that is among the first
    /// `count` entries of this listing.
    pub(super) fn position_in(&self, listing: &[ListedEntry], count: usize) -> usize {
        let names: Vec<NameHash> =
            listing.iter().map(|item| name_hash(&self.hasher, item)).collect();
        let current: HashSet<NameHash> = names.iter().copied().collect();
        let mut given = self.names.iter().enumerate().take(count).rev();
        let Some((at, last)) = given.find(|(_, hash)| current.contains(hash)) else {
            return 0;
        };
        // Of several names with this hash, the nearest is the one.
        let same = names.iter().enumerate().filter(|(_, hash)| *hash == last);
        same.map(|(found, _)| found).min_by_key(|found| found.abs_diff(at)).map_or(0, |at| at + 1)
    }
}

fn name_hash(hasher: &RandomState, item: &ListedEntry) -> NameHash {
    hasher.hash_one(&item.name) as NameHash
}

#[cfg(test)]
mod tests {
    use super::super::NodeKind;
    use super::super::handle::ListedEntry;
    use super::*;
    use swarmletfs_base::name::Name;

    fn version(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    fn listing(number: u32, length: usize) -> DirListing {
        let item = ListedEntry { name: Name::new("a").unwrap(), kind: NodeKind::File, ino: 7 };
        DirListing { items: vec![item; length].into(), version: version(number) }
    }

    fn of_names(number: u32, names: &[&str]) -> DirListing {
        let item = |name: &&str| ListedEntry {
            name: Name::new(name).unwrap(),
            kind: NodeKind::File,
            ino: 7,
        };
        DirListing { items: names.iter().map(item).collect(), version: version(number) }
    }

    #[test]
    fn a_reader_of_an_evicted_listing_continues_after_the_last_entry_that_is_still_there() {
        let mut cache = DirCache::default();
        cache.insert(5, of_names(1, &["b", "c", "d", "e", "f"]));
        cache.insert(6, listing(9, ENTRIES_MAX));
        assert!(cache.get(5, version(1)).is_none());
        assert!(cache.past(5, version(2)).is_none() && cache.past(6, version(1)).is_none());
        let past = cache.past(5, version(1)).unwrap();
        let position = |names: &[&str], count| past.position_in(&of_names(2, names).items, count);
        // All but `d` stay, and others come.
        let now = ["a", "aa", "b", "bb", "c", "cc", "dd", "e", "f", "g"];
        let next = [0, 1, 2, 3, 4, 5].map(|count| now[position(&now, count)]);
        assert_eq!(next, ["a", "bb", "cc", "cc", "f", "g"]);
        assert_eq!(position(&["x", "y"], 5), 0, "none is left");
        assert_eq!(position(&[], 5), 0);
    }

    #[test]
    fn names_of_evicted_listings_are_bounded() {
        let mut cache = DirCache::default();
        for number in 1..=20 {
            cache.insert(5, listing(number, ENTRIES_MAX));
        }
        assert_eq!((cache.listings.len(), cache.items), (1, ENTRIES_MAX));
        assert_eq!((cache.past.len(), cache.hashes), (16, HASHES_MAX));
        assert!(cache.past(5, version(19)).is_some() && cache.past(5, version(3)).is_none());
    }

    #[test]
    fn only_the_latest_listings_are_kept() {
        let mut cache = DirCache::default();
        for number in 1..=1_000 {
            cache.insert(5, listing(number, 10));
        }
        assert_eq!((cache.listings.len(), cache.items), (LISTINGS_MAX, LISTINGS_MAX * 10));
        assert!(cache.get(5, version(1_000)).is_some());
        assert!(cache.get(5, version(1)).is_none());
        assert!(cache.get(6, version(1_000)).is_none());
        assert!(cache.get(5, version(1_000 - LISTINGS_MAX as u32 + 1)).is_some());
        cache.insert(5, listing(1_001, 10));
        assert!(cache.get(5, version(1_000 - LISTINGS_MAX as u32 + 1)).is_some(), "it was used");
        cache.insert(5, listing(2_000, ENTRIES_MAX));
        assert_eq!((cache.listings.len(), cache.items), (1, ENTRIES_MAX));
        assert!(cache.get(5, version(2_000)).is_some());
    }
}
