//! Tests of the contents of transcripts: every form of line seen in practice, and forms that should
//! never occur.

use super::*;
use crate::formats::checks;

#[test]
fn a_session_is_described_by_its_lines() {
    let mut transcript = begun();
    transcript.bash("toolu_1", "ls -l", "a\nb\n").says("Two files.");
    let seen = shown(&transcript);
    let index = seen.index("s");
    for (key, value) in [
        ("id", json!("s")),
        ("task", json!("look around")),
        ("status", json!("completed")),
        ("outcome", json!("ok")),
        ("task_type", json!("session")),
        ("run_id", json!("s")),
        ("model", json!("claude-large")),
        ("cwd", json!("/home/dev/app")),
        ("tags", json!(["main"])),
        ("created_at", json!("2026-02-01T10:00:00Z")),
        ("finished_at", json!("2026-02-01T10:00:03Z")),
        ("duration_ms", json!(3_000)),
        ("final_words", json!("Two files.")),
    ] {
        assert_eq!(index[key], value, "{key}");
    }
    let first = call(&index, 1);
    assert_eq!((&first["tool"], &first["outcome"]), (&json!("Bash"), &json!("ok")));
    assert_eq!(
        (&first["file"], &first["duration_ms"]),
        (&json!("tool_calls/001_Bash.txt"), &json!(1_000))
    );
    assert_eq!(first["input"], "ls -l description=Runs it");
    assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "a\nb\n");
    assert_eq!(
        (seen.text("s", "task.txt"), seen.text("s", "result.txt")),
        ("look around", "Two files.")
    );
    let thread = seen.thread("s");
    let roles: Vec<&str> = thread.iter().map(|line| line["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(thread[1]["tool_calls"][0]["file"], "tool_calls/001_Bash.txt");
    assert_eq!(thread[1]["tool_calls"][0]["args"]["command"], "ls -l");
    assert_eq!(
        thread[2],
        json!({"role": "tool", "time": "2026-02-01T10:00:02Z", "tool_call_id": "toolu_1",
        "name": "Bash", "outcome": "ok", "file": "tool_calls/001_Bash.txt"})
    );
}

/// Promise: A tool result is shown as its text, whatever its JSON shape.
#[test]
fn result_is_shown_as_its_text() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}});
    for (fields, text) in [
        (json!({"content": "plain"}), "plain".to_owned()),
        (json!({"content": texts(&["one"])}), "one".into()),
        (json!({"content": texts(&["one", "two"])}), "one\ntwo".into()),
        (json!({"content": []}), String::new()),
        (json!({"content": ""}), String::new()),
        (json!({"content": null}), String::new()),
        (json!({}), String::new()),
        (json!({"content": 7}), String::new()),
        (json!({"content": {"a": 1}}), String::new()),
        (json!({"content": [image]}), "[image: image/png, about 6 B]".into()),
        (
            json!({"content": [image, {"type": "text", "text": "seen"}]}),
            "[image: image/png, about 6 B]\nseen".into(),
        ),
        (json!({"content": [{"type": "later"}]}), "[later]".into()),
        (json!({"content": [7, "x", null, {"type": "text", "text": "left"}]}), "left".into()),
        (json!({"content": "a\r\nb\u{0}\u{202e}c\r"}), "a\r\nb\u{0}\u{202e}c\r".into()),
        (json!({"content": "漢😀".repeat(9_000)}), "漢😀".repeat(9_000)),
    ] {
        let mut transcript = begun();
        transcript.call("t", "Read", json!({"file_path": "/a"})).result("t", fields.clone());
        let seen = shown(&transcript);
        assert_eq!(seen.text("s", "tool_calls/001_Read.txt"), text, "{fields}");
        assert_eq!(call(&seen.index("s"), 1)["outcome"], "ok", "{fields}");
    }
}

