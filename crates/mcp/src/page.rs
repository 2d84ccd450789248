//! The live page for people: its files, its data, and a stream of changes.
//!
//! The page itself has no data, so anyone may have it. It reads the token from the part of its
//! address that a browser does not send, and sends it as any client does. A cookie would reach
//! every server on this host.
//!
//! While somebody looks, one task looks for changes every second, and sends each page the
//! difference to its own data. While nobody does, nothing is read.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_page::live::{self, PageSnapshot};
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::tree::Tree;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::http::{Answers, HttpConfig, HttpResponse, accept, listen, refused};
use super::{REQUESTS, ServedTree};

/// Time between two looks for changes while somebody looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time without a change after which a stream sends something, to notice that its reader is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Most streams at once. Each needs a connection.
const STREAMS_MAX: usize = 64;

/// Names and commands for the page.
#[derive(Debug, Clone)]
pub struct PageConfig {
    pub title: String,
    /// Options that make other commands see the same workers.
    pub options: String,
}

/// Serves the page until the process ends. Calls `ready` with the address once browsers can
/// connect.
///
/// # Errors
///
/// The address cannot be listened on.
pub(super) async fn serve(
    tree: ServedTree,
    page: PageConfig,
    http: HttpConfig,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let listener = listen(http.address)?;
    let address = listener.local_addr()?;
    let server = PageServer {
        tree: Arc::new(tree),
        requests: Arc::new(Semaphore::new(REQUESTS - 1)),
        streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        current: watch::Sender::new(None),
        opened: Arc::new(Notify::new()),
        address,
    };
    tokio::spawn(server.clone().follow(page));
    ready(address);
    accept(listener, http.token, server).await
}

#[derive(Clone)]
struct PageServer {
    tree: Arc<ServedTree>,
    /// Permits for requests that run, fewer than the runtime has threads.
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// The last snapshot, for all streams.
    current: watch::Sender<Option<Arc<PageSnapshot>>>,
    /// Notified when a stream begins.
    opened: Arc<Notify>,
    address: SocketAddr,
}

impl PageServer {
    /// Looks for changes while there are streams.
    async fn follow(self, page: PageConfig) {
        loop {
            if self.current.receiver_count() == 0 {
                self.opened.notified().await;
            }
            let before = self.current.borrow().clone();
            let (tree, page) = (self.tree.clone(), page.clone());
            let taken = tokio::task::spawn_blocking(move || {
                let tree = tree.get();
                let names = (page.title.as_str(), page.options.as_str());
                PageSnapshot::take(tree.renderer(), names, before.as_deref())
            });
            match taken.await {
                Ok(Ok(Some(snapshot))) => {
                    self.current.send_replace(Some(Arc::new(snapshot)));
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => warn!("cannot read the workers: {error}; trying again"),
                Err(_) => warn!("cannot read the workers: a task failed; trying again"),
            }
            // A stream that begins while nothing changes has the last snapshot already.
            sleep(INTERVAL).await;
        }
    }

    /// Returns a stream of events: all data, then each change.
    fn events(&self) -> HttpResponse {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            let text = "cannot follow the workers: 64 pages do so already; close one\n";
            return refused(StatusCode::SERVICE_UNAVAILABLE, text);
        };
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
        let mut snapshots = self.current.subscribe();
        snapshots.mark_changed();
        self.opened.notify_one();
        tokio::spawn(async move {
            let _permit = permit;
            let mut shown: Option<Arc<PageSnapshot>> = None;
            loop {
                let changed = timeout(KEEP_ALIVE, snapshots.changed()).await;
                let event = match changed {
                    Err(_) => ": nothing has changed\n\n".to_owned(),
                    Ok(Err(_)) => return,
                    Ok(Ok(())) => {
                        let Some(now) = snapshots.borrow_and_update().clone() else { continue };
                        let Ok(message) = now.message(shown.as_deref()) else { return };
                        shown = Some(now);
                        format!("data: {message}\n\n")
                    }
                };
                if sender.send_data(event.into()).await.is_err() {
                    return;
                }
            }
        });
        response("text/event-stream", body.boxed())
    }

    /// Returns the result of `make`, which is JSON.
    async fn json(
        &self,
        make: impl FnOnce(&Renderer) -> Result<String> + Send + 'static,
    ) -> HttpResponse {
        let Ok(permit) = self.requests.clone().acquire_owned().await else {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "the server ends\n");
        };
        let tree = self.tree.clone();
        let made = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let tree: Arc<Tree> = tree.get();
            make(tree.renderer())
        });
        match made.await {
            Ok(Ok(json)) => response("application/json", Full::from(json).boxed()),
            Ok(Err(Error::NotFound | Error::InvalidName)) => not_found(),
            Ok(Err(error)) => {
                warn!("cannot answer: {error}");
                refused(StatusCode::INTERNAL_SERVER_ERROR, "cannot read the workers\n")
            }
            Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "internal server error\n"),
        }
    }

    /// Returns true if a request names this server, and comes from its own page or from none. A
    /// page of another site could name this server by a host name of its own.
    fn is_own(&self, request: &Request<Incoming>) -> bool {
        let port = self.address.port();
        let hosts = [self.address.to_string(), format!("localhost:{port}")];
        let header = |name: HeaderName| {
            request.headers().get(name).map(|value| value.to_str().unwrap_or_default())
        };
        header(HOST).is_some_and(|host| hosts.iter().any(|own| own == host))
            && header(ORIGIN).is_none_or(|origin| {
                hosts.iter().any(|own| origin.strip_prefix("http://") == Some(own))
            })
    }
}

impl Answers for PageServer {
    fn public(&self, request: &Request<Incoming>) -> Option<HttpResponse> {
        if !self.is_own(request) {
            let text = "cannot answer: the host or the origin is not that of this server\n";
            return Some(refused(StatusCode::FORBIDDEN, text));
        }
        if request.method() != Method::GET {
            let text = "cannot answer: this page is read-only; use GET\n";
            return Some(refused(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let is_page = request.uri().path() == "/";
        is_page.then(|| response("text/html; charset=utf-8", Full::from(live::shell()).boxed()))
    }

    async fn answer(&self, request: Request<Incoming>) -> HttpResponse {
        let query = request.uri().query().unwrap_or_default();
        let ids = query.split('&').filter_map(|part| part.strip_prefix("id="));
        let ids = ids.map(|id| percent_decode_str(id).decode_utf8_lossy().into_owned());
        let ids: Vec<String> = ids.collect();
        match (request.uri().path(), ids.as_slice()) {
            ("/events", []) => self.events(),
            ("/panel", [id]) => {
                let id = id.clone();
                self.json(move |renderer| live::panel(renderer, &id)).await
            }
            ("/marks", _) => self.json(move |renderer| live::marks(renderer, &ids)).await,
            _ => not_found(),
        }
    }
}

fn not_found() -> HttpResponse {
    refused(StatusCode::NOT_FOUND, "cannot find this; use / in a browser\n")
}

fn response(kind: &'static str, body: BoxBody<Bytes, Infallible>) -> HttpResponse {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Ok(policy) = HeaderValue::from_str(&live::policy()) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}
