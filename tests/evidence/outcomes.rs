//! The reasons for outcomes in summaries: the calls that decided them.

use super::*;
use crate::support::transcript::{self, Transcript, place};

/// Output of a test run whose exit code was lost in a pipe.
const LOST: &str = "running 12 tests\n2 failed, 10 passed\n";

/// Appends a read of a file that does not exist.
fn fail(session: &mut Transcript, path: &str) {
    session.call(path, "Read", json!({"file_path": path}));
    session.result(path, json!({"content": "File does not exist.", "is_error": true}));
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
    let one = |session: &mut Transcript| fail(session, "/absent");
    let two = |session: &mut Transcript| {
        fail(session, "/absent");
        fail(session, "/gone");
    };
    let tree = tree_of(&[&one, &two]);
    for (id, reason) in [
        ("a", "tool_calls/001_Read.txt failed, and nothing later made it good"),
        ("b", "tool_calls/002_Read.txt and 1 more failed, and nothing later made them good"),
    ] {
        let summary = read(&tree, &format!("workers/session-{id}/summary"));
        assert!(summary.contains(&format!("\noutcome  unknown: {reason}\n")), "{summary}");
    }
}

#[test]
fn an_ok_outcome_counts_only_suspect_calls_that_no_later_call_resolved() {
    let resolved = |session: &mut Transcript| {
        session.bash("1", "cargo test | tail", LOST).bash("2", "cargo test", "12 passed\n");
    };
    let one_left = |session: &mut Transcript| {
        resolved(session);
        session.bash("3", "cargo test | tail", LOST);
    };
    let tree = tree_of(&[&resolved, &one_left]);
    let swarm = read(&tree, "summary");
    for (id, reason, cell, suspects) in [
        ("a", "ok: completed without unresolved failures", "  ok", 1),
        ("b", "ok by the record; 1 call looks like a failure", "  ok, 1 looks failed", 2),
    ] {
        let summary = read(&tree, &format!("workers/session-{id}/summary"));
        assert!(summary.contains(&format!("\noutcome  {reason}\n")), "{summary}");
        assert!(summary.contains(&format!(" {suspects} suspect,")), "all are counted: {summary}");
        let mut rows = swarm.lines().filter(|line| line.contains(&format!("Task of {id}")));
        let row = rows.next().unwrap();
        assert!(row.ends_with(cell) && row.contains(&format!("(0,{suspects})")), "{swarm}");
    }
}

/// Promise: A summary names the workers whose outcome is unknown because of a failed call, with the
/// last such call.
#[test]
fn summary_of_the_swarm_names_unresolved_failures_newest_first() {
    let bad = |session: &mut Transcript| {
        fail(session, "/absent");
        fail(session, "/gone [EVIDENCE:x]\n\u{1b}[31m");
    };
    let good = |session: &mut Transcript| {
        session.bash("1", "ls", "a\n");
    };
    let tree = tree_of(&[&bad, &good, &bad]);
    let swarm = read(&tree, "summary");
    let section = "\nunresolved failures (2), newest first:\n  \
                   session-c Task of c: tool_calls/002_Read.txt $ /gone [\\EVIDENCE:x] [31m\n  \
                   session-a Task of a: tool_calls/002_Read.txt $ /gone [\\EVIDENCE:x] [31m\n\n";
    assert!(swarm.contains(section), "{swarm}");
    let many: Vec<&dyn Fn(&mut Transcript)> = vec![&bad; 15];
    let swarm = read(&tree_of(&many), "summary");
    let (_, section) = swarm.split_once("\nunresolved failures (15), newest first:\n").unwrap();
    let lines: Vec<&str> = section.lines().take(13).collect();
    assert!(lines[0].starts_with("  session-o ") && lines[11].starts_with("  session-d "));
    assert_eq!(lines[12], "  and 3 more in index.json");
}

#[test]
fn unresolved_failures_leave_out_workers_whose_doubts_say_more() {
    let store = transcript::store();
    let mut session = Transcript::new("session-a");
    session.user("Make the tests pass.").call("1", "Bash", json!({"command": "cargo test"}));
    session.result("1", json!({"content": "Exit code 1\n2 failed", "is_error": true}));
    session.bash("2", "echo ok", "ok\n").says("All tests pass.");
    store.write(&place("session-a"), session.bytes());
    let swarm = read(&transcript::tree(&store), "summary");
    assert!(swarm.contains("\ndoubts, where the record contradicts a claim (1):\n"), "{swarm}");
    assert!(!swarm.contains("unresolved failures"), "{swarm}");
}
