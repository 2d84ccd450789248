//! Each tool: its answers, that they equal the tree's bytes, and its errors for invalid requests.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Memory;
use swarmletfs_mcp::ServedTree;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::Client;
use crate::mount::PATIENCE;
use crate::support::fault_injection::{Fault, FaultInjector, FaultPlan};
use crate::support::intercept::InterceptedStore;
use crate::support::{TestStore, see};

/// Creates a store: `a` failed, `b` succeeded with long output, `c` belongs to another run.
fn store() -> TestStore {
    let store = TestStore::new();
    let more = json!({"run_id": "r1", "job_id": 1, "status": "failed", "task_type": "deploy", "tags": ["x"]});
    store.worker("a", more).call(
        "a",
        1,
        "sh",
        "{\"exit_code\": 1, \"stderr\": \"no space left on device\"}",
    );
    store.worker("b", json!({"run_id": "r1", "job_id": 2, "tags": ["x", "y"]})).call(
        "b",
        1,
        "sh",
        "{\"ok\": true}",
    );
    let lines: String =
        (0..9_000).map(|n| format!("{n} is a number and its square is {}\n", n * n)).collect();
    store.call("b", 2, "sh", lines).call("b", 3, "sh", b"\x7fELF\0\0\0");
    store.write("workers/b/notes/a..b.txt", "fine\n");
    store.write("workers/b/notes/latin.txt", b"caf\xe9\n");
    store.worker("c", json!({"run_id": "r2", "job_id": 2})).call("c", 1, "sh", "{\"ok\": true}");
    store
}

fn client(store: &TestStore) -> Client {
    Client::new(store.tree())
}

fn file(store: &TestStore, path: &str) -> String {
    see(&store.tree(), path).unwrap().text().to_owned()
}

#[test]
fn tools_return_the_bytes_of_the_tree() {
    let store = store();
    let mut client = client(&store);
    for (tool, arguments, path) in [
        ("summarize", json!({"worker": "a"}), "workers/a/summary"),
        (
            "summarize",
            json!({"worker": "a", "focus": "space / 100%2F"}),
            "workers/a/summary@space %2F 100%252F",
        ),
        ("get_evidence", json!({}), "evidence.txt"),
        ("get_evidence", json!({"worker": "b", "bytes": 3000}), "workers/b/evidence.3000.txt"),
        ("get_evidence", json!({"worker": "b", "tokens": 900}), "workers/b/evidence.900tok.txt"),
        ("get_evidence", json!({"run": "r1"}), "runs/r1/evidence.txt"),
        ("get_evidence", json!({"job": "1", "bytes": 1024}), "workers/a/evidence.1k.txt"),
        ("compare", json!({"workers": ["a", "b"]}), "compare/a..b"),
        (
            "compare",
            json!({"workers": ["a", "b", "c"], "aspect": "space", "bytes": 2048}),
            "compare.2k@space/a..b..c",
        ),
        ("changes_since", json!({"cursor": "0"}), "since/0"),
        ("search", json!({"query": "space left"}), "search/space left"),
        (
            "search",
            json!({"query": "number", "path": "runs/r1", "bytes": 1000}),
            "runs/r1/search.1000/number",
        ),
        ("search", json!({"query": "number", "workers": ["b"]}), "workers/b/search/number"),
        (
            "search",
            json!({"query": "full disk", "mode": "meaning", "bytes": 900}),
            "semantic.900/full disk",
        ),
        ("search", json!({"query": "space", "mode": "both"}), "search.both/space"),
        ("grep", json!({"pattern": "square is 4$"}), "grep/square is 4$"),
        (
            "grep",
            json!({"pattern": "SPACE", "ignore_case": true, "context": 1, "glob": "*.txt"}),
            "grep.i.ctx1@*.txt/SPACE",
        ),
        (
            "grep",
            json!({"pattern": "space", "path": "by/outcome/failed"}),
            "by/outcome/failed/grep/space",
        ),
        ("grep", json!({"pattern": "ok", "run": "r2"}), "runs/r2/grep/ok"),
        ("search", json!({"query": "ok", "run_id": "r1"}), "runs/r1/search/ok"),
        ("read_file", json!({"path": "workers/b/notes/a..b.txt"}), "workers/b/notes/a..b.txt"),
        (
            "read_file",
            json!({"path": "/runs/latest/../r1/workers/b/index.json"}),
            "workers/b/index.json",
        ),
        ("read_file", json!({"path": "search.1000/space left"}), "search.1000/space left"),
        ("get_tool_output", json!({"worker": "a", "call": 1}), "workers/a/tool_calls/001_sh.txt"),
        (
            "get_tool_output",
            json!({"worker": "a", "call": "001_sh.txt"}),
            "workers/a/tool_calls/001_sh.txt",
        ),
        (
            "get_tool_output",
            json!({"worker": "a", "call": "tool_calls/001_sh.txt"}),
            "workers/a/tool_calls/001_sh.txt",
        ),
    ] {
        assert_eq!(client.text(tool, arguments.clone()), file(&store, path), "{tool} {arguments}");
    }
}

