//! Documents of mini-swe-agent in all its forms.

use std::sync::Arc;

use serde_json::{Value, json};
use swarmletfs_base::model::Status;
use swarmletfs_base::store::Memory;
use swarmletfs_trace::{Detection, Format, MiniSweAgent, SweAgent};

use super::*;
use crate::formats::{checks, index, text};
use crate::support::seen::names;

/// Returns the facts about a run with this last word.
pub fn info(exit_status: Value) -> Value {
    json!({
        "model_stats": {"instance_cost": 0.01, "api_calls": 3},
        "config": {"model": {"model_name": "lab/model-1"}, "environment": {"cwd": "/testbed"}},
        "mini_version": "2.2.4", "exit_status": exit_status,
    })
}

/// Returns a document of the current form.
pub fn document(exit_status: Value, messages: &[Value]) -> Value {
    json!({"info": info(exit_status), "messages": messages,
        "trajectory_format": "mini-swe-agent-1.1", "instance_id": "i"})
}

/// Returns the first two messages.
pub fn begun() -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "You have a shell."}),
        json!({"role": "user", "content": "Mend the tests."}),
    ]
}

/// Returns a message with calls, at a number of seconds.
pub fn call(seconds: f64, text: Value, calls: &[(&str, &str)]) -> Value {
    let actions: Vec<Value> =
        calls.iter().map(|(id, command)| json!({"command": command, "tool_call_id": id})).collect();
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 60}});
    let response = json!({"id": format!("r{seconds}"), "model": "model-1-2026", "usage": usage,
        "choices": [{"message": {"content": text}}]});
    json!({"role": "assistant", "content": text, "tool_calls": [], "function_call": null,
        "extra": {"actions": actions, "response": response, "cost": 0.1,
            "timestamp": 1_773_000_000.25 + seconds}})
}

/// Returns the result of a call.
pub fn result(seconds: f64, id: &str, code: i64, output: &str) -> Value {
    let text = format!("<returncode>{code}</returncode>\n<output>\n{output}</output>");
    json!({"role": "tool", "content": text, "tool_call_id": id,
        "extra": {"raw_output": output, "returncode": code, "exception_info": "",
            "timestamp": 1_773_000_000.25 + seconds}})
}

/// Returns the message of a refused answer.
fn format_error() -> Value {
    json!({"role": "user", "content": "No tool calls found.", "extra": {"interrupt_type": "FormatError"}})
}

/// Returns the last message of a run that handed in its work.
fn submitted(work: &str) -> Value {
    json!({"role": "exit", "content": work, "extra": {"exit_status": "Submitted", "submission": work}})
}

const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch";

/// Returns the messages of a run of the current form.
pub fn messages() -> Vec<Value> {
    let mut messages = begun();
    messages.extend([
        call(0.0, Value::Null, &[("a", "ls"), ("b", "cat x")]),
        result(1.5, "b", 1, "cat: x: No such file\n"),
        result(2.0, "a", 0, "a file\n"),
        format_error(),
        call(3.0, json!("Almost done."), &[("c", "sleep 1000")]),
        json!({"role": "tool", "tool_call_id": "c", "content": "timed out", "extra": {
            "raw_output": "", "returncode": -1, "exception_info": "TimeoutExpired"}}),
        call(9.0, Value::Null, &[("d", SUBMIT)]),
        submitted("diff --git a/x b/x\n"),
    ]);
    messages
}

#[test]
fn calls_and_results_are_paired_by_id_and_judged_by_exit_code() {
    let seen = shown(Program::Mini, &document(json!("Submitted"), &messages()));
    let outcomes = [
        ("bash", "ok", Some(0), Some("a file\n")),
        ("bash", "failed", Some(1), Some("cat: x: No such file\n")),
        ("bash", "failed", Some(-1), Some("")),
        ("bash", "unknown", None, None),
    ];
    assert_eq!(seen.outcomes(), outcomes);
    let inputs: Vec<&str> = seen.calls().iter().filter_map(|call| call.input.as_deref()).collect();
    assert_eq!(inputs, ["ls", "cat x", "sleep 1000", SUBMIT]);
    assert_eq!(seen.calls()[0].duration_ms, Some(2_000));
    let worker = &seen.worker;
    assert_eq!((worker.status, worker.task.as_str()), (Status::Completed, "Mend the tests."));
    assert_eq!(
        (worker.model.as_deref(), worker.cwd.as_deref()),
        (Some("lab/model-1"), Some("/testbed"))
    );
    assert_eq!((worker.id.to_text().as_ref(), worker.run.as_deref()), ("i", Some("run1")));
    assert_eq!(worker.duration_ms, Some(9_000));
    let trace = &seen.record.trace;
    let tokens = trace.tokens.unwrap();
    assert_eq!((tokens.input, tokens.cache_read, tokens.output), (120, 180, 120));
    assert_eq!(trace.final_words.as_deref(), Some("Almost done."));
    assert_eq!(seen.text("result.txt"), "diff --git a/x b/x\n");
    assert_eq!(seen.text("task.txt"), "Mend the tests.");
    let roles: Vec<String> = seen.thread().into_iter().map(|(role, _)| role).collect();
    let expected = [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "system",
        "assistant",
        "tool",
        "assistant",
        "system",
    ];
    assert_eq!(roles, expected);
}

