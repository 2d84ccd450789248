//! R14: torn or damaged metadata does no harm. Its worker stays as it was last read, others are
//! unaffected, and a file that cannot have become valid is not read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Map;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::Settings;
use swarmletfs_tree::view::{Filter, View};

use super::*;
use crate::support::intercept::InterceptedStore;
use crate::support::open_counter::{OpenCounter, OpenLog};
use crate::support::{Seen, sample, scale, see_folder};

const METADATA: &str = "workers/w/metadata.json";

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Creates a running worker and another one, both of owner 7.
fn store() -> (Arc<Memory>, Vec<u8>) {
    let store = Arc::new(Memory::new());
    let metadata = |id: &str| {
        let all = json!({"worker_id": id, "task": "count the disks", "status": "running", "job_id": "3",
            "created_at": "2026-01-20T10:00:00+00:00", "config": {"owner_id": 7, "run_id": 48}});
        serde_json::to_vec_pretty(&all).unwrap()
    };
    for id in ["w", "other"] {
        store.write(&path(&format!("workers/{id}/metadata.json")), metadata(id));
        store.write(&path(&format!("workers/{id}/tool_calls/001_x.txt")), "Error: no disk\n");
    }
    (store, metadata("w"))
}

/// Opens the tree of everything, or of one owner, and logs opened files to `log`.
fn tree_of(store: &Arc<Memory>, log: &Arc<OpenLog>, owner: Option<&str>) -> Tree {
    let source = Source::from_store(
        Arc::new(InterceptedStore::new(OpenCounter(log.clone()), store.clone())),
        None,
    );
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let filter = Filter { owner: owner.map(str::to_owned), run: None };
    Tree::new(View::new(vec![source], fresh, filter).unwrap(), Settings::default())
}

/// Opens a tree, with a log of opened files.
fn watched(store: &Arc<Memory>) -> (Arc<OpenLog>, Tree) {
    let log = Arc::default();
    let tree = tree_of(store, &log, None);
    (log, tree)
}

const KEPT: [&str; 8] =
    ["id", "status", "task", "owner_id", "run_id", "job_id", "created_at", "marker"];

/// Returns the values kept for a worker with torn metadata, from its own index and from the
/// swarm's.
fn kept(tree: &Tree) -> [Value; 2] {
    let kept = |index: Value| KEPT.iter().map(|key| index[key].clone()).collect();
    [kept(index(tree, "w")), kept(rows(tree).remove("w").unwrap())]
}

fn other(tree: &Tree) -> BTreeMap<Vec<u8>, Seen> {
    see_folder(tree, "workers/other").unwrap()
}

/// Damages the metadata in each of these ways while the worker runs, and checks the view of
/// everyone and of its owner. Returns how many of them left JSON with other contents.
fn damage(ways: impl Fn(&[u8]) -> Vec<(String, Vec<u8>)>) -> usize {
    let (store, whole) = store();
    let trees = [None, Some("7")].map(|owner| tree_of(&store, &Arc::default(), owner));
    let good: Vec<_> = trees.iter().map(|tree| (kept(tree), other(tree))).collect();
    let mut changed = 0;
    for (what, damaged) in ways(&whole) {
        store.write(&path(METADATA), damaged.clone());
        match serde_json::from_slice::<Map<String, Value>>(&damaged) {
            Ok(object) => {
                changed += 1;
                assert_eq!(listed(&trees[0]), ["other", "w"], "{what}");
                let index = index(&trees[0], "w");
                assert!(
                    !checks(&index).contains(&"bad_metadata"),
                    "{what}: it is whole, and says something else"
                );
                let word = object.get("status").and_then(Value::as_str).unwrap_or("unknown");
                let source = index.get("status_source").unwrap_or(&index["status"]);
                assert_eq!(*source, *word, "{what}: as it says itself");
            }
            Err(_) => {
                for (tree, (good, _)) in trees.iter().zip(&good) {
                    assert_eq!(listed(tree), ["other", "w"], "{what}");
                    assert_eq!(kept(tree), *good, "{what}");
                    assert!(
                        checks(&index(tree, "w")).contains(&"bad_metadata"),
                        "{what}: not told"
                    );
                    let row = rows(tree).remove("w").unwrap();
                    assert!(
                        row["check_names"].to_string().contains("bad_metadata"),
                        "{what}: not told to all"
                    );
                    assert!(text(tree, "w", "summary").contains("! bad_metadata: "), "{what}");
                }
            }
        }
        for (tree, (_, good)) in trees.iter().zip(&good) {
            assert_eq!(other(tree), *good, "{what}: another worker");
        }
        store.write(&path(METADATA), whole.clone());
        for (tree, (good, _)) in trees.iter().zip(&good) {
            assert_eq!(kept(tree), *good, "{what}, and whole again");
            assert!(
                !checks(&index(tree, "w")).contains(&"bad_metadata"),
                "{what}, and whole again"
            );
        }
    }
    changed
}

