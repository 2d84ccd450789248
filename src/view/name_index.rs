//! Where each name stands in a list: only the numbers are held, since the names are in the list.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::name::Name;

/// The places of the names of one list, which no two elements share. A few bytes for each.
#[derive(Default)]
pub(super) struct NameIndex {
    table: HashTable<u32>,
    hasher: RandomState,
}

impl NameIndex {
    /// Those in `list`, whose elements are called `name`.
    pub(super) fn new<T>(list: &[T], name: impl Fn(&T) -> &Name) -> NameIndex {
        let hasher = RandomState::new();
        let hash = |at: &u32| list.get(*at as usize).map_or(0, |element| hasher.hash_one(name(element)));
        let mut table = HashTable::with_capacity(list.len());
        for at in (0..list.len()).map_while(|at| u32::try_from(at).ok()) {
            table.insert_unique(hash(&at), at, hash);
        }
        NameIndex { table, hasher }
    }

    /// Where `wanted` stands in `list`, which is that list or one with the same names in the same places.
    pub(super) fn get<T>(&self, list: &[T], name: impl Fn(&T) -> &Name, wanted: &Name) -> Option<usize> {
        let is_it = |at: &u32| list.get(*at as usize).is_some_and(|element| name(element) == wanted);
        self.table.find(self.hasher.hash_one(wanted), is_it).map(|at| *at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_where_it_stands_and_no_other() {
        let name = |number: usize| Name::new(number.to_string()).unwrap();
        for len in [0, 1, 1000] {
            let list: Vec<Name> = (0..len).map(name).collect();
            let name_index = NameIndex::new(&list, |name| name);
            assert!((0..len).all(|at| name_index.get(&list, |name| name, &name(at)) == Some(at)));
            assert_eq!(name_index.get(&list, |name| name, &name(len)), None);
        }
    }
}
