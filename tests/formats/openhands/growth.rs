//! Files that are cut anywhere, and files that are rewritten.

use super::*;

/// Returns a conversation with events of many kinds.
fn rich() -> Events {
    let mut events = Events::begun();
    events.state("execution_status", json!("running")).run("a", "ls", "漢\n", 0);
    events.call(
        "b",
        "file_editor",
        json!({"command": "create", "path": "/w/a", "file_text": "x\n"}),
    );
    events.result(
        "b",
        "file_editor",
        "created",
        json!({"path": "/w/a", "prev_exist": false, "new_content": "x\n"}),
    );
    events.call("c", "grep", json!({}));
    events.add("AgentErrorEvent", "agent", json!({"tool_call_id": "c", "error": "bad"}));
    let usage = json!({"usage_to_metrics": {"default": {"model_name": "m", "accumulated_token_usage": {"prompt_tokens": 5}}}});
    events.state("stats", usage).says("user", "go on").finish("Done.");
    events.state("execution_status", json!("finished"));
    events
}

/// Asserts that a prefix shows no more than the whole, and that its calls only grow.
fn check_prefixes(file: &str, bytes: &[u8], step: usize) {
    let store = store();
    store.write(&path(file), bytes);
    let whole = read(&*store);
    assert!(!whole.is_empty());
    let live = OpenHands::transcripts();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for end in (0..bytes.len()).filter(|end| end % step == 0 || bytes[*end] == b'\n') {
        store.write(&path(file), &bytes[..end]);
        let part = read(&*store);
        assert_same(&read_with(&live, &*store), &part, &format!("{file}, {end} bytes"));
        for (name, shown) in &part {
            let Some(whole) = whole.get(name) else { continue };
            let calls = &shown.record.trace.calls;
            let before = seen.insert(name.clone(), calls.len()).unwrap_or_default();
            assert!(calls.len() >= before, "{file}, {end} bytes: {name}");
            for (call, all) in calls.iter().zip(&whole.record.trace.calls) {
                assert_eq!((&call.tool, &call.input), (&all.tool, &all.input), "{end} bytes");
                assert!(!has_result(call) || call.outcome == all.outcome, "{end} bytes");
            }
        }
    }
}

/// Promise: A file of OpenHands that is cut at any byte shows a part of what the whole shows.
#[test]
fn file_cut_at_any_byte_shows_a_part() {
    let rich = rich();
    check_prefixes("c.jsonl", rich.lines().as_bytes(), 41);
    check_prefixes("c.json", &serde_json::to_vec_pretty(&rich.0).unwrap(), 97);
    check_prefixes("c.json", json!({"items": rich.0}).to_string().as_bytes(), 43);
    check_prefixes("s.json", json!(old_conversation()).to_string().as_bytes(), 37);
    let instance = |id: &str| json!({"instance_id": id, "instruction": "x", "metadata": {}, "history": old_conversation()});
    let lines = format!("{}\n{}\n", instance("a"), instance("b"));
    check_prefixes("output.jsonl", lines.as_bytes(), 61);
}

#[test]
fn rewritten_export_is_read_again() {
    let store = store();
    let live = OpenHands::transcripts();
    let rich = rich();
    for count in [3, 8, 5, rich.0.len()] {
        store.write(&path("c.json"), json!(rich.0[..count]).to_string());
        assert_same(&read_with(&live, &*store), &read(&*store), &format!("{count} events"));
    }
}
