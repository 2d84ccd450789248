//! Sessions of opencode in a database that is written while it is read. The rules of the format are
//! tested beside it, in crates/trace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Disk;
use swarmletfs_trace::{Format, OpenCode, RecordSource};

use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

const NAME: &str = "opencode.db";
const START: i64 = 1_795_732_000_000;

/// Makes a database with one session.
fn database(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join(NAME)).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal;
             CREATE TABLE session_v2(id text PRIMARY KEY, parent_id text, directory text,
                title text, time_created integer, time_updated integer);
             CREATE TABLE session_message(id text PRIMARY KEY, session_id text, type text,
                seq integer, time_created integer, time_updated integer, data text);
             CREATE UNIQUE INDEX seq ON session_message(session_id, seq);
             INSERT INTO session_v2 VALUES ('ses_1', NULL, '/home', 'title', 1, 1);",
        )
        .unwrap();
    connection
}

/// Sets the row with a number.
fn set(connection: &Connection, seq: i64, kind: &str, data: &Value) {
    let time = START + seq * 1_000;
    let row = (format!("msg_{seq}"), kind, seq, time, data.to_string());
    let sql = "INSERT OR REPLACE INTO session_message VALUES (?1, 'ses_1', ?2, ?3, ?4, ?4, ?5)";
    connection.execute(sql, row).unwrap();
}

fn answer(state: &Value) -> Value {
    let call = json!({"type": "tool", "id": "a", "name": "shell", "state": state});
    json!({"model": {"id": "mock"}, "content": [call], "time": {"created": START}})
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Promise: A session of opencode is followed while its database is written, and no file is made or
/// changed beside it.
#[test]
fn mount_follows_a_session_of_opencode() {
    needs_fuse!();
    let store = TestStore::new();
    let connection = database(&store.path());
    set(&connection, 1, "user", &json!({"text": "fix it"}));
    let running = json!({"status": "running", "input": {"command": "make"}, "metadata": {}});
    set(&connection, 2, "assistant", &answer(&running));
    let mount = Mount::new(&store.path());
    assert_eq!(mount.text("workers/ses_1/task.txt"), "fix it");
    assert_eq!(mount.list("workers/ses_1/tool_calls"), ["001_shell.txt"]);
    assert_eq!(mount.text("workers/ses_1/tool_calls/001_shell.txt"), "");
    assert_eq!(mount.list("by/source/opencode"), ["ses_1"]);
    let done = json!({"status": "completed", "input": {"command": "make"},
        "content": [{"type": "text", "text": "all good"}], "metadata": {"exit": 0}});
    set(&connection, 2, "assistant", &answer(&done));
    eventually("the result", || {
        (mount.text("workers/ses_1/tool_calls/001_shell.txt") == "all good").then_some(())
    });
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let text = json!({"model": {"id": "mock"}, "content": [{"type": "text", "text": "Done."}],
        "finish": "stop", "time": {"created": START, "completed": START + 1}});
    set(&connection, 3, "assistant", &text);
    set(&connection, 4, "idle", &json!({"outcome": "succeeded"}));
    eventually("the end", || {
        let index: Value = serde_json::from_slice(&mount.read("workers/ses_1/index.json")).unwrap();
        (index["status"] == "completed").then_some(())
    });
    assert_eq!(mount.text("workers/ses_1/result.txt"), "Done.");
    connection
        .execute("INSERT INTO session_v2 VALUES ('ses_2', 'ses_1', '/home', 'child', 2, 2)", [])
        .unwrap();
    eventually("the child", || mount.list("workers").contains(&"ses_2".to_owned()).then_some(()));
    let own = ["", "-shm", "-wal"].map(|suffix| format!("{NAME}{suffix}"));
    assert_eq!(names(&store.path()), own.into());
    drop(connection);
    eventually("the end of the program", || {
        (mount.text("workers/ses_1/result.txt") == "Done.").then_some(())
    });
    assert_eq!(names(&store.path()), [NAME.to_owned()].into());
}

#[test]
fn fields_that_state_an_outcome_are_documented() {
    let completed = |metadata: Value| json!({"state": {"status": "completed", "content": [], "metadata": metadata}});
    let error = json!({"type": "permission.rejected", "message": "no"});
    let samples = [
        ("state.status", json!({"state": {"status": "error", "error": "no"}}), "failed"),
        ("state.status", completed(json!({})), "ok"),
        ("state.metadata.exit", completed(json!({"exit": 2})), "failed"),
        ("state.metadata.timeout", completed(json!({"timeout": true})), "failed"),
        ("state.metadata.error", completed(json!({"error": true})), "failed"),
        ("state.error.type", json!({"state": {"status": "error", "error": error}}), "not_run"),
        ("state.metadata.status", completed(json!({"status": "running"})), "unknown"),
        ("metadata.state", json!({"metadata": {"shellID": "s", "state": "completed"}}), "ok"),
    ];
    let outcome = |sample: &Value| {
        let dir = tempfile::tempdir().unwrap();
        let connection = database(dir.path());
        let started = json!({"status": "completed",
            "metadata": {"status": "running", "shellID": "s"}});
        let state = sample.get("state").unwrap_or(&started);
        set(&connection, 1, "assistant", &answer(state));
        let notice = json!({"text": "it ended", "metadata": sample["metadata"]});
        set(&connection, 2, "synthetic", &notice);
        let (format, store) = (OpenCode::transcripts(), Disk::open(dir.path()).unwrap());
        let path = RelPath::constant("opencode.db/ses_1");
        let folder = format.enter(&store, &path).unwrap();
        let worker = format.read_worker(&*folder, &path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        let [call] = record.trace.calls.as_slice() else { panic!("{record:?}") };
        match call.output {
            swarmletfs_base::model::Output::Pending => "no result".to_owned(),
            _ => call.outcome.as_str().to_owned(),
        }
    };
    // The error of a call in version 1 is a text, and the one in version 2 an object.
    crate::formats::outcome_fields::check("opencode", &samples, &[], &["error"], outcome);
}
