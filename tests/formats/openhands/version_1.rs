//! Events of version 1.

use super::*;

fn shown(events: &Events) -> Shown {
    let store = store();
    events.write(&store, "c1");
    read_one(&*store)
}

/// Promise: A call of version 1 fails by `is_error`, an exit code above 0 or below -1, or an
/// `AgentErrorEvent`. A call that its user rejected never ran.
#[test]
fn flags_and_exit_codes_decide() {
    let mut events = Events::begun();
    events.run("a", "x", "", 0).run("b", "x", "", 130).run("c", "x", "", -1);
    events.call("d", "terminal", json!({"command": "x\ny"}));
    events.result(
        "d",
        "terminal",
        "Cannot",
        json!({"is_error": true, "exit_code": null, "metadata": {"exit_code": -1}}),
    );
    events.call("e", "grep", json!({})).result("e", "grep", "none", json!({}));
    events.call("f", "grep", json!({})).result("f", "grep", "none", json!({"is_error": null}));
    events.call("g", "grep", json!({}));
    events.add(
        "AgentErrorEvent",
        "agent",
        json!({"tool_call_id": "g", "tool_name": "grep", "error": "no such tool"}),
    );
    events.call("h", "grep", json!({}));
    events.add(
        "UserRejectObservation",
        "environment",
        json!({"tool_call_id": "h", "action_id": "x", "rejection_reason": "too risky"}),
    );
    events.call("i", "grep", json!({}));
    let shown = shown(&events);
    assert_eq!(
        shown.outcomes(),
        ["ok", "failed", "unknown", "failed", "ok", "unknown", "failed", "not_run", "-"]
    );
    assert_eq!(shown.call(2).exit_code, Some(130));
    assert_eq!(shown.text("tool_calls/007_grep.txt"), "no such tool");
    assert!(shown.text("requests.txt").contains("too risky"));
}

#[test]
fn thoughts_are_the_argument_of_think() {
    let mut events = Events::begun();
    events.call("a", "think", json!({"thought": "hm", "security_risk": "LOW"}));
    assert_eq!(shown(&events).call(1).input.as_deref(), Some("thought=hm"));
}

#[test]
fn results_of_older_versions_are_read() {
    let mut events = Events::begun();
    events.call("a", "terminal", json!({"command": "x"}));
    events.result("a", "terminal", "", json!({"content": "plain", "exit_code": 1}));
    events.call("b", "terminal", json!({"command": "x"}));
    events.result(
        "b",
        "terminal",
        "",
        json!({"content": null, "output": "old", "is_error": null, "error": true}),
    );
    events.call("c", "edit", json!({}));
    events.result(
        "c",
        "edit",
        "",
        json!({"content": null, "output": "", "is_error": null, "error": "no file"}),
    );
    let shown = shown(&events);
    assert_eq!(shown.outcomes(), ["failed", "failed", "failed"]);
    let texts: Vec<&str> = ["001_terminal", "002_terminal", "003_edit"]
        .iter()
        .map(|name| shown.text(&format!("tool_calls/{name}.txt")))
        .collect();
    assert_eq!(texts, ["plain", "old", "no file"]);
}

#[test]
fn final_words_are_those_of_finish_else_of_the_last_message() {
    let mut events = Events::begun();
    events.run("a", "x", "", 0).finish("Well done.");
    let finished = shown(&events);
    assert_eq!(finished.record.trace.final_words.as_deref(), Some("Well done."));
    assert_eq!(finished.outcomes(), ["ok", "ok"]);
    assert_eq!(finished.worker.status.as_str(), "completed");
    let mut events = Events::begun();
    events.run("a", "x", "", 0).says("agent", "That is all.");
    assert_eq!(shown(&events).text("result.txt"), "That is all.");
    // Without the result of `finish`, it is the last event.
    let mut events = Events::begun();
    events.call("f", "finish", json!({"message": "Bye."}));
    assert_eq!(shown(&events).text("result.txt"), "Bye.");
}

