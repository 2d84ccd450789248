//! `swarmletfs hook copilot` as a process: its answers, and its silence.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::program::swarmletfs;

const SESSION: &str = "9ee0e7f4-eb51-4fbe-8172-58d00eadd147";
const AGENT: &str = "1f86998f-3f22-4249-a1a0-483aa69df271";
const OTHER: &str = "2f86998f-3f22-4249-a1a0-483aa69df272";

fn event(kind: &str, agent: &str, data: Value) -> Value {
    let mut event = json!({"type": kind, "data": data, "timestamp": "2026-11-29T17:44:19Z"});
    if !agent.is_empty() {
        event["agentId"] = json!(agent);
    }
    event
}

/// Returns the events of a subagent that was asked `prompt` and fails, without its end.
fn agent(id: &str, prompt: &str) -> Vec<Value> {
    let call =
        json!({"toolCallId": format!("c{id}"), "name": "bash", "arguments": {"command": "make"}});
    let result = json!({"toolCallId": format!("c{id}"), "success": true, "shellExecution": {"exitCode": 2},
        "result": {"content": "error: no disk\n<shellId: 0 completed with exit code 2>"}});
    vec![
        event("subagent.started", id, json!({"agentName": "notes"})),
        event("user.message", id, json!({"content": prompt, "source": "agent-s"})),
        event("assistant.message", id, json!({"content": "", "toolRequests": [call]})),
        event("tool.execution_complete", id, result),
        event("assistant.message", id, json!({"content": "All tests pass.", "toolRequests": []})),
    ]
}

fn write(home: &Path, agents: &[Vec<Value>]) {
    let folder = home.join("session-state").join(SESSION);
    fs::create_dir_all(&folder).unwrap();
    let start = event("session.start", "", json!({"sessionId": SESSION}));
    let lines = std::iter::once(&start).chain(agents.iter().flatten());
    fs::write(
        folder.join("events.jsonl"),
        lines.map(|line| format!("{line}\n")).collect::<String>(),
    )
    .unwrap();
}

fn ended(id: &str) -> Value {
    event("subagent.completed", id, json!({"toolCallId": "t"}))
}

fn input(tool: &str, arguments: Value) -> Value {
    json!({"sessionId": SESSION, "timestamp": 1, "cwd": "/app", "toolName": tool,
        "toolArgs": arguments, "toolResult": {"resultType": "success", "textResultForLlm": "It worked."}})
}

fn run(home: &Path, max_time: &str, input: &[u8]) -> Output {
    let mut command = swarmletfs(["hook", "copilot", "--max-time", max_time]);
    command.env("COPILOT_HOME", home).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns the context in the answer, or `None` if there is no answer.
fn context(home: &Path, input: &Value) -> Option<String> {
    context_within(home, "60s", input)
}

fn context_within(home: &Path, max_time: &str, input: &Value) -> Option<String> {
    let output = run(home, max_time, input.to_string().as_bytes());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(answer["additionalContext"].as_str().unwrap().to_owned())
}

#[test]
fn ended_subagent_is_answered_with_the_proof() {
    let home = tempfile::tempdir().unwrap();
    let task = input("task", json!({"prompt": "Run the tests."}));
    write(home.path(), &[agent(AGENT, "Run the tests."), agent(OTHER, "Another.")]);
    assert_eq!(context_within(home.path(), "300ms", &task), None, "it has not ended");
    write(
        home.path(),
        &[
            agent(OTHER, "Another."),
            vec![ended(OTHER)],
            agent(AGENT, "Run the tests."),
            vec![ended(AGENT)],
        ],
    );
    let answer = context(home.path(), &task).unwrap();
    assert!(answer.len() <= 800 && answer.contains("error: no disk"), "{answer}");
    assert!(answer.contains(AGENT), "{answer}");
    let read = context(home.path(), &input("read_agent", json!({"agent_id": OTHER}))).unwrap();
    assert!(read.contains(OTHER), "{read}");
}

/// Copilot writes its events with a delay.
#[test]
fn end_that_is_written_late_is_awaited() {
    let home = tempfile::tempdir().unwrap();
    write(home.path(), &[agent(AGENT, "Run.")]);
    let task = input("task", json!({"prompt": "Run."}));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| context(home.path(), &task));
        std::thread::sleep(std::time::Duration::from_millis(100));
        write(home.path(), &[agent(AGENT, "Run."), vec![ended(AGENT)]]);
        assert!(answer.join().unwrap().unwrap().contains("error: no disk"));
    });
    let background = input("task", json!({"prompt": "Run.", "mode": "background"}));
    assert_eq!(context(home.path(), &background), None);
}

#[test]
fn other_events_and_bad_input_are_silent() {
    let home = tempfile::tempdir().unwrap();
    write(home.path(), &[agent(AGENT, "Run."), vec![ended(AGENT)]]);
    let mut elsewhere = input("task", json!({"prompt": "Run."}));
    elsewhere["sessionId"] = json!("../../etc");
    for input in [
        input("bash", json!({"command": "ls"})),
        input("task", json!({"prompt": "Another."})),
        input("read_agent", json!({"agent_id": "../x"})),
        input("read_agent", json!({})),
        elsewhere,
        json!({}),
        json!([1]),
    ] {
        assert_eq!(context_within(home.path(), "300ms", &input), None, "{input}");
    }
    for bytes in [&b""[..], b"\xff", b"{"] {
        assert!(run(home.path(), "300ms", bytes).stdout.is_empty());
    }
}

#[test]
fn install_adds_the_hook_and_removes_it_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let install = |arguments: &[&str]| {
        let mut command = swarmletfs(["hook", "install", "copilot", "--yes"]);
        command.args(arguments).env("COPILOT_HOME", dir.path()).current_dir(dir.path());
        command.output().unwrap()
    };
    assert_eq!(install(&[]).status.code(), Some(0));
    let path = dir.path().join("hooks/swarmletfs.json");
    let read = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
    let hook = json!({"type": "command", "bash": "swarmletfs hook copilot", "timeoutSec": 5});
    assert_eq!(read(), json!({"version": 1, "hooks": {"postToolUse": [hook]}}));
    let again = install(&[]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to change"), "{again:?}");
    assert_eq!(install(&["--remove"]).status.code(), Some(0));
    assert_eq!(read(), json!({"version": 1}));
    assert_eq!(install(&["--project"]).status.code(), Some(0));
    assert!(dir.path().join(".github/hooks/swarmletfs.json").is_file());
}
