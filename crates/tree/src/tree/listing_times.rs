//! The mtime that the kernel receives for a directory that it has listed.
//!
//! The kernel keeps the entries of a directory, and reads them again only if the mtime differs from
//! the one at which it began to read them. So other entries need an mtime that none had before,
//! even if both changes happened within one tick of the clock, or if the directory is generated and
//! the newest write of its workers stays the same. The reported mtime is then some nanoseconds
//! later than the real one.

use std::time::{Duration, Instant};

use swarmletfs_base::store::Time;

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
    use super::*;

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
