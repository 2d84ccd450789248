//! Floods of announcements, also of workers that do not exist: everything is listed once instead.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs_objects::WorkerNews;

use super::super::server::{server, url};
use super::TestBucket;
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, patience};

/// Number of keys in a page of a listing.
const PAGE: usize = 1_000;
/// Number of threads that write announcements.
const WRITERS: usize = 16;

/// Announces `count` workers that do not exist, half of them twice, another one `count` times, and
/// writes as many keys that are no announcements.
fn flood(bucket: &TestBucket, count: usize) {
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for at in (writer..count).step_by(WRITERS) {
                    let put = |name: &str| bucket.put(&format!("catalog/v1/new/{name}"), "");
                    put(&format!("{at}-opened-none{at}.json"));
                    put(&format!("{at}-closed-none{}.json", at / 2));
                    put(&format!("{at}-closed-a.json"));
                    put(&format!(
                        "{at}-{}",
                        ["opened-.json", "lost-a.json", "%FF%2F", "{}"][at % 4]
                    ));
                }
            });
        }
    });
}

/// Floods a store with four keys for each of `count`, and returns the time of each step.
fn survive(count: usize) -> [Duration; 3] {
    let Some(server) = server() else { return Default::default() };
    let bucket = TestBucket::new(server);
    bucket.put_worker("a", "completed");
    bucket.put_worker("b", "running");
    bucket.put("supervisor/strategy.md", "text");
    bucket.compact_all();
    flood(&bucket, count);
    bucket.put_worker("new", "completed");
    bucket.announce(WorkerNews::Closed, "new");
    let (news, pages) = (3 * count + 1, (4 * count).div_ceil(PAGE) + 1);
    let begun = Instant::now();
    let opened = bucket.open(true);
    let read = begun.elapsed();
    // The catalog, the first level, and everything.
    let lists = opened.requests().lists;
    assert!(lists as usize <= 2 * pages + 2, "{lists} listings");
    assert_eq!(opened.catalog().unwrap().news, news);
    let (requests, refresh) = opened.listing_cost();
    assert!(requests as u64 >= lists && refresh >= Duration::from_millis(500 * lists));
    bucket.assert_right("flooded");
    let (before, begun) = (bucket.writer.requests(), Instant::now());
    let report = bucket.compact_news();
    let compacted = begun.elapsed();
    let lists = bucket.writer.requests().lists - before.lists;
    assert!(report.is_whole && lists as usize <= 2 * pages + 2, "{lists} listings: {report:?}");
    assert_eq!((report.workers, report.rows), (3, 1));
    // Workers without objects that are announced to be open may still come, for a day.
    let left: Vec<String> = bucket.keys("catalog/v1/new/");
    assert!(left.iter().any(|key| key.contains("-opened-none")), "{left:?}");
    let is_taken = |key: &String| key.ends_with("-closed-a.json") || key.ends_with("-new.json");
    assert!(!left.iter().any(is_taken), "{left:?}");
    bucket.assert_right("compacted");
    // Announcements that are taken back leave nothing behind.
    let begun = Instant::now();
    bucket.writer.delete(left).unwrap();
    let deleted = begun.elapsed();
    let calm = bucket.open(true);
    assert!(calm.requests().lists <= 6, "{:?}", calm.requests());
    bucket.assert_right("calm");
    [read, compacted, deleted]
}

/// Promise: Any number of announcements costs a reader or a compaction no more requests than a
/// listing of everything.
#[test]
fn a_flood_of_announcements_is_one_listing_of_everything() {
    survive(100);
}

#[test]
#[ignore = "only in scripts/check --all"]
fn a_hundred_thousand_announcements_are_survived() {
    let [read, compacted, deleted] = survive(25_000);
    println!("read in {read:?}, compacted in {compacted:?}, deleted in {deleted:?}");
    assert!(read < patience(Duration::from_secs(60)));
}

#[test]
fn a_mount_logs_that_everything_is_listed() {
    needs_fuse!();
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    bucket.put_worker("a", "completed");
    bucket.compact_all();
    (0..40).for_each(|at| bucket.announce(WorkerNews::Opened, &format!("none{at}")));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mount = Mount::of(|point| {
        let mut command = std::process::Command::new(PROGRAM);
        server.configure(&mut command);
        command.args(["mount", "--foreground", "--quiet", "--no-cache", "--store"]);
        command.arg(url(&bucket.prefix)).arg("--log").arg(&log).arg(point);
        command
    });
    assert_eq!(mount.text("workers/a/result.txt"), "It is done.\n");
    let log = fs::read_to_string(log).unwrap();
    let said = log.lines().filter(|line| line.contains("all objects are listed instead of each"));
    assert_eq!(
        said.filter(|line| line.contains("try `swarmletfs catalog s3://")).count(),
        1,
        "{log}"
    );
}
