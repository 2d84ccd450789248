//! The inode table: numbers to nodes, with the kernel's lookups counted.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ino;
use super::attr::Ident;
use super::node::Node;
use super::versions::Version;
use crate::error::{Error, Result};
use crate::store::Time;

/// The root's number.
pub const ROOT: Ino = 1;

/// The state of a file or folder: last change, last change of the inode, size. Equal means that what was read of it is
/// right.
pub(super) type Signature = (Time, Time, u64);

/// What is known of an inode.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) node: Node,
    pub(super) ident: Ident,
    /// Of a generated file.
    pub(super) version: Option<Arc<Version>>,
    lookups: u64,
    /// The state of what is in the kernel's cache, as a hash, and since when it is there.
    cached: Option<(u64, Instant)>,
    /// The state that the kernel was told last, as a hash, and whether it believes that for long.
    told: Option<(u64, bool)>,
    /// When it was last made to ask anew.
    asked: Option<Instant>,
}

/// All inodes that the kernel knows.
pub(super) struct Inodes<H = RandomState> {
    slots: HashMap<Ino, Slot>,
    /// Random for each table, so that nobody can make two nodes of one number.
    hasher: H,
}

impl Inodes {
    pub(super) fn new() -> Inodes {
        let root = Slot {
            node: Node::Root,
            ident: Ident::Fixed,
            version: None,
            lookups: 1,
            cached: None,
            told: None,
            asked: None,
        };
        Inodes { slots: HashMap::from([(ROOT, root)]), hasher: RandomState::new() }
    }
}

impl<H: BuildHasher> Inodes<H> {
    /// The number that a node has, or would have.
    pub(super) fn number(&self, node: &Node, ident: Ident) -> Ino {
        if *node == Node::Root {
            return ROOT;
        }
        let mut salt = 0_u32;
        loop {
            let number = self.hasher.hash_one((node, ident, salt));
            let taken = self.slots.get(&number).is_some_and(|slot| slot.node != *node || slot.ident != ident);
            if number > ROOT && !taken {
                return number;
            }
            salt += 1;
        }
    }

    pub(super) fn look_up(&mut self, node: Node, ident: Ident, version: Option<Arc<Version>>) -> Ino {
        let number = self.number(&node, ident);
        let new = Slot { node, ident, version: None, lookups: 0, cached: None, told: None, asked: None };
        let slot = self.slots.entry(number).or_insert(new);
        slot.version = version;
        slot.lookups += 1;
        number
    }

