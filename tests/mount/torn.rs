//! Metadata that stays torn while its worker runs, over many scans of the store (R14 through the
//! kernel).

use std::fs;

use serde_json::{Value, json};

use super::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Returns a worker's row in the index of all workers.
fn row(mount: &Mount, id: &str) -> Option<Value> {
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    index["workers"].as_array().unwrap().iter().find(|row| row["id"] == id).cloned()
}

/// Returns all generated files of a worker.
fn generated(mount: &Mount, id: &str) -> Vec<Vec<u8>> {
    ["index.json", "summary", "evidence.txt"]
        .map(|name| mount.read(&format!("workers/{id}/{name}")))
        .to_vec()
}

fn is_torn(row: &Value) -> bool {
    row["check_names"].as_array().is_some_and(|names| names.contains(&json!("bad_metadata")))
}

#[test]
fn worker_with_torn_metadata_is_unchanged_and_marked() {
    needs_fuse!();
    let store = TestStore::new();
    let running = json!({"status": "running", "run_id": 48, "config": {"owner_id": 7}});
    store.worker("w", running.clone()).worker("other", running);
    store.call("w", 1, "x", "out\n").call("other", 1, "x", "Error: no disk\n");
    let path = store.at("workers/w/metadata.json");
    let whole = fs::read(&path).unwrap();
    let mounts = [Mount::new(&store.path()), Mount::with(&store.path(), &["--owner", "7"])];
    let good: Vec<Value> = mounts.iter().map(|mount| row(mount, "w").unwrap()).collect();
    let others: Vec<_> = mounts.iter().map(|mount| generated(mount, "other")).collect();
    let mut damaged = whole.clone();
    damaged[0] ^= 0x20;
    let mut number = 0;
    for torn in [&whole[..0], &whole[..whole.len() / 2], &whole[..whole.len() - 1], &damaged] {
        fs::write(&path, torn).unwrap();
        let torn_row =
            |mount: &Mount| row(mount, "w").is_some_and(|row| is_torn(&row)).then_some(());
        mounts.iter().for_each(|mount| eventually("the mark of torn metadata", || torn_row(mount)));
        // Each new worker that becomes visible proves another scan of the whole store.
        for _ in 0..3 {
            number += 1;
            let new = format!("new-{number}");
            store.worker(&new, json!({"config": {"owner_id": 7}}));
            for ((mount, good), others) in mounts.iter().zip(&good).zip(&others) {
                eventually(&new, || row(mount, &new));
                let row = row(mount, "w").expect("it vanished");
                for key in ["status", "task", "owner_id", "run_id", "created_at", "path"] {
                    assert_eq!(row[key], good[key], "{key}");
                }
                assert!(is_torn(&row), "not marked: {row}");
                assert!(mount.text("workers/w/summary").contains("status   running"));
                assert!(mount.list("workers/w").contains(&"metadata.json".to_owned()));
                assert_eq!(generated(mount, "other"), *others, "another worker");
            }
        }
        fs::write(&path, &whole).unwrap();
        for mount in &mounts {
            eventually("the whole record", || row(mount, "w").filter(|row| !is_torn(row)));
            eventually("its bytes", || {
                (mount.read("workers/w/metadata.json") == whole).then_some(())
            });
        }
    }
}
