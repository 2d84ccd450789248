//! The supervisor's notes: `swarmletfs note`, and how a mount shows them.

use std::fs;
use std::io::{Seek, Write};
use std::thread;

use serde_json::{Value, json};

use crate::cli::program::{CommandOutput, run, swarmletfs};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Returns a store with a worker.
fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", json!({}));
    store.write("workers/w1/tool_calls/001_sh.txt", "output\n");
    store
}

/// Runs `swarmletfs note` in a store.
#[track_caller]
fn note(store: &TestStore, arguments: &[&str], stdin: &str) -> CommandOutput {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(stdin.as_bytes()).unwrap();
    input.rewind().unwrap();
    let mut command = swarmletfs(["note"]);
    command.args(arguments).arg("--store").arg(store.path()).stdin(input);
    run(command)
}

#[test]
fn notes_are_written_listed_and_read() {
    let store = store();
    assert_eq!(note(&store, &["list"], "").assert_success().out, "");
    assert_eq!(note(&store, &["list", "--json"], "").assert_success().out, "[]\n");
    let written = note(&store, &["write", "strategy.md", "One worker per module."], "");
    assert_eq!(written.assert_success().out, "supervisor/strategy.md\n");
    note(&store, &["append", "strategy.md"], "Then compare.").assert_success();
    note(&store, &["append", "log/decisions.md", "first\n"], "").assert_success();
    note(&store, &["write", "empty", ""], "").assert_success();
    let read = |path: &str| note(&store, &["read", path], "").assert_success().out.clone();
    assert_eq!(read("strategy.md"), "One worker per module.\nThen compare.");
    assert_eq!(read("log/decisions.md"), "first\n");
    assert_eq!(read("empty"), "");
    let listed = note(&store, &["list"], "");
    assert_eq!(listed.assert_success().out, "empty\nlog/decisions.md\nstrategy.md\n");
    let listed = note(&store, &["list", "--json"], "");
    let rows: Value = serde_json::from_str(&listed.assert_success().out).unwrap();
    assert_eq!(rows[2]["path"], "strategy.md");
    assert_eq!(rows[2]["size"], 36);
    note(&store, &["write", "strategy.md", "-"], "new").assert_success();
    assert_eq!(read("strategy.md"), "new");
    let audit = run({
        let mut audit = swarmletfs(["audit", "--json", "--store"]);
        audit.arg(store.path());
        audit
    });
    let entries = audit.assert_success().out.clone();
    assert_eq!(entries.matches("\"supervisor/strategy.md\"").count(), 3, "{entries}");
}

/// Promise: A mount shows a note as soon as it is written, read-only like everything else.
#[test]
fn note_is_shown_at_once_and_read_only() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    assert!(!mount.list("").contains(&"supervisor".to_owned()));
    for text in ["first\n", "second\n"] {
        note(&store, &["write", "plan/strategy.md", "-"], text).assert_success();
        let path = mount.at("supervisor/plan/strategy.md");
        eventually("the note", || fs::read_to_string(&path).ok().filter(|shown| shown == text));
    }
    let refused = fs::write(mount.at("supervisor/plan/strategy.md"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// Promise: `note` writes beneath `supervisor/` only.
#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let store = store();
    for path in ["", "/etc/x", "../x", "a/../x", "a//b", ".", ".swarmletfs-x", "a\0b"] {
        if path.contains('\0') {
            continue;
        }
        let refused = note(&store, &["write", path, "text"], "");
        assert_ne!(refused.code, Some(0), "{path:?}: {refused:?}");
        assert!(refused.err.contains("cannot use"), "{path:?}: {refused:?}");
    }
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "kept").unwrap();
    let notes = store.path().join("supervisor");
    fs::create_dir(&notes).unwrap();
    std::os::unix::fs::symlink(outside.path(), notes.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("file"), notes.join("file")).unwrap();
    fs::hard_link(outside.path().join("file"), notes.join("hard")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        notes.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for arguments in [
        ["write", "link/new", "x"],
        ["append", "file", "x"],
        ["write", "file", "x"],
        ["append", "hard", "x"],
        ["append", "fifo", "x"],
        ["write", "fifo", "x"],
    ] {
        note(&store, &arguments, "").assert_failure(1, &["cannot write", arguments[1]]);
    }
    assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let refused = note(&store, &["read", "file"], "");
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{refused:?}");
}

/// Promise: Notes that several processes append to at once lose nothing.
#[test]
fn concurrent_appends_lose_nothing() {
    let store = store();
    thread::scope(|scope| {
        for writer in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for line in 0..5 {
                    let text = format!("{writer}-{line}");
                    note(store, &["append", "log.md", &text], "").assert_success();
                }
            });
        }
    });
    let log = fs::read_to_string(store.path().join("supervisor/log.md")).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> =
        (0..8).flat_map(|writer| (0..5).map(move |line| format!("{writer}-{line}"))).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn worker_map_has_the_task_and_state_of_each_worker() {
    let store = store();
    store.worker("w2", json!({"status": "failed", "parent_thread_id": "w1", "task_type": "test"}));
    let written = note(&store, &["worker-map", "--json"], "");
    let printed: Value = serde_json::from_str(&written.assert_success().out).unwrap();
    assert_eq!(printed, json!({"path": "supervisor/worker_map.json", "workers": 2}));
    let map = fs::read(store.path().join("supervisor/worker_map.json")).unwrap();
    let map: Value = serde_json::from_slice(&map).unwrap();
    assert_eq!(map["complete"], true);
    let rows = map["workers"].as_array().unwrap();
    let row = rows.iter().find(|row| row["id"] == "w2").unwrap();
    assert_eq!(row["task"], "task of w2");
    assert_eq!(row["task_type"], "test");
    assert_eq!(row["status"], "failed");
    assert_eq!(row["outcome"], "failed");
    assert_eq!(row["parent_id"], "w1");
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.get("cwd").is_none()), "{rows:?}");
}
