//! Tests of the meaning of a session's records.

use super::*;

/// Creates a session with a call of each outcome, written as the program does: each answer first
/// without its calls, and the results again as a message of the user.
fn all_outcomes() -> Log {
    let mut log = Log::new();
    log.user("u1", "Fix the tests");
    let calls = json!([
        shell("c1", "cargo test", "Output: 3 passed\nProcess Group PGID: 7"),
        call("c2", "read_file", json!({"file_path": "/w/x"}), "error", json!({"error": "not found"})),
        call("c3", "run_shell_command", json!({"command": "rm x"}), "cancelled",
            json!({"error": "[Operation Cancelled] Reason: User did not allow tool call"})),
        call("c4", "run_shell_command", json!({"command": "sleep 9"}), "cancelled",
            json!({"output": "one", "error": "[Operation Cancelled] Reason: stop"})),
        call("c6", "run_shell_command", json!({"command": "rm y"}), "cancelled",
            json!({"error": "[Operation Cancelled] Reason: User cancelled tool execution."})),
        shell("c7", "server", "Command moved to background (PID: 7). Output hidden."),
        {"id": "c5", "name": "glob", "args": {"pattern": "*"}, "status": "executing"},
    ]);
    log.model("m1", "I look.", json!([])).again(json!({"toolCalls": calls}));
    log.message(
        "u2",
        "user",
        json!({"content": responses("c1", "run_shell_command", json!({"output": "3 passed"}))}),
    );
    log.set(json!({"lastUpdated": "2026-02-01T10:40:00.000Z", "summary": "Mends the tests"}));
    log
}