#[test]
fn evidence_of_a_job_shares_one_budget() {
    let store = store();
    store.worker("d]%41", json!({"job_id": 2})).call("d]%41", 1, "sh", "{\"ok\": true}");
    let text = client(&store).text("get_evidence", json!({"job": "2", "bytes": 2000}));
    assert!(text.contains("(d]%41)"), "{text}");
    assert!(text.contains("(b)") && text.contains("(c)") && text.len() < 2_200, "{text}");
}

/// Promise: Long files come in pages with a cursor to the next.
#[test]
fn long_files_come_in_pages() {
    let store = store();
    let mut client = client(&store);
    let path = "workers/b/tool_calls/002_sh.txt";
    let whole = file(&store, path);
    for unit in ["lines", "bytes"] {
        let (mut read, mut offset, mut parts) = (String::new(), 0, 0);
        loop {
            let (texts, is_error) =
                client.call("read_file", json!({"path": path, "unit": unit, "offset": offset}));
            assert!(!is_error, "{texts:?}");
            read += &texts[0];
            parts += 1;
            let Some(note) = texts.get(1) else { break };
            assert!(
                note.contains(&format!("bytes {}-{} of {path}", read.len(), whole.len() - 1)),
                "{note}"
            );
            offset =
                note.rsplit("offset=").next().unwrap().trim_end_matches(" ...]").parse().unwrap();
        }
        assert!(read == whole && parts > 10, "{unit}: {parts}");
    }
    let (texts, _) = client.call("read_file", json!({"path": path, "offset": 3, "limit": 2}));
    assert_eq!(texts[0], "3 is a number and its square is 9\n4 is a number and its square is 16\n");
    let (texts, _) = client.call("read_file", json!({"path": path, "offset": 90_000}));
    assert_eq!(texts, [format!("[nothing at line 90000: {path} has 9000 lines]")]);
    let many: Vec<String> = (0..9).map(|number| format!("w{number}")).collect();
    let (texts, is_error) = client.call("compare", json!({"workers": many}));
    assert!(is_error && texts[0] == "cannot compare 9 workers; try at most 8", "{texts:?}");
    let (texts, _) = client
        .call("get_tool_output", json!({"worker": "b", "call": 2, "offset": 10, "limit": 20}));
    assert_eq!(texts[0], whole[10..30]);
}

#[test]
fn a_long_line_is_split_between_characters() {
    let store = store();
    let line = "é".repeat(40_000);
    store.write("workers/b/long.txt", &line);
    let mut client = client(&store);
    let (texts, _) = client.call("read_file", json!({"path": "workers/b/long.txt"}));
    assert!(
        texts[0].len() == 16_000
            && texts[1].contains("line 0 does not fit; continue with unit=bytes, offset=16000"),
        "{}",
        texts[1]
    );
    let (texts, _) = client
        .call("read_file", json!({"path": "workers/b/long.txt", "unit": "bytes", "limit": 15_999}));
    assert!(texts[0] == "é".repeat(7_999) && texts[1].contains("offset=15998"), "{}", texts[1]);
}

#[test]
fn content_that_is_not_text_is_described() {
    let store = store();
    let mut client = client(&store);
    let described =
        "[workers/b/tool_calls/003_sh.txt: binary, 7 B, begins with 7f454c46000000: not shown]";
    for (tool, arguments) in [
        ("read_file", json!({"path": "workers/b/tool_calls/003_sh.txt"})),
        ("get_tool_output", json!({"worker": "b", "call": 3})),
    ] {
        assert_eq!(client.text(tool, arguments), described);
    }
    let (texts, _) = client.call("read_file", json!({"path": "workers/b/notes/latin.txt"}));
    assert_eq!(
        texts,
        [
            "caf\u{fffd}\n",
            "[... workers/b/notes/latin.txt is not valid UTF-8; U+FFFD replaces invalid bytes ...]"
        ]
    );
}

