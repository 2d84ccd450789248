//! A Model Context Protocol server for agents that cannot mount, over stdin and stdout or HTTP.
//!
//! Tools and resources return the bytes of the tree. The server translates arguments into paths and
//! queries, and bounds answers to a size that an agent can take, with notes on omissions. Requests
//! run on their own threads, so a long search delays no other request. A request that panics gets
//! an error.
//!
//! `tools` defines the tools that read, `supervisor` the tools that write, and `slice` the files by
//! their URIs; `worker` is the server of a worker in its sandbox; `stdio` and `http` are the
//! transports. `page` serves the live page for people over HTTP.
//!
//! # Modules
//!
//! Translates agent requests into calls of `tree`, over stdin and stdout (`stdio`) or HTTP
//! (`http`). `tools` groups the tools by topic, and `slice` cuts a file into parts and serves files
//! as resources. `supervisor` holds the tools that write. `worker` is a server of its own: `cli`
//! runs it as the command of a `run`, so that its tools for files and commands work inside of the
//! sandbox. `mcp` is a cargo feature, on by default. It is the only part that needs an async
//! runtime, and its runtime threads never read a file.
//!
//! # Questions
//!
//! The server asks the person behind a client by elicitation, in two ways. Up to the protocol of
//! 2025, the server sends a request of its own while the call of the tool waits. Since 2026-07-28,
//! the call is answered with the question, and the client repeats the call with the answer.

mod http;
mod page;
mod slice;
mod stdio;
mod supervisor;
mod tools;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::model::{
    BooleanSchema, CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult,
    ContentBlock, CustomRequest, CustomResult, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, ErrorCode, Implementation, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, PrimitiveSchemaDefinition, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
    ServerRequest, Tool,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceError};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};
use tracing::error;

pub use http::{HttpConfig, Token};
pub use page::PageConfig;
pub use supervisor::Supervisor;
pub use worker::{COMMAND_KEEPER, END, KILL, WorkerSession, serve_worker};

use supervisor::Question;
use swarmletfs_tree::tree::Tree;
use tools::{ToolError, ToolResult};

/// Interval between checks whether a store was replaced by another directory.
const REPLACED_INTERVAL: Duration = Duration::from_secs(1);
/// Number of requests that run at once. Others wait.
const REQUESTS: usize = 8;
/// Threads for other work: stdin and stdout, which may block, and the backfill.
const OTHER_THREADS: usize = 3;
const INSTRUCTIONS: &str = "The traces of a swarm of agents, as a tree of read-only files. Every \
worker has a folder `workers/<id>/` with summary (one screen, its claims checked against its \
record), evidence.txt (its tool outputs, failures first) and index.json beside its own files. \
Start with read_file `summary`, then use summarize or get_evidence for failed workers; search and \
grep find words and lines in all workers. A worker's claims about itself may be wrong: `!` in its \
checks marks them. read_file `README.md` has the details.";
const SUPERVISOR_INSTRUCTIONS: &str = " As the supervisor, create_worker starts the record of a \
new worker, annotate_worker keeps notes on one and write_note those on the swarm, changes shows what one changed in its view of a \
workspace, and apply_changes asks the person to apply it; it is there only if this client can ask \
the person.";

/// Serves one client until it closes the input that `open` returns, usually stdin.
///
/// Calls `open` inside of the runtime, so that it may open async streams. With a `supervisor`, the
/// client gets its tools, too.
///
/// # Errors
///
/// The runtime cannot be started, or `open` fails.
pub fn serve<R, W>(
    tree: ServedTree,
    supervisor: Option<Supervisor>,
    open: impl FnOnce() -> io::Result<(R, W)>,
) -> io::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    run(REQUESTS, async {
        let (input, output) = open()?;
        let (ended, input_ended) = watch::channel(false);
        let server = McpServer::new(tree, supervisor);
        let server = McpServer { input_ended: Some(input_ended), ..server };
        stdio::serve(server, stdio::Streams { input, output, ended, stop: None }).await;
        Ok(())
    })
}

/// Serves clients over HTTP until the process ends. Calls `ready` with the address once clients can
/// connect.
///
/// # Errors
///
/// The runtime cannot be started, or the address cannot be listened on.
pub fn serve_http(
    tree: ServedTree,
    supervisor: Option<Supervisor>,
    config: HttpConfig,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    run(REQUESTS, http::serve(McpServer::new(tree, supervisor), config, ready))
}

/// Serves the page for people until the process ends. Calls `ready` with the address once browsers
/// can connect.
///
/// # Errors
///
/// The runtime cannot be started, or the address cannot be listened on.
pub fn serve_page(
    tree: ServedTree,
    page: PageConfig,
    config: HttpConfig,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    run(REQUESTS, page::serve(tree, page, config, ready))
}

