//! Open files keep their version: a generated file until it is closed, a worker's file as on disk.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_tree::tree::{ROOT, Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::{Snapshot, eventually, swarm};
use crate::needs_fuse;
use crate::support::tool::is_here;
use crate::support::{Mount, TestStore};

const GENERATED: [&str; 7] = [
    "index.json",
    "summary",
    "evidence.txt",
    "workers/gamma/index.json",
    "workers/gamma/summary",
    "workers/gamma/evidence.txt",
    "workers/gamma/evidence.900.txt",
];

/// Promise: The reported size of every file is the number of bytes that can be read.
#[test]
fn reported_sizes_equal_bytes_read() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let out = mount.shell(r#"find "$M" -type f -print"#);
    let listed = String::from_utf8(out.stdout).unwrap();
    assert!(listed.lines().count() > 20);
    for path in listed.lines() {
        let stat_size = fs::metadata(path).unwrap().len();
        let Snapshot { size, bytes, .. } = Snapshot::open(path.as_ref()).unwrap();
        assert_eq!((stat_size, size), (bytes.len() as u64, bytes.len() as u64), "{path}");
    }
}

/// Promise: An open handle keeps its version, and a new open sees the new one.
#[test]
fn open_handle_keeps_its_version() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let mut held = Vec::new();
    for path in GENERATED {
        let whole = mount.read(path);
        let mut file = File::open(mount.at(path)).unwrap();
        let number = file.metadata().unwrap().ino();
        let mut half = vec![0; whole.len() / 2];
        file.read_exact(&mut half).unwrap();
        held.push((path, file, half, number, whole));
    }
    store
        .worker("gamma", json!({"run_id": "r2", "status": "running", "task": "another task, much longer than before"}));
    store.call("gamma", 2, "sql", "Error: gone\n".repeat(700));
    for (path, mut file, mut read, number, whole) in held {
        let new = eventually(path, || Some(mount.read(path)).filter(|new| *new != whole));
        assert_eq!(
            file.metadata().unwrap().len(),
            whole.len() as u64,
            "{path}: the size of the held version"
        );
        assert_eq!(file.metadata().unwrap().ino(), number, "{path}");
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, whole, "{path}: the held version");
        // Read again from the start, after the kernel may have dropped its caches.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut again = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut again).unwrap();
        assert_eq!(again, whole, "{path}: the held version, read again");
        let reopened = File::open(mount.at(path)).unwrap();
        assert_ne!(
            reopened.metadata().unwrap().ino(),
            number,
            "{path}: new content is a new inode"
        );
        assert_eq!(reopened.metadata().unwrap().len(), new.len() as u64, "{path}");
    }
}

/// Promise: Content that did not change keeps its inode number.
#[test]
fn unchanged_content_keeps_its_inode_number() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let number = |path: &str| fs::metadata(mount.at(path)).unwrap().ino();
    let alpha =
        ["summary", "index.json", "evidence.txt"].map(|name| format!("workers/alpha/{name}"));
    let before: Vec<u64> = alpha.iter().map(|path| number(path)).collect();
    let (swarm_before, evidence) = (number("index.json"), number("workers/gamma/evidence.txt"));
    store.call("gamma", 2, "sql", "4\n");
    eventually("gamma's second call", || {
        (number("workers/gamma/evidence.txt") != evidence).then_some(())
    });
    eventually("gamma's second call in the swarm's index", || {
        (number("index.json") != swarm_before).then_some(())
    });
    assert_eq!(
        alpha.iter().map(|path| number(path)).collect::<Vec<_>>(),
        before,
        "another worker's files"
    );
}

#[test]
fn restored_content_has_its_old_inode_number() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"})).call("w", 1, "t", "one\n");
    let mount = Mount::new(&store.path());
    let path = mount.at("workers/w/evidence.txt");
    let first = fs::metadata(&path).unwrap().ino();
    store.call("w", 1, "t", "two, and longer\n");
    eventually("the change", || (fs::metadata(&path).unwrap().ino() != first).then_some(()));
    store.call("w", 1, "t", "one\n");
    eventually("the change back", || (fs::metadata(&path).unwrap().ino() == first).then_some(()));
    assert!(mount.text("workers/w/evidence.txt").contains("one\n"));
}

/// Returns a store with one worker whose evidence can be requested in many large sizes.
fn large_store(lines: usize) -> TestStore {
    let store = TestStore::new();
    let output: String = (0..lines).map(|n| format!("{n:09} nothing here\n")).collect();
    store.worker("w", json!({"status": "running"})).call("w", 1, "dump", output);
    store
}

/// Names of files that together exceed the 64 MiB of cached rendered bytes.
fn query_names() -> impl Iterator<Item = String> {
    (0..36).map(|n| format!("evidence.{}.txt", 2_000_000 + n))
}

