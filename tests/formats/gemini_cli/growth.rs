//! Tests of sessions that are cut anywhere, or grow in pieces of any size. A format that follows a
//! store must show what one shows that reads it for the first time.

use std::collections::BTreeMap;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Record, Worker};
use swarmletfs_base::store::{File, Kind, read_range};
use swarmletfs_trace::{Format, RecordSource, Transcripts};

use super::*;
use crate::support::{is_exhaustive, rng, scale};

/// A worker as a format reads it.
#[derive(Debug, Clone, PartialEq)]
struct WorkerView {
    worker: Worker,
    record: Record,
    files: BTreeMap<RelPath, Vec<u8>>,
}

/// Reads the only worker of a store; `None` if there is none.
fn read(format: &Transcripts, store: &dyn Store) -> Option<WorkerView> {
    let path = format.find_workers(store).unwrap().folders.pop()?;
    let folder = format.enter(store, &path).unwrap();
    format.folder_state(&*folder, &path).unwrap()?;
    let worker = format.read_worker(&*folder, &path, None);
    let source = RecordSource { folder: &*folder, outputs: None };
    let record = format.read_record(source, &worker, Deadline::never()).unwrap();
    let mut files = BTreeMap::new();
    see(&*folder, &RelPath::root(), &mut files);
    Some(WorkerView { worker, record, files })
}

fn see(folder: &dyn Store, at: &RelPath, files: &mut BTreeMap<RelPath, Vec<u8>>) {
    for entry in folder.list(at).unwrap() {
        let inner = at.join(&entry.name);
        if entry.kind == Kind::Folder {
            see(folder, &inner, files);
            continue;
        }
        let file = folder.open(&inner).unwrap_or_else(|error| panic!("{inner:?}: {error}"));
        let bytes = read_range(&*file, 0, 1 << 24).unwrap();
        assert_eq!(folder.stat(&inner).unwrap().size, bytes.len() as u64, "{inner:?}");
        files.insert(inner, bytes);
    }
}

/// Creates a session with records of every kind.
fn session() -> Log {
    let mut log = Log::new();
    log.set(json!({"messages": [{"id": "ctx", "type": "user", "timestamp": log.time(), "content": [{"text": "<session_context>\n- **Workspace Directories:**\n  - /w\n"}]}], "lastUpdated": log.time()}));
    log.user("u1", "漢 go").model("m1", "I look.", json!([]));
    log.again(json!({"toolCalls": [shell("c1", "ls", "one"), {"id": "c2", "name": "glob", "args": {}, "status": "executing"}]}));
    log.again(json!({"toolCalls": [shell("c1", "ls", "one"), call("c2", "glob", json!({}), "error", json!({"error": "no"}))]}));
    log.message("r1", "user", json!({"content": responses("c1", "x", json!({"output": "one"}))}));
    log.set(json!({"lastUpdated": log.time()})).model("m2", "Done.", json!([]));
    log.message("i", "info", json!({"content": "hint"})).user("u2", "more");
    log.model(
        "m3",
        "",
        json!([call(
            "c3",
            "complete_task",
            json!({"result": "x"}),
            "success",
            json!({"output": "y"})
        )]),
    );
    let all = log.messages();
    log.metadata().set(json!({"messages": [all[0]]})).set(json!({"messages": all}));
    log.message("t", "telemetry", json!({})).model("m4", "", json!([shell("c4", "pwd", "/w")]));
    log
}

/// Asserts that a followed store shows what a new reader sees.
#[track_caller]
fn assert_equal(live: Option<&WorkerView>, fresh: Option<&WorkerView>, when: &str) {
    let (Some(live), Some(fresh)) = (live, fresh) else {
        return assert_eq!(live.is_some(), fresh.is_some(), "{when}");
    };
    assert_eq!(live.worker, fresh.worker, "{when}");
    assert_eq!(live.record, fresh.record, "{when}");
    for (path, bytes) in &fresh.files {
        let live = live.files.get(path).unwrap_or_else(|| panic!("{when}: no {path:?}"));
        assert!(live == bytes, "{when}: {path:?}: {}", live.escape_ascii());
    }
    assert_eq!(live.files.len(), fresh.files.len(), "{when}");
}

fn cuts(bytes: &[u8]) -> Vec<usize> {
    let near = |at: usize| bytes[at.saturating_sub(2)..(at + 3).min(bytes.len())].contains(&b'\n');
    let step = if is_exhaustive() { 1 } else { 37 };
    (0..=bytes.len()).filter(|at| at % step == 0 || near(*at) || *at == bytes.len()).collect()
}

