//! The line of cause: its source, its text, and the grouping of workers.

use super::*;

/// Returns the lines of cause in the swarm's evidence, without their marker.
fn causes(store: &TestStore) -> Vec<String> {
    let report = hold(&evidence(&store.tree(), "", 28_000), 28_000).unwrap();
    report
        .lines
        .iter()
        .filter_map(|line| Some(line.strip_prefix("[FAILED] ")?.to_owned()))
        .collect()
}

/// Returns the cause of the only worker `w`, which must be equal in every file that shows it.
fn cause(store: &TestStore) -> String {
    let lines = causes(store);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let cause = lines[0].strip_prefix("w: ").unwrap().to_owned();
    let tree = store.tree();
    let summary = see(&tree, "workers/w/summary").unwrap().text().to_owned();
    assert!(summary.contains(&format!("\ncause    {cause}\n")), "{summary}");
    cause
}

fn failed_worker(metadata: serde_json::Value) -> TestStore {
    let store = TestStore::new();
    let mut all = json!({"status": "failed"});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    store.worker("w", all);
    store
}

/// Promise: Causes are grouped only if their text differs in nothing but times.
#[test]
fn causes_are_grouped_only_if_equal_but_for_times() {
    let store = TestStore::new();
    for number in 0..42 {
        let id = format!("answer-{number:02}");
        store.worker(&id, json!({"status": "failed"})).call(
            &id,
            1,
            "x",
            format!("working on it\nFINAL ANSWER: {number}\n"),
        );
    }
    for number in 0..5 {
        let (id, minute) = (format!("timed-{number}"), 10 + number);
        let output = format!(
            "Error: 2026-01-20T10:{minute}:00Z \x1b[3{number}mport 80 did not answer\x1b[0m within {minute}.5s\n"
        );
        store.worker(&id, json!({})).call(&id, 1, "x", output);
    }
    let lines = causes(&store);
    assert_eq!(lines.len(), 43, "{lines:#?}");
    let timed = "5 workers (timed-0, timed-1, timed-2, timed-3, timed-4): Error: 2026-01-20T10:10:00Z port 80 did not \
                 answer within 10.5s";
    assert_eq!(lines[0], timed);
    for number in 0..42 {
        let line = format!(
            "answer-{number:02}: no error message found; last output: FINAL ANSWER: {number}"
        );
        assert!(lines.contains(&line), "{number}: {lines:#?}");
    }
    // Without room for all last outputs, the workers share a line without them.
    let report = hold(&evidence(&store.tree(), "", 2_000), 2_000).unwrap();
    assert_eq!(report.lines.len(), 2, "{report:#?}");
    assert!(
        report.lines[1].starts_with("[FAILED] 42 workers (answer-00, answer-01, "),
        "{report:#?}"
    );
    assert!(report.lines[1].ends_with("): no error message found"), "{report:#?}");
    let summary = see(&store.tree(), "summary").unwrap().text().to_owned();
    assert!(
        summary.contains(" more causes, in evidence.txt\n") && summary.len() <= 4_096,
        "{summary}"
    );
}

/// Promise: A line of a call that did not fail is never reported as the cause of a failure.
#[test]
fn successful_call_is_never_the_cause_of_a_failure() {
    let warning = "/app/scenario.py:94: UserWarning: the model does not match\nError: in passing\nall written\n";
    let ok = json!({"ok": true, "data": {"exit_code": 0, "stdout": warning}}).to_string();
    for output in [warning.to_owned(), ok] {
        let store = failed_worker(json!({}));
        store.call("w", 1, "x", &output);
        assert_eq!(cause(&store), "no error message found; last output: all written", "{output}");
        store.worker("w", json!({"status": "failed", "error": "stopped after 300 s"}));
        assert_eq!(cause(&store), "stopped after 300 s", "{output}");
        // An earlier failed call is a cause.
        store.call("w", 2, "x", "Error: no route\n");
        store.call("w", 3, "x", &output);
        assert_eq!(cause(&store), "Error: no route", "{output}");
    }
}

#[test]
fn failed_call_without_a_message_is_marked() {
    let store = failed_worker(json!({}));
    store.call("w", 1, "x", json!({"exit_code": 3, "stdout": "one\ntwo\n"}).to_string());
    assert_eq!(cause(&store), "exit=3: no error message found; last output: two");
    let store = failed_worker(json!({}));
    assert_eq!(cause(&store), "no error message found");
}

