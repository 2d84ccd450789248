//! Transcripts of Cursor CLI.

use super::*;

const PATH: &str = "projects/shop/agent-transcripts/s1/s1.jsonl";

fn user(text: &str) -> Value {
    json!({"role": "user", "message": {"content": [{"type": "text", "text": text}]}})
}

fn assistant(content: Value) -> Value {
    json!({"role": "assistant", "message": {"content": content}})
}

fn session(records: &[Value]) -> ProgramSample {
    ProgramSample { format: "cursor", files: vec![(PATH, lines(records))] }
}

pub(super) fn sample() -> ProgramSample {
    let patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-3\n+4\n*** End Patch";
    let asked = "<timestamp>Wednesday, Sep 16, 2026, 3:37 PM (UTC-4)</timestamp>\n<user_query>\nMend it.\n</user_query>";
    let mut sample = session(&[
        user(asked),
        user("Mend it."),
        assistant(
            json!([{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "Shell", "input": {"command": "make test"}}]),
        ),
        assistant(json!([{"type": "tool_use", "name": "ApplyPatch", "input": patch}])),
        assistant(json!([
            {"type": "tool_use", "name": "StrReplace", "input": {"path": "b.py", "old_string": "3", "new_string": "4"}},
            {"type": "tool_use", "name": "Write", "input": {"path": "c.py", "contents": "5\n"}},
            {"type": "text", "text": "Mended.\n\n[REDACTED]"},
            {"type": "turn_ended", "status": "success"}])),
    ]);
    let child = [
        user("Check it."),
        assistant(
            json!([{"type": "tool_use", "id": "x", "name": "Read", "input": {"path": "a.py"}}]),
        ),
    ];
    sample.files.push(("projects/shop/agent-transcripts/s1/subagents/s2.jsonl", lines(&child)));
    sample
}

#[test]
fn calls_have_no_outcome_and_are_not_open() {
    let all = sample().read();
    let seen = &all["s1"];
    let tools = ["Shell", "ApplyPatch", "StrReplace", "Write"];
    assert_eq!(seen.calls(), tools.map(|tool| (tool, "unknown", None, false)));
    let trace = &seen.record.trace;
    assert!(trace.calls.iter().all(|call| call.output == Output::Unrecorded));
    assert_eq!(trace.unanswered.total(), 0);
    assert_eq!(seen.edited(), ["a.py", "b.py", "c.py"]);
    assert_eq!(seen.edits[1].apply("3", |_| true).as_deref(), Some("4"));
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    assert_eq!(seen.status(), (Status::Completed, None));
    assert_eq!(seen.worker.started_at.timestamp().unwrap().to_string(), "2026-09-16T19:37:00Z");
    let child = &all["s2"];
    assert_eq!(
        (child.worker.parent.as_deref(), child.status()),
        (Some("s1"), (Status::Unknown, None))
    );
}

#[test]
fn result_that_is_recorded_counts() {
    let call =
        json!([{"type": "tool_use", "id": "a", "name": "Shell", "input": {"command": "make"}}]);
    let result = |is_error| json!({"role": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "a", "is_error": is_error, "content": "red"}]}});
    for (is_error, outcome) in
        [(json!(true), "failed"), (json!(false), "ok"), (Value::Null, "unknown")]
    {
        let seen =
            session(&[user("Mend it."), assistant(call.clone()), result(is_error)]).read_one();
        assert_eq!(seen.calls(), [("Shell", outcome, None, false)]);
        assert_eq!(seen.text("tool_calls/001_Shell.txt"), "red");
    }
}

#[test]
fn end_of_the_last_turn_is_the_status() {
    let end =
        |status: &str, error: &str| json!({"type": "turn_ended", "status": status, "error": error});
    for (end, status, source) in [
        (end("success", ""), Status::Completed, None),
        (end("error", "no credit"), Status::Failed, Some("no credit")),
        (end("error", "User aborted request"), Status::Unknown, Some("interrupted")),
        (end("other", ""), Status::Unknown, Some("other")),
    ] {
        let seen = session(&[user("Mend it."), end.clone()]).read_one();
        assert_eq!(seen.status(), (status, source), "{end}");
        let seen = session(&[user("Mend it."), end, user("More.")]).read_one();
        assert_eq!(seen.status(), (Status::Unknown, None));
    }
}