/// Runs `served` with threads for this many requests at once.
fn run(requests: usize, served: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(requests + OTHER_THREADS)
        .build()?;
    let ended = runtime.block_on(served);
    // Do not wait for threads: one may be blocked on a stdin that nobody closes.
    runtime.shutdown_background();
    ended
}

/// The tree to serve, reopened after its store was replaced.
pub struct ServedTree {
    /// The tree, and the time of the last check for a replaced store.
    current: Mutex<(Arc<Tree>, Instant)>,
    reopen: Box<Reopen>,
}

type Reopen = dyn Fn() -> Option<Tree> + Send + Sync;

impl ServedTree {
    /// Serves `tree`, and the result of `reopen` once another directory has replaced a store.
    /// `reopen` reports its own errors; after `None` the old tree is still served.
    pub fn new(
        tree: Tree,
        reopen: impl Fn() -> Option<Tree> + Send + Sync + 'static,
    ) -> ServedTree {
        ServedTree {
            current: Mutex::new((Arc::new(tree), Instant::now())),
            reopen: Box::new(reopen),
        }
    }

    fn get(&self) -> Arc<Tree> {
        let mut current = self.current.lock();
        let (tree, is_due) = (current.0.clone(), current.1.elapsed() >= REPLACED_INTERVAL);
        if is_due {
            // Concurrent requests use the old tree instead of waiting for this check.
            current.1 = Instant::now();
        }
        drop(current);
        if !is_due {
            return tree;
        }
        let replacement = if tree.view().is_replaced() { (self.reopen)() } else { None };
        let Some(replacement) = replacement.map(Arc::new) else { return tree };
        self.current.lock().0 = replacement.clone();
        replacement
    }
}

/// The request handler, shared by all clients.
#[derive(Clone)]
struct McpServer {
    tree: Arc<ServedTree>,
    supervisor: Option<Arc<Supervisor>>,
    /// Permits for requests that run, fewer than the runtime has threads: the streams use some.
    requests: Arc<Semaphore>,
    /// Changes once the client has closed its input. `None` if a client cannot receive requests.
    input_ended: Option<watch::Receiver<bool>>,
}

impl McpServer {
    fn new(tree: ServedTree, supervisor: Option<Supervisor>) -> McpServer {
        let (tree, supervisor) = (Arc::new(tree), supervisor.map(Arc::new));
        let requests = Arc::new(Semaphore::new(REQUESTS));
        McpServer { tree, supervisor, requests, input_ended: None }
    }

    fn tools(&self, context: &RequestContext<RoleServer>) -> Vec<Tool> {
        let mut all: Vec<Tool> = tools::all().iter().map(|tool| tool.definition.clone()).collect();
        if self.supervisor.is_some() {
            all.extend(supervisor::tools().iter().map(|tool| tool.definition.clone()));
            if AskChannel::for_client(context, self.input_ended.as_ref()).is_some() {
                all.push(supervisor::apply_definition().clone());
            }
        }
        all
    }

    /// Asks the person about the changes of a worker, and applies them after a yes.
    async fn apply_changes(
        &self,
        supervisor: &Arc<Supervisor>,
        request: CallToolRequestParams,
        (context, channel): (&RequestContext<RoleServer>, AskChannel),
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let repeated = match &channel {
            AskChannel::Rounds => request.request_state,
            AskChannel::Requests(_) => None,
        };
        if let Some(token) = repeated {
            let answer = Answer::from_responses(request.input_responses);
            let Some((question, is_expired)) = supervisor.take(&token, arguments) else {
                let text = "nothing was applied: no such question waits for an answer; call \
                            apply_changes again";
                return Ok(to_response(Err(ToolError::new(text))));
            };
            let answer = if is_expired { Answer::TimedOut } else { answer };
            return self.conclude(supervisor, question, answer).await;
        }
        let preparing = Arc::clone(supervisor);
        let prepared = self.work(move |tree| preparing.prepare(tree, arguments)).await?;
        let question = match prepared {
            Ok(question) => question,
            Err(error) => return Ok(to_response(Err(error))),
        };
        let message = question.message().to_owned();
        match channel {
            AskChannel::Requests(input_ended) => {
                let limit = supervisor.answer_limit;
                let answer = ask(context, input_ended, message, limit).await?;
                self.conclude(supervisor, question, answer).await
            }
            AskChannel::Rounds => {
                let requests = to_input_requests(message)?;
                Ok(match supervisor.wait(question) {
                    Ok(token) => InputRequiredResult::new(Some(requests), Some(token)).into(),
                    Err(error) => to_response(Err(error)),
                })
            }
        }
    }

