//! Sessions of Crush.

use super::databases::DatabaseSample;
use super::*;

const SCHEMA: &str = "
    CREATE TABLE sessions (id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT,
        message_count INTEGER DEFAULT 0 CHECK (message_count >= 0), -- see below
        prompt_tokens INTEGER DEFAULT 0,
        completion_tokens INTEGER DEFAULT 0, cost REAL DEFAULT 0.0, updated_at INTEGER,
        created_at INTEGER, summary_message_id TEXT);
    CREATE TABLE files (id TEXT PRIMARY KEY, session_id TEXT, path TEXT, content TEXT);
    CREATE TABLE messages (id TEXT PRIMARY KEY, session_id TEXT, role TEXT,
        parts TEXT DEFAULT '[]', model TEXT, created_at INTEGER, updated_at INTEGER,
        finished_at INTEGER, provider TEXT, is_summary_message INTEGER DEFAULT 0);
    CREATE INDEX idx_messages_session_id ON messages (session_id);";
/// Time of the first message, in seconds since 1970.
const START: i64 = 1_795_732_000;

fn session(more: Value) -> (&'static str, Value) {
    let mut row = json!({"id": "lead", "title": "Mend the shop", "created_at": START,
        "updated_at": START});
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ("sessions", row)
}

/// Makes a row. The IDs of rows are in no order.
fn message(number: i64, role: &str, parts: &[(&str, Value)]) -> (&'static str, Value) {
    let parts: Vec<Value> =
        parts.iter().map(|(kind, data)| json!({"type": kind, "data": data})).collect();
    let row = json!({"id": format!("{:02}", 99 - number), "session_id": "lead", "role": role,
        "parts": parts, "model": if role == "assistant" { "large-1" } else { "" },
        "created_at": START + number / 2, "updated_at": START + number / 2});
    ("messages", row)
}

fn text(text: &str) -> (&'static str, Value) {
    ("text", json!({"text": text}))
}

fn finish(reason: &str) -> (&'static str, Value) {
    ("finish", json!({"reason": reason, "time": START + 30}))
}

fn user(number: i64, words: &str) -> (&'static str, Value) {
    message(number, "user", &[text(words), ("finish", json!({"reason": "stop", "time": 0}))])
}

fn call(number: i64, id: &str, tool: &str, input: Value) -> (&'static str, Value) {
    let thought = ("reasoning", json!({"thinking": "Hm.", "signature": ""}));
    let input = input.to_string();
    let call = json!({"id": id, "name": tool, "input": input, "finished": true});
    let parts = [thought, text("I look."), ("tool_call", call), finish("tool_use")];
    message(number, "assistant", &parts)
}

fn result(
    number: i64,
    (id, tool): (&str, &str),
    is_error: bool,
    content: &str,
    metadata: Value,
) -> (&'static str, Value) {
    let metadata = if metadata.is_null() { String::new() } else { metadata.to_string() };
    let result = json!({"tool_call_id": id, "name": tool, "content": content,
        "metadata": metadata, "is_error": is_error});
    message(number, "tool", &[("tool_result", result), finish("stop")])
}

fn bash(number: i64, id: &str) -> (&'static str, Value) {
    call(number, id, "bash", json!({"command": "make test", "description": "test"}))
}

fn ran(directory: &str) -> Value {
    json!({"start_time": START * 1_000, "end_time": START * 1_000 + 250, "output": "…",
        "working_directory": directory})
}

fn edit(path: &str) -> Value {
    json!({"file_path": path, "old_string": "3", "new_string": "4"})
}

