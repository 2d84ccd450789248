//! Conversations that are written while they are mounted.

use std::fs;

use super::*;
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

fn write(store: &TestStore, events: &Events, from: usize) {
    for (at, event) in events.0.iter().enumerate().skip(from) {
        store.write(event_path("conversations/c1", at).as_bytes(), event.to_string());
    }
}

/// Promise: A conversation of OpenHands is followed while it is written.
#[test]
fn mount_follows_a_conversation() {
    needs_fuse!();
    let store = TestStore::new();
    let mut events = Events::begun();
    write(&store, &events, 0);
    let mount = Mount::new(&store.path());
    assert_eq!(mount.text("workers/c1/task.txt"), "fix it");
    assert_eq!(mount.text("workers/c1/source.jsonl"), events.lines());
    let from = events.0.len();
    events.run("a", "ls", "a file\n", 0);
    write(&store, &events, from);
    eventually("the call", || {
        let calls = mount.list("workers/c1/tool_calls");
        (calls == ["001_terminal.txt"]).then_some(())
    });
    eventually("the result", || {
        (mount.text("workers/c1/tool_calls/001_terminal.txt") == "a file\n").then_some(())
    });
    let from = events.0.len();
    events.finish("Done.");
    write(&store, &events, from);
    store.write(
        "conversations/c1/base_state.json",
        json!({"execution_status": "finished"}).to_string(),
    );
    eventually("the end", || {
        let index: Value = serde_json::from_slice(&mount.read("workers/c1/index.json")).unwrap();
        (index["status"] == "completed").then_some(())
    });
    eventually("the events", || {
        (mount.text("workers/c1/source.jsonl") == events.lines()).then_some(())
    });
    // A subagent, and another conversation.
    let child = event_path("conversations/c1/subagents/s1", 0);
    store.write(child.as_bytes(), Events::begun().0[0].to_string());
    eventually("the subagent", || mount.list("workers").contains(&"s1".to_owned()).then_some(()));
}

#[test]
fn mount_follows_a_file_of_instances() {
    needs_fuse!();
    let store = TestStore::new();
    let line = |id: &str| {
        let history = old_conversation();
        format!(
            "{}\n",
            json!({"instance_id": id, "instruction": "x", "metadata": {}, "history": history})
        )
    };
    let file = store.write("output.jsonl", line("i1"));
    let mount = Mount::new(&store.path());
    assert_eq!(mount.text("workers/i1/result.txt"), "It is broken.");
    fs::write(&file, line("i1") + &line("i2")).unwrap();
    eventually("the instance", || mount.list("workers").contains(&"i2".to_owned()).then_some(()));
    assert_eq!(mount.text("workers/i2/result.txt"), "It is broken.");
}
