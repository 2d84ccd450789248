//! `swarmletfs hook codex` as a process: its answers, and its silence.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::program::swarmletfs;
use crate::formats::codex::{ID, Rollout};

/// The IDs of subagents, which begin with a time on 3 October 2025.
const AGENT: &str = "0199aaaa-0001-7000-8000-00000000000a";
const OTHER: &str = "0199aaaa-0002-7000-8000-00000000000b";

/// A folder of Codex with one session.
struct CodexHome {
    dir: tempfile::TempDir,
    session: Rollout,
}

impl CodexHome {
    /// Creates a session whose subagent [`AGENT`] has ended.
    fn new() -> CodexHome {
        let dir = tempfile::tempdir().unwrap();
        let mut home = CodexHome { dir, session: Rollout::begun() };
        home.activity("started", AGENT);
        home.write_agent(AGENT, claim);
        home
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("codex")
    }

    /// Returns the path of a rollout. Those of subagents are in the folder of the next day, as with
    /// a clock east of Greenwich.
    fn rollout(&self, id: &str) -> PathBuf {
        let day = if id == ID { "03" } else { "04" };
        let name = format!("sessions/2025/10/{day}/rollout-2025-10-{day}T23-59-59-{id}.jsonl");
        self.folder().join(name)
    }

    fn write(&self, id: &str, rollout: &Rollout) {
        let path = self.rollout(id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, rollout.bytes()).unwrap();
    }

    /// Writes the rollout of a subagent that fails, and its end.
    fn write_agent(&self, id: &str, end: impl FnOnce(&mut Rollout) -> &mut Rollout) {
        let mut rollout = Rollout::default();
        rollout.line("session_meta", json!({"id": id, "session_id": ID, "parent_thread_id": ID, "thread_source": "subagent"}));
        rollout.event("task_started", json!({"turn_id": "t1"})).user("Run the tests.");
        rollout.command("c1", "cargo build", 101, "error: no disk");
        end(&mut rollout);
        self.write(id, &rollout);
    }

    /// Records an activity of a subagent, as the newer tools do.
    fn activity(&mut self, kind: &str, id: &str) {
        let fields = json!({"kind": kind, "agent_thread_id": id, "agent_path": "/root/tester"});
        self.session.operation("SubAgentActivity", "call_1", fields);
    }

    /// Records a message of the program to the model.
    fn note(&mut self, role: &str, text: &str) {
        let content = json!([{"type": "input_text", "text": text}]);
        self.session.item("message", json!({"role": role, "content": content}));
    }

    fn event(&self) -> Value {
        json!({"session_id": ID, "turn_id": "t1", "transcript_path": self.rollout(ID), "cwd": "/app",
            "hook_event_name": "PostToolUse", "model": "m", "permission_mode": "default",
            "tool_name": "collaborationwait_agent", "tool_input": {}, "tool_use_id": "call_2",
            "tool_response": "{\"message\":\"Wait completed.\",\"timed_out\":false}"})
    }

    /// Returns the context in the answer to `event`, or `None` if there is no answer.
    fn context_of(&self, event: &Value) -> Option<String> {
        self.write(ID, &self.session);
        let output = run(&self.folder(), event.to_string().as_bytes());
        assert!(output.status.success() && output.stderr.is_empty(), "{event}: {output:?}");
        if output.stdout.is_empty() {
            return None;
        }
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["hookSpecificOutput"]["hookEventName"], event["hook_event_name"]);
        Some(answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap().to_owned())
    }

    fn context(&self) -> Option<String> {
        self.context_of(&self.event())
    }
}

/// Ends a rollout with a false claim.
fn claim(rollout: &mut Rollout) -> &mut Rollout {
    rollout.says("All tests pass. I wrote report.md.").complete()
}

