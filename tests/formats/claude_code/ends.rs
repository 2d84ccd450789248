//! Tests of ends that come after a result: of work in the background, and of subagents.

use super::*;
use crate::formats::checks;

/// The ways in which the program records what became of work in the background.
const WAYS: [fn(&mut Transcript, &str); 4] = [
    |transcript, text| {
        transcript.line(json!({"type": "user", "origin": {"kind": "task-notification"},
            "promptSource": "system", "message": {"content": text}}));
    },
    |transcript, text| {
        transcript.line(json!({"type": "user", "message": {"content": text}}));
    },
    |transcript, text| {
        transcript.line(json!({"type": "attachment", "attachment": {"type": "queued_command",
            "commandMode": "task-notification", "prompt": text}}));
    },
    |transcript, text| {
        transcript
            .line(json!({"type": "queue-operation", "operation": "enqueue", "content": text}));
    },
];

/// Returns the report on a task.
fn report(call: Option<&str>, task: &str, status: &str, summary: &str) -> String {
    let call = call.map(|id| format!("<tool-use-id>{id}</tool-use-id>\n")).unwrap_or_default();
    format!(
        "<task-notification>\n<task-id>{task}</task-id>\n{call}<status>{status}</status>\n\
         <summary>{summary}</summary>\n<result>it <status>ended</status></result>\n\
         </task-notification>"
    )
}

/// Appends a result with the details that the program records beside it.
fn detailed(transcript: &mut Transcript, id: &str, text: &str, details: Value) {
    let block = json!({"type": "tool_result", "tool_use_id": id, "content": text});
    transcript.line(json!({"type": "user", "toolUseResult": details,
        "message": {"content": [block]}}));
}

/// Begins a transcript whose call `bg` started the task `b1`, after one that is ok.
fn started() -> Transcript {
    let mut transcript = begun();
    transcript.bash("ok", "ls", "a");
    transcript.call("bg", "Bash", json!({"command": "make", "run_in_background": true}));
    let text = "Command running in background with ID: b1. Output is being written to: /t/b1";
    detailed(&mut transcript, "bg", text, json!({"stdout": "", "backgroundTaskId": "b1"}));
    transcript
}

/// Returns the outcome of the call number `seq`, and that of the worker.
fn outcomes(transcript: &Transcript, seq: usize) -> (String, String) {
    let index = shown(transcript).index("s");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&call(&index, seq)["outcome"]), text(&index["outcome"]))
}

fn pair(call: &str, worker: &str) -> (String, String) {
    (call.to_owned(), worker.to_owned())
}

/// Promise: The receipt of a start is no end: a call is ok only if its end was seen.
#[test]
fn receipt_of_a_start_is_no_end() {
    let task = json!({"taskId": "w1", "timeoutMs": 60_000});
    for (text, details) in [
        ("Command running in background with ID: b1. Output", json!({"backgroundTaskId": "b1"})),
        (
            "begin\nCommand did not complete within its 2s timeout and was moved to the background \
          (ID: b1). Output",
            json!({"backgroundTaskId": "b1", "timedOutAfterMs": 2000}),
        ),
        ("Async agent launched successfully.", json!({"isAsync": true, "agentId": "a1"})),
        ("Workflow launched", json!({"status": "async_launched", "taskId": "w1", "runId": "r"})),
        ("Monitor started", task),
        ("Resumed", json!({"success": true, "revivedAgentId": "a1"})),
        // Subagents have no details.
        ("Command running in background with ID: b1. It ends with your answer.", Value::Null),
        (
            "begin\nCommand did not complete within its 2s timeout and was moved to the background \
          (ID: b1). Output",
            Value::Null,
        ),
        ("Command was manually backgrounded by user with ID: b1. Output", Value::Null),
    ] {
        let mut transcript = begun();
        transcript.bash("ok", "ls", "a").call("bg", "Tool", json!({"x": 1}));
        detailed(&mut transcript, "bg", text, details);
        transcript.says("Done.");
        assert_eq!(outcomes(&transcript, 2), pair("unknown", "unknown"), "{text}");
        let seen = shown(&transcript);
        assert!(checks(&seen.index("s")).contains(&"call_without_end"), "{text}");
        assert!(seen.text("s", "summary").contains("the end of tool_calls/002_Tool.txt"));
    }
    // An output that only mentions one is none.
    let mut transcript = begun();
    transcript.bash("a", "grep -r x", "log:Command running in background with ID: b1");
    assert_eq!(outcomes(transcript.says("Done."), 1), pair("ok", "ok"));
}