#[test]
fn an_evicted_version_is_read_again_through_its_path() {
    needs_fuse!();
    let store = large_store(120_000);
    let mount = Mount::new(&store.path());
    let first = mount.read("workers/w/evidence.5000.txt");
    let number = fs::metadata(mount.at("workers/w/evidence.5000.txt")).unwrap().ino();
    let held = File::open(mount.at("workers/w/evidence.5000.txt")).unwrap();
    let mut total = 0;
    for ask in query_names() {
        let bytes = mount.read(&format!("workers/w/{ask}"));
        assert!(bytes.len() <= 2_000_036 && bytes.ends_with(b"\n"), "{ask}");
        total += bytes.len();
    }
    assert!(total > 64 << 20, "only {total} bytes were read, too few to evict anything");
    assert_eq!(mount.read("workers/w/evidence.5000.txt"), first);
    assert_eq!(fs::metadata(mount.at("workers/w/evidence.5000.txt")).unwrap().ino(), number);
    rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut again = vec![0; first.len()];
    held.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(again, first, "the version of an open handle was evicted");
    for ask in query_names().take(3) {
        assert!(mount.read(&format!("workers/w/{ask}")).len() > 1_900_000);
    }
}

fn find(tree: &Tree, path: [&str; 3]) -> swarmletfs_tree::tree::Lookup {
    path[1..].iter().fold(tree.lookup(ROOT, path[0].as_bytes()).unwrap(), |at, name| {
        tree.lookup(at.ino, name.as_bytes()).unwrap()
    })
}

/// Reads other versions, twice each so that the cache keeps them, until the bytes of `ino` are
/// evicted or its source has changed.
fn read_until_stale(tree: &Tree, ino: u64) -> Error {
    for n in 0..600 {
        let ask = format!("evidence.{}.txt", 200_000 + n);
        let found = find(tree, ["workers", "w", &ask]);
        assert!(found.attr.size > 190_000);
        for _ in 0..2 {
            let opened = tree.open(found.ino).unwrap();
            tree.release(opened.fh);
        }
        // More frequent opens would keep it in the cache.
        if n % 100 == 99 {
            match tree.open(ino) {
                Ok(opened) => tree.release(opened.fh),
                Err(error) => return error,
            }
        }
    }
    panic!("120 MB were read, and the version is still kept");
}

#[test]
fn an_evicted_version_whose_source_changed_is_stale() {
    let store = large_store(16_000);
    // A sixteenth of the 64 MiB.
    let settings = Settings { trees: 16, ..Settings::default() };
    let tree = Tree::new(store.view(Duration::ZERO, Filter::default()), settings);
    let read = |fh| tree.read(fh, 0, 1 << 20, <[u8]>::to_vec).unwrap();
    let found = find(&tree, ["workers", "w", "evidence.5000.txt"]);
    let opened = tree.open(found.ino).unwrap();
    let first = read(opened.fh);
    assert_eq!(found.attr.size, first.len() as u64);
    store.call("w", 2, "late", "Error: a new call\n");
    assert_eq!(read_until_stale(&tree, found.ino), Error::Stale);
    assert_eq!(read(opened.fh), first, "the version of an open handle changed");
    assert_eq!(
        tree.attr(found.ino).unwrap().0.size,
        first.len() as u64,
        "the reported size changed"
    );
    let new = find(&tree, ["workers", "w", "evidence.5000.txt"]);
    assert_ne!(new.ino, found.ino);
    let opened = tree.open(new.ino).unwrap();
    assert_eq!(read(opened.fh).len() as u64, new.attr.size);
}

#[test]
fn file_replaced_between_lookup_and_open_can_be_opened() {
    let store = swarm();
    let path = "workers/gamma/result.txt";
    let replace = |text: &str| fs::rename(store.write("fresh", text), store.at(path)).unwrap();
    replace("the first");
    let tree = store.tree();
    let look = || find(&tree, ["workers", "gamma", "result.txt"]);
    let first = look();
    replace("the second");
    assert_eq!(tree.open(first.ino).err(), Some(Error::Stale), "a stale inode was opened");
    for (now, later) in
        [("the second", "3"), ("3", "the fourth one"), ("the fourth one", "the last")]
    {
        let found = look();
        replace(later);
        for _ in 0..3 {
            assert_eq!(tree.attr(found.ino).unwrap().0.size, now.len() as u64);
            let opened = tree.open(found.ino).unwrap();
            assert_eq!(tree.read(opened.fh, 0, 100, <[u8]>::to_vec).unwrap(), now.as_bytes());
            assert_eq!(found.attr.size, now.len() as u64);
            tree.release(opened.fh);
        }
        tree.forget(found.ino, 1);
        assert_eq!(
            tree.open(found.ino).err(),
            Some(Error::Stale),
            "a forgotten inode is still held"
        );
    }
    let opened = tree.open(look().ino).unwrap();
    assert_eq!(tree.read(opened.fh, 0, 100, <[u8]>::to_vec).unwrap(), b"the last");
    // Other readers look up many versions before the first reader opens.
    let (found, mut others) = (look(), Vec::new());
    for version in 0..100 {
        replace(&format!("version {version}"));
        others.push(look().ino);
    }
    let opened = tree.open(found.ino).unwrap();
    assert_eq!(tree.read(opened.fh, 0, 100, <[u8]>::to_vec).unwrap(), b"the last");
    others.into_iter().for_each(|other| tree.forget(other, 1));
}

