//! Builder for transcripts of Claude Code, and stores in memory that contain them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Memory, Store};
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::{Seen, see_folder};

/// Directory of the project with all fixtures.
pub const PROJECT: &str = "projects/-home-dev-app";

/// Builder of a transcript. Each line is one second later than the previous one.
#[derive(Clone)]
pub struct Transcript {
    session: String,
    agent: Option<String>,
    seconds: u32,
    /// True if lines have only the fields that are read.
    lean: bool,
    /// True if lines have the time at which they are added.
    live: bool,
    bytes: Vec<u8>,
}

impl Transcript {
    /// Starts the transcript of a session.
    pub fn new(session: &str) -> Transcript {
        Transcript {
            session: session.into(),
            agent: None,
            seconds: 0,
            lean: false,
            live: false,
            bytes: Vec::new(),
        }
    }

    /// Starts the transcript of a session with short lines, for tests that try every byte.
    pub fn lean(session: &str) -> Transcript {
        Transcript { lean: true, ..Transcript::new(session) }
    }

    /// Starts the transcript of a session that goes on now.
    pub fn live(session: &str) -> Transcript {
        Transcript { live: true, ..Transcript::new(session) }
    }

    /// Starts the separate transcript of a subagent.
    pub fn of_agent(session: &str, agent: &str) -> Transcript {
        Transcript { agent: Some(agent.into()), ..Transcript::new(session) }
    }

    /// Starts the transcript of the session `copy` with a copy of this one. `mark` changes each
    /// copied line.
    pub fn copied(&self, copy: &str, mark: impl Fn(&mut Value)) -> Transcript {
        let mut copied = Transcript { session: copy.into(), bytes: Vec::new(), ..self.clone() };
        for line in self.bytes.split_inclusive(|byte| *byte == b'\n') {
            let mut line: Value = serde_json::from_slice(line).unwrap();
            line["sessionId"] = json!(copy);
            mark(&mut line);
            copied.raw(format!("{line}\n"));
        }
        copied
    }

    /// Returns the bytes written so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Appends raw bytes.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) -> &mut Transcript {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    /// Returns the timestamp of the next line.
    fn time(&self) -> String {
        if self.live {
            return jiff::Timestamp::now().to_string();
        }
        format!("2026-02-01T10:{:02}:{:02}.000Z", self.seconds / 60 % 60, self.seconds % 60)
    }

    /// Appends a line: the common fields, overridden by `fields`.
    pub fn line(&mut self, fields: Value) -> &mut Transcript {
        let mut line = json!({
            "parentUuid": format!("u{}", self.seconds), "isSidechain": self.agent.is_some(), "userType": "external",
            "cwd": "/home/dev/app", "sessionId": self.session, "version": "2.1.29", "gitBranch": "main",
            "uuid": format!("u{}", self.seconds + 1), "timestamp": self.time(),
        });
        if self.lean {
            line = json!({"sessionId": self.session, "timestamp": self.time()});
        }
        if let Some(agent) = &self.agent {
            line["agentId"] = json!(agent);
        }
        for (key, value) in fields.as_object().unwrap() {
            line[key] = value.clone();
        }
        self.seconds += 1;
        self.raw(format!("{line}\n"))
    }

    /// Appends a message of the user.
    pub fn user(&mut self, content: impl Into<Value>) -> &mut Transcript {
        self.line(json!({"type": "user", "message": {"role": "user", "content": content.into()}}))
    }

    /// Appends a line of the assistant's message `id` with these blocks and this usage.
    pub fn message(&mut self, id: &str, blocks: Value, usage: Value) -> &mut Transcript {
        let message = json!({"model": "claude-large", "id": id, "type": "message", "role": "assistant",
            "content": blocks, "usage": usage});
        self.line(json!({"type": "assistant", "message": message}))
    }

    /// Appends a text of the assistant.
    pub fn says(&mut self, text: &str) -> &mut Transcript {
        let id = format!("msg_{}", self.seconds);
        let usage = json!({"input_tokens": 3, "output_tokens": 5});
        self.message(&id, json!([{"type": "text", "text": text}]), usage)
    }

    /// Appends a tool call.
    pub fn call(&mut self, id: &str, tool: &str, input: Value) -> &mut Transcript {
        let usage = json!({"input_tokens": 2, "output_tokens": 7});
        let message = format!("msg_{}", self.seconds);
        self.message(
            &message,
            json!([{"type": "tool_use", "id": id, "name": tool, "input": input}]),
            usage,
        )
    }

