//! Recent directory listings, for readers that continue in one.
//!
//! A request for the rest of a listing names its version and the number of entries before, and no
//! handle: the kernel opens no directories. It also shares its cached entries of a directory among
//! all readers; one that began in them requests the rest once the kernel has dropped them.
//!
//! Listings that were not used for long are reduced to a hash of each name. With that, a reader
//! continues in the current listing, after the last entry that it received and that still exists:
//! each name that exists all the time is listed once.
//!
//! [`ListingTimes`] has the mtimes that the kernel receives for directories that it has listed. The
//! kernel keeps the entries of a directory, and reads them again only if the mtime differs from
//! the one at which it began to read them. So other entries need an mtime that none had before,
//! even if both changes happened within one tick of the clock, or if the directory is generated and
//! the newest write of its workers stays the same. The reported mtime is then some nanoseconds
//! later than the real one.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ino;
use super::handle::{DirListing, ListedEntry};
use swarmletfs_base::store::Time;

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

/// Number of recent mtimes that are not reused for other entries: answers may reach the kernel out
/// of order, so it may have begun to list at any of them.
const USED_MAX: usize = 16;

pub(super) type ListingHash = u64;
/// Hash of values that determine the entries of a directory, such as its times on disk.
pub(super) type ListingKey = u64;
/// A key, and the time for which it is certain that the entries are the same.
pub(super) type CurrentKey = (ListingKey, Duration);

/// The mtimes of one directory that the kernel may hold.
#[derive(Debug, Clone)]
pub(super) struct ListingTimes {
    /// The latest mtimes, in the order of the answers.
    used: Vec<Time>,
    /// The last mtime, and the entries that it stands for. `None` if they are not known.
    current: Option<(Time, ListingHash)>,
    /// The mtime at which the kernel last began to read the entries.
    listed: Time,
    /// The last known key, its entries, and the time since when they are known.
    key: Option<(ListingKey, ListingHash, Instant)>,
}

impl ListingTimes {
    /// Creates the times of a directory that had the mtime `reported` in the last answer, and is
    /// listed now.
    pub(super) fn new(reported: Time, hash: ListingHash) -> ListingTimes {
        ListingTimes {
            used: vec![reported],
            current: Some((reported, hash)),
            listed: reported,
            key: None,
        }
    }

    pub(super) fn note_listed(&mut self, hash: ListingHash) {
        self.listed = self.used.last().copied().unwrap_or(self.listed);
        // The last answer was about other entries, and now its mtime may stand for both.
        self.current = self.current.filter(|(_, known)| *known == hash);
    }

    pub(super) fn note_key(&mut self, key: ListingKey, hash: ListingHash) {
        self.key = Some((key, hash, Instant::now()));
    }

    pub(super) fn hash_of(&self, key: ListingKey, max_age: Duration) -> Option<ListingHash> {
        let (known, hash, since) = self.key?;
        (known == key && since.elapsed() < max_age).then_some(hash)
    }

    /// Returns the mtime to report for a directory that has the mtime `own`: the last one if the
    /// entries are the same, and otherwise an unused one. `hash` is `None` if the entries are not
    /// known.
    pub(super) fn report(&mut self, own: Time, hash: Option<ListingHash>) -> Time {
        let near = own..own.plus_nanos(USED_MAX as u32 + 2);
        if let Some((reported, known)) = self.current
            && Some(known) == hash
            && near.contains(&reported)
        {
            return reported;
        }
        let mut reported = own;
        while self.used.contains(&reported) || self.listed == reported {
            reported = reported.plus_nanos(1);
        }
        if self.used.len() == USED_MAX {
            self.used.remove(0);
        }
        self.used.push(reported);
        self.current = hash.map(|hash| (reported, hash));
        reported
    }
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

    const OWN: Time = Time { secs: 5, nanos: 999_999_999 };

    fn later(nanos: u32) -> Time {
        OWN.plus_nanos(nanos)
    }

    #[test]
    fn an_unchanged_directory_keeps_its_mtime() {
        let mut times = ListingTimes::new(OWN, 1);
        assert_eq!(times.report(OWN, Some(1)), OWN);
        times.note_listed(1);
        assert_eq!(times.report(OWN, Some(1)), OWN);
        let touched = later(1_000_000);
        assert_eq!(times.report(touched, Some(1)), touched);
        assert_eq!(times.report(OWN, Some(1)), later(1), "OWN may be of other entries");
    }

    #[test]
    fn other_entries_have_another_mtime() {
        let mut times = ListingTimes::new(OWN, 1);
        assert_eq!(times.report(OWN, Some(2)), later(1));
        assert_eq!(times.report(OWN, Some(2)), later(1));
        assert_eq!(times.report(OWN, Some(1)), later(2), "the kernel may have listed since");
        assert_eq!(times.report(OWN, None), later(3));
        assert_eq!(times.report(OWN, None), later(4));
    }

    #[test]
    fn entries_that_changed_between_an_answer_and_the_listing_get_a_new_mtime() {
        let mut times = ListingTimes::new(OWN, 1);
        times.note_listed(2);
        assert_eq!(times.report(OWN, Some(2)), later(1));
        times.note_listed(2);
        assert_eq!(times.report(OWN, Some(2)), later(1));
    }

    #[test]
    fn the_mtime_of_the_kernels_entries_is_never_used_for_others() {
        let mut times = ListingTimes::new(OWN, 0);
        for hash in 1..1_000 {
            let reported = times.report(OWN, Some(hash));
            assert_ne!(reported, OWN, "{hash}");
            assert!(reported < later(USED_MAX as u32 + 2), "{reported:?}");
        }
        assert_eq!(times.used.len(), USED_MAX);
    }

    #[test]
    fn entries_are_known_by_their_key_for_a_time() {
        let mut times = ListingTimes::new(OWN, 1);
        assert_eq!(times.hash_of(7, Duration::MAX), None);
        times.note_key(7, 1);
        assert_eq!(times.hash_of(7, Duration::MAX), Some(1));
        assert_eq!(times.hash_of(8, Duration::MAX), None);
        assert_eq!(times.hash_of(7, Duration::ZERO), None);
    }
}
