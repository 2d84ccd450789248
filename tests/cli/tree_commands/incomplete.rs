//! Commands read everything, unless `--max-time` stops them; the first line and the exit code then
//! say so.

use std::fs::File;

use serde_json::json;

use super::{CommandBytes, look};
use crate::cli::program::swarmletfs;
use crate::support::TestStore;
use crate::support::transcript::{PROJECT, Transcript};

const WORKERS: usize = 120;
/// Exit code of an incomplete answer.
const INCOMPLETE: i32 = 3;

/// Creates many workers, each with outputs that match the queries.
fn large_store() -> TestStore {
    let store = TestStore::new();
    for worker in 0..WORKERS {
        let id = format!("w{worker:03}");
        store.worker(&id, json!({"run_id": "r1", "status": "failed"}));
        for call in 1..=5 {
            let text = format!("copied {call} files of {worker}\n").repeat(40)
                + "error: the disk is full\n";
            store.call(&id, call, "sh", text);
        }
    }
    store
}

/// Commands with their arguments.
const READERS: [(&str, &[&str]); 10] = [
    ("search", &["disk full"]),
    ("search", &["-b", "300", "disk full", "runs/r1"]),
    ("grep", &["disk"]),
    ("grep", &["-b", "300", "disk", "workers/w007"]),
    ("compare", &["w001", "w002"]),
    ("cat", &["summary"]),
    ("cat", &["evidence.txt"]),
    ("cat", &["runs/r1/summary"]),
    ("cat", &["workers/w001/summary"]),
    ("cat", &["workers/w001/evidence.txt"]),
];

fn run(store: &TestStore, (command, typed): (&str, &[&str]), more: &[&str]) -> CommandBytes {
    look(&store.path(), command, [&["--no-cache"], more, typed].concat())
}

fn first_line(looked: &CommandBytes) -> &str {
    looked.lines().first().copied().unwrap_or_default()
}

/// Promise: A command without a timeout reads everything.
#[test]
fn command_without_a_timeout_reads_everything() {
    let store = large_store();
    for reader in READERS {
        let first = run(&store, reader, &[]);
        assert_ne!(first.code, Some(INCOMPLETE), "{reader:?}: {first:?}");
        assert!(
            !first_line(&first).contains("incomplete") && !first.out.is_empty(),
            "{reader:?}: {first:?}"
        );
        let second = run(&store, reader, &["--max-time", "10m"]);
        assert_eq!((first.text(), first.code), (second.text(), second.code), "{reader:?}");
    }
    let searched = run(&store, READERS[0], &[]);
    assert!(
        first_line(&searched).contains(&format!("; searched 720 files of {WORKERS} workers, ")),
        "{searched:?}"
    );
}

/// Promise: An incomplete answer is marked in its first line and by its exit code.
#[test]
fn incomplete_answer_is_marked_in_line_and_exit_code() {
    let store = large_store();
    for reader in READERS {
        let cut = run(&store, reader, &["--max-time", "0"]);
        assert_eq!((cut.code, cut.err.as_str()), (Some(INCOMPLETE), ""), "{reader:?}: {cut:?}");
        assert!(first_line(&cut).contains("incomplete"), "{reader:?}: {cut:?}");
    }
    for reader in &READERS[..5] {
        for (more, complete) in [(&["--json", "--max-time", "0"][..], false), (&["--json"], true)] {
            let done = run(&store, *reader, more);
            let answer = &done.json()[0];
            assert_eq!(answer["complete"], json!(complete), "{reader:?}: {done:?}");
            assert_eq!(answer["incomplete"].is_string(), !complete, "{reader:?}: {done:?}");
            assert_eq!(done.code == Some(INCOMPLETE), !complete, "{reader:?}: {done:?}");
        }
    }
    let index = run(&store, ("cat", &["index.json"]), &["--max-time", "0"]);
    assert_eq!((index.code, &index.json()["complete"]), (Some(INCOMPLETE), &json!(false)));
    let refused = swarmletfs(["search", "--max-time", "soon", "disk"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// Promise: The first answer counts the workers inside sessions.
///
/// The first answer about sessions includes the workers inside them.
#[test]
fn first_answer_counts_workers_inside_sessions() {
    let store = TestStore::new();
    let mut session = Transcript::new("long");
    session
        .user("look around")
        .progress("a1", "user", json!({"content": "search"}))
        .says("CommandOutput.");
    let path = store.write(format!("{PROJECT}/long.jsonl"), session.bytes());
    // Longer than what is read when a store is opened.
    File::options().write(true).open(path).unwrap().set_len(40 << 20).unwrap();
    let counted = |looked: &CommandBytes| {
        looked.lines().into_iter().find(|line| line.starts_with("workers ")).unwrap().to_owned()
    };
    let whole = run(&store, ("cat", &["summary"]), &[]);
    assert_eq!(
        (whole.code, counted(&whole).starts_with("workers  2: ")),
        (Some(0), true),
        "{whole:?}"
    );
    let cut = run(&store, ("cat", &["summary"]), &["--max-time", "0"]);
    assert_eq!(
        (cut.code, counted(&cut).starts_with("workers  1: ")),
        (Some(INCOMPLETE), true),
        "{cut:?}"
    );
    assert!(first_line(&cut).contains("1 session not read yet for workers inside"), "{cut:?}");
    let listed = run(&store, ("ls", &["workers"]), &["--max-time", "0"]);
    assert_eq!(listed.code, Some(INCOMPLETE), "{listed:?}");
    assert_eq!(
        listed.err,
        "swarmletfs: 1 session not searched for workers; try a longer --max-time\n"
    );
    // The session may be read meanwhile, so the exit code must match the text.
    let since = look(&store.path(), "since", ["--max-time", "0", "--no-cache", "0"]);
    let is_incomplete = first_line(&since).starts_with("incomplete: 1 session");
    assert_eq!(since.code, Some(if is_incomplete { INCOMPLETE } else { 0 }), "{since:?}");
}
