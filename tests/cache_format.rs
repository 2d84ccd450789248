//! Golden digests of the disk caches, so that their format cannot change unnoticed.
//!
//! Two fixed stores in memory are read with caches, and everything that is cached is hashed. The
//! digests cover the encoding of every cached type and the results computed from these stores.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::cache::{CACHE_FORMAT, DiskCache, Key};
use swarmletfs_base::store::Memory;
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::support::see;
use crate::support::transcript::{PROJECT, Transcript, path, place};

/// The [`CACHE_FORMAT`] that [`GOLDEN`] belongs to.
const GOLDEN_FORMAT: u32 = 16;
/// Number and digest of the cache entries of each sample.
const GOLDEN: [(&str, usize, &str); 2] = [
    ("swarmlet", 6, "be9becfabdd8ebb54036ff87e27cb8f1"),
    ("claude_code", 24, "dab3eac0a3c6db10afb30f60264f85cc"),
];

/// No part of a result is left out, however slow the machine is.
const NEVER: Duration = Duration::from_secs(3_600);

/// Returns a worker whose cached record has a value in every field.
fn swarmlet_sample() -> Source {
    let store = Memory::new();
    let metadata = json!({
        "worker_id": "w", "owner_id": "A", "run_id": "r1", "job_id": "j2", "parent_thread_id": "p3",
        "status": "failed", "task": "Compare the tables.", "task_type": "check", "tags": ["night", "slow"],
        "model": "large", "cwd": "/srv/app", "created_at": "2026-01-01T10:00:00Z", "started_at": "soon",
        "finished_at": "2026-01-01T10:05:00.5Z", "duration_ms": 300_500, "error": "exit code 3",
        "summary": "It failed.", "config": {"model": "large"},
        "token_usage": {"input_tokens": 11, "output_tokens": 12},
    });
    store.write(&path("workers/w/metadata.json"), metadata.to_string());
    store.write(&path("workers/w/tool_calls/001_sh.txt"), r#"{"exit_code": 0, "stdout": "ok"}"#);
    store.write(&path("workers/w/tool_calls/002_sql.txt"), "no such table, no such column\n");
    store.write(
        &path("workers/w/tool_calls/003_sh.txt"),
        r#"{"exit_code": 3, "stderr": "refused"}"#,
    );
    store.write(&path("workers/w/tool_calls/004_sh.txt"), "begun\n");
    let start = json!({"event": "call_start", "seq": 4, "tool": "sh", "input": {"command": "make"},
        "start_ts": "2026-01-01T10:01:00Z"});
    store.write(&path("workers/w/metrics.jsonl"), start.to_string());
    store.write(&path("workers/w/result.txt"), "All tests passed, and all tests are done.\n");
    // A success that its last call contradicts has a check.
    store.write(&path("workers/liar/metadata.json"), r#"{"status": "completed", "owner_id": "B"}"#);
    store.write(&path("workers/liar/tool_calls/001_sh.txt"), r#"{"exit_code": 1}"#);
    Source::from_store(Arc::new(store), None)
}

/// Returns transcripts whose cached facts have a value in every field.
fn claude_code_sample() -> Source {
    let store = Memory::new();
    let mut session = Transcript::new("s1");
    session
        .line(json!({"type": "summary", "summary": "A title"}))
        .line(json!({"type": "never-seen"}))
        .raw("no JSON\n")
        .user("Fix the build.")
        .bash("t1", "make", "done")
        .call("t2", "Read", json!({"file_path": "/a"}))
        .result("t2", json!({"content": "no such file", "is_error": true}))
        .call("t3", "Bash", json!({"command": "false"}))
        .result("t3", json!({"content": "Exit code 1\nfailed", "is_error": true}))
        .call("t4", "Bash", json!({"command": "yes"}))
        .result("t4", json!({"content": "a\n... [12 lines truncated] ...\nb"}))
        .result("stray", json!({"content": "of no call"}))
        .call("toolu_task", "Task", json!({"prompt": "Look.", "subagent_type": "general"}))
        .progress("a1", "user", json!({"role": "user", "content": "Look."}))
        .progress(
            "a1",
            "assistant",
            json!({"model": "small", "id": "m1", "role": "assistant",
            "content": [{"type": "text", "text": "Found it."}],
            "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 4}}),
        )
        .line(json!({"type": "user", "toolUseResult": {"status": "completed", "agentId": "a1"},
            "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_task", "content": "Found it."}]}}))
        .says("It is fixed.");
    session.line(json!({"type": "cost-state", "totalCostUSD": 0.5, "startTime": 1,
        "modelUsage": {"claude-large": {"inputTokens": 9, "costUSD": 0.5}}}));
    store.write(&place("s1"), session.bytes());
    let mut interrupted = Transcript::new("s2");
    interrupted.user("Wait.").says("Yes.").user("[Request interrupted by user]");
    store.write(&place("s2"), interrupted.bytes());
    let mut asked = Transcript::new("s3");
    asked.user("Go on.").call("t1", "Bash", json!({"command": "sleep 9"}));
    store.write(&place("s3"), asked.bytes());
    let mut failed = Transcript::new("s4");
    failed.user("Hello.").line(json!({"type": "assistant", "isApiErrorMessage": true, "message": {
        "model": "<synthetic>", "role": "assistant", "content": [{"type": "text", "text": "API Error: 500"}]}}));
    store.write(&place("s4"), failed.bytes());
    let mut agent = Transcript::of_agent("s1", "b2");
    agent.user("Read all.").says("I have.");
    store.write(&path(format!("{PROJECT}/s1/subagents/agent-b2.jsonl")), agent.bytes());
    let run = |file: &str| path(format!("{PROJECT}/s1/subagents/workflows/wf_1/{file}"));
    store.write(&run("agent-c3.jsonl"), agent.bytes());
    let ends = [
        json!({"type": "result", "agentId": "c3", "result": {"free": 5}}),
        json!({"type": "failed", "agentId": "c4"}),
    ];
    store.write(&run("journal.jsonl"), ends.map(|end| format!("{end}\n")).concat());
    let state = json!({"taskId": "w1", "status": "failed", "error": "no good"});
    store.write(&path(format!("{PROJECT}/s1/workflows/wf_1.json")), state.to_string());
    Source::from_store(Arc::new(store), None).with_format(Box::new(ClaudeCode::transcripts()))
}

/// Reads `source` with its caches in `folder`, so that everything that can be cached is.
fn fill_caches(source: Source, folder: &Path) {
    let cache =
        |name: &str| Arc::new(DiskCache::open(&folder.join(name), 1 << 30).unwrap().eager());
    let source = source.with_cache(cache("cache")).with_index_cache(cache("index"));
    let fresh = Freshness { unfinished: NEVER, finished: NEVER };
    let settings = Settings { deadline: NEVER, ..Settings::default() };
    // Dropping the tree waits for the writes.
    let tree = Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), settings);
    for file in ["index.json", "search/build tests"] {
        assert!(!see(&tree, file).unwrap().bytes().is_empty(), "{file}");
    }
}