    /// Appends the result of a call; `fields` of its block are for example `content` and
    /// `is_error`.
    pub fn result(&mut self, id: &str, fields: Value) -> &mut Transcript {
        let mut block = json!({"type": "tool_result", "tool_use_id": id});
        for (key, value) in fields.as_object().unwrap() {
            block[key] = value.clone();
        }
        self.user(json!([block]))
    }

    /// Appends a successful call of Bash with its result.
    pub fn bash(&mut self, id: &str, command: &str, output: &str) -> &mut Transcript {
        self.call(id, "Bash", json!({"command": command, "description": "Runs it"}));
        self.result(id, json!({"content": output}))
    }

    /// Appends a line of the subagent `agent`, as recorded by its session.
    pub fn progress(&mut self, agent: &str, kind: &str, message: Value) -> &mut Transcript {
        let inner = json!({"type": kind, "timestamp": self.time(), "message": message});
        self.line(json!({"type": "progress", "parentToolUseID": "toolu_task",
            "data": {"type": "agent_progress", "agentId": agent, "message": inner}}))
    }
}

/// Parses a path in a store.
pub fn path(text: impl AsRef<[u8]>) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Returns the path of a session's transcript.
pub fn place(session: &str) -> RelPath {
    path(format!("{PROJECT}/{session}.jsonl"))
}

/// Creates an empty store in memory.
pub fn store() -> Arc<Memory> {
    Arc::new(Memory::new())
}

/// Opens the tree of all sessions in a store, without caching. No session is abandoned by the
/// clock: a store in memory has its own.
pub fn tree(store: &Arc<impl Store>) -> Tree {
    tree_with_stale_after(store, Duration::MAX)
}

/// Opens the tree of all sessions in a store, of which unfinished ones are abandoned after this
/// time.
pub fn tree_with_stale_after(store: &Arc<impl Store>, stale_after: Duration) -> Tree {
    tree_with(store, stale_after, Duration::ZERO)
}

