//! Documents of SWE-agent.

use std::fs;

use serde_json::{Value, json};
use swarmletfs_base::model::{AccessKind, Status};
use swarmletfs_base::store::Memory;
use swarmletfs_trace::{Detection, Format, SweAgent};

use super::*;
use crate::formats::text;
use crate::support::tool::{is_here, shell};

/// Returns a step.
pub fn step(action: &str, observation: &str, thought: &str) -> Value {
    json!({"action": action, "observation": observation, "thought": thought,
        "response": format!("{thought}\n```\n{action}\n```"), "execution_time": 0.1534,
        "state": {"working_dir": "/testbed", "open_file": "n/a"}, "extra_info": {}})
}

/// Returns the prompt of a step: a demonstration, the task, and `more` messages.
fn prompt(more: usize) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "You have a shell.", "agent": "main"}),
        json!({"role": "user", "content": "A demonstration.", "is_demo": true}),
        json!({"role": "user", "content": [{"type": "text", "text": "Mend the tests."}]}),
    ];
    messages.extend((0..more).map(|n| json!({"role": "tool", "content": format!("seen {n}")})));
    Value::Array(messages)
}

/// Returns the steps of a run.
pub fn steps() -> Vec<Value> {
    let mut steps = vec![
        step("ls -F\n", "a.py\r\nb.py", "Look around.\n"),
        step("  ", "Your action is empty.", ""),
        step("python a.py", "", "  "),
        step("submit", "diff --git a/x b/x\r\n", "I am done."),
    ];
    for (at, step) in steps.iter_mut().enumerate() {
        step["query"] = prompt(at);
    }
    steps
}

/// Returns a document with these steps.
pub fn document(exit_status: Value, steps: &[Value]) -> Value {
    let config = json!({"agent": {"model": {"name": "lab-model", "api_key": "***"}}}).to_string();
    json!({"trajectory": steps, "history": prompt(2), "replay_config": config, "environment": "main",
        "info": {"exit_status": exit_status, "submission": "diff --git a/x b/x\r\n",
            "model_stats": {"instance_cost": 1.5, "tokens_sent": 7000, "tokens_received": 900}}})
}

#[test]
fn steps_are_calls_without_a_known_outcome() {
    let seen = shown(Program::Swe, &document(json!("submitted"), &steps()));
    let outcomes = [
        ("ls", "unknown", None, Some("a.py\r\nb.py")),
        ("python", "unknown", None, Some("")),
        ("submit", "unknown", None, Some("diff --git a/x b/x\r\n")),
    ];
    assert_eq!(seen.outcomes(), outcomes);
    assert_eq!(seen.calls()[0].input.as_deref(), Some("ls -F"));
    assert_eq!(seen.calls()[0].duration_ms, Some(153));
    let worker = &seen.worker;
    assert_eq!((worker.status, worker.task.as_str()), (Status::Completed, "Mend the tests."));
    assert_eq!(
        (worker.model.as_deref(), worker.cwd.as_deref()),
        (Some("lab-model"), Some("/testbed"))
    );
    assert_eq!((worker.id.to_text().as_ref(), worker.run.as_deref()), ("i", Some("run1")));
    let trace = &seen.record.trace;
    assert_eq!(trace.tokens.map(|tokens| (tokens.input, tokens.output)), Some((7000, 900)));
    assert_eq!(trace.tokens_by_model.keys().collect::<Vec<_>>(), ["lab-model"]);
    assert_eq!(trace.final_words.as_deref(), Some("I am done."));
    assert_eq!(seen.text("result.txt"), "diff --git a/x b/x\r\n");
    let thread: Vec<(String, String)> = seen.thread();
    let thread: Vec<(&str, &str)> = thread.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let expected = [
        ("user", "Mend the tests."),
        ("assistant", "Look around.\n"),
        ("tool", "tool_calls/001_ls.txt"),
        ("assistant", "\n```\n  \n```"),
        ("system", "Your action is empty."),
        ("assistant", "  \n```\npython a.py\n```"),
        ("tool", "tool_calls/002_python.txt"),
        ("assistant", "I am done."),
        ("tool", "tool_calls/003_submit.txt"),
        ("system", "diff --git a/x b/x\r\n"),
    ];
    assert_eq!(thread, expected);
}

