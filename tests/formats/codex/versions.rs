//! Calls and their outcomes in the records of every version.

use super::*;

fn outcome(call: &str, outcome: &str, code: Option<i64>) -> (String, String, Option<i64>) {
    (call.into(), outcome.into(), code)
}

/// Promise: The outcome of a call of Codex is what an event, an exit code, a flag or a line before
/// its output states.
#[test]
fn bare_lines_of_the_oldest_versions_are_read() {
    let mut rollout = Rollout::default();
    for line in [
        json!({"id": ID, "timestamp": "2025-06-01T10:00:00Z", "instructions": "x", "git": {"branch": "b"}}),
        json!({"record_type": "state"}),
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]}),
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}),
        json!({"type": "function_call", "name": "shell", "call_id": "c1",
            "arguments": "{\"command\":[\"bash\",\"-lc\",\"make\"]}"}),
        json!({"type": "function_call_output", "call_id": "c1",
            "output": "{\"output\":\"no rule\\n\",\"metadata\":{\"exit_code\":2,\"duration_seconds\":1.5}}"}),
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}),
    ] {
        rollout.raw(format!("{line}\n"));
    }
    let index = index_of(&rollout);
    assert_eq!(calls(&index), [outcome("shell", "failed", Some(2))]);
    assert_eq!(output(&rollout, "001_shell.txt"), "no rule\n");
    assert_eq!((&index["status"], &index["task"]), (&json!("completed"), &json!("Do it.")));
    assert_eq!(index["tool_calls"][0]["duration_ms"], 1500);
    assert_eq!(index["branch"], "b");
}

#[test]
fn events_of_extended_mode_state_outcomes_on_either_side_of_the_output() {
    let mut rollout = Rollout::begun();
    rollout.call("a", "exec_command", json!({"cmd": "x"}));
    rollout.event("exec_command_end", json!({"call_id": "a", "exit_code": 3, "stdout": "", "stderr": "",
        "aggregated_output": "no", "duration": {"secs": 1, "nanos": 500_000_000}, "status": "failed"}));
    rollout.output("a", "no");
    rollout.call("b", "shell", json!({"command": ["y"]})).output("b", "fine");
    rollout.event(
        "exec_command_end",
        json!({"call_id": "b", "exit_code": 0, "aggregated_output": "fine"}),
    );
    rollout.custom("p", "apply_patch", "*** Begin Patch\n*** Delete File: x\n*** End Patch");
    rollout
        .event("patch_apply_end", json!({"call_id": "p", "success": false, "stderr": "no file"}));
    for (id, result) in [
        ("m1", json!({"Ok": {"content": [{"type": "text", "text": "hi"}], "isError": false}})),
        ("m2", json!({"Ok": {"content": [], "isError": true}})),
        ("m3", json!({"Err": "gone"})),
    ] {
        rollout.item(
            "function_call",
            json!({"name": "echo", "namespace": "mcp__helper", "call_id": id,
            "arguments": "{}"}),
        );
        let invocation = json!({"server": "helper", "tool": "echo", "arguments": {}});
        rollout.event(
            "mcp_tool_call_end",
            json!({"call_id": id, "invocation": invocation, "result": result}),
        );
    }
    assert_eq!(
        calls(&index_of(&rollout)),
        [
            outcome("exec_command", "failed", Some(3)),
            outcome("shell", "ok", Some(0)),
            outcome("apply_patch", "failed", None),
            outcome("mcp__helper__echo", "ok", None),
            outcome("mcp__helper__echo", "failed", None),
            outcome("mcp__helper__echo", "failed", None),
        ]
    );
    assert_eq!(index_of(&rollout)["tool_calls"][0]["duration_ms"], 1500);
}

