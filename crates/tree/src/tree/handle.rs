//! Handles of open files, and listings of directories.
//!
//! [`PinnedOpens`] has files that a lookup has opened already, because they are replaced faster
//! than the kernel opens them. A lookup gives the kernel an inode, and the following open must be
//! for that inode. If another file took its place meanwhile, the open is stale, and the kernel
//! looks up and opens once more. If the second open is stale too, the reader receives ESTALE, which
//! no local file system would return. A getattr between lookup and open can fail for the same
//! reason.
//!
//! While a node was stale a moment ago, a lookup also opens its file and pins it here, and the
//! following open uses that. This costs a few descriptors for a moment. Of a generated file the
//! bytes are pinned: they may be evicted, and cannot be rendered again once their sources have
//! changed.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node::Node;
use super::{Fh, Ino, NodeKind};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::File;

#[derive(Debug, Clone)]
pub struct ListedEntry {
    pub name: Name,
    pub kind: NodeKind,
    /// Number for readdir. It equals the inode's number only if that does not depend on the
    /// content.
    pub ino: Ino,
}

#[derive(Debug, Clone)]
pub struct DirListing {
    /// Entries, sorted by name.
    pub items: Arc<[ListedEntry]>,
    /// Version of the listing. A position in one version is never used in another.
    pub version: NonZeroU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirPosition {
    Start,
    /// After so many entries of the listing of this version.
    After(NonZeroU32, usize),
}

#[derive(Clone)]
pub(super) enum Handle {
    /// One version of a generated file.
    Bytes(Arc<[u8]>),
    /// A file in a store, and the inode through which it was opened, if any.
    File(Option<Ino>, Arc<dyn File>),
}

#[derive(Default)]
pub(super) struct Handles {
    last: Fh,
    open: HashMap<Fh, Handle>,
}

impl Handles {
    pub(super) fn add(&mut self, handle: Handle) -> Fh {
        self.last += 1;
        self.open.insert(self.last, handle);
        self.last
    }

    pub(super) fn get(&self, fh: Fh) -> Result<Handle> {
        self.open.get(&fh).cloned().ok_or(Error::UnknownHandle)
    }

    /// Returns a file in a store that is open through this inode.
    pub(super) fn file(&self, ino: Ino) -> Option<Arc<dyn File>> {
        self.open.values().find_map(|handle| match handle {
            Handle::File(opened_by, file) if *opened_by == Some(ino) => Some(file.clone()),
            _ => None,
        })
    }