#[test]
fn an_output_stored_outside_of_the_worker_is_returned() {
    let store = store();
    let (id, of_another) = ("0123456789abcdef0123456789abcdef", "1".repeat(32));
    for (id, owner) in [(id, 7), (of_another.as_str(), 8)] {
        store.write(format!("tool_outputs/{owner}/{id}.txt"), format!("what {owner} did"));
        store.write(
            format!("tool_outputs/{owner}/{id}.json"),
            json!({"artifact_id": id, "owner_id": owner}).to_string(),
        );
    }
    store.worker("d", json!({"config": {"owner_id": 7}}));
    store.call(
        "d",
        1,
        "ssh_exec",
        format!("[TOOL_OUTPUT:artifact_id={id},tool=ssh_exec,bytes=11]"),
    );
    store.worker("e", json!({"config": {"owner_id": 8}}));
    store.call(
        "e",
        1,
        "ssh_exec",
        format!("[TOOL_OUTPUT:artifact_id={of_another},tool=ssh_exec,bytes=11]"),
    );
    let mut client = Client::new(store.tree_of(Filter { owner: Some("7".into()), run: None }));
    for arguments in [
        json!({"artifact_id": id}),
        json!({"artifact_id": id.to_uppercase()}),
        json!({"worker": "d", "call": 1}),
    ] {
        assert_eq!(client.text("get_tool_output", arguments), "what 7 did");
    }
    let error = client.error("get_tool_output", json!({"artifact_id": of_another}));
    assert_eq!(error, client.error("get_tool_output", json!({"artifact_id": "2".repeat(32)})));
    assert_eq!(error, client.error("get_tool_output", json!({"artifact_id": ".*"})));
}

#[test]
fn workers_are_filtered_and_listed_in_pages() {
    let store = store();
    let mut client = client(&store);
    let mut ids = |arguments: Value| -> (Vec<String>, Value) {
        let listed: Value =
            serde_json::from_str(&client.call("list_workers", arguments).0[0]).unwrap();
        let id = |worker: &Value| worker["id"].as_str().unwrap().to_owned();
        (
            listed["workers"].as_array().unwrap().iter().map(id).collect(),
            listed["next_cursor"].clone(),
        )
    };
    for (arguments, wanted) in [
        (json!({}), &["a", "b", "c"][..]),
        (json!({"status": "failed"}), &["a"]),
        (json!({"status": "success"}), &["b", "c"]),
        (json!({"outcome": "failed", "type": "deploy"}), &["a"]),
        (json!({"tag": "x"}), &["a", "b"]),
        (json!({"run": "r2"}), &["c"]),
        (json!({"tag": "no"}), &[]),
    ] {
        assert_eq!(
            ids(arguments.clone()),
            (wanted.iter().map(|id| (*id).to_owned()).collect(), Value::Null),
            "{arguments}"
        );
    }
    let (first, cursor) = ids(json!({"limit": 2}));
    assert_eq!((first, &cursor), (vec!["a".to_owned(), "b".to_owned()], &json!("b")));
    assert_eq!(ids(json!({"limit": 2, "cursor": cursor})), (vec!["c".to_owned()], Value::Null));
    // A list that does not fit continues with a cursor.
    for n in 0..600 {
        store.worker(&format!("w{n}"), json!({"task": "a task of some length ".repeat(8)}));
    }
    let (mut all, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let text = client.text("list_workers", json!({"limit": 1_000, "cursor": cursor}));
        assert!(text.len() < 28_000, "{}", text.len());
        let listed: Value = serde_json::from_str(&text).unwrap();
        all.extend(listed["workers"].as_array().unwrap().iter().map(|worker| worker["id"].clone()));
        cursor = listed["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
        assert_eq!(listed["omitted"], 603 - all.len());
    }
    assert_eq!(all.len(), 603);
}

#[test]
fn list_is_newest_first_and_compact() {
    let store = TestStore::new();
    for (id, at) in [("old", "2026-01-02T10:00:00Z"), ("new", "2026-01-05T10:00:00Z")] {
        let more = json!({"created_at": at, "started_at": null, "finished_at": null, "cwd": "/srv/app",
            "task": "Fix the parser.", "owner_id": null});
        store.worker(id, more).call(id, 1, "sh", "{\"ok\": true}");
    }
    store.worker(
        "mid",
        json!({"created_at": "2026-01-03T10:00:00Z", "task": "Test it.",
        "status": "failed", "error": "no disk", "cwd": "/srv/api"}),
    );
    let mut client = client(&store);
    let mut listed = |arguments: Value| -> Vec<Value> {
        let text = client.text("list_workers", arguments);
        serde_json::from_str::<Value>(&text).unwrap()["workers"].as_array().unwrap().clone()
    };
    let all = listed(json!({}));
    let ids = |rows: &[Value]| -> Vec<String> {
        rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&all), ["new", "mid", "old"]);
    let keys: Vec<&str> = all[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["id", "title", "status", "outcome", "began", "project", "calls", "files_changed"]
    );
    assert_eq!((&all[1]["attention"], &all[1]["why"]), (&json!("high"), &json!("failed: no disk")));
    for (filter, expected) in [
        (json!({"day": "2026-01-01..2026-01-03"}), &["mid", "old"][..]),
        (json!({"day": "2026-01-05"}), &["new"]),
        (json!({"since": "2026-01-03"}), &["new", "mid"]),
        (json!({"since": "2026-01-03T10:00:01Z"}), &["new"]),
        (json!({"project": "api"}), &["mid"]),
        (json!({"tool": "sh"}), &["new", "old"]),
        (json!({"text": "PARSER"}), &["new", "old"]),
        (json!({"attention": "HIGH"}), &["mid"]),
    ] {
        assert_eq!(ids(&listed(filter.clone())), expected, "{filter}");
    }
}