#[test]
fn call_that_hands_in_the_work_needs_no_result() {
    let whole = messages();
    let tree = tree_of(Program::Mini, &document(json!("Submitted"), &whole));
    let index = index(&tree, "i");
    assert!(!checks(&index).contains(&"call_without_result"), "{index:#}");
    assert_eq!(index["source"]["calls_without_results"], 0);
    // Without the work, the call is one without a result.
    let cut = &whole[..whole.len() - 1];
    let tree = tree_of(Program::Mini, &document(json!("Killed"), cut));
    assert!(checks(&crate::formats::index(&tree, "i")).contains(&"call_without_result"));
}

#[test]
fn status_is_the_word_of_the_run() {
    for (word, status, source) in [
        (json!("Submitted"), Status::Completed, None),
        (json!("LimitsExceeded"), Status::Failed, Some("LimitsExceeded")),
        (json!("RuntimeError"), Status::Failed, Some("RuntimeError")),
        (Value::Null, Status::Running, None),
        (json!(""), Status::Running, None),
        (json!(7), Status::Running, None),
    ] {
        let mut running = begun();
        running.push(call(0.0, json!("I will look."), &[]));
        let worker = shown(Program::Mini, &document(word.clone(), &running)).worker;
        assert_eq!((worker.status, worker.status_source.as_deref()), (status, source), "{word}");
    }
    // Without facts about the run, it is going on.
    let seen = shown(
        Program::Mini,
        &json!({"messages": begun(), "trajectory_format": "mini-swe-agent-1"}),
    );
    assert_eq!(seen.worker.status, Status::Running);
}

/// Returns a document of the first form with these texts after the task: answers and replies in
/// turn.
fn old_document(texts: &[&str]) -> Value {
    let mut messages = begun();
    messages.extend(texts.iter().enumerate().map(|(at, text)| match at % 2 {
        0 => json!({"role": "assistant", "content": text, "extra": {"response": {"id": "", "model": "m",
            "usage": {"prompt_tokens": 10, "completion_tokens": 5}}}}),
        _ => json!({"role": "user", "content": text}),
    }));
    json!({"info": info(json!("Submitted")), "messages": messages,
        "trajectory_format": "mini-swe-agent-1"})
}

#[test]
fn first_form_states_calls_in_blocks_and_results_by_order() {
    let two = "```bash\nls\n```\n\n```bash\npwd\n```";
    let refused = "Please always provide EXACTLY ONE action";
    let late = "The last command <command>sleep 99</command> timed out";
    let ok = "<returncode>0</returncode>\n<output>\nx\n</output>";
    let work = "diff --git a/x b/x\n";
    let submit = format!("Done.\n\n```mswea_bash_command\n{SUBMIT}\n```");
    let document = old_document(&[
        "Look.\n\n```bash\nls -l |\n  wc\n```",
        ok,
        two,
        refused,
        "No block.",
        refused,
        "```bash\nfalse\n```",
        "<returncode>1</returncode>\n<output>\n</output>",
        "```mswea_bash_command\nsleep 99\n```",
        late,
        &submit,
        work,
    ]);
    let seen = shown(Program::Mini, &document);
    let outcomes = [
        ("bash", "ok", Some(0), Some(ok)),
        ("bash", "failed", Some(1), Some("<returncode>1</returncode>\n<output>\n</output>")),
        ("bash", "unknown", None, Some(late)),
        ("bash", "unknown", None, Some(work)),
    ];
    assert_eq!(seen.outcomes(), outcomes);
    assert_eq!(seen.calls()[0].input.as_deref(), Some("ls -l | wc"));
    assert_eq!(seen.text("result.txt"), work);
    assert_eq!(seen.record.trace.final_words.as_deref(), Some(submit.as_str()));
    assert_eq!(seen.record.trace.tokens.unwrap().output, 30);
    let requests = seen.text("requests.txt");
    assert!(requests.contains("Mend the tests.") && !requests.contains(refused), "{requests}");
}