/// Returns the number and the digest of all cache entries in `folder`.
fn digest(folder: &Path) -> (usize, String) {
    let mut entries: Vec<Vec<u8>> = Vec::new();
    let mut keys: Vec<Key> = Vec::new();
    for name in ["cache", "index"] {
        let cache = DiskCache::open(&folder.join(name), 1 << 30).unwrap();
        for file in fs::read_dir(folder.join(name)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let key: Key = u128::from_str_radix(&name, 16).unwrap().to_be_bytes();
            let entry = cache.get(key).unwrap();
            let body = entry.body().unwrap();
            entries
                .push([&(entry.head.len() as u64).to_le_bytes()[..], &entry.head, &body].concat());
            keys.push(key);
        }
    }
    // Keys depend on the user and on CACHE_FORMAT, and entries refer to others by key.
    for entry in &mut entries {
        for at in 0..entry.len().saturating_sub(size_of::<Key>() - 1) {
            let window = &mut entry[at..at + size_of::<Key>()];
            if keys.iter().any(|key| key == window) {
                window.fill(0);
            }
        }
    }
    entries.sort();
    let mut hash = blake3::Hasher::new();
    for entry in &entries {
        hash.update(&(entry.len() as u64).to_le_bytes()).update(entry);
    }
    (entries.len(), hash.finalize().to_hex()[..32].to_owned())
}

#[test]
fn cached_data_changes_only_with_cache_format() {
    let digests = [("swarmlet", swarmlet_sample()), ("claude_code", claude_code_sample())].map(
        |(name, source)| {
            let folder = tempfile::tempdir().unwrap();
            fill_caches(source, folder.path());
            let (count, digest) = digest(folder.path());
            (name, count, digest)
        },
    );
    let golden = GOLDEN.map(|(name, count, digest)| (name, count, digest.to_owned()));
    if CACHE_FORMAT == GOLDEN_FORMAT {
        assert_eq!(
            digests, golden,
            "cached data has changed: raise CACHE_FORMAT in crates/base/src/cache.rs"
        );
    } else {
        assert_eq!(
            digests, golden,
            "CACHE_FORMAT is {CACHE_FORMAT}: update GOLDEN and GOLDEN_FORMAT"
        );
        panic!("CACHE_FORMAT is {CACHE_FORMAT}: update GOLDEN_FORMAT");
    }
}
