//! Calls that are recorded while they run: numbers, starts and inputs in metrics.jsonl.

use super::*;

const START: &str = "2026-01-20T10:00:05Z";

/// Returns a store with the worker `w` of this status, whose metrics.jsonl has these lines.
fn store(status: &str, files: &[(u32, &str, &str)], lines: &[Value]) -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({"status": status}));
    for (number, tool, output) in files {
        store.call("w", *number, tool, output);
    }
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
    store.write("workers/w/metrics.jsonl", lines.concat());
    store
}

fn start(seq: u64, tool: &str, input: Value) -> Value {
    json!({"event": "call_start", "seq": seq, "tool": tool, "input": input, "start_ts": START})
}

fn end(seq: u64, tool: &str, success: bool) -> Value {
    json!({"event": "tool_call", "seq": seq, "tool": tool, "success": success})
}

/// Promise: A record with a number belongs to the call of that number, whatever its place.
#[test]
fn records_with_a_number_belong_to_its_file() {
    let files = [(1, "sh", ""), (2, "sh", ""), (3, "sh", ""), (4, "sql", ""), (5, "sh", "")];
    let lines = [
        // These have no number: they belong to the calls 1 and 5.
        json!({"event": "tool_call", "tool": "sh", "success": true, "duration_ms": 10}),
        json!({"event": "tool_call", "tool": "sh", "success": false, "duration_ms": 50}),
        json!({"event": "tool_call", "tool": "sh", "success": true, "duration_ms": 60}),
        json!({"event": "tool_call", "seq": 3, "tool": "sh", "success": false, "duration_ms": 30}),
        json!({"event": "tool_call", "seq": 2, "tool": "sh", "success": true, "duration_ms": 20}),
        // The first record of a call counts.
        json!({"event": "tool_call", "seq": 2, "tool": "sh", "success": false, "duration_ms": 21}),
        // These have no effect: another tool, no file, and no number that is readable.
        json!({"event": "tool_call", "seq": 4, "tool": "sh", "success": true, "duration_ms": 40}),
        json!({"event": "tool_call", "seq": 9, "tool": "sh", "success": true}),
        json!({"event": "tool_call", "seq": "4", "tool": "sql", "success": true}),
    ];
    let index = index(&store("completed", &files, &lines).tree(), "w");
    let calls: Vec<(Value, Value)> = (1..=5)
        .map(|seq| call(&index, seq))
        .map(|call| (call["outcome"].clone(), call["duration_ms"].clone()))
        .collect();
    let expected = [
        (json!("ok"), json!(10)),
        (json!("ok"), json!(20)),
        (json!("failed"), json!(30)),
        (json!("unknown"), Value::Null),
        (json!("failed"), json!(50)),
    ];
    assert_eq!(calls, expected, "{index:#}");
}

#[test]
fn records_in_the_metadata_may_have_numbers() {
    let store = TestStore::new();
    let calls = json!([
        {"tool": "sh", "duration_ms": 5},
        {"seq": 1, "tool": "sh", "success": false, "input": "make"},
    ]);
    store.worker("w", json!({"tool_calls": calls})).call("w", 1, "sh", "").call("w", 2, "sh", "");
    let index = index(&store.tree(), "w");
    let (first, second) = (call(&index, 1), call(&index, 2));
    assert_eq!((&first["outcome"], &first["input"]), (&json!("failed"), &json!("make")));
    assert_eq!((&second["outcome"], &second["duration_ms"]), (&json!("unknown"), &json!(5)));
}

#[test]
fn the_input_in_a_record_wins_over_that_of_the_thread() {
    let files = [(1, "sh", ""), (2, "sh", ""), (3, "sh", ""), (4, "note", "")];
    let lines = [
        start(2, "sh", json!({"command": "df -h"})),
        json!({"event": "tool_call", "seq": 2, "tool": "sh", "success": true}),
        json!({"event": "tool_call", "seq": 3, "tool": "sh", "input": null, "success": true}),
        json!({"event": "tool_call", "tool": "note", "input": "as  text", "success": true}),
    ];
    let store = store("completed", &files, &lines);
    let calls: Vec<Value> = (1..=3)
        .map(|n| json!({"name": "sh", "args": {"command": format!("in thread {n}")}}))
        .collect();
    let message = json!({"role": "assistant", "content": "", "tool_calls": calls});
    store.write("workers/w/thread.jsonl", message.to_string());
    let index = index(&store.tree(), "w");
    let inputs: Vec<Value> = (1..=4).map(|seq| call(&index, seq)["input"].clone()).collect();
    assert_eq!(inputs, ["in thread 1", "df -h", "in thread 3", "as text"]);
}

