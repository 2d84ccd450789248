//! docs/index.schema.json describes index.json. [`crate::support::see`] validates every index.json
//! that a test reads without a mount. These tests validate through a mount, and test the schema
//! itself.

use serde_json::{Value, json};

use crate::needs_fuse;
use crate::support::{Mount, TestStore, seen};

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
    let mut workers = 0;
    for (of_worker, folder) in [(false, ""), (false, "workers"), (false, "runs/r1")] {
        let path = format!("{folder}/index.json");
        let index: Value =
            serde_json::from_slice(&mount.read(path.trim_start_matches('/'))).unwrap();
        assert_eq!(seen::faults(of_worker, &index), Vec::<String>::new(), "{path}");
    }
    for entry in std::fs::read_dir(mount.at("workers")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let index: Value =
                serde_json::from_slice(&std::fs::read(path.join("index.json")).unwrap()).unwrap();
            assert_eq!(seen::faults(true, &index), Vec::<String>::new(), "{path:?}");
            workers += 1;
        }
    }
    assert_eq!(workers, 4);
}

#[test]
fn schema_rejects_missing_additional_and_mistyped_fields() {
    let store = TestStore::new();
    store.worker("w1", json!({"run_id": "r1"}));
    store.call("w1", 1, "sql", "x");
    let tree = store.tree();
    for (of_worker, path) in [(true, "workers/w1/index.json"), (false, "index.json")] {
        let index: Value =
            serde_json::from_slice(crate::support::see(&tree, path).unwrap().bytes()).unwrap();
        assert!(seen::faults(of_worker, &index).is_empty());
        let mut required = 0;
        for name in index.as_object().unwrap().keys() {
            let mut mistyped = index.clone();
            mistyped[name] = json!({"of": "another type"});
            assert!(
                !seen::faults(of_worker, &mistyped).is_empty(),
                "{path}: any type of {name} is accepted"
            );
            let mut reduced = index.clone();
            reduced.as_object_mut().unwrap().remove(name);
            required += usize::from(!seen::faults(of_worker, &reduced).is_empty());
        }
        assert!(required >= 5, "{path}: only {required} fields are required");
        let mut extended = index.clone();
        extended["new"] = json!(1);
        assert!(
            !seen::faults(of_worker, &extended).is_empty(),
            "{path}: an additional field is accepted"
        );
    }
}
