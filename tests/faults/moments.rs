//! Every file under a change of the store at every call: what is read is of before the change or of after it.
//!
//! A worker's metadata, outputs and last words are replaced all at once. A file that is made of some of them as they
//! were and of some as they are now would tell of a moment that never was.

use std::sync::Arc;

use serde_json::json;
use swarmletfs::error::Error;
use swarmletfs::name::RelPath;
use swarmletfs::store::Memory;

use super::{look, tree_of};
use crate::support::faulty::Plan;

/// What tells of the worker.
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
    store.replace(&RelPath::parse("w/tool_calls/003_test.txt").unwrap(), "error: 3 of 7 tests failed\n");
    write(store, "second", ["error: permission denied\n", "linking\nerror: undefined symbol\n"]);
}

#[test]
fn a_change_at_any_call_shows_whole_or_not_at_all() {
    let mut runs = 0;
    for path in PATHS {
        let plan = Plan::quiet();
        let before = look(&tree_of(Arc::new(store()), &plan), path).unwrap();
        let changed = store();
        change(&changed);
        let after = look(&tree_of(Arc::new(changed), &plan), path).unwrap();
        assert!(before != after, "{path} tells nothing of the change");
        for warm in [false, true] {
            for k in 1.. {
                let store = Arc::new(store());
                let tree = tree_of(store.clone(), &plan);
                if warm {
                    assert_eq!(look(&tree, path).unwrap(), before);
                }
                plan.at(k, move || change(&store));
                // As the kernel does: what was replaced between lookup and open is looked up again.
                let found = look(&tree, path).or_else(|error| match error {
                    Error::Stale => look(&tree, path),
                    other => Err(other),
                });
                let (found, met) = (found.unwrap(), plan.has_happened());
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
                assert!(look(&tree, path).unwrap() == after, "{path}: changed at call {k}, and not seen later");
            }
        }
    }
    assert!(runs > 1_000, "only {runs} runs");
}

/// How many versions follow each other while one file is made.
const VERSIONS: usize = 12;

fn write_version(store: &Memory, version: usize) {
    let outputs = ["permission denied", "no such file", "undefined symbol"];
    let output = |at: usize| format!("error: {}, {version}\n", outputs[(version + at) % outputs.len()]);
    write(store, &format!("{version}."), [&output(0), &output(1)]);
}

/// Just before every `k`-th call the store goes on to its next version, until the last.
fn go_on_at_every(k: u64, version: usize, store: Arc<Memory>, plan: Arc<Plan>) {
    let next = plan.clone();
    plan.at(k, move || {
        write_version(&store, version);
        if version < VERSIONS {
            go_on_at_every(k, version + 1, store, next);
        }
    });
}

#[test]
fn what_changes_again_and_again_while_it_is_made_is_of_one_moment() {
    let mut runs = 0;
    for path in PATHS.into_iter().filter(|path| !path.contains("tool_calls")) {
        let plan = Plan::quiet();
        let of_version = |version| {
            // Each write has its own time.
            let store = Memory::new();
            (0..=version).for_each(|version| write_version(&store, version));
            look(&tree_of(Arc::new(store), &plan), path).unwrap()
        };
        let versions: Vec<_> = (0..=VERSIONS).map(of_version).collect();
        for k in 1.. {
            let store = Arc::new(Memory::new());
            write_version(&store, 0);
            let tree = tree_of(store.clone(), &plan);
            go_on_at_every(k, 1, store, plan.clone());
            let found = look(&tree, path).unwrap();
            assert!(versions.contains(&found), "{path}: changed at every {k}: {}", String::from_utf8_lossy(&found));
            runs += 1;
            if !plan.has_happened() {
                break;
            }
        }
    }
    assert!(runs > 100, "only {runs} runs");
}

#[test]
fn what_became_a_folder_since_it_was_looked_up_is_looked_up_again() {
    let (plan, store) = (Plan::quiet(), Arc::new(super::store()));
    let tree = tree_of(store.clone(), &plan);
    let find = |names: &[&str]| names.iter().fold(1, |ino, name| tree.lookup(ino, name.as_bytes()).unwrap().ino);
    let (file, folder) = (find(&["workers", "failed", "result.txt"]), find(&["workers", "failed", "tool_calls"]));
    let path = |text: &str| RelPath::parse(text).unwrap();
    store.remove(&path("failed/result.txt"));
    store.write(&path("failed/result.txt/inner"), "");
    store.remove(&path("failed/tool_calls"));
    store.write(&path("failed/tool_calls"), "");
    assert_eq!(tree.open(file).err(), Some(Error::Stale));
    assert_eq!(tree.open_folder(folder).err(), Some(Error::Stale));
}