/// Promise: A call that has begun and not ended is running, and its output is not judged yet.
#[test]
fn open_calls_of_an_unfinished_worker_are_running() {
    let files =
        [(1, "sh", r#"{"ok": true}"#), (2, "sql", r#"{"ok": false}"#), (3, "sh", "Error: x")];
    let lines = [
        start(1, "sh", json!({"command": "true"})),
        start(2, "sql", json!({"query": "select 1"})),
        end(1, "sh", true),
        start(3, "sh", json!({"command": "make all"})),
    ];
    let store = store("running", &files, &lines);
    let tree = store.tree();
    let index = index(&tree, "w");
    assert_eq!(index["outcome"], "unknown", "{index:#}");
    assert!(call(&index, 1).get("open").is_none(), "{index:#}");
    for seq in [2, 3] {
        let call = call(&index, seq);
        assert_eq!((&call["outcome"], &call["open"]), (&json!("unknown"), &json!(true)));
    }
    assert!(!checks(&index).contains(&"call_without_end"), "{index:#}");
    let summary = text(&tree, "w", "summary");
    for line in [
        "calls    3: 0 failed, 0 suspect, 0 unknown, 1 ok, 0 not run, 2 running\n",
        "  ok      001_sh.txt 12 B  $ true\n",
        "  running 002_sql.txt 13 B since 2026-01-20T10:00:05Z  $ select 1\n",
        "  running 003_sh.txt 8 B since 2026-01-20T10:00:05Z  $ make all\n",
    ] {
        assert!(summary.contains(line), "{line:?} is not in {summary}");
    }
    let evidence = text(&tree, "w", "evidence.txt");
    assert!(evidence.contains("Calls: 3 (0 failed, 0 unknown, 2 running)"), "{evidence}");
    assert!(evidence.contains("tool_calls/003_sh.txt (8 B, running): "), "{evidence}");
    let swarm = see(&tree, "summary").unwrap().text().to_owned();
    assert!(
        swarm.contains(
            "    1 call ended, 2 running: 002_sql.txt since 2026-01-20T10:00:05Z $ select 1\n"
        ),
        "{swarm}"
    );
}

/// Promise: A call without an end in a worker that has finished is unknown, and a check names it.
#[test]
fn open_calls_of_a_finished_worker_are_unknown() {
    for status in ["failed", "completed", "abandoned"] {
        let files = [(1, "sh", ""), (2, "sh", r#"{"ok": true}"#)];
        let lines = [start(1, "sh", json!("a")), end(1, "sh", true), start(2, "sh", json!("b"))];
        let store = store(status, &files, &lines);
        let tree = store.tree();
        let index = index(&tree, "w");
        let open = call(&index, 2);
        assert_eq!((&open["outcome"], &open["open"]), (&json!("unknown"), &json!(true)));
        let found = index["checks"].as_array().unwrap().iter();
        let found: Vec<&Value> =
            found.filter(|check| check["name"] == "call_without_end").collect();
        assert_eq!(
            found,
            [&json!({
                "name": "call_without_end", "kind": "data_quality",
                "says": "the call began, and its record does not say how it ended",
                "file": "tool_calls/002_sh.txt",
            })],
            "{status}"
        );
        let summary = text(&tree, "w", "summary");
        assert!(summary.contains(" 1 unknown, 1 ok, 0 not run\n"), "{summary}");
        assert!(summary.contains("  unknown 002_sh.txt 12 B  $ b\n"), "{summary}");
        let evidence = text(&tree, "w", "evidence.txt");
        assert!(!evidence.contains("running"), "{evidence}");
    }
}

#[test]
fn a_running_call_gets_its_outcome_when_it_ends() {
    let store = store("running", &[(1, "sh", "begun\n")], &[start(1, "sh", json!("make"))]);
    let tree = store.tree();
    assert_eq!(call(&index(&tree, "w"), 1)["open"], true);
    store.write("workers/w/tool_calls/001_sh.txt", "begun\nand ended\n");
    let lines = [start(1, "sh", json!("make")), end(1, "sh", false)];
    store.write("workers/w/metrics.jsonl", format!("{}\n{}\n", lines[0], lines[1]));
    let ended = call(&index(&tree, "w"), 1);
    assert_eq!((&ended["outcome"], ended.get("open")), (&json!("failed"), None));
    assert_eq!((&ended["bytes"], &ended["input"]), (&json!(16), &json!("make")));
}

#[test]
fn temporary_entries_are_no_workers_and_not_listed() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "completed"})).call("w", 1, "sh", r#"{"ok": true}"#);
    let tree = store.tree();
    let before = index(&tree, "w");
    for path in [
        "workers/.swarmletfs-new-abc/metadata.json",
        ".swarmletfs-new-abc/metadata.json",
        "workers/w/outputs/.swarmletfs-tmp-1",
        "workers/w/.swarmletfs-tmp-2",
        "workers/w/tool_calls/.swarmletfs-tmp-3",
    ] {
        store.write(path, r#"{"status": "failed", "task": "temporary"}"#);
    }
    assert_eq!(listed(&tree), ["w"]);
    assert_eq!(names(&tree, "workers/w/outputs").unwrap(), Vec::<Vec<u8>>::new());
    let after = index(&tree, "w");
    assert_eq!(after["files"], before["files"]);
    let found = see(&tree, "grep/temporary").unwrap().text().to_owned();
    assert!(!found.contains("swarmletfs-tmp"), "{found}");
    assert_eq!(json_at(&tree, "index.json")["skipped"]["not_workers"], 0);
}

#[test]
fn the_log_of_changes_is_no_worker() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.write("audit/2026-11-24.jsonl", "{}\n");
    let tree = store.tree();
    assert_eq!(listed(&tree), ["w"]);
    assert!(see(&tree, "audit").is_err());
    assert_eq!(json_at(&tree, "index.json")["skipped"]["not_workers"], 0);
    // A worker of an older store may have this name.
    store.write("audit/metadata.json", "{}");
    assert_eq!(listed(&tree), ["audit", "w"]);
    // It is no reserved name among the workers.
    let store = TestStore::new();
    store.worker("audit", json!({}));
    assert_eq!(listed(&store.tree()), ["audit"]);
}