/// Promise: The steps of all attempts of a run are its calls, each once.
#[test]
fn attempts_of_a_run_are_read() {
    let all = document(json!("submitted"), &steps());
    let mut first = document(json!("exit_cost"), &steps()[..2]);
    first["info"]["submission"] = json!("first");
    let mut whole = json!({"attempts": [first, 7, all]});
    // While the run goes on, nothing else is there.
    let seen = shown(Program::Swe, &whole);
    let tools = |seen: &Seen| -> Vec<String> {
        seen.calls().iter().map(|call| call.tool.clone()).collect()
    };
    assert_eq!(tools(&seen), ["ls", "ls", "python", "submit"]);
    assert_eq!((seen.worker.status, &*seen.worker.task), (Status::Running, "Mend the tests."));
    let tokens = |seen: &Seen| seen.record.trace.tokens.map(|tokens| tokens.input);
    assert_eq!(tokens(&seen), Some(14_000));
    // In the end, the document repeats the best one.
    for (name, value) in all.as_object().unwrap() {
        whole[name] = value.clone();
    }
    whole["info"]["model_stats"]["tokens_sent"] = json!(15_000);
    let seen = shown(Program::Swe, &whole);
    assert_eq!(tools(&seen), ["ls", "ls", "python", "submit"]);
    assert_eq!((seen.worker.status, tokens(&seen)), (Status::Completed, Some(15_000)));
    assert_eq!(seen.text("result.txt"), "diff --git a/x b/x\r\n");
    assert!(seen.record.trace.bad_lines.is_empty());
}

#[test]
fn status_is_the_word_of_the_run() {
    for (word, status, source) in [
        (json!("submitted"), Status::Completed, None),
        (json!("submitted (exit_cost)"), Status::Completed, Some("submitted (exit_cost)")),
        (json!("exit_cost"), Status::Failed, Some("exit_cost")),
        (Value::Null, Status::Running, None),
    ] {
        let worker = shown(Program::Swe, &document(word.clone(), &steps())).worker;
        assert_eq!((worker.status, worker.status_source.as_deref()), (status, source), "{word}");
    }
    let seen = shown(Program::Swe, &json!({"trajectory": steps()}));
    assert_eq!(seen.worker.status, Status::Running);
}

#[test]
fn old_documents_hold_the_task_in_their_history() {
    let mut steps = steps();
    for step in &mut steps {
        step.as_object_mut().unwrap().remove("query");
        step["state"] = json!("{\"open_file\": \"n/a\", \"working_dir\": \"/old\"}\n");
    }
    let mut document = document(json!("submitted"), &steps);
    document["replay_config"] = json!({"agent": {"model": {"name": "old-model"}}});
    let seen = shown(Program::Swe, &document);
    assert_eq!(
        (seen.worker.task.as_str(), seen.text("task.txt")),
        ("Mend the tests.", "Mend the tests.")
    );
    assert_eq!(
        (seen.worker.cwd.as_deref(), seen.worker.model.as_deref()),
        (Some("/old"), Some("old-model"))
    );
    assert_eq!(seen.calls().len(), 3);
    // In version 1.0 the prompt has another name.
    steps[0]["messages"] = prompt(0);
    document["trajectory"] = json!(steps);
    document["history"] = json!([]);
    assert_eq!(shown(Program::Swe, &document).worker.task, "Mend the tests.");
}

#[test]
fn runs_are_recognized_and_demonstrations_are_not() {
    let history = json!([{"role": "user", "content": "\"trajectory\" \"action\"", "action": "ls"}]);
    let long = step("ls", &"x".repeat(10_000), &"y".repeat(10_000));
    for (name, document, is_run) in [
        ("dev/run/i/i.traj", document(Value::Null, &steps()), true),
        ("i.traj", document(Value::Null, &[long]), true),
        ("i.traj", json!({"trajectory": [], "history": [], "info": {}}), true),
        ("i.traj", json!({"history": history}), false),
        ("i.traj.json", document(Value::Null, &steps()), false),
        ("i.traj", super::mini_swe_agent::document(Value::Null, &[]), false),
        ("i.traj", json!([{"trajectory": 1, "action": 2}]), false),
        ("i.pred", document(Value::Null, &steps()), false),
    ] {
        let store = Memory::new();
        store.write(&path(name), document.to_string());
        let found = SweAgent::transcripts().detect(&store).unwrap();
        assert_eq!(found == Detection::Workers, is_run, "{name}: {document:.100}");
    }
}

