//! A store that disappears, returns or is replaced while readers run (R20). The root always
//! answers, missing data is gone within a second, and a new store at the path is shown.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};

use super::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore, scale};

/// Repetitions of each change to a store.
const ROUNDS: usize = 3;

/// Fills a store with one worker whose owner and output contain `word`.
fn fill(store: &TestStore, word: &str) {
    store.worker("w1", json!({"config": {"owner_id": word}, "status": "running"}));
    store.call("w1", 1, "sql", format!("{word} {}\n", "x".repeat(5_000)));
}

fn await_word(mount: &Mount, word: &str) {
    eventually(&format!("the store of {word}"), || {
        let text = fs::read_to_string(mount.at("workers/w1/tool_calls/001_sql.txt")).ok()?;
        text.starts_with(word).then_some(())
    });
    eventually(&format!("{word} in the index"), || {
        let index: Value =
            serde_json::from_slice(&fs::read(mount.at("workers/w1/index.json")).ok()?).unwrap();
        (index["owner_id"] == word).then_some(())
    });
}

fn await_no_workers(mount: &Mount) {
    eventually("a tree without workers", || {
        // Between two mounts the empty directory beneath is visible.
        let names: Vec<_> = fs::read_dir(mount.at("workers"))
            .ok()?
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.iter().all(|name| name != "w1").then_some(())
    });
    eventually("an index without the worker", || {
        let index: Value = serde_json::from_slice(&fs::read(mount.at("index.json")).ok()?).unwrap();
        (index["total_workers"] == 0).then_some(())
    });
}

/// Runs eight readers while `change` changes the store. Their results come from one store or are
/// errors that report its absence.
fn under_readers(mount: &Mount, change: impl FnOnce()) {
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let check = |path: &str, result: io::Result<Vec<u8>>| match result {
        Ok(bytes) if path.ends_with(".json") => {
            serde_json::from_slice::<Value>(&bytes)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        Ok(bytes) if path.ends_with("001_sql.txt") => {
            assert!(
                [b"one ".as_slice(), b"two "].iter().any(|word| bytes.starts_with(word)),
                "{path}: foreign bytes"
            );
            assert_eq!(bytes.len(), 5_005, "{path}: cut");
        }
        Ok(_) => {}
        Err(error) => {
            let known = [Errno::NOENT, Errno::STALE, Errno::IO, Errno::NOTCONN];
            assert!(
                known.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())),
                "{path}: {error}"
            );
        }
    };
    thread::scope(|scope| {
        for reader in 0..8 {
            let (stop, reads) = (&stop, &reads);
            scope.spawn(move || {
                let paths = [
                    "index.json",
                    "workers/w1/tool_calls/001_sql.txt",
                    "workers/w1/index.json",
                    "workers/w1/evidence.txt",
                ];
                for path in paths.iter().cycle().skip(reader) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    check(path, fs::read(mount.at(path)));
                    // The root always answers. Between two mounts it is the directory beneath.
                    fs::metadata(mount.path()).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let stopping = scopeguard(&stop);
        eventually("progress of the readers", || {
            (reads.load(Ordering::Relaxed) > 100).then_some(())
        });
        change();
        drop(stopping);
    });
}

/// Sets `flag` when dropped, even after a panic.
fn scopeguard(flag: &AtomicBool) -> impl Drop + '_ {
    struct Guard<'a>(&'a AtomicBool);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    Guard(flag)
}

/// Promise: A store that is renamed away stays readable, also after it is renamed back.
#[test]
fn renamed_store_stays_readable() {
    needs_fuse!();
    let store = TestStore::new();
    fill(&store, "one");
    let mount = Mount::new(&store.path());
    under_readers(&mount, || {
        for _ in 0..scale(ROUNDS) {
            let away = store.path().with_extension("away");
            fs::rename(store.path(), &away).unwrap();
            await_word(&mount, "one");
            fs::rename(&away, store.path()).unwrap();
            await_word(&mount, "one");
        }
    });
}

/// Promise: A removed store shows no workers, and a recreated one appears.
#[test]
fn removed_store_is_empty_and_a_recreated_one_appears() {
    needs_fuse!();
    let store = TestStore::new();
    fill(&store, "one");
    let mount = Mount::new(&store.path());
    under_readers(&mount, || {
        for word in ["two", "one", "two"] {
            fs::remove_dir_all(store.path()).unwrap();
            await_no_workers(&mount);
            eventually("why", || {
                mount
                    .text("summary")
                    .contains("warning: the folder of a store was removed")
                    .then_some(())
            });
            fs::create_dir(store.path()).unwrap();
            fill(&store, word);
            await_word(&mount, word);
        }
    });
}

/// Promise: A store that replaces another is served in its place.
#[test]
fn replaced_store_is_served() {
    needs_fuse!();
    let (store, other) = (TestStore::new(), TestStore::new());
    fill(&store, "one");
    fill(&other, "two");
    let mount = Mount::new(&store.path());
    under_readers(&mount, || {
        for round in 0..scale(ROUNDS) {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                store.path(),
                rustix::fs::CWD,
                other.path(),
                rustix::fs::RenameFlags::EXCHANGE,
            )
            .unwrap();
            await_word(&mount, if round % 2 == 0 { "two" } else { "one" });
        }
    });
}

