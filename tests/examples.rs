//! The examples, run as their readers would run them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use swarmletfs::text::budget::Budget;

use crate::support::{TestStore, python, see};

const LANGGRAPH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/langgraph");
const CLAUDE_CODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/claude-code/.mcp.json");
const PROGRAM: &str = env!("CARGO_BIN_EXE_swarmletfs");

#[track_caller]
fn run(python: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(python);
    command.args(arguments).current_dir(LANGGRAPH).env("SWARMLETFS", PROGRAM).env("PYTHONDONTWRITEBYTECODE", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// One of three workers lies and one fails quietly: the supervisor sees it in the evidence, keeps little, and nothing that
/// was expanded is in its checkpoints.
#[test]
fn a_supervisor_in_langgraph_sees_who_lies_and_keeps_no_evidence() {
    let Some(python) = python() else { return };
    let store = TestStore::new();
    let path = store.path().display().to_string();
    let told: Value = serde_json::from_str(&run(&python, &["supervisor.py", "--store", &path, "--json"])).unwrap();
    let of = |kind: &str| {
        let all = told["workers"].as_array().unwrap();
        let worker = all.iter().find(|worker| worker["task_type"] == kind).unwrap();
        let id = worker["worker_id"].as_str().unwrap().to_owned();
        let line = told["synthesis"].as_str().unwrap().lines().find(|line| line.contains(&id)).unwrap().to_owned();
        (id, worker["status"].as_str().unwrap().to_owned(), line)
    };
    for (kind, is_failed, says) in [
        ("inventory", false, "holds"),
        ("restore-test", true, "tool_calls/003_restore_dump.txt failed"),
        ("certificates", true, "tool_calls/002_check_certificate.txt failed"),
    ] {
        let (id, status, line) = of(kind);
        assert_eq!((status.as_str(), line.contains("DOES NOT HOLD")), ("success", is_failed), "{line}");
        assert!(line.contains(says), "{line}");
        // The checks of its claims tell the same.
        let tree = store.tree();
        let summary = see(&tree, format!("workers/{id}/summary")).unwrap().text().to_owned();
        assert_eq!(summary.contains("\n  ! "), is_failed, "{summary}");
    }
    let number = |name: &str| told[name].as_u64().unwrap();
    assert_eq!((number("frames_seen"), number("frames_kept")), (3, 0), "{told:#}");
    assert!(number("checkpoints") > 1 && number("memory_bytes") < 8_000 && number("raw_bytes") > 200_000, "{told:#}");
}

#[test]
fn the_tests_of_the_langgraph_example_pass() {
    let Some(python) = python() else { return };
    run(&python, &["-m", "unittest", "-q"]);
}

#[test]
fn the_set_up_for_claude_code_starts_a_server() {
    let set_up: Value = serde_json::from_slice(&std::fs::read(CLAUDE_CODE).unwrap()).unwrap();
    let server = &set_up["mcpServers"]["swarm"];
    assert_eq!(server["command"], "swarmletfs");
    let store = TestStore::new();
    store.worker("a", serde_json::json!({}));
    let arguments = server["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("SWARMLET_DATA_PATH", store.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["id"], 1);
}

/// What a prompt is told of the tree is what a mount says of itself, and is short.
#[test]
fn what_agents_are_told_is_short_and_the_same_in_the_mount() {
    let told = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/AGENTS.md")).unwrap();
    let tokens = Budget::parse("600tok").unwrap();
    assert!(
        told.len() <= 2_048 && tokens.used(&told) <= tokens.size(),
        "{} B, {} tokens",
        told.len(),
        tokens.used(&told)
    );
    assert_eq!(see(&TestStore::new().tree(), "README.md").unwrap().text(), told);
}
