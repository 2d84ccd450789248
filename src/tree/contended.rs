//! Files that are replaced faster than they are opened.
//!
//! A lookup tells the kernel which file a name leads to, and the open that follows has to be of that one. If another
//! has taken its place meanwhile the open is stale, and the kernel looks up and opens once more; if that is stale too,
//! whoever reads is told ESTALE, which no disk would say. So where an open was stale a moment ago, a lookup opens the
//! file as well, and the open that follows may have it. That is a few descriptors, each for a moment: in general none
//! is held for an inode.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ino;
use super::namespace::Node;
use crate::store::File;

/// So many nodes are remembered and so many files kept, those used last.
const MOST: usize = 16;
/// And for so long: on a busy machine it may take a while until the kernel looks up again.
const MOMENT: Duration = Duration::from_secs(10);

/// What was stale a moment ago, and what lookups have opened since.
#[derive(Default)]
pub(super) struct Contended {
    stale: VecDeque<(Node, Instant)>,
    opened: VecDeque<(Ino, Instant, Arc<dyn File>)>,
}

impl Contended {
    /// Notes that an open of `node` was stale.
    pub(super) fn note(&mut self, node: Node) {
        self.stale.retain(|(other, _)| *other != node);
        self.stale.truncate(MOST - 1);
        self.stale.push_front((node, Instant::now()));
    }

    /// Whether an open of `node` was stale a moment ago. Lets go of what is older.
    pub(super) fn contains(&mut self, node: &Node) -> bool {
        self.stale.retain(|(_, at)| at.elapsed() < MOMENT);
        self.opened.retain(|(_, at, _)| at.elapsed() < MOMENT);
        self.stale.iter().any(|(other, _)| other == node)
    }

    /// Keeps a file that a lookup has opened.
    pub(super) fn keep(&mut self, ino: Ino, file: Arc<dyn File>) {
        self.forget(ino);
        self.opened.truncate(MOST - 1);
        self.opened.push_front((ino, Instant::now(), file));
    }

    /// The file that a lookup has opened under this number.
    pub(super) fn file(&self, ino: Ino) -> Option<Arc<dyn File>> {
        self.opened.iter().find(|(other, ..)| *other == ino).map(|(_, _, file)| file.clone())
    }

    /// Lets go of the file that a lookup has opened under this number.
    pub(super) fn forget(&mut self, ino: Ino) {
        self.opened.retain(|(other, ..)| *other != ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Result};
    use crate::name::Name;
    use crate::store::Meta;

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
        for n in 0..100 {
            contended.note(worker(n));
            contended.keep(n, file.clone());
            contended.keep(n, file.clone());
        }
        assert_eq!((contended.stale.len(), contended.opened.len(), Arc::strong_count(&file)), (MOST, MOST, MOST + 1));
        assert!(contended.contains(&worker(99)) && !contended.contains(&worker(0)));
        assert!(contended.file(99).is_some() && contended.file(0).is_none());
        contended.forget(99);
        assert!(contended.file(99).is_none());
    }
}
