//! Tests of malicious transcripts: names, IDs, sizes and depths that no program writes.

use std::time::{Duration, Instant};

use super::*;
use crate::support::patience;
use crate::support::see;
use crate::support::transcript::{PROJECT, path};

/// Names and IDs that may be misinterpreted.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a/b",
        "..",
        ".",
        "../../etc/passwd",
        "/etc/passwd",
        "a\nb",
        "a\0b",
        "\u{202e}gnp",
        "x.jsonl",
        "x.txt",
        "index.json",
        "summary",
        "evidence.txt",
        "children",
        "tool_calls",
        "source.jsonl",
        "%2F",
        "~2",
        "s~2",
        " ",
        "-rf",
        "latest",
        ".own",
        "\u{1b}[31m",
        "[EVIDENCE:run_id=1,job_id=1,worker_id=x]",
        "subagents",
        "agent-",
        "agent-x.jsonl",
        "é漢😀",
    ]
    .map(str::to_owned)
    .into();
    names.extend([
        "x".repeat(1_500),
        "/".repeat(1_500),
        "漢".repeat(500),
        format!("{}.jsonl", "y".repeat(1_500)),
    ]);
    names.extend(["x".repeat(1_499) + "y", "x".repeat(250), "x".repeat(200), "x".repeat(192)]);
    names
}

#[test]
fn names_and_ids_of_any_kind_are_shown_and_found() {
    let mut transcript = begun();
    for name in names() {
        let id = format!("id of {name}");
        transcript
            .call(&id, &name, json!({"command": name, name.clone(): name}))
            .result(&id, json!({"content": name}));
        // Use it as an ID, too.
        transcript
            .call(&name, "Read", json!({}))
            .result(&name, json!({"content": "<persisted-output>"}));
        transcript.line(
            json!({"type": name, "uuid": name, "parentUuid": name, "cwd": name, "gitBranch": name}),
        );
    }
    let seen = shown(&transcript);
    let (index, files) = (seen.index("s"), seen.calls("s"));
    assert_eq!(files.len(), 2 * names().len());
    assert!(files.iter().all(|file| file.len() <= 204 && file.ends_with(".txt")), "{files:?}");
    for (at, name) in names().iter().enumerate() {
        let one = call(&index, 2 * at + 1);
        let file = one["file"].as_str().unwrap();
        assert_eq!(seen.text("s", file), name);
        assert!(!file.chars().any(|c| c.is_control() || c == '\u{202e}'), "{file:?}");
    }
    // No name breaks the generated text.
    for file in ["summary", "evidence.txt", "index.json"] {
        let text = seen.text("s", file);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{file}: {text}");
    }
    assert_eq!(seen.text("s", "summary").matches("[EVIDENCE:").count(), 1);
}

#[test]
fn subagents_of_any_name_get_distinct_worker_names() {
    let mut transcript = begun();
    for name in names() {
        transcript.progress(&name, "user", json!({"content": format!("task of {}", name.len())}));
        transcript
            .line(json!({"type": "user", "isSidechain": true, "agentId": format!("side {name}"),
            "message": {"content": "x"}}));
        transcript.line(json!({"type": "user", "isSidechain": true, "uuid": format!("old {name}"), "parentUuid": null,
            "message": {"content": "x"}}));
    }
    let seen = shown(&transcript);
    assert_eq!(seen.workers().len(), 1 + 3 * names().len());
    for worker in seen.workers().iter().filter(|worker| *worker != "s") {
        assert_eq!(seen.index(worker)["parent_id"], "s", "{worker}");
        assert!(seen.has("s", &format!("children/{worker}")), "{worker}");
        assert!(worker.len() <= 210, "{worker}");
    }
}

#[test]
fn subagents_named_like_sessions_are_separate_workers() {
    let store = store();
    let mut first = Transcript::new("one");
    first.user("the task of one").progress(
        "two",
        "user",
        json!({"content": "a subagent called two"}),
    );
    first.progress("one", "user", json!({"content": "a subagent called one"})).says("done");
    let mut second = Transcript::new("two");
    second.user("the task of two").says("done");
    put(&store, "one", &first);
    put(&store, "two", &second);
    let seen = read_once(&store);
    assert_eq!(seen.workers(), ["one", "one~2", "two", "two~2"]);
    assert_eq!(seen.index("one")["task"], "the task of one");
    assert_eq!(seen.index("one~2")["task"], "a subagent called one");
    assert_eq!(seen.index("two")["task"], "the task of two");
    assert_eq!(seen.index("two~2")["parent_id"], "one");
    assert!(seen.has("one", "children/two~2") && !seen.has("one", "children/two"));
}

