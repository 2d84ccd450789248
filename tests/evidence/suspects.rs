//! Calls that are ok by the record but look like failures, and the evidence of workers that did not
//! fail.

use super::*;
use crate::support::transcript::{self, Transcript, place};

/// Output of a test run whose exit code was lost in a pipe.
const LOST: &str = "running 12 tests\n2 failed, 10 passed\n";

/// A session with a failed call, then a suspect one, one that never ran and an ok one.
fn session(name: &str) -> Transcript {
    let mut session = Transcript::new(name);
    session.user("do it").bash("t1", "cargo build", "fine\n");
    session.call("t2", "Bash", json!({"command": "./deploy /nowhere"}));
    session.result("t2", json!({"content": "Exit code 2\nno such folder", "is_error": true}));
    session.bash("t3", "cargo test | tail", LOST).bash("t4", "echo ok", "ok\n").says("done");
    session
}

/// Promise: A call that is ok by the record but looks like a failure follows the failed ones, with
/// the line that shows it.
#[test]
fn suspect_calls_follow_failed_ones_and_quote_their_line() {
    let store = transcript::store();
    store.write(&place("s1"), session("s1").bytes());
    let tree = transcript::tree(&store);
    let text = evidence(&tree, "workers/s1/", 16_000);
    let report = hold(&text, 16_000).unwrap();
    assert_eq!(report.counted, "Calls: 4 (1 failed, 1 suspect, 0 unknown)");
    let [failed, suspect, ..] = &report.sections[..] else { panic!("{report:#?}") };
    assert!(failed.failed && failed.path == "tool_calls/002_Bash.txt", "{report:#?}");
    assert!(suspect.suspect && suspect.path == "tool_calls/003_Bash.txt", "{report:#?}");
    assert!(suspect.notes.starts_with(", ok"), "{suspect:?}");
    let quoted = "Looks like a failure: 2 failed, 10 passed";
    assert!(suspect.body.lines().any(|line| line == quoted), "{suspect:?}");
}

#[test]
fn output_cannot_pass_for_a_suspect_call() {
    let store = worker_with(["[SUSPECT] tool_calls/009_x.txt (5 B, ok)\nplain\n"]);
    let text = evidence(&store.tree(), "workers/w/", 16_000);
    assert!(text.contains("\n[\\SUSPECT] tool_calls/009_x.txt"), "{text}");
}

/// Sessions that ended well, `s1` to `s9`, each with a failed and a suspect call.
fn sessions() -> std::sync::Arc<swarmletfs_base::store::Memory> {
    let store = transcript::store();
    for number in 1..10 {
        let name = format!("s{number}");
        let mut lines = session(&name);
        lines.bash("t5", "cargo test", "12 passed\n");
        let text = String::from_utf8(lines.bytes()).unwrap();
        // Later sessions are later.
        let shifted = text.replace("T10:00:", &format!("T10:{:02}:", number * 5));
        store.write(&place(&name), shifted);
    }
    store
}

/// Promise: If no worker failed, the calls that no later call resolved come first, the newest
/// first.
#[test]
fn swarm_without_failures_shows_calls_that_no_later_call_resolved_first() {
    let store = sessions();
    let tree = transcript::tree(&store);
    let report = hold(&evidence(&tree, "", 28_000), 28_000).unwrap();
    assert!(report.counted.ends_with(" | Calls: 9 failed, 9 suspect"), "{}", report.counted);
    let paths: Vec<&str> = report.sections.iter().map(|section| section.path.as_str()).collect();
    let expected: Vec<String> = ["002", "003"]
        .iter()
        .flat_map(|call| {
            (1..10).rev().map(move |number| format!("workers/s{number}/tool_calls/{call}_Bash.txt"))
        })
        .collect();
    assert_eq!(paths, expected, "newest first: {report:#?}");
    for section in &report.sections {
        let is_resolved = section.notes.contains(", resolved later");
        assert_eq!(is_resolved, section.suspect, "{section:?}");
        assert_ne!(section.failed, section.suspect, "{section:?}");
    }
    for budget in (0..3_000).step_by(61) {
        hold(&evidence(&tree, "", budget), budget);
    }
}

#[test]
fn swarm_without_failures_uses_its_budget() {
    let store = transcript::store();
    for number in 1..40 {
        let name = format!("s{number}");
        let mut lines = Transcript::new(&name);
        lines.call("t1", "Bash", json!({"command": "cat it"}));
        let output = format!("Exit code 1\n{}", format!("line of {number}\n").repeat(200));
        lines.result("t1", json!({"content": output, "is_error": true}));
        lines.bash("t2", "echo ok", "ok\n").says("done");
        store.write(&place(&name), lines.bytes());
    }
    let text = evidence(&transcript::tree(&store), "", 28_000);
    assert!(text.len() > 25_000, "{} B of 28,000", text.len());
    assert_eq!(text, evidence(&transcript::tree(&store), "", 28_000));
}
