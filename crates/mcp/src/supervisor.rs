//! The tools of a supervisor, which creates workers, writes notes, and brings the changes of
//! workers to a person.
//!
//! Nothing here changes a workspace without a person: `apply_changes` shows the diff to the person
//! behind the client, and applies it after a yes. `proposal` makes the question and carries it out.

mod proposal;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::{self, JsonSchema};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::proposal::Proposal;
use super::slice::{LINES, NotedText, OpenFile, SliceRequest, joined_note};
use super::tools::{
    ToolError, ToolResult, budget, definition, json, non_empty, parse_arguments, path_component,
    worker_file, worker_id,
};
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::name::Name;
use swarmletfs_record::write::{NewWorker, NotePlace, Store};
use swarmletfs_trace::swarmlet::SUPERVISOR;
use swarmletfs_tree::route::CHANGES as WHOLE;
use swarmletfs_tree::tree::{Symlinks, Tree};

/// Name of the tool that asks the person.
pub(super) const APPLY: &str = "apply_changes";
/// Questions that may wait for an answer at a time. Further ones replace the oldest.
const PENDING_MAX: usize = 64;
/// Length of the name of a waiting question, in random bytes.
const TOKEN_SIZE: usize = 16;

type OpenStore = dyn Fn() -> Result<Store, String> + Send + Sync;
/// Reads the whole diff of a worker's changes.
type ReadDiff = dyn Fn(&Store, &Name) -> Result<Vec<u8>, String> + Send + Sync;

pub struct Supervisor {
    open: Box<OpenStore>,
    read_diff: Box<ReadDiff>,
    owner: Option<String>,
    run: Option<String>,
    pub(super) answer_limit: Duration,
    /// Questions that wait for a repeated call, the oldest first.
    pending: Mutex<VecDeque<PendingQuestion>>,
}

/// A question that waits for a repeated call with its answer.
struct PendingQuestion {
    token: String,
    /// `None` for a time limit without a practical end.
    expires: Option<Instant>,
    question: Question,
}

/// A question to the person, with the changes that a yes applies.
pub(super) struct Question {
    arguments: ApplyInput,
    proposal: Proposal,
}

impl Supervisor {
    /// Returns a supervisor. `open` opens the store that is served for writing, `read_diff` reads
    /// the whole diff of a worker. `owner` and `run` limit the served view; new workers belong to
    /// them.
    pub fn new(
        open: impl Fn() -> Result<Store, String> + Send + Sync + 'static,
        read_diff: impl Fn(&Store, &Name) -> Result<Vec<u8>, String> + Send + Sync + 'static,
        (owner, run): (Option<String>, Option<String>),
        answer_limit: Duration,
    ) -> Supervisor {
        Supervisor {
            open: Box::new(open),
            read_diff: Box::new(read_diff),
            owner,
            run,
            answer_limit,
            pending: Mutex::default(),
        }
    }

    fn open(&self) -> Result<Store, ToolError> {
        (self.open)().map_err(ToolError::new)
    }

    /// Fails if the served view hides the notes, which cover all workers.
    fn must_see_notes(&self) -> Result<(), ToolError> {
        if self.owner.is_none() && self.run.is_none() {
            return Ok(());
        }
        let text = "cannot use notes in a view of an owner or a run: they are about all workers; \
                    try annotate_worker";
        Err(ToolError::new(text))
    }

    /// Returns the question that a call of `apply_changes` asks the person.
    ///
    /// # Errors
    ///
    /// There is nothing to apply, or it cannot be applied.
    pub(super) fn prepare(
        &self,
        tree: &Tree,
        arguments: JsonObject,
    ) -> Result<Question, ToolError> {
        let arguments: ApplyInput = parse_arguments(APPLY, arguments)?;
        let proposal = proposal::prepare(self, tree, &arguments)?;
        Ok(Question { arguments, proposal })
    }

    /// Applies the changes of a question that was answered by a yes.
    ///
    /// # Errors
    ///
    /// They changed since the question, or they cannot be applied. Nothing was applied then.
    pub(super) fn carry_out(&self, tree: &Tree, question: &Question) -> ToolResult {
        proposal::carry_out(self, tree, &question.arguments, &question.proposal)
    }