    async fn conclude(
        &self,
        supervisor: &Arc<Supervisor>,
        question: Question,
        answer: Answer,
    ) -> Result<CallToolResponse, ErrorData> {
        let supervisor = Arc::clone(supervisor);
        let done = self.work(move |tree| match answer.refusal() {
            None => supervisor.carry_out(tree, &question),
            Some(reason) => Err(supervisor.refuse(&question, reason)),
        });
        Ok(to_response(done.await?))
    }

    /// Runs `work` on a blocking thread.
    ///
    /// # Errors
    ///
    /// An internal error, if `work` panics.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<T, ErrorData> {
        let server = self.clone();
        let permit = Arc::clone(&self.requests).acquire_owned().await.map_err(|_| closed())?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let tree = server.tree.get();
            let done = work(&tree);
            if tree.claim_backfill() {
                backfill(tree);
            }
            done
        });
        done.await.map_err(|failed| {
            error!(
                "a request failed: {}",
                if failed.is_panic() { "it panicked" } else { "it was canceled" }
            );
            ErrorData::internal_error(
                "internal server error; other requests are not affected",
                None,
            )
        })
    }
}

/// Returns the error for a request that a server receives at its end.
fn closed() -> ErrorData {
    ErrorData::internal_error("the server ends", None)
}

/// Does pending work in short slices, each queued behind the waiting requests.
fn backfill(tree: Arc<Tree>) {
    tokio::task::spawn_blocking(move || {
        if tree.backfill() {
            backfill(tree);
        }
    });
}

fn to_response(result: ToolResult) -> CallToolResponse {
    CallToolResponse::Complete(match result {
        Ok(output) => CallToolResult::success(output.blocks().map(ContentBlock::text).collect()),
        Err(error) => CallToolResult::error(vec![ContentBlock::text(error.0)]),
    })
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("swarmletfs", env!("CARGO_PKG_VERSION")))
            .with_instructions(match self.supervisor {
                Some(_) => [INSTRUCTIONS, SUPERVISOR_INSTRUCTIONS].concat(),
                None => INSTRUCTIONS.to_owned(),
            })
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools(&context)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = &*request.name;
        if let Some(tool) = tools::all().iter().find(|tool| tool.definition.name == name) {
            let arguments = request.arguments.unwrap_or_default();
            return Ok(to_response(self.work(move |tree| (tool.call)(tree, arguments)).await?));
        }
        if let Some(supervisor) = &self.supervisor {
            let tool = supervisor::tools().iter().find(|tool| tool.definition.name == name);
            if let Some(tool) = tool {
                let supervisor = Arc::clone(supervisor);
                let arguments = request.arguments.unwrap_or_default();
                let work = self.work(move |tree| (tool.call)(&supervisor, tree, arguments));
                return Ok(to_response(work.await?));
            }
            let channel = AskChannel::for_client(&context, self.input_ended.as_ref());
            if let Some(channel) = channel.filter(|_| name == supervisor::APPLY) {
                return self.apply_changes(supervisor, request, (&context, channel)).await;
            }
        }
        let tools = self.tools(&context);
        let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
        let text = format!("unknown tool {name:?}; try one of: {}", names.join(", "));
        Err(ErrorData::invalid_params(text, None))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        self.work(move |tree| slice::list_resources(tree, cursor.as_deref())).await?
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![slice::resource_template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = self.work(move |tree| slice::read_resource(tree, &request.uri)).await??;
        Ok(ReadResourceResponse::Complete(read))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(custom_request_error(&request))
    }
}

/// Returns the error for a request with an unknown method or invalid parameters.
fn custom_request_error(request: &CustomRequest) -> ErrorData {
    // A known method becomes a custom request only if its parameters did not parse.
    let method = &request.method;
    if stdio::METHODS.contains(&method.as_str()) {
        ErrorData::invalid_params(format!("invalid parameters for {method}"), None)
    } else {
        ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method {method:?}"), None)
    }
}

/// Name of the field that holds the yes, and of the question in an answer.
const FIELD: &str = "apply";

enum AskChannel {
    /// Requests to the client. The receiver changes once the client has closed its input.
    Requests(watch::Receiver<bool>),
    /// Answers that require input, after which the client repeats the call.
    Rounds,
}

