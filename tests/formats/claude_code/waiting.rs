//! Tests of sessions that wait for a person, or that a record elsewhere ends.

use super::*;
use crate::support::{Seen, see};

/// Returns a session that asks a question after a call that is ok.
fn asking() -> Transcript {
    let mut transcript = Transcript::new("s");
    transcript.user("Set up the database.").bash("ok", "ls", "a");
    let questions = json!({"questions": [{"question": "Which database?", "header": "DB"},
        {"question": "Which port?", "header": "Port"}]});
    transcript.call("ask", "AskUserQuestion", questions);
    transcript
}

fn swarm_text(checked: &Checked, file: &str) -> String {
    String::from_utf8(checked.0[file.as_bytes()].bytes().to_vec()).unwrap()
}

#[test]
fn open_question_is_waited_for() {
    let checked = shown(&asking());
    let index = checked.index("s");
    assert_eq!((&index["status"], &index["outcome"]), (&json!("waiting"), &json!("unknown")));
    let wanted =
        json!({"since": "2026-02-01T10:00:03Z", "for": "question: Which database? Which port?"});
    assert_eq!((&index["waiting"], &checked.row("s")["waiting"]), (&wanted, &wanted));
    assert!(matches!(checked.0[&b"by/status/waiting/s"[..]], Seen::Link(_)));
    assert!(checked.text("s", "summary").contains("outcome  unknown: it waits for a person"));
    let summary = swarm_text(&checked, "summary");
    let line = "needs you (1):\n  s  01 Feb  ";
    assert!(summary.contains(line), "{summary}");
    assert!(summary.contains("question: Which database? Which port?\n"), "{summary}");
    assert!(summary.contains("workers  1: 1 waiting"), "{summary}");
    let store = store();
    store.write(&place("s"), asking().bytes());
    let since = see(&tree(&store), "since/0").unwrap();
    let since = std::str::from_utf8(since.bytes()).unwrap();
    assert!(since.contains("\nwaiting for a person: s: since 2026"), "{since}");
}

#[test]
fn answer_refusal_and_a_later_message_end_the_wait() {
    let answered = json!({"content": "Your questions have been answered: Postgres"});
    let refused = json!({"is_error": true, "content": "The user doesn't want to proceed with this tool use."});
    for (result, status) in [(answered, "running"), (refused, "running")] {
        let mut transcript = asking();
        transcript.result("ask", result);
        let index = shown(&transcript).index("s");
        assert_eq!((&index["status"], &index["waiting"]), (&json!(status), &Value::Null));
    }
    let mut answered = asking();
    answered.result("ask", json!({"content": "Postgres"})).says("Done.");
    assert_eq!(shown(&answered).index("s")["status"], "completed");
}

/// The text of an answer never makes a session wait, nor does any other open call.
#[test]
fn only_a_call_that_asks_is_waited_for() {
    let mut transcript = Transcript::new("s");
    transcript.user("Set it up.").says("Which database should I use?");
    assert_eq!(shown(&transcript).index("s")["status"], "completed");
    let mut transcript = Transcript::new("s");
    transcript.user("Set it up.").call("t", "Bash", json!({"command": "read answer"}));
    assert_eq!(shown(&transcript).index("s")["status"], "running");
}

#[test]
fn plan_waits_for_its_approval() {
    let mut transcript = Transcript::new("s");
    transcript.user("Plan it.").call("t", "ExitPlanMode", json!({"plan": "# Move the tests"}));
    let index = shown(&transcript).index("s");
    assert_eq!(index["status"], "waiting");
    assert_eq!(index["waiting"]["for"], "approval of its plan: # Move the tests");
}

/// A person may answer after any time, so the clock abandons nobody who waits.
#[test]
fn session_that_waits_is_not_abandoned() {
    let store = store();
    store.write(&place("s"), asking().bytes());
    let stale =
        crate::support::transcript::tree_with_stale_after(&store, std::time::Duration::ZERO);
    assert_eq!(Checked::of(&stale).index("s")["status"], "waiting");
}

/// Shows a session in a store with the state of its job.
fn with_job(transcript: &Transcript, state: &str) -> Value {
    let store = store();
    let id = "aaaaaaaa-0000-4000-8000-000000000001";
    store.write(&place(id), transcript.bytes());
    store.write(&path("jobs/aaaaaaaa/state.json"), state);
    read_once(&store).index(id)
}

#[test]
fn stopped_job_is_not_running() {
    let mut transcript = Transcript::new("aaaaaaaa-0000-4000-8000-000000000001");
    transcript.user("Build it.").call("t", "Bash", json!({"command": "make"}));
    let index = with_job(&transcript, r#"{"state": "stopped", "detail": "make"}"#);
    assert_eq!(
        (&index["status"], &index["status_source"]),
        (&json!("abandoned"), &json!("stopped"))
    );
    for state in [r#"{"state": "working"}"#, r#"{"state": "blocked"}"#, "{", "[]", ""] {
        assert_eq!(with_job(&transcript, state)["status"], "running", "{state}");
    }
    transcript.result("t", json!({"content": "ok"})).says("Built.");
    assert_eq!(with_job(&transcript, r#"{"state": "stopped"}"#)["status"], "completed");
}

/// Writes a session whose call has its whole output in the file that the path of its result names.
fn spilled(output_path: &str) -> (Checked, Value) {
    let mut transcript = Transcript::new("s");
    transcript.user("Test it.").call("t", "Bash", json!({"command": "cargo test | tee log"}));
    let preview = "<persisted-output>\nOutput too large (120KB). Preview:\nrunning 900 tests";
    let block = json!({"type": "tool_result", "tool_use_id": "t", "content": preview});
    transcript.line(json!({"type": "user", "message": {"content": [block]},
        "toolUseResult": {"stdout": "running 900 tests", "persistedOutputPath": output_path}}));
    transcript.says("All tests pass.");
    let store = store();
    store.write(&place("s"), transcript.bytes());
    let output = format!("{}test result: FAILED. 3 failed\n", "test ok\n".repeat(20_000));
    store.write(&path(format!("{PROJECT}/s/tool-results/b5dap.txt")), output);
    let checked = read_once(&store);
    let call = checked.index("s")["tool_calls"][0].clone();
    (checked, call)
}

#[test]
fn spilled_output_is_read_from_the_file_that_its_result_names() {
    let (checked, call) =
        spilled("/home/dev/.claude/projects/-home-dev-app/s/tool-results/b5dap.txt");
    assert_eq!(call["bytes"], 160_030);
    assert_eq!(call["suspect"], "test result: FAILED. 3 failed");
    assert!(checked.text("s", "tool_calls/001_Bash.txt").ends_with("3 failed\n"));
    assert_eq!(checked.index("s")["source"]["truncated_outputs"], json!([]));
}

/// A path in a record leads nowhere but to the results of the session.
#[test]
fn spilled_output_outside_its_folder_is_not_read() {
    for place in ["/etc/passwd", "../../s.jsonl", "..", "/", "b5dap.txt/x", "a\u{0}b"] {
        let (_, call) = spilled(place);
        assert!(call["bytes"].as_u64().unwrap() < 200, "{place}: {call:#}");
        assert!(call["suspect"].is_null(), "{place}: {call:#}");
    }
}