/// Promise: A later end belongs to the call that it names, or else to the one that started the
/// task.
#[test]
fn end_that_comes_later_is_that_of_the_call() {
    for (at, tell) in WAYS.iter().enumerate() {
        for named in [Some("bg"), None] {
            for (status, summary, expected) in [
                ("completed", "Background command \"make\" completed (exit code 0)", ("ok", "ok")),
                (
                    "completed",
                    "Background command \"x\" completed (exit code 3)",
                    ("failed", "failed"),
                ),
                (
                    "failed",
                    "Background command \"(exit code 0)\" failed with exit code 2",
                    ("failed", "failed"),
                ),
                ("killed", "Background command \"make\" was stopped", ("unknown", "unknown")),
                ("stopped", "Background shell command didn't finish", ("unknown", "unknown")),
            ] {
                let mut transcript = started();
                tell(&mut transcript, &report(named, "b1", status, summary));
                // A second record of the end changes nothing.
                WAYS[0](&mut transcript, &report(named, "b1", "completed", "again"));
                transcript.says("Done.");
                let expected = match status {
                    "killed" | "stopped" => ("ok", "ok"),
                    _ => expected,
                };
                assert_eq!(
                    outcomes(&transcript, 2),
                    pair(expected.0, expected.1),
                    "{at} {summary}"
                );
                let mut transcript = started();
                tell(&mut transcript, &report(named, "b1", status, summary));
                transcript.says("Done.");
                let index = shown(&transcript).index("s");
                if status == "failed" {
                    assert_eq!(call(&index, 2)["exit_code"], 2, "{at} {summary}");
                }
                let is_open = matches!(status, "killed" | "stopped");
                assert_eq!(call(&index, 2)["open"] == true, is_open, "{at} {summary}");
                if !is_open {
                    let output = shown(&transcript).text("s", "tool_calls/002_Bash.txt").to_owned();
                    assert_eq!(output, format!("{summary}\nit <status>ended</status>"));
                }
            }
        }
        // A report on other work is nobody's, and no result without a call.
        let mut transcript = started();
        tell(&mut transcript, &report(None, "b2", "failed", "x"));
        tell(&mut transcript, "<task-notification>\n<task-id>b1</task-id>\n<event>a line</event>");
        transcript.says("Done.");
        assert_eq!(outcomes(&transcript, 2), pair("unknown", "unknown"));
        assert_eq!(shown(&transcript).index("s")["source"]["results_without_calls"], 0);
    }
}

/// Promise: Work that the agent itself stopped has no outcome, and is no gap in the record.
#[test]
fn work_that_the_agent_stopped_has_no_outcome() {
    for details in [
        json!({"message": "Successfully stopped task: b1", "task_id": "b1", "task_type": "local_bash"}),
        json!({"message": "Successfully killed shell: b1", "shell_id": "b1"}),
    ] {
        let mut transcript = started();
        transcript.call("stop", "TaskStop", json!({"task_id": "b1"}));
        detailed(&mut transcript, "stop", "stopped", details);
        WAYS[0](&mut transcript, &report(Some("bg"), "b1", "killed", "was stopped"));
        transcript.says("Done.");
        assert_eq!(outcomes(&transcript, 2), pair("unknown", "ok"));
    }
}