/// Runs the hook with a time limit that is never reached.
fn run(folder: &Path, input: &[u8]) -> Output {
    let mut command = swarmletfs(["hook", "codex", "--max-time", "60s"]);
    command.env("CODEX_HOME", folder).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Promise: A hook of Codex answers the first call on subagents or prompt after the end of a
/// subagent with its verdict in at most 800 bytes, once, and every other input with silence and
/// exit code 0.
#[test]
fn ended_subagent_is_answered_once_with_the_proof() {
    let mut home = CodexHome::new();
    let mut prompt = home.event();
    prompt["hook_event_name"] = json!("UserPromptSubmit");
    prompt["prompt"] = json!("And now?");
    for event in [home.event(), prompt] {
        let context = home.context_of(&event).expect("an answer");
        for part in [
            &*format!(
                "[swarmletfs] Record of agent {AGENT} (/root/tester): failed: its last call failed."
            ),
            "\nFailed call: tool_calls/001_exec_command.txt \"",
            "error: no disk",
            "\nClaimed, but not found: \"report.md\"\n",
        ] {
            assert!(context.contains(part), "{part:?} is missing in {context}");
        }
        assert!(context.len() <= 800, "{context}");
    }
    let context = home.context().unwrap();
    // The same words of the user or of a subagent are no report.
    home.note("user", &context);
    assert_eq!(home.context().as_ref(), Some(&context));
    home.note("developer", &context);
    assert_eq!(home.context(), None);
    home.activity("interacted", AGENT);
    assert_eq!(home.context().as_ref(), Some(&context));
}

#[test]
fn older_tools_of_subagents_are_understood() {
    let mut home = CodexHome::new();
    home.session = Rollout::begun();
    let call = |tool: &str| json!({"tool": tool, "receiver_thread_ids": [AGENT]});
    home.session.operation("CollabAgentToolCall", "call_1", call("spawn_agent"));
    let context = home.context().unwrap();
    assert!(context.contains(&format!("{AGENT} (agent): failed")), "{context}");
    home.note("developer", &context);
    home.session.operation("CollabAgentToolCall", "call_2", call("wait"));
    assert_eq!(home.context(), None);
    home.session.operation("CollabAgentToolCall", "call_3", call("send_input"));
    assert_eq!(home.context(), Some(context));
}

#[test]
fn only_subagents_that_ended_are_in_the_answer() {
    let mut home = CodexHome::new();
    home.activity("started", OTHER);
    assert_eq!(home.context().unwrap().matches("[swarmletfs]").count(), 1, "no rollout yet");
    home.write_agent(OTHER, |rollout| rollout);
    assert_eq!(home.context().unwrap().matches("[swarmletfs]").count(), 1, "it still runs");
    home.write_agent(OTHER, |rollout| {
        rollout.event("turn_aborted", json!({"reason": "interrupted"}))
    });
    let both = home.context().unwrap();
    assert!(both.contains(&format!("\n[swarmletfs] Record of agent {OTHER} ")), "{both}");
    home.note("developer", &both);
    assert_eq!(home.context(), None);
}

#[test]
fn subagents_of_another_session_are_not_in_the_answer() {
    let mut home = CodexHome::new();
    home.session = Rollout::begun();
    let item = json!({"type": "SubAgentActivity", "kind": "started", "agent_thread_id": AGENT});
    home.session.event("item_completed", json!({"thread_id": OTHER, "item": item}));
    assert_eq!(home.context(), None);
}

#[test]
fn other_events_and_bad_input_are_silent() {
    let mut home = CodexHome::new();
    let with = |key: &str, value: Value| {
        let mut event = home.event();
        event[key] = value;
        event
    };
    for event in [
        with("hook_event_name", json!("SubagentStop")),
        with("hook_event_name", json!("Stop")),
        with("hook_event_name", json!("PreToolUse")),
        with("hook_event_name", json!(7)),
        with("transcript_path", json!(null)),
        with("transcript_path", json!("")),
        with("transcript_path", json!(home.folder())),
        with("transcript_path", json!(home.folder().join("config.toml"))),
        json!([]),
        json!({}),
    ] {
        assert_eq!(home.context_of(&event), None, "{event}");
    }
    for input in [&b""[..], b"not JSON", b"\xff\xfe", "[".repeat(100_000).as_bytes()] {
        let output = run(&home.folder(), input);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    // IDs that are none, and lines of an unexpected shape.
    for id in ["", "x", "../../..", "0199aaaa", "é99aaaa-0001", "ffffffff-ffff-7000-8000-0a"] {
        home.activity("started", id);
    }
    home.session.raw("{\"payload\": 1, \"SubAgentActivity\": []}\n\"SubAgentActivity\"\n\n");
    assert_eq!(home.context().unwrap().matches("[swarmletfs]").count(), 1);
    fs::write(home.rollout(AGENT), "not JSON\n").unwrap();
    assert_eq!(home.context(), None);
    fs::remove_file(home.rollout(AGENT)).unwrap();
    fs::create_dir(home.rollout(AGENT)).unwrap();
    assert_eq!(home.context(), None);
}

/// Promise: A hook of Codex reads no rollout outside of the folder of Codex, whatever path its
/// input names.
#[test]
fn rollouts_outside_of_the_folder_of_codex_are_not_read() {
    let (home, other) = (CodexHome::new(), CodexHome::new());
    // Controls: each session answers for its own folder.
    assert!(home.context().is_some() && other.context().is_some());
    assert_eq!(home.context_of(&other.event()), None);
    let mut event = home.event();
    let climbing = home.folder().join("sessions/../../").join(other.rollout(ID));
    event["transcript_path"] = json!(climbing);
    assert_eq!(home.context_of(&event), None);
    // A session of this folder whose subagent lies elsewhere.
    fs::remove_file(home.rollout(AGENT)).unwrap();
    symlink(other.rollout(AGENT), home.rollout(AGENT)).unwrap();
    assert_eq!(home.context(), None);
    let day = home.rollout(AGENT);
    fs::remove_dir_all(day.parent().unwrap()).unwrap();
    symlink(other.rollout(AGENT).parent().unwrap(), day.parent().unwrap()).unwrap();
    assert_eq!(home.context(), None);
}

/// Runs `hook install codex` for the settings in `folder`.
fn install(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = swarmletfs(["hook", "install", "codex", "--yes"]);
    command.args(arguments).env("CODEX_HOME", folder).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn install_adds_the_hook_of_codex_and_removes_it_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("hooks.json");
    let before = "{\n  \"hooks\": {\n    \"Stop\": []\n  }\n}\n";
    fs::write(&settings, before).unwrap();
    assert_eq!(install(dir.path(), &[]).status.code(), Some(0));
    let after: Value = serde_json::from_slice(&fs::read(&settings).unwrap()).unwrap();
    for event in ["PostToolUse", "UserPromptSubmit"] {
        let command = &after["hooks"][event][0]["hooks"][0]["command"];
        assert_eq!(command, "swarmletfs hook codex", "{after:#}");
    }
    assert_eq!(install(dir.path(), &["--remove"]).status.code(), Some(0));
    assert_eq!(fs::read_to_string(&settings).unwrap(), before);
    // The settings of a project, and those that cannot be understood.
    assert_eq!(install(dir.path(), &["--project"]).status.code(), Some(0));
    assert!(dir.path().join(".codex/hooks.json").exists());
    fs::write(&settings, "{\"hooks\": []}").unwrap();
    assert_eq!(install(dir.path(), &[]).status.code(), Some(1));
    assert_eq!(fs::read_to_string(&settings).unwrap(), "{\"hooks\": []}");
}