#[test]
fn a_session_is_named_by_its_file_whatever_its_lines_say() {
    let store = store();
    for other in ["another", "../../x", "", "x\0", &"y".repeat(3_000)] {
        let mut transcript = Transcript::new(other);
        transcript
            .call("t", "Bash", json!({"command": "x"}))
            .result("t", json!({"content": "<persisted-output>"}));
        put(&store, "s", &transcript);
        store.write(&path(format!("{PROJECT}/another/tool-results/t.txt")), "SECRET");
        let mut agent = Transcript::of_agent(other, "zzz");
        agent.user("look").bash("t", "x", "y");
        store.write(&path(format!("{PROJECT}/s/subagents/agent-a.jsonl")), agent.bytes());
        let seen = read_once(&store);
        assert_eq!(seen.workers(), ["a", "s"]);
        assert_eq!(
            (&seen.index("s")["run_id"], &seen.index("a")["parent_id"]),
            (&json!("s"), &json!("s"))
        );
        assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "<persisted-output>");
    }
    // For an old subagent, only its lines name it, and they may hold anything.
    for other in ["../../x", "", "x\0", &"y".repeat(3_000), "\u{202e}"] {
        let mut agent = Transcript::of_agent(other, "old");
        agent
            .call("t", "Bash", json!({"command": "x"}))
            .result("t", json!({"content": "<persisted-output>"}));
        store.write(&path(format!("{PROJECT}/agent-old.jsonl")), agent.bytes());
        let seen = read_once(&store);
        assert_eq!(seen.text("old", "tool_calls/001_Bash.txt"), "<persisted-output>");
    }
}

#[test]
fn folders_named_like_transcripts_are_skipped() {
    let store = store();
    let transcript = begun();
    for at in [
        "projects/p.jsonl/inner.jsonl",
        "projects/p/s.jsonl/x",
        "projects/p/q.jsonl/subagents/agent-a.jsonl",
        "projects/p/r/subagents/workflows/w.jsonl/agent-b.jsonl",
        "projects/p/r/subagents/agent-c.jsonl/agent-d.jsonl",
        "projects/p/ok.jsonl",
        "projects/subagents/agent-e.jsonl",
        "projects/p/subagents/subagents/agent-f.jsonl",
        "projects/.jsonl",
        "projects/p/.jsonl",
        "projects/p/agent-.jsonl",
    ] {
        store.write(&path(at), transcript.bytes());
    }
    let seen = read_once(&store);
    assert!(seen.workers().contains(&"ok".to_owned()), "{:?}", seen.workers());
    for worker in seen.workers() {
        assert_eq!(seen.index(&worker)["task"], "look around", "{worker}");
    }
}

#[test]
fn lines_of_megabytes_are_read_and_larger_ones_are_counted() {
    let text = "a line of ten megabytes\n".repeat(450_000);
    let mut transcript = begun();
    transcript.call("t", "Read", json!({"file_path": "/x"})).result("t", json!({"content": text}));
    transcript.user(text.clone());
    transcript.call("u", "Write", json!({"content": "x".repeat(17 << 20)}));
    transcript.says("done");
    let bytes = transcript.bytes();
    let store = store();
    store.write(&place("s"), bytes);
    let tree = tree(&store);
    let index = crate::formats::index(&tree, "s");
    assert_eq!(
        (&index["source"]["lines"], &index["source"]["unparsable_lines"]),
        (&json!(6), &json!(1))
    );
    assert_eq!(
        (&call(&index, 1)["bytes"], &index["status"]),
        (&json!(text.len()), &json!("completed"))
    );
    assert!(see(&tree, "workers/s/tool_calls/001_Read.txt").unwrap().text() == text);
    let thread = see(&tree, "workers/s/thread.jsonl").unwrap();
    assert_eq!(thread.text().lines().count(), 5);
}