/// Promise: The recorded result decides the outcome, and its text is only a hint.
#[test]
fn recorded_result_decides_the_outcome() {
    for (fields, outcome, code) in [
        (json!({"content": "x"}), "ok", json!(null)),
        (json!({"content": "x", "is_error": false}), "ok", json!(null)),
        (json!({"content": "x", "is_error": null}), "ok", json!(null)),
        (json!({"content": "x", "is_error": "true"}), "ok", json!(null)),
        (json!({"content": "x", "is_error": true}), "failed", json!(null)),
        (json!({"content": "Exit code 2\nno such file", "is_error": true}), "failed", json!(2)),
        (json!({"content": "Exit code -1", "is_error": true}), "failed", json!(-1)),
        (json!({"content": "Exit code x", "is_error": true}), "failed", json!(null)),
        (json!({"content": "Exit code ", "is_error": true}), "failed", json!(null)),
        (
            json!({"content": "Exit code 99999999999999999999", "is_error": true}),
            "failed",
            json!(null),
        ),
        (json!({"content": "Error: said by a program", "is_error": false}), "ok", json!(null)),
        (
            json!({"content": "<tool_use_error>no</tool_use_error>", "is_error": true}),
            "failed",
            json!(null),
        ),
    ] {
        let mut transcript = begun();
        transcript.call("t", "Bash", json!({"command": "x"})).result("t", fields.clone());
        let one = call(&shown(&transcript).index("s"), 1);
        assert_eq!((&one["outcome"], &one["exit_code"]), (&json!(outcome), &code), "{fields}");
    }
}

/// Promise: A command that is ok by the record but whose output shows a failure stays ok, and is
/// suspect with the line that shows it.
#[test]
fn ok_command_whose_output_shows_a_failure_is_suspect() {
    let failed = "ok  \ttide/neap\t0.1s\n--- FAIL: TestSpring (0.02s)\nFAIL\n";
    let shell = |command: &str| json!({"command": command});
    for (tool, input, result, suspect) in [
        ("Bash", shell("check | tail -3"), json!({"content": failed}), true),
        ("Other", shell("check | tail -3"), json!({"content": failed}), true),
        ("Bash", shell("check"), json!({"content": failed, "is_error": true}), false),
        ("Read", json!({"file_path": "/log"}), json!({"content": failed}), false),
        ("Bash", shell("check"), json!({"content": "ok  \ttide/neap\t0.1s\n"}), false),
        ("Bash", shell("search"), json!({"content": "a.x:3:--- FAIL: TestSpring\n"}), false),
    ] {
        let mut transcript = begun();
        transcript.call("t", tool, input).result("t", result.clone());
        let one = call(&shown(&transcript).index("s"), 1);
        let is_error = result["is_error"] == true;
        assert_eq!(one["outcome"], if is_error { "failed" } else { "ok" }, "{one}");
        let line = suspect.then_some("--- FAIL: TestSpring (0.02s)");
        assert_eq!(one["suspect"].as_str(), line, "{one}");
    }
}

/// Promise: A call that was never run comes after those that failed.
#[test]
fn call_that_never_ran_comes_after_failed_ones() {
    for said in [
        "<tool_use_error>Sibling tool call errored</tool_use_error>",
        "<tool_use_error>Cancelled: parallel tool call Bash(make) errored</tool_use_error>",
        "The user doesn't want to proceed with this tool use. To tell you how to proceed, the user said:\nwait",
        "PreToolUse:Read hook error: [/h.sh]: no",
    ] {
        let never = json!({"content": said, "is_error": true});
        let mut transcript = begun();
        transcript.bash("ok", "ls", "a");
        transcript.call("a", "Bash", json!({"command": "make"})).call(
            "b",
            "Read",
            json!({"file_path": "/b"}),
        );
        transcript.result("a", json!({"content": "Exit code 2\nno rule", "is_error": true}));
        transcript.result("b", never.clone());
        let seen = shown(&transcript);
        assert_eq!(call(&seen.index("s"), 3)["outcome"], "not_run", "{said}");
        // The last event decides the outcome, and this call is not the last one.
        assert_eq!(seen.index("s")["outcome"], "failed", "{said}");
        let evidence = seen.text("s", "evidence.txt");
        let [real, other] = ["no rule", "003_Read.txt"].map(|text| evidence.find(text).unwrap());
        assert!(real < other, "{evidence}");
        // It need not be recovered, either.
        let mut transcript = begun();
        transcript
            .bash("ok", "ls", "a")
            .call("b", "Read", json!({"file_path": "/b"}))
            .result("b", never);
        transcript.says("Done.");
        let index = shown(&transcript).index("s");
        assert_eq!(
            (&index["status"], &index["outcome"]),
            (&json!("completed"), &json!("ok")),
            "{said}"
        );
        assert_eq!(checks(&index), Vec::<&str>::new(), "{said}");
    }
    // A program may print this text.
    let mut transcript = begun();
    transcript.bash("ok", "ls", "a").call("b", "Bash", json!({"command": "./print log"}));
    transcript
        .result("b", json!({"content": "log: Sibling tool call errored", "is_error": true}))
        .says("Done.");
    assert_eq!(shown(&transcript).index("s")["outcome"], "failed");
}