#[test]
fn list_without_a_match_names_the_values_that_exist() {
    let (store, empty) = (store(), TestStore::new());
    let filters = json!({"tag": "y", "status": "failed"});
    let (texts, _) = client(&store).call("list_workers", filters);
    let note =
        "[... no worker matches all of these filters; statuses: completed, failed; outcomes: ";
    assert!(texts[1].starts_with(note), "{texts:?}");
    let (texts, _) = client(&empty).call("list_workers", json!({}));
    assert_eq!(texts, ["{\"workers\":[\n]}", "[... there are no workers yet ...]"]);
}

#[test]
fn folders_are_listed_inspected_and_matched_by_glob() {
    let store = store();
    let mut client = client(&store);
    let mut list = |arguments: Value| -> Vec<Value> {
        let listed: Value = serde_json::from_str(&client.text("list_dir", arguments)).unwrap();
        listed["entries"].as_array().unwrap().clone()
    };
    assert_eq!(
        list(json!({"path": "workers/b/notes"})),
        [
            json!({"path": "workers/b/notes/a..b.txt", "kind": "file"}),
            json!({"path": "workers/b/notes/latin.txt", "kind": "file"})
        ]
    );
    let inner = list(json!({"path": "workers/b", "recursive": true, "details": true}));
    let notes = inner.iter().find(|entry| entry["path"] == "workers/b/notes/a..b.txt").unwrap();
    assert_eq!((&notes["size"], &notes["kind"]), (&json!(5), &json!("file")));
    let latest = list(json!({"path": "runs", "details": true})).swap_remove(0);
    assert!(
        latest["path"] == "runs/latest"
            && latest["kind"] == "link"
            && latest["target"].as_str().unwrap().starts_with('r')
    );
    let info: Value =
        serde_json::from_str(&client.text("info", json!({"path": "workers/b/summary"}))).unwrap();
    assert_eq!(info["size"], file(&store, "workers/b/summary").len());
    for (path, answer) in [
        ("workers/a", json!({"exists": true, "kind": "folder"})),
        ("runs/latest", json!({"exists": true, "kind": "link"})),
        ("workers/z", json!({"exists": false})),
        ("workers/a/summary/x", json!({"exists": false})),
        ("\0", json!({"exists": false})),
    ] {
        let exists: Value =
            serde_json::from_str(&client.text("exists", json!({"path": path}))).unwrap();
        assert_eq!(exists, answer, "{path:?}");
    }
    for (pattern, paths) in [
        (
            "workers/*/tool_calls/001_*.txt",
            &[
                "workers/a/tool_calls/001_sh.txt",
                "workers/b/tool_calls/001_sh.txt",
                "workers/c/tool_calls/001_sh.txt",
            ][..],
        ),
        (
            "workers/b/**/*.txt",
            &[
                "workers/b/evidence.txt",
                "workers/b/notes/a..b.txt",
                "workers/b/notes/latin.txt",
                "workers/b/tool_calls/001_sh.txt",
                "workers/b/tool_calls/002_sh.txt",
                "workers/b/tool_calls/003_sh.txt",
            ],
        ),
        ("*.{txt,json}", &["evidence.txt", "index.json"]),
        ("workers/b", &["workers/b"]),
    ] {
        let mut found: Vec<String> =
            client.text("glob", json!({"pattern": pattern})).lines().map(str::to_owned).collect();
        found.sort();
        assert_eq!(found, paths, "{pattern}");
    }
    assert_eq!(
        client.text("glob", json!({"pattern": "nowhere/*.txt"})),
        "[... nothing matches ...]"
    );
}

