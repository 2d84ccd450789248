//! The reasons for outcomes in summaries: the calls that decided them.

use super::*;
use crate::support::transcript::{self, Transcript, place};

/// Output of a test run whose exit code was lost in a pipe.
const LOST: &str = "running 12 tests\n2 failed, 10 passed\n";

/// Appends a failed command that neither checks nor delivers anything.
fn fail(session: &mut Transcript, name: &str) {
    session.call(name, "Bash", json!({"command": format!("./{name} --now")}));
    session.result(name, json!({"content": "Exit code 1\nno", "is_error": true}));
}

/// Returns the tree over a session for each of these functions, which make its calls. Sessions are
/// named `session-a` and so on; later ones are later.
fn tree_of(sessions: &[&dyn Fn(&mut Transcript)]) -> Tree {
    let store = transcript::store();
    for ((hour, letter), make) in (1..).zip('a'..='z').zip(sessions) {
        let name = format!("session-{letter}");
        let mut session = Transcript::new(&name);
        session.user(format!("Task of {letter}"));
        make(&mut session);
        session.bash("last", "echo ok", "ok\n").says("Here it is.");
        let text = String::from_utf8(session.bytes()).unwrap();
        store.write(&place(&name), text.replace("T10:", &format!("T{hour:02}:")));
    }
    transcript::tree(&store)
}

fn read(tree: &Tree, path: &str) -> String {
    see(tree, path).unwrap().text().to_owned()
}

#[test]
fn an_unknown_outcome_names_the_last_call_that_nothing_made_good() {
    let one = |session: &mut Transcript| fail(session, "absent");
    let two = |session: &mut Transcript| {
        fail(session, "absent");
        fail(session, "gone");
    };
    let tree = tree_of(&[&one, &two]);
    for (id, reason) in [
        ("a", "tool_calls/001_Bash.txt failed, and nothing later made it good"),
        ("b", "tool_calls/002_Bash.txt and 1 more failed, and nothing later made them good"),
    ] {
        let summary = read(&tree, &format!("workers/session-{id}/summary"));
        assert!(summary.contains(&format!("\noutcome  unknown: {reason}\n")), "{summary}");
    }
}

/// Promise: A check that is red at the end fails its worker, also where a pipe lost its exit code;
/// a later green check in the same or a wider scope answers it.
#[test]
fn a_check_that_is_red_at_the_end_fails_its_worker() {
    let answered = |session: &mut Transcript| {
        session.bash("1", "cargo test | tail", LOST).bash("2", "cargo test", "12 passed\n");
    };
    let red = |session: &mut Transcript| {
        answered(session);
        session.bash("3", "cargo test | tail", LOST);
    };
    let narrower = |session: &mut Transcript| {
        session.bash("1", "make test-integration | tail", LOST).bash("2", "make test", "ok\n");
    };
    let tree = tree_of(&[&answered, &red, &narrower]);
    let swarm = read(&tree, "summary");
    for (id, reason, end, kinds) in [
        ("a", "ok: completed without unresolved failures", "green", json!([])),
        (
            "b",
            "failed: tool_calls/003_Bash.txt was red when it was last seen",
            "red",
            json!(["red_at_end"]),
        ),
        (
            "c",
            "failed: tool_calls/001_Bash.txt was red when it was last seen",
            "red",
            json!(["red_at_end"]),
        ),
    ] {
        let summary = read(&tree, &format!("workers/session-{id}/summary"));
        assert!(summary.contains(&format!("\noutcome  {reason}\n")), "{summary}");
        let mut rows = swarm.lines().filter(|line| line.contains(&format!("Task of {id}")));
        assert!(rows.any(|row| row.ends_with(&format!("  {end}"))), "{swarm}");
        let index: serde_json::Value =
            serde_json::from_str(&read(&tree, &format!("workers/session-{id}/index.json")))
                .unwrap();
        let reasons = index["attention"]["reasons"].as_array().unwrap();
        let found: Vec<_> = reasons.iter().map(|reason| reason["kind"].clone()).collect();
        assert_eq!(json!(found), kinds, "{index:#}");
    }
}

/// Promise: A failed look, an edit without effect and a wrong call of a program are misses, which
/// leave the outcome as it is.
#[test]
fn misses_leave_the_outcome_as_it_is() {
    let misses = |session: &mut Transcript| {
        for (id, tool, arguments, output) in [
            ("1", "Read", json!({"file_path": "/absent"}), "File does not exist."),
            (
                "2",
                "Edit",
                json!({"file_path": "a.rs", "old_string": "a", "new_string": "b"}),
                "String to replace not found",
            ),
            ("3", "Bash", json!({"command": "ls /absent"}), "Exit code 2\nls: no such file"),
            (
                "4",
                "Bash",
                json!({"command": "cargo test --fo"}),
                "Exit code 1\nerror: unexpected argument '--fo' found",
            ),
            ("5", "Bash", json!({"command": "tokei"}), "Exit code 127\ncommand not found"),
        ] {
            session.call(id, tool, arguments);
            session.result(id, json!({"content": output, "is_error": true}));
        }
    };
    let summary = read(&tree_of(&[&misses]), "workers/session-a/summary");
    assert!(summary.contains("\noutcome  ok: "), "{summary}");
    assert!(summary.contains("5 failed"), "they are counted: {summary}");
}
