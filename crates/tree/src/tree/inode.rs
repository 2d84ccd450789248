//! The inode table: maps numbers to nodes and counts the kernel's lookups.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::dir_cache::{ListingHash, ListingKey, ListingTimes};
use super::node::{ContentId, Node, Signature};
use super::versions::Version;
use super::{Ino, TTL};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::store::Time;

/// Inode number of the root, unless the tree is one of several.
pub const ROOT: Ino = 1;

/// The bit that no inode number has, so that none is negative where it is read as a signed number.
const SIGN_BIT: Ino = 1 << 63;

/// The inode numbers of one tree: their upper bits, below `SIGN_BIT`, hold the number of the tree.
/// The trees of one mount have different numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InoRange {
    /// The tree's number, shifted to its place.
    base: Ino,
    /// The bits that differ within the tree.
    mask: Ino,
}

impl InoRange {
    /// The numbers of a tree that is alone.
    pub const ALL: InoRange = InoRange { base: 0, mask: SIGN_BIT - 1 };

    /// Returns the numbers of each of `count` trees. None has a number below [`ROOT`] of the first,
    /// and none equals one of the files that a mount has besides its trees, which are few.
    pub fn split(count: usize) -> impl Iterator<Item = InoRange> {
        let shift = InoRange::shift(count);
        (1..=count as Ino)
            .map(move |number| InoRange { base: number << shift, mask: (1 << shift) - 1 })
    }

    /// Returns the index of the tree, of `count` trees, that has the number `ino`. Returns `None`
    /// if none has.
    pub fn index_of(ino: Ino, count: usize) -> Option<usize> {
        let number = ((ino & !SIGN_BIT) >> InoRange::shift(count)) as usize;
        number.checked_sub(1).filter(|index| *index < count && ino & SIGN_BIT == 0)
    }

    /// Returns the number of bits that differ within one of `count` trees.
    fn shift(count: usize) -> u32 {
        SIGN_BIT.trailing_zeros() - (usize::BITS - count.leading_zeros())
    }

    pub fn root(self) -> Ino {
        self.base | ROOT
    }
}

/// Longest time after which the kernel counts from a reply, as a rule.
const DELAY_MAX: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) node: Node,
    pub(super) content_id: ContentId,
    /// Set for generated files only.
    pub(super) version: Option<Arc<Version>>,
}

/// The state that the kernel received last.
#[derive(Clone, Copy)]
struct ReportedState {
    hash: u64,
    size: u64,
    /// How long the kernel may cache it, and from when on.
    ttl: Duration,
    at: Instant,
}

struct InodeEntry {
    inode: Inode,
    lookups: u64,
    /// Hash of the state from which the kernel has cached data.
    cached: Option<u64>,
    reported: Option<ReportedState>,
    /// Time at which the kernel was last made to fetch the attributes again.
    invalidated: Option<Instant>,
    /// True if the last open found the file shorter than the kernel knew.
    shrank: bool,
    /// The mtime that the kernel received last.
    mtime: Time,
    /// Set for directories that the kernel has listed.
    listing: Option<Box<ListingTimes>>,
}

impl InodeEntry {
    fn new(node: Node, content_id: ContentId) -> InodeEntry {
        InodeEntry {
            inode: Inode { node, content_id, version: None },
            lookups: 0,
            cached: None,
            reported: None,
            invalidated: None,
            shrank: false,
            mtime: Time::default(),
            listing: None,
        }
    }
}

pub(super) struct Inodes<H = RandomState> {
    entries: HashMap<Ino, InodeEntry>,
    /// Lookups of inodes that the kernel received in listings without attributes, as long as it
    /// has not looked them up by name.
    listed: HashMap<Ino, u64>,
    range: InoRange,
    /// Random for each table, so that no worker can choose names whose numbers collide.
    hasher: H,
}

impl Inodes {
    pub(super) fn new(range: InoRange) -> Inodes {
        let root = InodeEntry { lookups: 1, ..InodeEntry::new(Node::Root, ContentId::Fixed) };
        let entries = HashMap::from([(range.root(), root)]);
        Inodes { entries, listed: HashMap::new(), range, hasher: RandomState::new() }
    }
}

impl<H: BuildHasher> Inodes<H> {
    /// Returns the number that a node has or would have.
    pub(super) fn number(&self, node: &Node, content_id: ContentId) -> Ino {
        let InoRange { base, mask } = self.range;
        if *node == Node::Root {
            return self.range.root();
        }
        let mut salt = 0_u32;
        loop {
            let within = self.hasher.hash_one((node, content_id, salt)) & mask;
            let number = base | within;
            let is_taken = self
                .entries
                .get(&number)
                .map(|entry| &entry.inode)
                .is_some_and(|inode| inode.node != *node || inode.content_id != content_id);
            if within > ROOT && !is_taken {
                return number;
            }
            salt += 1;
        }
    }