#[test]
fn deep_nesting_costs_one_line_and_no_stack() {
    for (head, unit, tail) in [
        (r#"{"type":"user","uuid":"u","message":{"content":"#, "[", ""),
        (
            r#"{"type":"user","uuid":"u","message":{"content":"#,
            r#"[{"type":"tool_result","content":"#,
            "",
        ),
        (r#"{"type":"user","uuid":"u","x":"#, "[", ""),
        (r#"{"type":"user","uuid":"u","message":{"x":"#, r#"{"a":"#, ""),
        (
            r#"{"type":"assistant","uuid":"u","message":{"content":[{"type":"tool_use","id":"deep","input":"#,
            r#"{"a":"#,
            "",
        ),
        (r#"{"type":"user","uuid":"u","toolUseResult":"#, "[", ""),
        (r#"{"type":"progress","data":{"type":"agent_progress","message":"#, r#"{"message":"#, ""),
    ] {
        for depth in [100, 130, 100_000] {
            let open = head.to_owned() + &unit.repeat(depth);
            let mut closing = String::new();
            let mut in_string = false;
            for c in open.chars() {
                match c {
                    '"' => in_string = !in_string,
                    '{' if !in_string => closing.push('}'),
                    '[' if !in_string => closing.push(']'),
                    _ => {}
                }
            }
            let close: String = closing.chars().rev().collect();
            let mut transcript = begun();
            transcript
                .raw(format!("{open}1{close}{tail}\n"))
                .raw(format!("{open}\n"))
                .says("after");
            let seen = shown(&transcript);
            assert_eq!(seen.text("s", "result.txt"), "after", "{head} {depth}");
            assert!(
                seen.index("s")["source"]["unparsable_lines"].as_u64().unwrap() <= 2,
                "{head} {depth}"
            );
        }
    }
}

/// Fails if `work` takes unreasonably long, as quadratic algorithms do.
fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    let most = patience(Duration::from_secs(60));
    assert!(begun.elapsed() < most, "{what} took {:?}", begun.elapsed());
    result
}

#[test]
fn calls_beyond_the_hundred_thousandth_are_counted() {
    let mut bytes = begun().bytes();
    for line in 0..2_000 {
        let uses: Vec<String> = (0..100)
            .map(|n| format!(r#"{{"type":"tool_use","id":"{line}.{n}","name":"t"}}"#))
            .collect();
        bytes.extend(
            format!(
                "{{\"type\":\"assistant\",\"message\":{{\"content\":[{}]}}}}\n",
                uses.join(",")
            )
            .bytes(),
        );
    }
    for line in 0..20 {
        let results: Vec<String> = (0..100)
            .map(|n| {
                format!(
                    r#"{{"type":"tool_result","tool_use_id":"{}.{n}","content":"x"}}"#,
                    line * 100
                )
            })
            .collect();
        bytes.extend(
            format!("{{\"type\":\"user\",\"message\":{{\"content\":[{}]}}}}\n", results.join(","))
                .bytes(),
        );
    }
    let store = store();
    store.write(&place("s"), bytes);
    let tree = tree(&store);
    let index = in_time("the index", || crate::formats::index(&tree, "s"));
    assert_eq!(index["calls"]["total"], 100_000);
    let source = &index["source"];
    assert_eq!(source["calls_not_shown"], 100_000);
    // Half of the results belong to calls that are not shown.
    assert_eq!(
        (&source["results_without_calls"], &source["calls_without_results"]),
        (&json!(1_000), &json!(99_000))
    );
    let thread = in_time("the thread", || see(&tree, "workers/s/thread.jsonl").unwrap());
    assert_eq!(thread.text().lines().count(), 1 + 2_000 + 2_000);
    let last = in_time("a call", || see(&tree, "workers/s/tool_calls/90001_t.txt").unwrap());
    assert_eq!(last.text(), "x");
    assert!(see(&tree, "workers/s/tool_calls/100001_t.txt").is_err());
}

#[test]
fn subagents_beyond_the_ten_thousandth_are_counted() {
    let mut bytes = begun().bytes();
    for agent in 0..12_000 {
        for kind in ["user", "assistant"] {
            let inner = format!(r#"{{"type":"{kind}","message":{{"content":"task {agent}"}}}}"#);
            let data =
                format!(r#"{{"type":"agent_progress","agentId":"a{agent}","message":{inner}}}"#);
            bytes.extend(format!("{{\"type\":\"progress\",\"data\":{data}}}\n").bytes());
        }
    }
    let store = store();
    store.write(&place("s"), bytes);
    let tree = in_time("the tree", || tree(&store));
    let index = in_time("the index", || crate::formats::index(&tree, "s"));
    let check = index["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "workers_not_shown")
        .unwrap();
    assert!(check["says"].as_str().unwrap().starts_with("4000 lines"), "{check}");
    let names = in_time("the list", || crate::formats::listed(&tree));
    assert_eq!(names.len(), 10_001);
    let last = in_time("a subagent", || crate::formats::index(&tree, "a9999"));
    assert_eq!(last["task"], "task 9999");
}
