//! Index from names to positions in a list. It stores positions only, since the list has the names.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use swarmletfs_base::name::Name;

/// Index of a list of elements with distinct names. It takes a few bytes per element.
#[derive(Default)]
pub(super) struct NameIndex {
    table: HashTable<u32>,
    hasher: RandomState,
}

impl NameIndex {
    /// Indexes `list`; `name` returns the name of an element.
    pub(super) fn new<T>(list: &[T], name: impl Fn(&T) -> &Name) -> NameIndex {
        let hasher = RandomState::new();
        let hash =
            |at: &u32| list.get(*at as usize).map_or(0, |element| hasher.hash_one(name(element)));
        let mut table = HashTable::with_capacity(list.len());
        for at in (0..list.len()).map_while(|at| u32::try_from(at).ok()) {
            table.insert_unique(hash(&at), at, hash);
        }
        NameIndex { table, hasher }
    }

    /// Returns the position of `wanted` in `list`. `list` must have the names of the indexed list
    /// in the same order.
    pub(super) fn get<T>(
        &self,
        list: &[T],
        name: impl Fn(&T) -> &Name,
        wanted: &Name,
    ) -> Option<usize> {
        let found = self.table.find(self.hasher.hash_one(wanted), |at| {
            list.get(*at as usize).is_some_and(|element| name(element) == wanted)
        });
        found.map(|at| *at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_at_its_position_and_no_other_name() {
        let name = |number: usize| Name::new(number.to_string()).unwrap();
        for len in [0, 1, 1000] {
            let list: Vec<Name> = (0..len).map(name).collect();
            let name_index = NameIndex::new(&list, |name| name);
            assert!((0..len).all(|at| name_index.get(&list, |name| name, &name(at)) == Some(at)));
            assert_eq!(name_index.get(&list, |name| name, &name(len)), None);
        }
    }
}
