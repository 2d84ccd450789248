//! Tests of tool calls: files, inputs and durations; and of the last message.

use super::*;

#[test]
fn a_file_name_gives_number_and_tool_even_with_underscores() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for name in [
        "001_ssh_exec",
        "002_run",
        "003_a_b_c",
        "004__private",
        "999_last_but_one",
        "1000_ssh_exec",
        "1001_x.y",
    ] {
        store.write(format!("workers/w/tool_calls/{name}.txt"), "out");
    }
    let index = index(&store.tree(), "w");
    let calls: Vec<(u64, &str)> = index["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| (call["seq"].as_u64().unwrap(), call["tool"].as_str().unwrap()))
        .collect();
    let expected = [
        (1, "ssh_exec"),
        (2, "run"),
        (3, "a_b_c"),
        (4, "_private"),
        (999, "last_but_one"),
        (1000, "ssh_exec"),
        (1001, "x.y"),
    ];
    assert_eq!(calls, expected, "by number, not by text: 1000 comes after 999");
    assert_eq!(call(&index, 1000)["file"], "tool_calls/1000_ssh_exec.txt");
}

#[test]
fn inputs_are_read_from_both_forms_of_threads() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for (number, tool) in [(1, "ssh_exec"), (2, "read_file"), (3, "ssh_exec"), (4, "ssh_exec")] {
        store.call("w", number, tool, "out");
    }
    let lines = [
        json!({"role": "user", "content": "go", "timestamp": null}),
        json!({"role": "assistant", "content": "", "timestamp": "2026-01-20T10:00:00Z", "tool_calls": [
            {"id": "1", "name": "ssh_exec", "args": {"command": "df -h"}},
            {"id": "2", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"/etc/hosts\"}"}}]}),
        json!({"role": "tool", "content": "out", "timestamp": null, "tool_call_id": "1", "name": "ssh_exec"}),
        json!({"role": "assistant", "content": "and again", "timestamp": null, "tool_calls": [
            {"id": "3", "name": "ssh_exec", "args": {"command": "uptime"}}]}),
    ];
    let thread: Vec<String> = lines.iter().map(Value::to_string).collect();
    store.write("workers/w/thread.jsonl", thread.join("\n") + "\n{\"role\": \"assis");
    let tree = store.tree();
    let index = index(&tree, "w");
    assert_eq!(call(&index, 1)["input"], "df -h");
    assert_eq!(call(&index, 2)["input"], "/etc/hosts");
    assert_eq!(
        call(&index, 3)["input"],
        "uptime",
        "the second call of the tool has the tool's second input"
    );
    assert!(
        call(&index, 4).get("input").is_none(),
        "what the thread does not have is not invented"
    );
    assert!(!checks(&index).contains(&"bad_lines"), "a torn last line is no flaw: {index:#}");
    let evidence = text(&tree, "w", "evidence.txt");
    assert!(
        evidence.contains("\n$ df -h\n") && evidence.contains("\n$ /etc/hosts\n"),
        "{evidence}"
    );
}

#[test]
fn unparsable_thread_lines_are_counted() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "x", "out");
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"name": "x", "args": {"command": "ls"}}]});
    store.write(
        "workers/w/thread.jsonl",
        format!("not json\n4\n{{\"role\": \"new-kind\"}}\n{call}\n"),
    );
    let index = index(&store.tree(), "w");
    assert_eq!(super::call(&index, 1)["input"], "ls");
    assert!(checks(&index).contains(&"bad_lines"), "{index:#}");
}

#[test]
fn a_call_without_an_output_file_is_reported() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "x", "out");
    let line = json!({"role": "assistant", "content": "", "tool_calls": [
        {"name": "x", "args": {}}, {"name": "x", "args": {}}, {"name": "y", "args": {}}]});
    store.write("workers/w/thread.jsonl", format!("{line}\n"));
    assert!(checks(&index(&store.tree(), "w")).contains(&"call_without_result"));
}

#[test]
fn placeholder_results_are_empty() {
    for empty in
        ["(No result generated)", "(Critical error)", "(No output)", "(No output)\n", "", " \n\t"]
    {
        let store = TestStore::new();
        store.worker("w", json!({})).call("w", 1, "x", "out");
        store.write("workers/w/result.txt", empty);
        let tree = store.tree();
        let index = index(&tree, "w");
        assert!(index.get("final_words").is_none(), "{empty:?}");
        assert!(checks(&index).contains(&"no_final_words"), "{empty:?}");
        assert!(text(&tree, "w", "summary").contains("final words: none"), "{empty:?}");
        assert_eq!(text(&tree, "w", "result.txt"), empty, "the file itself stays as it is");
    }
}