#[test]
fn odd_fields_beside_a_result_are_ignored() {
    for beside in [
        json!("Error: a string"),
        json!({"stdout": "x", "stderr": "", "interrupted": false}),
        json!([1, 2]),
        json!(null),
        json!(7),
        json!({"agentId": 7, "status": ["x"]}),
        json!({"agentId": "nobody", "status": "completed"}),
    ] {
        let mut transcript = begun();
        transcript.call("t", "Bash", json!({"command": "x"}));
        let block = json!([{"type": "tool_result", "tool_use_id": "t", "content": "out"}]);
        transcript
            .line(json!({"type": "user", "toolUseResult": beside, "message": {"role": "user", "content": block}}));
        let seen = shown(&transcript);
        assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "out", "{beside}");
        assert_eq!(seen.index("s")["source"]["unparsable_lines"], 0, "{beside}");
    }
}

/// Promise: A call without a result is pending, and a result without a call is counted.
#[test]
fn unmatched_calls_are_pending_and_unmatched_results_counted() {
    let mut transcript = begun();
    transcript
        .call("a", "Bash", json!({"command": "sleep"}))
        .result("b", json!({"content": "of nothing"}));
    let seen = shown(&transcript);
    let index = seen.index("s");
    assert_eq!(index["source"]["calls_without_results"], 1);
    assert_eq!(index["source"]["results_without_calls"], 1);
    assert_eq!((&index["status"], &index["outcome"]), (&json!("running"), &json!("unknown")));
    assert_eq!(call(&index, 1)["outcome"], "unknown");
    assert!(call(&index, 1)["unreadable"].is_string(), "{index:#}");
    assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "");
    assert!(checks(&index).contains(&"results_without_calls"), "{index:#}");
    assert_eq!(seen.thread("s").last().unwrap()["tool_call_id"], "b");
    // Nothing before a result can be its call.
    let mut transcript = begun();
    transcript.result("a", json!({"content": "early"})).call(
        "a",
        "Bash",
        json!({"command": "late"}),
    );
    let index = shown(&transcript).index("s");
    assert_eq!(
        (&index["source"]["results_without_calls"], &call(&index, 1)["outcome"]),
        (&json!(1), &json!("unknown"))
    );
}

/// Promise: A call that is recorded twice is one call.
#[test]
fn call_recorded_twice_is_one_call() {
    let mut transcript = begun();
    transcript.bash("a", "first", "one").bash("b", "second", "two");
    let lines = transcript.bytes();
    // A resumed session may repeat its lines.
    let again = [lines.clone(), lines.clone()].concat();
    let (once, twice) = (shown(&transcript), shown_bytes(&again));
    assert_eq!(once.index("s")["tool_calls"], twice.index("s")["tool_calls"]);
    assert_eq!(twice.text("s", "tool_calls/001_Bash.txt"), "one");
    // The assistant acted on the first of two results.
    transcript.result("a", json!({"content": "another", "is_error": true}));
    let seen = shown(&transcript);
    assert_eq!((seen.calls("s").len(), seen.text("s", "tool_calls/001_Bash.txt")), (2, "one"));
    assert_eq!(call(&seen.index("s"), 1)["outcome"], "ok");
}

#[test]
fn calls_without_an_id_or_a_name_are_calls() {
    let mut transcript = begun();
    for block in [
        json!({"type": "tool_use"}),
        json!({"type": "tool_use", "id": 7, "name": ["x"], "input": 1}),
    ] {
        transcript.message("m", json!([block]), json!({}));
    }
    transcript.call("a", "", json!(null));
    let seen = shown(&transcript);
    assert_eq!(seen.calls("s"), ["001_tool.txt", "002_tool.txt", "003_tool.txt"]);
}