/// Promise: What the program records of an outcome beside the text counts.
#[test]
fn structured_results_count() {
    let watched =
        json!({"task": {"task_id": "b1", "status": "failed", "exitCode": 2, "output": "no"}});
    let old = json!({"shellId": "b1", "status": "failed", "exitCode": 2, "stdout": "no"});
    for details in [watched, old] {
        let mut transcript = started();
        transcript.call("look", "TaskOutput", json!({"task_id": "b1"}));
        detailed(&mut transcript, "look", "<status>failed</status>", details);
        transcript.says("Done.");
        let index = shown(&transcript).index("s");
        assert_eq!(call(&index, 2)["outcome"], "failed");
        assert_eq!(
            (&call(&index, 2)["exit_code"], &index["outcome"]),
            (&json!(2), &json!("failed"))
        );
        assert_eq!(call(&index, 3)["outcome"], "ok");
    }
    for (details, expected) in [
        (json!({"exitCode": 1}), "failed"),
        (json!({"exitCode": 0}), "ok"),
        (json!({"success": false, "message": "no"}), "failed"),
        (json!({"success": true}), "ok"),
        (json!({"interrupted": true, "stdout": "a"}), "unknown"),
        (json!({"interrupted": false}), "ok"),
        (json!({"status": "failed"}), "failed"),
        (json!({"status": "completed"}), "ok"),
        (json!({"code": 404, "codeText": "Not Found"}), "failed"),
        (json!({"code": 200}), "ok"),
        (json!({"task": {"task_id": "b9", "status": "running"}}), "ok"),
    ] {
        let mut transcript = begun();
        transcript.bash("ok", "ls", "a").call("t", "Tool", json!({}));
        detailed(&mut transcript, "t", "text", details.clone());
        assert_eq!(outcomes(transcript.says("Done."), 2).0, expected, "{details}");
    }
}

/// Promise: A subagent has the end that its starter was told of.
#[test]
fn subagent_has_the_end_that_its_starter_was_told_of() {
    let summary = "Agent \"Find x\" failed: Agent terminated early due to an API error";
    for (status, expected) in [
        ("failed", "failed"),
        ("killed", "abandoned"),
        ("stopped", "abandoned"),
        ("completed", "completed"),
    ] {
        let store = store();
        let folder = format!("{PROJECT}/s");
        let launched = |transcript: &mut Transcript, agent: &str| {
            transcript.call(agent, "Agent", json!({"prompt": "x"}));
            let details = json!({"isAsync": true, "status": "async_launched", "agentId": agent});
            detailed(transcript, agent, "Async agent launched successfully.", details);
        };
        let mut session = begun();
        launched(&mut session, "a1");
        store.write(&path(format!("{folder}.jsonl")), session.bytes());
        // The second one was started by the first.
        let mut first = Transcript::of_agent("s", "a1");
        launched(first.user("go"), "a2");
        first.line(json!({"type": "user", "origin": {"kind": "task-notification"},
            "message": {"content": report(None, "a2", status, summary)}}));
        store
            .write(&path(format!("{folder}/subagents/agent-a1.jsonl")), first.says("Yes.").bytes());
        let second = Transcript::of_agent("s", "a2").user("go").says("I look.").bytes();
        store.write(&path(format!("{folder}/subagents/agent-a2.jsonl")), second);
        store.write(
            &path(format!("{folder}/subagents/agent-a2.meta.json")),
            br#"{"parentAgentId": "a1"}"#,
        );
        let live = tree(&store);
        let seen = Checked::of(&live);
        assert_eq!(
            (&seen.index("a1")["status"], &seen.index("a2")["parent_id"]),
            (&json!("completed"), &json!("a1"))
        );
        assert_eq!(seen.index("a2")["status"], expected, "{status}");
        let mut told = session.clone();
        WAYS[0](&mut told, &report(Some("a1"), "a1", status, summary));
        store.write(&path(format!("{folder}.jsonl")), told.bytes());
        let seen = Checked::of(&live);
        let index = seen.index("a1");
        assert_eq!(
            (&index["status"], &seen.row("a1")["status"]),
            (&json!(expected), &json!(expected)),
            "{status}"
        );
        if status == "failed" {
            assert_eq!((&index["outcome"], &index["error"]), (&json!("failed"), &json!(summary)));
        }
        // It was resumed, and goes on.
        told.call("m", "SendMessage", json!({"to": "a1"}));
        detailed(&mut told, "m", "Resumed", json!({"success": true, "revivedAgentId": "a1"}));
        store.write(&path(format!("{folder}.jsonl")), told.bytes());
        assert_eq!(Checked::of(&live).index("a1")["status"], "completed", "{status}");
    }
}