/// Promise: The operations of a script of Codex are calls of their own.
#[test]
fn operations_of_a_script_are_calls_behind_it() {
    let mut rollout = Rollout::begun();
    rollout.custom("w", "exec", "await tools.exec_command({cmd: 'make'})");
    rollout.operation(
        "CommandExecution",
        "exec-1",
        json!({"command": ["/bin/bash", "-lc", "make"],
        "status": "failed", "exit_code": 2, "stdout": "FAIL\n", "aggregated_output": "FAIL\n",
        "formatted_output": "FAIL\n"}),
    );
    rollout.operation("McpToolCall", "exec-2", json!({"server": "helper", "tool": "fail", "arguments": {"a": 1},
        "status": "failed", "result": {"content": [{"type": "text", "text": "cannot"}], "isError": true}}));
    rollout.operation(
        "FileChange",
        "exec-3",
        json!({"status": "completed", "stdout": "A js.txt\n",
        "changes": {"/app/js.txt": {"type": "add", "content": "js\n"}}}),
    );
    rollout.item(
        "custom_tool_call_output",
        json!({"call_id": "w", "output": [
        {"type": "input_text", "text": "Script completed\nWall time 0.1 seconds\nOutput:\n"},
        {"type": "input_text", "text": "FAIL\n"}, {"type": "input_image", "image_url": "data:"}]}),
    );
    rollout
        .custom("w2", "exec", "throw 1")
        .output("w2", "Script failed\nWall time 0.0 seconds\nOutput:\n");
    rollout.custom("w3", "exec", "slow").output("w3", "Script running with cell ID 5\nOutput:\n");
    rollout.call("w4", "wait", json!({"cell_id": "5"})).output("w4", "Script completed\nOutput:\n");
    rollout.call("r", "read_file", json!({"path": "x"})).output("r", "Script failed\n");
    assert_eq!(
        calls(&index_of(&rollout)),
        [
            outcome("exec", "ok", None),
            outcome("exec_command", "failed", Some(2)),
            outcome("mcp__helper__fail", "failed", None),
            outcome("apply_patch", "ok", None),
            outcome("exec", "failed", None),
            outcome("exec", "unknown", None),
            outcome("wait", "ok", None),
            outcome("read_file", "unknown", None),
        ]
    );
    let index = index_of(&rollout);
    assert_eq!(index["tool_calls"][1]["input"], "make");
    assert_eq!(output(&rollout, "002_exec_command.txt"), "FAIL\n");
    assert_eq!(output(&rollout, "003_mcp__helper__fail.txt"), "cannot");
    assert!(output(&rollout, "001_exec.txt").ends_with("Output:\nFAIL\n"));
}

/// Promise: The success of a script is not that of the commands in it.
#[test]
fn script_without_recorded_operations_has_no_outcome() {
    let script = |input: &str, output: &str| {
        let mut rollout = Rollout::begun();
        rollout.custom("w", "exec", input);
        rollout.output("w", format!("Script completed\nWall time 0.1 seconds\nOutput:\n{output}"));
        rollout.says("Done.").complete();
        let index = index_of(&rollout);
        let call = &index["tool_calls"][0];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (word(&call["outcome"]), word(&call["suspect"]), word(&index["outcome"]))
    };
    let words = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    let run = "const r = await tools.exec_command({cmd: 'make'}); text(JSON.stringify(r));";
    assert_eq!(script(run, "{\"exit_code\":0}"), words("unknown", "", "unknown"));
    let failed = words("unknown", "\"exit_code\": 2", "unknown");
    assert_eq!(script(run, "{\"output\":\"no\",\"exit_code\": 2}"), failed);
    assert_eq!(script("text(1 + 1)", "2"), words("ok", "", "ok"));
}

/// Promise: Work that goes on after its call has no end until a later call sees it.
#[test]
fn work_that_goes_on_is_open_until_its_end_is_seen() {
    for (tool, argument, running, done) in [
        (
            "exec",
            "cell_id",
            "Script running with cell ID 5\nOutput:\n",
            "Script completed\nOutput:\n",
        ),
        (
            "exec_command",
            "session_id",
            "Wall time: 1 seconds\nProcess running with session ID 5\nOutput:\n",
            "Wall time: 1 seconds\nProcess exited with code 0\nOutput:\n",
        ),
    ] {
        let polling = if tool == "exec" { "wait" } else { "write_stdin" };
        let mut rollout = Rollout::begun();
        rollout.command("ok", "ls", 0, "a");
        rollout.custom("w", tool, "slow").output("w", running);
        rollout.call("p1", polling, json!({argument: "5", "yield_ms": 1})).output("p1", running);
        let open = |rollout: &Rollout| {
            let mut ended = rollout.clone();
            let index = index_of(ended.says("Done.").complete());
            let is_open = |call: &Value| call["open"] == true;
            let open = index["tool_calls"].as_array().unwrap().iter().map(is_open);
            (open.collect::<Vec<_>>(), index["outcome"].as_str().unwrap().to_owned())
        };
        assert_eq!(open(&rollout), (vec![false, true, false], "unknown".into()), "{tool}");
        rollout.call("p2", polling, json!({argument: "5"})).output("p2", done);
        assert_eq!(open(&rollout), (vec![false; 4], "ok".into()), "{tool}");
    }
}

