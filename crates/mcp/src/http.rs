//! The HTTP transport: one request, one answer, on the loopback only, and only with the token.
//!
//! No state is kept between requests. Three checks keep browsers out: the token, the host name of
//! the request, and the refusal of any request with an origin.
//!
//! Any program on the machine can connect. A request without the token is refused before its body
//! is read, and the time for headers and bodies is bounded. So are the number and the time of the
//! connections that have not presented the token yet. A full table evicts its oldest connection
//! rather than refuse the newest: a client sends its token at once, while a silent connection only
//! grows old.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::McpServer;
use super::stdio::FRAME_MAX;

pub(super) const PATH: &str = "/mcp";
/// Shortest token, in bytes.
const TOKEN_MIN: usize = 16;
const PENDING_MAX: usize = 1_024;
/// Connections to accept before other tasks run. A turn of the runtime is 61 steps, and each
/// connection takes two: accepting more at a time would evict connections that were never read.
const BATCH: usize = 16;
/// Connections that may wait to be accepted; the system may allow fewer. Beyond them, connecting
/// takes a second and more.
const BACKLOG: u32 = 4_096;
/// Time from the start of a connection to its first request with the token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from one request to the end of the next one's headers, once a connection has presented the
/// token.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const HEADERS_MAX: usize = 16 << 10;
/// Time to wait after accept has failed and there was no connection to evict.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Mcp = StreamableHttpService<McpServer, LocalSessionManager>;
pub(super) type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

/// Answers the requests of a server.
pub(super) trait Answers: Clone + Send + Sync + 'static {
    /// Returns an answer that needs no token, if there is one. It has no data.
    fn public(&self, _: &Request<Incoming>) -> Option<HttpResponse> {
        None
    }

    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = HttpResponse> + Send;
}

impl Answers for TowerToHyperService<Mcp> {
    async fn answer(&self, request: Request<Incoming>) -> HttpResponse {
        answer(self, request).await
    }
}

/// The secret of the clients. It holds only a hash and has no `Debug`, so that no log can show it.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// Creates a token.
    ///
    /// # Errors
    ///
    /// A message, if `text` is too short or has other characters than printable ASCII.
    pub fn new(text: &str) -> Result<Token, String> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() >= TOKEN_MIN && is_plain {
            true => Ok(Token(blake3::hash(text.as_bytes()))),
            false => Err(format!(
                "a token is at least {TOKEN_MIN} printable ASCII characters without a space"
            )),
        }
    }

    /// Returns true if a request has the token. Compares hashes in constant time, so that the
    /// duration reveals nothing of the token.
    fn authorizes<B>(&self, request: &Request<B>) -> bool {
        let header = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = header
            .and_then(|value| value.split_at_checked(7))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        bearer.is_some_and(|(_, token)| blake3::hash(token.trim_ascii()) == self.0)
    }
}

pub struct HttpConfig {
    /// Loopback address; port 0 is any free port.
    pub address: SocketAddr,
    pub token: Token,
}

/// Serves until the process ends. Calls `ready` with the address once clients can connect.
///
/// # Errors
///
/// The address cannot be listened on.
pub(super) async fn serve(
    server: McpServer,
    http: HttpConfig,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let listener = listen(http.address)?;
    let address = listener.local_addr()?;
    let config = StreamableHttpServerConfig::default();
    // Allow the address that is served, in addition to the default hosts.
    let hosts: Vec<String> =
        config.allowed_hosts.iter().cloned().chain([address.ip().to_string()]).collect();
    let config = config
        .with_allowed_hosts(hosts)
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(FRAME_MAX)
        .enforce_origin_validation();
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        LocalSessionManager::default().into(),
        config,
    );
    ready(address);
    accept(listener, http.token, TowerToHyperService::new(service)).await
}

/// Answers the requests of all connections until the process ends.
pub(super) async fn accept(
    listener: TcpListener,
    token: Token,
    service: impl Answers,
) -> io::Result<()> {
    let max = max_pending();
    let pending = Pending::new(max, TOKEN_TIMEOUT);
    let batch = (max / 4).clamp(1, BATCH);
    let mut accepted = 0_usize;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (entry, closed) = pending.add();
                tokio::spawn(converse(stream, entry, closed, service.clone(), token.clone()));
                accepted = accepted.wrapping_add(1);
                if accepted.is_multiple_of(batch) {
                    tokio::task::yield_now().await;
                }
            }
            // The client has disconnected already.
            Err(error) if is_disconnect(&error) => debug!("no connection: {error}"),
            // Usually no descriptors are left. The connection still waits, so accept would fail
            // again at once.
            Err(error) => {
                warn!("cannot accept connections: {error}; trying again");
                if pending.evict_oldest() {
                    // The evicted connection closes meanwhile.
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server need not wait for the connections of the previous one to expire.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns the limit on connections without the token: at most half the descriptors, since files
/// need them too.
fn max_pending() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / 2).unwrap_or(usize::MAX).min(PENDING_MAX)
}