#[test]
fn the_result_file_is_the_final_message() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "x", "out");
    store.write("workers/w/result.txt", "All disks are fine.\n(No output) was seen once.\n");
    let index = index(&store.tree(), "w");
    assert_eq!(index["final_words"], "All disks are fine.\n(No output) was seen once.");
    assert!(!checks(&index).contains(&"no_final_words"));
}

#[test]
fn without_a_result_the_last_message_of_a_finished_worker_is_final() {
    for (status, words) in [("success", json!("Done.")), ("running", Value::Null)] {
        let store = TestStore::new();
        store.worker("w", json!({"status": status}));
        let line = |words: &str| {
            json!({"role": "assistant", "content": words, "timestamp": null}).to_string()
        };
        store.write(
            "workers/w/thread.jsonl",
            format!("{}\n{}\n", line("Beginning."), line("Done.")),
        );
        assert_eq!(index(&store.tree(), "w")["final_words"], words, "{status}");
    }
}

#[test]
fn long_final_messages_are_truncated_at_a_character() {
    for before in 0..8 {
        for letter in ["é", "漢", "😀"] {
            let store = TestStore::new();
            store.worker("w", json!({}));
            store.write("workers/w/result.txt", " ".repeat(before) + &letter.repeat(5_000));
            let tree = store.tree();
            let index = index(&tree, "w");
            let words = index["final_words"].as_str().unwrap();
            assert!(
                words.chars().all(|c| letter.contains(c)),
                "{before} {letter}: {:?}",
                words.chars().last()
            );
            assert!(!text(&tree, "w", "summary").contains('\u{fffd}'));
        }
    }
}

#[test]
fn long_tasks_are_truncated_at_a_character() {
    for before in 0..4 {
        let store = TestStore::new();
        store.write("workers/w/metadata.json", r#"{"status": "success"}"#);
        store.write("workers/w/task.txt", "x".repeat(before) + &"漢".repeat(9_000));
        let tree = store.tree();
        for path in ["index.json", "summary"] {
            assert!(!text(&tree, "w", path).contains('\u{fffd}'), "{path} {before}");
        }
        assert!(!see(&tree, "index.json").unwrap().text().contains('\u{fffd}'), "{before}");
        assert!(rows(&tree)["w"]["task"].as_str().unwrap().len() <= 200);
    }
}

#[test]
fn the_nth_metric_of_a_tool_belongs_to_its_nth_file() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for (number, tool) in [(1, "ssh_exec"), (2, "read"), (3, "ssh_exec"), (4, "ssh_exec")] {
        store.call("w", number, tool, "plain text");
    }
    let line = |tool: &str, ms: f64, success: bool| {
        json!({"event": "tool_call", "tool": tool, "start_ts": 1.0, "end_ts": 2.0, "duration_ms": ms,
            "success": success, "error": null})
        .to_string()
    };
    let lines = [
        line("ssh_exec", 100.0, true),
        json!({"event": "llm_call", "tool": "ssh_exec", "duration_ms": 9999, "input_tokens": 5})
            .to_string(),
        line("ssh_exec", 200.5, false),
        "junk".into(),
        line("read", 7.0, true),
        json!({"event": "unheard_of"}).to_string(),
    ];
    store.write("workers/w/metrics.jsonl", lines.join("\n") + "\n{\"event\": \"tool_ca");
    let index = index(&store.tree(), "w");
    for (seq, outcome, duration) in
        [(1, "ok", Some(100)), (2, "ok", Some(7)), (3, "failed", Some(200)), (4, "unknown", None)]
    {
        let call = call(&index, seq);
        assert_eq!(
            (call["outcome"].as_str(), call["duration_ms"].as_u64()),
            (Some(outcome), duration),
            "{call}"
        );
    }
    assert!(checks(&index).contains(&"bad_lines"), "one line was junk");
}

#[test]
fn a_worker_without_tool_calls_names_the_tools_it_used() {
    for used in [json!(["ssh", "read"]), json!({"tools": [{"name": "ssh"}, {"tool": "read"}]})] {
        let store = TestStore::new();
        store.worker("w", json!({}));
        store.write("workers/w/tools_used.json", used.to_string());
        let index = index(&store.tree(), "w");
        assert_eq!(index["tools_used"], json!(["ssh", "read"]), "{used}");
        assert!(
            !checks(&index).contains(&"no_tool_call"),
            "the layout does not record calls: {index:#}"
        );
    }
}

#[test]
fn other_files_of_the_worker_are_listed_and_served() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    let files = [
        "diff.patch",
        "monitoring/check_0001s.json",
        "outputs/artifacts/a..b.txt",
        "context/research.md",
    ];
    for file in files {
        store.write(format!("workers/w/{file}"), file);
    }
    let tree = store.tree();
    let index = index(&tree, "w");
    let known: Vec<&str> = index["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    for file in files {
        assert!(known.contains(&file), "{file} in {known:?}");
        assert_eq!(text(&tree, "w", file), file);
    }
}
