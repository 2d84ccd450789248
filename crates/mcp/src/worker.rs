//! The server of a worker: tools for the files of its view of a workspace.
//!
//! This server runs inside the sandbox of `swarmletfs run`, so the kernel confines every tool to
//! the draft and to the worker's own folder. Each call is recorded before its result is sent. The
//! names, arguments and defaults of the tools are familiar to agents from other programs with tools
//! for files.
//!
//! `files` parses paths, reads and writes, `find` searches, and `execute` runs commands, which
//! `session` starts and ends.

mod execute;
mod files;
mod find;
mod session;

pub use self::session::{COMMAND_KEEPER, END, KILL, WorkerSession};

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, Implementation,
    JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tracing::error;

use super::stdio::{self, Streams};
use super::tools::{ToolResult, definition, parse_arguments};

/// Number of calls that run at once. A command may take long. Others wait.
const CALLS: u32 = 32;
/// Time that calls may run on after the end of the input.
const END_GRACE: Duration = Duration::from_secs(5);
/// Longest time to wait for canceled calls at the end.
const CANCEL_MAX: Duration = Duration::from_secs(30);

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
    super::run(CALLS as usize, async {
        let (input, output) = open()?;
        let (finished, stop) = watch::channel(false);
        let (ended, mut input_ended) = watch::channel(false);
        let calls = Arc::new(Semaphore::new(CALLS as usize));
        let is_left = Arc::new(AtomicBool::new(false));
        let server = WorkerServer {
            session: Arc::new(session),
            finished,
            calls: Arc::clone(&calls),
            is_left: Arc::clone(&is_left),
        };
        let leaving = Arc::clone(&is_left);
        // A client that is gone must not keep a command running.
        tokio::spawn(async move {
            if input_ended.wait_for(|ended| *ended).await.is_ok() {
                tokio::time::sleep(END_GRACE).await;
                leaving.store(true, Ordering::Relaxed);
            }
        });
        stdio::serve(server, Streams { input, output, ended, stop: Some(stop) }).await;
        // Calls that the client has canceled are still to be recorded.
        is_left.store(true, Ordering::Relaxed);
        if tokio::time::timeout(CANCEL_MAX, calls.acquire_many(CALLS)).await.is_err() {
            error!("calls of tools go on; the record of the worker lacks their ends");
        }
        Ok(())
    })
}

#[derive(Clone)]
struct WorkerServer {
    session: Arc<WorkerSession>,
    finished: watch::Sender<bool>,
    /// Permits for calls that run, fewer than the runtime has threads: the streams use some.
    calls: Arc<Semaphore>,
    /// Becomes true some time after the end of the input: calls that run are canceled then.
    is_left: Arc<AtomicBool>,
}

struct ToolRun<'a> {
    session: &'a WorkerSession,
    /// Returns true once the client has canceled the call, or is gone.
    is_canceled: &'a dyn Fn() -> bool,
}

struct WorkerTool {
    definition: Tool,
    call: Box<WorkerFn>,
}

type WorkerFn = dyn Fn(&ToolRun<'_>, JsonObject) -> ToolResult + Send + Sync;

impl WorkerTool {
    /// Creates a tool that records its own work.
    fn new<A: JsonSchema + Any>(
        name: &'static str,
        description: &'static str,
        is_read_only: bool,
        call: impl Fn(&ToolRun<'_>, JsonObject) -> ToolResult + Send + Sync + 'static,
    ) -> WorkerTool {
        let annotations = ToolAnnotations::new().read_only(is_read_only).open_world(false);
        let definition = definition::<A>(name, description, annotations);
        WorkerTool { definition, call: Box::new(call) }
    }

    /// Creates a tool whose result is recorded as the output of a call. One that changes nothing is
    /// read-only.
    fn recorded<A: DeserializeOwned + JsonSchema + Any>(
        name: &'static str,
        description: &'static str,
        is_read_only: bool,
        call: fn(&ToolRun<'_>, A) -> ToolResult,
    ) -> WorkerTool {
        WorkerTool::new::<A>(name, description, is_read_only, move |run, arguments| {
            run.session
                .record(name, arguments, |arguments| call(run, parse_arguments(name, arguments)?))
        })
    }
}

fn tools() -> &'static [WorkerTool] {
    static TOOLS: LazyLock<Vec<WorkerTool>> = LazyLock::new(|| {
        let (execute, record) = (vec![execute::tool()], session::tools());
        [files::tools(), find::tools(), execute, record].into_iter().flatten().collect()
    });
    &TOOLS
}

impl WorkerServer {
    async fn call(
        &self,
        tool: &'static WorkerTool,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (session, ct) = (Arc::clone(&self.session), context.ct.clone());
        let ends = tool.definition.name == session::FINISH;
        let is_left = Arc::clone(&self.is_left);
        let permit = Arc::clone(&self.calls).acquire_owned().await.map_err(|_| super::closed())?;
        let work = move || {
            let _permit = permit;
            let is_canceled = || ct.is_cancelled() || is_left.load(Ordering::Relaxed);
            let run = ToolRun { session: &session, is_canceled: &is_canceled };
            (tool.call)(&run, arguments)
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|failed| {
            error!("a tool failed: {failed}");
            ErrorData::internal_error("internal server error; other calls are not affected", None)
        })?;
        if ends && done.is_ok() {
            self.finished.send_replace(true);
        }
        Ok(super::to_response(done))
    }
}

impl ServerHandler for WorkerServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("swarmletfs", env!("CARGO_PKG_VERSION")))
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
        self.call(tool, arguments, &context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(super::custom_request_error(&request))
    }
}
