//! Sessions in databases that SQLite writes.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{FileEdit, Output, Record, RecordedChanges, Status, Worker};
use swarmletfs_base::store::{Disk, Memory, Meta, read_range};
use tempfile::TempDir;

use super::*;
use crate::probe::ProbeBudget;
use crate::{Format, RecordSource};
use swarmletfs_base::model::SkipReason;

const VERSION_2: &str = "
    CREATE TABLE `session_v2` (`id` text PRIMARY KEY, `parent_id` text, `fork_session_id` text,
        `fork_boundary` text, `directory` text NOT NULL, `title` text, `version` text NOT NULL,
        `cost` real DEFAULT 0 NOT NULL, `tokens_input` integer DEFAULT 0 NOT NULL,
        `tokens_output` integer DEFAULT 0 NOT NULL, `tokens_reasoning` integer DEFAULT 0 NOT NULL,
        `tokens_cache_read` integer DEFAULT 0 NOT NULL,
        `tokens_cache_write` integer DEFAULT 0 NOT NULL, `model` text,
        `time_created` integer NOT NULL, `time_updated` integer NOT NULL);
    CREATE TABLE `session_message` (`id` text PRIMARY KEY, `session_id` text NOT NULL,
        `type` text NOT NULL, `seq` integer NOT NULL, `time_created` integer NOT NULL,
        `time_updated` integer NOT NULL, `data` text NOT NULL,
        CONSTRAINT `fk` FOREIGN KEY (`session_id`) REFERENCES `session_v2`(`id`));
    CREATE UNIQUE INDEX `seq` ON `session_message` (`session_id`,`seq`);";
const VERSION_1: &str = "
    CREATE TABLE `session` (`id` text PRIMARY KEY, `parent_id` text, `directory` text NOT NULL,
        `title` text NOT NULL, `version` text NOT NULL, `time_created` integer NOT NULL,
        `time_updated` integer NOT NULL);
    CREATE TABLE `message` (`id` text PRIMARY KEY, `session_id` text NOT NULL,
        `time_created` integer NOT NULL, `time_updated` integer NOT NULL, `data` text NOT NULL);
    CREATE TABLE `part` (`id` text PRIMARY KEY, `message_id` text NOT NULL,
        `session_id` text NOT NULL, `time_created` integer NOT NULL,
        `time_updated` integer NOT NULL, `data` text NOT NULL);
    CREATE INDEX `by_session` ON `message` (`session_id`,`time_created`,`id`);
    CREATE INDEX `part_by_session` ON `part` (`session_id`);";
/// Time of the first row, in milliseconds since 1970.
const START: i64 = 1_795_732_000_000;

/// A database that a program has open.
struct Database {
    dir: TempDir,
    connection: Connection,
    rows: i64,
}

#[derive(Debug, PartialEq)]
struct Shown {
    worker: Worker,
    record: Record,
    edits: Vec<FileEdit>,
    source: Vec<Value>,
    meta: Meta,
}

impl Shown {
    fn outcomes(&self) -> Vec<&'static str> {
        let calls = self.record.trace.calls.iter();
        calls
            .map(|call| match call.output {
                Output::Pending => "-",
                _ if call.is_open => "open",
                _ => call.outcome.as_str(),
            })
            .collect()
    }
}

impl Database {
    fn new(schema: &str) -> Database {
        let dir = TempDir::new().unwrap();
        let connection = Connection::open(dir.path().join("opencode.db")).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0;")
            .unwrap();
        connection.execute_batch(schema).unwrap();
        Database { dir, connection, rows: 0 }
    }

    fn time(&mut self) -> i64 {
        self.rows += 1;
        START + self.rows * 1_000
    }

    /// Adds a session of version 2 with further columns.
    fn session(&mut self, id: &str, columns: &[(&str, &dyn rusqlite::ToSql)]) -> &mut Database {
        let time = self.time();
        let sql =
            "INSERT INTO session_v2(id, directory, title, version, time_created, time_updated)
            VALUES (?1, '/home/dev/shop', 'a title', '2.0.15', ?2, ?2)";
        self.connection.execute(sql, (id, time)).unwrap();
        for (column, value) in columns {
            let sql = format!("UPDATE session_v2 SET {column} = ?1 WHERE id = ?2");
            self.connection.execute(&sql, (value, id)).unwrap();
        }
        self
    }

