//! Tests of calls that never ran: refused, without permission, or cancelled.

use super::*;
use crate::formats::checks;

/// Returns the line of a failed result of the call `id` with more fields.
fn failed_result(id: &str, text: &str, fields: Value) -> Value {
    let block =
        json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": true});
    let mut line = json!({"type": "user", "message": {"role": "user", "content": [block]}});
    for (key, value) in fields.as_object().unwrap() {
        line[key] = value.clone();
    }
    line
}

fn outcome(text: &str, fields: Value) -> Value {
    let mut transcript = begun();
    transcript.call("t", "Bash", json!({"command": "x"})).line(failed_result("t", text, fields));
    call(&shown(&transcript).index("s"), 1)["outcome"].clone()
}

/// Promise: A call that never ran is neither a failure nor a success.
#[test]
fn call_that_never_ran_is_neither_failure_nor_success() {
    let mut transcript = begun();
    transcript.bash("a", "make", "built").call("b", "Bash", json!({"command": "rm -r /"}));
    transcript.line(failed_result("b", "denied", json!({"toolDenialKind": "permission-rule"})));
    transcript.says("Done.");
    let seen = shown(&transcript);
    let index = seen.index("s");
    assert_eq!(call(&index, 2)["outcome"], "not_run");
    assert_eq!(index["outcome"], "ok");
    assert_eq!(checks(&index), Vec::<&str>::new());
    let counts = &index["calls"];
    assert_eq!(
        (&counts["total"], &counts["failed"], &counts["unknown"], &counts["not_run"]),
        (&json!(2), &json!(0), &json!(0), &json!(1))
    );
    assert!(seen.text("s", "summary").contains("1 not run"));
    // The thread tells the same.
    let thread = seen.thread("s");
    let outcomes: Vec<&Value> = thread.iter().filter_map(|line| line.get("outcome")).collect();
    assert_eq!(outcomes, ["ok", "not_run"]);
    // Alone, it is no success.
    let mut transcript = begun();
    transcript.call("b", "Bash", json!({"command": "x"}));
    transcript.line(failed_result("b", "denied", json!({"toolDenialKind": "permission-rule"})));
    assert_eq!(shown(&transcript.says("Done.").clone()).index("s")["outcome"], "unknown");
}

/// Promise: The record decides whether a call ran, and its text only if the record does not.
#[test]
fn record_decides_whether_a_call_ran() {
    const CUT_OFF: &str = "The user doesn't want to proceed with this tool use. The tool use was \
                           rejected (eg. if it was a file edit).";
    let refused = "Permission to use Bash with command x has been denied.";
    let accepted = json!({"permissionDecision": {"decision": "accept", "source": "config"}});
    for (text, fields, expected) in [
        ("any text", json!({"toolDenialKind": "permission-rule"}), "not_run"),
        ("any text", json!({"toolDenialKind": "x", "toolDenialBeforeRun": true}), "not_run"),
        ("any text", json!({"permissionDecision": {"decision": "reject"}}), "not_run"),
        // The call may have been stopped while it ran.
        ("any text", json!({"toolDenialKind": "user-rejected"}), "unknown"),
        ("any text", json!({"toolDenialKind": "later"}), "unknown"),
        (CUT_OFF, json!({}), "unknown"),
        (CUT_OFF, accepted.clone(), "unknown"),
        ("[Request interrupted by user for tool use]", json!({}), "unknown"),
        ("any text", json!({"toolDenialKind": ""}), "failed"),
        ("any text", json!({"toolDenialKind": 7}), "failed"),
        (refused, json!({}), "not_run"),
        ("This command requires approval", json!({}), "not_run"),
        ("PreToolUse:Bash hook error: [/h.sh]: no network here", json!({}), "not_run"),
        ("Permission for this action has been denied. Reason: it deletes", json!({}), "not_run"),
        (
            "Permission for this tool use was denied. The tool use was rejected",
            json!({}),
            "not_run",
        ),
        ("<tool_use_error>Blocked: standalone sleep 100.</tool_use_error>", json!({}), "not_run"),
        (
            "<tool_use_error>File is in a directory that is denied by your permission settings.\
          </tool_use_error>",
            json!({}),
            "not_run",
        ),
        ("Claude requested permissions to write to /x, but", json!({}), "not_run"),
        // A hook withheld the result of a call that ran.
        (refused, json!({"toolDenialKind": "x", "toolDenialAfterRun": true}), "failed"),
        // A program that imitates a refusal.
        (refused, accepted, "failed"),
        // Mistakes of the model are failures.
        ("<tool_use_error>Error: No such tool available: X</tool_use_error>", json!({}), "failed"),
    ] {
        assert_eq!(outcome(text, fields.clone()), expected, "{text}: {fields}");
    }
    // A result that is no error is none.
    let mut transcript = begun();
    let mut line = failed_result("t", "fine", json!({"toolDenialKind": "user-rejected"}));
    line["message"]["content"][0]["is_error"] = json!(false);
    transcript.call("t", "Bash", json!({"command": "x"})).line(line);
    assert_eq!(call(&shown(&transcript).index("s"), 1)["outcome"], "ok");
}

/// Promise: Only a later success of what a call attempted resolves its failure.
#[test]
fn only_a_later_success_of_the_same_attempt_resolves_a_failure() {
    let outcome = |later: &str| {
        let mut transcript = begun();
        transcript.call("a", "Bash", json!({"command": "cd /x && make test --all"}));
        transcript.result("a", json!({"content": "Exit code 1\nno", "is_error": true}));
        transcript.bash("b", later, "fine").says("Done.");
        let index = shown(&transcript).index("s");
        let is_checked = checks(&index).contains(&"failure_never_made_good");
        (index["outcome"].as_str().unwrap().to_owned(), is_checked)
    };
    assert_eq!(outcome("make test"), ("ok".to_owned(), false));
    assert_eq!(outcome("make build"), ("failed".to_owned(), true));
    assert_eq!(outcome("ls"), ("failed".to_owned(), true));
}