    /// Gives back lookups. Says whether the inode is known no longer.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&ino).filter(|_| ino != ROOT) else { return false };
        slot.lookups = slot.lookups.saturating_sub(count);
        let gone = slot.lookups == 0;
        if gone {
            self.slots.remove(&ino);
        }
        gone
    }

    pub(super) fn get(&self, ino: Ino) -> Result<Slot> {
        self.slots.get(&ino).cloned().ok_or(Error::Stale)
    }

    /// Notes that a file or folder was opened in this state; says whether what the kernel has cached of it is of the
    /// same, and no older than `most`. What is read in a state that is not `at_rest` is not taken for that of the same
    /// state later.
    pub(super) fn opened(&mut self, ino: Ino, signature: Signature, most: Duration, at_rest: bool) -> bool {
        let now = self.hasher.hash_one(signature);
        let Some(slot) = self.slots.get_mut(&ino) else { return false };
        let kept = slot.cached.is_some_and(|(state, since)| state == now && since.elapsed() < most);
        if !kept {
            slot.cached = at_rest.then(|| (now, Instant::now()));
        }
        kept
    }

    /// Notes the state that the kernel is told, and whether it believes that `for_long`.
    pub(super) fn told(&mut self, ino: Ino, signature: Signature, for_long: bool) {
        let now = self.hasher.hash_one(signature);
        if let Some(slot) = self.slots.get_mut(&ino) {
            slot.told = Some((now, for_long));
        }
    }

    /// Whether the kernel was told another state than this for long, and has to ask anew. Not again within a `moment`: of a
    /// file that changes all the time it would be told another state each time.
    pub(super) fn is_outdated(&mut self, ino: Ino, signature: Signature, moment: Duration) -> bool {
        let now = self.hasher.hash_one(signature);
        let Some(slot) = self.slots.get_mut(&ino) else { return false };
        let outdated = slot.told.is_some_and(|(told, for_long)| for_long && told != now)
            && slot.asked.is_none_or(|at| at.elapsed() >= moment);
        if outdated {
            slot.asked = Some(Instant::now());
        }
        outdated
    }

    /// Whether the kernel was told this state last.
    pub(super) fn is_told(&self, ino: Ino, signature: Signature) -> bool {
        let now = self.hasher.hash_one(signature);
        self.slots.get(&ino).is_some_and(|slot| slot.told.is_some_and(|(told, _)| told == now))
    }

    /// The numbers whose node is one that `wanted` says.
    pub(super) fn those(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Ino> {
        self.slots.iter().filter(|(_, slot)| wanted(&slot.node)).map(|(ino, _)| *ino).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasherDefault, Hasher};

    use super::*;
    use crate::name::Name;

    /// Makes no more than eight numbers, [`ROOT`] among them.
    #[derive(Default)]
    struct Poor(u64);

    impl Hasher for Poor {
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
        let mut inodes = Inodes::new();
        let ino = inodes.look_up(worker("a"), Ident::Fixed, None);
        assert_eq!(inodes.look_up(worker("a"), Ident::Fixed, None), ino);
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
    fn another_content_is_another_number() {
        let mut inodes = Inodes::new();
        let one = inodes.look_up(worker("a"), Ident::Content([1; 16]), None);
        let two = inodes.look_up(worker("a"), Ident::Content([2; 16]), None);
        assert_ne!(one, two);
        assert_eq!(inodes.look_up(worker("a"), Ident::Content([1; 16]), None), one);
    }

    #[test]
    fn no_two_nodes_have_one_number_even_where_their_hashes_are_one() {
        let slots = Inodes::new().slots;
        let mut inodes = Inodes { slots, hasher: BuildHasherDefault::<Poor>::default() };
        let nodes = || ["a", "b", "c"].map(worker).into_iter().flat_map(|node| [1, 2].map(|of| (node.clone(), of)));
        let numbers: Vec<Ino> =
            nodes().map(|(node, of)| inodes.look_up(node, Ident::Content([of; 16]), None)).collect();
        let again: Vec<Ino> = nodes().map(|(node, of)| inodes.number(&node, Ident::Content([of; 16]))).collect();
        assert_eq!(numbers, again);
        assert_eq!(numbers.iter().chain([&ROOT]).collect::<HashSet<_>>().len(), 7, "{numbers:?}");
        assert!(!numbers.contains(&0));
    }

    #[test]
    fn pages_are_kept_only_if_nothing_changed_since_the_last_open() {
        let mut inodes = Inodes::new();
        let ino = inodes.look_up(worker("a"), Ident::Fixed, None);
        let (then, always) = (Time { secs: 1, nanos: 1 }, Duration::MAX);
        assert!(!inodes.opened(ino, (then, then, 5), always, true));
        assert!(inodes.opened(ino, (then, then, 5), always, true));
        assert!(!inodes.opened(ino, (then, then, 5), Duration::ZERO, true));
        assert!(!inodes.opened(ino, (then, then, 6), always, false));
        assert!(!inodes.opened(ino, (then, then, 6), always, true), "it was not at rest then");
        assert!(inodes.opened(ino, (then, then, 6), always, true));
    }

    #[test]
    fn who_was_told_another_state_has_to_ask_anew_once() {
        let (mut inodes, hour) = (Inodes::new(), Duration::from_secs(3_600));
        let ino = inodes.look_up(worker("a"), Ident::Fixed, None);
        let then = Time { secs: 1, nanos: 1 };
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour), "nothing was told");
        inodes.told(ino, (then, then, 4), false);
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour), "it is soon told another");
        inodes.told(ino, (then, then, 5), true);
        assert!(!inodes.is_outdated(ino, (then, then, 5), hour));
        assert!(inodes.is_outdated(ino, (then, then, 6), hour));
        assert!(!inodes.is_outdated(ino, (then, then, 7), hour), "a moment ago");
        assert!(inodes.is_outdated(ino, (then, then, 7), Duration::ZERO));
    }

    #[test]
    fn the_inodes_of_a_worker_are_found() {
        let mut inodes = Inodes::new();
        let [a, b] = ["a", "b"].map(|id| inodes.look_up(worker(id), Ident::Fixed, None));
        assert_eq!(inodes.those(|node| *node == worker("a")), [a]);
        assert_ne!(a, b);
    }
}