#[test]
fn several_calls_in_one_line_each_have_their_result() {
    let mut transcript = begun();
    let uses: Value = (0..5)
        .map(|n| json!({"type": "tool_use", "id": format!("t{n}"), "name": "Read", "input": {}}))
        .collect();
    transcript.message("m", uses, json!({}));
    let results: Value = (0..5)
        .rev()
        .map(|n| json!({"type": "tool_result", "tool_use_id": format!("t{n}"), "content": format!("out {n}")}))
        .collect();
    transcript.user(results);
    let seen = shown(&transcript);
    for n in 0..5 {
        assert_eq!(seen.text("s", &format!("tool_calls/00{}_Read.txt", n + 1)), format!("out {n}"));
    }
    let thread = seen.thread("s");
    assert_eq!(thread[2]["file"], "tool_calls/005_Read.txt");
    assert_eq!(thread[6]["file"], "tool_calls/001_Read.txt");
}

#[test]
fn tokens_of_a_message_are_counted_once() {
    let usage = |output: u64| {
        json!({"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 1_000, "service_tier": "standard"})
    };
    let mut transcript = begun();
    // Each line of a message counts the tokens up to that point.
    transcript.message("m1", json!([{"type": "thinking", "thinking": "hm"}]), usage(1));
    transcript.message(
        "m1",
        json!([{"type": "tool_use", "id": "a", "name": "Read", "input": {}}]),
        usage(5),
    );
    transcript.result("a", json!({"content": "x"}));
    transcript.message(
        "m1",
        json!([{"type": "tool_use", "id": "b", "name": "Read", "input": {}}]),
        usage(9),
    );
    transcript.message("m2", texts(&["done"]), usage(20));
    let tokens = shown(&transcript).index("s")["tokens"].clone();
    assert_eq!(
        tokens,
        json!({"input": 20, "output": 29, "cache_read": 200, "cache_creation": 2_000})
    );
    // An overflow must not fail.
    transcript.message(
        "m3",
        texts(&["more"]),
        json!({"input_tokens": u64::MAX, "output_tokens": -1}),
    );
    transcript.message("m4", texts(&["more"]), json!("many"));
    assert_eq!(shown(&transcript).index("s")["tokens"]["input"], u64::MAX);
    assert!(shown(&begun()).index("s")["tokens"].is_null());
}

/// Promise: Content of a transcript that is not shown is counted.
#[test]
fn hidden_content_of_a_transcript_is_counted() {
    let mut transcript = begun();
    transcript.line(json!({"type": "system", "subtype": "stop_hook_summary"}));
    transcript.line(json!({"type": "file-history-snapshot", "snapshot": {}}));
    transcript
        .line(json!({"type": "telepathy"}))
        .line(json!({"type": "telepathy"}))
        .line(json!({"type": null}));
    transcript.line(json!({"type": "progress", "data": {"type": "hook_progress"}}));
    transcript
        .raw("{\"no\": \"type\"}\n")
        .raw("\n \r\n")
        .raw("{\"torn\": \n")
        .raw("[1]\n")
        .raw("4\n");
    transcript.says("fine");
    let index = shown(&transcript).index("s");
    let source = &index["source"];
    assert_eq!((&source["lines"], &source["unparsable_lines"]), (&json!(12), &json!(3)));
    assert_eq!(source["unknown_records"], json!({"(none)": 2, "telepathy": 2}));
    let checks = checks(&index);
    assert!(checks.contains(&"unknown_records") && checks.contains(&"bad_lines"), "{checks:?}");
    // Any number of them.
    let mut transcript = begun();
    for n in 0..200 {
        transcript.line(json!({"type": format!("{}{n}", "x".repeat(2_000))}));
    }
    let unknown = shown(&transcript).index("s")["source"]["unknown_records"].clone();
    assert_eq!(unknown["(others)"], 150);
    assert!(unknown.to_string().len() < 6_000);
}

/// Promise: A whole record behind a torn one, behind another one or behind NUL bytes on its line is
/// read. A worker with lost records is not ok by what is left.
#[test]
fn record_behind_a_torn_one_is_read() {
    let transcript = |exit: &str, before: &str| {
        let mut transcript = begun();
        transcript.bash("a", "make one", "done").call("b", "Bash", json!({"command": "make two"}));
        transcript.raw(before);
        transcript.result("b", json!({"content": exit, "is_error": exit != "done"}));
        transcript.says("Done.").clone()
    };
    let torn = r#"{"type":"attachment","uuid":"x","attachment":{"prompt":{"a":[1]},"b":"also che"#;
    let nested = r#"{"type":"attachment","uuid":"x","attachment":{"a":1}"#;
    let whole = r#"{"type":"user","uuid":"w","message":{"content":"also"}}"#;
    for (before, unparsable) in
        [(torn, 1), (nested, 1), ("\0\0\0\0", 1), (whole, 0), (&whole.repeat(2), 0)]
    {
        let index = shown(&transcript("Exit code 2\nno", before)).index("s");
        assert_eq!(call(&index, 2)["exit_code"], 2, "{before}");
        assert_eq!(index["source"]["unparsable_lines"], unparsable, "{before}");
        let index = shown(&transcript("done", before)).index("s");
        let expected = if unparsable > 0 { "unknown" } else { "ok" };
        assert_eq!(index["outcome"], expected, "{before}");
    }
    // What is not whole costs no more than its size.
    for junk in ["{\"a\":".repeat(2_000_000), "{".repeat(10_000_000), "{\"{".repeat(3_000_000)] {
        let began = std::time::Instant::now();
        let index = shown(&transcript("done", &(junk + "\n"))).index("s");
        assert_eq!(index["source"]["unparsable_lines"], 1);
        // A quadratic search takes hours; the time limit only guards against that.
        assert!(began.elapsed().as_secs() < 60);
    }
}

/// Promise: A record that a transcript holds twice counts once.
#[test]
fn repeated_record_counts_once() {
    let mut transcript = begun();
    transcript.bash("a", "make", "done").user("and go on").says("Done.");
    let once = shown(&transcript);
    let twice = shown_bytes(&[transcript.bytes(), transcript.bytes()].concat());
    for field in ["tokens", "calls", "outcome", "status"] {
        assert_eq!(twice.index("s")[field], once.index("s")[field], "{field}");
    }
    for file in ["requests.txt", "thread.jsonl"] {
        assert_eq!(twice.text("s", file), once.text("s", file), "{file}");
    }
    // Tokens count once for each message, in whatever order its lines are.
    let mut transcript = begun();
    let line = |transcript: &mut Transcript, message: usize, text: &str, output: u64| {
        let usage = json!({"input_tokens": 1, "output_tokens": output});
        let blocks = json!([{"type": "text", "text": text}]);
        transcript.message(&format!("m{message}"), blocks, usage);
    };
    line(&mut transcript, 0, "a", 10);
    line(&mut transcript, 1, "b", 10);
    line(&mut transcript, 0, "c", 20);
    (2..30).for_each(|message| line(&mut transcript, message, "d", 10));
    (0..30).for_each(|message| line(&mut transcript, message, "e", 10));
    assert_eq!(shown(&transcript).index("s")["tokens"]["output"], 20 + 29 * 10);
}

/// Promise: A malformed line hides no other line.
#[test]
fn malformed_line_hides_no_other() {
    let mut whole = begun();
    whole.bash("a", "x", "out");
    let good = whole.bytes();
    let line = good.split_inclusive(|byte| *byte == b'\n').next().unwrap().to_vec();
    let glued = [line.trim_ascii_end(), &line].concat();
    for (junk, unparsable) in [
        (b"\x00\x00\x00\n".to_vec(), 1),
        (b"{{{{\n".to_vec(), 1),
        (b"\xff\xfe\x00\n".to_vec(), 1),
        (b"\n\n\n".to_vec(), 0),
        (b"\r\n".to_vec(), 0),
        (b"null\ntrue\n\"x\"\n".to_vec(), 3),
        (glued, 0),
        ([b"[".repeat(100_000), b"\n".to_vec()].concat(), 1),
        ([b"{\"a\":".repeat(100_000), b"\n".to_vec()].concat(), 1),
    ] {
        let seen = shown_bytes(&[junk.clone(), good.clone(), junk.clone()].concat());
        assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), "out");
        assert_eq!(
            seen.index("s")["source"]["unparsable_lines"],
            2 * unparsable,
            "{}",
            junk[..4.min(junk.len())].escape_ascii()
        );
    }
    // Repeat with Windows line endings.
    let windows = String::from_utf8(good).unwrap().replace('\n', "\r\n");
    let seen = shown_bytes(windows.as_bytes());
    assert_eq!(
        (seen.text("s", "tool_calls/001_Bash.txt"), seen.text("s", "task.txt")),
        ("out", "look around")
    );
    assert_eq!(seen.index("s")["source"]["unparsable_lines"], 0);
}