fn database(rows: Vec<(&'static str, Value)>) -> DatabaseSample {
    DatabaseSample { format: "crush", file: "crush.db", schema: SCHEMA, rows }
}

pub(super) fn sample() -> DatabaseSample {
    let hook = json!({"hook": {"hook_count": 1, "decision": "deny", "reason": "no"}});
    let failed = "red\nExit code 2\n\n<cwd>/shop</cwd>";
    let started = json!({"working_directory": "/shop", "background": true, "shell_id": "001"});
    let ended = json!({"shell_id": "001", "done": true, "working_directory": "/shop"});
    let streamed = json!({"id": "i", "name": "bash", "input": "{\"comm", "finished": false});
    let half = message(18, "assistant", &[text("Now"), ("tool_call", streamed)]);
    let mut child = user(3, "Look at the till.");
    (child.1["id"], child.1["session_id"]) = (json!("child-1"), json!("72$$f"));
    database(vec![
        session(json!({"prompt_tokens": 900, "completion_tokens": 80, "cost": 0.5})),
        user(1, "Mend it."),
        bash(2, "a"),
        result(3, ("a", "bash"), false, "fine\n\n<cwd>/shop</cwd>", ran("/shop/till")),
        bash(4, "b"),
        result(5, ("b", "bash"), false, failed, ran("/shop")),
        call(6, "c", "edit", edit("/shop/a.py")),
        result(7, ("c", "edit"), true, "old_string not found", Value::Null),
        call(8, "d", "view", json!({"file_path": "/shop/a.py"})),
        result(9, ("d", "view"), true, "Tool call blocked by hook. Reason: no", hook),
        bash(10, "e"),
        result(11, ("e", "bash"), false, "Background shell started with ID: 001", started),
        call(12, "g", "job_output", json!({"shell_id": "001"})),
        result(13, ("g", "job_output"), false, "Status: completed\n\nfine", ended),
        call(14, "f", "agent", json!({"prompt": "Look at the till."})),
        (
            "sessions",
            json!({"id": "72$$f", "parent_session_id": "lead", "cost": 0.1,
            "title": "New Agent Session", "created_at": START + 6, "updated_at": START + 6}),
        ),
        child,
        result(15, ("f", "agent"), false, "The till is fine.", Value::Null),
        message(16, "user", &[("shell_command", json!({"command": "ls", "exit_code": 1}))]),
        call(17, "h", "edit", edit("/shop/b.py")),
        half,
        bash(18, "i"),
    ])
}

#[test]
fn results_are_judged_by_their_flags() {
    let seen = sample().read_one("lead");
    let calls = [
        ("bash", "ok", None, false),
        ("bash", "ok", None, false),
        ("edit", "failed", None, false),
        ("view", "not_run", None, false),
        // The program has seen its end, but no field says how it went.
        ("bash", "unknown", None, false),
        ("job_output", "ok", None, false),
        ("agent", "ok", None, false),
        ("edit", "unknown", None, false),
        ("bash", "unknown", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    let calls = &seen.record.trace.calls;
    assert_eq!(calls[0].duration_ms, Some(250));
    assert_eq!(
        (calls[0].suspect.as_deref(), calls[1].suspect.as_deref()),
        (None, Some("Exit code 2"))
    );
    assert_eq!(
        (calls[7].output.clone(), calls[8].output.clone()),
        (Output::Pending, Output::Pending)
    );
    assert_eq!(calls[0].input.as_deref(), Some("make test description=test"));
    assert_eq!(seen.record.trace.unused.kinds.len(), 0);
    assert!(seen.text("thread.jsonl").contains("Hm."));
    let requests = seen.text("requests.txt");
    assert!(requests.contains("Mend it.") && !requests.contains("ls"), "{requests}");
}

#[test]
fn work_in_the_background_is_open_until_the_program_has_seen_its_end() {
    let mut rows = sample().rows;
    rows.truncate(12);
    let open = || {
        let mut rows = rows.clone();
        rows.push(call(12, "k", "job_kill", json!({"shell_id": "001"})));
        rows
    };
    let last = |rows| {
        let seen = database(rows).read_one("lead");
        let call = seen.calls()[4];
        (call.1.to_owned(), call.3)
    };
    assert_eq!(last(open()), ("unknown".into(), true));
    let killed = |is_error| {
        let metadata = json!({"shell_id": "001", "command": "make"});
        let mut rows = open();
        rows.push(result(13, ("k", "job_kill"), is_error, "terminated", metadata));
        rows
    };
    assert_eq!(last(killed(true)), ("unknown".into(), true));
    assert_eq!(last(killed(false)), ("unknown".into(), false));
}

#[test]
fn session_states_who_it_is_and_its_use() {
    let all = sample().read();
    let (seen, child) = (&all["lead"], &all["72$$f"]);
    let worker = &seen.worker;
    assert_eq!((&*worker.task, worker.cwd.as_deref()), ("Mend it.", Some("/shop")));
    assert_eq!(worker.summary.as_deref(), Some("Mend the shop"));
    assert_eq!(worker.model.as_deref(), Some("large-1"));
    assert_eq!(seen.tokens(), Some((900, 80, 0)));
    assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.to_string(), "$0.50");
    assert_eq!(child.worker.parent.as_deref(), Some("lead"));
    assert_eq!(child.worker.task, "Look at the till.");
    // It is part of the cost of the session that started the agent.
    assert_eq!(child.record.trace.cost, None);
    assert_eq!(child.worker.created_at.timestamp().unwrap().as_second(), START + 6);
}

#[test]
fn changes_are_those_that_results_state() {
    let diff = "--- a/c.py\n+++ b/c.py\n@@ -1 +1 @@\n-3\n+4\n";
    let denied = json!({"old_content": "3\n", "new_content": "4\n"});
    let rows = vec![
        session(json!({})),
        user(1, "go"),
        call(2, "a", "edit", edit("/shop/a.py")),
        result(3, ("a", "edit"), false, "ok", json!({"old_content": "3\n", "new_content": "4\n"})),
        call(4, "b", "write", json!({"file_path": "/shop/b.md", "content": "one\n"})),
        result(5, ("b", "write"), false, "ok", json!({"additions": 1})),
        call(6, "c", "write", json!({"file_path": "/shop/c.py", "content": "4\n"})),
        result(7, ("c", "write"), false, "ok", json!({"diff": diff, "additions": 1})),
        call(
            8,
            "d",
            "multiedit",
            json!({"file_path": "/shop/d.py", "edits": [
            {"old_string": "", "new_string": "new\n"}, {"old_string": "x", "new_string": "y"}]}),
        ),
        result(9, ("d", "multiedit"), false, "1 of 2", json!({"new_content": "new\n"})),
        call(10, "e", "edit", edit("/shop/e.py")),
        result(11, ("e", "edit"), true, "User denied permission", denied),
        call(12, "f", "edit", edit("/shop/f.py")),
        result(13, ("f", "edit"), false, "ok", Value::Null),
    ];
    let seen = database(rows).read_one("lead");
    let paths = ["/shop/a.py", "/shop/b.md", "/shop/c.py", "/shop/d.py", "/shop/f.py"];
    assert_eq!(seen.edited(), paths);
    let [a, b, c, d, f] = seen.edits.as_slice() else { panic!("{:?}", seen.edits) };
    assert_eq!((a.before.as_deref(), a.after.as_deref()), (Some("3\n"), Some("4\n")));
    assert_eq!((b.created, b.after.as_deref()), (false, Some("one\n")));
    assert_eq!(c.hunks[0].lines, ["-3", "+4"]);
    assert_eq!((d.created, d.after.as_deref()), (true, Some("new\n")));
    assert_eq!((f.replacements[0].old.as_str(), f.replacements[0].new.as_str()), ("3", "4"));
}

#[test]
fn last_answer_states_how_the_session_stands() {
    let answer = |parts: &[(&str, Value)]| {
        let parts: Vec<_> = std::iter::once(text("So")).chain(parts.iter().cloned()).collect();
        message(3, "assistant", &parts)
    };
    let error = json!({"reason": "error", "message": "Provider Error", "details": "429"});
    let summary = |reason| {
        let mut row = message(5, "assistant", &[text("## Summary"), finish(reason)]);
        row.1["is_summary_message"] = json!(1);
        row
    };
    let continued = "The previous session was interrupted because it got too long, the initial \
        user request was: `Mend it.`";
    let stopped = || result(4, ("a", "bash"), true, "Error: user cancelled", Value::Null);
    for (rows, status, word) in [
        (vec![], Status::Running, None),
        // An answer without an end is being written, or was left so.
        (vec![answer(&[])], Status::Running, None),
        (vec![answer(&[finish("end_turn")])], Status::Completed, None),
        (vec![answer(&[finish("tool_use")])], Status::Running, None),
        (vec![answer(&[finish("canceled")])], Status::Unknown, Some("canceled")),
        (
            vec![bash(2, "a"), answer(&[finish("canceled")]), stopped()],
            Status::Unknown,
            Some("canceled"),
        ),
        (vec![answer(&[("finish", error)])], Status::Failed, Some("error")),
        (vec![answer(&[finish("content_filter")])], Status::Failed, Some("content_filter")),
        (vec![answer(&[finish("max_tokens")])], Status::Unknown, Some("max_tokens")),
        (vec![answer(&[finish("end_turn")]), user(4, "And now?")], Status::Running, None),
        (vec![answer(&[finish("end_turn")]), summary("end_turn")], Status::Completed, None),
        (vec![answer(&[finish("end_turn")]), summary("error")], Status::Completed, None),
        (vec![summary("end_turn"), user(6, continued)], Status::Running, None),
    ] {
        let is_error = word == Some("error");
        let rows: Vec<_> =
            [session(json!({})), user(1, "Mend it.")].into_iter().chain(rows).collect();
        let has_summary = rows.iter().any(|(_, row)| row["is_summary_message"] == 1);
        let seen = database(rows).read_one("lead");
        assert_eq!(seen.status(), (status, word));
        let error = seen.worker.error.as_deref();
        assert_eq!(error.filter(|_| is_error), is_error.then_some("Provider Error\n429"));
        let compactions = seen.record.trace.context.compactions;
        assert_eq!(compactions, u64::from(has_summary));
        assert!(!seen.text("requests.txt").contains("previous session"));
    }
}