#[test]
fn log_shows_each_message_once_with_its_calls() {
    let seen = shown(&all_outcomes());
    let index = seen.index(SESSION);
    assert_eq!(
        outcomes(&index),
        ["ok", "failed", "not_run", "failed", "unknown", "unknown", "unknown"]
    );
    assert_eq!(
        seen.text(SESSION, "tool_calls/001_run_shell_command.txt"),
        "Output: 3 passed\nProcess Group PGID: 7"
    );
    assert_eq!(seen.text(SESSION, "tool_calls/002_read_file.txt"), "not found");
    assert_eq!(
        seen.text(SESSION, "tool_calls/004_run_shell_command.txt"),
        "one\n[Operation Cancelled] Reason: stop"
    );
    assert_eq!(index["source"]["calls_without_results"], 1);
    let thread = seen.thread(SESSION);
    let shown: Vec<(&str, &str)> = thread
        .iter()
        .map(|line| (line["role"].as_str().unwrap(), line["content"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(
        shown,
        [
            ("user", "Fix the tests"),
            ("assistant", "I look."),
            ("assistant", ""),
            ("tool", ""),
            ("tool", ""),
            ("tool", ""),
            ("tool", ""),
            ("tool", ""),
            ("tool", "")
        ]
    );
    assert_eq!(index["model"], "gemini-9-flash");
    assert_eq!(index["summary"], "Mends the tests");
    assert_eq!(index["status"], "running");
    assert_eq!(seen.text(SESSION, "task.txt"), "Fix the tests");
    assert!(seen.text(SESSION, "requests.txt").contains("    Fix the tests\n"));
    assert!(seen.text(SESSION, "requests.txt").ends_with("[1 request]\n"));
}

/// Promise: A session in a document shows what it shows as a log.
#[test]
fn document_shows_what_a_log_shows() {
    let log = all_outcomes();
    let store = store();
    store.write(
        &path(format!("{PROJECT}/chats/session-2026-02-01T10-00-0f0e0d0c.json")),
        log.document(),
    );
    let (seen, of_log) = (read_once(&store), shown(&log));
    assert_eq!(seen.bytes(SESSION, "source.json"), log.document());
    assert_eq!(seen.calls(SESSION), of_log.calls(SESSION));
    for name in of_log.calls(SESSION) {
        let file = format!("tool_calls/{name}");
        assert_eq!(seen.bytes(SESSION, &file), of_log.bytes(SESSION, &file));
    }
    assert_eq!(seen.thread(SESSION), of_log.thread(SESSION));
    assert_eq!(seen.bytes(SESSION, "task.txt"), of_log.bytes(SESSION, "task.txt"));
    let (index, of_log) = (seen.index(SESSION), of_log.index(SESSION));
    for field in ["status", "model", "created_at", "run_id", "task_type"] {
        assert_eq!(index[field], of_log[field], "{field}");
    }
    assert_eq!(outcomes(&index), outcomes(&of_log));
}

/// Promise: Tokens of a message are counted once.
#[test]
fn tokens_of_a_message_count_once() {
    let mut log = all_outcomes();
    log.again(json!({"tokens": {"input": 1}})).model("m2", "Done.", json!([]));
    let index = shown(&log).index(SESSION);
    assert_eq!(index["tokens"]["input"], 80, "{:#}", index["tokens"]);
    assert_eq!(index["tokens"]["cache_read"], 120);
    assert_eq!(index["tokens"]["output"], 46);
}

/// Promise: The recorded result decides the outcome, and its text is only a hint.
#[test]
fn exit_code_makes_a_successful_command_suspect() {
    let mut log = Log::new();
    log.user("u1", "go");
    log.model(
        "m1",
        "",
        json!([
            shell("c1", "false", "Output: (empty)\nExit Code: 1\nProcess Group PGID: 1"),
            shell("c2", "true", "Command: true\nOutput: fine\nExit Code: 0\nSignal: (none)"),
            shell(
                "c3",
                "make",
                "<untrusted_context>\nOutput: Exit Code: 0\nExit Code: 2\n</untrusted_context>"
            ),
            call(
                "c4",
                "read_file",
                json!({"file_path": "log"}),
                "success",
                json!({"output": "Exit Code: 1"})
            ),
        ]),
    );
    let index = shown(&log).index(SESSION);
    let calls = index["tool_calls"].as_array().unwrap();
    let suspect: Vec<&str> =
        calls.iter().map(|call| call["suspect"].as_str().unwrap_or_default()).collect();
    assert_eq!(suspect, ["Exit Code: 1", "", "Exit Code: 2", ""]);
    assert_eq!(outcomes(&index), ["ok"; 4]);
}

/// Promise: A rewind of a session removes the messages from there on, with their calls.
#[test]
fn rewinding_removes_messages_and_calls() {
    let mut log = Log::new();
    log.user("u1", "one").model("m1", "", json!([shell("c1", "ls", "a")])).model(
        "m2",
        "One.",
        json!([]),
    );
    let before = shown(&log);
    log.user("u2", "two").model("m3", "", json!([shell("c2", "ls", "b")])).model(
        "m4",
        "Two.",
        json!([]),
    );
    log.record(json!({"$rewindTo": "u2"}));
    let seen = shown(&log);
    assert_eq!(seen.calls(SESSION), ["001_run_shell_command.txt"]);
    assert_eq!(seen.bytes(SESSION, "thread.jsonl"), before.bytes(SESSION, "thread.jsonl"));
    assert_eq!(seen.bytes(SESSION, "requests.txt"), before.bytes(SESSION, "requests.txt"));
    assert_eq!(seen.index(SESSION)["tokens"], before.index(SESSION)["tokens"]);
    let remaining: Vec<Value> = log.messages().into_iter().take(3).collect();
    log.set(json!({"messages": remaining})).user("u3", "three");
    log.model("m5", "", json!([shell("c3", "ls", "c")])).model("m6", "Three.", json!([]));
    let seen = shown(&log);
    assert_eq!(seen.calls(SESSION).len(), 2);
    assert_eq!(seen.text(SESSION, "tool_calls/002_run_shell_command.txt"), "c");
    assert_eq!(seen.text(SESSION, "result.txt"), "Three.");
    // Without the message, all are removed.
    log.record(json!({"$rewindTo": "gone"}));
    let seen = shown(&log);
    assert!(seen.calls(SESSION).is_empty() && seen.thread(SESSION).is_empty());
}

/// Promise: Calls of messages that a program removes from the history of the model stay.
#[test]
fn replaced_messages_keep_their_calls() {
    let mut log = Log::new();
    log.user("u1", "one").model("m1", "", json!([shell("c1", "ls", "the whole output")]));
    log.model("m2", "One.", json!([])).user("u2", "two").model("m3", "Two.", json!([]));
    // The output is masked, and the result holds the results of other calls.
    let mut masked = log.messages()[1].clone();
    masked["toolCalls"][0]["result"][0]["functionResponse"]["response"]["output"] = json!("masked");
    let summary = json!({"id": "s", "timestamp": log.time(), "type": "user", "content": [{"text": "<session_context>so far"}]});
    log.set(json!({"messages": [summary, masked, log.messages()[4]]}));
    let seen = shown(&log);
    assert_eq!(seen.text(SESSION, "tool_calls/001_run_shell_command.txt"), "the whole output");
    let index = seen.index(SESSION);
    assert_eq!(index["tokens"]["output"], 46, "{:#}", index["tokens"]);
    assert_eq!(index["status"], "completed");
    assert_eq!(seen.text(SESSION, "result.txt"), "Two.");
    assert_eq!(seen.text(SESSION, "task.txt"), "one");
    assert_eq!(seen.text(SESSION, "requests.txt").matches("[request ").count(), 2);
    assert_eq!(seen.thread(SESSION).len(), 7);
    // A call that is only in the list is a call, too.
    let more = json!({"id": "m9", "timestamp": log.time(), "type": "gemini", "content": [{"text": "x", "thought": true},
        {"functionCall": {"id": "c9", "name": "glob"}}], "toolCalls": [shell("c9", "pwd", "/w")]});
    log.set(json!({"messages": [more]}));
    let seen = shown(&log);
    assert_eq!(seen.text(SESSION, "tool_calls/002_run_shell_command.txt"), "/w");
    assert_eq!(seen.index(SESSION)["status"], "running");
    assert!(seen.index(SESSION)["tokens"].is_null());
}

/// A resumed session is written as the real program does it: the metadata and the context again,
/// and then all messages.
#[test]
fn resumed_session_shows_everything_once() {
    let mut log = all_outcomes();
    log.model("m2", "Done.", json!([]));
    let before = shown(&log);
    // The history holds the calls in another form, and their results under the same ID.
    let [first, .., last] = &log.messages()[..] else { unreachable!() };
    let parts = json!([{"text": "I look."}, {"functionCall": {"id": "c1", "name": "glob"}}]);
    let results = responses("c1", "run_shell_command", json!({"output": "3 passed"}));
    let mut all = vec![
        first.clone(),
        json!({"id": "m1", "timestamp": log.time(), "type": "gemini", "content": parts}),
        json!({"id": "m1", "timestamp": log.time(), "type": "user", "content": results}),
    ];
    let halfway = all.clone();
    all.push(last.clone());
    all[3].as_object_mut().unwrap().remove("tokens");
    log.seconds += 100;
    let context = json!({"id": "ctx", "timestamp": log.time(), "type": "user", "content": [{"text": "<session_context>\n- **Workspace Directories:**\n  - /w/app\n</session_context>"}]});
    let time = log.time();
    log.metadata().set(json!({"messages": [context], "lastUpdated": time}));
    let seen = shown(&log);
    assert_eq!(seen.calls(SESSION), before.calls(SESSION));
    log.set(json!({"sessionId": SESSION})).set(json!({"messages": halfway}));
    assert_eq!(shown(&log).index(SESSION)["status"], "running");
    let all = [&[context][..], &all].concat();
    log.set(json!({"messages": all}));
    let seen = shown(&log);
    let (index, of_before) = (seen.index(SESSION), before.index(SESSION));
    assert_eq!(index["tool_calls"], of_before["tool_calls"]);
    assert_eq!(index["tokens"], of_before["tokens"]);
    assert_eq!(
        (&index["status"], &index["created_at"]),
        (&of_before["status"], &of_before["created_at"])
    );
    assert_eq!(index["cwd"], "/w/app");
    assert_eq!(
        seen.text(SESSION, "requests.txt"),
        "[request 1, 2026-02-01T10:00:01Z]\n    Fix the tests\n\n[1 request; left out: 1 message of the program]\n"
    );
    assert_eq!(seen.thread(SESSION).len(), before.thread(SESSION).len() + 1);
}

/// Metadata with the ID of another session starts over.
#[test]
fn metadata_of_another_session_starts_over() {
    let mut log = Log::new();
    log.user("u1", "one").model("m1", "", json!([shell("c1", "ls", "a")]));
    let mut next = Log::of("0f0e0d0c-0000-4000-8000-000000000002", "main");
    next.user("n1", "other");
    let next_id = next.id.clone();
    log.records.extend(next.records);
    log.id = next_id.clone();
    let seen = shown(&log);
    assert_eq!(seen.workers(), std::slice::from_ref(&next_id));
    assert!(seen.calls(&next_id).is_empty());
    assert_eq!(seen.text(&next_id, "task.txt"), "other");
    assert!(seen.index(&next_id)["model"].is_null());
}

/// The last message decides the status.
#[test]
fn last_message_decides_the_status() {
    let call = || json!([shell("c1", "ls", "a")]);
    let error = |log: &mut Log| {
        log.message("e", "error", json!({"content": "[API Error: no]"}));
    };
    let cancelled = |log: &mut Log| {
        log.message("i", "info", json!({"content": "Request cancelled."}));
    };
    let log = |write: &dyn Fn(&mut Log)| {
        let mut log = Log::new();
        log.user("u1", "go");
        write(&mut log);
        log
    };
    let model = |text: &'static str, calls: Value| {
        log(&|log| {
            log.model("m1", text, calls.clone());
        })
    };
    let cases = [
        ("running", "", log(&|_| {})),
        ("completed", "", model("Done.", json!([]))),
        ("running", "", model("I look.", call())),
        ("running", "", model("", json!([]))),
        ("failed", "api error", log(&error)),
        (
            "failed",
            "api error",
            log(&|log| {
                error(log);
                log.message("i", "info", json!({"content": "This request failed."}));
            }),
        ),
        (
            "unknown",
            "interrupted",
            log(&|log| {
                log.model("m1", "", call());
                cancelled(log);
            }),
        ),
        (
            "running",
            "",
            log(&|log| {
                cancelled(log);
                log.user("u2", "again");
            }),
        ),
        (
            "completed",
            "",
            log(&|log| {
                log.model("m1", "Done.", json!([]));
                log.message("w", "warning", json!({"content": "Quota"}));
                log.message("i", "info", json!({"content": ""}));
            }),
        ),
    ];
    for (status, word, log) in cases {
        let index = shown(&log).index(SESSION);
        assert_eq!(index["status"], status, "{:?}", log.records);
        assert_eq!(index["status_source"].as_str().unwrap_or_default(), word, "{:?}", log.records);
    }
}

/// Promise: requests.txt shows every message of the user with its time, and counts what it leaves
/// out.
#[test]
fn only_what_a_person_wrote_is_a_request() {
    let mut log = Log::new();
    log.user("x", "<session_context>\n- **Workspace Directories:**\n  - /w/app\n");
    log.user("h", "<hook_context>be kind</hook_context>").user("c", "/stats model");
    log.message(
        "u",
        "user",
        json!({"content": [{"text": "see notes.md: all of its text"}],
        "displayContent": [{"text": "see @notes.md"}]}),
    );
    log.user("p", "/etc/hosts is wrong");
    log.user("l", "System: Potential loop detected. Details: x");
    let seen = shown(&log);
    let requests = seen.text(SESSION, "requests.txt");
    assert!(requests.contains("    see @notes.md\n") && requests.contains("    /etc/hosts"));
    assert!(
        requests.ends_with("[2 requests; left out: 1 command, 3 messages of the program]\n"),
        "{requests}"
    );
    assert_eq!(seen.index(SESSION)["cwd"], "/w/app");
    assert_eq!(seen.text(SESSION, "task.txt"), "see @notes.md");
}

#[test]
fn results_of_every_shape_are_shown() {
    let results = [
        (json!("plain"), "plain"),
        (json!(["one ", "two"]), "one two"),
        (json!([{"text": "a"}, {"inlineData": {"data": "AAAA"}}, {"text": "b"}]), "ab"),
        (json!({"functionResponse": {"response": {"output": "alone"}}}), "alone"),
        (
            responses("r4", "t", json!({"output": {"b": 1, "a": [1.5, null]}})),
            "{\"b\":1,\"a\":[1.5,null]}",
        ),
        (responses("r5", "t", json!({"content": [ 1 ]})), "{\"content\":[1]}"),
        (responses("r6", "t", json!("text")), "text"),
        (
            json!([{"functionResponse": {"id": "other", "response": {"output": "not its own"}}},
            {"functionResponse": {"id": "r7", "response": {"output": "its own"}}}]),
            "its own",
        ),
        (
            json!([{"functionResponse": {"id": "other", "response": {"output": "only one"}}}]),
            "only one",
        ),
    ];
    let calls: Vec<Value> = results
        .iter()
        .enumerate()
        .map(|(at, (result, _))| json!({"id": format!("r{at}"), "name": "t", "status": "success", "result": result}))
        .collect();
    let mut log = Log::new();
    log.user("u", "go").model("m", "", calls.into());
    let seen = shown(&log);
    for (at, (_, text)) in results.iter().enumerate() {
        assert_eq!(seen.text(SESSION, &format!("tool_calls/{:03}_t.txt", at + 1)), *text);
    }
}

#[test]
fn unknown_types_and_bad_lines_are_counted() {
    let mut log = Log::new();
    log.user("u", "go")
        .message("t", "telemetry", json!({"content": "x"}))
        .record(json!({"odd": 1}));
    let store = store();
    let bytes = [&log.bytes()[..], b"{\"$set\":{\"messages\":7}}\njunk\n[1]\n"].concat();
    store.write(&log_path(), bytes);
    let source = read_once(&store).index(SESSION)["source"].clone();
    assert_eq!(source["unparsable_lines"], 3, "{source:#}");
    assert_eq!(source["unknown_records"], json!({"(none)": 1, "telemetry": 1}), "{source:#}");
}

/// Promise: The fields that state an outcome are read, and no other one looks like it.
#[test]
fn fields_that_state_an_outcome_are_read() {
    let samples = [
        ("status", call("c", "x", json!({}), "success", json!({"output": "a"})), "ok"),
        ("status", call("c", "x", json!({}), "error", json!({"error": "a"})), "failed"),
    ];
    let outcome = |call: &Value| {
        let mut log = Log::new();
        log.user("u", "go").model("m", "", json!([call]));
        outcomes(&shown(&log).index(SESSION))[0].clone()
    };
    let more = all_outcomes().messages();
    // The text of a result that has no output.
    crate::formats::outcome_fields::check("Gemini CLI", &samples, &more, &["error"], outcome);
}
