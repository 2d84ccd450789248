//! Two sessions of a real agent program at once on one repository, each in its own view by `run`.

use std::fs;
use std::process::Command;

use super::{say, target};

/// Runs the script for a program, if it is installed. `preset` is its name for `run`.
fn run(installed: &str, preset: &str) {
    let Ok(program) = fs::read_to_string(target().join("clients/programs").join(installed)) else {
        say(&format!(
            "SKIP {installed} is not installed; to get it: scripts/setup --all, if npm is there"
        ));
        return;
    };
    // Codex wants a home outside of the temporary directory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ran = Command::new("python3")
        .arg("-B")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/in_workspaces.py"))
        .args([env!("CARGO_BIN_EXE_swarmletfs"), preset, program.trim_end()])
        .arg(dir.path().join("session"))
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", said(&ran.stdout), said(&ran.stderr));
}

#[test]
#[ignore = "only in scripts/check --all"]
fn two_claude_code_sessions_work_on_one_repository() {
    run("claude-code", "claude");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn two_codex_sessions_work_on_one_repository() {
    run("codex", "codex");
}
