//! `swarmletfs sync`: which files it copies, in which order, and which it leaves out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::proxy::{Proxy, WebFault};
use super::recorder::Machine;
use super::server::{new_prefix, server, url};
use crate::cli::program::{run, swarmletfs};
use crate::support::TestStore;
use crate::support::scale::sample;

/// Returns the files beneath a folder with their contents.
fn files_in(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap_or_default());
            }
        }
    }
    files
}

/// Two workers with a large file, and notes.
fn store() -> TestStore {
    let store = TestStore::new();
    for id in ["w1", "w2"] {
        store.worker(id, json!({"status": "completed", "task": "Count"}));
        store.call(id, 1, "sh", format!("the output of {id}\n"));
    }
    store.write("workers/w1/outputs/large.bin", vec![7; 9 << 20]);
    store.write("supervisor/plan.md", "# Plan\n");
    store
}

fn sync(machine: &Machine<'_>, source: &str, dest: &str) -> Value {
    let output = machine.run(&["sync", "--json", source, dest]);
    serde_json::from_str(&output.assert_success().out).unwrap()
}

/// Promise: `sync` copies only what changed, from a folder to an object store and back, and deletes
/// nothing.
#[test]
fn sync_copies_what_changed_both_ways() {
    let Some(server) = server() else { return };
    let (machine, store, prefix) = (Machine::new(server), store(), new_prefix());
    let (folder, url) = (store.path(), url(&prefix));
    let (folder, copies) = (folder.to_str().unwrap(), tempfile::tempdir().unwrap());
    let copy = copies.path().join("copy");
    let copy = copy.to_str().unwrap();
    let dry = machine.run(&["sync", "--dry-run", folder, &url]);
    assert!(dry.assert_success().out.contains("workers/w1/outputs/large.bin"), "{dry:#?}");
    let count = |report: &Value| ["new", "changed", "unchanged"].map(|key| report[key].clone());
    let all = files_in(Path::new(folder)).len();
    assert_eq!(count(&sync(&machine, folder, &url)), [all, 0, 0].map(Value::from));
    assert_eq!(count(&sync(&machine, folder, &url)), [0, 0, all].map(Value::from));
    assert_eq!(count(&sync(&machine, &url, copy)), [all, 0, 0].map(Value::from));
    assert_eq!(files_in(Path::new(copy)), files_in(Path::new(folder)));
    assert_eq!(count(&sync(&machine, &url, copy)), [0, 0, all].map(Value::from));
    // The size stays, and only the content differs.
    store.write("workers/w2/tool_calls/001_sh.txt", "THE OUTPUT OF w2\n");
    store.write("workers/w2/notes/new.md", "new");
    fs::remove_file(store.at("supervisor/plan.md")).unwrap();
    let changed = sync(&machine, folder, &url);
    assert_eq!(count(&changed), [1, 1, all - 2].map(Value::from));
    assert_eq!(count(&sync(&machine, &url, copy)), [1, 1, all - 1].map(Value::from));
    let copied = files_in(Path::new(copy));
    assert_eq!(copied["workers/w2/tool_calls/001_sh.txt"], b"THE OUTPUT OF w2\n");
    assert_eq!(copied["supervisor/plan.md"], b"# Plan\n");
    // From one place to another of its kind.
    let other = super::server::url(&new_prefix());
    sync(&machine, &url, &other);
    assert_eq!(sync(&machine, &url, &other)["changed"], 0);
    let third = copies.path().join("third");
    sync(&machine, &other, third.to_str().unwrap());
    assert_eq!(files_in(&third), copied);
    let fourth = copies.path().join("fourth");
    sync(&machine, copy, fourth.to_str().unwrap());
    assert_eq!(files_in(&fourth), copied);
    assert_eq!(sync(&machine, copy, fourth.to_str().unwrap())["new"], 0);
}