/// Promise: A hit that a worker's records repeat counts once.
#[test]
fn grep_counts_a_repeated_hit_once_in_every_mode() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "sh", "no space\nleft\n");
    let message = json!({"role": "tool", "content": "no space\nleft\n"});
    store.write("workers/w/thread.jsonl", format!("{message}\n"));
    let mut client = client(&store);
    for (mode, lines) in [
        ("content", "workers/w/tool_calls/001_sh.txt:1:no space\n[also in thread.jsonl]\n"),
        ("files_with_matches", "workers/w/tool_calls/001_sh.txt\n"),
        ("count", "workers/w/tool_calls/001_sh.txt:1\n"),
    ] {
        let answer = client.text("grep", json!({"pattern": "space", "mode": mode}));
        let (head, found) = answer.split_once('\n').unwrap();
        assert!(head.contains(": 1 line in 1 file of 1 worker; "), "{mode}: {head}");
        assert_eq!(found, lines, "{mode}");
    }
}

#[test]
fn grep_returns_files_and_counts() {
    let store = store();
    let mut client = client(&store);
    let mut grep = |arguments: Value| client.text("grep", arguments);
    let files = grep(
        json!({"pattern": "space|square", "mode": "files_with_matches", "glob": "tool_calls/*"}),
    );
    let mut lines = files.lines();
    assert!(
        lines.next().unwrap().contains("9001 lines in 2 files of 2 workers; searched 4 files"),
        "{files}"
    );
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["workers/a/tool_calls/001_sh.txt", "workers/b/tool_calls/002_sh.txt"]
    );
    let counts = grep(json!({"pattern": "square", "mode": "count"}));
    assert!(counts.ends_with("]\nworkers/b/tool_calls/002_sh.txt:9000\n"), "{counts}");
    let small = grep(json!({"pattern": ".", "mode": "count", "bytes": 300}));
    assert!(small.len() <= 300 && small.ends_with(" more files ...]\n"), "{small}");
    let both = grep(json!({"pattern": "true", "workers": ["b", "workers/c", "b"], "bytes": 2000}));
    assert!(both.starts_with("[grep.2000/true: 2 lines in 2 files of 2 workers;"), "{both}");
    let found =
        client.text("search", json!({"query": "number", "workers": ["a", "b"], "bytes": 2000}));
    assert!(
        found.lines().next().unwrap().contains("of 1 worker") && found.contains("workers/b/"),
        "{found}"
    );
    assert!(
        client
            .error("search", json!({"query": "x", "workers": ["a", "nobody"]}))
            .contains("list_workers")
    );
}