    fn message(&mut self, session: &str, kind: &str, data: Value) -> &mut Database {
        self.message_with_id(&format!("msg_{}", self.rows), session, kind, data)
    }

    fn message_with_id(
        &mut self,
        id: &str,
        session: &str,
        kind: &str,
        mut data: Value,
    ) -> &mut Database {
        let time = self.time();
        if data["time"].is_null() {
            data["time"] = json!({"created": time, "completed": time + 500});
        }
        let sql = "INSERT INTO session_message VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)";
        let row = (id, session, kind, self.rows, time, data.to_string());
        self.connection.execute(sql, row).unwrap();
        self
    }

    fn user(&mut self, session: &str, text: &str) -> &mut Database {
        self.message(session, "user", json!({"text": text}))
    }

    fn answer(&mut self, session: &str, content: Value, finish: &str) -> &mut Database {
        let data = json!({"agent": "build", "model": {"id": "mock", "providerID": "p"},
            "content": content, "finish": finish});
        self.message(session, "assistant", data)
    }

    fn idle(&mut self, session: &str, outcome: &str) -> &mut Database {
        self.message(session, "idle", json!({"outcome": outcome}))
    }

    /// Adds a session of version 1 with messages, each with its role and its parts.
    fn old_session(&mut self, id: &str, messages: &[(&str, Value, Vec<Value>)]) -> &mut Database {
        let sql =
            "INSERT INTO session VALUES (?1, NULL, '/home/dev/shop', 'old', '1.18.33', ?2, ?2)";
        let time = self.time();
        self.connection.execute(sql, (id, time)).unwrap();
        for (role, data, parts) in messages {
            let (time, message) = (self.time(), format!("msg_{id}_{}", self.rows));
            let mut data = data.clone();
            (data["role"], data["modelID"]) = ((*role).into(), "mock".into());
            data["time"] = json!({"created": time, "completed": time + 500});
            let row = (&message, id, time, data.to_string());
            let sql = "INSERT INTO message VALUES (?1, ?2, ?3, ?3, ?4)";
            self.connection.execute(sql, row).unwrap();
            for (number, part) in parts.iter().enumerate().rev() {
                let row = (format!("prt_{message}_{number}"), &message, id, time, part.to_string());
                let sql = "INSERT INTO part VALUES (?1, ?2, ?3, ?4, ?4, ?5)";
                self.connection.execute(sql, row).unwrap();
            }
        }
        self
    }

    fn read(&self) -> BTreeMap<String, Shown> {
        self.read_with(&OpenCode::transcripts())
    }

    fn read_with(&self, format: &Transcripts) -> BTreeMap<String, Shown> {
        read(format, &Disk::open(self.dir.path()).unwrap())
    }

    fn read_one(&self, id: &str) -> Shown {
        self.read().remove(id).unwrap()
    }

    /// Returns the names and contents of all files.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap());
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
    }
}

