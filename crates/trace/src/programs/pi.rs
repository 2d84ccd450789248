//! Sessions of pi and omp.

use super::*;

const PATH: &str = "--shop--/2026-11-26T22-40-00-000Z_s1.jsonl";

fn time(number: u64) -> String {
    format!("2026-11-26T22:40:{number:02}.000Z")
}

fn message(number: u64, message: Value) -> Value {
    json!({"type": "message", "id": format!("m{number}"), "parentId": "x", "timestamp": time(number),
        "message": message})
}

fn user(number: u64, text: &str) -> Value {
    message(number, json!({"role": "user", "content": [{"type": "text", "text": text}]}))
}

fn assistant(number: u64, content: Value, stop: &str) -> Value {
    let usage = json!({"input": 100, "output": 20, "cacheRead": 7, "cacheWrite": 3,
        "cost": {"total": 0.25}});
    message(
        number,
        json!({"role": "assistant", "content": content, "model": "lab-1",
        "usage": usage, "stopReason": stop}),
    )
}

fn call(number: u64, id: &str, tool: &str, arguments: Value) -> Value {
    let text = json!({"type": "text", "text": "I look."});
    let call = json!({"type": "toolCall", "id": id, "name": tool, "arguments": arguments, "partialArgs": "{"});
    assistant(number, json!([text, call]), "toolUse")
}

fn result(number: u64, id: &str, is_error: bool, text: &str, details: Value) -> Value {
    message(
        number,
        json!({"role": "toolResult", "toolCallId": id, "isError": is_error,
        "content": [{"type": "text", "text": text}], "details": details}),
    )
}

fn start() -> Value {
    json!({"type": "session", "version": 3, "id": "s1", "timestamp": time(0), "cwd": "/shop"})
}

fn session(records: &[Value]) -> ProgramSample {
    ProgramSample { format: "pi", files: vec![(PATH, lines(records))] }
}

pub(super) fn sample() -> ProgramSample {
    let mut sample = session(&[
        json!({"type": "title", "v": 1, "title": "Mend it", "pad": "   "}),
        start(),
        json!({"type": "model_change", "id": "c", "timestamp": time(0), "modelId": "lab-1"}),
        user(1, "Mend it."),
        call(2, "a", "bash", json!({"command": "make test"})),
        json!({"type": "custom", "customType": "tool_execution_start", "data": {"toolCallId": "a"}}),
        result(3, "a", true, "red\n\n\nCommand exited with code 2", json!({})),
        call(4, "b", "bash", json!({"command": "make"})),
        result(5, "b", false, "red", json!({"exitCode": 3})),
        call(
            6,
            "c",
            "edit",
            json!({"path": "a.py", "edits": [{"oldText": "3", "newText": "4"}, {"old_text": "x", "new_text": "y"}]}),
        ),
        result(7, "c", false, "ok", json!({"diff": "-1 3"})),
        message(
            8,
            json!({"role": "bashExecution", "command": "ls", "output": "a.py", "exitCode": 1}),
        ),
        call(9, "d", "read", json!({"path": "a.py"})),
        result(10, "d", false, "4", Value::Null),
        assistant(11, json!([{"type": "text", "text": "Mended."}]), "stop"),
    ]);
    let child = lines(&[
        json!({"type": "session", "version": 3, "id": "s2", "timestamp": time(5), "cwd": "/shop"}),
        user(5, "Check it."),
        assistant(6, json!([{"type": "thinking", "thinking": ""}]), "aborted"),
    ]);
    sample.files.push(("--shop--/2026-11-26T22-40-00-000Z_s1/Notes.jsonl", child));
    sample
}

