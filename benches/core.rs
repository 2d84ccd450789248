//! Benchmarks of the library on stores on disk, without a mount: open, list, look up, and render
//! each generated file. scripts/bench measures a mount and compares it with the native directory.
//!
//! "first" starts with empty caches, except the page cache; "again" repeats the operation.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Disk;
use swarmletfs_trace::{Codex, Format};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{DirPosition, ROOT, Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

#[allow(dead_code, reason = "the benchmarks generate a swarm but do not check it")]
#[path = "../tests/support/swarm.rs"]
mod swarm;

use swarm::Swarm;

/// Caches stay valid during a benchmark.
const HOUR: Freshness =
    Freshness { unfinished: Duration::from_secs(3_600), finished: Duration::from_secs(3_600) };
/// Caches are stale at once.
const NOW: Freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };

/// Generates a swarm with outputs of `bytes` bytes.
fn generate_store(workers: usize, calls: usize, bytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    Swarm { workers, calls, bytes, seed: 1 }.make(store.path()).unwrap();
    store
}

/// Opens a view of everything, which reads the metadata of every worker.
fn view(store: &Path, freshness: Freshness) -> View {
    View::new(vec![Source::open(store).unwrap()], freshness, Filter::default()).unwrap()
}

fn tree(view: View) -> Tree {
    Tree::new(view, Settings::default())
}

/// Lists a directory as `ls` does and returns the number of names.
fn list(tree: &Tree, path: &[&str]) -> usize {
    let inos = walk(tree, path);
    let ino = inos.last().copied().unwrap_or(ROOT);
    let names = tree.entries(ino, DirPosition::Start).unwrap().0.items.len();
    inos.into_iter().for_each(|ino| tree.forget(ino, 1));
    names
}

/// Reads a file as `cat` does and returns its size in bytes.
fn read(tree: &Tree, path: &[&str]) -> usize {
    read_with(tree, path, |bytes| {
        black_box(bytes);
    })
}

/// Returns the content of a file.
fn content(tree: &Tree, path: &[&str]) -> Vec<u8> {
    let mut content = Vec::new();
    read_with(tree, path, |bytes| content.extend(bytes));
    content
}

/// Reads a file as `cat` does, calls `take` with each part and returns the size in bytes.
fn read_with(tree: &Tree, path: &[&str], mut take: impl FnMut(&[u8])) -> usize {
    let inos = walk(tree, path);
    let fh = tree.open(inos.last().copied().unwrap()).unwrap().fh;
    let mut size = 0;
    loop {
        let read = tree.read(fh, size as u64, 1 << 17, |bytes| {
            take(bytes);
            bytes.len()
        });
        match read.unwrap() {
            0 => break,
            more => size += more,
        }
    }
    tree.release(fh);
    inos.into_iter().for_each(|ino| tree.forget(ino, 1));
    size
}

/// Looks up each name of a path. The caller must release the lookups.
fn walk(tree: &Tree, path: &[&str]) -> Vec<u64> {
    let mut inos = Vec::new();
    for name in path {
        let parent = inos.last().copied().unwrap_or(ROOT);
        inos.push(tree.lookup(parent, name.as_bytes()).unwrap().ino);
    }
    inos
}