/// Promise: Empty arguments count as absent, and nearly right ones are understood.
#[test]
fn empty_arguments_are_absent_and_near_misses_understood() {
    let store = store();
    let mut client = client(&store);
    let summary = file(&store, "workers/a/summary");
    assert_eq!(client.text("summarize", json!({"worker": "workers/a", "focus": ""})), summary);
    for (tool, empty, without) in [
        ("list_dir", json!({"path": "", "cursor": ""}), json!({})),
        (
            "grep",
            json!({"pattern": "space", "path": "", "glob": "", "workers": []}),
            json!({"pattern": "space"}),
        ),
        ("get_evidence", json!({"worker": "", "job": "", "run": ""}), json!({})),
        ("compare", json!({"workers": ["a", "b"], "aspect": ""}), json!({"workers": ["a", "b"]})),
        (
            "list_workers",
            json!({"status": "", "tag": "", "outcome": "FAILED"}),
            json!({"outcome": "failed"}),
        ),
        ("get_tool_output", json!({"worker": "a", "call": "1"}), json!({"worker": "a", "call": 1})),
    ] {
        assert_eq!(client.text(tool, empty), client.text(tool, without), "{tool}");
    }
    let (texts, _) = client.call("list_workers", json!({"outcome": "faild"}));
    assert!(texts[1].contains("outcomes: failed, ok"), "{texts:?}");
    let deep = client.text("glob", json!({"pattern": "runs/*/workers/*/summary"}));
    assert!(
        deep.contains("runs/r1/workers/a/summary\n") && deep.contains("runs/latest/workers/"),
        "{deep}"
    );
    let inner = client.text("glob", json!({"pattern": "*.txt", "path": "workers/b/notes"}));
    assert_eq!(inner, "workers/b/notes/a..b.txt\nworkers/b/notes/latin.txt\n");
}

/// Promise: Tools take a marker or the beginning of an id as a worker, and the names of a marker's
/// parts as arguments.
#[test]
fn workers_are_named_by_markers_and_beginnings_of_ids() {
    let store = TestStore::new();
    for (id, owner) in [("build-1", "A"), ("build-2", "A"), ("deploy 1", "A"), ("deploy-x", "B")] {
        let more = json!({"owner_id": owner, "run_id": "r1", "job_id": 7});
        store.worker(id, more).call(id, 1, "sh", "{\"ok\": true}");
    }
    let mut client = Client::new(store.tree_of_owner("A"));
    let marker = "[EVIDENCE:run_id=r1,job_id=7,worker_id=deploy%201]";
    for name in ["deploy 1", "depl", "workers/depl", marker] {
        for (tool, arguments, whole) in [
            ("summarize", json!({"worker_id": name}), json!({"worker": "deploy 1"})),
            (
                "get_evidence",
                json!({"worker_id": name, "budget_bytes": 900}),
                json!({"worker": "deploy 1", "bytes": 900}),
            ),
            (
                "get_tool_output",
                json!({"worker_id": name, "call": 1}),
                json!({"worker": "deploy 1", "call": 1}),
            ),
            (
                "grep",
                json!({"pattern": "ok", "worker_ids": [name, "build-1"], "budget_bytes": 2000}),
                json!({"pattern": "ok", "workers": ["deploy 1", "build-1"], "bytes": 2000}),
            ),
            (
                "search",
                json!({"query": "ok", "worker_ids": [name, "deploy 1", "build-2"]}),
                json!({"query": "ok", "workers": ["deploy 1", "build-2"]}),
            ),
        ] {
            let (given, expected) = (client.text(tool, arguments), client.text(tool, whole));
            assert_eq!(given, expected, "{tool} {name}");
        }
        let workers = json!({"worker_ids": [name, "build-1"], "budget_bytes": 3000});
        let compared = client.text("compare", workers);
        assert!(compared.contains("deploy 1") && !compared.contains("not a worker"), "{compared}");
    }
    for (arguments, same) in [
        (json!({"run_id": "r1"}), json!({"run": "r1"})),
        (json!({"job_id": "7"}), json!({"job": "7"})),
    ] {
        assert_eq!(client.text("get_evidence", arguments), client.text("get_evidence", same));
    }
    for (tool, arguments) in [
        ("summarize", json!({"worker": "buil"})),
        ("get_tool_output", json!({"worker": "buil", "call": 1})),
        ("grep", json!({"pattern": "ok", "workers": ["buil", "deploy 1"]})),
        ("compare", json!({"workers": ["buil", "deploy 1"]})),
    ] {
        let answer = client.error(tool, arguments);
        assert!(answer.contains("ambiguous: build-1, build-2"), "{tool}: {answer}");
    }
    // Absent and foreign workers get the same answer.
    for tool in ["summarize", "get_evidence"] {
        let mut answer = |id: &str| client.error(tool, json!({"worker": id})).replace(id, "ID");
        assert_eq!(answer("deploy-x"), answer("deploy-y"), "{tool}");
        assert_eq!(answer("deploy-"), answer("deploy+"), "{tool}");
    }
}

