//! Tests of the sessions of Gemini CLI, read through the tree.

mod changes;
mod expected;
mod growth;
mod hostile;
mod live;
mod sessions;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Memory, Store};
use swarmletfs_trace::GeminiCli;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::support::transcript::{Checked, path, store};

/// The ID of the session of most tests.
const SESSION: &str = "0f0e0d0c-0000-4000-8000-000000000001";
/// The directory of its project.
const PROJECT: &str = "tmp/app";

/// Builder of a session. Each message is one second later than the one before it.
#[derive(Clone)]
struct Log {
    id: String,
    kind: &'static str,
    seconds: u32,
    records: Vec<Value>,
}

impl Log {
    fn new() -> Log {
        Log::of(SESSION, "main")
    }

    fn of(id: &str, kind: &'static str) -> Log {
        let mut log = Log { id: id.into(), kind, seconds: 0, records: Vec::new() };
        log.metadata();
        log
    }

    fn time(&self) -> String {
        format!("2026-02-01T10:{:02}:{:02}.000Z", self.seconds / 60 % 60, self.seconds % 60)
    }

    fn record(&mut self, record: Value) -> &mut Log {
        self.records.push(record);
        self
    }

    /// Appends the metadata with which a session begins, also one that goes on.
    fn metadata(&mut self) -> &mut Log {
        let metadata = json!({"sessionId": self.id, "projectHash": "c0ffee", "startTime": self.time(),
            "lastUpdated": self.time(), "kind": self.kind});
        self.record(metadata)
    }

    fn message(&mut self, id: &str, kind: &str, fields: Value) -> &mut Log {
        self.seconds += 1;
        let mut message = json!({"id": id, "timestamp": self.time(), "type": kind});
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        self.record(message)
    }

    fn user(&mut self, id: &str, text: &str) -> &mut Log {
        self.message(id, "user", json!({"content": [{"text": text}]}))
    }

    /// Appends an answer of the model with calls, as [`call`] makes them.
    fn model(&mut self, id: &str, text: &str, calls: Value) -> &mut Log {
        self.message(id, "gemini", answer(text, calls))
    }

    /// Appends the last message again, with these fields.
    fn again(&mut self, fields: Value) -> &mut Log {
        let mut message =
            self.records.iter().rfind(|record| record["id"].is_string()).unwrap().clone();
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        self.record(message)
    }

    fn set(&mut self, changes: Value) -> &mut Log {
        self.record(json!({"$set": changes}))
    }

    fn messages(&self) -> Vec<Value> {
        self.records.iter().filter(|record| record["id"].is_string()).cloned().collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect()
    }

    /// Returns the session as a document, as older versions wrote it.
    fn document(&self) -> Vec<u8> {
        let mut document = self.records[0].clone();
        document["messages"] = self.messages().into();
        document["lastUpdated"] = self.time().into();
        serde_json::to_vec_pretty(&document).unwrap()
    }
}

fn answer(text: &str, calls: Value) -> Value {
    json!({"content": text, "model": "gemini-9-flash", "thoughts": [], "toolCalls": calls,
        "tokens": {"input": 100, "output": 20, "cached": 60, "thoughts": 3, "tool": 0, "total": 123}})
}

/// Returns a call of a tool with its result.
fn call(id: &str, tool: &str, args: Value, status: &str, response: Value) -> Value {
    json!({"id": id, "name": tool, "args": args, "status": status,
        "timestamp": "2026-02-01T10:30:00.000Z", "result": responses(id, tool, response)})
}

fn responses(id: &str, tool: &str, response: Value) -> Value {
    json!([{"functionResponse": {"id": id, "name": tool, "response": response}}])
}

/// Returns a call of the shell.
fn shell(id: &str, command: &str, output: &str) -> Value {
    call(id, "run_shell_command", json!({"command": command}), "success", json!({"output": output}))
}

/// Returns the path of a session's log.
fn log_path() -> RelPath {
    path(format!("{PROJECT}/chats/session-2026-02-01T10-00-0f0e0d0c.jsonl"))
}

fn tree(store: &Arc<impl Store>) -> Tree {
    tree_with(store, Duration::ZERO)
}

fn tree_with(store: &Arc<impl Store>, fresh: Duration) -> Tree {
    let source = Source::from_store(store.clone(), None)
        .with_format(Box::new(GeminiCli::transcripts()))
        .with_stale_after(Duration::MAX);
    let fresh = Freshness { unfinished: fresh, finished: fresh };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Returns a store with this log as its only session.
fn store_of(log: &Log) -> Arc<Memory> {
    let store = store();
    store.write(&log_path(), log.bytes());
    store
}

/// Reads and checks the sessions of a store that does not change meanwhile: each is looked at once.
fn read_once(store: &Arc<impl Store>) -> Checked {
    Checked::of(&tree_with(store, Duration::MAX))
}

/// Reads a store with this log as its only session.
fn shown(log: &Log) -> Checked {
    let seen = read_once(&store_of(log));
    assert_eq!(seen.bytes(&log.id, "source.jsonl"), log.bytes());
    seen
}

fn outcomes(index: &Value) -> Vec<String> {
    let calls = index["tool_calls"].as_array().unwrap();
    calls.iter().map(|call| call["outcome"].as_str().unwrap().to_owned()).collect()
}
