//! Events of version 0.

use super::*;

/// Reads an export of these events.
pub(super) fn shown(events: &[Value]) -> Shown {
    let store = store();
    store.write(&path("s.json"), json!(events).to_string());
    read_one(&*store)
}

fn run(id: u64, extras: Value) -> [Value; 2] {
    [
        old_event(id, "agent", json!({"action": "run", "args": {"command": "x", "thought": ""}})),
        old_event(
            id + 1,
            "environment",
            json!({"observation": "run", "cause": id, "content": "out", "extras": extras}),
        ),
    ]
}

/// Promise: A call of version 0 fails by its exit code or an error observation. An exit code of -1
/// is unknown: the command is still running.
#[test]
fn exit_codes_and_error_observations_decide() {
    let mut events = old_conversation()[..1].to_vec();
    events.extend(run(10, json!({"metadata": {"exit_code": 0}})));
    events.extend(run(12, json!({"metadata": {"exit_code": 3}})));
    events.extend(run(14, json!({"metadata": {"exit_code": -1}})));
    events.extend(run(16, json!({"exit_code": 1})));
    events.extend(run(18, json!({})));
    events.push(run(20, json!({}))[0].clone());
    events.push(old_event(
        21,
        "agent",
        json!({"observation": "error", "cause": 20, "content": "no such tool", "extras": {}}),
    ));
    events.push(run(22, json!({}))[0].clone());
    events.push(old_event(
        23,
        "agent",
        json!({"observation": "user_rejected", "cause": 22, "content": "not now", "extras": {}}),
    ));
    events.push(run(24, json!({}))[0].clone());
    let shown = shown(&events);
    assert_eq!(
        shown.outcomes(),
        ["ok", "failed", "unknown", "failed", "unknown", "failed", "not_run", "-"]
    );
    assert_eq!((shown.call(2).exit_code, shown.call(3).exit_code), (Some(3), None));
    assert_eq!(shown.worker.status.as_str(), "running");
    assert!(shown.text("requests.txt").contains("not now"));
}

#[test]
fn arguments_and_texts_of_a_call_are_those_of_the_agent() {
    let shown = shown(&old_conversation());
    assert_eq!(shown.call(1).tool, "execute_bash");
    assert_eq!(shown.call(1).input.as_deref(), Some("make is_input=false"));
    assert!(shown.call(1).is_command);
    let thread = shown.thread();
    assert_eq!(thread[1]["content"], "I build it.");
    assert_eq!(thread[2]["outcome"], "failed");
    assert_eq!(shown.record.trace.final_words.as_deref(), Some("It is broken."));
    assert_eq!(shown.worker.status.as_str(), "completed");
    // A time without a zone counts as UTC.
    let first = shown.record.worker.created_at.timestamp().unwrap();
    assert_eq!(first.to_string(), "2025-01-27T22:00:00.9Z");
}

#[test]
fn thoughts_are_the_argument_of_think() {
    let mut events = old_conversation()[..1].to_vec();
    events.push(old_event(7, "agent", json!({"action": "think", "args": {"thought": "hm"}})));
    events.push(old_event(
        8,
        "agent",
        json!({"observation": "think", "cause": 7, "content": "logged"}),
    ));
    let shown = shown(&events);
    assert_eq!(
        (shown.call(1).tool.as_str(), shown.call(1).input.as_deref()),
        ("think", Some("thought=hm"))
    );
    assert_eq!(shown.outcomes(), ["unknown"]);
}

/// Promise: The last state of the agent is the status of a version 0 conversation, until the next
/// message. A conversation that is stopped after it finished stays completed.
#[test]
fn last_agent_state_is_the_status() {
    let state = |id, state: &str| {
        let extras = json!({"agent_state": state});
        old_event(
            id,
            "environment",
            json!({"observation": "agent_state_changed", "cause": null, "content": "", "extras": extras}),
        )
    };
    let status = |end: &[Value]| {
        let mut events = old_conversation()[..5].to_vec();
        events.extend_from_slice(end);
        shown(&events).worker.status.as_str().to_owned()
    };
    for (word, expected) in [
        ("finished", "completed"),
        ("awaiting_user_input", "completed"),
        ("error", "failed"),
        ("running", "running"),
        ("stopped", "unknown"),
        ("paused", "unknown"),
        ("loading", "running"),
    ] {
        assert_eq!(status(&[state(9, word)]), expected, "{word}");
    }
    let finish = old_conversation()[5].clone();
    assert_eq!(status(&[finish.clone(), state(9, "finished"), state(10, "stopped")]), "completed");
    let again = old_event(11, "user", json!({"action": "message", "args": {"content": "more"}}));
    assert_eq!(status(&[finish, state(9, "finished"), again]), "running");
}

#[test]
fn what_the_user_runs_and_results_without_calls_are_no_calls() {
    let mut events = old_conversation();
    events.push(old_event(30, "user", json!({"action": "run", "args": {"command": "ls"}})));
    events.push(old_event(
        31,
        "environment",
        json!({"observation": "run", "cause": 30, "content": "x", "extras": {}}),
    ));
    events.push(old_event(32, "agent", json!({"observation": "error", "content": "bad answer"})));
    let shown = shown(&events);
    assert_eq!(shown.outcomes(), ["failed"]);
    assert_eq!(shown.record.trace.unused.orphan_results, 1);
    assert_eq!(shown.thread().last().unwrap()["content"], "bad answer");
}

#[test]
fn failed_file_tool_of_unknown_outcome_is_suspect_and_changes_nothing() {
    let mut events = old_conversation()[..1].to_vec();
    let args = json!({"path": "/w/a", "command": "str_replace", "old_str": "x", "new_str": "y"});
    events.push(old_event(7, "agent", json!({"action": "edit", "args": args})));
    events.push(old_event(8, "agent", json!({"observation": "edit", "cause": 7, "content": "ERROR:\nNo replacement was performed.", "extras": {"path": "/w/a"}})));
    let shown = shown(&events);
    assert_eq!(shown.outcomes(), ["unknown"]);
    assert_eq!(shown.call(1).suspect.as_deref(), Some("No replacement was performed."));
    assert!(shown.call(1).files.is_empty());
    assert_eq!(
        shown.call(1).input.as_deref(),
        Some("/w/a operation=str_replace old_str=x new_str=y")
    );
}
