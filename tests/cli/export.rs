//! `swarmletfs export`: the formats, where they are written, and what they hold.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::program::{CommandOutput, run, swarmletfs};
use crate::support::{TestStore, python};

/// Creates a store with a worker and its child, and one of another owner.
fn store() -> TestStore {
    let store = TestStore::new();
    let metadata = |owner: &str, more: Value| {
        let mut metadata = json!({"owner_id": owner, "run_id": "r1", "status": "completed",
            "task": "Mend it.", "model": "lab-1", "started_at": "2026-01-20T10:00:00Z"});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        metadata
    };
    store
        .worker("w1", metadata("7", json!({"cwd": "/home/annabel/shop"})))
        .call("w1", 1, "shell", r#"{"ok": true, "data": {"exit_code": 0, "stdout": "by Annabel"}}"#)
        .call("w1", 2, "shell", r#"{"ok": false, "data": {"exit_code": 2, "stderr": "red"}}"#);
    store.worker(
        "w2",
        metadata("7", json!({"parent_id": "w1", "started_at": "2026-01-22T10:00:00Z"})),
    );
    store.worker("w3", metadata("8", json!({"task": "A secret."})));
    store
}

fn export(store: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = swarmletfs(["export", "-q", "--no-cache", "--store"]);
    command.arg(store).args(arguments);
    run(command)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_format_holds_the_workers_and_their_calls() {
    let store = store();
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("exported");
    let done = export(&store.path(), &["--format", "atif", "-o", folder.to_str().unwrap()]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{}", done.err);
    let trajectory: Value =
        serde_json::from_slice(&fs::read(folder.join("w1.json")).unwrap()).unwrap();
    let result = &trajectory["steps"][1]["observation"]["results"][0];
    assert_eq!(result["extra"]["swarmletfs"]["outcome"], "failed", "{trajectory:#}");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(folder.join("w1.json")).unwrap().permissions().mode() & 0o777, 0o600);

    let spans = lines(&export(&store.path(), &["--format", "otlp"]).out);
    assert_eq!(spans.len(), 3);
    let ids = |number: usize| {
        let spans = &spans[number]["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let own = spans.as_array().unwrap().last().unwrap().clone();
        (own["traceId"].clone(), own["spanId"].clone(), own["parentSpanId"].clone())
    };
    let all: Vec<_> = (0..3).map(ids).collect();
    let child = all.iter().find(|(_, _, parent)| !parent.is_null()).unwrap();
    let parent = all.iter().find(|(_, own, _)| *own == child.2).unwrap();
    assert_eq!(parent.0, child.0, "a family is one trace");

    let rows = lines(&export(&store.path(), &["--format", "jsonl", "w1"]).out);
    let kinds: Vec<&str> = rows.iter().map(|row| row["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["worker", "call", "call"]);
    let recent = export(&store.path(), &["--format", "jsonl", "--since", "2026-01-21"]);
    let recent: Vec<Value> = lines(&recent.out).into_iter().map(|row| row["id"].clone()).collect();
    assert_eq!(recent, [json!("w2")]);
}

/// Promise: An export of an owner has nothing of others, and writes into no folder that holds
/// something.
#[test]
fn export_of_an_owner_goes_into_a_new_folder_only() {
    let store = store();
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("exported");
    let name = folder.to_str().unwrap();
    let done = export(&store.path(), &["--format", "swarmlet", "--owner", "7", "-o", name]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let listed = export(&folder, &["--format", "jsonl"]);
    assert!(listed.out.contains("\"w1\"") && !listed.out.contains("secret"), "{}", listed.out);
    let again = export(&store.path(), &["--format", "swarmlet", "-o", name]);
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("is not empty; try a new folder"), "{}", again.err);
    let other = export(&store.path(), &["--format", "jsonl", "--owner", "7", "w3"]);
    let absent = export(&store.path(), &["--format", "jsonl", "--owner", "7", "w4"]);
    assert_eq!((other.code, other.err.replace("w3", "w4")), (absent.code, absent.err));
}

/// Promise: Exports are read by the packages of others, with the same sums.
#[test]
fn packages_of_others_read_the_exports() {
    let Some(python) = python() else { return };
    let store = store();
    store.worker(
        "w4",
        json!({"status": "failed", "task": "x", "metrics": {"tokens": {"input": 9}}}),
    );
    let outside = tempfile::tempdir().unwrap();
    for (format, name) in [("atif", "atif"), ("otlp", "otlp.jsonl"), ("parquet", "parquet")] {
        let path = outside.path().join(name);
        let done = export(&store.path(), &["--format", format, "-o", path.to_str().unwrap()]);
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    let mut command = Command::new(python);
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/validators.py"))
        .arg(outside.path());
    let done = run(command);
    let seen: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}", done.err));
    let sums = json!({"workers": 4, "tokens": null, "calls": 2, "failed": 1});
    let wanted = json!({"atif": [4, 2], "otlp": 6, "pyarrow": sums, "duckdb": sums});
    assert_eq!(seen, wanted);
}

#[test]
fn redaction_is_counted() {
    let store = store();
    let done = export(&store.path(), &["--format", "jsonl", "--redact"]);
    assert_eq!(done.code, Some(0));
    assert!(!done.out.to_lowercase().contains("annabel"), "{}", done.out);
    assert!(
        done.out.contains("/home/user-1/shop") && done.out.contains("by user-1"),
        "{}",
        done.out
    );
    assert!(done.err.contains("replaced 2 users"), "{}", done.err);
}

#[test]
fn what_cannot_be_written_is_named() {
    let store = store();
    for (arguments, named) in [
        (&["--format", "swarmlet"][..], "cannot write a store to stdout; try -o FOLDER"),
        (&["--format", "parquet"], "cannot write"),
        (&["--format", "chrome-trace", "--redact"], "cannot redact chrome-trace"),
        (&["--format", "otlp", "-o", "/nowhere/x"], "there is no folder /nowhere"),
        (&["--format", "atif", "-o", "/nowhere/x"], "cannot make the folder /nowhere/x"),
    ] {
        let done = export(&store.path(), arguments);
        assert_eq!(done.code, Some(1), "{arguments:?}");
        assert!(done.err.contains(named), "{}", done.err);
    }
}
