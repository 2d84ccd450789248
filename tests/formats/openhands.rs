//! Tests of OpenHands' conversations: both versions of events, in all places and files.

mod edits;
mod expected;
mod folders;
mod growth;
mod hostile;
mod instances;
mod live;
mod places;
mod reading;
mod shapes;
mod version_0;
mod version_1;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Record, ToolCall, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Meta, Store, read_range};
use swarmletfs_trace::{Format, OpenHands, RecordSource, Transcripts};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// A worker as the format reads it.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    worker: Worker,
    record: Record,
    files: BTreeMap<RelPath, (Meta, Vec<u8>)>,
}

impl Shown {
    fn text(&self, file: &str) -> &str {
        let (_, bytes) = self
            .files
            .get(&path(file))
            .unwrap_or_else(|| panic!("no {file} in {:?}", self.files.keys()));
        std::str::from_utf8(bytes).unwrap()
    }

    fn call(&self, seq: usize) -> &ToolCall {
        &self.record.trace.calls[seq - 1]
    }

    /// Returns the outcomes of the calls: `-` for one without a result.
    fn outcomes(&self) -> Vec<&'static str> {
        let calls = &self.record.trace.calls;
        calls
            .iter()
            .map(|call| if has_result(call) { call.outcome.as_str() } else { "-" })
            .collect()
    }

    fn thread(&self) -> Vec<Value> {
        self.text("thread.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn has_result(call: &ToolCall) -> bool {
    call.output != swarmletfs_base::model::Output::Pending
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn store() -> Arc<Memory> {
    Arc::new(Memory::new())
}

/// Opens the tree of all conversations in a store, without caching.
fn tree(store: &Arc<impl Store>) -> Tree {
    let source = Source::from_store(store.clone(), None)
        .with_format(Box::new(OpenHands::transcripts()))
        .with_stale_after(Duration::MAX);
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Reads everything that a new format shows of a store, by path.
fn read(store: &dyn Store) -> BTreeMap<String, Shown> {
    read_with(&OpenHands::transcripts(), store)
}

/// Reads the only worker of a store.
fn read_one(store: &dyn Store) -> Shown {
    let all = read(store);
    assert_eq!(all.len(), 1, "{:?}", all.keys());
    all.into_values().next().unwrap()
}

fn read_with(format: &Transcripts, store: &dyn Store) -> BTreeMap<String, Shown> {
    let paths = format.find_workers(store).unwrap().folders;
    let shown = paths.iter().filter_map(|path| {
        let folder = format.enter(store, path).unwrap();
        format.folder_state(&*folder, path).unwrap()?;
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format
            .read_record(source, &worker, Deadline::never())
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let listed = (&worker.status, &worker.status_source, &worker.run, &worker.parent);
        let told = &record.worker;
        let told = (&told.status, &told.status_source, &told.run, &told.parent);
        assert_eq!(listed, told, "{path:?}: what is listed is what is told");
        let mut files = BTreeMap::new();
        see(&*folder, &RelPath::root(), &mut files);
        Some((path.to_text().into_owned(), Shown { worker, record, files }))
    });
    shown.collect()
}

fn see(folder: &dyn Store, at: &RelPath, files: &mut BTreeMap<RelPath, (Meta, Vec<u8>)>) {
    for entry in folder.list(at).unwrap() {
        let inner = at.join(&entry.name);
        let meta = folder.stat(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        assert_eq!(meta.kind, entry.kind, "{inner:?}");
        if meta.kind == Kind::Folder {
            see(folder, &inner, files);
            continue;
        }
        let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        let bytes =
            read_range(&*file, 0, 64 << 20).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        assert_eq!(meta.size, bytes.len() as u64, "{inner:?}");
        files.insert(inner, (meta, bytes));
    }
}

/// Asserts that both are equal, and describes the differences briefly.
#[track_caller]
fn assert_same(live: &BTreeMap<String, Shown>, fresh: &BTreeMap<String, Shown>, when: &str) {
    assert_eq!(live.keys().collect::<Vec<_>>(), fresh.keys().collect::<Vec<_>>(), "{when}");
    for (path, fresh) in fresh {
        let live = &live[path];
        assert_eq!(live.worker, fresh.worker, "{when}: {path}");
        assert_eq!(live.record, fresh.record, "{when}: {path}");
        assert_eq!(live.files, fresh.files, "{when}: {path}");
    }
}

/// Builder of version 1 events, each a second later than the one before.
#[derive(Clone, Default)]
struct Events(Vec<Value>);

impl Events {
    /// Starts a conversation with a system prompt and a task.
    fn begun() -> Events {
        let mut events = Events::default();
        events.add(
            "SystemPromptEvent",
            "agent",
            json!({"system_prompt": {"type": "text", "text": "You are"}}),
        );
        events.says("user", "fix it");
        events
    }

    fn id(&self) -> String {
        format!("{:08x}-0000-4000-8000-000000000000", self.0.len())
    }

    /// Adds an event: the common fields, overridden by `fields`.
    fn add(&mut self, kind: &str, source: &str, fields: Value) -> &mut Events {
        let at = self.0.len();
        let mut event = json!({"id": self.id(), "source": source,
            "timestamp": format!("2026-01-28T14:{:02}:{:02}.000500", at / 60 % 60, at % 60)});
        for (key, value) in fields.as_object().unwrap() {
            event[key] = value.clone();
        }
        // Real events end with their kind.
        event["kind"] = json!(kind);
        self.0.push(event);
        self
    }

    fn says(&mut self, source: &str, text: &str) -> &mut Events {
        let role = if source == "agent" { "assistant" } else { "user" };
        let message = json!({"role": role, "content": [{"type": "text", "text": text}]});
        self.add("MessageEvent", source, json!({"llm_message": message}))
    }

    fn call(&mut self, id: &str, tool: &str, arguments: Value) -> &mut Events {
        let call = json!({"id": id, "name": tool, "arguments": arguments.to_string()});
        let mut action = arguments;
        action["kind"] = json!("SomeAction");
        self.add(
            "ActionEvent",
            "agent",
            json!({"thought": [], "action": action, "tool_name": tool, "tool_call_id": id, "tool_call": call}),
        )
    }

    /// Adds the result of the call `id` with these fields of its observation.
    fn result(&mut self, id: &str, tool: &str, text: &str, fields: Value) -> &mut Events {
        let mut observation = json!({"content": [{"type": "text", "text": text}], "is_error": false, "kind": "SomeObservation"});
        for (key, value) in fields.as_object().unwrap() {
            observation[key] = value.clone();
        }
        self.add(
            "ObservationEvent",
            "environment",
            json!({"tool_name": tool, "tool_call_id": id, "action_id": "a", "observation": observation}),
        )
    }

    /// Adds a command with its result.
    fn run(&mut self, id: &str, command: &str, text: &str, code: i64) -> &mut Events {
        self.call(id, "terminal", json!({"command": command, "security_risk": "LOW"}));
        self.result(
            id,
            "terminal",
            text,
            json!({"exit_code": code, "metadata": {"exit_code": code}}),
        )
    }

    fn state(&mut self, key: &str, value: Value) -> &mut Events {
        self.add("ConversationStateUpdateEvent", "environment", json!({"key": key, "value": value}))
    }

    /// Adds the call that ends a conversation, and its result.
    fn finish(&mut self, words: &str) -> &mut Events {
        self.call("f", "finish", json!({"message": words}));
        self.result("f", "finish", words, json!({}))
    }

    fn lines(&self) -> String {
        self.0.iter().map(|event| format!("{event}\n")).collect()
    }

    /// Writes the events from number `from` on into a directory.
    fn write_from(&self, store: &Memory, folder: &str, from: usize) {
        for (at, event) in self.0.iter().enumerate().skip(from) {
            store.write(&event_path(folder, at), event.to_string());
        }
    }

    fn write(&self, store: &Memory, folder: &str) {
        self.write_from(store, folder, 0);
    }
}

/// Returns the path of an event in the conversation `folder`, which is the store if empty.
fn event_path(folder: &str, at: usize) -> RelPath {
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    path(&format!("{folder}events/event-{at:05}-{at:08x}-0000-4000-8000-000000000000.json"))
}

/// Creates an event of version 0.
fn old_event(id: u64, source: &str, fields: Value) -> Value {
    let mut event = json!({"id": id, "source": source,
        "timestamp": format!("2025-01-27T22:{:02}:{:02}.900854", id / 60 % 60, id % 60)});
    for (key, value) in fields.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

/// Creates a version 0 conversation with a command that fails, and final words.
fn old_conversation() -> Vec<Value> {
    let details = |name: &str| json!({"function_name": name, "tool_call_id": "t", "model_response": {"model": "claude-large", "choices": [{"x": 1}]}});
    vec![
        old_event(
            0,
            "user",
            json!({"action": "message", "args": {"content": "fix it", "image_urls": null}, "message": "fix it"}),
        ),
        old_event(1, "user", json!({"action": "recall", "args": {"query": "fix it"}})),
        old_event(
            2,
            "environment",
            json!({"observation": "recall", "cause": 1, "content": "info", "extras": {}}),
        ),
        old_event(
            3,
            "agent",
            json!({"action": "run", "message": "Running", "tool_call_metadata": details("execute_bash"),
            "args": {"command": "make", "is_input": "false", "thought": "I build it.", "blocking": false, "hidden": false, "confirmation_state": "confirmed"}}),
        ),
        old_event(
            4,
            "agent",
            json!({"observation": "run", "cause": 3, "content": "no rule", "success": false, "tool_call_metadata": details("execute_bash"),
            "extras": {"command": "make", "metadata": {"exit_code": 2, "suffix": "\n[The command completed with exit code 2.]"}}}),
        ),
        old_event(
            5,
            "agent",
            json!({"action": "finish", "args": {"final_thought": "It is broken.", "outputs": {}, "thought": "Hm."}, "message": "All done!"}),
        ),
    ]
}
