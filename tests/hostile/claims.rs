//! R5: metadata and IDs that claim another owner's data never widen a view.
//!
//! Times that a worker claims: it may set the mtime of its files to any time, even in the future.

use std::fs::File;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{CANARY, holds_canary};
use crate::support::seen::names;
use crate::support::{Seen, TestStore, see, see_folder};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

fn workers(tree: &Tree) -> Vec<String> {
    let mut found = names(tree, "workers").unwrap();
    found.retain(|name| name != b"index.json");
    found.into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
}

fn checks(tree: &Tree, worker: &str) -> Vec<String> {
    let index: Value =
        serde_json::from_slice(see(tree, format!("workers/{worker}/index.json")).unwrap().bytes())
            .unwrap();
    let name = |check: &Value| check["name"].as_str().unwrap().to_owned();
    index["checks"].as_array().unwrap().iter().map(name).collect()
}

fn shows_canary(tree: &Tree) -> bool {
    see_folder(tree, "").unwrap().values().any(|seen| match seen {
        Seen::File { bytes, .. } | Seen::Link(bytes) => holds_canary(bytes),
        Seen::Folder { .. } => false,
    })
}

/// Promise: A worker whose sources name two owners belongs to none of them, and the conflict is
/// reported.
#[test]
fn worker_with_two_owners_belongs_to_none() {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": "A", "config": {"owner_id": "B"}}));
    for owner in ["A", "B"] {
        assert!(workers(&store.tree_of_owner(owner)).is_empty(), "{owner}");
    }
    let all = store.tree();
    assert_eq!(workers(&all), ["w1"]);
    assert!(checks(&all, "w1").contains(&"two_owners".to_owned()));
}

/// Promise: A worker that claims another worker's id shows only its own files, and the claim is
/// reported.
#[test]
fn worker_claiming_a_foreign_id_shows_its_own_files() {
    let store = TestStore::new();
    store.worker("victim", json!({"owner_id": "B"})).call("victim", 1, "sh", CANARY);
    store
        .worker("thief", json!({"owner_id": "A", "worker_id": "victim"}))
        .call("thief", 1, "sh", "mine");
    let tree = store.tree_of_owner("A");
    assert_eq!(workers(&tree), ["thief"]);
    assert!(!shows_canary(&tree));
    assert!(checks(&tree, "thief").contains(&"other_id".to_owned()));
    let victim = store.tree_of_owner("B");
    assert_eq!(workers(&victim), ["victim"]);
    assert!(shows_canary(&victim));
    assert!(!checks(&victim, "victim").contains(&"other_id".to_owned()));
}

#[test]
fn owners_are_equal_only_if_spelled_alike() {
    let store = TestStore::new();
    let odd = [
        json!(" 7"),
        json!("07"),
        json!("7\u{0}"),
        json!(7.0),
        json!(-7),
        json!([7]),
        json!({"id": 7}),
        json!(true),
        json!(null),
        json!(""),
        json!("*"),
        json!("../7"),
    ];
    for (number, owner) in odd.iter().enumerate() {
        store.worker(&format!("odd-{number}"), json!({"owner_id": owner}));
    }
    store
        .worker("number", json!({"owner_id": 7}))
        .worker("text", json!({"config": {"owner_id": "7"}}));
    assert_eq!(workers(&store.tree_of_owner("7")), ["number", "text"]);
    for nobody in ["", "null", "true", "[7]", "7 ", "%37", "../A"] {
        assert!(workers(&store.tree_of_owner(nobody)).is_empty(), "{nobody:?}");
    }
}

#[test]
fn one_id_in_both_layouts_of_a_store_is_two_workers_each_to_its_owner() {
    let store = TestStore::new();
    store.worker("x", json!({"owner_id": "A"})).call("x", 1, "sh", "of A");
    store.write("x/metadata.json", json!({"worker_id": "x", "owner_id": "B"}).to_string());
    store.write("x/tool_calls/001_sh.txt", "of B");
    assert_eq!(workers(&store.tree()), ["x", "x~2"]);
    for (owner, text) in [("A", "of A"), ("B", "of B")] {
        let tree = store.tree_of_owner(owner);
        assert_eq!(workers(&tree), ["x"], "{owner}");
        assert_eq!(see(&tree, "workers/x/tool_calls/001_sh.txt").unwrap().bytes(), text.as_bytes());
    }
}