/// Promise: The fields that state an outcome are read, and no other one looks like it.
#[test]
fn fields_that_state_an_outcome_are_read() {
    let failed = |more: Value| {
        let mut line = json!({"is_error": true});
        more.as_object().unwrap().iter().for_each(|(key, value)| line[key] = value.clone());
        line
    };
    let details = |details: Value| json!({"is_error": false, "toolUseResult": details});
    let samples = [
        ("is_error", failed(json!({})), "failed"),
        ("toolDenialBeforeRun", failed(json!({"toolDenialBeforeRun": true})), "not_run"),
        (
            "permissionDecision.decision",
            failed(json!({"permissionDecision": {"decision": "reject"}})),
            "not_run",
        ),
        ("toolDenialKind", failed(json!({"toolDenialKind": "permission-rule"})), "not_run"),
        ("toolDenialKind", failed(json!({"toolDenialKind": "user-rejected"})), "unknown"),
        (
            "toolDenialAfterRun",
            failed(json!({"toolDenialKind": "permission-rule", "toolDenialAfterRun": true})),
            "failed",
        ),
        ("toolUseResult.exitCode", details(json!({"exitCode": 1})), "failed"),
        ("toolUseResult.success", details(json!({"success": false})), "failed"),
        ("toolUseResult.status", details(json!({"status": "error"})), "failed"),
        ("toolUseResult.status", details(json!({"status": "async_launched"})), "unknown"),
        ("toolUseResult.code", details(json!({"code": 500})), "failed"),
        ("toolUseResult.interrupted", details(json!({"interrupted": true})), "unknown"),
        ("toolUseResult.backgroundTaskId", details(json!({"backgroundTaskId": "b"})), "unknown"),
        ("toolUseResult.isAsync", details(json!({"isAsync": true})), "unknown"),
        ("toolUseResult.taskId", details(json!({"taskId": "w", "timeoutMs": 1})), "unknown"),
        ("toolUseResult.revivedAgentId", details(json!({"revivedAgentId": "a"})), "unknown"),
        (
            "toolUseResult.task.status",
            details(json!({"task": {"task_id": "b1", "status": "failed"}})),
            "failed of b1",
        ),
        (
            "toolUseResult.task.exitCode",
            details(json!({"task": {"task_id": "b1", "status": "completed", "exitCode": 1}})),
            "failed of b1",
        ),
        (
            "toolUseResult.shellId",
            details(json!({"shellId": "b1", "status": "failed"})),
            "failed of b1",
        ),
        ("toolUseResult.task_id", details(json!({"task_id": "b1"})), "closed b1"),
        ("toolUseResult.shell_id", details(json!({"shell_id": "b1"})), "closed b1"),
    ];
    // The result of a call, after another one that started work.
    let outcome = |fields: &Value| {
        let mut transcript = started();
        transcript.call("t", "Tool", json!({}));
        let mut line = fields.clone();
        let mut block = json!({"type": "tool_result", "tool_use_id": "t", "content": "text"});
        if let Some(flag) = line.as_object_mut().unwrap().remove("is_error") {
            block["is_error"] = flag;
        }
        line["type"] = json!("user");
        line["message"] = json!({"content": [block]});
        let index = shown(transcript.line(line)).index("s");
        let own = call(&index, 3)["outcome"].as_str().unwrap().to_owned();
        match (&call(&index, 2)["outcome"], &call(&index, 2)["open"]) {
            (outcome, _) if outcome == "failed" => "failed of b1".to_owned(),
            (_, open) if open != true => "closed b1".to_owned(),
            _ => own,
        }
    };
    let every = super::growth::transcript_with_every_line_type().bytes();
    let lines =
        every.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    crate::formats::outcome_fields::check(
        "Claude Code",
        &samples,
        &lines.collect::<Vec<_>>(),
        &[],
        outcome,
    );
}
