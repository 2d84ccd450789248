//! A Model Context Protocol server for agents that cannot mount, over stdin and stdout or HTTP.
//!
//! Tools and resources return the bytes of the tree. The server translates arguments into paths and
//! queries, and bounds answers to a size that an agent can take, with notes on omissions. Requests
//! run on their own threads, so a long search delays no other request. A request that panics gets
//! an error.
//!
//! `tools` defines the tools that read, `supervisor` the tools that write, and `slice` the files by
//! their URIs; `elicitation` asks the person behind a client; `worker` is the server of a worker in
//! its sandbox; `stdio` and `http` are the transports.
//!
//! # Modules
//!
//! Translates agent requests into calls of `tree`, over stdin and stdout (`stdio`) or HTTP
//! (`http`). `tools` groups the tools by topic, and `slice` cuts a file into parts and serves files
//! as resources. `supervisor` holds the tools that write; `elicitation` asks the person behind a
//! client, by a request of the server or by an answer that requires input, as the protocol of the
//! client has it. `worker` is a server of its own: `cli` runs it as the command of a `run`, so that
//! its tools for files and commands work inside of the sandbox. `mcp` is a cargo feature, on by
//! default. It is the only part that needs an async runtime, and its runtime threads never read a
//! file.

mod elicitation;
mod http;
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
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, ErrorCode, Implementation, InputRequiredResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};
use tracing::error;

pub use http::{HttpConfig, Token};
pub use supervisor::Supervisor;
pub use worker::{COMMAND_KEEPER, END, KILL, WorkerSession, serve_worker};

use self::elicitation::{Answer, AskChannel};
use self::supervisor::{Question, Waiting};
use self::tools::{ToolError, ToolResult};
use swarmletfs_tree::tree::Tree;

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
        let replacement = if tree.is_replaced() { (self.reopen)() } else { None };
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
            return match supervisor.take(&token, arguments) {
                Waiting::Found(question) => self.conclude(supervisor, *question, answer).await,
                Waiting::Expired(question) => {
                    self.conclude(supervisor, *question, Answer::TimedOut).await
                }
                Waiting::Unknown => {
                    let text = "nothing was applied: no such question waits for an answer; call \
                                apply_changes again";
                    Ok(to_response(Err(ToolError::new(text))))
                }
            };
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
                let answer = elicitation::ask(context, input_ended, message, limit).await?;
                self.conclude(supervisor, question, answer).await
            }
            AskChannel::Rounds => {
                let requests = elicitation::to_input_requests(message)?;
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
