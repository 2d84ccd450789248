//! Files that are replaced, and versions of generated files that are succeeded, faster than they are opened.
//!
//! A lookup tells the kernel which file a name leads to, and the open that follows has to be of that one. If another
//! has taken its place meanwhile the open is stale, and the kernel looks up and opens once more; if that is stale too,
//! whoever reads is told ESTALE, which no disk would say. The same goes for the attributes, which the kernel may ask for
//! before it opens. So where a file was stale a moment ago, a lookup opens it as well, and the open that follows may
//! have it. That is a few descriptors, each for a moment: in general none is held for an inode. Of a generated file it
//! is the bytes that are held: they may be evicted, and cannot be made again once what they are made of has changed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Ino;
use super::handle::Handle;
use super::node::Node;

/// So many nodes are remembered and so many files kept, those used last. Of one file that is replaced all the time
/// every version that was looked up is kept: on a busy machine many are before whoever looked up first gets to open.
const MOST: usize = 256;
/// And for so long: on a busy machine it may take a while until the kernel looks up again.
const MOMENT: Duration = Duration::from_secs(10);
/// So many bytes of versions are kept at most, but for the last one.
const BYTES: usize = 32 << 20;

/// What was stale a moment ago, and what lookups have opened since.
#[derive(Default)]
pub(super) struct Contended {
    stale: VecDeque<(Node, Instant)>,
    opened: VecDeque<Kept>,
}

/// What a lookup has opened. To be let go of where no lock is held: closing it may take its time.
type Kept = (Ino, Instant, Handle);

impl Contended {
    /// Notes that `node` was stale when it was opened or asked about.
    pub(super) fn note(&mut self, node: Node) {
        self.stale.retain(|(other, _)| *other != node);
        self.stale.truncate(MOST - 1);
        self.stale.push_front((node, Instant::now()));
    }

    /// Whether `node` was stale a moment ago.
    pub(super) fn contains(&mut self, node: &Node) -> bool {
        self.stale.retain(|(_, at)| at.elapsed() < MOMENT);
        self.stale.iter().any(|(other, _)| other == node)
    }

    /// Keeps what a lookup has opened. Gives what is to be let go of for it.
    #[must_use]
    pub(super) fn keep(&mut self, ino: Ino, opened: Handle) -> Vec<Kept> {
        let mut gone = Vec::from_iter(self.forget(ino));
        let mut bytes = weight(&opened);
        let is_past = |(_, at, opened): &Kept| {
            bytes += weight(opened);
            at.elapsed() >= MOMENT || bytes > BYTES
        };
        let past = self.opened.iter().position(is_past).unwrap_or(MOST - 1);
        gone.extend(self.opened.drain(past.min(self.opened.len()).min(MOST - 1)..));
        self.opened.push_front((ino, Instant::now(), opened));
        gone
    }

    /// Takes out what was kept for long enough.
    #[must_use]
    pub(super) fn expired(&mut self) -> Vec<Kept> {
        let first = self.opened.iter().position(|(_, at, _)| at.elapsed() >= MOMENT);
        first.map_or_else(Vec::new, |first| self.opened.drain(first..).collect())
    }

    /// What a lookup has opened under this number.
    pub(super) fn opened(&self, ino: Ino) -> Option<Handle> {
        self.opened.iter().find(|(other, ..)| *other == ino).map(|(_, _, opened)| opened.clone())
    }

    /// Takes out what a lookup has opened under this number.
    #[must_use]
    pub(super) fn forget(&mut self, ino: Ino) -> Option<Kept> {
        let at = self.opened.iter().position(|(other, ..)| *other == ino)?;
        self.opened.remove(at)
    }
}

fn weight(opened: &Handle) -> usize {
    if let Handle::Bytes(bytes) = opened { bytes.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::{Error, Result};
    use crate::name::Name;
    use crate::store::{File, Meta};

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
    fn few_files_are_kept_and_those_used_last() {
        let (mut contended, file): (_, Arc<dyn File>) = (Contended::default(), Arc::new(Nothing));
        let worker = |n: u64| Node::Worker(Name::new(n.to_string()).unwrap());
        for n in 0..2_000 {
            contended.note(worker(n));
            for _ in 0..2 {
                drop(contended.keep(n, Handle::File(n, file.clone())));
            }
        }
        assert_eq!((contended.stale.len(), contended.opened.len(), Arc::strong_count(&file)), (MOST, MOST, MOST + 1));
        assert!(contended.contains(&worker(1_999)) && !contended.contains(&worker(0)));
        assert!(contended.opened(1_999).is_some() && contended.opened(0).is_none());
        drop(contended.forget(1_999));
        assert!(contended.opened(1_999).is_none());
    }

    #[test]
    fn what_is_kept_expires_though_nothing_else_is_kept() {
        let (mut contended, file): (_, Arc<dyn File>) = (Contended::default(), Arc::new(Nothing));
        (0..3).for_each(|n| drop(contended.keep(n, Handle::File(n, file.clone()))));
        assert!(contended.expired().is_empty());
        contended.opened.iter_mut().skip(1).for_each(|(_, at, _)| *at = at.checked_sub(MOMENT).unwrap());
        drop(contended.expired());
        assert_eq!((contended.opened.len(), Arc::strong_count(&file)), (1, 2));
    }

    #[test]
    fn few_bytes_are_kept_and_the_last_version_whatever_its_size() {
        let mut contended = Contended::default();
        for (ino, size) in [(1, BYTES), (2, 1), (3, BYTES - 1), (4, 1), (5, 2 * BYTES)] {
            drop(contended.keep(ino, Handle::Bytes(vec![0; size].into())));
            let kept: Vec<Ino> = contended.opened.iter().map(|(ino, ..)| *ino).collect();
            let right: &[Ino] = match ino {
                1 => &[1],
                2 => &[2],
                3 => &[3, 2],
                4 => &[4, 3],
                _ => &[5],
            };
            assert_eq!(kept, right);
        }
    }
}