    /// Counts one lookup of a node, and adds it if it is new. Returns its number. `version` is set
    /// for a generated file.
    pub(super) fn look_up(
        &mut self,
        node: Node,
        content_id: ContentId,
        version: Option<Arc<Version>>,
    ) -> Ino {
        let number = self.number(&node, content_id);
        let entry = self.entries.entry(number).or_insert_with(|| InodeEntry {
            lookups: self.listed.remove(&number).unwrap_or_default(),
            ..InodeEntry::new(node, content_id)
        });
        entry.inode.version = version;
        entry.lookups += 1;
        number
    }

    /// Counts one lookup of an inode that the kernel receives in a listing without attributes. It
    /// may not be known yet.
    pub(super) fn count_listed(&mut self, ino: Ino) {
        match self.entries.get_mut(&ino) {
            Some(entry) => entry.lookups += 1,
            None => *self.listed.entry(ino).or_default() += 1,
        }
    }

    /// Gives back `count` lookups. Returns true if the inode was removed.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) -> bool {
        if ino == self.range.root() {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&ino) else {
            let listed = self.listed.remove(&ino).unwrap_or_default();
            match remaining(ino, listed, count) {
                0 => {}
                left => drop(self.listed.insert(ino, left)),
            }
            return false;
        };
        entry.lookups = remaining(ino, entry.lookups, count);
        let is_unused = entry.lookups == 0;
        if is_unused {
            self.entries.remove(&ino);
        }
        is_unused
    }

    pub(super) fn get(&self, ino: Ino) -> Result<Inode> {
        self.entries.get(&ino).map(|entry| entry.inode.clone()).ok_or(Error::Stale)
    }

    /// Records that a file was opened in this state. Returns true if the kernel's cached data is of
    /// an equal state. Data read in a state that is not `at_rest` is never valid for a later open.
    pub(super) fn record_open(&mut self, ino: Ino, signature: Signature, at_rest: bool) -> bool {
        let now = self.hasher.hash_one(signature);
        let Some(entry) = self.entries.get_mut(&ino) else { return false };
        let is_valid = entry.cached == Some(now);
        if !is_valid {
            entry.cached = at_rest.then_some(now);
        }
        is_valid
    }

    /// Records the state that the kernel receives, and how long it may cache it.
    pub(super) fn record_reported(&mut self, ino: Ino, signature: Signature, ttl: Duration) {
        let hash = self.hasher.hash_one(signature);
        if let Some(entry) = self.entries.get_mut(&ino) {
            let (mtime, _, size) = signature;
            entry.reported = Some(ReportedState { hash, size, ttl, at: Instant::now() });
            entry.mtime = mtime;
        }
    }

    /// Returns the size that the kernel may hold of an inode.
    pub(super) fn reported_size(&self, ino: Ino) -> Option<u64> {
        let reported = self.entries.get(&ino)?.reported?;
        (reported.at.elapsed() <= reported.ttl + DELAY_MAX).then_some(reported.size)
    }

    /// Records that the kernel reads the entries of a directory from the start; see
    /// [`ListingTimes::note_listed`]. They have this hash, and this key if they have one.
    pub(super) fn note_listed(&mut self, ino: Ino, hash: ListingHash, key: Option<ListingKey>) {
        let Some(entry) = self.entries.get_mut(&ino) else { return };
        let mtime = entry.mtime;
        let times = entry.listing.get_or_insert_with(|| Box::new(ListingTimes::new(mtime, hash)));
        times.note_listed(hash);
        if let Some(key) = key {
            times.note_key(key, hash);
        }
    }

    /// Returns true if the kernel may hold the entries of this directory.
    pub(super) fn is_listed(&self, ino: Ino) -> bool {
        self.entries.get(&ino).is_some_and(|entry| entry.listing.is_some())
    }

    pub(super) fn note_key(&mut self, ino: Ino, key: ListingKey, hash: ListingHash) {
        if let Some(times) = self.entries.get_mut(&ino).and_then(|entry| entry.listing.as_mut()) {
            times.note_key(key, hash);
        }
    }

    /// Returns the hash of the entries that have this key, if that was recorded at most `max_age`
    /// ago.
    pub(super) fn listing_hash(
        &self,
        ino: Ino,
        key: ListingKey,
        max_age: Duration,
    ) -> Option<ListingHash> {
        self.entries.get(&ino)?.listing.as_ref()?.hash_of(key, max_age)
    }

    /// Returns the mtime to report for a directory; see [`ListingTimes::report`].
    pub(super) fn listing_time(&mut self, ino: Ino, own: Time, hash: Option<ListingHash>) -> Time {
        let times = self.entries.get_mut(&ino).and_then(|entry| entry.listing.as_mut());
        times.map_or(own, |times| times.report(own, hash))
    }

    /// Returns true if the kernel must fetch the attributes again: it has cached another state for
    /// long, or a larger size. Returns true at most once per `interval`, or at every second call:
    /// otherwise a file that changes all the time could never be opened.
    pub(super) fn is_outdated(
        &mut self,
        ino: Ino,
        signature: Signature,
        interval: Duration,
    ) -> bool {
        let (now, (_, _, size)) = (self.hasher.hash_one(signature), signature);
        let Some(entry) = self.entries.get_mut(&ino) else { return false };
        let Some(reported) = entry.reported else { return false };
        let is_old = reported.ttl > TTL && reported.hash != now;
        let outdated = is_old && entry.invalidated.is_none_or(|at| at.elapsed() >= interval);
        if outdated {
            entry.invalidated = Some(Instant::now());
        }
        entry.shrank = size < reported.size && !entry.shrank;
        outdated || entry.shrank
    }

    pub(super) fn matches_reported(&self, ino: Ino, signature: Signature) -> bool {
        let now = self.hasher.hash_one(signature);
        self.entries.get(&ino).is_some_and(|entry| entry.reported.is_some_and(|it| it.hash == now))
    }

    pub(super) fn inodes_matching(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Ino> {
        let matching = self.entries.iter().filter(|(_, entry)| wanted(&entry.inode.node));
        matching.map(|(ino, _)| *ino).collect()
    }

    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.entries.keys().copied().collect()
    }

    /// Returns the number of inodes without the root.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - 1 + self.listed.len()
    }
}

