//! Tests of where workers lie, how they are named, and what an index may say of them. The
//! directories are authoritative.

use std::fs;

use super::*;
use swarmletfs_tree::view::Filter;

/// Every form of ID.
const IDS: [&str; 10] = [
    "2026-01-20T10-00-00_check-disk-space-on-all-server_a1b2c3",
    "2026-01-20T10-00-00_check-disk-space-on-all-server",
    "2026-01-20T10-00-00__a1b2c3",
    "2026-01-20T10-00-00_",
    "cloud-12-1a2b3c4d",
    "ws-12-1a2b3c4d",
    "abc-123",
    "worker-7",
    "123",
    "a..b",
];

fn sorted<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut ids: Vec<String> = ids.into_iter().map(str::to_owned).collect();
    ids.sort();
    ids
}

#[test]
fn workers_lie_in_a_folder_of_their_own() {
    let store = TestStore::new();
    for id in IDS {
        store.worker(id, json!({})).call(id, 1, "x", "out");
    }
    let tree = store.tree();
    assert_eq!(listed(&tree), sorted(IDS));
    for id in IDS {
        let index = index(&tree, id);
        assert_eq!(index["id"], id);
        assert_eq!(index["path"], format!("workers/{id}"));
        assert_eq!(index["task"], format!("task of {id}"));
        assert_eq!(index["marker"], format!("[EVIDENCE:run_id=-,job_id=-,worker_id={id}]"));
        assert_eq!(call(&index, 1)["bytes"], 3);
    }
}

#[test]
fn workers_lie_directly_in_the_store() {
    let store = TestStore::new();
    for id in IDS {
        store.write(
            format!("{id}/metadata.json"),
            json!({"worker_id": id, "task": "t", "status": "success"}).to_string(),
        );
        store.write(format!("{id}/tool_calls/001_x.txt"), "out");
    }
    store.write("index.json", "[]");
    store.write("index.json.lock", "");
    let tree = store.tree();
    assert_eq!(listed(&tree), sorted(IDS));
    for id in IDS {
        assert_eq!(index(&tree, id)["status"], "completed");
        assert_eq!(
            see(&tree, format!("workers/{id}/tool_calls/001_x.txt")).unwrap().bytes(),
            b"out"
        );
    }
}

#[test]
fn both_layouts_may_share_a_store() {
    let store = TestStore::new();
    store.worker("new", json!({}));
    store.write("old/metadata.json", "{}");
    store.worker("both", json!({"task": "inner"}));
    store.write("both/metadata.json", r#"{"task": "outer"}"#);
    let tree = store.tree();
    assert_eq!(listed(&tree), ["both", "both~2", "new", "old"]);
    let mut tasks = [index(&tree, "both")["task"].clone(), index(&tree, "both~2")["task"].clone()];
    tasks.sort_by_key(Value::to_string);
    assert_eq!(tasks, ["inner", "outer"]);
}

#[test]
fn a_worker_is_a_folder_with_metadata_or_tool_calls() {
    let store = TestStore::new();
    store.worker("with-metadata", json!({}));
    store.call("with-calls", 1, "x", "out");
    store.write("workers/torn/metadata.json", "");
    store.write("workers/nothing/notes.txt", "no worker");
    store.write("workers/stray.txt", "no worker");
    store.write("supervisor/metadata.json", "{}");
    store.write("tool_outputs/metadata.json", "{}");
    let tree = store.tree();
    assert_eq!(listed(&tree), ["torn", "with-calls", "with-metadata"]);
    assert_eq!(checks(&index(&tree, "with-calls")), ["no_metadata"]);
    assert_eq!(json_at(&tree, "index.json")["skipped"]["not_workers"], 1);
}

/// Promise: A missing or corrupt index hides no worker.
#[test]
fn missing_or_corrupt_index_hides_no_worker() {
    for place in ["index.json", "workers/index.json"] {
        for corrupt in [
            "",
            "{",
            "[{\"worker_id\": \"a\"",
            "4",
            "null",
            "\"a\"",
            "\u{0}",
            "{}",
            "{\"workers\": 4}",
            "[1, null, [], {}]",
        ] {
            let store = TestStore::new();
            store.worker("a", json!({}));
            store.write("b/metadata.json", "{}");
            assert_eq!(listed(&store.tree()), ["a", "b"]);
            store.write(place, corrupt);
            let tree = store.tree();
            assert_eq!(listed(&tree), ["a", "b"], "{place}: {corrupt:?}");
            assert_eq!(rows(&tree).len(), 2, "{place}: {corrupt:?}");
        }
    }
}

#[test]
fn an_index_that_is_not_a_file_hides_no_worker() {
    let store = TestStore::new();
    store.worker("a", json!({}));
    fifo(&store.at("index.json"));
    assert_eq!(listed(&store.tree()), ["a"]);
    fs::remove_file(store.at("index.json")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", store.at("index.json")).unwrap();
    assert_eq!(listed(&store.tree()), ["a"]);
    fs::remove_file(store.at("index.json")).unwrap();
    fs::create_dir(store.at("index.json")).unwrap();
    assert_eq!(listed(&store.tree()), ["a"]);
}

#[test]
fn an_index_in_a_plain_list_supplies_missing_metadata() {
    let store = TestStore::new();
    store.write("a/metadata.json", r#"{"worker_id": "a", "status": "success"}"#);
    store.write("b/metadata.json", r#"{"worker_id": "b", "status": "success", "task": "own"}"#);
    store.write(
        "index.json",
        json!([
            {"worker_id": "a", "status": "success", "task": "indexed", "summary": "all went well", "task_type": "ops",
             "created_at": "2026-01-20T10:00:00Z"},
            {"worker_id": "b", "status": "success", "task": "indexed"},
            {"worker_id": "gone", "status": "running"},
        ])
        .to_string(),
    );
    let tree = store.tree();
    assert_eq!(listed(&tree), ["a", "b"], "what has no folder is no worker");
    let a = index(&tree, "a");
    assert_eq!((&a["task"], &a["summary"]), (&json!("indexed"), &json!("all went well")));
    assert_eq!(
        (&a["task_type"], &a["created_at"]),
        (&json!("ops"), &json!("2026-01-20T10:00:00Z"))
    );
    assert_eq!(index(&tree, "b")["task"], "own", "a worker's own metadata wins");
    assert_eq!(
        see(&tree, "workers/index.json.own").unwrap().bytes(),
        fs::read(store.at("index.json")).unwrap()
    );
}

#[test]
fn an_index_in_an_object_supplies_missing_metadata() {
    let store = TestStore::new();
    store.write("workers/a/metadata.json", r#"{"worker_id": "a"}"#);
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "a", "task": "indexed", "status": "completed", "path": "workers/a",
            "tags": ["disk", "prod"], "task_type": "ops", "created_at": "2026-01-20T10:00:00Z"}],
            "last_updated": "2026-01-20T10:00:00Z", "total_workers": 1, "active_workers": 0})
        .to_string(),
    );
    let tree = store.tree();
    let row = rows(&tree)["a"].clone();
    assert_eq!(row["task"], "indexed");
    assert_eq!(row["status"], "completed");
    assert_eq!(row["tags"], json!(["disk", "prod"]));
    assert_eq!(row["task_type"], "ops");
    assert_eq!(json_at(&tree, "workers/index.json"), json_at(&tree, "index.json"));
}

