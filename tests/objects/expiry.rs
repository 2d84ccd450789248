//! A store that was read and can be no longer: the tree stays, and says how old it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Store, read_range};
use swarmletfs_objects::ObjectSettings;

use super::proxy::{Proxy, WebFault};
use super::server::{Server, new_prefix, server, settings_for, url};
use super::tree;
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, TestStore, patience, see};

const WAIT: Duration = Duration::from_secs(20);

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn settings(proxy: &Proxy) -> ObjectSettings {
    ObjectSettings {
        deadline: Duration::from_secs(4),
        refresh: Duration::from_millis(100),
        ..settings_for(&proxy.address())
    }
}

/// Awaits a value.
fn eventually<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < patience(WAIT), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fill(server: &Server) -> String {
    let prefix = new_prefix();
    for name in ["a/b", "a/c", "d"] {
        server.put(&format!("{prefix}/{name}"), name);
    }
    prefix
}

/// Promise: While an object store refuses or fails requests, a mount shows the last listing and
/// what it has read, and the summary says why and from when.
#[test]
fn the_tree_says_that_a_listing_is_old_and_why() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    let bucket = server.open(&prefix, &settings(&proxy)).unwrap();
    let read = |name: &str| read_range(&*bucket.open(&path(name))?, 0, 99);
    assert_eq!(read("a/b"), Ok(b"a/b".to_vec()));
    for (fault, reason, cure, errno) in [
        (WebFault::Code(400, "ExpiredToken"), "have expired", "renew", Errno::ACCESS),
        (WebFault::Code(403, "RequestTimeTooSkewed"), "the clock", "set the clock", Errno::ACCESS),
        (WebFault::Code(404, "NoSuchBucket"), "no such bucket", "check its name", Errno::IO),
        (WebFault::Code(403, "AccessDenied"), "access is denied", "check the", Errno::ACCESS),
        (WebFault::Status(429), "limits the rate", "try again later", Errno::BUSY),
        (WebFault::Throttled, "limits the rate", "try again later", Errno::BUSY),
    ] {
        assert_eq!(bucket.outage(), None);
        proxy.fail(fault, 0, true);
        let outage = eventually("the outage", || {
            // A listing is read again only for a reader.
            assert_eq!(bucket.list(&path("a")).unwrap().len(), 2);
            bucket.outage()
        });
        for part in [&url(&prefix), reason, "; its listing of 20", " is shown; ", cure] {
            assert!(outage.contains(part), "{fault:?}: {outage}");
        }
        assert_eq!(read("a/b"), Ok(b"a/b".to_vec()), "{fault:?}");
        assert_eq!(read("d"), Err(Error::Io(errno)), "{fault:?}");
        proxy.heal();
        eventually("the end of the outage", || {
            bucket.list(&path("a")).unwrap();
            bucket.outage().is_none().then_some(())
        });
    }
    assert_eq!(read("d"), Ok(b"d".to_vec()));
}

