//! Tests of the formats that record each instance of a benchmark in one JSON document:
//! mini-swe-agent and SWE-agent. Stores in memory are read through the format and the tree.

mod expected;
mod growth;
mod hostile;
mod live;
mod mini_swe_agent;
mod swe_agent;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Output, Record, ToolCall, Worker};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory, Store, read_range};
use swarmletfs_trace::{Format, MiniSweAgent, RecordSource, SweAgent, Transcripts};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// A format under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Mini,
    Swe,
}

impl Program {
    fn format(self) -> Transcripts {
        match self {
            Program::Mini => MiniSweAgent::transcripts(),
            Program::Swe => SweAgent::transcripts(),
        }
    }

    /// Returns a path for a document.
    fn place(self) -> RelPath {
        path(match self {
            Program::Mini => "run1/i/i.traj.json",
            Program::Swe => "dev/run1/i/i.traj",
        })
    }
}

/// A worker as a format reads it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    worker: Worker,
    record: Record,
    files: BTreeMap<String, Vec<u8>>,
}

impl Seen {
    fn text(&self, file: &str) -> &str {
        let bytes =
            self.files.get(file).unwrap_or_else(|| panic!("no {file} in {:?}", self.names()));
        std::str::from_utf8(bytes).unwrap()
    }

    fn names(&self) -> Vec<&str> {
        self.files.keys().map(String::as_str).collect()
    }

    fn calls(&self) -> &[ToolCall] {
        &self.record.trace.calls
    }

    /// Returns each call as tool, outcome, exit code, and output, if it has a result.
    fn outcomes(&self) -> Vec<(&str, &str, Option<i64>, Option<&str>)> {
        let calls = self.calls().iter().map(|call| {
            let has_result = call.output != Output::Pending;
            let output = has_result.then(|| self.text(&call.path.to_text()));
            (call.tool.as_str(), call.outcome.as_str(), call.exit_code, output)
        });
        calls.collect()
    }

    /// Returns the roles and texts of the thread.
    fn thread(&self) -> Vec<(String, String)> {
        let lines = self.text("thread.jsonl").lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = line["content"].as_str().or(line["file"].as_str()).unwrap_or_default();
            (line["role"].as_str().unwrap().to_owned(), text.to_owned())
        });
        lines.collect()
    }
}

/// Parses a path in a store.
fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

/// Reads everything that a format shows of a store, by path.
fn read_all(format: &Transcripts, store: &dyn Store) -> BTreeMap<RelPath, Seen> {
    let paths = format.find_workers(store).unwrap().folders;
    paths.into_iter().map(|path| (path.clone(), read_one(format, store, &path))).collect()
}

/// Reads the worker at `path`. Each of its files must have the size that its metadata states.
fn read_one(format: &Transcripts, store: &dyn Store, path: &RelPath) -> Seen {
    let folder = format.enter(store, path).unwrap();
    let worker = format.read_worker(&*folder, path, None);
    let source = RecordSource { folder: &*folder, outputs: None };
    let record = format.read_record(source, &worker, Deadline::never()).unwrap();
    let (mut files, mut folders) = (BTreeMap::new(), vec![RelPath::root()]);
    while let Some(at) = folders.pop() {
        for entry in folder.list(&at).unwrap() {
            let inner = at.join(&entry.name);
            if entry.kind == Kind::Folder {
                folders.push(inner);
                continue;
            }
            let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
            let bytes = read_range(&*file, 0, 64 << 20).unwrap();
            let sizes = [folder.stat(&inner).unwrap().size, file.meta().unwrap().size];
            assert_eq!(sizes, [bytes.len() as u64; 2], "{inner:?}");
            files.insert(inner.to_text().into_owned(), bytes);
        }
    }
    assert_eq!(worker.status, record.worker.status);
    Seen { worker, record, files }
}

/// Reads a store with one document.
fn shown(program: Program, document: &Value) -> Seen {
    shown_bytes(program, serde_json::to_vec_pretty(document).unwrap())
}

/// Reads a store with one document of these bytes. `source.json` must equal them.
fn shown_bytes(program: Program, bytes: Vec<u8>) -> Seen {
    let store = Memory::new();
    store.write(&program.place(), bytes.clone());
    let seen = read_one(&program.format(), &store, &program.place());
    assert!(seen.files["source.json"] == bytes);
    seen
}

/// Opens the tree of a store without caching. No worker is abandoned by the clock.
fn tree(program: Program, store: &Arc<Memory>) -> Tree {
    let source = Source::from_store(store.clone(), None)
        .with_format(Box::new(program.format()))
        .with_stale_after(Duration::MAX);
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}

/// Returns the tree of one document.
fn tree_of(program: Program, document: &Value) -> Tree {
    let store = Arc::new(Memory::new());
    store.write(&program.place(), serde_json::to_vec(document).unwrap());
    tree(program, &store)
}
