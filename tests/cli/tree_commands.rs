//! The commands that read the tree without a mount.

mod compare;
mod cost;
mod files;
mod grep;
mod incomplete;
mod list;
mod listings;
mod names;
mod one_worker;
mod paths;
mod search;
mod tree_parity;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::program::{check_printable, swarmletfs};
use crate::support::TestStore;
use crate::support::transcript::Transcript;

/// Result of a command, with raw output.
#[derive(Debug)]
struct CommandBytes {
    code: Option<i32>,
    out: Vec<u8>,
    /// Without the line about the store.
    err: String,
}

impl CommandBytes {
    #[track_caller]
    fn assert_success(&self) -> &CommandBytes {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{self:#?}");
        self
    }

    /// Asserts that some path could not be read, with exactly this message, and that the command
    /// continued.
    #[track_caller]
    fn failed(&self, lines: &[&str]) -> &CommandBytes {
        let expected: String = lines.iter().map(|line| format!("swarmletfs: {line}\n")).collect();
        assert_eq!((self.code, self.err.as_str()), (Some(1), expected.as_str()), "{self:#?}");
        self
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    fn lines(&self) -> Vec<&str> {
        self.text().lines().collect()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a command on the store at `store`.
#[track_caller]
fn look<S: AsRef<OsStr>>(
    store: &Path,
    command: &str,
    more: impl IntoIterator<Item = S>,
) -> CommandBytes {
    let mut command = swarmletfs([command, "--store"]);
    command.arg(store).args(more);
    let done = command.output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    check_printable(&err);
    let notice = format!("swarmletfs: the store is {} (named by --store)\n", store.display());
    let err =
        err.strip_prefix(&notice).unwrap_or_else(|| panic!("{command:?} printed {err}")).to_owned();
    CommandBytes { code: done.status.code(), out: done.stdout, err }
}

/// Runs a command that must succeed, and returns its output as text.
#[track_caller]
fn ok_text<const N: usize>(store: &TestStore, command: &str, more: [&str; N]) -> String {
    look(&store.path(), command, more).assert_success().text().to_owned()
}

/// Writes a session of Claude Code that creates `src/main.rs` in /srv/app, on the branch `fix/x`.
/// Returns its temporary folder and its file.
fn session() -> (TempDir, PathBuf) {
    let input = json!({"file_path": "/srv/app/src/main.rs", "content": "fn main() {}\n"});
    let mut transcript = Transcript::new("session-1");
    transcript.line(json!({"type": "user", "cwd": "/srv/app", "gitBranch": "fix/x",
        "message": {"role": "user", "content": "Write it."}}));
    transcript.call("t1", "Write", input).result("t1", json!({"content": "created"}));
    transcript.says("Done.");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session-1.jsonl");
    std::fs::write(&file, transcript.bytes()).unwrap();
    (folder, file)
}

/// Creates a store with `w1` of owner 7 in run 48, and `w2` of owner 8 in run 49, which wrote last.
fn two_owners() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": 7, "run_id": 48})).call("w1", 1, "sh", "{\"ok\": true}");
    store.write("workers/w1/result.txt", "done by the first\n");
    std::thread::sleep(std::time::Duration::from_millis(20));
    store
        .worker("w2", json!({"owner_id": 8, "run_id": 49}))
        .write("workers/w2/result.txt", "done by the second\n");
    store
}
