//! An open file is one version of its object, and later opens find the new one.

use std::time::{Duration, Instant};

use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Store, read_range};
use swarmletfs_objects::ObjectSettings;

use super::server::{new_prefix, server};
use crate::support::patience;

/// Size of the objects, in bytes: several blocks.
const SIZE: usize = 1 << 20;

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Promise: An open file of an object store is one version of its object: after the object was
/// replaced, a read gives bytes of that version or an error.
#[test]
fn a_read_of_a_replaced_object_is_old_or_an_error() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let key = format!("{prefix}/a");
    server.put(&key, vec![b'1'; SIZE]);
    let settings = ObjectSettings { refresh: Duration::from_secs(1), ..server.settings() };
    let bucket = server.open(&prefix, &settings).unwrap();
    let (before, file) = (bucket.stat(&path("a")).unwrap(), bucket.open(&path("a")).unwrap());
    server.put(&key, vec![b'2'; SIZE]);
    // The first block was read before.
    assert_eq!(read_range(&*file, 0, 1_000).unwrap(), vec![b'1'; 1_000]);
    assert_eq!(read_range(&*file, 0, SIZE), Err(Error::Stale));
    assert_eq!(file.meta().unwrap(), before);
    // An open notices that the listing is outdated.
    let begun = Instant::now();
    let file = loop {
        match bucket.open(&path("a")) {
            Ok(file) if file.meta().unwrap() != before => break file,
            _ => assert!(begun.elapsed() < patience(Duration::from_secs(10))),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(read_range(&*file, 0, SIZE).unwrap(), vec![b'2'; SIZE]);
    let now = bucket.stat(&path("a")).unwrap();
    assert_eq!(now, file.meta().unwrap());
    assert_ne!(now.identity, before.identity);
}

#[test]
fn a_removed_object_is_gone_after_a_refresh() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    for name in ["a", "b/c"] {
        server.put(&format!("{prefix}/{name}"), name);
    }
    let settings = ObjectSettings { refresh: Duration::from_millis(100), ..server.settings() };
    let bucket = server.open(&prefix, &settings).unwrap();
    let (root, inner) = (bucket.stat(&path("")).unwrap(), bucket.enter(&path("b")).unwrap());
    server.delete(&format!("{prefix}/b/c"));
    let begun = Instant::now();
    while bucket.stat(&path("b")).is_ok() {
        assert!(begun.elapsed() < patience(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(bucket.list(&path("")).unwrap().len(), 1);
    assert_eq!(inner.stat(&path("")), Err(Error::NotFound));
    assert_eq!(inner.open(&path("c")).err(), Some(Error::NotFound));
    let after = bucket.stat(&path("")).unwrap();
    assert_eq!(after.identity, root.identity);
    assert_ne!(after.ctime, root.ctime);
}

/// Promise: Blocks of objects that were read are cached, so an object that did not change is read
/// once.
#[test]
fn an_object_is_read_once() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let bytes: Vec<u8> = (0..5 * SIZE).map(|at| (at % 251) as u8).collect();
    server.put(&format!("{prefix}/a"), &bytes);
    let cache = tempfile::tempdir().unwrap();
    let open = || {
        let disk = swarmletfs_base::cache::DiskCache::open(&cache.path().join("c"), 1 << 30);
        let cache = Some(std::sync::Arc::new(disk.unwrap()));
        server.open(&prefix, &ObjectSettings { cache, ..server.settings() }).unwrap()
    };
    let bucket = open();
    let read = |bucket: &swarmletfs_objects::Bucket| {
        read_range(&*bucket.open(&path("a")).unwrap(), 0, 6 * SIZE).unwrap()
    };
    for _ in 0..2 {
        assert!(read(&bucket) == bytes);
    }
    let requests = bucket.requests();
    // Read-ahead grows: 1, 2, 4 and 8 blocks of 256 KiB, and the rest.
    assert!(requests.reads <= 6, "{requests:?}");
    assert!(requests.bytes < bytes.len() as u64 + 10_000, "{requests:?}");
    drop(bucket);
    let again = open();
    assert!(read(&again) == bytes);
    assert_eq!(again.requests().reads, 0);
}

#[test]
fn a_reader_that_steps_backwards_needs_few_requests() {
    const MEGABYTES: usize = 40;
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let bytes: Vec<u8> = (0..MEGABYTES << 20).map(|at| (at / 1_000 % 251) as u8).collect();
    server.put(&format!("{prefix}/a"), bytes.clone());
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let file = bucket.open(&path("a")).unwrap();
    for at in (0..MEGABYTES).rev() {
        let read = read_range(&*file, (at << 20) as u64, 1 << 20).unwrap();
        assert!(read == bytes[at << 20..(at + 1) << 20], "{at}");
    }
    let reads = bucket.requests().reads;
    assert!(reads <= MEGABYTES as u64 / 3, "{reads}");
}
