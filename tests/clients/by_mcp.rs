//! Claude Code as the MCP client of a supervisor and of a worker.

use std::fs;
use std::process::Command;

use super::{say, target};

#[test]
fn claude_code_works_in_each_role_by_mcp() {
    let Ok(program) = fs::read_to_string(target().join("clients/programs/claude-code")) else {
        say("SKIP claude-code is not installed; to get it: scripts/setup, if npm is there");
        return;
    };
    // The folders of /tmp are not there in a sandbox.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ran = Command::new("python3")
        .arg("-B")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/by_mcp.py"))
        .args([env!("CARGO_BIN_EXE_swarmletfs"), program.trim_end()])
        .arg(dir.path().join("session"))
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", said(&ran.stdout), said(&ran.stderr));
}
