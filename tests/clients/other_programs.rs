//! The real Codex CLI, Gemini CLI, pi, opencode, GitHub Copilot CLI, Qwen Code, Cline CLI,
//! mini-swe-agent and OpenHands: a session of each is followed while it runs, and read afterwards.

use serde_json::Value;

use super::{CLAIM_OF_TESTER, Client, FAILURE, calls, file, follow, worker, workers};
use crate::mount::eventually;
use crate::support::Mount;

const CODEX: Client = from_npm("codex", "Codex CLI", "home/.codex");
const GEMINI: Client = from_npm("gemini", "Gemini CLI", "home/.gemini");
const PI: Client = from_npm("pi", "pi", "home/.pi/agent/sessions");
const OPENCODE: Client = from_npm("opencode", "opencode", "home/.local/share/opencode");
const COPILOT_CLI: Client = from_npm("copilot-cli", "GitHub Copilot CLI", "home/.copilot");
const QWEN_CODE: Client = from_npm("qwen-code", "Qwen Code", "home/.qwen");
const CLINE: Client = from_npm("cline", "Cline CLI", "home/.cline");
const MINI_SWE_AGENT: Client = from_pip("mini-swe-agent", "mini-swe-agent", "runs");
const OPENHANDS: Client = from_pip("openhands", "OpenHands", "conversations");

const fn from_npm(name: &'static str, title: &'static str, store: &'static str) -> Client {
    Client { name, title, setup: "scripts/setup --all, if npm is there", store }
}

const fn from_pip(name: &'static str, title: &'static str, store: &'static str) -> Client {
    Client { name, title, setup: "scripts/clients --setup python", store }
}

/// The line by which a masked failure of the tests is suspect.
const TESTS_FAILED: &str = "2 tests, 1 failed";

/// Returns the only child of a worker, when it has completed.
fn child(mount: &Mount, parent: &str) -> String {
    eventually("the subagent", || {
        let mut found = workers(mount, |worker| {
            worker["parent_id"] == parent && worker["status"] == "completed"
        });
        assert!(found.len() <= 1, "{found:?}");
        found.pop()
    })
}

/// Checks that the call at `position` is ok by the record, and suspect because of `line`.
fn assert_suspect(worker: &Value, position: usize, line: &str) {
    let call = &worker["tool_calls"][position];
    assert_eq!(call["outcome"], "ok", "{call:#}");
    assert!(call["suspect"].as_str().is_some_and(|suspect| suspect.contains(line)), "{call:#}");
}

/// Checks that changes.diff of a worker has the edits of the script.
fn assert_changes(mount: &Mount, worker: &str) {
    let changes = file(mount, worker, "changes.diff");
    for line in ["build.conf", "+shop=corner", "README.md", "of a corner shop"] {
        assert!(changes.contains(line), "{line:?} is missing in {changes}");
    }
    assert!(!changes.contains("price.sh"), "the edit that failed: {changes}");
}

/// Checks a session of small_script.py: the tool, the outcome and the exit code of each call, and
/// the facts about the session.
fn assert_small_session(mount: &Mount, main: &str, wanted: &[(&str, &str, Option<i64>)]) {
    let seen = worker(mount, main);
    let found = seen["tool_calls"].as_array().unwrap().iter().zip(calls(&seen));
    let found: Vec<_> =
        found.map(|(call, (tool, outcome))| (tool, outcome, call["exit_code"].as_i64())).collect();
    assert_eq!(found, wanted, "{seen:#}");
    assert_suspect(&seen, 0, TESTS_FAILED);
    assert_eq!(seen["calls"]["suspect"], 1, "{seen:#}");
    assert_eq!(seen["model"], "scripted", "{seen:#}");
    assert_eq!(seen["project"], "project", "{seen:#}");
    assert_eq!(seen["outcome"], "failed", "{seen:#}");
    assert!(file(mount, main, "summary").contains("success_but_call_looks_failed"));
    assert_changes(mount, main);
}

