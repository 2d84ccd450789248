//! Tests of where sessions are found, and how they are recognized.

use super::*;
use crate::support::TestStore;

const CHILD: &str = "0f0e0d0c-0000-4000-8000-0000000000aa";

/// Promise: Every session and every subagent is a worker, in every layout of transcripts.
#[test]
fn subagent_is_a_child_of_its_session() {
    let mut log = Log::new();
    log.user("u", "use a helper").model("m", "Done.", json!([]));
    let store = store_of(&log);
    store.write(&path(format!("{PROJECT}/.project_root")), "/w/app\n");
    let mut child = Log::of(CHILD, "subagent");
    child.user("u", "run the tests").model("m", "", json!([shell("c#0", "make", "ok")]));
    let done = call(
        "c#1",
        "complete_task",
        json!({"result": "All pass."}),
        "success",
        json!({"output": "Result submitted"}),
    );
    child
        .model("n", "", json!([]))
        .again(json!({"toolCalls": [done]}))
        .set(json!({"summary": "Tests"}));
    store.write(&path(format!("{PROJECT}/chats/{SESSION}/{CHILD}.jsonl")), child.bytes());
    let seen = read_once(&store);
    let (session, agent) = (seen.index(SESSION), seen.index(CHILD));
    assert_eq!((&agent["parent_id"], &agent["run_id"]), (&json!(SESSION), &json!(SESSION)));
    assert_eq!((&session["parent_id"], &session["run_id"]), (&json!(null), &json!(SESSION)));
    assert_eq!((&session["task_type"], &agent["task_type"]), (&json!("session"), &json!("agent")));
    assert_eq!((&session["cwd"], &agent["cwd"]), (&json!("/w/app"), &json!("/w/app")));
    assert_eq!((&agent["status"], &agent["summary"]), (&json!("completed"), &json!("Tests")));
    assert_eq!(seen.text(CHILD, "result.txt"), "All pass.");
    assert_eq!(seen.text(CHILD, "source.meta.txt"), "/w/app\n");
    assert!(seen.has(SESSION, &format!("children/{CHILD}")));
}

/// Promise: A document that continues as a log is one worker.
#[test]
fn log_wins_over_the_document_beside_it() {
    let mut log = Log::new();
    log.user("u", "old");
    let store = store();
    store.write(
        &path(format!("{PROJECT}/chats/session-2026-02-01T10-00-0f0e0d0c.json")),
        log.document(),
    );
    assert_eq!(read_once(&store).text(SESSION, "task.txt"), "old");
    log.model("m", "And on.", json!([]));
    store.write(&log_path(), log.bytes());
    let seen = read_once(&store);
    assert_eq!(seen.workers(), [SESSION]);
    assert_eq!(seen.text(SESSION, "result.txt"), "And on.");
}

/// Only files with a session's ID and its project's hash are sessions.
#[test]
fn only_files_with_the_keys_of_a_session_are_sessions() {
    let mut log = Log::new();
    log.user("u", "go");
    let folder = TestStore::new();
    let write = |path: &str, bytes: &[u8]| drop(folder.write(path, bytes));
    write("settings.json", b"{}");
    write("tmp/app/chats/session-2026-02-01T10-00-0f0e0d0c.jsonl", &log.bytes());
    write("tmp/app/logs.json", br#"[{"sessionId":"s","projectHash":"p"}]"#);
    write("tmp/app/checkpoint-a.json", br#"{"history":[]}"#);
    write("tmp/app/tool-outputs/session-1/x.json", br#"{"sessionId":"s"}"#);
    write("tmp/app/chats/session-2026-02-01T10-00-0f0e0d0c.jsonl.tmp-1", &log.bytes());
    write("tmp/app/chats/session-empty.jsonl", b"");
    write("history/app/x.jsonl", &log.bytes());
    let source = Source::open(&folder.path()).unwrap();
    assert_eq!(source.format().name(), "gemini-cli");
    let view = || {
        View::new(
            vec![Source::open(&folder.path()).unwrap()],
            Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO },
            Filter::default(),
        )
        .unwrap()
    };
    let seen = Checked::of(&Tree::new(view(), Settings::default()));
    assert_eq!(seen.workers(), [SESSION]);
    // The directories beneath it are stores, too.
    for part in ["tmp", "tmp/app", "tmp/app/chats"] {
        let format = Source::open(&folder.at(part)).unwrap().format().name();
        assert_eq!(format, "gemini-cli", "{part}");
    }
    // Long keys may come first.
    let long = TestStore::new();
    let text =
        format!(r#"{{"x":"{}","sessionId":"s","y":[{{}}],"projectHash":"p"}}"#, "é".repeat(9_000));
    long.write("session-x.json", text);
    assert_eq!(Source::open(&long.path()).unwrap().format().name(), "gemini-cli");
    for other in [
        r#"{"sessionId":"s"}"#,
        r#"{"sessionId":1,"projectHash":"p"}"#,
        r#"["sessionId"]"#,
        "",
        "{",
        r#"{"a":{"sessionId":"s","projectHash":"p"}}"#,
    ] {
        let store = TestStore::new();
        store.write("session-x.json", other);
        assert!(Source::open(&store.path()).is_err(), "{other}");
    }
}

/// Promise: A tool result in its own file is shown whole if that file is readable.
#[test]
fn output_too_large_for_its_session_is_shown_whole() {
    let mut log = Log::new();
    log.user("u", "go");
    let cut = "Output too large. Showing first 8,000 and last 32,000 characters. For full output see: /x\nab";
    log.model(
        "m",
        "",
        json!([shell("run_shell_command__Run#1", "seq", cut), shell("gone", "seq", cut)]),
    );
    let store = store_of(&log);
    let whole = "a whole output\n".repeat(9_000);
    store.write(
        &path(format!("{PROJECT}/tool-outputs/session-{SESSION}/run_shell_command__run_1.txt")),
        whole.clone(),
    );
    let seen = read_once(&store);
    assert_eq!(seen.text(SESSION, "tool_calls/001_run_shell_command.txt"), whole);
    assert_eq!(seen.text(SESSION, "tool_calls/002_run_shell_command.txt"), cut);
    let source = seen.index(SESSION)["source"].clone();
    assert_eq!(source["truncated_outputs"], json!(["tool_calls/002_run_shell_command.txt"]));
}
