//! Tests of Codex rollouts, in stores in memory and on disk, read through the tree.

mod changes;
mod growth;
mod hostile;
mod places;
mod real;
mod sessions;
mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::store::{Memory, Store};
use swarmletfs_trace::Codex;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::formats::{index, text};
use crate::support::transcript::path;

/// The ID of the session of most tests.
pub const ID: &str = "0199aaaa-0000-7000-8000-000000000001";
/// The ID of another session.
pub const OTHER_ID: &str = "0199bbbb-0000-7000-8000-000000000002";

/// Builder of a rollout. Each line is one second later than the previous one.
#[derive(Clone, Default)]
pub struct Rollout {
    bytes: Vec<u8>,
    lines: u64,
}

impl Rollout {
    /// Starts a rollout with the facts of session [`ID`].
    pub fn new() -> Rollout {
        let mut rollout = Rollout::default();
        rollout.line(
            "session_meta",
            json!({"id": ID, "session_id": ID, "cwd": "/app",
            "cli_version": "0.169.0", "source": "exec", "git": {"branch": "main"}}),
        );
        rollout
    }

    /// Starts a rollout with a task.
    pub fn begun() -> Rollout {
        let mut rollout = Rollout::new();
        rollout.event("task_started", json!({"turn_id": "t1"}));
        rollout.line("turn_context", json!({"model": "gpt-5.5", "cwd": "/app"}));
        rollout.user("Fix it.");
        rollout
    }

    /// Returns the bytes written so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Appends raw bytes.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) -> &mut Rollout {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    /// Appends a line.
    pub fn line(&mut self, kind: &str, payload: Value) -> &mut Rollout {
        let (minutes, seconds) = (self.lines / 60 % 60, self.lines % 60);
        let line = json!({"timestamp": format!("2026-11-01T10:{minutes:02}:{seconds:02}.000Z"),
            "ordinal": self.lines, "type": kind, "payload": payload});
        self.lines += 1;
        self.raw(format!("{line}\n"))
    }

    /// Appends an item.
    pub fn item(&mut self, kind: &str, mut fields: Value) -> &mut Rollout {
        fields["type"] = kind.into();
        self.line("response_item", fields)
    }

    /// Appends an event.
    pub fn event(&mut self, kind: &str, mut fields: Value) -> &mut Rollout {
        fields["type"] = kind.into();
        self.line("event_msg", fields)
    }

    /// Appends the event of an operation.
    pub fn operation(&mut self, kind: &str, id: &str, mut fields: Value) -> &mut Rollout {
        fields["type"] = kind.into();
        fields["id"] = id.into();
        self.event("item_completed", json!({"thread_id": ID, "item": fields}))
    }

    /// Appends a message of the user.
    pub fn user(&mut self, text: &str) -> &mut Rollout {
        let content = json!([{"type": "input_text", "text": text}]);
        self.item("message", json!({"role": "user", "content": content}))
    }

    /// Appends a message of the assistant.
    pub fn says(&mut self, text: &str) -> &mut Rollout {
        let content = json!([{"type": "output_text", "text": text}]);
        self.item("message", json!({"role": "assistant", "content": content}))
    }

    /// Appends the call of a function.
    pub fn call(&mut self, id: &str, name: &str, arguments: Value) -> &mut Rollout {
        let arguments = arguments.to_string();
        self.item("function_call", json!({"name": name, "arguments": arguments, "call_id": id}))
    }

    /// Appends the call of a tool that takes a text.
    pub fn custom(&mut self, id: &str, name: &str, input: &str) -> &mut Rollout {
        self.item("custom_tool_call", json!({"name": name, "input": input, "call_id": id}))
    }

    /// Appends the output of a call.
    pub fn output(&mut self, id: &str, output: impl Into<Value>) -> &mut Rollout {
        self.item("function_call_output", json!({"call_id": id, "output": output.into()}))
    }

    /// Appends a command with its output.
    pub fn command(&mut self, id: &str, command: &str, code: i64, output: &str) -> &mut Rollout {
        self.call(id, "exec_command", json!({"cmd": command}));
        self.output(id, ran(code, output))
    }

    /// Appends the end of a turn.
    pub fn complete(&mut self) -> &mut Rollout {
        self.event("task_complete", json!({"turn_id": "t1", "duration_ms": 5}))
    }
}

/// Returns the output of a command that ended with an exit code.
pub fn ran(code: i64, output: &str) -> String {
    format!(
        "Chunk ID: a1\nWall time: 0.5000 seconds\nProcess exited with code {code}\n\
         Original token count: {}\nOutput:\n{output}",
        output.len().div_ceil(4)
    )
}

/// Returns the path of the rollout of a session, in the program's own directory.
pub fn place(id: &str) -> String {
    format!("sessions/2026/11/01/rollout-2026-11-01T10-00-00-{id}.jsonl")
}

/// Opens the tree of all rollouts in a store, without caching.
pub fn tree(store: &Arc<impl Store>) -> Tree {
    let source = Source::from_store(store.clone(), None)
        .with_format(Box::new(Codex::transcripts()))
        .with_stale_after(Duration::MAX);
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Returns the tree over a store with this rollout as its only session, [`ID`].
pub fn tree_of(rollout: &Rollout) -> Tree {
    let store = Arc::new(Memory::new());
    store.write(&path(place(ID)), rollout.bytes());
    tree(&store)
}

/// Returns the index.json of the session of this rollout.
pub fn index_of(rollout: &Rollout) -> Value {
    index(&tree_of(rollout), ID)
}

/// Returns the tool, outcome and exit code of each call in an index.json.
pub fn calls(index: &Value) -> Vec<(String, String, Option<i64>)> {
    let calls = index["tool_calls"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    calls
        .map(|call| (word(&call["tool"]), word(&call["outcome"]), call["exit_code"].as_i64()))
        .collect()
}

/// Returns the outcomes of the calls in a rollout.
pub fn outcomes(rollout: &Rollout) -> Vec<String> {
    calls(&index_of(rollout)).into_iter().map(|(_, outcome, _)| outcome).collect()
}

/// Returns the text of a call's output.
pub fn output(rollout: &Rollout, file: &str) -> String {
    text(&tree_of(rollout), ID, &format!("tool_calls/{file}"))
}

/// Returns the paths of the files in a diff with the numbers of added and removed lines.
pub fn diffed(diff: &str) -> BTreeMap<String, (usize, usize)> {
    let mut files: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut current = String::new();
    for line in diff.lines() {
        if let Some(names) = line.strip_prefix("diff --git a/") {
            current = names.split(" b/").next().unwrap().to_owned();
            files.entry(current.clone()).or_default();
        } else if line.starts_with('+') && !line.starts_with("+++ ") {
            files.entry(current.clone()).or_default().0 += 1;
        } else if line.starts_with('-') && !line.starts_with("--- ") {
            files.entry(current.clone()).or_default().1 += 1;
        }
    }
    files
}
