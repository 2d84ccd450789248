//! A hit that a worker's records repeat counts once in `grep/` and `search/`.

use std::sync::Arc;

use serde_json::json;
use swarmletfs_base::store::Memory;
use swarmletfs_tree::tree::Tree;

use super::{lines_of, text};
use crate::support::TestStore;
use crate::support::transcript::{self, Transcript};

/// Returns the first line of an answer up to the extent of the search.
fn head(answer: &str) -> &str {
    answer.lines().next().unwrap().split("; searched").next().unwrap()
}

/// Returns the tree of a session whose texts are in several files.
fn session() -> Tree {
    let mut lines = Transcript::new("s");
    lines.user("find the needle\nand the pin");
    lines.bash("t1", "grep -r needle .", "a.txt: \"needle\" \\ one\nb.txt: needle two\n");
    lines.call("t2", "Read", json!({"file_path": "a.txt"}));
    lines.line(json!({
        "type": "user",
        "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": "     1\u{2192}\tneedle three\n"},
        ]},
        "toolUseResult": {"type": "text", "file": {"content": "\tneedle three\n", "hidden": "a thimble"}},
    }));
    lines.line(json!({"type": "attachment", "attachment": {"content": "b.txt: needle two\n"}}));
    lines.says("the needle is found\nthere are three");
    let store: Arc<Memory> = transcript::store();
    store.write(&transcript::place("s"), lines.bytes());
    transcript::tree(&store)
}

/// Promise: A hit that a worker's records repeat counts once.
#[test]
fn hit_in_a_transcript_and_in_the_files_made_from_it_counts_once() {
    let tree = session();
    let answer = text(&tree, "grep/needle");
    assert_eq!(head(&answer), "[grep/needle: 7 lines in 6 files of 1 worker", "{answer}");
    let shown: Vec<&str> = answer.lines().skip(1).collect();
    let starts = [
        "workers/s/commands.txt:1:1\tgrep -r needle",
        "workers/s/result.txt:1:the needle is found",
        "[also in thread.jsonl, source.jsonl: lines of the 2 files above]",
        "workers/s/task.txt:1:find the needle",
        "[also in requests.txt, thread.jsonl, source.jsonl]",
        "workers/s/tool_calls/001_Bash.txt:1:a.txt: \"needle\" \\ one",
        "workers/s/tool_calls/001_Bash.txt:2:b.txt: needle two",
        "workers/s/tool_calls/002_Read.txt:1:     1\u{2192}\tneedle three",
        "[also in source.jsonl: lines of the 2 files above]",
        "workers/s/source.jsonl:6:",
    ];
    assert_eq!(shown.len(), starts.len(), "{answer}");
    for start in starts {
        assert!(shown.iter().any(|line| line.starts_with(start)), "{start} is not in {answer}");
    }
}

/// Promise: A hit that only a transcript holds counts once, however often its records repeat it.
#[test]
fn hit_that_a_transcript_repeats_counts_once() {
    let mut lines = Transcript::new("s");
    lines.user("Run it.").call("t1", "Bash", json!({"command": "./run"}));
    let output = |count: usize| -> String {
        (0..count).map(|at| format!("step {at}: the needle\n")).collect()
    };
    for count in 1..=9 {
        // Each record repeats the output so far, and the last one of all has a line more.
        lines.line(json!({"type": "progress", "toolUseID": "t1", "data": {"type": "bash_progress",
            "output": "…", "fullOutput": output(1 + count / 9)}}));
    }
    lines.line(json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "cut off"}]},
        "toolUseResult": {"originalFile": output(1)}}));
    lines.says("It was stopped.");
    let store: Arc<Memory> = transcript::store();
    store.write(&transcript::place("s"), lines.bytes());
    let answer = text(&transcript::tree(&store), "grep/needle");
    let start = "[grep/needle: 2 lines in 1 file of 1 worker";
    assert!(answer.starts_with(start), "{answer}");
    assert!(answer.ends_with("[also in source.jsonl]\n"), "{answer}");
}

