//! Index from names to positions in a list, which stores positions only, since the list has the
//! names; and short ids: beginnings of names that distinguish the workers of a view.

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

/// Minimum length of a short id, in bytes. A shorter name stands for itself.
const LENGTH_MIN: usize = 8;

/// Lengths of the short ids of a list of names, in bytes.
pub(super) struct ShortIds(Vec<u16>);

impl ShortIds {
    pub(super) fn new(names: &[&Name]) -> ShortIds {
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_unstable_by_key(|at| names.get(*at));
        let bytes = |at: Option<&usize>| {
            at.and_then(|at| names.get(*at)).map(|name| name.as_bytes()).unwrap_or_default()
        };
        let mut lengths = vec![0; names.len()];
        for (rank, at) in order.iter().enumerate() {
            // Among sorted names, the neighbors share the longest beginnings.
            let name = bytes(Some(at));
            let before = rank.checked_sub(1).and_then(|rank| order.get(rank));
            let shared = common_length(name, bytes(before))
                .max(common_length(name, bytes(order.get(rank + 1))));
            let mut length = (shared + 1).max(LENGTH_MIN).min(name.len());
            while name.get(length).is_some_and(|byte| byte & 0xc0 == 0x80) {
                length += 1;
            }
            if let Some(slot) = lengths.get_mut(*at) {
                *slot = u16::try_from(length).unwrap_or(u16::MAX);
            }
        }
        ShortIds(lengths)
    }

    pub(super) fn get(&self, at: usize, name: &Name) -> Option<Name> {
        let length = usize::from(*self.0.get(at)?);
        Name::new(name.as_bytes().get(..length)?).ok()
    }
}

fn common_length(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
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

    fn short(names: &[&str]) -> Vec<String> {
        let names: Vec<Name> = names.iter().map(|name| Name::new(name).unwrap()).collect();
        let ids = ShortIds::new(&names.iter().collect::<Vec<_>>());
        let shown = names.iter().enumerate().map(|(at, name)| ids.get(at, name).unwrap().display());
        shown.collect()
    }

    #[test]
    fn short_ids_are_the_shortest_unique_prefixes() {
        assert_eq!(
            short(&["0123456789abc", "0123456789xyz", "zzzzzzzzzzzz", "w"]),
            ["0123456789a", "0123456789x", "zzzzzzzz", "w"]
        );
        assert_eq!(short(&["a-long-name", "a-long-name~2"]), ["a-long-name", "a-long-name~"]);
        assert!(short(&[]).is_empty());
    }

    #[test]
    fn a_short_id_ends_at_a_character() {
        assert_eq!(short(&["aaaaaaaéb", "c"]), ["aaaaaaaé", "c"]);
        assert_eq!(short(&["aaaaaaaé", "aaaaaaaè"]), ["aaaaaaaé", "aaaaaaaè"]);
    }
}