fn tree_with(store: &Arc<impl Store>, stale_after: Duration, fresh: Duration) -> Tree {
    let source = Source::from_store(store.clone(), None)
        .with_format(Box::new(ClaudeCode::transcripts()))
        .with_stale_after(stale_after);
    let fresh = Freshness { unfinished: fresh, finished: fresh };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Reads and checks the sessions of a store that does not change meanwhile: each is looked at once.
pub fn read_once(store: &Arc<impl Store>) -> Checked {
    Checked::of(&tree_with(store, Duration::MAX, Duration::MAX))
}

/// Contents of a tree that satisfies the invariants of every tree.
pub struct Checked(pub BTreeMap<Vec<u8>, Seen>);

impl Checked {
    /// Reads everything and checks the invariants. [`see_folder`] checks that listed entries exist
    /// with the stated size, and that every index.json is valid.
    pub fn of(tree: &Tree) -> Checked {
        let checked =
            Checked(see_folder(tree, "").unwrap_or_else(|error| panic!("cannot see all: {error}")));
        for worker in checked.workers() {
            checked.check_worker(&worker);
        }
        checked
    }

    /// Returns the names of all workers.
    pub fn workers(&self) -> Vec<String> {
        let folders = self.0.iter().filter(|(_, seen)| matches!(seen, Seen::Folder { .. }));
        let names = folders.filter_map(|(path, _)| path.strip_prefix(b"workers/"));
        let names = names.filter(|name| !name.contains(&b'/'));
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Returns the bytes of a file of a worker.
    pub fn bytes(&self, worker: &str, file: &str) -> &[u8] {
        let path = format!("workers/{worker}/{file}");
        self.0
            .get(path.as_bytes())
            .unwrap_or_else(|| panic!("no {path} in {:#?}", self.paths()))
            .bytes()
    }

    /// Returns the text of a file of a worker.
    pub fn text(&self, worker: &str, file: &str) -> &str {
        std::str::from_utf8(self.bytes(worker, file)).unwrap()
    }

    /// Returns true if a worker has this file or directory.
    pub fn has(&self, worker: &str, file: &str) -> bool {
        self.0.contains_key(format!("workers/{worker}/{file}").as_bytes())
    }

    /// Returns the parsed index.json of a worker.
    pub fn index(&self, worker: &str) -> Value {
        serde_json::from_slice(self.bytes(worker, "index.json")).unwrap()
    }

    /// Returns the row of a worker in the index of the swarm.
    pub fn row(&self, worker: &str) -> Value {
        let all: Value = serde_json::from_slice(self.0[&b"index.json"[..]].bytes()).unwrap();
        let rows = all["workers"].as_array().unwrap();
        rows.iter()
            .find(|row| row["id"] == worker)
            .unwrap_or_else(|| panic!("no {worker} in {all:#}"))
            .clone()
    }

    /// Returns the counts of skipped entries in the index of the swarm.
    pub fn skipped(&self) -> Value {
        let all: Value = serde_json::from_slice(self.0[&b"index.json"[..]].bytes()).unwrap();
        all["skipped"].clone()
    }

    /// Returns the parsed lines of thread.jsonl.
    pub fn thread(&self, worker: &str) -> Vec<Value> {
        let lines = self.bytes(worker, "thread.jsonl").split_inclusive(|byte| *byte == b'\n');
        lines
            .map(|line| {
                let text = String::from_utf8_lossy(line);
                // A number of a damaged transcript may be none that a program can hold.
                let parsed = serde_json::from_str(&text);
                parsed.or_else(|_| serde_json::from_str(&text.replace("1e999", "1e99"))).unwrap()
            })
            .collect()
    }

    /// Returns the names of the calls' files.
    pub fn calls(&self, worker: &str) -> Vec<String> {
        let folder = format!("workers/{worker}/tool_calls/");
        let names = self.0.keys().filter_map(|path| path.strip_prefix(folder.as_bytes()));
        names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    fn paths(&self) -> Vec<String> {
        self.0.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
    }

    /// Checks the invariants of a worker's directory.
    fn check_worker(&self, id: &str) {
        let index = self.index(id);
        let calls = index["tool_calls"].as_array().unwrap();
        let files: BTreeSet<String> =
            self.calls(id).into_iter().map(|name| format!("tool_calls/{name}")).collect();
        let named: BTreeSet<String> =
            calls.iter().map(|call| call["file"].as_str().unwrap().to_owned()).collect();
        assert_eq!(
            files, named,
            "{id}: the calls in its index differ from the files in tool_calls"
        );
        assert_eq!(files.len(), calls.len(), "{id}: two calls have one file");
        let mut bytes = 0;
        let mut failed = 0;
        for (at, call) in calls.iter().enumerate() {
            let file = call["file"].as_str().unwrap();
            assert_eq!(call["seq"], at as u64 + 1, "{id}");
            assert_eq!(call["bytes"], self.bytes(id, file).len(), "{id}: {file}");
            bytes += self.bytes(id, file).len();
            failed += usize::from(call["outcome"] == "failed");
        }
        let counts = &index["calls"];
        if !counts.is_null() {
            assert_eq!(
                (&counts["total"], &counts["failed"]),
                (&json!(calls.len()), &json!(failed)),
                "{id}"
            );
            assert_eq!(counts["bytes"], bytes, "{id}");
        }
        let source = &index["source"];
        let number = |name: &str| if source.is_null() { 0 } else { source[name].as_u64().unwrap() };
        assert!(number("unparsable_lines") <= number("lines"), "{id}: {source:#}");
        let unanswered = calls.iter().filter(|call| call["outcome"] == "unknown").count();
        // The outcome of a call with a result can be unknown, too.
        assert!(number("calls_without_results") <= unanswered as u64, "{id}");
        for cut in source["truncated_outputs"].as_array().into_iter().flatten() {
            assert!(files.contains(cut.as_str().unwrap()), "{id}: {cut}");
        }
        let thread = self.thread(id);
        let of_calls = |line: &Value| line["tool_calls"].as_array().cloned().unwrap_or_default();
        for named in thread.iter().flat_map(|line| [vec![line.clone()], of_calls(line)].concat()) {
            if let Some(file) = named["file"].as_str() {
                assert!(
                    files.contains(file),
                    "{id}: its thread names {file}, which does not exist"
                );
            }
        }
        let own = [
            "source.json",
            "source.jsonl",
            "source.meta.json",
            "source.meta.txt",
            "thread.jsonl",
            "task.txt",
            "requests.txt",
            "commands.txt",
            "result.txt",
        ];
        let own: Vec<String> =
            own.iter().filter(|file| self.has(id, file)).map(|file| (*file).to_owned()).collect();
        let own: Vec<String> = own.into_iter().chain(files).collect();
        let sizes: usize = own.iter().map(|file| self.bytes(id, file).len()).sum();
        assert_eq!(
            (&index["total_files"], &index["total_bytes"]),
            (&json!(own.len()), &json!(sizes)),
            "{id}"
        );
        let has_source = ["source.json", "source.jsonl"].iter().any(|file| self.has(id, file));
        assert!(has_source && self.has(id, "thread.jsonl"), "{id}");
    }
}
