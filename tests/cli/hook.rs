//! `swarmletfs hook claude-code` as a process: its answers, and its silence.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::program::swarmletfs;
use crate::support::transcript::{PROJECT, Transcript};

const SESSION: &str = "11111111-aaaa-bbbb-cccc-222222222222";
const AGENT: &str = "a1b2c3";
/// A time limit that is never reached.
const PATIENT: [&str; 2] = ["--max-time", "60s"];

/// A folder of Claude Code with one session, whose subagent has ended.
struct Sessions {
    dir: tempfile::TempDir,
}

impl Sessions {
    fn new() -> Sessions {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions { dir };
        let agent = sessions.agent_path();
        fs::create_dir_all(agent.parent().unwrap()).unwrap();
        let mut transcript = Transcript::of_agent(SESSION, AGENT);
        transcript.user("Run the tests and write report.md.");
        transcript.bash("t1", "sh test.sh | tail -1", "FAIL test_x\n1 failed, 3 passed");
        transcript.call(
            "t2",
            "Edit",
            json!({"file_path": "/home/dev/app/src/a.rs",
            "old_string": "two", "new_string": "2\n3"}),
        );
        transcript.result("t2", json!({"content": "The file has been updated."}));
        transcript.call("t3", "Bash", json!({"command": "cargo build"}));
        transcript
            .result("t3", json!({"content": "Exit code 101\nerror: no disk", "is_error": true}));
        transcript.says("All tests pass. I wrote report.md.");
        fs::write(&agent, transcript.bytes()).unwrap();
        fs::write(sessions.transcript(), Transcript::new(SESSION).user("Do it.").bytes()).unwrap();
        sessions
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// Returns the transcript of the session.
    fn transcript(&self) -> PathBuf {
        self.folder().join(PROJECT).join(format!("{SESSION}.jsonl"))
    }

    fn agent_path(&self) -> PathBuf {
        self.folder().join(PROJECT).join(SESSION).join(format!("subagents/agent-{AGENT}.jsonl"))
    }

    /// Returns the event at the end of a subagent that its session waited for.
    fn ended(&self, agent: &str) -> Value {
        json!({"session_id": SESSION, "transcript_path": self.transcript(), "cwd": "/home/dev/app",
            "hook_event_name": "PostToolUse", "tool_name": "Agent", "tool_use_id": "toolu_1",
            "tool_input": {"prompt": "Run the tests and write report.md."},
            "tool_response": {"status": "completed", "agentId": agent, "agentType": "Explore",
                "content": [{"type": "text", "text": "All tests pass."}]}})
    }

    /// Returns the event of a prompt.
    fn prompted(&self, prompt: &str) -> Value {
        json!({"session_id": SESSION, "transcript_path": self.transcript(), "cwd": "/home/dev/app",
            "hook_event_name": "UserPromptSubmit", "prompt": prompt})
    }

    /// Returns the event at the end of a subagent in the background.
    fn notified(&self, agent: &str) -> Value {
        self.prompted(&format!(
            "<task-notification>\n<task-id>{agent}</task-id>\n<status>completed</status>\n\
             <result>I say <task-id>other</task-id>.</result>\n</task-notification>"
        ))
    }

    /// Returns the context in the answer to `event`, or `None` if there is no answer.
    fn context(&self, event: &Value) -> Option<String> {
        let output = run(&self.folder(), &PATIENT, event.to_string().as_bytes());
        assert!(output.status.success() && output.stderr.is_empty(), "{event}: {output:?}");
        if output.stdout.is_empty() {
            return None;
        }
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let context = answer["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
        let wanted = json!({"hookSpecificOutput": {
            "hookEventName": event["hook_event_name"], "additionalContext": context}});
        assert_eq!(answer, wanted);
        Some(context.to_owned())
    }
}

/// Runs the hook in the session of `folder`.
fn run(folder: &Path, options: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarmletfs"))
        .args(["hook", "claude-code"])
        .args(options)
        .env("CLAUDE_CONFIG_DIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).expect("the hook reads all of its input"));
        child.wait_with_output().unwrap()
    })
}

/// Promise: A hook of Claude Code answers the end of a subagent with its verdict in at most 800
/// bytes, and every other input with silence and exit code 0.
#[test]
fn ended_subagent_is_answered_with_the_proof() {
    let sessions = Sessions::new();
    for event in [sessions.ended(AGENT), sessions.notified(AGENT)] {
        let context = sessions.context(&event).expect("an answer");
        for part in [
            "[swarmletfs] Record of agent a1b2c3 (agent): failed: its last call failed. 3 calls, 1 failed, 1 suspect.\n",
            "\nAttention high: contradicted, red_at_end\n",
            "\nFailed call: tool_calls/003_Bash.txt \"",
            "error: no disk",
            "\nRecorded as ok, but looks like a failure: tool_calls/001_Bash.txt \"",
            "\nClaimed, but not found: \"report.md\"\n",
            "\nDoubts: claimed_file_missing, success_but_call_looks_failed, \
             success_but_last_call_failed\n",
            "\nChanged 1 file (+2 -1): \"src/a.rs\"\n",
        ] {
            assert!(context.contains(part), "{part:?} is missing in {context}");
        }
        let marker = format!("\nEvidence: [EVIDENCE:run_id={SESSION},job_id=-,worker_id={AGENT}]");
        assert!(context.ends_with(&marker) && context.len() <= 800, "{context}");
    }
}

#[test]
fn subagent_of_an_older_version_lies_beside_its_session() {
    let sessions = Sessions::new();
    let beside = sessions.folder().join(PROJECT).join(format!("agent-{AGENT}.jsonl"));
    fs::rename(sessions.agent_path(), beside).unwrap();
    assert!(sessions.context(&sessions.ended(AGENT)).unwrap().contains("error: no disk"));
}

/// Promise: The answer never contradicts the notice that it answers, whatever the transcripts show.
#[test]
fn answer_does_not_contradict_the_notice() {
    let sessions = Sessions::new();
    let mut transcript = Transcript::of_agent(SESSION, AGENT);
    transcript.user("Find x.").bash("t1", "ls", "x").says("I look for x.");
    fs::write(sessions.agent_path(), transcript.bytes()).unwrap();
    let says = |status: &str, expected: &[&str]| {
        let notice = format!(
            "<task-notification>\n<task-id>{AGENT}</task-id>\n<status>{status}</status>\n\
             <summary>Agent \"x\" failed: API error</summary>\n</task-notification>"
        );
        let context = sessions.context(&sessions.prompted(&notice)).unwrap();
        expected.iter().for_each(|text| assert!(context.contains(text), "{context}"));
        assert_eq!(context.contains("): ok"), status == "completed", "{context}");
    };
    says("completed", &["): ok: completed without unresolved failures"]);
    says("failed", &["): failed: its status says so", "API error"]);
    says("killed", &["): unknown: it ended without an answer"]);
    says("stopped", &["): unknown: it ended without an answer"]);
}

#[test]
fn other_events_are_not_answered() {
    let sessions = Sessions::new();
    let with = |key: &str, value: Value| {
        let mut event = sessions.ended(AGENT);
        event[key] = value;
        event
    };
    for event in [
        with("hook_event_name", json!("SubagentStop")),
        with("hook_event_name", json!("PreToolUse")),
        with("hook_event_name", json!(7)),
        with("tool_response", json!({"status": "async_launched", "agentId": AGENT})),
        with("tool_response", json!({"status": "completed"})),
        with("tool_response", json!("completed")),
        with("tool_response", json!(null)),
        with("transcript_path", json!(null)),
        sessions.ended("unknown"),
        sessions.ended(""),
        sessions.notified("bnqxh4tfc"),
        sessions.prompted("Make the total right."),
        sessions.prompted("<task-notification>"),
        sessions.prompted(&format!("<task-notification><task-id>{AGENT}")),
        json!([]),
        json!({}),
    ] {
        assert_eq!(sessions.context(&event), None, "{event}");
    }
}

/// Promise: A hook reads no transcript outside of the folder of Claude Code, whatever path its
/// input names.
#[test]
fn paths_outside_of_the_folder_of_claude_code_are_not_read() {
    let (sessions, other) = (Sessions::new(), Sessions::new());
    let project = sessions.folder().join(PROJECT);
    let with_path = |path: PathBuf| {
        let mut event = sessions.ended(AGENT);
        event["transcript_path"] = json!(path);
        event
    };
    // Controls: each session answers for its own folder.
    assert!(sessions.context(&sessions.ended(AGENT)).is_some());
    assert!(other.context(&other.ended(AGENT)).is_some());
    let name = format!("{SESSION}.jsonl");
    symlink(other.folder().join(PROJECT), sessions.folder().join("projects/linked")).unwrap();
    symlink(other.agent_path(), sessions.agent_path().with_file_name("agent-linked.jsonl"))
        .unwrap();
    for event in [
        other.ended(AGENT),
        with_path(project.join("../../../").join(other.transcript().strip_prefix("/").unwrap())),
        with_path(project.join(format!("../-home-dev-app/{name}"))),
        with_path(sessions.folder().join("projects/linked").join(&name)),
        with_path(project.join(SESSION).join(&name)),
        with_path(PathBuf::from(&name)),
        with_path(PathBuf::from("")),
        sessions.ended("linked"),
        sessions.ended(&format!("x/../agent-{AGENT}")),
        sessions.ended(&format!("../subagents/agent-{AGENT}")),
        sessions.ended(&"a".repeat(65)),
        sessions.notified("../x"),
    ] {
        assert_eq!(sessions.context(&event), None, "{event}");
    }
    // A folder that the variable names through a link is the same folder.
    let link = sessions.dir.path().join("link");
    symlink(sessions.folder(), &link).unwrap();
    let output = run(&link, &PATIENT, sessions.ended(AGENT).to_string().as_bytes());
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
}

#[test]
fn bad_input_and_bad_transcripts_are_silent() {
    let sessions = Sessions::new();
    let mut long = sessions.ended(AGENT);
    long["padding"] = json!("x".repeat(1 << 20));
    let deep = "[".repeat(100_000);
    for input in
        [&b""[..], b"not JSON", b"{", b"\xff\xfe", deep.as_bytes(), long.to_string().as_bytes()]
    {
        let output = run(&sessions.folder(), &PATIENT, input);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let event = sessions.ended(AGENT);
    fs::remove_file(sessions.agent_path()).unwrap();
    assert_eq!(sessions.context(&event), None);
    fs::create_dir(sessions.agent_path()).unwrap();
    assert_eq!(sessions.context(&event), None);
}

/// Promise: A hook that needs more than its maximum time prints nothing.
#[test]
fn an_answer_that_takes_too_long_is_not_given() {
    let sessions = Sessions::new();
    let output = run(
        &sessions.folder(),
        &["--max-time", "0s"],
        sessions.ended(AGENT).to_string().as_bytes(),
    );
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    // Input that never ends does not hold up the session either.
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarmletfs"))
        .args(["hook", "claude-code"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    assert!(child.wait().unwrap().success());
    drop(stdin);
}

/// An exit code of 2 makes Claude Code discard the prompt.
#[test]
fn mistakes_on_the_command_line_do_not_exit_with_2() {
    for arguments in [&["hook"][..], &["hook", "other"], &["hook", "claude-code", "--unknown"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_swarmletfs")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_swarmletfs"))
        .args(["hook", "claude-code", "--help"])
        .output()
        .unwrap();
    let help = (help.status.code(), String::from_utf8(help.stdout).unwrap());
    assert!(
        help.0 == Some(0) && help.1.contains("swarmletfs hook install claude-code"),
        "{}",
        help.1
    );
}

/// Runs `hook install claude-code` for the settings in `folder`.
fn install(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = swarmletfs(["hook", "install", "claude-code"]);
    command.args(arguments).env("CLAUDE_CONFIG_DIR", folder).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn install_adds_the_hook_once_and_removes_it_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("settings.json");
    let others = json!({"model": "large", "hooks": {"PostToolUse": [{"matcher": "Bash",
        "hooks": [{"type": "command", "command": "swarmletfs-like hook"}]}]}, "env": {"A": "1"}});
    let before = format!("{}\n", serde_json::to_string_pretty(&others).unwrap());
    fs::write(&settings, &before).unwrap();
    let installed = install(dir.path(), &["--yes"]);
    assert_eq!(installed.status.code(), Some(0), "{installed:?}");
    let shown = String::from_utf8(installed.stdout).unwrap();
    assert!(shown.contains("+            \"command\": \"swarmletfs hook claude-code\""), "{shown}");
    let after: Value = serde_json::from_slice(&fs::read(&settings).unwrap()).unwrap();
    assert_eq!(after["hooks"]["PostToolUse"][0], others["hooks"]["PostToolUse"][0]);
    assert_eq!(after["hooks"]["PostToolUse"][1]["matcher"], "Task|Agent");
    assert_eq!(after["hooks"]["UserPromptSubmit"].as_array().unwrap().len(), 1);
    let keys: Vec<&String> = after.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["model", "hooks", "env"]);

    let again = install(dir.path(), &["--yes"]);
    assert!(String::from_utf8(again.stdout).unwrap().contains("nothing to change"));
    assert_eq!(install(dir.path(), &["--remove", "--yes"]).status.code(), Some(0));
    assert_eq!(fs::read_to_string(&settings).unwrap(), before);
    let again = install(dir.path(), &["--remove", "--yes"]);
    assert!(String::from_utf8(again.stdout).unwrap().contains("nothing to change"));
}

#[test]
fn install_makes_settings_of_a_project_and_leaves_an_empty_object() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(install(dir.path(), &["--project", "--yes"]).status.code(), Some(0));
    let settings = dir.path().join(".claude/settings.json");
    assert!(fs::read_to_string(&settings).unwrap().contains("UserPromptSubmit"));
    assert!(!dir.path().join("settings.json").exists());
    assert_eq!(install(dir.path(), &["--project", "--remove", "--yes"]).status.code(), Some(0));
    assert_eq!(fs::read_to_string(&settings).unwrap(), "{}\n");
}

/// A file that cannot be understood, and one behind a link, are not lost.
#[test]
fn install_loses_no_settings() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("settings.json");
    for text in ["{\"hooks\": [}", "[]", "{\"hooks\": []}", "{\"hooks\": {\"PostToolUse\": 1}}"] {
        fs::write(&settings, text).unwrap();
        let failed = install(dir.path(), &["--yes"]);
        assert_eq!(failed.status.code(), Some(1), "{text}");
        assert!(String::from_utf8(failed.stderr).unwrap().starts_with("swarmletfs: cannot "));
        assert_eq!(fs::read_to_string(&settings).unwrap(), text);
    }
    fs::remove_file(&settings).unwrap();
    let target = dir.path().join("dotfiles.json");
    fs::write(&target, "{}").unwrap();
    symlink(&target, &settings).unwrap();
    assert_eq!(install(dir.path(), &["--yes"]).status.code(), Some(0));
    assert!(settings.is_symlink() && fs::read_to_string(&target).unwrap().contains("hooks"));
}