#[test]
fn odd_types_cost_no_step() {
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
        let mut steps = steps();
        steps.push(odd.clone());
        for field in [
            "action",
            "observation",
            "thought",
            "response",
            "execution_time",
            "state",
            "query",
            "messages",
        ] {
            let mut step = step("ls", "seen", "thought");
            step[field] = odd.clone();
            steps.push(step.clone());
            steps.insert(0, step);
        }
        let mut document = document(odd.clone(), &steps);
        document["info"]["model_stats"] = odd.clone();
        document["replay_config"] = odd.clone();
        let seen = shown(Program::Swe, &document);
        assert!(seen.calls().len() >= 17, "{odd}: {:?}", seen.calls().len());
        let bad: u64 = seen.record.trace.bad_lines.iter().map(|(_, lines)| lines).sum();
        assert_eq!(bad, if odd.is_object() { 0 } else { 2 }, "{odd}");
        for member in ["trajectory", "history", "info"] {
            let mut document = super::swe_agent::document(Value::Null, &steps);
            document[member] = odd.clone();
            shown(Program::Swe, &document);
        }
    }
}

/// Returns steps that edit files.
fn edits() -> Vec<Value> {
    let edited = "The file /testbed/a.py has been edited. Here's the result";
    let quoted = "'x = '\"'\"'1'\"'\"'\ny = 2\n'";
    vec![
        step("str_replace_editor view /testbed/b.py", "Here's the result of running", ""),
        step(
            &format!("str_replace_editor create /testbed/a.py --file_text {quoted} "),
            "File created successfully at: /testbed/a.py",
            "",
        ),
        step(
            "str_replace_editor str_replace /testbed/a.py   --old_str 'y = 2' --new_str 'y = 3\nz = 4'",
            edited,
            "",
        ),
        step(
            "str_replace_editor str_replace /testbed/a.py --old_str 'gone' --new_str ''",
            "No replacement was performed",
            "",
        ),
        step("str_replace_editor create /testbed/c.py --file_text 'x' && rm /testbed/c.py", "", ""),
    ]
}

/// Promise: An edit of SWE-agent is in changes.diff only if its effect is certain.
#[test]
fn edits_whose_effect_is_certain_are_changes() {
    let seen = shown(Program::Swe, &document(json!("submitted"), &edits()));
    let files: Vec<(&str, AccessKind)> = seen
        .calls()
        .iter()
        .flat_map(|call| &call.files)
        .map(|file| (file.path.as_str(), file.kind))
        .collect();
    let expected = [
        ("/testbed/b.py", AccessKind::Read),
        ("/testbed/a.py", AccessKind::Created),
        ("/testbed/a.py", AccessKind::Edited),
    ];
    assert_eq!(files, expected);
    let tree = tree_of(Program::Swe, &document(json!("submitted"), &edits()));
    let diff = text(&tree, "i", "changes.diff");
    assert!(diff.contains("+x = '1'\n+y = 3\n+z = 4\n"), "{diff}");
    if is_here("git") {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("changes.diff"), &diff).unwrap();
        let out = shell("git apply changes.diff", dir.path())
            .env("GIT_CEILING_DIRECTORIES", dir.path())
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(fs::read_to_string(dir.path().join("a.py")).unwrap(), "x = '1'\ny = 3\nz = 4\n");
    }
    // An edit that was taken back, and one of an unknown content, have no place.
    let mut more = edits();
    more.push(step(
        "str_replace_editor undo_edit /testbed/a.py",
        "Last edit to /testbed/a.py undone",
        "",
    ));
    more.push(step(
        "str_replace_editor insert /testbed/b.py --insert_line 2 --new_str 'n'",
        "The file /testbed/b.py has been edited.",
        "",
    ));
    let diff =
        text(&tree_of(Program::Swe, &document(json!("submitted"), &more)), "i", "changes.diff");
    for place in ["a.py: call 6 changed it at undo_edit", "b.py: call 7 changed it at line 2"] {
        assert!(diff.contains(place), "{diff}");
    }
}

#[test]
fn run_without_edits_has_no_changes() {
    let seen = shown(Program::Swe, &document(json!("submitted"), &steps()));
    assert!(seen.calls().iter().all(|call| call.files.is_empty()));
    let tree = tree_of(Program::Swe, &document(json!("submitted"), &steps()));
    assert!(crate::support::see(&tree, "workers/i/changes.diff").is_err());
}