fn read(format: &Transcripts, store: &dyn Store) -> BTreeMap<String, Shown> {
    let found = format.find_workers(store).unwrap();
    assert_eq!(found.skipped.entries(SkipReason::Unreadable).count, 0);
    let shown = found.folders.iter().map(|path| {
        let folder = format.enter(store, path).unwrap();
        assert!(format.folder_state(&*folder, path).unwrap().is_some());
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        let listed = (&worker.status, &worker.status_source, &worker.parent, &worker.continues);
        let told = &record.worker;
        let told = (&told.status, &told.status_source, &told.parent, &told.continues);
        assert_eq!(listed, told, "{path:?}");
        let edits = format.read_changes(source, Deadline::never()).unwrap();
        let RecordedChanges::Edits(edits) = edits else { panic!("{edits:?}") };
        for entry in folder.list(&RelPath::constant("tool_calls")).unwrap() {
            let path = RelPath::constant("tool_calls").join(&entry.name);
            let file = folder.open(&path).unwrap();
            let bytes = read_range(&*file, 0, 1 << 20).unwrap();
            assert_eq!(folder.stat(&path).unwrap().size, bytes.len() as u64);
        }
        let thread = folder.open(&RelPath::constant("thread.jsonl")).unwrap();
        let thread = read_range(&*thread, 0, 1 << 20).unwrap();
        thread
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .for_each(|line| drop(serde_json::from_slice::<Value>(line).unwrap()));
        let source = RelPath::constant("source.jsonl");
        let meta = folder.stat(&source).unwrap();
        let bytes = read_range(&*folder.open(&source).unwrap(), 0, 1 << 26).unwrap();
        assert_eq!(meta.size, bytes.len() as u64);
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let source = lines.map(|line| serde_json::from_slice(line).unwrap_or_default()).collect();
        let id = worker.id.to_text().into_owned();
        (id, Shown { worker, record, edits: edits.edits, source, meta })
    });
    shown.collect()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn tool(id: &str, name: &str, state: Value) -> Value {
    json!({"type": "tool", "id": id, "name": name, "state": state,
        "time": {"created": START, "ran": START + 1, "completed": START + 9}})
}

fn completed(output: &str, metadata: Value) -> Value {
    json!({"status": "completed", "input": {"command": "make"}, "content": [text(output)],
        "metadata": metadata})
}

fn failed(kind: &str, message: &str) -> Value {
    json!({"status": "error", "input": {"command": "make"},
        "error": {"type": kind, "message": message}})
}

fn old_tool(name: &str, state: Value) -> Value {
    json!({"type": "tool", "tool": name, "callID": format!("call_{name}"), "state": state})
}

#[test]
fn outcomes_of_version_2_come_from_fields() {
    let mut database = Database::new(VERSION_2);
    let states = [
        ("ok", completed("fine", json!({"exit": 0}))),
        ("ok", completed("fine", json!({"truncated": false}))),
        ("failed", completed("Exited with code 3", json!({"exit": 3}))),
        ("failed", completed("Timed out before completion", json!({"timeout": true}))),
        ("failed", completed("no", json!({"error": true}))),
        ("failed", failed("tool.execution", "no such tool")),
        ("failed", failed("aborted", "Tool execution interrupted")),
        ("not_run", failed("aborted", "The user declined this tool call")),
        ("not_run", failed("permission.rejected", "Permission denied: shell")),
        ("open", completed("started", json!({"status": "running", "shellID": "sh_1"}))),
        ("-", json!({"status": "running", "input": {"command": "make"}, "metadata": {}})),
        ("-", json!({"status": "streaming", "input": "{\"comm"})),
    ];
    let calls = states.iter().enumerate();
    let calls = calls.map(|(at, (_, state))| tool(&format!("c{at}"), "shell", state.clone()));
    let content = std::iter::once(text("Now.")).chain(calls).collect();
    database.session("ses_1", &[]).user("ses_1", "go").answer("ses_1", content, "tool-calls");
    let shown = database.read_one("ses_1");
    assert_eq!(shown.outcomes(), states.map(|(outcome, _)| outcome));
    let calls = &shown.record.trace.calls;
    assert_eq!(calls[2].exit_code, Some(3));
    assert_eq!(calls[0].duration_ms, Some(8));
    assert_eq!(calls[0].input.as_deref(), Some("make"));
    assert_eq!(shown.record.trace.unused.kinds.len(), 0);
    assert_eq!(shown.record.trace.bad_lines, []);
}

#[test]
fn outcomes_of_version_1_come_from_fields() {
    let mut database = Database::new(VERSION_1);
    let error = |error: &str| json!({"status": "error", "input": {}, "error": error});
    let done = |metadata: Value| {
        json!({"status": "completed", "input": {"command": "x"},
        "output": "out", "metadata": metadata, "time": {"start": START, "end": START + 7}})
    };
    let invalid = json!({"status": "completed", "output": "no", "metadata": {},
        "input": {"tool": "nosuch", "error": "unknown"}});
    let states = [
        ("bash", "ok", done(json!({"exit": 0}))),
        ("edit", "ok", done(json!({}))),
        ("bash2", "failed", done(json!({"exit": 2}))),
        ("invalid", "failed", invalid),
        ("read", "failed", error("Could not find it")),
        ("a", "failed", error("Tool execution aborted")),
        (
            "b",
            "not_run",
            error(
                "The user has specified a rule which prevents you from using this specific tool call.",
            ),
        ),
        (
            "c",
            "not_run",
            error(
                "The user rejected permission to use this specific tool call with the following \
             feedback: use make",
            ),
        ),
        ("d", "-", json!({"status": "pending", "input": {}})),
    ];
    let parts = states.iter().map(|(name, _, state)| old_tool(name, state.clone())).collect();
    let messages = [
        ("user", json!({}), vec![text("go")]),
        ("assistant", json!({"finish": "tool-calls"}), parts),
    ];
    database.old_session("ses_1", &messages);
    let shown = database.read_one("ses_1");
    assert_eq!(shown.outcomes(), states.map(|(_, outcome, _)| outcome));
    let calls = &shown.record.trace.calls;
    assert_eq!(calls[3].tool, "nosuch");
    assert_eq!(calls[0].duration_ms, Some(7));
    assert_eq!(calls[7].denial.as_deref().map(|text| text.contains("use make")), Some(true));
    assert_eq!(shown.worker.task, "go");
    assert_eq!(shown.worker.model.as_deref(), Some("mock"));
}

#[test]
fn a_later_row_ends_work_in_the_background() {
    let mut database = Database::new(VERSION_2);
    let started = |id: &str, metadata: Value| tool(id, "shell", completed("started", metadata));
    let content = ["sh_1", "sh_2", "sh_3", "sh_4", "sh_5"]
        .iter()
        .map(|id| started(id, json!({"status": "running", "shellID": id})))
        .chain([started("child", json!({"status": "running", "sessionID": "ses_child"}))])
        .collect();
    database.session("ses_1", &[]).user("ses_1", "go").answer("ses_1", content, "tool-calls");
    for metadata in [
        json!({"source": "shell", "shellID": "sh_1", "state": "completed", "exit": 0}),
        json!({"source": "shell", "shellID": "sh_2", "state": "completed", "exit": 4}),
        json!({"source": "shell", "shellID": "sh_3", "state": "completed", "timeout": true}),
        json!({"source": "shell", "shellID": "sh_4", "state": "cancelled"}),
        json!({"source": "subagent", "childID": "ses_child", "state": "completed"}),
    ] {
        let data = json!({"text": "it ended", "metadata": metadata});
        database.message("ses_1", "synthetic", data);
    }
    let shown = database.read_one("ses_1");
    assert_eq!(shown.outcomes(), ["ok", "failed", "failed", "open", "open", "ok"]);
    assert_eq!(shown.record.trace.calls[1].exit_code, Some(4));
    assert_eq!(shown.worker.status, Status::Running);
}

#[test]
fn the_status_is_that_of_the_last_run() {
    let mut database = Database::new(VERSION_2);
    let status = |database: &Database| {
        let worker = database.read_one("ses_1").worker;
        (worker.status, worker.status_source.as_deref().map(str::to_owned))
    };
    let word = |word: &str| Some(word.to_owned());
    database.session("ses_1", &[]);
    assert_eq!(status(&database), (Status::Created, None));
    database.user("ses_1", "go");
    assert_eq!(status(&database).0, Status::Running);
    let unfinished = json!({"time": {"created": START}, "content": [text("I look")]});
    database.message("ses_1", "assistant", unfinished);
    assert_eq!(status(&database).0, Status::Running);
    database.answer("ses_1", json!([text("Done.")]), "stop");
    assert_eq!(status(&database), (Status::Completed, None));
    database.idle("ses_1", "succeeded");
    assert_eq!(status(&database), (Status::Completed, None));
    assert_eq!(database.read_one("ses_1").record.trace.final_words.as_deref(), Some("Done."));
    database.user("ses_1", "and now?");
    assert_eq!(status(&database).0, Status::Running);
    let error = json!({"type": "provider.invalid-request", "message": "too long"});
    let data = json!({"content": [], "finish": "error", "error": error});
    database.message("ses_1", "assistant", data);
    assert_eq!(status(&database), (Status::Failed, word("provider.invalid-request")));
    database.idle("ses_1", "failed");
    assert_eq!(status(&database), (Status::Failed, None));
    assert_eq!(database.read_one("ses_1").worker.error.as_deref(), Some("too long"));
    let error = json!({"type": "aborted", "message": "Step interrupted"});
    let data = json!({"content": [text("Hm.")], "finish": "error", "error": error});
    database.user("ses_1", "again").message("ses_1", "assistant", data);
    assert_eq!(status(&database), (Status::Unknown, word("interrupted")));
    database.idle("ses_1", "interrupted");
    assert_eq!(status(&database), (Status::Unknown, word("interrupted")));
}

#[test]
fn a_refusal_ends_a_run_of_version_1() {
    let mut database = Database::new(VERSION_1);
    let refusal = "The user rejected permission to use this specific tool call.";
    let state = json!({"status": "error", "input": {"command": "rm"}, "error": refusal});
    let messages = [
        ("user", json!({}), vec![text("\"clean up\"")]),
        ("assistant", json!({"finish": "tool-calls"}), vec![old_tool("bash", state)]),
    ];
    database.old_session("ses_1", &messages);
    let shown = database.read_one("ses_1");
    assert_eq!(shown.outcomes(), ["not_run"]);
    assert_eq!(shown.worker.status, Status::Unknown);
    assert_eq!(shown.worker.status_source.as_deref(), Some("interrupted"));
    assert_eq!(shown.worker.task, "clean up");
}

#[test]
fn a_fork_does_not_repeat_the_work_of_its_source() {
    let mut database = Database::new(VERSION_2);
    let call = |id: &str| json!([tool(id, "shell", completed("x", json!({"exit": 1})))]);
    database.session("ses_1", &[]).user("ses_1", "go").answer("ses_1", call("a"), "tool-calls");
    let boundary = r#"{"type":"through","messageID":"msg_2"}"#;
    database.session(
        "ses_2",
        &[
            ("fork_session_id", &"ses_1"),
            ("fork_boundary", &boundary),
            ("tokens_input", &5),
            ("tokens_cache_read", &7),
        ],
    );
    let copied = json!({"text": "go"});
    database.message_with_id(&format!("msg_f_{}", database.rows + 1), "ses_2", "user", copied);
    let copied = json!({"content": call("a"), "finish": "tool-calls"});
    let id = format!("msg_f_{}", database.rows + 1);
    database.message_with_id(&id, "ses_2", "assistant", copied);
    let fork = database.read_one("ses_2");
    assert_eq!((fork.outcomes().len(), fork.worker.task.as_str()), (0, "go"));
    database.user("ses_2", "go on").answer("ses_2", call("a"), "tool-calls");
    let fork = database.read_one("ses_2");
    assert_eq!(fork.outcomes(), ["failed"]);
    assert_eq!(fork.worker.continues.as_deref(), Some("ses_1"));
    assert_eq!((fork.worker.parent.as_deref(), fork.worker.task.as_str()), (None, "go on"));
    let tokens = fork.record.trace.tokens.unwrap();
    assert_eq!((tokens.input, tokens.cache_read), (5, 7));
    assert_eq!(database.read_one("ses_1").outcomes(), ["failed"]);
}

#[test]
fn a_fork_of_version_1_begins_with_messages_older_than_itself() {
    let mut database = Database::new(VERSION_1);
    let call = |name: &str| {
        let state = json!({"status": "completed", "input": {}, "output": "x", "metadata": {}});
        vec![old_tool(name, state)]
    };
    let messages = [
        ("user", json!({}), vec![text("go")]),
        ("assistant", json!({"finish": "stop"}), call("old")),
        ("user", json!({}), vec![text("go on")]),
        ("assistant", json!({"finish": "stop"}), call("new")),
    ];
    database.old_session("ses_1", &messages);
    assert_eq!(database.read_one("ses_1").outcomes(), ["ok", "ok"]);
    let sql = "UPDATE session SET time_created = ?1";
    database.connection.execute(sql, [START + 4_000]).unwrap();
    let fork = database.read_one("ses_1");
    assert_eq!((fork.outcomes().len(), fork.worker.task.as_str()), (1, "go on"));
    assert_eq!(fork.record.trace.calls[0].tool, "new");
}

#[test]
fn rows_of_version_2_win_over_those_of_version_1() {
    let mut database = Database::new(&(VERSION_1.to_owned() + VERSION_2));
    let old = [("user", json!({}), vec![text("stale")])];
    database.old_session("ses_1", &old).old_session("ses_old", &old);
    database.session("ses_1", &[]).user("ses_1", "fresh");
    let all = database.read();
    let tasks: Vec<_> = all.iter().map(|(id, shown)| (&**id, &*shown.worker.task)).collect();
    assert_eq!(tasks, [("ses_1", "fresh"), ("ses_old", "stale")]);
}

#[test]
fn the_session_states_tokens_cost_and_parent() {
    let mut database = Database::new(VERSION_2);
    database.session(
        "ses_1",
        &[
            ("cost", &0.5),
            ("tokens_input", &100),
            ("tokens_output", &20),
            ("tokens_reasoning", &3),
            ("tokens_cache_read", &40),
            ("tokens_cache_write", &2),
        ],
    );
    database.session("ses_2", &[("parent_id", &"ses_1")]);
    database.user("ses_2", "You are a subagent spawned by another session.\nlook");
    let tokens = json!({"input": 9, "output": 1, "cache": {"read": 1}});
    let data = json!({"model": {"id": "mock"}, "content": [text("ok")], "finish": "stop",
        "tokens": tokens, "cost": 0.1});
    database.user("ses_1", "\"fix it\"").message("ses_1", "assistant", data.clone());
    // A session that was imported states zeros.
    database.session("ses_3", &[]).user("ses_3", "copy").message("ses_3", "assistant", data);
    let all = database.read();
    let imported = &all["ses_3"].record.trace;
    assert_eq!((imported.tokens.unwrap().input, imported.tokens.unwrap().output), (9, 1));
    assert_eq!(imported.cost.as_ref().unwrap().total.to_string(), "$0.10");
    let (lead, child) = (&all["ses_1"], &all["ses_2"]);
    let tokens = lead.record.trace.tokens.unwrap();
    assert_eq!((tokens.input, tokens.output), (100, 23));
    assert_eq!((tokens.cache_read, tokens.cache_creation), (40, 2));
    assert_eq!(lead.record.trace.cost.as_ref().unwrap().total.to_string(), "$0.50");
    assert_eq!(lead.record.trace.tokens_by_model.keys().collect::<Vec<_>>(), ["mock"]);
    assert_eq!((lead.worker.task.as_str(), child.worker.task.as_str()), ("fix it", "look"));
    assert_eq!(child.worker.parent.as_deref(), Some("ses_1"));
    assert_eq!(child.worker.run.as_deref(), Some("ses_1"));
    assert_eq!(lead.worker.summary.as_deref(), Some("a title"));
    assert_eq!(lead.worker.cwd.as_deref(), Some("/home/dev/shop"));
}

#[test]
fn edits_are_those_that_were_carried_out() {
    let patch = "Index: a.py\n===\n--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-old\n+new\n";
    let edit = json!({"status": "completed", "content": [text("ok")],
        "input": {"path": "a.py", "oldString": "old", "newString": "new"},
        "metadata": {"files": [{"file": "a.py", "patch": patch, "status": "modified",
            "additions": 1, "deletions": 1}]}});
    let write = json!({"status": "completed", "content": [text("ok")],
        "input": {"path": "b.md", "content": "one\ntwo\n"}, "metadata": {}});
    let failed = json!({"status": "error", "error": {"type": "tool.execution", "message": "no"},
        "input": {"path": "c.py", "oldString": "x", "newString": "y"}});
    let mut database = Database::new(VERSION_2);
    let content =
        json!([tool("1", "edit", edit), tool("2", "write", write), tool("3", "edit", failed)]);
    database.session("ses_1", &[]).user("ses_1", "go").answer("ses_1", content, "tool-calls");
    let edits = database.read_one("ses_1").edits;
    let [edit, write] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(
        (edit.path.as_str(), edit.hunks[0].lines.as_slice()),
        ("a.py", &["-old".into(), "+new".into()][..])
    );
    assert_eq!((write.path.as_str(), write.after.as_deref()), ("b.md", Some("one\ntwo\n")));

    let mut database = Database::new(VERSION_1);
    let filediff = json!({"file": "/s/a.py", "patch": patch, "additions": 1, "deletions": 1});
    let edit = json!({"status": "completed", "output": "ok", "metadata": {"filediff": filediff},
        "input": {"filePath": "/s/a.py", "oldString": "old", "newString": "new"}});
    let write = json!({"status": "completed", "output": "ok",
        "metadata": {"filepath": "/s/b.md", "exists": false},
        "input": {"filePath": "/s/b.md", "content": "one\n"}});
    let parts = vec![old_tool("edit", edit), old_tool("write", write)];
    let messages =
        [("user", json!({}), vec![text("go")]), ("assistant", json!({"finish": "stop"}), parts)];
    database.old_session("ses_1", &messages);
    let edits = database.read_one("ses_1").edits;
    let [edit, write] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!((edit.path.as_str(), edit.hunks.len()), ("/s/a.py", 1));
    assert_eq!((write.path.as_str(), write.created), ("/s/b.md", true));
}

#[test]
fn rows_that_change_in_place_are_seen_and_nothing_is_written() {
    let mut database = Database::new(VERSION_2);
    let running = json!({"status": "running", "input": {"command": "make"}, "metadata": {}});
    let row = |state: &Value, time: Value| {
        json!({"model": {"id": "mock"}, "content": [tool("a", "shell", state.clone())],
            "time": time})
    };
    let unfinished = json!({"created": START});
    database.session("ses_1", &[]).user("ses_1", "go");
    database.message_with_id("msg_a", "ses_1", "assistant", row(&running, unfinished));
    database.session("ses_2", &[]).user("ses_2", "other");
    let live = OpenCode::transcripts();
    let before = database.read_with(&live);
    assert_eq!(before["ses_1"].outcomes(), ["-"]);
    let files = database.files();
    assert!(files["opencode.db"].len() <= 4_096, "everything is in the log");
    assert_eq!(database.read_with(&live), before);
    assert!(database.files() == files);
    assert_eq!(files.len(), 3);

    // The row is written again, and so are pages of the whole database.
    let completed = completed("done", json!({"exit": 0}));
    let data = row(&completed, json!({"created": START, "completed": START + 9}));
    let sql = "UPDATE session_message SET data = ?1, time_updated = ?2 WHERE id = 'msg_a'";
    database.connection.execute(sql, (data.to_string(), START + 99_000)).unwrap();
    let after = database.read_with(&live);
    assert_eq!(after["ses_1"].outcomes(), ["ok"]);
    assert_eq!(after["ses_2"].meta, before["ses_2"].meta, "the other session did not change");
    assert_eq!(after, database.read());

    database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert_eq!(database.read_with(&live), after);
    for round in 0..20 {
        database.user("ses_2", &format!("{round}")).idle("ses_2", "succeeded");
        if round % 6 == 5 {
            database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM").unwrap();
        }
        assert_eq!(database.read_with(&live), database.read(), "{round}");
    }
    // The program has ended: the log is gone.
    let Database { dir, connection, .. } = database;
    drop(connection);
    let store = Disk::open(dir.path()).unwrap();
    assert!(!dir.path().join("opencode.db-wal").exists());
    assert_eq!(read(&live, &store), read(&OpenCode::transcripts(), &store));
}

#[test]
fn a_file_that_stays_open_follows_its_session() {
    let mut database = Database::new(VERSION_2);
    database.session("ses_1", &[]).user("ses_1", "go");
    let (format, store) = (OpenCode::transcripts(), Disk::open(database.dir.path()).unwrap());
    let path = RelPath::constant("opencode.db/ses_1");
    let folder = format.enter(&store, &path).unwrap();
    let file = folder.open(&RelPath::constant("source.jsonl")).unwrap();
    for round in 0..5 {
        let size = file.meta().unwrap().size;
        assert_eq!(read_range(&*file, 0, 1 << 20).unwrap().len() as u64, size);
        database.user("ses_1", &"more".repeat(round * 3_000));
        let meta = file.meta().unwrap();
        assert!(meta.size > size);
        assert_eq!(meta, folder.stat(&RelPath::constant("source.jsonl")).unwrap());
        let end = read_range(&*file, size, 1 << 20).unwrap();
        assert!(end.starts_with(b"{\"table\"") && end.ends_with(b"}\n"));
    }
}

#[test]
fn odd_rows_cost_no_others() {
    let mut database = Database::new(VERSION_2);
    database.session("ses_1", &[]).user("ses_1", "go");
    let mut add = |kind: &str, data: &str| {
        let time = database.time();
        let row = (format!("msg_{time}"), "ses_1", kind, database.rows, time, data);
        let sql = "INSERT INTO session_message VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)";
        database.connection.execute(sql, row).unwrap();
    };
    add("user", "{\n\"text\":\r\n \"in lines\"}");
    add("user", "{\"text\": torn");
    add("user", "7");
    add("novel", "{}");
    add("user", &json!({"text": "x".repeat(17 << 20)}).to_string());
    add("user", "{\"text\": \"last\"}");
    let shown = database.read_one("ses_1");
    assert_eq!(shown.record.trace.bad_lines, [("source.jsonl", 3)]);
    assert_eq!(shown.record.trace.unused.kinds.keys().collect::<Vec<_>>(), ["novel"]);
    assert_eq!(shown.source.len(), 8);
    assert_eq!(shown.source[7]["row"]["data"]["text"], "last");
}

#[test]
fn a_database_is_recognized_by_its_tables() {
    let recognizes = |name: &str, schema: &str| {
        let dir = TempDir::new().unwrap();
        let connection = Connection::open(dir.path().join(name)).unwrap();
        connection.execute_batch(&format!("PRAGMA journal_mode = wal; {schema}")).unwrap();
        let (store, budget) = (Disk::open(dir.path()).unwrap(), ProbeBudget::default());
        let path = RelPath::parse(name).unwrap();
        OpenCode.recognizes(&Probe::new(&store, &path, &budget))
    };
    for schema in [VERSION_1, VERSION_2] {
        assert!(recognizes("opencode.db", schema));
        assert!(recognizes("copy.db", schema));
        assert!(!recognizes("opencode.sqlite", schema));
    }
    assert!(recognizes("opencode-dev.db", "PRAGMA user_version = 1"));
    assert!(!recognizes("other.db", "PRAGMA user_version = 1"));
    let others = "CREATE TABLE session(a); CREATE TABLE message(session_id)";
    assert!(!recognizes("opencode.db", others));
}

#[test]
fn a_damaged_database_is_one_skipped_file() {
    let store = Memory::new();
    let name = RelPath::constant("opencode.db");
    store.write(&name, [&b"SQLite format 3\0"[..], &[7; 5_000]].concat());
    let found = OpenCode::transcripts().find_workers(&store).unwrap();
    assert!(found.folders.is_empty());
    let skipped = found.skipped.entries(SkipReason::Unreadable);
    assert_eq!(skipped.examples.keys().collect::<Vec<_>>(), [&name]);

    // A session that was read before stays, and the damage shows.
    let mut database = Database::new(VERSION_2);
    database.session("ses_1", &[]).user("ses_1", "go");
    database.connection.execute_batch("PRAGMA journal_mode = delete").unwrap();
    let (format, store) = (OpenCode::transcripts(), Disk::open(database.dir.path()).unwrap());
    assert_eq!(format.find_workers(&store).unwrap().folders.len(), 1);
    fs::write(database.dir.path().join("opencode.db"), "SQLite format 3").unwrap();
    let found = format.find_workers(&store).unwrap();
    assert_eq!(found.folders.len(), 1);
    assert_eq!(found.skipped.entries(SkipReason::Unreadable).count, 1);
}

#[test]
fn damage_gives_no_panic_and_ends_soon() {
    let mut database = Database::new(&(VERSION_1.to_owned() + VERSION_2));
    for session in ["ses_1", "ses_2"] {
        let call = json!([text("Now."), tool("a", "shell", completed("x", json!({"exit": 1})))]);
        database.session(session, &[]).user(session, "go").answer(session, call, "tool-calls");
        database.answer(session, json!([text(&"long ".repeat(2_000))]), "stop");
    }
    let old = [("user", json!({}), vec![text("old"), text("er")])];
    database.old_session("ses_3", &old);
    database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let bytes = fs::read(database.dir.path().join("opencode.db")).unwrap();
    let started = Instant::now();
    for _ in 0..400 {
        let mut bytes = bytes.clone();
        for _ in 0..fastrand::usize(1..4) {
            let at = fastrand::usize(..bytes.len());
            bytes[at] = fastrand::u8(..);
        }
        bytes.truncate(fastrand::usize(bytes.len() / 2..bytes.len() * 2));
        let store = Memory::new();
        store.write(&RelPath::constant("opencode.db"), bytes);
        let format = OpenCode::transcripts();
        for path in format.find_workers(&store).unwrap().folders {
            let folder = format.enter(&store, &path).unwrap();
            let _ = format.folder_state(&*folder, &path);
            let worker = format.read_worker(&*folder, &path, None);
            let source = RecordSource { folder: &*folder, outputs: None };
            let _ = format.read_record(source, &worker, Deadline::never());
            let source = RelPath::constant("source.jsonl");
            let _ = folder.open(&source).and_then(|file| read_range(&*file, 0, 1 << 20));
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60));
}