/// Promise: The same id in two stores is two workers, each visible to its own owner.
#[test]
fn same_id_in_two_stores_is_two_workers() {
    let (first, second) = (TestStore::new(), TestStore::new());
    first.worker("x", json!({"owner_id": "A"})).call("x", 1, "sh", "of A");
    second.worker("x", json!({"owner_id": "B"})).call("x", 1, "sh", "of B");
    let tree = |owner: Option<&str>| {
        let sources = [&first, &second].map(|store| Source::open(&store.path()).unwrap()).into();
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let filter = Filter { owner: owner.map(str::to_owned), run: None };
        Tree::new(View::new(sources, fresh, filter).unwrap(), Settings::default())
    };
    assert_eq!(workers(&tree(None)), ["x", "x~2"]);
    for (owner, text) in [("A", "of A"), ("B", "of B")] {
        assert_eq!(workers(&tree(Some(owner))), ["x"], "{owner}");
        let seen = see(&tree(Some(owner)), "workers/x/tool_calls/001_sh.txt").unwrap();
        assert_eq!(seen.bytes(), text.as_bytes());
    }
}

#[test]
fn an_index_entry_of_another_owner_with_an_equal_id_is_ignored() {
    for path in ["index.json", "workers/index.json"] {
        let store = TestStore::new();
        store.write(
            "workers/x/metadata.json",
            json!({"worker_id": "x", "owner_id": "A"}).to_string(),
        );
        store.write(
            "x/metadata.json",
            json!({"worker_id": "x", "config": {"owner_id": "B"}}).to_string(),
        );
        let said_of = |owner: &str| {
            json!([{"worker_id": "x", "config": {"owner_id": owner}, "task": CANARY}]).to_string()
        };
        store.write(path, said_of("B"));
        assert!(!shows_canary(&store.tree_of_owner("A")), "{path}");
        // Control: an entry for the owner's own worker does fill the gap.
        let own = if path == "index.json" { "B" } else { "A" };
        store.write(path, said_of(own));
        assert!(shows_canary(&store.tree_of_owner(own)), "{path}");
    }
}

#[test]
fn an_owner_named_like_a_path_reads_only_its_own_outputs() {
    let artifact = "0123456789abcdef0123456789abcdef";
    for owner in ["..", ".", "../B", "B/../B", "/", "A/", "B\u{0}"] {
        let store = TestStore::new();
        let stub = format!("[TOOL_OUTPUT:artifact_id={artifact},tool=sh,bytes=9]");
        store.worker("w1", json!({"owner_id": owner})).call("w1", 1, "sh", stub);
        for folder in ["", "tool_outputs/", "tool_outputs/B/", "tool_outputs/A/"] {
            store.write(format!("{folder}{artifact}.txt"), CANARY);
            store.write(format!("{folder}{artifact}.json"), json!({"owner_id": owner}).to_string());
        }
        let tree = store.tree_of_owner(owner);
        assert_eq!(workers(&tree), ["w1"], "{owner:?}");
        assert!(!shows_canary(&tree), "{owner:?}");
    }
}

/// Promise: A stored output that names another owner is not shown.
#[test]
fn stored_output_that_names_another_owner_is_hidden() {
    let artifact = "0123456789abcdef0123456789abcdef";
    for description in [
        json!({"owner_id": "B"}),
        json!({}),
        json!([]),
        json!({"owner_id": ["A"]}),
        json!({"owner_id": null}),
    ] {
        let store = TestStore::new();
        let stub = format!("[TOOL_OUTPUT:artifact_id={artifact},tool=sh,bytes=9]");
        store.worker("w1", json!({"owner_id": "A"})).call("w1", 1, "sh", stub);
        store.write(format!("tool_outputs/A/{artifact}.txt"), CANARY);
        store.write(format!("tool_outputs/A/{artifact}.json"), description.to_string());
        assert!(!shows_canary(&store.tree_of_owner("A")), "{description}");
        assert!(!shows_canary(&store.tree()), "{description}");
    }
}

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
