//! The real Claude Code: its session is followed while it runs, and read afterwards, and its hook
//! tells it what its subagents did.

use std::fs;

use serde_json::Value;

use super::{CLAIM, CLAIM_OF_TESTER, Client, FAILURE, Session, file, index, workers};
use crate::mount::eventually;
use crate::support::Mount;

const CLAUDE_CODE: Client = Client {
    name: "claude-code",
    title: "Claude Code",
    setup: "scripts/setup --all, if npm is there",
    store: "config",
};

/// Returns what the hook told the session, in order.
fn contexts(session: &Session) -> Vec<String> {
    let log = fs::read_to_string(session.path("hooks.jsonl")).unwrap();
    let answers = log.lines().filter_map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        let output = entry["output"].as_str().filter(|output| !output.is_empty())?.to_owned();
        let answer: Value = serde_json::from_str(&output).unwrap();
        Some(answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap().to_owned())
    });
    answers.collect()
}

#[test]
#[ignore = "only in scripts/check --all"]
fn claude_code_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !CLAUDE_CODE.is_here() {
        return;
    }
    // The machine may be busy, so the hook gets more time than usual.
    let hook = [env!("CARGO_BIN_EXE_swarmletfs"), "hook", "claude-code", "--max-time", "20s"];
    let mut session = Session::held_before(&CLAUDE_CODE, &[9], &hook);
    let mount = Mount::new(&session.store());

    // While it runs: one worker, with the calls of nine turns.
    let index = index(&mount, "");
    assert_eq!(index["workers"].as_array().unwrap().len(), 1, "{index:#}");
    assert_eq!(index["workers"][0]["status"], "running", "{index:#}");
    let main = index["workers"][0]["id"].as_str().unwrap().to_owned();
    let calls = mount.list(&format!("workers/{main}/tool_calls"));
    assert_eq!(calls.len(), 14, "{calls:?}");
    assert!(file(&mount, &main, "tool_calls/001_Bash.txt").contains(FAILURE));
    assert!(!file(&mount, &main, "summary").contains(CLAIM));
    let cursor = mount.text("since/now").trim_end().to_owned();

    session.finish();
    let worker_of = |task: &str| {
        let begins = |worker: &Value| worker["task"].as_str().unwrap().starts_with(task);
        workers(&mount, |worker| begins(worker) && worker["status"] == "completed").pop()
    };
    let tester = eventually("the subagent that fails", || worker_of("TESTER"));
    let reviewer = eventually("the subagent in the background", || worker_of("REVIEWER"));
    eventually("the end of the session", || {
        file(&mount, &main, "summary").contains(CLAIM).then_some(())
    });

    // A reader with a cursor from the middle learns of all three.
    let changes = mount.text(&format!("since/{cursor}"));
    for worker in [&main, &tester, &reviewer] {
        assert!(changes.contains(&format!("{worker}:")), "{worker} is missing in {changes}");
    }
    // The claim stands beside what refutes it.
    let summary = file(&mount, &tester, "summary");
    for part in ["outcome  failed", FAILURE, CLAIM_OF_TESTER, "success_but_last_call_failed"] {
        assert!(summary.contains(part), "{part:?} is missing in {summary}");
    }
    assert!(file(&mount, &tester, "evidence.txt").contains(FAILURE));
    assert!(mount.text("summary").contains(&tester[..8]));

    // The hook told the session so, without being asked. That its words reach the model, and that
    // no subagent continues because of it, is checked by the script.
    let contexts = contexts(&session);
    let [of_tester, of_reviewer] = contexts.as_slice() else { panic!("{contexts:#?}") };
    for part in [
        &*format!(
            "[swarmletfs] Record of agent {tester} (general-purpose): failed: its last call failed."
        ),
        "Failed call: tool_calls/003_Bash.txt \"",
        FAILURE,
        "Claimed, but not found: \"report.md\"",
        "success_but_last_call_failed",
        "Changed 1 file (+1 -1): \"price.sh\"",
        &*format!("worker_id={tester}]"),
    ] {
        assert!(of_tester.contains(part), "{part:?} is missing in {of_tester}");
    }
    // The failure that a pipe hid from the exit code.
    for part in [
        &*format!(
            "agent {reviewer} (general-purpose): failed: tool_calls/002_Bash.txt was red when it was \
             last seen. 2 calls, 1 suspect.\nAttention high: contradicted, red_at_end\n"
        ),
        "Recorded as ok, but looks like a failure: tool_calls/002_Bash.txt \"2 tests, 1 failed\"",
        &*format!("worker_id={reviewer}]"),
    ] {
        assert!(of_reviewer.contains(part), "{part:?} is missing in {of_reviewer}");
    }
    assert!(contexts.iter().all(|context| context.len() <= 800), "{contexts:#?}");
}
