//! The core without a kernel, over stores on disk: what opening, listing, looking up and making each generated file
//! cost. The same through a mount, next to the native folder, is scripts/bench.
//!
//! "first" is with nothing cached but the disk's own pages; "again" is with everything as it was a moment ago.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::tree::{DirPosition, ROOT, Settings, Tree};
use swarmletfs::view::{Filter, View};

#[allow(dead_code, reason = "what is made here is read, but not checked")]
#[path = "../tests/support/swarm.rs"]
mod swarm;

use swarm::Swarm;

/// What was seen once holds while a bench runs.
const HOUR: Freshness = Freshness { unfinished: Duration::from_secs(3_600), finished: Duration::from_secs(3_600) };
/// What was seen holds for no time.
const NOW: Freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };

fn made(workers: usize, calls: usize, bytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    Swarm { workers, calls, bytes, seed: 1 }.make(store.path()).unwrap();
    store
}

/// A view of everything, with the metadata of every worker read and nothing else.
fn view(store: &Path, freshness: Freshness) -> View {
    View::new(vec![Source::open(store).unwrap()], freshness, Filter::default()).unwrap()
}

fn tree(view: View) -> Tree {
    Tree::new(view, Settings::default())
}

/// What `ls` does to a folder. Returns how many names it has.
fn list(tree: &Tree, path: &[&str]) -> usize {
    let inos = walk(tree, path);
    let ino = inos.last().copied().unwrap_or(ROOT);
    let fh = tree.open_folder(ino).unwrap().fh;
    let names = tree.entries(ino, fh, DirPosition::Start).unwrap().items.len();
    tree.release(fh);
    inos.into_iter().for_each(|ino| tree.forget(ino, 1));
    names
}

/// What `cat` does to a file. Returns its size.
fn read(tree: &Tree, path: &[&str]) -> usize {
    let inos = walk(tree, path);
    let fh = tree.open(inos.last().copied().unwrap()).unwrap().fh;
    let mut size = 0;
    loop {
        match tree.read(fh, size as u64, 1 << 17, |bytes| black_box(bytes).len()).unwrap() {
            0 => break,
            more => size += more,
        }
    }
    tree.release(fh);
    inos.into_iter().for_each(|ino| tree.forget(ino, 1));
    size
}

/// Looks each name of a path up; the lookups are the caller's to give back.
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
        let store = made(count, 1, 300);
        let size = |name| BenchmarkId::new(name, count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(size("open"), |b| b.iter(|| view(store.path(), HOUR)));
        let held = tree(view(store.path(), HOUR));
        group.bench_function(size("list"), |b| b.iter(|| list(&held, &["workers"])));
        let anew = tree(view(store.path(), NOW));
        group.bench_function(size("list after looking at each anew"), |b| b.iter(|| list(&anew, &["workers"])));
        let folder = walk(&held, &["workers"]).pop().unwrap();
        let ids: Vec<String> = (0..count).map(|worker| format!("worker-{worker:05}")).collect();
        group.bench_function(size("lookup and getattr of each"), |b| {
            b.iter(|| {
                for id in &ids {
                    let ino = held.lookup(folder, id.as_bytes()).unwrap().ino;
                    black_box(held.attr(ino).unwrap());
                    held.forget(ino, 1);
                }
            });
        });
    }
    group.finish();
}

/// A file, first and again.
fn first_and_again(c: &mut Criterion, what: &str, store: &Path, path: &[&str]) {
    let mut group = c.benchmark_group(what);
    let anew = || tree(view(store, HOUR));
    group.bench_function("first", |b| {
        b.iter_batched(anew, |tree| (read(&tree, path), tree), BatchSize::PerIteration);
    });
    let warm = anew();
    let size = read(&warm, path);
    group.bench_function("again", |b| b.iter(|| read(&warm, path)));
    group.finish();
    println!("{what}: {size} bytes\n");
}

fn generated(c: &mut Criterion) {
    let worker = "worker-00001";
    let many = made(2, 20, 20 << 10);
    first_and_again(c, "evidence.txt of 20 calls of 20 KB", many.path(), &["workers", worker, "evidence.txt"]);
    let large = made(2, 1, 66_000_000);
    first_and_again(c, "evidence.txt of one call of 66 MB", large.path(), &["workers", worker, "evidence.txt"]);
    let swarm = made(1_000, 16, 4 << 10);
    first_and_again(c, "index.json of 1000 workers", swarm.path(), &["index.json"]);
    first_and_again(c, "evidence.txt of 1000 workers", swarm.path(), &["evidence.txt"]);
    first_and_again(c, "summary of 1000 workers", swarm.path(), &["summary"]);
}

/// A session of about `megabytes`, of calls with outputs like those of a compiler.
fn session(megabytes: usize) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let project = store.path().join("projects/-home-dev");
    fs::create_dir_all(&project).unwrap();
    let output = "src/main.rs:12:9: warning: unused variable: `x` \u{1b}[33mnote\u{1b}[0m \"quoted\"\n".repeat(60);
    let line = |at: usize, kind: &str, content: Value| {
        let message =
            json!({"role": kind, "id": format!("msg_{at}"), "content": content, "usage": {"output_tokens": 9}});
        let (uuid, time) = (format!("uuid-{at}"), "2026-02-01T03:32:31.846Z");
        let line = json!({"type": kind, "uuid": uuid, "sessionId": "s", "timestamp": time, "message": message});
        line.to_string() + "\n"
    };
    let mut text = line(0, "user", json!("Find out why it does not build."));
    for at in 1.. {
        if text.len() > megabytes << 20 {
            break;
        }
        let (id, input) = (format!("toolu_{at}"), json!({"command": "cargo build", "description": "Build it"}));
        let call = json!([{"type": "tool_use", "id": id, "name": "Bash", "input": input}]);
        text += &line(2 * at, "assistant", call);
        let failed = at.is_multiple_of(7);
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": output, "is_error": failed}]);
        text += &line(2 * at + 1, "user", result);
    }
    fs::write(project.join("s.jsonl"), text).unwrap();
    store
}

fn transcripts(c: &mut Criterion) {
    let store = session(5);
    let bytes = fs::metadata(store.path().join("projects/-home-dev/s.jsonl")).unwrap().len();
    let mut group = c.benchmark_group("a session of 5 MB");
    group.throughput(Throughput::Bytes(bytes));
    // Listing reads it once, for the subagents that are told inside.
    group.bench_function("read", |b| b.iter(|| view(store.path(), HOUR)));
    let evidence: &[&str] = &["workers", "s", "evidence.txt"];
    group.bench_function("evidence.txt", |b| {
        b.iter_batched(|| tree(view(store.path(), HOUR)), |tree| read(&tree, evidence), BatchSize::PerIteration);
    });
    group.finish();
}

/// Differences of a few percent mean nothing here, so that a run need not take long.
fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(10);
    criterion.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = short();
    targets = workers, generated, transcripts
}
criterion_main!(benches);
