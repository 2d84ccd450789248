//! `swarmletfs note worker-map`: writes `worker_map.json`, which states the task and the state of
//! each worker.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::terminal::print_message;
use crate::cli::tree_commands::cat;
use crate::cli::write_args::{self, WriteArgs, into_cli_error};
use swarmletfs_record::write::NotePlace;

pub(super) const HELP: &str = "\
Writes supervisor/worker_map.json from the tree's index.json: for each worker its id, task, type, \
status, outcome, parent, run and owner, as far as they are known. An existing one is replaced.

Examples:
  swarmletfs note worker-map
  swarmletfs note read worker_map.json

Exit code: 0 if it was written, 1 if not, 2 for a usage error.";

const FILE: &str = "worker_map.json";
/// The fields of a worker in the tree's index.json that are taken over.
const FIELDS: [&str; 10] = [
    "id",
    "task",
    "task_type",
    "status",
    "outcome",
    "cause",
    "parent_id",
    "run_id",
    "owner_id",
    "path",
];

/// Arguments of `note worker-map`.
#[derive(Debug, Args)]
pub(crate) struct WorkerMapArgs {
    /// Print the path and the number of workers as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(arguments: &WorkerMapArgs) -> anyhow::Result<ExitCode> {
    let count = arguments.write.with_store(|store| {
        let index = cat::read(store.root().path(), b"index.json")?;
        let index: Value = serde_json::from_slice(&index).context("cannot read index.json")?;
        let (map, count) = worker_map(&index);
        let mut text = serde_json::to_vec_pretty(&map)?;
        text.push(b'\n');
        store.write_note(FILE.as_bytes(), &text, NotePlace::Whole).map_err(into_cli_error)?;
        if index.get("complete") == Some(&Value::Bool(false)) && !arguments.write.quiet {
            print_message("not all workers could be read in time; worker_map.json says so");
        }
        Ok(count)
    })?;
    let path = format!("supervisor/{FILE}");
    Ok(write_args::print(arguments.json, &path, &json!({"path": path, "workers": count})))
}

/// Returns the map of the workers in an index, and their number.
fn worker_map(index: &Value) -> (Value, usize) {
    let rows = index.get("workers").and_then(Value::as_array).map(Vec::as_slice);
    let workers: Vec<Value> = rows
        .into_iter()
        .flatten()
        .map(|row| {
            let known = FIELDS.iter().filter_map(|field| {
                row.get(*field).map(|value| ((*field).to_owned(), value.clone()))
            });
            Value::Object(known.collect::<Map<_, _>>())
        })
        .collect();
    let count = workers.len();
    let map = json!({
        "complete": index.get("complete"),
        "last_updated": index.get("last_updated"),
        "workers": workers,
    });
    (map, count)
}
