//! Where rollouts are found, in which form, and what is none.

use std::fs;

use super::*;
use crate::formats::{listed, rows};
use crate::support::{Mount, TestStore};

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn finished() -> Rollout {
    let mut rollout = Rollout::begun();
    rollout.command("a", "make", 2, "no rule").says("Done.").complete();
    rollout
}

/// Promise: A compressed session of Codex shows the same as the plain one, which wins over it.
#[test]
fn compressed_rollouts_are_read_and_plain_ones_win() {
    let (store, plain) = (Arc::new(Memory::new()), finished());
    let compressed = format!("{}.zst", place(ID));
    store.write(&path(&compressed), zstd(&plain.bytes()));
    let tree = tree(&store);
    let from_compressed = index(&tree, ID);
    assert_eq!(calls(&from_compressed), [("exec_command".into(), "failed".into(), Some(2))]);
    assert_eq!(from_compressed["status"], "completed");
    assert!(text(&tree, ID, "thread.jsonl").contains("Done."));
    let source = crate::support::see(&tree, format!("workers/{ID}/source.jsonl.zst")).unwrap();
    assert_eq!(source.bytes(), zstd(&plain.bytes()));
    // Resumed: both forms are there for a moment, and the plain one is newer.
    let mut resumed = plain.clone();
    resumed.event("task_started", json!({}));
    store.write(&path(place(ID)), resumed.bytes());
    assert_eq!(listed(&tree), [ID]);
    assert_eq!(index(&tree, ID)["status"], "running");
}

#[test]
fn a_rollout_that_changes_its_form_between_two_looks_is_still_read() {
    use swarmletfs_base::deadline::Deadline;
    use swarmletfs_trace::{Format, RecordSource};
    let (store, rollout) = (Arc::new(Memory::new()), finished());
    let (plain, compressed) = (path(place(ID)), path(format!("{}.zst", place(ID))));
    let format = Codex::transcripts();
    for (listed, moved_to) in [(&plain, &compressed), (&compressed, &plain)] {
        let bytes = |form: &swarmletfs_base::name::RelPath| match form == &compressed {
            true => zstd(&rollout.bytes()),
            false => rollout.bytes(),
        };
        store.write(listed, bytes(listed));
        let folder = format.enter(&*store, listed).unwrap();
        store.remove(listed);
        store.write(moved_to, bytes(moved_to));
        let worker = format.read_worker(&*folder, listed, None);
        assert_eq!(worker.status.as_str(), "completed", "{listed:?}");
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        assert_eq!(record.trace.calls.len(), 1);
        store.remove(moved_to);
        assert!(format.folder_state(&*folder, listed).unwrap().is_none());
    }
}

#[test]
fn torn_and_damaged_archives_show_what_can_be_read() {
    let rollout = finished();
    let whole = zstd(&rollout.bytes());
    for bytes in [&whole[..whole.len() / 2], &whole[..5], b"no archive", b""] {
        let store = Arc::new(Memory::new());
        store.write(&path(format!("{}.zst", place(ID))), bytes);
        let tree = tree(&store);
        assert_eq!(listed(&tree), [ID]);
        index(&tree, ID);
    }
}

#[test]
fn only_sessions_are_searched_in_the_program_s_own_directory() {
    let store = Arc::new(Memory::new());
    store.write(&path("config.toml"), "");
    store.write(&path("history.jsonl"), "{\"session_id\":\"x\",\"ts\":1,\"text\":\"y\"}\n");
    store.write(&path("session_index.jsonl"), "{\"id\":\"x\",\"thread_name\":\"y\"}\n");
    store.write(&path("worktrees/app/rollout.jsonl"), finished().bytes());
    store.write(&path(place(ID)), finished().bytes());
    let archived = format!("archived_sessions/rollout-2026-11-01T10-00-00-{OTHER_ID}.jsonl");
    let other = finished().bytes();
    let other = String::from_utf8(other).unwrap().replace(ID, OTHER_ID);
    store.write(&path(archived), other);
    assert_eq!(listed(&tree(&store)), [ID, OTHER_ID]);
}

