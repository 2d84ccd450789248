//! Tests of the status of a transcript by its last lines, and by the clock.

use std::time::{Duration, SystemTime};

use super::*;
use crate::formats::checks;
use crate::support::transcript::tree_with_stale_after;
use crate::support::{Seen, TestStore, see};

/// Returns the status of the only session, and the word of its source.
fn status(transcript: &Transcript) -> (String, String) {
    let seen = shown(transcript);
    let index = seen.index("s");
    assert_eq!(index["status"], seen.row("s")["status"]);
    let source = index["status_source"].as_str().unwrap_or_default();
    (index["status"].as_str().unwrap().to_owned(), source.to_owned())
}

/// Begins the transcript of a session that goes on now.
fn live() -> Transcript {
    let mut transcript = Transcript::live("s");
    transcript.user("look around");
    transcript
}

fn pair(status: &str, source: &str) -> (String, String) {
    (status.to_owned(), source.to_owned())
}

fn command(name: &str) -> Value {
    json!({"type": "user", "message": {"content":
        format!("<command-name>{name}</command-name>\n<command-message>x</command-message>")}})
}

/// Promise: A transcript whose user left before the assistant answered is abandoned.
#[test]
fn transcript_whose_user_left_is_abandoned() {
    let left = pair("abandoned", "left by its user");
    for farewell in ["/exit", "/quit", "/clear"] {
        let mut transcript = begun();
        transcript.call("a", "Bash", json!({"command": "ls"})).line(command(farewell));
        assert_eq!(status(&transcript), left, "{farewell}");
        transcript.user("<local-command-stdout>Bye!</local-command-stdout>");
        assert_eq!(status(&transcript), left, "{farewell}");
        let index = shown(&transcript).index("s");
        assert_eq!(index["finished_at"], "2026-02-01T10:00:03Z", "{farewell}");
        assert!(!checks(&index).contains(&"no_tool_call"), "{farewell}");
        // A resumed session is in progress again.
        transcript.user("go on");
        assert_eq!(status(&transcript), pair("running", ""), "{farewell}");
        transcript.says("Done.").line(command(farewell));
        assert_eq!(status(&transcript), pair("completed", ""), "{farewell}");
    }
    let mut transcript = begun();
    transcript.user("[Request interrupted by user]").line(command("/exit"));
    assert_eq!(status(&transcript), left);
}

#[test]
fn messages_of_the_program_do_not_begin_a_turn() {
    let summary =
        json!({"type": "user", "isCompactSummary": true, "message": {"content": "so far"}});
    let meta = json!({"type": "user", "isMeta": true, "message": {"content": "Caveat: not this"}});
    for line in [
        command("/cost"),
        command("/compact"),
        summary,
        meta,
        json!({"type": "user", "message": {"content": "<bash-input>ls</bash-input>"}}),
        json!({"type": "user", "message": {"content": "<user-prompt-submit-hook>x"}}),
        json!({"type": "attachment", "attachment": {"type": "hook_success"}}),
    ] {
        let mut transcript = begun();
        transcript.says("Done.").line(line.clone());
        assert_eq!(status(&transcript), pair("completed", ""), "{line}");
        let mut transcript = begun();
        transcript.line(line.clone());
        assert_eq!(status(&transcript), pair("running", ""), "{line}");
    }
}

#[test]
fn the_assistant_answers_prompts_of_the_program() {
    let notification = json!({"type": "user", "origin": {"kind": "task-notification"},
        "message": {"content": "<task-notification>done</task-notification>"}});
    let prompt = json!({"type": "user", "message": {"content":
        "<command-message>review</command-message>\n<command-name>/review</command-name>"}});
    for line in [notification, prompt] {
        let mut transcript = begun();
        transcript.says("Done.").line(line.clone());
        assert_eq!(status(&transcript), pair("running", ""), "{line}");
    }
}

/// A program that clears a session starts the next one with that command.
#[test]
fn a_session_that_begins_with_clear_has_not_ended() {
    let mut transcript = Transcript::new("s");
    transcript.line(command("/clear"));
    assert_eq!(status(&transcript), pair("created", ""));
    transcript.user("look around");
    assert_eq!(status(&transcript), pair("running", ""));
}

