//! Tests of sessions that no program writes.

use std::time::Instant;

use super::*;
use crate::support::{patience, scale};

#[test]
fn values_of_the_wrong_type_cost_only_themselves() {
    for odd in [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([[{"text": 1}]]),
        json!(-1.5e300),
    ] {
        let mut log = Log::new();
        log.user("u", "go");
        let mut message = answer("said", json!([shell("c1", "ls", "out")]));
        for field in
            ["model", "thoughts", "tokens", "timestamp", "displayContent", "kind", "summary"]
        {
            message[field] = odd.clone();
        }
        log.message("m", "gemini", message);
        let odd_call = json!({"id": odd, "name": odd, "args": odd, "status": odd, "result": odd, "timestamp": odd, "resultDisplay": odd});
        log.model("n", "", json!([odd_call, odd, shell("c2", "pwd", "here")]));
        log.record(json!({"$set": {"sessionId": odd, "startTime": odd, "directories": odd, "summary": odd}}));
        log.record(json!({"$set": odd})).record(json!({"$rewindTo": odd, "id": odd}));
        let store = store_of(&log);
        let tree = tree(&store);
        let worker = crate::formats::listed(&tree).pop().unwrap();
        let index = crate::formats::index(&tree, &worker);
        if odd != json!("x") {
            let text = crate::formats::text(&tree, &worker, "tool_calls/001_run_shell_command.txt");
            assert_eq!(text, "out", "{odd}");
            assert!(index["tool_calls"].as_array().unwrap().len() >= 2, "{odd}: {index:#}");
        }
    }
}

#[test]
fn names_and_ids_of_any_kind_stay_inside() {
    for id in [
        "../../etc/passwd",
        "/",
        "..",
        ".",
        "a\nb",
        "\u{202e}x",
        "workers",
        &"x".repeat(5_000),
        "\u{1b}[31m",
        "",
    ] {
        let mut log = Log::of(id, "main");
        log.user(id, "go")
            .model(id, "", json!([shell(id, id, id)]))
            .record(json!({"$rewindTo": "m"}));
        log.model(
            "z",
            "",
            json!([call(id, id, json!({"file_path": id}), id, json!({"output": id}))]),
        );
        log.set(json!({"summary": id, "directories": [id], "kind": id}));
        let store = store_of(&log);
        store.write(&path(format!("{PROJECT}/.project_root")), id);
        let listed = crate::formats::listed(&tree(&store));
        assert_eq!(listed.len(), 1, "{id:?}");
        assert!(
            listed.iter().all(|name| !name.contains('/') && !name.chars().any(char::is_control))
        );
    }
}

#[test]
fn deep_and_long_values_are_read_within_bounds() {
    let mut log = Log::new();
    log.user("u", "go").model("m", "", json!([shell("c", "ls", &"long ".repeat(400_000))]));
    let deep = format!(
        "{{\"id\":\"d\",\"type\":\"gemini\",\"content\":{}1{}}}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let deep_args = format!(
        "{{\"id\":\"e\",\"type\":\"gemini\",\"toolCalls\":[{{\"id\":\"f\",\"name\":\"t\",\"args\":{}{}}}]}}\n",
        "{\"a\":".repeat(90),
        "1".to_owned() + &"}".repeat(90)
    );
    let store = store();
    store.write(&log_path(), [&log.bytes()[..], deep.as_bytes(), deep_args.as_bytes()].concat());
    let seen = read_once(&store);
    assert_eq!(seen.bytes(SESSION, "tool_calls/001_run_shell_command.txt").len(), 2_000_000);
    assert_eq!(seen.index(SESSION)["source"]["unparsable_lines"], 1);
    assert_eq!(seen.calls(SESSION).len(), 2);
}

/// Records that repeat, rewind and replace must not cost time in proportion to all before them.
#[test]
fn many_records_are_read_in_time() {
    let count = scale(60_000);
    let message = |at: usize| {
        format!(
            "{{\"id\":\"m{at}\",\"type\":\"gemini\",\"content\":\"\",\"tokens\":{{\"input\":1}},\"toolCalls\":[{{\"id\":\"c{at}\",\"name\":\"t\"}}]}}\n"
        )
    };
    let many: String = (0..count).map(message).collect();
    let last = format!("m{}", count - 1);
    for (name, tail) in [
        ("repeated", (0..count).rev().map(message).collect::<String>()),
        ("replaced", "{\"$set\":{\"messages\":[]}}\n".repeat(count)),
        ("rewound", format!("{{\"$rewindTo\":\"{last}\"}}\n{}", message(count - 1)).repeat(count / 2)),
        ("rewound to nothing", "{\"$rewindTo\":\"x\"}\n".repeat(count)),
        ("metadata", "{\"sessionId\":\"a\",\"projectHash\":\"b\"}\n{\"sessionId\":\"b\",\"projectHash\":\"b\"}\n".repeat(count / 2)),
    ] {
        let log = [Log::new().bytes(), many.clone().into_bytes(), tail.into_bytes()].concat();
        let store = store();
        store.write(&log_path(), log);
        let begun = Instant::now();
        assert_eq!(crate::formats::listed(&tree(&store)).len(), 1);
        let format = GeminiCli::transcripts();
        use swarmletfs_trace::Format;
        format.find_nested_workers(&*store, &log_path(), swarmletfs_base::deadline::Deadline::never());
        let took = begun.elapsed();
        assert!(took < patience(Duration::from_secs(20)), "{name}: {took:?}");
    }
}