#[test]
fn invalid_utf8_and_lone_surrogates_cost_no_line() {
    let mut transcript = begun();
    transcript.call("a", "Bash", json!({"command": "x"}));
    let result = |content: &[u8]| {
        let head = br#"{"type":"user","uuid":"u","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":""#;
        [&head[..], content, b"\"}]}}\n"].concat()
    };
    for (content, text) in [
        (&b"caf\xe9"[..], "caf\u{fffd}"),
        // Lone surrogates, as JavaScript writes when it truncates a character.
        (br"cut \ud83d", "cut \u{fffd}"),
        (br"\ude00 cut", "\u{fffd} cut"),
        (br"\ud83d\ud83d\ude00.", "\u{fffd}😀."),
        (br"\uD83D\uDE00", "😀"),
        (br"\\ud83d", "\\ud83d"),
        (br"\\\ud83d", "\\\u{fffd}"),
        (br"\ud83d\n", "\u{fffd}\n"),
        (br"\u0000", "\0"),
    ] {
        let bytes = [transcript.bytes(), result(content)].concat();
        let seen = shown_bytes(&bytes);
        assert_eq!(seen.text("s", "tool_calls/001_Bash.txt"), text, "{}", content.escape_ascii());
        assert_eq!(seen.index("s")["source"]["unparsable_lines"], 0);
    }
    // In the input of a call, which appears again in the thread.
    let mut transcript = begun();
    transcript.raw(
        r#"{"type":"assistant","uuid":"u","message":{"content":[{"type":"tool_use","id":"a","name":"Bash","input":{"command":"echo \ud83d"}}]}}
"#,
    );
    let seen = shown(&transcript);
    assert_eq!(call(&seen.index("s"), 1)["input"], "echo \u{fffd}");
    assert_eq!(seen.thread("s")[1]["tool_calls"][0]["args"]["command"], "echo \u{fffd}");
}

