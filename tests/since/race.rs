//! Who follows cursors while others write misses nothing: at every call in between, and under constant writing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarmletfs::store::Memory;
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::Filter;

use super::coarse::Coarse;
use super::{Answer, path, since, tree};
use crate::support::fault_injection::{FaultInjector, FaultPlan};
use crate::support::intercept::InterceptedStore;
use crate::support::{TestStore, scale};

/// What the answers say of each worker's log, by the last that told of it.
#[derive(Default)]
struct Followed {
    sizes: BTreeMap<String, u64>,
    statuses: BTreeMap<String, String>,
}

impl Followed {
    fn note(&mut self, answer: &Answer) {
        for worker in answer.workers() {
            let line = answer.line(&worker).unwrap();
            let size =
                line.split("run.log (").nth(1).and_then(|rest| rest.split(' ').next()).map(|n| n.parse().unwrap());
            if let Some(size) = size {
                self.sizes.insert(worker.clone(), size);
            }
            self.statuses.insert(worker.clone(), answer.says(&worker).unwrap()[1].to_owned());
        }
    }

    /// Takes answers until there is nothing more to tell.
    fn follow(&mut self, tree: &Tree, cursor: &mut String) {
        loop {
            let answer = since(tree, cursor);
            self.note(&answer);
            cursor.clone_from(&answer.next);
            if answer.is_quiet() {
                return;
            }
        }
    }
}

#[test]
fn a_change_at_any_call_is_told() {
    let ids = ["a", "b", "c"];
    // What happens in one moment, in the order of the workers or against it.
    let orders: [&[&str]; 3] = [&["a", "c"], &["c", "a"], &["b"]];
    for (order, seconds) in orders.iter().flat_map(|order| [1, 8, 64].map(|seconds| (*order, seconds))) {
        for k in 1.. {
            let memory = Arc::new(Memory::new());
            for id in ids {
                memory.write(&path(&format!("workers/{id}/metadata.json")), "{\"status\":\"running\"}");
                memory.write(&path(&format!("workers/{id}/run.log")), "1");
            }
            let plan = FaultPlan::none();
            let store = Arc::new(InterceptedStore::new(FaultInjector(plan.clone()), memory.clone()));
            let tree = tree(Arc::new(InterceptedStore::new(Coarse(seconds), store)));
            let (mut followed, mut cursor) = (Followed::default(), since(&tree, "now").next);
            let inner = memory.clone();
            plan.run_before(k, move || {
                for id in order {
                    inner.write(&path(&format!("workers/{id}/run.log")), "12");
                    inner.write(&path(&format!("workers/{id}/metadata.json")), "{\"status\":\"failed\"}");
                }
                inner.write(&path("workers/new/metadata.json"), "{\"status\":\"running\"}");
                inner.write(&path("workers/new/run.log"), "123");
            });
            // The change meets the answer of a moment, or the look that finds nothing more.
            followed.follow(&tree, &mut cursor);
            if !plan.has_run() {
                assert!(k > 60, "a whole look is only {k} calls");
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
            assert_eq!(followed.sizes.get("new"), Some(&3), "{order:?} at call {k}, ticks of {seconds} s");
        }
    }
}

/// Writers write while a reader follows cursors in a tree that looks again after `fresh`.
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
    for round in 0..scale(40) {
        let is_written = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(round as u64);
                // Every round ends for each worker at another moment: what is lost then no later write makes good.
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
                followed.note(&answer);
                cursor = answer.next;
            }
        });
        followed.follow(&tree, &mut cursor);
        assert_eq!(followed.sizes, sizes, "round {round}");
    }
}

#[test]
fn every_write_is_told_to_who_follows_cursors_at_least_once() {
    follow_writers(Duration::ZERO);
}

#[test]
fn every_write_is_told_though_other_files_may_be_older() {
    follow_writers(Duration::from_secs(60));
}

#[test]
fn a_status_is_never_older_than_the_files_it_is_told_with() {
    let store = TestStore::new();
    store.worker("a", json!({})).worker("b", json!({}));
    // A finished worker is not looked at again for long.
    let tree = Tree::new(store.view(Duration::from_secs(3_600), Filter::default()), Settings::default());
    let cursor = since(&tree, "now").next;
    store.worker("a", json!({"status": "failed"}));
    let answer = since(&tree, &cursor);
    assert_eq!(answer.says("a"), Some(["finished", "failed"]), "{answer:#?}");
    let mut followed = Followed::default();
    followed.follow(&tree, &mut answer.next.clone());
    assert!(followed.statuses.get("a").is_none_or(|status| status == "failed"));
}
