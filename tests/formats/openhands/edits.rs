//! changes.diff of OpenHands' conversations: exact where the contents are recorded.

use std::fs;

use super::*;
use crate::support::see;
use crate::support::tool::{is_here, shell};

fn edit(events: &mut Events, id: &str, arguments: Value, fields: Value) {
    events.call(id, "file_editor", arguments);
    events.result(id, "file_editor", "The file has been edited.", fields);
}

fn diff(store: &Arc<Memory>, worker: &str) -> String {
    see(&tree(store), format!("workers/{worker}/changes.diff")).unwrap().text().to_owned()
}

/// Promise: changes.diff of a version 1 conversation is exact: its results hold the contents before
/// and after.
#[test]
fn changes_of_version_1_apply_to_the_original() {
    let mut events = Events::begun();
    let before = "one\ntwo\nthree\n";
    let (second, third) = ("one\n2\nthree\n", "one\n2\nthree\nfour\n");
    edit(
        &mut events,
        "a",
        json!({"command": "create", "path": "/w/new.txt", "file_text": "x\ny"}),
        json!({"path": "/w/new.txt", "prev_exist": false, "new_content": "x\ny"}),
    );
    edit(
        &mut events,
        "b",
        json!({"command": "str_replace", "path": "/w/old.txt", "old_str": "two", "new_str": "2"}),
        json!({"path": "/w/old.txt", "prev_exist": true, "old_content": before, "new_content": second}),
    );
    edit(
        &mut events,
        "c",
        json!({"command": "insert", "path": "/w/old.txt", "insert_line": 3, "new_str": "four"}),
        json!({"path": "/w/old.txt", "prev_exist": true, "old_content": second, "new_content": third}),
    );
    edit(
        &mut events,
        "d",
        json!({"command": "str_replace", "path": "/w/old.txt", "old_str": "zz", "new_str": "2"}),
        json!({"is_error": true, "prev_exist": true}),
    );
    edit(
        &mut events,
        "e",
        json!({"command": "view", "path": "/w/old.txt"}),
        json!({"path": "/w/old.txt", "prev_exist": true, "old_content": null, "new_content": null}),
    );
    edit(
        &mut events,
        "f",
        json!({"command": "undo_edit", "path": "/w/old.txt"}),
        json!({"path": "/w/old.txt", "prev_exist": true, "old_content": third, "new_content": second}),
    );
    let store = store();
    events.write(&store, "c1");
    store.write(
        &path("c1/base_state.json"),
        json!({"workspace": {"working_dir": "/w"}}).to_string(),
    );
    let diff = diff(&store, "c1");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("w")).unwrap();
    fs::write(dir.path().join("w/old.txt"), before).unwrap();
    fs::write(dir.path().join("changes.diff"), &diff).unwrap();
    if !is_here("git") {
        return;
    }
    let command = "git apply --check ../changes.diff && git apply ../changes.diff";
    let out = shell(command, &dir.path().join("w"))
        .env("GIT_CEILING_DIRECTORIES", dir.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}\n{diff}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(fs::read_to_string(dir.path().join("w/new.txt")).unwrap(), "x\ny");
    assert_eq!(fs::read_to_string(dir.path().join("w/old.txt")).unwrap(), second);
}

#[test]
fn changes_of_patches_and_other_tools_are_read() {
    let mut events = Events::begun();
    events.call("a", "apply_patch", json!({"patch": "*** Begin Patch"}));
    let changes = json!({"a.txt": {"type": "update", "old_content": "1\n", "new_content": "2\n"},
        "b.txt": {"type": "add", "new_content": "b\n"}});
    events.result("a", "apply_patch", "Done!", json!({"commit": {"changes": changes}}));
    events.call("b", "write_file", json!({"file_path": "/w/c.txt", "content": "c\n"}));
    events.result(
        "b",
        "write_file",
        "ok",
        json!({"file_path": "/w/c.txt", "is_new_file": true, "new_content": "c\n"}),
    );
    let store = store();
    events.write(&store, "c1");
    store.write(
        &path("c1/base_state.json"),
        json!({"workspace": {"working_dir": "/w"}}).to_string(),
    );
    let diff = diff(&store, "c1");
    for line in ["-1", "+2", "+b", "+c", "+++ b/b.txt", "+++ b/c.txt"] {
        assert!(diff.lines().any(|other| other == line), "{line}: {diff}");
    }
}

/// Promise: changes.diff of a version 0 conversation has what its record states: whole contents,
/// else the replaced texts.
#[test]
fn changes_of_version_0_are_read() {
    let mut events = old_conversation()[..1].to_vec();
    let mut edit = |id: u64, action: &str, args: Value, content: &str, extras: Value| {
        events.push(old_event(id, "agent", json!({"action": action, "args": args})));
        events.push(old_event(
            id + 1,
            "agent",
            json!({"observation": action, "cause": id, "content": content, "extras": extras}),
        ));
    };
    // The oldest record the contents, later ones repeat the arguments.
    edit(
        10,
        "edit",
        json!({"path": "/w/a", "content": "", "start": 1, "end": -1}),
        "--- a",
        json!({"path": "/w/a", "prev_exist": true, "old_content": "1\n", "new_content": "2\n"}),
    );
    edit(
        20,
        "edit",
        json!({"path": "/w/b", "command": "create", "file_text": "b1\nb2\n"}),
        "created",
        json!({"path": "/w/b", "prev_exist": false, "old_content": null, "new_content": "b1\nb2\n"}),
    );
    edit(
        30,
        "edit",
        json!({"path": "/w/b", "command": "str_replace", "old_str": "b1", "new_str": "B"}),
        "edited",
        json!({"path": "/w/b", "prev_exist": false, "old_content": "b1", "new_content": "B"}),
    );
    edit(
        40,
        "edit",
        json!({"path": "/w/c", "command": "insert", "insert_line": 2, "new_str": "line"}),
        "edited",
        json!({"path": "/w/c"}),
    );
    edit(
        50,
        "edit",
        json!({"path": "/w/d", "command": "str_replace", "old_str": "x", "new_str": "y"}),
        "ERROR:\nno",
        json!({"path": "/w/d"}),
    );
    edit(
        60,
        "write",
        json!({"path": "/w/e", "content": "e\n", "start": 0, "end": -1}),
        "",
        json!({"path": "/w/e"}),
    );
    let store = store();
    store.write(&path("s.json"), json!(events).to_string());
    let diff = diff(&store, "s");
    for line in ["-1", "+2", "+B", "+b2", "+e"] {
        assert!(diff.lines().any(|other| other == line), "{line}: {diff}");
    }
    assert!(diff.contains("changed it at line 3"), "{diff}");
    assert!(!diff.contains("w/d"), "{diff}");
}