#[test]
fn an_ending_behind_long_lines_is_found() {
    let long = "x".repeat(100_000);
    for (farewell, expected) in [("/exit", "abandoned"), ("/cost", "running")] {
        let mut transcript = begun();
        transcript.bash("a", "ls", &long).call("b", "Read", json!({"file_path": long}));
        transcript.line(command(farewell));
        // The listing and the record agree.
        assert_eq!(status(&transcript).0, expected, "{farewell}");
    }
}

/// Promise: An unfinished session that was not written for an hour is abandoned.
#[test]
fn unfinished_session_not_written_for_an_hour_is_abandoned() {
    let store = TestStore::new();
    let path = store.write("projects/-p/s.jsonl", live().bytes());
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    let write_before = |age: Duration| file.set_modified(SystemTime::now() - age).unwrap();
    let tree = store.tree();
    let status = || {
        let checked = Checked::of(&tree);
        let (index, row) = (checked.index("s"), checked.row("s"));
        assert_eq!(index["status"], row["status"]);
        index["status"].as_str().unwrap().to_owned()
    };
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    write_before(hour - minute);
    assert_eq!(status(), "running");
    write_before(hour + minute);
    assert_eq!(status(), "abandoned");
    assert_eq!(Checked::of(&tree).index("s")["status_source"], "running");
    // An ended session keeps its status, and so does a file with a time to come.
    std::fs::write(&path, live().says("Done.").bytes()).unwrap();
    write_before(10 * hour);
    assert_eq!(status(), "completed");
    std::fs::write(&path, live().bytes()).unwrap();
    file.set_modified(SystemTime::now() + hour).unwrap();
    assert_eq!(status(), "running");
}

/// Promise: An abandoned session that is written again is running again.
#[test]
fn abandoned_session_that_is_written_again_is_running_again() {
    let store = TestStore::new();
    let path = store.write("projects/-p/s.jsonl", live().bytes());
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(7_200)).unwrap();
    let tree = store.tree();
    let status = || Checked::of(&tree).index("s")["status"].clone();
    assert_eq!(status(), "abandoned");
    std::fs::write(&path, live().call("a", "Bash", json!({"command": "ls"})).bytes()).unwrap();
    assert_eq!(status(), "running");
}

/// Promise: A copy of a session that did not end is not running because its file is new.
#[test]
fn copied_session_is_not_running() {
    let store = TestStore::new();
    store.write("projects/-p/s.jsonl", begun().bytes());
    let checked = Checked::of(&store.tree());
    assert_eq!(checked.index("s")["status"], "abandoned");
    assert_eq!(checked.row("s")["status"], "abandoned");
    store.write("projects/-p/s.jsonl", begun().says("Done.").bytes());
    assert_eq!(Checked::of(&store.tree()).index("s")["status"], "completed");
}

/// Only the time of the last write and the clock decide, so a restart with another limit tells
/// something else.
#[test]
fn the_time_limit_decides_what_is_abandoned() {
    let store = store();
    put(&store, "s", &begun());
    let status = |stale_after| {
        let tree = tree_with_stale_after(&store, stale_after);
        Checked::of(&tree).index("s")["status"].clone()
    };
    assert_eq!(status(Duration::from_secs(1)), "abandoned");
    assert_eq!(status(Duration::MAX), "running");
}

/// A copy of a transcript is written later than its last message.
#[test]
fn the_latest_run_is_the_one_with_the_newest_message() {
    let said = |session: &str, time: &str| {
        let mut transcript = Transcript::new(session);
        let line = json!({"type": "user", "timestamp": time, "message": {"content": "look"}});
        transcript.line(line);
        transcript
    };
    let store = store();
    put(&store, "new", &said("new", "2021-03-01T10:00:00Z"));
    put(&store, "old", &said("old", "2021-02-01T10:00:00Z"));
    let tree = tree(&store);
    assert_eq!(see(&tree, "runs/latest"), Ok(Seen::Link("new".into())));
    let status = see(&tree, "workers/old/summary").unwrap().text().to_owned();
    assert!(status.contains("\nstatus   running, last message 2021-02-01T10:00:00Z\n"), "{status}");
}
