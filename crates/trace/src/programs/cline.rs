//! Sessions and tasks of Cline.

use super::*;

fn message(number: i64, role: &str, content: Value) -> Value {
    json!({"id": format!("m{number}"), "role": role, "content": content, "ts": 1_795_732_567_000_i64 + number})
}

fn user(number: i64, text: &str) -> Value {
    let text = format!("<user_input mode=\"act\">{text}</user_input>");
    message(number, "user", json!([{"type": "text", "text": text}]))
}

fn assistant(number: i64, content: Value) -> Value {
    let mut message = message(number, "assistant", content);
    message["modelInfo"] = json!({"id": "lab-1", "provider": "lab"});
    message["metrics"] =
        json!({"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 7, "cost": 0.25});
    message
}

fn call(number: i64, id: &str, tool: &str, input: Value) -> Value {
    let call = json!({"type": "tool_use", "id": id, "name": tool, "input": input});
    assistant(number, json!([{"type": "text", "text": "I look."}, call]))
}

fn result(number: i64, id: &str, content: Value, is_error: Value) -> Value {
    message(
        number,
        "user",
        json!([{"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error}]),
    )
}

fn document(messages: &[Value]) -> Vec<u8> {
    json!({"version": 1, "agent": "lead", "sessionId": "s1", "origin": {"sessionId": "s1"},
        "messages": messages})
    .to_string()
    .into()
}

fn session(messages: &[Value], status: &str) -> ProgramSample {
    let manifest = json!({"session_id": "s1", "status": status, "model": "lab-1", "cwd": "/shop",
        "metadata": {"title": "Mend it", "git": {"branch": "main"}}});
    ProgramSample {
        format: "cline",
        files: vec![
            ("sessions/s1/s1.messages.json", document(messages)),
            ("sessions/s1/s1.json", manifest.to_string().into()),
        ],
    }
}

pub(super) fn sample() -> ProgramSample {
    let failed = json!([{"query": "make test", "result": "[Command exited with code 2]\nred", "error": "Command exited with code 2", "success": false},
        {"query": "echo fine", "result": "fine\n", "success": true}]);
    let mut sample = session(
        &[
            user(1, "Mend it."),
            call(2, "a", "run_commands", json!({"commands": ["make test", "echo fine"]})),
            result(3, "a", failed, Value::Null),
            call(4, "b", "editor", json!({"path": "/shop/a.py", "old_text": "3", "new_text": "4"})),
            result(
                5,
                "b",
                json!("{\"query\":\"edit\",\"result\":\"Edited\",\"success\":true}"),
                Value::Null,
            ),
            call(6, "c", "editor", json!({"path": "/shop/N.md", "new_text": "# N\n"})),
            result(
                7,
                "c",
                json!("{\"query\":\"edit\",\"result\":\"created\",\"success\":true}"),
                Value::Null,
            ),
            call(8, "d", "run_commands", json!({"commands": ["rm -rf /"]})),
            result(
                9,
                "d",
                json!(
                    "{\"error\":\"Tool \\\"run_commands\\\" requires approval in a TTY session\"}"
                ),
                json!(true),
            ),
            call(10, "e", "nosuchtool", json!({})),
            result(
                11,
                "e",
                json!(
                    "{\"error\":\"Tool call nosuchtool was rejected before execution: no such tool\"}"
                ),
                json!(true),
            ),
            call(12, "f", "spawn_agent", json!({"task": "Check it."})),
            result(13, "f", json!("{\"text\":\"Checked.\",\"iterations\":2}"), Value::Null),
            assistant(14, json!([{"type": "text", "text": "Mended."}])),
        ],
        "completed",
    );
    let child = json!({"agent": "subagent", "sessionId": "s1__agent_2", "origin": {"parentThreadId": "s1"},
        "messages": [message(1, "user", json!([{"type": "text", "text": "Check it."}])), assistant(2, json!([{"type": "text", "text": "Checked."}]))]});
    sample.files.push(("sessions/s1/agent_2.messages.json", child.to_string().into()));
    sample
}

#[test]
fn calls_are_judged_by_their_operations() {
    let all = sample().read();
    let seen = &all["s1"];
    let calls = [
        ("run_commands", "failed", Some(2), false),
        ("editor", "ok", None, false),
        ("editor", "ok", None, false),
        ("run_commands", "not_run", None, false),
        ("nosuchtool", "failed", None, false),
        ("spawn_agent", "ok", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert!(seen.text("commands.txt").contains("make test"), "{}", seen.text("commands.txt"));
    let output = "make test\n[Command exited with code 2]\nred\necho fine\nfine\n";
    assert_eq!(seen.text("tool_calls/001_run_commands.txt"), output);
    assert_eq!(seen.tokens(), Some((93 * 7, 140, 49)));
    assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.to_string(), "$1.75");
    assert_eq!(seen.edited(), ["/shop/a.py", "/shop/N.md"]);
    assert!(seen.edits[1].created);
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    let worker = &seen.worker;
    assert_eq!((worker.cwd.as_deref(), worker.branch.as_deref()), (Some("/shop"), Some("main")));
    assert_eq!((worker.status, worker.summary.as_deref()), (Status::Completed, Some("Mend it")));
    let child = &all["s1__agent_2"];
    assert_eq!(
        (child.worker.parent.as_deref(), child.worker.status),
        (Some("s1"), Status::Completed)
    );
}

#[test]
fn words_of_the_program_are_not_those_of_the_assistant() {
    let mut error = assistant(2, json!([{"type": "text", "text": "the context is too long"}]));
    error["metadata"] = json!({"displayOnly": true, "displayRole": "error"});
    for (word, status) in [
        ("failed", Status::Failed),
        ("running", Status::Running),
        ("cancelled", Status::Abandoned),
        ("odd", Status::Failed),
    ] {
        let seen = session(&[user(1, "Mend it."), error.clone()], word).read_one();
        assert_eq!(
            (seen.worker.status, seen.text("result.txt")),
            (status, "(none)".into()),
            "{word}"
        );
        assert_eq!(seen.worker.error.as_deref(), Some("the context is too long"));
    }
}

const TASK: &str = "tasks/1795733213915/api_conversation_history.json";

fn says(number: i64, text: &str) -> Value {
    let mut message = message(number, "assistant", json!([{"type": "text", "text": text}]));
    message["modelInfo"] = json!({"modelId": "lab-1"});
    message["metrics"] = json!({"tokens": {"prompt": 100, "completion": 20, "cached": 7}});
    message
}

fn told(number: i64, texts: &[&str]) -> Value {
    let blocks: Vec<Value> =
        texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
    message(number, "user", blocks.into())
}

fn task(messages: &[Value], display: &[Value]) -> ProgramSample {
    ProgramSample {
        format: "cline",
        files: vec![
            (TASK, Value::from(messages.to_vec()).to_string().into()),
            (
                "tasks/1795733213915/ui_messages.json",
                Value::from(display.to_vec()).to_string().into(),
            ),
        ],
    }
}

const DETAILS: &str =
    "<environment_details>\n# Current Working Directory (/shop) Files\n</environment_details>";

pub(super) fn old_sample() -> ProgramSample {
    let replace = "<replace_in_file>\n<path>a.py</path>\n<diff>\n------- SEARCH\n3\n=======\n4\n+++++++ REPLACE\n</diff>\n</replace_in_file>";
    let write = "<write_to_file>\n<path>N.md</path>\n<content>\n</content> is not the end, nor </write_to_file>\n</content>\n</write_to_file>";
    task(
        &[
            told(1, &["<task>\nMend it.\n</task>", "# task_progress RECOMMENDED", DETAILS]),
            says(
                2,
                "I look.\n\n<execute_command>\n<command>make test</command>\n</execute_command>",
            ),
            told(
                3,
                &[
                    "[execute_command for 'make test'] Result:\nCommand failed with exit code 2.\nOutput:\nred",
                    DETAILS,
                ],
            ),
            says(4, "<read_file>\n<path>a.py</path>\n</read_file>"),
            told(5, &["[read_file for 'a.py'] Result:", "1 | 3"]),
            says(6, replace),
            told(
                7,
                &[
                    "[replace_in_file for 'a.py'] Result:\nThe content was successfully saved to a.py.",
                    "[replace_in_file for 'a.py'] Result:\n(tool did not return anything)",
                ],
            ),
            says(8, write),
            told(
                9,
                &[
                    "[write_to_file for 'N.md'] Result:\nThe user denied this operation and provided the following feedback:\n<feedback>\nNot here.\n</feedback>",
                ],
            ),
            says(10, "I use <nosuchtool></nosuchtool>."),
            told(11, &["[ERROR] You did not use a tool in your previous response!"]),
            says(12, "<attempt_completion>\n<result>\nMended.\n</result>\n</attempt_completion>"),
        ],
        &[],
    )
}

#[test]
fn calls_in_texts_are_paired_with_the_results_in_texts() {
    let seen = old_sample().read_one();
    let calls = [
        ("execute_command", "failed", Some(2), false),
        ("read_file", "unknown", None, false),
        ("replace_in_file", "ok", None, false),
        ("write_to_file", "not_run", None, false),
        ("attempt_completion", "unknown", None, false),
    ];
    assert_eq!(seen.calls(), calls);
    assert_eq!(seen.text("tool_calls/002_read_file.txt"), "1 | 3");
    assert_eq!(seen.record.trace.unused.orphan_results, 0);
    assert_eq!(seen.edited(), ["a.py"]);
    assert_eq!(seen.edits[0].apply("3\n", |_| true).as_deref(), Some("4\n"));
    assert_eq!(
        (seen.text("task.txt"), seen.text("result.txt")),
        ("Mend it.".into(), "Mended.".into())
    );
    assert!(seen.text("requests.txt").contains("Not here."), "{}", seen.text("requests.txt"));
    assert_eq!(seen.tokens(), Some((93 * 6, 120, 42)));
    let worker = &seen.worker;
    assert_eq!(worker.id.to_text(), "1795733213915");
    assert_eq!((worker.cwd.as_deref(), worker.status), (Some("/shop"), Status::Completed));
}

#[test]
fn results_in_any_order_belong_to_the_last_answer() {
    let read = |path: &str| format!("<read_file>\n<path>{path}</path>\n</read_file>");
    let make = "<execute_command>\n<command>make</command>\n</execute_command>";
    let done = "[execute_command for 'make'] Result:\nCommand executed successfully (exit code 0)";
    let messages = [
        told(1, &["<task>\nMend it.\n</task>"]),
        // The program was stopped before this call ended.
        says(2, &read("a.py")),
        told(3, &["<user_message>\nGo on.\n</user_message>"]),
        says(4, &format!("{}\n{make}", read("b.py"))),
        told(5, &[done, "[read_file for 'b.py'] Result:\n1 | 3"]),
    ];
    let seen = task(&messages, &[]).read_one();
    let outcomes: Vec<_> =
        seen.record.trace.calls.iter().map(|call| (&*call.tool, call.outcome.as_str())).collect();
    let expected = [("read_file", "unknown"), ("read_file", "unknown"), ("execute_command", "ok")];
    assert_eq!(outcomes, expected);
    assert_eq!(seen.text("tool_calls/002_read_file.txt"), "1 | 3");
    assert_eq!(seen.record.trace.unused.orphan_results, 0);
}

#[test]
fn what_the_user_sees_states_the_end() {
    let begun = [
        told(1, &["<task>\nMend it.\n</task>"]),
        says(2, "<execute_command>\n<command>make</command>\n</execute_command>"),
        told(3, &["[execute_command for 'make'] Result:\nCommand executed."]),
    ];
    let say = |kind: &str, text: &str| json!({"type": "say", "say": kind, "text": text});
    let request = say(
        "api_req_started",
        "{\"tokensIn\": 100, \"tokensOut\": 20, \"cacheReads\": 7, \"cost\": 0.5}",
    );
    for (display, status, words) in [
        (vec![request.clone()], Status::Running, None),
        (
            vec![request.clone(), say("completion_result", "Mended.")],
            Status::Completed,
            Some("Mended."),
        ),
        (
            vec![say("completion_result", "Mended."), say("user_feedback", "No.")],
            Status::Running,
            None,
        ),
        (
            vec![json!({"say": "completion_result", "text": "Men", "partial": true})],
            Status::Running,
            None,
        ),
        (
            vec![json!({"type": "ask", "ask": "api_req_failed", "text": "401"})],
            Status::Failed,
            None,
        ),
    ] {
        let seen = task(&begun, &display).read_one();
        assert_eq!(seen.worker.status, status, "{display:?}");
        assert_eq!(seen.record.trace.final_words.as_deref(), words, "{display:?}");
        // The messages of the model count where they have tokens.
        assert_eq!(seen.tokens(), Some((93, 20, 7)));
    }
}