#[test]
fn one_odd_field_costs_no_line() {
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1.5),
        json!("x"),
        json!([[]]),
        json!({"a": {"b": []}}),
    ];
    let fields = [
        "uuid",
        "parentUuid",
        "sessionId",
        "agentId",
        "isSidechain",
        "isMeta",
        "isCompactSummary",
        "timestamp",
        "cwd",
        "gitBranch",
        "summary",
        "data",
        "toolUseResult",
        "isApiErrorMessage",
        "requestId",
        "version",
    ];
    for field in fields {
        for value in &odd {
            if field == "isSidechain" && *value == json!(true)
                || field == "isMeta"
                || field == "isApiErrorMessage"
            {
                continue;
            }
            let mut transcript = Transcript::new("s");
            transcript.line(json!({"type": "user", field: value, "message": {"role": "user", "content": "look"}}));
            let index = shown(&transcript).index("s");
            assert_eq!(index["source"]["unparsable_lines"], 0, "{field} {value}");
            assert_eq!(index["task"], "look", "{field} {value}");
        }
    }
    for value in &odd {
        let mut transcript = begun();
        transcript.line(json!({"type": "assistant", "message": value}));
        transcript.line(json!({"type": "assistant", "message": {"content": value, "usage": value, "id": value}}));
        transcript
            .line(json!({"type": "progress", "data": {"type": "agent_progress", "agentId": "a", "message": value}}));
        transcript.line(json!({"type": value}));
        assert_eq!(shown(&transcript).index("s")["source"]["unparsable_lines"], 0, "{value}");
    }
    // No program writes such lines: repeated fields, numbers out of range.
    for line in [
        r#"{"type":"user","type":"user","uuid":"u","message":{"content":"look"}}"#,
        r#"{"type":"user","uuid":"u","timestamp":1e999,"message":{"content":"look"}}"#,
    ] {
        let index = shown_bytes(format!("{line}\n").as_bytes()).index("s");
        assert_eq!(index["source"]["unparsable_lines"], 1, "{line}");
    }
}

#[test]
fn a_task_is_a_message_of_the_user() {
    let with = |lines: &[Value]| {
        let mut transcript = Transcript::new("s");
        for line in lines {
            transcript.line(line.clone());
        }
        shown(&transcript).index("s")["task"].clone()
    };
    let user = |text: &str| json!({"type": "user", "message": {"role": "user", "content": text}});
    let meta = json!({"type": "user", "isMeta": true, "message": {"content": "Caveat: not this"}});
    let compact = json!({"type": "user", "isCompactSummary": true, "message": {"content": "what was before"}});
    let command = user("<command-name>/clear</command-name>");
    let local = user("<local-command-stdout>cleared</local-command-stdout>");
    let blocks = json!({"type": "user", "message": {"content": texts(&["a", "b"])}});
    assert_eq!(with(&[meta.clone(), command.clone(), local.clone(), user("this")]), "this");
    assert_eq!(with(&[compact.clone(), user("this")]), "this");
    assert_eq!(with(std::slice::from_ref(&compact)), "what was before");
    assert_eq!(with(std::slice::from_ref(&command)), "<command-name>/clear</command-name>");
    assert_eq!(with(&[meta]), "");
    assert_eq!(with(&[blocks]), "a\nb");
    assert_eq!(with(&[user("  this\n")]), "this");
}

