//! Recent directory listings, for readers that continue in one.
//!
//! A request for the rest of a listing names its version, and no handle: the kernel opens no
//! directories. It also shares its cached entries of a directory among all readers; one that began
//! in them requests the rest once the kernel has dropped them.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use super::Ino;
use super::handle::DirListing;

/// Most listings kept, and most entries in all of them together. Those that were not used for the
/// longest time are evicted first.
const LISTINGS_MAX: usize = 256;
const ENTRIES_MAX: usize = 500_000;

/// Cache of the listings that were used last.
#[derive(Default)]
pub(super) struct DirCache {
    listings: VecDeque<(Ino, DirListing)>,
    items: usize,
}

impl DirCache {
    /// Returns the listing of a directory that has this version.
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

    /// Adds the listing of a directory, and evicts others.
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
        DirListing { items: vec![item; length].into(), version: version(number) }
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
