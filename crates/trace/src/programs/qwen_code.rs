//! Sessions of Qwen Code and their subagents.

use super::*;

fn line(number: u64, kind: &str, message: Value, more: Value) -> Value {
    let mut line = json!({"uuid": format!("u{number}"), "sessionId": "s1", "type": kind,
        "timestamp": format!("2026-11-26T22:41:{number:02}.000Z"), "cwd": "/shop", "gitBranch": "main",
        "message": message});
    let more = more.as_object().unwrap().clone();
    line.as_object_mut().unwrap().extend(more);
    line
}

fn user(number: u64, text: &str) -> Value {
    let message = json!({"role": "user", "parts": [{"text": text}]});
    line(number, "user", message, json!({"provenance": "real_user"}))
}

fn assistant(number: u64, parts: Value) -> Value {
    let usage =
        json!({"promptTokenCount": 100, "candidatesTokenCount": 20, "cachedContentTokenCount": 7});
    let more = json!({"model": "lab-1", "usageMetadata": usage});
    line(number, "assistant", json!({"role": "model", "parts": parts}), more)
}

fn call(number: u64, id: &str, tool: &str, args: Value) -> Value {
    let call = json!({"functionCall": {"id": id, "name": tool, "args": args}});
    assistant(number, json!([{"text": "I look."}, {"text": "Hm.", "thought": true}, call]))
}

fn result(number: u64, id: &str, response: Value, stated: Value) -> Value {
    let response = json!({"functionResponse": {"id": id, "name": "x", "response": response}});
    let message = json!({"role": "user", "parts": [response]});
    line(number, "tool_result", message, json!({"toolCallResult": stated}))
}

fn event(number: u64, event: Value) -> Value {
    line(
        number,
        "system",
        Value::Null,
        json!({"subtype": "ui_telemetry", "systemPayload": {"uiEvent": event}}),
    )
}

const PATH: &str = "projects/-shop/chats/s1.jsonl";
const CHILD: &str = "projects/-shop/subagents/s1/agent-general-call_9.jsonl";

fn session(records: &[Value]) -> ProgramSample {
    ProgramSample { format: "qwen-code", files: vec![(PATH, lines(records))] }
}

pub(super) fn sample() -> ProgramSample {
    let shell = |code: i64| json!({"type": "shell_result", "exitCode": code, "output": "red"});
    let file = json!({"filePath": "/shop/a.py", "originalContent": "3\n", "newContent": "4\n"});
    let background = "Background shell started.\nid: bg_1\npid: 7";
    let denied = json!({"status": "error", "errorType": "execution_denied", "executionStatus": "not_started"});
    let unknown = json!({"status": "error", "errorType": "tool_not_registered", "executionStatus": "not_started"});
    let mut sample = session(&[
        user(1, "Mend it."),
        event(2, json!({"event.name": "qwen-code.api_response"})),
        call(3, "a", "run_shell_command", json!({"command": "make test"})),
        result(
            4,
            "a",
            json!({"error": "red"}),
            json!({"status": "error", "resultDisplay": shell(2)}),
        ),
        call(
            5,
            "b",
            "edit",
            json!({"file_path": "/shop/a.py", "old_string": "3", "new_string": "4"}),
        ),
        result(
            6,
            "b",
            json!({"output": "done"}),
            json!({"status": "success", "resultDisplay": file}),
        ),
        call(7, "c", "run_shell_command", json!({"command": "serve", "is_background": true})),
        result(
            8,
            "c",
            json!({"output": background}),
            json!({"status": "success", "executionStatus": "success"}),
        ),
        call(9, "d", "run_shell_command", json!({"command": "rm -rf /"})),
        result(10, "d", json!({"error": "declined"}), denied),
        call(11, "e", "nosuchtool", json!({})),
        result(12, "e", json!({"error": "not found"}), unknown),
        call(13, "f", "read_file", json!({"file_path": "/shop/a.py"})),
        result(14, "f", json!({"error": "stopped"}), json!({"status": "cancelled"})),
        assistant(15, json!([{"text": "Mended."}])),
    ]);
    let child = lines(&[
        line(
            5,
            "user",
            json!({"role": "user", "parts": [{"text": "Check it."}]}),
            json!({"isSidechain": true}),
        ),
        line(
            6,
            "assistant",
            json!({"role": "model", "parts": []}),
            json!({"usageMetadata": {"promptTokenCount": 50, "candidatesTokenCount": 5}}),
        ),
        line(
            7,
            "assistant",
            json!({"role": "model", "parts": [{"functionCall": {"id": "g", "name": "run_shell_command", "args": {"command": "ls /x"}}}]}),
            json!({}),
        ),
        result(8, "g", json!({"error": "Exit Code: 2"}), json!({"callId": "g", "durationMs": 45})),
        line(9, "assistant", json!({"role": "model", "parts": [{"text": "Checked."}]}), json!({})),
    ]);
    let metadata = json!({"description": "check the notes", "parentSessionId": "s1",
        "parentAgentId": null, "status": "completed", "persistedCliFlags": {"model": "lab-1"}});
    sample.files.push((CHILD, child));
    let path = "projects/-shop/subagents/s1/agent-general-call_9.meta.json";
    sample.files.push((path, metadata.to_string().into()));
    sample
}

