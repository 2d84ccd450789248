//! The notes of a supervisor on a worker.

use super::store::{command, metadata, new_store, record};
use crate::cli::program::run;

/// Promise: A supervisor can annotate a worker that has finished, and nothing else of it changes.
#[test]
fn notes_are_set_replaced_and_removed() {
    let (_dir, store) = new_store();
    let annotate = |text: &str, stdin: &str| {
        record(&store, &["worker", "annotate", "w1", text], stdin).assert_success();
    };
    let summary = || run(command(&store, &["worker", "show", "w1"])).assert_success().out.clone();
    annotate("It runs\nwell.\u{1b}[31m", "");
    assert_eq!(metadata(&store, "w1")["supervisor_notes"], "It runs\nwell.\u{1b}[31m");
    assert!(summary().contains("notes    by the supervisor: It runs"), "{}", summary());
    assert!(!summary().contains('\u{1b}'));
    record(&store, &["worker", "finish", "w1"], "").assert_success();
    let before = metadata(&store, "w1");

    annotate("-", "It lacks a test.\n");
    assert!(summary().contains("notes    by the supervisor: It lacks a test.\n"), "{}", summary());
    let index = run(command(&store, &["worker", "show", "w1", "--json"]));
    let index: serde_json::Value = serde_json::from_str(&index.assert_success().out).unwrap();
    assert_eq!(index["supervisor_notes"], "It lacks a test.");
    let mut expected = before.clone();
    expected["supervisor_notes"] = "It lacks a test.".into();
    assert_eq!(metadata(&store, "w1"), expected);

    annotate("", "");
    assert!(!summary().contains("notes  "), "{}", summary());
    assert_eq!(metadata(&store, "w1").get("supervisor_notes"), None);
    let log = run(command(&store, &["audit", "--worker", "w1"])).assert_success().out.clone();
    assert_eq!(log.matches("annotate w1").count(), 3, "{log}");
}

#[test]
fn notes_that_cannot_be_set_are_refused_and_change_nothing() {
    let (_dir, store) = new_store();
    let before = metadata(&store, "w1");
    let long = "x".repeat((1 << 20) + 1);
    record(&store, &["worker", "annotate", "w1", "-"], long)
        .assert_failure(2, &["cannot use", "as a note: it has more than 1048576 bytes"]);
    record(&store, &["worker", "annotate", "w1", "-"], b"\xff").assert_failure(1, &["not UTF-8"]);
    record(&store, &["worker", "annotate", "w9", "x"], "").assert_failure(1, &["cannot find"]);
    assert_eq!(metadata(&store, "w1"), before);
}