    /// Records that nothing was applied, and returns the message about it.
    pub(super) fn refuse(&self, question: &Question, reason: &str) -> ToolError {
        proposal::log_refusal(self, &question.proposal, reason);
        ToolError::new(format!("nothing was applied: {reason}"))
    }

    /// Keeps a question until the call is repeated. Returns its name.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn wait(&self, question: Question) -> Result<String, ToolError> {
        let mut random = [0; TOKEN_SIZE];
        getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|error| ToolError::new(format!("cannot name the question: {error}")))?;
        let token = to_hex(&random);
        let expires = Instant::now().checked_add(self.answer_limit);
        let mut pending = self.pending.lock();
        if pending.len() >= PENDING_MAX {
            pending.pop_front();
        }
        pending.push_back(PendingQuestion { token: token.clone(), expires, question });
        Ok(token)
    }

    /// Takes the question `token` of a call with `arguments`, with true if it has expired. It can
    /// be taken once. Returns `None` if there is none, or if the call has other arguments.
    pub(super) fn take(&self, token: &str, arguments: JsonObject) -> Option<(Question, bool)> {
        let mut pending = self.pending.lock();
        let at = pending.iter().position(|waiting| waiting.token == token)?;
        let PendingQuestion { expires, question, .. } = pending.remove(at)?;
        let is_same = parse_arguments(APPLY, arguments)
            .is_ok_and(|arguments: ApplyInput| arguments == question.arguments);
        is_same.then(|| (question, expires.is_some_and(|expires| expires <= Instant::now())))
    }
}

impl Question {
    pub(super) fn message(&self) -> &str {
        self.proposal.message()
    }
}

pub(super) struct SupervisorTool {
    pub(super) definition: Tool,
    pub(super) call: Box<SupervisorFn>,
}

type SupervisorFn = dyn Fn(&Supervisor, &Tree, JsonObject) -> ToolResult + Send + Sync;

fn tool<A: DeserializeOwned + JsonSchema + Any>(
    name: &'static str,
    description: &'static str,
    annotations: ToolAnnotations,
    call: fn(&Supervisor, &Tree, A) -> ToolResult,
) -> SupervisorTool {
    let definition = definition::<A>(name, description, annotations.open_world(false));
    let call = move |supervisor: &Supervisor, tree: &Tree, arguments| {
        call(supervisor, tree, parse_arguments(name, arguments)?)
    };
    SupervisorTool { definition, call: Box::new(call) }
}

/// Returns the tools of the supervisor that need no answer of a person.
pub(super) fn tools() -> &'static [SupervisorTool] {
    static TOOLS: LazyLock<Vec<SupervisorTool>> = LazyLock::new(|| {
        let reads = || ToolAnnotations::new().read_only(true).idempotent(true);
        vec![
            tool(
                "create_worker",
                "Creates a worker that is running, and returns its id. The worker's program \
                 records under this id: `swarmletfs mcp --as worker:ID` gives it tools in its own \
                 view of a workspace.",
                ToolAnnotations::new().destructive(false),
                create_worker,
            ),
            tool(
                "annotate_worker",
                "Sets the supervisor's notes on a worker, which its summary and index.json show. \
                 They replace earlier notes. The worker may have finished.",
                ToolAnnotations::new().destructive(false).idempotent(true),
                annotate,
            ),
            tool(
                "write_note",
                "Writes a file of the supervisor's notes, such as strategy.md or synthesis.md: a \
                 new one, or the whole content of an existing one. The tree has it as \
                 supervisor/PATH.",
                ToolAnnotations::new().destructive(true).idempotent(true),
                write_note,
            ),
            tool(
                "read_note",
                "Reads a file of the supervisor's notes. list_dir supervisor lists them.",
                reads(),
                read_note,
            ),
            tool(
                "changes",
                "Shows what a worker changed in its view of a workspace, as a diff within a \
                 budget: whole hunks, and what is left out is named.",
                reads(),
                changes,
            ),
        ]
    });
    &TOOLS
}

pub(super) fn apply_definition() -> &'static Tool {
    static APPLY_TOOL: LazyLock<Tool> = LazyLock::new(|| {
        definition::<ApplyInput>(
            APPLY,
            "Asks the person to apply the changes that a worker made in its view of a workspace. \
             The person sees the diff. Only a yes applies it: all changes or none. If others \
             changed a file meanwhile, nothing is applied, and the conflicts are listed.",
            ToolAnnotations::new().destructive(true).open_world(false),
        )
    });
    &APPLY_TOOL
}