#[test]
fn results_without_ids_belong_to_calls_in_order() {
    let mut messages = begun();
    let reply = |code: i64, output: &str| {
        json!({"role": "user", "content": "seen",
        "extra": {"raw_output": output, "returncode": code}})
    };
    messages.extend([
        json!({"role": "assistant", "content": "```bash\nno call\n```",
            "extra": {"actions": [{"command": "one"}, {"command": "two"}]}}),
        reply(0, "1"),
        reply(2, "2"),
    ]);
    let seen = shown(Program::Mini, &document(Value::Null, &messages));
    let outcomes = [("bash", "ok", Some(0), Some("1")), ("bash", "failed", Some(2), Some("2"))];
    assert_eq!(seen.outcomes(), outcomes);
}

/// Ids may be missing in some messages only.
#[test]
fn calls_with_and_without_ids_may_be_mixed() {
    let mut messages = begun();
    let mut unnamed = result(1.0, "", 3, "first");
    unnamed["tool_call_id"] = Value::Null;
    messages.push(call(0.0, Value::Null, &[("a", "one"), ("", "two"), ("b", "three")]));
    messages.extend([unnamed.clone(), unnamed, result(2.0, "b", 0, "last")]);
    let seen = shown(Program::Mini, &document(Value::Null, &messages));
    let outputs: Vec<Option<&str>> = seen.outcomes().into_iter().map(|call| call.3).collect();
    assert_eq!(outputs, [Some("first"), Some("first"), Some("last")]);
    let files: Vec<String> = seen.thread().into_iter().map(|(_, text)| text).collect();
    let expected =
        ["tool_calls/001_bash.txt", "tool_calls/002_bash.txt", "tool_calls/003_bash.txt"];
    assert_eq!(files[3..], expected);
}

#[test]
fn bare_list_of_messages_has_no_known_status() {
    let mut list = begun();
    list[0]["content"] = json!("Your response must contain exactly ONE bash code block");
    list.extend([
        json!({"role": "assistant", "content": "First.\n\n```bash\nls\n```"}),
        json!({"role": "user", "content": "<returncode>0</returncode>"}),
        json!({"role": "assistant", "content": "Bye.\n\n```bash\necho MINI_SWE_AGENT_FINAL_OUTPUT\n```"}),
        json!({"role": "user", "content": ""}),
    ]);
    let store = Memory::new();
    store.write(&path("old.traj.json"), json!(list).to_string());
    assert_eq!(MiniSweAgent::transcripts().detect(&store), Ok(Detection::Workers));
    let all = read_all(&MiniSweAgent::transcripts(), &store);
    let seen = &all[&path("old.traj.json")];
    assert_eq!((seen.worker.status, seen.worker.run.as_deref()), (Status::Unknown, None));
    assert_eq!(seen.outcomes().len(), 2);
    assert_eq!(seen.outcomes()[1], ("bash", "unknown", None, Some("")));
    assert!(seen.record.trace.final_words.as_deref().unwrap().starts_with("Bye."));
}

#[test]
fn contents_may_be_lists_of_parts() {
    let mut messages = begun();
    messages[1]["content"] = json!([{"type": "text", "text": "Look at "},
        {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "it."}]);
    assert_eq!(shown(Program::Mini, &document(Value::Null, &messages)).worker.task, "Look at it.");
}

#[test]
fn odd_types_cost_no_message() {
    let odd = [
        json!(null),
        json!(1),
        json!(-1.5),
        json!("x"),
        json!([{}]),
        json!({"a": []}),
        json!(true),
    ];
    for odd in odd {
        let mut messages = messages();
        messages.push(odd.clone());
        for field in ["role", "content", "tool_call_id", "extra", "tool_calls"] {
            let mut message = call(20.0, json!("text"), &[("e", "ls")]);
            message[field] = odd.clone();
            messages.push(message);
        }
        for field in ["actions", "returncode", "raw_output", "timestamp", "submission", "response"]
        {
            let mut message = result(21.0, "e", 0, "out");
            message["extra"][field] = odd.clone();
            messages.push(message);
        }
        let mut document = document(odd.clone(), &messages);
        document["info"]["config"]["model"] = odd.clone();
        document["trajectory"] = odd.clone();
        let seen = shown(Program::Mini, &document);
        assert!(seen.calls().len() >= 5, "{odd}: {:?}", seen.outcomes());
        let bad: u64 = seen.record.trace.bad_lines.iter().map(|(_, lines)| lines).sum();
        assert_eq!(bad, u64::from(!odd.is_object()), "{odd}");
    }
}