#[test]
fn a_store_that_throttles_for_a_moment_is_read() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    for fault in [WebFault::Throttled, WebFault::Status(429)] {
        proxy.fail(fault, 0, false);
        let begun = Instant::now();
        let bucket = server.open(&prefix, &settings(&proxy)).unwrap();
        // Of the catalog, of the objects, and the one that was repeated.
        assert_eq!(bucket.requests().lists, 3);
        if fault == WebFault::Throttled {
            assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_mount_shows_in_its_summary_that_credentials_have_expired() {
    needs_fuse!();
    let Some(server) = server() else { return };
    let (store, prefix) = (TestStore::new(), new_prefix());
    store.worker("w1", json!({"status": "completed", "task": "Count"}));
    server.copy(&store.path(), &prefix);
    let proxy = Proxy::start(&server.address());
    let url = url(&prefix);
    let mut mount = Mount::of(|point| {
        let mut command = std::process::Command::new(PROGRAM);
        server.configure(&mut command);
        command.env("AWS_ENDPOINT_URL", format!("http://{}", proxy.address()));
        command.args(["mount", "--foreground", "--quiet", "--no-cache"]);
        command.args(["--store", &url]).arg(point);
        command
    });
    let before = mount.text("summary");
    assert!(before.contains("w1") && !before.contains("warning"), "{before}");
    mount.expect_warning("cannot list s3://");
    proxy.fail(WebFault::Code(400, "ExpiredToken"), 0, true);
    let old = eventually("a summary that warns", || {
        let summary = mount.text("summary");
        summary.contains("warning: cannot list s3://").then_some(summary)
    });
    for part in ["w1", "the credentials have expired", "its listing of 20", "renew"] {
        assert!(old.contains(part), "{old}");
    }
    proxy.heal();
    eventually("a summary without a warning", || {
        (!mount.text("summary").contains("warning")).then_some(())
    });
}

/// Returns a listing without the objects whose keys contain `name`.
fn without(listing: &str, name: &str) -> String {
    let mut parts = listing.split("<Contents>");
    let mut kept = parts.next().unwrap().to_owned();
    for part in parts {
        let (object, rest) = part.split_once("</Contents>").unwrap();
        if !object.contains(name) {
            kept.extend(["<Contents>", object, "</Contents>"]);
        }
        kept.push_str(rest);
    }
    kept
}

/// Promise: A listing of an object store that misses a new object or still has a removed one shows
/// nothing wrong: the object appears later, or opening it is an error.
#[test]
fn a_late_listing_shows_nothing_wrong() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    let bucket = server.open(&prefix, &settings(&proxy)).unwrap();
    // It misses an object that was written.
    proxy.edit_listings(|listing| without(&listing, "a/c<"));
    eventually("a listing without a/c", || bucket.stat(&path("a/c")).is_err().then_some(()));
    assert_eq!(bucket.open(&path("a/c")).err(), Some(Error::NotFound));
    assert_eq!(read_range(&*bucket.open(&path("a/b")).unwrap(), 0, 9).unwrap(), b"a/b");
    proxy.heal();
    eventually("a listing with a/c", || bucket.open(&path("a/c")).ok().map(|_| ()));
    // It still has an object that was removed: as it was, at every refresh.
    let last = Arc::new(Mutex::new(None));
    let first = last.clone();
    proxy.edit_listings(move |listing| first.lock().get_or_insert(listing).clone());
    eventually("a listing", || {
        bucket.list(&path("")).unwrap();
        last.lock().as_ref().map(|_| ())
    });
    server.delete(&format!("{prefix}/d"));
    assert!(bucket.stat(&path("d")).is_ok());
    assert_eq!(bucket.open(&path("d")).err(), Some(Error::Stale));
    assert_eq!(bucket.outage(), None);
    proxy.heal();
    eventually("a listing without d", || {
        (bucket.open(&path("d")).err() == Some(Error::NotFound)).then_some(())
    });
}

#[test]
fn a_worker_in_a_late_listing_is_shown_without_wrong_contents() {
    let Some(server) = server() else { return };
    let (store, prefix) = (TestStore::new(), new_prefix());
    store.worker("w1", json!({"status": "completed", "task": "Count"}));
    store.worker("w2", json!({"status": "completed", "task": "Sum"}));
    server.copy(&store.path(), &prefix);
    let proxy = Proxy::start(&server.address());
    proxy.edit_listings(|listing| without(&listing, "w2/metadata.json"));
    let tree = tree(server.open(&prefix, &settings(&proxy)).unwrap());
    let summary = || see(&tree, "summary").unwrap().text().to_owned();
    assert!(summary().contains("Count"), "{}", summary());
    assert!(!summary().contains("Sum"), "{}", summary());
    proxy.heal();
    eventually("the second worker", || summary().contains("Sum").then_some(()));
}

/// Cuts a listing to its first object, and says that more follow.
fn one_object(listing: &str, token: impl Fn(&str) -> String) -> String {
    let Some((head, rest)) = listing.split_once("<Contents>") else { return listing.to_owned() };
    let (object, rest) = rest.split_once("</Contents>").unwrap();
    if !rest.contains("<Contents>") {
        return listing.to_owned();
    }
    let (_, key) = object.split_once("<Key>").unwrap();
    let (key, _) = key.split_once("</Key>").unwrap();
    let head = head.replace("<IsTruncated>false</IsTruncated>", "");
    format!(
        "{head}<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>\
         <Contents>{object}</Contents></ListBucketResult>",
        token(key)
    )
}

/// Promise: A listing in short pages is read to its end, and one whose pages repeat is an error.
#[test]
fn short_pages_are_read_and_repeated_pages_end() {
    let Some(server) = server() else { return };
    let (prefix, proxy) = (fill(server), Proxy::start(&server.address()));
    proxy.edit_listings(|listing| one_object(&listing, str::to_owned));
    let bucket = server.open(&prefix, &settings(&proxy)).unwrap();
    assert_eq!(bucket.list(&path("")).unwrap().len(), 2);
    assert_eq!(bucket.list(&path("a")).unwrap().len(), 2);
    // Of the catalog, and three pages of objects.
    assert_eq!(bucket.requests().lists, 4);
    let begun = Instant::now();
    for tokens in [&["x"][..], &["x", "y"]] {
        // The server knows no such tokens, and its answer to the first page is repeated.
        let (next, first) = (AtomicUsize::new(0), Mutex::new(None));
        proxy.edit_listings(move |listing| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let first = first.lock().get_or_insert(listing).clone();
            one_object(&first, |_| tokens[at % tokens.len()].to_owned())
        });
        let error = server.open(&prefix, &settings(&proxy)).err().unwrap().to_string();
        assert!(error.contains("its listing begins again"), "{error}");
    }
    assert!(begun.elapsed() < patience(WAIT));
}

/// Promise: An object that has another size than its listing says is an error, not a part of it.
#[test]
fn an_object_of_another_size_than_listed_is_an_error() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    server.put(&format!("{prefix}/a"), vec![b'1'; 1_000]);
    let proxy = Proxy::start(&server.address());
    for size in ["999", "1001", "5000000", "18446744073709551615"] {
        let listed = format!("<Size>{size}</Size>");
        proxy.edit_listings(move |listing| listing.replace("<Size>1000</Size>", &listed));
        let bucket = server.open(&prefix, &settings(&proxy)).unwrap();
        assert!(bucket.open(&path("a")).is_err(), "{size}");
        assert_eq!(bucket.stat(&path("a")).unwrap().size.to_string(), size);
    }
    proxy.edit_listings(|listing| listing.replace("<Size>1000</Size>", "<Size>-1</Size>"));
    let error = server.open(&prefix, &settings(&proxy)).err().unwrap().to_string();
    assert!(error.contains("; "), "{error}");
    proxy.heal();
}
