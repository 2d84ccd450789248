//! The library as another program uses it.

use serde_json::json;
use swarmletfs::{Budget, Error, NodeKind, OpenOptions};

use crate::support::TestStore;

fn store() -> TestStore {
    let store = TestStore::new();
    let failed =
        json!({"status": "failed", "run_id": "7", "owner_id": "alice", "error": "disk full"});
    store.worker("build-1", failed);
    store.call("build-1", 1, "Bash", "cp: No space left on device\n");
    store.worker("build-2", json!({"status": "completed", "run_id": "7", "owner_id": "bob"}));
    store
}

fn ids(workers: Vec<swarmletfs::Worker>) -> Vec<String> {
    workers.iter().map(|worker| String::from_utf8_lossy(worker.id()).into_owned()).collect()
}

#[test]
fn worker_is_read_by_the_beginning_of_its_id() {
    let store = store();
    let swarm = swarmletfs::open(store.path()).unwrap();
    assert_eq!(swarm.stores(), [store.path()]);
    assert_eq!(ids(swarm.workers().unwrap()), ["build-1", "build-2"]);

    let worker = swarm.worker("build-1").unwrap();
    assert_eq!(worker.index().unwrap()["status"], "failed");
    assert!(worker.summary().unwrap().contains("disk full"));
    assert!(worker.grep("No space", 4_096).unwrap().contains("1 line"));
    assert!(worker.search("space device", 4_096).unwrap().contains("No space left"));
    assert_eq!(worker.read("tool_calls/001_Bash.txt").unwrap(), b"cp: No space left on device\n");
    let entries = worker.list("").unwrap();
    assert!(entries.iter().any(|e| e.name == b"tool_calls" && e.kind == NodeKind::Folder));

    for bytes in [64, 500, 4_096] {
        assert!(worker.evidence(bytes).unwrap().len() <= bytes);
    }
    let tokens: Budget = "100tok".parse().unwrap();
    assert!(!worker.evidence(tokens).unwrap().is_empty());
}

#[test]
fn run_has_its_workers_and_reports() {
    let store = store();
    let swarm = swarmletfs::open(store.path()).unwrap();
    let runs = swarm.runs().unwrap();
    assert_eq!(runs.iter().map(swarmletfs::Run::id).collect::<Vec<_>>(), [b"7"]);
    let run = swarm.run("latest").unwrap();
    assert_eq!(run.id(), b"7");
    assert_eq!(ids(run.workers().unwrap()), ["build-1", "build-2"]);
    assert!(run.summary().unwrap().contains("build-1"));
    assert!(run.evidence(4_096).unwrap().contains("No space left"));
    assert_eq!(run.index().unwrap()["workers"].as_array().unwrap().len(), 2);
}

#[test]
fn later_writes_are_seen() {
    let store = store();
    let swarm = swarmletfs::open(store.path()).unwrap();
    assert_eq!(swarm.workers().unwrap().len(), 2);
    store.worker("later", json!({"status": "running"}));
    assert_eq!(ids(swarm.workers().unwrap()), ["build-1", "build-2", "later"]);
}

#[test]
fn other_owner_is_absent() {
    let store = store();
    let swarm = OpenOptions::new().store(store.path()).owner("bob").open().unwrap();
    assert_eq!(ids(swarm.workers().unwrap()), ["build-2"]);
    let [foreign, absent] = ["build-1", "build-9"].map(|id| swarm.worker(id).unwrap_err());
    assert!(matches!(foreign, Error::NotFound(_)));
    assert_eq!(foreign.to_string(), absent.to_string().replace("build-9", "build-1"));
}

#[test]
fn errors_name_what_failed() {
    let store = store();
    let swarm = swarmletfs::open(store.path()).unwrap();
    let error = swarm.worker("build").unwrap_err();
    assert!(error.to_string().contains("ambiguous"), "{error}");
    assert!(matches!(swarm.worker("../x").unwrap_err(), Error::Invalid(_)));
    assert!(matches!(swarm.read("workers/none/summary").unwrap_err(), Error::NotFound(_)));
    assert!(matches!(swarm.grep("(", 4_096).unwrap_err(), Error::Invalid(_)));
    assert!(matches!(swarm.search("", 4_096).unwrap_err(), Error::Invalid(_)));
    let error = swarmletfs::open(store.path().join("none")).err().unwrap();
    assert!(matches!(error, Error::Unreadable(_)), "{error}");
}