#[test]
fn constants_of_python_cost_no_message() {
    let mut messages = begun();
    messages.push(call(0.0, json!("NaN"), &[("a", "echo NaN")]));
    messages.push(result(1.0, "a", 0, "NaN\n"));
    let text = document(Value::Null, &messages).to_string();
    let text = text.replace("\"cost\":0.1", "\"cost\":NaN,\"logprob\":[-Infinity, Infinity]");
    let seen = shown_bytes(Program::Mini, text.into_bytes());
    assert_eq!(seen.outcomes(), [("bash", "ok", Some(0), Some("NaN\n"))]);
    assert!(!seen.record.trace.unused.is_torn);
}

/// Promise: A document that is not whole fails the check `torn_document`.
#[test]
fn document_that_is_not_whole_is_named() {
    let whole = document(Value::Null, &messages()).to_string();
    let store = Arc::new(Memory::new());
    for (bytes, torn) in [(&whole.as_bytes()[..whole.len() - 300], true), (whole.as_bytes(), false)]
    {
        store.write(&Program::Mini.place(), bytes);
        let tree = tree(Program::Mini, &store);
        let index = index(&tree, "i");
        assert_eq!(checks(&index).contains(&"torn_document"), torn, "{index:#}");
        let summary = text(&tree, "i", "summary");
        assert_eq!(summary.contains("it ends inside a value or is not JSON"), torn, "{summary}");
    }
}

#[test]
fn documents_are_recognized_by_content() {
    let work = "x".repeat(400_000);
    let mut large = old_document(&["```bash\nls\n```", "x"]);
    large["info"] = json!({"exit_status": "Submitted", "submission": work, "mini_version": "1.15"});
    let swe = super::swe_agent::document(Value::Null, &super::swe_agent::steps());
    let quoted = json!({"trajectory": [], "text": "\"mini_version\" \"trajectory_format\""});
    for (name, document, is_mini) in [
        ("a/a.traj.json", document(Value::Null, &begun()), true),
        ("a.traj", document(Value::Null, &begun()), true),
        ("last_mini_run.traj.json", large, true),
        ("a.json", document(Value::Null, &begun()), false),
        ("preds.json", json!({"i": {"model_patch": "", "instance_id": "i"}}), false),
        ("a.traj", swe, false),
        ("a.traj", quoted, false),
        ("a.traj.json", json!([{"role": "system", "content": "Hello."}]), false),
        ("a.traj.json", json!("mini-swe-agent-1"), false),
    ] {
        let store = Memory::new();
        store.write(&path(name), document.to_string());
        let found = MiniSweAgent::transcripts().find_workers(&store).unwrap().folders;
        assert_eq!(
            !found.is_empty(),
            is_mini,
            "{name}: {}",
            &document.to_string()[..60.min(document.to_string().len())]
        );
        if is_mini {
            assert_eq!(SweAgent::transcripts().detect(&store), Ok(Detection::Other), "{name}");
        }
    }
}

#[test]
fn one_instance_of_several_runs_is_several_workers() {
    let store = Arc::new(Memory::new());
    for run in ["run1", "run2"] {
        for instance in ["i", "k"] {
            let place = format!("{run}/{instance}/{instance}.traj.json");
            store.write(&path(&place), document(json!("Submitted"), &messages()).to_string());
        }
        store.write(&path(&format!("{run}/preds.json")), "{}");
    }
    let tree = tree(Program::Mini, &store);
    let workers = crate::formats::listed(&tree);
    assert_eq!(workers.len(), 4, "{workers:?}");
    for run in ["run1", "run2"] {
        assert_eq!(names(&tree, format!("runs/{run}/workers")).unwrap().len(), 2);
    }
}

/// Promise: The fields that state an outcome are read, and no other one looks like it.
#[test]
fn fields_that_state_an_outcome_are_read() {
    let result = |code: i64| {
        let mut result = result(2.0, "a", code, "x");
        result["content"] = json!("x");
        result
    };
    let samples =
        [("extra.returncode", result(0), "ok"), ("extra.returncode", result(1), "failed")];
    let outcome = |result: &Value| {
        let mut messages = begun();
        messages.extend([call(1.0, json!("go"), &[("a", "ls")]), result.clone()]);
        let seen = shown(Program::Mini, &document(Value::Null, &messages));
        seen.outcomes()[0].1.to_owned()
    };
    crate::formats::outcome_fields::check("mini-swe-agent", &samples, &[], &[], outcome);
}
