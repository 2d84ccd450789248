//! Every operation with every fault injected at every store call (R18).
//!
//! The operation returns the store's error for that node only. No content is invented, no handle
//! leaks, and the next call succeeds.

mod cut_off;
mod leaks;
mod moments;
mod panics;
pub mod served;
mod threads;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Memory, Store};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::support::fault_injection::{Fault, FaultInjector, FaultPlan};
use crate::support::intercept::InterceptedStore;
use crate::support::{Seen, sample, scale, see, seen};

const FAULTS: [Fault; 7] = [
    Fault::Errno(Errno::IO),
    Fault::Errno(Errno::ACCESS),
    Fault::Errno(Errno::MFILE),
    Fault::Errno(Errno::INTR),
    Fault::Errno(Errno::STALE),
    Fault::Errno(Errno::NOMEM),
    Fault::ShortRead,
];

/// Paths that are read; a directory is listed.
const PATHS: [&str; 20] = [
    "",
    "workers",
    "runs",
    "runs/latest",
    "runs/7",
    "runs/7/workers",
    "runs/7/summary",
    "supervisor",
    "supervisor/strategy.md",
    "README.md",
    "index.json",
    "summary",
    "evidence.txt",
    "workers/failed",
    "workers/failed/tool_calls",
    "workers/failed/tool_calls/002_build.txt",
    "workers/failed/index.json",
    "workers/failed/summary",
    "workers/failed/evidence.2k.txt",
    "workers/plain/evidence.txt",
];

fn store() -> Memory {
    let store = Memory::new();
    let write = |path: &str, bytes: String| store.write(&RelPath::parse(path).unwrap(), bytes);
    let metadata = |id: &str, status: &str| {
        json!({"worker_id": id, "status": status, "run_id": 7, "config": {"owner_id": 1}})
            .to_string()
    };
    write(
        "index.json",
        json!([{"worker_id": "failed", "task_type": "build", "tags": ["a"]}]).to_string(),
    );
    write("supervisor/strategy.md", "first build, then test\n".into());
    write("failed/metadata.json", metadata("failed", "failed"));
    write("failed/task.txt", "build it\n".into());
    write("failed/result.txt", "all went well\n".into());
    write(
        "failed/metrics.jsonl",
        json!({"event": "tool_call", "tool": "look", "success": true}).to_string() + "\n",
    );
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"name": "build", "args": {"c": "make"}}]});
    write("failed/thread.jsonl", call.to_string() + "\n");
    write("failed/tool_calls/001_look.txt", "fine\n".into());
    write("failed/tool_calls/002_build.txt", "compiling\n".repeat(400) + "error: no such file\n");
    let stub = format!("[TOOL_OUTPUT:artifact_id={},tool=far,bytes=9]", "a".repeat(32));
    write("failed/tool_calls/003_far.txt", stub);
    write("plain/metadata.json", metadata("plain", "completed"));
    write("plain/logs/errors.log", "warning: old\n".into());
    write("plain/logs/more.log", "more\n".into());
    write("plain/outputs/report.md", "# done\n".into());
    write("plain/tools_used.json", json!(["look"]).to_string());
    store
}

fn outputs() -> Memory {
    let outputs = Memory::new();
    let path = |suffix: &str| RelPath::parse(format!("1/{}.{suffix}", "a".repeat(32))).unwrap();
    outputs.write(&path("json"), json!({"owner_id": 1}).to_string());
    outputs.write(&path("txt"), "far away\n");
    outputs
}

fn tree(plan: &Arc<FaultPlan>) -> Tree {
    tree_of(Arc::new(store()), plan)
}

fn tree_of(store: Arc<Memory>, plan: &Arc<FaultPlan>) -> Tree {
    let faulty = |store: Arc<Memory>| {
        Arc::new(InterceptedStore::new(FaultInjector(plan.clone()), store)) as Arc<dyn Store>
    };
    let source = Source::from_store(faulty(store), Some(faulty(Arc::new(outputs()))));
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    // No deadline, so that the result does not depend on the speed of the machine.
    let settings = Settings { deadline: Duration::from_secs(600), ..Settings::default() };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), settings)
}

/// Reads a file or symlink at `path`, or lists the names of a directory.
fn read(tree: &Tree, path: &str) -> Result<Vec<u8>> {
    if path.is_empty() {
        return Ok(seen::names(tree, path)?.join(&b'\n'));
    }
    match see(tree, path)? {
        Seen::File { bytes, .. } | Seen::Link(bytes) => Ok(bytes),
        Seen::Folder { .. } => Ok(seen::names(tree, path)?.join(&b'\n')),
    }
}

fn is_own(path: &str) -> bool {
    path.contains("tool_calls") || path.starts_with("supervisor") || path == "workers/failed"
}

