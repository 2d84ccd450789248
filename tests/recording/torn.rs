//! A crash that tore a last line, and what the next change makes of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::store::{
    assert_readable, assert_whole, ended_calls, new_store, record, worker, worker_lines,
};

/// Appends `bytes` to a file of the store.
fn append(path: &Path, bytes: &str) {
    File::options().append(true).open(path).unwrap().write_all(bytes.as_bytes()).unwrap();
}

/// Promise: The next change removes a line that a crash tore.
#[test]
fn torn_last_line_is_removed_by_the_next_append() {
    let (_dir, store) = new_store();
    let message = "{\"role\": \"user\", \"content\": \"first\"}\n";
    let call = ["worker", "record", "w1", "--tool", "sh", "--exit", "0"];
    record(&store, &["worker", "message", "w1"], message).assert_success();
    record(&store, &call, "one\n").assert_success();

    let line = "{\"role\": \"user\", \"content\": \"torn\"}";
    for end in 1..line.len() {
        append(&worker(&store, "w1").join("thread.jsonl"), &line[..end]);
        let recorded = record(&store, &["worker", "message", "w1"], message);
        let warning = format!("thread.jsonl of worker w1: removed {end} bytes of a line");
        assert!(recorded.assert_success().err.contains(&warning), "{recorded:#?}");
    }
    let contents = worker_lines(&store, "w1", "thread.jsonl");
    assert_eq!(contents.len(), line.len());
    assert!(contents.iter().all(|line| line["content"] == "first"), "{contents:#?}");

    append(&worker(&store, "w1").join("metrics.jsonl"), "{\"event\": \"tool_c");
    record(&store, &call, "two\n").assert_success();
    assert_eq!(ended_calls(&store, "w1").len(), 2);

    for log in fs::read_dir(store.join("audit")).unwrap() {
        append(&log.unwrap().path(), "{\"time\": \"20");
    }
    record(&store, &["worker", "finish", "w1"], "").assert_success();
    assert_whole(&store);
    assert_readable(&store);
}

/// A whole last line without its end was written, so it stays.
#[test]
fn whole_last_line_without_its_end_is_kept() {
    let (_dir, store) = new_store();
    let message = "{\"role\": \"user\", \"content\": \"second\"}\n";
    fs::write(
        worker(&store, "w1").join("thread.jsonl"),
        "{\"role\": \"user\", \"content\": \"first\"}",
    )
    .unwrap();
    let recorded = record(&store, &["worker", "message", "w1"], message);
    assert_eq!(recorded.assert_success().err, "");
    let contents = worker_lines(&store, "w1", "thread.jsonl");
    assert_eq!(contents[0]["content"], "first");
    assert_eq!(contents[1]["content"], "second");
    assert_eq!(contents.len(), 2);
}