/// Promise: A page that would begin inside a character begins with the next one.
#[test]
fn pages_begin_at_character_boundaries() {
    let store = store();
    store.write("workers/b/wide.txt", "é😀é");
    let mut client = client(&store);
    let mut read = |offset: u64, limit: u64| {
        client
            .call("read_file", json!({"path": "workers/b/wide.txt", "unit": "bytes", "offset": offset, "limit": limit}))
            .0
    };
    let (texts, one) = (read(3, 100), read(2, 1));
    assert_eq!(texts, ["é", "[... begins with the next whole character, at byte 6 ...]"]);
    assert_eq!(
        one,
        [
            "😀",
            "[... 2 B omitted: bytes 6-7 of workers/b/wide.txt; continue with unit=bytes, offset=6 ...]"
        ]
    );
    store.write("workers/b/empty.txt", "");
    assert_eq!(
        client.text("read_file", json!({"path": "workers/b/empty.txt", "unit": "bytes"})),
        ""
    );
}

/// Promise: The answer to a bad request explains how to fix it.
#[test]
fn bad_request_is_explained() {
    let store = store();
    let mut client = client(&store);
    for (tool, arguments, says) in [
        ("read_file", json!({}), "missing field `path`"),
        ("read_file", json!({"path": 7}), "expected a string"),
        (
            "read_file",
            json!({"path": "summary", "lines": 3}),
            "unknown field `lines`, expected one of `path`, `offset`, `limit`, `unit`",
        ),
        ("read_file", json!({"path": "workers"}), "try list_dir"),
        (
            "read_file",
            json!({"path": "workers/../../etc/passwd"}),
            "no such file or folder in this view",
        ),
        (
            "read_file",
            json!({"path": "nowhere\u{1b}[31m"}),
            "nowhere\\u{1b}[31m: no such file or folder",
        ),
        (
            "list_dir",
            json!({"path": "nowhere"}),
            "paths begin at the root of the tree; try list_dir",
        ),
        (
            "get_evidence",
            json!({"worker": "a", "run": "r1"}),
            "name only one of worker, job and run",
        ),
        ("get_evidence", json!({"worker": "a", "bytes": 1, "tokens": 1}), "either bytes or tokens"),
        ("get_evidence", json!({"worker": ".."}), "try list_workers"),
        ("get_evidence", json!({"worker": "../workers/a"}), "try list_workers"),
        ("get_evidence", json!({"worker": "a", "bytes": 100_000_000}), "at most 1048576 bytes"),
        ("get_tool_output", json!({"worker": "a", "call": -1}), "there is no such call"),
        ("list_dir", json!({"path": "summary"}), "not a folder; try read_file"),
        ("list_dir", json!({"path": "x".repeat(10_000)}), "…: "),
        ("get_tool_output", json!({"worker": "a"}), "name a worker and a call"),
        ("get_tool_output", json!({"worker": "a", "call": 9}), "there is no such call"),
        ("compare", json!({"workers": ["a"]}), "a"),
        ("compare", json!({"workers": ["a", "nobody"]}), "nobody is not a worker here"),
        ("changes_since", json!({"cursor": "yesterday"}), "cursor"),
        ("grep", json!({"pattern": "("}), "unclosed group"),
        (
            "grep",
            json!({"pattern": "x", "mode": "lines"}),
            "expected one of `content`, `files_with_matches`, `count`",
        ),
        ("grep", json!({"pattern": "x", "path": "by/status"}), "cannot search by/status"),
        (
            "grep",
            json!({"pattern": "x", "path": "by/type", "run": "r1"}),
            "name only one of workers, run and path",
        ),
        ("grep", json!({"pattern": "x", "run": "../workers/a"}), "no such"),
        ("search", json!({"query": "x", "run": "nowhere"}), "no such"),
        ("search", json!({"query": "tool:sh"}), "search"),
        ("glob", json!({"pattern": "["}), "unclosed character class"),
        ("list_workers", json!({"cursor": "gone"}), "list again without it"),
        ("list_workers", json!({"since": "yesterday"}), "give a day as 2026-02-15"),
    ] {
        let error = client.error(tool, arguments.clone());
        assert!(error.contains(says) && error.len() < 1_000, "{tool} {arguments}: {error}");
    }
}

