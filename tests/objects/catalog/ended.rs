//! Recorders that bring the catalog up to date when they end a worker.

use std::thread;
use std::time::Instant;

use swarmletfs_objects::{CompactionTurn, WorkerNews, have_many_announced};

use super::super::proxy::{Proxy, WebFault};
use super::super::recorder::Machine;
use super::super::server::{Server, new_prefix, server, url};
use super::TestBucket;
use crate::cli::program::wait_timeout;
use crate::support::patience;

/// Number of announcements from which on a recorder brings the catalog up to date.
const MANY: usize = 1_000;
const TURN: &str = "catalog/v1/turn";

impl TestBucket {
    /// Writes workers that have ended, each with two announcements.
    fn announce_workers(&self, count: usize) {
        thread::scope(|scope| {
            for first in 0..8 {
                scope.spawn(move || {
                    for number in (first..count).step_by(8) {
                        let id = format!("a{number}");
                        self.announce(WorkerNews::Opened, &id);
                        self.put_worker(&id, "completed");
                        self.announce(WorkerNews::Closed, &id);
                    }
                });
            }
        });
    }

    fn announcements(&self) -> usize {
        self.keys("catalog/v1/new/").len()
    }
}

/// Returns a part of the object store, a machine that records there, and the URL.
fn places(server: &Server) -> (TestBucket, Machine<'_>, String) {
    let prefix = new_prefix();
    let bucket = TestBucket::at(&server.address(), prefix.clone());
    (bucket, Machine::new(server), url(&prefix))
}

fn end_worker(machine: &Machine<'_>, id: &str, url: &str) {
    machine.run(&["worker", "create", "--id", id, "--store", url]).assert_success();
    let ended = machine.run(&["worker", "finish", id, "--store", url]);
    assert_eq!(ended.assert_success().err, "");
}

/// Promise: A process that ends a worker in an object store brings the catalog up to date if 1,000
/// announcements wait, unless another process does so.
#[test]
fn the_end_of_a_worker_brings_the_catalog_up_to_date() {
    let Some(server) = server() else { return };
    let (bucket, machine, url) = places(server);
    bucket.put_worker("first", "completed");
    bucket.compact_all();
    // Of workers that do not come. They are the oldest, and stay.
    let absent = 250;
    (0..absent).for_each(|number| bucket.announce(WorkerNews::Opened, &format!("x{number}")));
    bucket.announce_workers(MANY / 2);
    // Another process has begun a moment ago.
    let turn = CompactionTurn::take(&bucket.writer).unwrap().unwrap();
    end_worker(&machine, "w1", &url);
    assert_eq!(bucket.announcements(), absent + MANY + 2);
    turn.end();
    // Several end at once. Each takes as much as there is time for.
    let enders: Vec<String> = (0..8).map(|number| format!("e{number}")).collect();
    for id in &enders {
        machine.run(&["worker", "create", "--id", id, "--store", &url]).assert_success();
    }
    let begun = Instant::now();
    let finish = |id: &String| machine.start(&["worker", "finish", id, "--store", &url], "");
    for mut child in enders.iter().map(finish).collect::<Vec<_>>() {
        let limit = patience(super::super::recorded::LIMIT);
        assert!(wait_timeout(&mut child, limit).unwrap().success());
    }
    let left = bucket.announcements();
    let facts = bucket.open(true).catalog().unwrap();
    assert!(left < MANY, "{left} announcements wait after {:?}: {facts:?}", begun.elapsed());
    assert_eq!(bucket.keys(TURN), [""; 0]);
    assert!(facts.workers > 1 && facts.news == left, "{facts:?}");
    bucket.assert_right("after the end");
    end_worker(&machine, "w2", &url);
    assert_eq!(bucket.announcements(), left + 2);
}

/// Promise: A failure while the catalog is brought up to date is no failure of the recorder.
#[test]
fn a_catalog_that_cannot_be_brought_up_to_date_does_not_fail_the_recorder() {
    let Some(server) = server() else { return };
    let (bucket, mut machine, url) = places(server);
    bucket.put_worker("first", "completed");
    bucket.compact_all();
    bucket.announce_workers(MANY / 2);
    let proxy = Proxy::start(&server.address());
    machine.address = proxy.address();
    let end = |machine: &Machine<'_>, id: &str, k: u64| {
        machine.run(&["worker", "create", "--id", id, "--store", &url]).assert_success();
        proxy.fail(WebFault::Status(403), k, true);
        let ended = machine.run(&["worker", "finish", id, "--store", &url]);
        ended.assert_success();
        (ended, proxy.heal())
    };
    // The last two requests find that many wait, and that another process has the turn.
    let turn = CompactionTurn::take(&bucket.writer).unwrap().unwrap();
    let (_, requests) = end(&machine, "w1", u64::MAX);
    turn.end();
    let (ended, _) = end(&machine, "w2", requests - 2);
    assert!(ended.err.contains("readers are not affected"), "{ended:#?}");
    assert_eq!(machine.spooled(), [""; 0]);
    assert!(bucket.announcements() >= MANY);
}

#[test]
fn the_end_of_a_worker_does_not_make_the_first_catalog() {
    let Some(server) = server() else { return };
    let (bucket, machine, url) = places(server);
    bucket.announce_workers(MANY / 2);
    machine.run(&["worker", "create", "--id", "w1", "--store", &url]).assert_success();
    let ended = machine.run(&["worker", "finish", "w1", "--store", &url]);
    assert!(ended.assert_success().err.contains("`swarmletfs catalog` makes it"), "{ended:#?}");
    assert_eq!(bucket.keys("catalog/v1/workers/"), [""; 0]);
    // The turn of that process does not keep a flush from it.
    machine.run(&["flush", "--store", &url]).assert_success();
    assert_eq!(bucket.announcements(), 0);
    bucket.assert_right("after a flush");
}

/// Promise: Of any number of processes that end workers, one brings the catalog up to date.
#[test]
fn one_of_many_takes_the_turn() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    let take_at_once = || {
        thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| CompactionTurn::take(&bucket.writer).unwrap()))
                .collect();
            takers.into_iter().filter_map(|taker| taker.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut taken = take_at_once();
    assert_eq!(taken.len(), 1);
    assert!(take_at_once().is_empty());
    taken.pop().unwrap().end();
    // Of a process that died long ago.
    bucket.put(TURN, "01890a5d-ac96-774b-bcce-b302099a8057");
    assert_eq!(take_at_once().len(), 1);
    for (waiting, is_many) in [(0, false), (1, true), (2, true)] {
        assert_eq!(have_many_announced(&bucket.writer, 1).unwrap(), is_many, "{waiting}");
        bucket.announce(WorkerNews::Opened, "w1");
    }
}
