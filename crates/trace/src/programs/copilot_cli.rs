//! Sessions of GitHub Copilot CLI.

use super::*;

const PATH: &str = "session-state/s1/events.jsonl";

fn event(number: u64, kind: &str, data: Value) -> Value {
    json!({"type": kind, "data": data, "id": format!("e{number}"), "parentId": null,
        "timestamp": format!("2026-11-26T22:32:{number:02}.000Z")})
}

fn of_agent(mut event: Value) -> Value {
    event["agentId"] = json!("agent-1");
    event
}

fn start() -> Value {
    event(
        0,
        "session.start",
        json!({"sessionId": "s1", "copilotVersion": "1.0.102",
        "context": {"cwd": "/shop", "branch": "main"}}),
    )
}

fn user(number: u64, text: &str) -> Value {
    event(
        number,
        "user.message",
        json!({"content": text, "transformedContent": format!("<now>\n{text}")}),
    )
}

fn call(number: u64, id: &str, tool: &str, arguments: Value) -> Value {
    event(
        number,
        "assistant.message",
        json!({"model": "lab-1", "content": "I look.", "toolRequests":
        [{"toolCallId": id, "name": tool, "arguments": arguments, "type": "function"}]}),
    )
}

fn answer(number: u64, text: &str) -> Value {
    event(
        number,
        "assistant.message",
        json!({"model": "lab-1", "content": text, "toolRequests": []}),
    )
}

fn complete(number: u64, id: &str, data: Value) -> Value {
    let mut fields = json!({"toolCallId": id});
    fields.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
    event(number, "tool.execution_complete", fields)
}

fn usage(number: u64) -> Value {
    event(
        number,
        "session.usage_record",
        json!({"usage": {"model": "lab-1", "inputTokens": 100,
        "outputTokens": 20, "cacheReadTokens": 7, "apiCallId": format!("r{number}")}}),
    )
}

fn session(records: &[Value]) -> ProgramSample {
    ProgramSample { format: "copilot-cli", files: vec![(PATH, lines(records))] }
}

pub(super) fn sample() -> ProgramSample {
    let background = json!({"content": "<command started in background with shellId: 7>"});
    let shell = |code: i64| {
        json!({"success": true, "shellExecution": {"exitCode": code},
        "result": {"content": format!("red\n<shellId: 0 completed with exit code {code}>")}})
    };
    session(&[
        start(),
        event(0, "system.message", json!({"content": "You are"})),
        user(1, "Mend it."),
        usage(1),
        call(2, "a", "bash", json!({"command": "make test"})),
        event(2, "tool.execution_start", json!({"toolCallId": "a", "toolName": "bash"})),
        complete(3, "a", shell(2)),
        call(4, "b", "edit", json!({"path": "/shop/a.py", "old_str": "3", "new_str": "4"})),
        complete(
            5,
            "b",
            json!({"success": true, "fileEdits": [{"path": "/shop/a.py", "kind": "edit"}],
            "result": {"content": "updated", "detailedContent": "diff"}}),
        ),
        call(
            6,
            "c",
            "apply_patch",
            json!("*** Begin Patch\n*** Add File: /shop/N.md\n+# N\n*** End Patch"),
        ),
        complete(
            7,
            "c",
            json!({"success": true, "fileEdits": [{"path": "/shop/N.md", "kind": "create"}], "result": {"content": "done"}}),
        ),
        call(8, "d", "bash", json!({"command": "serve", "mode": "async"})),
        complete(9, "d", json!({"success": true, "result": background})),
        call(10, "e", "bash", json!({"command": "rm -rf /"})),
        complete(
            11,
            "e",
            json!({"success": false, "error": {"code": "denied", "message": "Denied by a rule"}}),
        ),
        call(12, "f", "nosuchtool", json!({})),
        complete(
            13,
            "f",
            json!({"success": false, "error": {"code": "failure", "message": "does not exist"}}),
        ),
        call(14, "g", "task", json!({"prompt": "Check it."})),
        of_agent(event(
            15,
            "subagent.started",
            json!({"toolCallId": "g", "agentDisplayName": "notes"}),
        )),
        of_agent(event(15, "user.message", json!({"content": "Check it.", "source": "agent-s1"}))),
        of_agent(usage(16)),
        of_agent(call(16, "h", "bash", json!({"command": "ls"}))),
        of_agent(complete(17, "h", shell(0))),
        of_agent(answer(18, "Checked.")),
        of_agent(event(18, "subagent.completed", json!({"toolCallId": "g"}))),
        complete(19, "g", json!({"success": true, "result": {"content": "Checked."}})),
        event(
            20,
            "system.notification",
            json!({"content": "It ended.", "kind": {"type": "shell_completed", "shellId": "7", "exitCode": 5}}),
        ),
        answer(21, "Mended."),
        event(22, "session.shutdown", json!({"codeChanges": {}})),
    ])
}

