//! The disk for the program's own files is full (R21): caches, index and log. Reads return the same
//! bytes, and the failure is reported once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;

use super::eventually;
use crate::cli::program::{is_root, run, swarmletfs};
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Warning when a cache cannot be written.
const NOT_KEPT: &str = "cannot write to the cache";

/// A disk of one mebibyte.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new(options: &std::ffi::CStr) -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        let full = SmallDisk { dir };
        full.fill();
        full
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Uses up all space; the cache directory exists already.
    fn fill(&self) {
        fs::create_dir_all(self.at("caches")).unwrap();
        let mut filler = File::options().create(true).append(true).open(self.at("filler")).unwrap();
        let error = (0..).find_map(|_| filler.write_all(&[1; 4_096]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // If the number of files is limited too, use up all of them.
        let _ = (0..100)
            .try_for_each(|number| File::create(self.at(&format!("file-{number}"))).map(drop));
    }

    fn make_room(&self) {
        // A process that another test is about to start may still hold the file.
        fs::write(self.at("filler"), "").unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

/// Returns a store with enough data to make caching worthwhile.
fn store() -> TestStore {
    let store = TestStore::new();
    for number in 0..80 {
        let id = format!("w{number:02}");
        store.worker(&id, json!({"run_id": "r", "status": "failed"}));
        store.call(
            &id,
            1,
            "sh",
            format!("Error: reason {number}\n{}", "and nothing more\n".repeat(500)),
        );
    }
    store
}

const PATHS: [&str; 9] = [
    "README.md",
    "index.json",
    "summary",
    "evidence.txt",
    "workers/w17/evidence.txt",
    "workers/w17/tool_calls/001_sh.txt",
    "runs/r/index.json",
    "grep/reason 7",
    "search/reason 42",
];

fn read_all(mount: &Mount) -> BTreeMap<&'static str, Vec<u8>> {
    PATHS.iter().map(|path| (*path, mount.read(path))).collect()
}

/// Returns the results of a mount without caches.
fn expected_files(store: &TestStore) -> BTreeMap<&'static str, Vec<u8>> {
    read_all(&Mount::with(&store.path(), &["--no-cache", "--no-index"]))
}

fn mount(store: &TestStore, caches: &Path, arguments: &[&str]) -> Mount {
    Mount::by(&["env", &format!("XDG_CACHE_HOME={}", caches.display())], &store.path(), arguments)
}

fn check(mount: &Mount, right: &BTreeMap<&str, Vec<u8>>) {
    for _ in 0..3 {
        let found = read_all(mount);
        for (path, bytes) in right {
            assert!(
                found[path] == *bytes,
                "{path} is another: {}",
                String::from_utf8_lossy(&found[path])
            );
        }
    }
}

#[test]
fn full_disk_for_caches_allows_reads_and_warns_once() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let caches = disk.at("caches");
    let mut mount = mount(&store, &caches, &[]);
    mount.expect_warning(NOT_KEPT);
    check(&mount, &right);
    eventually("the warning in the log", || mount.log().contains(NOT_KEPT).then_some(()));
    check(&mount, &right);
    // One warning for the caches and one for the index: each has a directory on that disk.
    let count = mount.log().matches(NOT_KEPT).count();
    assert!(count <= 2, "the warning was logged {count} times");
    drop(mount);
    // A partly written cache does no harm to a later mount with free space.
    disk.make_room();
    let next = self::mount(&store, &caches, &[]);
    check(&next, &right);
    eventually("a cache file", || {
        let mut files = fs::read_dir(caches.join("swarmletfs")).unwrap();
        files.any(|file| file.unwrap().path().is_file()).then_some(())
    });
}

#[test]
fn full_disk_for_the_index_allows_searches_and_warns_once() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let caches = tempfile::tempdir().unwrap();
    let mut mount = mount(&store, caches.path(), &["--index", disk.at("index").to_str().unwrap()]);
    mount.expect_warning(NOT_KEPT);
    check(&mount, &right);
    eventually("the warning in the log", || mount.log().contains(NOT_KEPT).then_some(()));
    check(&mount, &right);
    assert_eq!(mount.log().matches(NOT_KEPT).count(), 1);
}

#[test]
fn full_disk_for_the_log_allows_reads() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let log = disk.at("log");
    let mount = mount(&store, &disk.at("caches"), &["--log", log.to_str().unwrap()]);
    check(&mount, &right);
    assert_eq!(fs::metadata(&log).unwrap().len(), 0, "the log was written to a full disk");
}

#[test]
fn full_inode_table_allows_reads_and_refuses_named_files() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,nr_inodes=20,mode=755"));
    let right = expected_files(&store);
    let mut mount = mount(&store, &disk.at("caches"), &[]);
    let warning = "cannot cache parsed data in";
    mount.expect_warning(warning);
    check(&mount, &right);
    assert_eq!(mount.log().matches(warning).count(), 1, "{}", mount.log());
    let point = tempfile::tempdir().unwrap();
    for (option, name) in [("--index", "index"), ("--log", "log")] {
        let mut command = swarmletfs(["mount", "--foreground", "--store"]);
        command.arg(store.path()).arg(option).arg(disk.at(name)).arg(point.path());
        let done = run(command);
        assert!(done.code.is_some_and(|code| code > 0), "{option}: {done:?}");
        assert!(
            done.err.starts_with("swarmletfs: ") && done.err.contains("No space left"),
            "{option}: {done:?}"
        );
    }
}