/// Promise: A copy by `sync` that is interrupted shows no end of a worker before its files, and the
/// next one completes it.
#[test]
fn an_interrupted_sync_is_completed_by_the_next() {
    let Some(server) = server() else { return };
    let (store, proxy) = (store(), Proxy::start(&server.address()));
    let folder = store.path();
    let expected = files_in(&folder);
    let folder = folder.to_str().unwrap();
    let interrupt = |k: u64| {
        let mut machine = Machine::new(server);
        machine.address = proxy.address();
        let (prefix, copies) = (new_prefix(), tempfile::tempdir().unwrap());
        let url = url(&prefix);
        proxy.fail(WebFault::Reset, k, true);
        let failed = machine.run(&["sync", folder, &url]);
        let requests = proxy.heal();
        if k != u64::MAX {
            assert_ne!(failed.code, Some(0), "{k}: {failed:#?}");
        }
        let copy = copies.path().join("copy");
        let copy = copy.to_str().unwrap();
        if machine.run(&["sync", &url, copy]).code == Some(0) {
            let partly = files_in(Path::new(copy));
            for id in ["w1", "w2"].map(|id| format!("workers/{id}/")) {
                let count = |files: &BTreeMap<String, Vec<u8>>| {
                    files.keys().filter(|path| path.starts_with(&id)).count()
                };
                let ended = partly.contains_key(&format!("{id}metadata.json"));
                assert!(!ended || count(&partly) == count(&expected), "{k}: {partly:?}");
            }
            assert!(partly.iter().all(|(path, bytes)| expected[path] == *bytes), "{k}");
        }
        machine.address = server.address();
        sync(&machine, folder, &url);
        sync(&machine, &url, copy);
        assert_eq!(files_in(Path::new(copy)), expected, "{k}");
        requests
    };
    let requests = interrupt(u64::MAX);
    sample(0..requests).for_each(|k| assert!(interrupt(k) > 0));
}

/// Promise: `sync` to an object store with a catalog announces the workers that it changed.
#[test]
fn sync_announces_workers_to_readers_of_a_catalog() {
    let Some(server) = server() else { return };
    let (machine, store, prefix) = (Machine::new(server), store(), new_prefix());
    let (folder, url) = (store.path(), url(&prefix));
    let folder = folder.to_str().unwrap();
    sync(&machine, folder, &url);
    machine.run(&["catalog", &url]).assert_success();
    store.worker("w3", json!({"status": "completed", "task": "Count again"}));
    store.write("workers/w2/notes/new.md", "new");
    sync(&machine, folder, &url);
    let mut listed = machine.run(&["ls", "--store", &url, "workers"]).assert_success().out.clone();
    listed.retain(|c| c != '/');
    assert!(["w1", "w2", "w3"].iter().all(|id| listed.contains(id)), "{listed}");
    let note = machine.run(&["cat", "--store", &url, "workers/w2/notes/new.md"]);
    assert_eq!(note.assert_success().out, "new");
    // The third worker and the changed one, and nothing for those that stayed.
    let outcome = machine.run(&["catalog", "--announced", "--json", &url]);
    let outcome: Value = serde_json::from_str(&outcome.assert_success().out).unwrap();
    assert_eq!(outcome["announcements"], 2, "{outcome}");
}

/// Promise: `sync` follows no link, in the source or in the copy, and skips names that cannot be
/// written.
#[test]
fn sync_follows_no_link() {
    let Some(server) = server() else { return };
    let (machine, store, prefix) = (Machine::new(server), store(), new_prefix());
    let (url, outside) = (url(&prefix), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path().join("secret"), store.at("workers/w1/link")).unwrap();
    symlink(outside.path(), store.at("workers/w1/folder")).unwrap();
    store.write(b"workers/w1/\xff.txt", "no key");
    let report = sync(&machine, store.path().to_str().unwrap(), &url);
    assert_eq!(report["skipped"], 3, "{report}");
    // A link in the copy leads nowhere.
    server.put(&format!("{prefix}/workers/w1/evil/file"), "evil");
    server.put(&format!("{prefix}/a/../../up"), "evil");
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir_all(copy.path().join("workers/w1")).unwrap();
    symlink(outside.path(), copy.path().join("workers/w1/evil")).unwrap();
    let output = machine.run(&["sync", "--json", &url, copy.path().to_str().unwrap()]);
    assert_eq!(output.code, Some(1), "{output:#?}");
    assert_eq!(serde_json::from_str::<Value>(&output.out).unwrap()["failed"], 1, "{output:#?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let files = files_in(copy.path());
    assert!(files.contains_key("workers/w2/metadata.json"));
    // Its worker lacks a file, so it has no end.
    assert!(!files.contains_key("workers/w1/metadata.json"));
}

#[test]
fn sync_refuses_a_place_in_itself() {
    let store = store();
    let path = store.path();
    let (folder, inside) = (path.to_str().unwrap(), path.join("workers/copy"));
    let sync = |source: &str, dest: &str| run(swarmletfs(["sync", source, dest]));
    let named = ["one is in the other", "try another place"];
    sync(folder, inside.to_str().unwrap()).assert_failure(2, &named);
    sync(folder, folder).assert_failure(2, &named);
    let file = store.write("a-file", "text");
    sync("/nowhere/at-all", file.to_str().unwrap()).assert_failure(1, &["cannot read"]);
    let other = TestStore::new();
    sync(other.path().to_str().unwrap(), file.to_str().unwrap())
        .assert_failure(1, &["it is not a folder"]);
}
