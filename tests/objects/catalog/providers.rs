//! Catalogs in `az://` and `gs://`, whose versions and conditions differ from those of S3.

use std::thread;
use std::time::Duration;

use swarmletfs_base::name::RelPath;
use swarmletfs_objects::{
    CatalogError, ConditionSupport, ObjectSettings, WholeSearch, WorkerNews, find_conditions,
};

use super::super::emulators::{CONTAINER, azurite, google};
use super::super::server::new_prefix;
use super::super::tree;
use super::TestBucket;
use crate::support::see;

/// Number of workers that are listed without a request for each.
const WORKERS: usize = 12;
/// Number of compactions at the same time, and of workers for each.
const COMPACTORS: usize = 2;
const ROUNDS: usize = 6;

fn bucket(scheme: &str, settings: ObjectSettings) -> TestBucket {
    let prefix = new_prefix();
    TestBucket::with(format!("{scheme}://{CONTAINER}/{prefix}"), prefix, settings)
}

/// Asserts that a catalog can be made, read and kept, also by two processes at once.
fn assert_keeps_catalog(bucket: &TestBucket) {
    assert_eq!(find_conditions(&bucket.writer).unwrap(), ConditionSupport::Honored);
    assert_eq!(bucket.keys(""), [""; 0]);
    (0..WORKERS).for_each(|at| bucket.put_worker(&format!("old{at}"), "completed"));
    assert_eq!(bucket.compact_all().workers, WORKERS);
    let opened = bucket.open(true);
    let tree = tree(opened.clone());
    assert_eq!(tree.view().visible().members.len(), WORKERS);
    let requests = opened.requests();
    assert!(requests.lists + requests.reads <= 6, "{requests:?}");
    assert!(see(&tree, "workers/old3/summary").unwrap().text().contains("Task of old3"));
    // Each changes what the other one has read.
    let restarts: u32 = thread::scope(|scope| {
        let compactor = |number: usize| {
            move || {
                (0..ROUNDS).fold(0, |restarts, round| {
                    let id = format!("new{number}-{round}");
                    bucket.announce(WorkerNews::Opened, &id);
                    bucket.put_worker(&id, "completed");
                    bucket.announce(WorkerNews::Closed, &id);
                    restarts + bucket.compact(WholeSearch::IfOlder(Duration::MAX)).unwrap().restarts
                })
            }
        };
        let all: Vec<_> = (0..COMPACTORS).map(|number| scope.spawn(compactor(number))).collect();
        all.into_iter().map(|compactor| compactor.join().unwrap()).sum()
    });
    let report = bucket.compact_news();
    assert_eq!(report.workers, WORKERS + COMPACTORS * ROUNDS, "after {restarts} restarts");
    bucket.assert_right("after the race");
    let seen = opened_anew(bucket, "workers/new1-0/result.txt");
    assert_eq!(seen, b"It is done.\n");
    assert_eq!(bucket.compact_all().rows, 0);
    assert_eq!(bucket.keys("catalog/v1/probe/"), [""; 0]);
}

fn opened_anew(bucket: &TestBucket, path: &str) -> Vec<u8> {
    use swarmletfs_base::store::{Store, read_range};
    let file = bucket.open(true).open(&RelPath::parse(path).unwrap()).unwrap();
    read_range(&*file, 0, 99).unwrap()
}

#[test]
fn azure_keeps_a_catalog() {
    let Some(server) = azurite() else { return };
    assert_keeps_catalog(&bucket("az", server.settings()));
}

#[test]
fn google_keeps_a_catalog() {
    let Some(server) = google() else { return };
    assert_keeps_catalog(&bucket("gs", server.writable(true)));
}

/// A server of Google that ignores conditions gets no catalog.
#[test]
fn a_google_server_without_conditions_gets_no_catalog() {
    let Some(server) = google() else { return };
    let bucket = bucket("gs", server.writable(false));
    bucket.put_worker("a", "completed");
    assert_eq!(find_conditions(&bucket.writer).unwrap(), ConditionSupport::Ignored);
    let refused = bucket.compact(WholeSearch::Always);
    assert!(matches!(refused, Err(CatalogError::Unconditional)), "{refused:?}");
    assert_eq!(bucket.keys("catalog/"), [""; 0]);
}