#[test]
fn calls_are_judged_by_exit_codes_and_flags() {
    let all = sample().read();
    let seen = &all["s1"];
    let calls = [
        ("bash", "failed", Some(2), false),
        ("bash", "failed", Some(3), false),
        ("edit", "ok", None, false),
        ("read", "ok", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    assert_eq!(seen.tokens(), Some((500, 100, 35)));
    assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.to_string(), "$1.25");
    assert_eq!(seen.edited(), ["a.py"]);
    assert_eq!(seen.edits[0].apply("3 x", |_| true).as_deref(), Some("4 y"));
    assert_eq!(seen.worker.summary.as_deref(), Some("Mend it"));
    assert_eq!(seen.worker.status, Status::Completed);
    assert!(seen.record.trace.unused.kinds.is_empty(), "{:?}", seen.record.trace.unused.kinds);

    let child = &all["s2"];
    assert_eq!(
        (child.worker.parent.as_deref(), child.worker.run.as_deref()),
        (Some("s1"), Some("s1"))
    );
    assert_eq!(child.worker.summary.as_deref(), Some("Notes"));
    assert_eq!(child.status(), (Status::Unknown, Some("interrupted")));
}

#[test]
fn error_of_the_api_and_a_stop_are_no_answers() {
    let error = message(
        2,
        json!({"role": "assistant", "content": [], "model": "lab-1",
        "stopReason": "error", "errorMessage": "400 too long"}),
    );
    let seen = session(&[start(), user(1, "Mend it."), error]).read_one();
    assert_eq!(
        (seen.worker.status, seen.worker.error.as_deref()),
        (Status::Failed, Some("400 too long"))
    );
    assert_eq!(seen.worker.model.as_deref(), Some("lab-1"));
    let stopped = assistant(2, json!([{"type": "text", "text": "I will"}]), "aborted");
    let seen = session(&[start(), user(1, "Mend it."), stopped]).read_one();
    assert_eq!(seen.status(), (Status::Unknown, Some("interrupted")));
}

#[test]
fn branch_holds_only_what_came_after_it() {
    let fork = json!({"type": "session", "version": 3, "id": "s3", "timestamp": time(20), "cwd": "/shop",
        "parentSession": "/home/dev/.pi/agent/sessions/--shop--/2026-11-26T22-40-00-000Z_s1.jsonl"});
    let copied = [
        fork,
        user(1, "Mend it."),
        call(2, "a", "bash", json!({"command": "make test"})),
        result(3, "a", true, "red", json!({})),
    ];
    let own = [
        user(21, "Another way."),
        call(22, "b", "bash", json!({"command": "make"})),
        result(23, "b", false, "", json!({})),
    ];
    let seen = session(&[copied.to_vec(), own.to_vec()].concat()).read_one();
    assert_eq!(seen.calls(), [("bash", "ok", None, false)]);
    assert_eq!(seen.worker.continues.as_deref(), Some("s1"));
    assert_eq!(seen.tokens(), Some((100, 20, 7)));
    assert_eq!(seen.text("task.txt"), "Another way.");
    // A branch that does nothing yet has the task of its origin, and none of its work.
    let seen = session(&copied).read_one();
    assert_eq!((seen.calls().len(), seen.worker.task.as_str()), (0, "Mend it."));
}

/// A session whose model numbers the calls of each answer.
pub(super) fn numbered_calls() -> ProgramSample {
    let make = |number, id| call(number, id, "bash", json!({"command": "make"}));
    session(&[
        start(),
        user(1, "Mend it."),
        make(2, "call_0"),
        result(3, "call_0", true, "red\n\n\nCommand exited with code 2", json!({})),
        make(4, "call_0"),
        result(5, "call_0", false, "green", json!({})),
        make(6, "call_0"),
    ])
}

#[test]
fn subagent_of_a_subagent_belongs_to_the_session() {
    let sample = session(&[start(), user(1, "Mend it.")]);
    let folder = "--shop--/2026-11-26T22-40-00-000Z_s1";
    let child = |id: &str| {
        let mut begin = start();
        begin["id"] = json!(id);
        lines(&[begin, user(1, "Check it.")])
    };
    let files = store(&sample.files);
    for (path, id) in [("Notes.jsonl", "n"), ("Notes/Links.jsonl", "l")] {
        files.write(&RelPath::parse(format!("{folder}/{path}")).unwrap(), child(id));
    }
    let all = read_all(&*format("pi"), &files);
    let parents: Vec<_> = all.values().map(|seen| seen.worker.parent.as_deref()).collect();
    assert_eq!(parents, [Some("s1"), Some("s1"), None], "{:?}", all.keys());
}