    pub(super) fn remove(&mut self, fh: Fh) -> Option<Handle> {
        self.open.remove(&fh)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

/// Most nodes and most open files kept, the latest first. For a file that is replaced all the time,
/// each version that was looked up is pinned. On a busy machine there are many before the first
/// reader gets to open.
const ITEMS_MAX: usize = 256;
/// Time for which a node counts as contended and a file stays pinned. A busy kernel may take a
/// while to look up again.
const PIN_TIME: Duration = Duration::from_secs(10);
/// Most bytes of pinned versions; the newest version is kept regardless of its size.
const BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
pub(super) struct PinnedOpens {
    stale: VecDeque<(Node, Instant)>,
    pinned: VecDeque<PinnedOpen>,
}

/// A pinned file. Drop it without holding a lock: closing may be slow.
type PinnedOpen = (Ino, Instant, Handle);

impl PinnedOpens {
    pub(super) fn note_stale(&mut self, node: Node) {
        self.stale.retain(|(other, _)| *other != node);
        self.stale.truncate(ITEMS_MAX - 1);
        self.stale.push_front((node, Instant::now()));
    }

    pub(super) fn was_stale(&mut self, node: &Node) -> bool {
        self.stale.retain(|(_, at)| at.elapsed() < PIN_TIME);
        self.stale.iter().any(|(other, _)| other == node)
    }

    /// Pins a file that a lookup has opened. Returns the files that are evicted, for the caller to
    /// drop.
    #[must_use]
    pub(super) fn pin(&mut self, ino: Ino, opened: Handle) -> Vec<PinnedOpen> {
        let mut evicted = Vec::from_iter(self.unpin(ino));
        let mut bytes = byte_len(&opened);
        let kept = self.pinned.iter().take(ITEMS_MAX - 1).take_while(|(_, at, opened)| {
            bytes += byte_len(opened);
            at.elapsed() < PIN_TIME && bytes <= BYTES_MAX
        });
        let kept = kept.count();
        evicted.extend(self.pinned.drain(kept..));
        self.pinned.push_front((ino, Instant::now(), opened));
        evicted
    }

    /// Removes and returns the files whose time is over.
    #[must_use]
    pub(super) fn expired(&mut self) -> Vec<PinnedOpen> {
        let first = self.pinned.iter().position(|(_, at, _)| at.elapsed() >= PIN_TIME);
        first.map_or_else(Vec::new, |first| self.pinned.drain(first..).collect())
    }

    pub(super) fn get(&self, ino: Ino) -> Option<Handle> {
        self.pinned.iter().find(|(other, ..)| *other == ino).map(|(_, _, opened)| opened.clone())
    }

    #[must_use]
    pub(super) fn unpin(&mut self, ino: Ino) -> Option<PinnedOpen> {
        let at = self.pinned.iter().position(|(other, ..)| *other == ino)?;
        self.pinned.remove(at)
    }
}

fn byte_len(opened: &Handle) -> usize {
    if let Handle::Bytes(bytes) = opened { bytes.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use swarmletfs_base::error::{Error, Result};
    use swarmletfs_base::name::Name;
    use swarmletfs_base::store::{File, Meta};

    struct Nothing;

    impl File for Nothing {
        fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
            Ok(0)
        }

        fn meta(&self) -> Result<Meta> {
            Err(Error::NotFound)
        }
    }

    #[test]
    fn the_latest_files_are_pinned_up_to_a_limit() {
        let (mut pinned_opens, file): (_, Arc<dyn File>) =
            (PinnedOpens::default(), Arc::new(Nothing));
        let worker = |n: u64| Node::Worker(Name::new(n.to_string()).unwrap());
        for n in 0..2_000 {
            pinned_opens.note_stale(worker(n));
            for _ in 0..2 {
                drop(pinned_opens.pin(n, Handle::File(Some(n), file.clone())));
            }
        }
        assert_eq!(
            (pinned_opens.stale.len(), pinned_opens.pinned.len(), Arc::strong_count(&file)),
            (ITEMS_MAX, ITEMS_MAX, ITEMS_MAX + 1)
        );
        assert!(pinned_opens.was_stale(&worker(1_999)) && !pinned_opens.was_stale(&worker(0)));
        assert!(pinned_opens.get(1_999).is_some() && pinned_opens.get(0).is_none());
        drop(pinned_opens.unpin(1_999));
        assert!(pinned_opens.get(1_999).is_none());
    }

    #[test]
    fn a_pinned_file_expires_without_further_pins() {
        let (mut pinned_opens, file): (_, Arc<dyn File>) =
            (PinnedOpens::default(), Arc::new(Nothing));
        (0..3).for_each(|n| drop(pinned_opens.pin(n, Handle::File(Some(n), file.clone()))));
        assert!(pinned_opens.expired().is_empty());
        pinned_opens
            .pinned
            .iter_mut()
            .skip(1)
            .for_each(|(_, at, _)| *at = at.checked_sub(PIN_TIME).unwrap());
        drop(pinned_opens.expired());
        assert_eq!((pinned_opens.pinned.len(), Arc::strong_count(&file)), (1, 2));
    }

    #[test]
    fn few_bytes_are_pinned_but_the_latest_version_always_is() {
        let mut pinned_opens = PinnedOpens::default();
        for (ino, size) in [(1, BYTES_MAX), (2, 1), (3, BYTES_MAX - 1), (4, 1), (5, 2 * BYTES_MAX)]
        {
            drop(pinned_opens.pin(ino, Handle::Bytes(vec![0; size].into())));
            let pinned: Vec<Ino> = pinned_opens.pinned.iter().map(|(ino, ..)| *ino).collect();
            let expected: &[Ino] = match ino {
                1 => &[1],
                2 => &[2],
                3 => &[3, 2],
                4 => &[4, 3],
                _ => &[5],
            };
            assert_eq!(pinned, expected);
        }
    }
}