/// Returns the lookups that are left after `count` of them were given back.
fn remaining(ino: Ino, lookups: u64, count: u64) -> u64 {
    lookups.checked_sub(count).unwrap_or_else(|| {
        // Requests that are under way may fail, since the inode is removed too early.
        warn!("the kernel gave back {count} lookups of inode {ino}, which has {lookups}");
        0
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasherDefault, Hasher};

    use super::*;
    use swarmletfs_base::name::Name;

    /// A hasher with eight results, [`ROOT`] among them.
    #[derive(Default)]
    struct PoorHasher(u64);

    impl Hasher for PoorHasher {
        fn write(&mut self, bytes: &[u8]) {
            self.0 += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }

        fn finish(&self) -> u64 {
            self.0 % 8
        }
    }

    fn worker(id: &str) -> Node {
        Node::Worker(Name::new(id).unwrap())
    }

    #[test]
    fn forget_is_balanced_with_lookup() {
        let mut inodes = Inodes::new(InoRange::ALL);
        let ino = inodes.look_up(worker("a"), ContentId::Fixed, None);
        assert_eq!(inodes.look_up(worker("a"), ContentId::Fixed, None), ino);
        assert!(!inodes.forget(ino, 1));
        assert!(inodes.get(ino).is_ok());
        assert_eq!(inodes.len(), 1);
        inodes.forget(ino, 1);
        assert_eq!(inodes.get(ino).err(), Some(Error::Stale));
        inodes.forget(ino, 7);
        inodes.forget(ROOT, 1_000);
        assert!(inodes.get(ROOT).is_ok());
        assert_eq!(inodes.len(), 0);
    }

    #[test]
    fn lookups_of_listed_inodes_are_counted_before_and_after_they_are_known() {
        let mut inodes = Inodes::new(InoRange::ALL);
        let (a, b) = (worker("a"), worker("b"));
        let [ino, other] = [&a, &b].map(|node| inodes.number(node, ContentId::Fixed));
        for listed in [ino, other, ino] {
            inodes.count_listed(listed);
        }
        assert!(inodes.get(ino).is_err(), "only its number is known");
        assert_eq!(inodes.len(), 2);
        inodes.look_up(a, ContentId::Fixed, None);
        inodes.count_listed(ino);
        assert!(!inodes.forget(ino, 3));
        assert!(inodes.get(ino).is_ok());
        assert!(inodes.forget(ino, 1));
        inodes.count_listed(other);
        inodes.forget(other, 1);
        assert_eq!(inodes.len(), 1);
        inodes.forget(other, 1);
        assert_eq!(inodes.len(), 0);
    }

    #[test]
    fn different_content_has_a_different_number() {
        let mut inodes = Inodes::new(InoRange::ALL);
        let one = inodes.look_up(worker("a"), ContentId::Hash([1; 16]), None);
        let two = inodes.look_up(worker("a"), ContentId::Hash([2; 16]), None);
        assert_ne!(one, two);
        assert_eq!(inodes.look_up(worker("a"), ContentId::Hash([1; 16]), None), one);
    }

    #[test]
    fn nodes_with_equal_hashes_have_different_numbers() {
        let entries = Inodes::new(InoRange::ALL).entries;
        let range = InoRange::ALL;
        let hasher = BuildHasherDefault::<PoorHasher>::default();
        let mut inodes = Inodes { entries, listed: HashMap::new(), range, hasher };
        let nodes = || {
            ["a", "b", "c"]
                .map(worker)
                .into_iter()
                .flat_map(|node| [1, 2].map(|byte| (node.clone(), byte)))
        };
        let numbers: Vec<Ino> = nodes()
            .map(|(node, byte)| inodes.look_up(node, ContentId::Hash([byte; 16]), None))
            .collect();
        let again: Vec<Ino> =
            nodes().map(|(node, byte)| inodes.number(&node, ContentId::Hash([byte; 16]))).collect();
        assert_eq!(numbers, again);
        assert_eq!(numbers.iter().chain([&ROOT]).collect::<HashSet<_>>().len(), 7, "{numbers:?}");
        assert!(!numbers.contains(&0));
    }

    #[test]
    fn pages_are_kept_only_if_nothing_changed_since_the_last_open() {
        let mut inodes = Inodes::new(InoRange::ALL);
        let ino = inodes.look_up(worker("a"), ContentId::Fixed, None);
        let then = Time { secs: 1, nanos: 1 };
        assert!(!inodes.record_open(ino, (then, then, 5), true));
        assert!(inodes.record_open(ino, (then, then, 5), true));
        assert!(!inodes.record_open(ino, (then, then, 6), false));
        assert!(!inodes.record_open(ino, (then, then, 6), true), "it was not at rest then");
        assert!(inodes.record_open(ino, (then, then, 6), true));
    }

    #[test]
    fn a_kernel_with_an_outdated_state_is_made_to_look_up_again_once() {
        let (mut inodes, hour) = (Inodes::new(InoRange::ALL), Duration::from_secs(3_600));
        let ino = inodes.look_up(worker("a"), ContentId::Fixed, None);
        let then = Time { secs: 1, nanos: 1 };
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour), "nothing was reported");
        inodes.record_reported(ino, (then, then, 4), TTL);
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour), "the short cache time ends soon");
        inodes.record_reported(ino, (then, then, 5), hour);
        assert_eq!(inodes.reported_size(ino), Some(5));
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour));
        assert!(inodes.is_outdated(ino, (then, then, 6), hour));
        assert!(!inodes.is_outdated(ino, (then, then, 7), hour), "a moment ago");
        assert!(inodes.is_outdated(ino, (then, then, 7), Duration::ZERO));
        let shorter = [1, 2, 3].map(|_| inodes.is_outdated(ino, (then, then, 4), hour));
        assert_eq!(shorter, [true, false, true]);
    }

    #[test]
    fn each_tree_of_several_has_numbers_of_its_own() {
        for count in [1, 2, 3, 7, 8, 1_000] {
            for (index, range) in InoRange::split(count).enumerate() {
                let mut inodes = Inodes::new(range);
                let numbers = [
                    range.root(),
                    inodes.look_up(worker("a"), ContentId::Fixed, None),
                    inodes.number(&Node::Root, ContentId::Fixed),
                ];
                for ino in numbers {
                    assert_eq!(InoRange::index_of(ino, count), Some(index), "{ino:x}");
                    assert_eq!(InoRange::index_of(ino | SIGN_BIT, count), None);
                }
                assert_eq!(numbers[0], numbers[2]);
                assert!(!inodes.forget(range.root(), 5));
            }
            assert_eq!(InoRange::index_of(ROOT, count), None);
            assert_eq!(
                InoRange::index_of(SIGN_BIT - 1, count),
                None.or_else(|| {
                    // The last tree has it if the trees use up all numbers.
                    (count + 1).is_power_of_two().then_some(count - 1)
                })
            );
        }
    }

    #[test]
    fn the_inodes_of_a_worker_are_found() {
        let mut inodes = Inodes::new(InoRange::ALL);
        let [a, b] = ["a", "b"].map(|id| inodes.look_up(worker(id), ContentId::Fixed, None));
        assert_eq!(inodes.inodes_matching(|node| *node == worker("a")), [a]);
        assert_ne!(a, b);
    }
}
