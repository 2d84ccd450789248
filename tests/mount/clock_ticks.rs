//! Disks with a clock so coarse that two changes have one timestamp. Bytes and names from before
//! the second change must not be taken for those after it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Disk, Meta, Store, Time};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Symlinks, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::eventually;
use crate::cli::program::is_root;
use crate::needs_fuse;
use crate::queries::{names, text};
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::{Mount, TestStore, scale};

/// A store on a disk with one timestamp per clock tick, even if files were read in between.
struct Ramfs(TestStore);

impl Ramfs {
    fn new() -> Ramfs {
        let store = TestStore::new();
        rustix::mount::mount("ramfs", store.path(), "ramfs", MountFlags::empty(), None).unwrap();
        Ramfs(store)
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Caches nothing.
const ALWAYS: Freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };

/// A store with timestamps in whole seconds.
#[derive(Clone)]
struct WholeSeconds;

impl Interceptor for WholeSeconds {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        let whole = |time: Time| Time { nanos: 0, ..time };
        let meta = store.stat(path)?;
        Ok(Meta { mtime: whole(meta.mtime), ctime: whole(meta.ctime), ..meta })
    }
}

/// Returns the tree of a store with timestamps in whole seconds.
fn tree_in_seconds(store: &TestStore, fresh: Freshness) -> Tree {
    let disk = Disk::open(&store.path()).unwrap();
    let source =
        Source::from_store(Arc::new(InterceptedStore::new(WholeSeconds, Arc::new(disk))), None);
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Repeats `does` until it runs within one second of the clock.
fn within_a_second<T>(does: impl Fn() -> T) -> T {
    let second = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    eventually("a second that is long enough", || {
        let began = second();
        let done = does();
        (second() == began).then_some(done)
    })
}

/// Calls `check` for a running and for a finished worker, with the store, its mount, and the
/// worker's directory of outputs, which contains a file.
fn for_each_worker(check: impl Fn(&TestStore, &Mount, &str)) {
    let disk = Ramfs::new();
    let store = &disk.0;
    for status in ["running", "success"] {
        store.worker(status, json!({"status": status}));
        let outputs = format!("workers/{status}/outputs");
        store.write(format!("{outputs}/file"), "old bytes\n");
        check(store, &Mount::new(&store.path()), &outputs);
    }
}

#[test]
fn write_within_the_tick_of_a_read_is_read() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    for_each_worker(|store, mount, outputs| {
        let (path, at) =
            (store.at(format!("{outputs}/file")), mount.at(&format!("{outputs}/file")));
        for turn in 0..scale(60) {
            let (old, new) = (format!("old {turn:06}\n"), format!("new {turn:06}\n"));
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(old.as_bytes(), 0).unwrap();
            let _ = fs::read(&at).unwrap();
            file.write_all_at(new.as_bytes(), 0).unwrap();
            eventually("the last write", || {
                (fs::read(&at).unwrap() == new.as_bytes()).then_some(())
            });
        }
    });
}

#[test]
fn file_created_within_the_tick_of_a_listing_is_listed() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    for_each_worker(|store, mount, outputs| {
        for turn in 0..scale(60) {
            store.write(format!("{outputs}/first-{turn}"), "");
            let _ = mount.list(outputs);
            store.write(format!("{outputs}/second-{turn}"), "");
            eventually("the last file in the listing", || {
                let names = mount.list(outputs);
                (names.len() == 2 * turn + 3).then_some(())
            });
        }
    });
}

/// Promise: A file generated from a worker is never older than a change within one clock tick.
#[test]
fn generated_file_includes_changes_within_a_clock_tick() {
    let store = TestStore::new();
    let write = |status: &str, output: &str| {
        store.write("workers/w/metadata.json", format!("{{\"status\": \"{status}\"}}"));
        store.write("workers/w/tool_calls/001_sh.txt", format!("{output}\n"));
    };
    write("running", "error: old");
    let tree = tree_in_seconds(&store, ALWAYS);
    let made = || {
        let [index, summary, evidence, found] =
            ["index.json", "workers/w/summary", "workers/w/evidence.txt", "search/error"]
                .map(|file| text(&tree, file));
        let status = serde_json::from_str::<Value>(&index).unwrap()["workers"][0]["status"].clone();
        assert_eq!(names(&tree, "by/status"), [status.as_str().unwrap()]);
        let word_in =
            |text: String| ["old", "new", "odd"].into_iter().find(|word| text.contains(word));
        (
            status.as_str().unwrap().to_owned(),
            summary.contains("success"),
            word_in(evidence),
            word_in(found),
        )
    };
    within_a_second(|| {
        write("running", "error: old");
        assert_eq!(made(), ("running".into(), false, Some("old"), Some("old")));
        write("success", "error: new");
        assert_eq!(made(), ("completed".into(), true, Some("new"), Some("new")));
        // The record is unchanged.
        write("success", "error: odd");
        assert_eq!(made(), ("completed".into(), true, Some("odd"), Some("odd")));
    });
}

/// Promise: The permissions of a generated file include a change within one clock tick.
#[test]
fn generated_permissions_include_changes_within_a_clock_tick() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let secret = store.write("workers/w/tool_calls/001_sh.txt", "x\n");
    let tree = tree_in_seconds(&store, ALWAYS);
    let allow = |mode| fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
    let modes = || {
        [
            "index.json",
            "workers/w/summary",
            "workers/w/evidence.txt",
            "grep/x",
            "search/x",
            "since/0",
        ]
        .map(|file| {
            tree.with_path(file.as_bytes(), Symlinks::Follow, |place| Ok(place.leaf().attr.mode))
                .unwrap()
        })
    };
    within_a_second(|| {
        allow(0o644);
        assert_eq!(modes(), [0o444; 6]);
        allow(0o600);
        assert_eq!(modes(), [0o400; 6]);
    });
}

/// Promise: A file that lists a finished worker soon includes a change within one clock tick.
#[test]
fn listing_soon_includes_changes_within_a_clock_tick() {
    let store = TestStore::new();
    let fresh = Freshness { finished: Duration::from_secs(3_600), ..Freshness::default() };
    let write = |kind: &str| store.worker("w", json!({"status": "success", "task_type": kind}));
    let tree = within_a_second(|| {
        write("old");
        let tree = tree_in_seconds(&store, fresh);
        assert_eq!(names(&tree, "by/type"), ["old"]);
        write("new");
        tree
    });
    eventually("the type that was written last", || {
        (names(&tree, "by/type") == ["new"]).then_some(())
    });
}
