//! Tests of sessions that are written while they are mounted.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use super::*;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Waits until `is_so` returns true.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A session is followed while it is written.
#[test]
fn mounted_session_is_followed() {
    needs_fuse!();
    let mut log = Log::new();
    log.user("u", "go").model("m1", "", json!([]));
    let store = TestStore::new();
    store.write("settings.json", "{}");
    let file = store.write(log_path().to_text().as_bytes(), log.bytes());
    let mount = Mount::new(&store.path());
    let calls = || mount.list(&format!("workers/{SESSION}/tool_calls"));
    assert!(calls().is_empty());
    let mut more = log.clone();
    more.records.clear();
    let mut message = log.messages()[1].clone();
    message["toolCalls"] = json!([shell("c1", "ls", "a\n")]);
    more.record(message).model("m2", "Done.", json!([]));
    File::options().append(true).open(&file).unwrap().write_all(&more.bytes()).unwrap();
    wait_until("the call", || calls() == ["001_run_shell_command.txt"]);
    let output = mount.text(&format!("workers/{SESSION}/tool_calls/001_run_shell_command.txt"));
    assert_eq!(output, "a\n");
    wait_until("the answer", || {
        mount.list(&format!("workers/{SESSION}")).contains(&"result.txt".into())
    });
    // An older version rewrites a whole document.
    let mut old = Log::of("0f0e0d0c-0000-4000-8000-000000000002", "main");
    let document = store.at("tmp/app/chats/session-2026-02-01T10-00-0f0e0d0d.json");
    for (at, id) in ["a", "b"].iter().enumerate() {
        old.user(id, "next").model(&format!("m{id}"), "", json!([shell(id, "ls", id)]));
        fs::write(&document, old.document()).unwrap();
        let folder = format!("workers/{}/tool_calls", old.id);
        wait_until("the document", || {
            fs::read_dir(mount.at(&folder)).is_ok_and(|entries| entries.count() == at + 1)
        });
    }
}
