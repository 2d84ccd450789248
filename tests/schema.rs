//! docs/index.schema.json says what index.json holds: [`crate::support::see`] holds it against all that any test sees
//! without a mount; here through a mount, and that it notices.

use serde_json::{Value, json};

use crate::needs_fuse;
use crate::support::{Mount, TestStore, schema};

/// Promise: Every `index.json` conforms to its schema.
#[test]
fn every_index_conforms_to_its_schema() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker(
        "full",
        json!({
            "status": "failed", "error": "timeout", "run_id": "r1", "job_id": 7, "summary": "s", "tags": ["a"],
            "started_at": "2026-01-20T10:00:01Z", "finished_at": "yesterday", "duration_ms": 12,
            "config": {"owner_id": 7, "model": "m"}, "parent_thread_id": "p", "task_type": "t",
        }),
    );
    store.call("full", 1, "sql", r#"{"ok": false, "exit_code": 2}"#);
    store.write("workers/full/result.txt", "done\n");
    store.write("workers/torn/metadata.json", "{\"worker_id\": ");
    store.write("workers/loose/metadata.json", r#"{"status": "running"}"#);
    store.write("workers/loose/tools_used.json", r#"["grep", "sed"]"#);
    store.write(b"workers/\xff\xfe/metadata.json", "{}");
    let mount = Mount::new(&store.path());
    let mut seen = 0;
    for (of_worker, folder) in [(false, ""), (false, "workers"), (false, "runs/r1")] {
        let path = format!("{folder}/index.json");
        let index: Value = serde_json::from_slice(&mount.read(path.trim_start_matches('/'))).unwrap();
        assert_eq!(schema::faults(of_worker, &index), Vec::<String>::new(), "{path}");
    }
    for entry in std::fs::read_dir(mount.at("workers")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let index: Value = serde_json::from_slice(&std::fs::read(path.join("index.json")).unwrap()).unwrap();
            assert_eq!(schema::faults(true, &index), Vec::<String>::new(), "{path:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

#[test]
fn the_schema_notices_what_is_missing_too_much_or_of_another_kind() {
    let store = TestStore::new();
    store.worker("w1", json!({"run_id": "r1"}));
    store.call("w1", 1, "sql", "x");
    let tree = store.tree();
    for (of_worker, path) in [(true, "workers/w1/index.json"), (false, "index.json")] {
        let index: Value = serde_json::from_slice(crate::support::see(&tree, path).unwrap().bytes()).unwrap();
        assert!(schema::faults(of_worker, &index).is_empty());
        let mut noticed = 0;
        for name in index.as_object().unwrap().keys() {
            let mut other = index.clone();
            other[name] = json!({"of": "another kind"});
            assert!(!schema::faults(of_worker, &other).is_empty(), "{path}: {name} of another kind");
            let mut less = index.clone();
            less.as_object_mut().unwrap().remove(name);
            noticed += usize::from(!schema::faults(of_worker, &less).is_empty());
        }
        assert!(noticed >= 5, "{path}: only {noticed} fields are required");
        let mut more = index.clone();
        more["new"] = json!(1);
        assert!(!schema::faults(of_worker, &more).is_empty(), "{path}: one field more");
    }
}
