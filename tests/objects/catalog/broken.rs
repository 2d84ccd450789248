//! Catalogs that are damaged, and requests that fail: nothing wrong is shown.

use std::time::Duration;

use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_range};
use swarmletfs_objects::{CatalogError, ConditionSupport, ObjectSettings, find_conditions};

use super::super::proxy::{Proxy, WebFault};
use super::super::server::{new_prefix, server};
use super::{MANIFEST, SIZE_MAX, TestBucket, files};
use crate::support::{rng, sample};

/// Deadline of a request: a slow answer misses it.
const DEADLINE: Duration = Duration::from_secs(1);

/// Promise: A catalog that is damaged, or of another version, is not used: all objects are listed
/// instead.
#[test]
fn a_damaged_catalog_is_not_used() {
    let Some(server) = server() else { return };
    let bucket = TestBucket::new(server);
    (0..5).for_each(|at| bucket.put_worker(&format!("w{at}"), "completed"));
    bucket.compact_all();
    let manifest = bucket.writer.get(MANIFEST, 1 << 20).unwrap().unwrap().0;
    let [key] = <[String; 1]>::try_from(bucket.keys("catalog/v1/workers/")).unwrap();
    let file = bucket.writer.get(&key, 1 << 20).unwrap().unwrap().0;
    let text = String::from_utf8(manifest.to_vec()).unwrap();
    let with = |key: &str, bytes: &[u8], why: &str| {
        server.put(&format!("{}/{key}", bucket.prefix), bytes);
        assert_eq!(bucket.open(true).catalog(), None, "{why}");
        bucket.assert_right(why);
    };
    let mut flipped = file.to_vec();
    let at = rng().usize(0..flipped.len());
    flipped[at] ^= 1 << rng().u8(0..8);
    with(&key, &flipped, &format!("bit {at} is flipped"));
    with(&key, &file[..file.len() / 2], "half a file");
    with(&key, b"", "an empty file");
    server.delete(&format!("{}/{key}", bucket.prefix));
    assert_eq!(bucket.open(true).catalog(), None);
    bucket.assert_right("no file");
    server.put(&format!("{}/{key}", bucket.prefix), &file);
    // The same bytes have the same ETag.
    assert!(bucket.open(true).catalog().is_some());
    for (bytes, why) in [
        (text.replace("\"version\": 1", "\"version\": 2"), "version 2"),
        (text.replace("\"rows\": 5", "\"rows\": 6"), "other rows"),
        (text.replace(&key, "workers/w1/metadata.json"), "a file elsewhere"),
        (text[..text.len() / 2].to_owned(), "half a manifest"),
        (String::new(), "no manifest"),
    ] {
        with(MANIFEST, bytes.as_bytes(), why);
    }
    // A compaction makes it again.
    let report = bucket.compact_all();
    assert_eq!((report.workers, report.rows), (5, 5));
    assert!(bucket.open(true).catalog().is_some());
    bucket.assert_right("made again");
    with(MANIFEST, text.replace("\"version\": 1", "\"version\": 2").as_bytes(), "newer");
    let refused = bucket.compact(swarmletfs_objects::WholeSearch::Always);
    assert!(matches!(refused, Err(CatalogError::Version(2))), "{refused:?}");
}

/// Returns the files that can be read, or the first error. Nothing waits for a new listing.
fn see(bucket: &TestBucket) -> std::result::Result<Vec<(String, Vec<u8>)>, String> {
    fn add(store: &dyn Store, path: &RelPath, all: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        for entry in store.list(path)? {
            let path = path.join(&entry.name);
            match entry.kind {
                Kind::Folder => add(store, &path, all)?,
                _ => all.push((path.display(), read_range(&*store.open(&path)?, 0, SIZE_MAX)?)),
            }
        }
        Ok(())
    }
    let url = super::url(&bucket.prefix);
    let opened = swarmletfs_objects::open(std::path::Path::new(&url), &bucket.settings);
    let opened = opened.map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    add(&opened, &RelPath::root(), &mut all).map_err(|error| error.to_string())?;
    all.sort();
    Ok(all)
}

/// Promise: A request for the catalog that fails gives an error, or the tree without the catalog.
#[test]
fn a_fault_of_any_request_of_a_cataloged_store_shows_nothing_wrong() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let prefix = new_prefix();
    let direct = TestBucket::at(&server.address(), prefix.clone());
    direct.put_worker("a", "completed");
    direct.put_worker("b", "running");
    direct.put("supervisor/strategy.md", "text");
    direct.compact_all();
    direct.announce(swarmletfs_objects::WorkerNews::Opened, "c");
    direct.put_worker("c", "running");
    let mut bucket = TestBucket::at(&proxy.address(), prefix);
    bucket.settings =
        ObjectSettings { deadline: DEADLINE, refresh: Duration::from_secs(60), ..bucket.settings };
    let expected: Vec<_> = files(&direct.open(false)).into_iter().collect();
    proxy.fail(WebFault::Reset, u64::MAX, false);
    assert_eq!(see(&bucket).unwrap(), expected);
    let requests = proxy.heal();
    let cases = (0..requests).flat_map(|k| WebFault::ALL.map(|fault| (fault, k)));
    for (fault, k) in sample(cases) {
        for stays in [false, true] {
            proxy.fail(fault, k, stays);
            match see(&bucket) {
                Ok(seen) => assert_eq!(seen, expected, "{fault:?} at {k}"),
                Err(_) => {
                    let is_repeated = matches!(fault, WebFault::Status(_) | WebFault::Reset);
                    assert!(stays || !is_repeated, "{fault:?} at {k} is not repeated");
                }
            }
        }
        proxy.heal();
        assert_eq!(see(&bucket).unwrap(), expected, "after {fault:?} at {k}");
    }
}

/// Promise: An object store that ignores the conditions of writes gets no catalog.
#[test]
fn a_store_without_conditional_writes_gets_no_catalog() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let bucket = TestBucket::at(&proxy.address(), new_prefix());
    bucket.put_worker("a", "completed");
    assert_eq!(find_conditions(&bucket.writer).unwrap(), ConditionSupport::Honored);
    proxy.fail(WebFault::Unconditional, 0, true);
    assert_eq!(find_conditions(&bucket.writer).unwrap(), ConditionSupport::Ignored);
    let refused = bucket.compact(swarmletfs_objects::WholeSearch::Always);
    assert!(matches!(refused, Err(CatalogError::Unconditional)), "{refused:?}");
    proxy.heal();
    assert_eq!(bucket.keys("catalog/"), [""; 0]);
    bucket.assert_right("listed");
}