fn workers(c: &mut Criterion) {
    let mut group = c.benchmark_group("workers");
    for count in [1_000, 10_000] {
        let store = generate_store(count, 1, 300);
        let size = |name| BenchmarkId::new(name, count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(size("open"), |b| b.iter(|| view(store.path(), HOUR)));
        let cached = tree(view(store.path(), HOUR));
        group.bench_function(size("list"), |b| b.iter(|| list(&cached, &["workers"])));
        let uncached = tree(view(store.path(), NOW));
        group.bench_function(size("list after a scan of every worker"), |b| {
            b.iter(|| list(&uncached, &["workers"]))
        });
        let folder = walk(&cached, &["workers"]).pop().unwrap();
        let ids: Vec<String> = (0..count).map(|worker| format!("worker-{worker:05}")).collect();
        group.bench_function(size("lookup and getattr of each"), |b| {
            b.iter(|| {
                for id in &ids {
                    let ino = cached.lookup(folder, id.as_bytes()).unwrap().ino;
                    black_box(cached.attr(ino).unwrap());
                    cached.forget(ino, 1);
                }
            });
        });
    }
    group.finish();
}

/// Measures the first and a repeated read of a file.
fn first_and_again(c: &mut Criterion, label: &str, store: &Path, path: &[&str]) {
    let mut group = c.benchmark_group(label);
    let open = || tree(view(store, HOUR));
    group.bench_function("first", |b| {
        b.iter_batched(open, |tree| (read(&tree, path), tree), BatchSize::PerIteration);
    });
    let warm = open();
    let size = read(&warm, path);
    group.bench_function("again", |b| b.iter(|| read(&warm, path)));
    group.finish();
    println!("{label}: {size} bytes\n");
}

fn generated(c: &mut Criterion) {
    let worker = "worker-00001";
    let many = generate_store(2, 20, 20 << 10);
    first_and_again(
        c,
        "evidence.txt of 20 calls of 20 KB",
        many.path(),
        &["workers", worker, "evidence.txt"],
    );
    let large = generate_store(2, 1, 66_000_000);
    first_and_again(
        c,
        "evidence.txt of one call of 66 MB",
        large.path(),
        &["workers", worker, "evidence.txt"],
    );
    let swarm = generate_store(1_000, 16, 4 << 10);
    first_and_again(c, "index.json of 1000 workers", swarm.path(), &["index.json"]);
    first_and_again(c, "evidence.txt of 1000 workers", swarm.path(), &["evidence.txt"]);
    first_and_again(c, "summary of 1000 workers", swarm.path(), &["summary"]);
}

/// Measures queries over 100 MB in 1,000 workers, of which everything was read before. Each
/// iteration has a budget of its own, so no answer is cached.
fn queries(c: &mut Criterion) {
    let store = generate_store(1_000, 5, 20 << 10);
    let tree = tree(view(store.path(), HOUR));
    let mut group = c.benchmark_group("100 MB of 1000 workers");
    for (kind, query, label) in [
        ("grep", "no such word", "grep, no line matches"),
        ("grep", "connection refused", "grep, many lines match"),
        ("grep", r"\w+ion [a-z]+ed", "grep, many lines match a class"),
        ("search", "refused quota", "search, rare words"),
        ("search", "connection error test", "search, common words"),
    ] {
        while String::from_utf8_lossy(&content(&tree, &[kind, query])).contains("lack of time") {
            std::thread::sleep(Duration::from_millis(100));
        }
        let mut budgets = (1..28_000).rev();
        group.bench_function(label, |b| {
            b.iter(|| {
                let folder = format!("{kind}.{}", budgets.next().unwrap());
                read(&tree, &[&folder, query])
            });
        });
    }
    group.finish();
}

/// Writes a session of about `mebibytes` MiB, whose calls have outputs like a compiler's.
fn session(mebibytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let project = store.path().join("projects/-home-dev");
    fs::create_dir_all(&project).unwrap();
    let output =
        "src/main.rs:12:9: warning: unused variable: `x` \u{1b}[33mnote\u{1b}[0m \"quoted\"\n"
            .repeat(60);
    let line = |at: usize, kind: &str, content: Value| {
        let message = json!({"role": kind, "id": format!("msg_{at}"), "content": content, "usage": {"output_tokens": 9}});
        let (uuid, time) = (format!("uuid-{at}"), "2026-02-01T03:32:31.846Z");
        let line = json!({"type": kind, "uuid": uuid, "sessionId": "s", "timestamp": time, "message": message});
        line.to_string() + "\n"
    };
    let mut text = line(0, "user", json!("Find out why it does not build."));
    for at in 1.. {
        if text.len() > mebibytes << 20 {
            break;
        }
        let (id, input) =
            (format!("toolu_{at}"), json!({"command": "cargo build", "description": "Build it"}));
        let call = json!([{"type": "tool_use", "id": id, "name": "Bash", "input": input}]);
        text += &line(2 * at, "assistant", call);
        let failed = at.is_multiple_of(7);
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": output, "is_error": failed}]);
        text += &line(2 * at + 1, "user", result);
    }
    fs::write(project.join("s.jsonl"), text).unwrap();
    store
}

/// Writes a rollout of Codex of about `mebibytes` MiB, whose calls have outputs like a compiler's.
fn rollout(mebibytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let output = "src/main.rs:12:9: warning: unused variable: `x` \"quoted\"\n".repeat(60);
    let line = |kind: &str, payload: Value| {
        json!({"timestamp": "2026-02-01T03:32:31.846Z", "type": kind, "payload": payload})
            .to_string()
            + "\n"
    };
    let mut text = line("session_meta", json!({"id": "s", "cwd": "/app"}));
    for at in 0_u32.. {
        if text.len() > mebibytes << 20 {
            break;
        }
        let (id, failed) = (format!("call_{at}"), i64::from(at.is_multiple_of(7)));
        let call = json!({"type": "function_call", "name": "exec_command", "call_id": id,
            "arguments": "{\"cmd\":\"cargo build\"}"});
        text += &line("response_item", call);
        let item = json!({"type": "CommandExecution", "id": id, "exit_code": failed, "aggregated_output": output});
        text += &line("event_msg", json!({"type": "item_completed", "item": item}));
        let output =
            format!("Wall time: 1 seconds\nProcess exited with code {failed}\nOutput:\n{output}");
        let result = json!({"type": "function_call_output", "call_id": id, "output": output});
        text += &line("response_item", result);
    }
    fs::write(store.path().join("s.jsonl"), text).unwrap();
    store
}

/// Parses a rollout of Codex from its beginning.
fn rollouts(c: &mut Criterion) {
    let store = rollout(20);
    let bytes = fs::metadata(store.path().join("s.jsonl")).unwrap().len();
    let disk = Disk::open(store.path()).unwrap();
    let path = RelPath::parse("s.jsonl").unwrap();
    let mut group = c.benchmark_group("a rollout of 20 MB");
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function("index", |b| {
        b.iter(|| {
            let format = Codex::transcripts();
            let folder = format.enter(&disk, &path).unwrap();
            format.has_edits(&*folder, Deadline::never()).unwrap()
        });
    });
    group.finish();
}

/// Writes a conversation of OpenHands of about `mebibytes` MiB as one file of events.
fn conversation(mebibytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let output =
        "src/main.rs:12:9: warning: unused variable: `x` \u{1b}[33mnote\u{1b}[0m\n".repeat(60);
    let line = |at: usize, kind: &str, source: &str, mut event: Value| {
        event.as_object_mut().unwrap().extend([
            ("id".to_owned(), json!(format!("event-{at}"))),
            ("timestamp".to_owned(), json!("2026-02-01T03:32:31.846123")),
            ("source".to_owned(), json!(source)),
            ("kind".to_owned(), json!(kind)),
        ]);
        event.to_string() + "\n"
    };
    let task = json!({"llm_message": {"content": [{"type": "text", "text": "Find out why."}]}});
    let mut text = line(0, "MessageEvent", "user", task);
    for at in 1.. {
        if text.len() > mebibytes << 20 {
            break;
        }
        let arguments = json!({"command": "cargo build", "security_risk": "LOW"}).to_string();
        let call = json!({"tool_name": "terminal", "tool_call_id": at.to_string(), "thought": [],
            "tool_call": {"name": "terminal", "arguments": arguments},
            "action": {"command": "cargo build", "kind": "TerminalAction"}});
        text += &line(2 * at, "ActionEvent", "agent", call);
        let observation = json!({"content": [{"type": "text", "text": output}], "is_error": false,
            "exit_code": at % 7, "kind": "TerminalObservation"});
        let result = json!({"tool_name": "terminal", "tool_call_id": at.to_string(),
            "action_id": format!("event-{}", 2 * at), "observation": observation});
        text += &line(2 * at + 1, "ObservationEvent", "environment", result);
    }
    fs::write(store.path().join("c.jsonl"), text).unwrap();
    store
}

/// Reads the whole record of the only worker in `store`.
fn read_record(store: &Path) -> usize {
    read(&tree(view(store, HOUR)), &["workers", "c", "index.json"])
}

fn transcripts(c: &mut Criterion) {
    let store = session(5);
    let bytes = fs::metadata(store.path().join("projects/-home-dev/s.jsonl")).unwrap().len();
    let mut group = c.benchmark_group("a session of 5 MB");
    group.throughput(Throughput::Bytes(bytes));
    // Opening the view parses the session once to find its subagents.
    group.bench_function("read", |b| b.iter(|| view(store.path(), HOUR)));
    let evidence: &[&str] = &["workers", "s", "evidence.txt"];
    group.bench_function("evidence.txt", |b| {
        b.iter_batched(
            || tree(view(store.path(), HOUR)),
            |tree| read(&tree, evidence),
            BatchSize::PerIteration,
        );
    });
    group.finish();
    let store = conversation(20);
    let bytes = fs::metadata(store.path().join("c.jsonl")).unwrap().len();
    let mut group = c.benchmark_group("a conversation of 20 MB");
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function("read", |b| b.iter(|| read_record(store.path())));
    group.finish();
}

/// Returns a short configuration. Differences of a few percent are noise.
fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(10);
    criterion.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = short();
    targets = workers, generated, queries, transcripts, rollouts
}
criterion_main!(benches);