#[test]
fn an_operation_wins_over_the_output_and_stands_in_for_a_missing_one() {
    let mut rollout = Rollout::begun();
    rollout.call("a", "exec_command", json!({"cmd": "sleep 9"}));
    rollout.output("a", "Wall time: 0.3 seconds\naborted by user");
    rollout.event("turn_aborted", json!({"reason": "interrupted"}));
    rollout.operation(
        "CommandExecution",
        "a",
        json!({"exit_code": -1, "status": "failed",
        "aggregated_output": "slow\n"}),
    );
    rollout.call("b", "exec_command", json!({"cmd": "echo beside"}));
    rollout.operation(
        "CommandExecution",
        "b",
        json!({"exit_code": 0, "aggregated_output": "beside\n"}),
    );
    rollout.call("c", "exec_command", json!({"cmd": "x"}));
    rollout.operation("CommandExecution", "c", json!({"status": "declined"}));
    let index = index_of(&rollout);
    assert_eq!(
        calls(&index),
        [
            outcome("exec_command", "failed", Some(-1)),
            outcome("exec_command", "ok", Some(0)),
            outcome("exec_command", "failed", None),
        ]
    );
    assert_eq!(
        (&index["status"], &index["status_source"]),
        (&json!("unknown"), &json!("interrupted"))
    );
    assert!(output(&rollout, "001_exec_command.txt").contains("aborted"));
    assert_eq!(output(&rollout, "002_exec_command.txt"), "beside\n");
    // The output that the assistant gets replaces the report.
    rollout.output("b", ran(0, "beside\n"));
    assert!(output(&rollout, "002_exec_command.txt").starts_with("Chunk ID"));
}

#[test]
fn operations_of_other_sessions_and_unknown_calls_are_no_calls() {
    let mut rollout = Rollout::begun();
    rollout.operation("CommandExecution", "call_of_child", json!({"exit_code": 1}));
    let item = json!({"type": "CommandExecution", "id": "exec-9", "exit_code": 1});
    rollout.event("item_completed", json!({"thread_id": OTHER_ID, "item": item}));
    for kind in ["UserMessage", "AgentMessage", "ImageView", "Plan", "ContextCompaction"] {
        rollout.operation(kind, "x", json!({"text": "x"}));
    }
    let index = index_of(&rollout);
    assert_eq!(calls(&index), []);
    assert!(index["source"]["orphan_results"].is_null(), "{index:#}");
}

