//! Stores with workers that ended long ago.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::program::{CommandOutput, run, swarmletfs};
use crate::recording::store::{command, metadata, record, worker};

/// Makes an empty store with an index.
pub fn new_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut init = swarmletfs(["init"]);
    init.arg(&store);
    run(init).assert_success();
    fs::write(store.join("workers/index.json"), "{\"workers\": []}").unwrap();
    (dir, store)
}

/// Records a worker with one call that finished on this day of 2025.
pub fn old_worker(store: &Path, id: &str, day: u32, more: &[&str]) {
    running_worker(store, id, more);
    record(store, &["worker", "finish", id, "--result", "-"], "done\n").assert_success();
    edit(store, id, |metadata| {
        metadata["finished_at"] = format!("2025-01-{day:02}T10:00:00Z").into();
    });
}

/// Records a worker with one call that has not finished.
pub fn running_worker(store: &Path, id: &str, more: &[&str]) {
    let mut create = vec!["worker", "create", "--id", id, "--task", "Check the backups"];
    create.extend(more);
    record(store, &create, "").assert_success();
    let call = ["worker", "record", id, "--tool", "sh", "--exit", "0"];
    record(store, &call, format!("the output of {id}\n")).assert_success();
}

/// Changes the metadata of a worker.
pub fn edit(store: &Path, id: &str, change: impl FnOnce(&mut Value)) {
    let mut value = metadata(store, id);
    change(&mut value);
    fs::write(worker(store, id).join("metadata.json"), value.to_string()).unwrap();
}

/// Runs `gc` with these arguments.
#[track_caller]
pub fn gc(store: &Path, arguments: &[&str]) -> CommandOutput {
    run(command(store, &[&["gc"], arguments].concat()))
}

/// Runs `gc --json` with these arguments, which succeeds, and returns its report.
#[track_caller]
pub fn gc_report(store: &Path, arguments: &[&str]) -> Value {
    let done = gc(store, &[&["--json"], arguments].concat());
    serde_json::from_str(&done.assert_success().out).unwrap()
}

/// Returns the ids in a list of the report.
pub fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|line| line["id"].as_str().unwrap()).collect()
}

/// Returns the names of the workers, with temporary ones.
pub fn workers(store: &Path) -> Vec<String> {
    let entries = fs::read_dir(store.join("workers")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "index.json")
        .collect();
    names.sort();
    names
}

/// Returns the ids in index.json of the store.
pub fn indexed(store: &Path) -> Vec<String> {
    let index = fs::read(store.join("workers/index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let ids = index["workers"].as_array().unwrap().iter();
    ids.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the tombstone of a worker, or null.
pub fn tombstone(store: &Path, id: &str) -> Value {
    let path = store.join("tombstones").join(format!("{id}.json"));
    fs::read(path).map_or(Value::Null, |json| serde_json::from_slice(&json).unwrap())
}

/// Makes a draft of the worker `id` in this state.
pub fn make_draft(store: &Path, id: &str, state: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let draft = store.join("drafts").join(id);
    fs::create_dir_all(draft.join("upper")).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(draft.join("upper/file"), "changed\n").unwrap();
    let record = json!({
        "version": 1, "workspace": "/nowhere", "engine": "overlay",
        "started_at": "2025-01-01T00:00:00Z", "state": state,
    });
    fs::write(draft.join("draft.json"), record.to_string()).unwrap();
    draft
}
