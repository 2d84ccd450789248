//! Tests of the rules in docs/FORMATS.md, end to end: a store on disk, read through the tree.

mod black_box;
mod calls;
mod checks;
mod claude_code;
pub mod codex;
pub mod copied_corpus;
mod documented;
mod expected;
mod first_implementation;
mod gemini_cli;
mod instances;
mod layouts;
mod literals;
mod metadata;
mod near_misses;
mod opencode;
mod openhands;
mod outcome_fields;
mod outcomes;
mod recognition;
mod recorded_calls;
mod situations;
mod stubs;
mod torn;
pub mod workspace_changes;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use swarmletfs_tree::tree::Tree;

use crate::mount::eventually;
use crate::support::seen::names;
use crate::support::{TestStore, see};

/// Parses a generated JSON file. Reads it again as long as it says that time ran out before all
/// was read, as on a slow machine.
pub fn json_at(tree: &Tree, path: impl AsRef<[u8]>) -> Value {
    let path = path.as_ref();
    let name = String::from_utf8_lossy(path);
    eventually(&name, || {
        let seen = see(tree, path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let value: Value = serde_json::from_slice(seen.bytes()).unwrap();
        value["incomplete"].is_null().then_some(value)
    })
}

/// Returns the index.json of a worker.
pub fn index(tree: &Tree, id: &str) -> Value {
    json_at(tree, format!("workers/{id}/index.json"))
}

/// Returns a text file of a worker.
pub fn text(tree: &Tree, id: &str, file: &str) -> String {
    see(tree, format!("workers/{id}/{file}")).unwrap().text().to_owned()
}

/// Returns the rows of the swarm's index.json, by ID.
pub fn rows(tree: &Tree) -> BTreeMap<String, Value> {
    let index = json_at(tree, "index.json");
    let rows = index["workers"].as_array().unwrap().iter();
    rows.map(|row| (row["id"].as_str().unwrap().to_owned(), row.clone())).collect()
}

/// Returns the names of the workers' directories.
pub fn listed(tree: &Tree) -> Vec<String> {
    let names =
        names(tree, "workers").unwrap().into_iter().map(|name| String::from_utf8(name).unwrap());
    names.filter(|name| !name.starts_with("index.json")).collect()
}

/// Returns the names of a worker's checks.
pub fn checks(index: &Value) -> Vec<&str> {
    index["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect()
}

/// Returns a worker's call by its number.
pub fn call(index: &Value, seq: u64) -> Value {
    let calls = index["tool_calls"].as_array().unwrap();
    calls
        .iter()
        .find(|call| call["seq"] == seq)
        .unwrap_or_else(|| panic!("no call {seq} in {index:#}"))
        .clone()
}

/// Returns the outcome and exit code of each text as the output of a call.
pub fn outcomes<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Vec<(String, Option<i64>)> {
    let store = TestStore::new();
    store.worker("w", json!({}));
    let mut count = 0;
    for (at, output) in outputs.into_iter().enumerate() {
        store.call("w", at as u32 + 1, "x", output);
        count = at as u64 + 1;
    }
    let index = index(&store.tree(), "w");
    let outcome = |seq| {
        let call = call(&index, seq);
        (call["outcome"].as_str().unwrap().to_owned(), call["exit_code"].as_i64())
    };
    (1..=count).map(outcome).collect()
}

/// Makes a FIFO. It has no writer, so opening it hangs.
pub fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}