#[test]
fn resources_are_the_files_of_the_tree() {
    let store = store();
    let mut client = client(&store);
    let listed = client.ask("resources/list", json!({}));
    let uris: Vec<&str> = listed["result"]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["uri"].as_str().unwrap())
        .collect();
    assert!(
        uris.contains(&"swarm:///summary") && uris.contains(&"swarm:///workers/b/summary"),
        "{uris:?}"
    );
    for uri in uris
        .into_iter()
        .chain(["swarm:///workers/b/notes/a..b.txt", "swarm:///grep/square%20is%204$"])
    {
        let read = client.ask("resources/read", json!({"uri": uri}));
        let path = uri.strip_prefix("swarm:///").unwrap().replace("%20", " ");
        assert_eq!(read["result"]["contents"][0]["text"], file(&store, &path), "{uri}");
    }
    for uri in ["swarm:///nowhere", "file:///etc/passwd", "swarm:///../../etc/passwd", ""] {
        let read = client.ask("resources/read", json!({"uri": uri}));
        assert_eq!(read["error"]["code"], -32002, "{read}");
    }
}

#[test]
fn tools_are_described_with_typed_arguments() {
    let mut client = client(&store());
    let listed = client.ask("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 14);
    for tool in tools {
        assert!(tool["description"].as_str().unwrap().len() > 60, "{tool}");
        assert_eq!(
            (&tool["inputSchema"]["type"], &tool["annotations"]["readOnlyHint"]),
            (&json!("object"), &json!(true))
        );
        for (name, property) in tool["inputSchema"]["properties"].as_object().into_iter().flatten()
        {
            let is_told = property["description"].is_string();
            assert!(is_told, "{name} of {tool}");
        }
    }
}

/// Promise: A panic is an error for the requesting client only.
#[test]
fn panic_is_an_error_of_one_request() {
    let plan = FaultPlan::none();
    let memory = Arc::new(Memory::new());
    for n in 0..3 {
        memory.write(
            &RelPath::parse(format!("workers/w{n}/metadata.json")).unwrap(),
            "{\"status\": \"success\"}",
        );
        memory.write(
            &RelPath::parse(format!("workers/w{n}/tool_calls/001_sh.txt")).unwrap(),
            "{\"ok\": true}",
        );
    }
    let freshness = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let source = Source::from_store(
        Arc::new(InterceptedStore::new(FaultInjector(plan.clone()), memory)),
        None,
    );
    let tree = Tree::new(
        View::new(vec![source], freshness, Filter::default()).unwrap(),
        Settings::default(),
    );
    let mut client = Client::new(tree);
    let good = client.text("summarize", json!({"worker": "w1"}));
    let mut refused = 0;
    for k in 1..40 {
        plan.fail(k, Fault::Panic, false);
        let answer =
            client.ask("tools/call", json!({"name": "summarize", "arguments": {"worker": "w1"}}));
        let is_met = plan.heal();
        let text = answer["result"]["content"][0]["text"].as_str();
        let is_refused = answer["error"]["code"] == -32603;
        assert!(text.is_some() || is_refused, "{answer}");
        refused += usize::from(is_refused);
        assert_eq!(
            client.text("summarize", json!({"worker": "w1"})),
            good,
            "after a panic at call {k}"
        );
        if !is_met {
            assert!(k > 3 && refused > 0, "{refused} of {k} calls");
            return;
        }
    }
}

/// Promise: A store that replaces another is served in its place.
#[test]
fn replaced_store_is_served() {
    let store = store();
    let path = store.path();
    let at = path.clone();
    let tree = move || {
        let view =
            View::new(vec![Source::open(&at).ok()?], Freshness::default(), Filter::default())
                .ok()?;
        Some(Tree::new(view, Settings::default()))
    };
    let mut client = Client::with_served_tree(ServedTree::new(tree().unwrap(), tree));
    assert_eq!(
        client.text("exists", json!({"path": "workers/a"})),
        "{\"exists\":true,\"kind\":\"folder\"}"
    );
    fs::rename(&path, path.with_extension("old")).unwrap();
    fs::create_dir_all(path.join("workers/other/tool_calls")).unwrap();
    let begun = Instant::now();
    while client.text("exists", json!({"path": "workers/other"}))
        != "{\"exists\":true,\"kind\":\"folder\"}"
    {
        assert!(begun.elapsed() < PATIENCE, "the new store is not served");
    }
    assert_eq!(client.text("exists", json!({"path": "workers/a"})), "{\"exists\":false}");
}
