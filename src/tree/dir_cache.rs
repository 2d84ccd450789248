//! Recent directory listings, for readers that continue in one that the kernel has dropped.
//!
//! The kernel shares its cached entries of a directory among all readers. A reader that began in
//! the cached entries requests the rest once the directory has changed and the kernel has dropped
//! them. It must receive the rest of the listing that it began with. Only the handles that produced
//! that listing hold it, so it is also kept here.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use super::Ino;
use super::handle::DirListing;

/// Most listings kept, and most entries in all of them together. The oldest are evicted first.
const LISTINGS_MAX: usize = 256;
const ENTRIES_MAX: usize = 500_000;

/// Cache of the most recent listings.
#[derive(Default)]
pub(super) struct DirCache {
    listings: VecDeque<(Ino, DirListing)>,
    items: usize,
}

impl DirCache {
    /// Returns the listing of a directory that has this version.
    pub(super) fn get(&self, ino: Ino, version: NonZeroU32) -> Option<DirListing> {
        self.listings
            .iter()
            .find(|(folder, listing)| *folder == ino && listing.version == Some(version))
            .map(|(_, listing)| listing.clone())
    }

    /// Adds the listing of a directory, and evicts the oldest ones.
    pub(super) fn insert(&mut self, ino: Ino, listing: DirListing) {
        self.items += listing.items.len();
        self.listings.push_front((ino, listing));
        // The newest listing stays however long it is.
        while self.listings.len() > 1
            && (self.listings.len() > LISTINGS_MAX || self.items > ENTRIES_MAX)
        {
            let Some((_, evicted)) = self.listings.pop_back() else { break };
            self.items -= evicted.items.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeKind;
    use super::super::handle::ListedEntry;
    use super::*;
    use crate::name::Name;

    fn version(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    fn listing(number: u32, length: usize) -> DirListing {
        let item = ListedEntry { name: Name::new("a").unwrap(), kind: NodeKind::File, ino: 7 };
        DirListing { items: vec![item; length].into(), version: Some(version(number)) }
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
        cache.insert(5, listing(2_000, ENTRIES_MAX));
        assert_eq!((cache.listings.len(), cache.items), (1, ENTRIES_MAX));
        assert!(cache.get(5, version(2_000)).is_some());
    }
}
