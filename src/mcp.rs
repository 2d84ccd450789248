//! The door for agents that cannot mount: the Model Context Protocol, over stdin and stdout or HTTP.
//!
//! What a tool or a resource answers are the bytes of the tree. This door translates and bounds: arguments into paths and
//! questions, answers into a size that an agent can take, with what was left out said. Requests are answered on threads of
//! their own, so a long search delays nobody; one that panics is an error to who asked.
//!
//! `tools` is what can be called, `resources` the files by their addresses, `stdio` and `http` how messages come.

mod http;
mod resources;
mod slice;
mod stdio;
mod tools;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult, ErrorCode, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tracing::error;

pub use http::{Http, Token};

use crate::tree::Tree;

/// So often it is looked whether another folder stands in the place of a store.
const LOOK: Duration = Duration::from_secs(1);
/// So many requests are answered at once.
const THREADS: usize = 8;
/// What a client is told at first.
const INSTRUCTIONS: &str = "The traces of a swarm of agents, as a tree of files that cannot be changed. Every worker is \
a folder `workers/<id>/` with summary (one screen, its claims checked against its record), evidence.txt (its tool outputs, \
failures first) and index.json beside its own files. Begin with read_file `summary`, then summarize or get_evidence for \
workers that failed; search and grep find words and lines in all of them. What a worker says of itself may be wrong: `!` in \
its checks says where. read_file `README.md` tells the rest.";

/// Serves one client until it closes what `open` gives to read from and to write to: most often stdin and stdout. It is
/// called where it may open what needs a runtime. Errors: the threads cannot be started, or it cannot be opened.
pub fn serve<R, W>(trees: Trees, open: impl FnOnce() -> io::Result<(R, W)>) -> io::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    run(async {
        let (input, output) = open()?;
        stdio::serve(Door::new(trees), input, output).await;
        Ok(())
    })
}

/// Serves clients over HTTP until the process ends. Errors: the threads cannot be started, or connections not taken.
pub fn serve_http(trees: Trees, http: Http, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    run(http::serve(Door::new(trees), http, ready))
}

fn run(served: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build()?;
    let ended = runtime.block_on(served);
    // A thread may still be reading a stdin that nobody closes.
    runtime.shutdown_background();
    ended
}

/// The tree that is served.
pub struct Trees {
    now: Mutex<(Arc<Tree>, Instant)>,
    again: Box<Again>,
}

type Again = dyn Fn() -> Option<Tree> + Send + Sync;

impl Trees {
    /// Serves `tree`, and what `again` makes when by then another folder stands in the place of a store; none where that
    /// cannot be served, which is said there.
    pub fn new(tree: Tree, again: impl Fn() -> Option<Tree> + Send + Sync + 'static) -> Trees {
        Trees { now: Mutex::new((Arc::new(tree), Instant::now())), again: Box::new(again) }
    }

    /// The tree of what is there now.
    fn get(&self) -> Arc<Tree> {
        let mut now = self.now.lock();
        let (tree, is_due) = (now.0.clone(), now.1.elapsed() >= LOOK);
        if is_due {
            // Whoever asks meanwhile is given what was there.
            now.1 = Instant::now();
        }
        drop(now);
        if !is_due {
            return tree;
        }
        let replacing = if tree.is_replaced() { (self.again)() } else { None };
        let Some(replacing) = replacing.map(Arc::new) else { return tree };
        self.now.lock().0 = replacing.clone();
        replacing
    }
}

/// The tree, to every client alike.
#[derive(Clone)]
struct Door {
    trees: Arc<Trees>,
}

impl Door {
    fn new(trees: Trees) -> Door {
        Door { trees: Arc::new(trees) }
    }

    /// Does `work` on a thread of its own. A panic there is an error here.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&Tree) -> T + Send + 'static) -> Result<T, ErrorData> {
        let door = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let tree = door.trees.get();
            let done = work(&tree);
            if tree.claim_backfill() {
                catch_up(tree);
            }
            done
        });
        done.await.map_err(|failed| {
            error!("a request failed: {}", if failed.is_panic() { "a panic" } else { "it was ended" });
            ErrorData::internal_error("this request failed by a fault of the server; others are not affected", None)
        })
    }
}

/// Reads on what was not read in time, a moment at a time behind the requests that wait.
fn catch_up(tree: Arc<Tree>) {
    tokio::task::spawn_blocking(move || {
        if tree.backfill() {
            catch_up(tree);
        }
    });
}

impl ServerHandler for Door {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all().iter().map(|tool| tool.described.clone()).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::all().iter().find(|tool| tool.described.name == request.name) else {
            let names: Vec<&str> = tools::all().iter().map(|tool| &*tool.described.name).collect();
            let text = format!("there is no tool {:?}; there are: {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(text, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let answer = self.work(move |tree| (tool.call)(tree, arguments)).await?;
        Ok(CallToolResponse::Complete(match answer {
            Ok(answer) => CallToolResult::success(answer.content()),
            Err(fault) => CallToolResult::error(fault.content()),
        }))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        self.work(move |tree| resources::list(tree, cursor.as_deref())).await?
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = self.work(move |tree| resources::read(tree, &request.uri)).await??;
        Ok(ReadResourceResponse::Complete(read))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // What is of the protocol and came as something else had other parameters.
        let method = &request.method;
        Err(if stdio::METHODS.contains(&method.as_str()) {
            ErrorData::invalid_params(format!("the parameters are not those of {method}"), None)
        } else {
            ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method {method:?} here"), None)
        })
    }
}