/// Returns true if accept failed only because the client went away.
fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection until it closes, or until `closed` completes.
async fn converse(
    stream: TcpStream,
    entry: PendingEntry,
    closed: impl Future<Output = ()>,
    service: impl Answers,
    token: Token,
) {
    let answer = service_fn(|request: Request<Incoming>| {
        let is_authorized = token.authorizes(&request);
        if is_authorized {
            entry.authenticated();
        }
        let service = &service;
        async move {
            Ok::<_, Infallible>(match service.public(&request) {
                Some(answer) => answer,
                None if is_authorized => service.answer(request).await,
                None => unauthorized(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_header_size(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        // A token that arrives at the last moment counts.
        biased;
        ended = connection => if let Err(error) = ended {
            debug!("a connection failed: {error}");
        },
        () = closed => debug!("closed a connection that did not present the token"),
    }
}

/// Answers a request once its body is there.
async fn answer(service: &TowerToHyperService<Mcp>, request: Request<Incoming>) -> HttpResponse {
    if request.uri().path() != PATH {
        return refused(StatusCode::NOT_FOUND, "cannot find this path; use /mcp\n");
    }
    let (head, body) = request.into_parts();
    let body = match timeout(BODY_TIMEOUT, Limited::new(body, FRAME_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return refused(
                StatusCode::PAYLOAD_TOO_LARGE,
                "cannot read the body: it is longer than 16 MiB\n",
            );
        }
        Ok(Err(_)) => {
            return refused(
                StatusCode::BAD_REQUEST,
                "cannot read the body: it is malformed or cut off\n",
            );
        }
        Err(_) => {
            let text = "cannot read the body: it did not arrive within 10 seconds\n";
            return refused(StatusCode::REQUEST_TIMEOUT, text);
        }
    };
    let Ok(answer) = service.call(Request::from_parts(head, Full::new(body))).await;
    answer
}

/// Refuses a request without the token, and closes the connection.
fn unauthorized() -> HttpResponse {
    let text = "cannot answer: the token is missing or wrong; send the header Authorization: \
                Bearer TOKEN\n";
    let mut answer = refused(StatusCode::UNAUTHORIZED, text);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

/// Returns an answer that ends its connection: part of the request may be unread.
pub(super) fn refused(status: StatusCode, text: &'static str) -> HttpResponse {
    let mut answer = Response::new(Full::from(text).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

struct Pending {
    table: Mutex<Table>,
    max: usize,
    token_timeout: Duration,
}

/// Connections by the order of their arrival.
#[derive(Default)]
struct Table {
    next: u64,
    /// Sends to evict a connection. Dropped unsent once the connection is authenticated or closed.
    evict: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Pending {
    /// Returns an empty table. `max` is at least 1.
    fn new(max: usize, token_timeout: Duration) -> Arc<Pending> {
        Arc::new(Pending { table: Mutex::default(), max: max.max(1), token_timeout })
    }

    /// Adds a connection, and evicts the oldest one if the table is full.
    ///
    /// Returns the connection's entry, and a future that completes when the connection must be
    /// closed. The future never completes once the connection is authenticated.
    fn add(self: &Arc<Pending>) -> (PendingEntry, impl Future<Output = ()> + use<>) {
        let (evict, evicted) = oneshot::channel();
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        table.evict.insert(id, evict);
        if table.evict.len() > self.max {
            table.evict_oldest();
        }
        drop(table);
        let evicted = timeout(self.token_timeout, evicted);
        let closed = async {
            if let Ok(Err(_)) = evicted.await {
                pending::<()>().await;
            }
        };
        (PendingEntry { pending: self.clone(), id }, closed)
    }

    /// Evicts the oldest connection. Returns false if there is none.
    fn evict_oldest(&self) -> bool {
        self.table.lock().evict_oldest()
    }
}

impl Table {
    fn evict_oldest(&mut self) -> bool {
        let Some((_, evict)) = self.evict.pop_first() else { return false };
        // An error means that the connection is closing anyway.
        let _ = evict.send(());
        true
    }
}

/// A connection's entry in the table. Dropping it removes the entry.
struct PendingEntry {
    pending: Arc<Pending>,
    id: u64,
}

impl PendingEntry {
    /// Removes the connection from the table, so that it may stay open.
    fn authenticated(&self) {
        self.pending.table.lock().evict.remove(&self.id);
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        self.authenticated();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// Runs `test` on a runtime with timers.
    fn block_on(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    /// Returns true if `future` completes without waiting.
    async fn is_ready(future: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = future => true,
            () = std::future::ready(()) => false,
        }
    }

    #[test]
    fn a_full_table_evicts_the_oldest_connection() {
        block_on(async {
            let table = Pending::new(2, NEVER);
            let (_first, first_closed) = table.add();
            let (_second, second_closed) = table.add();
            let mut second_closed = pin!(second_closed);
            let (_third, third_closed) = table.add();
            assert!(is_ready(first_closed).await);
            assert!(!is_ready(&mut second_closed).await);
            assert!(table.evict_oldest());
            assert!(is_ready(second_closed).await);
            assert!(!is_ready(third_closed).await);
        });
    }

    #[test]
    fn an_authenticated_connection_is_neither_evicted_nor_timed_out() {
        block_on(async {
            let table = Pending::new(1, Duration::ZERO);
            let (client, client_closed) = table.add();
            client.authenticated();
            let (_silent, silent_closed) = table.add();
            assert!(table.evict_oldest() && !table.evict_oldest());
            silent_closed.await;
            assert!(!is_ready(client_closed).await);
        });
    }

    #[test]
    fn a_connection_without_a_token_is_closed_in_time() {
        block_on(async {
            let table = Pending::new(1, Duration::from_millis(1));
            let (_silent, closed) = table.add();
            closed.await;
        });
    }

    #[test]
    fn a_closed_connection_leaves_the_table() {
        let table = Pending::new(1, NEVER);
        block_on(async {
            for _ in 0..3 {
                let (entry, closed) = table.add();
                assert!(!is_ready(closed).await);
                drop(entry);
            }
        });
        assert!(table.table.lock().evict.is_empty());
    }
}
