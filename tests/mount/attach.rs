//! Stores that are attached to a mount and detached from it while readers use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::store::Disk;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::{eventually, reply_count};
use crate::needs_fuse;
use crate::support::intercept::InterceptedStore;
use crate::support::mount::{PROGRAM, RUNTIME, run_on_mount};
use crate::support::open_counter::{OpenCounter, OpenLog};
use crate::support::seen::see;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore, scale};

/// Runs `attach` or `detach`, which must fail, and returns what it says.
fn refusal(command: &str, mount: &Path, store: &Path) -> String {
    let ran = run_on_mount(command, mount, store);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    said
}

/// Returns a store with a finished worker of each id. All its files contain `word`.
fn store(word: &str, ids: &[&str]) -> TestStore {
    let store = TestStore::new();
    for id in ids {
        store.worker(id, json!({"status": "success", "task": format!("task of {word}")}));
        store.call(id, 1, "sh", format!("{word} {id}\n"));
        store.write(format!("workers/{id}/large"), word.repeat(200_000));
    }
    store.rest();
    store
}

/// Returns the word in the output of a worker.
fn word(mount: &Mount, id: &str) -> String {
    let text = mount.text(&format!("workers/{id}/tool_calls/001_sh.txt"));
    text.split(' ').next().unwrap().to_owned()
}

/// Returns the inode numbers of all files of the mount.
fn numbers(mount: &Mount) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![mount.at("workers")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            found.insert(path.strip_prefix(mount.path()).unwrap().to_path_buf(), meta.ino());
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// Promise: Stores can be attached and detached while mounted, and worker ids and inode numbers
/// stay.
#[test]
fn stores_are_attached_and_detached() {
    needs_fuse!();
    let (a, b) = (store("one", &["m1", "m2"]), store("two", &["m1", "m3"]));
    let mount = Mount::new(&a.path());
    let before = numbers(&mount);
    let said = mount.change_stores("attach", &b.path());
    assert!(said.contains("attached") && said.contains("4 workers"), "{said}");

    assert_eq!(mount.list("workers"), ["index.json", "m1", "m1~2", "m2", "m3"]);
    let words = [("m1", "one"), ("m1~2", "two"), ("m2", "one"), ("m3", "two")];
    for (id, expected) in words {
        assert_eq!(word(&mount, id), expected, "{id}");
        assert!(mount.text(&format!("workers/{id}/summary")).contains(expected), "{id}");
        assert_eq!(mount.text(&format!("workers/{id}/large")), expected.repeat(200_000));
        // A search starts threads of its own.
        let found = mount.text(&format!("workers/{id}/grep/{expected} {id}"));
        assert!(found.contains(&format!("{expected} {id}")), "{found}");
    }
    let index: Value = serde_json::from_str(&mount.text("index.json")).unwrap();
    assert_eq!(index["total_workers"], 4);
    assert!(mount.text("search/two").contains("m3"));
    let after = numbers(&mount);
    for (path, number) in before.iter().filter(|(path, _)| !path.ends_with("index.json")) {
        assert_eq!(after.get(path), Some(number), "{path:?}");
    }

    // The worker of the other store keeps the name that it got.
    let said = mount.change_stores("detach", &a.path());
    assert!(said.contains("detached") && said.contains("2 workers"), "{said}");
    assert_eq!(mount.list("workers"), ["index.json", "m1~2", "m3"]);
    assert_eq!(word(&mount, "m1~2"), "two");
    for gone in ["m1", "m2", "m1/summary", "m2/tool_calls/001_sh.txt"] {
        let error = fs::metadata(mount.at(&format!("workers/{gone}"))).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{gone}");
    }
    mount.change_stores("attach", &a.path());
    assert_eq!(mount.list("workers"), ["index.json", "m1", "m1~2", "m2", "m3"]);
    for (id, expected) in words {
        assert_eq!(word(&mount, id), expected, "{id}");
    }
}

/// Promise: What is open in a store stays readable after the store is detached.
#[test]
fn open_files_outlive_the_store() {
    needs_fuse!();
    let (a, b) = (store("one", &["m1"]), store("two", &["m2"]));
    let mount = Mount::new(&a.path());
    let open = |path: &str| fs::File::open(mount.at(path)).unwrap();
    let paths = ["m1/tool_calls/001_sh.txt", "m1/large", "m1/summary", "m1/evidence.txt"];
    let files = paths.map(|path| open(&format!("workers/{path}")));
    let expected = paths.map(|path| mount.read(&format!("workers/{path}")));
    mount.change_stores("attach", &b.path());
    mount.change_stores("detach", &a.path());
    for ((mut file, expected), path) in files.into_iter().zip(expected).zip(paths) {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, expected, "{path}");
        file.read_exact_at(&mut [0; 3], 2).unwrap();
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64, "{path}");
    }
}

