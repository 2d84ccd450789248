//! `swarmletfs expand` as a process: streams, exit codes, and messages.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::json;

use crate::support::TestStore;

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("a", json!({"status": "failed"})).call("a", 1, "sh", "{\"exit_code\": 1}");
    store
}

fn start(store: &TestStore, shell: &str) -> Child {
    let command = shell.replace(
        "expand",
        &format!(
            "{} expand --no-cache --store {}",
            env!("CARGO_BIN_EXE_swarmletfs"),
            store.path().display()
        ),
    );
    let mut child = Command::new("sh");
    child
        .args(["-c", &command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    child.spawn().unwrap()
}

/// Runs a command on `text`. Returns its exit code, stdout, and stderr without the line about the
/// store.
fn run(store: &TestStore, shell: &str, text: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    let mut child = start(store, shell);
    let mut stdin = child.stdin.take().unwrap();
    let out = thread::scope(|scope| {
        // The command may stop reading early.
        scope.spawn(move || drop(stdin.write_all(text)));
        child.wait_with_output().unwrap()
    });
    let messages = String::from_utf8(out.stderr).unwrap();
    let messages = messages
        .lines()
        .filter(|line| !line.contains("the store is"))
        .collect::<Vec<_>>()
        .join("\n");
    (out.status.code(), out.stdout, messages)
}

const MARKER: &str = "[EVIDENCE:run_id=-,job_id=-,worker_id=a]";

/// Promise: Markers that could not be expanded are counted on stderr.
#[test]
fn unexpanded_markers_are_counted_on_stderr() {
    let store = store();
    let (code, out, messages) = run(&store, "exec expand", MARKER.as_bytes());
    assert_eq!((code, messages.as_str()), (Some(0), ""));
    assert!(String::from_utf8(out).unwrap().contains("001_sh.txt"));
    let gone = MARKER.replace("=a]", "=gone]") + &MARKER.replace("run_id=-", "run_id=7");
    let (code, out, messages) = run(&store, "exec expand", gone.as_bytes());
    assert_eq!(
        (code, messages.as_str()),
        (
            Some(0),
            "swarmletfs: not expanded: 1 marker: 1 whose worker is not here or cannot be read"
        )
    );
    assert!(String::from_utf8(out).unwrap().contains("[Evidence unavailable: "));
    let (_, out, messages) = run(&store, "exec expand --budget 5", MARKER.as_bytes());
    assert_eq!(
        (out, messages.as_str()),
        (MARKER.as_bytes().to_vec(), "swarmletfs: not expanded: 1 marker: 1 beyond the budget")
    );
}

#[test]
fn expand_copies_invalid_json_unchanged_and_fails() {
    let text = format!("[{{\"role\": \"user\"}}, oh {MARKER}");
    let (code, out, messages) = run(&store(), "exec expand --format openai", text.as_bytes());
    assert_eq!((code, String::from_utf8(out).unwrap()), (Some(1), text));
    assert!(
        messages.contains("cannot read the text as a JSON list of messages")
            && messages.contains("line 1 column"),
        "{messages}"
    );
    assert_eq!(run(&store(), "exec expand --format yaml", b"").0, Some(2));
}

#[test]
fn expand_writes_text_before_a_marker_at_once() {
    let store = store();
    let mut child = start(&store, "exec expand");
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let line = "something went on\n".repeat(100_000);
    let (mut first, mut rest) = (vec![0; 1 << 20], String::new());
    let (sender, is_read) = mpsc::channel();
    thread::scope(|scope| {
        let line = &line;
        scope.spawn(move || {
            stdin.write_all(line.as_bytes()).unwrap();
            // The end is written only after the beginning was read.
            is_read.recv().unwrap();
            stdin.write_all(MARKER.as_bytes()).unwrap();
            drop(stdin);
        });
        stdout.read_exact(&mut first).unwrap();
        sender.send(()).unwrap();
        stdout.read_to_string(&mut rest).unwrap();
    });
    assert!(line.as_bytes().starts_with(&first));
    assert!(rest.contains("--- End Evidence ---"));
    assert!(child.wait().unwrap().success());
}

/// Promise: A text of a hundred mebibytes takes little memory.
#[test]
fn hundred_mebibytes_take_little_memory() {
    let store = store();
    // Address space limit in KiB; a quarter of the input would exceed it.
    let limited = |options: &str| format!("ulimit -v 250000; exec expand {options}");
    let line = format!("{}{MARKER}\n", "all is well so far; ".repeat(50_000));
    let text = line.repeat(100);
    let (code, out, messages) = run(&store, &limited(""), text.as_bytes());
    assert_eq!((code, messages.as_str()), (Some(0), ""));
    assert!(out.len() > text.len() && out.len() <= text.len() + 28_000);
    let message = format!(
        "{{\"role\":\"tool\",\"content\":\"{}{MARKER}\"}}",
        "all is well so far; ".repeat(5_000)
    );
    let list = format!("[{}]", vec![message; 1_000].join(", \n"));
    let (code, out, messages) =
        run(&store, &limited("--format openai --budget 100k"), list.as_bytes());
    assert_eq!((code, messages.as_str()), (Some(0), ""));
    let messages: Vec<serde_json::Value> = serde_json::from_slice(&out).unwrap();
    assert_eq!(messages.len(), 1_000);
}
