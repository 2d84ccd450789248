//! Sessions of goose.

use super::databases::{DatabaseSample, ProgramDatabase};
use super::*;

const SCHEMA: &str = "
    CREATE TABLE schema_version (version INTEGER PRIMARY KEY);
    CREATE TABLE sessions (id TEXT PRIMARY KEY, name TEXT DEFAULT '', description TEXT DEFAULT '',
        user_set_name BOOLEAN DEFAULT FALSE, session_type TEXT DEFAULT 'user', working_dir TEXT,
        created_at TIMESTAMP DEFAULT '2026-11-26 22:41:00', updated_at TIMESTAMP,
        total_tokens INTEGER, accumulated_input_tokens INTEGER, accumulated_output_tokens INTEGER,
        accumulated_cache_read_tokens INTEGER, accumulated_cache_write_tokens INTEGER,
        accumulated_cost REAL, model_config_json TEXT, parent_session_id TEXT);
    CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT, session_id TEXT,
        role TEXT, content_json TEXT, created_timestamp INTEGER, metadata_json TEXT);
    CREATE INDEX idx_messages_session ON messages(session_id);";
/// Time of the first message, in seconds since 1970.
const START: i64 = 1_795_732_000;

fn session(more: Value) -> (&'static str, Value) {
    let mut row = json!({"id": "20261126_1", "name": "Mend the shop", "working_dir": "/shop",
        "model_config_json": {"model_name": "large-1"}});
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ("sessions", row)
}

fn message(number: i64, role: &str, content: Value) -> (&'static str, Value) {
    let row = json!({"id": number, "session_id": "20261126_1", "role": role,
        "content_json": content, "created_timestamp": START + number,
        "metadata_json": {"userVisible": true, "agentVisible": true}});
    ("messages", row)
}

fn with_metadata(mut row: (&'static str, Value), metadata: Value) -> (&'static str, Value) {
    row.1["metadata_json"] = metadata;
    row
}

fn text(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

fn call(number: i64, id: &str, tool: &str, arguments: Value) -> (&'static str, Value) {
    let call = json!({"status": "success", "value": {"name": tool, "arguments": arguments}});
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": ""});
    let request = json!({"type": "toolRequest", "id": id, "toolCall": call});
    let text = json!({"type": "text", "text": "I look."});
    message(number, "assistant", json!([thought, text, request]))
}

fn result(number: i64, id: &str, result: Value) -> (&'static str, Value) {
    message(number, "user", json!([{"type": "toolResponse", "id": id, "toolResult": result}]))
}

fn output(text: &str, more: Value) -> Value {
    let mut value = json!({"content": [{"type": "text", "text": text}], "isError": false});
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"status": "success", "value": value})
}

fn shell(number: i64, id: &str) -> (&'static str, Value) {
    call(number, id, "developer__shell", json!({"command": "make test"}))
}

fn edit(path: &str) -> Value {
    json!({"path": path, "before": "3", "after": "4"})
}

