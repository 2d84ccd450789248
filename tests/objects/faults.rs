//! Requests that fail: nothing wrong is shown, nothing hangs, and the store recovers.

use std::path::Path;
use std::time::{Duration, Instant};

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_range};
use swarmletfs_objects::{Bucket, ObjectSettings};

use super::proxy::{Proxy, SLOW, TRICKLE, WebFault};
use super::server::{Server, new_prefix, server, settings_for, url};
use crate::support::{patience, sample};

/// Deadline of a request in these tests: a slow answer misses it.
const DEADLINE: Duration = Duration::from_secs(1);
/// Size of the largest object, in bytes: two requests.
const SIZE: usize = 700_000;

fn settings(proxy: &Proxy) -> ObjectSettings {
    assert!(SLOW > 2 * DEADLINE);
    ObjectSettings {
        deadline: DEADLINE,
        refresh: Duration::from_millis(100),
        ..settings_for(&proxy.address())
    }
}

fn objects() -> [(&'static str, Vec<u8>); 3] {
    let large = (0..SIZE).map(|at| (at % 251) as u8).collect();
    [("a/large", large), ("a/small", b"text".to_vec()), ("b", b"another".to_vec())]
}

fn fill(server: &Server) -> String {
    let prefix = new_prefix();
    for (key, bytes) in objects() {
        server.put(&format!("{prefix}/{key}"), bytes);
    }
    prefix
}

/// Reads all objects beneath `path`.
fn read_all(bucket: &Bucket, path: &RelPath, all: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let mut entries = bucket.list(path)?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries {
        let path = path.join(&entry.name);
        match entry.kind {
            Kind::Folder => read_all(bucket, &path, all)?,
            _ => all.push((path.display(), read_range(&*bucket.open(&path)?, 0, 2 * SIZE)?)),
        }
    }
    Ok(())
}

/// Opens the store and reads everything.
fn see(prefix: &str, settings: &ObjectSettings) -> std::result::Result<(), String> {
    let bucket = swarmletfs_objects::open(Path::new(&url(prefix)), settings);
    let bucket = bucket.map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    let read = read_all(&bucket, &RelPath::root(), &mut all);
    // All bytes that were read are right, whether more follow or not.
    for ((path, bytes), (expected, content)) in all.iter().zip(objects()) {
        assert!(path == expected && *bytes == content, "{path}: {} bytes", bytes.len());
    }
    read.map_err(|error| error.to_string())?;
    assert_eq!(all.len(), objects().len());
    Ok(())
}

/// Promise: A request to an object store that fails gives an error or is repeated: it never
/// changes what a file shows.
#[test]
fn a_fault_of_any_request_gives_an_error_or_the_right_bytes() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    let settings = settings(&proxy);
    proxy.fail(WebFault::Reset, u64::MAX, false);
    see(&prefix, &settings).unwrap();
    let requests = proxy.heal();
    assert!(requests >= 4, "{requests} requests");
    let cases = (0..requests).flat_map(|k| WebFault::ALL.map(|fault| (fault, k)));
    for (fault, k) in sample(cases) {
        for stays in [false, true] {
            proxy.fail(fault, k, stays);
            let begun = Instant::now();
            let seen = see(&prefix, &settings);
            assert!(begun.elapsed() < patience(8 * DEADLINE), "{fault:?} at {k} took too long");
            assert!(seen.is_err() || !stays || fault == WebFault::WrongLength, "{fault:?} at {k}");
            if matches!(fault, WebFault::Status(_) | WebFault::Reset) && !stays {
                assert_eq!(seen, Ok(()), "{fault:?} at {k} is not repeated");
            }
        }
        proxy.heal();
        assert_eq!(see(&prefix, &settings), Ok(()), "after {fault:?} at {k}");
    }
}

/// Promise: While an object store does not answer, its last listing and what was read stay
/// readable.
#[test]
fn the_last_listing_stays_while_the_store_does_not_answer() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    let bucket = swarmletfs_objects::open(Path::new(&url(&prefix)), &settings(&proxy)).unwrap();
    let path = |text: &str| RelPath::parse(text).unwrap();
    let small = || read_range(&*bucket.open(&path("a/small"))?, 0, 99);
    assert_eq!(small(), Ok(b"text".to_vec()));
    proxy.fail(WebFault::Status(503), 0, true);
    let begun = Instant::now();
    while begun.elapsed() < 3 * DEADLINE {
        assert_eq!(bucket.list(&path("a")).unwrap().len(), 2);
        assert_eq!(small(), Ok(b"text".to_vec()));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(matches!(bucket.open(&path("b")).err(), Some(Error::Io(_))));
    server.put(&format!("{prefix}/c"), "new");
    proxy.heal();
    let begun = Instant::now();
    while bucket.stat(&path("c")).is_err() {
        assert!(begun.elapsed() < patience(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(bucket.open(&path("b")).is_ok());
}

#[test]
fn a_store_that_does_not_answer_is_an_error_in_time() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    for (fault, text) in [
        (WebFault::Slow, "it did not answer in time"),
        (WebFault::Status(503), "503"),
        (WebFault::Reset, "cannot read"),
    ] {
        proxy.fail(fault, 0, true);
        let begun = Instant::now();
        let error = see(&prefix, &settings(&proxy)).unwrap_err();
        assert!(error.contains(text) && error.contains("; "), "{error}");
        assert!(begun.elapsed() < patience(4 * DEADLINE), "{fault:?}");
    }
}

/// Promise: A slow network makes the requests to an object store smaller, so that a large object is
/// read to its end.
#[test]
fn a_large_object_is_read_over_a_slow_network() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (new_prefix(), Proxy::start(&server.address()));
    let bytes: Vec<u8> = (0..4 * TRICKLE).map(|at| (at % 251) as u8).collect();
    server.put(&format!("{prefix}/a"), &bytes);
    let bucket = swarmletfs_objects::open(Path::new(&url(&prefix)), &settings(&proxy)).unwrap();
    proxy.fail(WebFault::Trickle, 0, true);
    let file = bucket.open(&RelPath::parse("a").unwrap()).unwrap();
    for at in (0..bytes.len()).step_by(64 << 10) {
        let read = read_range(&*file, at as u64, 64 << 10);
        assert!(read.as_deref() == Ok(&bytes[at..at + (64 << 10)]), "{at}: {:?}", read.err());
    }
}
