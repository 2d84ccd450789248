//! Several compactions, and compactions that die: nothing is lost.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs_objects::{CatalogReport, WholeSearch, WorkerNews};

use super::super::proxy::{Proxy, WebFault};
use super::super::recorder::Machine;
use super::super::server::{new_prefix, server, url};
use super::{MANIFEST, TestBucket};
use crate::support::{patience, sample, scale};

/// Promise: Any number of processes may bring a catalog up to date at once: one wins, the others
/// start over, and no worker is lost.
#[test]
fn compactions_at_once_lose_no_worker() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    bucket.put_worker("first", "completed");
    bucket.compact_all();
    let (rounds, writers) = (scale(4), 3);
    let ends = AtomicBool::new(false);
    let reports: Vec<CatalogReport> = thread::scope(|scope| {
        let compactors: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut reports = Vec::new();
                    while !ends.load(Ordering::Relaxed) {
                        let whole = WholeSearch::IfOlder(Duration::MAX);
                        reports.push(bucket.compact(whole).unwrap());
                    }
                    reports
                })
            })
            .collect();
        let writers: Vec<_> = (0..writers)
            .map(|writer| {
                let bucket = &bucket;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let id = format!("w{writer}-{round}");
                        bucket.announce(WorkerNews::Opened, &id);
                        bucket.put_worker(&id, "running");
                        bucket.put_worker(&id, "completed");
                        bucket.announce(WorkerNews::Closed, &id);
                        bucket.assert_has(&id);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ends.store(true, Ordering::Relaxed);
        compactors.into_iter().flat_map(|compactor| compactor.join().unwrap()).collect()
    });
    let restarts: u32 = reports.iter().map(|report| report.restarts).sum();
    let report = bucket.compact_news();
    assert_eq!(report.workers, 1 + writers * rounds, "after {restarts} restarts");
    bucket.assert_right("the end");
    // Each file is named, or was replaced a moment ago.
    let manifest = bucket.writer.get(MANIFEST, 1 << 20).unwrap().unwrap().0;
    let manifest = String::from_utf8(manifest.to_vec()).unwrap();
    for key in bucket.keys("catalog/v1/workers/") {
        assert!(manifest.contains(&key), "{key} is in no manifest");
    }
    assert_eq!(bucket.compact_all().rows, 0);
}

impl TestBucket {
    /// Asserts that a new reader sees the finished worker.
    fn assert_has(&self, id: &str) {
        let opened = self.open(true);
        let path = swarmletfs_base::name::RelPath::parse(format!("workers/{id}/metadata.json"));
        let file = swarmletfs_base::store::Store::open(&opened, &path.unwrap()).unwrap();
        let bytes = swarmletfs_base::store::read_range(&*file, 0, 999).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("completed"), "{id}: {text}");
    }
}

/// Promise: A process that is killed while it brings a catalog up to date leaves the tree as it is,
/// and the next one finishes.
#[test]
fn a_compaction_that_is_killed_loses_nothing() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let run = |fault: WebFault, k: u64| {
        let prefix = new_prefix();
        let bucket = TestBucket::at(&server.address(), prefix.clone());
        bucket.put_worker("old", "completed");
        bucket.put_worker("gone", "completed");
        bucket.compact_all();
        bucket.announce(WorkerNews::Opened, "new");
        bucket.put_worker("new", "completed");
        bucket.announce(WorkerNews::Closed, "new");
        bucket.delete_worker("gone");
        bucket.announce(WorkerNews::Removed, "gone");
        let mut machine = Machine::new(server);
        machine.address = proxy.address();
        proxy.fail(fault, k, true);
        let mut command = machine.command(&["catalog", &url(&prefix), "--announced"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() && proxy.count() <= k {
            assert!(begun.elapsed() < patience(Duration::from_secs(60)));
            thread::sleep(Duration::from_millis(2));
        }
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        let requests = proxy.heal();
        let why = format!("killed at {k} with {fault:?}");
        bucket.assert_right(&why);
        machine.address = server.address();
        machine.run(&["catalog", &url(&prefix), "--announced"]).assert_success();
        let facts = bucket.open(true).catalog().unwrap();
        assert_eq!((facts.workers, facts.news), (2, 0), "{why}");
        bucket.assert_right(&format!("finished after {why}"));
        requests
    };
    let requests = run(WebFault::Blocked, u64::MAX);
    assert!(requests > 10, "{requests} requests");
    let faults = [WebFault::Blocked, WebFault::LostAnswer];
    for (fault, k) in sample((0..requests).flat_map(|k| faults.map(|fault| (fault, k)))) {
        run(fault, k);
    }
}

#[test]
fn the_program_keeps_and_shows_a_catalog() {
    let Some(server) = server() else { return };
    let (machine, bucket) = (Machine::new(server), TestBucket::new(server));
    bucket.put_worker("a", "completed");
    let url = url(&bucket.prefix);
    let made = machine.run(&["catalog", &url]);
    made.assert_success();
    assert!(made.out.contains("1 worker in 1 file; 1 row changed, 0 removed"), "{}", made.out);
    let json = machine.run(&["catalog", &url, "--announced", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["workers"], &json["changed"]), (&1.into(), &0.into()));
    bucket.put_worker("foreign", "completed");
    for (options, shown) in [(&[][..], "a\n"), (&["--no-catalog"], "a\nforeign\n")] {
        let listed =
            machine.run(&[&["ls", "workers", "--no-cache", "--store", &url], options].concat());
        let names: Vec<&str> = listed.out.lines().filter(|name| !name.contains('.')).collect();
        assert_eq!(names.join("\n") + "\n", shown, "{listed:#?}");
    }
    let doctor = machine.run(&["doctor", &url]);
    for text in ["a listing takes", "an hour", "catalog: 1 worker in 1 file", "honors conditional"]
    {
        assert!(doctor.out.contains(text), "{text} is not in {}", doctor.out);
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = machine.run(&["catalog", folder.path().to_str().unwrap()]);
    refused.assert_failure(1, &["it is no object store", "try s3://BUCKET/PREFIX"]);
}
