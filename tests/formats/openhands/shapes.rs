//! One conversation reads the same in every shape.

use super::*;

fn conversation() -> Events {
    let mut events = Events::begun();
    events.run("a", "ls", "a file\n", 0).run("b", "false", "", 1).finish("Done.");
    events
}

/// Returns what all shapes have in common.
fn common(shown: &Shown) -> (Vec<&str>, String, Option<String>, String, Vec<Value>) {
    let trace = &shown.record.trace;
    (
        shown.outcomes(),
        shown.text("task.txt").to_owned(),
        trace.final_words.clone(),
        format!("{:?} {:?}", shown.worker.status, shown.worker.created_at),
        shown.thread(),
    )
}

/// Promise: A conversation of OpenHands reads the same from its directory, from an export with an
/// event per line, from a list of events, and from an object with `items`.
#[test]
fn conversation_reads_the_same_in_every_shape() {
    let events = conversation();
    let (folder, lines, list, items) = (store(), store(), store(), store());
    events.write(&folder, "c1");
    lines.write(&path("c1.jsonl"), events.lines());
    list.write(&path("c1.json"), serde_json::to_vec_pretty(&events.0).unwrap());
    items.write(&path("c1.json"), json!({"items": events.0, "next_page_id": null}).to_string());
    let all = [folder, lines, list, items].map(|store| read_one(&*store));
    for shown in &all {
        assert_eq!(common(shown), common(&all[0]));
        assert_eq!(shown.worker.id.to_text(), "c1");
        assert!(shown.record.trace.bad_lines.is_empty());
    }
    assert_eq!(all[0].outcomes(), ["ok", "failed", "ok"]);
    assert_eq!(all[0].text("result.txt"), "Done.");
    assert_eq!(all[0].text("source.jsonl"), events.lines());
    assert_eq!(all[1].text("source.jsonl"), events.lines());
    assert!(all[2].text("source.json").starts_with("[\n"));
}

#[test]
fn old_conversation_reads_the_same_in_a_store_and_an_export() {
    let events = old_conversation();
    let (folder, list) = (store(), store());
    for (at, event) in events.iter().enumerate() {
        folder.write(&path(&format!("sessions/s1/events/{at}.json")), event.to_string());
    }
    folder.write(&path("sessions/s1/event_cache/0-25.json"), json!(events).to_string());
    folder.write(&path("sessions/s1/agent_state.pkl"), "x");
    let metadata = json!({"title": "Build", "llm_model": "other", "selected_branch": "main",
        "prompt_tokens": 10, "completion_tokens": 3});
    folder.write(&path("sessions/s1/metadata.json"), metadata.to_string());
    list.write(&path("s1.json"), serde_json::to_vec_pretty(&events).unwrap());
    let (folder, list) = (read_one(&*folder), read_one(&*list));
    assert_eq!(common(&folder), common(&list));
    assert_eq!(folder.worker.summary.as_deref(), Some("Build"));
    assert_eq!(folder.worker.branch.as_deref(), Some("main"));
    assert_eq!(folder.worker.model.as_deref(), Some("claude-large"));
    let tokens = folder.record.trace.tokens.unwrap();
    assert_eq!((tokens.input, tokens.output), (10, 3));
}

#[test]
fn events_that_are_no_objects_are_counted() {
    let events = conversation();
    let store = store();
    let mut list = vec![Value::Null, json!(1), json!([])];
    list.extend(events.0.clone());
    store.write(&path("c1.json"), json!({"items": list}).to_string());
    let shown = read_one(&*store);
    assert_eq!(shown.outcomes(), ["ok", "failed", "ok"]);
    assert_eq!(shown.record.trace.bad_lines, [("source.json", 3)]);
}
