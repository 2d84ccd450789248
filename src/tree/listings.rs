//! What the kernel may have kept of folders, for those who read on in it.
//!
//! The kernel shares what it keeps of a folder among all who have it open. Who began to read what was kept there, and
//! finds it gone because the folder has changed, asks for the rest: of the entries that it began with, which only those
//! who were asked for them hold.

use std::collections::VecDeque;

use super::Ino;
use super::handle::Entries;

/// So many listings are remembered, those made last, while they hold so many entries together.
const MOST: usize = 256;
const ITEMS_MOST: usize = 500_000;

/// The listings that were made last.
#[derive(Default)]
pub(super) struct Listings {
    made: VecDeque<(Ino, Entries)>,
    items: usize,
}

impl Listings {
    /// The entries of a folder that bear this version.
    pub(super) fn get(&self, ino: Ino, version: u32) -> Option<Entries> {
        let is_it = |(folder, entries): &&(Ino, Entries)| *folder == ino && entries.version == version;
        self.made.iter().find(is_it).map(|(_, entries)| entries.clone())
    }

    /// Remembers the entries of a folder.
    pub(super) fn keep(&mut self, ino: Ino, entries: Entries) {
        self.items += entries.items.len();
        self.made.push_front((ino, entries));
        // The one made last stays, however long it is.
        while self.made.len() > 1 && (self.made.len() > MOST || self.items > ITEMS_MOST) {
            let Some((_, gone)) = self.made.pop_back() else { break };
            self.items -= gone.items.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeKind;
    use super::super::handle::Item;
    use super::*;
    use crate::name::Name;

    fn entries(version: u32, length: usize) -> Entries {
        let item = Item { name: Name::new("a").unwrap(), kind: NodeKind::File, ino: 7 };
        Entries { items: vec![item; length].into(), version }
    }

    #[test]
    fn what_was_listed_last_is_remembered_and_no_more_than_that() {
        let mut listings = Listings::default();
        for version in 1..=1_000 {
            listings.keep(5, entries(version, 10));
        }
        assert_eq!((listings.made.len(), listings.items), (MOST, MOST * 10));
        assert!(listings.get(5, 1_000).is_some() && listings.get(5, 1).is_none() && listings.get(6, 1_000).is_none());
        listings.keep(5, entries(2_000, ITEMS_MOST));
        assert_eq!((listings.made.len(), listings.items), (1, ITEMS_MOST));
        assert!(listings.get(5, 2_000).is_some());
    }
}