/// Promise: A store that replaces an owner's store shows the owner's workers only.
#[test]
fn replacing_store_shows_only_workers_of_the_owner() {
    needs_fuse!();
    let (store, other) = (TestStore::new(), TestStore::new());
    fill(&store, "one");
    fill(&other, "two");
    other.worker("w2", json!({"config": {"owner_id": "one"}}));
    let mount = Mount::with(&store.path(), &["--owner", "one"]);
    await_word(&mount, "one");
    let away = store.path().with_extension("away");
    fs::rename(store.path(), away).unwrap();
    fs::rename(other.path(), store.path()).unwrap();
    eventually("the owner's worker of the other store", || {
        // For a moment nothing is mounted there.
        fs::metadata(mount.at("workers/w2")).ok()
    });
    assert_eq!(mount.list("workers"), ["index.json", "w2"]);
    assert!(fs::metadata(mount.at("workers/w1")).is_err());
}

#[test]
fn store_replaced_by_a_file_is_served_again_on_return() {
    needs_fuse!();
    let store = TestStore::new();
    fill(&store, "one");
    let mount = Mount::new(&store.path());
    let away = store.path().with_extension("away");
    under_readers(&mount, || {
        for _ in 0..scale(ROUNDS) {
            fs::rename(store.path(), &away).unwrap();
            fs::write(store.path(), "a file").unwrap();
            await_word(&mount, "one");
            fs::remove_file(store.path()).unwrap();
            fs::rename(&away, store.path()).unwrap();
            await_word(&mount, "one");
        }
    });
}

/// Promise: A directory that replaces a store but holds none is reported and not served.
#[test]
fn directory_that_is_no_store_is_reported_and_not_served() {
    needs_fuse!();
    let store = TestStore::new();
    fill(&store, "one");
    let mut mount = Mount::new(&store.path());
    mount.expect_warning("cannot serve the store that replaced the old one");
    fs::rename(store.path(), store.path().with_extension("away")).unwrap();
    fs::create_dir(store.path()).unwrap();
    fs::write(store.at("notes.txt"), "no worker").unwrap();
    eventually("the word in the log", || {
        mount.log().contains("cannot serve the store").then_some(())
    });
    await_word(&mount, "one");
    fs::remove_file(store.at("notes.txt")).unwrap();
    fill(&store, "two");
    await_word(&mount, "two");
    assert_eq!(
        mount.log().matches("cannot serve the store").count(),
        1,
        "the warning must be logged once"
    );
}

#[test]
fn store_that_is_unmounted_and_mounted_again_comes_back() {
    needs_fuse!();
    let store = TestStore::new();
    let tmpfs =
        || rustix::mount::mount("tmpfs", store.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    tmpfs();
    fill(&store, "one");
    let mount = Mount::new(&store.path());
    under_readers(&mount, || {
        for word in ["two", "one"] {
            rustix::mount::unmount(store.path(), UnmountFlags::DETACH).unwrap();
            await_no_workers(&mount);
            tmpfs();
            fill(&store, word);
            await_word(&mount, word);
        }
    });
    drop(mount);
    rustix::mount::unmount(store.path(), UnmountFlags::DETACH).unwrap();
}

/// Promise: An open handle outlives the store in which it was opened.
#[test]
fn open_handle_outlives_its_store() {
    needs_fuse!();
    let store = TestStore::new();
    fill(&store, "one");
    let mount = Mount::new(&store.path());
    let mut held = fs::File::open(mount.at("workers/w1/tool_calls/001_sql.txt")).unwrap();
    fs::remove_dir_all(store.path()).unwrap();
    fs::create_dir(store.path()).unwrap();
    fill(&store, "two");
    await_word(&mount, "two");
    let mut text = String::new();
    io::Read::read_to_string(&mut held, &mut text).unwrap();
    assert!(text.starts_with("one ") && text.len() == 5_005);
}

#[test]
fn stored_outputs_that_appear_after_mounting_are_found() {
    needs_fuse!();
    let store = TestStore::new();
    let id = "0123456789abcdef0123456789abcdef";
    store.worker("w1", json!({"config": {"owner_id": 7}, "status": "running"}));
    store.call("w1", 1, "sql", format!("[TOOL_OUTPUT:artifact_id={id},tool=sql,bytes=11]"));
    let mount = Mount::new(&store.path());
    assert!(mount.text("workers/w1/evidence.txt").contains("stored out of band"));
    let outputs = store.path().parent().unwrap().join("tool_outputs/7");
    fs::create_dir_all(&outputs).unwrap();
    fs::write(outputs.join(format!("{id}.txt")), "the output\n").unwrap();
    let about = json!({"artifact_id": id, "owner_id": 7, "tool_name": "sql", "size_bytes": 11});
    fs::write(outputs.join(format!("{id}.json")), about.to_string()).unwrap();
    eventually("the output", || {
        fs::read_to_string(mount.at("workers/w1/evidence.txt"))
            .ok()?
            .contains("the output")
            .then_some(())
    });
}