/// Checks a result under a fault: the right content, the store's error, or a generated file that
/// reports what was not read.
fn check(path: &str, fault: Fault, right: &[u8], found: Result<Vec<u8>>) {
    let at = format!("{path} under {fault:?}");
    match (found, fault) {
        (Ok(found), Fault::ShortRead) => {
            assert!(found == right, "{at}: a short read changed the result")
        }
        (Err(error), Fault::ShortRead | Fault::Panic) => panic!("{at}: {error}"),
        (Ok(found), _) if is_own(path) => {
            let (found, right) = (found.escape_ascii(), right.escape_ascii());
            assert_eq!(found.to_string(), right.to_string(), "{at}: an own file or folder");
        }
        (Ok(found), _) => assert!(!found.is_empty(), "{at}: an empty generated file"),
        (Err(error), Fault::Errno(errno)) => {
            let own = Error::from(errno).errno();
            assert_eq!(error.errno(), own, "{at}: {error}");
        }
    }
}

/// Promise: Every fault at every store call affects only its own request.
#[test]
fn every_fault_at_every_call_is_contained() {
    let mut runs = 0;
    for path in PATHS {
        let plan = FaultPlan::none();
        let right = read(&tree(&plan), path).unwrap();
        for fault in FAULTS {
            // Persistent errors behave the same under every errno, so one suffices.
            let sticky_values: &[bool] = match fault {
                Fault::Errno(Errno::IO) | Fault::ShortRead => &[false, true],
                Fault::Errno(_) | Fault::Panic => &[false],
            };
            for &sticky in sticky_values {
                for k in sample(1..) {
                    let tree = tree(&plan);
                    plan.fail(k, fault, sticky);
                    let found = read(&tree, path);
                    let again = sticky.then(|| read(&tree, path));
                    let met = plan.heal();
                    check(path, fault, &right, found);
                    if let Some(again) = again {
                        check(path, fault, &right, again);
                    }
                    let next = read(&tree, path).unwrap_or_else(|error| {
                        panic!("{path}: call {k}, {fault:?}, sticky {sticky}: still {error} after the fault")
                    });
                    assert_eq!(
                        String::from_utf8_lossy(&next),
                        String::from_utf8_lossy(&right),
                        "{path}: call {k}, {fault:?}, sticky {sticky}: wrong content after the fault"
                    );
                    assert_eq!(tree.open_counts().1, 0, "{path}: a handle leaked");
                    runs += 1;
                    if !met {
                        break;
                    }
                }
            }
        }
    }
    eprintln!("{runs} runs");
    assert!(runs > scale(3_000), "only {runs} runs");
}

/// Promise: A store that cannot be listed keeps its known workers and reports the error.
#[test]
fn unlistable_store_keeps_its_workers() {
    let plan = FaultPlan::none();
    let tree = tree(&plan);
    let right = read(&tree, "workers").unwrap();
    plan.fail(1, Fault::Errno(Errno::IO), true);
    let found = seen::names(&tree, "");
    plan.heal();
    assert!(found.is_ok() || found == Err(Error::Io(Errno::IO)));
    assert_eq!(read(&tree, "workers").unwrap(), right);
    assert!(!String::from_utf8(read(&tree, "summary").unwrap()).unwrap().contains("warning"));
}

/// A change that a fault hides is visible as soon as the fault is over: results of incomplete reads
/// are not cached.
#[test]
fn change_during_a_fault_appears_at_the_next_read() {
    let change = |store: &Memory| {
        let write = |path: &str, bytes: &str| store.write(&RelPath::parse(path).unwrap(), bytes);
        write(
            "index.json",
            &json!([{"worker_id": "plain", "tags": ["b"], "summary": "new"}]).to_string(),
        );
        write(
            "failed/metadata.json",
            &json!({"status": "success", "run_id": 7, "job_id": 4}).to_string(),
        );
        write("failed/task.txt", "build it again\n");
        write("failed/tool_calls/003_far.txt", "near\n");
        write("late/metadata.json", &json!({"run_id": 7}).to_string());
        write("late/task.txt", "come late\n");
    };
    let mut runs = 0;
    for path in [
        "index.json",
        "summary",
        "evidence.txt",
        "workers",
        "runs/7/index.json",
        "workers/failed/index.json",
    ] {
        let plan = FaultPlan::none();
        let changed = Arc::new(store());
        change(&changed);
        let right = read(&tree_of(changed.clone(), &plan), path).unwrap();
        for k in sample(1..) {
            let store = Arc::new(store());
            let tree = tree_of(store.clone(), &plan);
            read(&tree, path).unwrap();
            change(&store);
            plan.fail(k, Fault::Errno(Errno::IO), false);
            let _ = read(&tree, path);
            let met = plan.heal();
            let next = read(&tree, path).unwrap();
            assert_eq!(
                String::from_utf8_lossy(&next),
                String::from_utf8_lossy(&right),
                "{path}: call {k} failed in the first read after a change"
            );
            runs += 1;
            if !met {
                break;
            }
        }
    }
    assert!(runs > scale(300) / 2, "only {runs} runs");
}