/// Promise: Readers see the stores from before an attach or detach or those from after it, and get
/// no error.
#[test]
fn readers_see_the_old_stores_or_the_new_ones() {
    needs_fuse!();
    let ids: Vec<String> = (0..30).map(|number| format!("b{number:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let (a, b) = (store("one", &["a1", "a2"]), store("two", &ids));
    let mount = Mount::new(&a.path());
    let few: BTreeSet<String> = ["a1", "a2", "index.json"].map(str::to_owned).into();
    let many: BTreeSet<String> =
        few.iter().cloned().chain(ids.iter().map(|id| (*id).to_owned())).collect();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (few_seen, many_seen) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for reader in 0..6 {
            let (mount, stop, reads, few, many) = (&mount, &stop, &reads, &few, &many);
            let (few_seen, many_seen) = (&few_seen, &many_seen);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seen: BTreeSet<String> = match reader % 3 {
                        0 => mount.list("workers").into_iter().collect(),
                        1 => {
                            let index: Value =
                                serde_json::from_str(&mount.text("index.json")).unwrap();
                            let workers = index["workers"].as_array().unwrap();
                            let ids = workers.iter().map(|row| row["id"].as_str().unwrap());
                            ids.map(str::to_owned).chain(["index.json".into()]).collect()
                        }
                        _ => {
                            // A store that stays is never missing.
                            assert_eq!(word(mount, "a1"), "one");
                            assert!(mount.text("workers/a2/summary").contains("one"));
                            // The other one is there as a whole, or not at all.
                            let path = mount.at("workers/b07/tool_calls/001_sh.txt");
                            match fs::read_to_string(path) {
                                Ok(text) => assert_eq!(text, "two b07\n"),
                                Err(error) => {
                                    assert_eq!(error.kind(), std::io::ErrorKind::NotFound)
                                }
                            }
                            reads.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    };
                    assert!(seen == *few || seen == *many, "a mix: {seen:?}");
                    let counter = if seen == *few { few_seen } else { many_seen };
                    counter.fetch_add(1, Ordering::Relaxed);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Readers must meet both states.
        for _ in 0..scale(4).max(4) {
            mount.change_stores("attach", &b.path());
            assert_eq!(mount.list("workers").len(), many.len());
            mount.change_stores("detach", &b.path());
            assert_eq!(mount.list("workers").len(), few.len());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(few_seen.into_inner() > 0 && many_seen.into_inner() > 0, "{reads:?} reads");
}

#[test]
fn threads_and_descriptors_of_detached_stores_are_released() {
    needs_fuse!();
    let (a, b) = (store("one", &["a1"]), store("two", &["b1"]));
    let mount = Mount::new(&a.path());
    let counts = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", mount.pid())).unwrap().count();
        (tasks, mount.descriptors().len())
    };
    let cycle = || {
        mount.change_stores("attach", &b.path());
        assert_eq!(word(&mount, "b1"), "two");
        assert!(mount.text("grep/two").contains("b1"));
        mount.change_stores("detach", &b.path());
        assert_eq!(word(&mount, "a1"), "one");
    };
    cycle();
    let first = eventually("a rest", || {
        let counted = counts();
        thread::sleep(Duration::from_millis(50));
        (counted == counts()).then_some(counted)
    });
    for _ in 0..4 {
        cycle();
    }
    eventually("as many threads and descriptors as after the first cycle", || {
        let now = counts();
        (now.0 <= first.0 && now.1 <= first.1).then_some(())
    });
}

/// Promise: The kernel reports late changes of a finished worker, also in a store that was attached
/// later.
#[test]
fn changes_in_an_attached_store_are_reported() {
    needs_fuse!();
    let (a, b) = (store("one", &["a1"]), store("two", &["b1"]));
    let mount = Mount::with(&a.path(), &["--ttl", "3600"]);
    mount.change_stores("attach", &b.path());
    for (store, id) in [(&b, "b1"), (&a, "a1")] {
        let path = format!("workers/{id}/tool_calls/001_sh.txt");
        let size = || fs::metadata(mount.at(&path)).unwrap().len();
        assert_eq!(size(), 7);
        assert!(mount.text(&format!("workers/{id}/summary")).contains("calls    1: "));
        store.write(&path, "longer than before\n");
        eventually("the new size", || (size() == 19).then_some(()));
    }
    // Nothing has changed: the kernel answers by itself.
    let path = mount.at("workers/b1/tool_calls/001_sh.txt");
    eventually("an answer without the program", || {
        fs::metadata(&path).unwrap();
        let before = reply_count(&mount);
        fs::metadata(&path).unwrap();
        (reply_count(&mount) == before).then_some(())
    });
}

#[test]
fn workers_of_the_other_stores_are_not_read_again() {
    let fresh =
        Freshness { unfinished: Duration::from_secs(60), finished: Duration::from_secs(60) };
    let stores = [(TestStore::new(), ["a1", "a2", "a3"].as_slice()), (TestStore::new(), &["b1"])];
    for (store, ids) in &stores {
        for id in *ids {
            store.worker(id, json!({"status": "success"}));
            store.call(id, 1, "sh", r#"{"ok": true, "data": {"exit_code": 0, "stdout": "fine"}}"#);
        }
        store.rest();
    }
    let [(a, _), (b, _)] = &stores;
    let log = Arc::new(OpenLog::default());
    let open = |store: &TestStore| {
        let disk = Arc::new(Disk::open(&store.path()).unwrap());
        Source::from_store(Arc::new(InterceptedStore::new(OpenCounter(log.clone()), disk)), None)
    };
    let view = |stores: &[&TestStore]| {
        let sources = stores.iter().copied().map(open).collect();
        View::new(sources, fresh, Filter::default()).unwrap()
    };
    let first = Tree::new(view(&[a]), Settings::default());
    assert!(see(&first, "summary").unwrap().text().contains("a3"));
    assert_eq!(log.opened("001_sh.txt"), 3);
    let both = first.with_view(view(&[a, b]));
    assert!(see(&both, "summary").unwrap().text().contains("b1"));
    assert_eq!(log.opened("001_sh.txt"), 4, "only that of the new worker");
}

#[test]
fn an_owner_sees_only_own_workers_of_an_attached_store() {
    needs_fuse!();
    let stores = [TestStore::new(), TestStore::new()];
    for store in &stores {
        for owner in ["7", "8"] {
            store.worker(&format!("w{owner}"), json!({"config": {"owner_id": owner}}));
        }
    }
    let [a, b] = &stores;
    let mount = Mount::with(&a.path(), &["--owner", "7"]);
    mount.change_stores("attach", &b.path());
    assert_eq!(mount.list("workers"), ["index.json", "w7", "w7~2"]);
}

#[test]
fn a_store_can_be_attached_after_another_was_replaced() {
    needs_fuse!();
    let (a, new, b) = (store("one", &["a1"]), store("new", &["a1"]), store("two", &["b1"]));
    let mount = Mount::new(&a.path());
    fs::rename(a.path(), a.path().with_file_name("old")).unwrap();
    fs::rename(new.path(), a.path()).unwrap();
    eventually("the new store", || {
        let path = mount.at("workers/a1/tool_calls/001_sh.txt");
        fs::read_to_string(path).ok()?.starts_with("new").then_some(())
    });
    mount.change_stores("attach", &b.path());
    assert_eq!((word(&mount, "a1"), word(&mount, "b1")), ("new".into(), "two".into()));
}

#[test]
fn a_refused_change_says_why_and_changes_nothing() {
    needs_fuse!();
    let (a, b) = (store("one", &["a1"]), store("two", &["b1"]));
    let mount = Mount::new(&a.path());
    let odd = tempfile::tempdir().unwrap();
    fs::create_dir_all(odd.path().join("no-workers/x")).unwrap();
    fs::write(odd.path().join("no-workers/x/y"), "z").unwrap();
    let missing = odd.path().join("missing");
    for (command, at, store, expected) in [
        ("attach", mount.path(), a.path(), "the mount shows it already"),
        ("attach", mount.path(), missing.clone(), "there is no such folder"),
        ("attach", mount.path(), odd.path().join("no-workers"), "no workers in"),
        ("attach", mount.path(), mount.path(), "is the store itself"),
        ("attach", mount.path(), mount.at("workers/a1"), "would be hidden by the mount"),
        ("attach", mount.path(), mount.path().parent().unwrap().into(), "contain itself"),
        ("detach", mount.path(), b.path(), "the mount does not show it; it shows"),
        ("detach", mount.path(), missing.clone(), "the mount does not show it; it shows"),
        ("detach", mount.path(), a.path(), "the mount shows no other store"),
        ("attach", odd.path().into(), b.path(), "no swarmletfs is mounted on"),
        ("attach", missing.clone(), b.path(), "cannot find the mount"),
    ] {
        let said = refusal(command, &at, &store);
        assert!(said.contains(expected), "{command} {at:?} {store:?}: {said}");
        assert_eq!(mount.list("workers"), ["a1", "index.json"]);
    }
    let said = as_user(41_000, || {
        let copy = Command::new(PROGRAM)
            .arg("attach")
            .args([mount.path(), b.path()])
            .env("XDG_RUNTIME_DIR", RUNTIME)
            .output();
        // The program may lie where this user cannot run it.
        copy.map(|ran| String::from_utf8(ran.stderr).unwrap())
    });
    if let Ok(said) = said {
        assert!(said.contains("cannot"), "{said}");
    }
    assert_eq!(mount.list("workers"), ["a1", "index.json"]);
}

#[test]
fn the_socket_is_private_and_removed_with_the_mount() {
    needs_fuse!();
    let a = store("one", &["a1"]);
    let mount = Mount::new(&a.path());
    let folder = Path::new(RUNTIME).join("swarmletfs");
    let socket = folder.join(format!("mount-0-{}.sock", mount.connection()));
    assert!(fs::symlink_metadata(&socket).is_ok());
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    // A client that sends nothing, garbage, or too much delays others, and harms nothing.
    for sent in [&b""[..], b"\xff\xff\xff\xff", &[0; 100]] {
        use std::io::Write;
        let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        client.write_all(sent).unwrap();
    }
    let b = store("two", &["b1"]);
    mount.change_stores("attach", &b.path());
    assert_eq!(word(&mount, "b1"), "two");
    let unmounted = Command::new(PROGRAM).arg("umount").arg(mount.path()).output().unwrap();
    assert!(unmounted.status.success());
    assert!(fs::symlink_metadata(&socket).is_err(), "the socket stays");
}