#[test]
fn cause_of_a_worker_without_calls_comes_from_its_logs() {
    let store = failed_worker(json!({}));
    store.write("workers/w/logs/execution.log", "began\nERROR: no space left\nended\n");
    store.write("workers/w/result.txt", "Error: this is only what it says\n");
    assert_eq!(cause(&store), "ERROR: no space left");
    store.write("workers/w/logs/execution.log", "began\nended\n");
    assert_eq!(cause(&store), "no error message found; last output: ended");
}

#[test]
fn causes_show_text_not_json_escapes() {
    let text = "could not extend file \"base/24576\": No space left on device";
    let stderr = format!("pg_restore: error: {text}\nHINT: \"free\" some space\n");
    let json =
        json!({"ok": true, "data": {"exit_code": 1, "stdout": "a \"b\"\n", "stderr": stderr}});
    // Too large to decode as a whole, and truncated.
    let large =
        json!({"exit_code": 1, "stdout": "a \"b\"\n".repeat(60_000), "stderr": stderr}).to_string();
    let torn = json.to_string().trim_end_matches('}').to_owned();
    let python = format!(
        "{{'ok': False, 'data': {{'exit_code': 1}}, 'stderr': 'pg_restore: error: {}\\nHINT'}}",
        text
    );
    let line = format!(
        "<tool-error>\n{}\n",
        json!({"level": "error", "message": format!("error: {text}")})
    );
    for output in
        [json.to_string(), serde_json::to_string_pretty(&json).unwrap(), large, torn, python, line]
    {
        let store = failed_worker(json!({}));
        store.call("w", 1, "x", &output);
        store.write(
            "workers/w/metrics.jsonl",
            json!({"event": "tool_call", "tool": "x", "success": false}).to_string(),
        );
        let cause = cause(&store);
        assert!(cause.contains(text) && !cause.contains('\\'), "{cause} of {output:.200}");
    }
}

#[test]
fn error_under_its_own_key_is_a_cause() {
    for output in
        [r#"{"ok": false, "error": "SERVFAIL \"x\""}"#, r#"{'ok': False, 'error': 'SERVFAIL "x"'}"#]
    {
        let store = failed_worker(json!({}));
        store.call("w", 1, "x", output);
        assert_eq!(cause(&store), "error: SERVFAIL \"x\"", "{output}");
    }
}

#[test]
fn lines_with_a_reason_come_before_lines_without() {
    let log = "<tool-error>\n\
               src/lib.x:3: error: no such field `size`\n\
               going on\n\
               Build step failed\n\
               make: *** [all] Error 2\n\
               The command \"make all\" exited with code 2.\n";
    let store = failed_worker(json!({}));
    store.call("w", 1, "x", log);
    assert!(
        cause(&store).starts_with("src/lib.x:3: error: no such field `size` | "),
        "{}",
        cause(&store)
    );
    let store = failed_worker(json!({}));
    store.call(
        "w",
        1,
        "x",
        "<tool-error>\ngoing on\nThe command \"make all\" exited with code 2.\n",
    );
    assert_eq!(cause(&store), "The command \"make all\" exited with code 2.");
}

/// Promise: A summary lists each worker once, by what matters most.
#[test]
fn summary_lists_each_worker_once() {
    let store = TestStore::new();
    let (ok, bad) = ("{\"ok\": true}", "{\"ok\": false, \"error\": \"gone\"}");
    for (id, status, output) in [
        ("claims-too-much", "success", bad),
        ("still-at-work", "running", bad),
        ("moving", "running", ok),
        ("fails", "failed", "Error: gone\n"),
        ("doubtful", "success", ok),
    ] {
        store.worker(id, json!({"status": status, "run_id": "r"})).call(id, 1, "x", output);
        store.write(format!("workers/{id}/result.txt"), "See outputs/report.md.");
    }
    let tree = store.tree();
    for path in ["summary", "runs/r/summary"] {
        let summary = see(&tree, path).unwrap().text().to_owned();
        let (lists, table) = summary.split_once("\n\nid ").unwrap();
        for id in ["claims-too-much", "still-at-work", "moving", "fails", "doubtful"] {
            let short = &id[..id.len().min(8)];
            let row = table.lines().filter(|line| line.starts_with(short)).count();
            let listed = lists.lines().filter(|line| line.starts_with(&format!("  {short}  ")));
            assert_eq!((row, listed.count()), (1, 1), "{id}: {summary}");
        }
        let has = |text: &str| assert!(summary.contains(text), "{text}: {summary}");
        has("\nat work (2):\n");
        has("\n    failed: error: gone\n");
        has("\nfailed or red at the end (2):\n");
        has(": claims success, but error: gone\n");
        has("\nsaid done, but (1):\n  doubtful");
        has("    its final words name this file, which does not exist\n");
    }
}
