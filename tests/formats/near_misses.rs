//! Spellings that are not documented but can mean only one thing, in the worker artifact store.

use super::*;

/// Returns the index of a worker with only this metadata.
fn index_of(metadata: Value) -> Value {
    let store = TestStore::new();
    store.write("workers/w/metadata.json", metadata.to_string());
    index(&store.tree(), "w")
}

/// Promise: A spelling that can mean only one thing is read, and noted.
#[test]
fn synonyms_of_a_status_are_read() {
    for (word, status) in [
        ("done", "completed"),
        ("finished", "completed"),
        ("succeeded", "completed"),
        ("error", "failed"),
        ("In Progress", "running"),
        ("pending", "created"),
        ("cancelled", "abandoned"),
        ("canceled", "abandoned"),
        ("odd", "unknown"),
        ("not done", "unknown"),
    ] {
        let index = index_of(json!({"status": word}));
        assert_eq!((&index["status"], &index["status_source"]), (&json!(status), &json!(word)));
    }
}

#[test]
fn an_exit_code_states_the_status_if_no_word_does() {
    for (metadata, status) in [
        (json!({"exit_code": 0}), "completed"),
        (json!({"exit_code": 3}), "failed"),
        (json!({"exit_code": "3"}), "failed"),
        (json!({"config": {"exit_code": 3}}), "failed"),
        (json!({"exit_code": 3, "status": "done"}), "failed"),
        (json!({"exit_code": 0, "status": "finished"}), "completed"),
        (json!({"exit_code": 3, "status": "completed"}), "completed"),
        (json!({"exit_code": 0, "status": "running"}), "running"),
        (json!({"exit_code": 0, "status": "failed"}), "failed"),
        (json!({"exit_code": true}), "unknown"),
        (json!({"exit_code": null}), "unknown"),
        (json!({"exit_code": 1.5}), "unknown"),
    ] {
        assert_eq!(index_of(metadata.clone())["status"], status, "{metadata}");
    }
}

#[test]
fn the_title_of_a_worker_is_its_summary() {
    assert_eq!(index_of(json!({"title": "T"}))["summary"], "T");
    assert_eq!(index_of(json!({"title": "T", "summary": "S"}))["summary"], "S");
    let store = TestStore::new();
    store.write("workers/w/metadata.json", "{}");
    store.write("workers/index.json", r#"[{"id": "w", "title": "T"}]"#);
    assert_eq!(index(&store.tree(), "w")["summary"], "T");
}

#[test]
fn numbers_of_calls_have_any_number_of_digits() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for name in ["1_shell.txt", "02_shell.txt", "0003_shell.txt", "10000_shell.txt"] {
        store.write(format!("workers/w/tool_calls/{name}"), r#"{"ok": true}"#);
    }
    for name in ["5_shell.json", "x_shell.txt", "6-shell.txt", "7shell.txt", "_shell.txt"] {
        store.write(format!("workers/w/tool_calls/{name}"), r#"{"ok": true}"#);
    }
    let index = index(&store.tree(), "w");
    let numbers: Vec<u64> = index["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["number"].as_u64().or(call["seq"].as_u64()).unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 10_000]);
}

#[test]
fn metrics_may_name_a_tool_and_its_success_otherwise() {
    let outcome = |line: &str| {
        let store = TestStore::new();
        store.worker("w", json!({})).call("w", 1, "shell", "plain text");
        store.write("workers/w/metrics.jsonl", line);
        index(&store.tree(), "w")["tool_calls"][0]["outcome"].clone()
    };
    for (line, expected) in [
        (r#"{"event": "tool_call", "tool": "shell", "success": true}"#, "ok"),
        (r#"{"event": "tool_call", "name": "shell", "ok": false}"#, "failed"),
        (r#"{"name": "shell", "ok": true}"#, "ok"),
        (r#"{"tool": "shell", "exit_code": 2}"#, "failed"),
        (r#"{"tool": "shell", "success": true, "ok": false}"#, "ok"),
        (r#"{"event": "llm_call", "name": "shell", "ok": true}"#, "unknown"),
        (r#"{"name": "shell"}"#, "unknown"),
        (r#"{"name": "shell", "ok": "yes"}"#, "unknown"),
        (r#"{"name": "other", "ok": true}"#, "unknown"),
    ] {
        assert_eq!(outcome(line), expected, "{line}");
    }
}