fn database(rows: Vec<(&'static str, Value)>) -> DatabaseSample {
    DatabaseSample { format: "goose", file: "sessions.db", schema: SCHEMA, rows }
}

pub(super) fn sample() -> DatabaseSample {
    let denial = json!({"actionType": "toolConfirmationResponse", "id": "g",
        "permission": "deny_once"});
    let mut child = message(40, "user", text("Look at the till."));
    child.1["session_id"] = json!("20261126_2");
    database(vec![
        session(json!({"total_tokens": 9, "accumulated_input_tokens": 1_000,
            "accumulated_output_tokens": 200, "accumulated_cache_read_tokens": 600,
            "accumulated_cache_write_tokens": 100, "accumulated_cost": 0.25})),
        message(1, "user", text("Mend it.")),
        shell(2, "a"),
        result(3, "a", output("fine", json!({"structuredContent": {"exit_code": 0}}))),
        shell(4, "b"),
        result(5, "b", output("red", json!({"structuredContent": {"exit_code": 2}}))),
        shell(6, "c"),
        result(7, "c", output("slow", json!({"structuredContent": {"timed_out": true}}))),
        call(8, "d", "github__search", json!({"query": "till"})),
        result(9, "d", output("no", json!({"isError": true}))),
        call(10, "e", "todo__write", json!({"content": "1."})),
        result(11, "e", json!({"status": "error", "error": "no such tool"})),
        call(12, "f", "developer__edit", edit("a.py")),
        result(13, "f", output("Edited a.py", json!({}))),
        call(14, "g", "developer__write", json!({"path": "b.md", "content": "no\n"})),
        message(
            15,
            "assistant",
            json!([{"type": "actionRequired", "data": {"id": "g",
            "actionType": "toolConfirmation", "toolName": "developer__write", "arguments": {}}}]),
        ),
        message(16, "user", json!([{"type": "actionRequired", "data": denial}])),
        result(
            17,
            "g",
            output("The user has declined to run this tool.", json!({"isError": true})),
        ),
        shell(18, "h"),
        (
            "sessions",
            json!({"id": "20261126_2", "working_dir": "/shop",
            "session_type": "sub_agent", "parent_session_id": "20261126_1"}),
        ),
        child,
        result(19, "h", json!({"status": "success", "value": [{"type": "text", "text": "old"}]})),
        message(20, "assistant", text("Mended.")),
    ])
}

#[test]
fn results_are_judged_by_their_flags() {
    let seen = sample().read_one("20261126_1");
    let calls = [
        ("developer__shell", "ok", Some(0), false),
        ("developer__shell", "failed", Some(2), false),
        ("developer__shell", "failed", None, false),
        ("github__search", "failed", None, false),
        ("todo__write", "failed", None, false),
        ("developer__edit", "ok", None, false),
        ("developer__write", "not_run", None, false),
        ("developer__shell", "ok", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.record.trace.calls[0].input.as_deref(), Some("make test"));
    assert_eq!(seen.text("tool_calls/008_developer__shell.txt"), "old");
    assert!(seen.text("thread.jsonl").contains("Hm."));
    assert_eq!(seen.record.trace.unused.kinds.len(), 0);
}

#[test]
fn session_states_who_it_is_and_its_use() {
    let all = sample().read();
    let (seen, child) = (&all["20261126_1"], &all["20261126_2"]);
    let worker = &seen.worker;
    assert_eq!((&*worker.task, worker.cwd.as_deref()), ("Mend it.", Some("/shop")));
    assert_eq!(worker.summary.as_deref(), Some("Mend the shop"));
    assert_eq!(worker.model.as_deref(), Some("large-1"));
    assert_eq!(seen.text("result.txt"), "Mended.");
    assert_eq!(seen.status(), (Status::Completed, None));
    // The input is the whole prompt, of all requests.
    assert_eq!(seen.tokens(), Some((300, 200, 600)));
    assert_eq!(seen.record.trace.tokens.unwrap().cache_creation, 100);
    assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.to_string(), "$0.25");
    let last = worker.last_message.unwrap();
    assert_eq!(last.as_second(), START + 20);
    assert_eq!(child.worker.parent.as_deref(), Some("20261126_1"));
    assert_eq!(child.worker.task_type.as_deref(), Some("agent"));
    assert_eq!((child.worker.summary.as_deref(), child.tokens()), (None, None));
    assert_eq!(child.status(), (Status::Running, None));
}

#[test]
fn changes_come_from_the_arguments_of_tools_for_files() {
    let editor = |number, command: &str, more: Value| {
        let mut arguments = json!({"command": command, "path": "/shop/e.py"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(number, command, "developer__text_editor", arguments)
    };
    let mut rows = vec![
        session(json!({})),
        message(1, "user", text("go")),
        call(2, "a", "edit", edit("/shop/a.py")),
        call(3, "b", "developer__write", json!({"path": "/shop/b.md", "content": "one\n"})),
        call(4, "c", "github__edit", edit("/shop/c.py")),
        call(5, "failed", "developer__edit", edit("/shop/d.py")),
        editor(6, "view", json!({})),
        editor(7, "str_replace", json!({"old_str": "3", "new_str": "4"})),
        editor(8, "write", json!({"file_text": "all\n"})),
        editor(9, "insert", json!({"insert_line": 2, "new_str": "more"})),
    ];
    let ids = ["a", "b", "c", "view", "str_replace", "write", "insert"];
    rows.extend(ids.iter().zip(10..).map(|(id, at)| result(at, id, output("ok", json!({})))));
    rows.push(result(30, "failed", output("no match", json!({"isError": true}))));
    let seen = database(rows).read_one("20261126_1");
    let paths = ["/shop/a.py", "/shop/b.md", "/shop/e.py", "/shop/e.py", "/shop/e.py"];
    assert_eq!(seen.edited(), paths);
    assert_eq!(seen.edits[0].replacements[0].old, "3");
    assert_eq!(seen.edits[1].after.as_deref(), Some("one\n"));
    assert_eq!(seen.edits[3].after.as_deref(), Some("all\n"));
    assert_eq!(seen.edits[4].place.as_deref(), Some("line 2"));
}

#[test]
fn texts_for_the_model_or_of_the_program_are_no_words_of_a_person() {
    let hidden = json!({"userVisible": false, "agentVisible": true});
    let archived = json!({"userVisible": true, "agentVisible": false});
    let copied = json!({"userVisible": false, "agentVisible": false});
    let model = json!({"userVisible": true, "agentVisible": true,
        "inference": {"provider": "p", "requestedModel": "small-1"},
        "usage": {"inputTokens": 700}});
    let rows = vec![
        session(json!({})),
        with_metadata(message(1, "user", text("Mend it.")), archived.clone()),
        with_metadata(message(2, "assistant", text("I begin.")), archived),
        with_metadata(message(3, "user", text("And the till.")), copied),
        with_metadata(message(4, "user", text("## Summary")), hidden.clone()),
        with_metadata(message(5, "assistant", text("The message before is")), hidden.clone()),
        message(6, "user", text("And the till.")),
        with_metadata(message(7, "user", text("<context>")), hidden),
        with_metadata(message(8, "assistant", text("Done.")), model),
    ];
    let seen = database(rows).read_one("20261126_1");
    assert_eq!(seen.worker.task, "Mend it.");
    let requests = seen.text("requests.txt");
    assert_eq!(requests.matches("And the till.").count(), 1, "{requests}");
    assert!(!requests.contains("Summary") && !requests.contains("context"), "{requests}");
    assert_eq!(seen.text("result.txt"), "Done.");
    assert_eq!(seen.worker.model.as_deref(), Some("small-1"));
    let context = &seen.record.trace.context;
    assert_eq!((context.compactions, context.peak), (1, 700));
}

#[test]
fn last_message_shows_how_a_session_stands() {
    let question = || {
        message(
            3,
            "assistant",
            json!([{"type": "actionRequired", "data": {"id": "a",
            "actionType": "toolConfirmation", "toolName": "shell", "arguments": {}}}]),
        )
    };
    let error =
        || message(3, "assistant", json!([{"type": "error", "kind": "other", "message": "429"}]));
    let asked = || message(1, "user", text("Mend it."));
    let skipped = output("The user has declined to run this tool. DO NOT", json!({}));
    for (rows, status, error) in [
        (vec![], Status::Created, None),
        (vec![asked()], Status::Running, None),
        (vec![asked(), shell(2, "a")], Status::Running, None),
        (vec![asked(), shell(2, "a"), question()], Status::Waiting, None),
        (
            vec![asked(), shell(2, "a"), question(), result(4, "a", skipped.clone())],
            Status::Running,
            None,
        ),
        (vec![asked(), error()], Status::Failed, Some("429")),
        (vec![asked(), message(2, "assistant", text("Done."))], Status::Completed, None),
    ] {
        let rows = std::iter::once(session(json!({}))).chain(rows).collect();
        let seen = database(rows).read_one("20261126_1");
        assert_eq!((seen.worker.status, seen.worker.error.as_deref()), (status, error));
    }
    // Older versions flag no error.
    let rows = vec![session(json!({})), asked(), shell(2, "a"), result(3, "a", skipped)];
    let seen = database(rows).read_one("20261126_1");
    assert!(seen.record.trace.calls[0].suspect.is_some());
}

#[test]
fn a_result_shows_the_text_for_the_model() {
    let part = |text: &str, audience: Value| json!({"type": "text", "text": text, "annotations": {"audience": audience}});
    let content = json!([part("for me", json!(["user"])), part("for it", json!(["assistant"]))]);
    let rows = vec![
        session(json!({})),
        shell(1, "a"),
        result(2, "a", output("", json!({"content": content}))),
        shell(3, "b"),
        result(4, "b", output("", json!({"content": [part("for me", json!(["user"]))]}))),
        shell(5, "c"),
        result(6, "c", json!({"status": "novel", "value": {}})),
    ];
    let seen = database(rows).read_one("20261126_1");
    assert_eq!(seen.text("tool_calls/001_developer__shell.txt"), "for it");
    assert_eq!(seen.text("tool_calls/002_developer__shell.txt"), "for me");
    assert_eq!(seen.calls()[2].1, "unknown");
}

/// Older databases have few columns, and messages in milliseconds.
#[test]
fn a_database_of_an_older_version_is_read() {
    let database = database(Vec::new());
    let old = DatabaseSample {
        schema: "CREATE TABLE sessions (id TEXT PRIMARY KEY, description TEXT, working_dir TEXT);
            CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT,
                content_json TEXT, created_timestamp INTEGER);",
        ..database
    };
    let database: ProgramDatabase = old.filled();
    let row = json!({"id": "1", "description": "Old", "working_dir": "/shop"});
    database.insert("sessions", &row);
    let row = json!({"session_id": "1", "role": "user", "content_json": text("Mend it."),
        "created_timestamp": START * 1_000});
    database.insert("messages", &row);
    let seen = &database.read()["1"];
    assert_eq!((&*seen.worker.task, seen.worker.summary.as_deref()), ("Mend it.", Some("Old")));
    assert_eq!(seen.worker.last_message.unwrap().as_second(), START);
}