/// Promise: A call of Codex that was not carried out changes nothing in changes.diff, and is
/// suspect.
#[test]
fn outputs_that_say_that_nothing_was_done_are_suspect_and_unknown() {
    let mut rollout = Rollout::begun();
    let patch = "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch";
    for (number, text) in [
        "apply_patch verification failed: no such lines",
        "patch rejected: writing outside of the project",
        "unsupported call: no_such_tool",
        "failed to parse function arguments: missing field",
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("p{number}");
        rollout.custom(&id, "apply_patch", patch).output(&id, text);
    }
    rollout.call("plan", "update_plan", json!({})).output("plan", "Plan updated");
    let index = index_of(&rollout);
    let calls = index["tool_calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["outcome"] == "unknown"), "{index:#}");
    let suspect: Vec<bool> = calls.iter().map(|call| call["suspect"].is_string()).collect();
    assert_eq!(suspect, [true, true, true, true, false]);
    let tree = tree_of(&rollout);
    assert!(crate::support::see(&tree, format!("workers/{ID}/changes.diff")).is_err());
}

#[test]
fn calls_without_output_records_have_their_status_as_outcome() {
    let mut rollout = Rollout::begun();
    rollout.item(
        "web_search_call",
        json!({"id": "ws1", "status": "completed",
        "action": {"type": "search", "query": "what"}}),
    );
    rollout.item("web_search_call", json!({"status": "failed", "action": {"query": "x"}}));
    rollout.item("web_search_call", json!({"action": {"query": "y"}}));
    rollout.event("web_search_end", json!({"call_id": "ws1", "query": "what"}));
    rollout.item(
        "local_shell_call",
        json!({"call_id": "l", "status": "completed",
        "action": {"type": "exec", "command": ["ls"]}}),
    );
    rollout.output("l", json!({"content": "a file", "success": true}));
    rollout.item("tool_search_call", json!({"call_id": "t", "arguments": {"query": "echo"}}));
    rollout.item("tool_search_output", json!({"call_id": "t", "status": "completed", "tools": []}));
    assert_eq!(
        calls(&index_of(&rollout)),
        [
            outcome("web_search", "ok", None),
            outcome("web_search", "failed", None),
            outcome("web_search", "unknown", None),
            outcome("local_shell", "ok", None),
            outcome("tool_search", "unknown", None),
        ]
    );
    assert_eq!(output(&rollout, "004_local_shell.txt"), "a file");
}

#[test]
fn a_process_that_goes_on_ends_in_a_call_of_its_own() {
    let mut rollout = Rollout::begun();
    rollout.call("a", "exec_command", json!({"cmd": "serve"}));
    rollout.output("a", "Wall time: 0.3 seconds\nProcess running with session ID 7\nOutput:\nup\n");
    rollout.call("b", "write_stdin", json!({"session_id": 7})).output("b", ran(5, "down\n"));
    assert_eq!(outcomes(&rollout), ["unknown", "failed"]);
    // One process can fail twice.
    rollout.operation("CommandExecution", "a", json!({"exit_code": 5}));
    assert_eq!(outcomes(&rollout), ["failed", "failed"]);
}

#[test]
fn outputs_truncated_at_the_source_are_named() {
    let mut rollout = Rollout::begun();
    rollout.call("a", "exec_command", json!({"cmd": "seq"}));
    rollout.output("a", "Wall time: 0 seconds\nProcess exited with code 0\nOriginal token count: 87224\nOutput:\n1\n");
    rollout.command("b", "ls", 0, "x\n");
    rollout.call("c", "shell", json!({})).output("c", "1\n…12 tokens truncated…\n9\n");
    let index = index_of(&rollout);
    assert_eq!(
        index["source"]["truncated_outputs"],
        json!(["tool_calls/001_exec_command.txt", "tool_calls/003_shell.txt"])
    );
}

/// Promise: The fields that state an outcome are read, and no other one looks like it.
#[test]
fn fields_that_state_an_outcome_are_read() {
    let operation = |fields: Value| {
        let mut item = json!({"id": "a", "type": "CommandExecution"});
        fields.as_object().unwrap().iter().for_each(|(key, value)| item[key] = value.clone());
        json!({"event_msg": {"type": "item_completed", "item": item}})
    };
    let mcp = |result: Value| json!({"event_msg": {"type": "mcp_tool_call_end", "call_id": "a", "result": result}});
    let output = |output: Value| {
        json!({"response_item":
        {"type": "function_call_output", "call_id": "a", "output": output}})
    };
    let in_text = json!({"text": {"output": "x", "metadata": {"exit_code": 1}}});
    let samples = [
        ("event_msg.item.exit_code", operation(json!({"exit_code": 1})), "failed"),
        ("event_msg.item.status", operation(json!({"status": "failed"})), "failed"),
        (
            "event_msg.item.error",
            operation(json!({"type": "McpToolCall", "error": {"message": "no"}})),
            "failed",
        ),
        (
            "event_msg.result.Ok.isError",
            mcp(json!({"Ok": {"isError": true, "content": []}})),
            "failed",
        ),
        ("event_msg.result.Err", mcp(json!({"Err": "no"})), "failed"),
        (
            "response_item.output.success",
            output(json!({"success": false, "content": "no"})),
            "failed",
        ),
        ("text.metadata.exit_code", in_text, "failed"),
    ];
    let outcome = |records: &Value| {
        let mut rollout = Rollout::begun();
        rollout.call("a", "exec_command", json!({"cmd": "x"}));
        for (kind, payload) in records.as_object().unwrap() {
            match kind.as_str() {
                "text" => rollout.output("a", payload.to_string()),
                kind => rollout.line(kind, payload.clone()),
            };
        }
        outcomes(&rollout)[0].clone()
    };
    let all = super::growth::all_kinds().bytes();
    let lines =
        all.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    // The result of MCP that is no error.
    let unrelated = ["Ok"];
    crate::formats::outcome_fields::check(
        "Codex",
        &samples,
        &lines.collect::<Vec<_>>(),
        &unrelated,
        outcome,
    );
}
