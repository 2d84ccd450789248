//! Options that describe a new worker.

use clap::Args;
use serde_json::{Map, Value};

use swarmletfs_record::write::NewWorker;

/// Facts about a worker that are known at its start, besides its task.
#[derive(Debug, Clone, Args)]
pub(super) struct WorkerArgs {
    /// The id; taken ids are refused [default: made from the time and the task]
    #[arg(long, value_name = "ID")]
    pub(super) id: Option<String>,

    /// The run that the worker belongs to
    #[arg(long, value_name = "ID")]
    run: Option<String>,

    /// The worker's job in its run
    #[arg(long, value_name = "ID")]
    job: Option<String>,

    /// The owner, for views of one owner
    #[arg(long, value_name = "ID")]
    owner: Option<String>,

    /// The worker that starts this one
    #[arg(long, value_name = "ID")]
    parent: Option<String>,

    /// The kind of task
    #[arg(long = "type", value_name = "WORD")]
    task_type: Option<String>,

    /// The language model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// A tag; can be given several times
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
}

impl WorkerArgs {
    /// Returns true if a worker with this metadata has the owner and the run of these options.
    pub(super) fn describes(&self, metadata: &Map<String, Value>) -> bool {
        let is_given = |key: &str, given: &Option<String>| match given {
            Some(given) => metadata.get(key).and_then(Value::as_str) == Some(given),
            None => true,
        };
        is_given("owner_id", &self.owner) && is_given("run_id", &self.run)
    }

    /// Returns a new worker for `task` with the values of these options.
    pub(super) fn describe(&self, task: impl Into<String>) -> NewWorker {
        type Setter = fn(NewWorker, String) -> NewWorker;
        let given: [(&Option<String>, Setter); 7] = [
            (&self.id, NewWorker::id),
            (&self.run, NewWorker::run),
            (&self.job, NewWorker::job),
            (&self.owner, NewWorker::owner),
            (&self.parent, NewWorker::parent),
            (&self.task_type, NewWorker::task_type),
            (&self.model, NewWorker::model),
        ];
        let given = given.into_iter().filter_map(|(value, set)| Some((value.clone()?, set)));
        let new = given.fold(NewWorker::new(task), |new, (value, set)| set(new, value));
        self.tags.iter().fold(new, NewWorker::tag)
    }
}