#[test]
fn rollouts_of_any_name_are_recognized_by_their_first_lines() {
    let store = Arc::new(Memory::new());
    let long = json!({"type": "session_meta", "payload": {"id": "long", "base_instructions":
        {"text": "x".repeat(20_000)}}});
    let bare =
        "{\"id\":\"bare\",\"timestamp\":\"2025-06-01T10:00:00Z\"}\n{\"record_type\":\"state\"}\n";
    let torn = "not json\n{\"type\":\"response_item\",\"payload\":{\"type\":\"message\",\"role\":\"user\"}}\n";
    for (name, text) in [
        ("a/long.jsonl", long.to_string() + "\n"),
        ("a/bare.jsonl", bare.into()),
        ("torn.jsonl", torn.into()),
        ("claude.jsonl", json!({"type": "user", "sessionId": "s", "uuid": "u", "message": {}}).to_string()),
        ("pi.jsonl", "{\"type\":\"session\",\"id\":\"p\",\"timestamp\":\"2026-01-01T00:00:00Z\"}\n{\"type\":\"message\",\"id\":\"m\"}\n".into()),
        ("other.jsonl", "{\"id\":\"p\",\"timestamp\":\"2026-01-01T00:00:00Z\"}\n{\"x\":1}\n".into()),
        ("data.jsonl", "{\"type\":\"event_msg\",\"payload\":7}\n".into()),
        ("text.txt", torn.into()),
        ("empty.jsonl", String::new()),
    ] {
        store.write(&path(name), text);
    }
    store.write(&path("packed.jsonl.zst"), zstd(&finished().bytes()));
    store.write(&path("unrelated.jsonl.zst"), zstd(b"{\"a\":1}\n"));
    let mut names = listed(&tree(&store));
    names.sort();
    assert_eq!(names, [ID, "bare", "long", "torn"]);
}

#[test]
fn a_name_from_the_content_is_a_safe_name() {
    for (id, expected) in [("../../x", "%2E.%2F..%2Fx"), ("", "named"), ("a\nb", "a%0Ab")] {
        let store = Arc::new(Memory::new());
        let mut rollout = Rollout::default();
        rollout.line("session_meta", json!({"id": id}));
        store.write(&path("named.jsonl"), rollout.bytes());
        assert_eq!(rows(&tree(&store)).keys().collect::<Vec<_>>(), [expected], "{id:?}");
    }
}

/// Promise: A session of Codex that goes on is followed, also when its file changes its form.
#[test]
fn a_session_is_followed_through_a_mount() {
    crate::needs_fuse!();
    let store = TestStore::new();
    let mut rollout = Rollout::begun();
    rollout.command("a", "ls", 0, "x");
    let file = store.write(place(ID), rollout.bytes());
    let mount = Mount::new(&store.path());
    let calls = || mount.list(&format!("workers/{ID}/tool_calls"));
    assert_eq!(calls(), ["001_exec_command.txt"]);
    rollout.command("b", "make", 2, "no");
    fs::write(&file, rollout.bytes()).unwrap();
    crate::mount::eventually("the second call", || (calls().len() == 2).then_some(()));
    rollout.says("Done.").complete();
    fs::write(&file, rollout.bytes()).unwrap();
    let status = || mount.text(&format!("workers/{ID}/index.json"));
    crate::mount::eventually("the end", || status().contains("\"completed\"").then_some(()));
    // The program compresses the file, and decompresses it when the session goes on.
    fs::write(store.path().join(format!("{}.zst", place(ID))), zstd(&rollout.bytes())).unwrap();
    fs::remove_file(&file).unwrap();
    let source = format!("workers/{ID}/source.jsonl.zst");
    crate::mount::eventually("the archive", || mount.at(&source).exists().then_some(()));
    assert_eq!(calls().len(), 2);
}
