//! The real Claude Code with a scripted model: its session is followed while it runs, and read
//! afterwards, and its hook tells it what its subagents did. tests/clients has the script, and
//! checks the record and the way of the hook's words.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::mount::eventually;
use crate::support::Mount;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients");
/// Final words of the session and of the subagent that fails, both false.
const CLAIM: &str = "All tests pass. The total of the price list is right now";
const CLAIM_OF_TESTER: &str = "All tests pass. I wrote report.md.";
/// The line of the output that refutes them.
const FAILURE: &str = "FAILED - total of the list: got 35, expected 40";

/// Returns true if scripts/setup installed the programs. Otherwise says so; unlike other skips,
/// this one never fails, because the programs are large and come from one registry only.
fn programs_are_here() -> bool {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let there = target.join("clients/installed.json").exists();
    if !there {
        // The test harness captures `eprintln!` but not this.
        let _ = writeln!(
            std::io::stderr(),
            "SKIP Claude Code is not installed: scripts/setup installs it if npm is there"
        );
    }
    there
}

/// A session that waits before one of its turns. Dropping it lets it run to its end.
struct Session {
    dir: tempfile::TempDir,
    child: Child,
}

impl Session {
    /// Starts a session, and returns it when it waits before `turn`.
    fn held_before(turn: u32) -> Session {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new(SCRIPT)
            .arg("--out")
            .arg(dir.path().join("session"))
            .args(["--hold", &turn.to_string()])
            // The machine may be busy, so the hook gets more time than usual.
            .args([env!("CARGO_BIN_EXE_swarmletfs"), "hook", "claude-code", "--max-time", "20s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut session = Session { dir, child };
        eventually("the held turn", || {
            let ended = session.child.try_wait().unwrap();
            assert!(ended.is_none(), "the session ended before turn {turn}: {ended:?}");
            session.held().exists().then_some(())
        });
        session
    }

    fn held(&self) -> PathBuf {
        self.dir.path().join("session/held")
    }

    /// Returns the configuration directory, which is the store.
    fn store(&self) -> PathBuf {
        self.dir.path().join("session/config")
    }

    /// Returns what the hook told the session, in order.
    fn contexts(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("session/hooks.jsonl")).unwrap();
        let answers = log.lines().filter_map(|line| {
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            let output = entry["output"].as_str().filter(|output| !output.is_empty())?.to_owned();
            let answer: serde_json::Value = serde_json::from_str(&output).unwrap();
            Some(answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap().to_owned())
        });
        answers.collect()
    }

    /// Lets the session continue, and returns when it has ended and its checks have passed.
    fn finish(&mut self) {
        fs::remove_file(self.held()).unwrap();
        assert!(self.child.wait().unwrap().success(), "the checks of tests/clients/claude_code.py");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.held());
        let _ = self.child.wait();
    }
}

/// Returns the text of a worker's file.
fn file(mount: &Mount, worker: &str, name: &str) -> String {
    mount.text(&format!("workers/{worker}/{name}"))
}

#[test]
fn real_session_is_followed_while_it_runs_and_read_afterwards() {
    crate::needs_fuse!();
    if !programs_are_here() {
        return;
    }
    let mut session = Session::held_before(9);
    let mount = Mount::new(&session.store());

    // While it runs: one worker, with the calls of nine turns.
    let index: serde_json::Value = serde_json::from_str(&mount.text("index.json")).unwrap();
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
        let index: serde_json::Value = serde_json::from_str(&mount.text("index.json")).unwrap();
        let mut workers = index["workers"].as_array().unwrap().iter();
        let found = workers.find(|worker| {
            worker["task"].as_str().unwrap().starts_with(task) && worker["status"] == "completed"
        });
        found.map(|worker| worker["id"].as_str().unwrap().to_owned())
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
    let contexts = session.contexts();
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
            "agent {reviewer} (general-purpose): ok by the record; 1 call looks like a failure."
        ),
        "Recorded as ok, but looks like a failure: tool_calls/002_Bash.txt \"2 tests, 1 failed\"",
        &*format!("worker_id={reviewer}]"),
    ] {
        assert!(of_reviewer.contains(part), "{part:?} is missing in {of_reviewer}");
    }
    assert!(contexts.iter().all(|context| context.len() <= 800), "{contexts:#?}");
}
