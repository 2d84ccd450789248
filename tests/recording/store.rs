//! Commands that record, and checks of what they left in a store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cli::program::{CommandOutput, run, swarmletfs};

/// Beginning of the names of files and directories that are being written.
pub const TEMPORARY: &str = ".swarmletfs-";
/// Remarks of `validate` that a reader must expect: a call whose recorder was killed, or whose
/// output could not be written.
const EXPECTED: [&str; 3] = [
    "of unknown outcome: nothing states it",
    "without a record of the end",
    "output truncated before being recorded",
];

/// Returns the command `swarmletfs <arguments>` for the store at `store`.
pub fn command(store: &Path, arguments: &[&str]) -> Command {
    in_store(swarmletfs(arguments), store)
}

/// Adds the store to a command that writes, and removes variables that choose a store or a worker.
pub fn in_store(mut command: Command, store: &Path) -> Command {
    command.arg("--store").arg(store);
    command.env_remove("SWARMLET_STORE").env_remove("SWARMLET_WORKER");
    command
}

/// Returns a file with `bytes`, for stdin.
pub fn input(bytes: impl AsRef<[u8]>) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes.as_ref()).unwrap();
    file.rewind().unwrap();
    file
}

/// Runs a command that records, with this stdin.
#[track_caller]
pub fn record(store: &Path, arguments: &[&str], stdin: impl AsRef<[u8]>) -> CommandOutput {
    let mut command = command(store, arguments);
    command.stdin(input(stdin));
    run(command)
}

/// Makes a store at `path`, and the worker `w1` in it.
pub fn make_store(path: &Path) {
    let mut init = swarmletfs(["init"]);
    init.arg(path);
    run(init).assert_success();
    record(path, &["worker", "create", "--id", "w1", "--task", "Check the backups"], "")
        .assert_success();
}

/// Makes a store as [`make_store`] does, in a new directory.
pub fn new_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    make_store(&store);
    (dir, store)
}

/// Returns every file and directory beneath `folder` by its relative path; a directory is `None`.
pub fn read_tree(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    fn visit(at: &Path, prefix: &str, found: &mut BTreeMap<String, Option<Vec<u8>>>) {
        for entry in fs::read_dir(at).into_iter().flatten() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                found.insert(path.clone(), None);
                visit(&entry.path(), &format!("{path}/"), found);
            } else {
                match fs::read(entry.path()) {
                    // A change in progress has ended.
                    Err(_) if path.contains(TEMPORARY) => {}
                    bytes => drop(found.insert(path, Some(bytes.unwrap()))),
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(folder, "", &mut found);
    found
}

/// Asserts that every line of every record is whole, and so is all metadata. Names of changes in
/// progress are left out.
#[track_caller]
pub fn assert_whole(store: &Path) {
    for (path, bytes) in read_tree(store) {
        let Some(bytes) = bytes.filter(|_| !path.contains(TEMPORARY)) else { continue };
        if path.ends_with(".jsonl") {
            assert!(bytes.is_empty() || bytes.ends_with(b"\n"), "{path} ends in a line's middle");
            lines(&bytes);
        } else if path.ends_with("metadata.json") || path.ends_with("index.json") {
            let value: Value = serde_json::from_slice(&bytes)
                .unwrap_or_else(|error| panic!("{path}: {error}: {bytes:?}"));
            assert!(value.is_object(), "{path}: {value}");
        }
    }
    for (path, bytes) in read_tree(&store.join("workers")) {
        if bytes.is_none() && !path.contains('/') && !path.starts_with(TEMPORARY) {
            let metadata = store.join("workers").join(&path).join("metadata.json");
            assert!(metadata.exists(), "{path} is a part of a worker");
        }
    }
}

/// Parses JSON lines.
#[track_caller]
pub fn lines(bytes: &[u8]) -> Vec<Value> {
    let text = str::from_utf8(bytes).unwrap();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// Returns the lines of a file of the worker `id`; none if it does not exist.
#[track_caller]
pub fn worker_lines(store: &Path, id: &str, name: &str) -> Vec<Value> {
    lines(&fs::read(worker(store, id).join(name)).unwrap_or_default())
}

/// Returns the ends of calls of the worker `id`, by their numbers. Panics if a number has two.
#[track_caller]
pub fn ended_calls(store: &Path, id: &str) -> BTreeMap<u64, Value> {
    let mut ended = BTreeMap::new();
    for line in worker_lines(store, id, "metrics.jsonl") {
        if line["event"] == "tool_call" {
            let before = ended.insert(line["seq"].as_u64().unwrap(), line.clone());
            assert_eq!(before, None, "two calls have a number: {line}");
        }
    }
    ended
}

/// Returns the outputs of the calls of the worker `id`, by their numbers. Panics if two share one.
#[track_caller]
pub fn outputs(store: &Path, id: &str) -> BTreeMap<u64, (String, Vec<u8>)> {
    let mut outputs = BTreeMap::new();
    for (name, bytes) in read_tree(&worker(store, id).join("tool_calls")) {
        let number = name.split('_').next().unwrap().parse().unwrap();
        let before = outputs.insert(number, (name, bytes.unwrap()));
        assert_eq!(before, None, "two outputs share a number");
    }
    outputs
}

/// Returns the metadata of the worker `id`.
#[track_caller]
pub fn metadata(store: &Path, id: &str) -> Value {
    serde_json::from_slice(&fs::read(worker(store, id).join("metadata.json")).unwrap()).unwrap()
}

/// Returns the directory of the worker `id`.
pub fn worker(store: &Path, id: &str) -> PathBuf {
    store.join("workers").join(id)
}

/// Asserts that readers understand the store: `validate` and the summary.
#[track_caller]
pub fn assert_readable(store: &Path) {
    let mut validate = swarmletfs(["validate", "--json", "--all"]);
    validate.arg(store);
    let validated = run(validate);
    let report: Value =
        serde_json::from_str(&validated.out).unwrap_or_else(|_| panic!("{validated:#?}"));
    let workers = report["workers"].as_array().unwrap().iter();
    let of_workers = workers.flat_map(|worker| worker["remarks"].as_array().unwrap());
    let remarks = report["store"].as_array().unwrap().iter().chain(of_workers);
    let texts = remarks.flat_map(|remark| remark["first"].as_array().unwrap());
    let is_known = |text: &&str| EXPECTED.iter().any(|expected| text.contains(expected));
    let unexpected: Vec<&str> =
        texts.map(|first| first["says"].as_str().unwrap()).filter(|text| !is_known(text)).collect();
    assert!(unexpected.is_empty(), "validate reports {unexpected:#?}");

    let summary = run(in_store(swarmletfs(["cat", "summary"]), store));
    summary.assert_success();
    assert!(summary.out.contains("\noutcomes "), "{summary:#?}");
}

/// Asserts that another worker can be created, recorded and finished.
#[track_caller]
pub fn assert_writable(store: &Path) {
    record(store, &["worker", "create", "--id", "another"], "").assert_success();
    record(store, &["worker", "record", "another", "--tool", "df", "--exit", "0"], "40G\n")
        .assert_success();
    record(store, &["worker", "finish", "another", "--result", "-"], "done\n").assert_success();
    assert_eq!(metadata(store, "another")["status"], "completed");
    assert_eq!(outputs(store, "another")[&1], ("001_df.txt".to_owned(), b"40G\n".to_vec()));
    assert_eq!(ended_calls(store, "another")[&1]["exit_code"], 0);
}