/// Promise: Metadata cut at any byte leaves its worker's record as it was and affects no other
/// worker.
#[test]
fn metadata_cut_at_any_byte_keeps_the_record() {
    let cut = |whole: &[u8]| {
        sample(0..whole.len()).map(|n| (format!("cut at {n}"), whole[..n].to_vec())).collect()
    };
    assert_eq!(damage(cut), 0, "a part of an object is none");
}

#[test]
fn metadata_with_a_changed_byte_is_valid_or_keeps_the_last_good_record() {
    let flip = |whole: &[u8]| {
        let masks = [0x01_u8, 0x20, 0x80, 0xff];
        let ways = (0..whole.len()).flat_map(|at| masks.map(|mask| (at, mask)));
        let flipped = |(at, mask): (usize, u8)| {
            let mut damaged = whole.to_vec();
            damaged[at] ^= mask;
            (format!("byte {at} ^ {mask:#x}"), damaged)
        };
        sample(ways).map(flipped).collect()
    };
    let changed = damage(flip);
    assert!(changed > scale(100) / 2, "only {changed} of all changes left JSON");
}

/// Reads all workers many times.
fn look_often(tree: &Tree) {
    for _ in 0..20 {
        assert_eq!(listed(tree), ["other", "w"]);
        assert!(rows(tree).contains_key("w"));
        assert!(see(tree, "workers/w/summary").is_ok());
    }
}

#[test]
fn torn_metadata_is_read_only_once() {
    let (store, whole) = store();
    let (log, tree) = watched(&store);
    look_often(&tree);
    for torn in ["", "{\"status\": \"succ", "4"] {
        store.write(&path(METADATA), torn);
        look_often(&tree);
        let before = log.opened("metadata.json");
        look_often(&tree);
        assert_eq!(
            log.opened("metadata.json"),
            before,
            "{torn:?} is read again though it did not change"
        );
    }
    store.write(&path(METADATA), whole);
    assert!(!checks(&index(&tree, "w")).contains(&"bad_metadata"), "a change is seen all the same");
}

#[test]
fn metadata_that_is_not_a_file_is_not_opened_again() {
    for kind in [Kind::Folder, Kind::Link, Kind::Special] {
        let (store, _) = store();
        let (log, tree) = watched(&store);
        for name in ["metadata.json", "task.txt"] {
            store.put(&path(&format!("workers/w/{name}")), kind);
            store.put(&path("workers/index.json"), kind);
            look_often(&tree);
            let before = log.opened(name);
            look_often(&tree);
            assert_eq!(log.opened(name), before, "a {kind:?} called {name} is tried again");
        }
        assert_eq!(log.opened("index.json"), 0, "a {kind:?} in the index's place is opened");
    }
}

#[test]
fn a_torn_index_is_read_only_once() {
    let (store, _) = store();
    store.write(&path("workers/index.json"), json!([{"id": "w", "tags": ["a"]}]).to_string());
    let (log, tree) = watched(&store);
    assert_eq!(rows(&tree)["w"]["tags"], json!(["a"]));
    store.write(&path("workers/index.json"), "[{\"id\": ");
    look_often(&tree);
    let before = log.opened("index.json");
    look_often(&tree);
    assert_eq!(log.opened("index.json"), before);
    assert_eq!(rows(&tree)["w"]["tags"], json!(["a"]), "what it said before stays");
}

/// Promise: A failed read is retried until it succeeds, even if nothing changes.
#[test]
fn failed_reads_are_retried_without_a_change() {
    for name in ["metadata.json", "task.txt", "index.json"] {
        let (store, _) = store();
        store.write(&path(METADATA), json!({"status": "success", "run_id": 48}).to_string());
        store.write(&path("workers/w/task.txt"), "count them all");
        store.write(&path("workers/index.json"), json!([{"id": "w", "tags": ["a"]}]).to_string());
        let log = Arc::new(OpenLog::default());
        log.refuse(name, Errno::IO);
        let tree = tree_of(&store, &log, None);
        look_often(&tree);
        let before = log.opened(name);
        look_often(&tree);
        assert!(log.opened(name) > before, "{name} is given up");
        log.heal();
        let row = &rows(&tree)["w"];
        let told = (&row["run_id"], &row["task"], &row["tags"]);
        assert_eq!(
            told,
            (&json!("48"), &json!("count them all"), &json!(["a"])),
            "{name} is not read again"
        );
    }
}