#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApplyInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: String,
    /// Files and folders to apply, by their paths in the workspace [default: all]
    #[serde(default)]
    paths: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChangesInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: String,
    /// Most bytes of output [default: 16000]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of output
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

const DIFF_DEFAULT: u32 = 16_000;

fn changes(_: &Supervisor, tree: &Tree, input: ChangesInput) -> ToolResult {
    let worker = find_worker(tree, &input.worker)?.to_text().into_owned();
    let whole = format!("workers/{}/{WHOLE}", path_component(&worker));
    if tree.with_path(whole.as_bytes(), Symlinks::Follow, |_| Ok(())).is_err() {
        let shown = super::slice::echo(&worker);
        let text = format!("cannot show the changes of {shown}: it has recorded none yet");
        return Err(ToolError::new(text));
    }
    let bytes = input.bytes.or_else(|| input.tokens.is_none().then_some(DIFF_DEFAULT));
    let budget = budget(bytes, input.tokens)?;
    let file = budget.map_or(WHOLE.to_owned(), |budget| format!("changes.{}.diff", budget.name()));
    worker_file(tree, &worker, &file)
}

/// Returns the name of a worker that the served view shows.
fn find_worker(tree: &Tree, worker: &str) -> Result<Name, ToolError> {
    let id = worker_id(worker);
    let path = format!("workers/{}", path_component(&id));
    let found = tree.with_path(path.as_bytes(), Symlinks::Follow, |place| Ok(place.path()));
    let found = found.ok().and_then(|path| {
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        Name::new(name).ok()
    });
    found.ok_or_else(|| {
        let shown = super::slice::echo(&id);
        ToolError::new(format!("cannot find the worker {shown}; try list_workers"))
    })
}

fn with_warnings(text: String, store: &Store) -> NotedText {
    NotedText { text, note: joined_note(&store.take_warnings()) }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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

fn create_worker(supervisor: &Supervisor, tree: &Tree, input: CreateWorkerInput) -> ToolResult {
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AnnotateInput {
    /// The worker's id, or a unique beginning of it of at least 4 characters
    #[serde(alias = "worker_id")]
    worker: String,
    /// The notes, which replace earlier ones; an empty text removes them
    #[serde(alias = "notes")]
    text: String,
}

fn annotate(supervisor: &Supervisor, tree: &Tree, input: AnnotateInput) -> ToolResult {
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteNoteInput {
    /// The file, from the folder of the notes: strategy.md
    path: String,
    /// The whole content of the file
    content: String,
}

fn write_note(supervisor: &Supervisor, _: &Tree, input: WriteNoteInput) -> ToolResult {
    supervisor.must_see_notes()?;
    let store = supervisor.open()?;
    let path = input.path.strip_prefix("supervisor/").unwrap_or(&input.path);
    let written = store.write_note(path.as_bytes(), input.content.as_bytes(), NotePlace::Whole);
    let path = written.map_err(|error| ToolError::new(error.to_string()))?;
    Ok(with_warnings(format!("wrote {SUPERVISOR}/{}", path.display()), &store))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadNoteInput {
    /// The file, from the folder of the notes: strategy.md
    path: String,
    /// Number of lines to skip [default: 0]
    #[serde(default)]
    offset: u64,
    /// Most lines to return [default: 2000 lines or 16000 bytes, whichever comes first]
    limit: Option<u64>,
}

fn read_note(supervisor: &Supervisor, tree: &Tree, input: ReadNoteInput) -> ToolResult {
    supervisor.must_see_notes()?;
    let path = input.path.strip_prefix("supervisor/").unwrap_or(&input.path);
    if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(ToolError::new("cannot read this path: it leads elsewhere; try strategy.md"));
    }
    let path = format!("{SUPERVISOR}/{path}");
    let request = SliceRequest::Lines(input.offset, input.limit.unwrap_or(LINES));
    let read = OpenFile::at_path(tree, path.as_bytes()).and_then(|file| file.slice(request));
    read.map_err(ToolError::at(&path))
}