/// Promise: The status of a version 1 conversation is that of its last messages, else of
/// `base_state.json`, else it follows from its end.
#[test]
fn status_is_that_of_the_events_then_of_the_state_file() {
    let read = |end: Option<&str>, base: Option<&str>| {
        let (store, mut events) = (store(), Events::begun());
        events.run("a", "x", "", 0);
        if let Some(word) = end {
            events.state("execution_status", json!(word));
        }
        events.write(&store, "c1");
        if let Some(word) = base {
            let state = json!({"id": "c1", "execution_status": word, "workspace": {"working_dir": "/w"},
                "agent": {"llm": {"model": "large"}}, "stats": {"usage_to_metrics": {"default": {"model_name": "large",
                "accumulated_token_usage": {"prompt_tokens": 100, "completion_tokens": 20, "cache_read_tokens": 60}}}}});
            store.write(&path("c1/base_state.json"), state.to_string());
        }
        read_one(&*store)
    };
    for (word, expected) in [
        ("finished", "completed"),
        ("error", "failed"),
        ("stuck", "failed"),
        ("running", "running"),
        ("paused", "running"),
        ("waiting_for_confirmation", "waiting"),
        ("idle", "running"),
    ] {
        assert_eq!(read(Some(word), None).worker.status.as_str(), expected, "{word}");
        assert_eq!(read(None, Some(word)).worker.status.as_str(), expected, "{word}");
    }
    let shown = read(Some("error"), Some("finished"));
    assert_eq!(shown.worker.status.as_str(), "failed");
    assert_eq!(shown.worker.cwd.as_deref(), Some("/w"));
    assert_eq!(shown.worker.model.as_deref(), Some("large"));
    let tokens = shown.record.trace.tokens.unwrap();
    assert_eq!((tokens.input, tokens.cache_read, tokens.output), (40, 60, 20));
    assert!(!shown.record.trace.status_is_derived);
    assert!(shown.text("source.meta.json").contains("usage_to_metrics"));
    assert_eq!(read(None, None).worker.status.as_str(), "running");
}

#[test]
fn state_counts_until_the_next_message() {
    let mut events = Events::begun();
    events.state("execution_status", json!("finished")).says("user", "and now?");
    assert_eq!(shown(&events).worker.status.as_str(), "running");
    events.says("agent", "Yes.").state("execution_status", json!("stuck"));
    let stuck = shown(&events);
    assert_eq!(stuck.worker.status_source.as_deref(), Some("stuck"));
}

#[test]
fn model_and_tokens_are_those_of_the_last_statistics() {
    let usage = |prompt: u64| {
        json!({"usage_to_metrics": {
        "default": {"model_name": "large", "accumulated_token_usage": {"prompt_tokens": prompt, "completion_tokens": 5}},
        "condenser": {"model_name": "small", "accumulated_token_usage": {"prompt_tokens": 1, "completion_tokens": 1}}}})
    };
    let mut events = Events::begun();
    events.state("stats", usage(10)).run("a", "x", "", 0).state("stats", usage(30));
    let shown = shown(&events);
    assert_eq!(shown.worker.model.as_deref(), Some("large"));
    let by_model = &shown.record.trace.tokens_by_model;
    assert_eq!((by_model["large"].input, by_model["small"].input), (30, 1));
}

/// Promise: A version 1 conversation continues after the parent of an event. What was said after
/// the parent before is not part of it.
#[test]
fn event_continues_after_its_parent() {
    let mut events = Events::begun();
    let parent_of = |events: &mut Events, at: usize, parent: usize| {
        let parent = events.0[parent]["id"].clone();
        events.0[at]["parent_id"] = parent;
    };
    events.run("a", "one", "1", 0).run("b", "two", "2", 0).says("agent", "First.");
    for at in 1..events.0.len() {
        parent_of(&mut events, at, at - 1);
    }
    let linear = shown(&events);
    assert_eq!((linear.outcomes().len(), linear.text("result.txt")), (2, "First."));
    // After the call of `a`, whose result was in the other branch.
    let at = events.0.len();
    events.result("a", "terminal", "again", json!({"exit_code": 4}));
    parent_of(&mut events, at, 2);
    events.run("c", "three", "3", 0);
    parent_of(&mut events, at + 1, at);
    parent_of(&mut events, at + 2, at + 1);
    let branched = shown(&events);
    assert_eq!(branched.outcomes(), ["failed", "ok"]);
    assert_eq!(branched.text("tool_calls/001_terminal.txt"), "again");
    assert_eq!(branched.call(2).input.as_deref(), Some("three"));
    assert!(!branched.text("thread.jsonl").contains("First."));
    assert!(branched.text("source.jsonl").contains("First."));
    assert_eq!(branched.worker.status.as_str(), "running");
    // An unknown parent changes nothing, and another root starts over.
    let mut unknown = events.clone();
    unknown.says("agent", "Second.");
    let last = unknown.0.len() - 1;
    unknown.0[last]["parent_id"] = json!("gone");
    assert_eq!(shown(&unknown).outcomes(), ["failed", "ok"]);
    unknown.0[last]["parent_id"] = json!("__root__");
    assert_eq!(shown(&unknown).outcomes(), Vec::<&str>::new());
}