#[test]
fn calls_are_judged_by_exit_codes_and_flags() {
    let all = sample().read();
    let seen = &all["s1"];
    let calls = [
        ("bash", "failed", Some(2), false),
        ("edit", "ok", None, false),
        ("apply_patch", "ok", None, false),
        ("bash", "failed", Some(5), false),
        ("bash", "not_run", None, false),
        ("nosuchtool", "failed", None, false),
        ("task", "ok", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.text("tool_calls/001_bash.txt"), "red\n");
    assert_eq!(seen.edited(), ["/shop/a.py", "/shop/N.md"]);
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    assert_eq!((seen.tokens(), seen.worker.status), (Some((93, 20, 7)), Status::Completed));
    assert_eq!(
        (seen.worker.cwd.as_deref(), seen.worker.branch.as_deref()),
        (Some("/shop"), Some("main"))
    );
    assert!(seen.record.trace.unused.kinds.is_empty(), "{:?}", seen.record.trace.unused.kinds);
    let child = &all["agent-1"];
    assert_eq!(child.calls(), [("bash", "ok", Some(0), false)]);
    assert_eq!(
        (child.worker.parent.as_deref(), child.worker.status),
        (Some("s1"), Status::Completed)
    );
    assert_eq!((child.tokens(), child.text("task.txt")), (Some((93, 20, 7)), "Check it.".into()));
}

#[test]
fn work_in_the_background_is_open_until_its_end_is_told() {
    let started = json!({"success": true, "result": {"content": "<command started in background with shellId: 7>"}});
    let mut records = vec![
        start(),
        user(1, "Mend it."),
        call(2, "a", "bash", json!({"command": "serve"})),
        complete(3, "a", started),
        answer(4, "Started."),
    ];
    assert_eq!(session(&records).read_one().calls(), [("bash", "unknown", None, true)]);
    // The program fetches the output itself.
    records.push(call(5, "b", "read_bash", json!({"shellId": "7"})));
    records.push(complete(
        6,
        "b",
        json!({"success": true, "shellExecution": {"exitCode": 3},
        "result": {"content": "red\n<shellId: 7 completed with exit code 3>"}}),
    ));
    let calls = [("bash", "failed", Some(3), false), ("read_bash", "failed", Some(3), false)];
    assert_eq!(session(&records).read_one().calls(), calls);
}

#[test]
fn older_result_without_an_exit_code_is_suspect() {
    let result = json!({"success": true, "result": {"content": "red\n<shellId: 0 completed with exit code 1>"}});
    let seen = session(&[
        start(),
        user(1, "Mend it."),
        call(2, "a", "bash", json!({"command": "make"})),
        complete(3, "a", result),
    ])
    .read_one();
    assert_eq!(seen.calls(), [("bash", "ok", None, false)]);
    let suspect = seen.record.trace.calls[0].suspect.as_deref();
    assert_eq!(suspect, Some("<shellId: 0 completed with exit code 1>"));
}

#[test]
fn last_event_states_how_the_session_stands() {
    let end = event(
        9,
        "session.shutdown",
        json!({"modelMetrics": {"lab-1": {"usage": {"inputTokens": 9, "outputTokens": 2}}}}),
    );
    for (last, status, source) in [
        (
            event(3, "abort", json!({"reason": "user_initiated"})),
            Status::Unknown,
            Some("interrupted"),
        ),
        (
            event(3, "session.error", json!({"message": "400 too long"})),
            Status::Failed,
            Some("api error"),
        ),
        (answer(3, "Mended."), Status::Completed, None),
        (call(3, "z", "bash", json!({})), Status::Running, None),
    ] {
        let seen = session(&[start(), user(1, "Mend it."), last.clone(), end.clone()]).read_one();
        assert_eq!(seen.status(), (status, source), "{last}");
        assert_eq!(seen.tokens(), Some((9, 2, 0)));
    }
}

#[test]
fn notices_and_later_totals_do_not_open_a_session_again() {
    let shutdown = |number: u64, agents: Value| {
        let all = json!({"lab-1": {"usage": {"inputTokens": 50, "outputTokens": 9}}});
        event(
            number,
            "session.shutdown",
            json!({"modelMetrics": all, "accountingSnapshot": {"agentMetrics": agents}}),
        )
    };
    let own = |input: u64| {
        let usage = json!({"usage": {"inputTokens": input, "outputTokens": 2}});
        json!({"main": {"modelMetrics": {"lab-1": usage}}})
    };
    let mut begin = start();
    begin["data"]["selectedModel"] = json!("lab-1");
    let mut records = vec![begin, user(1, "Mend it.")];
    assert_eq!(session(&records).read_one().worker.model.as_deref(), Some("lab-1"));
    let ended =
        of_agent(event(3, "subagent.completed", json!({"toolCallId": "g", "cancelled": true})));
    let notice =
        event(4, "system.notification", json!({"content": "It ended.", "kind": {"type": "x"}}));
    let asked = event(2, "user.message", json!({"content": "Check it.", "source": "agent-s1"}));
    records.extend([of_agent(asked), ended, of_agent(notice)]);
    records.extend([answer(5, "Mended."), shutdown(6, own(7)), shutdown(7, own(12))]);
    let all = session(&records).read();
    // The totals of the session alone count, and the last of them.
    assert_eq!(all["s1"].tokens(), Some((12, 2, 0)));
    assert_eq!(all["agent-1"].status(), (Status::Abandoned, Some("cancelled")));
}

#[test]
fn agent_that_was_asked_last_must_have_ended() {
    let asked = |agent: &str| {
        let mut event = user(1, "Check it.");
        event["agentId"] = json!(agent);
        event
    };
    let ended = |agent: &str| {
        let mut event = event(2, "subagent.completed", json!({}));
        event["agentId"] = json!(agent);
        event
    };
    for (records, expected) in [
        (vec![asked("a"), ended("a")], Some("a")),
        (vec![asked("a"), ended("a"), asked("b")], None),
        (vec![asked("a"), ended("a"), asked("a")], None),
        (vec![asked("a"), asked("b"), ended("b")], Some("b")),
    ] {
        let store = store(&[("events.jsonl", lines(&records))]);
        let file = store.open(&RelPath::constant("events.jsonl")).unwrap();
        let found = crate::copilot_cli::ended_copilot_agent(&*file, "Check it.", Deadline::never());
        assert_eq!(found.as_deref(), expected, "{records:?}");
    }
}
