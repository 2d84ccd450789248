//! Claude Code as the MCP client of a reader, of a supervisor and of workers.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{say, target};

/// Returns the path of Claude Code; says so and returns `None` if it is not installed.
fn claude_code() -> Option<String> {
    let installed = fs::read_to_string(target().join("clients/programs/claude-code"));
    if installed.is_err() {
        say("SKIP claude-code is not installed; to get it: scripts/setup --all, if npm is there");
    }
    Some(installed.ok()?.trim_end().to_owned())
}

/// Runs a script of tests/clients with arguments, a new directory and `input`. Returns its output.
fn run_script(name: &str, arguments: &[&str], input: &str) -> String {
    // A sandbox has a /tmp of its own.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut child = Command::new("python3")
        .arg("-B")
        .arg(format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR")))
        .args(arguments)
        .arg(dir.path().join("session"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", said(&ran.stdout), said(&ran.stderr));
    said(&ran.stdout)
}

/// Runs sessions of Claude Code, as tests/clients/scenario_by_mcp.py describes; `None` if it is not
/// installed.
pub fn play_with_claude_code(sessions: Vec<Value>) -> Option<Vec<Value>> {
    let program = claude_code()?;
    let done = run_script("scenario_by_mcp.py", &[&program], &json!(sessions).to_string());
    Some(serde_json::from_str(&done).unwrap_or_else(|error| panic!("{error}: {done}")))
}

#[test]
#[ignore = "only in scripts/check --all"]
fn claude_code_works_in_each_role_by_mcp() {
    let Some(program) = claude_code() else { return };
    run_script("by_mcp.py", &[env!("CARGO_BIN_EXE_swarmletfs"), &program], "");
}
