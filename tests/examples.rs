//! The examples, run as a user would run them.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use swarmletfs_base::text::budget::Budget;

use crate::support::{TestStore, python, see};

const LANGGRAPH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/langgraph");
const SHELL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/shell/swarm.sh");
const CLAUDE_CODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/claude-code/.mcp.json");
const PROGRAM: &str = env!("CARGO_BIN_EXE_swarmletfs");

/// Runs Python in the LangGraph example and returns its stdout.
#[track_caller]
fn run(python: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(python);
    command
        .args(arguments)
        .current_dir(LANGGRAPH)
        .env("SWARMLETFS", PROGRAM)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Of the three workers of the script, one did its job, one failed and said so, and one claimed a
/// success that its record denies.
#[test]
fn shell_script_records_workers_and_shows_the_false_claim() {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(PROGRAM).parent().unwrap();
    let path = [program.as_os_str(), &std::env::var_os("PATH").unwrap()].join(OsStr::new(":"));
    let out = Command::new("bash")
        .arg(SHELL)
        .arg(folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    for part in [
        "outcomes 2 failed, 0 unknown, 1 ok",
        "exit=1: gzip: mail.gz: unexpected end of file\n",
        "claims success, but exit=1: gzip: bills.gz: No such file or directory\n",
        "--- Evidence for Worker - (claiming) ---",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let saved = folder.path().join("swarm/workers/honest/outputs/notes.txt");
    assert_eq!(std::fs::read_to_string(saved).unwrap(), "all my notes\n");
}

/// One of three workers makes a false claim and one fails silently. The supervisor finds both in
/// the evidence, and its checkpoints stay small and contain no expanded evidence.
#[test]
fn langgraph_supervisor_finds_false_claims_and_stores_no_evidence() {
    let Some(python) = python() else { return };
    let store = TestStore::new();
    let path = store.path().display().to_string();
    let report: Value =
        serde_json::from_str(&run(&python, &["supervisor.py", "--store", &path, "--json"]))
            .unwrap();
    let judgment = |kind: &str| {
        let workers = report["workers"].as_array().unwrap();
        let worker = workers.iter().find(|worker| worker["task_type"] == kind).unwrap();
        let id = worker["worker_id"].as_str().unwrap().to_owned();
        let line = report["synthesis"]
            .as_str()
            .unwrap()
            .lines()
            .find(|line| line.contains(&id))
            .unwrap()
            .to_owned();
        (id, worker["status"].as_str().unwrap().to_owned(), line)
    };
    for (kind, is_failed, reason) in [
        ("inventory", false, "holds"),
        ("restore-test", true, "tool_calls/003_restore_dump.txt failed"),
        ("certificates", true, "tool_calls/002_check_certificate.txt failed"),
    ] {
        let (id, status, line) = judgment(kind);
        assert_eq!(
            (status.as_str(), line.contains("DOES NOT HOLD")),
            ("completed", is_failed),
            "{line}"
        );
        assert!(line.contains(reason), "{line}");
        // The checks in the worker's summary agree.
        let tree = store.tree();
        let summary = see(&tree, format!("workers/{id}/summary")).unwrap().text().to_owned();
        assert_eq!(summary.contains("\n  ! "), is_failed, "{summary}");
    }
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((number("frames_seen"), number("frames_kept")), (3, 0), "{report:#}");
    assert!(
        number("checkpoints") > 1
            && number("memory_bytes") < 8_000
            && number("raw_bytes") > 200_000,
        "{report:#}"
    );
}

#[test]
fn langgraph_example_passes_its_own_tests() {
    let Some(python) = python() else { return };
    run(&python, &["-m", "unittest", "-q"]);
}

#[test]
fn claude_code_configuration_starts_a_server() {
    let configuration: Value =
        serde_json::from_slice(&std::fs::read(CLAUDE_CODE).unwrap()).unwrap();
    let server = &configuration["mcpServers"]["swarm"];
    assert_eq!(server["command"], "swarmletfs");
    let store = TestStore::new();
    store.worker("a", serde_json::json!({}));
    let arguments =
        server["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env("SWARMLET_DATA_PATH", store.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n")
        .unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["id"], 1);
}

/// The README.md of a mount equals docs/AGENTS.md, which is short enough for a prompt.
#[test]
fn readme_of_a_mount_equals_the_short_guide_for_agents() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/AGENTS.md")).unwrap();
    let tokens = Budget::parse("600tok").unwrap();
    assert!(
        guide.len() <= 2_048 && tokens.used(&guide) <= tokens.size(),
        "the guide has {} B and {} tokens",
        guide.len(),
        tokens.used(&guide)
    );
    assert_eq!(see(&TestStore::new().tree(), "README.md").unwrap().text(), guide);
}
