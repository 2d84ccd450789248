//! The server of a worker: tools for the files of its view of a workspace.
//!
//! This server runs inside the sandbox of `swarmletfs run`, so the kernel confines every tool to
//! the draft and to the worker's own folder. Each call is recorded before its result is sent. The
//! names, arguments and defaults of the tools are those that agents know from other programs with
//! tools for files.
//!
//! `path` parses paths, `files` reads and writes, `find` searches, `execute` runs commands, whose
//! `processes` end with them if they are ended.

mod execute;
mod files;
mod find;
mod path;
mod processes;
mod session;

use std::io;
use std::sync::{Arc, LazyLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, Implementation, JsonObject, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tracing::error;

pub use self::session::WorkerSession;
use super::stdio::{self, Streams};
use super::tools::ToolResult;

/// Number of calls that run at once. A command may take long.
const CALLS: usize = 32;
/// Number of threads that the calls leave to stdin, stdout and their copies.
const SPARE_THREADS: usize = 8;

/// Serves the tools of a worker to one client, until it closes the input that `open` returns or
/// finishes the worker.
///
/// # Errors
///
/// The runtime cannot be started, or `open` fails.
pub fn serve_worker<R, W>(
    session: WorkerSession,
    open: impl FnOnce() -> io::Result<(R, W)>,
) -> io::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    super::run(CALLS + SPARE_THREADS, async {
        let (input, output) = open()?;
        let (finished, stop) = watch::channel(false);
        let (session, slots) = (Arc::new(session), Arc::new(Semaphore::new(CALLS)));
        let server = WorkerServer { session, finished, slots };
        let ended = watch::Sender::new(false);
        stdio::serve(server, Streams { input, output, ended, stop: Some(stop) }).await;
        Ok(())
    })
}

/// The request handler.
#[derive(Clone)]
struct WorkerServer {
    session: Arc<WorkerSession>,
    /// Becomes true once the worker has finished.
    finished: watch::Sender<bool>,
    /// One permit for each call that may run. The others wait, so that they do not take the threads
    /// of the connection.
    slots: Arc<Semaphore>,
}

/// A running call of a tool.
struct ToolRun<'a> {
    session: &'a WorkerSession,
    /// Returns true once the client has canceled the call.
    is_canceled: &'a dyn Fn() -> bool,
}

/// A tool of a worker.
struct WorkerTool {
    definition: Tool,
    call: WorkerFn,
}

type ToolBody = fn(&ToolRun<'_>, JsonObject) -> ToolResult;

/// The implementation of a tool.
#[derive(Clone, Copy)]
enum WorkerFn {
    /// Its result is recorded as the output of a call.
    Recorded(ToolBody),
    /// It records what it does itself.
    Recording(ToolBody),
    /// It ends the worker.
    Finish(ToolBody),
}

/// Creates the definition of a tool. One that changes nothing is read-only.
fn definition<A: JsonSchema + std::any::Any>(
    name: &'static str,
    description: &'static str,
    is_read_only: bool,
) -> Tool {
    let annotations = ToolAnnotations::new().read_only(is_read_only).open_world(false);
    super::tools::definition::<A>(name, description, annotations)
}

/// Returns all tools.
fn tools() -> &'static [WorkerTool] {
    static TOOLS: LazyLock<Vec<WorkerTool>> = LazyLock::new(|| {
        let (execute, record) = (vec![execute::tool()], session::tools());
        [files::tools(), find::tools(), execute, record].into_iter().flatten().collect()
    });
    &TOOLS
}

impl WorkerServer {
    /// Calls a tool on a thread of its own, and records the call.
    async fn call(
        &self,
        tool: &'static WorkerTool,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let (session, ct) = (Arc::clone(&self.session), context.ct.clone());
        let ends = matches!(tool.call, WorkerFn::Finish(_));
        let work = move || {
            let is_canceled = || ct.is_cancelled();
            let run = ToolRun { session: &session, is_canceled: &is_canceled };
            match tool.call {
                WorkerFn::Recorded(call) => {
                    session
                        .record(&tool.definition.name, arguments, |arguments| call(&run, arguments))
                }
                WorkerFn::Recording(call) | WorkerFn::Finish(call) => call(&run, arguments),
            }
        };
        let _slot = tokio::select! {
            // The semaphore is never closed.
            slot = self.slots.acquire() => slot,
            () = context.ct.cancelled() => {
                let text = "the call was canceled before it began".to_owned();
                return Ok(CallToolResult::error(vec![ContentBlock::text(text)]));
            }
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|failed| {
            error!("a tool failed: {failed}");
            ErrorData::internal_error("internal server error; other calls are not affected", None)
        })?;
        Ok(match done {
            Ok(output) => {
                if ends {
                    self.finished.send_replace(true);
                }
                CallToolResult::success(output.blocks().map(ContentBlock::text).collect())
            }
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.0)]),
        })
    }
}

impl ServerHandler for WorkerServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(
                env!("CARGO_PKG_NAME"),
                env!("CARGO_PKG_VERSION"),
            ))
            .with_instructions(self.session.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = tools().iter().map(|tool| tool.definition.clone());
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools().iter().find(|tool| tool.definition.name == request.name) else {
            let names: Vec<&str> = tools().iter().map(|tool| &*tool.definition.name).collect();
            let text = format!("unknown tool {:?}; try one of: {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(text, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        Ok(CallToolResponse::Complete(self.call(tool, arguments, &context).await?))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(super::custom_request_error(&request))
    }
}