impl AskChannel {
    /// Returns the way to ask the client of a request; `None` if it cannot be asked.
    /// `input_ended` is set for a connection that can carry requests to the client.
    fn for_client(
        context: &RequestContext<RoleServer>,
        input_ended: Option<&watch::Receiver<bool>>,
    ) -> Option<AskChannel> {
        let elicitation = context.client_capabilities()?.elicitation?;
        // A client that names no mode has forms.
        if elicitation.form.is_none() && elicitation.url.is_some() {
            return None;
        }
        let is_new = |version| version >= ProtocolVersion::V_2026_07_28;
        match context.protocol_version().is_some_and(is_new) {
            true => Some(AskChannel::Rounds),
            false => input_ended.cloned().map(AskChannel::Requests),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    /// Accepted, but the field does not say yes.
    AcceptedWithoutYes,
    Declined,
    /// The question was closed without an answer, or the call was canceled.
    Canceled,
    TimedOut,
    /// The client is gone or gave no valid answer.
    Failed,
}

impl Answer {
    /// Returns the reason why nothing is done; `None` for a yes.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Answer::Yes => None,
            Answer::AcceptedWithoutYes => Some("the answer was accepted without a yes"),
            Answer::Declined => Some("the person declined"),
            Answer::Canceled => Some("the question was canceled"),
            Answer::TimedOut => Some("nobody answered in time"),
            Answer::Failed => Some("the client returned no answer"),
        }
    }

    fn from_result(result: ElicitResult) -> Answer {
        let is_yes =
            |content: Value| content.get(FIELD).and_then(Value::as_bool).unwrap_or_default();
        match result.action {
            ElicitationAction::Accept if result.content.is_some_and(is_yes) => Answer::Yes,
            ElicitationAction::Accept => Answer::AcceptedWithoutYes,
            ElicitationAction::Decline => Answer::Declined,
            ElicitationAction::Cancel => Answer::Canceled,
            _ => Answer::Failed,
        }
    }

    fn from_responses(responses: Option<InputResponses>) -> Answer {
        let answer = responses.and_then(|mut responses| responses.remove(FIELD));
        let answer = answer.and_then(|answer| serde_json::from_value(answer).ok());
        answer.map_or(Answer::Failed, Answer::from_result)
    }
}

fn to_params(message: String) -> Result<ElicitRequestParams, ErrorData> {
    let field = BooleanSchema::new()
        .title("Apply these changes")
        .description("Yes changes the files of the workspace")
        .with_default(false);
    let requested_schema = ElicitationSchema::builder()
        .required_property(FIELD, PrimitiveSchemaDefinition::Boolean(field))
        .build()
        .map_err(|error| ErrorData::internal_error(error.to_owned(), None))?;
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// Returns the question as the input that an answer requires.
///
/// # Errors
///
/// The question has no valid form.
fn to_input_requests(message: String) -> Result<InputRequests, ErrorData> {
    let request = ElicitRequest::new(to_params(message)?);
    Ok(InputRequests::from([(FIELD.to_owned(), InputRequest::Elicitation(request))]))
}

/// Asks by a request to the client, and waits for the answer at most `limit`.
///
/// # Errors
///
/// The question has no valid form.
async fn ask(
    context: &RequestContext<RoleServer>,
    mut input_ended: watch::Receiver<bool>,
    message: String,
    limit: Duration,
) -> Result<Answer, ErrorData> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(to_params(message)?));
    let options = PeerRequestOptions::with_timeout(limit);
    let asked = async {
        let sent = context.peer.send_request_with_option(request, options).await?;
        sent.await_response().await
    };
    let response = tokio::select! {
        response = asked => response,
        () = context.ct.cancelled() => return Ok(Answer::Canceled),
        // An error means that the connection is gone.
        _ = input_ended.wait_for(|has_ended| *has_ended) => return Ok(Answer::Failed),
    };
    Ok(match response {
        Ok(result) => from_client_result(&result),
        Err(ServiceError::Timeout { .. }) => Answer::TimedOut,
        Err(error) => {
            tracing::debug!("a question was not answered: {error}");
            Answer::Failed
        }
    })
}

fn from_client_result(result: &ClientResult) -> Answer {
    // The variants of a result cannot be told apart by their form alone.
    let value = serde_json::to_value(result);
    let result = value.and_then(serde_json::from_value);
    result.map_or(Answer::Failed, Answer::from_result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_an_accepted_true_is_a_yes() {
        let answer = |answer: Value| {
            Answer::from_responses(Some(InputResponses::from([(FIELD.to_owned(), answer)])))
        };
        let accepted = |content| answer(json!({"action": "accept", "content": content}));
        assert_eq!(accepted(json!({"apply": true})), Answer::Yes);
        for no in [json!({"apply": false}), json!({"apply": "true"}), json!({}), json!(null)] {
            assert_eq!(accepted(no.clone()), Answer::AcceptedWithoutYes, "{no}");
        }
        let with_yes = |action| answer(json!({"action": action, "content": {"apply": true}}));
        assert_eq!(with_yes("decline"), Answer::Declined);
        assert_eq!(with_yes("cancel"), Answer::Canceled);
        assert_eq!(with_yes("maybe"), Answer::Failed);
        assert_eq!(answer(json!("yes")), Answer::Failed);
        assert_eq!(Answer::from_responses(None), Answer::Failed);
    }
}
