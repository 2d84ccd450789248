//! The tool that creates a worker.

use rmcp::model::{JsonObject, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Supervisor, SupervisorTool, with_warnings};
use crate::tools::{
    ToolError, ToolResult, definition, json, non_empty, parse_arguments, worker_id,
};
use swarmletfs_record::write::NewWorker;
use swarmletfs_tree::tree::Tree;

const NAME: &str = "create_worker";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct CreateWorkerInput {
    /// What the worker is told to do
    task: String,
    /// The id; taken ids are refused [default: made from the time and the task]
    #[serde(alias = "worker_id")]
    id: Option<String>,
    /// The kind of task, such as research or review
    #[serde(rename = "type", alias = "task_type")]
    task_type: Option<String>,
    /// The worker that starts this one
    #[serde(alias = "parent_id")]
    parent: Option<String>,
    /// The run that the worker belongs to
    #[serde(alias = "run_id")]
    run: Option<String>,
    /// The worker's job in its run
    #[serde(alias = "job_id")]
    job: Option<String>,
    /// The language model
    model: Option<String>,
    /// Tags, at most 32
    #[serde(default)]
    tags: Vec<String>,
}

pub(super) fn tool() -> SupervisorTool {
    SupervisorTool {
        definition: definition::<CreateWorkerInput>(
            NAME,
            "Creates a worker that is running, and returns its id. The worker's program records \
             under this id: `swarmletfs mcp --as worker:ID` gives it tools in its own view of a \
             workspace.",
            ToolAnnotations::new().destructive(false).open_world(false),
        ),
        call: Box::new(create),
    }
}

fn create(supervisor: &Supervisor, tree: &Tree, arguments: JsonObject) -> ToolResult {
    let input: CreateWorkerInput = parse_arguments(NAME, arguments)?;
    // A worker that the served view hides would be lost to the supervisor.
    if let (Some(run), Some(served)) = (&input.run, &supervisor.run)
        && run != served
    {
        let text = format!("cannot create a worker of another run than {served}; leave out run");
        return Err(ToolError::new(text));
    }
    // A taken id would tell that a worker of another owner exists.
    if supervisor.owner.is_some() && non_empty(input.id.clone()).is_some() {
        let text = "cannot choose an id in a view of an owner; leave out id to get a new one";
        return Err(ToolError::new(text));
    }
    type Setter = fn(NewWorker, String) -> NewWorker;
    let given: [(Option<String>, Setter); 7] = [
        (non_empty(input.id), NewWorker::id),
        (non_empty(input.task_type), NewWorker::task_type),
        (non_empty(input.parent).map(|parent| worker_id(&parent).into_owned()), NewWorker::parent),
        (non_empty(input.run).or_else(|| supervisor.run.clone()), NewWorker::run),
        (non_empty(input.job), NewWorker::job),
        (supervisor.owner.clone(), NewWorker::owner),
        (non_empty(input.model), NewWorker::model),
    ];
    let new = NewWorker::new(input.task);
    let new = given.into_iter().fold(new, |new, (value, set)| match value {
        Some(value) => set(new, value),
        None => new,
    });
    let new = input.tags.into_iter().fold(new, NewWorker::tag);
    let store = supervisor.open()?;
    let worker = store.create_worker(new).map_err(|error| ToolError::new(error.to_string()))?;
    tree.refresh(worker.id());
    let text = json(&json!({"worker_id": worker.id().to_text(), "path": worker.path()}))?;
    Ok(with_warnings(text, &store))
}
