//! R38: a view shows the same contents whatever its cache directory holds.
//!
//! The cache directory belongs to a user and is shared by all views that the user mounts. Several
//! views read each random store: without a cache, with an empty one, with one filled by the other
//! views, and with one filled by the same view.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::cache::DiskCache;
use swarmletfs_base::error::Error;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::views::{everything, random_linked_store};
use super::{CANARY, holds_canary};
use crate::support::seen::names;
use crate::support::{Seen, TestStore, is_full, see, seeds};

/// Number of random stores, split over two tests.
const STORES: usize = 200;
/// Number of views compared for each store, chosen in turn out of six.
const EACH: usize = 4;
/// Number of stores that exist at a time.
const BATCH: usize = 50;
/// Nothing changes in this test, so nothing need be read again.
const NEVER: Duration = Duration::from_secs(3_600);

/// One way to read a store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reading {
    filter: Filter,
    admits_hard_links: bool,
}

impl Reading {
    /// Opens the tree, with caches in a directory if there is one. They are written when the tree
    /// is dropped.
    fn tree(&self, store: &TestStore, caches: Option<&Path>) -> Tree {
        let mut source = Source::open(&store.path()).unwrap();
        if let Some(folder) = caches {
            let cache = |name: &str| {
                Arc::new(DiskCache::open(&folder.join(name), 1 << 30).unwrap().eager())
            };
            source = source.with_cache(cache("cache")).with_index_cache(cache("index"));
        }
        if self.admits_hard_links {
            source = source.allowing_hard_links();
        }
        let fresh = Freshness { unfinished: NEVER, finished: NEVER };
        // On a slow machine, no file may be generated from partial data.
        let settings = Settings { deadline: NEVER, ..Settings::default() };
        Tree::new(View::new(vec![source], fresh, self.filter.clone()).unwrap(), settings)
    }

    fn everything(
        &self,
        store: &TestStore,
        caches: Option<&Path>,
    ) -> BTreeMap<Vec<u8>, Result<Seen, Error>> {
        everything(&self.tree(store, caches))
    }
}

/// Returns a file's text, or a description of anything else.
fn shown(seen: Option<&Result<Seen, Error>>) -> String {
    match seen {
        Some(Ok(Seen::File { attr, mtime, bytes })) => {
            format!("{attr:?} {mtime:?}\n{}", String::from_utf8_lossy(bytes))
        }
        other => format!("{other:?}"),
    }
}

/// Compares all readings of one random store. Returns true if anything was cached.
fn compare(seed: u64, store: &TestStore, filters: &[Filter]) -> bool {
    let reading = |filter: &Filter| Reading { filter: filter.clone(), admits_hard_links: false };
    let mut readings: Vec<Reading> = filters.iter().map(reading).collect();
    readings.push(Reading { admits_hard_links: true, ..reading(&filters[1]) });
    // One reading comes first and finds the cache empty; one comes last, when all others have
    // filled it.
    let count = readings.len();
    readings.rotate_left((seed % count as u64) as usize);
    readings.truncate(EACH);
    let plain: Vec<_> = readings.iter().map(|reading| reading.everything(store, None)).collect();
    let caches = tempfile::tempdir().unwrap();
    for turn in ["filled by those before", "filled by all"] {
        for (reading, plain) in readings.iter().zip(&plain) {
            let seen = reading.everything(store, Some(caches.path()));
            for path in seen.keys().chain(plain.keys()).collect::<BTreeSet<_>>() {
                let (seen, plain) = (seen.get(path), plain.get(path));
                assert!(
                    seen == plain,
                    "store {seed}, {reading:?}, {turn}, {}:\n{}\nwithout a cache {}",
                    path.escape_ascii(),
                    shown(seen),
                    shown(plain)
                );
            }
        }
    }
    ["cache", "index"]
        .iter()
        .all(|name| fs::read_dir(caches.path().join(name)).unwrap().next().is_some())
}

fn compare_all(seeds: impl Iterator<Item = u64>) {
    let seeds: Vec<u64> = seeds.collect();
    for batch in seeds.chunks(BATCH) {
        let stores: Vec<_> = batch.iter().map(|seed| (*seed, random_linked_store(*seed))).collect();
        stores.last().unwrap().1.0.rest();
        // Control: views without a worker leave nothing in the cache, and few stores have only such
        // views.
        let cached =
            stores.iter().filter(|(seed, (store, filters))| compare(*seed, store, filters)).count();
        assert!(
            2 * cached > stores.len() || !is_full(),
            "only {cached} of {} stores left anything in the cache",
            stores.len()
        );
    }
}

/// Promise: A view shows the same content whatever its cache holds.
#[test]
fn view_is_independent_of_its_cache() {
    compare_all(seeds(STORES).step_by(2));
}

#[test]
fn view_is_independent_of_its_cache_odd_seeds() {
    compare_all(seeds(STORES).skip(1).step_by(2));
}

/// Promise: A cache filled by a view of everything shows an owner nothing of another.
///
/// The thief's worker holds a hard link to the victim's metadata. The view of everything reads it,
/// and the thief's view must not.
#[test]
fn cache_filled_by_a_full_view_discloses_nothing_to_an_owner() {
    let store = TestStore::new();
    store.worker("thief", json!({"owner_id": "A"}));
    let secret = store
        .worker("victim", json!({"owner_id": "A", "task": CANARY}))
        .at("workers/victim/metadata.json");
    fs::create_dir(store.at("workers/stolen")).unwrap();
    fs::hard_link(secret, store.at("workers/stolen/metadata.json")).unwrap();
    store.rest();
    let caches = tempfile::tempdir().unwrap();
    let whole = Reading { filter: Filter::default(), admits_hard_links: false };
    let seen = whole.everything(&store, Some(caches.path()));
    assert!(
        holds_canary(seen[&b"workers/stolen/index.json"[..]].as_ref().unwrap().bytes()),
        "the control"
    );
    let owner = Reading { filter: Filter { owner: Some("A".into()), run: None }, ..whole };
    let tree = owner.tree(&store, Some(caches.path()));
    assert_eq!(names(&tree, "workers").unwrap(), [&b"index.json"[..], b"thief"]);
    assert!(!holds_canary(see(&tree, "index.json").unwrap().bytes()));
}
