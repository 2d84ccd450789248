//! Times that a worker claims: it may set the mtime of its files to any time, even in the future.

use std::fs::File;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use swarmletfs_tree::tree::Tree;

use crate::support::{Seen, TestStore, see};

/// Seconds in a day.
const DAY: u64 = 24 * 60 * 60;

fn set_mtime(store: &TestStore, path: &str, time: SystemTime) {
    File::open(store.at(path)).unwrap().set_modified(time).unwrap();
}

fn latest(tree: &Tree) -> String {
    match see(tree, "runs/latest").unwrap() {
        Seen::Link(target) => String::from_utf8(target).unwrap(),
        other => panic!("not a link: {other:?}"),
    }
}

/// Creates a run whose file is dated to the year 2255, and then an honest run.
fn store() -> (TestStore, SystemTime) {
    let store = TestStore::new();
    store
        .worker("liar", json!({"run_id": "old", "status": "running"}))
        .call("liar", 1, "sh", "x\n");
    let to_come = SystemTime::UNIX_EPOCH + Duration::from_secs(9_000_000_000);
    set_mtime(&store, "workers/liar/tool_calls/001_sh.txt", to_come);
    store
        .worker("honest", json!({"run_id": "new", "status": "running"}))
        .call("honest", 1, "sh", "x\n");
    // Otherwise the system's clock could give both runs equal times.
    store.rest();
    store.call("honest", 2, "sh", "y\n");
    (store, to_come)
}

/// Promise: A time in the future makes no worker the latest.
#[test]
fn future_time_makes_no_worker_the_latest() {
    let (store, to_come) = store();
    let tree = store.tree();
    assert_eq!(latest(&tree), "new");
    let index: Value = serde_json::from_slice(see(&tree, "index.json").unwrap().bytes()).unwrap();
    for row in index["workers"].as_array().unwrap() {
        assert_eq!(row.get("check_names"), None, "nobody is silent: {row:#}");
    }
    let summary = String::from_utf8(see(&tree, "summary").unwrap().bytes().to_vec()).unwrap();
    assert!(summary.contains("running, last write 2255-"), "{summary}");
    assert!(!summary.contains("silent"), "{summary}");
    // Workers and their generated files keep the recorded time, like the files themselves.
    let mtime = |path: &str| match see(&tree, path).unwrap() {
        Seen::File { mtime, .. } | Seen::Folder { mtime, .. } => mtime,
        other => panic!("no time: {other:?}"),
    };
    let seconds = to_come.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for path in ["workers/liar", "workers/liar/tool_calls/001_sh.txt", "workers/liar/summary"] {
        assert_eq!(mtime(path), (seconds as i64, 0), "{path}");
    }
}

/// Promise: A time in the past is trusted.
///
/// A copy that preserves times is as old as its source.
#[test]
fn past_time_is_trusted() {
    let store = TestStore::new();
    let past = SystemTime::now() - Duration::from_secs(30 * DAY);
    for (worker, run, age) in [("a", "newer", 0), ("b", "older", DAY)] {
        store.worker(worker, json!({"run_id": run}));
        for path in ["metadata.json", ""] {
            set_mtime(&store, &format!("workers/{worker}/{path}"), past - Duration::from_secs(age));
        }
    }
    // Copied last, though it is older.
    set_mtime(&store, "workers/b/metadata.json", past - Duration::from_secs(DAY));
    assert_eq!(latest(&store.tree()), "newer");
}
