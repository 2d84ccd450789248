//! `show`, `log` and `diff` of one worker.

use serde_json::json;

use super::{look, ok_text, session, two_owners};
use crate::support::TestStore;

const THREAD: &str = concat!(
    r#"{"role": "user", "content": "Find the\u001b[31m bug.", "timestamp": "2026-01-20T10:00:01Z"}"#,
    "\n",
    r#"{"role": "assistant", "content": [{"type": "text", "text": "I look.\n  if x {"}], "tool_calls": "#,
    r#"[{"name": "Edit", "args": {"file_path": "a.rs", "old_string": "a", "new_string": "b"}}]}"#,
    "\nnot json\n",
    r#"{"role": "tool", "name": "Edit", "content": "ok"}"#,
    "\n",
    r#"{"role": "assistant", "content": "Done.", "timestamp": "2026-01-20T10:00:09Z"}"#,
    "\n",
);

/// Creates the worker `deploy-1`, with two calls, one of which is not in its thread.
fn talkative() -> TestStore {
    let store = TestStore::new();
    store
        .worker("deploy-1", json!({"cwd": "/srv"}))
        .call("deploy-1", 1, "Edit", "{\"ok\": true}")
        .call("deploy-1", 2, "sh", "output")
        .write("workers/deploy-1/thread.jsonl", THREAD);
    store.write(
        "workers/deploy-1/metrics.jsonl",
        "{\"event\": \"tool_call\", \"tool\": \"sh\", \"start_ts\": \"2026-01-20T10:00:05Z\", \
         \"success\": false}\n",
    );
    store
}

#[test]
fn show_prints_the_summary_of_a_worker() {
    let store = talkative();
    let summary = ok_text(&store, "cat", ["workers/deploy-1/summary"]);
    assert_eq!(ok_text(&store, "show", ["deploy-1"]), summary);
    assert_eq!(ok_text(&store, "show", ["depl"]), summary);
}

#[test]
fn log_has_messages_and_calls_in_order() {
    let store = talkative();
    let log = ok_text(&store, "log", ["depl"]);
    let order = [
        "[2026-01-20T10:00:01Z] user\n    Find the",
        "\n\nassistant\n    I look.\n      if x {\n",
        "001_Edit.txt",
        "002_sh.txt",
        "[2026-01-20T10:00:09Z] assistant\n    Done.\n",
    ];
    let places: Vec<usize> = order
        .iter()
        .map(|part| log.find(part).unwrap_or_else(|| panic!("{part} is not in {log}")))
        .collect();
    assert!(places.is_sorted(), "{log}");
    assert!(!log.contains('\x1b'), "{log:?}");
    assert_eq!(log.matches("Edit").count(), 1, "{log}");
}

#[test]
fn log_without_messages_has_the_task_and_the_final_words() {
    let store = two_owners();
    let log = ok_text(&store, "log", ["w1"]);
    assert!(log.starts_with("task\n    task of w1\n"), "{log}");
    assert!(log.contains("001_sh.txt") && log.ends_with("    done by the first\n"), "{log}");
}

#[test]
fn diff_prints_the_changes_of_a_worker() {
    let (_folder, file) = session();
    let changes = look(&file, "cat", ["workers/session-1/changes.diff"]);
    assert!(changes.assert_success().text().contains("+fn main() {}"), "{changes:?}");
    assert_eq!(look(&file, "diff", ["sess"]).assert_success().out, changes.out);
    let store = two_owners();
    look(&store.path(), "diff", ["w1"])
        .failed(&["cannot show worker w1: its record holds no changes; try `swarmletfs log`"]);
}

#[test]
fn another_owners_worker_is_not_found() {
    let store = two_owners();
    for command in ["show", "log", "diff"] {
        look(&store.path(), command, ["--owner", "7", "w1"]);
        let other = look(&store.path(), command, ["--owner", "7", "w2"]);
        let none = look(&store.path(), command, ["--owner", "7", "w3"]);
        assert_eq!((other.code, other.text()), (Some(1), ""), "{command}");
        let reason = "cannot show worker w2: no worker of this view has this id; ";
        assert!(other.err.contains(reason), "{other:?}");
        assert_eq!(other.err.replace("w2", "w3"), none.err, "{command}");
    }
}

#[test]
fn beginning_of_several_ids_names_them() {
    let store = talkative();
    store.worker("deploy-2", json!({}));
    for command in ["show", "log", "diff"] {
        let answer = look(&store.path(), command, ["depl"]);
        assert_eq!((answer.code, answer.text()), (Some(1), ""), "{command}");
        assert!(answer.err.contains("deploy-1, deploy-2"), "{command}: {answer:?}");
    }
}