#[test]
fn calls_are_judged_by_their_status() {
    let all = sample().read();
    let seen = &all["s1"];
    let calls = [
        ("run_shell_command", "failed", Some(2), false),
        ("edit", "ok", None, false),
        // The program states that it started it; no later message states how it ended.
        ("run_shell_command", "unknown", None, true),
        ("run_shell_command", "not_run", None, false),
        ("nosuchtool", "failed", None, false),
        ("read_file", "unknown", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.tokens(), Some((93 * 7, 140, 49)));
    let edit = &seen.edits[0];
    assert_eq!((edit.before.as_deref(), edit.after.as_deref()), (Some("3\n"), Some("4\n")));
    let worker = &seen.worker;
    assert_eq!((worker.branch.as_deref(), worker.cwd.as_deref()), (Some("main"), Some("/shop")));
    assert_eq!((worker.status, seen.text("result.txt")), (Status::Completed, "Mended.".into()));

    let child = &all["general-call_9"];
    assert_eq!(child.calls(), [("run_shell_command", "failed", None, false)]);
    assert_eq!(
        (child.worker.parent.as_deref(), child.worker.run.as_deref()),
        (Some("s1"), Some("s1"))
    );
    assert_eq!(
        (child.worker.summary.as_deref(), child.worker.model.as_deref()),
        (Some("check the notes"), Some("lab-1"))
    );
    assert_eq!((child.tokens(), child.text("task.txt")), (Some((50, 5, 0)), "Check it.".into()));
    let models: Vec<_> = child.record.trace.tokens_by_model.keys().collect();
    assert_eq!(models, ["lab-1"]);
}

#[test]
fn work_in_the_background_is_open_until_its_end_is_reported() {
    let success = || json!({"status": "success", "executionStatus": "success"});
    let notice = |number, text: &str| {
        let parts = json!([{"text": format!("<task-notification>\n{text}\n</task-notification>")}]);
        let more = json!({"provenance": "system", "subtype": "notification"});
        line(number, "user", json!({"role": "user", "parts": parts}), more)
    };
    let shell = "Background shell started.\nid: bg_1\npid: 7\noutput file: /tmp/o";
    let agent =
        "Background agent launched successfully.\ntask_id: general-b (internal ID)\nIt works.";
    let mut records = vec![
        user(1, "Mend it."),
        call(2, "a", "run_shell_command", json!({"command": "make", "is_background": true})),
        result(3, "a", json!({"output": shell}), success()),
        call(4, "b", "agent", json!({"description": "Check", "prompt": "Check it."})),
        result(5, "b", json!({"output": agent}), success()),
        assistant(6, json!([{"text": "I wait."}])),
        notice(7, "<task-id>bg_1</task-id>\n<kind>monitor</kind>\n<status>running</status>"),
    ];
    let calls = [("run_shell_command", "unknown", None, true), ("agent", "unknown", None, true)];
    assert_eq!(session(&records).read_one().calls(), calls);

    records.push(notice(
        8,
        "<task-id>bg_1</task-id>\n<kind>shell</kind>\n<status>completed</status>\n\
         <exit-code>2</exit-code>\n<output-tail truncated=\"false\">red</output-tail>",
    ));
    records.push(notice(
        9,
        "<task-id>general-b</task-id>\n<tool-use-id>b</tool-use-id>\n<status>failed</status>\n\
         <summary>Agent \"Check\" failed.</summary>\n<result>Error: no model</result>",
    ));
    let seen = session(&records).read_one();
    let calls = [("run_shell_command", "failed", Some(2), false), ("agent", "failed", None, false)];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.text("tool_calls/001_run_shell_command.txt"), "red");
    assert_eq!(seen.text("tool_calls/002_agent.txt"), "Agent \"Check\" failed.\nError: no model");
    // The model answers it.
    assert_eq!(seen.worker.status, Status::Running);
    records.push(assistant(10, json!([{"text": "Mended."}])));
    assert_eq!(session(&records).read_one().worker.status, Status::Completed);
}

#[test]
fn error_of_the_api_is_the_end_unless_something_follows() {
    let error =
        event(2, json!({"event.name": "qwen-code.api_error", "error_message": "400 too long"}));
    let mut records = vec![user(1, "Mend it."), error];
    let seen = session(&records).read_one();
    assert_eq!(
        (seen.worker.status, seen.worker.error.as_deref()),
        (Status::Failed, Some("400 too long"))
    );
    records.push(assistant(3, json!([{"text": "Mended."}])));
    assert_eq!(session(&records).read_one().worker.status, Status::Completed);
    // An error of a subagent is not the session's.
    records.push(event(4, json!({"event.name": "qwen-code.api_error", "subagent_id": "a"})));
    assert_eq!(session(&records).read_one().worker.status, Status::Completed);
}

#[test]
fn session_that_begins_with_records_of_the_program_is_recognized() {
    let mut records: Vec<_> =
        (1..5).map(|number| event(number, json!({"event.name": "start"}))).collect();
    records.iter_mut().for_each(|record| record["provenance"] = json!("system"));
    records.push(user(6, "Mend it."));
    let sample = session(&records);
    assert!(
        matches!(detect(&store(&sample.files)), Ok(Detected::Format(found)) if found.name == "qwen-code")
    );
    assert_eq!(sample.read_one().text("task.txt"), "Mend it.");
}

/// A session whose model numbers the calls of each answer.
pub(super) fn numbered_calls() -> ProgramSample {
    let make = |number, id| call(number, id, "run_shell_command", json!({"command": "make"}));
    session(&[
        user(1, "Mend it."),
        make(2, "call_0"),
        result(3, "call_0", json!({"error": "red"}), json!({"status": "error"})),
        make(4, "call_0"),
        result(5, "call_0", json!({"output": "green"}), json!({"status": "success"})),
        make(6, "call_0"),
    ])
}
