//! Where conversations are found, and what is none.

use super::*;
use swarmletfs_trace::Detection;

/// Promise: Subagents of an OpenHands conversation are its children.
#[test]
fn subagents_are_children_of_their_conversation() {
    let store = store();
    let events = Events::begun();
    for folder in [
        "conversations/c1",
        "conversations/c1/subagents/s1",
        "conversations/c1/subagents/s1/subagents/t1",
    ] {
        events.write(&store, folder);
    }
    let all = read(&*store);
    let worker = |folder: &str| &all[&format!("conversations/{folder}/events")].worker;
    assert_eq!(worker("c1").parent, None);
    let child = worker("c1/subagents/s1");
    assert_eq!((child.parent.as_deref(), child.run.as_deref()), (Some("c1"), Some("c1")));
    assert_eq!((child.id.to_text(), child.task_type.as_deref()), ("s1".into(), Some("agent")));
    let grandchild = worker("c1/subagents/s1/subagents/t1");
    assert_eq!((grandchild.parent.as_deref(), grandchild.run.as_deref()), (Some("s1"), Some("c1")));
}

#[test]
fn conversation_itself_is_a_store() {
    let store = store();
    Events::begun().write(&store, "");
    let shown = read_one(&*store);
    assert_eq!(shown.worker.id.to_text(), "events");
}

fn is_found(file: &str, text: impl Into<Vec<u8>>) -> bool {
    let store = store();
    store.write(&path(file), text);
    let format = OpenHands::transcripts();
    let found = !format.find_workers(&*store).unwrap().folders.is_empty();
    assert_eq!(found, format.detect(&*store).unwrap() == Detection::Workers);
    found
}

/// Promise: A file is recognized as a conversation of OpenHands by its content.
#[test]
fn files_are_recognized_by_their_content() {
    let events = Events::begun();
    assert!(is_found("any.jsonl", events.lines()));
    assert!(is_found("any.json", json!(events.0).to_string()));
    assert!(is_found("trajectory.json", json!(old_conversation()).to_string()));
    // The first event can be long.
    let mut long = Events::default();
    long.add(
        "SystemPromptEvent",
        "agent",
        json!({"system_prompt": {"text": "x".repeat(80 << 10)}}),
    );
    assert!(is_found("long.json", json!(long.0).to_string()));
    assert!(is_found("long.jsonl", long.lines()));
    let prompt =
        old_event(0, "agent", json!({"message": "x".repeat(20 << 10), "action": "system"}));
    assert!(is_found("old.json", json!([prompt]).to_string()));
    assert!(is_found("sessions/s/events/0.json", old_conversation()[0].to_string()));
    for (file, text) in [
        ("a.json", json!({"id": 1, "source": "agent"}).to_string()),
        ("a.json", "[]".into()),
        ("a.json", "{}".into()),
        ("a.json", "5".into()),
        ("a.json", String::new()),
        ("a.json", "[{\"id\": \"x\", \"timestamp\": \"y\", \"source\": \"agent\"".into()),
        (
            "a.jsonl",
            json!({"type": "user", "uuid": "x", "sessionId": "s", "message": {"content": "x"}})
                .to_string(),
        ),
        ("a.jsonl", json!({"instance_id": "i", "history": []}).to_string()),
        ("output.jsonl", json!({"instance_id": "i", "model_patch": "diff"}).to_string()),
        ("output.jsonl", events.lines()),
        ("base_state.json", events.0[1].to_string()),
        ("events/notes.json", events.0[1].to_string()),
        ("x/event_cache/0-25.json", json!(old_conversation()).to_string()),
        ("x/events/deep/a.json", json!(old_conversation()).to_string()),
        ("deep.json", "[".repeat(100_000)),
    ] {
        assert!(!is_found(file, text.clone()), "{file}: {text:.80}");
    }
}

#[test]
fn empty_directory_of_conversations_is_a_store() {
    let store = store();
    store.put(&path("conversations"), Kind::Folder);
    let format = OpenHands::transcripts();
    assert_eq!(format.detect(&*store).unwrap(), Detection::Empty);
    store.put(&path("conversations/c1/events"), Kind::Folder);
    assert!(format.find_workers(&*store).unwrap().folders.is_empty());
    // It appears with its first event.
    Events::begun().write(&store, "conversations/c1");
    assert_eq!(format.find_workers(&*store).unwrap().folders.len(), 1);
}
