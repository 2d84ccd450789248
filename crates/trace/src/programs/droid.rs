//! Sessions of Droid.

use super::*;

fn message(number: u64, role: &str, content: Value) -> Value {
    let time = format!("2026-11-26T22:41:{number:02}.000Z");
    json!({"type": "message", "id": format!("m{number}"), "timestamp": time,
        "message": {"role": role, "content": content, "modelId": "custom:lab-0"}})
}

fn call(number: u64, id: &str, tool: &str, input: Value) -> Value {
    let text = json!({"type": "text", "text": "I look."});
    let call = json!({"type": "tool_use", "id": id, "name": tool, "input": input});
    message(number, "assistant", json!([text, call]))
}

fn result(number: u64, id: &str, is_error: bool, text: &str) -> Value {
    let result =
        json!({"type": "tool_result", "tool_use_id": id, "is_error": is_error, "content": text});
    message(number, "user", json!([result]))
}

fn start() -> Value {
    json!({"type": "session_start", "id": "s1", "title": "Mend it", "version": 2, "cwd": "/shop"})
}

fn end(reason: &str) -> Value {
    json!({"type": "agent_turn_outcome", "turnId": "t", "reason": reason, "resultKind": "text"})
}

const PATH: &str = "sessions/-shop/s1.jsonl";

fn session(records: &[Value]) -> ProgramSample {
    ProgramSample { format: "droid", files: vec![(PATH, lines(records))] }
}

pub(super) fn sample() -> ProgramSample {
    let mut context =
        message(0, "user", json!([{"type": "text", "text": "<system-reminder>\nDate"}]));
    context["id"] = json!("context-1");
    let refused =
        "Error: Exec ended early: insufficient permission to proceed. Re-run with --auto.";
    let mut sample = session(&[
        start(),
        context,
        message(1, "user", json!([{"type": "text", "text": "Mend it."}])),
        call(2, "a", "Execute", json!({"command": "make test"})),
        result(
            3,
            "a",
            true,
            "Error: Command failed (exit code: 2)\nred\n\n[Process exited with code 2]",
        ),
        call(4, "b", "Execute", json!({"command": "sleep 99"})),
        result(5, "b", false, "Command timed out after 30 seconds\n"),
        call(6, "c", "Execute", json!({"command": "serve", "fireAndForget": true})),
        result(7, "c", false, "Background process started (PID: 7)"),
        call(8, "d", "Execute", json!({"command": "rm -rf /"})),
        result(9, "d", true, refused),
        call(10, "e", "Edit", json!({"file_path": "/shop/a.py", "old_str": "3", "new_str": "4"})),
        result(11, "e", false, "{\"success\":true}"),
        call(12, "f", "Create", json!({"file_path": "/shop/N.md", "content": "# N\n"})),
        result(13, "f", true, "Error: no"),
        json!({"type": "todo_state", "todos": []}),
        message(14, "assistant", json!([{"type": "text", "text": "Mended."}])),
        end("completed"),
    ]);
    let settings = json!({"model": "custom:lab-0", "tokenUsage":
        {"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 7, "cacheCreationTokens": 0}});
    sample.files.push(("sessions/-shop/s1.settings.json", settings.to_string().into()));
    sample
}

#[test]
fn calls_are_judged_by_their_flags() {
    let seen = sample().read_one();
    let calls = [
        ("Execute", "failed", Some(2), false),
        ("Execute", "ok", None, false),
        ("Execute", "unknown", None, true),
        ("Execute", "not_run", None, false),
        ("Edit", "ok", None, false),
        ("Create", "failed", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    let suspect = seen.record.trace.calls[1].suspect.as_deref();
    assert_eq!(suspect, Some("Command timed out after 30 seconds"));
    assert_eq!(seen.text("task.txt"), "Mend it.");
    assert_eq!(seen.text("result.txt"), "Mended.");
    assert_eq!(seen.tokens(), Some((100, 20, 7)));
    assert_eq!(seen.edited(), ["/shop/a.py"]);
    let worker = &seen.worker;
    assert_eq!(
        (worker.cwd.as_deref(), worker.model.as_deref()),
        (Some("/shop"), Some("custom:lab-0"))
    );
    assert_eq!(
        (worker.summary.as_deref(), seen.status()),
        (Some("Mend it"), (Status::Completed, None))
    );
}

#[test]
fn last_turn_states_how_the_session_stands() {
    let context = || message(3, "user", json!([{"type": "text", "text": "<system-reminder>\nX"}]));
    let asked = || message(1, "user", json!([{"type": "text", "text": "Mend it."}]));
    let answered = || message(2, "assistant", json!([{"type": "text", "text": "Mended."}]));
    let mut refused =
        message(3, "user", json!([{"type": "text", "text": "BYOK Error: 400 too long"}]));
    refused["visibility"] = json!("user_only");
    let failed = [start(), asked(), refused, end("model_request_rejected")];
    for (records, status, source, error) in [
        (vec![start(), asked()], Status::Running, None, None),
        // An answer is no end yet.
        (vec![start(), asked(), answered()], Status::Running, None, None),
        (vec![start(), asked(), answered(), end("completed")], Status::Completed, None, None),
        (
            vec![start(), asked(), answered(), end("completed"), asked()],
            Status::Running,
            None,
            None,
        ),
        (
            vec![start(), asked(), answered(), end("completed"), context()],
            Status::Completed,
            None,
            None,
        ),
        (
            vec![start(), asked(), end("user_cancelled")],
            Status::Unknown,
            Some("user_cancelled"),
            None,
        ),
        (
            failed.to_vec(),
            Status::Failed,
            Some("model_request_rejected"),
            Some("BYOK Error: 400 too long"),
        ),
    ] {
        let seen = session(&records).read_one();
        assert_eq!(
            (seen.status(), seen.worker.error.as_deref()),
            ((status, source), error),
            "{records:?}"
        );
        assert_eq!(
            seen.text("requests.txt").matches("Mend it.").count(),
            records.iter().filter(|r| r["id"] == "m1").count()
        );
    }
}

/// A session whose model numbers the calls of each answer.
pub(super) fn numbered_calls() -> ProgramSample {
    let make = |number, id| call(number, id, "Execute", json!({"command": "make"}));
    session(&[
        start(),
        message(1, "user", json!([{"type": "text", "text": "Mend it."}])),
        make(2, "call_0"),
        result(3, "call_0", true, "Error: Command failed (exit code: 2)\nred"),
        make(4, "call_0"),
        result(5, "call_0", false, "green"),
        make(6, "call_0"),
    ])
}
