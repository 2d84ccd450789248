//! A reader that follows cursors misses no concurrent write: at every store call, and under
//! constant load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::store::Memory;
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::coarse::Coarse;
use super::{Answer, path, since, tree};
use crate::support::fault_injection::{FaultInjector, FaultPlan};
use crate::support::intercept::InterceptedStore;
use crate::support::{TestStore, sample, seeds};

/// The newest size of each worker's log and its newest status, as listed by the answers.
#[derive(Default)]
struct Followed {
    sizes: BTreeMap<String, u64>,
    statuses: BTreeMap<String, String>,
}

impl Followed {
    fn record(&mut self, answer: &Answer) {
        for worker in answer.workers() {
            let line = answer.line(&worker).unwrap();
            let size = line
                .split("run.log (")
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .map(|n| n.parse().unwrap());
            if let Some(size) = size {
                self.sizes.insert(worker.clone(), size);
            }
            self.statuses
                .insert(worker.clone(), answer.change_and_status(&worker).unwrap()[1].to_owned());
        }
    }

    /// Follows cursors until an answer lists no changes.
    fn follow(&mut self, tree: &Tree, cursor: &mut String) {
        loop {
            let answer = since(tree, cursor);
            self.record(&answer);
            cursor.clone_from(&answer.next);
            if answer.has_no_changes() {
                return;
            }
        }
    }
}

/// Promise: A change at any store call is reported.
#[test]
fn change_at_any_call_is_reported() {
    let ids = ["a", "b", "c"];
    // Workers that change at one moment, in the order of the workers and in reverse.
    let orders: [&[&str]; 3] = [&["a", "c"], &["c", "a"], &["b"]];
    for (order, seconds) in
        orders.iter().flat_map(|order| [1, 8, 64].map(|seconds| (*order, seconds)))
    {
        for k in sample(1..) {
            let memory = Arc::new(Memory::new());
            for id in ids {
                memory.write(
                    &path(&format!("workers/{id}/metadata.json")),
                    "{\"status\":\"running\"}",
                );
                memory.write(&path(&format!("workers/{id}/run.log")), "1");
            }
            let plan = FaultPlan::none();
            let store =
                Arc::new(InterceptedStore::new(FaultInjector(plan.clone()), memory.clone()));
            let tree = tree(Arc::new(InterceptedStore::new(Coarse(seconds), store)));
            let (mut followed, mut cursor) = (Followed::default(), since(&tree, "now").next);
            let inner = memory.clone();
            plan.run_before(k, move || {
                for id in order {
                    inner.write(&path(&format!("workers/{id}/run.log")), "12");
                    inner.write(
                        &path(&format!("workers/{id}/metadata.json")),
                        "{\"status\":\"failed\"}",
                    );
                }
                inner.write(&path("workers/new/metadata.json"), "{\"status\":\"running\"}");
                inner.write(&path("workers/new/run.log"), "123");
            });
            // The change happens during an answer with changes, or during the final one without.
            followed.follow(&tree, &mut cursor);
            if !plan.has_run() {
                assert!(k > 60, "a full snapshot takes only {k} calls");
                break;
            }
            followed.follow(&tree, &mut cursor);
            for id in order {
                assert_eq!(
                    followed.sizes.get(*id),
                    Some(&2),
                    "{order:?} at call {k}, ticks of {seconds} s: the log of {id}"
                );
                assert_eq!(
                    followed.statuses[*id], "failed",
                    "{order:?} at call {k}, ticks of {seconds} s: the status of {id}"
                );
            }
            assert_eq!(
                followed.sizes.get("new"),
                Some(&3),
                "{order:?} at call {k}, ticks of {seconds} s"
            );
        }
    }
}

/// Writes while a reader follows cursors in a tree that reads workers again after `fresh`.
fn follow_writers(fresh: Duration) {
    let store = TestStore::new();
    let mut ids: Vec<String> = (0..12).map(|n| format!("w{n}")).collect();
    let begin = |id: &str| {
        store.worker(id, json!({"status": "running"}));
    };
    ids.iter().for_each(|id| begin(id));
    let tree = Tree::new(store.view(fresh, Filter::default()), Settings::default());
    let (mut followed, mut cursor) = (Followed::default(), since(&tree, "now").next);
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for round in seeds(40) {
        let is_written = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(round);
                // Rounds end at a random write for each worker, so that no later write hides a lost
                // one.
                for number in 0..rng.usize(1..40) {
                    if rng.u8(..10) == 0 {
                        ids.push(format!("n{round}-{number}"));
                        begin(&ids[ids.len() - 1]);
                    }
                    let id = rng.choice(&ids).unwrap();
                    let size = sizes.entry(id.clone()).or_default();
                    *size += 1;
                    store.write(format!("workers/{id}/run.log"), "x".repeat(*size as usize));
                }
                is_written.store(true, Ordering::SeqCst);
            });
            while !is_written.load(Ordering::SeqCst) {
                let answer = since(&tree, &cursor);
                followed.record(&answer);
                cursor = answer.next;
            }
        });
        followed.follow(&tree, &mut cursor);
        assert_eq!(followed.sizes, sizes, "round {round}");
    }
}

/// Promise: A reader that follows cursors receives every write at least once.
#[test]
fn followed_cursors_report_every_write_at_least_once() {
    follow_writers(Duration::ZERO);
}

#[test]
fn every_write_is_listed_even_if_other_files_are_cached() {
    follow_writers(Duration::from_secs(60));
}

/// Promise: A status is never older than the files it is reported with.
#[test]
fn status_is_never_older_than_its_files() {
    let store = TestStore::new();
    store.worker("a", json!({})).worker("b", json!({}));
    // A finished worker stays cached for an hour.
    let tree =
        Tree::new(store.view(Duration::from_secs(3_600), Filter::default()), Settings::default());
    let cursor = since(&tree, "now").next;
    store.worker("a", json!({"status": "failed"}));
    let answer = since(&tree, &cursor);
    assert_eq!(answer.change_and_status("a"), Some(["finished", "failed"]), "{answer:#?}");
    let mut followed = Followed::default();
    followed.follow(&tree, &mut answer.next.clone());
    assert!(followed.statuses.get("a").is_none_or(|status| status == "failed"));
}