/// Promise: Calls of messages that a program removes from the history of the model stay.
#[test]
fn calls_of_a_growing_session_only_grow() {
    let log = session();
    for (name, bytes) in [("jsonl", log.bytes()), ("json", log.document())] {
        let (store, at) = (store(), path(format!("{PROJECT}/chats/session-x.{name}")));
        let live = GeminiCli::transcripts();
        let mut before: Option<WorkerView> = None;
        for end in cuts(&bytes) {
            store.write(&at, &bytes[..end]);
            let fresh = read(&GeminiCli::transcripts(), &*store);
            assert_equal(
                read(&live, &*store).as_ref(),
                fresh.as_ref(),
                &format!("{name} cut at {end}"),
            );
            let Some(fresh) = fresh else { continue };
            if let Some(before) = &before {
                let calls = |view: &WorkerView| view.record.trace.calls.clone();
                assert!(calls(&fresh).len() >= calls(before).len(), "{name} cut at {end}");
                for (call, old) in calls(&fresh).iter().zip(calls(before)) {
                    assert_eq!((&call.tool, &call.path), (&old.tool, &old.path), "cut at {end}");
                    if !matches!(old.output, swarmletfs_base::model::Output::Pending) {
                        assert_eq!(call.outcome, old.outcome, "{name} cut at {end}");
                    }
                }
            }
            before = Some(fresh);
        }
        assert_eq!(before.unwrap().record.trace.calls.len(), 4);
    }
}

/// Promise: A growing transcript shows the same as one that is parsed from the start.
#[test]
fn followed_session_equals_a_new_one() {
    let mut random = rng();
    for round in 0..scale(30) {
        let mut log = Log::new();
        for at in 0..random.usize(1..25) {
            let id = format!("m{}", random.usize(0..8));
            match random.u8(0..7) {
                0 => log.user(&id, "go"),
                1 => log.model(&id, "text", json!([])),
                2 | 3 => log.model(
                    &id,
                    "",
                    json!([shell(&format!("c{at}"), "ls", "out"), shell("same", "pwd", "x")]),
                ),
                4 => log.record(json!({"$rewindTo": id})),
                5 => {
                    let mut some = log.messages();
                    random.shuffle(&mut some);
                    some.truncate(random.usize(0..4));
                    log.set(json!({"messages": some}))
                }
                _ => log.message(&id, "info", json!({"content": "Request cancelled."})),
            };
        }
        let (bytes, store) = (log.bytes(), store());
        let live = GeminiCli::transcripts();
        let mut end = 0;
        while end < bytes.len() {
            end = (end + random.usize(1..600)).min(bytes.len());
            store.write(&log_path(), &bytes[..end]);
            let fresh = read(&GeminiCli::transcripts(), &*store);
            assert_equal(
                read(&live, &*store).as_ref(),
                fresh.as_ref(),
                &format!("round {round} at {end}"),
            );
        }
    }
}

/// A reader keeps a file open while the session grows.
#[test]
fn open_thread_grows_with_its_session() {
    let log = session();
    let (bytes, store) = (log.bytes(), store());
    let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    store.write(&log_path(), &bytes[..first]);
    let format = GeminiCli::transcripts();
    let folder = format.enter(&*store, &log_path()).unwrap();
    let thread: Box<dyn File> = folder.open(&path("thread.jsonl")).unwrap();
    store.write(&log_path(), bytes);
    let whole = read(&GeminiCli::transcripts(), &*store).unwrap();
    assert_eq!(read_range(&*thread, 0, 1 << 20).unwrap(), whole.files[&path("thread.jsonl")]);
}

/// The seeds of the fuzz target, and mutants of them.
#[test]
fn mutants_of_a_session_are_read_without_a_failure() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/gemini");
    let mut random = rng();
    let seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .chain([session().bytes(), session().document()])
        .collect();
    assert_eq!(seeds.len(), 4);
    for seed in &seeds {
        for round in 0..scale(60) {
            let mut bytes = seed.clone();
            for _ in 0..random.usize(0..=3).min(round) {
                let (at, len) = (random.usize(..bytes.len()), random.usize(..20));
                let other = random.choice(&seeds).unwrap();
                let from = random.usize(..other.len());
                let piece = &other[from..(from + random.usize(..40)).min(other.len())];
                bytes.splice(at..(at + len).min(bytes.len()), piece.iter().copied());
            }
            for name in ["x.jsonl", "x.json"] {
                let store = store();
                store.write(&path(format!("{PROJECT}/chats/{name}")), bytes.clone());
                read(&GeminiCli::transcripts(), &*store);
            }
        }
    }
}
