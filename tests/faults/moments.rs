//! Every file read while the store changes at every store call: the content is that before or after
//! the change.
//!
//! A worker's metadata, outputs and final words are replaced at once. A generated file that mixes
//! old and new ones would describe a state that never existed.

use std::sync::Arc;

use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Memory;
use swarmletfs_tree::tree::DirPosition;

use super::{read, tree_of};
use crate::support::fault_injection::FaultPlan;
use crate::support::{sample, scale};

/// Files that depend on the worker.
const PATHS: [&str; 11] = [
    "index.json",
    "summary",
    "evidence.txt",
    "runs/7/index.json",
    "runs/7/evidence.txt",
    "workers/w/index.json",
    "workers/w/summary",
    "workers/w/evidence.txt",
    "workers/w/evidence.700.txt",
    "workers/w/tool_calls",
    "workers/w/tool_calls/002_build.txt",
];

fn write(store: &Memory, version: &str, outputs: [&str; 2]) {
    let replace = |path: &str, text: &str| store.replace(&RelPath::parse(path).unwrap(), text);
    let metadata = json!({
        "worker_id": "w", "status": "failed", "run_id": 7, "task": format!("{version} task"),
        "error": format!("{version} error"),
    });
    replace("w/metadata.json", &metadata.to_string());
    replace("w/tool_calls/001_look.txt", outputs[0]);
    replace("w/tool_calls/002_build.txt", outputs[1]);
    replace("w/result.txt", &format!("{version} words\n"));
}

fn store() -> Memory {
    let store = Memory::new();
    write(&store, "first", ["fine\n", "compiling\nerror: no such file\n"]);
    store
}

fn change(store: &Memory) {
    store.replace(
        &RelPath::parse("w/tool_calls/003_test.txt").unwrap(),
        "error: 3 of 7 tests failed\n",
    );
    write(store, "second", ["error: permission denied\n", "linking\nerror: undefined symbol\n"]);
}

/// Promise: A change at any store call appears completely or not at all.
#[test]
fn change_at_any_call_appears_completely_or_not_at_all() {
    let mut runs = 0;
    for path in PATHS {
        let plan = FaultPlan::none();
        let before = read(&tree_of(Arc::new(store()), &plan), path).unwrap();
        let changed = store();
        change(&changed);
        let after = read(&tree_of(Arc::new(changed), &plan), path).unwrap();
        assert!(before != after, "{path} does not show the change");
        for warm in [false, true] {
            for k in sample(1..) {
                let store = Arc::new(store());
                let tree = tree_of(store.clone(), &plan);
                if warm {
                    assert_eq!(read(&tree, path).unwrap(), before);
                }
                plan.run_before(k, move || change(&store));
                // Like the kernel, looks up again if the file was replaced between lookup and open.
                let found = read(&tree, path).or_else(|error| match error {
                    Error::Stale => read(&tree, path),
                    other => Err(other),
                });
                let (found, met) = (found.unwrap(), plan.has_run());
                assert!(
                    found == before || met && found == after,
                    "{path}: changed at call {k}, warm {warm}:\n{}\n--- before ---\n{}\n--- after ---\n{}",
                    String::from_utf8_lossy(&found),
                    String::from_utf8_lossy(&before),
                    String::from_utf8_lossy(&after),
                );
                runs += 1;
                if !met {
                    break;
                }
                assert!(
                    read(&tree, path).unwrap() == after,
                    "{path}: changed at call {k}, and not visible later"
                );
            }
        }
    }
    assert!(runs > scale(1_000), "only {runs} runs");
}

/// Number of versions written while one file is rendered.
const VERSIONS: usize = 12;

fn write_version(store: &Memory, version: usize) {
    let outputs = ["permission denied", "no such file", "undefined symbol"];
    let output =
        |at: usize| format!("error: {}, {version}\n", outputs[(version + at) % outputs.len()]);
    write(store, &format!("{version}."), [&output(0), &output(1)]);
}

/// Writes the next version just before every `k`-th store call, until the last version.
fn write_version_at_every(k: u64, version: usize, store: Arc<Memory>, plan: Arc<FaultPlan>) {
    let next = plan.clone();
    plan.run_before(k, move || {
        write_version(&store, version);
        if version < VERSIONS {
            write_version_at_every(k, version + 1, store, next);
        }
    });
}

/// Promise: A generated file describes one moment, even if its sources change repeatedly during
/// rendering.
#[test]
fn rendering_during_changes_describes_one_moment() {
    let mut runs = 0;
    for path in PATHS.into_iter().filter(|path| !path.contains("tool_calls")) {
        let plan = FaultPlan::none();
        let of_version = |version| {
            // Writes all versions, because each write advances the clock.
            let store = Memory::new();
            (0..=version).for_each(|version| write_version(&store, version));
            read(&tree_of(Arc::new(store), &plan), path).unwrap()
        };
        let versions: Vec<_> = (0..=VERSIONS).map(of_version).collect();
        for k in sample(1..) {
            let store = Arc::new(Memory::new());
            write_version(&store, 0);
            let tree = tree_of(store.clone(), &plan);
            write_version_at_every(k, 1, store, plan.clone());
            let found = read(&tree, path).unwrap();
            assert!(
                versions.contains(&found),
                "{path}: changed at every {k}: {}",
                String::from_utf8_lossy(&found)
            );
            runs += 1;
            if !plan.has_run() {
                break;
            }
        }
    }
    assert!(runs > scale(100) / 2, "only {runs} runs");
}

/// Promise: A file that became a directory since its lookup is looked up again.
#[test]
fn file_that_became_a_directory_is_looked_up_again() {
    let (plan, store) = (FaultPlan::none(), Arc::new(super::store()));
    let tree = tree_of(store.clone(), &plan);
    let find = |names: &[&str]| {
        names.iter().fold(1, |ino, name| tree.lookup(ino, name.as_bytes()).unwrap().ino)
    };
    let (file, folder) =
        (find(&["workers", "failed", "result.txt"]), find(&["workers", "failed", "tool_calls"]));
    let path = |text: &str| RelPath::parse(text).unwrap();
    store.remove(&path("failed/result.txt"));
    store.write(&path("failed/result.txt/inner"), "");
    store.remove(&path("failed/tool_calls"));
    store.write(&path("failed/tool_calls"), "");
    assert_eq!(tree.open(file).err(), Some(Error::Stale));
    assert_eq!(tree.entries(folder, DirPosition::Start).err(), Some(Error::Stale));
}