#[test]
fn a_conversation_is_finished_once_it_is_answered() {
    let status = |transcript: &Transcript| {
        let seen = shown(transcript);
        let (index, row) = (seen.index("s"), seen.row("s"));
        assert_eq!(index["status"], row["status"]);
        (
            index["status"].as_str().unwrap().to_owned(),
            index["status_source"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let pair = |status: &str, source: &str| (status.to_owned(), source.to_owned());
    let mut transcript = Transcript::new("s");
    transcript.line(json!({"type": "summary", "summary": "A title", "leafUuid": "u2"}));
    assert_eq!(status(&transcript), pair("created", ""));
    transcript.user("look");
    assert_eq!(status(&transcript), pair("running", ""));
    transcript.call("a", "Bash", json!({}));
    assert_eq!(status(&transcript), pair("running", ""));
    transcript.result("a", json!({"content": "x"}));
    assert_eq!(status(&transcript), pair("running", ""));
    transcript.says("Done.");
    assert_eq!(status(&transcript), pair("completed", ""));
    transcript.user("[Request interrupted by user for tool use]");
    assert_eq!(status(&transcript), pair("unknown", "interrupted"));
    transcript.user("go on");
    assert_eq!(status(&transcript), pair("running", ""));
    transcript.line(json!({"type": "assistant", "isApiErrorMessage": true,
        "message": {"model": "<synthetic>", "content": texts(&["API Error: 529"])}}));
    assert_eq!(status(&transcript), pair("failed", "api error"));
    let index = shown(&transcript).index("s");
    assert_eq!(
        (&index["error"], &index["model"]),
        (&json!("API Error: 529"), &json!("claude-large"))
    );
    assert_eq!(index["summary"], "A title");
}

#[test]
fn transcripts_without_messages_are_workers_with_a_check() {
    for (bytes, check) in [
        (&b""[..], None),
        (b"\n\n", None),
        (b"junk\nmore junk\n", Some("bad_transcript")),
        (b"\xff\xfe\n", Some("bad_transcript")),
        (b"{\"type\":\"summary\",\"summary\":\"x\"}\n", Some("no_message")),
        (b"{}\n", Some("no_message")),
    ] {
        let index = shown_bytes(bytes).index("s");
        assert_eq!(index["tool_calls"], json!([]), "{}", bytes.escape_ascii());
        let found = checks(&index);
        if let Some(check) = check {
            assert!(found.contains(&check), "{}: {found:?}", bytes.escape_ascii());
        }
    }
}

#[test]
fn a_subagent_with_its_final_message_in_its_parent_gets_no_check() {
    let mut transcript = Transcript::lean("s");
    transcript.user("look").call("task", "Task", json!({"prompt": "x"}));
    transcript.progress("p", "user", json!({"content": "go"}));
    let uses = json!([{"type": "tool_use", "id": "pa", "name": "Grep", "input": {"pattern": "x"}}]);
    transcript.progress("p", "assistant", json!({"id": "m", "content": uses}));
    transcript.progress(
        "p",
        "user",
        json!({"content": [{"type": "tool_result", "tool_use_id": "pa", "content": "hit"}]}),
    );
    let end = |status: &str| {
        let mut ended = transcript.clone();
        ended.line(json!({"type": "user", "toolUseResult": {"agentId": "p", "status": status},
            "message": {"content": [{"type": "tool_result", "tool_use_id": "task", "content": "what it found"}]}}));
        ended.says("Done.");
        shown(&ended)
    };
    let checked = end("completed");
    assert_eq!(checked.index("p")["status"], "completed");
    assert!(!checks(&checked.index("p")).contains(&"no_final_words"), "{:#}", checked.index("p"));
    assert!(
        checked.text("p", "summary").contains("\nfinal words: in its parent's call"),
        "{}",
        checked.text("p", "summary")
    );
}
