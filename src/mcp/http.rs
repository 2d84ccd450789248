//! Messages over HTTP: one request, one answer, on the loopback only, and only to who knows the token.
//!
//! Nothing is kept between requests. A browser is kept out three times: by the token, by the name of the host that it
//! thinks it speaks to, and by having an origin at all.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tracing::debug;

use super::Door;
use super::stdio::FRAME_MAX;

/// The path that is answered.
pub(super) const PATH: &str = "/mcp";
/// The shortest token that is taken, in bytes.
const TOKEN_MIN: usize = 16;

/// What a client must know. It is never printed by accident.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// The token `text`. The error is a sentence.
    pub fn new(text: &str) -> Result<Token, String> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() >= TOKEN_MIN && is_plain {
            true => Ok(Token(blake3::hash(text.as_bytes()))),
            false => Err(format!("a token is at least {TOKEN_MIN} printable ASCII characters without a space")),
        }
    }

    /// Whether a request has it. How long this takes tells nothing of it: digests are compared, in constant time.
    fn is_in<B>(&self, request: &Request<B>) -> bool {
        let said = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let said = said
            .and_then(|value| value.split_at_checked(7))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        said.is_some_and(|(_, token)| blake3::hash(token.trim_ascii()) == self.0)
    }
}

/// Where to serve, and for whom.
pub struct Http {
    /// An address of the loopback; port 0 is any that is free.
    pub address: SocketAddr,
    /// What clients must know.
    pub token: Token,
}

/// Serves until the process ends; `ready` is told where.
pub(super) async fn serve(door: Door, http: Http, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let listener = TcpListener::bind(http.address).await?;
    ready(listener.local_addr()?);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(FRAME_MAX)
        .enforce_origin_validation();
    let service = StreamableHttpService::new(move || Ok(door.clone()), LocalSessionManager::default().into(), config);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // The client is gone again, or there are too many.
            Err(error) => {
                debug!("no connection: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let (service, token) = (TowerToHyperService::new(service.clone()), http.token.clone());
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (service, is_known) = (service.clone(), token.is_in(&request));
            async move {
                if !is_known {
                    return refused(
                        StatusCode::UNAUTHORIZED,
                        "the token is missing or wrong: Authorization: Bearer TOKEN\n",
                    );
                }
                if request.uri().path() != PATH {
                    return refused(StatusCode::NOT_FOUND, "the path is /mcp\n");
                }
                hyper::service::Service::call(&service, request).await
            }
        });
        tokio::spawn(async move {
            let connection =
                http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                debug!("a connection: {error}");
            }
        });
    }
}

fn refused(status: StatusCode, text: &'static str) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let mut response = Response::new(Full::from(text).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Ok(response)
}
