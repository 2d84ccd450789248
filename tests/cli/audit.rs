//! `swarmletfs audit`: the log of changes, as the commands that write leave it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use super::program::swarmletfs;

/// A store, with what is written by the time of a test.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Store {
        let store = Store(tempfile::tempdir().unwrap());
        let made = swarmletfs(["init"]).arg(store.path()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        store
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("s")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = swarmletfs(arguments.iter().copied());
        command.arg("--store").arg(self.path()).env_remove("SWARMLET_WORKER");
        command.output().unwrap()
    }

    #[track_caller]
    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn entries(&self, options: &[&str]) -> Vec<Value> {
        let lines = self.lines(&[&["audit", "--json"], options].concat());
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn actions(entries: &[Value]) -> Vec<&str> {
    entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect()
}

/// Promise: Every change, and every attempt that failed, is in the log of changes.
#[test]
fn every_change_and_every_failed_attempt_is_in_the_log() {
    let store = Store::new();
    for arguments in [
        &["worker", "create", "--id", "w1"][..],
        &["worker", "create", "--id", "w2"],
        &["worker", "record", "w1", "--tool", "sh", "--exit", "1"],
        &["worker", "put", "w1", "outputs/a.txt"],
        &["worker", "finish", "w1"],
    ] {
        store.lines(arguments);
    }
    assert_eq!(store.run(&["worker", "put", "w1", "late.txt"]).status.code(), Some(1));

    let entries = store.entries(&["--worker", "w1"]);
    assert_eq!(actions(&entries), ["create", "record", "put", "finish", "put"]);
    assert_eq!(entries[2]["paths"][0]["path"], "workers/w1/outputs/a.txt");
    // The hash of nothing, which stdin has.
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(entries[2]["paths"][0]["sha256"], nothing);
    assert_eq!(entries[3]["result"], "ok");
    assert!(entries[4]["result"].as_str().unwrap().contains("has finished"), "{entries:?}");
    assert_eq!(actions(&store.entries(&[]))[..3], ["init", "create", "create"]);

    let text = store.lines(&["audit", "--worker", "w2"]);
    let [line] = text.as_slice() else { panic!("{text:?}") };
    assert!(line.contains("swarmletfs  create w2  workers/w2/metadata.json "), "{line}");
    let failed = store.lines(&["audit"]).pop().unwrap();
    assert!(failed.contains("FAILED: cannot change worker w1"), "{failed}");
}

#[test]
fn log_is_filtered_by_time() {
    let store = Store::new();
    store.lines(&["worker", "create", "--id", "w1"]);
    assert_eq!(actions(&store.entries(&["--since", "1h"])), ["init", "create"]);
    assert_eq!(store.entries(&["--since", "2100-01-01T00:00:00Z"]).len(), 0);
    let refused = store.run(&["audit", "--since", "yesterday"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("a time as 2026-01-20T10:00:00Z"), "{message}");
}

#[test]
fn entries_of_several_users_and_files_are_in_order() {
    let store = Store::new();
    let entry = |second: u32, uid: u32| {
        format!(
            "{{\"time\":\"2026-01-20T10:00:{second:02}Z\",\"uid\":{uid},\"pid\":1,\
             \"program\":\"p\",\"action\":\"a{second}\",\"result\":\"ok\"}}\n"
        )
    };
    let write = |name: &str, seconds: &[u32], uid| {
        let text: String = seconds.iter().map(|second| entry(*second, uid)).collect();
        fs::write(store.path().join("audit").join(name), text).unwrap();
    };
    write("2026-01-20.jsonl", &[1, 4], 1);
    write("2026-01-20.2.jsonl", &[6, 7], 1);
    write("2026-01-20.uid2.jsonl", &[2, 5], 2);
    fs::write(store.path().join("audit/2026-01-21.jsonl"), "not an entry\n").unwrap();
    fs::write(store.path().join("audit/notes.jsonl"), entry(9, 1)).unwrap();
    let output = store.run(&["audit", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let entries: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(actions(&entries), ["a1", "a2", "a4", "a5", "a6", "a7", "init"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(": 1 line that is not an entry"), "{message}");
}

/// Promise: The log of changes stays within its limit and keeps the newest changes.
#[test]
fn log_stays_within_its_limit_and_keeps_the_newest_changes() {
    let store = Store::new();
    let old = store.path().join("audit/2026-01-20.jsonl");
    fs::write(&old, "x".repeat(3_000)).unwrap();
    for n in 1..=40 {
        store.lines(&["worker", "create", "--audit-max", "4k", "--id", &format!("w{n}")]);
        let size = size_of(&store.path().join("audit"));
        assert!(n < 10 || size <= 4_096, "{size} bytes after {n} changes");
    }
    assert!(!old.exists());
    let entries = store.entries(&[]);
    let workers: Vec<&str> = entries.iter().filter_map(|entry| entry["worker"].as_str()).collect();
    let newest: Vec<String> = (41 - workers.len()..=40).map(|n| format!("w{n}")).collect();
    assert!(workers.len() >= 5, "{workers:?}");
    assert_eq!(workers, newest);
}

fn size_of(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}