#[test]
fn the_index_of_the_swarm_has_the_well_known_shape() {
    let store = TestStore::new();
    store
        .worker("a", json!({"status": "running"}))
        .worker("b", json!({}))
        .worker("c", json!({"status": "created"}));
    let index = json_at(&store.tree(), "workers/index.json");
    assert_eq!((&index["total_workers"], &index["active_workers"]), (&json!(3), &json!(2)));
    assert!(index["last_updated"].is_string());
    for row in index["workers"].as_array().unwrap() {
        for key in ["id", "task", "status", "path", "created_at", "tags"] {
            assert!(!row[key].is_null(), "{key} in {row}");
        }
    }
}

/// Promise: An index file cannot make anyone the owner of a worker.
#[test]
fn index_file_cannot_assign_an_owner() {
    let store = TestStore::new();
    store.worker("a", json!({}));
    store.write(
        "workers/index.json",
        json!([{"worker_id": "a", "owner_id": 7, "config": {"owner_id": 7}}]).to_string(),
    );
    assert!(listed(&store.tree_of_owner("7")).is_empty());
}

#[test]
fn an_index_adds_no_worker_to_a_run() {
    let store = TestStore::new();
    store.worker("a", json!({}));
    store.write(
        "workers/index.json",
        json!([{"worker_id": "a", "run_id": "r", "config": {"run_id": "r"}}]).to_string(),
    );
    let tree = store.tree_of(Filter { owner: None, run: Some("r".into()) });
    assert!(listed(&tree).is_empty());
}

#[test]
fn a_contradicting_index_is_reported() {
    let store = TestStore::new();
    store.worker("a", json!({"status": "failed"})).call("a", 1, "x", "out");
    store.write("workers/index.json", json!([{"worker_id": "a", "status": "success"}]).to_string());
    let index = index(&store.tree(), "a");
    assert_eq!(index["status"], "failed");
    assert!(checks(&index).contains(&"index_disagrees"), "{index:#}");
}

#[test]
fn a_torn_index_keeps_its_last_contents() {
    let store = TestStore::new();
    store.write("a/metadata.json", r#"{"status": "running"}"#);
    let whole = json!([{"worker_id": "a", "tags": ["disk"]}]).to_string();
    store.write("index.json", &whole);
    let tree = store.tree();
    assert_eq!(index(&tree, "a")["tags"], json!(["disk"]));
    for length in 0..whole.len() {
        store.write("index.json", &whole[..length]);
        // A change of the worker itself makes the catalog scan everything again.
        store.write(
            "a/metadata.json",
            format!("{{\"status\": \"running\"{}}}", " ".repeat(length + 1)),
        );
        assert_eq!(index(&tree, "a")["tags"], json!(["disk"]), "torn at {length}");
    }
}

#[test]
fn a_link_is_not_a_worker() {
    let store = TestStore::new();
    store.worker("a", json!({}));
    std::os::unix::fs::symlink(store.at("workers/a"), store.at("workers/link")).unwrap();
    std::os::unix::fs::symlink("/etc", store.at("outside")).unwrap();
    let tree = store.tree();
    assert_eq!(listed(&tree), ["a"]);
    assert_eq!(json_at(&tree, "index.json")["skipped"]["links"], 2);
}
