//! Real agent programs with a scripted model: their sessions are followed while they run, and read
//! afterwards. tests/clients has the scripts, and checks what the programs record.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use swarmletfs_trace::known::{CLAUDE_CODE, CODEX};

use crate::mount::eventually;
use crate::support::Mount;

#[cfg(feature = "object-store")]
mod agent_sdk;
#[cfg(feature = "mcp")]
mod by_mcp;
mod claude_code;
mod in_workspaces;
mod other_programs;

#[cfg(feature = "mcp")]
pub use by_mcp::play_with_claude_code;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients");
/// Final words of a session and of its subagent that fails, both false.
const CLAIM: &str = "All tests pass. The total of the price list is right now";
const CLAIM_OF_TESTER: &str = "All tests pass. I wrote report.md.";
/// The line of the output that refutes them.
const FAILURE: &str = "FAILED - total of the list: got 35, expected 40";

/// An agent program.
struct Client {
    /// Name for scripts/clients.
    name: &'static str,
    /// Name for people.
    title: &'static str,
    /// Command that installs the program.
    setup: &'static str,
    /// Store of its sessions, in the directory of a session.
    store: &'static str,
}

impl Client {
    /// Returns true if the program is installed. Otherwise says so; unlike other skips, this one
    /// never fails, because the programs are large and come from one registry only.
    fn is_here(&self) -> bool {
        let there = target().join("clients/programs").join(self.name).exists();
        if !there {
            say(&format!("SKIP {} is not installed; to get it: {}", self.title, self.setup));
        }
        there
    }
}

/// Returns the directory that Cargo builds in.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Writes a line to stderr. The test harness captures `eprintln!` but not this.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A session that waits before some of its turns. Dropping it lets it run to its end.
struct Session {
    dir: tempfile::TempDir,
    child: Child,
    store: &'static str,
}

impl Session {
    /// Starts a session of `client` that waits before each of `turns`, with more `arguments` for
    /// scripts/clients. Returns when it waits before the first.
    fn held_before(client: &Client, turns: &[usize], arguments: &[&str]) -> Session {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(SCRIPT);
        command.args(["--client", client.name, "--out"]).arg(dir.path().join("session"));
        for turn in turns {
            command.args(["--hold", &turn.to_string()]);
        }
        let child = command
            .args(arguments)
            .env("CARGO_TARGET_DIR", target())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut session = Session { dir, child, store: client.store };
        session.await_turn(turns[0]);
        session
    }

    /// Returns when the session waits before `turn`.
    fn await_turn(&mut self, turn: usize) {
        eventually("the held turn", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the session ended before turn {turn}: {ended:?}");
            let held = fs::read_to_string(self.held()).ok()?;
            (held == turn.to_string()).then_some(())
        });
    }

    /// Returns the path of a file in the directory of the session.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("session").join(name)
    }

    fn held(&self) -> PathBuf {
        self.path("held")
    }

    fn store(&self) -> PathBuf {
        self.path(self.store)
    }

    /// Lets the session continue.
    fn release(&self) {
        fs::remove_file(self.held()).unwrap();
    }

    /// Lets the session continue, and returns when it has ended and its checks have passed.
    fn finish(&mut self) {
        self.release();
        assert!(self.child.wait().unwrap().success(), "the checks in tests/clients");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may wait before a later turn after this one.
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = fs::remove_file(self.held());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the text of a worker's file.
fn file(mount: &Mount, worker: &str, name: &str) -> String {
    mount.text(&format!("workers/{worker}/{name}"))
}

/// Returns the index.json of a worker, or of all workers if `directory` is empty.
fn index(mount: &Mount, directory: &str) -> Value {
    serde_json::from_str(&mount.text(&format!("{directory}index.json"))).unwrap()
}

/// Returns the index.json of a worker.
fn worker(mount: &Mount, id: &str) -> Value {
    index(mount, &format!("workers/{id}/"))
}

/// Returns the workers of a mount that `matches` admits.
fn workers(mount: &Mount, matches: impl Fn(&Value) -> bool) -> Vec<String> {
    let index = index(mount, "");
    let workers = index["workers"].as_array().unwrap().iter().filter(|worker| matches(worker));
    workers.map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
}

/// Runs a session and follows it through a mount: before each turn of `growth`, its only worker is
/// running and has so many calls. `hook` is the hook of the session, if it has one. Returns the
/// mount and the worker's id when the session has ended.
fn follow(client: &Client, growth: &[(usize, usize)], hook: &[&str]) -> (Session, Mount, String) {
    let turns: Vec<usize> = growth.iter().map(|(turn, _)| *turn).collect();
    let mut session = Session::held_before(client, &turns, hook);
    // Some programs write the first records later than they ask their model.
    eventually("the first records", || {
        let mut list = Command::new(env!("CARGO_BIN_EXE_swarmletfs"));
        let listed = list.args(["list", "--store"]).arg(session.store()).output().unwrap();
        listed.status.success().then_some(())
    });
    let mount = Mount::new(&session.store());
    let main = eventually("the session", || workers(&mount, |_| true).pop());
    for (position, &(turn, calls)) in growth.iter().enumerate() {
        session.await_turn(turn);
        let begun = Instant::now();
        let seen = eventually("the calls of a running session", || {
            let seen = worker(&mount, &main);
            (seen["tool_calls"].as_array().unwrap().len() >= calls).then_some(seen)
        });
        if position > 0 {
            say(&format!("{}: new calls seen after {:.0?}", client.title, begun.elapsed()));
        }
        assert_eq!(seen["tool_calls"].as_array().unwrap().len(), calls, "{seen:#}");
        assert_eq!(seen["status"], "running", "{seen:#}");
        assert!(!file(&mount, &main, "summary").contains(CLAIM));
        if position + 1 < growth.len() {
            session.release();
        }
    }
    session.finish();
    eventually("the end of the session", || {
        let seen = worker(&mount, &main);
        let ended = seen["status"] == "completed"
            && seen["final_words"].as_str().is_some_and(|words| words.contains(CLAIM));
        ended.then_some(())
    });
    (session, mount, main)
}

/// Returns the tool and the outcome of each call of a worker.
fn calls(worker: &Value) -> Vec<(&str, &str)> {
    let calls = worker["tool_calls"].as_array().unwrap().iter();
    calls
        .map(|call| (call["tool"].as_str().unwrap(), call["outcome"].as_str().unwrap_or_default()))
        .collect()
}

#[test]
fn tested_versions_are_the_versions_that_run_here() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/package.json");
    let package: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    for (name, format) in [("@anthropic-ai/claude-code", &CLAUDE_CODE), ("@openai/codex", &CODEX)] {
        assert_eq!(package["dependencies"][name].as_str(), format.tested_version, "{name}");
    }
}