/// With expired attributes, the kernel checks the permissions before it opens a file.
#[test]
fn file_replaced_before_getattr_can_be_opened() {
    let store = swarm();
    let path = "workers/gamma/result.txt";
    let replace = |text: &str| fs::rename(store.write("fresh", text), store.at(path)).unwrap();
    replace("the first");
    let tree = store.tree();
    let look = || find(&tree, ["workers", "gamma", "result.txt"]);
    let first = look();
    replace("the second");
    assert_eq!(tree.attr(first.ino).err(), Some(Error::Stale), "a stale inode has attributes");
    let found = look();
    replace("the third");
    let opened = tree.open(found.ino).unwrap();
    assert_eq!(tree.read(opened.fh, 0, 100, <[u8]>::to_vec).unwrap(), b"the second");
}

/// Promise: A mapping of a generated file keeps its version.
#[test]
fn mapping_of_a_generated_file_keeps_its_version() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let script = r#"
import mmap, os, sys, time
path, call = sys.argv[1:]
def mapped():
    f = open(path, "rb")
    return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
first = open(path, "rb").read()
held = mapped()
open(call, "w").write("Error: a later call\n" * 900)
end = time.monotonic() + 30
while open(path, "rb").read() == first:
    assert time.monotonic() < end, "the change is not seen"
    time.sleep(0.01)
assert held[:] == first, "a mapping changed"
new = open(path, "rb").read()
assert mapped()[:] == new and new != first
"#;
    if !is_here("python3") {
        return;
    }
    let out = std::process::Command::new("python3")
        .args(["-c", script])
        .args([
            mount.at("workers/gamma/evidence.txt"),
            store.at("workers/gamma/tool_calls/009_late.txt"),
        ])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Waits until the kernel's cached attributes have expired.
fn wait_for_cached_attributes_to_expire() {
    let begun = std::time::Instant::now();
    eventually("a second and a half", || {
        (begun.elapsed() > Duration::from_millis(1_500)).then_some(())
    });
}

/// Promise: A worker's own file that was replaced is still readable through its open handle.
#[test]
fn replaced_own_file_is_readable_through_its_handle() {
    needs_fuse!();
    let store = swarm();
    let old = "old ".repeat(50_000);
    store.write("workers/gamma/logs/run.log", &old);
    let mount = Mount::new(&store.path());
    let held = File::open(mount.at("workers/gamma/logs/run.log")).unwrap();
    let number = held.metadata().unwrap().ino();
    let fresh = store.write("workers/gamma/logs/run.log.new", "new");
    fs::rename(fresh, store.at("workers/gamma/logs/run.log")).unwrap();
    eventually("the new file", || {
        (mount.read("workers/gamma/logs/run.log") == b"new").then_some(())
    });
    assert_ne!(fs::metadata(mount.at("workers/gamma/logs/run.log")).unwrap().ino(), number);
    wait_for_cached_attributes_to_expire();
    let mut bytes = vec![0; old.len()];
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == old.as_bytes(), "the old file's bytes");
    assert_eq!(held.metadata().unwrap().len(), old.len() as u64);
}

/// Promise: A worker's own file that was deleted is still readable through its open handle.
#[test]
fn deleted_own_file_is_readable_through_its_handle() {
    needs_fuse!();
    let store = swarm();
    store.write("workers/gamma/logs/run.log", "still here");
    let mount = Mount::new(&store.path());
    let mut held = File::open(mount.at("workers/gamma/logs/run.log")).unwrap();
    fs::remove_file(store.at("workers/gamma/logs/run.log")).unwrap();
    eventually("the deletion", || {
        fs::metadata(mount.at("workers/gamma/logs/run.log")).is_err().then_some(())
    });
    wait_for_cached_attributes_to_expire();
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(held.metadata().unwrap().len(), 10);
}

/// Promise: An open handle of a worker's own file follows its growth.
#[test]
fn open_handle_of_an_own_file_follows_its_growth() {
    needs_fuse!();
    let store = swarm();
    let path = store.write("workers/gamma/logs/run.log", "one\n");
    let mount = Mount::new(&store.path());
    let mut held = File::open(mount.at("workers/gamma/logs/run.log")).unwrap();
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    let mut expected = String::from("one\n");
    for line in ["two\n", "three\n", &"4".repeat(9_000)] {
        File::options().append(true).open(&path).unwrap().write_all(line.as_bytes()).unwrap();
        expected.push_str(line);
        eventually(line, || {
            held.read_to_string(&mut text).unwrap();
            (text.len() >= expected.len()).then_some(())
        });
        assert_eq!(text, expected);
    }
}
