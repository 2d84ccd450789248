//! The tool that writes the supervisor's notes on a worker.

use rmcp::model::{JsonObject, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::{Supervisor, SupervisorTool, find_worker, with_warnings};
use crate::tools::{ToolError, ToolResult, definition, parse_arguments};
use swarmletfs_tree::tree::Tree;

const NAME: &str = "annotate_worker";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct AnnotateInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: String,
    /// The notes, which replace earlier ones; an empty text removes them
    #[serde(alias = "notes")]
    text: String,
}

pub(super) fn tool() -> SupervisorTool {
    SupervisorTool {
        definition: definition::<AnnotateInput>(
            NAME,
            "Sets the supervisor's notes on a worker, which its summary and index.json show. They \
             replace earlier notes. The worker may have finished.",
            ToolAnnotations::new().destructive(false).idempotent(true).open_world(false),
        ),
        call: Box::new(annotate),
    }
}

fn annotate(supervisor: &Supervisor, tree: &Tree, arguments: JsonObject) -> ToolResult {
    let input: AnnotateInput = parse_arguments(NAME, arguments)?;
    let worker = find_worker(tree, &input.worker)?;
    let store = supervisor.open()?;
    let annotated = store.worker(worker.as_bytes()).and_then(|worker| worker.annotate(&input.text));
    annotated.map_err(|error| ToolError::new(error.to_string()))?;
    tree.refresh(&worker);
    let text = match input.text.trim().is_empty() {
        true => format!("{} has no notes any more", worker.display()),
        false => format!("{} is annotated", worker.display()),
    };
    Ok(with_warnings(text, &store))
}