#[test]
fn duplicate_events_and_results_count_once() {
    let mut events = Events::begun();
    events.run("a", "x", "first", 0).says("agent", "Done.");
    let mut twice = events.clone();
    twice.0.extend(events.0.clone());
    twice.result("a", "terminal", "second", json!({"exit_code": 9}));
    let store = store();
    store.write(&path("c.jsonl"), twice.lines());
    let shown = read_one(&*store);
    assert_eq!(shown.outcomes(), ["ok"]);
    assert_eq!(shown.text("tool_calls/001_terminal.txt"), "first");
}

#[test]
fn other_events_are_read_or_counted() {
    let mut events = Events::begun();
    events.add("Condensation", "environment", json!({"summary": "So far: nothing."}));
    events.add("ACPToolCallEvent", "agent", json!({"tool_call_id": "x", "title": "Read a", "status": "in_progress", "raw_input": {"path": "a"}}));
    events.add("ACPToolCallEvent", "agent", json!({"tool_call_id": "x", "title": "Read a", "status": "completed", "raw_output": "content"}));
    events.add(
        "ACPToolCallEvent",
        "agent",
        json!({"tool_call_id": "y", "title": "Run", "status": "failed", "raw_output": {"code": 1}}),
    );
    events.add("TokenEvent", "agent", json!({"x": 1}));
    events.add("TelepathyEvent", "agent", json!({}));
    events.add(
        "ConversationErrorEvent",
        "environment",
        json!({"code": "Timeout", "detail": "too slow"}),
    );
    let shown = shown(&events);
    assert_eq!(shown.outcomes(), ["ok", "failed"]);
    assert_eq!(shown.text("tool_calls/001_Read a.txt"), "content");
    assert_eq!(shown.text("tool_calls/002_Run.txt"), r#"{"code":1}"#);
    assert_eq!(shown.record.trace.unused.kinds["TelepathyEvent"], 1);
    assert_eq!(
        (shown.worker.status.as_str(), shown.worker.error.as_deref()),
        ("failed", Some("Timeout: too slow"))
    );
}

#[test]
fn interruption_leaves_the_status_unknown() {
    let mut events = Events::begun();
    events.call("a", "terminal", json!({"command": "sleep 9"})).add(
        "InterruptEvent",
        "user",
        json!({}),
    );
    let shown = shown(&events);
    assert_eq!(
        (shown.worker.status.as_str(), shown.worker.status_source.as_deref()),
        ("unknown", Some("interrupted"))
    );
}

/// Promise: A command that goes on is open until a later result shows that the shell is free.
#[test]
fn command_that_goes_on_is_open_until_the_shell_is_free() {
    let outcome = |events: &Events| shown(events.clone().finish("Done.")).record.outcome();
    let mut events = Events::begun();
    events.run("a", "ls", "", 0).run("b", "server", "", -1).run("c", "", "", -1);
    assert_eq!(outcome(&events), Outcome::Unknown);
    let open = |events: &Events| {
        let calls = shown(events).record.trace.calls;
        calls.iter().map(|call| call.is_open).collect::<Vec<_>>()
    };
    assert_eq!(open(&events), [false, false, true]);
    events.run("d", "C-c", "", 130).run("e", "ls", "", 0).run("f", "C-c", "", 0);
    assert_eq!(open(&events), [false; 6]);
    // The interrupted command is a failure of its own.
    let mut events = Events::begun();
    events.run("b", "server", "", -1).run("e", "ls", "", 0);
    assert_eq!(outcome(&events), Outcome::Ok);
}

/// Promise: The fields that state an outcome are read, and no other one looks like it.
#[test]
fn fields_that_state_an_outcome_are_read() {
    let result = |fields: Value| {
        let mut events = Events::default();
        events.result("c", "x", "text", fields);
        let mut result = events.0[0].clone();
        result["observation"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        result
    };
    let old = json!({"id": 4, "observation": "error", "cause": 3, "content": "no"});
    let samples = [
        ("observation.is_error", result(json!({"is_error": true})), "failed"),
        ("observation.is_error", result(json!({})), "ok"),
        ("observation.exit_code", result(json!({"is_error": null, "exit_code": 1})), "failed"),
        ("observation", old, "failed"),
    ];
    let outcome = |result: &Value| {
        let seen = if result["cause"].is_null() {
            let mut events = Events::begun();
            events.call("c", "x", json!({}));
            events.0.push(result.clone());
            shown(&events)
        } else {
            let mut events = old_conversation();
            events[4] = old_event(4, "agent", result.clone());
            super::version_0::shown(&events)
        };
        seen.outcomes()[0].to_owned()
    };
    // Of a state, and of a version 0 command that could not be started.
    let unrelated = ["success"];
    crate::formats::outcome_fields::check(
        "OpenHands",
        &samples,
        &old_conversation(),
        &unrelated,
        outcome,
    );
}
