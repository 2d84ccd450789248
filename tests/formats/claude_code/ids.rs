//! R40: names of workers, paths and markers depend only on the store, not on the contents of a
//! cache.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::cache::DiskCache;
use swarmletfs_base::store::Memory;
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::support::seen::names;
use crate::support::transcript::{Transcript, place, store};
use crate::support::{scale, see};

/// Number of subagents inside sessions.
const AGENTS: usize = 4;
/// Number of sessions that each subagent is in.
const EACH: usize = 2;

/// Returns the name of a session that is not a UUID.
fn session(number: usize) -> String {
    format!("{:012x}-{}", number * 0x9e37_79b9, number % 10)
}

fn transcripts(count: usize) -> Arc<Memory> {
    let store = store();
    for number in 0..count {
        let mut transcript = Transcript::new(&session(number));
        transcript.user(format!("task {number}")).bash("t1", "ls", "nothing\n");
        if number < AGENTS * EACH {
            transcript.progress(
                &format!("agent{}", number % AGENTS),
                "user",
                json!({"content": "search"}),
            );
        }
        transcript.says("done");
        store.write(&place(&session(number)), transcript.bytes());
    }
    store
}

/// Opens the tree, with a cache in a directory if there is one. `eager` caches small transcripts,
/// too.
fn tree(store: &Arc<Memory>, cache: Option<(&Path, bool)>) -> Tree {
    let mut source =
        Source::from_store(store.clone(), None).with_format(Box::new(ClaudeCode::transcripts()));
    if let Some((folder, eager)) = cache {
        let cache = DiskCache::open(&folder.join("cache"), 1 << 30).unwrap();
        source = source.with_cache(Arc::new(if eager { cache.eager() } else { cache }));
    }
    let hour = Duration::from_secs(3_600);
    let fresh = Freshness { unfinished: hour, finished: hour };
    // On a slow machine, no file may be generated from partial data.
    let settings = Settings { deadline: hour, ..Settings::default() };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), settings)
}

/// Returns everything that names workers: the listings, the links of a run, and each worker's
/// summary with its marker.
fn named(tree: &Tree) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for folder in ["workers", "runs", "by/type/session", "by/type/agent"] {
        all.insert(folder.to_owned(), names(tree, folder).unwrap());
    }
    for worker in &all["workers"].clone() {
        let path = format!("workers/{}/summary", String::from_utf8_lossy(worker));
        if let Ok(seen) = see(tree, &path) {
            all.insert(path, vec![seen.bytes().to_vec()]);
        }
    }
    all
}

fn check(count: usize) {
    let store = transcripts(count);
    let told = (0..AGENTS).flat_map(|agent| [format!("agent{agent}"), format!("agent{agent}~2")]);
    let wanted: BTreeSet<String> = (0..count).map(session).chain(told).collect();
    let without = named(&tree(&store, None));
    let names: BTreeSet<String> =
        without["workers"].iter().map(|name| String::from_utf8(name.clone()).unwrap()).collect();
    assert_eq!(
        names.iter().filter(|name| *name != "index.json").cloned().collect::<BTreeSet<_>>(),
        wanted
    );
    for eager in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        for start in ["an empty cache", "a filled cache", "a filled cache again"] {
            let seen = named(&tree(&store, Some((folder.path(), eager))));
            assert!(
                seen.keys().eq(without.keys()),
                "{count}, eager {eager}, {start}: {:?}",
                seen.keys()
            );
            for (path, seen) in &seen {
                assert!(seen == &without[path], "{count}, eager {eager}, {start}: {path}");
            }
        }
    }
}

/// Promise: A worker's name is the same with an empty, a filled and no cache.
#[test]
fn worker_name_is_independent_of_the_cache() {
    [10, scale(2_000)].into_iter().for_each(check);
}