/// Checks the subagent of a session, whose only call fails.
fn assert_tester(mount: &Mount, main: &str, tool: &str) {
    let tester = child(mount, main);
    let seen = worker(mount, &tester);
    assert_eq!(calls(&seen), [(tool, "failed")], "{seen:#}");
    assert_eq!(seen["final_words"], CLAIM_OF_TESTER, "{seen:#}");
    let summary = file(mount, &tester, "summary");
    for part in ["outcome  failed", FAILURE, "success_but_last_call_failed"] {
        assert!(summary.contains(part), "{part:?} is missing in {summary}");
    }
}

#[test]
#[ignore = "only in scripts/check --all"]
fn codex_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !CODEX.is_here() {
        return;
    }
    // The script checks that its words reach the model.
    let hook = [env!("CARGO_BIN_EXE_swarmletfs"), "hook", "codex", "--max-time", "20s"];
    let (_session, mount, main) = follow(&CODEX, &[(1, 1), (5, 6)], &hook);

    let seen = worker(&mount, &main);
    let [commands @ .., spawn, wait] = &calls(&seen)[..] else { panic!("{seen:#}") };
    // The record has no outcome of a patch that does not fit.
    let wanted = [
        ("exec_command", "ok"),
        ("exec_command", "failed"),
        ("apply_patch", "ok"),
        ("apply_patch", "unknown"),
        ("exec_command", "ok"),
        ("exec_command", "failed"),
    ];
    assert_eq!(commands, wanted, "{seen:#}");
    for (call, tool) in [(spawn, "spawn_agent"), (wait, "wait_agent")] {
        assert!(call.0.contains(tool) && call.1 != "failed", "{call:?}");
    }
    assert_eq!(seen["tool_calls"][1]["exit_code"], 1, "{seen:#}");
    assert_eq!(seen["tool_calls"][5]["exit_code"], 2, "{seen:#}");
    assert_suspect(&seen, 0, TESTS_FAILED);
    assert!(file(&mount, &main, "tool_calls/001_exec_command.txt").contains(FAILURE));
    assert_eq!(seen["model"], "gpt-5.5", "{seen:#}");
    assert_eq!(seen["project"], "project", "{seen:#}");
    assert_changes(&mount, &main);

    assert_tester(&mount, &main, "exec_command");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn gemini_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !GEMINI.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&GEMINI, &[(1, 1), (5, 7)], &[]);

    let seen = worker(&mount, &main);
    let wanted = [
        ("run_shell_command", "ok"),
        ("run_shell_command", "ok"),
        ("write_file", "ok"),
        ("replace", "ok"),
        ("replace", "failed"),
        ("run_shell_command", "ok"),
        ("read_file", "failed"),
        ("invoke_agent", "ok"),
    ];
    assert_eq!(calls(&seen), wanted, "{seen:#}");
    assert_suspect(&seen, 0, TESTS_FAILED);
    // The record calls a command that fails a success.
    assert_suspect(&seen, 1, "Exit Code: 1");
    assert_changes(&mount, &main);

    let tester = child(&mount, &main);
    let seen = worker(&mount, &tester);
    let wanted = [("run_shell_command", "ok"), ("complete_task", "ok")];
    assert_eq!(calls(&seen), wanted, "{seen:#}");
    assert_suspect(&seen, 0, "Exit Code: 1");
    assert!(file(&mount, &tester, "evidence.txt").contains(FAILURE));
}

#[test]
#[ignore = "only in scripts/check --all"]
fn pi_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !PI.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&PI, &[(1, 1), (5, 7)], &[]);
    let wanted = [
        ("bash", "ok", None),
        ("bash", "failed", Some(1)),
        ("write", "ok", None),
        ("edit", "ok", None),
        ("edit", "failed", None),
        ("bash", "ok", None),
        ("bash", "failed", Some(2)),
        ("no_such_tool", "failed", None),
    ];
    assert_small_session(&mount, &main, &wanted);
}

