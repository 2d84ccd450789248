//! Tests of the rules for a call's outcome, in their order.

use super::*;

/// Asserts the outcomes and exit codes of many outputs at once.
fn assert_all(table: &[(&str, &str, Option<i64>)]) {
    let found = outcomes(table.iter().map(|(output, ..)| *output));
    for ((output, outcome, exit_code), found) in table.iter().zip(found) {
        assert_eq!(found, ((*outcome).to_owned(), *exit_code), "{output}");
    }
}

/// Returns the outcome of a worker's only call, with this output and these records.
fn recorded(
    output: &str,
    metrics: Option<Value>,
    metadata: Option<Value>,
) -> (String, Option<i64>) {
    let store = TestStore::new();
    store.worker("w", metadata.map_or(json!({}), |call| json!({"tool_calls": [call]})));
    store.call("w", 1, "x", output);
    if let Some(metrics) = metrics {
        store.write("workers/w/metrics.jsonl", format!("{metrics}\n"));
    }
    let call = call(&index(&store.tree(), "w"), 1);
    (call["outcome"].as_str().unwrap().to_owned(), call["exit_code"].as_i64())
}

/// Promise: Rule 0: a recorded outcome overrides anything in the text.
#[test]
fn rule_0_recorded_outcome_overrides_the_text() {
    for (record, output, outcome) in [
        (json!({"success": true}), "Error: no such host", "ok"),
        (json!({"success": true}), "<tool-error>x</tool-error>", "ok"),
        (json!({"success": true}), r#"{"ok": false}"#, "ok"),
        (json!({"success": true}), "{'ok': False}", "ok"),
        (json!({"success": true}), r#"{"status_code": 500}"#, "ok"),
        (json!({"success": true}), "plain", "ok"),
        (json!({"success": false}), r#"{"ok": true, "data": {"exit_code": 0}}"#, "failed"),
        (json!({"success": false}), "plain", "failed"),
        (json!({"exit_code": 0}), "Error: no such host", "ok"),
        (json!({"exit_code": 3}), r#"{"ok": true}"#, "failed"),
        (json!({"exit_code": -1}), "plain", "failed"),
        (json!({"success": true, "exit_code": 1}), "plain", "failed"),
        (json!({"success": false, "exit_code": 0}), "plain", "failed"),
    ] {
        let mut metrics = record.clone();
        metrics["event"] = json!("tool_call");
        metrics["tool"] = json!("x");
        assert_eq!(
            recorded(output, Some(metrics), None).0,
            outcome,
            "metrics {record} over {output}"
        );
        let mut metadata = record.clone();
        metadata["name"] = json!("x");
        assert_eq!(
            recorded(output, None, Some(metadata)).0,
            outcome,
            "metadata {record} over {output}"
        );
    }
}

#[test]
fn ok_result_object_of_a_command_that_shows_a_failure_is_suspect() {
    for (output, line) in [
        (r#"{"ok": true, "data": {"exit_code": 0, "stdout": "--- FAIL: TestTide\n"}}"#, true),
        (r#"{"exit_code": 0, "stdout": "", "stderr": "--- FAIL: TestTide\n"}"#, true),
        (r#"{"exit_code": 1, "stdout": "--- FAIL: TestTide\n"}"#, false),
        (r#"{"ok": true, "data": {"text": "--- FAIL: TestTide\n"}}"#, false),
        ("--- FAIL: TestTide\n", false),
    ] {
        let store = TestStore::new();
        store.worker("w", json!({})).call("w", 1, "shell", output);
        let one = call(&index(&store.tree(), "w"), 1);
        assert_eq!(one["suspect"].as_str(), line.then_some("--- FAIL: TestTide"), "{output}");
    }
}

#[test]
fn rule_0_does_not_apply_without_a_record() {
    for record in
        [json!({}), json!({"success": null}), json!({"success": "yes"}), json!({"duration_ms": 5})]
    {
        let mut metrics = record.clone();
        metrics["event"] = json!("tool_call");
        metrics["tool"] = json!("x");
        assert_eq!(recorded("Error: x", Some(metrics.clone()), None).0, "failed", "{record}");
        assert_eq!(recorded("plain", Some(metrics), None).0, "unknown", "{record}");
    }
    let of_another = json!({"event": "tool_call", "tool": "y", "success": true});
    assert_eq!(
        recorded("Error: x", Some(of_another), None).0,
        "failed",
        "a record of another tool"
    );
}

#[test]
fn rule_0_a_recorded_exit_code_is_shown() {
    let metrics = json!({"event": "tool_call", "tool": "x", "exit_code": 3});
    assert_eq!(recorded("plain", Some(metrics), None), ("failed".into(), Some(3)));
}

#[test]
fn rule_1_an_object_that_is_not_ok_failed() {
    assert_all(&[
        (r#"{"ok": false}"#, "failed", None),
        (r#"{"ok": false, "error": "x"}"#, "failed", None),
        (r#"{"ok": false, "data": {"exit_code": 0}}"#, "failed", Some(0)),
        (r#"{"ok": null}"#, "failed", None),
        (r#"{"ok": 0}"#, "failed", None),
        (r#"{"ok": ""}"#, "failed", None),
        (r#"{"ok": []}"#, "failed", None),
        ("\n  {\"ok\": false}\n", "failed", None),
    ]);
}

#[test]
fn rule_1_else_the_exit_code_decides() {
    assert_all(&[
        (r#"{"ok": true, "data": {"exit_code": 1}}"#, "failed", Some(1)),
        (r#"{"ok": true, "exit_code": 1}"#, "failed", Some(1)),
        (r#"{"exit_code": -1}"#, "failed", Some(-1)),
        (r#"{"ok": true, "data": {"exit_code": -1}}"#, "failed", Some(-1)),
        (r#"{"exit_code": 137, "stdout": ""}"#, "failed", Some(137)),
        (r#"{"data": {"exit_code": 2}, "exit_code": 0}"#, "failed", Some(2)),
        (r#"{"data": {"exit_code": null}, "exit_code": 2}"#, "failed", Some(2)),
        (r#"{"data": "text", "exit_code": 2}"#, "failed", Some(2)),
        (r#"{"exit_code": "1"}"#, "unknown", None),
        (r#"{"exit_code": null}"#, "unknown", None),
        (r#"{"exit_code": true}"#, "unknown", None),
    ]);
}

#[test]
fn rule_2_python_dictionaries_are_judged_like_json() {
    assert_all(&[
        ("{'ok': False}", "failed", None),
        ("{'ok': False, 'error': None, 'data': None}", "failed", None),
        ("{'ok': True, 'data': {'exit_code': 1, 'stdout': \"it's\"}}", "failed", Some(1)),
        ("{'ok': True, 'data': {'exit_code': -1}}", "failed", Some(-1)),
        (
            "{'ok': True, 'data': {'exit_code': 0, 'stdout': 'a\\nb', 'items': [1, 2.5, (3,), None]}}",
            "ok",
            Some(0),
        ),
        ("{'ok': True}", "ok", None),
        ("{'status_code': 404}", "failed", None),
        ("{'ok': False", "unknown", None),
        ("{'ok': open('x')}", "unknown", None),
    ]);
}

#[test]
fn rule_3_error_texts_failed_without_an_exit_code() {
    assert_all(&[
        ("<tool-error>no route to host</tool-error>", "failed", None),
        ("<tool-error>", "failed", None),
        ("Error: no such host", "failed", None),
        ("\n  Error: no such host\nexit_code: 3", "failed", None),
        ("An Error: in the middle", "unknown", None),
        ("error: lower case is only a guess", "unknown", None),
        ("Errors: 0", "unknown", None),
        ("exit status 1", "unknown", None),
    ]);
}

#[test]
fn rule_4_http_results_failed_at_0_and_from_400_on() {
    assert_all(&[
        (r#"{"status_code": 0}"#, "failed", None),
        (r#"{"status_code": 400}"#, "failed", None),
        (r#"{"status_code": 503, "body": ""}"#, "failed", None),
        (r#"{"ok": true, "data": {"status_code": 404}}"#, "failed", None),
        (r#"{"ok": true, "status_code": 500}"#, "failed", None),
        (r#"{"status_code": 399}"#, "unknown", None),
        (r#"{"status_code": 200}"#, "unknown", None),
        (r#"{"ok": true, "data": {"status_code": 200}}"#, "ok", None),
        (r#"{"status_code": "500"}"#, "unknown", None),
    ]);
}

/// Promise: Rule 6: no call is ok only because nothing was recognized.
#[test]
fn rule_6_unrecognized_output_is_not_ok() {
    assert_all(&[
        ("", "unknown", None),
        ("all fine, 0 errors, success", "unknown", None),
        ("{}", "unknown", None),
        (r#"{"result": "fine"}"#, "unknown", None),
        (r#"{"ok": "yes"}"#, "unknown", None),
        ("{broken", "unknown", None),
        (r#"{"ok": true}"#, "ok", None),
        (r#"{"exit_code": 0}"#, "ok", Some(0)),
        (r#"{"ok": true, "data": {"exit_code": 0}}"#, "ok", Some(0)),
    ]);
}

#[test]
fn json_other_than_objects_is_plain_text() {
    let texts = [
        "4",
        "0",
        "-1",
        "[]",
        "[{\"ok\": false}]",
        "null",
        "true",
        "false",
        "\"x\"",
        "\"Error: x\"",
    ];
    let table: Vec<(&str, &str, Option<i64>)> =
        texts.iter().map(|text| (*text, "unknown", None)).collect();
    assert_all(&table);
    let store = TestStore::new();
    store.worker("w", json!({}));
    for (at, text) in texts.iter().enumerate() {
        store.call("w", at as u32 + 1, "x", text);
    }
    let evidence = text(&store.tree(), "w", "evidence.txt");
    for text in texts {
        assert!(evidence.contains(&format!("\n{text}\n")), "{text} is shown");
    }
}

#[test]
fn an_object_larger_than_the_head_is_judged_as_a_whole() {
    let large = format!(r#"{{"stdout": "{}", "exit_code": 7}}"#, "x".repeat(300_000));
    assert_eq!(outcomes([large.as_str()]), [("failed".to_owned(), Some(7))]);
}