/// Promise: A hit that only a record holds is found and shown.
#[test]
fn hit_that_only_a_record_holds_is_shown() {
    let tree = session();
    for (query, path) in [
        ("thimble", "source.jsonl:5:"),
        ("toolUseResult", "source.jsonl:5:"),
        ("\"role\":\"tool\"", "thread.jsonl:3:"),
        ("needle two.n", "source.jsonl:3:"),
    ] {
        let answer = text(&tree, &format!("grep/{query}"));
        assert!(answer.contains(&format!("\nworkers/s/{path}")), "{query}: {answer}");
    }
    let only = text(&tree, "grep@source.jsonl/needle");
    assert_eq!(head(&only), "[grep@source.jsonl/needle: 6 lines in 1 file of 1 worker", "{only}");
    let context = text(&tree, "grep.ctx1/needle");
    assert!(!context.contains("source.jsonl-"), "{context}");
}

/// Promise: A record that states a text more often than the other files has hits of its own.
#[test]
fn record_that_states_a_text_more_often_has_hits_of_its_own() {
    let store = TestStore::new();
    store.worker("w", json!({"task": "look"})).call("w", 1, "sh", "needle\nnothing\nneedle 2\n");
    let message = |role: &str, content: &str| json!({"role": role, "content": content}).to_string();
    let thread = [
        message("user", "look"),
        message("tool", "needle\nnothing\nneedle 2\n"),
        message("assistant", "needle"),
        message("assistant", "no more needles"),
    ];
    store.write("workers/w/thread.jsonl", thread.join("\n") + "\n");
    let answer = text(&store.tree(), "grep/needle");
    assert_eq!(head(&answer), "[grep/needle: 4 lines in 2 files of 1 worker", "{answer}");
    assert_eq!(
        answer.split_once('\n').unwrap().1,
        format!(
            "workers/w/tool_calls/001_sh.txt:1:needle\n\
             workers/w/tool_calls/001_sh.txt:3:needle 2\n\
             [also in thread.jsonl]\n\
             workers/w/thread.jsonl:3:{}\n\
             workers/w/thread.jsonl:4:{}\n",
            thread[2], thread[3]
        )
    );
    // A text that no other file holds counts in the shortest record.
    let look = text(&store.tree(), "grep/look");
    assert_eq!(head(&look), "[grep/look: 1 line in 1 file of 1 worker", "{look}");
    assert!(
        look.contains("\nworkers/w/metadata.json:") && look.contains("\n[also in thread.jsonl]\n")
    );
    for budget in 0..700 {
        let answer = text(&store.tree(), &format!("grep.{budget}/needle"));
        assert!(answer.len() <= budget, "{} exceed {budget}: {answer}", answer.len());
    }
}

/// No record can hide lines by lines that are not JSON, too deep, or too many.
#[test]
fn hostile_records_hide_no_line() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "sh", "needle\n");
    let deep = format!("{{\"needle\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let thread =
        ["{\"a\": \"needle\"", "needle", "[\"needle\"]", "{\"a\":\"\\ud800 needle\"}", &deep];
    store.write("workers/w/thread.jsonl", thread.join("\n") + "\n");
    // Copies and other lines alternate, more often than are remembered.
    let lines = (0..3_000).map(|at| format!("{{\"text\": \"{at} x{at}\"}}\n{{\"x{at}\": 0}}\n"));
    store.write("workers/w/extra.jsonl", lines.collect::<String>());
    let outputs: String = (0..3_000).map(|at| format!("{at} x{at}\n")).collect();
    store.call("w", 2, "sh", outputs);
    let tree = store.tree();
    let answer = text(&tree, "grep.1M/needle");
    assert_eq!(lines_of(&answer).len(), 6, "{answer}");
    let all = text(&tree, "grep.9M/x[0-9]");
    for at in [0, 1, 999, 1_000, 2_999] {
        assert!(all.contains(&format!("{{\"x{at}\": 0}}")), "line {at} is hidden");
    }
    assert_eq!(head(&all), "[grep.9M/x[0-9]: 8000 lines in 2 files of 1 worker");
}

/// Promise: A passage of a record counts only if no other file of the worker has a passage with all
/// its words of the query.
#[test]
fn passages_that_a_record_repeats_count_once() {
    let tree = session();
    for (query, counted) in [("three", "2 passages in 2 files"), ("thimble", "1 passage in 1 file")]
    {
        let answer = text(&tree, &format!("search/{query}"));
        assert!(answer.starts_with(&format!("[search/{query}: {counted} of 1 worker")), "{answer}");
    }
    let answer = text(&tree, "search@source.jsonl/three");
    assert!(answer.contains("\nworkers/s/source.jsonl, bytes "), "{answer}");
}