#[test]
#[ignore = "only in scripts/check --all"]
fn opencode_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !OPENCODE.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&OPENCODE, &[(1, 1), (5, 7)], &[]);
    let wanted = [
        ("bash", "ok", Some(0)),
        ("bash", "failed", Some(1)),
        ("write", "ok", None),
        ("edit", "ok", None),
        ("edit", "failed", None),
        ("bash", "ok", Some(0)),
        ("bash", "failed", Some(2)),
        // The record calls the tool `invalid`, and the call a success.
        ("no_such_tool", "failed", None),
        ("task", "ok", None),
    ];
    assert_small_session(&mount, &main, &wanted);
    assert_tester(&mount, &main, "bash");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn copilot_cli_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !COPILOT_CLI.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&COPILOT_CLI, &[(1, 1), (5, 7)], &[]);
    let wanted = [
        ("bash", "ok", Some(0)),
        // The record calls a command that fails a success.
        ("bash", "failed", Some(1)),
        ("create", "ok", None),
        ("edit", "ok", None),
        ("edit", "failed", None),
        ("bash", "ok", Some(0)),
        ("bash", "failed", Some(2)),
        ("no_such_tool", "failed", None),
        ("task", "ok", None),
    ];
    assert_small_session(&mount, &main, &wanted);
    assert_tester(&mount, &main, "bash");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn qwen_code_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !QWEN_CODE.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&QWEN_CODE, &[(1, 1), (5, 9)], &[]);
    let wanted = [
        ("run_shell_command", "ok", Some(0)),
        ("run_shell_command", "failed", Some(1)),
        ("read_file", "ok", None),
        ("read_file", "ok", None),
        ("write_file", "ok", None),
        ("edit", "ok", None),
        ("edit", "failed", None),
        ("run_shell_command", "ok", Some(0)),
        ("run_shell_command", "failed", Some(2)),
        ("no_such_tool", "failed", None),
        ("agent", "ok", None),
    ];
    assert_small_session(&mount, &main, &wanted);
    assert_tester(&mount, &main, "run_shell_command");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn cline_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !CLINE.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&CLINE, &[(1, 1), (5, 7)], &[]);
    let wanted = [
        ("run_commands", "ok", None),
        ("run_commands", "failed", Some(1)),
        ("editor", "ok", None),
        ("editor", "ok", None),
        ("editor", "failed", None),
        ("run_commands", "ok", None),
        ("run_commands", "failed", Some(2)),
        ("no_such_tool", "failed", None),
        ("spawn_agent", "ok", None),
    ];
    assert_small_session(&mount, &main, &wanted);
    assert_tester(&mount, &main, "run_commands");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn mini_swe_agent_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !MINI_SWE_AGENT.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&MINI_SWE_AGENT, &[(1, 1), (3, 5)], &[]);

    let seen = worker(&mount, &main);
    let [commands @ .., submission] = &calls(&seen)[..] else { panic!("{seen:#}") };
    let wanted = ["ok", "failed", "ok", "failed", "ok", "ok"].map(|outcome| ("bash", outcome));
    assert_eq!(commands, wanted, "{seen:#}");
    // Its result says that it was not executed, because it is the submission.
    assert_ne!(submission.1, "failed", "{seen:#}");
    assert_suspect(&seen, 0, TESTS_FAILED);
}

#[test]
#[ignore = "only in scripts/check --all"]
fn openhands_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !OPENHANDS.is_here() {
        return;
    }
    let (_session, mount, main) = follow(&OPENHANDS, &[(1, 1), (5, 7)], &[]);

    let seen = worker(&mount, &main);
    let wanted = [
        ("terminal", "ok"),
        ("terminal", "failed"),
        ("file_editor", "ok"),
        ("file_editor", "ok"),
        ("file_editor", "failed"),
        ("terminal", "ok"),
        ("terminal", "failed"),
        ("no_such_tool", "failed"),
        ("finish", "ok"),
    ];
    assert_eq!(calls(&seen), wanted, "{seen:#}");
    assert_suspect(&seen, 0, TESTS_FAILED);
    assert_changes(&mount, &main);
}
